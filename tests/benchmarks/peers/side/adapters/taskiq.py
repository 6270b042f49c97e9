"""taskiq with taskiq-redis' broker on streams, without a result backend."""

import asyncio
import os
import sys
from pathlib import Path

from taskiq_redis import RedisStreamBroker

from adapters.base import PAYLOAD, PROFILE, URL, Adapter, handle_async

FAST = {"idle_timeout": 2000, "unacknowledged_lock_timeout": 10, "xread_block": 200}
BEST = ("--max-async-tasks", "500", "--max-prefetch", "500", "--ack-type", "when_received")

broker = RedisStreamBroker(url=URL, **(FAST if PROFILE in {"fast", "hold_fast"} else {}))


@broker.task(task_name="job")
async def job(i: int, p: str) -> None:
    await handle_async(i)


class Taskiq(Adapter):
    name = "taskiq"
    bulk = "none documented: asyncio.gather of 100 kiq()"
    profiles = {
        "default": "--workers 1, 100 tasks, no prefetch",
        "best": "--max-async-tasks 500 --max-prefetch 500 --ack-type when_received",
        "hold": "as default",
        "fast": "idle_timeout 2 s, xread_block 200 ms",
        "hold_fast": "the same",
    }
    packages = ("taskiq", "taskiq-redis", "redis", "hiredis", "uvloop")
    notes = "uvloop, as it is installed; a process that watches, and one that works"
    limits = (
        "at best settings a crash loses what was received; else it comes back only when new jobs arrive, and leases are not "
        "renewed, so long jobs run again; entries are never deleted"
    )

    async def open(self):
        await broker.startup()

    async def close(self):
        await broker.shutdown()

    async def add_one(self, i):
        await job.kiq(i, PAYLOAD)

    async def add_bulk(self, low, high):
        await asyncio.gather(*[job.kiq(i, PAYLOAD) for i in range(low, high)])

    def worker(self, profile):
        program = str(Path(sys.prefix, "bin", "taskiq"))
        arguments = ["worker", "adapters.taskiq:broker", "--workers", "1", "--log-level", "WARNING"]
        os.execv(program, [program, *arguments, *(BEST if profile == "best" else ())])


ADAPTER = Taskiq
