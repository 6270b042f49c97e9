"""``streamq bench``: how fast jobs are on a server of one's own, beside plain redis-py in the same run."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Final

import typer

from streamq.cli.output import AsJson, Deployment, Url, Yes, confirm, fail, print_json
from streamq.errors import ConfigurationError

if TYPE_CHECKING:
    from streamq.bench.course import Surroundings
    from streamq.bench.report import Settings

MOST_BYTES: Final = 256 << 20
"""Of all payloads that wait at once: so much of the server's memory is taken for a while."""

NAMED: Final = 5
"""Most other streams that the question names."""


def bench(
    *,
    jobs: Annotated[int, typer.Option("--jobs", min=10, max=1_000_000, help="Most jobs of each part.")] = 20_000,
    seconds: Annotated[
        float, typer.Option("--seconds", min=0.05, max=60, help="Longest time of each of the six parts, about.")
    ] = 3.0,
    rounds: Annotated[int, typer.Option("--rounds", min=1, max=50, help="Rounds of each part.")] = 5,
    concurrency: Annotated[
        int, typer.Option("--concurrency", min=1, max=1_000, help="Most handlers at once in the worker.")
    ] = 64,
    prefetch: Annotated[
        int, typer.Option("--prefetch", min=0, max=10_000, help="Jobs that may wait in the worker for a free handler.")
    ] = 0,
    payload_bytes: Annotated[
        int, typer.Option("--payload-bytes", min=11, max=100_000, help="Size of a payload, as JSON.")
    ] = 100,
    yes: Yes = False,
    url: Url = None,
    deployment: Deployment = None,
    as_json: AsJson = False,
) -> None:
    """Measure how fast jobs are on this server, beside loops over plain redis-py that take turns with it.

    Six parts: `add` one by one; `add_many`; one worker that drains a stream with an async, a sync and a `batch=` handler that
    do nothing (its start and its end are taken off); and the time from `add` to the first step of a handler, on an idle
    worker. Each is bounded by --jobs and by --seconds, and done in rounds, in which redis-py has its turn: XADD, pipelines
    of XADD, XREADGROUP COUNT 100 with one XACK, and a blocked XREADGROUP. That guarantees nothing, and says what is possible
    at all. Figures are medians of the rounds; a ratio above 1 is faster than redis-py.

    Beside them: CPU of this process for 1,000 jobs, how often the server read from connections for a job (about the round trips;
    it counts other programs' as well), and memory of the server for a queued job. What the user may not ask is left out, and
    said.

    It works on a stream of its own, `bench-` and 12 random digits, and removes it, whatever ends it, Ctrl-C and SIGTERM as
    well. Of one that was killed by SIGKILL, or lost the server, `streamq inspect` shows the stream, and
    `streamq delete NAME --force` removes it.

    It keeps the server and one core busy. Where there are other streams of the deployment, or the memory is full to 80 % of
    maxmemory, it asks first.

    With --json: at, stream, server, versions, settings, parts (name, jobs, per_second, ratio, ...), latency, raw_latency, ping
    (ms), memory, notes (what is missing, and why). Fields may be added, none is renamed or removed.

    Exit status: 0 done. 1 the server refused something. 2 bad options, or no server. 3 not confirmed. 130 Ctrl-C, 143 SIGTERM.
    """
    from streamq.bench.course import Course
    from streamq.bench.interrupts import sigterm_ends
    from streamq.bench.report import Settings

    settings = Settings(
        jobs=jobs,
        seconds=seconds,
        rounds=rounds,
        concurrency=concurrency,
        prefetch=prefetch,
        payload_bytes=payload_bytes,
    )
    if jobs * payload_bytes > MOST_BYTES:
        raise ConfigurationError(
            f"--jobs times --payload-bytes is {jobs * payload_bytes >> 20:,} MiB: at most {MOST_BYTES >> 20} MiB may wait at once"
        )
    logging.getLogger("streamq").addHandler(
        logging.NullHandler()
    )  # what the workers say of themselves is not asked for
    with Course(url, deployment, settings) as course:
        seen = course.look()
        why = _reasons(seen)
        if why:
            confirm(f"keep {seen.server.where} busy for some {_longest_s(settings):.0f} s, though {why}", yes=yes)
        try:
            with sigterm_ends(), _progress(settings) as tell:
                report = course.run(seen, tell)
        finally:
            if course.is_left:
                fail(f"stream {course.name} was left behind: streamq delete {course.name} --force removes it")
    if as_json:
        print_json(report)
        return
    from streamq.cli.bench_report import show

    show(report)


def _reasons(seen: Surroundings) -> str:
    """Why it should be asked; nothing if nobody may be disturbed."""
    from streamq.bench.course import FULL

    why = []
    if seen.streams:
        more = len(seen.streams) - NAMED
        names = ", ".join(seen.streams[:NAMED]) + (f" and {more:,} more" if more > 0 else "")
        why.append(f"it has {'a stream' if len(seen.streams) == 1 else 'streams'} that others may use ({names})")
    if seen.used is not None and seen.used >= FULL:
        why.append(f"its memory is full to {seen.used:.0%} of maxmemory")
    return " and ".join(why)


def _longest_s(settings: Settings) -> float:
    from streamq.bench.course import STEPS

    return STEPS * settings.seconds * 1.5


@contextmanager
def _progress(settings: Settings) -> Iterator[Callable[[str], None]]:
    """Show at the terminal what is measured; drawn between rounds only, so that it takes nothing from what is measured."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from streamq.bench.course import STEPS

    columns = (TextColumn("{task.description:<11}"), BarColumn(), MofNCompleteColumn(), TextColumn("rounds"))
    with Progress(*columns, console=Console(stderr=True), auto_refresh=False, transient=True) as shown:
        task = shown.add_task("", total=STEPS * settings.rounds)
        begun = -1

        def tell(what: str) -> None:
            nonlocal begun
            begun += 1
            shown.update(task, description=what, completed=begun, refresh=True)

        yield tell
