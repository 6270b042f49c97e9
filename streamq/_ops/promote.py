"""Move jobs whose time has come into the stream, and sleep until one is."""

from __future__ import annotations

from typing import Any, TypeVar

from streamq import _scripts_timers
from streamq._requests import Command, Plan, Script, ask, text
from streamq._scripts_timers import Promoted
from streamq._spec import Spec

T = TypeVar("T")

BATCH = 200
"""Most jobs of one request: 2 to 4 ms of the server's time."""

BATCH_BYTES = 1 << 20
"""Entries are copied; beyond so many bytes the next request goes on."""


def step(spec: Spec[T]) -> Script[Promoted]:
    """Asks for one batch."""
    return _scripts_timers.promote(spec.keys, spec.options, most=BATCH, max_bytes=BATCH_BYTES)


def some(spec: Spec[T]) -> Plan[Promoted]:
    """Move a batch of what is due. One request; atomic."""
    return (yield from ask(step(spec)))


def all_due(spec: Spec[T]) -> Plan[int]:
    """Move all that is due; how many. One request per 200."""
    moved = 0
    while True:
        found = yield from some(spec)
        moved += found.moved
        if not found.goes_on:
            return moved


def wake(spec: Spec[T], seen: str, wait_ms: int) -> Plan[str | None]:
    """Wait until somebody writes ``T:wake`` behind the entry `seen` (``0-0`` at first): its ID; None if nobody did.

    One request.
    """

    def decode(reply: Any) -> str | None:
        return text(reply[0][1][-1][0]) if reply else None

    key = spec.keys.wake
    args = ("XREAD", "BLOCK", wait_ms, "STREAMS", key, seen)
    return (yield from ask(Command(args, (key,), decode, wait_ms=wait_ms)))
