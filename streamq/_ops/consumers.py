"""The group's consumers: what one holds, and the removal of those that are gone."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from streamq import _scripts_upkeep
from streamq._requests import Command, Plan, Reply, ask, text
from streamq._spec import Spec
from streamq.errors import ServerError

T = TypeVar("T")

PRUNED = 100
"""Most consumers that one request removes."""

BEATS = 1_000
"""Workers that one request looks at, about: their beats, to find those of dead ones."""

LISTED = 100
"""Most deliveries that one request lists."""


class Pending(msgspec.Struct, frozen=True):
    """A delivery as the server has it."""

    entry_id: str
    idle_ms: int
    count: int


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
    stream = spec.keys.stream
    first = f"({after}" if after else "-"
    listed = Command(("XPENDING", stream, spec.options.group, first, "+", LISTED, consumer), (stream,), _rows)
    try:
        return (yield from ask(listed))
    except ServerError as error:
        if error.code != "NOGROUP":
            raise
        return []


def _rows(reply: Reply) -> list[Pending]:
    return [Pending(text(entry_id), idle_ms, count) for entry_id, _, idle_ms, count in reply]
