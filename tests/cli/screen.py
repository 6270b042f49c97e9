"""Runs ``streamq`` at a terminal of which one sees the screen, as somebody in front of it does."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import pyte
from cli.shell import COMMAND, environ


class Seat:
    """A terminal, and ``streamq`` in it.

    Attributes:
        process: What runs there.
        got: All bytes that the terminal was sent.
    """

    def __init__(self, args: Sequence[str], columns: int, rows: int, env: dict[str, str]) -> None:
        self._ours, self._theirs = pty.openpty()
        self._set_size(columns, rows)
        self.settings_before = self.settings()
        self._screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self._screen)
        self.got = b""
        theirs = self._theirs

        def take_terminal() -> None:
            os.setsid()
            fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)  # so that Ctrl-C is a signal

        self.process = subprocess.Popen(
            args, env=environ(TERM="xterm-256color") | env, stdin=theirs, stdout=theirs, stderr=theirs,
            preexec_fn=take_terminal,  # noqa: PLW1509  # this process has no threads then
        )  # fmt: skip

    def settings(self) -> list[Any]:
        """How the terminal is set: echo, lines, signals."""
        return termios.tcgetattr(self._theirs)

    @property
    def is_full_screen(self) -> bool:
        """Whether the second screen is shown."""
        return self.got.rfind(b"\x1b[?1049h") > self.got.rfind(b"\x1b[?1049l")

    @property
    def lines(self) -> list[str]:
        """What is on the screen, without blanks at the ends of lines."""
        return [line.rstrip() for line in self._screen.display]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def type(self, keys: bytes) -> None:
        os.write(self._ours, keys)

    def resize(self, columns: int, rows: int) -> None:
        self._screen.resize(rows, columns)
        self._set_size(columns, rows)

    def _set_size(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def until(self, seen: str | Callable[[], Any], *, timeout: float = 60.0) -> None:
        """Look at the screen until a pattern is on it, or something holds."""
        holds = seen if callable(seen) else lambda: re.search(seen, self.text)
        deadline = time.monotonic() + timeout
        while not holds():
            assert time.monotonic() < deadline, f"it did not come to {seen}:\n{self.text}\n{self.got[-2000:]!r}"
            self._take(0.05)

    def _take(self, seconds: float) -> bool:
        if not select.select([self._ours], [], [], seconds)[0]:
            return False
        more = os.read(self._ours, 65_536)
        self.got += more
        self._stream.feed(more)
        return True

    def end(self, timeout: float = 60.0) -> int:
        """Wait until it has ended, and look at what it left; its exit status."""
        self.until(lambda: self.process.poll() is not None, timeout=timeout)
        while self._take(0):
            pass
        return self.process.returncode

    def close(self) -> None:
        if self.process.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self._ours)
        os.close(self._theirs)


@contextmanager
def seat(*args: str, columns: int = 80, rows: int = 24, command: Sequence[str] = COMMAND, **env: str) -> Iterator[Seat]:
    """Run ``streamq`` at a terminal of that size."""
    taken = Seat([*command, *args], columns, rows, env)
    try:
        yield taken
    finally:
        taken.close()
