"""Constructors of the scripts that take over what others have built by hand. As `streamq._scripts_migrate`."""

from __future__ import annotations

from collections.abc import Sequence

from streamq._requests import Reply, Script, text, texts
from streamq._scripts_migrate import Lock
from streamq.keys import Keys


def letters(
    lock: Lock, old: str, new: Keys, *, group: str, most: int, max_bytes: int, after: str, payload: str
) -> Script[tuple[int, int, str]]:
    """``migrate_adopt_letters.lua``: how many were moved, how many stay, and behind which to go on; empty at the end."""

    def decode(reply: Reply) -> tuple[int, int, str]:
        return reply[0], reply[1], text(reply[2])

    argv = (*lock.argv, most, max_bytes, after, group, payload)
    return Script("migrate_adopt_letters", (lock.key, old, new.dead, new.meta), argv, decode)


def timers(
    lock: Lock, old_times: str, old_jobs: str, new: Keys, *, most: int, max_bytes: int, skip: int
) -> Script[tuple[int, list[tuple[str, str]], bool]]:
    """``migrate_adopt_timers.lua``: how many were moved, IDs of those that stay with why, and whether there are more."""

    def decode(reply: Reply) -> tuple[int, list[tuple[str, str]], bool]:
        stuck = texts(reply[1])
        return reply[0], list(zip(stuck[::2], stuck[1::2], strict=True)), reply[2] == 1

    keys = (lock.key, old_times, old_jobs, new.scheduled, new.jobs, new.wake)
    return Script("migrate_adopt_timers", keys, (*lock.argv, most, max_bytes, skip), decode)


def drop(lock: Lock, olds: Sequence[str]) -> Script[tuple[int, str]]:
    """``migrate_adopt_drop.lua``: how many keys were removed, and the one that still holds something."""

    def decode(reply: Reply) -> tuple[int, str]:
        return (reply[1], "") if reply[0] else (0, text(reply[1]))

    return Script("migrate_adopt_drop", (lock.key, *olds), lock.argv, decode)


def hold(lock: Lock) -> Script[int]:
    """``migrate_adopt_hold.lua``."""
    return Script("migrate_adopt_hold", (lock.key,), lock.argv, int)


def unlink(key: str, *, count: int, last: str) -> Script[bool]:
    """``migrate_adopt_unlink.lua``: False if it has changed."""
    return Script("migrate_adopt_unlink", (key,), (count, last), bool)
