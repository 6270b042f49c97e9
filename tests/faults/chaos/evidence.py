"""Looks at what is left when all is over: on the server, among the processes, in the logs."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import redis
from faults.chaos.ledger import Letter
from faults.chaos.load import KEYS
from faults.chaos.monkey import name_in

from streamq import Stream
from streamq.keys import registry

GROUP = "workers"

LASTING = {
    KEYS.stream: "stream",
    KEYS.dead: "stream",
    KEYS.meta: "hash",
    KEYS.workers: "hash",
    KEYS.wake: "stream",
    KEYS.data("effects"): "hash",
    registry(None): "set",
}
"""Keys that stay, with their types. All others must go by themselves."""

_COMPLAINTS = re.compile(
    r"^(\w+Warning: .*|Exception ignored .*|.*never retrieved.*|.*was destroyed but .*)$", re.MULTILINE
)
_RAISED = re.compile(r"^Traceback \(most recent call last\):\n(?:[ \t].*\n|\n)*(.*)$", re.MULTILINE)


def letters(stream: Stream[object]) -> list[Letter]:
    """All dead letters."""
    found: list[Letter] = []
    after = None
    while page := stream.dead_letters.list(after=after):
        found += [Letter(name_in(x.payload), x.reason, x.source_id, x.deliveries, x.attempts) for x in page]
        after = page[-1].id
    return found


def effects(raw: redis.Redis) -> dict[str, int]:
    """How often each job's effect is there."""
    return {name.decode(): int(n) for name, n in raw.hgetall(KEYS.data("effects")).items()}


def waiting(raw: redis.Redis) -> list[str]:
    """Jobs that are neither done nor dead."""
    found = [
        f"entry {i.decode()} of {name_in(f.get(b'job'))} is in the stream" for i, f in raw.xrange(KEYS.stream, count=20)
    ]
    for row in raw.xpending_range(KEYS.stream, GROUP, "-", "+", 20):
        found.append(
            f"entry {row['message_id'].decode()} is pending with {row['consumer'].decode()}, "
            f"delivery {row['times_delivered']}, silent for {row['time_since_delivered'] / 1000:.1f} s"
        )
    scheduled = raw.zcard(KEYS.scheduled)
    return [*found, *([f"{scheduled} jobs are scheduled"] if scheduled else [])]


def consumers(raw: redis.Redis, *, most: int) -> Iterator[str]:
    """Consumers that hold something, or are more than there were processes."""
    rows = raw.xinfo_consumers(KEYS.stream, GROUP)
    yield from (f"consumer {row['name'].decode()} holds {row['pending']} entries" for row in rows if row["pending"])
    if len(rows) > most:
        yield f"{len(rows)} consumers, of {most} processes"


def keys(raw: redis.Redis) -> Iterator[str]:
    """Keys that are not those of the stream, and those that would stay for ever."""
    for key in sorted(raw.scan_iter(count=1000)):
        name, kind = key.decode(), raw.type(key).decode()
        if name in LASTING:
            if kind != LASTING[name]:
                yield f"key {name} is a {kind}"
        elif raw.pttl(key) == -1:
            yield f"key {name} ({kind}) has no TTL"
        elif not name.startswith(KEYS.prefix):
            yield f"key {name} is not of the stream"


def connections(raw: redis.Redis, *, seconds: float = 3.0) -> Iterator[str]:
    """Connections that are open still, beside the one that asks."""
    deadline = time.monotonic() + seconds
    while len(rows := raw.client_list()) > 1 and time.monotonic() < deadline:
        time.sleep(0.05)
    if len(rows) > 1:
        yield f"{len(rows) - 1} connections are open still; their last commands: {[row['cmd'] for row in rows]}"


def threads(before: set[threading.Thread]) -> Iterator[str]:
    """Threads of this process that were not there before."""
    yield from (f"thread {thread.name} runs still" for thread in threading.enumerate() if thread not in before)


def children() -> set[int]:
    """Process IDs of this process's children, dead ones that nobody waited for included (where there is a ``/proc``)."""
    tasks = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    return {int(pid) for task in tasks for pid in task.read_text().split()}


def complaints(log: str) -> Iterator[str]:
    """What a worker never says: tracebacks, warnings of Python's, tasks that were forgotten."""
    yield from (f"the log holds a traceback: {found}" for found in _RAISED.findall(log))
    yield from (f"the log says: {found}" for found in _COMPLAINTS.findall(log))
