"""Tables that fit where they are shown: a terminal of any width, or a pipe, in which a row is a line."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from streamq.cli.output import brief

if TYPE_CHECKING:
    from rich.console import Console

MOST_ROWS: Final = 10_000
"""They are kept until the table is printed."""

ID_CHARS, ERROR_CHARS, FIELD_CHARS, PAYLOAD_CHARS = 512, 80, 500, 4_000
"""Most characters of each that are shown."""

PIPED_WIDTH: Final = 160

WIDE: Final = 100
"""On a narrower screen tables are lean, and leave figures that are not asked for first to `show`."""

FOLDED: Final = 12
"""Least width of a column of long texts."""


def console() -> Console:
    """Where tables go; what is piped is as wide as `COLUMNS` says, or wide enough not to be broken up."""
    from rich.console import Console

    found = Console()
    if _is_piped(found):
        found.width = PIPED_WIDTH
    return found


def _is_piped(screen: Console) -> bool:
    return not screen.is_terminal and "COLUMNS" not in os.environ


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
    lean = screen.width < WIDE
    found = Table(
        box=box.SIMPLE_HEAD if lean else box.HEAVY_HEAD,
        padding=(0, 1, 0, 0) if lean else (0, 1),
        show_edge=not lean,
        pad_edge=not lean,
    )
    least = 0
    for at, column in enumerate(columns):
        longest = max([cell_len(column.title), *(cell_len(row[at]) for row in rows)])
        width = min(longest, FOLDED) if column.folds else longest
        least += width + (2 if lean else 3)
        found.add_column(
            column.title,
            justify="right" if column.is_number else "left",
            no_wrap=not column.folds,
            overflow="fold",
            min_width=width,
        )
    if _is_piped(screen):
        screen.width = 1 << 20
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
        lines: dict[str, list[str]] = {}
        title = ""
        for column, cell in zip(columns, row, strict=True):
            title = column.title or title
            if cell:
                lines.setdefault(title, []).append(cell)
        grid = Table.grid(padding=(0, 2))
        grid.add_column(no_wrap=True)
        grid.add_column(overflow="fold")
        for title, cells in lines.items():
            grid.add_row(title, Text(", ".join(cells)))
        screen.print(grid)


def sheet(lines: Iterable[tuple[str, str]]) -> None:
    """Print titles and values, one below the other; one without a title is a payload."""
    from rich.table import Table
    from rich.text import Text

    found = Table(show_header=False)
    found.add_column(no_wrap=True)
    found.add_column(overflow="fold")
    for title, value in lines:
        size = max(FIELD_CHARS, ID_CHARS) if title else PAYLOAD_CHARS
        found.add_row(Text(brief(title, ID_CHARS)), Text(brief(value, size)))
    console().print(found)
