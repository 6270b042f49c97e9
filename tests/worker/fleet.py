"""Workers for the tests: in a thread, or in processes that are stopped, killed and started again.

What handlers do is told in a file that every process appends to, so that starts are counted outside Redis. Run as a
script, this module is such a worker process; ``payload`` says what its handler does:

- ``name``: in the events, and the field of the hash ``effects`` that is incremented with the job's acknowledgement.
- ``do``: ``work`` (the default), ``die`` (the process ends), ``fail`` (raises), ``reject``.
- ``seconds``: how long it works before that; ``first``: how long in its first delivery, instead.
- ``block``: work by blocking the thread, in an ``async def`` handler the event loop.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self

import redis

from streamq import Backoff, Job, Reject, Stream, StreamOptions, Worker

# --- what happened, told in a file --------------------------------------------------------


class Event(NamedTuple):
    """A line of the file. `at` is the machine's monotonic clock, so it can be compared between processes."""

    what: str
    name: str
    pid: int
    at: float
    attempt: int
    deliveries: int


class Events:
    """A file that many processes append to, a line at a time."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.path.touch()

    def tell(self, what: str, name: str = "-", *, attempt: int = 0, deliveries: int = 0) -> None:
        line = f"{what} {name} {os.getpid()} {time.monotonic()} {attempt} {deliveries}\n"
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(file, line.encode())
        finally:
            os.close(file)

    def all(self, what: str | None = None, name: str | None = None) -> list[Event]:
        """Events so far, in the order in which they were told; of one kind, of one name."""
        rows = [line.split() for line in self.path.read_text().splitlines()]
        found = [Event(r[0], r[1], int(r[2]), float(r[3]), int(r[4]), int(r[5])) for r in rows]
        return [e for e in found if what in (None, e.what) and name in (None, e.name)]

    def starts(self) -> Counter[str]:
        """How often each job's handler was started."""
        return Counter(event.name for event in self.all("start"))

    def overlaps(self, name: str) -> int:
        """How often a start of this job came while another run of it had not ended."""
        inside = found = 0
        for event in self.all(name=name):
            if event.what == "start":
                found += inside > 0
                inside += 1
            elif event.what == "end":
                inside -= 1
        return found


# --- the process --------------------------------------------------------------------------


def handler_of(kind: str, events: Events) -> Callable[..., Any]:
    """A handler that does what its payload says: ``def`` or ``async def``."""

    def seconds(payload: dict[str, Any], job: Job[Any]) -> float:
        events.tell("start", payload["name"], attempt=job.attempt, deliveries=job.deliveries)
        always = payload.get("seconds", 0.0)
        return payload.get("first", always) if job.deliveries == 1 else always

    def end(payload: dict[str, Any], job: Job[Any]) -> None:
        do = payload.get("do", "work")
        if do == "die":
            os._exit(9)
        events.tell("end", payload["name"], attempt=job.attempt, deliveries=job.deliveries)
        if do == "fail":
            raise RuntimeError("failed as told")
        if do == "reject":
            raise Reject("rejected as told")
        job.effects.hincrby("effects", payload["name"])

    def plain(payload: dict[str, Any], job: Job[Any]) -> None:
        time.sleep(seconds(payload, job))
        end(payload, job)

    async def waiting(payload: dict[str, Any], job: Job[Any]) -> None:
        duration = seconds(payload, job)
        if payload.get("block"):
            time.sleep(duration)  # noqa: ASYNC251  # the very fault to be tried
        else:
            await asyncio.sleep(duration)
        end(payload, job)

    return {"def": plain, "async def": waiting}[kind]


def options_of(settings: dict[str, Any]) -> StreamOptions:
    """Stream options from plain values: ``retries`` and ``crash_delay`` stand for the two backoffs."""
    given = dict(settings)
    retries = given.pop("retries", 2)
    crash_delay = given.pop("crash_delay", 0)
    return StreamOptions(
        retry=Backoff.constant(0, limit=retries), crash_backoff=Backoff.constant(crash_delay, limit=None), **given
    )


