"""The group's consumers: what one holds, and the removal of those that are gone."""

from __future__ import annotations

from typing import TypeVar

from streamq import _scripts_upkeep
from streamq._requests import Pending, Plan, ask, pending_of
from streamq._spec import Spec
from streamq.errors import ServerError

T = TypeVar("T")

PRUNED = 100
"""Most consumers that one request removes."""

BEATS = 1_000
"""Workers that one request looks at, about: their beats, to find those of dead ones."""

LISTED = 100
"""Most deliveries that one request lists."""


def prune(spec: Spec[T], *, min_idle_ms: int) -> Plan[list[str]]:
    """Remove the group's consumers that hold nothing and were not heard of; their names. One request per 100; each atomic.

    What workers said of themselves goes with them, and so does what silent ones left that are no group's consumers.
    """
    names: list[str] = []
    while True:
        script = _scripts_upkeep.prune(spec.keys, spec.options, min_idle_ms=min_idle_ms, count=PRUNED, look=BEATS)
        page = yield from ask(script)
        names += page
        if len(page) < PRUNED:
            return names


def leave(spec: Spec[T], consumer: str) -> Plan[bool]:
    """Remove one consumer, if it holds nothing: True if it is gone, False if it holds something. One request; atomic."""
    return (yield from ask(_scripts_upkeep.leave(spec.keys, spec.options, consumer=consumer))) >= 0


def pending(spec: Spec[T], consumer: str, *, after: str = "") -> Plan[list[Pending]]:
    """Up to 100 deliveries that the consumer holds, in order of their IDs, behind the ID `after`. One request.

    Where the stream or the group is gone, it holds none.
    """
    listed = pending_of(spec.keys.stream, spec.options.group, consumer, count=LISTED, after=after)
    try:
        return (yield from ask(listed))
    except ServerError as error:
        if error.code != "NOGROUP":
            raise
        return []
