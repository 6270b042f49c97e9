"""Times as the server has them, ms since 1970, and as Python does."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

EPOCH: Final = datetime.fromtimestamp(0, UTC)

_LAST_MS: Final = 253_402_300_799_000
"""The last second of the year 9999, where datetime ends; entry IDs and due times go on."""


def moment(ms: int) -> datetime:
    """The time, within what datetime can say."""
    return EPOCH + timedelta(
        milliseconds=min(max(ms, 0), _LAST_MS)
    )  # a float of seconds would lose the ms of a far one


def ms_of(value: datetime) -> int:
    """Whole ms since 1970."""
    return (value - EPOCH) // timedelta(milliseconds=1)
