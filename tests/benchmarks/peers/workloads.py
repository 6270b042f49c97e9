"""What is measured. Each workload takes a system through it once, and gives rows of what came out."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from servers import Backend

from . import machine
from .rig import Rig, Worker
from .systems import System

Row = dict[str, Any]
FOR_EVER = 10**7
MOST_JOBS = 400_000
PROBE_JOBS = 3_000
"""Drained once, not reported, to see how many jobs a measured run needs."""
SLOW_PROBE_JOBS = 600
SLOW = ("rq", "celery", "bullmq-py")
STALL_S = 15.0


@dataclass
class Plan:
    """How much is done.

    Args:
        backend: The server.
        profiles: Which of those that a system has; None for all but those of crashes.
        seconds: Of adding, and about so long for draining.
    """

    backend: Backend
    profiles: tuple[str, ...] | None = None
    seconds: float = 4.0
    rates: dict[tuple[str, str, int], float] = field(default_factory=dict)

    def rig(self, system: System, profile: str = "default") -> Rig:
        return Rig(system, self.backend, profile)

    def profiles_of(self, system: System) -> list[str]:
        has = [name for name in system.about["profiles"] if name not in CRASH_PROFILES]
        return has if self.profiles is None else [name for name in self.profiles if name in has]


CRASH_PROFILES = ("hold", "fast", "hold_fast")


def add(system: System, plan: Plan) -> Iterator[Row]:
    """W1: one producer adds jobs, one by one and in bulk."""
    for mode in ("one", "bulk"):
        if mode == "bulk" and not system.about["bulk"]:
            continue
        for profile in system.about["adds"]:
            with plan.rig(system, profile) as rig:
                speed = machine.speed(rig.client)
                busy, server, began = machine.busy_s(), rig.server_cpu_s(), time.monotonic()
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
                    "rss_mb": took["rss_mb"],
                    "foreign_cpu": max(0.0, others) / lasted,
                    **speed,
                }


def drain(system: System, plan: Plan, *, processes: int = 1) -> Iterator[Row]:
    """W2: a worker process, or several, meets a queue that is full."""
    for profile in plan.profiles_of(system):
        key = (system.name, profile, processes)
        if key not in plan.rates:
            jobs = SLOW_PROBE_JOBS if system.name in SLOW else PROBE_JOBS
            plan.rates[key] = 300.0
            with plan.rig(system, profile) as rig:
                rig.produce("bulk", jobs)
                plan.rates[key] = _drain(rig, jobs, processes, timeout=8)["rate"]
        with plan.rig(system, profile) as rig:
            jobs = int(min(MOST_JOBS, max(500, plan.rates[key] * plan.seconds)))
            rig.produce("bulk", jobs)
            speed = machine.speed(rig.client)
            row = _drain(rig, jobs, processes, timeout=plan.seconds * 6)
            plan.rates[key] = row["rate"]
            yield {"profile": profile, "processes": processes, **row, **speed}


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


WORKLOADS: dict[str, Callable[[System, Plan], Iterator[Row]]] = {"W1": add, "W2": drain}
