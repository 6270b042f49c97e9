"""Calls handlers and turns how they end into outcomes. Knows nothing of Redis."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import queue
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Generic, TypeAlias, TypeVar

from streamq._codec import encode_result
from streamq.errors import ConfigurationError, JobEncodingError
from streamq.messages import Job, Reject, Retry

T = TypeVar("T")

Handler: TypeAlias = Callable[[T], Any] | Callable[[T, Job[T]], Any]
"""``handler(payload)`` or ``handler(payload, job)``, as ``def`` or ``async def``."""

_log = logging.getLogger("streamq.worker")


class End(Enum):
    """How a handler ended."""

    DONE = auto()
    FAILED = auto()
    REJECTED = auto()
    CANCELLED = auto()
    """By us: the lease is lost, or the worker stops. No attempt of the job's."""


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T]):
    """A job whose handler has ended."""

    job: Job[T]
    end: End
    result: bytes = b""
    error: str = ""


class Dispatcher(Generic[T]):
    """Runs a handler: ``async def`` as a task, ``def`` in a thread.

    Args:
        handler: What to call.
        threads: Threads for a ``def`` handler.

    Attributes:
        is_async: Whether the handler can be cancelled.

    Raises:
        ConfigurationError: The handler takes neither one nor two positional arguments.
    """

    def __init__(self, handler: Handler[T], threads: int) -> None:
        self._handler: Callable[..., Any] = handler
        self._with_job = _takes_job(handler)
        self.is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
            getattr(handler, "__call__", None)  # noqa: B004  # an object with an async __call__ is an async handler
        )
        self._threads = _Threads(threads)

    async def run(self, job: Job[T]) -> Outcome[T]:
        """Call the handler. Whatever it raises, even SystemExit, becomes an outcome; cancelling this is our own cancel."""
        arguments = (job.payload, job) if self._with_job else (job.payload,)
        try:
            if self.is_async:
                value = await self._handler(*arguments)
            else:
                value = await self._threads.call(self._handler, arguments)
            return Outcome(job, End.DONE, encode_result(value))
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                return Outcome(job, End.CANCELLED)
            return self._failed(job, asyncio.CancelledError("raised by the handler"))
        except Reject as word:
            return Outcome(job, End.REJECTED, error=_text(word))
        except BaseException as error:  # noqa: BLE001  # one job's SystemExit must not end the worker
            return self._failed(job, error)

    def _failed(self, job: Job[T], error: BaseException) -> Outcome[T]:
        if isinstance(error, Retry):
            return Outcome(job, End.FAILED, error=_text(error))
        # The message may quote the payload: it is kept with the job, and does not go to the log.
        kind = type(error).__name__
        level = (
            logging.ERROR
            if isinstance(error, JobEncodingError) or not isinstance(error, Exception)
            else logging.WARNING
        )
        _log.log(level, "job %s (entry %s, attempt %d) failed: %s", job.id, job.entry_id, job.attempt, kind)
        return Outcome(job, End.FAILED, error=f"{kind}: {_text(error)}")

    def close(self) -> None:
        """Let idle threads end. A running handler is not waited for."""
        self._threads.close()


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001  # an exception of the user's may fail in its own __str__
        return "(its text cannot be shown)"


def _takes_job(handler: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(handler).parameters.values()
    except (TypeError, ValueError):
        return False  # a builtin without signature takes the payload
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return True
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p for p in positional if p.default is p.empty]
    keyword = [p for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    if not positional or len(required) > 2 or keyword:  # noqa: PLR2004  # payload and job
        raise ConfigurationError(f"a handler takes (payload) or (payload, job); {handler!r} does not")
    return len(positional) > 1


class _Threads:
    """A few daemon threads. Unlike an executor's they do not hold up the interpreter's exit when a handler hangs."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._started = 0
        self._idle = threading.Semaphore(0)

    def call(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Awaitable[Any]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        context = contextvars.copy_context()

        def work() -> None:
            try:
                value = context.run(function, *arguments)
            except BaseException as error:  # noqa: BLE001  # handed to whoever awaits
                _hand_over(loop, future, None, error)
            else:
                _hand_over(loop, future, value, None)

        if not self._idle.acquire(blocking=False) and self._started < self._limit:
            self._started += 1
            threading.Thread(target=self._serve, name=f"streamq-handler-{self._started}", daemon=True).start()
        self._work.put(work)
        return future

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            work()
            self._idle.release()

    def close(self) -> None:
        for _ in range(self._started):
            self._work.put(None)


def _hand_over(
    loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any], value: Any, error: BaseException | None
) -> None:
    def finish() -> None:
        if future.done():
            return  # cancelled meanwhile: nobody waits any more
        if error is None:
            future.set_result(value)
        elif isinstance(error, StopIteration):
            future.set_exception(RuntimeError(f"handler raised StopIteration: {error}"))  # a future refuses it
        else:
            future.set_exception(error)

    try:
        loop.call_soon_threadsafe(finish)
    except RuntimeError:
        _log.warning("a handler ended after its worker had stopped; its job will be run again")
