"""What the commands share in what they print and ask: nothing that came from a server reaches the terminal unescaped."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Final, Protocol, TextIO

import msgspec
import typer

from streamq._text import INVISIBLE, shown
from streamq.errors import JobStateError, MigrationError, QueueFullError, ServerError, StreamqError

Name = Annotated[str, typer.Argument(help="Stream.", show_default=False)]
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
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
ShowPayloads = Annotated[
    bool,
    typer.Option("--show-payloads", help="Payloads, too; with --json as payload, or payload_base64 if it is no text."),
]
Delay = Annotated[
    str | None,
    typer.Option("--delay", metavar="D", help="Due so long from now: 90, 90s, 10m, 2h, 1d.", show_default=False),
]
At = Annotated[
    str | None,
    typer.Option("--at", metavar="ISO", help="Due then: 2030-01-31T12:00:00Z. A past time is now.", show_default=False),
]

REFUSED: Final = 3
"""Exit status of what was not confirmed."""

MANY: Final = 100
"""From so many on, progress is shown."""

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
    sys.stderr.write(_fitted(f"streamq: {shown(message)}", sys.stderr) + "\n")


def say(message: str) -> None:
    """Print one line to standard output."""
    sys.stdout.write(_fitted(shown(message), sys.stdout) + "\n")


def _fitted(text: str, out: TextIO) -> str:
    """`text`, broken between words if `out` is a terminal that is narrower. A longer word stays whole, to be copied."""
    columns = _columns(out)
    if columns is None or (text.isascii() and len(text) < columns):
        return text
    from rich.cells import cell_len

    first, *words = text.split(" ")
    lines = [first]
    for word in words:
        longer = f"{lines[-1]} {word}"
        if cell_len(longer) < columns:
            lines[-1] = longer
        else:
            lines.append(f"  {word}")
    return "\n".join(lines)


def _columns(out: TextIO) -> int | None:
    """Of a terminal; None if it is none, or does not say."""
    if not out.isatty():
        return None
    told = os.environ.get("COLUMNS", "")
    if told.isdecimal():
        return int(told) or None
    try:
        return os.get_terminal_size(out.fileno()).columns or None
    except OSError:
        return None


def brief(text: str, size: int) -> str:
    """`text` made safe to show, in at most `size` characters."""
    whole = shown(text[: size + 1])
    return whole if len(whole) <= size else whole[: size - 4] + " ..."


def status_of(error: StreamqError) -> int:
    """Exit status of an error: 1 if the server answered and refused, 2 if it was not asked, or not as it must be.

    3 if a migration must come first, or is under way.
    """
    if isinstance(error, MigrationError):
        return REFUSED
    return 1 if isinstance(error, ServerError | QueueFullError | JobStateError) else 2


def is_asked(count: int, *, named: bool) -> bool:
    """Whether a command asks before it changes so many: always, but of the one that was named by its ID."""
    return count > (1 if named else 0)


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
        question = _fitted(f"This will {shown(what)}. Go\xa0on?\xa0[y/N]\xa0", sys.stderr)  # whose end stays together
        sys.stderr.write(question.replace("\xa0", " "))
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
