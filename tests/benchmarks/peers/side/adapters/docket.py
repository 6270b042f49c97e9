"""docket."""

from datetime import timedelta

from docket import Docket, Worker

from adapters.base import PAYLOAD, PROFILE, URL, Adapter, handle_async, run

FAST = {"redelivery_timeout": timedelta(seconds=2)}
OPTIONS = {
    "default": {},
    # More slots run into the client's own limit on connections.
    "best": {"concurrency": 20, "minimum_check_interval": timedelta(milliseconds=5)},
    "hold": {"concurrency": 100},
    "fast": FAST,
    "hold_fast": {**FAST, "concurrency": 100},
}


async def job(i: int, p: str) -> None:
    await handle_async(i)


def make(profile):
    options = {"execution_ttl": timedelta(0)} if profile == "best" else {}
    docket = Docket(name="d", url=URL, **options)
    docket.register(job)
    return docket


async def serve(profile):
    async with make(profile) as docket, Worker(docket, **OPTIONS[profile]) as worker:
        await worker.run_forever()


class DocketAdapter(Adapter):
    name = "docket"
    chunk = 1000
    bulk = "add_many(1000)"
    profiles = {
        "default": "concurrency 10, redelivery_timeout 5 min",
        "best": "concurrency 20, minimum_check_interval 5 ms, execution_ttl 0, uvloop",
        "hold": "concurrency 100",
        "fast": "redelivery_timeout 2 s",
        "hold_fast": "the same, concurrency 100",
    }
    packages = ("pydocket", "redis", "hiredis", "uvloop")
    limits = "a job that kills its worker has no last attempt; a late result of a stale worker counts; no dead letters"

    async def open(self):
        self.docket = make(PROFILE)
        await self.docket.__aenter__()

    async def close(self):
        await self.docket.__aexit__(None, None, None)

    async def add_one(self, i):
        await self.docket.add(job)(i, PAYLOAD)

    async def add_bulk(self, low, high):
        await self.docket.add_many([self.docket.call(job)(i, PAYLOAD) for i in range(low, high)])

    def worker(self, profile):
        run(serve(profile), fast=profile == "best")


ADAPTER = DocketAdapter
