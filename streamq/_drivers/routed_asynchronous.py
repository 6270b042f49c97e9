"""Runs plans on several servers, over asyncio connections."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeAlias, TypeVar

from streamq._drivers.asynchronous import AsyncConnections, AsyncDriver
from streamq._drivers.books import Book
from streamq._drivers.routing import inquire, travel
from streamq._drivers.steps import Address, Cut, Drop, Outcome, Send, Sleep, Step, Steps
from streamq._requests import Reply, Request
from streamq.errors import StreamqError

T = TypeVar("T")

MakeAsyncConnections: TypeAlias = Callable[[Address, bool, Callable[[], Coroutine[Any, Any, None]]], AsyncConnections]


class RoutedAsyncDriver(AsyncDriver):
    """Runs plans on several servers: each request where its keys are.

    Args:
        book: Who is where.
        server: Makes the connections to a server; told whether it is one that only knows the way, and what to do when a
            reply is overdue.
        patience_s: How long to send again what was not run.
    """

    def __init__(self, book: Book, server: MakeAsyncConnections, patience_s: float) -> None:
        self._book = book
        self._make = server
        self._patience_s = patience_s
        self._servers: dict[tuple[Address, bool], AsyncConnections] = {}

    async def aclose(self) -> None:
        """Close the idle connections. A later `run` makes new ones, in whichever event loop it runs."""
        for server in list(self._servers.values()):
            await server.aclose()

    async def interrupt(self) -> bool:
        """As of `AsyncDriver`, on every server where commands wait."""
        answers = [await server.interrupt() for server in list(self._servers.values())]
        return all(answers)

    async def _ask(self, request: Request) -> Reply:
        return await self._walk(travel(request, self._book, now=time.monotonic, patience_s=self._patience_s))

    async def _inquire(self, silent: Address) -> None:
        await self._walk(inquire(self._book, silent, now=time.monotonic))

    async def _walk(self, steps: Steps[T]) -> T:
        outcome: Outcome = None
        while True:
            try:
                step = steps.send(outcome)
            except StopIteration as stop:
                result: T = stop.value
                return result
            outcome = await self._do(step)

    async def _do(self, step: Step) -> Outcome:
        match step:
            case Send():
                server = self._at(step.to, is_guide=step.is_guide)
                try:
                    return await server.exchange(step.commands, wait_ms=step.wait_ms, limit_s=step.limit_s)
                except StreamqError as error:
                    return error
            case Drop(to):
                await self._at(to).drop()
            case Cut(to):
                await self._at(to).cut()
            case Sleep(seconds):
                await asyncio.sleep(seconds)
        return None

    def _at(self, to: Address, *, is_guide: bool = False) -> AsyncConnections:
        try:
            return self._servers[to, is_guide]
        except KeyError:
            made = self._make(to, is_guide, partial(self._inquire, to))
            return self._servers.setdefault((to, is_guide), made)
