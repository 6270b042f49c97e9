"""One run of a worker: starts what is in hand, lets it end, and keeps every role at work until the stop."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from streamq._drivers.asynchronous import AsyncDriver
from streamq._scripts import Fence, Held
from streamq._spec import Spec
from streamq.connection import Settings
from streamq.errors import ConfigurationError, StreamqError
from streamq.messages import Job, Reason
from streamq.worker.dispatch import Dispatcher, Outcome
from streamq.worker.fetch import RECONNECT, Fetcher, patience_s
from streamq.worker.health import State, Watch
from streamq.worker.heartbeat import Heartbeat
from streamq.worker.hooks import Buried, HookList
from streamq.worker.journal import Journal, NoteState
from streamq.worker.lane import Call, Lane, Line, Ticket
from streamq.worker.settle import Fate, Settlement, Settler

ROLE_FAILURES = 10
ROLE_FAILURES_S = 60
"""A role that fails so often by a mistake of ours, each time within a minute, ends the worker."""

PULSE_S = 5.0
"""An event loop that has not come round for three of these is blocked."""

REMEMBERED = 1_000
"""Most jobs of which it is known that they were given back because they could not run alone soon."""

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
    running: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    """Entry ID -> the call that handles it."""


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
        about: Who this worker is, for `inspect`.
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
        about: bytes,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.consumer = consumer
        self.prefetch = prefetch
        self.is_solo = is_solo
        self.stopping = asyncio.Event()
        self.stuck = 0
        self._uncounted = 0
        self._alive_at = self._loop.time()
        self._drain_s = drain_s
        self._hooks = hooks
        self._watch = watch
        self._journal = journal
        self._about = about
        self._change = asyncio.Event()
        self._patience_s = min(patience_s(source.spec) for source in sources)
        self.last_patience_ms = round(self._patience_s * 1000) if leaves_last else 0
        self.lane = Lane(slots, [source.line for source in sources], patience_s=self._patience_s)
        self._most_jobs = slots * max(source.line.batch for source in sources)
        self._gave_up: OrderedDict[str, int] = OrderedDict()
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
        return Feed(source, driver, fetcher, settler, beat)

    async def run(self) -> None:
        """Work until `stopping` is set, then end in good order; cancelled, end at once."""
        roles: list[asyncio.Task[None]] = []
        settling = [self._role(f"settle {f.source.spec.keys.name}", f.settler.run) for f in self.feeds]
        settling.append(self._role("pulse", self._pulse))
        try:
            reading = [self._role(f"read {f.source.spec.keys.name}", partial(self._read, f)) for f in self.feeds]
            roles += reading
            roles += [self._role(f"maintain {f.source.spec.keys.name}", f.fetcher.maintain) for f in self.feeds]
            roles += [self._role("start", self._start_jobs), self._role("last chance", self._last_chances)]
            try:
                await self._or_failure(self.stopping.wait(), [*settling, *roles])
                self.stopping.set()
                await self._or_failure(self._finish(reading, roles), settling)
            finally:
                await self._end_beats()
        finally:
            await _cancelled([*roles, *settling, *(task for feed in self.feeds for task in feed.running.values())])
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
        """Show that the event loop comes round."""
        while True:
            self._alive_at = self._now()
            await asyncio.sleep(PULSE_S)

    # Roles

    def _role(self, name: str, work: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        return asyncio.create_task(self._keep_at(name, work), name=f"streamq-{name}")

    async def _keep_at(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Do a background role. One that fails by a mistake of ours begins again, and if that does not help, ends the worker."""
        failures = 0
        while True:
            began = self._now()
            try:
                await work()
            except ConfigurationError:
                raise  # not ours, but the user's: the stream cannot be used
            except Exception:
                failures = failures + 1 if self._now() < began + ROLE_FAILURES_S else 1
                _log.exception("role '%s' failed (%d in a row)", name, failures)
                if failures >= ROLE_FAILURES:
                    raise
                await asyncio.sleep(RECONNECT.delay_ms(failures, random.random()) / 1000)  # noqa: S311  # jitter
            else:
                return

    async def _or_failure(self, work: Awaitable[Any], roles: Sequence[asyncio.Task[None]]) -> None:
        """Await `work`; if a role ends first, which it never should, end loudly with its error."""
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait([task, *roles], return_when=asyncio.FIRST_COMPLETED)
            if not task.done() and not self.stopping.is_set():
                await next(role for role in roles if role.done())
                raise RuntimeError("a background role of the worker ended by itself")
            await task
        finally:
            task.cancel()

    # What starts

    async def _start_jobs(self) -> None:
        while not self.stopping.is_set():
            self._change.clear()
            self._start_some()
            now = self._now()
            again_at = self.lane.next_change(now)
            if not await self._changes(None if again_at is None else again_at - now):
                self.changed()  # by time alone

    def _start_some(self) -> None:
        to_count: dict[int, list[Call]] = {}
        for call in self.lane.start(self._now()):
            if self._is_ours(call):
                if all(ticket.standing.is_counted for ticket in call.tickets):
                    self._begin(call)
                else:
                    to_count.setdefault(call.stream, []).append(call)
        for place, calls in to_count.items():
            task = asyncio.create_task(self._count_and_begin(self.feeds[place], calls), name="streamq-count-starts")
            for call in calls:
                self._set_task(call, task)

    def _is_ours(self, call: Call) -> bool:
        """Leave out of a call what has lost its lease while it waited; False, and it is over, if nothing is left."""
        for ticket in call.tickets:
            if ticket.job.lease_lost:
                self.feeds[ticket.stream].fetcher.drop(ticket.job.entry_id)
        return self._keep_only(call, [ticket for ticket in call.tickets if not ticket.job.lease_lost])

    def _keep_only(self, call: Call, tickets: list[Ticket]) -> bool:
        if tickets:
            call.tickets = tickets
        else:
            self.lane.ended(call, passed=False)
            self.changed()
        return bool(tickets)

    async def _count_and_begin(self, feed: Feed, calls: list[Call]) -> None:
        """Count the starts of reclaimed jobs and begin their handlers, with nothing in between."""
        uncounted = [ticket for call in calls for ticket in call.tickets if not ticket.standing.is_counted]
        try:
            started = set(await feed.fetcher.count_starts(uncounted))
            self._uncounted = 0
        except StreamqError as error:
            self._uncounted += 1
            _log.warning("stream %s: starts were not counted: %s", feed.source.spec.keys.name, error)
            await asyncio.sleep(RECONNECT.delay_ms(self._uncounted, random.random()) / 1000)  # noqa: S311  # jitter
            for call in calls:
                self._set_task(call, None)
                self.lane.put_back(call)
            self.changed()
            return
        for call in calls:
            self._set_task(call, None)
            if self._keep_only(call, [t for t in call.tickets if t.standing.is_counted or t in started]):
                self._begin(call)

    def _begin(self, call: Call) -> asyncio.Task[None]:
        jobs = [ticket.job for ticket in call.tickets]
        task = asyncio.create_task(self._work(call, jobs), name=f"streamq-job-{jobs[0].entry_id}")
        self._set_task(call, task)
        for job in jobs:
            self.note(call.stream, job.entry_id, job.deliveries, NoteState.STARTED)
        return task

    def _set_task(self, call: Call, task: asyncio.Task[None] | None) -> None:
        running = self.feeds[call.stream].running
        for ticket in call.tickets:
            if task is None:
                running.pop(ticket.job.entry_id, None)
            else:
                running[ticket.job.entry_id] = task

    async def _work(self, call: Call, jobs: list[Job[Any]]) -> None:
        feed = self.feeds[call.stream]
        dispatcher = feed.source.dispatcher
        outcomes: list[Outcome[Any]] = []
        try:
            for job in jobs:
                self._hooks.tell("started", job)
            outcomes = await dispatcher.run_batch(jobs) if dispatcher.is_batch else [await dispatcher.run(jobs[0])]
        finally:
            self._set_task(call, None)
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
        job = settlement.outcome.job
        self.feeds[place].fetcher.drop(job.entry_id)
        self.changed()
        match settlement.fate:
            case Fate.SUCCEEDED:
                self._hooks.tell("succeeded", job)
            case Fate.RETRIED:
                self._hooks.tell("retried", job, settlement.error)
            case Fate.DEAD:
                stream = self.feeds[place].source.spec.keys.name
                assert settlement.reason is not None  # noqa: S101  # what is dead has one
                self._hooks.tell(
                    "dead_lettered",
                    Buried(
                        stream=stream,
                        entry_id=job.entry_id,
                        job_id=job.id,
                        reason=settlement.reason,
                        error=settlement.error,
                        job=job,
                    ),
                )
            case Fate.RELEASED:
                self._hooks.tell("released", job)
            case Fate.LOST:
                self._hooks.tell("lease_lost", job)

    # The one with a single start left

    async def _last_chances(self) -> None:
        while not self.stopping.is_set():
            self._change.clear()
            ticket = self.lane.last
            if ticket is None or self.lane.has_suspects:
                await self._changes(None)
                continue
            self.lane.is_closed = True
            try:
                await self._run_alone(ticket)
            finally:
                self.lane.is_closed = False
                self.changed()

    async def _run_alone(self, ticket: Ticket) -> None:
        """Run a job with nothing beside it: others end first, outcomes are settled, and what waits is given back."""
        feed, entry_id = self.feeds[ticket.stream], ticket.job.entry_id
        for other in self.feeds:
            await other.fetcher.quiet()
        if not await self._until_alone(entry_id):
            await feed.fetcher.release_last()
            return
        for other in self.feeds:
            await other.settler.tried()
            await other.fetcher.give_back()
        if self.stopping.is_set() or feed.fetcher.is_paused or ticket.job.lease_lost:
            await feed.fetcher.release_last()
            return
        call = self.lane.start_last()
        assert call is not None  # noqa: S101  # it is ours, and nobody else takes it out
        await self._count_and_begin(feed, [call])
        while entry_id in feed.running:
            await asyncio.wait([feed.running[entry_id]])
        await feed.settler.tried()

    async def _until_alone(self, entry_id: str) -> bool:
        """Wait until nothing runs; False if that takes too long. Who comes for the third time waits as long as it takes."""
        tries = self._gave_up.get(entry_id, 0)
        deadline = self._now() + self._patience_s
        while self.lane.running and not self.stopping.is_set():
            self._change.clear()
            if tries >= 2:  # noqa: PLR2004  # the third time
                await self._changes(None)
            elif not await self._changes(deadline - self._now()):
                self._gave_up[entry_id] = tries + 1
                self._gave_up.move_to_end(entry_id)
                if len(self._gave_up) > REMEMBERED:
                    self._gave_up.popitem(last=False)
                return False
        self._gave_up.pop(entry_id, None)
        return not self.stopping.is_set()

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
        """Something may start, or be read, that could not before."""
        self._change.set()
        for feed in self.feeds:
            feed.fetcher.go_on()

    def kept_back(self) -> int:
        """Slots that are not to be filled by reads: one for a reclaim that is due, and all while outcomes pile up."""
        held = sum(len(feed.fetcher.held) for feed in self.feeds)
        running = sum(len(feed.running) for feed in self.feeds)
        unsettled = held - self.lane.waiting - running
        return max(unsettled - self._most_jobs, 0) + any(feed.fetcher.is_due for feed in self.feeds)

    def buried(self, stream: int, dead: Mapping[str, Reason]) -> None:
        """Entries were dead-lettered before they became jobs of this worker."""
        name = self.feeds[stream].source.spec.keys.name
        for entry_id, reason in dead.items():
            self._hooks.tell("dead_lettered", Buried(stream=name, entry_id=entry_id, reason=reason))

    def reached(self, source: str) -> None:
        """The server answered."""
        if self._watch.succeeded(source):
            _log.info("worker %s is healthy again", self.consumer)
            self._hooks.tell("healthy")

    def failed(self, source: str, error: StreamqError) -> None:
        """The server could not be reached, or refused."""
        if self._watch.failed(source, str(error)):
            _log.error("worker %s is unhealthy: %s", self.consumer, error)
            self._hooks.tell("unhealthy", str(error))

    def note(self, stream: int, entry_id: str, count: int, state: NoteState) -> None:
        """Keep in the journal how far a job is."""
        if self._journal is not None:
            self._journal.note(stream, entry_id, count, state)

    def forget(self, stream: int, entry_id: str) -> None:
        """Take a job out of the journal."""
        if self._journal is not None:
            self._journal.forget(stream, entry_id)

    def reclaiming(self, stream: int, *, under_way: bool) -> None:
        """A reclaim begins, or what it claimed is noted."""
        if self._journal is not None:
            self._journal.reclaiming(stream, under_way)

    def beat(self) -> bytes:
        """Who this worker is, for `inspect`."""
        return self._about

    def poke(self) -> None:
        """Look for jobs to take over at once."""
        for feed in self.feeds:
            feed.fetcher.poke()

    # Leases; called in the heartbeats' threads

    def _renewable(self, place: int) -> list[Held]:
        fetcher = self.feeds[place].fetcher
        return [
            Held(job.entry_id, job.deliveries)
            for job in list(fetcher.held.values())
            if job.entry_id not in fetcher.starting and not job.lease_lost
        ]

    def _found_lost(self, place: int, held: Held, fence: Fence) -> None:
        feed = self.feeds[place]
        job = feed.fetcher.held.get(held.entry_id)
        # Settled or started while the beat was under way: what it saw is not what is.
        if job is None or job.deliveries != held.count or held.entry_id in feed.fetcher.starting:
            return
        if fence is Fence.GONE and held.entry_id not in feed.running:
            return  # being settled right now
        job.lease_lost = True
        _log.warning("job %s (entry %s): lease lost (%s)", job.id, job.entry_id, fence.name.lower())
        self._loop.call_soon_threadsafe(self._cancel, feed, held.entry_id)

    def _cancel(self, feed: Feed, entry_id: str) -> None:
        """Cancel a call whose leases are all lost. A thread cannot be cancelled: it is told, and keeps its slot."""
        task = feed.running.get(entry_id)
        jobs = [feed.fetcher.held.get(i) for i, other in feed.running.items() if other is task]
        if task is not None and feed.source.dispatcher.is_async and all(job is None or job.lease_lost for job in jobs):
            task.cancel()

    # The end

    async def _finish(self, reading: Sequence[asyncio.Task[None]], roles: Sequence[asyncio.Task[None]]) -> None:
        """Give back what has not started, let the rest end, settle it: all of it within `drain`, and a second of grace."""
        deadline = self._now() + self._drain_s
        self.changed()
        await asyncio.gather(*(f.fetcher.end_reading(task) for f, task in zip(self.feeds, reading, strict=True)))
        await asyncio.wait(roles, timeout=1.0)
        await _cancelled(roles)
        for feed in self.feeds:
            await feed.fetcher.give_back()
        await self._drained(deadline)
        for feed in self.feeds:
            if not feed.fetcher.opened.is_set():
                continue
            try:
                await asyncio.wait_for(feed.settler.flushed(), timeout=max(deadline - self._now(), 1.0))
                await asyncio.wait_for(feed.fetcher.leave(), timeout=1.0)
            except (TimeoutError, StreamqError):
                if feed.fetcher.held:
                    name = feed.source.spec.keys.name
                    _log.error("stream %s: %d jobs come back by their leases", name, len(feed.fetcher.held))

    async def _drained(self, deadline: float) -> None:
        def running(*, only_async: bool = False) -> list[asyncio.Task[None]]:
            feeds = [feed for feed in self.feeds if feed.source.dispatcher.is_async or not only_async]
            return [task for feed in feeds for task in feed.running.values()]

        while (tasks := running()) and self._now() < deadline:
            await asyncio.wait(tasks, timeout=deadline - self._now())
        # Cancelled and released. A thread cannot be stopped, so its job is left to its lease: it may still be at work.
        await _cancelled(running(only_async=True))

    async def _end_beats(self) -> None:
        for feed in self.feeds:
            feed.beat.stop()
        deadline = self._now() + 1.0
        while any(feed.beat.is_running for feed in self.feeds) and self._now() < deadline:  # noqa: ASYNC110  # threads
            await asyncio.sleep(0.005)  # a beat under way may wait for the server; it ends by itself

    # Small things

    async def _changes(self, limit_s: float | None) -> bool:
        """Wait for a change, or the stop; False if the time was over first."""
        waits = [asyncio.ensure_future(self._change.wait()), asyncio.ensure_future(self.stopping.wait())]
        try:
            left = None if limit_s is None else max(limit_s, 0.0)
            done, _ = await asyncio.wait(waits, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return bool(done)

    def _now(self) -> float:
        return self._loop.time()


async def _cancelled(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Cancel tasks, and again while one turns the cancel into something else, but for a second only: a handler may ignore it."""
    left = set(tasks)
    for _ in range(10):
        left = {task for task in left if not task.done()}
        if not left:
            return
        for task in left:
            task.cancel()
        await asyncio.wait(left, timeout=0.1)
