"""The command line: one file per group of commands.

Exit status: 0 done; 1 failed, a problem found or verification failed; 2 usage, cannot connect or configuration mismatch;
3 refused: not confirmed.
"""

from __future__ import annotations

import sys

import typer

from streamq.cli import acl, add, consumers, dead_letters, demo, doctor, groups, inspect, manual, run, scheduled, upkeep
from streamq.cli.output import fail
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
app.command(
    "run",
    rich_help_panel=manual.RUN,
    epilog=manual.examples("streamq run shop.jobs:worker", "streamq run shop.jobs:worker --processes 4 --metrics 9100"),
)(run.run)
app.command(
    "demo",
    rich_help_panel=manual.RUN,
    epilog=manual.examples("streamq demo", "streamq demo --url redis://localhost:6379 --keep"),
)(demo.demo)
app.command(
    "inspect",
    rich_help_panel=manual.LOOK,
    epilog=manual.examples("streamq inspect", "streamq inspect orders --json", "streamq inspect --watch"),
)(inspect.inspect)
app.command(
    "doctor",
    rich_help_panel=manual.LOOK,
    epilog=manual.examples("streamq doctor", "streamq doctor orders --verbose"),
)(doctor.doctor)
app.command(
    "add",
    rich_help_panel=manual.CHANGE,
    epilog=manual.examples(
        """streamq add orders '{"customer": "ada", "cents": 4200}' --job-id order:17""",
        """streamq add orders '{"customer": "bob"}' --delay 10m --header source=support""",
        "streamq add orders - --job-id-field id < orders.jsonl",
    ),
)(add.add)
app.add_typer(scheduled.app, name="scheduled", rich_help_panel=manual.CHANGE)
app.add_typer(dead_letters.app, name="dead-letters", rich_help_panel=manual.CHANGE)
app.command(
    "pause",
    rich_help_panel=manual.CHANGE,
    epilog=manual.examples("streamq pause orders", "streamq pause orders --json"),
)(upkeep.pause)
app.command(
    "resume",
    rich_help_panel=manual.CHANGE,
    epilog=manual.examples("streamq resume orders", "streamq resume orders --json"),
)(upkeep.resume)
app.add_typer(groups.app, name="groups", rich_help_panel=manual.SET_UP)
app.add_typer(consumers.app, name="consumers", rich_help_panel=manual.SET_UP)
app.command(
    "trim",
    rich_help_panel=manual.SET_UP,
    epilog=manual.examples("streamq trim orders", "streamq trim orders --keep-for 7d --keep-last 100000"),
)(upkeep.trim)
app.command(
    "delete",
    rich_help_panel=manual.SET_UP,
    epilog=manual.examples("streamq delete orders", "streamq delete orders --force --yes"),
)(upkeep.delete)
app.command(
    "acl",
    rich_help_panel=manual.SET_UP,
    epilog=manual.examples(
        "streamq acl worker --user shop --deployment dp_1 | redis-cli",
        "streamq acl viewer --user grafana --stream orders",
    ),
)(acl.acl)


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
    """Entry point. An error of ours is one line and exit status 2, never a traceback."""
    try:
        app()
    except StreamqError as error:
        fail(str(error))
        sys.exit(2)
    except BrokenPipeError:
        # The reader of our output has gone (`streamq inspect | head`): end quietly, and let the interpreter's own flush fail.
        sys.stderr.close()
        sys.exit(1)
