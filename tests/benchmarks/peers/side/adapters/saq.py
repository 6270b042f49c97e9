"""SAQ."""

import asyncio

from saq import Queue, Worker

from adapters.base import PAYLOAD, PROFILE, URL, Adapter, handle_async, run

MANY = {"concurrency": 100}
FAST = {**MANY, "timers": {"sweep": 1}}
OPTIONS = {"default": {}, "best": MANY, "hold": MANY, "fast": FAST, "hold_fast": FAST}
FAST_JOB = {"heartbeat": 2, "retries": 10}
JOB = {"best": {"ttl": -1}, "fast": FAST_JOB, "hold_fast": FAST_JOB}.get(PROFILE, {})


async def job(ctx, *, i, p):
    await handle_async(i)


async def connect():
    queue = Queue.from_url(URL)
    await queue.connect()
    return queue


async def serve(profile):
    await Worker(await connect(), [job], **OPTIONS[profile]).start()


class Saq(Adapter):
    name = "saq"
    bulk = "none documented: asyncio.gather of 100 enqueue()"
    profiles = {
        "default": "concurrency 10, a sweep every 60 s, 1 attempt, timeout 10 s",
        "best": "concurrency 100, no results kept, uvloop",
        "hold": "concurrency 100",
        "fast": "heartbeat 2 s, 10 attempts, a sweep every second",
        "hold_fast": "the same",
    }
    packages = ("saq", "redis", "hiredis", "uvloop")
    limits = "by default a job has one attempt, so a crashed one is not run again; sweeps wait 5 s for each stuck job"

    async def open(self):
        self.queue = await connect()

    async def close(self):
        await self.queue.disconnect()

    async def add_one(self, i):
        await self.queue.enqueue("job", i=i, p=PAYLOAD, **JOB)

    async def add_bulk(self, low, high):
        await asyncio.gather(*[self.queue.enqueue("job", i=i, p=PAYLOAD, **JOB) for i in range(low, high)])

    def worker(self, profile):
        run(serve(profile), fast=profile == "best")


ADAPTER = Saq
