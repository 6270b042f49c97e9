"""What a run measured. `--json` prints just this: fields may be added, none is renamed or removed."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from datetime import datetime
from typing import Self

import msgspec


class Figure(msgspec.Struct, frozen=True):
    """Of several rounds: the median, the lowest and the highest."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float], digits: int = 3) -> Self:
        """The figure of at least one value."""
        return cls(*(round(value, digits) for value in (statistics.median(values), min(values), max(values))))


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was measured, and what plain redis-py took for the same.

    Attributes:
        name: ``add``, ``add_many``, ``drain async``, ``drain sync`` or ``drain batch``.
        beside: What redis-py did.
        rounds: In how many rounds; their length is bounded in jobs and in time.
        jobs: How many jobs in all of them.
        per_second: Jobs a second. Of a worker without its start and its end: what a run with one job took is taken off, here and
            in the next two.
        cpu_ms_per_1000: Milliseconds of CPU of this process for 1,000 jobs.
        server_reads_per_job: How often the server read from connections (``total_reads_processed``): about the round trips.
            It counts what others send as well. None where the server does not say it.
        raw_jobs, raw_per_second, raw_cpu_ms_per_1000: Of redis-py; None where it could not be measured.
        ratio: Of jobs a second, ours / redis-py's, round by round; above 1 is faster than redis-py.
    """

    name: str
    beside: str
    rounds: int
    jobs: int
    per_second: Figure
    cpu_ms_per_1000: Figure
    server_reads_per_job: float | None = None
    raw_jobs: int | None = None
    raw_per_second: Figure | None = None
    raw_cpu_ms_per_1000: Figure | None = None
    ratio: Figure | None = None


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds of many samples.

    Attributes:
        samples: How many.
        p50, p99, max: What half, 99 of 100, and all of them stayed within.
        quantiles: 101 values: what so many of a hundred stayed within, the lowest first.
    """

    samples: int
    p50: float
    p99: float
    max: float
    quantiles: list[float]

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Self:
        """The latency of at least one sample."""
        ordered = sorted(seconds)
        quantiles = [_ms(ordered[(len(ordered) - 1) * percent // 100]) for percent in range(101)]
        return cls(samples=len(ordered), p50=quantiles[50], p99=quantiles[99], max=quantiles[100], quantiles=quantiles)


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of the server for a job that is queued (MEMORY USAGE of the stream / its length); of redis-py for such an entry."""

    jobs: int
    bytes_per_job: float
    raw_bytes_per_job: float | None = None


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How it was measured.

    Attributes:
        jobs: Most jobs of one part, all rounds together.
        seconds: Longest time of one part, about.
        rounds: Rounds of each part.
        concurrency: Of the worker.
        prefetch: Of the worker.
        batch: Most jobs of one call of the ``batch=`` handler.
        payload_bytes: Of a payload, as JSON.
    """

    jobs: int = 20_000
    seconds: float = 3.0
    rounds: int = 5
    concurrency: int = 64
    prefetch: int = 0
    batch: int = 100
    payload_bytes: int = 100


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """Where it was measured: the server, or of several the one that held the stream."""

    where: str
    product: str
    version: str
    mode: str


class Versions(msgspec.Struct, frozen=True, kw_only=True):
    """Of what ran here."""

    streamq: str
    redis_py: str
    hiredis: str
    python: str


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All of a run.

    Attributes:
        at: When it began, by this machine's clock.
        stream: The stream that it was measured on, which is gone.
        parts: What was measured, in order.
        latency, raw_latency: From `add` (redis-py: XADD) to the handler's first step (the entry is read), nothing else to do.
        ping: A round trip by redis-py, in ms; None where it is refused.
        memory: None where it is refused.
        notes: What is missing, and why.
    """

    at: datetime
    stream: str
    server: Server
    versions: Versions
    settings: Settings
    parts: list[Part]
    latency: Latency
    raw_latency: Latency | None
    ping: Latency | None
    memory: Memory | None
    notes: list[str]


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
