"""One worker per tick takes over what dead ones left, and forgets job IDs that are due.

A token per tick, not an office: nothing is held, nothing to recover.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from streamq._flows import intake
from streamq._ops import identity
from streamq._requests import Command, Plan, ask
from streamq._spec import Spec
from streamq.errors import ServerError
from streamq.messages import Reclaimed

T = TypeVar("T")

LONGEST_TICK_MS = 2_000
"""So that a dead worker's jobs wait little longer than their lease, however long that is."""


def tick_ms(lease_ms: int) -> int:
    """Time between two passes of the fleet."""
    return max(min(lease_ms // 4, LONGEST_TICK_MS), 10)


def reclaim(
    spec: Spec[T], consumer: str, *, count: int, exclude: Iterable[str], has_token: bool
) -> Plan[Reclaimed[T] | None]:
    """Reclaim a page, and forget IDs that are due, if this tick's token is free; None if another worker has it.

    Claims without charging: the worker counts the start itself.

    Args:
        spec: The stream.
        consumer: Who takes them.
        count: Most jobs.
        exclude: Entry IDs that this process holds.
        has_token: Whether to go on without asking, after a page that was cut short.
    """
    if not has_token:
        key = spec.keys.tick(f"reclaim:{spec.options.group}")
        tick = tick_ms(spec.options.lease_ms)
        try:
            if not (yield from ask(Command(("SET", key, consumer, "NX", "PX", tick), (key,), _is_set))):
                return None
        except ServerError as error:
            if error.code != "OOM":
                raise
            # Memory is full: the token only spares work. Reclaiming writes nothing new, and drains what fills the memory.
        yield from identity.sweep(spec)
    return (
        yield from intake.reclaim(spec, consumer, count=count, min_idle_ms=None, raise_count=False, exclude=exclude)
    )


def _is_set(reply: Any) -> bool:
    return reply is not None
