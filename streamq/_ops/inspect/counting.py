"""How many entries a group has not read, where the server does not say, or cannot be believed."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

from streamq._ops.inspect.replies import LAST_ID, Page, entries
from streamq._requests import Command, Pipeline, Plan, ask_each, text
from streamq._spec import Spec

T = TypeVar("T")

COUNTED = 10_000
"""Most entries counted one by one, on either side of what the group has read."""

COUNTED_BYTES = 16 << 20
"""Most bytes of entries fetched for that: their bodies come with their IDs."""

DOUBTED = 10
"""A server's number is believed if there are more than so many: before Redis 8 it stays too high after some deletions."""

STEPS = 9
"""Most steps of it, of three requests each: enough for as many entries, if these are small."""

_PAGE = 1_250
_PAGE_BYTES = 256 << 10
"""Of one page, about: a fraction of a ms of the server's time."""


class Unread(NamedTuple):
    """How many, at least, and whether that is exact."""

    ready: int
    exact: bool


def unread(
    spec: Spec[T], row: dict[str, Any], length: int, *, doubts: bool = False, steps: int = STEPS
) -> Plan[Unread]:
    """Entries behind the last one that the group has read.

    Args:
        spec: The stream.
        row: Of XINFO GROUPS.
        length: Of the stream.
        doubts: Whether the server's own number is not believed however high it is.
        steps: Most steps of counting.
    """
    lag = row.get("lag")
    last = text(row["last-delivered-id"])
    if lag == 0 or length == 0 or last == LAST_ID:  # behind the last possible ID the server refuses to look
        return Unread(0, exact=True)
    if lag is not None and lag > DOUBTED and not doubts:
        return Unread(min(lag, length), exact=True)  # it still counts what was trimmed
    found = yield from _count(spec, last, steps)
    return found if lag is None or found.exact else Unread(min(found.ready, lag), exact=False)


def _count(spec: Spec[T], last: str, steps: int) -> Plan[Unread]:
    """Counts from `last` on, and from the head up to it, at once: whichever ends first tells. One write per step.

    So the backlog may be long, or what is pending and kept.
    """
    stream = spec.keys.stream
    behind, ahead = "-", f"({last}"
    read = ready = size = 0
    count = 1  # one entry may have megabytes
    for _ in range(steps):
        if max(read, ready) >= COUNTED or size >= COUNTED_BYTES:
            break
        length: Command[Any] = Command(("XLEN", stream), (stream,), int)
        parts = (entries(stream, ahead, "+", count), entries(stream, behind, last, count), length)
        answers: list[Any] = yield from ask_each(Pipeline(parts))
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        after, before, now = answers
        ready += len(after.ids)
        read += len(before.ids)
        if len(after.ids) < count:
            return Unread(ready, exact=True)
        if len(before.ids) < count:
            return Unread(max(now - read, 0), exact=True)
        ahead, behind = f"({after.ids[-1]}", f"({before.ids[-1]}"
        size += after.size + before.size
        count = next_count(after, before)
    return Unread(min(ready, COUNTED), exact=False)


def next_count(*pages: Page) -> int:
    """How many entries to ask for next, when these were the last ones: by their size."""
    average = max((p.size // len(p.ids) for p in pages if p.ids), default=0)
    return min(max(_PAGE_BYTES // max(average, 1), 1), _PAGE)
