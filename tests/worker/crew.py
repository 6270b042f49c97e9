"""A worker for ``streamq run``, and the test's side of it.

The command runs as a process in ``tests`` and gets this module's `worker`; how it is set up comes by the environment, and what
its handlers do by the payloads, as in `worker.fleet`. Two more things to ``do``:

- ``quit``: SIGTERM to the own process, as an operator may send it to one child.
- ``say``: raise an error with control characters.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Self

from waiting import PATIENCE, until
from worker.fleet import Events, handler_of, options_of

from streamq import Job, Stream, Worker

TESTS = Path(__file__).parent.parent
COMMAND = [sys.executable, "-c", "from streamq.cli import main; main()", "run"]


def worker() -> Worker[Any]:
    """The worker of this run."""
    given = json.loads(os.environ["CREW"])
    events = Events(given["events"])
    events.tell("up")
    usual = handler_of(given["handler"], events)

    async def handle(payload: dict[str, Any], job: Job[Any]) -> None:
        if payload.get("do") == "quit":
            events.tell("start", payload["name"])
            os.kill(os.getpid(), signal.SIGTERM)
        elif payload.get("do") == "say":
            raise LookupError("\x1b[2J\x07")
        else:
            await usual(payload, job)

    stream: Stream[Any] = Stream(given["stream"], redis=given["url"], options=options_of(given["options"]))
    return Worker(stream, handle if given["handler"] == "async def" else usual, **given["worker"])


def from_nothing() -> None:
    """No worker."""


def from_error() -> Worker[Any]:
    """No worker either."""
    raise LookupError("no\nsuch \x1b[2J thing")


NUMBER = 17


class Child(NamedTuple):
    """A line of the log: a child has begun."""

    name: str
    pid: int
    consumer: str


class Crew:
    """``streamq run`` on one stream. A context manager: at its end nothing of it is left.

    Args:
        url: Of the server.
        stream: Name of the stream.
        directory: Where events and the log are written.
        handler: ``def`` or ``async def``.
        worker: Arguments of `Worker`.
        options: See `fleet.options_of`.
    """

    def __init__(
        self,
        url: str,
        stream: str,
        directory: Path,
        *,
        handler: str = "async def",
        worker: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self.events = Events(directory / "events")
        self.log_path = directory / "log"
        self.process: subprocess.Popen[bytes] | None = None
        self._settings = {
            "url": url,
            "stream": stream,
            "events": str(self.events.path),
            "handler": handler,
            "worker": {"block": 0.2, **(worker or {})},
            "options": options,
        }

    def start(self, *arguments: str, target: str = "worker.crew:worker") -> Self:
        """Start it, in a process group of its own."""
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [*COMMAND, target, *arguments],
                cwd=TESTS,
                env=os.environ | {"CREW": json.dumps(self._settings), "PYTHONPATH": str(TESTS.parent)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def children(self) -> list[Child]:
        """All that were ever started, in order."""
        found = re.findall(r": ((?:solo )?child \d+) is process (\d+), consumer (\S+)", self.log)
        return [Child(name, int(pid), consumer) for name, pid, consumer in found]

    def alive(self) -> list[Child]:
        return [child for child in self.children() if is_alive(child.pid)]

    def until_up(self, count: int) -> list[Child]:
        """Wait until so many children of those that live have their worker; all that live."""
        until(lambda: len({e.pid for e in self.events.all("up")} & {c.pid for c in self.alive()}) >= count)
        return self.alive()

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def wait(self, timeout: float = 100.0) -> int:
        assert self.process is not None
        return self.process.wait(timeout * PATIENCE)

    def stop(self) -> int:
        self.signal(signal.SIGTERM)
        return self.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self.process is not None:
            for pid in [child.pid for child in self.children()]:
                _quietly(lambda pid=pid: os.kill(pid, signal.SIGKILL) if is_alive(pid) else None)
            _quietly(lambda: os.killpg(self.process.pid, signal.SIGKILL))
            self.process.wait()
        if kind is not None and self.log_path.exists():
            sys.stderr.write(self.log[-8000:])  # pytest shows it with the failure


def is_alive(pid: int) -> bool:
    """Whether the process runs: one that has ended and waits for its parent to notice does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def _quietly(work: Callable[[], Any]) -> None:
    try:
        work()
    except ProcessLookupError:
        return
