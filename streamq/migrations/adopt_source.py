"""What was built by hand, seen before anything moves: may it be adopted, and what would become of it? Writes nothing."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import msgspec

from streamq._requests import Command, Pipeline, Plan, Reply, ask, ask_each, groups_of, named_texts, text, texts
from streamq._times import moment
from streamq.errors import ConfigurationError, MigrationError
from streamq.keys import NAME, Keys, check_name, is_ours, migration_record
from streamq.migrations import discovery, gate

SAMPLE: Final = 100
"""Entries, and payloads of timers, that are looked at before anything moves."""

_LEAST_MS: Final = 10**11
"""March 1973: times below it are no ms, but seconds."""

_OPTIONS: Final = {"payload": "payload-field"}


@dataclass(frozen=True, slots=True)
class Source:
    """What was built by hand, as the caller names it.

    Attributes:
        stream: Key of the stream.
        group: The group that streamq's workers are to use.
        dead: Key of the stream of its dead letters.
        scheduled: Key of the sorted set, ID -> due time in ms.
        bodies: Key of the hash, ID -> payload.
        payload: Field of the entries that holds the payload.
    """

    stream: str
    group: str
    dead: str | None = None
    scheduled: str | None = None
    bodies: str | None = None
    payload: str = "job"

    @property
    def kinds(self) -> dict[str, str]:
        """The keys, and what each must hold."""
        named_ = {self.stream: "stream", self.dead: "stream", self.scheduled: "zset", self.bodies: "hash"}
        return {key: kind for key, kind in named_.items() if key is not None}

    @property
    def said(self) -> dict[str, str]:
        """As the record has it."""
        return {
            "stream": self.stream, "dead": self.dead or "", "scheduled": self.scheduled or "", "bodies": self.bodies or "",
            "group": self.group, "payload": self.payload,
        }  # fmt: skip


class Sample(msgspec.Struct):
    """Of the first entries, or payloads of timers.

    Attributes:
        looked: How many were looked at.
        without: How many of them have no payload.
        undecodable: How many have one that is no JSON.
        fields: Names of the fields that the first has.
    """

    looked: int = 0
    without: int = 0
    undecodable: int = 0
    fields: list[str] = []

    @property
    def good(self) -> int:
        """How many can be read as they are."""
        return self.looked - self.without - self.undecodable


class Group(msgspec.Struct):
    """A group of the stream."""

    name: str
    pending: int
    last: str


class Found(msgspec.Struct, kw_only=True):
    """What there is to be moved.

    Attributes:
        name: The stream that it becomes.
        state: ``new``, ``begun``, ``adopted`` or ``removed``.
        at: When it was adopted.
        way: How the stream moves: ``rename``, or ``copy`` where the payload gets another name, or there is one already;
            ``keep`` on a cluster: it is copied, and stays until it is removed.
        first_due: When the first timer is due.
        last_due: When the last one is.
        options: What the stream's `StreamOptions` need.
    """

    name: str
    state: str = "new"
    at: datetime | None = None
    way: str = "rename"
    entries: int = 0
    groups: list[Group] = []
    dead: int = 0
    scheduled: int = 0
    bodies: int = 0
    first_due: datetime | None = None
    last_due: datetime | None = None
    sample: Sample = msgspec.field(default_factory=Sample)
    timers: Sample = msgspec.field(default_factory=Sample)
    options: str = ""

    @property
    def things(self) -> int:
        """All that is to be moved."""
        return self.entries + self.dead + max(self.scheduled, self.bodies)

    @property
    def is_done(self) -> bool:
        """Whether there is nothing to move, nor to note."""
        if self.way == "keep":
            return self.state in {"adopted", "removed"}
        in_hand = any(group.pending for group in self.groups)
        return self.state in {"adopted", "removed"} and not self.things and not in_hand


def look(source: Source, keys: Keys) -> Plan[Found]:
    """See what there is, and that all of it may be adopted. Writes nothing. Some ten requests.

    Raises:
        ConfigurationError: A key is missing or holds something else, or the group is not there.
        MigrationError: There is such a stream already.
    """
    _check_names(source, keys)
    yield from gate.check(keys)
    found = Found(name=keys.name)
    noted = yield from ask(record(keys))
    _check_record(source, keys, noted, found)
    there = yield from _check_kinds(source, known=found.state != "new")
    target = yield from ask_each(Pipeline(tuple(Command(("TYPE", key), (key,), text) for key in keys.holding)))
    if found.state == "new" and any(kind != "none" for kind in target):
        raise MigrationError(
            f"there is a stream {keys.name} already; nothing was done. Choose another name, or if nobody needs that one: "
            f"streamq delete {keys.name}"
        )
    if (yield from discovery.is_cluster()):
        found.way = "keep"
    elif source.payload != "job" or target[0] != "none":
        found.way = "copy"
    if there[source.stream]:
        yield from _look_at_stream(source, found)
    yield from _look_at_others(source, found, there)
    return found


def _check_names(source: Source, keys: Keys) -> None:
    check_name(source.group, "group")
    if (source.scheduled is None) != (source.bodies is None):
        raise ConfigurationError("a timer queue is two keys: give both --scheduled and --bodies")
    if not source.payload or source.payload.startswith("sq:"):
        raise ConfigurationError(f"no payload is in a field {source.payload!r:.80}")
    given = [key for key in (source.stream, source.dead, source.scheduled, source.bodies) if key is not None]
    for key in given:
        if not key or given.count(key) > 1:
            raise ConfigurationError(f"key {key!r:.80} is given twice" if key else "a key has no name")
        if is_ours(key, keys.deployment):
            raise ConfigurationError(f"{key!r:.200} is streamq's already")


def _check_record(source: Source, keys: Keys, record: dict[str, str], found: Found) -> None:
    """What an earlier run has noted must be of the same source."""
    if not record:
        return
    found.state = record.get("state", "begun")
    found.at = _moment(record.get("at"))
    for name, value in source.said.items():
        was = record.get(name, "")
        if was != value and (was or name in {"stream", "group", "payload"}):
            raise MigrationError(
                f"stream {keys.name} was adopted with --{_OPTIONS.get(name, name)} {was!r:.200}, not {value!r:.200}; nothing was "
                "done: give the same, or another name"
            )


def _check_kinds(source: Source, *, known: bool) -> Plan[dict[str, bool]]:
    """Whether each key is there; if this is a first run, all must be."""
    kinds = source.kinds
    said = yield from ask_each(Pipeline(tuple(Command(("TYPE", key), (key,), text) for key in kinds)))
    there = {}
    for (key, wanted), kind in zip(kinds.items(), said, strict=True):
        if isinstance(kind, Exception):
            raise kind
        if kind not in {wanted, "none"}:
            raise ConfigurationError(f"{key} holds a {kind}, not a {wanted}; nothing was done")
        if kind == "none" and not known:
            raise ConfigurationError(f"there is no key {key!r:.200}; nothing was done")
        there[key] = kind != "none"
    return there


def _look_at_stream(source: Source, found: Found) -> Plan[None]:
    key = source.stream
    groups: list[dict[str, Any]] = yield from ask(groups_of(key))
    found.entries = yield from ask(Command(("XLEN", key), (key,), int))
    found.groups = [Group(text(row["name"]), row["pending"], text(row["last-delivered-id"])) for row in groups]
    others = tuple(group.name for group in found.groups if group.name != source.group)
    found.options = f"StreamOptions(group={source.group!r}" + (f", groups={others!r})" if others else ")")
    page = yield from ask(_entries(key))
    payload = source.payload.encode()
    bodies = [dict(zip(fields[-2::-2], fields[::-2], strict=True)).get(payload) for fields in page]
    found.sample = _sample(bodies)
    found.sample.fields = texts(page[0][::2]) if page else []
    if found.state == "new":
        _check_stream(source, found)


def _check_stream(source: Source, found: Found) -> None:
    """What must be right before the first run; later ones take what comes."""
    key = source.stream
    names = [group.name for group in found.groups]
    if source.group not in names:
        there = f"it has {', '.join(names)}" if names else "it has none"
        raise ConfigurationError(f"{key} has no group {source.group}: {there}; nothing was done")
    odd = [name for name in names if not NAME.fullmatch(name)]
    if odd:
        raise ConfigurationError(
            f"{key} has a group {odd[0]!r:.80}, which is no name that streamq can use: make one with another name, XGROUP SETID "
            "it to the same entry, and destroy that one; nothing was done"
        )
    if found.sample.looked and not found.sample.looked - found.sample.without:
        raise ConfigurationError(
            f"none of the first {found.sample.looked:,} entries of {key} has a field {source.payload!r:.80}: none could be run; "
            f"nothing was done. Say with --payload-field which one holds the payload: {', '.join(found.sample.fields[:10])}"
        )


def _look_at_others(source: Source, found: Found, there: dict[str, bool]) -> Plan[None]:
    if source.dead is not None and there[source.dead]:
        found.dead = yield from ask(Command(("XLEN", source.dead), (source.dead,), int))
    if source.bodies is not None and there[source.bodies]:
        found.bodies = yield from ask(Command(("HLEN", source.bodies), (source.bodies,), int))
    if source.scheduled is None or source.bodies is None or not there[source.scheduled]:
        return
    key = source.scheduled
    found.scheduled = yield from ask(Command(("ZCARD", key), (key,), int))
    first: list[bytes] = yield from ask(Command(("ZRANGE", key, 0, SAMPLE - 1, "WITHSCORES"), (key,), list))
    last: list[bytes] = yield from ask(Command(("ZRANGE", key, -1, -1, "WITHSCORES"), (key,), list))
    if 0 < float(last[1]) < _LEAST_MS:
        raise ConfigurationError(
            f"the times of {key} are no ms: the last is {text(last[1])}, which would be due in "
            f"{moment(int(float(last[1]))).year}; nothing was done"
        )
    found.first_due, found.last_due = _due(first[1]), _due(last[1])
    bodies: list[bytes | None] = yield from ask(Command(("HMGET", source.bodies, *first[::2]), (source.bodies,), list))
    found.timers = _sample(bodies)


def _sample(bodies: list[bytes | None]) -> Sample:
    sample = Sample(len(bodies))
    for body in bodies:
        if body is None:
            sample.without += 1
            continue
        try:
            json.loads(body)
        except ValueError:
            sample.undecodable += 1
    return sample


def _entries(key: str) -> Command[list[list[bytes]]]:
    def decode(reply: Reply) -> list[list[bytes]]:
        return [fields or [] for _, fields in reply]

    return Command(("XRANGE", key, "-", "+", "COUNT", SAMPLE), (key,), decode)


def record(keys: Keys) -> Command[dict[str, str]]:
    """What became of it so far."""
    name = record_of(keys)
    return Command(("HGETALL", name), (name,), named_texts)


def record_of(keys: Keys) -> str:
    """Key of what became of it."""
    return migration_record(keys.deployment, f"adopt:{keys.name}")


def _moment(ms: str | None) -> datetime | None:
    return moment(int(ms)) if ms is not None and ms.isdecimal() else None


def _due(score: bytes) -> datetime | None:
    due = float(score)
    return moment(int(due)) if 0 <= due < 10**14 else None
