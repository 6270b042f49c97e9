"""``streamq inspect``: what is ready, pending, scheduled and dead."""

from __future__ import annotations

from typing import Annotated

import typer

from streamq._text import shown
from streamq.cli.output import AsJson, Deployment, Url, print_json
from streamq.connection import settings_of
from streamq.messages import Snapshot


def inspect(
    name: Annotated[str | None, typer.Argument(help="Stream to look at; all of them without it.")] = None,
    url: Url = None,
    deployment: Deployment = None,
    as_json: AsJson = False,
    prometheus: Annotated[bool, typer.Option("--prometheus", help="Print metrics for Prometheus.")] = False,
) -> None:
    """Show streams: what is ready, pending, scheduled and dead, in total and per group. Changes nothing."""
    if prometheus:
        from streamq.cli.prometheus import print_prometheus

        raise typer.Exit(0 if print_prometheus(name, url, deployment) else 2)

    from streamq._ops import registry
    from streamq.stream import Stream

    if name is not None:
        names = [name]
    else:
        driver = settings_of(url).blocking()
        names = driver.run(registry.names(deployment))
        driver.close()
    snapshots = []
    for each in names:
        stream: Stream[dict[str, object]]
        with Stream(each, redis=url, deployment=deployment) as stream:
            snapshots.append(stream.inspect())
    if as_json:
        print_json(snapshots[0] if name is not None else snapshots)
    elif snapshots:
        _table(snapshots)
    else:
        typer.echo("no streams" + (f" in deployment {deployment}" if deployment else ""))


def _table(snapshots: list[Snapshot]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table()
    for title in ("stream", "group"):
        table.add_column(title)
    for title in ("ready", "pending", "scheduled", "dead", "done", "retried", "consumers"):
        table.add_column(title, justify="right")
    for one in snapshots:
        table.add_row(
            escape(shown(one.name)), "", f"{one.ready:,}", f"{one.pending:,}", f"{one.scheduled:,}", f"{one.dead:,}"
        )
        for group in one.groups.values():
            ready = f"{group.ready:,}" if group.exact else f">= {group.ready:,}"
            table.add_row(
                "", escape(shown(group.name)), ready, f"{group.pending:,}", "", f"{group.dead:,}",
                f"{group.done:,}", f"{group.retried:,}", f"{group.consumers:,}",
            )  # fmt: skip
    console = Console()
    console.print(table)
    for one in snapshots:
        if one.paused:
            console.print(f"{escape(shown(one.name))} is paused: nothing is started")
        for group in one.groups.values():
            if group.abandoned:
                console.print(
                    f"{escape(shown(one.name))}: nobody reads group {escape(shown(group.name))}; "
                    "what it has not read stays in the stream"
                )
