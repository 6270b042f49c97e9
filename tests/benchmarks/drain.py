"""How fast a worker drains a backlog, as ratios to a bare asyncio loop over redis-py on the same server in the same run.

    python tests/benchmarks/drain.py                       # a server of its own, the newest that is found
    python tests/benchmarks/drain.py --server redis-7.0    # a certain one
    python tests/benchmarks/drain.py --url redis://localhost:6379 --json

The loop reads 100 entries, decodes them and sends one XACK: no fence, no lease, no retries, and the stream only grows. Handlers
do nothing, so this is the least that a worker costs. Contenders take turns, each round in another order; what counts is the
median over the rounds of the loop's time / ours: 1.0 is as fast, 0.5 takes twice as long.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import redis
import redis.asyncio

sys.path.insert(0, str(Path(__file__).parent.parent))  # run as a program, the tests' helpers are not on the path
from benchmarks import contest

from streamq import Stream, Worker
from streamq.keys import Keys, registry

PAYLOAD = {"n": 1, "text": "x" * 100}
BATCH = 100
"""Entries of the loop's reads and acknowledgements, and jobs of a batch handler's call."""


class Cost(NamedTuple):
    """Of one drain, in microseconds a job: by the wall's clock, of this process' CPU, and of the server's."""

    wall: float
    cpu: float
    server_cpu: float


class Clock:
    """Measures a drain from its first job to its last."""

    def __init__(self, client: redis.Redis, jobs: int) -> None:
        self._client = client
        self._jobs = jobs
        self._left = jobs
        self._begin = (0.0, 0.0, 0.0)
        self.cost = Cost(0, 0, 0)

    def count(self, jobs: int = 1) -> bool:
        """So many jobs more are handled; whether these were the last."""
        if self._left == self._jobs:
            self._begin = self._now()
        self._left -= jobs
        if self._left:
            return False
        self.cost = Cost(*(1e6 * (b - a) / self._jobs for a, b in zip(self._begin, self._now(), strict=True)))
        return True

    def _now(self) -> tuple[float, float, float]:
        cpu = self._client.info("cpu")
        return time.perf_counter(), time.process_time(), cpu["used_cpu_user"] + cpu["used_cpu_sys"]


def loop(client: redis.Redis, url: str, key: str, jobs: int) -> Cost:
    """The bare loop."""
    body = msgspec.json.encode(PAYLOAD)
    client.xgroup_create(key, "g", "0", mkstream=True)
    with client.pipeline(transaction=False) as pipeline:
        for _ in range(jobs):
            pipeline.xadd(key, {"job": body})
        pipeline.execute()
    clock, decode = Clock(client, jobs), msgspec.json.Decoder(dict).decode

    async def drain() -> None:
        async with redis.asyncio.Redis.from_url(url) as raw:
            await raw.ping()
            is_over = False
            while not is_over:
                [[_, entries]] = await raw.xreadgroup("g", "c", {key: ">"}, count=BATCH)
                for _, fields in entries:
                    decode(fields[b"job"])
                    is_over = clock.count()
                await raw.xack(key, "g", *(entry_id for entry_id, _ in entries))

    asyncio.run(drain())
    client.unlink(key)
    return clock.cost


def worker(client: redis.Redis, stream: Stream[Any], jobs: int, kind: str) -> Cost:
    """A worker with this kind of handler, with room for what the server brings while jobs run."""
    ids = iter(range(jobs))
    stream.add_many((PAYLOAD for _ in range(jobs)), job_id=(lambda _: f"j{next(ids)}") if kind == "job IDs" else None)
    clock = Clock(client, jobs)

    lock = threading.Lock()

    def plain(payload: Any) -> None:
        with lock:
            is_over = clock.count()
        if is_over:
            runner.stop()

    async def waiting(payload: Any) -> None:
        if clock.count():
            runner.stop()

    async def batch(found: list[Any]) -> None:
        if clock.count(len(found)):
            runner.stop()

    runner: Worker[Any]
    if kind == "batch":
        runner = Worker(stream, batch, batch=BATCH, concurrency=4)
    elif kind == "def":
        runner = Worker(stream, plain, concurrency=64, prefetch=256)
    else:
        runner = Worker(stream, waiting, concurrency=256, prefetch=256)
    runner.run()
    return clock.cost


KINDS = ("async def", "job IDs", "def", "batch")


def measure(url: str, *, rounds: int, jobs: int) -> dict[str, Any]:
    """Let all take turns; what came out, ready for JSON."""
    found: dict[str, list[Cost]] = {name: [] for name in ("loop", *KINDS)}
    run = f"benchmark-{uuid.uuid4().hex[:8]}"
    with redis.Redis.from_url(url) as client:
        contenders: dict[str, Callable[[str], Cost]] = {"loop": lambda name: loop(client, url, name, jobs)}
        for kind in KINDS:
            contenders[kind] = lambda name, kind=kind: _in_stream(client, url, name, jobs, kind)
        for turn, order in enumerate(contest.in_turns([*contenders], rounds + 1)):
            for name in order:
                cost = contenders[name](f"{run}-{turn}-{order.index(name)}")
                if turn:  # the first round connects and loads scripts
                    found[name].append(cost)
    walls = {name: [cost.wall for cost in costs] for name, costs in found.items()}
    return {
        **contest.about(url, rounds=rounds, jobs=jobs, payload=PAYLOAD),
        "microseconds_per_job": {
            name: {what: round(statistics.median(getattr(c, what) for c in costs), 1) for what in Cost._fields}
            for name, costs in found.items()
        },
        "ratios": {kind: contest.ratio(walls["loop"], walls[kind]) for kind in KINDS},
    }


def _in_stream(client: redis.Redis, url: str, name: str, jobs: int, kind: str) -> Cost:
    with Stream(name, dict, redis=url) as stream:
        try:
            return worker(client, stream, jobs, kind)
        finally:
            client.srem(registry(None), name)
            if left := list(client.scan_iter(f"{Keys(name).prefix}*")):
                client.unlink(*left)


def report(result: dict[str, Any]) -> Iterator[str]:
    """The result as lines of Markdown."""
    yield contest.head(result)
    yield ""
    yield "| handler | loop / worker | µs a job | of them CPU here | CPU of the server |"
    yield "|---|---|---|---|---|"
    for name, cost in result["microseconds_per_job"].items():
        ratio = contest.shown(result["ratios"][name]) if name in result["ratios"] else "1"
        yield f"| {name} | {ratio} | {cost['wall']} | {cost['cpu']} | {cost['server_cpu']} |"


def main(argv: list[str] | None = None) -> int:
    """Run from the command line."""
    return contest.main(argv, __doc__, measure, report, rounds=15, jobs=20_000)


if __name__ == "__main__":
    sys.exit(main())
