"""Runs the demo: a receiver, two worker processes, a kill in the middle, and a display of it all."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from streamq.demo import ledger, payloads
from streamq.demo.deliver import open_stream
from streamq.demo.ledger import Ledger
from streamq.demo.payloads import Webhook
from streamq.demo.receiver import Receiver
from streamq.stream import Stream

WORKERS = 2
LIMIT_S = 55.0
"""The demo gives up then, and its ledger says what is missing."""

EXPECTED_DEAD = {"attempts": 1, "deliveries": 1}


class Fleet:
    """Worker processes, started again when they die.

    Args:
        arguments: Of each worker.
        console: Where deaths are told.
    """

    def __init__(self, arguments: list[str], console: Console) -> None:
        self._command = [sys.executable, "-m", "streamq.demo.deliver", *arguments]
        self._console = console
        self._workers: list[subprocess.Popen[bytes]] = []
        self.deaths = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Start the workers; at the end stop them, and wait for them."""
        self._workers = [subprocess.Popen(self._command) for _ in range(WORKERS)]
        try:
            yield
        finally:
            for worker in self._workers:
                worker.terminate()
            for worker in self._workers:
                try:
                    worker.wait(timeout=10)
                except subprocess.TimeoutExpired:
                    worker.kill()
                    worker.wait()

    def kill_one(self) -> None:
        """SIGKILL the first worker: no handler, no clean-up, no goodbye."""
        self._workers[0].kill()

    def restart_dead(self) -> None:
        """Start those again that have died."""
        for place, worker in enumerate(self._workers):
            code = worker.poll()
            if code is None:
                continue
            self.deaths += 1
            how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
            self._console.print(f"worker {place + 1} died ({how}); starting another")
            self._workers[place] = subprocess.Popen(self._command)


def run(url: str, name: str, console: Console, *, keep: bool) -> Ledger:
    """Run the demo on a server and return its ledger.

    Args:
        url: The server's.
        name: Of the stream; should be new.
        console: Where to show it.
        keep: Whether to leave the demo's keys on the server.
    """
    webhooks = payloads.load()
    third = len(webhooks) // 3
    nothing = msgspec.Raw(b"{}")
    webhooks.insert(third, Webhook(event="poison", payload=nothing, poison="kills"))
    webhooks.insert(2 * third, Webhook(event="poison", payload=nothing, poison="raises"))
    numbers = iter(range(len(webhooks)))
    with open_stream(url, name) as stream:
        stream.add_many(webhooks, job_id=lambda webhook: f"{next(numbers):03d}-{webhook.event}")
        try:
            began = time.monotonic()
            with Receiver() as receiver:
                fleet = Fleet([url, name, receiver.url], console)
                with fleet.running():
                    _watch(stream, fleet, len(webhooks), console, began + LIMIT_S)
                faults = ", ".join(f"{count} times {kind}" for kind, count in sorted(receiver.faults.items()))
            console.print(f"the receiver answered {receiver.calls.total()} calls and misbehaved: {faults}")
            seconds = time.monotonic() - began
            return ledger.read(stream, len(webhooks), EXPECTED_DEAD, seconds, fleet.deaths)
        finally:
            if not keep:
                stream.delete(force=True)


def _watch(stream: Stream[Webhook], fleet: Fleet, jobs: int, console: Console, deadline: float) -> None:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("ready {task.fields[ready]} · pending {task.fields[pending]} · dead {task.fields[dead]}"),
        TimeElapsedColumn(),
    )
    killed = False
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("delivering", total=jobs, ready=jobs, pending=0, dead=0)
        while time.monotonic() < deadline:
            now = stream.inspect()
            settled = jobs - now.ready - now.pending
            progress.update(bar, completed=settled, ready=now.ready, pending=now.pending, dead=now.dead)
            if not killed and settled > jobs // 2:
                killed = True
                console.print("killing worker 1 with SIGKILL in the middle of its work")
                fleet.kill_one()
            if settled == jobs and killed:
                return
            time.sleep(0.1)
            fleet.restart_dead()
    console.print(f"not finished within {LIMIT_S:.0f} s", style="red")


def check_figures(found: Ledger) -> list[str]:
    """What does not balance, in words; empty if all does."""
    wrong = []
    if found.lost:
        wrong.append(f"{found.lost} jobs are lost")
    if found.receipts != found.delivered:
        wrong.append(f"{found.receipts} receipts for {found.delivered} deliveries")
    if found.dead != EXPECTED_DEAD:
        wrong.append(f"dead letters are {found.dead}, expected {EXPECTED_DEAD}")
    if found.ready or found.pending:
        wrong.append(f"{found.ready} ready and {found.pending} pending jobs are left")
    return wrong
