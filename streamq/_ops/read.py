"""Read new entries for a consumer, and find again what was read without the reply arriving."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from streamq._requests import Arg, Command, Pipeline, Plan, Script, ask, ask_each, pending_of
from streamq._spec import Spec

T = TypeVar("T")
R = TypeVar("R")

BLOCK_SLICE_MS = 4_000
"""Longest BLOCK of one XREADGROUP: a second below the connection's read timeout, so that silence means a dead peer."""

MAX_COUNT = 1_000
"""Most entries of one read."""

RECOVERED = 100
"""Most lost entries looked at in one `unseen`; its caller asks again while it gets some."""


class Delivery(msgspec.Struct, frozen=True, gc=False):
    """An entry in this consumer's hands, not decoded yet."""

    entry_id: str
    fields: list[bytes]
    count: int


def new(spec: Spec[T], consumer: str, *, count: int, block_ms: int) -> Plan[list[Delivery]]:
    """Read up to `count` entries that this group has not read; wait up to `block_ms` for the first. One request."""
    return (yield from ask(_xreadgroup(spec, consumer, count, block_ms)))


def new_or_flag(
    spec: Spec[T], consumer: str, flag: Command[bool], after: Script[R], *, count: int, block_ms: int
) -> Plan[tuple[list[Delivery], bool, R | Exception]]:
    """As `new`, and what `flag` and `after` say when the wait is over. One write of three requests."""
    answers: list[Any] = yield from ask_each(Pipeline((_xreadgroup(spec, consumer, count, block_ms), flag, after)))
    deliveries, raised, answered = answers
    for answer in (
        deliveries,
        *(() if deliveries else (raised,)),
    ):  # what was read must not be lost to the flag's error
        if isinstance(answer, Exception):
            raise answer
    return deliveries, raised is True, answered


def _xreadgroup(spec: Spec[T], consumer: str, count: int, block_ms: int) -> Command[list[Delivery]]:
    stream = spec.keys.stream
    wait: tuple[Arg, ...] = ("BLOCK", block_ms) if block_ms else ()
    return Command(
        ("XREADGROUP", "GROUP", spec.options.group, consumer, "COUNT", count, *wait, "STREAMS", stream, ">"),
        (stream,),
        _deliveries,
        wait_ms=block_ms,
    )


def unseen(spec: Spec[T], consumer: str, held: frozenset[str]) -> Plan[list[Delivery]]:
    """Entries that are this consumer's on the server but not in `held`: their reply was lost on the way.

    Not those whose deliveries are spent: they were claimed to be dead-lettered, which the next reclaim does.
    Two requests. A read of the history would find them too, but charges each a delivery.
    """
    stream = spec.keys.stream
    rows = yield from ask(pending_of(stream, spec.options.group, consumer, count=RECOVERED + len(held)))
    spent_at = max(spec.options.max_deliveries, 2)  # a read alone counts one
    lost = [row for row in rows if row.entry_id not in held and row.count < spent_at][:RECOVERED]
    if not lost:
        return []
    bodies = yield from ask_each(
        Pipeline(
            tuple(
                Command(("XRANGE", stream, row.entry_id, row.entry_id, "COUNT", 1), (stream,), _entry) for row in lost
            )
        )
    )
    return [
        Delivery(row.entry_id, body, row.count)
        for row, body in zip(lost, bodies, strict=True)
        if isinstance(body, list)  # without a body it is reclaim's: it writes the tombstone
    ]


def _deliveries(reply: Any) -> list[Delivery]:
    if not reply:
        return []
    # IDs of entries are the server's own: digits and a dash.
    return [Delivery(entry_id.decode(), fields, 1) for entry_id, fields in reply[0][1] if fields is not None]


def _entry(reply: Any) -> list[bytes] | None:
    return reply[0][1] if reply else None
