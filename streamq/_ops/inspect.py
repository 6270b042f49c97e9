"""Look at a stream without touching it: read commands only, of bounded cost."""

from __future__ import annotations

from typing import Any, TypeVar

from streamq._requests import Command, Pipeline, Plan, ask, ask_each
from streamq._scripts import text
from streamq._spec import Spec
from streamq.errors import ServerError
from streamq.messages import GroupSnapshot, Snapshot

T = TypeVar("T")

COUNTED = 10_000
"""Most unread entries counted one by one, where the server does not know the number (Redis 6.2, or after deletions)."""

_PAGE = 1_000

DOUBTED = 10
"""Up to here a lag is counted again: Redis 7.0's is too high for a while after unread entries were removed (cancelled)."""

UNHEARD_MS = 60_000
"""A group is abandoned when none of its consumers was heard of for so long, or for a lease if that is longer."""


def snapshot(spec: Spec[T]) -> Plan[Snapshot]:
    """The stream now. One write of five requests; more only for groups with unread entries: who reads them, how many."""
    keys = spec.keys
    answers: list[Any] = yield from ask_each(
        Pipeline(
            (
                Command(("XLEN", keys.stream), (keys.stream,), int),
                Command(("XINFO", "GROUPS", keys.stream), (keys.stream,), _rows),
                Command(("XLEN", keys.dead), (keys.dead,), int),
                Command(("ZCARD", keys.scheduled), (keys.scheduled,), int),
                Command(("HGETALL", keys.meta), (keys.meta,), _mapping),
            )
        )
    )
    length, groups, dead, scheduled, counters = answers
    if isinstance(groups, ServerError) and groups.code == "ERR":
        groups = []  # no such key: a stream that was never used has no groups
    for answer in (length, groups, dead, scheduled, counters):
        if isinstance(answer, Exception):
            raise answer
    paused = b"paused" in counters
    found: dict[str, GroupSnapshot] = {}
    for row in groups:
        ready, exact = yield from _ready(spec, row)
        ready = min(ready, length)  # the server's lag still counts what was trimmed
        abandoned = ready > 0 and not paused and (yield from _unheard(spec, row))
        found[text(row["name"])] = _group(row, ready, exact=exact, abandoned=abandoned, counters=counters)
    return Snapshot(
        name=keys.name,
        deployment=keys.deployment,
        ready=sum(group.ready for group in found.values()) if found else length,
        pending=sum(group.pending for group in found.values()),
        scheduled=scheduled,
        dead=dead,
        length=length,
        paused=paused,
        groups=found,
    )


def _unheard(spec: Spec[T], row: dict[str, Any]) -> Plan[bool]:
    """Whether no consumer of the group was heard of for a while. One request, none if there is no consumer."""
    if row["consumers"] == 0:
        return True
    stream = spec.keys.stream
    consumers = yield from ask_each(Pipeline((Command(("XINFO", "CONSUMERS", stream, row["name"]), (stream,), _rows),)))
    if isinstance(consumers[0], Exception):
        return False  # the group, or the stream, is gone meanwhile
    longest = max(UNHEARD_MS, spec.options.lease_ms)
    return all(consumer["idle"] >= longest for consumer in consumers[0])


def abandoned(spec: Spec[T]) -> Plan[list[str]]:
    """Names of the groups that nobody reads: each pins the entries that it has not read."""
    seen = yield from snapshot(spec)
    return [name for name, group in seen.groups.items() if group.abandoned]


def _group(
    row: dict[str, Any], ready: int, *, exact: bool, abandoned: bool, counters: dict[bytes, bytes]
) -> GroupSnapshot:
    def counter(name: str) -> int:
        value = counters.get(f"{name}:".encode() + row["name"], b"0")
        return int(value) if value.isdigit() and len(value) <= 18 else 0  # noqa: PLR2004  # a foreign one may be huge

    return GroupSnapshot(
        name=text(row["name"]),
        ready=ready,
        exact=exact,
        pending=row["pending"],
        consumers=row["consumers"],
        done=counter("done"),
        retried=counter("retried"),
        dead=counter("dead"),
        redriven=counter("redriven"),
        abandoned=abandoned,
    )


def _ready(spec: Spec[T], row: dict[str, Any]) -> Plan[tuple[int, bool]]:
    """Entries the group has not read, and whether that is exact."""
    lag = row.get("lag")
    if lag == 0 or (lag is not None and lag > DOUBTED):
        return lag, True
    stream = spec.keys.stream
    last = text(row["last-delivered-id"])
    count = 0
    while count < COUNTED:
        ids = yield from ask(Command(("XRANGE", stream, f"({last}", "+", "COUNT", _PAGE), (stream,), _ids))
        count += len(ids)
        if len(ids) < _PAGE:
            return count, True
        last = ids[-1]
    return count, False


def _rows(reply: Any) -> list[dict[str, Any]]:
    return [{text(row[i]): row[i + 1] for i in range(0, len(row), 2)} for row in reply]


def _mapping(reply: Any) -> dict[bytes, bytes]:
    return dict(zip(reply[::2], reply[1::2], strict=True))


def _ids(reply: Any) -> list[str]:
    return [text(entry_id) for entry_id, _ in reply]
