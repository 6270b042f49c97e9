"""What metrics and traces cost a worker, as ratios to the same worker without them, on the same server in the same run.

    python tests/benchmarks/telemetry.py                       # a server of its own, the newest that is found
    python tests/benchmarks/telemetry.py --url redis://localhost:6379 --json

Handlers do nothing, so this is the most that it can cost. Contenders take turns in short rounds, each in another order, and what
counts is the median over the rounds of the CPU time of the worker's process without / with: 0.9 is a tenth more work a job.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, TraceIdRatioBased
from prometheus_client import CollectorRegistry

sys.path.insert(0, str(Path(__file__).parent.parent))  # run as a program, the tests' helpers are not on the path
import servers

from streamq import Stream, Worker
from streamq.telemetry import Tracing, WorkerMetrics

CONTENDERS: dict[str, Callable[[], dict[str, Any]]] = {
    "plain": dict,
    "metrics": lambda: {"hooks": [WorkerMetrics(registry=CollectorRegistry())]},
    "tracing, API alone": lambda: {"middlewares": [Tracing()]},
    "tracing, 1 % sampled": lambda: {"middlewares": [_tracing(TraceIdRatioBased(0.01))]},
    "tracing, all sampled": lambda: {"middlewares": [_tracing(ALWAYS_ON)]},
}
"""Name -> arguments of its worker. Spans are made and thrown away: an exporter's cost is its own."""


def _tracing(sampler: Any) -> Tracing:
    return Tracing(tracer_provider=TracerProvider(sampler=sampler, shutdown_on_exit=False))


def drain(stream: Stream[Any], kind: str, jobs: int, **settings: Any) -> float:
    """Have a worker do so many jobs; seconds of CPU."""
    left = jobs

    def one() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            worker.stop()

    async def waiting(payload: dict[str, Any]) -> None:
        one()

    def plain(payload: dict[str, Any]) -> None:
        one()

    worker = Worker(
        stream, waiting if kind == "async def" else plain, concurrency=1 if kind == "def" else 16, **settings
    )
    stream.add_many({"n": n} for n in range(jobs))
    began = time.process_time()
    worker.run()
    return time.process_time() - began


def measure(url: str, rounds: int, jobs: int) -> list[dict[str, Any]]:
    """Median ratios, with the quartiles, by kind of handler and contender."""
    found = []
    for kind in ("async def", "def"):
        taken: dict[str, list[float]] = {name: [] for name in CONTENDERS}
        with Stream(f"benchmark-{uuid.uuid4().hex[:8]}", redis=url) as stream:
            for _ in range(rounds):
                for name in random.sample([*CONTENDERS], len(CONTENDERS)):
                    taken[name].append(drain(stream, kind, jobs, **CONTENDERS[name]()))
            stream.delete(force=True)
        for name in [*CONTENDERS][1:]:
            ratios = sorted(plain / own for plain, own in zip(taken["plain"], taken[name], strict=True))
            quarter = len(ratios) // 4
            spread = [statistics.median(ratios), ratios[quarter], ratios[-1 - quarter]]
            found.append({"handler": kind, "of": name, "ratio": spread})
    return found


@contextmanager
def server(url: str | None) -> Iterator[str]:
    """The server at `url`, or a new one."""
    with ExitStack() as stack:
        if url is None:
            local, _ = servers.discover()
            url = stack.enter_context(servers.Server(local[servers.ordered(local)[-1]])).url
        yield url


def main(argv: list[str]) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(argv)
    with server(given.url) as url:
        rows = measure(url, given.rounds, given.jobs)
    lines = ["| handler | with | ratio to without |", "|---|---|---|"]
    for row in rows:
        middle, low, high = row["ratio"]
        lines.append(f"| `{row['handler']}` | {row['of']} | {middle:.2f} ({low:.2f} to {high:.2f}) |")
    sys.stdout.write((json.dumps(rows) if given.json else "\n".join(lines)) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
