"""A series as a line of bars."""

from __future__ import annotations

from typing import Final

from streamq.cli.live.state import Series

BARS: Final = "▁▂▃▄▅▆▇█"
ASCII_BARS: Final = "_.:-=+*#"


def sparkline(series: Series, width: int, bars: str = BARS) -> str:
    """The newest values, one character each, between nothing and the greatest of them; exactly `width` wide.

    The lowest bar is nothing at all: what is there, however little, is above it. A value that is not known is a blank.
    """
    shown = series[-width:] if width > 0 else ()
    top = max((value for value in shown if value is not None), default=0)
    return "".join(" " if value is None else _bar(value, top, bars) for value in shown).rjust(width)


def _bar(value: float, top: float, bars: str) -> str:
    return bars[0] if value <= 0 else bars[max(1, round(value / top * (len(bars) - 1)))]
