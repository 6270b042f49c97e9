"""``streamq groups``: the consumer groups of a stream, each of which gets every job."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec
import typer

from streamq._text import shown
from streamq.cli.manual import examples
from streamq.cli.output import REFUSED, AsJson, Deployment, Name, Url, Yes, confirm, fail, print_json, say
from streamq.cli.tables import Column, table

app = typer.Typer(
    help="The consumer groups of a stream, each of which gets every job: list, create and drop them.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

Group = Annotated[str, typer.Argument(help="Group.", show_default=False)]


class Start(StrEnum):
    """Where a group begins."""

    ALL = "all"
    NEW = "new"


class GroupRow(msgspec.Struct):
    """A group as it is listed.

    Attributes:
        name: Of the group.
        ready: Entries that it has not read.
        exact: False if there are more than `ready`.
        pending: Entries read and not settled.
        consumers: Those the server knows, dead ones included.
        abandoned: Whether entries wait, and nobody reads them.
    """

    name: str
    ready: int
    exact: bool
    pending: int
    consumers: int
    abandoned: bool


@app.command("list", epilog=examples("streamq groups list orders", "streamq groups list orders --json"))
def list_(name: Name, url: Url = None, deployment: Deployment = None, as_json: AsJson = False) -> None:
    """List the groups of a stream, with what each has to read and in hand. Changes nothing.

    With --json: stream, and groups with name, ready, exact (false if there are more), pending, consumers, abandoned (entries
    wait, and nobody reads them). Exit status: 0 done, 1 there is no such stream.
    """
    from streamq.cli.desk import Desk

    with Desk(name, url, deployment) as desk:
        desk.must_be_there()
        seen = desk.stream().inspect().groups.values()
    rows = [
        GroupRow(each.name, each.ready, each.exact, each.pending, each.consumers, each.abandoned)
        for each in sorted(seen, key=lambda each: each.name)
    ]
    if as_json:
        print_json({"stream": name, "groups": rows})
    elif rows:
        _table(rows)
    else:
        say(f"stream {name} has no groups: its first worker, or streamq groups create, makes one")


def _table(rows: list[GroupRow]) -> None:
    columns = (
        Column("group", folds=True),
        *(Column(title, is_number=True) for title in ("ready", "pending", "consumers")),
    )
    table(
        (*columns, Column("")),
        [
            (
                shown(row.name),
                f"{row.ready:,}" if row.exact else f">= {row.ready:,}",
                f"{row.pending:,}",
                f"{row.consumers:,}",
                "nobody reads it" if row.abandoned else "",
            )
            for row in rows
        ],
    )


@app.command(
    epilog=examples(
        "streamq groups create orders audit  # from the oldest entry that is still there",
        "streamq groups create orders audit --start new  # only what is added from now on",
    )
)
def create(
    name: Name,
    group: Group,
    *,
    start: Annotated[
        Start, typer.Option("--start", help="Begin at the oldest entry that is still there, or behind the newest.")
    ] = Start.ALL,
    url: Url = None,
    deployment: Deployment = None,
    as_json: AsJson = False,
) -> None:
    """Make a group, and the stream if it is not there: every job that is added from now on goes to it, too.

    It holds every entry until it has settled it, so start its workers. Also name it in the options of the programs that use the
    stream (StreamOptions.groups), so that it is made again after a loss of data.

    With --json: stream, group, created (false if it was there already). Exit status: 0 done.
    """
    from streamq._ops import registry
    from streamq.cli.desk import Desk

    with Desk(name, url, deployment) as desk:
        created = desk.stream().groups.create(group, start=start.value)
        desk.run(registry.note(desk.keys))
    if as_json:
        print_json({"stream": name, "group": group, "created": created})
    elif created:
        where = "the oldest entry" if start is Start.ALL else "what is added from now on"
        say(f"{group}: made; it begins with {where}")
    else:
        say(f"{group}: there already, nothing was changed")


@app.command(
    epilog=examples(
        "streamq groups drop orders audit",
        "streamq groups drop orders audit --force --yes  # with the work that it has left, which is lost for it",
    )
)
def drop(
    name: Name,
    group: Group,
    *,
    force: Annotated[
        bool, typer.Option("--force", help="Also if it has work left. It is lost for this group.")
    ] = False,
    yes: Yes = False,
    url: Url = None,
    deployment: Deployment = None,
    as_json: AsJson = False,
) -> None:
    """Remove a group, so that it holds no entries any more. What only it needed goes when the stream is trimmed.

    It is refused while the group has entries to read, or pending, or jobs that wait for its next attempt, unless --force is
    given; those that wait become dead letters when they are due. Stop its workers first: one that still runs makes it again.

    With --json: stream, group, dropped, lost (what work was left: ready, pending).

    Exit status: 0 dropped. 1 there is no such stream or group. 3 refused, or not confirmed: then nothing was changed.
    """
    from streamq.cli.desk import Desk, refusal

    with Desk(name, url, deployment) as desk:
        desk.must_be_there()
        stream = desk.stream()
        seen = stream.inspect().groups.get(group)
        if seen is None:
            fail(f"stream {name} has no group {group}; nothing was changed")
            raise typer.Exit(1)
        lost = {"ready": seen.ready, "pending": seen.pending}
        more = "" if seen.exact else "at least "
        left = ", ".join(f"{more if what == 'ready' else ''}{count:,} {what}" for what, count in lost.items() if count)
        if left and not force:
            fail(
                f"group {group} of stream {name} has work left: {left}; nothing was changed: --force drops it all the same"
            )
            raise typer.Exit(REFUSED)
        losing = f" with the work that it has left, which is lost for it ({left})" if left else ""
        confirm(f"drop group {group} of stream {name}{losing}{desk.readers(group)}", yes=yes)
        with refusal("--force drops it all the same"):
            dropped = stream.groups.drop(group, force=force)
    if as_json:
        print_json({"stream": name, "group": group, "dropped": dropped, "lost": lost})
    else:
        say(f"{group}: {'dropped' if dropped else 'gone already'}")
