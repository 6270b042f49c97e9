"""What the commands share in what they print and ask: nothing that came from a server reaches the terminal unescaped."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final, Protocol

import msgspec
import typer

from streamq._text import INVISIBLE, shown
from streamq.errors import StreamqError

if TYPE_CHECKING:
    from rich.console import Console

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        envvar="STREAMQ_URL",
        help="Server: redis://, rediss://, redis+cluster://, redis+sentinel://, unix:// or embedded:///directory.",
        show_default="redis://localhost:6379",
    ),
]
Deployment = Annotated[
    str | None, typer.Option("--deployment", envvar="STREAMQ_DEPLOYMENT", help="Namespace of the deployment.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before many are touched.")]

REFUSED: Final = 3
"""Exit status of what was not confirmed."""

MANY: Final = 100
"""From so many on, progress is shown."""

MOST_IN_A_TABLE: Final = 10_000
"""Rows of a table are kept until it is printed."""

ID_CHARS, ERROR_CHARS, FIELD_CHARS, PAYLOAD_CHARS = 512, 80, 500, 4_000
"""Most characters of each that are shown in a table."""

PIPED_WIDTH: Final = 160

# What JSON may hold as it is, but no terminal should get: see `streamq._text`. The rest of it JSON escapes by itself.
_UNSAFE_IN_JSON: Final = re.compile(rf"[\x7f-\x9f{INVISIBLE}]")


def print_json(value: Any, *, indent: int = 2) -> None:
    """Print a value as JSON, over several lines, or with an indent of -1 on one."""
    sys.stdout.write(json_text(value, indent=indent) + "\n")


def json_text(value: Any, *, indent: int = -1) -> str:
    """A value as JSON that no terminal takes for orders."""
    written = msgspec.json.format(msgspec.json.encode(value), indent=indent).decode()
    return _UNSAFE_IN_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", written)


def fail(message: str) -> None:
    """Print one line to standard error."""
    sys.stderr.write(f"streamq: {shown(message)}\n")


def say(message: str) -> None:
    """Print one line to standard output."""
    sys.stdout.write(f"{shown(message)}\n")


def brief(text: str, size: int) -> str:
    """`text` made safe to show, in at most `size` characters."""
    whole = shown(text[: size + 1])
    return whole if len(whole) <= size else whole[: size - 4] + " ..."


def console() -> Console:
    """Where tables go; what is piped is as wide as `COLUMNS` says, or wide enough not to be broken up."""
    from rich.console import Console

    found = Console()
    if not found.is_terminal and "COLUMNS" not in os.environ:
        found.width = PIPED_WIDTH
    return found


def sheet(lines: Iterable[tuple[str, str]]) -> None:
    """Print titles and values, one below the other; one without a title is a payload."""
    from rich.table import Table
    from rich.text import Text

    table = Table(show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for title, value in lines:
        size = max(FIELD_CHARS, ID_CHARS) if title else PAYLOAD_CHARS
        table.add_row(Text(brief(title, ID_CHARS)), Text(brief(value, size)))
    console().print(table)


def confirm(what: str, *, yes: bool) -> None:
    """Go on only if somebody says so: `yes`, or who sits at the terminal. `what` begins with a verb.

    Raises:
        typer.Exit: Nobody did. Status 3.
    """
    if yes:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        fail(f"not confirmed: to {what}, with no terminal to ask at, give --yes; cancelled, nothing changed")
        raise typer.Exit(REFUSED)
    try:
        sys.stderr.write(f"This will {shown(what)}. Go on? [y/N] ")
        sys.stderr.flush()
        answer = sys.stdin.buffer.readline()
    except KeyboardInterrupt:
        answer = b""
    if not answer.endswith(b"\n"):
        sys.stderr.write("\n")
    if answer.strip().lower() not in {b"y", b"yes"}:
        fail("not confirmed: cancelled, nothing changed")
        raise typer.Exit(REFUSED)


class Counted(Protocol):
    """What a command says at its end of the many that it was about."""

    matched: int


@contextmanager
def told_if_broken_off(report: Counted, done: Callable[[], int], past: str, *, as_json: bool) -> Iterator[None]:
    """Say how many something was done to, if it ends by an error or by Ctrl-C. `past` is what was done."""
    try:
        yield
    except (StreamqError, KeyboardInterrupt) as error:
        count = done()
        if count or isinstance(error, KeyboardInterrupt):
            if as_json:
                print_json(report)
            fail(
                f"broken off: at least {count:,} of {report.matched:,} were {past}, and stay so; "
                "to go on, give the same command again"
            )
        raise


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show at the terminal, on standard error, how far something long is. Gives what is to be told of each step."""
    if total < MANY or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as shown_progress:
        task = shown_progress.add_task(what, total=total)
        yield lambda steps: shown_progress.advance(task, steps)
