"""How fast streamq is, as ratios to loops over plain redis-py on the same server in the same run.

    python tests/benchmarks/ratios.py                       # a server of its own, the newest that is found
    python tests/benchmarks/ratios.py --server redis-7.0    # a certain one
    python tests/benchmarks/ratios.py --url redis://localhost:6379 --json

Machines change speed by the minute, so contenders take turns in short rounds, each in another order, and what counts is
the median over the rounds of raw time / our time: 1.0 is as fast as raw, 0.5 takes twice as long.
"""

from __future__ import annotations

import statistics
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import redis

sys.path.insert(0, str(Path(__file__).parent.parent))  # run as a program, the tests' helpers are not on the path
from benchmarks import contest

from streamq import Stream, StreamOptions
from streamq.keys import Keys, registry

PAYLOAD = {"customer": "ada@example.com", "cents": 4_200, "items": ["a-17", "b-4"], "note": "leave it at the door"}
PIPELINE = 500
"""XADDs in one of raw redis-py's pipelines; what `add_many` sends in one write."""
BATCH = 100
"""Entries of one read, and of one acknowledgement."""


@dataclass
class Contender:
    """One way to do the work, and what it took: seconds by the wall's clock, and of this process' CPU."""

    name: str
    add: Callable[[int], None]
    drain: Callable[[int], None]
    add_s: list[float] = field(default_factory=list)
    drain_s: list[float] = field(default_factory=list)
    add_cpu_s: list[float] = field(default_factory=list)
    drain_cpu_s: list[float] = field(default_factory=list)

    def round(self, jobs: int) -> None:
        """Add so many jobs, then read and acknowledge them."""
        for work, wall, cpu in ((self.add, self.add_s, self.add_cpu_s), (self.drain, self.drain_s, self.drain_cpu_s)):
            began, cpu_began = time.perf_counter(), time.process_time()
            work(jobs)
            wall.append(time.perf_counter() - began)
            cpu.append(time.process_time() - cpu_began)


def raw(client: redis.Redis, name: str, key: str, codec: Any, *, ready: bool, delete: bool) -> Contender:
    """Plain redis-py: pipelines of XADD; XREADGROUP and one XACK a batch.

    Args:
        client: The client.
        name: Of the contender.
        key: Of the stream.
        codec: A module of msgspec.
        ready: Whether payloads are encoded beforehand and not decoded; else they are, with msgspec.
        delete: Whether entries are deleted, too, as streamq does: else the stream only grows.
    """
    encoded = codec.encode(PAYLOAD)
    decode = codec.Decoder(dict).decode
    client.xgroup_create(key, "g", "0", mkstream=True)

    def add(jobs: int) -> None:
        for at in range(0, jobs, PIPELINE):
            pipeline = client.pipeline(transaction=False)
            for _ in range(min(PIPELINE, jobs - at)):
                pipeline.xadd(key, {"job": encoded if ready else codec.encode(PAYLOAD)})
            pipeline.execute()

    def drain(jobs: int) -> None:
        done = 0
        while done < jobs:
            [[_, entries]] = client.xreadgroup("g", "c", {key: ">"}, count=BATCH)
            if not ready:
                for _, fields in entries:
                    decode(fields[b"job"])
            ids = [entry_id for entry_id, _ in entries]
            done += client.xack(key, "g", *ids)
            if delete:
                client.xdel(key, *ids)

    return Contender(name, add, drain)


def ours(stream: Stream[Any], name: str, *, ids: bool) -> Contender:
    """A `Stream`; with `ids` each job has an ID of its caller's, which is remembered."""
    numbers = count()
    job_id = (lambda _: f"order:{next(numbers)}") if ids else None

    def add(jobs: int) -> None:
        assert stream.add_many((PAYLOAD for _ in range(jobs)), job_id=job_id) == jobs

    def drain(jobs: int) -> None:
        done = 0
        while done < jobs:
            done += stream.ack(stream.read("w", count=BATCH))

    return Contender(name, add, drain)


# Ours, and the raw contenders that it is compared with: the first is the strictest.
PAIRS = {
    "streamq": ("raw", "raw encoding", "raw encoding deleting"),
    "streamq job IDs": ("raw", "raw encoding", "raw encoding deleting"),
    "streamq msgpack": ("raw msgpack", "raw msgpack encoding"),
}


