"""Consumer groups: made before the first job needs them, dropped when nobody does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from streamq import _scripts_upkeep
from streamq._requests import Command, Pipeline, Plan, ask, ask_each, ignore, text
from streamq._scripts_upkeep import Dropped
from streamq._spec import Spec
from streamq.errors import ConfigurationError, JobStateError, ServerError
from streamq.keys import check_flag, check_name
from streamq.options import GroupStart

T = TypeVar("T")

_START = {"all": "0", "new": "$"}


def create(spec: Spec[T], names: Sequence[str], start: GroupStart) -> Plan[list[str]]:
    """Make groups, and the stream with them; the names of those that were not there. One request.

    A group that is there already is enough, even where making one is refused: with memory full, reading is what frees it.
    """
    stream = spec.keys.stream
    made = yield from ask_each(
        Pipeline(
            tuple(
                Command(("XGROUP", "CREATE", stream, name, _START[start], "MKSTREAM"), (stream,), ignore)
                for name in names
            )
        )
    )
    refused = {name: answer for name, answer in zip(names, made, strict=True) if isinstance(answer, Exception)}
    others = {name: error for name, error in refused.items() if not _exists(error)}
    if others:
        there = yield from _names(spec, next(iter(others.values())))
        for name, error in others.items():
            if name not in there:
                raise error
    return [name for name in names if name not in refused]


def _exists(error: Exception) -> bool:
    return isinstance(error, ServerError) and error.code == "BUSYGROUP"


def _names(spec: Spec[T], error: Exception) -> Plan[list[str]]:
    """The groups that are there, after an `error` of making one."""
    stream = spec.keys.stream
    kind = yield from ask(Command(("TYPE", stream), (stream,), text))
    if kind not in {"stream", "none"}:
        raise ConfigurationError(f"key {stream} holds a {kind}, not a stream: rename it, or choose another name")
    if kind == "none" or isinstance(error, ConfigurationError):
        return []
    return (yield from ask(Command(("XINFO", "GROUPS", stream), (stream,), _group_names)))


def drop(spec: Spec[T], name: str, *, force: bool) -> Plan[bool]:
    """Remove a group; False if there is none. One request; atomic."""
    answer: Dropped = yield from ask(
        _scripts_upkeep.drop_group(spec.keys, group=check_name(name, "group"), force=check_flag(force, "force"))
    )
    if answer.code < 0:
        if answer.pending:
            left, state = f"{answer.pending:,} pending entries", "pending"
        elif answer.unread:
            left, state = "entries that it has not read", "ready"
        else:
            left, state = "jobs that wait for their next attempt", "scheduled"
        raise JobStateError(
            f"group {name} of stream {spec.keys.name} has {left}; let its workers finish, or drop it with force",
            state=state,
        )
    return answer.code == 1


def _group_names(reply: Any) -> list[str]:
    return [text(row[1]) for row in reply]
