"""The lines to show, from the state and the size of the screen: the same ones whenever these are the same."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final

from rich.console import Console, RenderableType
from rich.text import Text

from streamq._text import duration
from streamq.cli import figures
from streamq.cli.live.overview import table
from streamq.cli.live.sparkline import BARS, sparkline
from streamq.cli.live.state import SAMPLES, History, Series, State
from streamq.cli.output import brief
from streamq.snapshots import FullSnapshot

SILENT_AFTER_S: Final = 2.0
"""A look that takes longer is said to, though it has not failed yet."""

TROUBLE_LINES: Final = 3
"""Most lines of what went wrong."""

CHARTS_STAND_FROM: Final = 20
"""On a screen of fewer lines the charts of a stream scroll with the rest of it."""

ABOUT_A_PART: Final = 3
"""What is said of the chosen stream has at least one line of so many, whatever the number of streams."""

ABOUT_LINES: Final = 2
"""On fewer lines nothing is said of it."""

WIDE: Final = 120
"""From this width on, two charts stand side by side."""

HELP: Final = (
    ("up, k", "down, j", "choose a stream; in one, scroll"),
    ("Page Up", "Page Down", "ten at a time"),
    ("Home, g", "End, G", "the first, the last"),
    ("Enter", "", "look into the chosen stream"),
    ("Escape, b", "Backspace", "back"),
    ("p", "", "let the figures stand still, and go on"),
    ("?", "", "this help, and away with it"),
    ("q", "Ctrl-C", "quit"),
)


@dataclass(frozen=True, slots=True)
class Picture:
    """What fills a screen.

    Attributes:
        lines: As many as the screen has, each exactly as wide.
        last_offset: The largest `State.offset` at which there is something to see.
    """

    lines: list[Text]
    last_offset: int = 0


def draw(state: State, width: int, height: int, bars: str = BARS) -> Picture:
    """The whole screen."""
    head = [*_head(state, width)][: max(height - 2, 0)]
    room = max(height - len(head) - 1, 0)
    last_offset = 0
    if state.helping:
        body = [*_help()]
    elif state.opened is None:
        body = _overview(state, width, room, bars)
    else:
        body, last_offset = _stream(state, state.opened, width, room, bars)
    body = [*body, *[Text("")] * room][:room]
    lines = [*head, *body, _foot(state)][-height:] if height > 0 else []
    return Picture([_fitted(line, width) for line in lines], last_offset)


def _fitted(line: Text, width: int) -> Text:
    fitted = line.copy()
    fitted.truncate(width, overflow="ellipsis", pad=True)
    return fitted


def rendered(parts: Iterable[RenderableType], width: int) -> list[Text]:
    """What `inspect` prints, as lines of that width."""
    console = Console(file=io.StringIO(), width=width, legacy_windows=False)
    return [
        Text.assemble(*((segment.text, segment.style or "") for segment in line))
        for part in parts
        for line in console.render_lines(part, pad=False)
    ]


# --- around it -------------------------------------------------------------------------------


def _head(state: State, width: int) -> Iterator[Text]:
    age = max(state.now - state.looked_at, 0)
    since = f"as of {duration(age)} ago"
    if state.paused:
        told = Text(f"paused, {since}", style="bold yellow")
    elif state.trouble is not None:
        told = Text(since, style="bold red")
    elif age > state.every + SILENT_AFTER_S:
        told = Text(f"{since}: no answer yet", style="yellow")
    else:
        told = Text(f"every {duration(state.every)}")
    title = Text.assemble((brief(state.where, figures.NAME_CHARS), "bold"), f"  {_summary(state)}")
    title.truncate(max(width - told.cell_len - 1, 0), overflow="ellipsis")
    yield Text.assemble(title, " " * max(width - title.cell_len - told.cell_len, 1), told)
    if state.trouble is not None:
        why = Text(f"{since}: {brief(state.trouble, figures.LINE_CHARS)}", style="red")
        yield from rendered([why], width)[:TROUBLE_LINES]


def _summary(state: State) -> str:
    """How many streams, and how many of them somebody should look at."""
    if state.alone:
        return ""
    conditions = Counter(found.condition for found in state.look.found.values())
    count = len(state.names)
    parts = [f"{count:,} stream{'' if count == 1 else 's'}"]
    parts += [f"{conditions[one]:,} {one}" for one in ("critical", "warning") if conditions[one]]
    parts += [f"{len(state.look.refused):,} refused"] if state.look.refused else []
    return ", ".join(parts)


def _foot(state: State) -> Text:
    pause = ("p", "go on" if state.paused else "pause")
    if state.helping:
        offers = [("b", "back")]
    elif state.opened is None:
        offers = [("j/k", "choose"), ("Enter", "open"), pause, ("?", "help")]
    else:
        offers = [("j/k", "scroll"), *([] if state.alone else [("b", "back")]), pause, ("?", "help")]
    return Text("  ").join(Text.assemble((key, "bold"), f" {what}") for key, what in (*offers, ("q", "quit")))


def _help() -> Iterator[Text]:
    yield Text("")
    for key, other, what in HELP:
        yield Text.assemble("  ", (f"{key:<11}{other:<11}", "bold"), what)


# --- all streams -----------------------------------------------------------------------------


def _overview(state: State, width: int, room: int, bars: str) -> list[Text]:
    if not state.names:
        return [Text(""), Text("no streams")]
    about = rendered(_chosen(state), width)
    left = max(room - len(state.names) - 1, room // ABOUT_A_PART)
    if len(about) + 1 > left:
        about = [*about[: max(left - 2, 0)], Text("... all of it: Enter", style="dim")] if left > ABOUT_LINES else []
    lines = table(state, width, room - len(about) - bool(about), bars)
    if not about:
        return lines
    others = (found for name, found in state.look.found.items() if name != state.selected)
    lines = [*lines, Text(""), *about, Text(""), *rendered(figures.worst(others), width)]
    return lines if len(lines) <= room else [*lines[: room - 1], Text("...", style="dim")]


def _chosen(state: State) -> Iterator[RenderableType]:
    """What is to be said of the stream on which the mark is."""
    name = state.selected or ""
    if name in state.look.refused:
        yield _refused(state, name)
    elif name in state.look.found:
        found = state.look.found[name]
        yield Text.assemble((brief(name, figures.NAME_CHARS), "bold"), ": ", figures.condition(found))
        for said in found.verdict:
            yield figures.finding(said.severity, said.text, said.command)


def _refused(state: State, name: str) -> Text:
    why = brief(state.look.refused[name], figures.LINE_CHARS)
    return Text(f"stream {brief(name, figures.NAME_CHARS)} cannot be looked at: {why}", style="red")


# --- one stream ------------------------------------------------------------------------------


def _stream(state: State, name: str, width: int, room: int, bars: str) -> tuple[list[Text], int]:
    found = state.look.found.get(name)
    if found is None:
        gone = Text(f"stream {brief(name, figures.NAME_CHARS)} is not there any more")
        return rendered([_refused(state, name) if name in state.look.refused else gone], width), 0
    charts = [*_charts(found, state.history.get(name, History()), width, bars), Text("")]
    about = rendered(figures.stream(found), width)
    if room < CHARTS_STAND_FROM:
        charts, about = [], [*charts, *about]
    room -= len(charts)
    if len(about) <= room:
        return [*charts, *about], 0
    last_offset = len(about) - (room - 1)
    above = min(state.offset, last_offset)
    below = last_offset - above
    hidden = ", ".join(part for part in (below and f"{below:,} below", above and f"{above:,} above") if part)
    more = Text(f"... and {last_offset:,} more lines: {hidden}", style="dim")
    return [*charts, *about[above : above + room - 1], more], last_offset


def _charts(found: FullSnapshot, history: History, width: int, bars: str) -> Iterator[Text]:
    counts = ((figures.ready(found), "ready", history.ready), (f"{found.pending:,}", "pending", history.pending),
              (f"{found.dead:,}", "dead", history.dead))  # fmt: skip
    rates = (("in/s", history.entered), ("done/s", history.done))
    charts = [_Chart(title, value, series, _count) for value, title, series in counts]
    charts += [
        _Chart(title, figures.rate(series[-1] if series else None), series, figures.rate) for title, series in rates
    ]
    across = 2 if width >= WIDE else 1
    column = (width - 2 * (across - 1)) // across
    lines = _aligned(charts, column, bars)
    down = -(-len(lines) // across)
    for row in zip_longest(*(lines[at : at + down] for at in range(0, len(lines), down)), fillvalue=Text("")):
        yield Text("  ").join(row)


@dataclass(frozen=True, slots=True)
class _Chart:
    title: str
    value: str
    series: Series
    told: Callable[[float | None], str]


def _count(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _aligned(charts: Sequence[_Chart], width: int, bars: str) -> list[Text]:
    titles = max(len(chart.title) for chart in charts)
    values = max(len(chart.value) for chart in charts)
    ranges = [_range(chart) for chart in charts]
    room = width - titles - values - 4 - max(map(len, ranges))
    if room < SAMPLES // 4:  # then the bars say more
        ranges, room = [""] * len(charts), width - titles - values - 4
    size = max(min(room, SAMPLES), 0)
    return [
        _fitted(
            Text.assemble(
                (f"{chart.title:<{titles}}", "bold"), f" {chart.value:>{values}}  ",
                (sparkline(chart.series, size, bars), "cyan"), f" {extent}",
            ),
            width,
        )
        for chart, extent in zip(charts, ranges, strict=True)
    ]  # fmt: skip


def _range(chart: _Chart) -> str:
    known = [value for value in chart.series if value is not None]
    return f"{chart.told(min(known))} to {chart.told(max(known))}" if known else ""
