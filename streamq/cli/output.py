"""What the commands share in what they print: nothing that came from a server reaches the terminal unescaped."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import msgspec
import typer

from streamq._text import shown

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        envvar="STREAMQ_URL",
        help="Server: redis://, rediss://, unix:// or embedded:///directory. [default: redis://localhost:6379]",
        show_default=False,
    ),
]
Deployment = Annotated[
    str | None, typer.Option("--deployment", envvar="STREAMQ_DEPLOYMENT", help="Namespace of the deployment.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]


def print_json(value: Any) -> None:
    """Print a value as indented JSON."""
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")


def fail(message: str) -> None:
    """Print one line to standard error."""
    sys.stderr.write(f"streamq: {shown(message)}\n")
