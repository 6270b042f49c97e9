"""What workers say of themselves (``T:workers``), and who is alive by it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import msgspec

from streamq._beats import SILENT_MS, Beat
from streamq._ops.inspect.replies import age_s, moment_or_none
from streamq._requests import text
from streamq.keys import is_whole
from streamq.messages import MOST_MS
from streamq.snapshots import OF_A_GROUP, Difference, Member, WorkerSettings

HEARD_MS = 60_000
"""Another consumer is alive if the server heard of it within so long, or a lease if that is longer."""

NAMED = 10
"""Most workers that are named for one value of a setting."""

_WORD = 200
"""Most characters of what a beat says."""


class About(msgspec.Struct):
    """What a worker says; everything may be missing, or be somebody else's."""

    host: str | None = None
    pid: int | None = None
    version: str | None = None
    started_at: int | None = None
    concurrency: int | None = None
    group: str | None = None
    settings: WorkerSettings | None = None


WorkerBeat: TypeAlias = Beat[About]


def is_beating(beat: WorkerBeat, now_ms: int | None) -> bool:
    """Whether its worker has just said that it is alive."""
    return now_ms is not None and beat.is_fresh(now_ms)


def is_alive(beat: WorkerBeat | None, idle_ms: int | None, lease_ms: int, now_ms: int | None) -> bool | None:
    """As `Member.alive` says.

    A worker whose event loop stands still does not beat, but renews its leases, and the server hears of that each third of a
    lease.
    """
    if beat is None:
        return True if idle_ms is not None and idle_ms <= max(HEARD_MS, lease_ms) else None
    if is_beating(beat, now_ms):
        return True
    is_heard = idle_ms is not None and idle_ms <= min(max(SILENT_MS, lease_ms // 2), HEARD_MS)
    return True if is_heard else None if now_ms is None else False


def lease_ms_of(beats: Iterable[WorkerBeat], otherwise_ms: int, now_ms: int | None) -> int:
    """The lease that a group's workers have; the live ones know best."""
    known = [beat for beat in beats if beat.about.settings is not None]
    found = next((b for b in known if is_beating(b, now_ms)), next(iter(known), None))
    return otherwise_ms if found is None or found.about.settings is None else round(found.about.settings.lease * 1000)


def members(
    consumers: list[dict[str, Any]], beats: Mapping[str, WorkerBeat], lease_ms: int, now_ms: int | None
) -> dict[str, Member]:
    """The consumers of a group, and its workers that are none yet, by name. `beats` are all, or those of this group."""
    idle = {text(row["name"]): row for row in consumers}
    found = {}
    for name, row in idle.items():
        inactive = row.get("inactive", -1)
        member = Member(
            name=name,
            alive=is_alive(beats.get(name), row["idle"], lease_ms, now_ms),
            pending=row["pending"],
            idle=row["idle"] / 1000,
            inactive=None if inactive < 0 else inactive / 1000,
        )
        found[name] = _told(member, beats.get(name), now_ms)
    for name, beat in beats.items():
        if name not in found:
            alive = is_alive(beat, None, lease_ms, now_ms)
            found[name] = _told(Member(name=name, alive=alive, pending=0, idle=None), beat, now_ms)
    return found


def _told(member: Member, beat: WorkerBeat | None, now_ms: int | None) -> Member:
    if beat is None:
        return member
    about = beat.about
    return msgspec.structs.replace(
        member,
        beat=age_s(now_ms, beat.at_ms),
        host=None if about.host is None else about.host[:_WORD],
        pid=about.pid,
        version=None if about.version is None else about.version[:_WORD],
        started_at=moment_or_none(about.started_at if is_whole(about.started_at, 1, MOST_MS) else None),
        concurrency=about.concurrency,
    )


def settings(beats: Mapping[str, WorkerBeat], now_ms: int | None) -> WorkerSettings | None:
    """What the live workers have, or if none is alive what the dead ones had."""
    known = [beats[name] for name in sorted(beats) if beats[name].about.settings is not None]
    best = next((beat for beat in known if is_beating(beat, now_ms)), next(iter(known), None))
    return None if best is None else best.about.settings


def differences(beats: Mapping[str, WorkerBeat], now_ms: int | None) -> list[Difference]:
    """Settings on which live workers do not agree."""
    live = {name: beats[name].about for name in sorted(beats) if is_beating(beats[name], now_ms)}
    groups = sorted({about.group for about in live.values() if about.group is not None})
    found = []
    for setting in WorkerSettings.__struct_fields__:
        for group in groups if setting in OF_A_GROUP else [None]:
            values: dict[str, list[str]] = {}
            for name, about in live.items():
                if about.settings is not None and group in {None, about.group}:
                    value = msgspec.json.encode(getattr(about.settings, setting)).decode()
                    values.setdefault(value, []).append(name)
            if len(values) > 1:
                few = {value: names[:NAMED] for value, names in sorted(values.items())}
                found.append(Difference(setting=setting, group=group, values=few))
    return found
