"""One run of the laboratory: load, faults, repair, drain, ledger."""

from __future__ import annotations

import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from faults.chaos import evidence as look
from faults.chaos import mutants, plan
from faults.chaos.crew import Crew, Singles, Supervised
from faults.chaos.ledger import Evidence, Ledger, Violation
from faults.chaos.load import STREAM, Producer, client, insist
from faults.chaos.monkey import Monkey, name_in
from faults.chaos.pulse import Pulse
from servers import Backend, CutProxy, Server
from worker.fleet import options_of

from streamq import Stream

OPTIONS: Final[Mapping[str, Any]] = {
    "lease": 1.0, "max_deliveries": 3, "retries": 2, "retry_delay": 0.4, "crash_delay": 0.2,
}  # fmt: skip
DRAIN_S: Final = 60.0
"""How long everything may take to come to its end once nothing is broken any more."""
MUTANT_DRAIN_S: Final = 12.0
"""The same of a weakened build, which may never get there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What is run.

    Attributes:
        backend: The server.
        seed: Of the jobs and the faults.
        seconds: How long jobs are posted and faults are made.
        processes: How many workers.
        rate: Jobs a second.
        mix: Kinds of jobs, with their weights.
        faults: Kinds of faults, with their weights.
        supervised: Whether ``streamq run`` runs the workers.
        mutant: Name of a weakened build; None for the true one.
        drain: Seconds for everything to come to its end, beside half of `seconds`.
    """

    backend: Backend
    seed: int
    seconds: float = 60.0
    processes: int = 4
    rate: float = 40.0
    mix: Mapping[plan.Kind, float] = field(default_factory=lambda: plan.MIX)
    faults: Mapping[plan.Fault, float] = field(default_factory=lambda: plan.WEIGHTS)
    supervised: bool = False
    mutant: str | None = None
    drain: float = DRAIN_S


