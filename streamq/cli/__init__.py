"""The command line: one file per group of commands.

Exit status: 0 done; 1 failed, a problem found or verification failed; 2 usage, cannot connect or configuration mismatch;
3 refused: not confirmed.
"""

from __future__ import annotations

import sys

import typer

from streamq.cli import dead_letters, demo, doctor, inspect, run, scheduled
from streamq.cli.output import fail
from streamq.errors import StreamqError

app = typer.Typer(
    name="streamq",
    help="Jobs on Redis Streams that survive crashes, deploys and failovers.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",  # joins the lines of a docstring; the default breaks them where the source does
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("demo")(demo.demo)
app.command("doctor")(doctor.doctor)
app.command("inspect")(inspect.inspect)
app.command("run")(run.run)
app.add_typer(dead_letters.app, name="dead-letters")
app.add_typer(scheduled.app, name="scheduled")


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
