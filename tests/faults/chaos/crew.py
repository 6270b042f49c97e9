"""The workers that the monkey works on, by place: whoever ends is replaced. By us, or by ``streamq run``."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol

from faults.chaos.load import STREAM
from waiting import until
from worker.fleet import Events, Fleet

TESTS: Final = Path(__file__).parent.parent.parent
PROGRAM: Final = Path(__file__).parent / "process.py"
WORKER: Final = {"concurrency": 8, "drain": 5.0, "block": 0.5}


class Crew(Protocol):
    """Worker processes. Half of them connect through the proxy; half have ``async def`` handlers, half ``def``."""

    events: Events
    log: Path

    def start(self) -> None:
        """Start all, and from now on replace those that end."""

    def hit(self, place: int, what: signal.Signals) -> int:
        """Send a signal to whoever is at `place`; its process ID."""

    def go_on(self, pid: int | None = None) -> None:
        """SIGCONT to this one, or to all, where they are there still."""

    def relayed(self) -> frozenset[int]:
        """Process IDs of those connected through the proxy now."""

    def terminate(self) -> None:
        """SIGTERM to all, and wait for their end."""

    def ends(self) -> dict[int, int | None]:
        """Exit status of each process that we started."""

    def started(self) -> int:
        """How many workers were ever started."""

    def close(self) -> None:
        """End what is left, at once."""


class Singles:
    """Workers of our own, as a plain process each.

    Args:
        urls: The server, and the proxy in front of it.
        directory: For events and logs.
        places: How many run.
        lua: Folder of a weakened build's scripts; None for the true ones.
        options: Of the stream, as of `fleet.options_of`.
    """

    def __init__(
        self, urls: tuple[str, str], directory: Path, *, places: int, lua: Path | None, options: dict[str, Any]
    ) -> None:
        program = [str(PROGRAM), *(["--lua", str(lua)] if lua else [])]
        self._urls = urls
        self._places = places
        self._fleet = Fleet(urls[0], STREAM, directory, worker=WORKER, program=program, **options)
        self.events = self._fleet.events
        self.log = self._fleet.log

    def start(self) -> None:
        self._fleet.supervise(
            self._places,
            lambda n: {"url": self._urls[n % 2], "handler": "async def" if n // 2 % 2 == 0 else "def"},
        )
        until(lambda: len(self.events.all("up")) >= self._places)

    def hit(self, place: int, what: signal.Signals) -> int:
        process = self._fleet.running[place % self._places]
        process.send_signal(what)
        return process.pid

    def go_on(self, pid: int | None = None) -> None:
        for process in self._fleet.processes:
            if pid in (None, process.pid):
                process.send_signal(signal.SIGCONT)

    def relayed(self) -> frozenset[int]:
        return frozenset(process.pid for n, process in enumerate(self._fleet.running) if n % 2)

    def terminate(self) -> None:
        self._fleet.terminate()

    def ends(self) -> dict[int, int | None]:
        return {process.pid: process.poll() for process in self._fleet.processes}

    def started(self) -> int:
        return len(self._fleet.processes)

    def close(self) -> None:
        self._fleet.__exit__(None, None, None)


class Supervised:
    """The workers of one ``streamq run``, which replaces them; arguments as of `Singles`."""

    def __init__(
        self, urls: tuple[str, str], directory: Path, *, places: int, lua: Path | None, options: dict[str, Any]
    ) -> None:
        self.events = Events(directory / "events")
        self.log = directory / "log"
        self._places = places
        settings = {
            "urls": urls,
            "stream": STREAM,
            "events": str(self.events.path),
            "lua": str(lua) if lua else None,
            "options": options,
            "worker": WORKER,
        }
        path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
        self._environment = {**os.environ, "PYTHONPATH": path, "CHAOS_SETTINGS": json.dumps(settings)}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        run = ("run", "faults.chaos.target:worker", "--processes", str(self._places), "--solo", "1")
        command = [sys.executable, "-c", "from streamq.cli import main; main()", *run, "--log-level", "WARNING"]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, env=self._environment, stdout=log, stderr=log)
        until(lambda: len(self._children()) >= self._places or self._process.poll() is not None, timeout=30)
        if self._process.poll() is not None:
            raise RuntimeError(f"streamq run has ended: {self.log.read_text(errors='replace')[-1000:]}")

    def hit(self, place: int, what: signal.Signals) -> int:
        pid = until(lambda: (there := self._children()) and there[place % len(there)])
        _signal(pid, what)
        return pid

    def go_on(self, pid: int | None = None) -> None:
        for child in self._children():
            if pid in (None, child):
                _signal(child, signal.SIGCONT)

    def relayed(self) -> frozenset[int]:
        return frozenset(pid for pid in self._children() if pid % 2)

    def terminate(self) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait(30)

    def ends(self) -> dict[int, int | None]:
        return {} if self._process is None else {self._process.pid: self._process.poll()}

    def started(self) -> int:
        return len(self.events.all("up"))

    def close(self) -> None:
        if self._process is not None:
            self.go_on()
            children = self._children()
            for pid in (self._process.pid, *children):
                _signal(pid, signal.SIGKILL)
            self._process.wait()

    def _children(self) -> list[int]:
        """Workers that the supervisor has now, in the order of their start."""
        assert self._process is not None
        parent = self._process.pid
        return [event.pid for event in self.events.all("up") if event.pid != parent and _parent(event.pid) == parent]


def _signal(pid: int, what: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, what)


def _parent(pid: int) -> int | None:
    """Process ID of its parent; None if it is gone, or dead and not waited for."""
    try:
        state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return None
    return None if state == "Z" else int(parent)
