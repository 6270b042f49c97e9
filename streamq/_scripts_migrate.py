"""Constructors of the scripts that move what the previous layout holds. As `streamq._scripts`.

Their keys lie in several slots, so none of them may run on a cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from streamq._requests import Arg, Reply, Script, text, texts
from streamq.keys import Keys


@dataclass(frozen=True, slots=True)
class Lock:
    """The lock that who migrates holds.

    Attributes:
        key: Its name.
        owner: Who holds it: host, process and a random part.
        ttl_ms: How long it lasts without being renewed; each batch renews it.
    """

    key: str
    owner: str
    ttl_ms: int

    @property
    def argv(self) -> tuple[Arg, ...]:
        """What every script is told of it."""
        return (self.owner, self.ttl_ms)


def scheduled(lock: Lock, old: Keys, new: Keys, *, most: int, max_bytes: int) -> Script[tuple[int, int, bool]]:
    """``migrate_scheduled.lua``: how many jobs were moved, how many this layout had already, and whether there are more."""

    def decode(reply: Reply) -> tuple[int, int, bool]:
        return reply[0], reply[1], reply[2] == 1

    keys = (old.scheduled, old.jobs, new.scheduled, new.jobs, new.wake, new.stream, *new.ids, *new.done)
    return Script("migrate_scheduled", (lock.key, *keys), (*lock.argv, most, max_bytes), decode)


def stream(lock: Lock, old: str, new: str) -> Script[int | None]:
    """``migrate_stream.lua``: how many entries were moved; None if there is such a stream already."""

    def decode(reply: Reply) -> int | None:
        return None if reply[0] < 0 else reply[1] if reply[0] else 0

    return Script("migrate_stream", (lock.key, old, new), lock.argv, decode)


@dataclass(frozen=True, slots=True)
class Copied:
    """A batch of `entries`."""

    moved: int
    superseded: int
    finished: int
    stuck: list[str]
    last: str
    """Behind which to go on; empty at the end."""


def entries(
    lock: Lock,
    old: Keys,
    new: Keys,
    *,
    most: int,
    max_bytes: int,
    after: str,
    source: str | None = None,
    payload: str = "job",
) -> Script[Copied]:
    """``migrate_entries.lua``. `source` is somebody's stream in place of the previous layout's."""

    def decode(reply: Reply) -> Copied:
        moved, superseded, finished, stuck, last = reply
        return Copied(moved, superseded, finished, texts(stuck), text(last))

    keys = (source or old.stream, old.meta, *old.ids, new.stream, new.dead, new.meta, new.scheduled, *new.ids)
    return Script("migrate_entries", (lock.key, *keys), (*lock.argv, most, max_bytes, after, payload), decode)


def letters(lock: Lock, old: Keys, new: Keys, *, most: int, max_bytes: int) -> Script[int]:
    """``migrate_letters.lua``: how many dead letters were moved."""
    return Script("migrate_letters", (lock.key, old.dead, new.dead), (*lock.argv, most, max_bytes), int)


def records(
    lock: Lock, old: str, slices: Sequence[str], *, target: int, cursor: str, count: int
) -> Script[tuple[str, int]]:
    """``migrate_records.lua``: where to go on (0 at the end), and how many were moved from `old` to the slice `target`."""

    def decode(reply: Reply) -> tuple[str, int]:
        return text(reply[0]), reply[1]

    return Script("migrate_records", (lock.key, old, *slices), (*lock.argv, cursor, count, target + 1), decode)


def meta(lock: Lock, old: Keys, new: Keys) -> Script[int]:
    """``migrate_meta.lua``: how many settings and counters were moved."""
    return Script("migrate_meta", (lock.key, old.meta, new.meta), lock.argv, int)


def data(lock: Lock, old: Keys, new: Keys, *, found: Sequence[str]) -> Script[list[int]]:
    """``migrate_data.lua``: per key of effects 1 moved, 0 gone, -1 there in both layouts."""
    pairs = [key for each in found for key in (each, new.data(each.removeprefix(old.data(""))))]
    return Script("migrate_data", (lock.key, *pairs), lock.argv, list)


def drop(lock: Lock, old: Keys) -> Script[tuple[int, str]]:
    """``migrate_drop.lua``: how many keys were removed, and the one that still holds something."""

    def decode(reply: Reply) -> tuple[int, str]:
        return (reply[1], "") if reply[0] else (0, text(reply[1]))

    keys = (
        *(old.stream, old.dead, old.scheduled, old.jobs, *old.ids),
        *(*old.done, old.meta, old.workers, old.wake),
    )
    return Script("migrate_drop", (lock.key, *keys), lock.argv, decode)


def record(lock: Lock, key: str, *, fields: Sequence[Arg]) -> Script[int]:
    """``migrate_record.lua``."""
    return Script("migrate_record", (lock.key, key), (*lock.argv, *fields), int)


def unlock(key: str, *, owner: str) -> Script[bool]:
    """``migrate_unlock.lua``: True if the lock was that owner's, and is gone."""
    return Script("migrate_unlock", (key,), (owner,), bool)
