"""What one worker does for all at each tick. A token per tick, not an office: nothing is held, nothing to recover."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from streamq import _scripts_upkeep
from streamq._flows import intake
from streamq._ops import consumers, identity, inspect, trim
from streamq._requests import Plan, ask
from streamq._scripts_upkeep import Role, Tick
from streamq._spec import Spec
from streamq.messages import Reclaimed
from streamq.snapshots import WorkerSettings
from streamq.worker import log

T = TypeVar("T")

LONGEST_TICK_MS = 2_000
"""A dead worker's jobs wait little longer than their lease, however long that is; and an idle worker asks seldom."""

# Roles' periods. An idle fleet sends some ten requests a minute for them, however many workers it has.
SHORTEST_SWEEP_MS = 2_000
LONGEST_SWEEP_MS = 60_000
TRIM_MS = 10_000
PRUNE_MS = 60_000
WATCH_MS = 120_000

PROMOTER_TICKS = 3
"""Ticks that the promoter's token outlasts: one that died, or whose event loop stands still, is followed that soon."""

TRIM_PASSES = 10
"""Most passes of one tick: some 20 ms of the server's time."""

PRUNE_IDLE_MS = 600_000
"""A consumer that holds nothing goes when it was not heard of for ten minutes: long enough to see in `inspect` who died."""

_NOBODY_READS = "nobody reads a group that has entries: they stay in the stream until somebody does, or it is dropped"

_log = logging.getLogger("streamq.worker")


def tick_ms(lease_ms: int) -> int:
    """Time between two ticks of a worker, and between two reclaiming passes of the fleet."""
    return max(min(lease_ms // 4, LONGEST_TICK_MS), 10)


def sweep_ms(slice_ms: int) -> int:
    """Time between two looks for job IDs that are due: a quarter of the time that a slice of them is written."""
    return min(max(slice_ms // 4, SHORTEST_SWEEP_MS), LONGEST_SWEEP_MS)


def beat(spec: Spec[T], about: Mapping[str, Any]) -> bytes:
    """What a worker says of itself on this stream: who it is, and what it and others must agree on."""
    return msgspec.json.encode({**about, "group": spec.options.group, "settings": WorkerSettings.of(spec.options)})


def tick(
    spec: Spec[T], consumer: str, *, may_reclaim: bool, is_solo: bool = False, beat: bytes | None = None
) -> Plan[Tick]:
    """Ask what is to be done: whether the stream is paused, and which roles are this worker's now. One request; atomic.

    Reclaiming is nobody's while the group has nothing pending.

    Args:
        spec: The stream.
        consumer: Who asks.
        may_reclaim: Whether it would reclaim.
        is_solo: Whether it would take only what has a single start left. Such a worker does not promote.
        beat: JSON that says who it is, to be kept in ``T:workers`` with the server's time; None writes nothing.
    """
    options = spec.options
    periods = {
        Role.SWEEP: sweep_ms(options.slice_ms),
        Role.TRIM: TRIM_MS,
        Role.PRUNE: PRUNE_MS,
        Role.WATCH: WATCH_MS,
    }
    if not is_solo:  # its jobs are those that may end its process
        periods[Role.PROMOTE] = PROMOTER_TICKS * tick_ms(options.lease_ms)
    if may_reclaim:
        periods[Role.RECLAIM_LAST if is_solo else Role.RECLAIM] = tick_ms(options.lease_ms)
    return (yield from ask(_scripts_upkeep.tick(spec.keys, options, consumer=consumer, beat=beat, periods_ms=periods)))


def reclaim(
    spec: Spec[T],
    consumer: str,
    *,
    count: int,
    exclude: Iterable[str],
    is_solo: bool = False,
    last_patience_ms: int = 0,
) -> Plan[Reclaimed[T]]:
    """Take over a page of jobs, uncharged: the worker counts their starts itself.

    Of those with a single start left it takes one, since they run alone; a solo worker takes nothing else.
    """
    return (
        yield from intake.reclaim(
            spec,
            consumer,
            count=count,
            min_idle_ms=None,
            raise_count=False,
            exclude=exclude,
            least_count=max(spec.options.max_deliveries - 1, 1) if is_solo else 0,
            most_last=1,
            last_patience_ms=last_patience_ms,
        )
    )


def upkeep(spec: Spec[T], roles: Iterable[Role]) -> Plan[None]:
    """Do the work of the roles beside reclaiming: forget IDs, trim, prune consumers, name the groups that nobody reads."""
    for role in roles:
        match role:
            case Role.SWEEP:
                yield from identity.sweep(spec)
            case Role.TRIM:
                for _ in range(TRIM_PASSES):
                    if not (yield from trim.trim_some(spec)):
                        break
            case Role.PRUNE:
                yield from consumers.prune(spec, min_idle_ms=PRUNE_IDLE_MS)
            case Role.WATCH:
                yield from _watch(spec)
            case Role.RECLAIM | Role.RECLAIM_LAST | Role.PROMOTE:
                pass  # the fetcher's and the timer's own


def _watch(spec: Spec[T]) -> Plan[None]:
    for name in (yield from inspect.abandoned(spec)):
        if name != spec.options.group:  # its worker has perhaps not read yet
            log.event(_log, logging.WARNING, _NOBODY_READS, stream=spec.keys.name, group=name)
