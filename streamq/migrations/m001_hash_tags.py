"""001_hash_tags: from keys without a hash tag, each in a slot of its own, to keys that share one.

Everything moves: the stream with its groups and pending entries, what is scheduled, dead letters, what is remembered of job
IDs, settings and counters, and what effects have written. Every batch is one script, which looks for the lock first and moves
what it takes whole. So each job is in one of the layouts at every instant, and whoever is killed is followed by a second run.

The previous version may run on meanwhile, and afterwards: it finds empty structures, and what it writes into them is moved
by `clean`, which removes them at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import msgspec

from streamq import _scripts_migrate as scripts
from streamq._requests import Command, Pipeline, Plan, Reply, ask, ask_each, groups_of, scan, text, texts
from streamq._scripts import check as check_script
from streamq._scripts_migrate import Copied, Lock
from streamq.errors import ConfigurationError
from streamq.keys import HASH_TAGS, Keys

NAME: Final = HASH_TAGS
TITLE: Final = "gives the keys of each stream one hash tag"
NOT_ON_A_CLUSTER: Final = (
    "this is a node of a cluster: keys of the previous layout lie in slots of their own there, so nothing can move them whole, "
    "and the previous version could never schedule or retry a job"
)

COMMANDS: Final = (
    "XADD", "XACK", "XDEL", "XCLAIM", "XPENDING", "XRANGE", "XLEN", "XSETID", "XINFO GROUPS", "XINFO STREAM", "XGROUP CREATE",
    "XGROUP SETID", "HGET", "HMGET", "HGETALL", "HSCAN", "HLEN", "HEXISTS", "HSET", "HSETNX", "HDEL", "HINCRBY", "ZRANGE",
    "ZMSCORE", "ZSCORE", "ZADD", "ZREM", "TYPE", "EXISTS", "RENAME", "UNLINK", "PTTL", "PEXPIRE", "GET", "TIME",
)  # fmt: skip
"""Of its scripts."""

JOBS, ENTRIES, LETTERS, RECORDS, KEYS = 1_000, 200, 200, 1_000, 100
"""Most of each in a batch: the server does nothing else for some milliseconds."""

BYTES: Final = 4 << 20
"""Bytes of a batch after which no more is taken into it."""

_TRIES: Final = 5
"""How often what the previous version still writes is moved, before it is taken to be alive."""

Told: TypeAlias = Callable[[int], None]
"""Is told of how many things each batch has moved."""


class Held(msgspec.Struct, kw_only=True):
    """What a stream has in the previous layout.

    Attributes:
        keys: How many keys.
        scheduled: Jobs that wait for their time.
        entries: Of the stream, finished ones that are kept included.
        pending: Of those, how many some group has in hand.
        groups: Its groups.
        dead: Dead letters.
        remembered: Records of job IDs.
        settings: Settings and counters.
        data: Keys of effects.
        way: How the stream moves: ``rename``, or ``copy`` where this layout has one already.
        wrong: Keys that hold something else.
    """

    stream: str
    keys: int = 0
    scheduled: int = 0
    entries: int = 0
    pending: int = 0
    groups: list[str] = []
    dead: int = 0
    remembered: int = 0
    settings: int = 0
    data: int = 0
    way: str = "rename"
    wrong: list[str] = []

    @property
    def things(self) -> int:
        """All that is to be moved."""
        return self.scheduled + self.entries + self.dead + self.remembered + self.settings + self.data


@dataclass
class Moved:
    """What became of what a stream had there.

    Attributes:
        superseded: Jobs that were removed, because this layout has one of that ID.
        finished: Entries that were removed, because every group was done with them.
        removed: Keys of the previous layout that were removed.
        failed: What could not be moved, and why.
    """

    stream: str
    scheduled: int = 0
    entries: int = 0
    dead: int = 0
    remembered: int = 0
    settings: int = 0
    data: int = 0
    superseded: int = 0
    finished: int = 0
    removed: int = 0
    failed: list[str] = field(default_factory=list)


def look(keys: Keys, data: int) -> Plan[Held]:
    """What a stream has in the previous layout; `data` is how many keys of effects were found. Two requests."""
    old = keys.untagged
    names = (*old.kinds, *keys.holding)
    kinds = yield from ask_each(Pipeline(tuple(Command(("TYPE", name), (name,), text) for name in names)))
    kind_of = dict(zip(names, kinds, strict=True))
    held = Held(stream=keys.name, data=data, keys=data)
    for name, wanted in {**old.kinds, **{key: keys.kinds[key] for key in keys.holding}}.items():
        if wanted != "none" and kind_of[name] not in {wanted, "none"}:
            held.wrong.append(f"{name} holds a {kind_of[name]}, not a {wanted}")
    held.keys += sum(kind_of[name] not in {"none"} for name in old.kinds)
    if kind_of[keys.stream] != "none":
        held.way = "copy"

    def count(name: str, verb: str) -> Command[Any]:
        return Command((verb, name), (name,), int)

    records = [count(name, "HLEN") for name in (*old.ids, *old.done)]
    asked = [count(old.scheduled, "ZCARD"), count(old.jobs, "HLEN"), count(old.stream, "XLEN"), count(old.dead, "XLEN")]
    counts: list[Any] = yield from ask_each(
        Pipeline((*asked, count(old.meta, "HLEN"), groups_of(old.stream), *records))
    )
    answers: list[Any] = [0 if isinstance(answer, Exception) else answer for answer in counts]
    times, jobs, entries, dead, settings, groups, *remembered = answers
    held.scheduled, held.entries, held.dead, held.settings = max(times, jobs), entries, dead, settings
    held.remembered = sum(max(n - 1, 0) for n in remembered)  # one field says until when
    for group in groups or ():
        held.groups.append(text(group["name"]))
        held.pending += group["pending"]
    return held


def check(keys: Keys) -> Plan[None]:
    """See that the user may do all of it, in both layouts: scripts do not roll back. Two requests; writes nothing.

    Raises:
        ConfigurationError: Something is denied; the message names it.
    """
    for each in (keys.untagged, keys):
        denied = yield from ask(check_script(each, commands=COMMANDS))
        if denied:
            raise ConfigurationError(f"the user may not run {', '.join(denied)} on {each.stream}; nothing was done")


def move(lock: Lock, keys: Keys, told: Told) -> Plan[Moved]:
    """Move what a stream has in the previous layout, part by part. What cannot be moved is said, and the others move on.

    Scheduled jobs go before what is remembered of IDs, and so do entries: else that would make them strangers to themselves.
    """
    moved = Moved(keys.name)
    for part in (_scheduled, _stream, _letters, _records, _meta, _data):
        try:
            yield from part(lock, keys, moved, told)
        except ConfigurationError as error:  # a key of another type, or one that the user may not touch
            moved.failed.append(f"{keys.name}: {error}")
    return moved


def _scheduled(lock: Lock, keys: Keys, moved: Moved, told: Told) -> Plan[None]:
    left = True
    while left:
        batch = scripts.scheduled(lock, keys.untagged, keys, most=JOBS, max_bytes=BYTES)
        jobs, superseded, left = yield from ask(batch)
        moved.scheduled += jobs
        moved.superseded += superseded
        told(jobs + superseded)


def _stream(lock: Lock, keys: Keys, moved: Moved, told: Told) -> Plan[None]:
    entries = yield from ask(scripts.stream(lock, keys.untagged.stream, keys.stream))
    if entries is not None:
        moved.entries += entries
        told(entries)
        return

    def took(batch: Copied) -> None:
        moved.entries += batch.moved
        moved.superseded += batch.superseded
        moved.finished += batch.finished

    stuck = yield from copy(lock, keys, took, told)
    if stuck:
        moved.failed.append(
            f"{keys.name}: {stuck:,} entries of {keys.untagged.stream} cannot be copied: they have too many fields, or a dead "
            "letter refers to them; purge those letters"
        )


def copy(
    lock: Lock,
    keys: Keys,
    took: Callable[[Copied], None],
    told: Told,
    *,
    source: str | None = None,
    payload: str = "job",
) -> Plan[int]:
    """Copy a stream's entries into one that is there already, and remove them; how many had to stay. One request a batch.

    `took` is given what became of each batch; `source` and `payload` are somebody's stream and field, as of `scripts.entries`.
    """
    after, stuck = "0-0", 0
    while True:
        batch = yield from ask(
            scripts.entries(
                lock,
                keys.untagged,
                keys,
                most=ENTRIES,
                max_bytes=BYTES,
                after=after,
                source=source,
                payload=payload,
            )
        )
        took(batch)
        stuck += len(batch.stuck)
        told(batch.moved + batch.superseded + batch.finished)
        if not batch.last:
            return stuck
        after = batch.last


def _letters(lock: Lock, keys: Keys, moved: Moved, told: Told) -> Plan[None]:
    while letters := (yield from ask(scripts.letters(lock, keys.untagged, keys, most=LETTERS, max_bytes=BYTES))):
        moved.dead += letters
        told(letters)


def _records(lock: Lock, keys: Keys, moved: Moved, told: Told) -> Plan[None]:
    old = keys.untagged
    for olds, slices in ((old.done, keys.done), (old.ids, keys.ids)):
        for target, name in enumerate(olds):
            cursor = "0"
            while True:
                cursor, records = yield from ask(
                    scripts.records(lock, name, slices, target=target, cursor=cursor, count=RECORDS)
                )
                moved.remembered += records
                told(records)
                if cursor == "0":
                    break


def _meta(lock: Lock, keys: Keys, moved: Moved, told: Told) -> Plan[None]:
    settings = yield from ask(scripts.meta(lock, keys.untagged, keys))
    moved.settings += settings
    told(settings)


def _data(lock: Lock, keys: Keys, moved: Moved, told: Told) -> Plan[None]:
    old = keys.untagged
    both: list[str] = []
    cursor = "0"
    while True:
        cursor, found = yield from ask(scan(cursor, "MATCH", f"{old.data('')}*", "COUNT", KEYS * 10))
        for at in range(0, len(found), KEYS):
            some = found[at : at + KEYS]
            answers = yield from ask(scripts.data(lock, old, keys, found=some))
            moved.data += answers.count(1)
            told(answers.count(1))
            both += [key for key, answer in zip(some, answers, strict=True) if answer < 0]
        if cursor == "0":
            break
    if both:
        moved.failed.append(
            f"{keys.name}: {len(both):,} keys of effects are there in both layouts ({both[0]} ...): put together what they hold, "
            "and remove the old ones"
        )


def clean(lock: Lock, keys: Keys, told: Told) -> Plan[Moved]:
    """Move what the previous version has written since, and remove its keys in the script that finds nothing left in them."""
    total = Moved(keys.name)
    left = ""
    for _ in range(_TRIES):
        moved = yield from move(lock, keys, told)
        for each in ("scheduled", "entries", "dead", "remembered", "settings", "data", "superseded", "finished"):
            setattr(total, each, getattr(total, each) + getattr(moved, each))
        if moved.failed:
            total.failed = moved.failed
            return total
        total.removed, left = yield from ask(scripts.drop(lock, keys.untagged))
        if not left:
            return total
    total.failed.append(f"{keys.name}: {left} is still written to: stop the previous version first")
    return total


def in_use(keys: Keys, lease_ms: int) -> Plan[str | None]:
    """Why a process of the previous version seems to be alive: it holds an entry for less than a lease. None if none does."""
    stream = keys.untagged.stream
    [groups] = yield from ask_each(Pipeline((groups_of(stream),)))
    if isinstance(groups, Exception):
        return None
    for group in (text(row["name"]) for row in groups):
        first = "-"
        while rows := (yield from ask(_pending(stream, group, first))):
            young = [row for row in rows if row[2] < lease_ms]
            if young:
                entry_id, consumer, idle_ms = young[0]
                return (
                    f"consumer {consumer} of group {group} took entry {entry_id} of {stream} {idle_ms / 1000:,.1f} s ago: "
                    "a worker of the previous version is alive"
                )
            first = f"({rows[-1][0]}"
    return None


def _pending(stream: str, group: str, first: str) -> Command[list[tuple[str, str, int]]]:
    def decode(reply: Reply) -> list[tuple[str, str, int]]:
        return [(text(row[0]), text(row[1]), row[2]) for row in reply]

    return Command(("XPENDING", stream, group, first, "+", 1_000), (stream,), decode)


def defects(keys: Keys) -> Plan[list[str]]:
    """What of a stream's schedule, in either layout, can never run: times without an entry. One or two requests per 1,000."""
    found = []
    for each in (keys.untagged, keys):
        lost: list[str] = []
        at = 0
        while names := (yield from _names(each, at)):
            sizes = yield from ask_each(
                Pipeline(tuple(Command(("HSTRLEN", each.jobs, name), (each.jobs,), int) for name in names))
            )
            lost += [name for name, size in zip(names, sizes, strict=True) if size == 0]
            at += len(names)
        if lost:
            found.append(f"{len(lost):,} times in {each.scheduled} have no entry in {each.jobs}: {', '.join(lost[:3])}")
    return found


def _names(keys: Keys, at: int) -> Plan[list[str]]:
    asked = Pipeline((Command(("ZRANGE", keys.scheduled, at, at + JOBS - 1), (keys.scheduled,), texts),))
    [names] = yield from ask_each(asked)
    return [] if isinstance(names, Exception) else names
