"""Threads for ``def`` handlers."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from typing import Any, NamedTuple, TypeAlias

import msgspec

SPREAD_S = 0.002
"""How long calls wait behind each other before more threads join in."""

SHORT = 2
"""Calls that a thread makes in that time, on the average, where more threads would not help."""

_log = logging.getLogger("streamq.worker")


class NoThreadError(Exception):
    """All threads are busy and the system gives no other, so nothing was called."""


class _Wake(Enum):
    """What a thread that rests is told."""

    WORK = auto()
    END = auto()


Landed: TypeAlias = Callable[[Any, BaseException | None], None]
"""Called in the event loop with what a call returned, and what it raised."""


class ThreadCall(NamedTuple):
    """A call in a thread that somebody awaits.

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

    def _land(self, value: Any, error: BaseException | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)
        if not self.answer.done():  # else cancelled meanwhile: nobody waits any more
            self.answer.set_result((value, error))


class Threads:
    """A pool of daemon threads. Unlike an executor's they do not hold up the interpreter's exit when a handler hangs.

    Any number of dispatchers may share it. Calls beyond the limit wait for a thread, so callers keep count of theirs.

    Calls that come together are given to a few threads, at first to one, which make one after the other: most handlers are
    so short that a thread each would only hand the interpreter's lock to and fro. While a call waits for longer, twice as
    many threads join in every `SPREAD_S`, and what has ended meanwhile is brought back. Where calls last, later ones begin at
    once, each in a thread of its own; where they are short again, fewer threads are sent.

    Args:
        limit: Most threads. One is started when it is needed, and stays.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._work: deque[_Work] = deque()
        self._wakes: queue.SimpleQueue[_Wake] = queue.SimpleQueue()
        """Each is for one thread."""
        self._started = 0
        self._width = 1
        """So many threads are sent to calls that come together."""
        self._looks = 0
        """How often it was looked whether work waits."""
        self._landing: _Landing | None = None

    def call(self, function: Callable[..., Any], *arguments: Any) -> ThreadCall:
        """Call `function` in a thread, for somebody who awaits it; see `begin`."""
        loop = asyncio.get_running_loop()
        call = ThreadCall(loop.create_future(), loop.create_future())
        self.begin(contextvars.copy_context(), call._land, function, *arguments)  # noqa: SLF001  # its other half
        return call

    def begin(
        self, context: contextvars.Context, landed: Landed, function: Callable[..., Any], *arguments: Any
    ) -> None:
        """Call `function` in a thread, with the variables of `context`. For the event loop's thread only.

        Args:
            context: One that nothing else runs in.
            landed: Called in the event loop when the thread is through; with a `NoThreadError` if `function` was not
                called, since all threads are busy and the system gives no other.
            function: What to call.
            *arguments: What with.
        """
        loop = asyncio.get_running_loop()
        if self._landing is None or self._landing.loop is not loop:
            self._landing = _Landing(loop)
        landing = self._landing
        landing.under_way += 1
        looks = self._looks if landing.is_looked_after else self._looks - 1  # the next look is not too soon for it
        self._work.append(_Work(looks, landing, landed, context, function, arguments))
        if len(self._work) <= self._width:  # whoever is at work may be so for long
            self._send(landing)
        if not landing.is_looked_after:
            landing.is_looked_after = True
            loop.call_later(SPREAD_S, self._spread, landing)

    def _spread(self, landing: _Landing) -> None:
        """Bring back what has ended, send more threads to work that waits since the last look, and look again soon."""
        landing.is_looked_after = False  # first: what ends from here on wakes the loop by itself
        if landing.land() > SHORT * self._width:
            self._width = max(self._width // 2, 1)
        try:
            first = self._work[0]
        except IndexError:
            return
        if landing.is_looked_after:
            return
        landing.is_looked_after = True
        self._looks += 1
        if first.looks < self._looks - 1:
            self._width = min(self._width * 2, self._limit)
            self._send(landing)
        landing.loop.call_later(SPREAD_S, self._spread, landing)

    def _send(self, landing: _Landing) -> None:
        """Send threads to the work that waits, new ones if those that there are have something to do."""
        waiting = len(self._work)
        idle = self._started - (landing.under_way - waiting - landing.ended)
        threads = min(self._width, waiting)
        for _ in range(threads - self._wakes.qsize()):
            self._wakes.put(_Wake.WORK)
        try:
            for _ in range(min(threads - idle, self._limit - self._started)):
                self._start_one()
        except RuntimeError as error:  # "can't start new thread": the system's limit
            if idle <= 0:
                self._refuse(NoThreadError(str(error)))

    def _refuse(self, error: NoThreadError) -> None:
        """Nobody has time for what waits."""
        with contextlib.suppress(IndexError):  # a thread has come free, and takes it
            while True:
                work = self._work.popleft()
                work.landing.put(work.landed, None, error, is_last=True)

    def _start_one(self) -> None:
        threading.Thread(target=self._serve, name=f"streamq-handler-{self._started + 1}", daemon=True).start()
        self._started += 1

    def close(self) -> None:
        """Let the threads end, each after its call. Does not wait."""
        for _ in range(self._started):
            self._wakes.put(_Wake.END)

    def _serve(self) -> None:
        while self._wakes.get() is _Wake.WORK:
            while self._work_on():
                pass

    def _work_on(self) -> bool:
        """Make the next call; False if there is none. In a function of its own, so that an idle thread keeps no job alive."""
        try:
            work = self._work.popleft()
        except IndexError:
            return False
        try:
            value = work.context.run(work.function, *work.arguments)
        except BaseException as error:  # noqa: BLE001  # handed to whoever waits
            work.landing.put(work.landed, None, error, is_last=not self._work)
        else:
            work.landing.put(work.landed, value, None, is_last=not self._work)
        return True


class _Landing:
    """Brings ended calls back into their event loop: those that end together wake it once, not once each.

    A thread that goes on with the next call need not wake the loop if that is going to look by itself: each wake would take
    the interpreter's lock from it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.under_way = 0
        """Calls that have not ended, as far as the event loop knows."""
        self.is_looked_after = False
        """Whether the loop looks within `SPREAD_S` what has ended."""
        self._ended: deque[tuple[Landed, Any, BaseException | None]] = deque()
        self._waking = False

    @property
    def ended(self) -> int:
        """Calls that have ended, as the event loop does not know yet."""
        return len(self._ended)

    def put(self, landed: Landed, value: Any, error: BaseException | None, *, is_last: bool) -> None:
        """Called in the thread."""
        self._ended.append((landed, value, error))
        # Whoever looks takes the mark away before it does, so it finds this call too.
        if self._waking or (self.is_looked_after and not is_last):
            return
        self._waking = True
        try:
            self.loop.call_soon_threadsafe(self.land)
        except RuntimeError:
            self._waking = False
            _log.warning("a handler ended after its worker had stopped; its job will be run again")

    def land(self) -> int:
        """Tell what has ended; how many have."""
        self._waking = False
        count = 0
        while self._ended:
            count += 1
            landed, value, error = self._ended.popleft()
            self.under_way -= 1
            try:
                landed(value, error)
            except Exception:  # noqa: BLE001  # by a mistake of ours: the others must come back all the same
                _log.exception("the end of a handler's call was not understood")
        return count


class _Work(msgspec.Struct, gc=False, eq=False):
    """A call that waits for a thread."""

    looks: int
    """How often it had been looked whether work waits when this came."""
    landing: _Landing
    landed: Landed
    context: contextvars.Context
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
