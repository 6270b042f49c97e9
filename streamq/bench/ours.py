"""What is measured: adding jobs, and a worker that drains them with each kind of handler."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import repeat
from typing import Any, Final

from streamq.bench.interrupts import put_off
from streamq.bench.report import Settings
from streamq.bench.rounds import Contender, Done, Limit, one_by_one
from streamq.errors import ServerError
from streamq.messages import Job
from streamq.stream import Stream
from streamq.worker import Worker

Payload = dict[str, str]

PATIENCE_S: Final = 60.0
"""A worker that has not done by then what it was given, or has not ended, never will."""

_LOOK_S: Final = 0.2
"""How often it is seen whether it still runs."""

_FRAME: Final = len('{"fill":""}')


def payload_of(size: int) -> Payload:
    """A payload of so many bytes as JSON, or of the least there is."""
    return {"fill": "x" * max(size - _FRAME, 0)}


class Ours:
    """A stream, and its workers.

    Args:
        stream: The stream; nothing else uses it.
        settings: Of the run.
        crew: Runs the workers.
        wipe: Makes the stream empty.
    """

    def __init__(self, stream: Stream[Payload], settings: Settings, crew: Crew, wipe: Callable[[], None]) -> None:
        self._stream = stream
        self._crew = crew
        self._settings = settings
        self._wipe = wipe
        self._payload = payload_of(settings.payload_bytes)
        self._ready = 0

    @property
    def adder(self) -> Contender:
        """`add`, one by one."""
        return Contender(self._add)

    @property
    def bulk_adder(self) -> Contender:
        """`add_many`."""
        return Contender(self._add_many)

    def drainer(self, kind: str) -> Contender:
        """A worker with an ``async``, a ``sync`` or a ``batch`` handler that does nothing."""
        return Contender(lambda limit: self._drain(kind, limit), prepare=self._fill, begins=True)

    def _add(self, limit: Limit) -> Done:
        return one_by_one(lambda: self._stream.add(self._payload), limit)

    def _add_many(self, limit: Limit) -> Done:
        began = time.perf_counter()
        done = self._stream.add_many(_until(began + limit.seconds, repeat(self._payload, limit.jobs)))
        return Done(done, time.perf_counter() - began)

    def _fill(self, limit: Limit) -> None:
        self._wipe()  # a round that ran out of time has left some
        self._ready = self._add_many(limit).jobs

    def _drain(self, kind: str, limit: Limit) -> Done:
        tally = Tally(Limit(self._ready, limit.seconds))
        worker = self._worker(kind, tally)
        tally.enough = worker.stop
        began = time.perf_counter()
        with self._crew.working(worker) as goes_on:
            while not tally.is_over.wait(_LOOK_S) and goes_on():
                if time.perf_counter() > began + limit.seconds + PATIENCE_S:
                    raise ServerError(
                        "the worker waits too long for its jobs: does another program read them?", code=""
                    )
        return Done(tally.jobs, time.perf_counter() - began)

    def _worker(self, kind: str, tally: Tally) -> Worker[Payload]:
        async def handle(payload: Payload) -> None:
            del payload
            tally.note(1)

        def handle_in_thread(payload: Payload) -> None:
            del payload
            tally.note(1)

        async def handle_many(jobs: list[Job[Payload]]) -> None:
            tally.note(len(jobs))

        slots: dict[str, Any] = {"concurrency": self._settings.concurrency, "prefetch": self._settings.prefetch}
        if kind == "batch":
            return Worker(self._stream, handle_many, batch=self._settings.batch, **slots)
        return Worker(self._stream, handle if kind == "async" else handle_in_thread, **slots)

    @contextmanager
    def listening(self, heard: Callable[[], None]) -> Iterator[Callable[[], object]]:
        """Have an idle worker wait for jobs; gives what adds one.

        Args:
            heard: The first step of its handler, an ``async def``.
        """

        async def handle(payload: Payload) -> None:
            del payload
            heard()

        with self._crew.working(Worker(self._stream, handle, concurrency=self._settings.concurrency)):
            yield lambda: self._stream.add(self._payload)


class Tally:
    """Counts the jobs that handlers are called with, from any threads, and says when it is enough.

    Args:
        limit: When it is enough; the time is from the first call on.
    """

    def __init__(self, limit: Limit) -> None:
        self._limit = limit
        self._first = 0.0
        self._lock = threading.Lock()
        self.jobs = 0
        self.enough: Callable[[], None] = lambda: None
        self.is_over = threading.Event()

    def note(self, jobs: int) -> None:
        """A handler was called with so many jobs."""
        now = time.perf_counter()
        with self._lock:
            self._first = self._first or now
            self.jobs += jobs
            goes_on = self.jobs < self._limit.jobs and now < self._first + self._limit.seconds
        if not goes_on and not self.is_over.is_set():
            self.is_over.set()
            self.enough()


class Crew:
    """The workers of a run, each in a thread of its own. None may be left when the stream is removed: it would make it again."""

    def __init__(self) -> None:
        self._at_work: list[tuple[Worker[Any], threading.Thread]] = []

    @contextmanager
    def working(self, worker: Worker[Any]) -> Iterator[Callable[[], bool]]:
        """Run a worker; gives what tells whether it still runs. What has ended it, if anything, is raised."""
        failed: list[Exception] = []

        def run() -> None:
            try:
                worker.run()
            except Exception as error:  # noqa: BLE001  # raised again, where somebody sees it
                failed.append(error)

        thread = threading.Thread(target=run, name="streamq-bench-worker", daemon=True)
        with put_off():
            self._at_work.append((worker, thread))
            thread.start()
        try:
            yield thread.is_alive
        finally:
            self.dismiss()
        if failed:
            raise failed[0]

    def dismiss(self) -> None:
        """Stop all workers, and wait until they have ended; not for ever, if the server is silent."""
        with put_off():
            while self._at_work:
                worker, thread = self._at_work.pop()
                worker.stop()
                thread.join(PATIENCE_S)


def _until(deadline: float, payloads: Iterator[Payload]) -> Iterator[Payload]:
    """The first payload, and others while there is time."""
    for number, payload in enumerate(payloads):
        if number and time.perf_counter() >= deadline:
            return
        yield payload
