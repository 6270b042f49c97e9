"""Moves jobs into the stream when they are due: sleeps exactly until then, and hears of earlier ones."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from streamq._drivers.asynchronous import AsyncDriver
from streamq._ops import promote
from streamq._spec import Spec
from streamq.errors import ConfigurationError, StreamqError
from streamq.worker import log, roles
from streamq.worker.post import Post

LISTEN_MS = 15_000
"""Longest wait of one request for a word of an earlier job. Ticks tell of it, too, should the connection have died unseen."""

PAUSE_S = 0.01
"""Between two looks where nothing more is due: a stream of retries must not make a storm of requests."""

_log = logging.getLogger("streamq.worker")


class Timer:
    """Promotes the due jobs of one stream, while this worker is the one to do it.

    One worker of a stream does, so that the others need not sleep along: it holds a token that its ticks make last
    (``lua/tick.lua``). Others ask for it at each tick.

    Args:
        spec: The stream.
        driver: To run the plans.
        post: The worker.
    """

    def __init__(self, spec: Spec[Any], driver: AsyncDriver, post: Post) -> None:
        self._spec = spec
        self._driver = driver
        self._post = post
        self._due_at: float | None = None
        self._told = asyncio.Event()
        self._promoting = asyncio.Event()
        self._failures = 0

    def told(self, *, is_promoter: bool, wait_ms: int | None) -> None:
        """A tick says whether this worker promotes, and how long until the first job is due."""
        if is_promoter:
            self._promoting.set()
            self._due_in(wait_ms)
        else:
            self._promoting.clear()
            self._due_at = None
            self._told.set()

    def _due_in(self, wait_ms: int | None) -> None:
        self._due_at = None if wait_ms is None else self._now() + wait_ms / 1000
        self._told.set()

    async def promote(self) -> None:
        """Promote what is due, when it is, until the worker stops."""
        while not self._post.stopping.is_set():
            self._told.clear()
            wait_s = None if self._due_at is None else self._due_at - self._now()
            if wait_s is None or wait_s > 0:
                await roles.until_any(self._told, self._post.stopping, limit_s=wait_s)
                continue
            try:
                rest_s = await self._promote()
            except StreamqError as error:
                rest_s = self._refused(error)
            if rest_s:
                await roles.until_any(self._post.stopping, limit_s=rest_s)

    async def _promote(self) -> float:
        """Promote a batch; how long to rest before the next."""
        self._due_at = None
        found = await self._driver.run(promote.some(self._spec))
        self._failures = 0
        if self._promoting.is_set():
            heard = self._due_at  # meanwhile, of what this answer perhaps did not know
            self._due_in(found.wait_ms)
            if heard is not None and (self._due_at is None or heard < self._due_at):
                self._due_at = heard
        if found.goes_on:
            return 0.0
        return 1.0 if found.wait_ms == 0 else PAUSE_S  # where nothing can be done about what is due

    def _refused(self, error: StreamqError) -> float:
        self._failures += 1
        self._event(logging.WARNING, "due jobs cannot be moved", in_a_row=self._failures, error=error)
        if self._due_at is None and self._promoting.is_set():
            self._due_at = self._now()
        return 1.0 if isinstance(error, ConfigurationError) else roles.pause_s(self._failures)

    async def listen(self) -> None:
        """Hear of jobs that are due earlier than was known, from any process, until the worker stops."""
        seen = "0-0"
        while not self._post.stopping.is_set():
            if not self._promoting.is_set():
                await roles.until_any(self._promoting, self._post.stopping)
                continue
            try:
                listening = self._driver.run(promote.wake(self._spec, seen, LISTEN_MS))
                heard = await roles.or_stop(self._post.stopping, listening)
            except StreamqError:
                await roles.until_any(self._post.stopping, limit_s=1.0)  # ticks tell, and say what is wrong
                continue
            if heard is not None:
                seen = heard
                self._due_in(0)  # the next promotion tells how long

    def _event(self, level: int, message: str, **fields: Any) -> None:
        log.event(_log, level, message, stream=self._spec.keys.name, **fields)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
