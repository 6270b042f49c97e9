"""One run of a worker: starts what is in hand, lets it end, and keeps every role at work until the stop."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from streamq._drivers.asynchronous import AsyncDriver
from streamq._scripts import Fence, Held
from streamq._spec import Spec
from streamq.connection import Settings
from streamq.errors import StreamqError
from streamq.messages import Reason
from streamq.worker import log, roles
from streamq.worker.dispatch import Dispatcher, Outcome
from streamq.worker.fetch import Fetcher, patience_s
from streamq.worker.health import State, Watch
from streamq.worker.heartbeat import Heartbeat
from streamq.worker.hooks import Buried, HookList
from streamq.worker.journal import Journal
from streamq.worker.lane import Call, Lane, Line, Standing, Ticket
from streamq.worker.last_chance import LastChance
from streamq.worker.settle import Fate, Settlement, Settler, tell

FIRST_STEPS_S = 0.04
"""A lane-full of suspects starts one after the other in this time. While the lane is narrow a thread has time to begin, even
on a busy machine, before the next suspect's start is counted."""

TURN_S = 0.02
"""How long calls are begun one after the other before the other roles get their turn."""

PULSE_S = 5.0
"""An event loop that has not come round for three of these is blocked."""

_log = logging.getLogger("streamq.worker")


@dataclass(frozen=True, slots=True)
class Source:
    """A stream of a worker, and what is done with its jobs."""

    spec: Spec[Any]
    settings: Settings
    dispatcher: Dispatcher[Any]
    line: Line


@dataclass(slots=True)
class Feed:
    """A stream at work."""

    source: Source
    driver: AsyncDriver
    fetcher: Fetcher
    settler: Settler[Any]
    beat: Heartbeat
    came_back: Callable[[Outcome[Any]], None]
    """Told the end of a call that needs no task."""
    running: dict[str, asyncio.Task[None] | Call] = field(default_factory=dict)
    """Entry ID -> the task of the call that handles it, or the call itself if it needs none."""

    @property
    def name(self) -> str:
        """Of the stream."""
        return self.source.spec.keys.name

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """Of calls that run."""
        return [task for task in self.running.values() if isinstance(task, asyncio.Task)]


