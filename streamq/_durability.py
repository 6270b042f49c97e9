"""Writes that wait until more than one memory has them: WAIT and WAITAOF, on the connection of the write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

from streamq._requests import (
    Arg,
    Command,
    Confirmed,
    Pipeline,
    Plan,
    Reply,
    Request,
    Script,
    Transaction,
    ask,
    ignore,
    through,
)
from streamq._spec import Spec
from streamq.errors import ConfigurationError, NotDurableError, ServerError, ServerTooOldError
from streamq.options import Durability, StreamOptions

T = TypeVar("T")

_PROBES: Final[dict[Durability, tuple[Arg, ...]]] = {
    "replicated": ("WAIT", 0, 0),
    # One local copy for 1 ms: the server refuses this if it has no append-only file.
    "fsynced": ("WAITAOF", 1, 0, 1),
}


def check(spec: Spec[T], durability: Durability) -> Plan[None]:
    """See that the server can confirm writes so, and that the user may ask for it, before anything is written. One request.

    Raises:
        ServerTooOldError: WAITAOF needs Redis 7.2 or Valkey.
        ConfigurationError: The server keeps no append-only file, or the user lacks the command.
    """
    if durability == "accepted":
        return
    keys = (spec.keys.stream,)
    try:
        yield from ask(Command(_PROBES[durability], keys, ignore))
    except ServerTooOldError as error:
        raise ServerTooOldError(f"durability='{durability}' needs Redis 7.2 or Valkey: {error}") from error
    except ServerError as error:
        raise ConfigurationError(f"durability='{durability}' cannot be had of this server: {error}") from error


def confirmed(plan: Plan[T], options: StreamOptions, durability: Durability) -> Plan[tuple[T, NotDurableError | None]]:
    """Run a plan whose requests write. Besides its result: what of it was not confirmed in time, as an error to raise.

    The write has happened by then; so its result comes first, and who raises the error can put it inside.
    """
    if durability == "accepted":
        return (yield from plan), None
    lacking: NotDurableError | None = None

    def asked(request: Request) -> Plan[Reply]:
        nonlocal lacking
        reply, answer = yield _confirming(request, options.confirm_ms, durability)
        lacking = lacking or _judged(answer, options.confirm_ms, durability)
        return reply

    result = yield from through(plan, asked)
    return result, lacking


def _confirming(request: Request, limit_ms: int, durability: Durability) -> Confirmed:
    assert isinstance(request, Command | Script | Pipeline | Transaction)  # noqa: S101  # they are not nested
    if durability == "replicated":
        return Confirmed(request, ("WAIT", 1, limit_ms))
    return Confirmed(request, ("WAITAOF", 1, 0, limit_ms))


def _judged(answer: Reply, limit_ms: int, durability: Durability) -> NotDurableError | None:
    if isinstance(answer, Exception):
        return NotDurableError(f"it cannot be told whether the write is {durability}: {answer}")
    copies = answer[0] if isinstance(answer, Sequence) else answer
    if copies:
        return None
    who = "no replica has confirmed it" if durability == "replicated" else "it is not on the primary's disk yet"
    return NotDurableError(f"written, but after {limit_ms:,} ms {who}: it may be lost if the primary fails now")
