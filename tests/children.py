"""What tests run in processes of their own, to kill them. One process server with everything imported starts them."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import colours

from streamq import Backoff, Effects

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["children"])


@contextmanager
def running(work: Callable[..., None], *args: Any) -> Iterator[Any]:
    """A process that runs ``work(pipe, *args)``; gives it and our end of the pipe. Killed at the end at the latest."""
    ours, theirs = _CONTEXT.Pipe()
    process = _CONTEXT.Process(target=work, args=(theirs, *args))
    process.start()
    theirs.close()
    try:
        yield process, ours
    finally:
        process.kill()
        process.join()
        process.close()
        ours.close()


def kill(process: Any) -> None:
    """SIGKILL, and wait for the end."""
    process.kill()
    process.join()


def hold(pipe: Any, colour: str, url: str, name: str, count: int) -> None:
    """Read jobs, as consumer ``victim``, and sit on them."""
    stream = colours.open_stream(colour, name, redis=url)
    jobs = stream.read("victim", count=count)
    pipe.send([job.entry_id for job in jobs])
    pipe.recv()


def reclaim_always(pipe: Any, colour: str, url: str, name: str, options: dict[str, Any]) -> None:
    """Reclaim in an endless loop, once told to begin."""
    stream = colours.open_stream(colour, name, redis=url, **options)
    stream.inspect()  # connected
    pipe.send("ready")
    pipe.recv()
    while True:
        stream.reclaim(f"r-{os.getpid()}", count=20)


def work_or_die(pipe: Any, colour: str, url: str, name: str) -> None:
    """Handle jobs one by one, new ones first; the job ``P`` ends the process. Every start is told to the parent."""
    stream = colours.open_stream(
        colour, name, redis=url, lease=0.1, max_deliveries=5, crash_backoff=Backoff.constant(0, limit=None)
    )
    consumer = f"w-{os.getpid()}"
    while True:
        jobs = stream.read(consumer) or stream.reclaim(consumer, count=1).claimed
        for job in jobs:
            pipe.send(job.payload["name"])
            if job.payload["name"] == "P":
                os._exit(9)
            stream.ack(job)


def once_each(pipe: Any, colour: str, url: str, name: str, ids: list[str]) -> None:
    """Apply an effect once per ID; tell how often it was applied here."""
    stream = colours.open_stream(colour, name, redis=url)
    stream.inspect()
    pipe.send("ready")
    pipe.recv()
    pipe.send(sum(stream.once(job_id, Effects().incrby(f"receipt-{job_id}")) for job_id in ids))
    stream.close()


def add_hundred(pipe: Any, colour: str, url: str, name: str) -> None:
    """Add a hundred jobs with a stream of its own."""
    stream = colours.open_stream(colour, name, redis=url)
    for n in range(100):
        stream.add({"n": n})
    stream.close()
    pipe.send("done")
