"""The terminal, taken over as long as something is watched, and given back as it was."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from types import ModuleType
from typing import Any, Final, Self

from rich.console import Console

from streamq.cli.live.screen import Picture
from streamq.cli.live.sparkline import ASCII_BARS, BARS
from streamq.errors import ConfigurationError

NO_SIZE: Final = (80, 24)
"""Columns and lines of a terminal that says none."""

_NEEDED: Final = "--watch needs a terminal, {}; for a program or a file: streamq inspect --watch --json"


class Terminal:
    """Standard input without echo and lines, and a second screen on standard output; `with` gives both back.

    Raises:
        ConfigurationError: At once, if there is no terminal that can do this.
    """

    def __init__(self) -> None:
        self._termios, self._tty = _modules()
        for stream, name in ((sys.stdin, "standard input"), (sys.stdout, "standard output")):
            if stream is None or not stream.isatty():
                raise ConfigurationError(_NEEDED.format(f"and {name} is none"))
        if os.environ.get("TERM", "dumb") in {"dumb", "unknown"}:
            raise ConfigurationError(_NEEDED.format("and TERM says that this one cannot move its cursor"))
        self._input, self._output = sys.stdin.fileno(), sys.stdout.fileno()
        self._settings: list[Any] = self._termios.tcgetattr(self._input)
        self._console = Console(force_terminal=True, legacy_windows=False, highlight=False)
        self.bars = BARS if self._console.encoding.startswith("utf") else ASCII_BARS

    def __enter__(self) -> Self:
        if hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(errors="replace")  # rather a question mark than no figures
        try:
            self.take()
        except BaseException:
            self.give_back()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.give_back()

    def take(self) -> None:
        """Begin, or go on after `give_back`."""
        self._tty.setcbreak(self._input)
        self._console.set_alt_screen(enable=True)
        self._console.show_cursor(show=False)

    def give_back(self) -> None:
        """Leave it as it was."""
        try:
            self._console.show_cursor(show=True)
            self._console.set_alt_screen(enable=False)
        except OSError:
            pass  # nobody is there to see it
        finally:
            self._restore()

    def _restore(self) -> None:
        with suppress(self._termios.error):  # the terminal is gone
            self._termios.tcsetattr(self._input, self._termios.TCSAFLUSH, self._settings)

    @property
    def input(self) -> int:
        """Descriptor on which keys come."""
        return self._input

    def read(self) -> bytes:
        """The keys that were pressed; nothing once the terminal is gone."""
        try:
            return os.read(self._input, 1_024)
        except OSError:
            return b""

    def size(self) -> tuple[int, int]:
        """Columns and lines, now: COLUMNS and LINES, which others respect, stay behind when a window changes its size."""
        columns, lines = os.get_terminal_size(self._output)
        return (columns, lines) if columns and lines else NO_SIZE

    def show(self, picture: Picture) -> None:
        """Fill the screen."""
        self._console.update_screen_lines([[*line.render(self._console)] for line in picture.lines])


def _modules() -> tuple[ModuleType, ModuleType]:
    try:
        import termios
        import tty
    except ImportError:
        raise ConfigurationError(_NEEDED.format("of a POSIX system")) from None
    return termios, tty
