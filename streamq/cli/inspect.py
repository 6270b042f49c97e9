"""``streamq inspect``: all streams at a glance, one in depth, or where a job is. Changes nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamq._text import shown
from streamq.cli.output import AsJson, Deployment, Url, fail, print_json
from streamq.connection import settings_of
from streamq.errors import ConfigurationError, ServerError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from streamq._drivers.blocking import BlockingDriver
    from streamq._spec import Spec
    from streamq.snapshots import FullSnapshot

PIPED_COLUMNS = 200
"""Width where there is no terminal, and nobody says another (COLUMNS)."""


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
    url: Url = None,
    deployment: Deployment = None,
    as_json: AsJson = False,
    prometheus: Annotated[bool, typer.Option("--prometheus", help="Print metrics for Prometheus.")] = False,
) -> None:
    """Show what is ready, pending, scheduled and dead, who works, what is wrong, and what to type next.

    Changes nothing, and needs no more than read commands. Exit status 1: a stream could not be looked at, or there is no
    such job.
    """
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


def _job(
    driver: BlockingDriver, name: str, deployment: str | None, job_id: str, *, payloads: bool, as_json: bool
) -> None:
    from streamq._ops import inspect

    found = driver.run(inspect.find(_spec(name, deployment), job_id, payloads=payloads))
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
    from streamq._ops import inspect

    spec = _spec(name, deployment)
    found = driver.run(inspect.full(spec, payloads=payloads))
    if interval:
        time.sleep(interval)
        found = driver.run(inspect.full(spec, payloads=payloads)).since(found)
    if as_json:
        print_json(found)
        return
    from streamq.cli import figures

    _print(figures.stream(found, payloads=payloads))


def _overview(driver: BlockingDriver, deployment: str | None, interval: float, *, as_json: bool) -> None:
    from streamq._ops import registry

    names = driver.run(registry.names(deployment))
    found, refused = _sample(driver, names, deployment)
    if interval and found:
        time.sleep(interval)
        earlier = {one.name: one for one in found}
        found, refused = _sample(driver, names, deployment)
        found = [one.since(earlier[one.name]) if one.name in earlier else one for one in found]
    if as_json:
        print_json(found)
    elif found:
        from streamq.cli import figures

        _print(figures.overview(found))
    elif not refused:
        typer.echo("no streams" + (f" in deployment {shown(deployment)}" if deployment else ""))
    for name, why in refused.items():
        fail(f"stream {name} cannot be looked at: {why}")
    if refused:
        raise typer.Exit(1)


def _sample(
    driver: BlockingDriver, names: Sequence[str], deployment: str | None
) -> tuple[list[FullSnapshot], dict[str, str]]:
    """The streams, and why others cannot be looked at: one of a wrong type hides no other."""
    from streamq._ops import inspect

    found, refused = [], {}
    for name in names:
        try:
            found.append(driver.run(inspect.full(_spec(name, deployment))))
        except (ConfigurationError, ServerError) as error:
            refused[name] = str(error)
    return found, refused


def _spec(name: str, deployment: str | None) -> Spec[dict[str, Any]]:
    from streamq._codec import EntryCodec
    from streamq._spec import Spec
    from streamq.keys import Keys
    from streamq.options import StreamOptions

    options = StreamOptions()
    return Spec(Keys(name, deployment), options, EntryCodec(dict, options))


def _print(parts: Iterable[RenderableType]) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console = Console(highlight=False, width=PIPED_COLUMNS)
    for part in parts:
        # What a program reads stays on one line; a terminal gets its lines broken between words.
        console.print(part, soft_wrap=isinstance(part, Text) and not console.is_terminal)
