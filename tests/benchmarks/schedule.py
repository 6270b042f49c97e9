"""What waiting costs: how late due jobs start, how fast they are moved, what one takes of memory.

    python tests/benchmarks/schedule.py                       every server that tests/servers.py finds
    python tests/benchmarks/schedule.py --server redis-7.0    this one; may be repeated
    python tests/benchmarks/schedule.py --only late           one part: late, move or size

Each part runs on a server of its own, with that server's default settings, without persistence. Prints tables in
Markdown; docs/speed.md shows them.

How late: jobs are due evenly over some seconds. Lateness is the time at which a handler begins less the due time, by the
clock of the machine on which server and worker run. At 80 % load so many other jobs arrive beside them that the
worker's slots are busy four fifths of the time. Server, worker and this program share the machine's cores.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import redis
from records import fresh, say, server_us, table, title

sys.path.insert(0, str(Path(__file__).parents[1]))

from servers import Backend, discover

from streamq import Stream, Worker
from streamq._ops import promote

SLOTS = 50
WORK_S = 0.02
"""How long a job takes: at 2,500 a second all slots are busy."""

LOAD = 0.8
PAYLOAD = {"url": "https://example.com/hooks/1234", "event": "order.paid", "id": "0123456789abcdef"}


# --- how late ---------------------------------------------------------------------------------


def work(url: str, count: int, answer: Connection) -> None:
    """A worker process: sends how late each of `count` jobs began."""
    late: list[float] = []

    async def handler(payload: dict[str, Any]) -> None:
        if "due" in payload:
            late.append((time.time() - payload["due"]) * 1000)
            if len(late) == count:
                answer.send(late)
        await asyncio.sleep(WORK_S)

    Worker(Stream("late", dict, redis=url), handler, concurrency=SLOTS).run()


def lateness_ms(backend: Backend, count: int, over_s: float, *, loaded: bool) -> list[float]:
    """How late each of `count` jobs begins, that are due over `over_s` seconds."""
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    with fresh(backend) as (server, _), Stream("late", dict, redis=server.url) as stream:
        worker = context.Process(target=work, args=(server.url, count, theirs))
        worker.start()
        first = time.time() + 3.0 + count / 1_000  # until all are scheduled
        for n in range(count):
            due = first + over_s * n / count
            stream.add({"due": due}, at=datetime.fromtimestamp(due, UTC))
        assert time.time() < first
        time.sleep(max(first - 1 - time.time(), 0))
        pause_s = 0.02
        while not mine.poll(0 if loaded else 60):
            begun = time.time()
            stream.add_many([{}] * round((SLOTS / WORK_S * LOAD - count / over_s) * pause_s))
            time.sleep(max(begun + pause_s - time.time(), 0))
        late: list[float] = mine.recv()
        worker.terminate()
        worker.join()
    return late


def late(backends: Sequence[Backend], count: int, over_s: float) -> None:
    say(f"### How late {count:,} jobs start that are due over {over_s:g} s, in ms (one worker, {SLOTS} slots)\n")

    def rows() -> Iterator[Sequence[str]]:
        for backend in backends:
            for name, loaded in (("idle", False), ("at 80 % load", True)):
                found = lateness_ms(backend, count, over_s, loaded=loaded)
                centiles = statistics.quantiles(found, n=100)
                yield title(backend), name, f"{centiles[49]:.1f}", f"{centiles[98]:.1f}", f"{max(found):.1f}"

    table(("server", "worker", "p50", "p99", "max"), rows())


# --- how fast ---------------------------------------------------------------------------------


def filled(raw: redis.Redis, stream: Stream[dict[str, Any]], count: int) -> None:
    """`count` jobs that wait, far ahead."""
    stream.add_many((PAYLOAD for _ in range(count)), delay=86_400)
    assert raw.zcard(stream._spec.keys.scheduled) == count


def make_due(raw: redis.Redis, stream: Stream[dict[str, Any]], count: int) -> None:
    key = stream._spec.keys.scheduled
    some = raw.zrange(key, 0, count - 1)
    for start in range(0, count, 10_000):
        raw.zadd(key, dict.fromkeys(some[start : start + 10_000], 1))


def promotion(backend: Backend, waiting: int, due: int) -> tuple[float, float]:
    """Jobs a second, and µs of the server's CPU a job, where `due` of `waiting` jobs are due."""
    with fresh(backend) as (server, raw):
        stream = Stream("move", dict, redis=server.url)
        filled(raw, stream, waiting)
        rates, costs = [], []
        for _ in range(3):
            make_due(raw, stream, due // 3)
            stream.promote()  # what is asked once
            make_due(raw, stream, due // 3)
            busy, begun = server_us(raw), time.perf_counter()
            moved = stream.promote()
            rates.append(moved / (time.perf_counter() - begun))
            costs.append((server_us(raw) - busy) / moved)
            filled_again = stream.add_many((PAYLOAD for _ in range(2 * (due // 3))), delay=86_400)
            assert filled_again == 2 * (due // 3)
        stream.close()
    return statistics.median(rates), min(costs)


def move(backends: Sequence[Backend], sizes: Sequence[int]) -> None:
    say(f"### Moving due jobs into the stream, {promote.BATCH} a request\n")

    def rows() -> Iterator[Sequence[str]]:
        for backend in backends:
            for waiting in sizes:
                rate, us = promotion(backend, waiting, min(waiting, 30_000))
                yield title(backend), f"{waiting:,}", f"{rate:,.0f}", f"{us:.1f}"

    table(("server", "jobs that wait", "jobs a second", "µs of the server a job"), rows())


# --- how large --------------------------------------------------------------------------------


def bytes_a_job(backend: Backend, count: int) -> tuple[float, float]:
    """Memory of a job that waits, and of one that is ready."""
    with fresh(backend) as (server, raw):
        stream = Stream("size", dict, redis=server.url)
        stream.add(PAYLOAD)
        stream.add(PAYLOAD, delay=1)
        before = raw.info("memory")["used_memory"]
        filled_by = stream.add_many((PAYLOAD for _ in range(count)), delay=86_400)
        between = raw.info("memory")["used_memory"]
        stream.add_many(PAYLOAD for _ in range(count))
        after = raw.info("memory")["used_memory"]
        assert filled_by == count
        stream.close()
    return (between - before) / count, (after - between) / count


def size(backends: Sequence[Backend], count: int) -> None:
    say(f"### Memory of one of {count:,} jobs, in bytes\n")

    def rows() -> Iterator[Sequence[str]]:
        for backend in backends:
            waits, ready = bytes_a_job(backend, count)
            yield title(backend), f"{waits:.0f}", f"{ready:.0f}"

    table(("server", "that waits", "that is ready"), rows())


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--server", action="append", help="name of a backend, such as redis-7.0")
    parser.add_argument("--only", action="append", choices=("late", "move", "size"), help="a part")
    parser.add_argument("--jobs", type=int, default=10_000, help="due over --seconds (default 10,000)")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--most", type=int, default=1_000_000, help="most jobs that wait (default 1,000,000)")
    chosen = parser.parse_args(arguments)
    found, missing = discover()
    backends = [found[name] if name in found else sys.exit(missing[name]) for name in chosen.server or found]
    parts: dict[str, Callable[[], None]] = {
        "late": lambda: late(backends, chosen.jobs, chosen.seconds),
        "move": lambda: move(backends, [size for size in (1_000, 100_000, 1_000_000) if size <= chosen.most]),
        "size": lambda: size(backends, min(chosen.most, 100_000)),
    }
    for name in chosen.only or parts:
        parts[name]()


if __name__ == "__main__":
    main()
