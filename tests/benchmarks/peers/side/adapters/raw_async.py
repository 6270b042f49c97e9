"""A loop over redis-py's asyncio client, which awaits one handler after the other."""

import redis
import redis.asyncio

from adapters.base import PAYLOAD, URL, Adapter, handle_async, run
from adapters.raw_sync import BATCH, RawSync, entries


class RawAsync(Adapter):
    name = "raw-async"
    bulk = RawSync.bulk
    profiles = {"default": RawSync.profiles["default"], "best": "the same on uvloop, and an XDEL of the batch"}
    packages = ("redis", "hiredis", "uvloop")
    limits = RawSync.limits

    async def open(self):
        self.client = redis.asyncio.Redis.from_url(URL)
        try:
            await self.client.xgroup_create("s", "g", "0", mkstream=True)
        except redis.ResponseError:
            pass  # it is there

    async def close(self):
        await self.client.aclose()

    async def add_one(self, i):
        await self.client.xadd("s", {"i": i, "p": PAYLOAD})

    async def add_bulk(self, low, high):
        pipeline = self.client.pipeline(transaction=False)
        for i in range(low, high):
            pipeline.xadd("s", {"i": i, "p": PAYLOAD})
        await pipeline.execute()

    async def loop(self, *, delete):
        await self.open()
        client = self.client
        while True:
            reply = await client.xreadgroup("g", "c", {"s": ">"}, count=BATCH, block=2000)
            if not reply:
                continue
            ids = []
            for entry_id, fields in entries(reply):
                await handle_async(int(fields[b"i"]))
                ids.append(entry_id)
            if delete:
                pipeline = client.pipeline(transaction=False)
                pipeline.xack("s", "g", *ids)
                pipeline.xdel("s", *ids)
                await pipeline.execute()
            else:
                await client.xack("s", "g", *ids)

    def worker(self, profile):
        is_best = profile == "best"
        run(self.loop(delete=is_best), fast=is_best)


ADAPTER = RawAsync
