"""``streamq inspect``: all streams at a glance, one in depth, or where a job is; once, or watched. Changes nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Final

import typer

from streamq._text import shown
from streamq.cli.output import AsJson, Deployment, Url, fail, print_json
from streamq.connection import settings_of
from streamq.errors import ConfigurationError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from streamq._drivers.blocking import BlockingDriver

PIPED_COLUMNS: Final = 200
"""Width where there is no terminal, and nobody says another (COLUMNS)."""

EVERY_S, LEAST_EVERY_S, MOST_EVERY_S = 2.0, 0.5, 3_600.0
"""Seconds between two looks of `--watch`: if nothing is said, and the bounds."""


def inspect(
    name: Annotated[str | None, typer.Argument(help="Stream to look into; all of them without it.")] = None,
    *,
    job: Annotated[
        str | None, typer.Option("--job", metavar="ID", help="Where this job of the stream is, and how it got there.")
    ] = None,
    interval: Annotated[
        float,
        typer.Option("--interval", min=0, max=60, help="Take a second sample after so many seconds; shows rates."),
    ] = 0.0,
    show_payloads: Annotated[
        bool, typer.Option("--show-payloads", help="Show the beginning of the oldest ready payloads, or of the job's.")
    ] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Look again and again, full screen; with --json a line for each look.")
    ] = False,
    every: Annotated[
        float | None, typer.Option("--every", help=f"Seconds between two looks of --watch. [default: {EVERY_S:g}]")
    ] = None,
    url: Url = None,
    deployment: Deployment = None,
    as_json: AsJson = False,
    prometheus: Annotated[bool, typer.Option("--prometheus", help="Print metrics for Prometheus.")] = False,
) -> None:
    """Show what is ready, pending, scheduled and dead, who works, what is wrong, and what to type next.

    Changes nothing, and needs no more than read commands. Exit status 1: a stream could not be looked at, or there is no
    such job.
    """
    if watch:
        others = {"--job": job is not None, "--interval": interval, "--show-payloads": show_payloads,
                  "--prometheus": prometheus}  # fmt: skip
        _refuse_with_watch(others)
        raise typer.Exit(_watch(name, deployment, url, _seconds(every), as_json=as_json))
    if every is not None:
        raise ConfigurationError("--every needs --watch; --interval takes a second sample")
    if prometheus:
        from streamq.cli.prometheus import print_prometheus

        raise typer.Exit(0 if print_prometheus(name, url, deployment) else 2)
    if job is not None and name is None:
        raise ConfigurationError("--job needs the stream's name: streamq inspect NAME --job ID")
    driver = settings_of(url).blocking()
    try:
        if job is not None and name is not None:
            _job(driver, name, deployment, job, payloads=show_payloads, as_json=as_json)
        elif name is not None:
            _stream(driver, name, deployment, interval, payloads=show_payloads, as_json=as_json)
        else:
            _overview(driver, deployment, interval, as_json=as_json)
    finally:
        driver.close()


def _refuse_with_watch(given: Mapping[str, object]) -> None:
    for option, is_given in given.items():
        if is_given:
            raise ConfigurationError(f"--watch goes with --every, --json, --url and --deployment, not with {option}")


def _seconds(every: float | None) -> float:
    if every is None:
        return EVERY_S
    if not LEAST_EVERY_S <= every <= MOST_EVERY_S:
        raise ConfigurationError(f"--every must be from {LEAST_EVERY_S:g} to {MOST_EVERY_S:g} seconds, not {every:g}")
    return every


def _watch(name: str | None, deployment: str | None, url: str | None, every: float, *, as_json: bool) -> int:
    from functools import partial

    from streamq.cli import looks

    settings = settings_of(url)
    plan = partial(looks.all_of, deployment) if name is None else partial(looks.alone, name, deployment)
    if as_json:
        from streamq.cli.live.feed import feed

        feed(settings, plan, every=every, name=name)
        return 0
    from streamq.cli.live.watch import watch

    where = settings.where + ("" if deployment is None else f", deployment {deployment}")
    return watch(settings, plan, every=every, where=where, name=name)


def _job(
    driver: BlockingDriver, name: str, deployment: str | None, job_id: str, *, payloads: bool, as_json: bool
) -> None:
    from streamq._ops import inspect
    from streamq.cli import looks

    found = driver.run(inspect.find(looks.spec(name, deployment), job_id, payloads=payloads))
    if as_json:
        print_json(found)
    else:
        from streamq.cli import figures

        _print(figures.job(found, payloads=payloads))
    if not found.is_known:
        raise typer.Exit(1)


def _stream(
    driver: BlockingDriver, name: str, deployment: str | None, interval: float, *, payloads: bool, as_json: bool
) -> None:
    from streamq.cli import looks

    found = driver.run(looks.one(name, deployment, payloads=payloads))
    if interval:
        time.sleep(interval)
        found = driver.run(looks.one(name, deployment, payloads=payloads)).since(found)
    if as_json:
        print_json(found)
        return
    from streamq.cli import figures

    _print(figures.stream(found, payloads=payloads))


def _overview(driver: BlockingDriver, deployment: str | None, interval: float, *, as_json: bool) -> None:
    from streamq.cli import looks

    look = driver.run(looks.all_of(deployment))
    if interval and look.found:
        time.sleep(interval)
        look = driver.run(looks.all_of(deployment)).since(look)
    found = [*look.found.values()]
    if as_json:
        print_json(found)
    elif found:
        from streamq.cli import figures

        _print(figures.overview(found))
    elif not look.refused:
        typer.echo("no streams" + (f" in deployment {shown(deployment)}" if deployment else ""))
    for name, why in look.refused.items():
        fail(f"stream {name} cannot be looked at: {why}")
    if look.refused:
        raise typer.Exit(1)


def _print(parts: Iterable[RenderableType]) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console = Console(highlight=False, width=PIPED_COLUMNS)
    for part in parts:
        # What a program reads stays on one line; a terminal gets its lines broken between words.
        console.print(part, soft_wrap=isinstance(part, Text) and not console.is_terminal)
