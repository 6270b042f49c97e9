"""FastStream."""

import os

import redis.asyncio
from faststream import FastStream
from faststream.redis import RedisBroker, StreamSub
from redis.exceptions import ResponseError

from adapters.base import PAYLOAD, URL, Adapter, handle_async, run


def subscription(**more):
    return StreamSub("s", group="g", consumer=f"c{os.getpid()}", **more)


async def job(d: dict) -> None:
    await handle_async(d["i"])


async def jobs(ds: list[dict]) -> None:
    for d in ds:
        await handle_async(d["i"])


def build(profile):
    broker = RedisBroker(URL, logger=None)
    many = {"max_workers": 100}
    if profile == "batch":
        broker.subscriber(stream=subscription(batch=True, max_records=100))(jobs)
    elif profile == "best":
        broker.subscriber(stream=subscription(max_records=200), **many)(job)
    else:
        broker.subscriber(stream=subscription(), **(many if profile in {"hold", "hold_fast"} else {}))(job)
    if profile == "fast":  # documented so: another subscriber, which claims
        broker.subscriber(stream=subscription(min_idle_time=2000))(job)
    return broker


class FastStreamAdapter(Adapter):
    name = "faststream"
    bulk = "publish(pipeline=) of 100"
    profiles = {
        "default": "reads without a limit, max_workers 1",
        "best": "max_records 200, max_workers 100, uvloop",
        "batch": "batch=True, max_records 100 (the handler gets a list), uvloop",
        "hold": "max_workers 100",
        "fast": "a second subscriber with min_idle_time 2 s",
        "hold_fast": "max_workers 100",
    }
    packages = ("faststream", "redis", "hiredis", "uvloop")
    notes = "the group is made by the benchmark: its own would begin behind the jobs that are there"
    limits = (
        "what a crash or an error leaves stays pending unless another subscriber claims it, and that one also takes "
        "long jobs from healthy workers; entries are never deleted"
    )

    async def open(self):
        self.broker = RedisBroker(URL, logger=None)
        await self.broker.connect()
        self.client = redis.asyncio.Redis.from_url(URL)
        try:
            await self.client.xgroup_create("s", "g", "0", mkstream=True)
        except ResponseError:
            pass  # it is there

    async def close(self):
        await self.client.aclose()
        await self.broker.stop()

    async def add_one(self, i):
        await self.broker.publish({"i": i, "p": PAYLOAD}, stream="s")

    async def add_bulk(self, low, high):
        async with self.client.pipeline(transaction=False) as pipeline:
            for i in range(low, high):
                await self.broker.publish({"i": i, "p": PAYLOAD}, stream="s", pipeline=pipeline)
            await pipeline.execute()

    def worker(self, profile):
        run(FastStream(build(profile), logger=None).run(), fast=profile in {"best", "batch"})


ADAPTER = FastStreamAdapter
