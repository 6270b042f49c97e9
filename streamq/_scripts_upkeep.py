"""Constructors of the scripts that look after a stream: groups, consumers, trimming, dead letters, pausing, maintenance.

As `streamq._scripts`, which has those of a job's own life.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from streamq._requests import Arg, Reply, Script, text, texts
from streamq.keys import Keys
from streamq.options import StreamOptions


def pause(keys: Keys, *, paused: bool) -> Script[bool]:
    """``pause.lua``: True if that changed anything."""
    return Script("pause", (keys.meta, keys.wake), (int(paused),), bool)


class Role(StrEnum):
    """Work that one worker does for all, once in its period."""

    RECLAIM = "reclaim"
    RECLAIM_LAST = "reclaim-last"
    PROMOTE = "promote"
    SWEEP = "sweep"
    TRIM = "trim"
    PRUNE = "prune"
    WATCH = "watch"

    @property
    def reclaims(self) -> bool:
        """Whether it takes over jobs: all that are due, or only those with a single start left."""
        return self in {Role.RECLAIM, Role.RECLAIM_LAST}

    def token(self, group: str) -> str:
        """Name of its token: one a group where the work is the group's, else one a stream."""
        return f"{self}:{group}" if self.reclaims or self is Role.PRUNE else str(self)


@dataclass(frozen=True, slots=True)
class Tick:
    """What is to be done now."""

    paused: bool
    wait_ms: int | None
    """Until the first scheduled job is due, or promoting has something to do; None if nothing is scheduled."""
    roles: tuple[Role, ...]
    """Roles whose token was taken."""


def tick(
    keys: Keys, options: StreamOptions, *, consumer: str, beat: bytes | None, periods_ms: Mapping[Role, int]
) -> Script[Tick]:
    """``tick.lua``: try for the tokens of these roles, and leave a sign of life."""
    first = next((role for role in periods_ms if role.reclaims), Role.RECLAIM)
    roles = (first, Role.PROMOTE, *(role for role in periods_ms if not role.reclaims and role is not Role.PROMOTE))

    def decode(reply: Reply) -> Tick:
        paused, wait, *taken = reply
        return Tick(
            paused == 1,
            None if wait < 0 else wait,
            tuple(role for role, mine in zip(roles, taken, strict=True) if mine),
        )

    return Script(
        "tick",
        (
            keys.stream,
            keys.scheduled,
            keys.jobs,
            keys.meta,
            keys.workers,
            *(keys.tick(role.token(options.group)) for role in roles),
        ),
        (options.group, consumer, beat or b"", *(periods_ms.get(role, 0) for role in roles)),
        decode,
    )


@dataclass(frozen=True, slots=True)
class Trimmed:
    """A pass of `trim`."""

    removed: int
    cursor: str
    """Where to go on; empty at the end."""
    stop: str


def trim(keys: Keys, options: StreamOptions, *, look: int, cursor: str, stop: str) -> Script[Trimmed]:
    """``trim.lua``: one pass. An empty `cursor` goes on where the last such pass ended."""

    def decode(reply: Reply) -> Trimmed:
        return Trimmed(reply[0], text(reply[1]), text(reply[2]))

    keep_ms = "" if options.keep_ms is None else options.keep_ms
    keep_last = "" if options.keep_last is None else options.keep_last
    return Script("trim", (keys.stream, keys.dead, keys.meta), (keep_ms, keep_last, look, cursor, stop), decode)


def prune(keys: Keys, options: StreamOptions, *, min_idle_ms: int, count: int, look: int) -> Script[list[str]]:
    """``prune.lua``: names of the consumers that were removed."""
    return Script("prune", (keys.stream, keys.workers, keys.meta), (options.group, min_idle_ms, count, look), texts)


def leave(keys: Keys, options: StreamOptions, *, consumer: str) -> Script[int]:
    """``leave.lua``: 1 removed, 0 not there, -1 holds pending entries."""
    return Script("leave", (keys.stream, keys.workers, keys.tick(Role.PROMOTE)), (options.group, consumer), int)


@dataclass(frozen=True, slots=True)
class Dropped:
    """Answer of `drop_group`."""

    code: int
    """1 dropped, 0 no such group, -1 refused."""
    pending: int = 0
    unread: bool = False
    waits: bool = False


def drop_group(keys: Keys, *, group: str, force: bool) -> Script[Dropped]:
    """``drop_group.lua``."""

    def decode(reply: Reply) -> Dropped:
        return Dropped(reply[0], *(reply[1], bool(reply[2]), bool(reply[3])) if len(reply) > 1 else ())

    return Script("drop_group", (keys.stream, keys.scheduled, keys.meta), (group, int(force)), decode)


@dataclass(frozen=True, slots=True)
class Left:
    """Work that a stream has left."""

    unread: int
    pending: int
    scheduled: int
    dead: int


def delete(keys: Keys, *, force: bool) -> Script[int | Left]:
    """``delete.lua``: how many keys were removed, or the work that is left."""

    def decode(reply: Reply) -> int | Left:
        return int(reply[1]) if reply[0] == 1 else Left(*reply[1:])

    everything = (
        keys.stream, keys.dead, keys.scheduled, keys.jobs, *keys.ids, *keys.done, keys.meta, keys.workers, keys.wake,
    )  # fmt: skip
    return Script("delete", everything, (int(force),), decode)


def redrive(
    keys: Keys,
    options: StreamOptions,
    *,
    letter_id: str,
    new_id: str | None,
    max_redrives: int,
    payload: bytes | None = None,
    only_look: bool = False,
) -> Script[tuple[int, str]]:
    """``redrive.lua``: (1 moved, 0 missing, -1 superseded, -2 refused; entry ID, state, or why)."""

    def decode(reply: Reply) -> tuple[int, str]:
        return reply[0], text(reply[1]) if len(reply) > 1 else ""

    return Script(
        "redrive",
        (keys.stream, keys.dead, keys.scheduled, keys.meta, *keys.ids, *keys.done),
        (
            *(letter_id, new_id or "", max_redrives, options.slice_ms),
            *(int(only_look), int(payload is not None), payload or b""),
        ),
        decode,
    )


def purge(keys: Keys, *, letter_ids: Sequence[Arg]) -> Script[list[int]]:
    """``purge.lua``: per letter 1, or 0 if it was not there."""
    return Script("purge", (keys.stream, keys.dead, keys.meta), tuple(letter_ids), list)


def probe(one: str, other: str, *, ttl_ms: int) -> Script[list[str]]:
    """``probe.lua``: commands that the user may not run, of those that write to two keys and remove them."""
    return Script("probe", (one, other), (ttl_ms,), texts)
