"""How fast streamq is meant to be, and what was measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .results import Figure, Results, Row
from .systems import NOT_PYTHON, RAW, US


@dataclass(frozen=True)
class Goal:
    """A goal, and how far it is reached.

    Args:
        what: Is measured.
        bound: That it is held against; a lower one with `is_least`, else an upper one.
        found: What was measured; None if it was not.
        form: How figures are written.
    """

    what: str
    bound: float
    found: Figure | None
    is_least: bool = True
    form: str = ".2f"
    unit: str = " x"

    @property
    def is_reached(self) -> bool | None:
        """Whether the median is on the right side; None if nothing was measured."""
        if self.found is None:
            return None
        return self.found.middle >= self.bound if self.is_least else self.found.middle <= self.bound

    @property
    def target(self) -> str:
        """In words."""
        return f"{'at least' if self.is_least else 'at most'} {self.bound:g}{self.unit}"

    @property
    def measured(self) -> str:
        """In words."""
        return "not measured" if self.found is None else self.found.text(self.form) + self.unit


def goals(results: Results) -> list[Goal]:
    """All of them."""
    return [*_drained(results), *_added(results), *_late(results), *_recovered(results), *_queued(results)]


def _of(workload: str, system: str, profile: str, **more: Any) -> Row:
    return {"workload": workload, "system": system, "profile": profile, **more}


def _is_one(row: Row) -> bool:
    return row["profile"] in {"default", "best"}


def _peers(results: Results) -> list[str]:
    return [name for name in results.about["systems"] if name not in {US, *RAW, *NOT_PYTHON}]


def _drained(results: Results) -> Iterator[Goal]:
    raw = _of("drain", "raw-async", "default")
    peer = results.fastest("drain", _peers(results), _is_one)
    named = f"the fastest Python peer ({peer['system']}, {peer['profile']})" if peer else "the fastest Python peer"
    minor = int(results.about["python"].split(".")[1])

    def beside(profile: str, other: Row | None) -> Figure | None:
        return results.ratio("rate", _of("drain", US, profile), other) if other else None

    yield Goal(
        "drain, `async def` handler, to a loop over redis-py's asyncio",
        1.0 if minor >= 12 else 0.8,
        beside("best", raw),
    )
    yield Goal(f"drain, `async def` handler, to {named}", 15, beside("best", peer), form=".1f")
    node = _of("drain", "bullmq-node", "best")
    yield Goal("drain, `async def` handler, to BullMQ on Node", 6, beside("best", node), form=".1f")
    yield Goal("drain, job IDs chosen by callers, to a loop over redis-py's asyncio", 0.65, beside("ids", raw))
    yield Goal("drain, `def` handler in threads, to a loop over redis-py's asyncio", 0.7, beside("sync", raw))
    yield Goal(f"drain, `def` handler in threads, to {named}", 12, beside("sync", peer), form=".1f")
    lists = _of("drain", "faststream", "batch")
    yield Goal("drain, handler of lists, to FastStream's", 1.2, beside("batch", lists))
    one, two = (_of("processes", US, "best", processes=number) for number in (1, 2))
    yield Goal("drain, two processes, to what the server leaves for them", 0.85, _scaling(results, one, two))
    trips = results.figure("round_trips", "concurrency", US, profile="c64")
    yield Goal("packets of requests a job, concurrency 64", 0.05, trips, is_least=False, form=".3f", unit="")


def _scaling(results: Results, one: Row, two: Row) -> Figure | None:
    gain = results.ratio("rate", two, one)
    server, client = (
        Figure.of(row[name] for row in results.select(**one)) for name in ("server_cpu_1k", "client_cpu_1k")
    )
    if not (gain and server and client):
        return None
    most = min(2.0, 2 / (1 + server.middle / client.middle))
    return Figure(gain.middle / most, gain.low / most, gain.high / most)


def _added(results: Results) -> Iterator[Goal]:
    peer = results.fastest("add", _peers(results), lambda row: row["mode"] == "bulk")

    def beside(mode: str, profile: str, other: Row | None) -> Figure | None:
        return results.ratio("rate", _of("add", US, profile, mode=mode), other) if other else None

    raw_one, raw_bulk = (_of("add", "raw-sync", "default", mode=mode) for mode in ("one", "bulk"))
    named = f"the fastest Python peer ({peer['system']})" if peer else "the fastest Python peer"
    yield Goal("add many, to redis-py's pipeline", 2.5, beside("bulk", "default", raw_bulk))
    yield Goal(f"add many, to {named}", 8, beside("bulk", "default", peer), form=".1f")
    yield Goal("add one, to redis-py's XADD", 1.0, beside("one", "default", raw_one))
    yield Goal("add one with a job ID, to redis-py's XADD", 1.0, beside("one", "ids", raw_one))
    trips = results.figure("round_trips", "add", US, mode="one", profile="ids")
    yield Goal("packets of requests to add one with a job ID", 1.05, trips, is_least=False, unit="")


def _late(results: Results) -> Iterator[Goal]:
    mine, raw = _of("latency", US, "best"), _of("latency", "raw-sync", "best")
    for name, bound in (("p50", 1.3), ("p99", 1.5)):
        yield Goal(
            f"latency of an idle worker, {name}, to XADD and XREADGROUP",
            bound,
            results.ratio(name, mine, raw),
            is_least=False,
        )


def _recovered(results: Results) -> Iterator[Goal]:
    for profile, bound, lease in (("fast", 2.6, "2 s"), ("default", 20, "15 s, the default")):
        found = results.figure("all_s", "crash", US, profile=profile)
        yield Goal(f"100 jobs of a killed worker, lease {lease}", bound, found, is_least=False, form=".1f", unit=" s")
    rows = results.select("crash", US)
    lost = Figure.of(row["jobs"] - row["recovered"] for row in rows)
    yield Goal("of them lost", 0, lost, is_least=False, form=".0f", unit="")
    twice = results.figure("duplicates", "healthy", US)
    yield Goal("healthy jobs of 12 s started again, lease 2 s", 0, twice, is_least=False, form=".0f", unit="")


def _queued(results: Results) -> Iterator[Goal]:
    rows = {row["queued"]: row for row in results.select("backlog", US)}
    raw = {row["queued"]: row for row in results.select("backlog", "raw-sync")}
    long = [queued for queued in sorted(rows) if queued > 1_000]

    def by(name: str, low: int, high: int, of: dict[int, Row]) -> Figure | None:
        return Figure.of([rows[high][name] / of[low][name]]) if high in rows and low in of else None

    if len(long) > 1:
        low, high = long[0], long[-1]
        span = f"{high:,} queued to {low:,}"
        yield Goal(f"drain rate, {span}", 0.9, by("rate", low, high, rows))
        yield Goal(f"memory of the worker, {span}", 1.1, by("rss_mb", low, high, rows), is_least=False)
    if long:
        same = by("bytes_a_job", long[-1], long[-1], raw)
        yield Goal("memory of the server a queued job, to a plain entry", 1.3, same, is_least=False)
    left = Figure.of(row["bytes_left"] / 1000 for row in rows.values() if "bytes_left" in row)
    yield Goal("left on the server after a drain", 10, left, is_least=False, form=".1f", unit=" kB")
    asks = Figure.of(row["requests"] for row in results.select("idle", US))
    yield Goal("requests of an idle worker, and of one that holds jobs", 1, asks, is_least=False, unit=" a second")
