"""Calls handlers and turns how they end into outcomes. Knows nothing of Redis."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from typing import Any, Generic, Literal, TypeAlias, TypeVar, get_args

import msgspec

from streamq._codec import encode_result
from streamq.errors import ConfigurationError, JobEncodingError
from streamq.messages import Job, Reject, Release, Retry
from streamq.worker import log
from streamq.worker.middleware import Left, Middleware, chain, is_async_callable, takes
from streamq.worker.threads import NoThreadError, Threads

T = TypeVar("T")

Handler: TypeAlias = Callable[[T], Any] | Callable[[T, Job[T]], Any]
"""``handler(payload)`` or ``handler(payload, job)``, as ``def`` or ``async def``."""

BatchHandler: TypeAlias = Callable[[list[Job[T]]], Any]
"""``handler(jobs)``, as ``def`` or ``async def``.

It returns None, or a list (or tuple) with one item a job: its result, or an exception instance, which counts as raised for
that job alone. What the handler raises itself counts for every job of the batch.
"""

Verdict: TypeAlias = Literal["retry", "reject", "release"]
"""What an exception of a handler means for its job."""

CANCEL_GRACE_S = 1.0
"""How long a cancelled handler may take to end, before its outcome goes on without it."""

REST_S = 1.0
"""How long a slot rests whose call found no thread: a worker that cannot work should not go through all jobs to find out."""

_log = logging.getLogger("streamq.worker")


class End(Enum):
    """How a handler ended."""

    DONE = auto()
    FAILED = auto()
    """By exception or timeout: an attempt."""
    REJECTED = auto()
    RELEASED = auto()
    """Given back by the handler, or it could not be called. No attempt of the job's."""
    CANCELLED = auto()
    """By us: the lease is lost, or the worker stops. No attempt of the job's."""


_WORDS = {Retry: End.FAILED, Reject: End.REJECTED, Release: End.RELEASED}
_ENDS: dict[Verdict, End] = {"retry": End.FAILED, "reject": End.REJECTED, "release": End.RELEASED}
_LOGGED: dict[Verdict, str] = {"retry": "failed", "reject": "rejected", "release": "released"}

_Ending: TypeAlias = tuple[Any, BaseException | None]


class Outcome(msgspec.Struct, Generic[T], frozen=True, gc=False):
    """A job whose handler has ended, or whose time is over.

    Attributes:
        delay_ms: When its handler wants the next attempt; None leaves it to the policy.
        still_running: Done when what the handler has left running, a thread or a task that ignores its cancel, has ended;
            the job's slot is taken until then. None if nothing is left. The jobs of a batch share it.
    """

    job: Job[T]
    end: End
    result: bytes = b""
    error: str = ""
    delay_ms: int | None = None
    still_running: asyncio.Future[Any] | None = None


