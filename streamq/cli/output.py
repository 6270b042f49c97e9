"""What the commands share in what they print: nothing that came from a server reaches the terminal unescaped."""

from __future__ import annotations

import re
import sys
from typing import Annotated, Any, Final

import msgspec
import typer

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")

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


def shown(text: str) -> str:
    """`text` with control characters, and those that turn writing around, made visible."""
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def print_json(value: Any) -> None:
    """Print a value as indented JSON."""
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")


def fail(message: str) -> None:
    """Print one line to standard error."""
    sys.stderr.write(f"streamq: {shown(message)}\n")
