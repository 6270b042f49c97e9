"""Times as people write and read them."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from typing import Final

from streamq.errors import ConfigurationError

_DURATION: Final = re.compile(r"([+-]?\d+(?:\.\d+)?)([smhd]?)", re.ASCII)
_RATE: Final = re.compile(r"(\d+(?:\.\d+)?)(?:/([smh]))?", re.ASCII)
_SECONDS: Final = {"": 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400}

EPOCH: Final = datetime.fromtimestamp(0, UTC)

_FAR_S: Final = 1_000 * 365 * 86_400
"""No duration is longer: what is added to a time must still be one."""


def duration(value: str, option: str) -> float:
    """Seconds, from ``90``, ``90s``, ``10m``, ``2h`` or ``1d``.

    Raises:
        ConfigurationError: It is none; `option` names it.
    """
    seconds = _seconds(value)
    if seconds is None:
        raise ConfigurationError(f"{option} {value!r:.80} is no duration: write 90, 90s, 10m, 2h or 1d")
    return seconds


def rate(value: str, option: str) -> float:
    """How many a second, from ``5``, ``5/s``, ``300/m`` or ``1000/h``.

    Raises:
        ConfigurationError: It is none; `option` names it.
    """
    match = _RATE.fullmatch(value.strip())
    found = float(match[1]) / _SECONDS[match[2] or ""] if match is not None else 0
    if not 0 < found < math.inf:
        raise ConfigurationError(f"{option} {value!r:.80} is no rate: write 5/s, 300/m or 1000/h")
    return found


def moment(value: str, option: str) -> datetime:
    """A time, from ISO 8601 with a zone.

    Raises:
        ConfigurationError: It is none, or has no zone; `option` names it.
    """
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        raise ConfigurationError(
            f"{option} {value!r:.80} is no time: write one with its zone, such as 2030-01-31T12:00:00Z"
        ) from None
    if found.utcoffset() is None:
        raise ConfigurationError(
            f"{option} {value!r:.80} has no zone, and means another moment on every machine: "
            "write 2030-01-31T12:00:00Z or 2030-01-31T12:00:00+02:00"
        )
    try:
        return found.astimezone(UTC)
    except OverflowError:
        raise ConfigurationError(f"{option} {value!r:.80} is no time that can be counted with") from None


def moment_or_duration(value: str, option: str, now: datetime) -> datetime:
    """A time, from ISO 8601 with a zone, or from how far it is from now.

    Raises:
        ConfigurationError: It is neither; `option` names it.
    """
    seconds = _seconds(value)
    if seconds is None:
        return moment(value, option)
    if abs(seconds) > _FAR_S:
        raise ConfigurationError(f"{option} {value!r:.80} is too far from now")
    return now + timedelta(seconds=seconds)


def _seconds(value: str) -> float | None:
    match = _DURATION.fullmatch(value.strip())
    return None if match is None else float(match[1]) * _SECONDS[match[2]]


def absolute(value: datetime) -> str:
    """A time to the second, in UTC."""
    return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def relative(value: datetime, now: datetime) -> str:
    """How far a time is from now, in its two largest units: ``in 2h 5m``, ``3s ago``."""
    seconds = round((value - now).total_seconds())
    if seconds == 0:
        return "now"
    rest = abs(seconds)
    parts = []
    for unit in "dhms":
        count, rest = divmod(rest, _SECONDS[unit])
        parts.append(f"{count:,}{unit}" if count else "")
    first = next(at for at, part in enumerate(parts) if part)
    words = " ".join(part for part in parts[first : first + 2] if part)
    return f"in {words}" if seconds > 0 else f"{words} ago"
