"""RQ."""

from redis import Redis
from rq import Queue, Retry, SimpleWorker, Worker

from adapters.base import PAYLOAD, PROFILE, URL, Adapter, handle

FAST = {"maintenance_interval": 1, "job_monitoring_interval": 1, "worker_ttl": 5}
IS_FAST = PROFILE in {"fast", "hold_fast"}


def job(i, p):
    handle(i)


class Rq(Adapter):
    name = "rq"
    is_async = False
    bulk = "enqueue_many(100)"
    profiles = {
        "default": "Worker, a fork for each job",
        "best": "SimpleWorker, without forks, result_ttl 0",
        "hold": "Worker, which holds one job",
        "fast": "Retry(max=3), maintenance and monitoring every second, worker_ttl 5 s",
        "hold_fast": "the same",
    }
    packages = ("rq", "redis", "hiredis")
    notes = "a worker holds one job, so ten workers crash with ten jobs"
    limits = "a job whose worker died fails unless it was added with retries; no cluster"

    def open(self):
        self.client = Redis.from_url(URL)
        self.queue = Queue(connection=self.client)
        self.options = {"result_ttl": 0} if PROFILE == "best" else {}
        if IS_FAST:
            self.options["retry"] = Retry(max=3)

    def close(self):
        self.client.close()

    def add_one(self, i):
        self.queue.enqueue(job, i, PAYLOAD, **self.options)

    def add_bulk(self, low, high):
        self.queue.enqueue_many([Queue.prepare_data(job, args=(i, PAYLOAD), **self.options) for i in range(low, high)])

    def worker(self, profile):
        self.open()
        kind = SimpleWorker if profile == "best" else Worker
        kind([self.queue], connection=self.client, **(FAST if IS_FAST else {})).work(logging_level="WARNING")


ADAPTER = Rq
