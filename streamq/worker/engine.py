"""The worker as its users see it: what it runs, when it starts and stops, how it is."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import secrets
import signal
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, overload

import streamq
from streamq._ops import read as reading
from streamq.backoff import to_ms
from streamq.errors import ConfigurationError
from streamq.keys import is_whole
from streamq.stream import Stream
from streamq.stream_async import AsyncStream
from streamq.worker import log
from streamq.worker.dispatch import BatchHandler, Dispatcher, Handler, Verdict
from streamq.worker.feed import Source
from streamq.worker.health import Health, HealthServer, State, Watch, address_of
from streamq.worker.hooks import HookList, Hooks
from streamq.worker.journal import Journal
from streamq.worker.lane import Line
from streamq.worker.middleware import Middleware
from streamq.worker.runner import Runner
from streamq.worker.threads import Threads

T = TypeVar("T")
U = TypeVar("U")

MAX_CONCURRENCY = 1_000
MAX_BATCH = 1_000
MAX_PREFETCH = 10_000
MAX_STREAMS = 64

_log = logging.getLogger("streamq.worker")


class Worker(Generic[T]):
    """Runs a handler for every job of a stream until it is stopped.

    What a handler does decides what becomes of its job: returning commits it with its effects (the value is kept as its
    result if it is not None), raising `Reject` dead-letters it, `Release` gives it back uncharged, and raising anything else
    retries it, unless `errors` says otherwise.

    A worker runs once. It makes connections and threads of its own when it starts, so it may be made before a fork.

    Args:
        stream: The stream; its settings are used, for connections of the worker's own.
        handler: ``handler(payload)`` or ``handler(payload, job)``; with `batch` ``handler(jobs)``. An ``async def`` runs in
            the event loop, a ``def`` in a thread.
        concurrency: Most handlers at once, 1 to 1,000, over all streams. Nothing is read that cannot start soon.
        prefetch: Jobs that may wait in this process for a free handler, up to 10,000. 0 suits all but very short jobs: what
            waits here runs nowhere else. With very short ones, about `concurrency` lets the next come while these run. One
            that waits longer than the lease (at most 30 s) is given back.
        batch: Jobs of one call at most, up to 1,000, for a handler that takes a list of jobs. It returns None when all are
            done, or a list with the result of each, or an exception in place of a result.
        batch_wait: Seconds that a call waits for a full batch, from its first job on; at most the lease.
        timeout: Seconds that one call may take; none by default. A call that takes longer is an attempt that failed. An
            ``async def`` is cancelled. A thread cannot be: it is told by `Job.timed_out`, and keeps its place until it ends.
        weight: Share of this stream, where `add_stream` adds others.
        middlewares: Around each call, the first one outermost: ``m(job, call)`` calls ``call()``.
        errors: Exception class -> ``"retry"`` (what all others get), ``"reject"`` or ``"release"``; the most specific counts.
        hooks: Told what happens; see `Hooks`.
        drain: Seconds that running handlers get to end when the worker stops. A coroutine is then cancelled and its job
            released, a thread is left to its lease.
        block: Longest wait of one read in seconds, at most 4. An idle worker sends a read so often; a stop ends the wait.
        health: Serve `health` by HTTP: a port of 127.0.0.1, or ``"host:port"``. 200 while healthy, else 503.

    Raises:
        ConfigurationError: An argument is not valid.
    """

    @overload
    def __init__(
        self,
        stream: Stream[T] | AsyncStream[T],
        handler: Handler[T],
        *,
        concurrency: int = ...,
        prefetch: int = ...,
        batch: None = None,
        batch_wait: float | timedelta = ...,
        timeout: float | timedelta | None = ...,
        weight: float = ...,
        middlewares: Sequence[Middleware] = ...,
        errors: Mapping[type[BaseException], Verdict] | None = ...,
        hooks: Sequence[Hooks] = ...,
        drain: float | timedelta = ...,
        block: float | timedelta = ...,
        health: int | str | None = ...,
    ) -> None: ...

    @overload
    def __init__(
        self,
        stream: Stream[T] | AsyncStream[T],
        handler: BatchHandler[T],
        *,
        concurrency: int = ...,
        prefetch: int = ...,
        batch: int,
        batch_wait: float | timedelta = ...,
        timeout: float | timedelta | None = ...,
        weight: float = ...,
        middlewares: Sequence[Middleware] = ...,
        errors: Mapping[type[BaseException], Verdict] | None = ...,
        hooks: Sequence[Hooks] = ...,
        drain: float | timedelta = ...,
        block: float | timedelta = ...,
        health: int | str | None = ...,
    ) -> None: ...

    def __init__(
        self,
        stream: Stream[T] | AsyncStream[T],
        handler: Handler[T] | BatchHandler[T],
        *,
        concurrency: int = 10,
        prefetch: int = 0,
        batch: int | None = None,
        batch_wait: float | timedelta = 0.0,
        timeout: float | timedelta | None = None,
        weight: float = 1.0,
        middlewares: Sequence[Middleware] = (),
        errors: Mapping[type[BaseException], Verdict] | None = None,
        hooks: Sequence[Hooks] = (),
        drain: float | timedelta = 25.0,
        block: float | timedelta = 4.0,
        health: int | str | None = None,
    ) -> None:
        self._concurrency = _whole("concurrency", concurrency, 1, MAX_CONCURRENCY)
        self._prefetch = _whole("prefetch", prefetch, 0, MAX_PREFETCH)
        self._drain_s = to_ms(drain, "drain") / 1000
        self._block_ms = to_ms(block, "block", least_ms=10, most_ms=reading.BLOCK_SLICE_MS)
        self._hooks = HookList(hooks)
        self._health_address = None if health is None else address_of(health, "health")
        self._threads = Threads(self._concurrency)
        self._sources: list[Source] = []
        self._watch = Watch()
        self._lock = threading.Lock()
        self._begun = False
        self._stop_asked = False
        self._signals = 0
        self._state: State = "new"
        self._runner: Runner | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._journal: Journal | None = None
        self._is_solo = False
        self._leaves_last = False
        self._poked = False
        self.consumer = consumer_name()
        self._named_in = os.getpid()
        add: Any = self.add_stream  # whose overloads, as those above, know no union of handlers
        add(
            stream, handler, batch=batch, batch_wait=batch_wait, timeout=timeout, weight=weight,
            middlewares=middlewares, errors=errors,
        )  # fmt: skip

    @overload
    def add_stream(
        self,
        stream: Stream[U] | AsyncStream[U],
        handler: Handler[U],
        *,
        batch: None = None,
        batch_wait: float | timedelta = ...,
        timeout: float | timedelta | None = ...,
        weight: float = ...,
        middlewares: Sequence[Middleware] = ...,
        errors: Mapping[type[BaseException], Verdict] | None = ...,
    ) -> None: ...

    @overload
    def add_stream(
        self,
        stream: Stream[U] | AsyncStream[U],
        handler: BatchHandler[U],
        *,
        batch: int,
        batch_wait: float | timedelta = ...,
        timeout: float | timedelta | None = ...,
        weight: float = ...,
        middlewares: Sequence[Middleware] = ...,
        errors: Mapping[type[BaseException], Verdict] | None = ...,
    ) -> None: ...

    def add_stream(
        self,
        stream: Stream[U] | AsyncStream[U],
        handler: Handler[U] | BatchHandler[U],
        *,
        batch: int | None = None,
        batch_wait: float | timedelta = 0.0,
        timeout: float | timedelta | None = None,
        weight: float = 1.0,
        middlewares: Sequence[Middleware] = (),
        errors: Mapping[type[BaseException], Verdict] | None = None,
    ) -> None:
        """Work on another stream too, before the worker runs. All share `concurrency`; the arguments are as of `Worker`.

        While several have jobs, each starts its share by `weight`; what one does not need, the others get.

        Raises:
            ConfigurationError: An argument is not valid, the stream is there already, or the worker runs.
        """
        if self._begun:
            raise ConfigurationError("a worker takes no further stream once it runs")
        if len(self._sources) >= MAX_STREAMS:
            raise ConfigurationError(f"a worker takes {MAX_STREAMS} streams at most")
        spec, settings = stream._spec, stream._settings  # noqa: SLF001  # a worker is part of the stream's own package
        group = spec.options.group
        if any(
            (s.spec.keys.stream, s.spec.options.group, s.settings) == (spec.keys.stream, group, settings)
            for s in self._sources
        ):
            raise ConfigurationError(f"group {group} of stream {spec.keys.name} is in this worker already")
        if isinstance(weight, bool) or not 0 < weight < float("inf"):
            raise ConfigurationError(f"weight must be above 0, not {weight!r}")
        dispatcher: Dispatcher[U] = Dispatcher(
            handler,
            self._threads,
            batch=batch is not None,
            timeout_s=None if timeout is None else to_ms(timeout, "timeout", least_ms=1) / 1000,
            middlewares=middlewares,
            errors=errors or {},
            stream=spec.keys.name,
        )
        line = Line(
            batch=1 if batch is None else _whole("batch", batch, 1, MAX_BATCH),
            batch_wait_s=to_ms(batch_wait, "batch_wait", most_ms=spec.options.lease_ms) / 1000,
            weight=weight,
        )
        self._sources.append(Source(spec, settings, dispatcher, line))

    # Running

    def run(self) -> None:
        """Run until SIGTERM or SIGINT (in the main thread), or `stop`. A second signal ends it at once.

        When this returns, every job is settled, released, or comes back by its lease.

        Raises:
            ConfigurationError: A stream cannot be used: wrong type of key, no permission, server too old.
        """
        try:
            asyncio.run(self._run_with_signals())
        except asyncio.CancelledError:
            return  # by a second signal

    async def run_async(self) -> None:
        """Run in the current event loop until `stop`; see `run`. Handles no signals."""
        with self._lock:
            if self._begun:
                raise ConfigurationError("this worker has run already; make another one")
            self._begun = True
            if self._named_in != os.getpid():  # a copy, by a fork: a fence that names the consumer must tell them apart
                self.consumer = consumer_name()
            self._loop = asyncio.get_running_loop()
        self._state = "starting"
        server = None if self._health_address is None else HealthServer(*self._health_address, self.health)
        try:
            if server is not None:
                server.start()
            self._runner = self._make_runner()
            if self._stop_asked:
                self._runner.stopping.set()
            if self._poked:
                self._runner.poke()
            log.event(_log, logging.INFO, "worker begins", consumer=self.consumer, streams=",".join(self._names))
            await self._runner.run()
        finally:
            self._state = "stopped"
            self._threads.close()
            if server is not None:
                server.close()
            log.event(_log, logging.INFO, "worker has stopped", consumer=self.consumer)

    def stop(self) -> None:
        """Stop reading, let running handlers end, then return from `run`. May be called from any thread, more than once."""
        with self._lock:
            self._stop_asked = True
            loop = self._loop
        if loop is not None and not loop.is_closed():
            with contextlib.suppress(RuntimeError):  # closed just now: it has ended
                loop.call_soon_threadsafe(self._stop_now)

    def _stop_now(self) -> None:
        if self._runner is not None:
            self._runner.stopping.set()

    async def __aenter__(self) -> Self:
        """Run in the background of this event loop, as web frameworks want it; returns once the streams are open.

        Raises:
            ConfigurationError: As of `run`.
        """
        self._task = asyncio.create_task(self.run_async(), name="streamq-worker")
        try:
            while not self._task.done() and not (self._runner is not None and self._runner.is_open):
                await asyncio.wait([self._task], timeout=0.01)
        except asyncio.CancelledError:
            self._task.cancel()  # else it would go on with nobody to stop it
            await asyncio.wait([self._task])
            raise
        if self._task.done():
            await self._task
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop in good order, and raise what ended the worker if something did."""
        self.stop()
        if self._task is not None:
            await self._task

    async def _run_with_signals(self) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  # asyncio.run made one
        if threading.current_thread() is not threading.main_thread():
            await self.run_async()
            return
        loop = asyncio.get_running_loop()
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        for number in before:
            loop.add_signal_handler(number, self._on_signal, task)
        try:
            await self.run_async()
        finally:
            for number, handler in before.items():
                loop.remove_signal_handler(number)
                if handler is not None:  # else it was not set from Python, and cannot be set again
                    signal.signal(number, handler)

    def _on_signal(self, task: asyncio.Task[Any]) -> None:
        self._signals += 1
        if self._signals > 1:
            _log.warning("second signal: stopping at once; what runs comes back by its lease")
            task.cancel()
        else:
            _log.info("signal received: stopping")
            self.stop()

    # How it is

    def health(self) -> Health:
        """How the worker is, now. Sends nothing; may be called from any thread.

        Unhealthy is a worker that could not read ten times in a row, whose event loop does not answer, or whose handlers all
        run past their timeouts.
        """
        runner, state = self._runner, self._state
        problems = self._watch.problems + ([] if runner is None else runner.problems())
        if runner is not None and state == "starting" and runner.is_open:
            state = runner.state
        return Health(
            healthy=not problems,
            state=state,
            problems=problems,
            consumer=self.consumer,
            streams=self._names,
            running=0 if runner is None else runner.lane.running,
            waiting=0 if runner is None else runner.lane.waiting,
            stuck=0 if runner is None else runner.starter.stuck,
            failures=self._watch.failures,
        )

    # For a supervisor

    def _attach(self, *, consumer: str, journal: Journal | None, solo: bool, leaves_last: bool) -> None:
        """Be a supervisor's child: under this name, with a journal, and with or without a solo child beside."""
        self.consumer = consumer
        self._named_in = os.getpid()
        self._journal = journal
        self._is_solo = solo
        self._leaves_last = leaves_last
        if solo:
            self._concurrency, self._prefetch = 1, 0

    def poke(self) -> None:
        """Look for jobs to take over at once, not at the next tick. May be called from any thread."""
        loop, runner = self._loop, self._runner
        self._poked = True  # a worker that begins looks at once, then
        if loop is not None and runner is not None and not loop.is_closed():
            with contextlib.suppress(RuntimeError):  # closed just now: it has ended
                loop.call_soon_threadsafe(runner.poke)

    # Small things

    @property
    def _names(self) -> list[str]:
        return [source.spec.keys.name for source in self._sources]

    def _make_runner(self) -> Runner:
        about = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "version": streamq.__version__,
            "started_at": round(time.time() * 1000),
            "concurrency": self._concurrency,
        }
        return Runner(
            self._sources,
            consumer=self.consumer,
            slots=self._concurrency,
            prefetch=self._prefetch,
            block_ms=self._block_ms,
            drain_s=self._drain_s,
            hooks=self._hooks,
            watch=self._watch,
            journal=self._journal,
            is_solo=self._is_solo,
            leaves_last=self._leaves_last,
            about=about,
        )


def _whole(name: str, value: int, least: int, most: int) -> int:
    if not is_whole(value, least, most):
        raise ConfigurationError(f"{name} must be from {least} to {most:,}, not {value!r}")
    return value


def consumer_name(*parts: int) -> str:
    """A name that no other process start has: host, process ID, `parts`, and a random one."""
    host = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:80]
    return "-".join([host, str(os.getpid()), *map(str, parts), secrets.token_hex(4)])
