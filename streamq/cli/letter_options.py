"""Arguments and options of ``streamq dead-letters``."""

from __future__ import annotations

from typing import Annotated

import typer

LetterIds = Annotated[
    list[str] | None, typer.Argument(metavar="[LETTER_ID]...", help="IDs of letters.", show_default=False)
]
Ids = Annotated[
    list[str] | None, typer.Option("--id", metavar="LETTER_ID", help="This letter; repeatable.", show_default=False)
]
Reasons = Annotated[
    list[str] | None,
    typer.Option("--reason", help="Letters of this reason, such as attempts; repeatable.", show_default=False),
]
Error = Annotated[
    str | None,
    typer.Option("--error", metavar="TEXT", help="Letters whose last error has this in it.", show_default=False),
]
Group = Annotated[
    str | None, typer.Option("--group", help="Letters that this group gave up.", show_default="all groups")
]
OlderThan = Annotated[
    str | None,
    typer.Option(
        "--older-than",
        metavar="D",
        help="Letters that died so long ago or longer, by the server's clock: 90, 90s, 10m, 2h, 30d.",
        show_default=False,
    ),
]
Limit = Annotated[
    int | None, typer.Option("--limit", min=1, help="Most letters, the oldest first.", show_default="all")
]
After = Annotated[
    str | None, typer.Option("--after", metavar="LETTER_ID", help="Letters behind this one.", show_default=False)
]
All = Annotated[bool, typer.Option("--all", help="All letters.")]
NewId = Annotated[str | None, typer.Option("--new-id", help="Another job ID; for one letter.", show_default=False)]
Payload = Annotated[
    str | None,
    typer.Option(
        "--payload",
        metavar="FILE|-",
        help="Another payload, byte for byte, from a file or standard input; for one letter.",
        show_default=False,
    ),
]
MaxRedrives = Annotated[
    int, typer.Option("--max-redrives", min=0, help="Refuse jobs that were redriven so often already.")
]
Rate = Annotated[
    str | None,
    typer.Option("--rate", metavar="N/s", help="At most so many: 5/s, 300/m, 1000/h.", show_default="no limit"),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would be done. Changes nothing.")]
