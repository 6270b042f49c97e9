"""How fast a worker drains a backlog, as ratios to a bare asyncio loop over redis-py on the same server in the same run.

    python tests/benchmarks/drain.py                       # a server of its own, the newest that is found
    python tests/benchmarks/drain.py --server redis-7.0    # a certain one
    python tests/benchmarks/drain.py --url redis://localhost:6379 --json

The loop reads 100 entries, decodes them and sends one XACK: no fence, no lease, no retries, and the stream only grows. Handlers
do nothing, so this is the least that a worker costs. Contenders take turns, each round in another order; what counts is the
median over the rounds of the loop's time / ours: 1.0 is as fast, 0.5 takes twice as long.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import statistics
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import redis
import redis.asyncio

sys.path.insert(0, str(Path(__file__).parent.parent))  # run as a program, the tests' helpers are not on the path
import servers

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
        for turn in range(rounds + 1):
            names = [*contenders]
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                cost = contenders[name](f"{run}-{turn}-{names.index(name)}")
                if turn:  # the first round connects and loads scripts
                    found[name].append(cost)
        info = client.info("server")
    product = "valkey" if "valkey_version" in info else "redis"
    return {
        "server": f"{product} {info[f'{product}_version']}",
        "python": platform.python_version(),
        **{package: version(package) for package in ("redis", "hiredis", "msgspec")},
        "rounds": rounds,
        "jobs": jobs,
        "payload_bytes": len(msgspec.json.encode(PAYLOAD)),
        "microseconds_per_job": {
            name: {what: round(statistics.median(getattr(c, what) for c in costs), 1) for what in Cost._fields}
            for name, costs in found.items()
        },
        "ratios": {kind: _ratio(found["loop"], found[kind]) for kind in KINDS},
    }


def _in_stream(client: redis.Redis, url: str, name: str, jobs: int, kind: str) -> Cost:
    with Stream(name, dict, redis=url) as stream:
        try:
            return worker(client, stream, jobs, kind)
        finally:
            client.srem(registry(None), name)
            if left := list(client.scan_iter(f"{Keys(name).prefix}*")):
                client.unlink(*left)


def _ratio(theirs: list[Cost], own: list[Cost]) -> list[float]:
    found = sorted(a.wall / b.wall for a, b in zip(theirs, own, strict=True))
    at = (len(found) // 4, min(len(found) * 3 // 4, len(found) - 1))
    return [round(x, 2) for x in (statistics.median(found), *(found[i] for i in at))]


def report(result: dict[str, Any]) -> Iterator[str]:
    """The result as lines of Markdown."""
    yield (
        f"{result['server']}, Python {result['python']}, redis-py {result['redis']}, hiredis {result['hiredis']}; "
        f"{result['rounds']} rounds of {result['jobs']:,} jobs, payload {result['payload_bytes']} bytes as JSON."
    )
    yield ""
    yield "| handler | loop / worker | µs a job | of them CPU here | CPU of the server |"
    yield "|---|---|---|---|---|"
    for name, cost in result["microseconds_per_job"].items():
        ratio = "1"
        if name in result["ratios"]:
            middle, low, high = result["ratios"][name]
            ratio = f"{middle:.2f} ({low:.2f} to {high:.2f})"
        yield f"| {name} | {ratio} | {cost['wall']} | {cost['cpu']} | {cost['server_cpu']} |"


def main(argv: list[str] | None = None) -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="a running server; only keys of its own are written, and removed")
    parser.add_argument("--server", help="one that is found on this machine, such as redis-7.0")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--jobs", type=int, default=20_000, help="in one round, for each contender")
    parser.add_argument("--json", action="store_true", help="everything, for scripts")
    options = parser.parse_args(argv)
    with ExitStack() as stack:
        url = options.url
        if url is None:
            found, _ = servers.discover()
            name = options.server or next(reversed(found), None)
            if name not in found:
                parser.error(f"no server {name}; found: {', '.join(found) or 'none'}")
            url = stack.enter_context(servers.Server(found[name])).url
        result = measure(url, rounds=options.rounds, jobs=options.jobs)
    lines = [json.dumps(result, indent=2)] if options.json else report(result)
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
