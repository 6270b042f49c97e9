"""Begins the calls of a worker's handlers, as tasks or in threads, and takes note of their end."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from streamq.errors import StreamqError
from streamq.worker import log
from streamq.worker.dispatch import Outcome
from streamq.worker.feed import Feed
from streamq.worker.hooks import HookList
from streamq.worker.lane import Call, Lane, Standing, Ticket

FIRST_STEPS_S = 0.04
"""A lane-full of suspects starts one after the other in this time. While the lane is narrow a thread has time to begin, even
on a busy machine, before the next suspect's start is counted."""

TURN_S = 0.02
"""How long calls are begun one after the other before the other roles get their turn."""

_log = logging.getLogger("streamq.worker")


class Starter:
    """Begins what the lane lets start.

    Args:
        lane: The jobs in hand.
        feeds: The streams; may be filled later.
        hooks: Told of starts and ends.
        changed: Called when something may start, or be read, that could not before.

    Attributes:
        stuck: Calls past their timeout that cannot be stopped, and keep their slots.
    """

    def __init__(self, lane: Lane, feeds: Sequence[Feed], hooks: HookList, changed: Callable[[], None]) -> None:
        self.stuck = 0
        self._loop = asyncio.get_running_loop()
        self._lane = lane
        self._feeds = feeds
        self._hooks = hooks
        self._is_told = bool(hooks)
        self._changed = changed

    def start(self) -> None:
        """Begin what may start, for `TURN_S` at most."""
        to_count: dict[int, list[Call]] = {}
        begun_at = self._loop.time()
        for call in self._lane.start(begun_at):
            if call.is_plain:
                self._begin_plain(call)
            elif self._keep_only(call, [ticket for ticket in call.tickets if not ticket.job.lease_lost]):
                if call.uncounted:
                    to_count.setdefault(call.stream, []).append(call)
                else:
                    self._begin(call)
            if self._loop.time() > begun_at + TURN_S:  # what begins may have run to its end already
                self._changed()
                break
        for place, calls in to_count.items():
            task = asyncio.create_task(self.count_and_begin(self._feeds[place], calls), name="streamq-count-starts")
            for call in calls:
                self._set_task(call, task)

    def _keep_only(self, call: Call, tickets: list[Ticket]) -> bool:
        """Drop a call's other jobs, which are not ours any more; False, and it is over, if none is left."""
        if len(tickets) != len(call.tickets):
            for ticket in set(call.tickets).difference(tickets):
                self._feeds[call.stream].fetcher.hand.drop(ticket.job.entry_id)
            if not tickets:
                self._lane.ended(call, passed=False)
                self._changed()
            call.tickets = tickets
        return bool(tickets)

    async def count_and_begin(self, feed: Feed, calls: list[Call]) -> None:
        """Count the starts of reclaimed jobs and begin their handlers, with nothing in between."""
        uncounted = [ticket for call in calls for ticket in call.uncounted]
        try:
            started = set(await feed.fetcher.count_starts(uncounted))
        except StreamqError as error:
            log.event(_log, logging.WARNING, "starts are not counted yet", stream=feed.name, error=error)
            for call in calls:
                self._set_task(call, None)
                self._lane.put_back(call)
            feed.fetcher.set_aside()
            self._changed()
            return
        except BaseException:  # cancelled: a call that counts as running for ever would close the lane
            for call in calls:
                self._set_task(call, None)
                self._lane.ended(call, passed=False)
            self._changed()
            raise
        for call in calls:
            self._set_task(call, None)
            if self._keep_only(call, [t for t in call.tickets if t.standing is Standing.NEW or t in started]):
                self._begin(call)
                self._loop.call_later(FIRST_STEPS_S / self._lane.width, self._begun, call)

    def _begin_plain(self, call: Call) -> None:
        feed = self._feeds[call.stream]
        if not feed.source.dispatcher.needs_no_task:
            self._begin(call)
            return
        job = call.tickets[0].job
        feed.fetcher.hand.begin((job,))
        feed.running[job.entry_id] = call
        context = contextvars.copy_context()
        if self._is_told:
            context.run(self._hooks.tell, "started", job)
        feed.source.dispatcher.begin(job, context, feed.came_back)

    def came_back(self, place: int, outcome: Outcome[Any]) -> None:
        """The end of a call without a task."""
        feed = self._feeds[place]
        call = feed.running.pop(outcome.job.entry_id, None)
        if not isinstance(call, Call):
            return  # the worker has stopped without it
        if self._is_told:
            self._hooks.tell("ended", outcome.job)
        feed.settler.put(outcome)
        self._lane.ended(call)
        self._changed()

    def forget_threads(self) -> None:
        """The worker stops. Handlers that are still at work in threads end for nobody: their leases bring the jobs back."""
        for feed in self._feeds:
            for entry_id, call in list(feed.running.items()):
                if isinstance(call, Call):
                    del feed.running[entry_id]
                    if self._is_told:
                        self._hooks.tell("ended", call.tickets[0].job)

    def _begin(self, call: Call) -> None:
        feed, tickets = self._feeds[call.stream], call.tickets
        feed.fetcher.hand.begin([ticket.job for ticket in tickets])  # first: the handler may end the process at once
        task = _begin_task(self._loop, self._work(feed, call))
        if not task.done():
            for ticket in tickets:
                feed.running[ticket.job.entry_id] = task

    def _begun(self, call: Call) -> None:
        self._lane.begun(call)
        self._changed()

    def _set_task(self, call: Call, task: asyncio.Task[None] | None) -> None:
        running = self._feeds[call.stream].running
        for ticket in call.tickets:
            if task is None:
                running.pop(ticket.job.entry_id, None)
            else:
                running[ticket.job.entry_id] = task

    async def _work(self, feed: Feed, call: Call) -> None:
        dispatcher, tickets = feed.source.dispatcher, call.tickets
        outcomes: Sequence[Outcome[Any]] = ()
        try:
            if self._is_told:
                for ticket in tickets:
                    self._hooks.tell("started", ticket.job)
            if dispatcher.is_batch:
                outcomes = await dispatcher.run_batch([ticket.job for ticket in tickets])
            else:
                outcomes = (await dispatcher.run(tickets[0].job),)
        finally:
            for ticket in tickets:
                feed.running.pop(ticket.job.entry_id, None)
                if self._is_told:
                    self._hooks.tell("ended", ticket.job)
            for outcome in outcomes:
                feed.settler.put(outcome)
        try:
            if outcomes and (stray := outcomes[0].still_running) is not None:
                self.stuck += 1
                await asyncio.wait([stray])  # a handler past its timeout that cannot be stopped keeps its slot
                self.stuck -= 1
        finally:
            self._lane.ended(call)
            self._changed()

    def cancel(self, feed: Feed, entry_id: str) -> None:
        """Cancel a call whose leases are all lost. A thread cannot be cancelled: it is told, and keeps its slot."""
        task = feed.running.get(entry_id)
        jobs = [feed.fetcher.hand.held.get(i) for i, other in feed.running.items() if other is task]
        if (
            isinstance(task, asyncio.Task)
            and feed.source.dispatcher.is_async
            and all(job is None or job.lease_lost for job in jobs)
        ):
            self._loop.call_soon(task.cancel)  # not before its first step, which would leave it to no `finally`


def _begin_task(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """A task of `work`. From Python 3.12 it has run already up to its first wait, which many handlers never come to."""
    if sys.version_info >= (3, 12):
        return asyncio.Task(work, loop=loop, eager_start=True)
    return loop.create_task(work)
