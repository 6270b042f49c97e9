"""The workers that the monkey works on, by place: whoever ends is replaced in its place."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any, Final

from faults.chaos.load import STREAM
from worker.fleet import Fleet, until

PROGRAM: Final = Path(__file__).parent / "process.py"
WORKER: Final = {"concurrency": 8, "drain": 5.0, "block": 0.5}


class Crew:
    """Worker processes: odd places connect through the proxy; places 0, 1 of 4 run ``async def`` handlers, 2, 3 ``def``.

    Args:
        url: The server.
        relay: The proxy in front of it.
        directory: For events and logs.
        places: How many run.
        lua: Folder of a weakened build's scripts; None for the true ones.
        options: Of the stream, as of `fleet.options_of`.
    """

    def __init__(
        self, url: str, relay: str, directory: Path, *, places: int, lua: Path | None, options: dict[str, Any]
    ) -> None:
        program = [str(PROGRAM), *(["--lua", str(lua)] if lua else [])]
        self._urls = (url, relay)
        self._places = places
        self.fleet = Fleet(url, STREAM, directory, worker=WORKER, program=program, **options)
        self.events = self.fleet.events
        self.log = self.fleet.log

    def start(self) -> None:
        """Start all, and from now on replace those that end."""
        self.fleet.supervise(
            self._places,
            lambda n: {"url": self._urls[n % 2], "handler": "async def" if n // 2 % 2 == 0 else "def"},
        )
        until(lambda: len(self.events.all("up")) >= self._places)

    def hit(self, place: int, what: signal.Signals) -> int:
        """Send a signal to whoever is at `place`; its process ID."""
        process = self.fleet.running[place % self._places]
        process.send_signal(what)
        return process.pid

    def relayed(self) -> frozenset[int]:
        """Process IDs of those connected through the proxy now."""
        return frozenset(process.pid for n, process in enumerate(self.fleet.running) if n % 2)

    def go_on(self, pid: int) -> None:
        """SIGCONT, if it is there still."""
        for process in self.fleet.processes:
            if process.pid == pid:
                process.send_signal(signal.SIGCONT)

    def terminate(self) -> None:
        """SIGTERM to all, and wait for their end."""
        self.fleet.terminate()

    def ends(self) -> dict[int, int]:
        """Exit status of each process that was started."""
        return {process.pid: process.poll() for process in self.fleet.processes}

    def close(self) -> None:
        """End what is left, at once."""
        self.fleet.__exit__(None, None, None)
