"""A child of `streamq run`: a process that runs a worker, and does what its supervisor says.

Signals mean "stop in good order" to it, however many come; "at once" is a word of the supervisor's. For a terminal's Ctrl-C
and systemd's stop reach children and supervisor alike: counted, those and the supervisor's own would be a second signal.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from streamq.errors import ConfigurationError, MigrationError
from streamq.worker.engine import Worker
from streamq.worker.journal import Journal
from streamq.worker.target import load

PARENT_LOOK_S = 1.0
"""How often a child looks whether its supervisor lives: a forked sibling may hold the pipe's other end open."""

STOPS: Final = (signal.SIGTERM, signal.SIGINT)

SIGNALS: Final = (*STOPS, signal.SIGHUP)
"""What a process can be sent while it is started: blocked by its supervisor until it has its own handlers."""

MIGRATE_FIRST: Final = 3
"""Exit status of a child that found the stream stored as another version stores it."""

_log = logging.getLogger("streamq.supervisor")


class Word(bytes, Enum):
    """What goes over the pipe, either way."""

    STOP = b"stop"
    """In good order."""
    STOP_AT_ONCE = b"stop at once"
    POKE = b"poke"
    """There are jobs to take over."""
    READY = b"ready"
    """From the child: its worker was found, and runs now."""
    REFUSED = b"refused:"
    """From the child, with what is wrong behind it: it cannot run, and will not the next time."""


@dataclass(frozen=True, slots=True)
class Brief:
    """What a child is told at its start."""

    target: str
    consumer: str
    journal: Path | None
    solo: bool
    leaves_last: bool
    supervisor: int
    """Process ID."""
    prepare: Callable[[], None] | None
    """Called first, to set up logging."""


def main(brief: Brief, pipe: Connection[bytes, bytes]) -> None:
    """Run the worker until it is told to stop, or its supervisor is gone. The process's main function."""
    if brief.prepare is not None:
        brief.prepare()
    _Child(brief, pipe).run()


class _Child:
    def __init__(self, brief: Brief, pipe: Connection[bytes, bytes]) -> None:
        self._brief = brief
        self._pipe = pipe
        self._worker: Worker[Any] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._stop_asked = False

    def run(self) -> None:
        signal.set_wakeup_fd(-1)  # a forked child has the supervisor's
        for number in STOPS:
            signal.signal(number, self._note_stop)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # means the supervisor
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        try:
            self._worker = self._load()
            if self._stop_asked:
                return
            self._say(Word.READY)
            threading.Thread(target=self._listen, name="streamq-supervisor", daemon=True).start()
            with contextlib.suppress(asyncio.CancelledError):  # told to stop at once
                asyncio.run(self._work(self._worker))
            for number in STOPS:
                signal.signal(number, signal.SIG_IGN)  # it ends already
        except (ConfigurationError, MigrationError) as error:
            self._say(Word.REFUSED + str(error).encode())
            sys.exit(MIGRATE_FIRST if isinstance(error, MigrationError) else 2)
        except Exception:  # noqa: BLE001  # told here, in the log's form
            _log.critical("the worker failed", exc_info=True)
            sys.exit(1)

    def _load(self) -> Worker[Any]:
        journal = None
        if self._brief.journal is not None:
            journal = Journal.open(self._brief.journal)
            journal.unlink()  # both have it mapped: whoever is killed from now on leaves nothing behind
        worker = load(self._brief.target)
        worker._attach(  # noqa: SLF001  # made for its supervisor
            consumer=self._brief.consumer,
            journal=journal,
            solo=self._brief.solo,
            leaves_last=self._brief.leaves_last,
        )
        return worker

    async def _work(self, worker: Worker[Any]) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        for number in STOPS:
            self._loop.add_signal_handler(number, self._stop)
        if self._stop_asked:
            worker.stop()
        await worker.run_async()

    def _listen(self) -> None:
        with contextlib.suppress(EOFError, OSError):
            while self._pipe.poll(PARENT_LOOK_S) or os.getppid() == self._brief.supervisor:
                if self._pipe.poll():
                    with contextlib.suppress(RuntimeError):  # the loop has just closed
                        self._heed(self._pipe.recv_bytes())
        _log.error("the supervisor is gone: stopping")
        self._stop()

    def _heed(self, word: bytes) -> None:
        match word:
            case Word.STOP:
                self._stop()
            case Word.STOP_AT_ONCE:
                self._stop()
                if self._loop is not None and self._task is not None and not self._loop.is_closed():
                    self._loop.call_soon_threadsafe(self._task.cancel)
            case Word.POKE if self._worker is not None:
                self._worker.poke()
            case _:
                pass

    def _note_stop(self, *_: object) -> None:
        """Before there is a loop: what is under way here may hold a lock that `Worker.stop` takes."""
        self._stop_asked = True

    def _stop(self) -> None:
        self._stop_asked = True
        if self._worker is not None:
            self._worker.stop()

    def _say(self, word: bytes) -> None:
        with contextlib.suppress(OSError):  # it is gone
            self._pipe.send_bytes(word)
