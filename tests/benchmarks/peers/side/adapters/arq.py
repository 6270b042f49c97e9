"""arq."""

import asyncio

from arq import create_pool
from arq.connections import RedisSettings
from arq.worker import Worker

from adapters.base import HOST, PAYLOAD, PORT, Adapter, handle_async

SETTINGS = RedisSettings(host=HOST, port=PORT)
FAST = {"job_timeout": 2, "poll_delay": 0.05}
OPTIONS = {
    "default": {},
    "best": {"max_jobs": 100, "poll_delay": 0.01, "keep_result": 0, "log_results": False, "queue_read_limit": 500},
    "hold": {"max_jobs": 100},
    "fast": FAST,
    "hold_fast": {**FAST, "max_jobs": 100},
}


async def job(ctx, i, p):
    await handle_async(i)


class Arq(Adapter):
    name = "arq"
    bulk = "none documented: asyncio.gather of 100 enqueue_job()"
    profiles = {
        "default": "max_jobs 10, poll_delay 0.5 s, results kept for an hour",
        "best": "max_jobs 100, poll_delay 0.01 s, keep_result 0, uvloop",
        "hold": "max_jobs 100",
        "fast": "job_timeout 2 s, poll_delay 0.05 s",
        "hold_fast": "the same, max_jobs 100",
    }
    packages = ("arq", "redis", "hiredis", "uvloop")
    limits = "a job that is not over by job_timeout is cancelled; no dead letters; no cluster"

    async def open(self):
        self.pool = await create_pool(SETTINGS)

    async def close(self):
        await self.pool.aclose()

    async def add_one(self, i):
        await self.pool.enqueue_job("job", i, PAYLOAD)

    async def add_bulk(self, low, high):
        await asyncio.gather(*[self.pool.enqueue_job("job", i, PAYLOAD) for i in range(low, high)])

    def worker(self, profile):
        if profile == "best":
            import uvloop

            asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
        asyncio.set_event_loop(asyncio.new_event_loop())
        Worker([job], redis_settings=SETTINGS, **OPTIONS[profile]).run()


ADAPTER = Arq
