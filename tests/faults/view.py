"""What lies on the server: one look at everything that a stream has, in one write."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import redis

from streamq._codec import unpack_entry
from streamq._drivers.blocking import BlockingDriver
from streamq._drivers.exchange import exchange
from streamq._requests import Reply, Request
from streamq.keys import Keys

Row: TypeAlias = tuple[str, int]
"""Owner and delivery count of a pending entry."""

RECEIPTS = "receipts"
"""The effects' key: group/job -> how often its effects were applied."""


class Server:
    """Where the worlds are; hands out stream names."""

    def __init__(self, driver: BlockingDriver, client: redis.Redis, deployment: str) -> None:
        self.driver = driver
        self.deployment = deployment
        self._connection = client.connection
        self._streams = 0

    def next_name(self) -> str:
        self._streams += 1
        return f"s{self._streams}"

    def raw(self, *commands: tuple[Any, ...]) -> list[Any]:
        """Replies as the server gave them, past redis-py's callbacks; an error's place holds the exception."""
        return self.exchange(self.packed(commands), len(commands))

    def packed(self, commands: Sequence[tuple[Any, ...]]) -> list[bytes]:
        return self._connection.pack_commands(commands)

    def exchange(self, packed: list[bytes], count: int) -> list[Any]:
        self._connection.send_packed_command([b"".join(packed)])  # each item would be a write of its own
        replies = []
        for _ in range(count):
            try:
                replies.append(self._connection.read_response())
            except redis.ResponseError as error:
                replies.append(error)
        return replies


class Look:
    """The commands of a look, packed once for many."""

    def __init__(self, server: Server, keys: Keys, groups: Collection[str]) -> None:
        commands = look_commands(keys, groups)
        self._server = server
        self.packed = server.packed(commands)
        self.count = len(commands)

    def replies(self) -> list[Any]:
        return self._server.exchange(self.packed, self.count)


class Asked:
    """A request under way, with a look right behind it: half the round trips."""

    def __init__(self, server: Server, request: Request, look: Look) -> None:
        self._server = server
        self._steps = exchange(request)
        self._look = look
        self.seen: list[Any] = []

    def reply(self) -> Reply:
        """Send it, and what follows from it (a script that the server does not know yet)."""
        commands = next(self._steps)
        while True:
            packed = [*self._server.packed(commands), *self._look.packed]
            replies = self._server.exchange(packed, len(commands) + self._look.count)
            self.seen = replies[len(commands) :]
            try:
                commands = self._steps.send(replies[: len(commands)])
            except StopIteration as stop:
                return stop.value


@dataclass(slots=True)
class GroupView:
    """What one group has."""

    unread: set[str]
    """All that it will read, also what only others handle."""
    pending: dict[str, Row]


NOBODYS = "0-0"
"""The source of a letter that was made of something scheduled that is no job."""


@dataclass(slots=True)
class LetterView:
    """A dead letter."""

    source: str
    group: str
    reason: str
    refers: bool
    """Whether it holds no copy of its entry, which therefore must stay."""


@dataclass(slots=True)
class TimerView:
    """A job that waits for its time."""

    fields: dict[bytes, bytes]
    """Its entry."""
    due_ms: float

    @property
    def group(self) -> str:
        """The only group that will get it, as its entry says; empty for all."""
        return self.fields.get(b"sq:group", b"").decode()


@dataclass(slots=True)
class View:
    """The stream at one moment."""

    entries: dict[str, dict[bytes, bytes]]
    groups: dict[str, GroupView]
    """Those that are there."""
    timers: dict[str, TimerView]
    orphans: set[str]
    """What is scheduled and no job: a time without an entry, an entry without a time, or what is no packed entry."""
    letters: dict[str, LetterView]
    meta: dict[str, str]
    receipts: dict[str, int]
    workers: int

    @property
    def paused(self) -> bool:
        return "paused" in self.meta

    def counter(self, word: str, group: str) -> int:
        return int(self.meta.get(f"{word}:{group}", 0))

    def kept(self) -> dict[str, int]:
        """Entry ID -> how many letters are said to refer to it."""
        return {name[5:]: int(n) for name, n in self.meta.items() if name.startswith("kept:")}


def look_commands(keys: Keys, groups: Collection[str]) -> list[tuple[Any, ...]]:
    """Ask for everything."""
    return [
        ("XRANGE", keys.stream, "-", "+"),
        ("XINFO", "GROUPS", keys.stream),
        ("XRANGE", keys.dead, "-", "+"),
        ("HGETALL", keys.data(RECEIPTS)),
        ("HGETALL", keys.meta),
        ("HLEN", keys.workers),
        ("ZRANGE", keys.scheduled, 0, -1, "WITHSCORES"),
        ("HGETALL", keys.jobs),
        *(("XPENDING", keys.stream, name, "-", "+", 1000) for name in groups),
    ]


def view_of(replies: list[Any], groups: Collection[str]) -> View:
    """What the server answered to `look_commands`."""
    entries, infos, letters, receipts, meta, workers, times, jobs, *pending = replies
    found = {entry_id.decode(): _pairs(fields) for entry_id, fields in entries}
    rows = dict(zip(groups, pending, strict=True))
    there = {}
    for info in infos if isinstance(infos, list) else []:
        row = _pairs(info)
        name, last = row[b"name"].decode(), order(row[b"last-delivered-id"].decode())
        if name in rows:
            there[name] = GroupView(
                unread={i for i in found if order(i) > last},
                pending={r[0].decode(): (r[1].decode(), r[3]) for r in rows[name]},
            )
    timers, orphans = _timers(_pairs(times), _pairs(jobs))
    return View(
        entries=found,
        groups=there,
        timers=timers,
        orphans=orphans,
        letters={letter_id.decode(): _letter(_pairs(fields)) for letter_id, fields in letters},
        meta={k.decode(): v.decode() for k, v in _pairs(meta).items()},
        receipts={k.decode(): int(v) for k, v in _pairs(receipts).items()},
        workers=workers,
    )


def _timers(times: dict[bytes, bytes], jobs: dict[bytes, bytes]) -> tuple[dict[str, TimerView], set[str]]:
    timers, orphans = {}, set()
    for timer in times.keys() | jobs.keys():
        fields = unpack_entry(jobs.get(timer))
        if timer in times and fields:
            timers[timer.decode()] = TimerView(_pairs(fields), float(times[timer]))
        else:
            orphans.add(timer.decode())
    return timers, orphans


def _letter(fields: dict[bytes, bytes]) -> LetterView:
    own = sum(not name.startswith(b"dead:") for name in fields)
    reason = fields[b"dead:reason"].decode()
    return LetterView(
        source=fields[b"dead:source"].decode(),
        group=fields[b"dead:group"].decode(),
        reason=reason,
        refers=reason == "oversized" and own == 0,
    )


def _pairs(flat: list[Any]) -> dict[Any, Any]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def order(entry_id: str) -> tuple[int, int]:
    """Entry IDs are two numbers, not text."""
    ms, _, seq = entry_id.partition("-")
    return int(ms), int(seq)
