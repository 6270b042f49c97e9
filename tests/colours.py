"""Both facades behind one face: tests call plain blocking methods, whichever colour they drive."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, Final

import pytest
import redis

from streamq import AsyncStream, Stream, StreamOptions
from streamq.keys import registry

COLOURS: Final = ("sync", "async")


class Blocking:
    """An `AsyncStream` (or its dead letters, its groups) that waits for each coroutine, in one private event loop.

    Attributes:
        target: What is driven.
    """

    def __init__(self, target: Any, loop: asyncio.AbstractEventLoop) -> None:
        self.target = target
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.target, name)
        if name in {"dead_letters", "groups", "scheduled"}:
            return Blocking(value, self._loop)
        if not inspect.iscoroutinefunction(value):
            return value
        return lambda *args, **kwargs: self._loop.run_until_complete(value(*args, **kwargs))

    def run(self, plan: Any) -> Any:
        """Run a plan, as the facade's own methods do."""
        return self._loop.run_until_complete(self.target._run(plan))

    def idle(self, seconds: float) -> None:
        """Let the loop run, without a call of ours."""
        self._loop.run_until_complete(asyncio.sleep(seconds))

    def close(self) -> None:
        """Close the stream and the loop."""
        if not self._loop.is_closed():
            self._loop.run_until_complete(self.target.aclose())
            self._loop.close()


class Plain(Stream):
    """A `Stream` that also runs plans."""

    def run(self, plan: Any) -> Any:
        """Run a plan, as the facade's own methods do."""
        return self._run(plan)


def open_stream(
    colour: str,
    name: str,
    type: Any = dict,  # noqa: A002  # as Stream has it
    *,
    redis: Any,
    deployment: str | None = None,
    **options: Any,
) -> Any:
    """A stream of that colour with blocking methods; to be closed by ``close``. `options` are `StreamOptions`."""
    settings = {"redis": redis, "deployment": deployment, "options": StreamOptions(**options)}
    if colour == "sync":
        return Plain(name, type, **settings)
    stream = AsyncStream(name, type, **settings)
    return Blocking(stream, asyncio.new_event_loop())


@pytest.fixture
def make_stream(redis_url: str, ns: str, colour: str, raw: redis.Redis) -> Iterator[Callable[..., Any]]:
    """Make streams on the shared server: ``make_stream(name=None, type=dict, **options)``.

    Without a name all are one and the same stream, named after `ns`; a name is put behind it. ``redis=`` and
    ``deployment=`` go to the stream, everything else to `StreamOptions`.
    """
    registered: set[tuple[str, str]] = set()
    with ExitStack() as stack:

        def make(
            name: str | None = None,
            type: Any = dict,  # noqa: A002  # as Stream has it
            *,
            redis: Any = redis_url,
            **options: Any,
        ) -> Any:
            full = ns if name is None else f"{ns}.{name}"
            stream = open_stream(colour, full, type, redis=redis, **options)
            stack.callback(stream.close)
            registered.add((registry(options.get("deployment")), full))
            return stream

        yield make
    for key, full in registered:
        raw.srem(key, full)
