"""Look at a stream without touching it: read commands only, of bounded cost."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

from streamq._requests import Command, Pipeline, Plan, ask, ask_each, entry_order, text
from streamq._spec import Spec
from streamq.errors import ServerError
from streamq.messages import GroupSnapshot, Snapshot

T = TypeVar("T")

COUNTED = 10_000
"""Most unread entries counted one by one, where the server does not know the number (Redis 6.2, or after deletions)."""

COUNTED_BYTES = 16 << 20
"""Most bytes of entries fetched for that: their bodies come with their IDs."""

_PAGE = 100

DOUBTED = 10
"""A server's number is believed if there are more than so many: Redis 7.0's stays too high after unread entries were removed."""

_LAST = f"{2**64 - 1}-{2**64 - 1}"

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
    """Names of the groups that nobody reads: each pins the entries that it has not read.

    One write of three requests, and one request for each group that has entries to read.
    """
    stream, meta = spec.keys.stream, spec.keys.meta
    answers: list[Any] = yield from ask_each(
        Pipeline(
            (
                Command(("XINFO", "GROUPS", stream), (stream,), _rows),
                Command(("HEXISTS", meta, "paused"), (meta,), bool),
                Command(("XREVRANGE", stream, "+", "-", "COUNT", 1), (stream,), _page),
            )
        )
    )
    groups, paused, last = answers
    if paused is not False or isinstance(groups, Exception) or isinstance(last, Exception) or not last.ids:
        return []  # nobody is to read it, it is not there, or there is nothing to read
    found = []
    for row in groups:
        is_behind = entry_order(text(row["last-delivered-id"])) < entry_order(last.ids[0])
        if is_behind and (yield from _unheard(spec, row)):
            found.append(text(row["name"]))
    return found


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
    if lag == 0:
        return 0, True
    last = text(row["last-delivered-id"])
    if lag is not None:
        first = yield from _behind(spec, last, DOUBTED + 1)
        return (len(first.ids) if len(first.ids) <= DOUBTED else lag), True
    count = size = 0
    while count < COUNTED and size < COUNTED_BYTES:
        page = yield from _behind(spec, last, _PAGE)
        count += len(page.ids)
        size += page.size
        if len(page.ids) < _PAGE:
            return count, True
        last = page.ids[-1]
    return count, False


class _Page(NamedTuple):
    """Entry IDs, and the bytes of the entries."""

    ids: list[str]
    size: int


def _behind(spec: Spec[T], last: str, count: int) -> Plan[_Page]:
    """Up to `count` entries behind one. One request."""
    if last == _LAST:
        return _Page([], 0)  # there is nothing, and the server refuses to look
    stream = spec.keys.stream
    return (yield from ask(Command(("XRANGE", stream, f"({last}", "+", "COUNT", count), (stream,), _page)))


def _rows(reply: Any) -> list[dict[str, Any]]:
    return [{text(row[i]): row[i + 1] for i in range(0, len(row), 2)} for row in reply]


def _mapping(reply: Any) -> dict[bytes, bytes]:
    return dict(zip(reply[::2], reply[1::2], strict=True))


def _page(reply: Any) -> _Page:
    return _Page([text(entry_id) for entry_id, _ in reply], sum(len(part) for _, fields in reply for part in fields))
