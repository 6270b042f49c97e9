"""Runs plans on several servers, over blocking connections."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TypeAlias, TypeVar

from streamq._drivers.blocking import BlockingDriver, Connections
from streamq._drivers.books import Book
from streamq._drivers.routing import inquire, travel
from streamq._drivers.steps import Address, Cut, Drop, Outcome, Send, Sleep, Step, Steps
from streamq._requests import Reply, Request
from streamq.errors import StreamqError

T = TypeVar("T")

MakeConnections: TypeAlias = Callable[[Address, bool, Callable[[], None]], Connections]


class RoutedBlockingDriver(BlockingDriver):
    """Runs plans on several servers: each request where its keys are.

    Args:
        book: Who is where.
        server: Makes the connections to a server; told whether it is one that only knows the way, and what to do when a
            reply is overdue.
        patience_s: How long to send again what was not run.
    """

    def __init__(self, book: Book, server: MakeConnections, patience_s: float) -> None:
        self._book = book
        self._make = server
        self._patience_s = patience_s
        self._servers: dict[tuple[Address, bool], Connections] = {}

    @property
    def servers(self) -> tuple[Address, ...]:
        """All that are known by now."""
        return self._book.servers()

    def whereabouts(self, slot: int) -> str:
        """Which server holds a slot, as far as is known by now."""
        return str(self._book.find(slot) or "")

    def close(self) -> None:
        """Close the idle connections. A later `run` makes new ones."""
        for server in list(self._servers.values()):
            server.close()

    def _ask(self, request: Request) -> Reply:
        return self._walk(travel(request, self._book, now=time.monotonic, patience_s=self._patience_s))

    def _inquire(self, silent: Address) -> None:
        self._walk(inquire(self._book, silent, now=time.monotonic))

    def _walk(self, steps: Steps[T]) -> T:
        outcome: Outcome = None
        while True:
            try:
                step = steps.send(outcome)
            except StopIteration as stop:
                result: T = stop.value
                return result
            outcome = self._do(step)

    def _do(self, step: Step) -> Outcome:
        match step:
            case Send():
                server = self._at(step.to, is_guide=step.is_guide)
                try:
                    return server.exchange(step.commands, wait_ms=step.wait_ms, limit_s=step.limit_s)
                except StreamqError as error:
                    return error
            case Drop(to):
                self._at(to).close()
            case Cut(to):
                self._at(to).cut()
            case Sleep(seconds):
                time.sleep(seconds)
        return None

    def _at(self, to: Address, *, is_guide: bool = False) -> Connections:
        try:
            return self._servers[to, is_guide]
        except KeyError:
            made = self._make(to, is_guide, partial(self._inquire, to))
            return self._servers.setdefault((to, is_guide), made)
