"""The group's consumers: what one holds, and the removal of those that are gone."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

from streamq import _scripts_upkeep
from streamq._requests import Pending, Pipeline, Plan, ask, ask_each, consumers_of, groups_of, pending_of, text
from streamq._spec import Spec
from streamq.errors import ServerError
from streamq.keys import Keys

T = TypeVar("T")

PRUNED = 100
"""Most consumers that one request removes."""

BEATS = 1_000
"""Workers that one request looks at, about: their beats, to find those of dead ones."""

LISTED = 100
"""Most deliveries that one request lists."""


class Consumer(NamedTuple):
    """A consumer as the server has it."""

    group: str
    name: str
    pending: int
    idle_ms: int


def of_groups(keys: Keys, group: str | None) -> Plan[list[Consumer]]:
    """The consumers of a group, or of all groups, by group and name. Two requests; none where there is no stream."""
    stream = keys.stream
    [groups] = yield from ask_each(Pipeline((groups_of(stream),)))
    if isinstance(groups, ServerError) and groups.code == "ERR":
        return []  # no such key
    if isinstance(groups, Exception):
        raise groups
    names = [row["name"] for row in groups if group is None or text(row["name"]) == group]
    asked = Pipeline(tuple(consumers_of(stream, name) for name in names))
    found: list[Consumer] = []
    for name, rows in zip(names, (yield from ask_each(asked)) if names else [], strict=True):
        if isinstance(rows, ServerError) and rows.code in {"NOGROUP", "ERR"}:
            continue  # dropped meanwhile
        if isinstance(rows, Exception):
            raise rows
        found += (Consumer(text(name), text(row["name"]), row["pending"], row["idle"]) for row in rows)
    return sorted(found)


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
