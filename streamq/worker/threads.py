"""Threads for ``def`` handlers."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from typing import Any, NamedTuple

SPREAD_S = 0.002
"""How long calls wait behind each other before more threads join in."""

_log = logging.getLogger("streamq.worker")


class NoThreadError(Exception):
    """The system gives no thread, so nothing was called."""


class _Wake(Enum):
    """What a thread that rests is told."""

    WORK = auto()
    END = auto()


class ThreadCall(NamedTuple):
    """A call in a thread.

    Attributes:
        answer: What it returned and what it raised: never raised by the future itself, which cannot carry every exception.
            Cancelling it stops the waiting, not the thread.
        ended: Done when the thread is through with it, whatever became of `answer`.
    """

    answer: asyncio.Future[tuple[Any, BaseException | None]]
    ended: asyncio.Future[None]

    async def value(self) -> Any:
        """What it returns; raises what it raises."""
        value, error = await self.answer
        if error is not None:
            raise error
        return value


class Threads:
    """A pool of daemon threads. Unlike an executor's they do not hold up the interpreter's exit when a handler hangs.

    Any number of dispatchers may share it. Calls beyond the limit wait for a thread, so callers keep count of theirs.

    Calls that come together are given to one thread, which makes one after the other: most handlers are so short that a
    thread each would only hand the interpreter's lock to and fro. While calls wait for longer, twice as many threads join
    in every `SPREAD_S`.

    Args:
        limit: Most threads. One is started when it is needed, and stays.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._work: deque[Callable[[], None]] = deque()
        self._wakes: queue.SimpleQueue[_Wake] = queue.SimpleQueue()
        """Each is for one thread."""
        self._started = 0
        self._landing: _Landing | None = None
        self._is_spreading = False

    def call(self, function: Callable[..., Any], *arguments: Any) -> ThreadCall:
        """Call `function` in a thread, with the context variables as they are now. For the event loop's thread only.

        Raises:
            NoThreadError: None is idle, and none could be started.
        """
        loop = asyncio.get_running_loop()
        if self._landing is None or self._landing.loop is not loop:
            self._landing = _Landing(loop)
            self._is_spreading = False
        landing = self._landing
        call = ThreadCall(loop.create_future(), loop.create_future())
        context = contextvars.copy_context()

        def work() -> None:
            try:
                value = context.run(function, *arguments)
            except BaseException as error:  # noqa: BLE001  # handed to whoever awaits
                landing.put(call, None, error)
            else:
                landing.put(call, value, None)

        if landing.under_way >= self._started < self._limit:
            self._start_one()
        landing.under_way += 1
        is_first = not self._work
        self._work.append(work)
        if is_first:  # whoever is at work may be so for long
            self._wakes.put(_Wake.WORK)
        if not self._is_spreading:
            self._is_spreading = True
            loop.call_later(SPREAD_S, self._spread, loop, 2)
        return call

    def _spread(self, loop: asyncio.AbstractEventLoop, threads: int) -> None:
        """Send so many threads to the work that waits, if any does, and look again soon."""
        waiting = len(self._work)
        if not waiting:
            self._is_spreading = False
            return
        for _ in range(min(threads, waiting) - self._wakes.qsize()):
            self._wakes.put(_Wake.WORK)
        loop.call_later(SPREAD_S, self._spread, loop, 2 * threads)

    def _start_one(self) -> None:
        name = f"streamq-handler-{self._started + 1}"
        try:
            threading.Thread(target=self._serve, name=name, daemon=True).start()
        except RuntimeError as error:  # "can't start new thread": the system's limit
            raise NoThreadError(str(error)) from error
        self._started += 1

    def close(self) -> None:
        """Let the threads end, each after its call. Does not wait."""
        for _ in range(self._started):
            self._wakes.put(_Wake.END)

    def _serve(self) -> None:
        while self._wakes.get() is _Wake.WORK:
            while True:
                try:
                    work = self._work.popleft()
                except IndexError:
                    break
                work()
                del work  # an idle thread keeps no job alive


class _Landing:
    """Brings ended calls back into their event loop: those that end together wake it once, not once each."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.under_way = 0
        """Calls that have not ended, as far as the event loop knows."""
        self._ended: deque[tuple[ThreadCall, Any, BaseException | None]] = deque()
        self._waking = False

    def put(self, call: ThreadCall, value: Any, error: BaseException | None) -> None:
        """Called in the thread."""
        self._ended.append((call, value, error))
        if self._waking:
            return  # what is under way clears the mark before it looks, so it finds this call too
        self._waking = True
        try:
            self.loop.call_soon_threadsafe(self._land)
        except RuntimeError:
            self._waking = False
            _log.warning("a handler ended after its worker had stopped; its job will be run again")

    def _land(self) -> None:
        self._waking = False
        while self._ended:
            call, value, error = self._ended.popleft()
            self.under_way -= 1
            if not call.ended.done():
                call.ended.set_result(None)
            if not call.answer.done():  # else cancelled meanwhile: nobody waits any more
                call.answer.set_result((value, error))
