"""Can the server, and may the user, do what streamq needs? Asked before the first job is touched."""

from __future__ import annotations

from typing import Any, TypeVar

from streamq import _scripts
from streamq._requests import Command, Pipeline, Plan, Transaction, ask_each
from streamq._spec import Spec
from streamq.errors import ConfigurationError, ServerTooOldError

T = TypeVar("T")


def check(spec: Spec[T]) -> Plan[None]:
    """See that every command of ours is known and allowed. Two requests; writes nothing.

    Raises:
        ServerTooOldError: The server lacks a command.
        ConfigurationError: The user may not run one; the message names it.
    """
    probe = spec.keys.probe
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
            f"the user may not run {', '.join(denied) or in_exec[0]} on {spec.keys.stream}; streamq needs it"
        )


def _ignore(reply: Any) -> None:
    del reply
