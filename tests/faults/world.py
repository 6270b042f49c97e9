"""A stream under the explorer: seeds that fill it, and plans that tell what they did. What must hold is in `ground`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from faults.explorer import Mode, Report, Violation, explore
from faults.ground import Copy, Ground
from faults.view import RECEIPTS, Server

from streamq._codec import EntryCodec
from streamq._flows import intake, outcome, recovery
from streamq._flows.recovery import Note, NoteState
from streamq._ops import (
    consumers,
    enqueue,
    groups,
    identity,
    lease,
    letters,
    pause,
    promote,
    remove,
    schedule,
    settle,
    trim,
)
from streamq._ops.enqueue import Terms
from streamq._requests import Command, Plan, ask, ignore
from streamq._scripts import Fence, Held
from streamq._scripts_timers import Promoted, When
from streamq._scripts_timers import promote as promote_script
from streamq._scripts_upkeep import Role, tick
from streamq._spec import Spec
from streamq.backoff import Backoff
from streamq.effects import Effects
from streamq.errors import JobStateError, LeaseLostError, QueueFullError
from streamq.lifecycle import State
from streamq.messages import Job, JobIdKind, Redriven
from streamq.options import GroupStart, StreamOptions

GROUP = "g"
LATER = 3_600_000
"""A delay that never passes by itself, in ms: what waits is due when somebody promotes (`Ground._pass_time`)."""
ROUNDS = 10
"""Of recovery; more than `max_deliveries` would let it go on for ever by taking its own jobs."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A seeded stream and plans that meet there.

    Attributes:
        name: For people.
        seed: Fills the stream.
        plans: By name, made anew for every schedule.
        options: Of the stream, beside those of `World`.
        groups: Consumer groups that are there at the beginning.
        late: Groups that may be made on the way.
        effects: Whether all that settle successfully commit with effects, so that done means a receipt.
        trims: Whether finished entries may be left for maintenance, so that recovery trims.
        kept: Most entries that are left in the end, by the rules of `retention="keep"`.
        rows: Of the acceptance list and the field cases, that it shows.
        modes: What is tried. A plain XADD that is sent again is there twice, so such scenarios leave RESEND out.
    """

    name: str
    seed: Callable[[World], None]
    plans: Mapping[str, Callable[[World], Plan[Any]]]
    options: Mapping[str, Any] = field(default_factory=dict)
    groups: tuple[str, ...] = (GROUP,)
    late: tuple[str, ...] = ()
    effects: bool = True
    trims: bool = False
    kept: int = 0
    rows: tuple[str, ...] = ()
    modes: tuple[Mode, ...] = (Mode.CRASH, Mode.RESEND)

    def explore(self, server: Server, mode: Mode = Mode.CRASH, watch: Callable[[World], None] | None = None) -> Report:
        """Play all schedules; `watch` sees each world at its end."""
        return explore(
            lambda: World(server, self),
            lambda world: {name: make(world) for name, make in self.plans.items()},
            mode,
            watch,
        )


class World(Ground):
    """See the module. Names of methods that make plans end in -ing."""

    def __init__(self, server: Server, scenario: Scenario) -> None:
        settings = {"max_deliveries": 3, "retry": Backoff.constant(0, limit=2), **scenario.options}
        super().__init__(
            server,
            (*scenario.groups, *scenario.late),
            effects=scenario.effects,
            max_deliveries=settings["max_deliveries"],
            max_ready=settings.get("max_ready"),
        )
        self._scenario = scenario
        self._specs: dict[str, Spec[dict]] = {}
        for group in (*scenario.groups, *scenario.late):
            options = StreamOptions(group=group, **settings)
            self._specs[group] = Spec(self._keys, options, EntryCodec(dict, options))
        self.held: dict[str, Job[dict]] = {}
        """Deliveries that the seed left in somebody's hands, by a name of its choice."""
        self._group_of: dict[str, str] = {}  # name of a held one -> group
        self._epoch_of: dict[int, int] = {}  # id(job) -> epoch of the delivery
        self._kept: list[Job[dict]] = []  # so that no id() is used twice
        self._firsts: list[str] = []
        self._plain_ids: set[str] = set()  # chosen by plain producers
        self._taken: dict[str, str] = {}  # role -> who has its token
        self.raw(*(("XGROUP", "CREATE", self._keys.stream, group, "0", "MKSTREAM") for group in scenario.groups))
        scenario.seed(self)

    # --- for seeds ------------------------------------------------------------------------

    def view_groups(self) -> tuple[str, ...]:
        """The groups that were there at the beginning."""
        return self._scenario.groups

    def view_entries(self) -> list[str]:
        """IDs of the entries that are there after the latest plan."""
        return list(self._view.entries)

    def spec(self, group: str = "") -> Spec[dict]:
        return self._specs[self._named(group)]

    def _named(self, group: str = "") -> str:
        return group or self._scenario.groups[0]

    def add(self, *markers: str, job_id: str | None = None, **fields: str) -> list[str]:
        """Add entries as a plain producer does; their IDs."""
        own = () if job_id is None else ("sq:id", job_id)
        more = tuple(part for pair in fields.items() for part in (pair[0].replace("_", ":"), pair[1]))
        commands = [("XADD", self._keys.stream, "*", "job", body(m), *own, *more) for m in markers]
        ids = [entry_id.decode() for entry_id in self.raw(*commands)]
        self._plain_ids.add(job_id or "")
        for entry_id, marker in zip(ids, markers, strict=True):
            self._note(entry_id, marker, job_id)
            if "sq_group" in fields:
                self._foreign[entry_id] = fields["sq_group"]
        return ids

    def add_spoiled(self, marker: str) -> str:
        """Add an entry whose payload no worker can decode."""
        [entry_id] = self.raw(("XADD", self._keys.stream, "*", "job", "no JSON"))
        self._note(entry_id.decode(), marker, None)
        return entry_id.decode()

    def add_large(self, marker: str) -> str:
        """Add an entry of more fields than a script can copy."""
        fields = [part for n in range(3_600) for part in (f"f{n}", "")]
        [entry_id] = self.raw(("XADD", self._keys.stream, "*", "job", body(marker), *fields))
        self._note(entry_id.decode(), marker, None)
        return entry_id.decode()

    def read(self, consumer: str, *names: str, group: str = "") -> None:
        """Let `consumer` read one job per name; they are in `held` then, and started."""
        plan = intake.read(self.spec(group), consumer, count=len(names), block_ms=None)
        self._hold(names, self._server.driver.run(plan), group)

    def reclaim(self, consumer: str, *names: str, group: str = "") -> None:
        """Let `consumer` take over one job per name, and start them."""
        plan = intake.reclaim(self.spec(group), consumer, count=len(names), min_idle_ms=0, raise_count=True)
        self._hold(names, self._server.driver.run(plan).claimed, group)

    def release(self, name: str, group: str = "") -> None:
        """Let the holder give a job back."""
        job = self.held[name]
        self._starts[self._named(group), job.entry_id] -= 1
        self._server.driver.run(settle.release(self.spec(group), [job]))

    def deliver(self, consumer: str, **counts: int) -> None:
        """Add jobs that are pending as if they had been started so many times; by hand."""
        key, ids = self._keys.stream, self.add(*counts)
        claims = [
            ("XCLAIM", key, GROUP, consumer, 0, entry_id, "RETRYCOUNT", count, "FORCE", "JUSTID")
            for entry_id, count in zip(ids, counts.values(), strict=True)
        ]
        self.raw(("XGROUP", "SETID", key, GROUP, ids[-1]), *claims)
        self._starts.update({(GROUP, entry_id): count for entry_id, count in zip(ids, counts.values(), strict=True)})

    def unbegun(self, *markers: str) -> None:
        """Of what `deliver` made: the latest start of these was counted, but their handlers never began."""
        for entry_id, marker in self._markers.items():
            self._starts[GROUP, entry_id] -= marker in markers

    def run(self, plan: Plan[Any]) -> None:
        """Run one of the plans below; it is watched as in a schedule."""
        self.begin()
        self.before("seed")
        try:
            request = next(plan)
            while True:
                self.before("seed")
                reply = self.ask(request)
                self.after("seed")
                request = plan.send(reply)
        except StopIteration:
            return

    def lose_body(self, name: str) -> None:
        """Delete a held job's entry, as someone does who does not know better."""
        self.raw(("XDEL", self._keys.stream, self.held[name].entry_id))

    def _hold(self, names: Sequence[str], jobs: list[Job[dict]], group: str) -> None:
        assert len(names) == len(jobs), f"the seed expected {names}, got {jobs}"
        for name, job in zip(names, jobs, strict=True):
            self.held[name] = job
            self._group_of[name] = self._named(group)
            self._started(job, self._named(group))

    def orphan(self, timer: str, packed: bytes | None, *, timed: bool = True) -> None:
        """Something scheduled that is no job, by hand."""
        self._orphans.add(timer)
        if packed is not None:
            self.raw(("HSET", self._keys.jobs, timer, packed))
        if timed:
            self.raw(("ZADD", self._keys.scheduled, 1, timer))

    def _note(self, entry_id: str, marker: str, job_id: str | None) -> None:
        self._markers[entry_id] = marker
        self._receipt_of[marker] = job_id or marker

    # --- what the explorer calls ----------------------------------------------------------

    def begin(self) -> None:
        super().begin()
        for name, job in self.held.items():
            row = (job._consumer, job.deliveries)
            # A delivery that is over already has an epoch of its own.
            self._epoch_of[id(job)] = self._seen["seed"].get((self._group_of[name], job.entry_id, row), -1)

    def recovery(self) -> Plan[None]:
        """A fresh consumer reads, reclaims and commits until nothing is left, and maintenance trims where it has to."""
        if self._view.paused:
            yield from self.resuming()
        for _ in range(ROUNDS):
            if self._view.timers or self._view.orphans:
                yield from self.promoting()
            for group in self._alive():
                yield from self.reading("recovery", count=100, then=self.committing, group=group)
                yield from self.reclaiming("recovery", then=self.committing, group=group)
            waits = self._view.timers or self._view.orphans
            if not waits and not any(group.unread or group.pending for group in self._view.groups.values()):
                break
        else:
            raise Violation(f"recovery does not come to an end: {self._view}")
        if self._scenario.trims:
            yield from self.trimming()

    def _alive(self) -> list[str]:
        """Groups that have work: those that are there, and those that were lost, which their readers make again."""
        again = {name for name in self._scenario.groups if not self._drops[name]}
        return [name for name in self._specs if name in self._view.groups or name in again]

    def end(self) -> None:
        kept = self._view.kept()
        left = [i for i in self._view.entries if i not in kept]
        if len(left) > self._scenario.kept:
            raise Violation(f"entries that nobody needs are left in the stream: {self._names(left)}")
        if len(self._firsts) > 1:
            raise Violation(f"once said True more than once: {self._firsts}")
        if not self._deleted and self._max_ready is None:
            self._check_added_again()

    def _check_added_again(self) -> None:
        """A chosen ID is known after its job is done, and free after it is dead, purged, or cancelled.

        Where one group has done it and another has given it up, or was dropped with it, either is right; but who has done it
        does not do it again. So it is where one of several entries with that ID, of plain producers, waited: that it is done
        is overwritten when it is moved into the stream.
        """
        given_up = bool(self._drops)
        seen = set(self._markers.values())
        chosen = {receipt for marker, receipt in self._receipt_of.items() if receipt != marker and marker in seen}
        for receipt in sorted(chosen):
            same = {marker for marker, other in self._receipt_of.items() if other == receipt}
            done, dead = bool(self._ever_done & same), given_up or bool(self._ever_dead & same)
            dead |= receipt in self._plain_ids and bool(self._ever_waited & same)
            plan = enqueue.add(self.spec(), {"marker": "again"}, job_id=receipt)
            added = self._server.driver.run(plan)
            if added.created is done and not (done and dead):
                raise Violation(f"job ID {receipt} is {'done' if done else 'free'}, but adding it says {added}")
            for name in self._view.groups:
                if added.created and self._done[name] & same:
                    self._check_passes(name)

    def _check_passes(self, name: str) -> None:
        plan = intake.read(self.spec(name), "again", count=100, block_ms=None)
        if jobs := self._server.driver.run(plan):
            raise Violation(f"{name} has done {jobs} already, and gets them again")

    # --- what plans tell ------------------------------------------------------------------

    def _hand_out(self, job: Job[dict], group: str, *, started: bool) -> None:
        """A delivery reaches a handler: it must have been true right after a request of the plan that made it.

        Not "is true now": a process may stall for longer than the lease between two requests, and its deliveries are
        others' then. A count that never was true is another matter: such a delivery can never settle.
        """
        row = (job._consumer, job.deliveries)
        epoch = self._seen.get(self._actor, {}).get((group, job.entry_id, row))
        if epoch is None:
            now = self._rows.get((group, job.entry_id))
            raise Violation(f"{self._actor} was handed {job!r} as {row}, which never was true; the server has {now}")
        self._kept.append(job)
        self._epoch_of[id(job)] = epoch
        if started:
            self._started(job, group)

    def _started(self, job: Job[dict], group: str) -> None:
        self._starts[group, job.entry_id] += 1
        self._note_attempt(job, group)

    def _fenced(self, plan: Plan[Any], job: Job[dict], group: str) -> Plan[Any]:
        try:
            return (yield from plan)
        except LeaseLostError:
            self._refused(job, group)
            raise

    def _fence(self, fence: Fence, job: Job[dict]) -> None:
        if fence in {Fence.MINE, Fence.MISSING}:
            self._accepted(job)
        else:
            self._refused(job)

    def _refused(self, job: Job[dict], group: str = "") -> None:
        """A delivery was not settled, or not renewed: nothing was changed, and it was not the latest one of its entry."""
        place = self._named(group), job.entry_id
        if self._rows_before.get(place) != self._rows.get(place):
            raise Violation(f"{self._actor}: {job!r} was refused, but its entry is {self._rows.get(place)} now")
        same = self._epoch_of[id(job)] == self._epochs_before[place]
        if same and self._rows_before.get(place) == (job._consumer, job.deliveries):
            raise Violation(f"{self._actor}: {job!r} is the latest delivery, but was refused")

    def _accepted(self, job: Job[dict], group: str = "") -> None:
        """A delivery was settled, or renewed: it must have been the latest one of its entry."""
        then, now = self._epoch_of[id(job)], self._epochs_before[self._named(group), job.entry_id]
        if then != now:
            raise Violation(f"{self._actor}: {job!r} is an old delivery, but was accepted (delivery {then}, now {now})")

    def hand_out(self, entry_id: str, consumer: str, count: int) -> None:
        """For plans by hand: the delivery reaches a handler."""
        fields = [b"job", body(self._markers[entry_id]).encode()]
        job = self.spec().codec.job(entry_id, fields, deliveries=count, consumer=consumer)
        self._hand_out(job, self._named(), started=True)

    # --- plans ----------------------------------------------------------------------------

    def reading(
        self,
        consumer: str,
        *,
        count: int = 1,
        then: Callable[..., Plan[Any]] | None = None,
        group: str = "",
        look_for_pause: bool = False,
    ) -> Plan[int]:
        """Read, and go on with each job; how many."""
        group = self._named(group)
        paused = self._view.paused
        jobs = yield from intake.read(
            self.spec(group), consumer, count=count, block_ms=None, look_for_pause=look_for_pause
        )
        if look_for_pause:
            self.check_paused(consumer, paused, len(jobs))
        return (yield from self._go_on(jobs, then, group, started=True))

    def check_paused(self, consumer: str, paused: bool, got: int) -> None:
        """What began to read while the stream was paused, and still is, gets nothing."""
        if got and paused and self._view.paused:
            raise Violation(f"{consumer} began to read while the stream was paused, and got {got} jobs")

    def recovering(
        self, consumer: str, *, then: Callable[..., Plan[Any]] | None = None, started: bool = True
    ) -> Plan[None]:
        """Take up what a lost read (started) or a worker's lost reclaim (not yet) left with this consumer."""
        group = self._named()
        jobs = (yield from intake.recover(self.spec(group), consumer, frozenset())).jobs
        if started:
            yield from self._go_on(jobs, then, group, started=True)
        else:
            yield from self._start_each(jobs, then, group)

    def reclaiming(
        self, consumer: str, *, count: int = 100, then: Callable[..., Plan[Any]] | None = None, group: str = ""
    ) -> Plan[int]:
        """Reclaim as a hand-written loop does, and go on with each job; how many came or were buried."""
        group = self._named(group)
        page = yield from intake.reclaim(self.spec(group), consumer, count=count, min_idle_ms=0, raise_count=True)
        if page.failed:
            raise Violation(f"{consumer} could not dead-letter: {page.failed}")
        came = yield from self._go_on(page.claimed, then, group, started=True)
        return came + len(page.dead) + len(page.missing)

    def working(self, consumer: str, *, count: int = 100, then: Callable[..., Plan[Any]] | None = None) -> Plan[None]:
        """Reclaim as a worker does: claim uncharged, count each start, then go on."""
        jobs = yield from self.claiming(consumer, count=count)
        yield from self._start_each(jobs, then, self._named())

    def round(
        self,
        consumer: str,
        *,
        tick: bool = False,
        give_back: int = 0,
        least_count: int = 0,
        most_last: int | None = None,
    ) -> Plan[None]:
        """A worker's round: claim uncharged, start all in one request, commit each.

        Args:
            consumer: Who does it.
            tick: Whether it asks for the role first, and does nothing if that is not its own.
            give_back: How many of the last ones it releases instead of starting them.
            least_count: As of `reclaim.page`.
            most_last: As of `reclaim.page`.
        """
        if tick and Role.RECLAIM not in (yield from self.ticking(consumer, Role.RECLAIM)):
            return
        jobs = yield from self.claiming(consumer, least_count=least_count, most_last=most_last)
        at = max(len(jobs) - give_back, 0)
        yield from self.each((yield from self.starting(consumer, jobs[:at])), self.committing)
        for job in jobs[at:]:
            yield from self.releasing(job, charged=False)

    def claiming(
        self, consumer: str, *, count: int = 100, least_count: int = 0, most_last: int | None = None
    ) -> Plan[list[Job[dict]]]:
        """Reclaim uncharged; what comes must be what was asked for."""
        page = yield from intake.reclaim(
            self.spec(),
            consumer,
            count=count,
            min_idle_ms=0,
            raise_count=False,
            least_count=least_count,
            most_last=most_last,
        )
        counts = [job.deliveries for job in page.claimed]
        lasts = counts.count(self._max_deliveries - 1)
        if min(counts, default=least_count) < least_count or (most_last is not None and lasts > most_last):
            raise Violation(f"{consumer} asked for {least_count=}, {most_last=}, and got {page.claimed}")
        for job in page.claimed:
            self._hand_out(job, self._named(), started=False)
        return page.claimed

    def starting(self, consumer: str, jobs: Sequence[Job[dict]]) -> Plan[list[Job[dict]]]:
        """Count the starts of claimed jobs in one request; those that began, all at once.

        One that is refused was another's by then: else a start would be spent, and nothing started.
        """
        targets = [Held(job.entry_id, job.deliveries + 1) for job in jobs]
        found = yield from lease.start(self.spec(), consumer, targets)
        for target, fence in zip(targets, found, strict=True):
            row = self._rows_before.get((self._named(), target.entry_id))
            if fence not in {Fence.MINE, Fence.MISSING} and row in {
                (consumer, target.count - 1),
                (consumer, target.count),
            }:
                raise Violation(f"{consumer} may not start {target}, though it has it: {row}")
        mine = [job for job, fence in zip(jobs, found, strict=True) if fence is Fence.MINE]
        for job in mine:
            job.deliveries += 1
            self._hand_out(job, self._named(), started=True)
        return mine

    def losing_body(self, name: str) -> Plan[None]:
        """Somebody deletes the entry of a job that is in somebody's hands."""
        stream, entry_id = self._keys.stream, self.held[name].entry_id
        yield from ask(Command(("XDEL", stream, entry_id), (stream,), ignore))

    def each(self, jobs: Sequence[Job[dict]], then: Callable[..., Plan[Any]]) -> Plan[None]:
        """Go on with each job that began."""
        for job in jobs:
            yield from self._forgiving(then(job))

    def _start_each(self, jobs: list[Job[dict]], then: Callable[..., Plan[Any]] | None, group: str) -> Plan[None]:
        for job in jobs:
            self._hand_out(job, group, started=False)
        for job in jobs:
            target = Held(job.entry_id, job.deliveries + 1)
            [fence] = yield from lease.start(self.spec(group), job._consumer, [target])
            if fence is not Fence.MINE:
                continue
            job.deliveries += 1
            self._hand_out(job, group, started=True)
            if then is not None:
                yield from self._forgiving(then(job, group))

    def _go_on(
        self, jobs: list[Job[dict]], then: Callable[..., Plan[Any]] | None, group: str, *, started: bool
    ) -> Plan[int]:
        for job in jobs:
            self._hand_out(job, group, started=started)
        for job in jobs:
            if then is not None:
                yield from self._forgiving(then(job, group))
        return len(jobs)

    def _forgiving(self, plan: Plan[Any]) -> Plan[None]:
        """As a loop over jobs does: a lost lease ends that job only."""
        try:
            yield from plan
        except LeaseLostError:
            return

    def acking(self, job: Job[dict], group: str = "") -> Plan[None]:
        accepted = yield from self._fenced(settle.ack_one(self.spec(group), job), job, group)
        if accepted:
            self._accepted(job, group)
        else:
            self._refused(job, group)

    def acking_all(self, *jobs: Job[dict]) -> Plan[None]:
        """In one request."""
        items = [settle.settled(job) for job in jobs]
        found = yield from settle.ack(self.spec(), jobs[0]._consumer, items)
        for job in jobs:
            self._fence(found[job.entry_id], job)

    def committing(self, job: Job[dict], group: str = "") -> Plan[None]:
        self._note_effect(job, group)
        yield from self._fenced(settle.commit(self.spec(group), job, None), job, group)
        self._accepted(job, group)

    def committing_all(self, *jobs: Job[dict]) -> Plan[None]:
        """In one pipeline."""
        for job in jobs:
            self._note_effect(job, "")
        yield from settle.commit_each(self.spec(), [(job, b'"result"') for job in jobs])

    def _note_effect(self, job: Job[dict], group: str) -> None:
        if job.has_effects:
            return  # the same delivery, settled twice
        receipt = job.id if job._kind is JobIdKind.CHOSEN else job.payload["marker"]
        job.effects.hincrby(RECEIPTS, f"{self._named(group)}/{receipt}", 1)

    def retrying(self, job: Job[dict], group: str = "", *, delay_ms: int = 0) -> Plan[None]:
        yield from self._fenced(outcome.retry(self.spec(group), job, "boom", delay_ms), job, group)
        self._accepted(job, group)

    def retrying_later(self, job: Job[dict], group: str = "") -> Plan[None]:
        """Its next attempt waits for its time."""
        return self.retrying(job, group, delay_ms=LATER)

    def rejecting(self, job: Job[dict], group: str = "") -> Plan[None]:
        plan = outcome.bury(self.spec(group), job, "rejected", "no", attempts=job.attempt)
        yield from self._fenced(plan, job, group)
        self._accepted(job, group)

    def releasing(self, job: Job[dict], *, charged: bool = True) -> Plan[None]:
        if charged:
            self._starts[self._named(), job.entry_id] -= 1  # it was never begun, whatever the reply
        [fence] = yield from settle.release(self.spec(), [job], charged=charged)
        self._fence(fence, job)

    def renewing(self, *jobs: Job[dict]) -> Plan[None]:
        held = [Held(job.entry_id, job.deliveries) for job in jobs]
        found = yield from lease.renew(self.spec(), jobs[0]._consumer, held)
        for job in jobs:
            self._fence(found[job.entry_id], job)

    def extending(self, job: Job[dict], group: str = "") -> Plan[None]:
        try:
            yield from lease.extend_one(self.spec(group), job)
        except LeaseLostError:
            if len(self._view.letters) == len(self._view_before.letters):  # else its body was gone, and is buried now
                self._refused(job, group)
            raise
        self._accepted(job, group)

    def adding(
        self, marker: str, *, job_id: str | None = None, delay_ms: int | None = None, replace: bool = False
    ) -> Plan[None]:
        if replace:
            self._allow("replace", job_id or "")
        due = None if delay_ms is None else When("in", delay_ms)
        terms = Terms(replace=replace)
        try:
            added = yield from enqueue.add(
                self.spec(), {"marker": marker}, job_id=job_id, due=due, new_id=lambda: f"id-{marker}", terms=terms
            )
        except QueueFullError:
            self._unchanged("the stream was full")
            return
        if not added.created:
            self._unchanged(f"{added}")
            if added.state == "scheduled" and not any(self._timers(added.job_id, name) for name in self._view.groups):
                raise Violation(f"{self._actor}: {added}, but nothing waits")

    def scheduling(self, marker: str, *, job_id: str | None = None, replace: bool = False) -> Plan[None]:
        """Add a job that waits for its time."""
        return self.adding(marker, job_id=job_id, delay_ms=LATER, replace=replace)

    def adding_many(self, *markers: str, chosen: bool = False, delay_ms: int | None = None) -> Plan[None]:
        payloads = [{"marker": marker} for marker in markers]
        job_id = (lambda payload: "id-" + payload["marker"]) if chosen else None
        due = None if delay_ms is None else (lambda payload: When("in", delay_ms))
        new_ids = iter(f"id-{marker}" for marker in markers)
        try:
            yield from enqueue.add_many(self.spec(), payloads, job_id=job_id, due=due, new_id=lambda: next(new_ids))
        except QueueFullError as error:
            if error.added > len(payloads):  # type: ignore[attr-defined]
                raise Violation(f"{error.added} of {len(payloads)} were added") from None  # type: ignore[attr-defined]

    def applying_once(self, name: str) -> Plan[None]:
        if (yield from identity.once(self.spec(), name, Effects().hincrby(RECEIPTS, f"once/{name}", 1))):
            self._firsts.append(self._actor)

    # --- plans of operators and maintenance -----------------------------------------------

    def cancelling(self, job_id: str, group: str = "", *, only_scheduled: bool = False) -> Plan[None]:
        """Cancelled: it is in no group's hands, and was in nobody's. Else nothing was changed.

        Where it was one group's next attempt, that is true of this group.
        """
        self._allow("cancel", job_id)
        name = self._named(group)
        try:
            cancelled = yield from remove.cancel(self.spec(group), job_id, only_scheduled=only_scheduled)
        except JobStateError as error:
            self._unchanged(f"{error}")
            if error.state == "pending" and not self._left(job_id):
                raise Violation(f"{self._actor}: {error}, but nobody has it") from None
            return
        if not cancelled:
            self._unchanged("there was no such job")
            if only_scheduled and self._timers(job_id, name):
                raise Violation(f"{self._actor}: {job_id} waits, but cancelling says that it does not")
        elif len(self._view.entries) + len(self._view.timers) == len(self._view_before.entries) + len(
            self._view_before.timers
        ):
            raise Violation(f"{self._actor}: {job_id} was cancelled, but nothing was removed")
        else:
            waited = self._view_before.timers.keys() - self._view.timers.keys()
            self.check_cancelled(job_id, *([name] if waited else ()))

    def check_cancelled(self, job_id: str, *names: str) -> None:
        """It will never run, in these groups or in any."""
        if left := self._left(job_id, *names):
            raise Violation(f"{self._actor}: {job_id} was cancelled, but may run still: {sorted(left)}")

    def _left(self, job_id: str, *names: str) -> set[Copy]:
        """Where that job is that some group, or one of these, has yet to run, or runs."""
        return {
            one
            for name in names or self._view.groups
            for marker, places in self._copies.get(name, {}).items()
            for one in places
            if one.state is not State.DEAD and job_id in {one.id, one.id.partition("/")[2], self._receipt_of[marker]}
        }

    def _timers(self, job_id: str, name: str) -> set[str]:
        """IDs of the timers by which a group has that job."""
        return self._view.timers.keys() & {f"{name}/{job_id}", f"/{job_id}"}

    def asking(self, job_id: str, group: str = "") -> Plan[None]:
        """What became of a job; the answer must be true."""
        found = yield from identity.result(self.spec(group), job_id)
        name = self._named(group)
        if name not in self._view.groups:
            return
        done = any(self._receipt_of[marker] == job_id for marker in self._done[name])
        if (found.state == "done") is not done and not self._left(job_id, name):
            raise Violation(f"{job_id} is {'' if done else 'not '}done in {name}, but {found}")
        if (found.state == "scheduled") is not bool(self._timers(job_id, name)):
            raise Violation(f"{job_id} waits in {name}: {self._timers(job_id, name)}, but {found}")
        self._check_state(job_id, found.state, name)

    def _check_state(self, job_id: str, state: str, name: str) -> None:
        """What an operation says of a job that it does not touch is so in that group."""
        if sum(receipt == job_id for receipt in self._receipt_of.values()) > 1:
            return  # of several, by plain producers, one is remembered
        found = {one.state for one in self._left(job_id, name)}
        if group := self._view.groups.get(name):  # it may hold what it only passes over
            found |= {State.PENDING for i in group.pending if self._receipt_of[self._markers[i]] == job_id}
        if state in {*State} - {State.DONE} and state not in found:
            raise Violation(f"{self._actor}: {job_id} is said to be {state} in {name}, but is {sorted(found)}")
        apart = {self._foreign.get(i) for i, m in self._markers.items() if self._receipt_of[m] == job_id} - {None, name}
        if state == "unknown" and found and not apart:  # the latest retry is remembered, be it another group's
            raise Violation(f"{self._actor}: {job_id} is said to be unknown in {name}, but is {sorted(found)}")

    # --- plans of what waits --------------------------------------------------------------

    def promoting(self, *, each: int = promote.BATCH) -> Plan[int]:
        """Move all that is due, `each` in a request; how many."""
        moved = 0
        while True:
            found = yield from ask(
                promote_script(self._keys, self.spec().options, most=each, max_bytes=promote.BATCH_BYTES)
            )
            self._check_promoted(found)
            moved += found.moved
            if found.wait_ms != 0 or not (found.moved or found.dropped):
                return moved

    def _check_promoted(self, found: Promoted) -> None:
        new = self._view.entries.keys() - self._view_before.entries.keys()
        gone = self._view_before.orphans - self._view.orphans
        if (found.moved, {timer for timer, _ in found.dropped}) != (len(new), gone):
            raise Violation(f"{self._actor}: {found}, but {self._names(new)} were moved, and {gone} dropped")
        waits = self._view.timers if found.wait_ms is None else self._view.timers.keys() | self._view.orphans
        if (found.wait_ms is None) is bool(waits):
            raise Violation(f"{self._actor}: {found}, but there wait {sorted(waits)}")

    def running_now(self, job_id: str, group: str = "") -> Plan[None]:
        """Its run takes the place of the one that waited. Else nothing was changed."""
        try:
            entry_id = yield from schedule.run_now(self.spec(group), job_id)
        except JobStateError as error:
            self._refused_timer(job_id, group, error)
            return
        if self._view.entries.keys() - self._view_before.entries.keys() != {entry_id}:
            raise Violation(f"{self._actor}: {job_id} is said to be {entry_id} now, but that is not so")
        if self._timers(job_id, self._named(group)) >= self._timers_before(job_id, group):
            raise Violation(f"{self._actor}: {job_id} runs now as {entry_id}, and will run once more")

    def rescheduling(self, job_id: str, group: str = "", *, delay_ms: int = 2 * LATER) -> Plan[None]:
        """It is due at another time. Else nothing was changed."""
        try:
            due_at = yield from schedule.reschedule(self.spec(group), job_id, When("in", delay_ms))
        except JobStateError as error:
            self._refused_timer(job_id, group, error)
            return
        before, now = self._view_before.timers, self._view.timers
        due = {round(due_at.timestamp() * 1000)}
        if before.keys() != now.keys() or due != {now[i].due_ms for i in self._timers(job_id, self._named(group))}:
            raise Violation(f"{self._actor}: {job_id} was rescheduled for {due_at}, but what waits is {now}")

    def _timers_before(self, job_id: str, group: str) -> set[str]:
        return self._view_before.timers.keys() & {f"{self._named(group)}/{job_id}", f"/{job_id}"}

    def _refused_timer(self, job_id: str, group: str, error: JobStateError) -> None:
        """It does not wait, and is what the error says."""
        self._unchanged(f"{error}")
        if self._view.orphans & {f"{self._named(group)}/{job_id}", f"/{job_id}"}:
            return
        if waits := self._timers(job_id, self._named(group)):
            raise Violation(f"{self._actor}: {error}, but it waits: {waits}")
        self._check_state(job_id, error.state, self._named(group))

    def letters(self, *markers: str, group: str = "") -> list[str]:
        """IDs of the letters of these jobs, or of all there are."""
        return [
            letter_id
            for letter_id, one in self._view.letters.items()
            if (not markers or self._markers[one.source] in markers) and group in {"", one.group}
        ]

    def redriving(self, *letter_ids: str, new_id: str | None = None) -> Plan[None]:
        """Those letters, or all that a list shows first."""
        if not letter_ids:
            letter_ids = yield from self._listing()
        for letter_id in letter_ids:
            done = yield from letters.redrive(self.spec(), letter_id, new_id=new_id, max_redrives=5)
            self._check_redriven(letter_id, done)

    def redriving_all(self, *letter_ids: str) -> Plan[None]:
        """In one pipeline."""
        yield from letters.redrive(self.spec(), letter_ids, new_id=None, max_redrives=5)

    def _check_redriven(self, letter_id: str, done: Redriven) -> None:
        new = self._view.entries.keys() - self._view_before.entries.keys()
        if done.moved:
            if letter_id in self._view.letters or new != set(done.moved.values()):
                raise Violation(f"{self._actor}: {done}, but that is not so")
            return
        self._unchanged(f"{done}")
        if done.missing and letter_id in self._view.letters:
            raise Violation(f"{self._actor}: {done}, but it is there")

    def purging(self, *letter_ids: str) -> Plan[None]:
        if not letter_ids:
            letter_ids = yield from self._listing()
            if not letter_ids:
                return
        for letter_id in letter_ids:
            self._allow("purge", letter_id)
        count = yield from letters.purge(self.spec(), letter_ids)
        went = len(self._view_before.letters.keys() - self._view.letters.keys())
        if count != went:
            raise Violation(f"{self._actor}: {went} letters went, purge says {count}")

    def purging_old(self) -> Plan[None]:
        self._allow("purge", "*")
        yield from letters.purge_older(self.spec(), 0)

    def _listing(self) -> Plan[tuple[str, ...]]:
        found = yield from letters.listing(self.spec(), count=100, after=None)
        return tuple(letter.id for letter in found)

    def trimming(self) -> Plan[None]:
        yield from trim.trim(self.spec())

    def trimming_some(self) -> Plan[None]:
        """As maintenance does."""
        yield from trim.trim_some(self.spec())

    def pruning(self, group: str = "") -> Plan[None]:
        """All that hold nothing now, however young."""
        yield from consumers.prune(self.spec(group), min_idle_ms=0)

    def leaving(self, consumer: str) -> Plan[None]:
        """As who stops does, or who has buried it."""
        yield from consumers.leave(self.spec(), consumer)

    def giving_back(self, consumer: str, *, reclaiming: bool = False, **notes: tuple[int, NoteState]) -> Plan[None]:
        """As a supervisor does whose child is dead; `notes` are (count, state) by marker."""
        entries = {marker: entry_id for entry_id, marker in self._markers.items()}
        left = [Note(0, entries[marker], *note) for marker, note in notes.items()]
        yield from recovery.give_back(self.spec(), consumer, left, reclaiming=reclaiming)

    def losing_read(self, consumer: str) -> Plan[None]:
        """A read whose reply nobody gets any more."""
        yield from intake.read(self.spec(), consumer, count=1, block_ms=None)

    def creating(self, *names: str, start: GroupStart = "all") -> Plan[None]:
        yield from groups.create(self.spec(), names, start)

    def dropping(self, name: str, *, force: bool = True) -> Plan[None]:
        self._allow("drop", name)
        try:
            dropped = yield from groups.drop(self.spec(), name, force=force)
        except JobStateError as error:
            self._unchanged(f"{error}")
            return
        was = self._view_before.groups.get(name)
        if dropped and not force and was is not None and (was.unread or was.pending):
            raise Violation(f"{self._actor}: {name} was dropped with {was}")

    def deleting(self, *, force: bool = True) -> Plan[None]:
        self._allow("delete")
        first = self._view
        try:
            yield from remove.delete(self.spec(), force=force)
        except JobStateError as error:
            self._unchanged(f"{error}")
            return
        if not force and (first.letters or first.timers or any(g.unread or g.pending for g in first.groups.values())):
            return  # it had work when this plan began, which was done meanwhile; what was lost, `after` has seen

    def pausing(self) -> Plan[None]:
        yield from pause.change(self.spec(), paused=True)

    def resuming(self) -> Plan[None]:
        yield from pause.change(self.spec(), paused=False)

    def sweeping(self) -> Plan[None]:
        """Forgets what is due, and nothing else."""
        yield from identity.sweep(self.spec())

    def ticking(self, consumer: str, *roles: Role) -> Plan[tuple[Role, ...]]:
        """A token is given to one only; and to reclaim, only if there is something pending."""
        periods = dict.fromkeys(roles, 60_000)
        found = yield from ask(tick(self._keys, self.spec().options, consumer=consumer, beat=b"{}", periods_ms=periods))
        for role in found.roles:
            if self._taken.setdefault(role, self._actor) != self._actor:
                raise Violation(f"{self._taken[role]} and {self._actor} both have the tick of {role}")
        if (found.wait_ms is None) is not (not self._view.timers.keys() | self._view.orphans):
            raise Violation(f"{self._actor} is told {found}, but there wait {sorted(self._view.timers)}")
        group = self._view.groups.get(self._named())
        if Role.RECLAIM in found.roles and not (group and group.pending):
            raise Violation(f"{self._actor} is to reclaim, but nothing is pending")
        return found.roles


def body(marker: str) -> str:
    """The payload of a job."""
    return json.dumps({"marker": marker})