def contenders(url: str, stack: ExitStack) -> list[Contender]:
    """All of them, over keys of their own that go when `stack` closes."""
    client = stack.enter_context(redis.Redis.from_url(url))
    run = f"benchmark-{uuid.uuid4().hex[:8]}"
    found = []

    def raw_one(name: str, codec: Any, *, ready: bool = False, delete: bool = False) -> None:
        key = f"{run}:{len(found)}"
        stack.callback(client.unlink, key)
        found.append(raw(client, name, key, codec, ready=ready, delete=delete))

    def our_one(name: str, *, ids: bool = False, **options: Any) -> None:
        stream = f"{run}-{len(found)}"
        keys = Keys(stream, None)
        stack.callback(client.srem, registry(None), stream)
        stack.callback(client.unlink, keys.stream, keys.meta, *keys.ids, *keys.done)
        found.append(
            ours(stack.enter_context(Stream(stream, dict, redis=url, options=StreamOptions(**options))), name, ids=ids)
        )

    raw_one("raw", msgspec.json, ready=True)
    our_one("streamq")
    raw_one("raw encoding", msgspec.json)
    our_one("streamq job IDs", ids=True)
    raw_one("raw encoding deleting", msgspec.json, delete=True)
    our_one("streamq msgpack", codec="msgpack")
    raw_one("raw msgpack", msgspec.msgpack, ready=True)
    raw_one("raw msgpack encoding", msgspec.msgpack)
    return found


def measure(url: str, *, rounds: int, jobs: int) -> dict[str, Any]:
    """Let all contenders take turns; what came out, ready for JSON."""
    with ExitStack() as stack:
        field_ = contenders(url, stack)
        for contender in field_:
            contender.round(jobs)  # connects, makes groups, loads scripts: not counted
            for times in (contender.add_s, contender.drain_s, contender.add_cpu_s, contender.drain_cpu_s):
                times.clear()
        for order in contest.in_turns(field_, rounds):
            for contender in order:
                contender.round(jobs)
        by_name = {contender.name: contender for contender in field_}
    return {
        **contest.about(url, rounds=rounds, jobs=jobs, payload=PAYLOAD),
        "microseconds_per_job": {c.name: _microseconds(c, jobs) for c in field_},
        "ratios": [_ratio(by_name[name], by_name[other]) for name, others in PAIRS.items() for other in others],
    }


def _microseconds(contender: Contender, jobs: int) -> dict[str, float]:
    lists = {
        "add": contender.add_s,
        "add_cpu": contender.add_cpu_s,
        "drain": contender.drain_s,
        "drain_cpu": contender.drain_cpu_s,
    }
    return {name: round(statistics.median(times) / jobs * 1e6, 2) for name, times in lists.items()}


def _ratio(mine: Contender, other: Contender) -> dict[str, Any]:
    return {
        "of": mine.name,
        "to": other.name,
        "add_many": contest.ratio(other.add_s, mine.add_s),
        "read_ack": contest.ratio(other.drain_s, mine.drain_s),
    }


def report(result: dict[str, Any]) -> Iterator[str]:
    """The result as lines of Markdown."""
    yield contest.head(result)
    yield ""
    yield "| ours | compared with | add_many | read + ack of 100 |"
    yield "|---|---|---|---|"
    for row in result["ratios"]:
        cells = [contest.shown(row[what]) for what in ("add_many", "read_ack")]
        yield f"| {row['of']} | {row['to']} | {' | '.join(cells)} |"
    yield ""
    yield "| microseconds a job | add | of them CPU here | read + ack | of them CPU here |"
    yield "|---|---|---|---|---|"
    for name, us in result["microseconds_per_job"].items():
        yield f"| {name} | {us['add']} | {us['add_cpu']} | {us['drain']} | {us['drain_cpu']} |"


def main(argv: list[str] | None = None) -> int:
    """Run from the command line."""
    return contest.main(argv, __doc__, measure, report, rounds=40, jobs=2_000)


if __name__ == "__main__":
    sys.exit(main())
