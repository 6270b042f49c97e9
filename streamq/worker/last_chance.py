"""Runs a job that has a single start left alone in its process: if it is what kills, it dies alone, and is buried."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING

from streamq.worker.lane import Ticket

if TYPE_CHECKING:
    from streamq.worker.runner import Runner

WAITS = 3
"""Who gets the same job for the third time waits until it is alone, however long: nobody else came to it either."""

REMEMBERED = 1_000
"""Most jobs of which it is known how often they were given back."""


class LastChance:
    """The role that waits until such a job is alone, and runs it.

    Args:
        runner: The run of the worker.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._lane = runner.lane
        self._given_back: OrderedDict[str, int] = OrderedDict()

    async def run(self) -> None:
        """Look after jobs with a single start left until the worker stops."""
        while not self._runner.stopping.is_set():
            ticket = self._lane.last
            if ticket is None or self._lane.has_suspects:
                await self._runner.changes(None)
                continue
            self._lane.is_closed = True
            try:
                await self._run_alone(ticket)
            finally:
                self._lane.is_closed = False
                self._runner.changed()

    async def _run_alone(self, ticket: Ticket) -> None:
        """Run a job with nothing beside it: others end first, outcomes are settled, and what waits is given back."""
        feeds = self._runner.feeds
        feed, entry_id = feeds[ticket.stream], ticket.job.entry_id
        for other in feeds:
            await other.fetcher.quiet()
        if not await self._until_alone(entry_id):
            await feed.fetcher.release_last()
            return
        for other in feeds:
            await other.settler.tried()
            await other.fetcher.give_back()
        if self._runner.stopping.is_set() or feed.fetcher.is_paused or ticket.job.lease_lost:
            await feed.fetcher.release_last()
            return
        call = self._lane.start_last()
        assert call is not None  # noqa: S101  # it is there, and nobody else takes it out
        await self._runner.starter.count_and_begin(feed, [call])
        while entry_id in feed.running:
            await asyncio.wait(feed.tasks)  # of this one call
        await feed.settler.tried()

    async def _until_alone(self, entry_id: str) -> bool:
        """Wait until nothing runs; False if that takes too long, or the worker stops."""
        loop = asyncio.get_running_loop()
        times = self._given_back.pop(entry_id, 0) + 1
        deadline = None if times >= WAITS else loop.time() + self._runner.patience_s
        while self._lane.running and not self._runner.stopping.is_set():
            if not await self._runner.changes(None if deadline is None else deadline - loop.time()):
                self._given_back[entry_id] = times
                if len(self._given_back) > REMEMBERED:
                    self._given_back.popitem(last=False)
                return False
        return not self._runner.stopping.is_set()
