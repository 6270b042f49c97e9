"""Reads what is really there: every structure of a stream, as the server has it, without streamq."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import redis
import redis.asyncio
from clusters import Eyes

Fields = list[tuple[bytes, bytes]]


def call(raw: redis.Redis, *args: Any) -> Any:
    """Send one command and return its reply as it came: redis-py's parsers make dicts and lose doubled fields."""
    if isinstance(raw, Eyes):
        return raw.call(*args)
    raw.connection.send_command(*args)
    return raw.connection.read_response()


class Row(NamedTuple):
    """A row of XPENDING."""

    consumer: str
    deliveries: int


@dataclass
class State:
    """All structures of a stream. Tests write down what they expect; what they leave out must be empty.

    Attributes:
        stream: Entry IDs in the stream.
        pending: Entry ID -> owner and delivery count.
        dead: Source ID and reason of each dead letter, oldest first.
        ids: Job ID -> record for producers.
        done: ``<group>/<job ID>`` -> record for consumers.
        counters: Of ``T:meta``, without cursors and what follows.
        scheduled: Members of the timer.
        kept: Entry ID -> how many dead letters refer to it.
        paused: Whether the stream is.
        wake: What sleepers were told last, if it was of a pause.
    """

    stream: list[str] = field(default_factory=list)
    pending: dict[str, Row] = field(default_factory=dict)
    dead: list[tuple[str, str]] = field(default_factory=list)
    ids: dict[str, str] = field(default_factory=dict)
    done: dict[str, str] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    scheduled: list[str] = field(default_factory=list)
    kept: dict[str, int] = field(default_factory=dict)
    paused: bool = False
    wake: list[str] = field(default_factory=list)


def state(raw: redis.Redis, stream: Any, *, group: str = "workers") -> State:
    """Everything at one moment."""
    keys = stream._spec.keys
    meta = {name.decode(): value.decode() for name, value in pairs(call(raw, "HGETALL", keys.meta))}
    kept = {name.removeprefix("kept:"): int(value) for name, value in meta.items() if name.startswith("kept:")}
    assert int(meta.pop("kept", 0)) == len(kept)
    return State(
        stream=[entry_id for entry_id, _ in entries(raw, keys.stream)],
        pending=pending(raw, stream, group=group),
        dead=[(letter[b"dead:source"], letter[b"dead:reason"]) for letter in letters(raw, stream)],
        ids=records(raw, keys.ids),
        done=records(raw, keys.done),
        counters={
            name: int(value)
            for name, value in meta.items()
            if not name.startswith(("cursor:", "kept:", "paused", "format"))
        },
        scheduled=[member.decode() for member in call(raw, "ZRANGE", keys.scheduled, 0, -1)],
        kept=kept,
        paused="paused" in meta,
        wake=[value.decode() for _, fields in entries(raw, keys.wake) for name, value in fields if name == b"paused"],
    )


def pairs(flat: list[bytes]) -> Fields:
    """Flat names and values as pairs, in order, doubled names included."""
    return list(zip(flat[::2], flat[1::2], strict=True))


def entries(raw: redis.Redis, key: str) -> list[tuple[str, Fields]]:
    """Entries of a stream with their fields in order."""
    return [(entry_id.decode(), pairs(fields)) for entry_id, fields in call(raw, "XRANGE", key, "-", "+")]


def letters(raw: redis.Redis, stream: Any) -> list[dict[bytes, str]]:
    """Metadata of the dead letters: the fields named ``dead:...``, first of each name."""
    found = []
    for _, fields in entries(raw, stream._spec.keys.dead):
        meta: dict[bytes, str] = {}
        for name, value in fields:
            if name.startswith(b"dead:"):
                meta.setdefault(name, value.decode())
        found.append(meta)
    return found


def pending(raw: redis.Redis, stream: Any, *, group: str = "workers") -> dict[str, Row]:
    """XPENDING rows by entry ID; none without stream or group."""
    try:
        rows = call(raw, "XPENDING", stream._spec.keys.stream, group, "-", "+", 100_000)
    except redis.ResponseError as error:
        if "NOGROUP" not in str(error):
            raise
        return {}
    return {entry_id.decode(): Row(consumer.decode(), count) for entry_id, consumer, _, count in rows}


def records(raw: redis.Redis, slices: Iterable[str]) -> dict[str, str]:
    """Records of job IDs, over all slices. A record in two slices at once is a fault."""
    found: dict[str, str] = {}
    for key in slices:
        for name, value in pairs(call(raw, "HGETALL", key)):
            if name:  # '' is the time when the slice is due
                assert name.decode() not in found, f"{name!r} is in two slices"
                found[name.decode()] = value.decode()
    return found


class Timer(NamedTuple):
    """What waits for its time."""

    due_ms: int
    fields: Fields


