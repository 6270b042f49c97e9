"""Does to the system what the plan says, and writes down what it did to whom and when."""

from __future__ import annotations

import heapq
import re
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import redis
from faults.chaos.crew import Crew
from faults.chaos.load import KEYS, STREAM, client, insist
from faults.chaos.plan import Step
from servers import CutProxy, Server, named

from streamq import Stream, StreamOptions, StreamqError

_WORKS = named("EVALSHA", "EVAL", "XREADGROUP", "XADD", "EXEC")


@dataclass(frozen=True, slots=True)
class Blow:
    """Something befell these processes, from `begin` to `end`, on the machine's monotonic clock. No `pids`: all of them."""

    fault: str
    begin: float
    end: float
    pids: frozenset[int] = frozenset()

    def met(self, pid: int, begin: float, end: float, *, grace: float) -> bool:
        """Whether it, or what is still felt of it, met the process in that time."""
        return (not self.pids or pid in self.pids) and self.begin <= end and begin <= self.end + grace


@dataclass(frozen=True, slots=True)
class _Done:
    """A fault has begun: whom it meets (nobody named: all), and how it ends."""

    whom: Callable[[], frozenset[int]] = frozenset
    undo: Callable[[], Any] = lambda: None

    @classmethod
    def to(cls, pid: int, undo: Callable[[], Any] = lambda: None) -> _Done:
        """To a single process."""
        return cls(lambda: frozenset({pid}), undo)


class Monkey:
    """Runs a plan of faults.

    Args:
        server: To be killed and started again, filled, asked to forget.
        relay: The proxy that is frozen, and cuts.
        crew: The workers.
        options: Of the stream.

    Attributes:
        blows: What was done.
        skipped: Faults that could not be done, such as a pause while memory is full.
        deleted: Entry ID -> body, of entries whose body was deleted while they were pending.
    """

    def __init__(self, server: Server, relay: CutProxy, crew: Crew, options: StreamOptions) -> None:
        self.blows: list[Blow] = []
        self.skipped: list[Step] = []
        self.deleted: dict[str, bytes] = {}
        self._server = server
        self._relay = relay
        self._crew = crew
        self._raw = client(server.url)
        self._stream: Stream[Any] = Stream(STREAM, redis=server.url, options=options)
        self._order = count()
        self._due: list[tuple[float, int, Callable[[], None]]] = []

    def run(self, plan: Sequence[Step]) -> None:
        """Do all of it; returns when the last fault has ended."""
        begin = time.monotonic()
        for step in plan:
            self._at(begin + step.at, lambda step=step: self._do(step))
        while self._due:
            at, _, action = heapq.heappop(self._due)
            time.sleep(max(at - time.monotonic(), 0))
            action()

    def repair(self) -> None:
        """Undo what may have been left: nothing is stopped, frozen, full, paused."""
        self._server.start()
        self._relay.thaw()
        self._crew.go_on()
        insist(lambda: self._raw.config_set("maxmemory", 0))
        insist(self._stream.resume)

    def close(self) -> None:
        """Close its connections."""
        self._raw.close()
        self._stream.close()

    def _at(self, when: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._due, (when, next(self._order), action))

    def _do(self, step: Step) -> None:
        begin = time.monotonic()
        done = getattr(self, f"_{step.fault.lower()}")(step)
        if done is None:
            self.skipped.append(step)
            return
        hit = done.whom()

        def end() -> None:
            done.undo()
            # A process that was started meanwhile met it, too.
            self.blows.append(Blow(step.fault, begin, time.monotonic(), hit | done.whom()))

        if step.seconds:
            self._at(begin + step.seconds, end)
        else:
            end()

    # One each; None if it could not be done.

    def _kill(self, step: Step) -> _Done:
        return _Done.to(self._crew.hit(step.place, signal.SIGKILL))

    def _term(self, step: Step) -> _Done:
        return _Done.to(self._crew.hit(step.place, signal.SIGTERM))

    def _stop(self, step: Step) -> _Done:
        pid = self._crew.hit(step.place, signal.SIGSTOP)
        return _Done.to(pid, undo=lambda: self._crew.go_on(pid))

    def _disconnect(self, step: Step) -> _Done:
        self._raw.execute_command("CLIENT", "KILL", "TYPE", "normal")
        return _Done()

    def _restart(self, step: Step) -> _Done:
        self._server.kill()
        self._server.start()
        insist(self._raw.ping)
        return _Done()

    def _flush(self, step: Step) -> _Done:
        self._raw.execute_command("SCRIPT", "FLUSH")
        return _Done()

    def _fill(self, step: Step) -> _Done:
        self._raw.config_set("maxmemory", 1)
        return _Done(undo=lambda: insist(lambda: self._raw.config_set("maxmemory", 0)))

    def _freeze(self, step: Step) -> _Done:
        self._relay.freeze()
        return _Done(self._crew.relayed, self._relay.thaw)

    def _cut(self, step: Step) -> _Done:
        trap = self._relay.cut_after(_WORKS, step.nth)
        return _Done(self._crew.relayed, lambda: self._relay.disarm(trap))

    def _drop(self, step: Step) -> _Done:
        trap = self._relay.drop_before(_WORKS, step.nth)
        return _Done(self._crew.relayed, lambda: self._relay.disarm(trap))

    def _pause(self, step: Step) -> _Done | None:
        try:
            insist(self._stream.pause, seconds=0.2)
        except StreamqError:
            return None  # memory is full
        return _Done(undo=lambda: insist(self._stream.resume))

    def _delete(self, step: Step) -> _Done | None:
        try:
            rows = self._raw.xpending_range(KEYS.stream, "workers", "-", "+", 40)
        except redis.ResponseError:
            return None
        for row in rows[step.nth % 5 :: 7][:3]:
            entry_id = row["message_id"]
            found = self._raw.xrange(KEYS.stream, entry_id, entry_id)
            if found and self._raw.xdel(KEYS.stream, entry_id):
                self.deleted[entry_id.decode()] = found[0][1].get(b"job", b"")
        return _Done() if rows else None


def name_in(body: bytes | None) -> str | None:
    """Name of the job with this payload, which may be damaged."""
    found = re.search(rb'"name":"([^"]+)"', body or b"")
    return found[1].decode() if found else None
