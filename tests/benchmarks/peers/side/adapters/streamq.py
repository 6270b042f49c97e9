"""streamq, by its public API."""

import msgspec

from adapters.base import PAYLOAD, PROFILE, URL, Adapter, handle, handle_async, run
from streamq import AsyncStream, Stream, StreamOptions, Worker


class Task(msgspec.Struct):
    i: int
    p: str


async def job(task: Task) -> None:
    await handle_async(task.i)


def job_in_thread(task: Task) -> None:
    handle(task.i)


async def jobs(batch) -> None:
    for each in batch:
        await handle_async(each.payload.i)


MANY = {"concurrency": 256, "prefetch": 256}
WORKERS = {
    "default": (job, {}),
    "best": (job, MANY),
    "ids": (job, MANY),
    "batch": (jobs, {"batch": 100}),
    "sync": (job_in_thread, MANY),
    "hold": (job, {"concurrency": 100}),
    "fast": (job, {}),
    "hold_fast": (job, {"concurrency": 100}),
}
SWEEP = {f"c{slots}": (job, {"concurrency": slots}) for slots in (1, 4, 16, 64, 256)}
UVLOOP = {*SWEEP, "best", "ids", "batch", "sync"}


def job_id(task: Task) -> str:
    return f"order:{task.i}"


class StreamqAdapter(Adapter):
    name = "streamq"
    chunk = 1000
    bulk = "add_many(1000)"
    profiles = {
        "default": "concurrency 10, lease 15 s",
        "best": "concurrency 256, prefetch 256, uvloop",
        "ids": "best, with job IDs chosen by the producer",
        "batch": "batch=100 (the handler gets a list), uvloop",
        "sync": "best, with a def handler, in threads",
        "hold": "concurrency 100",
        "fast": "lease 2 s",
        "hold_fast": "lease 2 s, concurrency 100",
    }
    sweep = tuple(SWEEP)
    adds = ("default", "ids", "async")
    packages = ("streamq", "redis", "hiredis", "msgspec", "uvloop")
    limits = "exactly once only for effects in Redis; calls elsewhere happen at least once"

    def __init__(self):
        self.is_async = PROFILE == "async"
        self.stream = self.make(AsyncStream if self.is_async else Stream)
        self.job_id = job_id if PROFILE == "ids" else None
        if self.job_id:
            self.add_one = self.add_one_by_id

    def make(self, kind):
        options = StreamOptions(lease=2) if PROFILE in {"fast", "hold_fast"} else None
        return kind("s", Task, redis=URL, options=options)

    def close(self):
        return self.stream.aclose() if self.is_async else self.stream.close()

    def add_one(self, i):
        return self.stream.add(Task(i, PAYLOAD))

    def add_one_by_id(self, i):
        return self.stream.add(Task(i, PAYLOAD), job_id=f"order:{i}")

    def add_bulk(self, low, high):
        return self.stream.add_many((Task(i, PAYLOAD) for i in range(low, high)), job_id=self.job_id)

    def worker(self, profile):
        handler, options = {**WORKERS, **SWEEP}[profile]
        worker = Worker(self.make(Stream), handler, **options)
        run(worker.run_async(), fast=profile in UVLOOP)


ADAPTER = StreamqAdapter
