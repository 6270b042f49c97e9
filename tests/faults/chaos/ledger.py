"""What must be true when all is over, checked against what was seen. No I/O: evidence in, violations out.

A fault of the laboratory may cost a job its life only where streamq says so: started `max_deliveries` times, the last time
alone in its process, and something befell that process then. Everything else that is not as it should be is a violation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple

from faults.chaos.monkey import Blow
from faults.chaos.plan import ENDS, Fault, Job, Kind
from worker.fleet import Event

GRACE_S = 2.5
"""How long a fault is felt after its end: a lease that ran out meanwhile, and reconnecting."""

STOPPING: Final = {Fault.KILL, Fault.TERM, Fault.STOP, Fault.RESTART, Fault.FREEZE, "stall", "poison"}
"""What can end a process or keep it from renewing its leases. No other fault may cost a running job its lease."""

POISON_S = 0.3
"""How long after its start a poison has ended its process."""

EARLY_S = 0.01
"""What a retry may come early: clocks tell whole milliseconds."""

HANDOVER_S = 0.05
"""Within this time of an event loop's getting free, what had waited for it is started."""


class Letter(NamedTuple):
    """A dead letter, as far as the ledger looks at it. No name: its body was gone."""

    name: str | None
    reason: str
    source_id: str
    deliveries: int
    attempts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that was seen.

    Attributes:
        jobs: The load, by name.
        accepted: Names of jobs that are in the stream's care.
        uncertain: Names of those that may be: their posting got no answer.
        events: What the workers told, in order.
        effects: How often each job's effect is there.
        letters: All dead letters.
        results: Stored result of each job that should have one.
        blows: What the monkey did.
        deleted: Source ID -> name, of entries whose body the monkey deleted.
        ends: Exit status of each worker process; None for one that did not end.
        remains: Everything that was left where nothing should be, told in words.
        max_deliveries: Most starts of a job whose process dies.
        max_attempts: Most attempts of a job that fails.
        retry_delay: Seconds that it waits for the next one.
        begin: When the first job was posted, on the clock of the events.
    """

    jobs: Mapping[str, Job]
    accepted: frozenset[str]
    uncertain: frozenset[str] = frozenset()
    events: Sequence[Event] = ()
    effects: Mapping[str, int] = field(default_factory=dict)
    letters: Sequence[Letter] = ()
    results: Mapping[str, object] = field(default_factory=dict)
    blows: Sequence[Blow] = ()
    deleted: Mapping[str, str] = field(default_factory=dict)
    ends: Mapping[int, int | None] = field(default_factory=dict)
    remains: Sequence[str] = ()
    max_deliveries: int = 3
    max_attempts: int = 3
    retry_delay: float = 0.0
    begin: float = 0.0


class Violation(NamedTuple):
    """Something that must not be. `history` says all that is known of the job, or nothing if it is about none."""

    rule: str
    what: str
    history: Sequence[str] = ()


@dataclass(slots=True)
class Run:
    """A handler's run, from its start to its end; None for one that never came to its end."""

    start: Event
    end: Event | None = None

    @property
    def pid(self) -> int:
        return self.start.pid

    def covers(self, at: float) -> bool:
        """Whether it was under way then. One without end lasts as long as its process."""
        return self.start.at <= at and (self.end is None or at < self.end.at)


