"""What a seed stands for: which jobs are posted when, and which fault befalls whom when. No I/O, no clock."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

# --- jobs -----------------------------------------------------------------------------------


class Kind(StrEnum):
    """What a job does, and so how it must end."""

    PLAIN = "plain"
    CHOSEN = "chosen"  # a job ID of the producer's, and posted again now and then
    RESULT = "result"  # a chosen ID, and a result
    DELAYED = "delayed"  # waits for its time before its first attempt
    FLAKY = "flaky"  # fails in its first attempts, each time waits for the next, then works
    FAILING = "failing"  # fails in every attempt
    REJECTED = "rejected"
    LONG = "long"  # works for longer than the lease
    BLOCKING = "blocking"  # an `async def` handler that blocks its event loop meanwhile
    POISON = "poison"  # ends its process
    UNDECODABLE = "undecodable"


ENDS: Final[Mapping[Kind, str]] = {
    Kind.FAILING: "attempts",
    Kind.REJECTED: "rejected",
    Kind.POISON: "deliveries",
    Kind.UNDECODABLE: "undecodable",
}
"""The reason of the dead letter of those that must become one. All others must be done."""

MIX: Final[Mapping[Kind, float]] = {
    Kind.PLAIN: 50,
    Kind.CHOSEN: 14,
    Kind.RESULT: 6,
    Kind.DELAYED: 4,
    Kind.FLAKY: 9,
    Kind.FAILING: 6,
    Kind.REJECTED: 4,
    Kind.LONG: 2,
    Kind.BLOCKING: 1.5,
    Kind.UNDECODABLE: 3,
    Kind.POISON: 0.5,
}


@dataclass(frozen=True, slots=True)
class Job:
    """One job of the load. Its name says its number and its kind."""

    name: str
    kind: Kind
    payload: dict[str, Any]

    @property
    def job_id(self) -> str | None:
        """The ID that its producer chose, if it did."""
        return f"id:{self.name}" if self.kind in (Kind.CHOSEN, Kind.RESULT) else None


@dataclass(frozen=True, slots=True)
class Posting:
    """A job is sent. `by_hand` means XADD as a producer in another language would do it, past all that `add` looks at."""

    at: float
    job: Job
    by_hand: bool = False


def postings(seed: int, seconds: float, *, rate: float, mix: Mapping[Kind, float] = MIX) -> list[Posting]:
    """What is posted within `seconds`, in order: `rate` jobs a second, and some of those with chosen IDs again."""
    draw = random.Random(f"jobs {seed}")
    kinds, weights = list(mix), list(mix.values())
    found = []
    for n in range(max(round(seconds * rate), 1)):
        kind = draw.choices(kinds, weights)[0]
        job = Job(f"{n}-{kind}", kind, _payload(f"{n}-{kind}", kind, draw))
        at = n / rate
        found.append(Posting(at, job, by_hand=kind is Kind.UNDECODABLE))
        if kind is Kind.CHOSEN:
            again = [at + draw.choice((0, draw.uniform(0, 0.2), draw.uniform(0, 4))) for _ in range(draw.randrange(3))]
            found += [Posting(when, job, by_hand=draw.random() < 0.5) for when in again]
    return sorted(found, key=lambda posting: posting.at)


def _payload(name: str, kind: Kind, draw: random.Random) -> dict[str, Any]:
    payload: dict[str, Any] = {"name": name, "seconds": round(draw.choice((0, draw.uniform(0, 0.3))), 3)}
    match kind:
        case Kind.RESULT:
            payload["result"] = {"of": name}
        case Kind.DELAYED:
            payload["delay"] = round(draw.uniform(0.1, 2), 2)
        case Kind.FLAKY:
            payload |= {"do": "fail", "fails": draw.randint(1, 2)}
        case Kind.FAILING:
            payload["do"] = "fail"
        case Kind.REJECTED:
            payload["do"] = "reject"
        case Kind.POISON:
            payload["do"] = "die"
        case Kind.LONG:
            payload["seconds"] = round(draw.uniform(1.3, 4), 2)
        case Kind.BLOCKING:
            payload |= {"seconds": round(draw.uniform(0.3, 1.5), 2), "block": True}
    return payload


# --- faults ---------------------------------------------------------------------------------


class Fault(StrEnum):
    """What the monkey does."""

    KILL = "kill"  # SIGKILL to a worker
    STOP = "stop"  # SIGSTOP to a worker, for longer than the lease; then SIGCONT
    TERM = "term"  # SIGTERM to a worker
    DISCONNECT = "disconnect"  # CLIENT KILL of all connections
    RESTART = "restart"  # SIGKILL to the server, and its start from the append-only file
    FLUSH = "flush"  # SCRIPT FLUSH
    FILL = "fill"  # no memory is left, for a while
    FREEZE = "freeze"  # the proxy forwards nothing, for a while
    CUT = "cut"  # a connection through the proxy breaks after a command was executed, before its reply
    DROP = "drop"  # a connection through the proxy breaks before a command arrives
    PAUSE = "pause"  # the stream is paused, for a while
    DELETE = "delete"  # XDEL of pending entries: their bodies are gone


WEIGHTS: Final[Mapping[Fault, float]] = {
    Fault.KILL: 3,
    Fault.STOP: 2,
    Fault.TERM: 1,
    Fault.DISCONNECT: 1,
    Fault.RESTART: 0.7,
    Fault.FLUSH: 1,
    Fault.FILL: 1,
    Fault.FREEZE: 1.3,
    Fault.CUT: 3,
    Fault.DROP: 1,
    Fault.PAUSE: 0.7,
    Fault.DELETE: 0.7,
}

LASTS: Final[Mapping[Fault, tuple[float, float]]] = {
    Fault.STOP: (1.2, 2.5),
    Fault.FILL: (0.2, 1.5),
    Fault.FREEZE: (0.2, 2.5),
    Fault.CUT: (1, 1),
    Fault.DROP: (1, 1),
    Fault.PAUSE: (0.3, 1.2),
}
"""Shortest and longest duration, in seconds, of the faults that have one; of a cut, how long it waits for its command."""


@dataclass(frozen=True, slots=True, order=True)
class Step:
    """A fault begins, `at` seconds after the first job.

    Attributes:
        at: When.
        fault: What.
        seconds: How long it lasts.
        place: Which worker, of those that are hit singly.
        nth: A small number: which command is cut, which entries lose their bodies.
    """

    at: float
    fault: Fault = field(compare=False)
    seconds: float = field(compare=False)
    place: int = field(compare=False)
    nth: int = field(compare=False)


def faults(seed: int, seconds: float, *, places: int, weights: Mapping[Fault, float] = WEIGHTS) -> list[Step]:
    """What befalls the system within `seconds`: something every 0.2 to 1 s."""
    draw = random.Random(f"faults {seed}")
    kinds, chances = list(weights), list(weights.values())
    at, steps = 1.0, []
    while kinds and at < seconds:
        fault = draw.choices(kinds, chances)[0]
        lasts = round(draw.uniform(*LASTS.get(fault, (0, 0))), 2)
        steps.append(Step(round(at, 2), fault, lasts, draw.randrange(places), draw.randint(1, 12)))
        at += draw.uniform(0.2, 1.0)
    return steps


def kinds_of(names: Iterable[str]) -> dict[Fault, float]:
    """Weights for a plan of these faults only."""
    return {Fault(name): WEIGHTS[Fault(name)] for name in names}
