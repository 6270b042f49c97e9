"""Two ways to do the same work take turns in short rounds: machines change speed by the minute, and so both see the same."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec.structs import replace

from streamq.bench.report import Figure, Part


@dataclass(frozen=True, slots=True)
class Limit:
    """When a round ends: so many jobs were done, or so many seconds have gone."""

    jobs: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Done:
    """What a round did."""

    jobs: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Contender:
    """One way to do the work.

    Attributes:
        work: Does it, within a limit.
        prepare: What must be there before: not measured.
        begins: Whether it has to begin and to end, which says nothing of a job: what a single one takes is taken off.
    """

    work: Callable[[Limit], Done]
    prepare: Callable[[Limit], None] = lambda _: None
    begins: bool = False


def one_by_one(do: Callable[[], object], limit: Limit) -> Done:
    """Do something again and again, at least once."""
    began = now = time.perf_counter()
    done = 0
    while done < limit.jobs and (not done or now < began + limit.seconds):
        do()
        done += 1
        now = time.perf_counter()
    return Done(done, now - began)


@dataclass(frozen=True, slots=True)
class Cost:
    """What some jobs took: time, CPU of this process, and reads by the server, where it says them."""

    jobs: int
    seconds: float
    cpu_s: float
    reads: int | None

    def without(self, other: Cost) -> Cost:
        """What the jobs took that are more than the other's; all of it, where that cannot be told apart."""
        if self.jobs <= other.jobs or self.seconds <= other.seconds:
            return self
        reads = None if self.reads is None or other.reads is None else max(self.reads - other.reads, 0)
        cpu_s = max(self.cpu_s - other.cpu_s, 0.0)
        return Cost(self.jobs - other.jobs, self.seconds - other.seconds, cpu_s, reads)

    @property
    def per_second(self) -> float:
        """Jobs a second."""
        return self.jobs / max(self.seconds, 1e-9)

    @property
    def cpu_ms(self) -> float:
        """Of 1,000 jobs."""
        return self.cpu_s * 1e6 / max(self.jobs, 1)


@dataclass(slots=True)
class Taken:
    """What all rounds of one contender took."""

    jobs: int = 0
    costs: list[Cost] = field(default_factory=list)

    def add(self, all_of_it: Cost, single: Cost | None) -> None:
        """Note a round, and what a single job took if that is to be taken off."""
        self.jobs += all_of_it.jobs
        self.costs.append(all_of_it if single is None else all_of_it.without(single))

    @property
    def rates(self) -> list[float]:
        """Jobs a second, round by round."""
        return [one.per_second for one in self.costs]

    @property
    def cpu_ms(self) -> list[float]:
        """Of 1,000 jobs, round by round."""
        return [one.cpu_ms for one in self.costs]

    @property
    def reads(self) -> float | None:
        """A job."""
        told = [(one.reads, one.jobs) for one in self.costs if one.reads is not None]
        jobs = sum(jobs for _, jobs in told)
        return round(sum(reads for reads, _ in told) / jobs, 4) if jobs else None


@dataclass(frozen=True, slots=True)
class Match:
    """A part: our way, and that of redis-py, if it can be measured.

    Attributes:
        name, beside: See `Part`.
        ours, raw: The two.
        reads: How often the server has read from connections; None where it does not say.
    """

    name: str
    beside: str
    ours: Contender
    raw: Contender | None
    reads: Callable[[], int | None]

    def play(self, limit: Limit, rounds: int, tell: Callable[[str], None]) -> Part:
        """Let both take turns, each second round in the other order.

        Args:
            limit: Of one contender in one round.
            rounds: How many.
            tell: Told what is done, before each round.
        """
        ours, raw = Taken(), Taken()
        both = [(self.ours, ours)] + ([] if self.raw is None else [(self.raw, raw)])
        for contender, _ in both:
            if not contender.begins:
                self._cost(contender, Limit(1, limit.seconds))  # connects, and looks at what is there: not counted
        for turn in range(rounds):
            tell(self.name)
            for contender, taken in both if turn % 2 == 0 else reversed(both):
                single = self._cost(contender, Limit(1, limit.seconds)) if contender.begins else None
                taken.add(self._cost(contender, limit), single)
        part = Part(
            name=self.name,
            beside=self.beside,
            rounds=rounds,
            jobs=ours.jobs,
            per_second=Figure.of(ours.rates, 1),
            cpu_ms_per_1000=Figure.of(ours.cpu_ms),
            server_reads_per_job=ours.reads,
        )
        return part if self.raw is None else _beside(part, ours, raw)

    def _cost(self, contender: Contender, limit: Limit) -> Cost:
        contender.prepare(limit)
        before, cpu = self.reads(), time.process_time()
        done = contender.work(limit)
        cpu = time.process_time() - cpu
        after = self.reads()
        reads = None if before is None or after is None else max(after - before - 1, 0)  # without the one that asks
        return Cost(done.jobs, done.seconds, cpu, reads)


def _beside(part: Part, ours: Taken, raw: Taken) -> Part:
    return replace(
        part,
        raw_jobs=raw.jobs,
        raw_per_second=Figure.of(raw.rates, 1),
        raw_cpu_ms_per_1000=Figure.of(raw.cpu_ms),
        ratio=Figure.of([one / other for one, other in zip(ours.rates, raw.rates, strict=True)]),
    )
