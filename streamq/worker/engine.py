"""The worker's loop: what is read, what is reclaimed, what runs alone, and how it ends.

A reclaimed job that was started before may be what killed its process. So it runs alone: nothing is read while such
*suspects* are held, and one starts only when nothing else runs and all outcomes are settled. Its start is counted
immediately before its handler; waiting here costs it nothing. So no job pays for another's crash.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import re
import secrets
import signal
import socket
import threading
from collections import deque
from collections.abc import Awaitable
from datetime import timedelta
from typing import Any, Generic, TypeVar

from streamq._flows import intake, opening
from streamq._ops import lease, settle
from streamq._ops import read as reading
from streamq._scripts import Fence, Held
from streamq.backoff import to_ms
from streamq.errors import ConfigurationError, ConnectionLostError, ServerError, StreamqError
from streamq.messages import Job
from streamq.stream import Stream
from streamq.stream_async import AsyncStream
from streamq.worker import maintenance
from streamq.worker.dispatch import Dispatcher, Handler, Outcome
from streamq.worker.heartbeat import Heartbeat
from streamq.worker.settle import RETRY_PAUSE, Settler
from streamq.worker.threads import Threads

T = TypeVar("T")
R = TypeVar("R")

SUSPECTS = 8
"""Most suspects held at once. They run one by one, so more of them would wait here while other workers could run them."""

ALONE_S = 30.0
"""Longest time that other suspects wait here for one that runs alone, if the lease is not shorter."""

MAX_CONCURRENCY = 1_000

_log = logging.getLogger("streamq.worker")


class Worker(Generic[T]):
    """Runs a handler for every job of a stream until it is stopped.

    What a handler does decides what becomes of its job: returning commits it with its effects (the value is kept as its
    result if it is not None), raising `Reject` dead-letters it, raising anything else retries it.

    Args:
        stream: The stream; its settings are used, for connections of the worker's own.
        handler: ``handler(payload)`` or ``handler(payload, job)``. An ``async def`` runs in the event loop, a ``def`` in
            a thread.
        concurrency: Most handlers at once, 1 to 1,000. Nothing is read that cannot start at once.
        drain: Seconds that running handlers get to end when the worker stops. What is left then comes back by its lease.
        block: Longest wait of one read in seconds, at most 4; also bounds how long `stop` takes to be noticed.

    Raises:
        ConfigurationError: An argument is not valid.
    """

    def __init__(
        self,
        stream: Stream[T] | AsyncStream[T],
        handler: Handler[T],
        *,
        concurrency: int = 10,
        drain: float | timedelta = 25.0,
        block: float | timedelta = 1.0,
    ) -> None:
        if isinstance(concurrency, bool) or not 1 <= concurrency <= MAX_CONCURRENCY:
            raise ConfigurationError(f"concurrency must be from 1 to {MAX_CONCURRENCY:,}, not {concurrency!r}")
        self._spec = stream._spec  # noqa: SLF001  # a worker is part of the stream's own package
        self._settings = stream._settings  # noqa: SLF001
        self._concurrency = concurrency
        self._drain_s = to_ms(drain, "drain") / 1000
        self._block_ms = to_ms(block, "block", least_ms=10, most_ms=reading.BLOCK_SLICE_MS)
        self._threads = Threads(concurrency)
        self._dispatcher = Dispatcher(handler, self._threads)
        self.consumer = _consumer_name()
        self._stopping = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._held: dict[str, Job[T]] = {}
        self._starting: set[str] = set()
        self._running: dict[str, asyncio.Task[None]] = {}
        self._suspects: deque[Job[T]] = deque()
        self._released: deque[Job[T]] = deque()
        self._recovered: deque[Job[T]] = deque()
        self._slot_free = asyncio.Event()
        self._next_tick = 0.0
        self._page_cut_short = False
        self._lost_reclaim = False
        self._paused = False

    def run(self) -> None:
        """Run until SIGTERM or SIGINT (in the main thread), or `stop`. A second signal ends it at once.

        When this returns, every job is settled, released, or comes back by its lease.

        Raises:
            ConfigurationError: The stream cannot be used: wrong type of key, no permission, server too old.
        """
        try:
            asyncio.run(self._run_with_signals())
        except asyncio.CancelledError:
            return  # by a second signal

    def stop(self) -> None:
        """Stop reading, let running handlers end, then return from `run`. May be called from any thread, more than once."""
        loop = self._loop
        if loop is None:
            self._stopping.set()
        elif not loop.is_closed():
            loop.call_soon_threadsafe(self._stopping.set)

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
                signal.signal(number, handler)

    async def _end_heartbeat(self, beat: Heartbeat) -> None:
        beat.stop()
        deadline = self._now() + 1.0
        while beat.is_running and self._now() < deadline:  # noqa: ASYNC110  # of a thread
            await asyncio.sleep(0.005)  # a beat under way may wait for the server; it ends by itself

    def _on_signal(self, task: asyncio.Task[Any]) -> None:
        if self._stopping.is_set():
            _log.warning("second signal: stopping at once; what runs comes back by its lease")
            task.cancel()
        else:
            _log.info("signal received: stopping")
            self._stopping.set()

    async def run_async(self) -> None:
        """Run in the current event loop until `stop`; see `run`. Handles no signals. A worker runs once."""
        if self._loop is not None:
            raise ConfigurationError("this worker has run already; make another one")
        self._loop = asyncio.get_running_loop()
        main = self._settings.asynchronous()
        beat = Heartbeat(
            self._spec, self.consumer, self._settings.blocking(), held=self._renewable, lost=self._found_lost
        )
        self._driver = main
        self._settler = Settler(self._spec, self.consumer, main, self._on_settled)
        settling = asyncio.create_task(self._settler.run(), name="streamq-settle")
        try:
            await self._until_reached(opening.reader)
            beat.start()
            _log.info("worker %s reads stream %s", self.consumer, self._spec.keys.name)
            try:
                await _first_of(self._consume(), settling)
                await _first_of(self._finish(), settling)
            finally:
                await self._end_heartbeat(beat)
        finally:
            left = [settling, *self._running.values()]
            for task in left:
                task.cancel()
            await asyncio.wait(left, timeout=1.0)  # a handler that ignores its cancel does not hold up the end
            self._threads.close()
            await main.aclose()
            _log.info("worker %s has stopped", self.consumer)

    # What comes in

    async def _consume(self) -> None:
        failures = 0
        lost_reply = False
        while not self._stopping.is_set():
            try:
                if lost_reply:
                    await self._recover()
                    lost_reply = False
                await self._step()
                failures = 0
            except ConfigurationError as error:
                # The key's type or a permission changed under us: not worth more than a try a second.
                lost_reply = True
                _log.error("stream %s cannot be read: %s", self._spec.keys.name, error)  # says it all
                await self._pause(1.0)
            except StreamqError as error:
                failures += 1
                lost_reply = True
                _log.warning("stream %s cannot be read (%d in a row): %s", self._spec.keys.name, failures, error)
                await self._pause(RETRY_PAUSE.delay_ms(failures, random.random()) / 1000)  # noqa: S311  # jitter

    async def _step(self) -> None:
        free = self._free()
        if free <= 0:
            self._slot_free.clear()
            await self._or_stop(self._slot_free.wait())
        elif self._now() >= self._next_tick:
            await self._tick(free)
        elif self._paused:
            await self._give_back()
            await self._pause(self._next_tick - self._now())
        elif self._recovered:
            self._take(self._recovered.popleft())
        elif self._released:
            await self._start(self._released.popleft())
        elif self._suspects:
            await self._run_alone(self._suspects.popleft())
        elif self._page_cut_short:
            await self._reclaim(free)
        else:
            wait_ms = min(self._block_ms, max(round((self._next_tick - self._now()) * 1000), 1))
            for job in await self._driver.run(intake.read(self._spec, self.consumer, count=free, block_ms=wait_ms)):
                self._take(job)

    def _free(self) -> int:
        """Handlers that may start now. Outcomes that wait to be settled hold up reading before they pile up."""
        waiting = len(self._recovered) + len(self._released) + len(self._suspects)
        unsettled = len(self._held) - waiting - len(self._running)
        return self._concurrency - len(self._running) - max(unsettled - self._concurrency, 0)

    async def _recover(self) -> None:
        """Take up what a request without reply left with us.

        A read has charged its jobs one delivery, so they only need a slot. What a reclaim claimed is not charged yet, and
        a job with more deliveries can only come from a reclaim.
        """
        while True:
            jobs = await self._driver.run(intake.recover(self._spec, self.consumer, frozenset(self._held)))
            for job in jobs:
                self._held[job.entry_id] = job
                if self._lost_reclaim or job.deliveries != 1:
                    self._unstarted(job)
                else:
                    self._recovered.append(job)
            if not jobs:
                self._lost_reclaim = False
                return

    def _unstarted(self, job: Job[T]) -> None:
        """Keep a reclaimed job until it may start. Given back before it was ever started, it is no suspect."""
        (self._suspects if job.deliveries else self._released).append(job)

    async def _tick(self, free: int) -> None:
        """Learn whether the stream is paused, and do the maintenance whose turn it is."""
        tick = maintenance.tick_ms(self._spec.options.lease_ms) / 1000
        self._next_tick = self._now() + tick * random.uniform(0.75, 1.25)  # noqa: S311  # fleets must not march in step
        holds = bool(self._recovered or self._released or self._suspects)
        found = await self._driver.run(maintenance.tick(self._spec, self.consumer, may_reclaim=not holds))
        if found.paused is not self._paused:
            self._paused = found.paused
            _log.info("stream %s is %s", self._spec.keys.name, "paused" if found.paused else "resumed")
        if not self._paused and any(role.startswith(maintenance.RECLAIM) for role in found.roles):
            await self._reclaim(free)
        try:
            await self._driver.run(maintenance.upkeep(self._spec, found.roles))
        except (ServerError, ConfigurationError) as error:
            _log.warning("stream %s: upkeep was refused, reading goes on: %s", self._spec.keys.name, error)

    async def _reclaim(self, free: int) -> None:
        count = min(free, SUSPECTS)
        self._page_cut_short = False
        try:
            answer = await self._driver.run(
                maintenance.reclaim(self._spec, self.consumer, count=count, exclude=list(self._held))
            )
        except StreamqError:
            self._lost_reclaim = True
            raise
        # There may be more: go on as soon as these have run.
        self._page_cut_short = answer.more
        for job in sorted(answer.claimed, key=lambda job: job.deliveries):  # the likeliest killer last
            self._held[job.entry_id] = job
            self._unstarted(job)

    async def _run_alone(self, job: Job[T]) -> None:
        while self._running and not self._stopping.is_set():
            self._slot_free.clear()
            await self._or_stop(self._slot_free.wait())
        await self._or_stop(self._settler.tried())
        if job.lease_lost:
            self._held.pop(job.entry_id, None)
            return
        if self._stopping.is_set() or self._now() >= self._next_tick:
            self._suspects.appendleft(job)  # it may have waited long: is the stream paused meanwhile?
            return
        task = await self._start(job)
        if task is None:
            return
        await self._or_stop(asyncio.wait([task], timeout=min(self._spec.options.lease_ms / 1000, ALONE_S)))
        if not task.done():
            await self._give_back()  # it may take long, or for ever: the others must not wait for it here
        await self._or_stop(asyncio.wait([task]))
        await self._or_stop(self._settler.tried())

    async def _start(self, job: Job[T]) -> asyncio.Task[None] | None:
        """Count the start of a reclaimed job, then run it; None if it is not ours any more."""
        if job.lease_lost:
            self._held.pop(job.entry_id, None)
            return None
        self._starting.add(job.entry_id)
        target = Held(job.entry_id, job.deliveries + 1)
        try:
            mine = await self._driver.run(lease.start(self._spec, self.consumer, target))
        except StreamqError:
            # It may have counted. It names its target, so it is simply asked again.
            (self._suspects if job.deliveries else self._released).appendleft(job)
            raise
        self._starting.discard(job.entry_id)
        if not mine:
            self._held.pop(job.entry_id, None)
            return None
        job.deliveries += 1
        return self._take(job)

    # What runs

    def _take(self, job: Job[T]) -> asyncio.Task[None]:
        self._held[job.entry_id] = job
        task = asyncio.create_task(self._work(job), name=f"streamq-job-{job.entry_id}")
        self._running[job.entry_id] = task
        return task

    async def _work(self, job: Job[T]) -> None:
        try:
            outcome = await self._dispatcher.run(job)
        finally:
            self._running.pop(job.entry_id, None)
            self._slot_free.set()
        if job.lease_lost:
            self._held.pop(job.entry_id, None)
            _log.warning("job %s (entry %s): lease lost; its outcome was dropped", job.id, job.entry_id)
        else:
            self._settler.put(outcome)

    def _on_settled(self, outcome: Outcome[T]) -> None:
        self._held.pop(outcome.job.entry_id, None)
        self._slot_free.set()

    # Leases; called in the heartbeat's thread

    def _renewable(self) -> list[Held]:
        return [
            Held(job.entry_id, job.deliveries)
            for job in list(self._held.values())
            if job.entry_id not in self._starting and not job.lease_lost
        ]

    def _found_lost(self, held: Held, fence: Fence) -> None:
        job = self._held.get(held.entry_id)
        # Settled or started while the beat was under way: what it saw is not what is.
        if job is None or job.deliveries != held.count or held.entry_id in self._starting or self._loop is None:
            return
        if fence is Fence.GONE and held.entry_id not in self._running:
            return  # being settled right now
        job.lease_lost = True
        _log.warning("job %s (entry %s): lease lost (%s)", job.id, job.entry_id, fence.name.lower())
        self._loop.call_soon_threadsafe(self._cancel, held.entry_id)

    def _cancel(self, entry_id: str) -> None:
        task = self._running.get(entry_id)
        if task is not None and self._dispatcher.is_async:
            task.cancel()  # a thread cannot be cancelled: it is told by `lease_lost`, and keeps its slot until it ends

    # The end

    async def _finish(self) -> None:
        """Give back what has not started, let the rest end, settle it: all of it within `drain`, and a second of grace."""
        deadline = self._now() + self._drain_s
        await self._give_back()
        if self._running:
            await asyncio.wait(list(self._running.values()), timeout=self._drain_s)
        if self._running and self._dispatcher.is_async:
            # Cancelled and released. A thread cannot be stopped, so its job is left to its lease: it may still be at work.
            for task in self._running.values():
                task.cancel()
            await asyncio.wait(list(self._running.values()), timeout=1.0)
        try:
            await asyncio.wait_for(self._settler.flushed(), timeout=max(deadline - self._now(), 1.0))
        except TimeoutError:
            _log.error("some outcomes could not be settled before the end; their jobs come back by their leases")

    async def _give_back(self) -> None:
        """Release what is held and not started: reclaimed jobs uncharged, lost reads with their charge taken back."""
        reclaimed = [*self._released, *self._suspects]
        for jobs, charged in ((reclaimed, False), (list(self._recovered), True)):
            ours = [job for job in jobs if not job.lease_lost]
            try:
                await self._driver.run(settle.release(self._spec, ours, charged=charged))
            except StreamqError as error:
                _log.warning("%d jobs were not released, their leases bring them back: %s", len(ours), error)
            for job in jobs:
                self._held.pop(job.entry_id, None)
        self._released.clear()
        self._suspects.clear()
        self._recovered.clear()

    # Small things

    async def _until_reached(self, plan: Any) -> None:
        failures = 0
        while True:
            try:
                await self._driver.run(plan(self._spec))
            except (ConnectionLostError, ServerError) as error:
                # Unreachable, or refusing for now (memory is full, no replicas, a failover): a worker outlasts both.
                failures += 1
                _log.warning("stream %s cannot be opened yet: %s", self._spec.keys.name, error)
                await self._pause(RETRY_PAUSE.delay_ms(failures, random.random()) / 1000)  # noqa: S311  # jitter
                if self._stopping.is_set():
                    return
            else:
                return

    async def _or_stop(self, wait: Awaitable[Any]) -> None:
        await _any_of(wait, self._stopping.wait())

    async def _pause(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except TimeoutError:
            return

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


async def _any_of(*waits: Awaitable[Any]) -> None:
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


async def _first_of(work: Awaitable[Any], background: asyncio.Task[None]) -> None:
    """Await `work`; if the background role ends first, which it never should, end loudly with its error."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait([task, background], return_when=asyncio.FIRST_COMPLETED)
        if background.done():
            await background
            raise RuntimeError("a background role of the worker ended by itself")
        await task
    finally:
        task.cancel()


def _consumer_name() -> str:
    host = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:80]
    return f"{host}-{os.getpid()}-{secrets.token_hex(4)}"
