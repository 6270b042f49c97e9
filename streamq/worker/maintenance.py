"""What one worker does for all at each tick. A token per tick, not an office: nothing is held, nothing to recover."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TypeVar

from streamq import _scripts_upkeep
from streamq._flows import intake
from streamq._ops import consumers, identity, inspect, trim
from streamq._requests import Plan, ask
from streamq._scripts_upkeep import Tick
from streamq._spec import Spec
from streamq.messages import Reclaimed

T = TypeVar("T")

LONGEST_TICK_MS = 1_500
"""A paused stream must start nothing 2 s later, and ticks are jittered by a quarter. So a dead worker's jobs wait little
longer than their lease, too, however long that is."""

SWEEP_MS = 2_000
TRIM_MS = 5_000
PRUNE_MS = 60_000
WATCH_MS = 60_000

TRIM_PASSES = 10
"""Most passes of one tick: some 20 ms of the server's time."""

PRUNE_IDLE_MS = 3_600_000
"""A consumer that holds nothing goes when it was not heard of for an hour: long enough to see in `inspect` who died."""

RECLAIM, SWEEP, TRIM, PRUNE, WATCH = "reclaim", "sweep", "trim", "prune", "watch"

_log = logging.getLogger("streamq.worker")


def tick_ms(lease_ms: int) -> int:
    """Time between two ticks of a worker, and between two reclaiming passes of the fleet."""
    return max(min(lease_ms // 4, LONGEST_TICK_MS), 10)


def tick(spec: Spec[T], consumer: str, *, may_reclaim: bool) -> Plan[Tick]:
    """Ask what is to be done: whether the stream is paused, and which roles are this worker's now. One request; atomic."""
    group = spec.options.group
    periods = {SWEEP: SWEEP_MS, TRIM: TRIM_MS, f"{PRUNE}:{group}": PRUNE_MS, f"{WATCH}:{group}": WATCH_MS}
    if may_reclaim:
        periods[f"{RECLAIM}:{group}"] = tick_ms(spec.options.lease_ms)
    return (yield from ask(_scripts_upkeep.tick(spec.keys, consumer=consumer, periods_ms=periods)))


def reclaim(spec: Spec[T], consumer: str, *, count: int, exclude: Iterable[str]) -> Plan[Reclaimed[T]]:
    """Take over a page of jobs, uncharged: the worker counts their starts itself."""
    return (
        yield from intake.reclaim(spec, consumer, count=count, min_idle_ms=None, raise_count=False, exclude=exclude)
    )


def upkeep(spec: Spec[T], roles: Iterable[str]) -> Plan[None]:
    """Do the work of the roles beside reclaiming: forget IDs, trim, prune consumers, name the groups that nobody reads."""
    for role in roles:
        match role.partition(":")[0]:
            case "sweep":
                yield from identity.sweep(spec)
            case "trim":
                for _ in range(TRIM_PASSES):
                    if not (yield from trim.trim_some(spec)):
                        break
            case "prune":
                yield from consumers.prune(spec, min_idle_ms=PRUNE_IDLE_MS)
            case "watch":
                for name in (yield from inspect.abandoned(spec)):
                    _log.warning(
                        "group %s of stream %s has entries to read, but nobody reads it: they stay in the stream until "
                        "somebody does, or the group is dropped",
                        *(name, spec.keys.name),
                    )
            case _:
                pass  # the worker's own
