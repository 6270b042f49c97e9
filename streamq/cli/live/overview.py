"""The table of all streams: a row each, as many as there is room for, around the one on which the mark is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from rich.style import StyleType
from rich.text import Text

from streamq.cli import figures
from streamq.cli.live.sparkline import sparkline
from streamq.cli.live.state import SAMPLES, History, Series, State
from streamq.cli.output import brief
from streamq.snapshots import FullSnapshot

MARK: Final = 2
"""Columns of the mark, and the blank behind it."""

NAME_AT_LEAST: Final = 16
"""Columns that a name keeps, if it is that long, before there are sparklines."""

NAME_AT_WORST: Final = 8
"""Columns that a name keeps, if it is that long, before figures are left out."""

BARS_AT_LEAST: Final = 5
BARS_AT_FIRST: Final = 8
"""Columns of a sparkline that is there at all, and those it has before names and verdicts are shown whole."""

KINDS_AT_LEAST: Final = 12
"""Columns that are worth it to say more of a verdict than how bad it is."""

WIDE: Final = 100
"""Columns beside mark and verdict from which on there is room for what came per second."""

SHORT_FROM: Final = 100_000
"""From here on, figures are shortened where the screen is too narrow for all of them."""

DISPENSABLE: Final = ("in/s", "live", "oldest", "done/s", "sched", "dead", "pending")
"""Columns to leave out, the first one first, where not even short figures fit. Each stream in depth has them."""


@dataclass(frozen=True, slots=True)
class _Column:
    """A column; every character in it is one cell wide: names of streams are ASCII."""

    title: str
    cells: Sequence[str]
    is_number: bool = True
    styles: Sequence[StyleType] = ()
    most: int | None = None

    @property
    def width(self) -> int:
        wanted = max(map(len, (self.title, *self.cells)))
        return wanted if self.most is None else min(wanted, self.most)

    @property
    def head(self) -> str:
        return _sized(self.title, self.width, right=self.is_number)

    def cell(self, row: int) -> Text:
        style = self.styles[row] if self.styles else ""
        return Text(_sized(self.cells[row], self.width, right=self.is_number), style=style)


def _sized(text: str, width: int, *, right: bool) -> str:
    if len(text) > width:  # names of a kind often begin alike: the middle says least
        tail = (width - 1) // 2
        return f"{text[: width - 1 - tail]}…{text[len(text) - tail :]}"
    return text.rjust(width) if right else text.ljust(width)


def table(state: State, width: int, room: int, bars: str) -> list[Text]:
    """Titles, rows, and how many rows do not fit, in at most `room` lines."""
    names = state.names
    columns = _columns(state, width, bars)
    first, last = _window(names.index(state.selected) if state.selected in names else 0, len(names), room - 1)
    lines = [Text(" " * MARK + " ".join(column.head for column in columns), style="bold")]
    for at, name in enumerate(names[first:last], first):
        is_chosen = name == state.selected
        row = [columns[0].cell(at), *_cells(state, name, columns[1:], at)]
        line = Text(" ").join(row)
        lines.append(Text.assemble("> " if is_chosen else "  ", line, style="reverse" if is_chosen else ""))
    above, below = first, len(names) - last
    if above or below:
        parts = (below and f"{below:,} below", above and f"{above:,} above")
        lines.append(Text(f"... and {above + below:,} more: {', '.join(part for part in parts if part)}", style="dim"))
    return lines[: max(room, 0)]


def _window(chosen: int, count: int, room: int) -> tuple[int, int]:
    """The rows to show, with the chosen one in the middle where that can be."""
    if count <= room:
        return 0, count
    room = max(room - 1, 1)  # the last line says how many are not shown
    first = max(0, min(chosen - room // 2, count - room))
    return first, first + room


def _cells(state: State, name: str, columns: Iterable[_Column], row: int) -> list[Text]:
    if name in state.look.refused:
        return [Text(f"cannot be looked at: {brief(state.look.refused[name], figures.LINE_CHARS)}", style="red")]
    return [column.cell(row) for column in columns]


# --- which columns, and how wide -------------------------------------------------------------


def _columns(state: State, width: int, bars: str) -> list[_Column]:
    """Figures always; what else there is room for: sparklines, whole names, whole verdicts, longer sparklines."""
    seen = [state.look.found.get(name) for name in state.names]
    words = ["" if one is None else one.condition for one in seen]
    styles = ["" if one is None else figures.STYLES[one.condition] for one in seen]
    verdict = _Column("verdict", words, is_number=False, styles=styles)
    name, numbers, spare = _fitting(state, seen, width - MARK - verdict.width)

    charts = min(spare // (BARS_AT_LEAST + 1), 2)
    each = min(spare // charts - 1, BARS_AT_FIRST) if charts else 0
    spare -= charts * (each + 1)
    longer = replace(name, most=name.width + spare)
    spare -= longer.width - name.width
    if spare >= KINDS_AT_LEAST:
        kinds = ["" if one is None else figures.condition(one).plain for one in seen]
        fuller = replace(verdict, cells=kinds, most=verdict.width + spare)
        spare -= fuller.width - verdict.width
        verdict = fuller
    each = min(each + spare // charts, SAMPLES) if charts else 0
    return [longer, *_with_charts(state, numbers, charts, each, bars), verdict]


def _fitting(state: State, seen: Sequence[FullSnapshot | None], width: int) -> tuple[_Column, list[_Column], int]:
    """Names and figures that fit, and how much room is left: figures get shorter, then names, then some are left out."""
    names = [brief(name, figures.NAME_CHARS) for name in state.names]

    def room(name: _Column, numbers: Iterable[_Column]) -> int:
        return width - sum(column.width + 1 for column in (name, *numbers))

    for told, most in ((_whole, NAME_AT_LEAST), (short, NAME_AT_LEAST), (short, NAME_AT_WORST)):
        name = _Column("stream", names, is_number=False, most=most)
        numbers = _numbers(state, seen, told, width)
        if room(name, numbers) >= 0:
            break
    for title in DISPENSABLE:
        if room(name, numbers) >= 0:
            break
        numbers = [column for column in numbers if column.title != title]
    name = replace(name, most=min(name.width + max(room(name, numbers), 0), NAME_AT_LEAST))
    return name, numbers, max(room(name, numbers), 0)


def _numbers(
    state: State, seen: Sequence[FullSnapshot | None], told: Callable[[int], str], width: int
) -> list[_Column]:
    def column(title: str, cell: Callable[[FullSnapshot], str]) -> _Column:
        return _Column(title, ["" if one is None else cell(one) for one in seen])

    def newest(title: str, series: Callable[[History], Series]) -> _Column:
        histories = [state.history.get(name, History()) for name in state.names]
        return _Column(title, [figures.rate((series(history) or (None,))[-1]) for history in histories])

    return [
        column("ready", lambda one: figures.ready(one, told)),
        column("oldest", lambda one: figures.age(figures.oldest(one))),
        column("pending", lambda one: told(one.pending)),
        column("scheduled" if width >= WIDE else "sched", lambda one: told(one.scheduled)),
        column("dead", lambda one: told(one.dead)),
        column("live", lambda one: told(sum(group.live for group in one.groups.values()))),
        *([newest("in/s", lambda history: history.entered)] if width >= WIDE else []),
        newest("done/s", lambda history: history.done),
    ]


def _with_charts(state: State, numbers: Sequence[_Column], charts: int, each: int, bars: str) -> list[_Column]:
    """Sparklines behind the figures they are of: `ready` first, then `done/s`."""
    series: dict[str, Callable[[History], Series]] = {"ready": lambda of: of.ready, "done/s": lambda of: of.done}
    columns = []
    for number in numbers:
        columns.append(number)
        if number.title in [*series][:charts]:
            histories = [state.history.get(name, History()) for name in state.names]
            drawn = [sparkline(series[number.title](history), each, bars) for history in histories]
            columns.append(_Column("", drawn, styles=["cyan"] * len(drawn)))
    return columns


def _whole(value: int) -> str:
    return f"{value:,}"


def short(value: int) -> str:
    """A figure in few characters, rounded down: ``99,999``, ``123.4k``, ``1.2M``."""
    for unit, size in (("G", 1_000_000_000), ("M", 1_000_000), ("k", 1_000)):
        if value >= max(size, SHORT_FROM):
            return f"{value * 10 // size / 10:,.1f}{unit}"
    return _whole(value)