class Ledger:
    """Balances the evidence of one run."""

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self.runs = list(_runs(evidence.events))
        self._of: dict[str, list[Run]] = defaultdict(list)
        for run in self.runs:
            self._of[run.start.name].append(run)
        self._letters: dict[str, list[Letter]] = defaultdict(list)
        for letter in evidence.letters:
            self._letters[letter.name or evidence.deleted.get(letter.source_id, "")].append(letter)
        self._blocking = [run for run in self.runs if evidence.jobs[run.start.name].kind is Kind.BLOCKING]
        told = [blow for event in evidence.events if (blow := self._told(event))]
        self._blows = [*evidence.blows, *told]
        self._stopping = [blow for blow in self._blows if blow.fault in STOPPING]

    def violations(self) -> list[Violation]:
        """All that is wrong, job by job, then of the system."""
        return [v for check in _CHECKS for v in check(self)]

    @property
    def redelivered(self) -> int:
        """How many starts were not the first of their entry."""
        return len(self.runs) - len({run.start.entry_id for run in self.runs})

    def known(self) -> Iterator[Job]:
        """The jobs that arrived: accepted, or not sure but seen."""
        seen = {*self.evidence.effects, *self._of, *self._letters}
        for name in sorted(self.evidence.accepted | (self.evidence.uncertain & seen)):
            yield self.evidence.jobs[name]

    # Checks of jobs

    def fates(self) -> Iterator[Violation]:
        """Each job is done, or a dead letter of the right reason; one of them, once."""
        for job in self.known():
            effects = self.evidence.effects.get(job.name, 0)
            letters = self._letters[job.name]
            due = ENDS.get(job.kind)
            accidents = [letter for letter in letters if letter.reason != due and self._is_accident(letter)]
            wrong = [letter.reason for letter in letters if letter.reason != due and letter not in accidents]
            right = len(letters) - len(wrong) - len(accidents)
            if wrong:
                yield self._of_job(
                    job.name, "wrong letter", f"dead-lettered as {', '.join(wrong)}; due: {due or 'done'}"
                )
            if effects > 1:
                yield self._of_job(job.name, "effect twice", f"its effect was applied {effects} times")
            if effects and due:
                yield self._of_job(job.name, "effect", f"it has an effect, but must end as a dead letter ({due})")
            if not effects and not letters:
                yield self._of_job(job.name, "lost", "it has no effect and no dead letter")
            if effects and letters and not self._ran_another_entry(job, letters):
                yield self._of_job(job.name, "effect and letter", "it was done, and is a dead letter")
            if right > 1 or (len(letters) > 1 and job.kind is not Kind.CHOSEN):
                yield self._of_job(job.name, "dead twice", f"it has {len(letters)} dead letters")

    def letters(self) -> Iterator[Violation]:
        """Each dead letter is of a job that is known, and no entry has two; attempts are counted right."""
        sources = [letter.source_id for letter in self.evidence.letters]
        for letter in self.evidence.letters:
            name = letter.name or self.evidence.deleted.get(letter.source_id)
            if name is None or name not in self.evidence.accepted | self.evidence.uncertain:
                yield Violation("unknown letter", f"{letter} is of no job that was posted")
                continue
            if sources.count(letter.source_id) > 1:
                yield self._of_job(name, "dead twice", f"entry {letter.source_id} has more than one dead letter")
            if letter.reason == "deliveries" and letter.deliveries != self.evidence.max_deliveries:
                yield self._of_job(name, "deliveries", f"dead after {letter.deliveries} deliveries")
            if letter.reason == "attempts" and letter.attempts != self.evidence.max_attempts:
                yield self._of_job(name, "attempts", f"dead after {letter.attempts} attempts")
        for name in self.evidence.effects:
            if name not in self.evidence.jobs:
                yield Violation("unknown effect", f"there is an effect of {name}, which was never posted")

    def starts(self) -> Iterator[Violation]:
        """No entry is started too often, none twice with one count, and a last chance is taken alone."""
        for name, runs in self._of.items():
            for entry_id, group in _by_entry(runs).items():
                if len(group) > self.evidence.max_deliveries and self.evidence.jobs[name].kind is Kind.POISON:
                    yield self._of_job(name, "started too often", f"entry {entry_id} was started {len(group)} times")
                if any(run.start.deliveries > self.evidence.max_deliveries for run in group):
                    yield self._of_job(
                        name, "started too often", f"entry {entry_id} was started beyond its last chance"
                    )
                for one, two in pairwise(group):
                    cancelled = one.end is not None and one.end.what == "cancel"
                    if two.start.deliveries == one.start.deliveries and not cancelled:
                        yield self._of_job(name, "start not counted", f"entry {entry_id}: its count did not rise")
                last = group[-1]
                beside = self._beside(last) if last.start.deliveries == self.evidence.max_deliveries else []
                if beside:
                    others = ", ".join(run.start.name for run in beside)
                    yield self._of_job(name, "not alone", f"beside it in its last chance: {others}")

    def attempts(self) -> Iterator[Violation]:
        """Attempts are numbered from 1, each is made by one entry only, and each waits for its time."""
        for name, runs in self._of.items():
            if self.evidence.jobs[name].job_id is not None:
                continue  # posted again, which makes more entries
            made: dict[int, list[Run]] = defaultdict(list)
            for run in runs:
                made[run.start.attempt].append(run)
            if sorted(made) != [*range(1, len(made) + 1)] or len(made) > self.evidence.max_attempts:
                yield self._of_job(name, "attempts", f"it made the attempts {sorted(made)}")
            for number, group in made.items():
                entries = {run.start.entry_id for run in group}
                if len(entries) > 1:
                    yield self._of_job(
                        name, "attempt twice", f"attempt {number} was made by the entries {sorted(entries)}"
                    )
                failed = min((run.end.at for run in made.get(number - 1, ()) if run.end), default=0.0)
                waited = min(run.start.at for run in group) - failed
                if waited < self.evidence.retry_delay - EARLY_S:
                    yield self._of_job(name, "too early", f"attempt {number} began {waited:.3f} s after the one before")

    def reruns(self) -> Iterator[Violation]:
        """Nothing is run again unless something befell the process that ran it."""
        for name, runs in self._of.items():
            for group in _by_entry(runs).values():
                for one, two in pairwise(group):
                    if not self._was_hit(one, until=two.start.at):
                        yield self._of_job(
                            name, "run again", f"in {two.pid}, though nothing befell {one.pid}, which ran it before"
                        )

    def results(self) -> Iterator[Violation]:
        """A stored result is what the handler returned."""
        for job in self.known():
            if job.kind is Kind.RESULT and self.evidence.effects.get(job.name):
                found = self.evidence.results.get(job.name)
                if found != job.payload["result"]:
                    yield self._of_job(job.name, "result", f"its result is {found!r}")

    # Checks of the system

    def processes(self) -> Iterator[Violation]:
        """Each process ended in order, or because somebody ended it."""
        killed = {
            pid: blow.fault for blow in self.evidence.blows for pid in blow.pids if blow.fault in ("kill", "term")
        }
        poisoned = {run.pid for run in self.runs if self.evidence.jobs[run.start.name].kind is Kind.POISON}
        for pid, status in self.evidence.ends.items():
            fine = {0} | ({-9} if pid in killed else set()) | ({9} if pid in poisoned else set())
            fine |= {-15} if killed.get(pid) == "term" else set()  # before its handler of signals was there
            if status not in fine:
                how = "did not end" if status is None else f"ended with status {status}"
                yield Violation("process", f"worker process {pid} {how}, and nobody made it")

    def remains(self) -> Iterator[Violation]:
        """Nothing is left where nothing should be."""
        for what in self.evidence.remains:
            yield Violation("left behind", what)

    # What they share

    def _told(self, event: Event) -> Blow | None:
        """What workers tell of blows: that they stood still, and the start of a job that will end them."""
        if event.what == "stall":
            return Blow("stall", event.at - float(event.name), event.at, frozenset({event.pid}))
        if event.what == "start" and self.evidence.jobs[event.name].kind is Kind.POISON:
            return Blow("poison", event.at, event.at + POISON_S, frozenset({event.pid}))
        return None

    def _is_accident(self, letter: Letter) -> bool:
        """Whether the laboratory itself caused it: it took the body, or it spent the last of all chances."""
        if letter.reason == "entry_missing":
            return letter.source_id in self.evidence.deleted
        if letter.reason != "deliveries" or letter.deliveries != self.evidence.max_deliveries:
            return False
        runs = _by_entry(self._of[letter.name or ""]).get(letter.source_id, [])
        last = runs[-1] if runs and runs[-1].start.deliveries == self.evidence.max_deliveries else None
        return last is not None and self._was_hit(last)

    def _was_hit(self, run: Run, until: float | None = None) -> bool:
        """Whether something befell its process while it ran, or right after, before its outcome was settled.

        Args:
            run: What it was doing.
            until: When somebody else started the same. That may be before this run: a process that stood still may begin
                what it read long ago. Then it was hit before that.
        """
        begin, end = run.start.at, self._end(run) + GRACE_S
        if until is not None:
            begin, end = min(begin, until - GRACE_S), until
        # A read whose answer waited for a handler that blocked the event loop: nobody renewed what it brought.
        late = any(
            block.pid == run.pid and self._end(block) <= run.start.at + HANDOVER_S <= self._end(block) + GRACE_S
            for block in self._blocking
        )
        return late or any(blow.met(run.pid, begin, end, grace=GRACE_S) for blow in self._stopping)

    def _end(self, run: Run) -> float:
        """When it ended, or would have."""
        return run.end.at if run.end else run.start.at + self.evidence.jobs[run.start.name].payload["seconds"]

    def _ran_another_entry(self, job: Job, letters: Sequence[Letter]) -> bool:
        """Whether a job was posted again under its ID, which the death of the first had freed."""
        ended = {run.start.entry_id for run in self._of[job.name] if run.end}
        return job.kind is Kind.CHOSEN and bool(ended - {letter.source_id for letter in letters})

    def _beside(self, run: Run) -> list[Run]:
        """Other runs in its process that were under way while it was."""
        end = run.end.at if run.end else float("inf")
        return [
            other
            for other in self.runs
            if other is not run
            and other.pid == run.pid
            and (other.covers(run.start.at) or run.start.at < other.start.at < end)
        ]

    def _of_job(self, name: str, rule: str, what: str) -> Violation:
        return Violation(rule, f"{name}: {what}", list(self.history(name)))

    def history(self, name: str) -> list[str]:
        """All that is known of a job, in order of time: its runs, what befell their processes, its letters."""
        begin = self.evidence.begin
        lines: list[tuple[float, str]] = []
        for event in self.evidence.events:
            if event.name == name:
                told = f"{event.what} in {event.pid}, attempt {event.attempt}, delivery {event.deliveries}"
                lines.append((event.at, f"{told}, entry {event.entry_id}"))
        pids = {run.pid for run in self._of[name]}
        first, last = min((at for at, _ in lines), default=0), max((at for at, _ in lines), default=0)
        for blow in self._blows:
            if blow.begin <= last + 2 * GRACE_S and first <= blow.end + GRACE_S and (not blow.pids or blow.pids & pids):
                hit = ", ".join(map(str, sorted(blow.pids & pids))) or "all"
                lines.append((blow.begin, f"{blow.fault} of {hit}, for {blow.end - blow.begin:.2f} s"))
        told = [f"{at - begin:8.3f} s  {line}" for at, line in sorted(lines)]
        told += [f"letter: {letter}" for letter in self._letters[name]]
        return [*told, f"effects: {self.evidence.effects.get(name, 0)}"]


_CHECKS: tuple[Callable[[Ledger], Iterator[Violation]], ...] = (
    Ledger.fates, Ledger.letters, Ledger.starts, Ledger.attempts, Ledger.reruns, Ledger.results, Ledger.processes, Ledger.remains,
)  # fmt: skip


def _runs(events: Sequence[Event]) -> Iterator[Run]:
    under_way: dict[tuple[int, str, int], Run] = {}
    for event in events:
        key = (event.pid, event.entry_id, event.deliveries)
        if event.what == "start":
            under_way[key] = Run(event)
            yield under_way[key]
        elif event.what in ("end", "cancel") and key in under_way:
            under_way[key].end = event


def _by_entry(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs of each entry, in the order of their deliveries."""
    groups: dict[str, list[Run]] = defaultdict(list)
    for run in sorted(runs, key=lambda run: (run.start.deliveries, run.start.at)):
        groups[run.start.entry_id].append(run)
    return groups
