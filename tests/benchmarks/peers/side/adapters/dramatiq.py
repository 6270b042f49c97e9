"""dramatiq."""

import os
import sys
from pathlib import Path

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from adapters.base import PAYLOAD, PROFILE, URL, Adapter, handle

FAST = {"heartbeat_timeout": 2000, "maintenance_chance": 1_000_000}
THREADS = {"best": "4", "hold": "100", "hold_fast": "100"}

broker = RedisBroker(url=URL, **(FAST if PROFILE in {"fast", "hold_fast"} else {}))
dramatiq.set_broker(broker)


@dramatiq.actor
def job(i, p):
    handle(i)


class Dramatiq(Adapter):
    name = "dramatiq"
    is_async = False
    bulk = "none documented: a loop of send()"
    profiles = {
        "default": "--processes 1, 8 threads, prefetch 16",
        "best": "--processes 1 --threads 4, dramatiq_queue_prefetch 1000",
        "hold": "--threads 100",
        "fast": "heartbeat_timeout 2 s, maintenance at every command",
        "hold_fast": "the same, --threads 100",
    }
    packages = ("dramatiq", "redis", "hiredis")
    notes = "a process that watches, and one that works"
    limits = "after a crash maintenance comes by chance: one command in 1,000; a killer is requeued without a bound"

    def add_one(self, i):
        job.send(i, PAYLOAD)

    def add_bulk(self, low, high):
        for i in range(low, high):
            job.send(i, PAYLOAD)

    def worker(self, profile):
        if profile == "best":
            os.environ["dramatiq_queue_prefetch"] = "1000"  # noqa: SIM112  # its name
        program = str(Path(sys.prefix, "bin", "dramatiq"))
        threads = ("--threads", THREADS[profile]) if profile in THREADS else ()
        os.execv(program, [program, "adapters.dramatiq:broker", "--processes", "1", *threads])


ADAPTER = Dramatiq