class Dispatcher(Generic[T]):
    """Runs a handler: ``async def`` as a task, ``def`` in a thread.

    Args:
        handler: What to call: a `Handler`, or with `batch` a `BatchHandler`.
        threads: Where a ``def`` handler runs. Closed by whoever made it.
        batch: Whether the handler takes a list of jobs.
        timeout_s: Longest run of one call in seconds; a batch is one call. None for no limit. Longer is a failed attempt:
            an ``async def`` is cancelled, a ``def`` is told by `Job.timed_out` and goes on in its thread.
        middlewares: Around each call, the first outermost; see `Middleware`.
        errors: What an exception means, by the most specific of its classes; ``retry`` where none is named. `Retry`,
            `Reject` and `Release` mean what they say, and a timeout is an attempt, whatever stands here.
        stream: Name of the stream, for the log.

    Attributes:
        is_async: Whether the handler can be cancelled.
        is_batch: Whether it takes a list of jobs.
        needs_no_task: Whether `begin` will do: nobody has to watch over a call.

    Raises:
        ConfigurationError: The handler or a middleware takes other arguments, a middleware cannot stand where it is, or
            `errors` maps something else than exception classes to verdicts.
    """

    def __init__(
        self,
        handler: Handler[T] | BatchHandler[T],
        threads: Threads,
        *,
        batch: bool = False,
        timeout_s: float | None = None,
        middlewares: Sequence[Middleware] = (),
        errors: Mapping[type[BaseException], Verdict] = {},
        stream: str | None = None,
    ) -> None:
        self.is_async = is_async_callable(handler)
        self.is_batch = batch
        self._timeout_s = timeout_s
        self._errors = _checked(errors)
        self._stream = stream
        self._threads = threads
        function = _by_subject(handler, batch=batch)
        self._chain = chain(function, is_async=self.is_async, middlewares=middlewares, threads=threads)
        self._alone = function if not middlewares and timeout_s is None and not batch else None
        self.needs_no_task = self._alone is not None and not self.is_async

    async def run(self, job: Job[T]) -> Outcome[T]:
        """Call the handler. Whatever it raises, even SystemExit, becomes an outcome; cancelling this is our own cancel."""
        if self.is_batch:
            [outcome] = await self.run_batch([job])
            return outcome
        if self.is_async and self._alone is not None:  # the shortest way, for the usual handler
            try:
                return self._returned(job, await self._alone(job), None)
            except BaseException as raised:  # noqa: BLE001  # as in `_ending`
                return self._raised((job,), raised, None)[0]
        left: Left = []
        value, error = await self._called(job, (job,), left)
        running = _still_running(left)
        if error is None:
            return self._returned(job, value, running)
        return self._raised((job,), error, running)[0]

    def begin(self, job: Job[T], context: contextvars.Context, ended: Callable[[Outcome[T]], None]) -> None:
        """Call the handler in a thread if it `needs_no_task`, and `ended` in the event loop. Otherwise like `run`."""
        assert self._alone is not None  # noqa: S101  # else it needs a task
        self._threads.begin(context, _InThread(self, job, ended).landed, self._alone, job)

    async def run_batch(self, jobs: Sequence[Job[T]]) -> list[Outcome[T]]:
        """Call a batch handler once for all `jobs`, at least one; an outcome per job, in order. Otherwise like `run`."""
        left: Left = []
        values, error = await self._called(list(jobs), jobs, left)
        running = _still_running(left)
        if error is not None:
            return self._raised(jobs, error, running)
        if values is None:
            values = [None] * len(jobs)
        elif wrong := _wrong_answer(values, len(jobs)):
            log.event(_log, logging.ERROR, "batch failed", error=wrong, **self._about(jobs))
            return [Outcome(job, End.FAILED, error=wrong, still_running=running) for job in jobs]
        outcomes = []
        for job, value in zip(jobs, values, strict=True):
            if isinstance(value, BaseException):
                outcomes += self._raised((job,), value, running)
            else:
                outcomes.append(self._returned(job, value, running))
        return outcomes

    # The call

    async def _called(self, subject: Any, jobs: Sequence[Job[T]], left: Left) -> _Ending:
        if self._timeout_s is None:
            value, error = await self._ending(subject, left)
        else:
            value, error = await self._within(self._timeout_s, subject, jobs, left)
        if isinstance(error, NoThreadError):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(REST_S)
        return value, error

    async def _ending(self, subject: Any, left: Left) -> _Ending:
        """What the handler returns, and what it raises: as a value, for one job's SystemExit must not end the worker."""
        try:
            return await self._chain(subject, left), None
        except BaseException as error:  # noqa: BLE001
            return None, error

    async def _within(self, timeout_s: float, subject: Any, jobs: Sequence[Job[T]], left: Left) -> _Ending:
        task = asyncio.create_task(self._ending(subject, left))
        left.append(task)
        timed_out = not await _ends(task, timeout_s) and not _is_cancelled()
        if timed_out:
            for job in jobs:
                job.timed_out = True
        if not task.done():
            task.cancel()
            await _ends(task, CANCEL_GRACE_S)
        if timed_out:  # even if its cancel, or ours meanwhile, made it end otherwise
            return None, TimeoutError(f"ran longer than {timeout_s:g} s")
        return task.result() if task.done() and not task.cancelled() else (None, asyncio.CancelledError())

    # What its end means

    def _returned(self, job: Job[T], value: Any, running: asyncio.Future[Any] | None) -> Outcome[T]:
        try:
            return Outcome(job, End.DONE, encode_result(value), still_running=running)
        except BaseException as error:  # noqa: BLE001  # values are the user's objects
            return self._raised((job,), error, running)[0]

    def _raised(
        self, jobs: Sequence[Job[T]], error: BaseException, running: asyncio.Future[Any] | None
    ) -> list[Outcome[T]]:
        end, text = self._judged(jobs, error)
        delay_ms = error.delay_ms if isinstance(error, Retry) else None
        return [Outcome(job, end, error=text, delay_ms=delay_ms, still_running=running) for job in jobs]

    def _judged(self, jobs: Sequence[Job[T]], error: BaseException) -> tuple[End, str]:
        if isinstance(error, asyncio.CancelledError):
            if _is_cancelled():
                return End.CANCELLED, ""
            error = asyncio.CancelledError("raised by the handler")
        if isinstance(error, NoThreadError):  # not the job's fault, and no attempt of it
            log.event(_log, logging.ERROR, "job not begun", **self._about(jobs), error=f"no thread: {error}")
            return End.RELEASED, ""
        for word, end in _WORDS.items():
            if isinstance(error, word):
                return end, _text(error)
        timed_out = jobs[0].timed_out
        verdict = "retry" if timed_out else self._verdict(error)
        # Its text may quote the payload: it is kept with the job, and does not go to the log.
        kind = type(error).__name__
        severe = isinstance(error, JobEncodingError) or not isinstance(error, Exception)
        what = f"{'job' if len(jobs) == 1 else 'batch'} {'timed out' if timed_out else _LOGGED[verdict]}"
        log.event(_log, logging.ERROR if severe else logging.WARNING, what, **self._about(jobs), error=kind)
        return _ENDS[verdict], f"{kind}: {_text(error)}"

    def _verdict(self, error: BaseException) -> Verdict:
        return next((self._errors[kind] for kind in type(error).__mro__ if kind in self._errors), "retry")

    def _about(self, jobs: Sequence[Job[T]]) -> dict[str, Any]:
        """What a line of the log says of a job, or of a batch: how many, and the first."""
        return {"stream": self._stream, "jobs": len(jobs) if len(jobs) > 1 else None, **log.about(jobs[0])}


