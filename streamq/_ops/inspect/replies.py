"""What several looks share: replies decoded, and times."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from streamq._requests import Arg, Command, text
from streamq._times import moment
from streamq.messages import MOST_MS

T = TypeVar("T")

_FIRST_MS = 10**12
"""September 2001. An entry ID below it was given by a producer and is no time."""

LAST_ID = f"{2**64 - 1}-{2**64 - 1}"


class Page(NamedTuple):
    """Entries: their IDs, the fields of each, and the bytes of all."""

    ids: list[str]
    fields: list[list[bytes]]
    size: int


def entries(key: str, first: str, last: str, count: int, *, newest_first: bool = False) -> Command[Page]:
    """XRANGE, or XREVRANGE: a page of entries, and how many bytes they have."""
    args: tuple[Arg, ...] = ("XREVRANGE", key, last, first) if newest_first else ("XRANGE", key, first, last)
    return Command((*args, "COUNT", count), (key,), page)


def page(reply: Any) -> Page:
    """Decodes entries. Old servers list a deleted one without fields."""
    fields = [each or [] for _, each in reply]
    return Page([text(entry_id) for entry_id, _ in reply], fields, sum(len(part) for each in fields for part in each))


def mapping(reply: Any) -> dict[bytes, bytes]:
    """Decodes HGETALL."""
    return dict(zip(reply[::2], reply[1::2], strict=True))


def moment_or_none(ms: int | None) -> datetime | None:
    """A time in ms of the server's clock, if it is known."""
    return None if ms is None else moment(ms)


def entry_ms(entry_id: str) -> int | None:
    """When an entry was added, as its ID says; None if it says none."""
    ms = int(entry_id.partition("-")[0])
    return ms if _FIRST_MS <= ms <= MOST_MS else None


def age_s(now_ms: int | None, then_ms: int | None) -> float | None:
    """Seconds from then to now, never less than none."""
    return None if now_ms is None or then_ms is None else max(now_ms - then_ms, 0) / 1000


def counter(counters: dict[bytes, bytes], name: bytes) -> int:
    """A number of ``T:meta``; 0 if there is none."""
    value = counters.get(name, b"0")
    return int(value) if value.isdigit() and len(value) <= 18 else 0  # noqa: PLR2004  # a foreign one may be huge


def time_ms(reply: bytes | None) -> int | None:
    """Decodes a time in ms as a sorted set or a hash has it, within what can be shown; None if it is none."""
    try:
        return None if reply is None else int(min(max(float(reply), 0), MOST_MS))
    except ValueError:
        return None  # somebody else's, or NaN


def value_of(fields: list[bytes], name: bytes) -> bytes | None:
    """Value of an entry's field; None without it."""
    return next((fields[i + 1] for i in range(0, len(fields), 2) if fields[i] == name), None)
