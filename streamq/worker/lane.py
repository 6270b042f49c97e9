"""Which jobs in hand may start now. No I/O, no clock: what time it is comes in as an argument.

A job that was reclaimed may be what killed its process. So suspects are started a few at a time and beside nothing new, and
one that has a single start left runs alone in its process: the culprit stops at `max_deliveries` starts, and its neighbours
pass. The lane is narrow at first and doubles each time that a lane-full ends: a fleet that was killed by a deploy is back at
full speed in a few rounds, and a true killer meets few others. Each starts only when the one before has taken its first step:
one that kills at once has then cost no other a start, which is counted just before. Who was started more often meets fewer
still, and comes later: so neighbours are cleared long before their last start, and do not wait for the culprit's.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, NamedTuple

import msgspec

from streamq.messages import Job
from streamq.worker.turns import Turns

NARROW = 8
"""Suspects that run together at first."""

FEWER = 2
"""Each start without an end leaves a suspect a fourth of the lane: 8, 2, 1."""


class Standing(Enum):
    """What a job in hand has behind it."""

    NEW = auto()
    """Read from the stream, which has counted its delivery."""
    RETURNED = auto()
    """Reclaimed, but given back before it was ever started: no suspect."""
    SUSPECT = auto()
    """Reclaimed from a process that did not end it."""
    LAST = auto()
    """A suspect with a single start left."""

    @classmethod
    def of_reclaimed(cls, deliveries: int, max_deliveries: int) -> Standing:
        """Of a job that was started `deliveries` times."""
        if not deliveries:
            return cls.RETURNED
        return cls.LAST if deliveries >= max_deliveries - 1 else cls.SUSPECT


class Ticket(msgspec.Struct, eq=False, gc=False):
    """A job in hand that has not started.

    Attributes:
        stream: Place of its stream in the worker.
        job: The job.
        standing: What it has behind it.
        since: When it came.
    """

    stream: int
    job: Job[Any]
    standing: Standing
    since: float


class Call(msgspec.Struct, eq=False, gc=False):
    """Jobs whose handler is called with all of them at once; mostly it is one. Takes one slot until it has ended.

    Attributes:
        stream: Place of their stream.
        tickets: The jobs; never empty.
        is_plain: Whether it is of one job that was read, and is ours as far as we know: nothing else needs a look.
    """

    stream: int
    tickets: list[Ticket]
    is_plain: bool = False

    @property
    def uncounted(self) -> list[Ticket]:
        """The jobs whose start must be counted first: all but those that were read, whose read has counted it."""
        return [ticket for ticket in self.tickets if ticket.standing is not Standing.NEW]


class _Suspect(NamedTuple):
    """One that runs."""

    since: float
    lane: int
    """How many may run together while it does."""


def _starts(ticket: Ticket) -> int:
    return ticket.job.deliveries


@dataclass(frozen=True, slots=True)
class Line:
    """How the new jobs of one stream are started.

    Attributes:
        batch: Most jobs of one call.
        batch_wait_s: Longest wait for a full batch.
        weight: Share of the slots.
    """

    batch: int = 1
    batch_wait_s: float = 0.0
    weight: float = 1.0


class Lane:
    """The jobs in hand of one worker, and what runs.

    Args:
        slots: Most calls at once.
        lines: Of each stream.
        patience_s: How long a suspect that runs holds up new ones. One that runs longer has not killed at once; starting
            others beside it risks less than starving them.

    Attributes:
        slots: Most calls at once.
        turns: Whose turn it is among the streams.
        width: Suspects that may run together now.
        last: The job with a single start left that waits to run alone, if any. There is at most one.
        is_closed: While that one is waited for, or runs: nothing else may start.
    """

    def __init__(self, slots: int, lines: Sequence[Line], *, patience_s: float) -> None:
        self.slots = slots
        self._lines = list(lines)
        self._patience_s = patience_s
        self._new: list[deque[Ticket]] = [deque() for _ in lines]
        self._suspects: list[Ticket] = []
        self._running: set[Call] = set()
        self._suspects_running: dict[Call, _Suspect] = {}
        self._beginning: Call | None = None
        self.width = min(NARROW, slots)
        self._passed = 0
        self.turns = Turns([line.weight for line in lines])
        self.last: Ticket | None = None
        self.is_closed = False

    # What comes in

    def put(self, ticket: Ticket) -> bool:
        """Keep a job until it may start; False if it cannot be kept: a second one that would have to run alone."""
        standing = ticket.standing
        if standing is Standing.SUSPECT:
            insort(self._suspects, ticket, key=_starts)
        elif standing is not Standing.LAST:
            self._new[ticket.stream].append(ticket)
        elif self.last is None:
            self.last = ticket
        else:
            return False
        return True

    def put_back(self, call: Call) -> None:
        """Keep the jobs of a call that was taken out and could not be started; they are the next ones."""
        self.ended(call, passed=False)
        for ticket in reversed(call.tickets):
            match ticket.standing:
                case Standing.LAST:
                    self.last = ticket
                case Standing.SUSPECT:
                    self._suspects.insert(0, ticket)
                case _:
                    self._new[ticket.stream].appendleft(ticket)

    def take_back(self, stream: int | None = None, *, older_than: float | None = None) -> list[Ticket]:
        """Take out what has not started: of one stream or all, and only what came before `older_than`."""

        def goes(ticket: Ticket) -> bool:
            return stream in (None, ticket.stream) and (older_than is None or ticket.since < older_than)

        found: list[Ticket] = []
        for queue in (*self._new, self._suspects):
            leaving = [ticket for ticket in queue if goes(ticket)]
            if leaving:
                found += leaving
                staying = [ticket for ticket in queue if not goes(ticket)]
                queue.clear()
                queue.extend(staying)
        return found

    def take_last(self, stream: int) -> Ticket | None:
        """Take out the one that waits to run alone, if it is of `stream`."""
        if self.last is None or self.last.stream != stream:
            return None
        ticket, self.last = self.last, None
        return ticket

    # What may start

    def start(self, now: float) -> Iterator[Call]:
        """Take out what may start now, suspects one at a time: see `begun`. Each call counts as running until `ended`."""
        while not self.is_closed and self._beginning is None and len(self._running) < self.slots:
            call = self._next_suspect(now) if self._suspects else None
            if call is None:
                if self.last is not None or self._is_exclusive(now):
                    return
                call = self._next_new(now)
            if call is None:
                return
            self._running.add(call)
            yield call

    def start_last(self) -> Call | None:
        """Take out the one that runs alone; it counts as running until `ended`."""
        if self.last is None:
            return None
        call, self.last = Call(self.last.stream, [self.last]), None
        self._running.add(call)
        return call

    def _next_suspect(self, now: float) -> Call | None:
        if not self._may_start_suspect():
            return None
        ticket = self._suspects.pop(0)
        self._beginning = call = Call(ticket.stream, [ticket])
        self._suspects_running[call] = _Suspect(now, self._lane_of(ticket))
        return call

    def _next_new(self, now: float) -> Call | None:
        for stream in self.turns.order():
            queue, line = self._new[stream], self._lines[stream]
            if not queue:
                continue
            if line.batch == 1:
                ticket = queue.popleft()
                self.turns.started(stream)
                return Call(stream, [ticket], ticket.standing is Standing.NEW and not ticket.job.lease_lost)
            if line.batch > len(queue) and now < queue[0].since + line.batch_wait_s:
                continue
            tickets = [queue.popleft() for _ in range(min(line.batch, len(queue)))]
            self.turns.started(stream, len(tickets))
            return Call(stream, tickets)
        return None

    def _may_start_suspect(self) -> bool:
        if not self._suspects:
            return False
        lanes = [suspect.lane for suspect in self._suspects_running.values()]
        return len(lanes) < min([self._lane_of(self._suspects[0]), *lanes])

    def _lane_of(self, ticket: Ticket) -> int:
        """How many suspects may run beside this one, itself included."""
        return max(self.width >> FEWER * (_starts(ticket) - 1), 1)

    def _is_exclusive(self, now: float) -> bool:
        """Whether suspects keep the others waiting."""
        if not self._suspects and not self._suspects_running:
            return False
        if self._may_start_suspect():
            return True
        return any(now < suspect.since + self._patience_s for suspect in self._suspects_running.values())

    def begun(self, call: Call) -> None:
        """A call has taken its first step: if it is a suspect's, the next one may start."""
        if self._beginning is call:
            self._beginning = None

    def ended(self, call: Call, *, passed: bool = True) -> None:
        """A call is over: with `passed` its handler ended without killing the process."""
        if self._beginning is call:
            self._beginning = None
        self._running.discard(call)
        if self._suspects_running and self._suspects_running.pop(call, None) is not None and passed:
            self._passed += 1
            if self._passed >= self.width:
                self.width, self._passed = min(self.width * 2, self.slots), 0

    def drained(self) -> None:
        """No suspects are left on the server: the next ones meet a narrow lane again."""
        if not self._suspects and not self._suspects_running:
            self.width, self._passed = min(NARROW, self.slots), 0

    # What there is room for

    @property
    def running(self) -> int:
        """Calls that run."""
        return len(self._running)

    @property
    def has_suspects(self) -> bool:
        """Whether suspects wait to be started, together with others."""
        return bool(self._suspects)

    @property
    def waiting(self) -> int:
        """Jobs in hand that have not started."""
        return sum(map(len, self._new)) + len(self._suspects) + (self.last is not None)

    def waits(self, stream: int) -> bool:
        """Whether a job of `stream` is in hand and has not started."""
        tickets = (*self._new[stream], *self._suspects, *([self.last] if self.last else []))
        return any(ticket.stream == stream for ticket in tickets)

    def _free(self) -> int:
        calls = sum(-(-len(queue) // line.batch) for queue, line in zip(self._new, self._lines, strict=True))
        return self.slots - len(self._running) - calls - len(self._suspects)

    def room(self, stream: int, now: float, *, ahead: int = 0, kept: int = 0) -> int:
        """How many new jobs of `stream` may be read: those that can start at once, and `ahead` more.

        Args:
            stream: Place of the stream.
            now: The time.
            ahead: Jobs that may wait here for a slot.
            kept: Slots kept back, for example because outcomes pile up.
        """
        if self.is_closed or self.last is not None or self._is_exclusive(now):
            return 0
        batch = self._lines[stream].batch
        spare = -len(self._new[stream]) % batch  # in the call that is filled just now
        free = self.turns.share(stream, (self._free() - kept) * batch + spare + (ahead if not kept else 0))
        return max(free, 0)

    def wants(self) -> int:
        """How many jobs to reclaim: no more than a lane-full, so that other workers get some."""
        if self.is_closed or self.last is not None:
            return 0
        return max(min(self._free(), self.width - len(self._suspects)), 0)

    def next_change(self, now: float) -> float | None:
        """When something more may start by the mere course of time, or None."""
        times = [suspect.since + self._patience_s for suspect in self._suspects_running.values()]
        times += [
            queue[0].since + line.batch_wait_s
            for queue, line in zip(self._new, self._lines, strict=True)
            if queue and line.batch_wait_s
        ]
        return min((time for time in times if time > now), default=None)
