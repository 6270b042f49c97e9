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

from streamq.demo import ledger, payloads
from streamq.demo.deliver import open_stream
from streamq.demo.ledger import Ledger
from streamq.demo.payloads import Webhook
from streamq.demo.receiver import Receiver, faults_of
from streamq.demo.watch import Watch, due
from streamq.stream import Stream

WORKERS = 2
LIMIT_S = 55.0
"""The demo gives up then, and its ledger says what is missing."""

POISONED = 40
"""Before this webhook come the two that are poison: one that always raises, one that kills its process."""

EXPECTED_DEAD = {"attempts": 1, "deliveries": 1}
NOTHING = msgspec.Raw(b"{}")


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
            self._console.print(f"worker {place + 1} died ({how}); starting another", highlight=False)
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
    webhooks[POISONED:POISONED] = [
        Webhook(event="poison", payload=NOTHING, poison=kind) for kind in ("raises", "kills")
    ]
    ids = [f"{number:03d}-{webhook.event}" for number, webhook in enumerate(webhooks)]
    fails_twice = next(job_id for job_id in ids if faults_of(job_id) == ("500", "500"))
    put_off = next(job_id for job_id in ids[POISONED + 2 :] if not faults_of(job_id))
    unused = iter(ids)
    with open_stream(url, name) as stream:
        stream.add_many(webhooks, job_id=lambda _: next(unused))
        console.print(f"{len(ids)} jobs for {WORKERS} workers; what fails is tried again after about 0.5, 1 and 2 s")
        try:
            began = time.monotonic()
            with Receiver(busy={put_off}) as receiver:
                fleet = Fleet([url, name, receiver.url], console)
                with fleet.running(), Watch(stream, len(ids), (fails_twice, ids[POISONED], put_off), console) as watch:
                    _direct(stream, receiver, fleet, watch, began + LIMIT_S)
                faults = ", ".join(f"{kind} {count}" for kind, count in sorted(receiver.faults.items()))
            console.print(f"the receiver had {receiver.calls.total()} calls; faults: {faults}", highlight=False)
            seconds = time.monotonic() - began
            return ledger.read(
                stream, len(ids), expected_dead=EXPECTED_DEAD, by_hand=[put_off], seconds=seconds, kills=fleet.deaths
            )
        finally:
            if not keep:
                stream.delete(force=True)


def _direct(stream: Stream[Webhook], receiver: Receiver, fleet: Fleet, watch: Watch, deadline: float) -> None:
    """Kill a worker when half is done; when nothing is left but the job that is put off, run it by hand; end with that."""
    killed = ran = False
    while time.monotonic() < deadline:
        left = watch.look()
        if not killed and left < watch.jobs // 2:
            killed = True
            watch.say("killing worker 1 with SIGKILL in the middle of its work")
            fleet.kill_one()
        if killed and not ran and left == 1:
            ran = True
            [waiting] = stream.scheduled.list()
            watch.say(f"only {waiting.job_id} is left, due {due(waiting)}; its receiver is back, so by hand:")
            receiver.recover(waiting.job_id)
            watch.say(f"stream.scheduled.run_now({waiting.job_id!r})")
            stream.scheduled.run_now(waiting.job_id)
        if ran and not left:
            return
        time.sleep(0.1)
        fleet.restart_dead()
    watch.say(f"not finished within {LIMIT_S:.0f} s")
