"""Read new entries for a consumer, and find again what was read without the reply arriving."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from streamq import _scripts
from streamq._requests import Arg, Command, Pipeline, Plan, Transaction, ask, ask_each
from streamq._scripts import text
from streamq._spec import Spec
from streamq.errors import ConfigurationError, ServerError, ServerTooOldError
from streamq.keys import registry

T = TypeVar("T")
R = TypeVar("R")

BLOCK_SLICE_MS = 4_000
"""Longest BLOCK of one XREADGROUP: a second below the connection's read timeout, so that silence means a dead peer."""

MAX_COUNT = 1_000
"""Most entries of one read."""

RECOVERED = 100
"""Most lost entries looked at in one `unseen`; its caller asks again while it gets some."""

_log = logging.getLogger("streamq")


class Delivery(msgspec.Struct, frozen=True):
    """An entry in this consumer's hands, not decoded yet."""

    entry_id: str
    fields: list[bytes]
    count: int


def prepare(spec: Spec[T]) -> Plan[None]:
    """Make the group, from the stream's beginning, and see that the server, and the user, can do what streamq needs.

    Four requests; the last one goes to the registry, which has a slot of its own. A group that is there
    already is enough: with memory full, making one is refused, and reading is what frees memory.
    """
    stream, probe = spec.keys.stream, spec.keys.probe
    old: Command[Any] = Command(("XAUTOCLAIM", probe, "g", "c", "0", "0", "COUNT", "1"), (probe,), _ignore)
    answers: list[Any] = yield from ask_each(Pipeline((old, _scripts.check(spec.keys))))
    too_old, denied = answers
    if isinstance(too_old, ServerTooOldError):
        raise ServerTooOldError(f"streamq needs Redis 6.2, Valkey, or later: {too_old}")
    if isinstance(denied, Exception):
        raise denied
    in_exec = yield from ask_each(Transaction((Command(("EXISTS", probe), (probe,), _ignore),)))
    if denied or isinstance(in_exec[0], Exception):
        raise ConfigurationError(
            f"the user may not run {', '.join(denied) or in_exec[0]} on {stream}; streamq needs it"
        )
    made = yield from ask_each(
        Pipeline((Command(("XGROUP", "CREATE", stream, spec.options.group, "0", "MKSTREAM"), (stream,), _ignore),))
    )
    if isinstance(made[0], Exception) and not (yield from _has_group(spec, made[0])):
        raise made[0]
    names = registry(spec.keys.deployment)
    listed = Pipeline((Command(("SADD", names, spec.keys.name), (names,), _ignore),))
    for answer in (yield from ask_each(listed)):
        if isinstance(answer, ConfigurationError):
            raise answer  # a missing permission; a refusal for now only means that SCAN must find the stream


def _has_group(spec: Spec[T], error: Exception) -> Plan[bool]:
    if isinstance(error, ServerError) and error.code == "BUSYGROUP":
        return True
    stream = spec.keys.stream
    kind = yield from ask(Command(("TYPE", stream), (stream,), text))
    if kind not in {"stream", "none"}:
        raise ConfigurationError(f"key {stream} holds a {kind}, not a stream: rename it, or choose another name")
    if kind == "none" or isinstance(error, ConfigurationError):
        return False
    groups = yield from ask(Command(("XINFO", "GROUPS", stream), (stream,), _group_names))
    return spec.options.group in groups


def with_group(spec: Spec[T], again: Callable[[], Plan[R]]) -> Plan[R]:
    """Run a plan; when the group is missing (fresh store, flush, failover) make it again, log it, and run it once more."""
    try:
        return (yield from again())
    except ServerError as error:
        if error.code not in {"NOGROUP", "UNBLOCKED"}:
            raise
    _log.warning("group %s of stream %s was missing; making it again", spec.options.group, spec.keys.name)
    yield from prepare(spec)
    return (yield from again())


def new(spec: Spec[T], consumer: str, *, count: int, block_ms: int | None) -> Plan[list[Delivery]]:
    """Read up to `count` entries that this group has not read. One request, or one per 4 s of waiting."""
    if not block_ms:
        return (yield from ask(_xreadgroup(spec, consumer, count, None)))
    for done in range(0, block_ms, BLOCK_SLICE_MS):
        deliveries = yield from ask(_xreadgroup(spec, consumer, count, min(BLOCK_SLICE_MS, block_ms - done)))
        if deliveries:
            return deliveries
    return []


def _xreadgroup(spec: Spec[T], consumer: str, count: int, block_ms: int | None) -> Command[list[Delivery]]:
    stream = spec.keys.stream
    wait: tuple[Arg, ...] = () if block_ms is None else ("BLOCK", block_ms)
    return Command(
        ("XREADGROUP", "GROUP", spec.options.group, consumer, "COUNT", count, *wait, "STREAMS", stream, ">"),
        (stream,),
        _deliveries,
    )


def unseen(spec: Spec[T], consumer: str, held: frozenset[str]) -> Plan[list[Delivery]]:
    """Entries that are this consumer's on the server but not in `held`: their reply was lost on the way.

    Two requests. A read of the history would find them too, but charges each a delivery.
    """
    stream = spec.keys.stream
    rows = yield from ask(
        Command(
            ("XPENDING", stream, spec.options.group, "-", "+", RECOVERED + len(held), consumer),
            (stream,),
            _pending_rows,
        )
    )
    lost = [(entry_id, count) for entry_id, count in rows if entry_id not in held][:RECOVERED]
    if not lost:
        return []
    bodies = yield from ask_each(
        Pipeline(
            tuple(
                Command(("XRANGE", stream, entry_id, entry_id, "COUNT", 1), (stream,), _entry) for entry_id, _ in lost
            )
        )
    )
    return [
        Delivery(entry_id, body, count)
        for (entry_id, count), body in zip(lost, bodies, strict=True)
        if isinstance(body, list)  # without a body it is reclaim's: it writes the tombstone
    ]


def _deliveries(reply: Any) -> list[Delivery]:
    if not reply:
        return []
    # IDs of entries are the server's own: digits and a dash.
    return [Delivery(entry_id.decode(), fields, 1) for entry_id, fields in reply[0][1] if fields is not None]


def _pending_rows(reply: Any) -> list[tuple[str, int]]:
    return [(text(entry_id), count) for entry_id, _, _, count in reply]


def _entry(reply: Any) -> list[bytes] | None:
    return reply[0][1] if reply else None


def _group_names(reply: Any) -> list[str]:
    return [text(row[1]) for row in reply]


def _ignore(reply: Any) -> None:
    del reply
