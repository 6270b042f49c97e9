"""``streamq consumers``: who reads a stream, and the removal of those that are gone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from streamq._text import duration, shown
from streamq.cli import times
from streamq.cli.manual import examples
from streamq.cli.output import AsJson, Deployment, Name, Url, Yes, confirm, fail, print_json, say
from streamq.cli.tables import Column, table

if TYPE_CHECKING:
    from streamq.cli.desk import Desk

app = typer.Typer(
    help="The consumers of a stream's groups, dead ones included: list them, and remove those that are gone.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

MIN_IDLE = "1h"

MOST_TOLD = 100
"""Consumers that are named one by one; JSON names all."""

Group = Annotated[str | None, typer.Option("--group", help="Only those of this group.", show_default="all groups")]


class ConsumerRow(msgspec.Struct):
    """A consumer as it is listed.

    Attributes:
        group: Its group.
        name: Of the consumer.
        pending: Entries that it holds.
        idle: Seconds since the server heard of it as a consumer.
        alive: Whether it is a `Worker` that has just said so.
    """

    group: str
    name: str
    pending: int
    idle: float
    alive: bool


class Pruned(msgspec.Struct):
    """What became of the consumers that were not heard of.

    Attributes:
        stream: Name of the stream.
        removed: Those that were removed.
        holding: Those that hold pending entries, and stay.
        alive: Those that stay because their worker has said that it is alive, or because they were heard of meanwhile.
    """

    stream: str
    removed: list[ConsumerRow] = []
    holding: list[ConsumerRow] = []
    alive: list[ConsumerRow] = []


@app.command(
    "list", epilog=examples("streamq consumers list orders", "streamq consumers list orders --group mail --json")
)
def list_(
    name: Name, *, group: Group = None, url: Url = None, deployment: Deployment = None, as_json: AsJson = False
) -> None:
    """List the consumers of a stream, of all groups: what each holds, and when the server heard of it. Changes nothing.

    With --json: stream, and consumers with group, name, pending, idle (seconds), alive (a worker that has just said so).

    Exit status: 0 done, 1 there is no such stream or group.
    """
    from streamq.cli.desk import Desk

    with Desk(name, url, deployment) as desk:
        rows = _rows(desk, group)
    if as_json:
        print_json({"stream": name, "consumers": rows})
    elif rows:
        _table(rows)
    else:
        say(f"stream {name} has no consumers" + (f" in group {group}" if group is not None else ""))


def _rows(desk: Desk, group: str | None) -> list[ConsumerRow]:
    from streamq._ops import consumers

    desk.must_be_there()
    found = desk.run(consumers.of_groups(desk.keys, group))
    if group is not None and not found and group not in desk.stream().inspect().groups:
        fail(f"stream {desk.name} has no group {group}; nothing was changed")
        raise typer.Exit(1)
    beats = desk.beats()
    return [
        ConsumerRow(each.group, each.name, each.pending, each.idle_ms / 1000, beats.is_live(each.name))
        for each in found
    ]


def _table(rows: list[ConsumerRow]) -> None:
    names = (Column("group", folds=True), Column("consumer", folds=True))
    table(
        (*names, Column("pending", is_number=True), Column("heard of"), Column("")),
        [
            (
                shown(row.group),
                shown(row.name),
                f"{row.pending:,}",
                f"{duration(row.idle)} ago",
                "alive" if row.alive else "",
            )
            for row in rows
        ],
    )


@app.command(
    epilog=examples(
        "streamq consumers prune orders  # those not heard of for an hour",
        "streamq consumers prune orders --group mail --min-idle 10m --yes",
    )
)
def prune(
    name: Name,
    *,
    group: Group = None,
    min_idle: Annotated[
        str, typer.Option("--min-idle", metavar="D", help="Not heard of for so long: 90, 90s, 10m, 2h, 1d.")
    ] = MIN_IDLE,
    yes: Yes = False,
    url: Url = None,
    deployment: Deployment = None,
    as_json: AsJson = False,
) -> None:
    """Remove consumers that hold nothing and were not heard of for a while.

    One that holds pending entries is refused, since Redis would throw those away with it: workers take them over when their
    lease has run out. A live consumer that is removed does not notice: its next delivery makes it again.

    With --json: stream, and as of list those that were removed, those that are holding pending entries, and those that are
    alive all the same.

    Exit status: 0 done. 1 there is no such stream or group, or one was refused: the others are removed. 3 not confirmed.
    """
    from streamq.backoff import to_ms
    from streamq.cli.desk import Desk

    least_ms = to_ms(times.duration(min_idle, "--min-idle"), "--min-idle")
    with Desk(name, url, deployment) as desk:
        silent = [row for row in _rows(desk, group) if row.idle * 1000 >= least_ms]
        free = [row for row in silent if not row.pending and not row.alive]
        if free:
            which = "1 consumer" if len(free) == 1 else f"{len(free):,} consumers"
            what = f"remove {which} of stream {name} not heard of for {duration(least_ms / 1000)}"
            confirm(what + (f" from group {group}" if group is not None else ""), yes=yes)
        done = _prune(desk, silent, free, least_ms)
    if as_json:
        print_json(done)
    else:
        _tell(done)
    if done.holding:
        raise typer.Exit(1)


def _prune(desk: Desk, silent: list[ConsumerRow], free: list[ConsumerRow], least_ms: int) -> Pruned:
    from streamq.errors import ConfigurationError
    from streamq.options import StreamOptions

    gone: set[tuple[str, str]] = set()
    left_alone: set[str] = set()
    for group in dict.fromkeys(row.group for row in free):
        try:
            options = StreamOptions(group=group)
        except ConfigurationError as error:
            fail(f"{error}; somebody else made it, and it is left alone")
            left_alone.add(group)
            continue
        gone |= {(group, name) for name in desk.stream(options).prune_consumers(least_ms / 1000)}
    done = Pruned(desk.name)
    for row in silent:
        if row.group in left_alone and not row.pending:
            continue
        (done.removed if (row.group, row.name) in gone else done.holding if row.pending else done.alive).append(row)
    known = {(row.group, row.name) for row in silent}
    done.removed += [ConsumerRow(*each, 0, least_ms / 1000, alive=False) for each in sorted(gone - known)]
    return done


def _tell(done: Pruned) -> None:
    for row in done.removed[:MOST_TOLD]:
        say(f"{row.name} of group {row.group}: removed")
    for row in done.holding[:MOST_TOLD]:
        entries = "1 pending entry" if row.pending == 1 else f"{row.pending:,} pending entries"
        fail(
            f"{row.name} of group {row.group} holds {entries}, and was not heard of for {duration(row.idle)}: it stays"
        )
    parts = [f"{len(done.removed):,} removed"]
    if done.holding:
        parts.append(f"{len(done.holding):,} refused")
    if done.alive:
        parts.append(f"{len(done.alive):,} alive all the same")
    say(", ".join(parts))
