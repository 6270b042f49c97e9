"""Celery, with Redis as its broker and no result backend."""

import os
import sys
from pathlib import Path

from celery import Celery

from adapters.base import PAYLOAD, PROFILE, URL, Adapter, handle

app = Celery("peers", broker=URL)
if PROFILE in {"fast", "hold_fast"}:
    transport = {"visibility_timeout": 2, "unacked_restore_interval": 1, "unacked_restore_throttle": 1}
    app.conf.update(task_acks_late=True, task_reject_on_worker_lost=True, broker_transport_options=transport)
if PROFILE == "best":
    app.conf.update(worker_prefetch_multiplier=1000, task_ignore_result=True)

THREADS = ("-P", "threads", "-c", "100")
OPTIONS = {
    "best": ("-P", "solo", "--without-gossip", "--without-mingle", "--without-heartbeat"),
    "hold": THREADS,
    "hold_fast": THREADS,
}


@app.task(name="job")
def job(i, p):
    handle(i)


class CeleryAdapter(Adapter):
    name = "celery"
    is_async = False
    bulk = "none documented: a loop of delay()"
    profiles = {
        "default": "prefork with a process for each core, prefetch x 4",
        "best": "-P solo, prefetch x 1000, --without-gossip --without-mingle --without-heartbeat",
        "hold": "-P threads -c 100",
        "fast": "acks_late, visibility_timeout 2 s, unacked_restore_interval and _throttle 1",
        "hold_fast": "the same, -P threads -c 100",
    }
    packages = ("celery", "kombu", "redis", "hiredis")
    limits = "acknowledges before the job runs unless told otherwise, so a crash loses it; told so, long jobs run twice"

    def add_one(self, i):
        job.delay(i, PAYLOAD)

    def add_bulk(self, low, high):
        for i in range(low, high):
            job.delay(i, PAYLOAD)

    def worker(self, profile):
        os.environ["C_FORCE_ROOT"] = "1"
        program = str(Path(sys.prefix, "bin", "celery"))
        os.execv(program, [program, "-A", "adapters.celery:app", "worker", "-l", "ERROR", *OPTIONS.get(profile, ())])


ADAPTER = CeleryAdapter
