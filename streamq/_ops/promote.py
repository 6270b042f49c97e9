"""Move jobs whose time has come into the stream, and sleep until one is."""

from __future__ import annotations

import logging
from typing import Any, TypeVar

from streamq import _scripts_timers
from streamq._requests import Command, Pipeline, Plan, Script, ask, ask_each, text
from streamq._scripts_timers import Promoted
from streamq._spec import Spec
from streamq._text import shown

T = TypeVar("T")

BATCH = 200
"""Most jobs of one request: 2 to 4 ms of the server's time."""

BATCH_BYTES = 1 << 20
"""Entries are copied; beyond so many bytes the next request goes on."""


READER_BATCHES = 10
"""Most requests before a read: 2,000 jobs a second for a hand-written loop."""

_MEANING = {
    "lost": "its entry is gone; it was taken out",
    "untimed": "it had no time; its entry is a dead letter",
    "malformed": "it is no packed entry; what it is, is a dead letter",
    "stuck": "it has no time, or is no packed entry, and stays: the dead letter cannot be written",
}

_log = logging.getLogger("streamq")


def step(spec: Spec[T]) -> Script[Promoted]:
    """Asks for one batch."""
    return _scripts_timers.promote(spec.keys, spec.options, most=BATCH, max_bytes=BATCH_BYTES)


def some(spec: Spec[T]) -> Plan[Promoted]:
    """Move a batch of what is due, and log what is no job. One request; atomic."""
    found = yield from ask(step(spec))
    report(spec, found)
    return found


def all_due(spec: Spec[T]) -> Plan[int]:
    """Move all that is due; how many. One request per 200."""
    moved = 0
    while True:
        found = yield from some(spec)
        moved += found.moved
        if not found.goes_on:
            return moved


def for_a_reader(spec: Spec[T]) -> Plan[Promoted | None]:
    """Move what is due, but no more than one may read before the next look; the last answer.

    One request per 200, ten at most. None if nothing can be moved: that is no reason not to read.
    """
    last = None
    for _ in range(READER_BATCHES):
        [found] = yield from ask_each(Pipeline((step(spec),)))
        if isinstance(found, Exception):
            return None
        report(spec, last := found)
        if not found.goes_on:
            break
    return last


def report(spec: Spec[T], found: Promoted) -> None:
    """Log what was scheduled and is no job."""
    for timer, what in found.dropped:
        name = spec.keys.name
        _log.error("stream %s: what is scheduled as %s is no job: %s", name, shown(timer), _MEANING.get(what, what))


def wake(spec: Spec[T], seen: str, wait_ms: int) -> Plan[str | None]:
    """Wait until somebody writes ``T:wake`` behind the entry `seen` (``0-0`` at first): its ID; None if nobody did.

    One request.
    """

    def decode(reply: Any) -> str | None:
        return text(reply[0][1][-1][0]) if reply else None

    key = spec.keys.wake
    args = ("XREAD", "BLOCK", wait_ms, "STREAMS", key, seen)
    return (yield from ask(Command(args, (key,), decode, wait_ms=wait_ms)))
