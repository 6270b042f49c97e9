"""Ctrl-C and SIGTERM end a run wherever it is, but for where it cleans up: there they wait until that is done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final, NoReturn

TERMINATED: Final = 128 + signal.SIGTERM
"""Exit status of who was told to end."""


@contextmanager
def sigterm_ends() -> Iterator[None]:
    """SIGTERM raises `SystemExit`, so that what is open is closed."""

    def end(number: int, frame: FrameType | None) -> NoReturn:
        del number, frame
        raise SystemExit(TERMINATED)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def put_off() -> Iterator[None]:
    """Let what is done here come to its end first; then the signals that came meanwhile do what they do elsewhere."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before: dict[int, Any] = {}

    def note(number: int, frame: FrameType | None) -> None:
        del frame
        came.append(number)

    for ours in (signal.SIGINT, signal.SIGTERM):
        before[ours] = signal.signal(ours, note)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for number in came:
        signal.raise_signal(number)
