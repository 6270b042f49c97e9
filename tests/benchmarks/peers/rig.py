"""A fresh server, and producers and workers of one system on it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import redis

from . import machine
from .side.adapters.base import HIT
from .systems import System

sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a program, the tests' helpers are not on the path

from servers import Backend, Server

SHM = Path("/dev/shm")  # a file that costs no disk
STARTS_S = 40.0
"""What a worker gets for its first job."""


class Hits:
    """What handlers have noted, in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def count(self) -> int:
        """How often a handler has started."""
        try:
            return self.path.stat().st_size // HIT.size
        except OSError:
            return 0

    def read(self) -> list[tuple[int, int, int]]:
        """Number of the job, time in ns and process of each start."""
        if not self.count():
            return []
        data = self.path.read_bytes()
        return [(i, at, pid) for i, at, pid, _ in HIT.iter_unpack(data[: len(data) // HIT.size * HIT.size])]

    def jobs(self) -> set[int]:
        """Which have started."""
        return {i for i, _, _ in self.read()}


class Worker:
    """A worker process, with all that it starts."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.pid = process.pid
        self._log = log

    def kill(self) -> None:
        """SIGKILL for all of it, at once."""
        below = machine.tree(self.pid)[1:]
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        for pid in below:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    @property
    def said(self) -> str:
        """The end of what it printed."""
        return self._log.read_bytes()[-500:].decode(errors="replace")


class Rig:
    """A server of its own, without persistence, for one system in one of its profiles."""

    def __init__(self, system: System, backend: Backend, profile: str = "default") -> None:
        self.system = system
        self.profile = profile
        self._server = Server(backend)
        self._home = tempfile.TemporaryDirectory(prefix="peers-", dir=SHM if SHM.is_dir() else None)
        self._made = 0
        self._asked = 0
        self._workers: list[Worker] = []
        self.hits = self.new_hits()

    def __enter__(self) -> Self:
        try:
            self._server.start()
        except BaseException:
            self._server.close()
            raise
        self.client = redis.Redis.from_url(self._server.url, decode_responses=True)
        return self

    def __exit__(self, *exc_info: object) -> None:
        for worker in self._workers:
            worker.kill()
        self.client.close()
        self._server.close()
        self._home.cleanup()

    def new_hits(self) -> Hits:
        """A file for the notes of handlers."""
        self._made += 1
        return Hits(Path(self._home.name, f"hits-{self._made}"))

    def produce(
        self, mode: str, jobs: int, seconds: float = 0, *, warm: bool = False, timeout: float = 300
    ) -> dict[str, Any]:
        """Add jobs; what that took."""
        extra = [] if warm else ["cold"]
        return json.loads(self._call("produce", mode, jobs, seconds, *extra, timeout=timeout))

    def send(self, jobs: int, gap: float, *, first: int = 0) -> dict[int, int]:
        """Add jobs one by one, one every `gap` seconds: job -> when the call began, in ns."""
        calls = self.new_hits()
        self._call("latency", jobs, gap, calls.path, first=first, timeout=jobs * max(gap, 0.1) * 3 + 60)
        return {i: at for i, at, _ in calls.read()}

    def _call(self, role: str, *arguments: object, timeout: float, first: int = 0) -> str:
        return self.system.call(
            role, *arguments, port=self._server.port, profile=self.profile, timeout=timeout, first=first
        )

    def work(self, profile: str | None = None, *, hits: Hits | None = None, hold: float = 0) -> Worker:
        """Start a worker."""
        self._made += 1
        log = Path(self._home.name, f"log-{self._made}")
        profile = profile or self.profile
        with log.open("wb") as output:
            process = self.system.start(
                "worker", profile, port=self._server.port, profile=profile,
                hits=(hits or self.hits).path, hold=hold, output=output,
            )  # fmt: skip
        worker = Worker(process, log)
        self._workers.append(worker)
        return worker

    def await_hits(self, worker: Worker, jobs: int = 1, *, timeout: float = STARTS_S) -> None:
        """Wait until so many handlers have started.

        Raises:
            RuntimeError: They did not, or the worker ended.
        """
        deadline = time.monotonic() + timeout
        while self.hits.count() < jobs:
            if time.monotonic() > deadline or worker.process.poll() is not None:
                raise RuntimeError(
                    f"{self.hits.count()} of {jobs} jobs began; status {worker.process.poll()}; {worker.said}"
                )
            time.sleep(0.002)

    def wait(self, condition: Callable[[], bool], timeout: float, pause: float = 0.1) -> bool:
        """Wait for something that may not come."""
        deadline = time.monotonic() + timeout
        while not condition():
            if time.monotonic() > deadline:
                return False
            time.sleep(pause)
        return True

    # What the server is asked

    def server_cpu_s(self) -> float:
        """CPU seconds that the server has spent."""
        spent = self.client.info("cpu")
        return spent["used_cpu_user"] + spent["used_cpu_sys"]

    def memory(self) -> int:
        """Bytes that the server holds."""
        return self.client.info("memory")["used_memory"]

    def reads(self) -> int | None:
        """How often the server has read from a connection, which is how many packets of requests it got."""
        return self.client.info("stats").get("total_reads_processed")

    def requests(self) -> dict[str, float]:
        """Packets of requests, and commands: those inside of scripts count, too; those of this program do not."""
        self._asked += 1
        info = self.client.info("everything")
        commands = {name: each["calls"] for name, each in info.items() if name.startswith("cmdstat_")}
        asked = sum(commands.values()) - commands.get("cmdstat_info", 0)
        return {"requests": info.get("total_reads_processed", 0) - self._asked, "commands": asked}

    def left(self) -> dict[str, int]:
        """Keys that are there, and about how many bytes they take."""
        keys = self.client.dbsize()
        some = [key for key, _ in zip(self.client.scan_iter(count=1000), range(1000), strict=False)]
        held = sum(self.client.memory_usage(key, samples=0) or 0 for key in some)
        return {"keys_left": keys, "bytes_left": round(held * keys / max(1, len(some)))}

    def version(self) -> str:
        """Of the server."""
        return f"{self._server.backend.product} {self._server.version}"
