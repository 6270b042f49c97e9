"""What it costs to remember job IDs: memory, server time, and how long the server stands still when they are forgotten.

    python tests/benchmarks/records.py                       every server that tests/servers.py finds
    python tests/benchmarks/records.py --server redis-7.0    this one; may be repeated
    python tests/benchmarks/records.py --only pauses         one part: cost, turns or pauses

Each part runs on a server of its own, with that server's default settings, without persistence. Prints tables in
Markdown; docs/idempotency.md shows them.

Latency is that of PING from another process, one a millisecond on a fixed schedule: while the server stands still the
pings that should have been sent count as late, too, so one pause of 200 ms in 6 s shows in p99 and not only in the maximum.
Time in which the server's main thread or the pinging process was ready to run but waited for a core is taken off (Linux
tells it), so that other work on the machine is not taken for a pause; the last column is the maximum with it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4

import redis

sys.path.insert(0, str(Path(__file__).parents[1]))

from servers import Backend, Server, discover

from streamq import Effects, Stream, StreamOptions, Worker, _scripts
from streamq._requests import ask
from streamq._scripts import Settled
from streamq.keys import SLICES, Keys

BATCH = 500
QUIET_S, AFTER_S = 1.0, 5.0
RESULT = b'{"receipt":"%d"}' % 10**20


def say(line: str = "") -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table, each row as soon as it is there."""
    say("| " + " | ".join(header) + " |")
    say("|" + "---|" * len(header))
    for row in rows:
        say("| " + " | ".join(row) + " |")
    say()


@contextmanager
def fresh(backend: Backend) -> Iterator[tuple[Server, redis.Redis]]:
    """A new server, and a client with one connection."""
    with Server(backend) as server, redis.Redis.from_url(server.url, single_connection_client=True) as raw:
        yield server, raw


