"""A stream under the explorer: what is known of it, what must hold after every step, and plans that tell what they did.

Every job carries a *marker* in its payload, by which it is found again in whatever entry it lies. Effects count runs: a
commit adds one to the job's receipt.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import redis
from faults.explorer import Mode, Report, Violation, explore

from streamq._codec import EntryCodec
from streamq._drivers.blocking import BlockingDriver
from streamq._flows import intake, outcome
from streamq._ops import enqueue, identity, lease, settle
from streamq._requests import Plan, Reply, Request
from streamq._scripts import Fence, Held
from streamq._spec import Spec
from streamq.backoff import Backoff
from streamq.effects import Effects
from streamq.errors import LeaseLostError
from streamq.keys import Keys
from streamq.messages import Job, JobIdKind
from streamq.options import StreamOptions

GROUP = "g"
ROUNDS = 10
"""Of recovery; more than `max_deliveries` would let it go on for ever by taking its own jobs."""

Row: TypeAlias = tuple[str, int]
"""Owner and delivery count of a pending entry."""


@dataclass(slots=True)
class GroupView:
    """What one group has."""

    unread: set[str]
    pending: dict[str, Row]
    dead: list[str]
    """Entry IDs in its dead letters."""
    done: int
    """By the server's counters: raised in the same script as the acknowledgement. What others handle is passed over."""


