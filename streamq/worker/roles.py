"""Background roles of a worker: one that fails by a mistake of ours begins again, or ends the worker loudly.

And how they wait: for what they are told, or for the next try.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from streamq.backoff import RECONNECT
from streamq.errors import ConfigurationError, MigrationError
from streamq.worker import log

FAILURES = 10
WITHIN_S = 60
"""A role that fails so often, each time within a minute, ends the worker."""

T = TypeVar("T")

_log = logging.getLogger("streamq.worker")


def begin(name: str, work: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
    """Do a role in the background, and do it again when it fails; the task fails if that does not help."""
    return asyncio.create_task(_keep_at(name, work), name=f"streamq-{name}")


async def _keep_at(name: str, work: Callable[[], Awaitable[None]]) -> None:
    failures = 0
    while True:
        began = asyncio.get_running_loop().time()
        try:
            await work()
        except (ConfigurationError, MigrationError):
            raise  # not a mistake of ours: the stream cannot be used
        except Exception:
            failures = failures + 1 if asyncio.get_running_loop().time() < began + WITHIN_S else 1
            _log.exception("role '%s' failed (%d in a row)", name, failures)
            if failures >= FAILURES:
                raise
            await asyncio.sleep(pause_s(failures))
        else:
            return


async def or_failure(work: Awaitable[Any], roles: Sequence[asyncio.Task[None]]) -> None:
    """Await `work`; if a role ends first, which it never should, end loudly with its error."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait([task, *roles], return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            await next(role for role in roles if role.done())
            raise RuntimeError("a background role of the worker ended by itself")
        await task
    finally:
        task.cancel()


def note_failures(roles: Sequence[asyncio.Task[None]]) -> None:
    """Log which of them failed, each in a line: together with the stop of the worker, which counts."""
    for role in roles:
        if role.done() and not role.cancelled() and (error := role.exception()) is not None:
            log.event(
                _log, logging.WARNING, "a role failed as the worker was stopped", role=role.get_name(), error=error
            )


def pause_s(failures: int) -> float:
    """Seconds before the next try, after so many failures in a row: `RECONNECT` with jitter."""
    return RECONNECT.delay_ms(failures, random.random()) / 1000  # noqa: S311  # fleets must not march in step


class Flag:
    """An `asyncio.Event` for which one can wait together with others: no task is needed for each of them.

    A worker waits some times per batch, and two tasks a wait are a good part of what a batch costs.
    """

    __slots__ = ("_is_set", "_waiting")

    def __init__(self) -> None:
        self._is_set = False
        self._waiting: set[asyncio.Future[bool]] = set()

    def is_set(self) -> bool:
        """Whether it is set."""
        return self._is_set

    def set(self) -> None:
        """Set it, and wake who waits."""
        self._is_set = True
        for future in self._waiting:
            if not future.done():
                future.set_result(True)

    def clear(self) -> None:
        """Take it back."""
        self._is_set = False

    async def wait(self) -> None:
        """Wait until it is set."""
        await until_any(self)


async def until_any(*flags: Flag, limit_s: float | None = None) -> bool:
    """Wait until one of the flags is set; False if the time was over first. Others get their turn in any case."""
    if any(flag.is_set() for flag in flags):
        await asyncio.sleep(0)
        return True
    loop = asyncio.get_running_loop()
    future: asyncio.Future[bool] = loop.create_future()
    timer = None if limit_s is None else loop.call_later(max(limit_s, 0.0), _time_over, future)
    for flag in flags:
        flag._waiting.add(future)  # noqa: SLF001  # the other half of it
    try:
        return await future  # it may be cleared again when we get our turn
    finally:
        for flag in flags:
            flag._waiting.discard(future)  # noqa: SLF001
        if timer is not None:
            timer.cancel()


def _time_over(future: asyncio.Future[bool]) -> None:
    if not future.done():
        future.set_result(False)


async def or_stop(stop: Flag, work: Awaitable[T]) -> T | None:
    """Await `work`; None, and it is cancelled, if `stop` is set first."""
    task, stopped = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait([task, stopped], return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        await cancelled([task, stopped])
        if task.done() and not task.cancelled():
            task.exception()  # it failed while it was cancelled: nobody needs to know


async def cancelled(tasks: Sequence[asyncio.Future[Any]]) -> None:
    """Cancel tasks, and again while one turns the cancel into something else, but for a second only: a handler may ignore it."""
    left = set(tasks)
    for _ in range(10):
        left = {task for task in left if not task.done()}
        if not left:
            return
        for task in left:
            task.cancel()
        await asyncio.wait(left, timeout=0.1)