class Runner:
    """One run.

    Args:
        sources: The streams.
        consumer: The name of this run in their groups.
        slots: Most calls at once.
        prefetch: Jobs that may wait here for a slot.
        block_ms: Longest wait of one read.
        drain_s: What running handlers get when the worker stops.
        hooks: Told what happens.
        watch: Keeps count of failures.
        journal: For a supervisor.
        is_solo: Whether only jobs with a single start left are taken.
        leaves_last: Whether those are left to another process first.
        about: Who this worker is, for `inspect`; as JSON.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        *,
        consumer: str,
        slots: int,
        prefetch: int,
        block_ms: int,
        drain_s: float,
        hooks: HookList,
        watch: Watch,
        journal: Journal | None,
        is_solo: bool,
        leaves_last: bool,
        about: Mapping[str, Any],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.consumer = consumer
        self.prefetch = prefetch
        self.is_solo = is_solo
        self.stopping = roles.Flag()
        self.stuck = 0
        self.stalled_at = float("-inf")
        self._alive_at = self._loop.time()
        self._drain_s = drain_s
        self._hooks = hooks
        self._is_told = bool(hooks)
        self._watch = watch
        self.journal = journal
        self.about = about
        self._change = roles.Flag()
        self._is_changed = False
        self.patience_s = min(patience_s(source.spec) for source in sources)
        self.last_patience_ms = round(self.patience_s * 1000) if leaves_last else 0
        self.lane = Lane(slots, [source.line for source in sources], patience_s=self.patience_s)
        self._most_jobs = slots * max(source.line.batch for source in sources) + prefetch
        self.feeds = [self._feed(place, source, block_ms) for place, source in enumerate(sources)]

    def _feed(self, place: int, source: Source, block_ms: int) -> Feed:
        driver = source.settings.asynchronous()
        fetcher = Fetcher(place, source.spec, driver, self, block_ms=block_ms)
        settler = Settler(source.spec, self.consumer, driver, lambda settlement: self._settled(place, settlement))
        beat = Heartbeat(
            source.spec,
            self.consumer,
            source.settings.blocking(),
            held=lambda: self._renewable(place),
            lost=lambda held, fence: self._found_lost(place, held, fence),
        )
        return Feed(source, driver, fetcher, settler, beat, partial(self._came_back, place))

    async def run(self) -> None:
        """Work until `stopping` is set, then end in good order; cancelled, end at once."""
        settling = [roles.begin(f"settle {feed.name}", feed.settler.run) for feed in self.feeds]
        settling.append(roles.begin("pulse", self._pulse))
        working: list[asyncio.Task[None]] = []
        is_stopped = False
        try:
            reading = [roles.begin(f"read {feed.name}", partial(self._read, feed)) for feed in self.feeds]
            working += reading
            working += [roles.begin(f"maintain {feed.name}", feed.fetcher.maintain) for feed in self.feeds]
            working += [roles.begin(f"promote {feed.name}", feed.fetcher.timer.promote) for feed in self.feeds]
            working += [roles.begin(f"listen {feed.name}", feed.fetcher.timer.listen) for feed in self.feeds]
            working += [roles.begin("start", self._start_jobs), roles.begin("last chance", LastChance(self).run)]
            try:
                await roles.or_failure(self.stopping.wait(), [*settling, *working])
                is_stopped = True
                await roles.or_failure(self._finish(reading, working), settling)
            finally:
                await self._end_beats()
        finally:
            running = [task for feed in self.feeds for task in feed.tasks]
            await roles.cancelled([*working, *settling, *running])
            self._forget_threads()
            if is_stopped:
                roles.note_failures(working)
            for feed in self.feeds:
                await feed.driver.aclose()

    @property
    def is_open(self) -> bool:
        """Whether all streams are open."""
        return all(feed.fetcher.opened.is_set() for feed in self.feeds)

    async def _read(self, feed: Feed) -> None:
        """Open a stream and read it. One whose server is down is waited for by itself; one that cannot be used ends all."""
        if not feed.fetcher.opened.is_set():
            await feed.fetcher.open()
            if self.stopping.is_set():
                return
            feed.beat.start()
        for other in self.feeds:
            await other.fetcher.until_tried()
        await feed.fetcher.read()

    async def _pulse(self) -> None:
        """Show that the event loop comes round, and note when it was late."""
        lease_s = min(feed.source.spec.options.lease_ms for feed in self.feeds) / 1000
        pause = min(PULSE_S, lease_s / 8)
        while True:
            self._alive_at = begun = self._now()
            await asyncio.sleep(pause)
            if self._now() > begun + pause + lease_s / 4:
                self.stalled_at = self._now()

    # What starts

    async def _start_jobs(self) -> None:
        while not self.stopping.is_set():
            self.start()
            now = self._now()
            again_at = self.lane.next_change(now)
            if not await self.changes(None if again_at is None else again_at - now):
                self.changed()  # by time alone

    def start(self) -> None:
        """Begin what may start."""
        if self.stopping.is_set():
            return
        to_count: dict[int, list[Call]] = {}
        begun_at = self._now()
        for call in self.lane.start(begun_at):
            if call.is_plain:
                self._begin_plain(call)
            elif self._keep_only(call, [ticket for ticket in call.tickets if not ticket.job.lease_lost]):
                if call.uncounted:
                    to_count.setdefault(call.stream, []).append(call)
                else:
                    self._begin(call)
            if self._now() > begun_at + TURN_S:  # what begins may have run to its end already
                self.changed()
                break
        for place, calls in to_count.items():
            task = asyncio.create_task(self.count_and_begin(self.feeds[place], calls), name="streamq-count-starts")
            for call in calls:
                self._set_task(call, task)

    def _keep_only(self, call: Call, tickets: list[Ticket]) -> bool:
        """Drop a call's other jobs, which are not ours any more; False, and it is over, if none is left."""
        if len(tickets) != len(call.tickets):
            for ticket in set(call.tickets).difference(tickets):
                self.feeds[call.stream].fetcher.hand.drop(ticket.job.entry_id)
            if not tickets:
                self.lane.ended(call, passed=False)
                self.changed()
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
                self.lane.put_back(call)
            feed.fetcher.set_aside()
            self.changed()
            return
        except BaseException:  # cancelled: a call that counts as running for ever would close the lane
            for call in calls:
                self._set_task(call, None)
                self.lane.ended(call, passed=False)
            self.changed()
            raise
        for call in calls:
            self._set_task(call, None)
            if self._keep_only(call, [t for t in call.tickets if t.standing is Standing.NEW or t in started]):
                self._begin(call)
                self._loop.call_later(FIRST_STEPS_S / self.lane.width, self._begun, call)

    def _begin_plain(self, call: Call) -> None:
        feed = self.feeds[call.stream]
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

    def _came_back(self, place: int, outcome: Outcome[Any]) -> None:
        """The end of a call without a task."""
        feed = self.feeds[place]
        call = feed.running.pop(outcome.job.entry_id, None)
        if not isinstance(call, Call):
            return  # the worker has stopped without it
        if self._is_told:
            self._hooks.tell("ended", outcome.job)
        feed.settler.put(outcome)
        self.lane.ended(call)
        self.changed()

    def _forget_threads(self) -> None:
        """The worker stops. Handlers that are still at work in threads end for nobody: their leases bring the jobs back."""
        for feed in self.feeds:
            for entry_id, call in list(feed.running.items()):
                if isinstance(call, Call):
                    del feed.running[entry_id]
                    if self._is_told:
                        self._hooks.tell("ended", call.tickets[0].job)

    def _begin(self, call: Call) -> None:
        feed, tickets = self.feeds[call.stream], call.tickets
        feed.fetcher.hand.begin([ticket.job for ticket in tickets])  # first: the handler may end the process at once
        task = _begin_task(self._loop, self._work(feed, call))
        if not task.done():
            for ticket in tickets:
                feed.running[ticket.job.entry_id] = task

    def _begun(self, call: Call) -> None:
        self.lane.begun(call)
        self.changed()

    def _set_task(self, call: Call, task: asyncio.Task[None] | None) -> None:
        running = self.feeds[call.stream].running
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
            self.lane.ended(call)
            self.changed()

    def _settled(self, place: int, settlement: Settlement[Any]) -> None:
        hand = self.feeds[place].fetcher.hand
        entry_ids = [outcome.job.entry_id for outcome in settlement.outcomes]
        hand.drop(*entry_ids)
        if settlement.fate is Fate.RELEASED:
            hand.gave_back(entry_ids)
        if self._is_told:
            tell(self._hooks, settlement)
        self.changed()

    # How it is

    @property
    def state(self) -> State:
        """In one word, for `health`."""
        if self.stopping.is_set():
            return "stopping"
        return "paused" if all(feed.fetcher.is_paused for feed in self.feeds) else "running"

    def problems(self) -> list[str]:
        """What is wrong in this process itself, one line each. Called in any thread."""
        found = []
        if self.stuck >= self.lane.slots:
            found.append("every handler runs past its timeout and cannot be stopped")
        if (silent := self._loop.time() - self._alive_at) > 3 * PULSE_S:
            found.append(f"the event loop has been blocked for {silent:.0f} s")
        return found

    # What the fetchers tell

    def changed(self) -> None:
        """Something may start, or be read, that could not before. Told to the roles once a turn of the event loop."""
        if not self._is_changed:
            self._is_changed = True
            self._loop.call_soon(self._tell_roles)

    def _tell_roles(self) -> None:
        self._is_changed = False
        self._change.set()
        for feed in self.feeds:
            feed.fetcher.go_on()

    def kept_back(self) -> int:
        """Slots that are not to be filled by reads: one for a reclaim that is due, and all while outcomes pile up."""
        held = sum(len(feed.fetcher.hand.held) for feed in self.feeds)
        running = sum(len(feed.running) for feed in self.feeds)
        aside = sum(len(feed.fetcher.aside) for feed in self.feeds)
        unsettled = held - self.lane.waiting - running - aside
        return max(unsettled - self._most_jobs, 0) + any(feed.fetcher.reclaim_is_due for feed in self.feeds)

    def buried(self, stream: int, dead: Mapping[str, Reason]) -> None:
        """Entries were dead-lettered before they became jobs of this worker."""
        spec = self.feeds[stream].source.spec
        name, group = spec.keys.name, spec.options.group
        for entry_id, reason in dead.items():
            self._hooks.tell("dead_lettered", Buried(stream=name, group=group, entry_id=entry_id, reason=reason))

    def reached(self, source: str) -> None:
        """The server answered."""
        if self._watch.succeeded(source):
            log.event(_log, logging.INFO, "worker is healthy again", consumer=self.consumer)
            self._hooks.tell("healthy")

    def failed(self, source: str, error: StreamqError) -> None:
        """The server could not be reached, or refused."""
        if self._watch.failed(source, str(error)):
            log.event(_log, logging.ERROR, "worker is unhealthy", consumer=self.consumer, error=error)
            self._hooks.tell("unhealthy", str(error))

    def reclaiming(self, stream: int, *, under_way: bool) -> None:
        """A reclaim begins, or what it claimed is noted."""
        if self.journal is not None:
            self.journal.reclaiming(stream, under_way)

    def poke(self) -> None:
        """Look for jobs to take over at once."""
        for feed in self.feeds:
            feed.fetcher.poke()

    # Leases; called in the heartbeats' threads

    def _renewable(self, place: int) -> list[Held]:
        fetcher = self.feeds[place].fetcher
        return [
            Held(job.entry_id, job.deliveries)
            for job in list(fetcher.hand.held.values())
            if job.entry_id not in fetcher.hand.starting and not job.lease_lost
        ]

    def _found_lost(self, place: int, held: Held, fence: Fence) -> None:
        feed = self.feeds[place]
        job = feed.fetcher.hand.held.get(held.entry_id)
        # Settled or started while the beat was under way: what it saw is not what is.
        if job is None or job.deliveries != held.count or held.entry_id in feed.fetcher.hand.starting:
            return
        if fence is Fence.GONE and held.entry_id not in feed.running:
            return  # being settled right now
        job.lease_lost = True
        stream = feed.name
        log.event(_log, logging.WARNING, "lease lost", stream=stream, **log.about(job), found=fence.name.lower())
        self._loop.call_soon_threadsafe(self._cancel, feed, held.entry_id)

    def _cancel(self, feed: Feed, entry_id: str) -> None:
        """Cancel a call whose leases are all lost. A thread cannot be cancelled: it is told, and keeps its slot."""
        task = feed.running.get(entry_id)
        jobs = [feed.fetcher.hand.held.get(i) for i, other in feed.running.items() if other is task]
        if (
            isinstance(task, asyncio.Task)
            and feed.source.dispatcher.is_async
            and all(job is None or job.lease_lost for job in jobs)
        ):
            self._loop.call_soon(task.cancel)  # not before its first step, which would leave it to no `finally`

    # The end

    async def _finish(self, reading: Sequence[asyncio.Task[None]], working: Sequence[asyncio.Task[None]]) -> None:
        """Give back what has not started, let the rest end, settle it: all of it within `drain`, and a second of grace."""
        deadline = self._now() + self._drain_s
        self.changed()
        await asyncio.gather(*(f.fetcher.end_reading(task) for f, task in zip(self.feeds, reading, strict=True)))
        await asyncio.wait(working, timeout=1.0)
        await roles.cancelled(working)
        await asyncio.gather(*(self._give_back(feed) for feed in self.feeds))
        await self._drained(deadline)
        await asyncio.gather(*(self._leave(feed, deadline) for feed in self.feeds))

    async def _give_back(self, feed: Feed) -> None:
        # A server that does not answer: the leases bring the jobs back, and the token has its time.
        with contextlib.suppress(TimeoutError, StreamqError):
            await asyncio.wait_for(feed.fetcher.hand_over(), timeout=1.0)

    async def _leave(self, feed: Feed, deadline: float) -> None:
        if not feed.fetcher.opened.is_set():
            return
        try:
            await asyncio.wait_for(feed.settler.flushed(), timeout=max(deadline - self._now(), 1.0))
            await asyncio.wait_for(feed.fetcher.leave(), timeout=1.0)
        except (TimeoutError, StreamqError):
            pass
        if left := len(feed.fetcher.hand.held):
            log.event(_log, logging.ERROR, "jobs are left to their leases", stream=feed.name, jobs=left)

    async def _drained(self, deadline: float) -> None:
        while any(feed.running for feed in self.feeds) and self._now() < deadline:
            self._change.clear()
            await roles.until_any(self._change, limit_s=deadline - self._now())
        # Cancelled and released. A thread cannot be stopped, so its job is left to its lease: it may still be at work.
        await roles.cancelled([task for feed in self.feeds if feed.source.dispatcher.is_async for task in feed.tasks])

    async def _end_beats(self) -> None:
        for feed in self.feeds:
            feed.beat.stop()
        deadline = self._now() + 1.0
        while any(feed.beat.is_running for feed in self.feeds) and self._now() < deadline:  # noqa: ASYNC110  # threads
            await asyncio.sleep(0.005)  # a beat under way may wait for the server; it ends by itself

    # Small things

    async def changes(self, limit_s: float | None) -> bool:
        """Wait for the next change, or the stop; False if the time was over first. What was before, the caller has seen."""
        self._change.clear()
        return await roles.until_any(
            self._change, self.stopping, limit_s=limit_s if limit_s is None else max(limit_s, 0.0)
        )

    def _now(self) -> float:
        return self._loop.time()


def _begin_task(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """A task of `work`. From Python 3.12 it has run already up to its first wait, which many handlers never come to."""
    if sys.version_info >= (3, 12):
        return asyncio.Task(work, loop=loop, eager_start=True)
    return loop.create_task(work)
