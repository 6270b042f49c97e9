"""Runs ``streamq`` as a shell does."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import subprocess
import sys
import termios
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from typing import Final
from unittest import mock

COMMAND: Final = [sys.executable, "-c", "from streamq.cli import main; main()"]


def environ(**env: str) -> dict[str, str]:
    """Surroundings without settings of streamq, and with a wide screen."""
    others = {key: value for key, value in os.environ.items() if not key.startswith("STREAMQ_")}
    return others | {"COLUMNS": "160", "NO_COLOR": "1", **env}


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


def call(*args: str, stdin: bytes | io.BufferedIOBase | None = b"", **env: str) -> subprocess.CompletedProcess[str]:
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
        main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else bool(end.code)
    return 0


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
