"""streaQ."""

from streaq import Worker

from adapters.base import PAYLOAD, URL, Adapter, handle_async

OPTIONS = {
    "default": {},
    "best": {"concurrency": 200, "prefetch": 200, "anyio_kwargs": {"use_uvloop": True}},
    "hold": {"concurrency": 100},
    "fast": {"idle_timeout": 2},
    "hold_fast": {"concurrency": 100, "idle_timeout": 2},
}


def make(options, **of_task):
    worker = Worker(redis_url=URL, **options)

    @worker.task(**of_task)
    async def job(i: int, p: str) -> None:
        await handle_async(i)

    return worker, job


class Streaq(Adapter):
    name = "streaq"
    chunk = 1000
    bulk = "enqueue_many(1000)"
    profiles = {
        "default": "concurrency and prefetch 16, idle_timeout 60 s",
        "best": "concurrency and prefetch 200, no results kept, silent, uvloop",
        "hold": "concurrency 100",
        "fast": "idle_timeout 2 s",
        "hold_fast": "the same, concurrency 100",
    }
    packages = ("streaq", "coredis", "uvloop")
    limits = (
        "no dead letters; a late result of a stale worker counts; after a crash some jobs wait several idle_timeouts"
    )

    async def open(self):
        self.queue, self.job = make({})
        await self.queue.__aenter__()

    async def close(self):
        await self.queue.__aexit__(None, None, None)

    async def add_one(self, i):
        await self.job.enqueue(i, PAYLOAD)

    async def add_bulk(self, low, high):
        await self.queue.enqueue_many([self.job.enqueue(i, PAYLOAD) for i in range(low, high)])

    def worker(self, profile):
        worker, _ = make(OPTIONS[profile], **({"ttl": 0, "silent": True} if profile == "best" else {}))
        worker.run_sync()


ADAPTER = Streaq
