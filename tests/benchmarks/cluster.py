"""What a job costs in a cluster, and whether that stays the same when there are more primaries and more streams.

    python tests/benchmarks/cluster.py                      Valkey
    python tests/benchmarks/cluster.py --server redis-7.0   this one; may be repeated

A cluster of three primaries with a replica each, all on this machine. Eight streams lie on each of the primaries that take
part: one, two, or all three. One process adds jobs to all of these streams in bulk, and a worker with as many slots for each
stream drains them. What counts is not how fast that goes (servers, worker and this program share the cores) but what each job
costs the primaries: round trips (reads from sockets) and CPU time, feeding the replicas included. The rounds are interleaved;
medians are printed, with the range.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
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

SLOTS = 16
"""Of the worker, for each stream: so each read may bring as many, however many streams there are."""

JOBS = 1_000
"""Of each stream."""

ROUNDS = 5
PAYLOAD = {"url": "https://example.com/hooks/1234", "event": "order.paid", "id": "0123456789abcdef"}


class Spent(NamedTuple):
    """By primaries since they were started."""

    reads: int
    """What they read from sockets: one for what a client sends in one write."""
    cpu_s: float

    @classmethod
    def by(cls, primaries: Sequence[Node]) -> Spent:
        stats, cpu = ([node.info(section) for node in primaries] for section in ("stats", "cpu"))
        return cls(
            sum(int(one["total_reads_processed"]) for one in stats),
            sum(float(one["used_cpu_sys"]) + float(one["used_cpu_user"]) for one in cpu),
        )


class Cost(NamedTuple):
    """Of one job."""

    reads: float
    cpu_us: float


def names_on(cluster: Cluster, primary: Node, numbers: Iterator[int]) -> list[str]:
    """Names of streams whose slot that primary has."""
    found: list[str] = []
    while len(found) < STREAMS:
        name = f"s{next(numbers)}"
        if cluster.primary_of(Keys(name).slot) is primary:
            found.append(name)
    return found


class Load:
    """Streams on some primaries, and a worker that drains them."""

    def __init__(self, cluster: Cluster, primaries: Sequence[Node], numbers: Iterator[int]) -> None:
        self._primaries = primaries
        names = [name for primary in primaries for name in names_on(cluster, primary, numbers)]
        self._streams = [Stream(name, dict, redis=cluster.url) for name in names]
        self._left = 0
        self._over = threading.Event()
        self._worker = Worker(self._streams[0], self._handle, concurrency=SLOTS * len(names))
        for stream in self._streams[1:]:
            self._worker.add_stream(stream, self._handle)
        self._thread = threading.Thread(target=self._worker.run)
        self._thread.start()
        self._drain(10)  # scripts are known then, and everything is warm

    def measure(self) -> Cost:
        """Add jobs to all streams, and let the worker do them all."""
        before = Spent.by(self._primaries)
        self._drain(JOBS)
        after = Spent.by(self._primaries)
        jobs = len(self._streams) * JOBS
        return Cost((after.reads - before.reads) / jobs, (after.cpu_s - before.cpu_s) * 1e6 / jobs)

    def close(self) -> None:
        """End the worker."""
        self._worker.stop()
        self._thread.join()
        for stream in self._streams:
            stream.delete(force=True)
            stream.close()

    def _drain(self, count: int) -> None:
        self._left = count * len(self._streams)
        self._over.clear()
        for stream in self._streams:
            stream.add_many([PAYLOAD] * count)
        self._over.wait()
        time.sleep(0.3)  # the last ones are settled

    async def _handle(self, _: object) -> None:
        self._left -= 1
        if not self._left:
            self._over.set()


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
            for _ in range(ROUNDS):
                for many, kept in costs.items():
                    with closing(Load(cluster, primaries[:many], numbers)) as load:
                        kept.append(load.measure())
            rows = [
                [str(many), shown([c.reads for c in kept], 3), shown([c.cpu_us for c in kept], 1)]
                for many, kept in costs.items()
            ]
            table(["primaries", "reads a job", "CPU of the primaries, us a job"], rows)


if __name__ == "__main__":
    main()
