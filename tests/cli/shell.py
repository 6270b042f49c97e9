"""Runs ``streamq`` as a shell does."""

from __future__ import annotations

import fcntl
import functools
import io
import os
import pty
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Final
from unittest import mock

import typer

_built = functools.cache(typer.main.get_command)
"""The commands, made once: that takes longer than most of them."""

COMMAND: Final = [sys.executable, "-c", "from streamq.cli import main; main()"]


def environ(**env: str | None) -> dict[str, str]:
    """Surroundings without settings of streamq, and with a wide screen. None takes a variable out."""
    others = {key: value for key, value in os.environ.items() if not key.startswith("STREAMQ_")}
    found = others | {"COLUMNS": "160", "NO_COLOR": "1", **env}
    return {key: value for key, value in found.items() if value is not None}


def run(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run ``streamq`` with no terminal."""
    return subprocess.run(
        [*COMMAND, *args],
        env=environ(**env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
    )


def call(
    *args: str, stdin: bytes | io.BufferedIOBase | None = b"", **env: str | None
) -> subprocess.CompletedProcess[str]:
    """Run ``streamq`` in this process, which takes no time, with no terminal."""
    from streamq.cli import main

    source = io.BytesIO(stdin) if isinstance(stdin, bytes) else stdin
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.dict(os.environ, environ(**env), clear=True),
        mock.patch.object(sys, "argv", ["streamq", *args]),
        mock.patch.object(sys, "stdin", source and io.TextIOWrapper(source)),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        code = _ended(main)
    return subprocess.CompletedProcess(args, code, out.getvalue(), err.getvalue())


def _ended(main: Callable[[], None]) -> int:
    try:
        with mock.patch.object(typer.main, "get_command", _built):
            main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else bool(end.code)
    return 0


def at_terminal(
    *args: str, columns: int, rows: int, typed: bytes = b"", **env: str
) -> subprocess.CompletedProcess[str]:
    """Run ``streamq`` in this process, at a terminal of that size, where somebody types, once asked.

    What the terminal got is the result's `stdout`.
    """
    from streamq.cli import main

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    screen = bytearray()

    def watch() -> None:
        left = typed
        while more := _read(ours):
            screen.extend(more)
            if left and screen.endswith(b"[y/N] "):
                os.write(ours, left)
                left = b""

    watcher = threading.Thread(target=watch)
    surroundings = environ(**{"COLUMNS": None, "NO_COLOR": None, "TERM": "xterm-256color", **env})
    watcher.start()
    with (
        _standard_streams(theirs),
        mock.patch.dict(os.environ, surroundings, clear=True),
        mock.patch.object(sys, "argv", ["streamq", *args]),
    ):
        code = _ended(main)
    watcher.join()
    os.close(ours)
    return subprocess.CompletedProcess(args, code, screen.decode("utf-8", "replace").replace("\r\n", "\n"), "")


@contextmanager
def _standard_streams(terminal: int) -> Iterator[None]:
    """This process's own, by their numbers: who asks for the size of a terminal asks those."""
    kept = [os.dup(number) for number in range(3)]
    for number in range(3):
        os.dup2(terminal, number)
    os.close(terminal)
    try:
        with (
            open(0, closefd=False) as stdin,
            open(1, "w", buffering=1, closefd=False) as stdout,
            open(2, "w", buffering=1, closefd=False) as stderr,
            mock.patch.multiple(sys, stdin=stdin, stdout=stdout, stderr=stderr),
        ):
            yield
    finally:
        for number, old in enumerate(kept):
            os.dup2(old, number)
            os.close(old)


def run_at_terminal(typed: bytes, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run ``streamq`` where somebody types, once asked; what it writes to the terminal is the result's `stderr`."""
    ours, theirs = pty.openpty()

    def take_terminal() -> None:
        os.setsid()
        fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)  # so that Ctrl-C is a signal

    with subprocess.Popen(
        [*COMMAND, *args],
        env=environ(**env),
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
        preexec_fn=take_terminal,  # noqa: PLW1509  # this process has no threads then
    ) as process:
        os.close(theirs)
        screen = b""
        while more := _read(ours):
            screen += more
            if typed and screen.endswith(b"[y/N] "):
                os.write(ours, typed)
                typed = b""
        stdout, _ = process.communicate(timeout=100)
    os.close(ours)
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, screen.decode("utf-8", "replace"))


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4_096)
    except OSError:  # Linux says so when nobody has the other end any more
        return b""
