"""A place for a child: the processes in it come and go."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkContext, SpawnContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Final

from streamq.backoff import Backoff
from streamq.worker.child import SIGNALS, Brief, Word, main
from streamq.worker.engine import consumer_name
from streamq.worker.journal import Journal

CAPACITY: Final = 16_384
"""Notes of a journal: more than the deliveries that a worker ever holds; 400 KB."""

LIVED_S: Final = 10.0
"""A child that lived so long did not fail at its start, so its end is the first one again."""

_RESTART = Backoff.exponential(0.1, cap=10, limit=None)
"""Before the second restart in a row, and so on. The first one is at once."""

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  # where there is one: pages of a file on a disk are written back for nothing


@dataclass(slots=True)
class Occupant:
    """A process in a seat."""

    process: BaseProcess
    pipe: Connection[bytes, bytes]
    consumer: str
    journal: Journal | None
    since: float
    is_ready: bool = False
    is_mute: bool = False
    """Its end of the pipe is closed."""
    refused: str = ""
    """Why it cannot run, and would not the next time."""
    is_told: bool = False
    """To stop."""
    kill_at: float = float("inf")


class Seat:
    """One of the supervisor's children.

    Args:
        number: From 1.
        context: Makes processes.
        target: See `load`.
        solo: Whether it runs last chances only.
        leaves_last: Whether there is a solo child beside.
        prepare: Called first in each process.
    """

    def __init__(
        self,
        number: int,
        context: ForkContext | SpawnContext,
        target: str,
        *,
        solo: bool,
        leaves_last: bool,
        prepare: Callable[[], None] | None,
    ) -> None:
        self.name = f"{'solo child' if solo else 'child'} {number}"
        self.occupant: Occupant | None = None
        self.start_at = 0.0
        self.starts = 0
        self._failures = 0
        self._number = number
        self._context = context
        self._target = target
        self._solo = solo
        self._leaves_last = leaves_last
        self._prepare = prepare

    def start(self, now: float) -> None:
        """Start a process.

        Raises:
            OSError: There is no room for one.
        """
        self.starts += 1
        consumer = consumer_name(self._number)  # known before the process is: with the supervisor's ID, not its own
        journal = _make_journal(consumer)
        ours, theirs = self._context.Pipe()
        try:
            os.set_blocking(ours.fileno(), False)  # one that reads nothing must not hold up the others
            brief = Brief(
                target=self._target,
                consumer=consumer,
                journal=None if journal is None else journal.path,
                solo=self._solo,
                leaves_last=self._leaves_last,
                supervisor=os.getpid(),
                prepare=self._prepare,
            )
            process = self._context.Process(target=main, args=(brief, theirs), name=self.name)
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
            try:
                process.start()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        except BaseException:
            ours.close()
            if journal is not None:
                journal.unlink()
                journal.close()
            raise
        finally:
            theirs.close()
        self.occupant = Occupant(process, ours, consumer, journal, now)

    def listen(self) -> None:
        """Take in what the child says."""
        child = self.occupant
        if child is None:
            return
        try:
            while not child.is_mute and child.pipe.poll():
                word = child.pipe.recv_bytes()
                if word == Word.READY:
                    child.is_ready = True
                elif word.startswith(Word.REFUSED):
                    child.refused = word.removeprefix(Word.REFUSED).decode("utf-8", "backslashreplace")
        except (EOFError, OSError):
            child.is_mute = True

    def say(self, word: Word) -> None:
        """Tell the child something. One that does not listen, or is dead, is not waited for."""
        if self.occupant is not None:
            with contextlib.suppress(OSError):
                self.occupant.pipe.send_bytes(word)

    def stop(self, word: Word, kill_at: float) -> None:
        """Tell the child to stop, and until when it may take."""
        if self.occupant is not None:
            self.occupant.is_told = True
            self.occupant.kill_at = kill_at
            self.say(word)

    def vacate(self, now: float) -> Occupant:
        """The process is dead: take it out, and set when the next one may start."""
        child = self.occupant
        assert child is not None  # noqa: S101  # who calls has seen its end
        child.process.join()
        self.listen()  # to its last words, which may have come since
        self.occupant = None
        child.pipe.close()
        if child.journal is not None:
            child.journal.unlink()
        self.fail(now, lived_s=0 if child.is_told else now - child.since, counts=not child.is_told)
        return child

    def fail(self, now: float, *, lived_s: float = 0.0, counts: bool = True) -> None:
        """Set when the next process may start: at once after the first failure, and later each time that follows soon."""
        if lived_s >= LIVED_S:
            self._failures = 0
        self._failures += counts
        delay_ms = _RESTART.delay_ms(self._failures - 1) if self._failures > 1 and counts else 0
        self.start_at = now + delay_ms / 1000


def how_it_ended(code: int | None) -> str:
    """An exit status in words."""
    if code is not None and code < 0:
        with contextlib.suppress(ValueError):
            return f"was killed by {signal.Signals(-code).name}"
        return f"was killed by signal {-code}"
    return f"ended with exit status {code}"


def _make_journal(consumer: str) -> Journal | None:
    """None where no file can be made: what the child holds is given back all the same, but stays charged."""
    for folder in (_SHARED_MEMORY, Path(tempfile.gettempdir())):
        with contextlib.suppress(OSError):
            return Journal.create(folder / f"streamq-{consumer}", capacity=CAPACITY)
    return None