def in_batches(items: Sequence[Any], size: int = BATCH) -> Iterator[Sequence[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def new_ids(count: int) -> list[str]:
    return [str(uuid4()) for _ in range(count)]


# --- what a record costs ---------------------------------------------------------------------


@dataclass
class Cost:
    """Per job ID."""

    bytes: float
    add_us: float
    ack_us: float


def server_us(raw: redis.Redis) -> float:
    """CPU time that the server has used so far: not its commands' duration, which grows with other work on the machine."""
    cpu = raw.info("cpu")
    return (cpu["used_cpu_user"] + cpu["used_cpu_sys"]) * 1e6


def cost_of_jobs(backend: Backend, count: int, *, chosen: bool, result: bytes = b"") -> Cost:
    """Jobs added and done through the library's own scripts, a batch of 500 at a time."""
    with fresh(backend) as (server, raw):
        stream = Stream("cost", dict, redis=server.url)
        keys, options = stream._spec.keys, stream._spec.options
        stream.add({}, **({"job_id": "first"} if chosen else {}))
        stream.ack(stream.read("w"))  # what exists once is made before memory is read
        before = raw.info("memory")["used_memory"]
        payloads = [{"id": job_id} for job_id in new_ids(count)]
        start = server_us(raw)
        stream.add_many(payloads, **({"job_id": lambda p: p["id"]} if chosen else {}))
        add_us = server_us(raw) - start
        acked, ack_us = 0, 0.0
        while jobs := stream.read("w", count=BATCH):
            # As a worker settles: acknowledgements and results of many jobs in one call.
            batch = [Settled(job.entry_id, job.deliveries, job._kind, job.id, result) for job in jobs]
            start = server_us(raw)
            acked += sum(stream._run(ask(_scripts.ack(keys, options, consumer="w", batch=batch))))
            ack_us += server_us(raw) - start
        assert acked == count
        used = raw.info("memory")["used_memory"] - before
        stream.close()
    return Cost(used / count, add_us / count, ack_us / count)


PUT = """
local fields, pairs_ = {}, {}
for i = 1, #ARGV, 2 do
  fields[#fields + 1] = ARGV[i]
  pairs_[i], pairs_[i + 1] = ARGV[i], ARGV[i + 1]
end
put_records(KEYS, server_ms(), 28800000, fields, pairs_)
"""
SET = "for i = 1, #ARGV, 2 do redis.call('SET', KEYS[1] .. ARGV[i], ARGV[i + 1], 'PX', 86400000) end"


def cost_of_records(backend: Backend, count: int, *, sliced: bool, result: bytes = b"") -> Cost:
    """Nothing but the two records of an ID, in slices or as a key each, by a script for 500 of them."""
    with fresh(backend) as (_, raw):
        keys = Keys("cost")
        shared = (_scripts._folder() / "shared" / "records.lua").read_text("utf-8")
        script = raw.register_script(shared + PUT if sliced else SET)
        before = raw.info("memory")["used_memory"]
        took = []
        ids = new_ids(count)
        for slices, group, value in (
            (keys.ids, "", "done 1700000000000-0"),
            (keys.done, "workers/", b"done " + result),
        ):
            argvs = [[word for job_id in batch for word in (group + job_id, value)] for batch in in_batches(ids)]
            start = server_us(raw)
            for argv in argvs:
                script(slices if sliced else [slices[0].removesuffix("0")], argv)
            took.append((server_us(raw) - start) / count)
        return Cost((raw.info("memory")["used_memory"] - before) / count, *took)


def cost(backends: Sequence[Backend], count: int) -> None:
    say(f"### Memory and the server's CPU time per job ID ({count:,} IDs of 36 characters, calls of {BATCH})\n")
    size = f"a result of {len(RESULT)} bytes"
    kinds: tuple[tuple[str, Callable[[Backend, int], Cost]], ...] = (
        ("no job ID: nothing is remembered", partial(cost_of_jobs, chosen=False)),
        ("job ID", partial(cost_of_jobs, chosen=True)),
        (f"job ID and {size}", partial(cost_of_jobs, chosen=True, result=RESULT)),
        ("the two records of an ID alone, in slices", partial(cost_of_records, sliced=True)),
        ("the same as two keys with a TTL", partial(cost_of_records, sliced=False)),
    )

    def rows() -> Iterator[Sequence[str]]:
        for backend in backends:
            for name, measure in kinds:
                found = measure(backend, count)
                yield title(backend), name, f"{found.bytes:.0f}", f"{found.add_us:.1f}", f"{found.ack_us:.1f}"

    table(("server", "what", "bytes kept", "µs at add", "µs at ack"), rows())


# --- memory over several turns ---------------------------------------------------------------


@dataclass
class Sampled:
    """After each batch: time, records kept, those that had to be kept, bytes of memory; and what followed the last one."""

    times: list[float] = field(default_factory=list)
    records: list[int] = field(default_factory=list)
    needed: list[int] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    gone_s: float = 0.0
    after: int = 0


def turns(backends: Sequence[Backend], per_turn: int, count: int, slice_s: float) -> None:
    ttl = slice_s * (SLICES - 1)
    say(f"### Records kept over {count} turns of {slice_s:g} s, idempotency_ttl {ttl:g} s, {per_turn:,} IDs a turn\n")
    say(
        "Needed are at any time those of the last idempotency_ttl, two an ID. At the end nothing runs: the rest expires.\n"
    )

    def rows() -> Iterator[Sequence[str]]:
        for backend in backends:
            found = turn(backend, per_turn, count, slice_s)
            half = len(found.times) // 2
            most = max(kept / needed for kept, needed in zip(found.records, found.needed, strict=True))
            memory = found.memory[half:]
            yield (
                title(backend),
                f"{max(found.needed):,}",
                f"{max(found.records):,}",
                f"{most:.2f}",
                f"{max(found.memory) / 1e6:.1f}",
                f"{sum(memory) / len(memory) / 1e6:.1f}",
                f"{found.after / 1e6:.1f}",
                f"{found.gone_s:.0f}",
            )

    header = ("most needed", "most kept", "kept / needed, worst", "MB, peak", "MB, 2nd half", "MB, end", "gone after s")
    table(("server", *header), rows())


def turn(backend: Backend, per_turn: int, count: int, slice_s: float) -> Sampled:
    with fresh(backend) as (server, raw):
        options = StreamOptions(idempotency_ttl=slice_s * (SLICES - 1))
        stream = Stream("turns", dict, redis=server.url, options=options)
        slices = (*stream._spec.keys.ids, *stream._spec.keys.done)
        before = raw.info("memory")["used_memory"]
        found = Sampled()
        chunk, start, sent = 100, time.monotonic(), 0
        while sent < per_turn * count:
            stream.add_many([{"id": job_id} for job_id in new_ids(chunk)], job_id=lambda p: p["id"])
            stream.ack(stream.read("w", count=chunk))
            sent += chunk
            found.times.append(time.monotonic())
            lengths = [raw.hlen(key) for key in slices]
            found.records.append(sum(lengths) - sum(map(bool, lengths)))  # without the field ''
            found.memory.append(raw.info("memory")["used_memory"] - before)
            time.sleep(max(0.0, start + sent / per_turn * slice_s - time.monotonic()))
        stopped = time.monotonic()
        window = slice_s * (SLICES - 1)
        found.needed = [2 * chunk * sum(now - window <= at <= now for at in found.times) for now in found.times]
        while any(raw.exists(key) for key in slices):
            time.sleep(0.05)
        found.gone_s = time.monotonic() - stopped
        time.sleep(1)  # UNLINK frees in the background
        found.after = raw.info("memory")["used_memory"] - before
        stream.close()
    return found


# --- pauses ----------------------------------------------------------------------------------


@dataclass
class Latencies:
    """Of pings, ascending, in ms; and the longest with the time that processes waited for a core."""

    ms: list[float]
    raw_max: float

    def of(self, percent: int) -> float:
        return self.ms[min(len(self.ms) * percent // 100, len(self.ms) - 1)]


def waited(file: BinaryIO) -> float:
    """Seconds that a thread was ready to run and had no core."""
    file.seek(0)
    return int(file.read().split()[1]) / 1e9


def ping(pipe: Any, port: int, pid: int) -> None:
    """Ping once a millisecond until told to stop; then tell the latencies, from when each ping was due."""
    with (
        socket.create_connection(("127.0.0.1", port)) as connection,
        Path(f"/proc/{pid}/task/{pid}/schedstat").open("rb", buffering=0) as server,
        Path(f"/proc/self/task/{threading.get_native_id()}/schedstat").open("rb", buffering=0) as own,
    ):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        late: list[float] = []
        raw_max = 0.0
        due = time.monotonic()
        pipe.send("ready")
        while not pipe.poll():
            due += 0.001
            own_before = waited(own)
            time.sleep(max(0.0, due - time.monotonic()))
            server_before = waited(server)
            connection.sendall(b"PING\r\n")
            assert connection.recv(64) == b"+PONG\r\n"
            took = time.monotonic() - due
            raw_max = max(raw_max, took)
            excused = min(waited(server) - server_before + waited(own) - own_before, took)
            due += excused  # later pings need not make up for it either
            late.append((took - excused) * 1000)
        pipe.send(Latencies(sorted(late), raw_max * 1000))


def latencies(server: Server, event: Callable[[], object]) -> Latencies:
    """Latencies from a second before `event` until five seconds after it."""
    ours, theirs = multiprocessing.Pipe()
    pinger = multiprocessing.get_context("spawn").Process(target=ping, args=(theirs, server.port, server.pid))
    pinger.start()
    try:
        ours.recv()
        time.sleep(QUIET_S)
        event()
        time.sleep(AFTER_S)
        ours.send("stop")
        return ours.recv()
    finally:
        pinger.join()


def fill(raw: redis.Redis, key: str, count: int, due_ms: int) -> None:
    """A slice as the scripts write it."""
    for batch in in_batches(range(count), 1000):
        raw.hset(key, mapping={f"workers/{job_id}": "done " for job_id in new_ids(len(batch))})
    raw.hset(key, "", due_ms)


def server_ms(raw: redis.Redis) -> int:
    seconds, micros = raw.time()
    return seconds * 1000 + micros // 1000


class Scene:
    """A server with records that are about to be forgotten."""

    def __init__(self, server: Server, raw: redis.Redis, count: int) -> None:
        self.server, self.raw, self.count = server, raw, count
        self.stream = Stream("pauses", dict, redis=server.url)
        self.keys = self.stream._spec.keys
        self.now = server_ms(raw)
        self.current = self.now // self.stream._spec.options.slice_ms % SLICES
        self.stream.once("first", Effects().incrby("n"))  # connected, script known

    def nothing(self) -> Latencies:
        return latencies(self.server, lambda: None)

    def due_at_write(self) -> Latencies:
        self.raw.delete(self.keys.done[self.current])
        fill(self.raw, self.keys.done[self.current], self.count, 1)
        return latencies(self.server, lambda: self.stream.once("second", Effects().incrby("n")))

    def due_with_worker(self) -> Latencies:
        """Nothing but an idle worker."""
        worker = Worker(self.stream, lambda payload: None)
        other = self.keys.done[(self.current + 1) % SLICES]
        fill(self.raw, other, self.count, server_ms(self.raw) + 60_000)
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            time.sleep(1)
            return latencies(self.server, lambda: self.raw.hset(other, "", 1))
        finally:
            worker.stop()
            thread.join()

    def expire_one(self) -> Latencies:
        fill(self.raw, self.keys.done[self.current], self.count, 1)
        return latencies(self.server, lambda: self.raw.pexpire(self.keys.done[self.current], 1000))

    def expire_four(self) -> Latencies:
        for key in self.keys.done:
            fill(self.raw, key, self.count // SLICES, 1)

        def event() -> None:
            for n, key in enumerate(self.keys.done):
                self.raw.pexpire(key, 1000 + n)

        return latencies(self.server, event)

    def expire_keys(self) -> Latencies:
        at = server_ms(self.raw) + round(self.count / 20)  # time enough to set them all
        setting = self.raw.register_script(
            "for i = 2, #ARGV do redis.call('SET', KEYS[1] .. ARGV[i], 'done ', 'PXAT', ARGV[1]) end"
        )
        for batch in in_batches(new_ids(self.count)):
            setting([f"{self.keys.prefix}:done:workers/"], [at, *batch])
        left = (at - server_ms(self.raw)) / 1000
        assert left > QUIET_S
        time.sleep(left - QUIET_S)
        return latencies(self.server, lambda: None)


SCENES = (
    ("nothing happens", Scene.nothing),
    ("a slice is due, a script runs (UNLINK)", Scene.due_at_write),
    ("a slice is due, an idle worker (UNLINK)", Scene.due_with_worker),
    ("one slice expires (PEXPIREAT)", Scene.expire_one),
    ("four slices expire together (PEXPIREAT)", Scene.expire_four),
    ("a key for each record, expire together", Scene.expire_keys),
)


def pauses(backends: Sequence[Backend], count: int, repeat: int) -> None:
    say(f"### PING while {count:,} records are forgotten (the median of {repeat} runs by p99, ms)\n")

    def rows() -> Iterator[Sequence[str]]:
        for backend in backends:
            for name, scene in SCENES:
                runs = sorted((pause(backend, scene, count) for _ in range(repeat)), key=lambda found: found.of(99))
                found = runs[repeat // 2]
                numbers = (found.of(50), found.of(99), found.of(100), found.raw_max)
                yield title(backend), name, *(f"{ms:.1f}" for ms in numbers)

    table(("server", "what", "p50", "p99", "max", "max with waits for a core"), rows())


def pause(backend: Backend, scene: Callable[[Scene], Latencies], count: int) -> Latencies:
    with fresh(backend) as (server, raw):
        found = Scene(server, raw, count)
        late = scene(found)
        left = raw.dbsize() + sum(raw.hlen(key) for key in found.keys.done)
        assert left < 100, f"{left} records and keys are left"
        found.stream.close()
    return late


# --- all of it -------------------------------------------------------------------------------


def title(backend: Backend) -> str:
    return f"{backend.product.title()} {backend.version}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", action="append", help="a backend of tests/servers.py; may be repeated")
    parser.add_argument("--only", choices=("cost", "turns", "pauses"))
    parser.add_argument("--ids", type=int, default=200_000, help="job IDs of the first table")
    parser.add_argument("--records", type=int, default=500_000, help="records forgotten at once")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each scene")
    parser.add_argument("--per-turn", type=int, default=4_000)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--slice", type=float, default=2.0, help="seconds of a turn")
    chosen = parser.parse_args()
    found, _ = discover()
    unknown = set(chosen.server or ()) - set(found)
    if unknown:
        parser.error(f"not found: {', '.join(sorted(unknown))}; there is {', '.join(found)}")
    backends = [backend for name, backend in found.items() if not chosen.server or name in chosen.server]
    if chosen.only in (None, "cost"):
        cost(backends, chosen.ids)
    if chosen.only in (None, "turns"):
        turns(backends, chosen.per_turn, chosen.turns, chosen.slice)
    if chosen.only in (None, "pauses"):
        pauses(backends, chosen.records, chosen.repeat)


if __name__ == "__main__":
    main()