class _InThread(msgspec.Struct, Generic[T], gc=False, eq=False):
    """A call for which no task waits."""

    dispatcher: Dispatcher[T]
    job: Job[T]
    ended: Callable[[Outcome[T]], None]

    def landed(self, value: Any, error: BaseException | None) -> None:
        """The thread is through with it."""
        dispatcher, job = self.dispatcher, self.job
        if error is None:
            self.ended(dispatcher._returned(job, value, None))  # noqa: SLF001  # its other half
            return
        [outcome] = dispatcher._raised((job,), error, None)  # noqa: SLF001
        if isinstance(error, NoThreadError):
            asyncio.get_running_loop().call_later(REST_S, self.ended, outcome)
        else:
            self.ended(outcome)


def _by_subject(handler: Callable[..., Any], *, batch: bool) -> Callable[[Any], Any]:
    """The handler as a function of a job, or of the list of a batch."""
    if batch:
        if not takes(handler, 1):
            raise ConfigurationError(f"a batch handler takes (jobs); {handler!r} does not")
        return handler
    if takes(handler, 2):
        return lambda job: handler(job.payload, job)
    if takes(handler, 1):
        return lambda job: handler(job.payload)
    raise ConfigurationError(f"a handler takes (payload) or (payload, job); {handler!r} does not")


def _checked(errors: Mapping[type[BaseException], Verdict]) -> dict[type[BaseException], Verdict]:
    for kind, verdict in errors.items():
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise ConfigurationError(f"errors: {kind!r} is no exception class")
        if verdict not in get_args(Verdict):
            raise ConfigurationError(f"errors: {kind.__name__} must mean retry, reject or release, not {verdict!r}")
    return dict(errors)


def _wrong_answer(values: Any, count: int) -> str:
    """What is wrong with what a batch handler returned; empty if nothing is."""
    asked = f"return None or a list with one result for each of the {count} jobs"
    if not isinstance(values, list | tuple):
        return f"the batch handler returned {type(values).__name__}: {asked}"
    return "" if len(values) == count else f"the batch handler returned {len(values)} results: {asked}"


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001  # an exception of the user's may fail in its own __str__
        return "(its text cannot be shown)"


def _is_cancelled() -> bool:
    """Whether somebody has cancelled the task that we run in: that is our own cancel, not the handler's."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _ends(task: asyncio.Task[Any], within_s: float) -> bool:
    """Wait for a task, and tell whether it has ended. Being cancelled ends the waiting, not the task."""
    with contextlib.suppress(asyncio.CancelledError):  # the caller asks `_is_cancelled`
        await asyncio.wait([task], timeout=within_s)
    return task.done()


def _still_running(left: Left) -> asyncio.Future[Any] | None:
    if not left:
        return None
    running = [one for one in left if not one.done()]
    return asyncio.gather(*running, return_exceptions=True) if running else None
