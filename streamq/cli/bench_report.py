"""What `streamq bench` measured, as tables and small plots that fit the terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from streamq._text import shown
from streamq.bench.report import Figure, Latency, Part, Report
from streamq.cli.live.sparkline import ASCII_BARS, BARS
from streamq.cli.tables import Column, console, table

PLOT_WIDTH: Final = 60
"""Widest plot."""

_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"
_ROWS: Final = 4
"""Height of the plot of latencies."""

_LEAST_WIDTH: Final = 20


def show(report: Report) -> None:
    """Print all of it."""
    screen = console()
    is_utf = screen.encoding.startswith("utf")
    for line in _heading(report):
        screen.print(Text(line))
    screen.print()
    table(_PARTS, [_row(part) for part in report.parts])
    screen.print()
    rows = [("add to handler", report.latency), ("XADD to XREADGROUP", report.raw_latency), ("PING", report.ping)]
    table(_LATENCIES, [_latency(name, found) for name, found in rows if found is not None])
    if report.memory is not None:
        beside = report.memory.raw_bytes_per_job
        than = "" if beside is None else f", {beside:,.0f} by redis-py"
        said = f"{report.memory.bytes_per_job:,.0f} bytes of the server for a queued job{than} ({report.memory.jobs:,} jobs)"
        screen.print()
        screen.print(Text(said))
    for note in report.notes:
        screen.print(Text(shown(f"not measured: {note}")))
    width = min(PLOT_WIDTH, screen.width)
    for plot in (throughput(report.parts, width, is_utf=is_utf), latencies(report, width, is_utf=is_utf)):
        _print_plot(screen, plot)


def _print_plot(screen: Console, plot: Iterator[tuple[str, str]]) -> None:
    lines = list(plot)
    if lines:
        screen.print()
    for line, style in lines:
        screen.print(Text(line, style=style), overflow="crop", no_wrap=True)


def _heading(report: Report) -> Iterator[str]:
    at, of, how = report.server, report.versions, report.settings
    mode = "" if at.mode in {"", "standalone"} else f" ({at.mode})"
    yield shown(f"{at.where}, {at.product} {at.version}{mode}")
    yield f"streamq {of.streamq}, redis-py {of.redis_py}, hiredis {of.hiredis}, Python {of.python}"
    yield f"{how.rounds} rounds, at most {how.jobs:,} jobs and {how.seconds:g} s a part; payload {how.payload_bytes:,} bytes"
    yield f"worker: concurrency {how.concurrency:,}, prefetch {how.prefetch:,}, batch {how.batch}"


_PARTS: Final = (
    Column("part"),
    Column("jobs", is_number=True),
    Column("jobs/s", is_number=True),
    Column("from, to", is_number=True),
    Column("redis-py", is_number=True),
    Column("ratio", is_number=True),
    Column("ms CPU/1,000", is_number=True),
    Column("reads/job", is_number=True),
)


def _row(part: Part) -> tuple[str, ...]:
    return (
        part.name,
        f"{part.jobs:,}",
        _rate(part.per_second.median),
        f"{_rate(part.per_second.low)}, {_rate(part.per_second.high)}",
        "-" if part.raw_per_second is None else _rate(part.raw_per_second.median),
        "-" if part.ratio is None else _ratio(part.ratio),
        f"{part.cpu_ms_per_1000.median:,.1f}",
        "-" if part.server_reads_per_job is None else f"{part.server_reads_per_job:,.3f}",
    )


def _rate(value: float) -> str:
    return f"{value:,.0f}"


def _ratio(found: Figure) -> str:
    return f"{found.median:.2f}"


_LATENCIES: Final = (
    Column("latency, ms"),
    Column("samples", is_number=True),
    Column("p50", is_number=True),
    Column("p99", is_number=True),
    Column("max", is_number=True),
)


def _latency(name: str, found: Latency) -> tuple[str, ...]:
    return name, f"{found.samples:,}", f"{found.p50:,.3f}", f"{found.p99:,.3f}", f"{found.max:,.3f}"


# --- plots -----------------------------------------------------------------------------------


def throughput(parts: Sequence[Part], width: int, *, is_utf: bool) -> Iterator[tuple[str, str]]:
    """Jobs a second as bars: each part, and below it redis-py. Lines, and how each is styled."""
    rows = []
    for part in parts:
        rows.append((part.name, part.per_second.median, "cyan"))
        if part.raw_per_second is not None:
            rows.append(("  redis-py", part.raw_per_second.median, "dim"))
    named = max(len(name) for name, _, _ in rows)
    told = max(len(_rate(value)) for _, value, _ in rows)
    room = width - named - told - 2
    if room < _LEAST_WIDTH:
        return
    yield "jobs a second", "bold"
    top = max(value for _, value, _ in rows)
    for name, value, style in rows:
        yield f"{name:<{named}} {_bar(value / top, room, is_utf=is_utf)} {_rate(value):>{told}}", style


def _bar(share: float, width: int, *, is_utf: bool) -> str:
    """A bar of that share of the width, exactly `width` wide."""
    eighths = max(round(share * width * 8), 1)
    if not is_utf:
        return ("#" * max(eighths // 8, 1)).ljust(width)
    whole, rest = divmod(eighths, 8)
    return ("█" * whole + (_EIGHTHS[rest] if rest else "")).ljust(width)


def latencies(report: Report, width: int, *, is_utf: bool) -> Iterator[tuple[str, str]]:
    """How many starts were within a time, from none to all of them, over a logarithmic scale of ms."""
    found = [("add to handler", report.latency, "cyan")]
    if report.raw_latency is not None:
        found.append(("XADD to XREADGROUP", report.raw_latency, "dim"))
    if width < _LEAST_WIDTH:
        return
    low = max(min(one.quantiles[0] for _, one, _ in found), 0.001)
    high = max(*(one.max for _, one, _ in found), low * 1.01)
    scale = f"{low:,.2f} ms", f"{high:,.2f} ms"
    for name, one, style in found:
        yield f"share of starts, {name}", "bold"
        shares = [_within(one, low * (high / low) ** (at / (width - 1))) for at in range(width)]
        for line in _curve(shares, BARS if is_utf else ASCII_BARS):
            yield line, style
    yield scale[0] + scale[1].rjust(width - cell_len(scale[0])), "dim"


def _within(found: Latency, ms: float) -> float:
    """The share of samples that took at most so long."""
    return sum(one <= ms * (1 + 1e-9) for one in found.quantiles) / len(found.quantiles)


def _curve(shares: Sequence[float], bars: str) -> Iterator[str]:
    """Shares from 0 to 1 as columns, several rows high."""
    levels = [math.ceil(share * _ROWS * len(bars)) for share in shares]
    for row in reversed(range(_ROWS)):
        filled = [min(level - row * len(bars), len(bars)) for level in levels]
        yield "".join(bars[level - 1] if level > 0 else " " for level in filled)
