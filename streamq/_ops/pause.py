"""Pause a stream: nothing is started any more; what runs goes on."""

from __future__ import annotations

from typing import Any, TypeVar

from streamq import _scripts_upkeep
from streamq._requests import Command, Pipeline, Plan, ask, ask_each, ignore, text
from streamq._spec import Spec

T = TypeVar("T")

WAIT_SLICE_MS = 4_000
"""Longest wait of one request, a second below the connection's read timeout."""


def change(spec: Spec[T], *, paused: bool) -> Plan[bool]:
    """Pause or resume; True if that changed anything. One request; atomic; works while memory is full."""
    return (yield from ask(_scripts_upkeep.pause(spec.keys, paused=paused)))


def is_paused(spec: Spec[T]) -> Plan[bool]:
    """Whether the stream is paused. One request."""
    return (yield from ask(flag(spec)))


def flag(spec: Spec[T]) -> Command[bool]:
    """Asks whether the stream is paused."""
    return Command(("HEXISTS", spec.keys.meta, "paused"), (spec.keys.meta,), bool)


def until_resumed(spec: Spec[T], wait_ms: int) -> Plan[int | None]:
    """Wait while the stream is paused: what is left of `wait_ms` when it was resumed, or None if it is paused still.

    What is left is counted in whole waits, so that a plan needs no clock: the caller waits up to 4 s less each time that
    something is written to ``T:wake`` meanwhile.
    """
    wake = spec.keys.wake
    last: Command[Any] = Command(("XREVRANGE", wake, "+", "-", "COUNT", 1), (wake,), _last_id)
    left = wait_ms
    while True:
        answers: list[Any] = yield from ask_each(Pipeline((flag(spec), last)))
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        paused, seen = answers
        if not paused:
            return left
        if left <= 0:
            return None
        wait = min(left, WAIT_SLICE_MS)
        left -= wait
        yield from ask(Command(("XREAD", "BLOCK", wait, "STREAMS", wake, seen), (wake,), ignore))


def _last_id(reply: Any) -> str:
    return text(reply[0][0]) if reply else "0-0"
