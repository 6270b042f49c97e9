"""The command line: one file per group of commands.

Exit status: 0 done; 1 failed: the server answered and refused, a problem was found, or verification failed; 2 usage, cannot
connect or configuration mismatch; 3 refused: not confirmed, somebody else migrates, or a migration must
come first.

Before it changes more than the one thing that was named by its ID, a command asks, unless it is given --yes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import typer

from streamq.cli import (
    acl,
    add,
    adopt,
    bench,
    consumers,
    dead_letters,
    demo,
    doctor,
    groups,
    inspect,
    manual,
    migrate,
    run,
    scheduled,
    upkeep,
)
from streamq.cli.output import fail, status_of
from streamq.errors import StreamqError

app = typer.Typer(
    name="streamq",
    help="Jobs on Redis Streams that survive crashes, deploys and failovers.",
    epilog=manual.COMPLETION,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",  # joins the lines of a docstring; the default breaks them where the source does
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _command(panel: str, command: Callable[..., None], *examples: str) -> None:
    app.command(command.__name__, rich_help_panel=panel, epilog=manual.examples(*examples))(command)


_command(
    manual.RUN,
    run.run,
    "streamq run shop.jobs:worker",
    "streamq run shop.jobs:worker --processes 4 --metrics 9100",
)
_command(manual.RUN, demo.demo, "streamq demo", "streamq demo --url redis://localhost:6379 --keep")
_command(manual.LOOK, inspect.inspect, "streamq inspect", "streamq inspect orders --json", "streamq inspect --watch")
_command(manual.LOOK, doctor.doctor, "streamq doctor", "streamq doctor orders --verbose")
_command(
    manual.LOOK,
    bench.bench,
    "streamq bench",
    "streamq bench --jobs 100000 --seconds 10 --concurrency 200 --json > bench.json",
)
_command(
    manual.CHANGE,
    add.add,
    """streamq add orders '{"customer": "ada", "cents": 4200}' --job-id order:17""",
    """streamq add orders '{"customer": "bob"}' --delay 10m --header source=support""",
    "streamq add orders - --job-id-field id < orders.jsonl",
)
app.add_typer(scheduled.app, name="scheduled", rich_help_panel=manual.CHANGE)
app.add_typer(dead_letters.app, name="dead-letters", rich_help_panel=manual.CHANGE)
_command(manual.CHANGE, upkeep.pause, "streamq pause orders", "streamq pause orders --json")
_command(manual.CHANGE, upkeep.resume, "streamq resume orders", "streamq resume orders --json")
app.add_typer(groups.app, name="groups", rich_help_panel=manual.SET_UP)
app.add_typer(consumers.app, name="consumers", rich_help_panel=manual.SET_UP)
migrate.app.command("adopt", epilog=manual.examples(*adopt.EXAMPLES))(adopt.adopt)
app.add_typer(migrate.app, name="migrate", rich_help_panel=manual.SET_UP)
_command(
    manual.SET_UP,
    acl.acl,
    "streamq acl worker --user shop --deployment dp_1 | redis-cli",
    "streamq acl viewer --user grafana --stream orders",
)
_command(
    manual.SET_UP, upkeep.trim, "streamq trim orders", "streamq trim orders --keep-for 7d --keep-last 100000 --yes"
)
_command(manual.SET_UP, upkeep.delete, "streamq delete orders", "streamq delete orders --force --yes")


def _version(value: bool) -> None:
    if value:
        import streamq

        typer.echo(f"streamq {streamq.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", help="Show the version and exit.", callback=_version, is_eager=True
    ),
) -> None:
    del version


def main() -> None:
    """Entry point. An error of ours is one line and an exit status, never a traceback."""
    try:
        app()
    except StreamqError as error:
        fail(str(error))
        sys.exit(status_of(error))
    except BrokenPipeError:
        # The reader of our output has gone (`streamq inspect | head`): end quietly, and let the interpreter's own flush fail.
        sys.stderr.close()
        sys.exit(1)