def mutated(settings: Settings, name: str) -> Settings:
    """The same with a weakened build, and the jobs and faults that show it."""
    m = mutants.MUTANTS[name]
    return replace(
        settings, mutant=name, mix=m.mix, faults=m.faults, rate=m.rate, seconds=m.seconds, drain=MUTANT_DRAIN_S
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a run came to.

    Attributes:
        settings: What was run.
        ledger: All that was seen.
        violations: What must not be; empty for a sound build.
        faults: How many of each kind.
        workers: How many worker processes were started.
        posted: How many postings.
        drained_s: How long it took to come to an end after the last fault.
        log: Of the workers.
    """

    settings: Settings
    ledger: Ledger
    violations: list[Violation]
    faults: Counter[str]
    workers: int
    posted: int
    drained_s: float
    log: str


def run(settings: Settings) -> Report:
    """Run it all; returns when everything it started is gone."""
    threads, children = set(threading.enumerate()), look.children()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="chaos-")))
        laboratory = _Laboratory(settings, directory, stack)
        laboratory.break_everything()
        seen, drained_s = laboratory.settle()
        log = laboratory.crew.log.read_text(errors="replace")
    left = [*look.threads(threads), *(f"process {pid} is left" for pid in look.children() - children)]
    ledger = Ledger(Evidence(**seen, remains=[*laboratory.left, *left]))
    return Report(
        settings=settings,
        ledger=ledger,
        violations=ledger.violations(),
        faults=Counter(blow.fault for blow in laboratory.monkey.blows),
        workers=laboratory.workers,
        posted=len(laboratory.postings),
        drained_s=drained_s,
        log=log,
    )


class _Laboratory:
    """The parts of one run; all that it starts ends with `stack`."""

    def __init__(self, settings: Settings, directory: Path, stack: ExitStack) -> None:
        self.settings = settings
        self.left: list[str] = []
        self.workers = 0
        options = options_of(dict(OPTIONS))
        # Nothing that was answered may be lost by a crash: of a loss it is streamq that must be to blame.
        server = Server(settings.backend, appendonly=True, args=("--appendfsync", "always"))
        self.server = stack.enter_context(server)
        self.relay = stack.enter_context(CutProxy(self.server, memory=0))
        self.raw = client(self.server.url)
        stack.callback(self.raw.close)
        self.stream: Stream[Any] = Stream(STREAM, redis=self.server.url, options=options)
        stack.callback(self.stream.close)
        lua = mutants.build(settings.mutant, directory) if settings.mutant else None
        urls = (self.server.url, self.relay.url)
        kind = Supervised if settings.supervised else Singles
        self.crew: Crew = kind(urls, directory, places=settings.processes, lua=lua, options=dict(OPTIONS))
        stack.callback(self.crew.close)
        self.monkey = Monkey(self.server, self.relay, self.crew, options)
        stack.callback(self.monkey.close)
        self.pulse = Pulse(self.server.url)
        self.postings = plan.postings(settings.seed, settings.seconds, rate=settings.rate, mix=settings.mix)
        # One posts directly, one through the proxy, by turns; a job's second posting by who made the first.
        parts: tuple[list[plan.Posting], ...] = ([], [])
        for posting in self.postings:
            parts[int(posting.job.name.partition("-")[0]) % 2].append(posting)
        events = self.crew.events
        self.producers = [
            Producer(url, self.server.url, part, events, options) for url, part in zip(urls, parts, strict=True)
        ]

    def break_everything(self) -> None:
        """Post jobs and make faults, until all of both are over and everything is repaired."""
        settings = self.settings
        steps = plan.faults(settings.seed, settings.seconds, places=settings.processes, weights=settings.faults)
        self.crew.start()
        self.begin = time.monotonic()
        self.pulse.start()
        for producer in self.producers:
            producer.start()
        self.monkey.run(steps)
        self.monkey.repair()
        for producer in self.producers:
            producer.join(settings.seconds + 60)

    def settle(self) -> tuple[dict[str, Any], float]:
        """Let it come to its end, stop the workers, and look at everything."""
        drained_s = self._drain()
        self.crew.terminate()
        self.pulse.stop()
        raw, monkey = self.raw, self.monkey
        accepted = frozenset().union(*(producer.accepted for producer in self.producers))
        jobs = {posting.job.name: posting.job for posting in self.postings}
        seen = {
            "jobs": jobs,
            "accepted": accepted,
            "uncertain": frozenset().union(*(producer.uncertain for producer in self.producers)) - accepted,
            "events": self.crew.events.all(),
            "effects": insist(lambda: look.effects(raw)),
            "letters": look.letters(self.stream),
            "results": {name: self._result(job) for name, job in jobs.items() if job.kind is plan.Kind.RESULT},
            "blows": [*monkey.blows, *self.pulse.stalls],
            "deleted": {entry_id: name_in(body) or "" for entry_id, body in monkey.deleted.items()},
            "ends": self.crew.ends(),
            "max_deliveries": OPTIONS["max_deliveries"],
            "max_attempts": OPTIONS["retries"] + 1,
            "retry_delay": OPTIONS["retry_delay"],
            "begin": self.begin,
        }
        self.workers = self.crew.started()
        self.left += [*look.waiting(raw), *look.consumers(raw, most=self.workers), *look.keys(raw)]
        self.stream.close()
        self.monkey.close()
        self.relay.close()
        self.left += [*look.connections(raw), *look.complaints(self.crew.log.read_text(errors="replace"))]
        return seen, drained_s

    def _result(self, job: plan.Job) -> Any:
        return self.stream.result(job.job_id or "").value

    def _drain(self) -> float:
        """Wait until nothing is ready, pending or scheduled; how long it took."""
        begin = time.monotonic()
        longest = self.settings.drain + self.settings.seconds / 2  # the longer the run, the more has piled up
        quiet = 0
        while quiet < 3 and time.monotonic() - begin < longest and not self._is_hopeless():
            now = insist(self.stream.inspect)
            quiet = quiet + 1 if now.ready == now.pending == now.scheduled == 0 else 0
            time.sleep(0.1)
        return time.monotonic() - begin

    def _is_hopeless(self) -> bool:
        """Whether a poison is started again and again: then it will not come to an end."""
        starts = self.crew.events.starts()
        return any(n > 2 * OPTIONS["max_deliveries"] for name, n in starts.items() if name.endswith(plan.Kind.POISON))
