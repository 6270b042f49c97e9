"""What the commands share in what they print: nothing that came from a server reaches the terminal unescaped."""

from __future__ import annotations

import re
import sys
from typing import Annotated, Any, Final

import msgspec
import typer

from streamq._text import INVISIBLE, shown

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

# What JSON may hold as it is, but no terminal should get: see `streamq._text`. The rest of it JSON escapes by itself.
_UNSAFE_IN_JSON: Final = re.compile(rf"[\x7f-\x9f{INVISIBLE}]")


def print_json(value: Any, *, indent: int = 2) -> None:
    """Print a value as JSON, over several lines, or with an indent of -1 on one."""
    written = msgspec.json.format(msgspec.json.encode(value), indent=indent).decode()
    sys.stdout.write(_UNSAFE_IN_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", written) + "\n")


def fail(message: str) -> None:
    """Print one line to standard error."""
    sys.stderr.write(f"streamq: {shown(message)}\n")


def brief(text: str, size: int) -> str:
    """`text` made safe to show, in at most `size` characters."""
    whole = shown(text[: size + 1])
    return whole if len(whole) <= size else whole[: size - 4] + " ..."