def timers(raw: redis.Redis, stream: Any) -> dict[str, Timer]:
    """What waits, by timer ID, the first one first. One without an entry, or an entry without a time, is a fault."""
    keys = stream._spec.keys
    times = pairs(call(raw, "ZRANGE", keys.scheduled, 0, -1, "WITHSCORES"))
    packed = dict(pairs(call(raw, "HGETALL", keys.jobs)))
    assert {timer for timer, _ in times} == set(packed)
    return {timer.decode(): Timer(int(due), unpacked(packed[timer])) for timer, due in times}


def unpacked(packed: bytes) -> Fields:
    """Fields of a packed entry, by a reader of MessagePack of our own: array of strings, of any bytes."""
    assert packed[0] & 0xF0 == 0x90 or packed[0] in (0xDC, 0xDD)
    at = 1 if packed[0] & 0xF0 == 0x90 else 3 if packed[0] == 0xDC else 5
    count = packed[0] & 0x0F if at == 1 else int.from_bytes(packed[1:at])
    parts = []
    for _ in range(count):
        head = packed[at]
        width = {0xD9: 1, 0xDA: 2, 0xDB: 4}.get(head, 0)
        assert width or head & 0xE0 == 0xA0
        size = int.from_bytes(packed[at + 1 : at + 1 + width]) if width else head & 0x1F
        at += 1 + width + size
        parts.append(packed[at - size : at])
    assert at == len(packed)
    return pairs(parts)


def make_due(raw: redis.Redis, stream: Any, *timers: str) -> None:
    """Let the time of these timers have come, or of all, in their order."""
    key = stream._spec.keys.scheduled
    for at, timer in enumerate(timers or [timer.decode() for timer in call(raw, "ZRANGE", key, 0, -1)], 1):
        call(raw, "ZADD", key, "XX", at, timer)


def server_ms(raw: redis.Redis) -> int:
    """The server's time."""
    seconds, micros = call(raw, "TIME")
    return int(seconds) * 1000 + int(micros) // 1000


def groups(raw: redis.Redis, stream: Any) -> dict[str, str]:
    """The consumer groups: name -> last ID delivered; none without the stream."""
    try:
        rows = call(raw, "XINFO", "GROUPS", stream._spec.keys.stream)
    except redis.ResponseError:
        return {}
    found = [dict(zip(row[::2], row[1::2], strict=True)) for row in rows]
    return {row[b"name"].decode(): row[b"last-delivered-id"].decode() for row in found}


def by_hand(raw: redis.Redis, stream: Any, *fields: Any) -> str:
    """XADD, as a plain producer does it; the entry's ID."""
    entry_id: bytes = call(raw, "XADD", stream._spec.keys.stream, "*", *fields)
    return entry_id.decode()


def age(
    raw: redis.Redis,
    stream: Any,
    ids: Iterable[str] | None = None,
    *,
    idle: float = 3600,
    count: int | None = None,
    group: str = "workers",
) -> None:
    """Make pending entries look silent for `idle` seconds (owner unchanged), and delivered `count` times if given."""
    owners = pending(raw, stream, group=group)
    more = [] if count is None else ["RETRYCOUNT", count]
    for entry_id in list(owners) if ids is None else ids:
        args = ("IDLE", round(idle * 1000), *more, "JUSTID")
        moved = call(raw, "XCLAIM", stream._spec.keys.stream, group, owners[entry_id].consumer, 0, entry_id, *args)
        assert moved == [entry_id.encode()]


def dumps(raw: redis.Redis, ns: str) -> dict[bytes, bytes]:
    """All keys of a prefix with all they hold, to see that nothing was changed."""
    return {key: call(raw, "DUMP", key) for key in raw.scan_iter(match=f"*{ns}*", count=1000)}


def as_user(url: str, name: str, password: str) -> str:
    """The URL of a server or a cluster with another user in it."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{name}:{password}@{rest.rpartition('@')[2]}"


def twin(raw: redis.Redis) -> redis.Redis:
    """Another client to look with, to the same server; to be closed."""
    settings = raw.connection_pool.connection_kwargs
    own = {name: settings[name] for name in ("host", "port", "db", "username", "password") if name in settings}
    return redis.Redis(**own, single_connection_client=True, protocol=2)


def kind_of_client(kind: type[redis.Redis | redis.asyncio.Redis], url: str) -> Callable[..., Any]:
    """What makes a user's client of that kind, or of the kind for clusters, if the URL is a cluster's."""
    if "+cluster" not in url:
        return partial(kind.from_url, url)
    kind = redis.RedisCluster if kind is redis.Redis else redis.asyncio.RedisCluster
    return partial(kind.from_url, f"redis://{url.partition('://')[2].partition(',')[0]}")
