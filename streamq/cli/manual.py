"""What ``--help`` says beside the docstrings: examples, and the parts into which ``streamq --help`` sorts the commands."""

from __future__ import annotations

from typing import Final

RUN: Final = "Run"
LOOK: Final = "Look"
CHANGE: Final = "Change"
SET_UP: Final = "Set up and tear down"


def examples(*lines: str) -> str:
    """The end of a command's help: commands that work as they stand, each with what it does behind a ``#``."""
    return "Examples:\n\n" + "\n\n".join(f"- `{line}`" for line in lines)


COMPLETION: Final = (
    "Completion of commands and options by the Tab key: `streamq --install-completion`, then open a new shell (bash, zsh, fish, "
    "PowerShell). `streamq COMMAND --help` explains each command, with examples."
)
