"""Wraps a handler into its middlewares, and puts what is ``def`` into a thread."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

from streamq.errors import ConfigurationError
from streamq.messages import Job
from streamq.worker.threads import Threads

Call: TypeAlias = Callable[[], Any]
"""Goes on to the next middleware, or to the handler: ``call()`` in a ``def``, ``await call()`` in an ``async def``."""

Middleware: TypeAlias = Callable[[Job[Any], Call], Any] | Callable[[list[Job[Any]], Call], Any]
"""``middleware(job, call)``, around each call of the handler; ``middleware(jobs, call)`` around a batch handler.

It gets what ``call()`` returns or raises, may change it, may call again or not at all. Context variables that it sets
before ``call()`` are seen by the handler.
"""

Subject: TypeAlias = Any
"""What a handler is called for: a job, or the list of a batch."""

Left: TypeAlias = list[asyncio.Future[Any]]
"""What a call may leave running: each is done when a thread or a task of the call has ended."""

Chain: TypeAlias = Callable[[Subject, Left], Awaitable[Any]]
"""Middlewares and handler in one: awaited for a subject, puts the threads that it uses into the list."""


def chain(
    handler: Callable[[Subject], Any], *, is_async: bool, middlewares: Sequence[Middleware], threads: Threads
) -> Chain:
    """Put `middlewares` around `handler`, the first outermost.

    With an ``async def`` handler all run in the event loop. With a ``def`` handler the ``def`` ones run in its thread, and
    ``async def`` ones may stand in front of them.

    Raises:
        ConfigurationError: A middleware does not take (job, call), or cannot stand where it is.
    """
    outer, inner = _parted(middlewares)
    if not is_async:
        for middleware in reversed(inner):
            handler = _wrapped(middleware, handler)
        whole = _in_thread(handler, threads)
    elif inner:
        raise ConfigurationError(
            f"middleware {inner[0]!r} is a def, but the handler is an async def: write async def m(job, call) and "
            "await call()"
        )
    else:
        whole = _in_loop(handler)
    for middleware in reversed(outer):
        whole = _wrapped_async(middleware, whole)
    return whole


def is_async_callable(function: Callable[..., Any]) -> bool:
    """Whether calling it gives something to await: an ``async def``, or an object with an async ``__call__``."""
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004  # not whether it can be called, but how
    )


def takes(function: Callable[..., Any], count: int) -> bool:
    """Whether a function can be called with `count` positional arguments. One without signature takes one."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return callable(function) and count == 1  # a builtin
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return False
    return True


def _parted(middlewares: Sequence[Middleware]) -> tuple[list[Middleware], list[Middleware]]:
    """The ``async def`` ones, and behind them the ``def`` ones."""
    outer: list[Middleware] = []
    inner: list[Middleware] = []
    for middleware in middlewares:
        if not takes(middleware, 2):
            raise ConfigurationError(
                f"a middleware takes (job, call), or (jobs, call) of a batch; {middleware!r} does not"
            )
        if not is_async_callable(middleware):
            inner.append(middleware)
        elif inner:
            raise ConfigurationError(
                f"middleware {middleware!r} is an async def behind {inner[-1]!r}, a def that runs in the handler's thread: "
                "async ones come first"
            )
        else:
            outer.append(middleware)
    return outer, inner


def _wrapped(middleware: Callable[..., Any], inner: Callable[[Subject], Any]) -> Callable[[Subject], Any]:
    return lambda subject: middleware(subject, functools.partial(inner, subject))


def _wrapped_async(middleware: Callable[..., Any], inner: Chain) -> Chain:
    async def whole(subject: Subject, left: Left) -> Any:
        calls: list[Awaitable[Any]] = []

        def call() -> Awaitable[Any]:
            calls.append(inner(subject, left))
            return calls[-1]

        value = await middleware(subject, call)
        for begun in calls:
            if inspect.iscoroutine(begun) and inspect.getcoroutinestate(begun) == inspect.CORO_CREATED:
                begun.close()  # else the job would count as done, though its handler never ran
                raise ConfigurationError(f"middleware {middleware!r} did not await call()")
        return value

    return whole


def _in_loop(handler: Callable[[Subject], Any]) -> Chain:
    return lambda subject, left: handler(subject)  # noqa: ARG005  # its task is the caller's


def _in_thread(handler: Callable[[Subject], Any], threads: Threads) -> Chain:
    async def whole(subject: Subject, left: Left) -> Any:
        call = threads.call(handler, subject)
        left.append(call.ended)
        return await call.value()

    return whole
