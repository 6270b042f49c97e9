"""What is measured. Each workload takes a system through it once, and gives rows of what came out."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from servers import Backend

from . import machine
from .rig import Rig, Worker
from .systems import RAW, US, System

Row = dict[str, Any]
FOR_EVER = 10**7
MOST_JOBS = 400_000
PROBE_JOBS = 3_000
"""Drained once, to see how many jobs a measured run needs."""
SLOW_PROBE_JOBS = 600
SLOW = ("rq", "celery", "bullmq-py")
STALL_S = 15.0
GAP_S = 0.01
LEFT_JOBS = 100_000
CRASH_PROFILES = ("hold", "fast", "hold_fast")
HELD = 100
"""Jobs that a worker holds when it is killed."""


@dataclass
class Plan:
    """How much is done.

    Args:
        backend: The server.
        profiles: Which of those that a system has; None for all but those of crashes.
        seconds: Of adding, and about so long for draining.
        latency_jobs: Of one round.
        crash_s: How long recovery at default settings is waited for.
        backlogs: Jobs in the queue.
    """

    backend: Backend
    profiles: tuple[str, ...] | None = None
    seconds: float = 4.0
    latency_jobs: int = 1_000
    crash_s: float = 420.0
    fast_crash_s: float = 90.0
    healthy_s: float = 12.0
    idle_s: float = 20.0
    backlogs: tuple[int, ...] = (1_000, 100_000, 500_000)
    fill_s: float = 40.0
    """A queue that takes longer to fill is left out."""
    is_quick: bool = False
    """Best settings only, but for loops and ourselves."""
    rates: dict[tuple[str, str, int], float] = field(default_factory=dict)

    def rig(self, system: System, profile: str = "default") -> Rig:
        """A fresh server for a system."""
        return Rig(system, self.backend, profile)

    def profiles_of(self, system: System) -> list[str]:
        """Those of a system that are drained with."""
        skipped = {*CRASH_PROFILES, *(["default"] if self.is_quick and system.name not in {US, *RAW} else [])}
        has = [name for name in system.about["profiles"] if name not in skipped]
        return has if self.profiles is None else [name for name in self.profiles if name in has]


def best(system: System) -> str:
    """The profile of best settings; loops have theirs, too."""
    return "best" if "best" in system.about["profiles"] else "default"


def add(system: System, plan: Plan) -> Iterator[Row]:
    """W1: one producer adds jobs, one by one and in bulk."""
    for mode in ("one", "bulk"):
        if mode == "bulk" and not system.about["bulk"]:
            continue
        for profile in system.about["adds"]:
            with plan.rig(system, profile) as rig:
                speed = machine.speed(rig.client)
                busy, server, began = machine.busy_s(), rig.server_cpu_s(), time.monotonic()
                reads = rig.reads()
                took = rig.produce(mode, FOR_EVER, plan.seconds, warm=True)
                lasted = time.monotonic() - began
                jobs, used = took["jobs"], rig.server_cpu_s() - server
                others = machine.busy_s() - busy - took["client_cpu_s"] - used
                yield {
                    "profile": profile,
                    "mode": mode,
                    "jobs": jobs,
                    "rate": jobs / took["seconds"],
                    "client_cpu_1k": took["client_cpu_s"] / jobs * 1e3,
                    "server_cpu_1k": used / (jobs + took["warm"]) * 1e3,
                    "round_trips": (rig.reads() - reads) / (jobs + took["warm"]),
                    "rss_mb": took["rss_mb"],
                    "foreign_cpu": max(0.0, others) / lasted,
                    "load": os.getloadavg()[0],
                    **speed,
                }


def drain(system: System, plan: Plan) -> Iterator[Row]:
    """W2: one worker process meets a full queue."""
    for profile in plan.profiles_of(system):
        yield _full_queue(system, plan, profile)


def processes(system: System, plan: Plan) -> Iterator[Row]:
    """One worker process and two, by turns."""
    for number in (1, 2):
        yield _full_queue(system, plan, best(system), number)


def concurrency(system: System, plan: Plan) -> Iterator[Row]:
    """One worker process with so many handlers at once."""
    for profile in system.about["sweep"]:
        yield _full_queue(system, plan, profile)


def _full_queue(system: System, plan: Plan, profile: str, processes: int = 1) -> Row:
    key = (system.name, profile, processes)
    if key not in plan.rates:
        plan.rates[key] = _probe(system, plan, profile, processes)
    with plan.rig(system, profile) as rig:
        jobs = int(min(MOST_JOBS, max(500, plan.rates[key] * plan.seconds)))
        rig.produce("bulk", jobs)
        speed = machine.speed(rig.client)
        row = _drain(rig, jobs, processes, timeout=plan.seconds * 6)
        plan.rates[key] = row["rate"]
        return {"profile": profile, "processes": processes, **row, **speed}


def _probe(system: System, plan: Plan, profile: str, processes: int) -> float:
    """About how fast it is: jobs a second. Not reported."""
    jobs = SLOW_PROBE_JOBS if system.name in SLOW else PROBE_JOBS
    with plan.rig(system, profile) as rig:
        rig.produce("bulk", jobs)
        return _drain(rig, jobs, processes, timeout=8)["rate"]


def _drain(rig: Rig, jobs: int, processes: int = 1, *, timeout: float, window: float | None = None) -> Row:
    """Run workers until so many jobs have begun, or for `window` seconds.

    The rate is from the first start to the last; with several processes while all were at work.
    """
    began = time.monotonic()
    workers = [rig.work() for _ in range(processes)]
    rig.await_hits(workers[0])
    before = _Spent(rig, workers)
    stalled_at = time.monotonic() + STALL_S
    seen = before.hits
    while True:
        now, hits = time.monotonic(), rig.hits.count()
        if hits > seen:
            seen, stalled_at = hits, now + STALL_S
        if hits >= jobs or now > min(stalled_at, before.at + timeout) or (window and now > before.at + window):
            break
        time.sleep(0.01)
    if not window:
        time.sleep(0.3)  # the last acknowledgements belong to it
    row = before.until_now()
    hits_read = rig.hits.read()
    unique = len({i for i, _, _ in hits_read})
    rate = _rate(hits_read, processes)
    begun_s = min(at for _, at, _ in hits_read) / 1e9 - began
    return {"jobs": len(hits_read), "unique": unique, "rate": rate, "starts_s": begun_s, **row}


def _rate(hits: list[tuple[int, int, int]], processes: int) -> float:
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for _, at, pid in hits:
        first[pid] = min(first.get(pid, at), at)
        last[pid] = max(last.get(pid, at), at)
    if processes > 1 and len(first) == processes:
        low, high = max(first.values()), min(last.values())
    else:
        low, high = min(first.values()), max(last.values())
    within = sum(low <= at <= high for _, at, _ in hits)
    return (within - 1) / (high - low) * 1e9 if high > low else 0.0


class _Spent:
    """What workers and server spend from now on."""

    def __init__(self, rig: Rig, workers: list[Worker]) -> None:
        self._rig, self._workers = rig, workers
        self.hits, self.at = rig.hits.count(), time.monotonic()
        self._client, self._server, self._busy, self._reads = self._now()

    def _now(self) -> tuple[float, float, float, int]:
        client = sum(machine.cpu_s(worker.pid) for worker in self._workers)
        return client, self._rig.server_cpu_s(), machine.busy_s(), self._rig.reads() or 0

    def until_now(self) -> Row:
        client, server, busy, reads = self._now()
        jobs = max(1, self._rig.hits.count() - self.hits)
        client, server, busy = client - self._client, server - self._server, busy - self._busy
        return {
            "client_cpu_1k": client / jobs * 1e3,
            "server_cpu_1k": server / jobs * 1e3,
            "round_trips": (reads - self._reads) / jobs,
            "rss_mb": sum(machine.peak_mb(worker.pid) for worker in self._workers),
            "foreign_cpu": max(0.0, busy - client - server) / (time.monotonic() - self.at),
            "load": os.getloadavg()[0],
        }


def latency(system: System, plan: Plan) -> Iterator[Row]:
    """W3: from the call that adds a job to the start of its handler, in a worker that has nothing else to do."""
    for profile in ("best",) if system.name in RAW else ("default", "best"):  # what drains best may be late
        yield _late(system, plan, profile)


def _late(system: System, plan: Plan, profile: str) -> Row:
    with plan.rig(system, profile) as rig:
        first = 5
        rig.produce("one", first)  # makes groups, and shows that the worker is up
        rig.await_hits(rig.work(), first)
        time.sleep(0.5)
        warm, jobs = 20, plan.latency_jobs
        called = rig.send(warm + jobs, GAP_S)
        rig.wait(lambda: rig.hits.count() >= first + warm + jobs, 10, pause=0.02)
        began = {i: at for i, at, _ in rig.hits.read()[first:]}
        ms = sorted((began[i] - at) / 1e6 for i, at in called.items() if i >= warm and i in began)
        quantiles = [round(ms[min(len(ms) - 1, len(ms) * each // 200)], 3) for each in range(201)]
        return {
            "profile": profile,
            "jobs": len(ms),
            "p50": statistics.median(ms),
            "p99": ms[len(ms) * 99 // 100],
            "max": ms[-1],
            "load": os.getloadavg()[0],
            "quantiles": quantiles,
        }


def crash(system: System, plan: Plan) -> Iterator[Row]:
    """W4: a worker that holds jobs is killed, another starts at once."""
    for profile, hold, limit in (("default", "hold", plan.crash_s), ("fast", "hold_fast", plan.fast_crash_s)):
        if profile in system.about["profiles"] and hold in system.about["profiles"]:
            yield _crash(system, plan, profile, hold, limit)


def _crash(system: System, plan: Plan, profile: str, hold: str, limit: float) -> Row:
    jobs, holders = (HELD // 10, HELD // 10) if system.name == "rq" else (HELD, 1)
    with plan.rig(system, profile) as rig:
        rig.produce("bulk", jobs)
        first = [rig.work(hold, hold=3600) for _ in range(holders)]
        rig.await_hits(first[0])
        rig.wait(lambda: rig.hits.count() >= jobs, 20)
        time.sleep(0.5)
        held = len(rig.hits.jobs())
        for worker in first:
            worker.kill()
        killed, again = time.monotonic(), rig.new_hits()
        rig.work(hits=again)
        is_all = rig.wait(lambda: len(again.jobs()) >= jobs, limit, pause=0.2)
        waited = time.monotonic() - killed
        if is_all:
            time.sleep(5)  # duplicates may come late
        starts: dict[int, int] = {}
        for i, at, _ in again.read():
            starts.setdefault(i, at)
        return {
            "profile": profile,
            "jobs": jobs,
            "held": held,
            "recovered": len(starts),
            "all_s": max(starts.values()) / 1e9 - killed if is_all else None,
            "waited_s": waited,
            "duplicates": again.count() - len(starts),
        }


def healthy(system: System, plan: Plan) -> Iterator[Row]:
    """W4b: two healthy workers, leases of 2 s, jobs that take far longer: whatever starts twice is a duplicate."""
    if "fast" not in system.about["profiles"]:
        return
    with plan.rig(system, "fast") as rig:
        jobs = 10
        rig.produce("bulk", jobs)
        for _ in range(2):
            rig.work(hold=plan.healthy_s)
        time.sleep(plan.healthy_s * 2 + 6)
        executed = len(rig.hits.jobs())
        yield {"profile": "fast", "jobs": jobs, "executed": executed, "duplicates": rig.hits.count() - executed}


def backlog(system: System, plan: Plan) -> Iterator[Row]:
    """W5: queues of several lengths: how fast they are drained, what they take of memory, what is left behind."""
    profile, fill_rate = best(system), None
    for jobs in plan.backlogs:
        if fill_rate and jobs / fill_rate > plan.fill_s:
            return
        with plan.rig(system, profile) as rig:
            base = rig.memory()
            took = rig.produce("bulk", jobs)
            fill_rate = took["jobs"] / took["seconds"]
            row = {"profile": profile, "queued": jobs, "bytes_a_job": (rig.memory() - base) / jobs}
            row |= _drain(rig, jobs, timeout=60, window=plan.seconds)
            if jobs <= LEFT_JOBS and rig.wait(lambda: rig.hits.count() >= jobs, 60):  # noqa: B023  # called at once
                time.sleep(2)  # the last are acknowledged
                row |= rig.left()
            yield row


def idle(system: System, plan: Plan) -> Iterator[Row]:
    """W6: what a worker asks of the server that has nothing to do, and one whose handlers take long."""
    for profile, hold in ((best(system), 0), ("hold", 3600)):
        if profile not in system.about["profiles"]:
            continue
        with plan.rig(system, profile) as rig:
            rig.produce("one", 5)
            worker = rig.work(hold=hold)
            rig.await_hits(worker, 1 if hold else 5)
            time.sleep(5)
            before, cpu, began = rig.requests(), machine.cpu_s(worker.pid), time.monotonic()
            time.sleep(plan.idle_s)
            after, lasted = rig.requests(), time.monotonic() - began
            yield {
                "profile": profile,
                "state": "holding" if hold else "idle",
                **{name: (after[name] - before[name]) / lasted for name in after},
                "client_cpu_percent": (machine.cpu_s(worker.pid) - cpu) / lasted * 100,
                "rss_mb": machine.peak_mb(worker.pid),
            }


@dataclass(frozen=True)
class Workload:
    """A workload, and how it is run."""

    short: str
    take: Callable[[System, Plan], Iterator[Row]]
    waits: bool = False
    """Mostly waits, so all systems are taken through it at the same time, once."""
    rounds: int | None = None
    """In place of the usual number, unless one is asked for."""
    for_all: bool = True
    """Or for streamq only."""


WORKLOADS = {
    "add": Workload("W1", add),
    "drain": Workload("W2", drain),
    "latency": Workload("W3", latency, rounds=5),
    "crash": Workload("W4", crash, waits=True),
    "healthy": Workload("W4b", healthy, waits=True),
    "backlog": Workload("W5", backlog, rounds=1),
    "idle": Workload("W6", idle, waits=True),
    "processes": Workload("W7", processes, for_all=False),
    "concurrency": Workload("W8", concurrency, for_all=False),
}
