"""One run of a worker: starts what is in hand, lets it end, and keeps every role at work until the stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from streamq._scripts import Fence, Held
from streamq.errors import StreamqError
from streamq.messages import Reason
from streamq.worker import log, roles
from streamq.worker.feed import Feed, Source
from streamq.worker.fetch import Fetcher, patience_s
from streamq.worker.health import State, Watch
from streamq.worker.heartbeat import Heartbeat
from streamq.worker.hooks import Buried, HookList
from streamq.worker.journal import Journal
from streamq.worker.lane import Lane
from streamq.worker.last_chance import LastChance
from streamq.worker.settle import Fate, Settlement, Settler, tell
from streamq.worker.starter import Starter

PULSE_S = 5.0
"""An event loop that has not come round for three of these is blocked."""

_log = logging.getLogger("streamq.worker")


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
        self.feeds: list[Feed] = []
        self.starter = Starter(self.lane, self.feeds, hooks, self.changed)
        self.feeds += [self._feed(place, source, block_ms) for place, source in enumerate(sources)]

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
        return Feed(source, driver, fetcher, settler, beat, partial(self.starter.came_back, place))

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
            self.starter.forget_threads()
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
        """Begin what may start, at once."""
        if not self.stopping.is_set():
            self.starter.start()

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
        if self.starter.stuck >= self.lane.slots:
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
        self._loop.call_soon_threadsafe(self.starter.cancel, feed, held.entry_id)

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