def main(argument: str) -> None:
    """Work until SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # until the worker has its own handlers
    given = json.loads(argument)
    logging.basicConfig(level=logging.WARNING, format="%(process)d %(name)s %(levelname)s %(message)s")
    events = Events(given["events"])
    stream: Stream[Any]
    with Stream(given["stream"], redis=given["url"], options=options_of(given["options"])) as stream:
        worker = Worker(stream, handler_of(given["handler"], events), **given["worker"])
        events.tell("up")
        worker.run()
    events.tell("down")


# --- the test's side ----------------------------------------------------------------------


class Fleet:
    """Worker processes on one stream. A context manager: at its end none of them is left.

    Args:
        url: Of the server.
        stream: Name of the stream.
        directory: Where events and logs are written.
        handler: ``def`` or ``async def``.
        worker: Arguments of `Worker`.
        options: See `options_of`.
    """

    def __init__(
        self,
        url: str,
        stream: str,
        directory: Path,
        *,
        handler: str = "def",
        worker: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self.events = Events(directory / "events")
        self.log = directory / "log"
        self.processes: list[subprocess.Popen[bytes]] = []
        self.restarts = 0
        self._options = options
        self._settings = {
            "url": url,
            "stream": stream,
            "events": str(self.events.path),
            "handler": handler,
            "worker": {"block": 0.2, **(worker or {})},
            "options": options,
        }
        self._stop = threading.Event()
        self._supervisor: threading.Thread | None = None

    @property
    def options(self) -> StreamOptions:
        """What all processes of the fleet use."""
        return options_of(self._options)

    def start(self, **worker: Any) -> subprocess.Popen[bytes]:
        """Start one process; `worker` replaces arguments of its `Worker`."""
        settings = {**self._settings, "worker": {**self._settings["worker"], **worker}}
        with self.log.open("ab") as log:
            process = subprocess.Popen([sys.executable, __file__, json.dumps(settings)], stdout=log, stderr=log)
        self.processes.append(process)
        return process

    def supervise(self, count: int) -> None:
        """Start `count` processes, and another one for each that ends."""
        running = [self.start() for _ in range(count)]

        def watch() -> None:
            while not self._stop.wait(0.02):
                for place, process in enumerate(running):
                    if process.poll() is not None and not self._stop.is_set():
                        self.restarts += 1
                        running[place] = self.start()

        self._supervisor = threading.Thread(target=watch)
        self._supervisor.start()

    def terminate(self, timeout: float = 15.0) -> list[int]:
        """SIGTERM to all that run; their exit statuses."""
        self._end_supervision()
        alive = [process for process in self.processes if process.poll() is None]
        until(lambda: {p.pid for p in alive} <= {event.pid for event in self.events.all("up")})
        for process in alive:
            process.terminate()
        return [process.wait(timeout) for process in alive]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._end_supervision()
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()
        if kind is not None and self.log.exists():
            sys.stderr.write(self.log.read_text(errors="replace")[-8000:])  # pytest shows it with the failure

    def _end_supervision(self) -> None:
        self._stop.set()
        if self._supervisor is not None:
            self._supervisor.join()
            self._supervisor = None


def quick(stream: Any, handler: Callable[..., Any], *, block: float = 0.05, **settings: Any) -> Worker[Any]:
    """A worker that notices `stop` soon."""
    return Worker(stream, handler, block=block, **settings)


@contextmanager
def working(*workers: Worker[Any], timeout: float = 15.0) -> Iterator[None]:
    """Run workers in threads of their own; at the end stop them, and raise what ended one."""
    errors: list[BaseException] = []

    def run(worker: Worker[Any]) -> None:
        try:
            worker.run()
        except BaseException as error:  # noqa: BLE001  # raised below, in the test
            errors.append(error)

    threads = [threading.Thread(target=run, args=(worker,), daemon=True) for worker in workers]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for worker, thread in zip(workers, threads, strict=True):
            if thread.is_alive():
                worker.stop()
        for thread in threads:
            thread.join(timeout)
        assert not any(thread.is_alive() for thread in threads), "a worker does not stop"
    if errors:
        raise errors[0]


def effects(raw: redis.Redis, stream: Any, key: str = "effects") -> dict[str, int]:
    """How often each job's effect was committed."""
    return {name.decode(): int(n) for name, n in raw.hgetall(stream._spec.keys.data(key)).items()}


def is_idle(stream: Any) -> bool:
    """Whether nothing is ready or pending. Before its first reader has made the group, nobody can tell."""
    now = stream.inspect()
    return bool(now.groups) and now.ready == now.pending == 0


def until(condition: Callable[[], Any], *, timeout: float = 20.0) -> Any:
    """Wait until `condition` gives something true, and return that."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        assert time.monotonic() < deadline, "it did not come to that in time"
        time.sleep(0.01)
    return value


if __name__ == "__main__":
    main(sys.argv[1])
