"""Workers for the tests: in a thread, or in processes that are stopped, killed and started again.

What handlers do is told in a file that every process appends to, so that starts are counted outside Redis. Run as a
script, this module is such a worker process; ``payload`` says what its handler does:

- ``name``: in the events, and the field of the hash ``effects`` that is incremented with the job's acknowledgement.
- ``do``: ``work`` (the default), ``ack`` (no effect), ``pid`` (its result is the process ID), ``die`` (the process ends),
  ``crash`` (it ends by SIGSEGV), ``fail`` (raises; with ``fails``, in its first attempts only), ``reject``; ``first_do``: in
  its first delivery, instead.
- ``result``: what the handler returns.
- ``seconds``: how long it works before that; ``first``: how long in its first delivery, instead.
- ``block``: work by blocking the thread, in an ``async def`` handler the event loop.
- ``gated``: it works until the test opens its gate: `Events.open`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self

import redis
from waiting import PATIENCE, until

from streamq import Backoff, Hooks, Job, Reject, Stream, StreamOptions, Worker
from streamq._scripts import source

# --- what happened, told in a file --------------------------------------------------------


class Event(NamedTuple):
    """A line of the file. `at` is the machine's monotonic clock, so it can be compared between processes.

    `what` is ``up`` or ``down`` of a process, ``start``, ``end`` or ``cancel`` of a handler, ``open`` of a gate.
    """

    what: str
    name: str
    pid: int
    at: float
    attempt: int
    deliveries: int
    entry_id: str = "-"


class Events:
    """A file that many processes append to, a line at a time."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.path.touch()

    def tell(self, what: str, name: str = "-", job: Job[Any] | None = None) -> None:
        run = "0 0 -" if job is None else f"{job.attempt} {job.deliveries} {job.entry_id}"
        line = f"{what} {name} {os.getpid()} {time.monotonic()} {run}\n"
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(file, line.encode())
        finally:
            os.close(file)

    def all(self, what: str | None = None, name: str | None = None) -> list[Event]:
        """Events so far, in the order in which they were told; of one kind, of one name."""
        told, _, _ = self.path.read_text().rpartition("\n")  # without a line that is being written
        rows = [line.split() for line in told.splitlines()]
        found = [Event(r[0], r[1], int(r[2]), float(r[3]), int(r[4]), int(r[5]), r[6]) for r in rows]
        return [e for e in found if what in (None, e.what) and name in (None, e.name)]

    def starts(self) -> Counter[str]:
        """How often each job's handler was started."""
        return Counter(event.name for event in self.all("start"))

    def open(self, name: str) -> None:
        """Let the handlers of a ``gated`` job go on."""
        self.tell("open", name)

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


def end_of(payload: dict[str, Any], job: Job[Any], events: Events) -> Any:
    """End as the payload says."""
    do = payload.get("do", "work")
    if job.deliveries == 1:
        do = payload.get("first_do", do)
    if do == "die":
        os._exit(9)
    if do == "crash":
        signal.raise_signal(signal.SIGSEGV)
    events.tell("end", payload["name"], job)
    if do == "fail" and job.attempt <= payload.get("fails", math.inf):
        raise RuntimeError("failed as told")
    if do == "reject":
        raise Reject("rejected as told")
    if do != "ack":
        job.effects.hincrby("effects", payload["name"])
    return os.getpid() if do == "pid" else payload.get("result")


async def _sleep(duration: float, payload: dict[str, Any], job: Job[Any], events: Events) -> None:
    try:
        await asyncio.sleep(duration)
    except asyncio.CancelledError:
        events.tell("cancel", payload["name"], job)
        raise


def handler_of(kind: str, events: Events) -> Callable[..., Any]:
    """A handler that does what its payload says: ``def`` or ``async def``."""

    def seconds(payload: dict[str, Any], job: Job[Any]) -> float:
        events.tell("start", payload["name"], job)
        always = payload.get("seconds", 0.0)
        return payload.get("first", always) if job.deliveries == 1 else always

    def plain(payload: dict[str, Any], job: Job[Any]) -> Any:
        time.sleep(seconds(payload, job))
        while payload.get("gated") and not events.all("open", payload["name"]):
            time.sleep(0.01)
        return end_of(payload, job, events)

    async def waiting(payload: dict[str, Any], job: Job[Any]) -> Any:
        duration = seconds(payload, job)
        if payload.get("block"):
            time.sleep(duration)  # noqa: ASYNC251  # the very fault to be tried
        elif duration:
            await _sleep(duration, payload, job, events)
        while payload.get("gated") and not events.all("open", payload["name"]):
            await _sleep(0.01, payload, job, events)
        return end_of(payload, job, events)

    return {"def": plain, "async def": waiting}[kind]


class Losses(Hooks):
    """Tells ``lost`` of each job whose lease was lost."""

    def __init__(self, events: Events) -> None:
        self._events = events

    def lease_lost(self, job: Job[Any]) -> None:
        self._events.tell("lost", job.payload["name"], job)


