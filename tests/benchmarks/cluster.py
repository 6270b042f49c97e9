"""What a job costs in a cluster, and whether that stays the same when there are more primaries and more streams.

    python tests/benchmarks/cluster.py                      Valkey
    python tests/benchmarks/cluster.py --server redis-7.0   this one; may be repeated

A cluster of three primaries with a replica each, all on this machine. Eight streams lie on each of the primaries that take
part: one, two, or all three. One process adds jobs to all of these streams in bulk, and one worker drains them, so that the
load is the same everywhere; what counts is not how fast that goes (servers, worker and this program share the cores) but what
each job costs the primaries: commands, and CPU time. The rounds are interleaved; medians are printed, with the range.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import NamedTuple

from records import say, table, title

sys.path.insert(0, str(Path(__file__).parents[1]))

from clusters import Cluster, Node
from servers import discover

from streamq import Stream, Worker
from streamq.keys import Keys

STREAMS = 8
"""On each primary that takes part."""

JOBS = 2_000
"""Of each stream."""

ROUNDS = 5
PAYLOAD = {"url": "https://example.com/hooks/1234", "event": "order.paid", "id": "0123456789abcdef"}
OURS = ("xadd", "evalsha", "eval", "xreadgroup", "xread", "xclaim", "xautoclaim", "hget", "hmget", "zrange", "multi", "exec")


class Cost(NamedTuple):
    """Of one job, on the primaries that take part."""

    requests: float
    """What we sent for it."""
    cpu_us: float


class Spent(NamedTuple):
    """By a server since it was started."""

    requests: int
    cpu_s: float

    @classmethod
    def by(cls, node: Node) -> Spent:
        stats, cpu = node.info("commandstats"), node.info("cpu")
        calls = sum(
            int(line.split(",")[0].removeprefix("calls="))
            for name, line in stats.items()
            if name.removeprefix("cmdstat_") in OURS
        )
        return cls(calls, float(cpu["used_cpu_sys"]) + float(cpu["used_cpu_user"]))


def names_on(cluster: Cluster, primary: Node, numbers: Iterator[int]) -> list[str]:
    """Names of streams whose slot that primary has."""
    found: list[str] = []
    while len(found) < STREAMS:
        name = f"s{next(numbers)}"
        if cluster.primary_of(Keys(name).slot) is primary:
            found.append(name)
    return found


def drain(cluster: Cluster, names: Sequence[str]) -> None:
    """Add jobs to all streams, and let a worker do them all."""
    left = len(names) * JOBS
    over = threading.Event()

    async def handler(_: object) -> None:
        nonlocal left
        left -= 1
        if not left:
            over.set()

    streams = [Stream(name, dict, redis=cluster.url) for name in names]
    for stream in streams:
        stream.add_many([PAYLOAD] * JOBS)
    worker = Worker(streams[0], handler, concurrency=64)
    for stream in streams[1:]:
        worker.add_stream(stream, handler)
    thread = threading.Thread(target=worker.run)
    thread.start()
    over.wait()
    while any(stream.inspect().length for stream in streams):
        time.sleep(0.01)
    worker.stop()
    thread.join()
    for stream in streams:
        stream.delete(force=True)
        stream.close()


def measure(cluster: Cluster, primaries: Sequence[Node], numbers: Iterator[int]) -> Cost:
    """One round."""
    names = [name for primary in primaries for name in names_on(cluster, primary, numbers)]
    before = [Spent.by(node) for node in primaries]
    drain(cluster, names)
    after = [Spent.by(node) for node in primaries]
    jobs = len(names) * JOBS
    requests = sum(b.requests - a.requests for a, b in zip(before, after, strict=True))
    cpu_s = sum(b.cpu_s - a.cpu_s for a, b in zip(before, after, strict=True))
    return Cost(requests / jobs, cpu_s * 1e6 / jobs)


def shown(values: Sequence[float], digits: int) -> str:
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def main(arguments: Sequence[str] | None = None) -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", action="append", help="such as redis-7.0; the default is valkey-9")
    chosen = parser.parse_args(arguments).server or ["valkey-9"]
    found, _ = discover()
    for name in chosen:
        with Cluster(found[name]) as cluster:
            say(f"### {title(found[name])}: {STREAMS} streams a primary, {JOBS:,} jobs a stream\n")
            numbers = count()
            primaries = cluster.primaries
            costs: dict[int, list[Cost]] = {1: [], 2: [], 3: []}
            measure(cluster, primaries[:1], numbers)  # scripts are loaded, and the process is warm
            for _ in range(ROUNDS):
                for many, kept in costs.items():
                    kept.append(measure(cluster, primaries[:many], numbers))
            rows = [
                [str(many), shown([c.requests for c in kept], 4), shown([c.cpu_us for c in kept], 1)]
                for many, kept in costs.items()
            ]
            table(["primaries", "requests a job", "CPU of the primaries, us a job"], rows)



if __name__ == "__main__":
    main()