@dataclass(slots=True)
class View:
    """The stream at one moment."""

    entries: set[str]
    groups: dict[str, GroupView]
    receipts: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A seeded stream and plans that meet there.

    Attributes:
        name: For people.
        verbs: Steps of `streamq.lifecycle` that its plans take.
        seed: Fills the stream.
        plans: By name, made anew for every schedule.
        options: Of the stream, beside those of `World`.
        groups: Consumer groups.
        effects: Whether all that settle successfully commit with effects, so that done means a receipt.
        rows: Of the acceptance list and the field cases, that it shows.
        modes: What is tried. A plain XADD that is sent again is there twice, so such scenarios leave RESEND out.
    """

    name: str
    verbs: frozenset[str]
    seed: Callable[[World], None]
    plans: Mapping[str, Callable[[World], Plan[Any]]]
    options: Mapping[str, Any] = field(default_factory=dict)
    groups: tuple[str, ...] = (GROUP,)
    effects: bool = True
    rows: tuple[str, ...] = ()
    modes: tuple[Mode, ...] = (Mode.CRASH, Mode.RESEND)

    def explore(self, server: Server, mode: Mode = Mode.CRASH) -> Report:
        """Play all schedules."""
        return explore(
            lambda: World(server, self),
            lambda world: {name: make(world) for name, make in self.plans.items()},
            mode,
        )


class Server:
    """Where the worlds are; hands out stream names."""

    def __init__(self, driver: BlockingDriver, client: redis.Redis, deployment: str) -> None:
        self.driver = driver
        self.deployment = deployment
        self._connection = client.connection
        self._streams = 0

    def next_name(self) -> str:
        self._streams += 1
        return f"s{self._streams}"

    def raw(self, *commands: tuple[Any, ...]) -> list[Any]:
        """Replies as the server gave them, past redis-py's callbacks; an error's place holds the exception."""
        self._connection.send_packed_command(self._connection.pack_commands(commands))
        replies = []
        for _ in commands:
            try:
                replies.append(self._connection.read_response())
            except redis.ResponseError as error:
                replies.append(error)
        return replies


class World:
    """See the module. Names of methods that make plans end in -ing."""

    def __init__(self, server: Server, scenario: Scenario) -> None:
        self._server = server
        self._scenario = scenario
        self._keys = Keys(server.next_name(), server.deployment)
        settings = {"max_deliveries": 3, "retry": Backoff.constant(0, limit=2), **scenario.options}
        self._specs: dict[str, Spec[dict]] = {}
        for group in scenario.groups:
            options = StreamOptions(group=group, **settings)
            self._specs[group] = Spec(self._keys, options, EntryCodec(dict, options))
        self.held: dict[str, Job[dict]] = {}
        """Deliveries that the seed left in somebody's hands, by a name of its choice."""
        self._group_of: dict[str, str] = {}  # name of a held one -> group
        self._markers: dict[str, str] = {}  # entry ID -> marker
        self._foreign: dict[str, str] = {}  # entry ID -> the only group it is for
        self._receipt_of: dict[str, str] = {}  # marker -> field of the receipts
        self._gone: dict[str, set[str]] = {group: set() for group in scenario.groups}
        self._starts: Counter[tuple[str, str]] = Counter()  # (group, entry) -> starts that were not taken back
        self._epochs: Counter[tuple[str, str]] = Counter()  # (group, entry) -> changes of its row
        self._epochs_before: Counter[tuple[str, str]] = Counter()
        self._seen: dict[str, dict[tuple[str, str, Row], int]] = {}  # actor -> rows after its steps -> epoch
        self._epoch_of: dict[int, int] = {}  # id(job) -> epoch of the delivery
        self._kept: list[Job[dict]] = []  # so that no id() is used twice
        self._actor = ""
        self._firsts: list[str] = []
        self._rows: dict[tuple[str, str], Row] = {}
        self._rows_before: dict[tuple[str, str], Row] = {}
        self._view: View  # after the latest step
        self.raw(*(("XGROUP", "CREATE", self._keys.stream, group, "0", "MKSTREAM") for group in scenario.groups))
        scenario.seed(self)

    # --- for seeds ------------------------------------------------------------------------

    @property
    def keys(self) -> Keys:
        return self._keys

    def spec(self, group: str = "") -> Spec[dict]:
        return self._specs[self._named(group)]

    def _named(self, group: str = "") -> str:
        return group or self._scenario.groups[0]

    def raw(self, *commands: tuple[Any, ...]) -> list[Any]:
        return self._server.raw(*commands)

    def add(self, *markers: str, job_id: str | None = None, **fields: str) -> list[str]:
        """Add entries as a plain producer does; their IDs."""
        own = () if job_id is None else ("sq:id", job_id)
        more = tuple(part for pair in fields.items() for part in (pair[0].replace("_", ":"), pair[1]))
        commands = [("XADD", self._keys.stream, "*", "job", body(m), *own, *more) for m in markers]
        ids = [entry_id.decode() for entry_id in self.raw(*commands)]
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

    def run(self, plan: Plan[Any]) -> None:
        """Run one of the plans below; it is watched as in a schedule."""
        self.begin()
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
            self._starts[self._named(group), job.entry_id] += 1

    def _note(self, entry_id: str, marker: str, job_id: str | None) -> None:
        self._markers[entry_id] = marker
        self._receipt_of[marker] = job_id or marker

    # --- what the explorer calls ----------------------------------------------------------

    def begin(self) -> None:
        self.before("seed")
        self.after("seed")
        for name, job in self.held.items():
            row = (job._consumer, job.deliveries)
            # A delivery that is over already has an epoch of its own.
            self._epoch_of[id(job)] = self._seen["seed"].get((self._group_of[name], job.entry_id, row), -1)

    def ask(self, request: Request) -> Reply:
        return self._server.driver._ask(request)

    def before(self, actor: str) -> None:
        self._actor = actor
        self._epochs_before = self._epochs.copy()
        self._rows_before = self._rows

    def after(self, actor: str) -> None:
        view = self._view = self.look()
        rows = {(name, i): row for name, group in view.groups.items() for i, row in group.pending.items()}
        for place, row in rows.items():
            if self._rows.get(place) != row:
                self._epochs[place] += 1
        self._rows = rows
        seen = self._seen.setdefault(actor, {})
        for (name, entry_id), row in rows.items():
            seen[name, entry_id, row] = self._epochs[name, entry_id]
        for name, group in view.groups.items():
            self._check_places(name, group)
            self._check_starts(name, group)
        self._check_receipts(view)

    def recovery(self) -> Plan[None]:
        """A fresh consumer reads, reclaims and commits until nothing is left."""
        for _ in range(ROUNDS):
            for group in self._specs:
                yield from self.reading("recovery", count=100, then=self.committing, group=group)
                yield from self.reclaiming("recovery", then=self.committing, group=group)
            if not any(group.unread or group.pending for group in self._view.groups.values()):
                return
        raise Violation(f"recovery does not come to an end: {self._view}")

    def end(self) -> None:
        if left := self._view.entries:
            raise Violation(f"entries that nobody needs are left in the stream: {self._names(left)}")
        if len(self._firsts) > 1:
            raise Violation(f"once said True more than once: {self._firsts}")
        self._check_added_again()

    def close(self) -> None:
        keys = self._keys
        data = [keys.data(name) for name in ("receipts", "~probe")]
        self.raw(("UNLINK", keys.stream, keys.dead, keys.meta, *keys.ids, *keys.done, *data))

    # --- looking --------------------------------------------------------------------------

    def look(self) -> View:
        keys = self._keys
        entries, infos, letters, receipts, counters, *pending = self.raw(
            ("XRANGE", keys.stream, "-", "+"),
            ("XINFO", "GROUPS", keys.stream),
            ("XRANGE", keys.dead, "-", "+"),
            ("HGETALL", keys.data("receipts")),
            ("HGETALL", keys.meta),
            *(("XPENDING", keys.stream, name, "-", "+", 1000) for name in self._specs),
        )
        for entry_id, fields in entries:
            self._recognize(entry_id.decode(), dict(zip(fields[::2], fields[1::2], strict=True)))
        last = {}
        for info in infos if isinstance(infos, list) else []:
            row = dict(zip(info[::2], info[1::2], strict=True))
            last[row[b"name"].decode()] = order(row[b"last-delivered-id"].decode())
        counts = dict(zip(counters[::2], counters[1::2], strict=True))
        dead = [dict(zip(fields[::2], fields[1::2], strict=True)) for _, fields in letters]
        ids = {entry_id.decode() for entry_id, _ in entries}
        groups = {}
        for name, rows in zip(self._specs, pending, strict=True):
            groups[name] = GroupView(
                unread={i for i in ids if order(i) > last.get(name, (-1, 0)) and self._foreign.get(i, name) == name},
                pending={r[0].decode(): (r[1].decode(), r[3]) for r in rows} if isinstance(rows, list) else {},
                dead=[one[b"dead:source"].decode() for one in dead if one[b"dead:group"] == name.encode()],
                done=sum(int(counts.get(f"{word}:{name}".encode(), 0)) for word in ("done", "passed")),
            )
        found = {k.decode(): int(v) for k, v in zip(receipts[::2], receipts[1::2], strict=True)}
        return View(ids, groups, found)

    def _recognize(self, entry_id: str, fields: dict[bytes, bytes]) -> None:
        if b"sq:group" in fields:
            self._foreign[entry_id] = fields[b"sq:group"].decode()
        if entry_id not in self._markers:
            marker = json.loads(fields[b"job"])["marker"]
            self._markers[entry_id] = marker
            job_id = None if b"sq:generated" in fields else fields.get(b"sq:id")
            self._receipt_of.setdefault(marker, marker if job_id is None else job_id.decode())

    # --- what must hold -------------------------------------------------------------------

    def _check_places(self, name: str, group: GroupView) -> None:
        """Every job is exactly one of unread, pending, dead, done; and no entry is dead twice."""
        twice = [entry_id for entry_id, n in Counter(group.dead).items() if n > 1]
        if twice:
            raise Violation(f"dead-lettered twice: {self._names(twice)}")
        both = group.pending.keys() & set(group.dead)
        if both:
            raise Violation(f"pending and dead: {self._names(both)}")
        copies = Counter(
            self._markers[i] for i in [*group.unread, *group.pending, *group.dead] if self._foreign.get(i, name) == name
        )
        if several := [marker for marker, n in copies.items() if n > 1]:
            raise Violation(f"more than one copy of {several}: {group}")
        own = {marker for i, marker in self._markers.items() if self._foreign.get(i, name) == name}
        gone = own - copies.keys()
        if risen := self._gone[name] - gone:
            raise Violation(f"was done and is there again: {sorted(risen)}")
        self._gone[name] = gone
        others = {i for i, only in self._foreign.items() if only != name}
        last_unread = {i for i in others if i not in group.pending and i not in group.dead}
        settled = sum(1 for i in last_unread if self._was_read(name, i))
        if len(gone) + settled > group.done:
            raise Violation(f"lost: {sorted(gone)} are in no place, but only {group.done} were acknowledged")
        if len(gone) + settled < group.done:
            raise Violation(f"{group.done} were acknowledged, but only {sorted(gone)} left; the others are done twice")

    def _was_read(self, group: str, entry_id: str) -> bool:
        """Whether the group has read that entry; of others' entries nothing else tells."""
        return self._epochs[group, entry_id] > 0

    def _check_starts(self, name: str, group: GroupView) -> None:
        most = self.spec(name).options.max_deliveries
        for entry_id, (owner, count) in group.pending.items():
            starts = self._starts[name, entry_id]
            if count < starts:
                raise Violation(
                    f"{self._names([entry_id])} of {owner} was started {starts} times, its count says {count}"
                )
            if starts > most:
                raise Violation(
                    f"{self._names([entry_id])} was started {starts} times, max_deliveries {most}, count {count}"
                )

    def _check_receipts(self, view: View) -> None:
        several = {k: n for k, n in view.receipts.items() if n > 1}
        if several:
            raise Violation(f"effects applied more than once: {several}")
        done = {f"{name}/{self._receipt_of[marker]}" for name, gone in self._gone.items() for marker in gone}
        applied = {k for k in view.receipts if not k.startswith("once/")}
        if early := applied - done:
            raise Violation(f"effects applied, but not done: {sorted(early)}")
        if self._scenario.effects and (without := done - applied):
            raise Violation(f"done without effects: {sorted(without)}")

    def _check_added_again(self) -> None:
        """A chosen ID is known after its job is done, and free after it is dead."""
        seen = set(self._markers.values())
        chosen = {receipt for marker, receipt in self._receipt_of.items() if receipt != marker and marker in seen}
        for receipt in sorted(chosen):
            same = {marker for marker, other in self._receipt_of.items() if other == receipt}
            done = any(gone & same for gone in self._gone.values())
            plan = enqueue.add(self.spec(), {"marker": "again"}, job_id=receipt, headers=None)
            added = self._server.driver.run(plan)
            if added.created is done:
                raise Violation(f"job ID {receipt} is {'done' if done else 'dead'}, but adding it says {added}")

    def _names(self, entry_ids: Any) -> str:
        return ", ".join(f"{self._markers.get(i, '?')} ({i})" for i in sorted(entry_ids))

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
        self, consumer: str, *, count: int = 1, then: Callable[..., Plan[Any]] | None = None, group: str = ""
    ) -> Plan[int]:
        """Read, and go on with each job; how many."""
        group = self._named(group)
        jobs = yield from intake.read(self.spec(group), consumer, count=count, block_ms=None)
        return (yield from self._go_on(jobs, then, group, started=True))

    def recovering(
        self, consumer: str, *, then: Callable[..., Plan[Any]] | None = None, started: bool = True
    ) -> Plan[None]:
        """Take up what a lost read (started) or a worker's lost reclaim (not yet) left with this consumer."""
        group = self._named()
        jobs = yield from intake.recover(self.spec(group), consumer, frozenset())
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
        group = self._named()
        spec = self.spec(group)
        page = yield from intake.reclaim(spec, consumer, count=count, min_idle_ms=0, raise_count=False)
        yield from self._start_each(page.claimed, then, group)

    def _start_each(self, jobs: list[Job[dict]], then: Callable[..., Plan[Any]] | None, group: str) -> Plan[None]:
        for job in jobs:
            self._hand_out(job, group, started=False)
        for job in jobs:
            target = Held(job.entry_id, job.deliveries + 1)
            if not (yield from lease.start(self.spec(group), job._consumer, target)):
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
        job.effects.hincrby("receipts", f"{self._named(group)}/{receipt}", 1)

    def retrying(self, job: Job[dict], group: str = "") -> Plan[None]:
        yield from self._fenced(outcome.retry(self.spec(group), job, "boom"), job, group)
        self._accepted(job, group)

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

    def adding(self, marker: str, *, job_id: str | None = None) -> Plan[None]:
        yield from enqueue.add(self.spec(), {"marker": marker}, job_id=job_id, headers=None)

    def adding_many(self, *markers: str, chosen: bool = False) -> Plan[None]:
        payloads = [{"marker": marker} for marker in markers]
        job_id = (lambda payload: "id-" + payload["marker"]) if chosen else None
        yield from enqueue.add_many(self.spec(), payloads, job_id=job_id, headers=None)

    def applying_once(self, name: str) -> Plan[None]:
        if (yield from identity.once(self.spec(), name, Effects().hincrby("receipts", f"once/{name}", 1))):
            self._firsts.append(self._actor)


def body(marker: str) -> str:
    """The payload of a job."""
    return json.dumps({"marker": marker})


def order(entry_id: str) -> tuple[int, int]:
    """Entry IDs are two numbers, not text."""
    ms, _, seq = entry_id.partition("-")
    return int(ms), int(seq)