def options_of(settings: dict[str, Any]) -> StreamOptions:
    """Stream options from plain values: ``retries``, ``retry_delay`` and ``crash_delay`` stand for the two backoffs.

    ``retries`` is how many there are, each after ``retry_delay`` seconds; or the delays in seconds, one a retry.
    """
    given = dict(settings)
    retries = given.pop("retries", 2)
    retry_delay, crash_delay = given.pop("retry_delay", 0), given.pop("crash_delay", 0)
    retry = Backoff.schedule(retries) if isinstance(retries, list) else Backoff.constant(retry_delay, limit=retries)
    backoffs = {"retry": retry, "crash_backoff": Backoff.constant(crash_delay, limit=None)}
    return StreamOptions(**(backoffs | given))


def main(argument: str) -> None:
    """Work until SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # until the worker has its own handlers
    given = json.loads(argument)
    logging.basicConfig(level=logging.WARNING, format="%(process)d %(name)s %(levelname)s %(message)s")
    events = Events(given["events"])
    stream: Stream[Any]
    with Stream(given["stream"], redis=given["url"], options=options_of(given["options"])) as stream:
        worker = Worker(stream, handler_of(given["handler"], events), hooks=[Losses(events)], **given["worker"])
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
        program: What Python is told to run, with the settings as its last argument; this module by default.
        options: See `options_of`.

    Attributes:
        processes: All that were ever started.
        running: Those that `supervise` keeps running, by place.
    """

    def __init__(
        self,
        url: str,
        stream: str,
        directory: Path,
        *,
        handler: str = "def",
        worker: dict[str, Any] | None = None,
        program: Sequence[str] = (__file__,),
        **options: Any,
    ) -> None:
        self.events = Events(directory / "events")
        self.log = directory / "log"
        self.processes: list[subprocess.Popen[bytes]] = []
        self.running: list[subprocess.Popen[bytes]] = []
        self.restarts = 0
        self._options = options
        self._program = program
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

    def start(self, *, url: str | None = None, handler: str | None = None, **worker: Any) -> subprocess.Popen[bytes]:
        """Start one process, with its own URL and kind of handler; `worker` replaces arguments of its `Worker`."""
        settings = {**self._settings, "worker": {**self._settings["worker"], **worker}}
        settings |= {name: given for name, given in (("url", url), ("handler", handler)) if given is not None}
        with self.log.open("ab") as log:
            command = [sys.executable, *self._program, json.dumps(settings)]
            # As a script it has its own directory on the path, not that of `waiting`.
            places = (str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH"))
            env = os.environ | {"PYTHONPATH": os.pathsep.join(place for place in places if place)}
            process = subprocess.Popen(command, stdout=log, stderr=log, env=env)
        self.processes.append(process)
        return process

    def supervise(self, count: int, place: Callable[[int], dict[str, Any]] = lambda n: {}) -> None:
        """Start `count` processes, and another one for each that ends. `place` gives the arguments of `start` for each."""
        self.running = [self.start(**place(n)) for n in range(count)]

        def watch() -> None:
            while not self._stop.wait(0.02):
                for n, process in enumerate(self.running):
                    if process.poll() is not None and not self._stop.is_set():
                        self.restarts += 1
                        self.running[n] = self.start(**place(n))

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
            thread.join(timeout * PATIENCE)
        assert not any(thread.is_alive() for thread in threads), "a worker does not stop"
    if errors:
        raise errors[0]


@contextmanager
def load(stream: Any, *, count: int = 10, pause: float = 0.05, **payload: Any) -> Iterator[list[str]]:
    """Keep adding jobs from a thread; gives their names, each as soon as its job was accepted."""
    names: list[str] = []
    stopped = threading.Event()

    def add() -> None:
        while not stopped.wait(pause):
            more = [f"load{len(names) + n}" for n in range(count)]
            stream.add_many({"name": name, **payload} for name in more)
            names.extend(more)

    thread = threading.Thread(target=add)
    thread.start()
    try:
        yield names
    finally:
        stopped.set()
        thread.join()


def effects(raw: redis.Redis, stream: Any, key: str = "effects") -> dict[str, int]:
    """How often each job's effect was committed."""
    return {name.decode(): int(n) for name, n in raw.hgetall(stream._spec.keys.data(key)).items()}


def promoter(raw: redis.Redis, stream: Any) -> str:
    """Consumer name of the worker that moves due jobs; empty while there is none."""
    return (raw.get(stream._spec.keys.tick("promote")) or b"").decode()


def is_idle(stream: Any) -> bool:
    """Whether nothing is ready or pending. Before its first reader has made the group, nobody can tell."""
    now = stream.inspect()
    return bool(now.groups) and now.ready == now.pending == 0


def is_over(raw: redis.Redis, stream: Any) -> bool:
    """Whether nothing is ready, pending or scheduled, all at one moment; for streams that keep nothing."""
    with raw.pipeline(transaction=True) as together:
        together.xlen(stream._spec.keys.stream)
        together.zcard(stream._spec.keys.scheduled)
        return not any(together.execute())


def is_script(name: str) -> Callable[[Sequence[bytes]], bool]:
    """A predicate for the proxy: the command runs this script."""
    sha, head = source(name).sha.encode(), f"-- {name}.lua".encode()
    return lambda command: (
        (command[0] == b"EVALSHA" and command[1] == sha) or (command[0] == b"EVAL" and head in command[1])
    )


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def told_by_http(port: int) -> tuple[int, dict[str, Any]]:
    """Status and body of a worker's health; 0 while nobody answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)
    except OSError:
        return 0, {}


if __name__ == "__main__":
    main(sys.argv[1])
