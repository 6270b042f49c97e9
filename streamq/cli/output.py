"""What the commands share in what they print and ask: nothing that came from a server reaches the terminal unescaped."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, Protocol, TextIO

import msgspec
import typer

from streamq._text import INVISIBLE, shown
from streamq.errors import JobStateError, QueueFullError, ServerError, StreamqError

if TYPE_CHECKING:
    from rich.console import Console

Name = Annotated[str, typer.Argument(help="Stream.", show_default=False)]
Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        envvar="STREAMQ_URL",
        help="Server: redis://, rediss://, unix:// or embedded:///directory.",
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

MOST_IN_A_TABLE: Final = 10_000
"""Rows of a table are kept until it is printed."""

ID_CHARS, ERROR_CHARS, FIELD_CHARS, PAYLOAD_CHARS = 512, 80, 500, 4_000
"""Most characters of each that are shown in a table."""

PIPED_WIDTH: Final = 160

WIDE: Final = 100
"""On a narrower screen tables are lean, and leave figures that are not asked for first to `show`."""

FOLDED: Final = 12
"""Least width of a column of long texts."""

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
    return int(told) if told.isdecimal() else os.get_terminal_size(out.fileno()).columns or None


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


class Column(NamedTuple):
    """Of a table.

    Attributes:
        title: What stands above; without one it says more of the column before.
        is_number: Whether it stands on the right.
        folds: Whether its texts may be long, and are broken where there is little room.
    """

    title: str
    is_number: bool = False
    folds: bool = False


def table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Print rows as a table; where not even its narrowest form fits the screen, each row as lines of titles and values."""
    from rich import box
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    used = [at for at, column in enumerate(columns) if column.title or any(row[at] for row in rows)]
    columns, rows = [columns[at] for at in used], [[row[at] for at in used] for row in rows]
    screen = console()
    is_narrow = screen.width < WIDE
    lean = {"box": box.SIMPLE_HEAD, "padding": (0, 1, 0, 0), "show_edge": False, "pad_edge": False}
    found = Table(**lean) if is_narrow else Table()  # type: ignore[arg-type]  # options of several types
    least = 0
    for at, column in enumerate(columns):
        longest = max([cell_len(column.title), *(cell_len(row[at]) for row in rows)])
        width = min(longest, FOLDED) if column.folds else longest
        least += width + (2 if is_narrow else 3)
        found.add_column(
            column.title,
            justify="right" if column.is_number else "left",
            no_wrap=not column.folds,
            overflow="fold",
            min_width=width,
        )
    if not screen.is_terminal and "COLUMNS" not in os.environ:
        screen.width = 1 << 20  # a row is a line
    if least > screen.width:
        _each_by_itself(screen, columns, rows)
        return
    for row in rows:
        found.add_row(*(Text(cell) for cell in row))
    screen.print(found)


def _each_by_itself(screen: Console, columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    from rich.table import Table
    from rich.text import Text

    for at, row in enumerate(rows):
        if at:
            screen.print()
        grid = Table.grid(padding=(0, 2))
        grid.add_column(no_wrap=True)
        grid.add_column(overflow="fold")
        lines: dict[str, str] = {}
        title = ""
        for column, cell in zip(columns, row, strict=True):
            title = column.title or title
            if cell:
                lines[title] = f"{lines[title]}, {cell}" if title in lines else cell
        for title, value in lines.items():
            grid.add_row(title, Text(value))
        screen.print(grid)


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


def status_of(error: StreamqError) -> int:
    """Exit status of an error: 1 if the server answered and refused, 2 if it was not asked, or not as it must be."""
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
