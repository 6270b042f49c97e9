"""Moves jobs into the stream when they are due: sleeps exactly until then, and hears of earlier ones."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from streamq._drivers.asynchronous import AsyncDriver
from streamq._ops import promote
from streamq._spec import Spec
from streamq.errors import ConfigurationError, ConnectionLostError, StreamqError
from streamq.worker import log, roles
from streamq.worker.post import Post

LISTEN_MS = 15_000
"""Longest wait of one request for a word of an earlier job. Ticks tell of it, too, should the connection have died unseen."""

PAUSE_S = 0.01
"""Between two looks where nothing more is due: a stream of retries must not make a storm of requests."""

ANY = "0-0"
"""Before each entry of a stream."""

_log = logging.getLogger("streamq.worker")


class Timer:
    """Promotes the due jobs of one stream, while this worker is the one to do it.

    One worker of a stream does, so that the others need not sleep along: it holds a token that its ticks make last
    (``lua/tick.lua``). Others ask for it at each tick.

    Args:
        spec: The stream.
        driver: To run the plans.
        post: The worker.

    Attributes:
        has_token: Whether this worker is the one, or would be if the stream were not paused.
    """

    def __init__(self, spec: Spec[Any], driver: AsyncDriver, post: Post) -> None:
        self.has_token = False
        self._spec = spec
        self._driver = driver
        self._post = post
        self._due_at: float | None = None
        self._told = roles.Flag()
        self._promoting = roles.Flag()
        self._failures = 0
        self._deaf_by = ""

    def told(self, *, has_token: bool, paused: bool, wait_ms: int | None) -> None:
        """A tick says whether this worker promotes, and how long until the first job is due."""
        self.has_token = has_token
        if has_token and not paused:
            self._promoting.set()
            self._due_in(wait_ms)
        else:
            self._promoting.clear()
            self._due_at = None
            self._told.set()

    def _due_in(self, wait_ms: int | None) -> None:
        """Something is due then: never later than was known, until a promotion has looked.

        A tick may have been answered before that job was scheduled of which a word has come meanwhile.
        """
        if wait_ms is not None:
            at = self._now() + wait_ms / 1000
            self._due_at = at if self._due_at is None else min(at, self._due_at)
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
            self._due_in(found.wait_ms)
        if found.goes_on:
            return 0.0
        return 1.0 if found.wait_ms == 0 else PAUSE_S  # where nothing can be done about what is due

    def _refused(self, error: StreamqError) -> float:
        self._failures += 1
        self._event(logging.WARNING, "due jobs cannot be moved", in_a_row=self._failures, error=error)
        if self._promoting.is_set():
            self._due_in(0)
        return 1.0 if isinstance(error, ConfigurationError) else roles.pause_s(self._failures)

    async def listen(self) -> None:
        """Hear of jobs that are due earlier than was known, from any process, until the worker stops."""
        seen = ANY
        while not self._post.stopping.is_set():
            if not self._promoting.is_set():
                await roles.until_any(self._promoting, self._post.stopping)
                continue
            rest_s = PAUSE_S
            try:
                listening = self._driver.run(promote.wake(self._spec, seen, LISTEN_MS))
                heard = await roles.or_stop(self._post.stopping, listening)
            except StreamqError as error:
                heard, seen = None, ANY  # perhaps of another server by now, whose IDs are lower
                self._deaf(error)
                rest_s = 1.0
            if heard is not None:
                seen = heard
                if self._promoting.is_set():
                    self._due_in(0)  # the next promotion tells how long
            await roles.until_any(self._post.stopping, limit_s=rest_s)

    def _deaf(self, error: StreamqError) -> None:
        """Ticks tell of earlier jobs, too, and of a server that is away. What else keeps us from hearing is told once."""
        if not isinstance(error, ConnectionLostError) and str(error) != self._deaf_by:
            self._deaf_by = str(error)
            self._event(logging.WARNING, "earlier jobs are heard of at ticks only", error=error)

    def _event(self, level: int, message: str, **fields: Any) -> None:
        log.event(_log, level, message, stream=self._spec.keys.name, **fields)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
