"""What comes in, for one stream of a worker: reads, recovers, reclaims, and gives back what cannot start."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable
from typing import Any

from streamq._drivers.asynchronous import AsyncDriver
from streamq._flows import intake, opening
from streamq._ops import consumers, lease, pause, settle
from streamq._scripts import Fence, Held
from streamq._scripts_upkeep import Role
from streamq._spec import Spec
from streamq.errors import ConfigurationError, ConnectionLostError, ServerError, StreamqError
from streamq.messages import Job, Reason
from streamq.worker import log, maintenance, roles
from streamq.worker.grace import Grace
from streamq.worker.hand import Hand
from streamq.worker.lane import Standing, Ticket
from streamq.worker.post import Post
from streamq.worker.timer import Timer

LOOK_S = 1.4
"""How long it is believed that the stream is not paused: with a look that old, nothing starts 2 s after a pause."""

AT_ONCE = 256
"""Most jobs of one read. While they run, the server works on the next: one read for all would leave one of the two idle."""

FEW = 8
"""So few jobs of one read begin before the next read is sent: an idle worker should start them soon. Of more, the server works
on the next read while they begin."""

_log = logging.getLogger("streamq.worker")
_MISSING: Reason = "entry_missing"


def patience_s(spec: Spec[Any]) -> float:
    """How long what is in hand may wait for a slot, or for being alone, before it is given back to others."""
    return min(spec.options.lease_ms / 1000, 30.0)


class Fetcher:
    """Fills the lane with jobs of one stream.

    Args:
        place: Of the stream in the worker.
        spec: The stream.
        driver: To run the plans.
        post: The worker.
        block_ms: Longest wait of one read.

    Attributes:
        hand: The jobs of this stream that are this worker's.
        aside: Jobs whose start could not be counted, and what waited behind them, until the server answers again.
        is_paused: Whether the stream was paused when last looked at.
        is_reading: Whether a read is on its way.
        opened: Set once the stream was found fit, and its groups were made.
        tried: Set once the first try to open it has ended, one way or the other.
        room: Set when there may be room for more.
        timer: Moves what is due into the stream.
        reclaim_is_due: Whether the next free slot is kept for a reclaim: a backlog must not starve what a dead process left.
    """

    def __init__(self, place: int, spec: Spec[Any], driver: AsyncDriver, post: Post, *, block_ms: int) -> None:
        self.place = place
        self.hand = Hand(place, post.journal)
        self.aside: list[Ticket] = []
        self.is_paused = False
        self.is_reading = False
        self.opened = roles.Flag()
        self.tried = roles.Flag()
        self.room = roles.Flag()
        self._spec = spec
        self._driver = driver
        self._post = post
        self._lane = post.lane
        self._beat = maintenance.beat(spec, post.about)
        self._block_ms = block_ms
        self._looked_at = float("-inf")
        self._grace = Grace(spec.options.lease_ms / 1000, self._now())
        self._failures: dict[str, int] = {}
        self._lost_reply = False
        self._lost_reclaim = False
        self._more = False
        self.reclaim_is_due = False
        self.timer = Timer(spec, driver, post)
        self._poked = roles.Flag()
        self._exchanging = asyncio.Lock()  # what is claimed or given back just now must not be taken for lost

    async def open(self) -> None:
        """Wait until the server answers, then see that the stream can be used, and make its groups.

        Raises:
            ConfigurationError: It cannot be used.
            MigrationError: Another version stored it.
        """
        while not self._post.stopping.is_set():
            try:
                await self._driver.run(opening.worker(self._spec))
            except (ConnectionLostError, ServerError) as error:
                self.tried.set()
                # Unreachable, or refusing for now (memory is full, no replicas, a failover): a worker outlasts both.
                await self._outlast(error, "read", "cannot be opened yet")
            else:
                self._reached("read")
                await self._look()
                await self._warn()
                self.tried.set()
                self.opened.set()
                return

    async def until_tried(self) -> None:
        """Wait for the end of the first try to open the stream, or the worker's stop."""
        await self._until(self.tried)

    # Reading

    async def read(self) -> None:
        """Read while there is room, until the worker stops."""
        while not self._post.stopping.is_set():
            try:
                if self._lost_reply:
                    if self._is_old():
                        await self._look()
                    if not self.is_paused:  # else at its end
                        await self._recover()
                        self._reached("read")
                await self._read()
            except StreamqError as error:
                self._lost_reply = True
                self._lane.turns.found(self.place, more=False)
                await self._outlast(error, "read", "cannot be read")

    async def _read(self) -> None:
        self.room.clear()
        kept = self._post.kept_back()
        room = self._lane.room(self.place, self._now(), ahead=self._post.prefetch, kept=kept)
        if self.is_paused or self._post.is_solo or not room:
            if self._failures.get("read"):
                self._reached("read")  # what was lost is recovered, and there is nothing else to ask
            await self._until(self.room)
            return
        count = min(room, AT_ONCE)
        block_ms = 0 if self._lane.turns.competes(self.place) else self._block_ms
        plan = intake.read_once(self._spec, self._post.consumer, count=count, block_ms=block_ms)
        asked_at = self._now()
        self.is_reading = True
        try:
            taken = await self._driver.run(plan)
        finally:
            self.is_reading = False
        self._reached("read")
        self._lane.turns.found(self.place, more=len(taken.jobs) >= count and not self.is_paused)
        tickets = self._hold(taken.jobs, lambda _: Standing.NEW)
        self._post.buried(self.place, taken.dead)
        if tickets and self._is_old():
            await self._look()
        if self.is_paused:
            await self._release(tickets)
        else:
            self._keep(await self._still_ours(tickets, asked_at))
            if len(tickets) <= FEW:
                self._post.start()

    async def _look(self) -> None:
        """See whether the stream is paused, after a wait in which it may have been."""
        looked_at = self._now()
        try:
            paused = await self._driver.run(pause.is_paused(self._spec))
        except StreamqError:
            return  # the next request tells
        self._looked(paused, looked_at)

    def _is_old(self) -> bool:
        """Whether the last look for a pause says nothing any more."""
        return self._now() > self._looked_at + LOOK_S

    async def _warn(self) -> None:
        try:
            await self._driver.run(opening.warn_of_eviction(self._spec))
        except StreamqError:
            return  # the next request tells

    def _looked(self, paused: bool, at: float) -> None:  # noqa: FBT001
        self._looked_at = at
        if paused is not self.is_paused:
            self.is_paused = paused
            if paused:
                self._lane.turns.found(self.place, more=False)  # nobody waits for the turn of one that takes none
                self._post.changed()
            self._event(logging.INFO, "stream is paused" if paused else "stream is resumed")

    async def _recover(self) -> None:
        """Take up what a request without reply left with us.

        A read has charged its jobs one delivery, so they only need a slot. What a reclaim claimed is not charged yet, and
        a job with more deliveries can only come from a reclaim.
        """
        async with self._exchanging:
            while True:
                plan = intake.recover(self._spec, self._post.consumer, self.hand.known)
                taken = await self._driver.run(plan)
                refused = self._keep(self._hold(taken.jobs, self._standing_of_lost))
                self._post.buried(self.place, taken.dead)
                if not await self._release_now(refused):
                    return  # they are with us still: again later
                if not taken.jobs:
                    self._lost_reply = self._lost_reclaim = False
                    self._post.reclaiming(self.place, under_way=False)
                    return

    def _standing_of_lost(self, job: Job[Any]) -> Standing:
        is_reclaimed = self._lost_reclaim or job.deliveries != 1
        return self._standing_of_reclaimed(job) if is_reclaimed else Standing.NEW

    def _standing_of_reclaimed(self, job: Job[Any]) -> Standing:
        return Standing.of_reclaimed(job.deliveries, self._spec.options.max_deliveries)

    def _hold(self, jobs: Iterable[Job[Any]], standing: Callable[[Job[Any]], Standing]) -> list[Ticket]:
        """Jobs are ours from now on: their leases are renewed, and the journal knows them."""
        now = self._now()
        tickets = [Ticket(self.place, job, standing(job), now) for job in jobs]
        self.hand.take(tickets)
        return tickets

    async def _still_ours(self, tickets: list[Ticket], asked_at: float) -> list[Ticket]:
        """Leave out what others may have by now: the event loop stood still, and the server's answer waited meanwhile."""
        if not tickets or self._post.stalled_at < asked_at:
            return tickets
        held = [Held(ticket.job.entry_id, ticket.job.deliveries) for ticket in tickets]
        try:
            found = await self._driver.run(lease.renew(self._spec, self._post.consumer, held))
        except StreamqError:
            return tickets  # the fence protects their end
        for ticket in tickets:
            if found[ticket.job.entry_id] is not Fence.MINE:
                self.hand.drop(ticket.job.entry_id)
        return [ticket for ticket in tickets if found[ticket.job.entry_id] is Fence.MINE]

    def _keep(self, tickets: Iterable[Ticket]) -> list[Ticket]:
        """Hand jobs to the lane; returns those that it cannot keep."""
        self._post.changed()
        return [ticket for ticket in tickets if not self._lane.put(ticket)]

    async def end_reading(self, task: asyncio.Task[None]) -> None:
        """Let a read that waits be answered at once, so that no reply is abandoned, and wait for its end."""
        deadline = self._now() + self._block_ms / 1000 + 0.1
        while not task.done():
            try:
                may = await asyncio.wait_for(self._driver.interrupt(), 0.5)
            except (StreamqError, TimeoutError):
                break  # unreachable: there is no reply to wait for
            await asyncio.wait([task], timeout=0.02 if may else max(deadline - self._now(), 0.0))
            if self._now() > deadline:
                break
        if not task.done():
            task.cancel()
            self._lost_reply = True
            await asyncio.wait([task], timeout=1.0)

    async def quiet(self) -> None:
        """Let a read that waits be answered at once; what it brings is kept. Ends in any case after a second."""
        deadline = self._now() + 1.0
        while self.is_reading and self._now() < deadline:
            try:
                await asyncio.wait_for(self._driver.interrupt(), 0.5)
            except (StreamqError, TimeoutError):
                return
            await asyncio.sleep(0.01)

    # Maintenance

    async def maintain(self) -> None:
        """Tick until the worker stops: see whether the stream is paused, do what is this worker's turn, reclaim."""
        await self._until(self.opened)
        while not self._post.stopping.is_set():
            try:
                await self._tick()
                await self._reclaim_until(self._now() + self._interval())
            except StreamqError as error:
                self.reclaim_is_due = False
                await self._outlast(error, "maintain", "cannot be looked after")

    def _interval(self) -> float:
        tick_s = maintenance.tick_ms(self._spec.options.lease_ms) / 1000
        return tick_s * random.uniform(1.0, 1.25)  # noqa: S311  # fleets must not march in step

    async def _tick(self) -> None:
        looked_at = self._now()
        may_reclaim = self._lane.wants() > 0
        plan = maintenance.tick(
            self._spec, self._post.consumer, may_reclaim=may_reclaim, is_solo=self._post.is_solo, beat=self._beat
        )
        found = await self._driver.run(plan)
        self._reached("maintain")
        self._looked(found.paused, looked_at)
        self.timer.told(has_token=Role.PROMOTE in found.roles, paused=found.paused, wait_ms=found.wait_ms)
        self._grace.answered(self._now())
        is_early = self._grace.holds(self._now())
        reclaims = not is_early and any(role.reclaims for role in found.roles)
        self.reclaim_is_due = not self.is_paused and not is_early and (reclaims or not may_reclaim)
        if self.is_paused:
            await self.give_back()
            self._more = False
        else:
            self._post.changed()
            await self.give_back(older_than=self._now() - patience_s(self._spec))
            await self._take_up()
            if reclaims:
                await self._reclaim()
                self.reclaim_is_due = False
                self._post.changed()
        try:
            await self._driver.run(maintenance.upkeep(self._spec, found.roles))
        except (ServerError, ConfigurationError) as error:
            self._event(logging.WARNING, "upkeep was refused, reading goes on", error=error)

    def poke(self) -> None:
        """Somebody gave jobs back: look for them at once."""
        self._more = True
        self._poked.set()

    def go_on(self) -> None:
        """Something has changed that a read or a reclaim may have waited for."""
        self.room.set()
        if self._more or self.reclaim_is_due:
            self._poked.set()

    async def _reclaim_until(self, deadline: float) -> None:
        """Wait for the next tick. After a page that was cut short by full slots go on as slots come free.

        A tick that found no slot for a reclaim is done again as soon as there is one. And while jobs wait here that a pause
        must stop, or more are taken over, a tick looks for it in time.
        """
        while not self._post.stopping.is_set() and self._now() < deadline:
            self._poked.clear()
            if self.aside:
                await self._until(None, roles.pause_s(max(self._failures["start"], 1)))
                return
            if self.reclaim_is_due and self._lane.wants():
                return
            is_early = self._grace.holds(self._now())
            goes_on = self._more and not self.is_paused and not is_early and self._lane.wants() > 0
            if self._is_old() and (goes_on or self._lane.waits(self.place)):
                return
            if goes_on:
                await self._reclaim()
            else:
                until = deadline if self._is_old() else min(deadline, self._looked_at + LOOK_S + 0.01)
                await self._until(self._poked, until - self._now())

    async def _reclaim(self) -> None:
        count = self._lane.wants()
        if not count:
            return
        async with self._exchanging:
            self._more = False
            self._post.reclaiming(self.place, under_way=True)
            try:
                plan = maintenance.reclaim(
                    self._spec,
                    self._post.consumer,
                    count=count,
                    exclude=list(self.hand.held),
                    is_solo=self._post.is_solo,
                    last_patience_ms=self._post.last_patience_ms,
                )
                answer = await self._driver.run(plan)
            except (StreamqError, asyncio.CancelledError) as error:
                self._lost_reclaim = self._lost_reply = True
                self._post.changed()
                if isinstance(error, StreamqError):
                    await self.quiet()  # the reader recovers what was claimed; after a cancel, `leave` does
                raise
            refused = self._keep(self._hold(answer.claimed, self._standing_of_reclaimed))
            # A page brings one that must run alone, and passes over others: look for the next as soon as it has ended.
            self._more = answer.more or self._lane.last is not None
            self._post.reclaiming(self.place, under_way=False)
            self._post.buried(self.place, {**answer.reasons, **dict.fromkeys(answer.missing, _MISSING)})
            await self._release_now(refused)
        if not answer.claimed and not answer.more:
            self._lane.drained()

    # Starting and giving back

    async def count_starts(self, tickets: list[Ticket]) -> list[Ticket]:
        """Count the starts of reclaimed jobs; those that are ours still, whose handlers must begin now.

        Raises:
            StreamqError: They may have been counted. A start names its target, so it can be asked for again.
        """
        ours = []
        for ticket in tickets:
            job = ticket.job
            if job.lease_lost:
                self.hand.drop(job.entry_id)
            else:
                ours.append(ticket)
                self.hand.begin_start(job)
        targets = [Held(ticket.job.entry_id, ticket.job.deliveries + 1) for ticket in ours]
        asked_at = self._now()
        fences = await self._driver.run(lease.start(self._spec, self._post.consumer, targets))
        self._failures["start"] = 0
        started = []
        for ticket, fence in zip(ours, fences, strict=True):
            if fence is Fence.MINE:
                self.hand.start_counted(ticket.job)
                started.append(ticket)
            else:
                self.hand.drop(ticket.job.entry_id)
        return await self._still_ours(started, asked_at)

    def set_aside(self) -> None:
        """Let nothing wait in the lane whose start cannot be counted: it would hold up the other streams' jobs."""
        self._failures["start"] = self._failures.get("start", 0) + 1
        last = self._lane.take_last(self.place)
        self.aside += [*self._lane.take_back(self.place), *([last] if last else [])]
        self._poked.set()  # a tick tries the server

    async def _take_up(self) -> None:
        """The server answers: what was set aside may start."""
        aside, self.aside = self.aside, []
        if aside:
            await self._release(self._keep(aside))

    async def give_back(self, *, older_than: float | None = None) -> None:
        """Release what is in hand and has not started, or only what waits since before `older_than`."""
        leaving = [ticket for ticket in self.aside if older_than is None or ticket.since < older_than]
        self.aside = [ticket for ticket in self.aside if ticket not in leaving]
        await self._release(leaving + self._lane.take_back(self.place, older_than=older_than))

    async def hand_over(self) -> None:
        """Give back what has not started, and the promoter's token: the rest may take long to end, and others can go on."""
        await self.give_back()
        if self.timer.has_token and self.hand.held:
            await self._driver.run(consumers.leave(self._spec, self._post.consumer))  # it stays, for what it holds

    async def release_last(self) -> None:
        """Release the one that waits to run alone, if it is of this stream, for another process."""
        if (ticket := self._lane.take_last(self.place)) is not None:
            await self._release([ticket])

    async def _release(self, tickets: list[Ticket]) -> None:
        """Give jobs back: reclaimed ones uncharged, those that were read with their charge taken back."""
        if tickets:
            async with self._exchanging:
                await self._release_now(tickets)

    async def _release_now(self, tickets: list[Ticket]) -> bool:
        """False if the server may not have taken all of them back."""
        is_sure = True
        for charged in (False, True):
            jobs = [t.job for t in tickets if (t.standing is Standing.NEW) is charged and not t.job.lease_lost]
            released = True
            try:
                await self._driver.run(settle.release(self._spec, jobs, charged=charged))
            except StreamqError as error:
                released = is_sure = False
                self._event(
                    logging.WARNING, "jobs were not released, their leases bring them back", jobs=len(jobs), error=error
                )
            if released or not charged:  # else a recovery may take them up as what they are: read, and never begun
                self.hand.gave_back(job.entry_id for job in jobs)
        for ticket in tickets:
            self.hand.drop(ticket.job.entry_id)
        self._post.changed()
        return is_sure

    async def leave(self) -> None:
        """Give back all that has not started, what a lost reply left with us too, and take our name out of the group."""
        if self._lost_reply:
            await self._recover()
        await self.give_back()
        await self.release_last()
        await self._undo_starts()
        if not self.hand.held:
            await self._driver.run(consumers.leave(self._spec, self._post.consumer))

    async def _undo_starts(self) -> None:
        """Give back jobs whose calls were cancelled while their starts were counted: nobody knows whether they were."""
        jobs = [job for entry_id, job in self.hand.held.items() if entry_id in self.hand.starting]
        asked = [(Held(job.entry_id, job.deliveries + charged), job.deliveries) for charged in (1, 0) for job in jobs]
        await self._driver.run(settle.give_back(self._spec, self._post.consumer, asked))
        for job in jobs:
            self.hand.drop(job.entry_id)

    # Small things

    def _reached(self, role: str) -> None:
        self._failures[role] = 0
        self._post.reached(f"{role} {self._spec.keys.name}")

    async def _outlast(self, error: StreamqError, role: str, what: str) -> None:
        failures = self._failures[role] = self._failures.get(role, 0) + 1
        self._post.failed(f"{role} {self._spec.keys.name}", error)
        if isinstance(error, ConfigurationError):
            # The key's type or a permission changed under us: not worth more than a try a second.
            self._event(logging.ERROR, f"stream {what}", error=error)
            await self._until(None, 1.0)
        else:
            self._event(logging.WARNING, f"stream {what}", in_a_row=failures, error=error)
            await self._until(None, roles.pause_s(failures))

    async def _until(self, event: roles.Flag | None, limit_s: float | None = None) -> None:
        """Wait for `event`, the worker's stop, or the time."""
        await roles.until_any(*([] if event is None else [event]), self._post.stopping, limit_s=limit_s)

    def _event(self, level: int, message: str, **fields: Any) -> None:
        log.event(_log, level, message, stream=self._spec.keys.name, **fields)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
