"""BullMQ for Python."""

import asyncio

from bullmq import Queue, Worker

from adapters.base import PAYLOAD, PROFILE, URL, Adapter, handle_async

CONNECTION = {"connection": URL}
MANY = {"concurrency": 100}
FAST = {"lockDuration": 2000, "stalledInterval": 2000, **MANY}
OPTIONS = {"default": {}, "best": MANY, "hold": MANY, "fast": FAST, "hold_fast": FAST}


async def process(job, token):
    await handle_async(job.data["i"])


class BullmqPy(Adapter):
    name = "bullmq-py"
    chunk = 1000
    bulk = "Queue.addBulk(1000)"
    profiles = {
        "default": "concurrency 1, lockDuration and stalledInterval 30 s",
        "best": "concurrency 100, removeOnComplete",
        "hold": "concurrency 100",
        "fast": "lockDuration and stalledInterval 2 s, concurrency 100",
        "hold_fast": "the same",
    }
    packages = ("bullmq", "redis", "hiredis")
    limits = (
        "keeps every finished job for good unless told otherwise; no dead letters; the hash tag is the user's affair"
    )

    async def open(self):
        self.queue = Queue("q", CONNECTION)
        self.options = {"removeOnComplete": True} if PROFILE == "best" else {}

    async def close(self):
        await self.queue.close()

    async def add_one(self, i):
        await self.queue.add("job", {"i": i, "p": PAYLOAD}, self.options)

    async def add_bulk(self, low, high):
        await self.queue.addBulk(
            [{"name": "job", "data": {"i": i, "p": PAYLOAD}, "opts": dict(self.options)} for i in range(low, high)]
        )

    def worker(self, profile):
        async def serve():
            worker = Worker("q", process, {**CONNECTION, **OPTIONS[profile]})
            await asyncio.Event().wait()
            await worker.close()

        asyncio.run(serve())


ADAPTER = BullmqPy
