"""Runs worker processes: starts them again when they die, gives back what they held, and passes stops on.

One thread and no connection that stays: the supervisor forks, and a fork copies whatever other threads are in the middle of.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator
from multiprocessing import connection, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import ForkContext, SpawnContext
from typing import Literal

from streamq.backoff import to_ms
from streamq.errors import ConfigurationError, MigrationError
from streamq.worker.child import MIGRATE_FIRST, STOPS, Word
from streamq.worker.returns import Returns
from streamq.worker.seat import Occupant, Seat, how_it_ended
from streamq.worker.target import load

MAX_PROCESSES = 256
MAX_SOLO = 2

GRACE_S = 10.0
"""What a child may take to end beyond its `drain`: to cancel, to settle, to leave. It is killed then."""

LAST_RETURNS_S = 5.0
"""Longest time at the end for giving back what killed children held, if the server cannot be reached."""

_log = logging.getLogger("streamq.supervisor")


class Supervisor:
    """Keeps processes of a worker running. See ``streamq run``.

    Args:
        target: ``MODULE:WORKER``: a `Worker`, or a callable without arguments that returns one. It is imported, and such
            a callable called, here too: to fail early, and to know the streams.
        processes: Children that take all jobs, 1 to 256.
        solo: Further children that take only jobs with a single start left, each one at a time, 0 to 2. So a job that kills
            its process meets no other, and the others need not wait for it. By default one if there are several
            processes: with a single one the job runs alone there, and nobody asked for a second process.
        start_method: ``spawn`` starts clean processes; ``fork`` is faster and shares memory, but is safe only if importing
            the module starts no thread, and children keep the code that was imported here.
        grace: Seconds that a child that was told to stop gets beyond the worker's `drain`, until it is killed.
        prepare: Called first in each child, to set up logging. A function that can be pickled, for ``spawn``.

    Raises:
        ConfigurationError: An argument is not valid.
    """

    def __init__(
        self,
        target: str,
        *,
        processes: int = 1,
        solo: int | None = None,
        start_method: Literal["spawn", "fork"] = "spawn",
        grace: float = GRACE_S,
        prepare: Callable[[], None] | None = None,
    ) -> None:
        if isinstance(processes, bool) or not 1 <= processes <= MAX_PROCESSES:
            raise ConfigurationError(f"processes must be from 1 to {MAX_PROCESSES}, not {processes!r}")
        if solo is None:
            solo = 1 if processes > 1 else 0
        if isinstance(solo, bool) or not 0 <= solo <= MAX_SOLO:
            raise ConfigurationError(f"solo must be from 0 to {MAX_SOLO}, not {solo!r}")
        contexts: dict[str, ForkContext | SpawnContext]
        contexts = {"spawn": multiprocessing.get_context("spawn"), "fork": multiprocessing.get_context("fork")}
        if start_method not in contexts:
            raise ConfigurationError(f"start_method must be spawn or fork, not {start_method!r}")
        self._target = target
        self._start_method = start_method
        self._grace_s = to_ms(grace, "grace") / 1000
        self._seats = [
            Seat(
                n,
                contexts[start_method],
                target,
                solo=n > processes,
                leaves_last=n <= processes and solo > 0,
                prepare=prepare,
            )
            for n in range(1, processes + solo + 1)
        ]
        self._returns = Returns([])
        self._drain_s = 0.0
        self._signals: deque[int] = deque()
        self._stops = 0
        self._to_roll: deque[Seat] = deque()
        self._rolling: Seat | None = None
        self._refused: ConfigurationError | MigrationError | None = None
        self._all_well = True

    def run(self) -> bool:
        """Run until SIGTERM or SIGINT; True if all children ended in good order then. In the main thread.

        A first signal stops the children as it stops a worker; a second one stops them at once; a third one kills them.
        SIGHUP restarts the children one after the other, each when its predecessor works again.

        Raises:
            ConfigurationError: The target names no worker, or the first of its processes found that it cannot run.
            MigrationError: It found that the stream is stored as another version stores it.
        """
        worker = load(self._target)
        self._returns = Returns([(s.spec, s.settings) for s in worker._sources])  # noqa: SLF001  # made for its supervisor
        self._drain_s = worker._drain_s  # noqa: SLF001
        if self._start_method == "spawn":
            resource_tracker.ensure_running()  # the first process would start it, and unblock signals on the way
        with self._woken_by_signals() as wake:
            try:
                while not self._is_over():
                    self._turn(time.monotonic())
                    self._wait(wake)
                self._return_the_last()
            finally:
                self._kill_all()
        if self._refused:
            raise self._refused
        return self._all_well

    # The loop

    def _turn(self, now: float) -> None:
        while self._signals:
            self._heed(self._signals.popleft(), now)
        for seat in self._seats:
            self._look_after(seat, now)
        self._roll(now)
        if self._returns.work(now):
            for seat in self._seats:
                seat.say(Word.POKE)

    def _is_over(self) -> bool:
        return self._stops > 0 and not any(seat.occupant for seat in self._seats)

    def _look_after(self, seat: Seat, now: float) -> None:
        seat.listen()
        child = seat.occupant
        if child is not None and child.process.exitcode is not None:
            self._bury(seat, seat.vacate(now), now)
        elif child is not None and now >= child.kill_at:
            _log.error("%s (process %d) does not stop: killing it", seat.name, child.process.pid)
            child.kill_at = float("inf")
            child.process.kill()
        if seat.occupant is None and not self._stops and now >= seat.start_at:
            self._start(seat, now)

    def _start(self, seat: Seat, now: float) -> None:
        try:
            seat.start(now)
        except OSError as error:
            seat.fail(now)
            _log.error("%s cannot be started yet: %s", seat.name, error)
        else:
            child = seat.occupant
            _log.info(
                "%s is process %d, consumer %s", seat.name, *(child.process.pid, child.consumer) if child else (0, "")
            )

    def _bury(self, seat: Seat, child: Occupant, now: float) -> None:
        """A child has ended: say how, and let what it held be given back, if anything."""
        code = child.process.exitcode
        how = f"{seat.name} (process {child.process.pid}) {how_it_ended(code)} after {now - child.since:.1f} s"
        if child.is_told or self._stops:
            asked = code == 0 or bool(child.refused)
            self._all_well &= asked
            _log.log(logging.INFO if asked else logging.ERROR, "%s", how)
        elif child.refused and seat.starts == 1:
            self._refused = (MigrationError if code == MIGRATE_FIRST else ConfigurationError)(child.refused)
            self._stop(now)
        else:
            why = f": {child.refused}" if child.refused else ""
            wait_s = seat.start_at - now
            _log.error("%s%s; restarting it %s", how, why, f"in {wait_s:.1f} s" if wait_s > 0 else "at once")
        self._returns.add(child.consumer, child.journal, now)
        if child.journal is not None:
            child.journal.close()
        child.process.close()

    def _wait(self, wake: socket.socket) -> None:
        times = [self._returns.next_at()]
        things: list[socket.socket | Connection[bytes, bytes]] = [wake]
        for seat in self._seats:
            if seat.occupant is not None:
                times.append(seat.occupant.kill_at)
                if not seat.occupant.is_mute:
                    things.append(seat.occupant.pipe)
            elif not self._stops:
                times.append(seat.start_at)
        if self._is_over():
            return
        until = min(times)
        timeout = None if until == float("inf") else max(until - time.monotonic(), 0)
        connection.wait(things, timeout)
        with contextlib.suppress(BlockingIOError):
            wake.recv(1024)

    # Stopping

    def _heed(self, number: int, now: float) -> None:
        if number in STOPS:
            self._stop(now)
        elif number == signal.SIGHUP and not self._stops:
            _log.info("SIGHUP: restarting the children one after the other")
            self._to_roll = deque(self._seats)
        # SIGCHLD has woken us, which is all it is for: a child's pipes may be held open by children of its own.

    def _stop(self, now: float) -> None:
        """Once in good order, twice at once, thrice by force."""
        self._stops += 1
        self._to_roll.clear()
        word, allowed_s = {
            1: (Word.STOP, self._drain_s + self._grace_s),
            2: (Word.STOP_AT_ONCE, self._grace_s),
        }.get(self._stops, (Word.STOP_AT_ONCE, 0.0))
        _log.info("stopping the children (%s, %.0f s at most)", word.value.decode(), allowed_s)
        for seat in self._seats:
            seat.stop(word, now + allowed_s)

    def _roll(self, now: float) -> None:
        """Restart the next one, if the last one works again."""
        if self._rolling is not None:
            child = self._rolling.occupant
            if child is None or child.is_told or not child.is_ready:
                return
            self._rolling = None
        if self._to_roll:
            self._rolling = self._to_roll.popleft()
            self._rolling.stop(Word.STOP, now + self._drain_s + self._grace_s)
            if self._rolling.occupant is None:
                self._rolling = None  # it is restarted anyway

    def _return_the_last(self) -> None:
        """And look once more at those whose consumers are still there."""
        begun = time.monotonic()
        self._returns.hurry(begun)
        until = begun + LAST_RETURNS_S
        while (self._returns.has_new() or self._returns.next_at() <= begun) and time.monotonic() < until:
            if self._returns.next_at() > begun:
                time.sleep(max(min(self._returns.next_at(), until) - time.monotonic(), 0))
            self._returns.work(time.monotonic())
        if self._returns.has_new():
            _log.error("the server cannot be reached: what killed children held comes back by its lease")

    def _kill_all(self) -> None:
        """Of an end that is a mistake of ours: nothing may run on unwatched."""
        for seat in self._seats:
            if seat.occupant is not None:
                seat.occupant.process.kill()
                seat.vacate(time.monotonic())

    # Signals

    @contextlib.contextmanager
    def _woken_by_signals(self) -> Iterator[socket.socket]:
        """Note signals, and make a socket readable by them."""
        wake, woken = socket.socketpair()
        numbers = [*STOPS, signal.SIGCHLD]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # by nohup
            numbers.append(signal.SIGHUP)
        before = {number: signal.getsignal(number) for number in numbers}
        with wake, woken:
            wake.settimeout(0)
            woken.settimeout(0)
            old = signal.set_wakeup_fd(woken.fileno(), warn_on_full_buffer=False)
            for number in numbers:
                signal.signal(number, lambda got, _: self._signals.append(got))
            try:
                yield wake
            finally:
                for number, handler in before.items():
                    signal.signal(number, handler)
                signal.set_wakeup_fd(old)
