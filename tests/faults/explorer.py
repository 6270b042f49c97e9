"""Runs plans against a real server in every order there is. Knows plans and requests, nothing of what they mean.

Stateless search: a schedule is a sequence of choices, and each one is played from the beginning on a fresh `World`, depth
first. Three ways to choose (`Mode`):

- ``CRASH``: at every point either some plan goes on by one request, or all that are left are dropped. Dropping a plan
  changes nothing on the server, so these schedules hold every way in which any of the plans can crash.
- ``RESEND``: every order, in which one request is executed, its reply lost, and the same request sent again later, with
  others' requests between; the plan gets the second reply.
- ``CUT``: every order, in which the reply to one request is lost and its plan gets the driver's `ConnectionLostError`.

A script and a MULTI/EXEC are one step. The elements of a pipeline are one step each: others' commands may come between
them, and a connection may break between them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple, Protocol, TypeVar

from streamq._requests import Command, Pipeline, Plan, Reply, Request, Script, Transaction
from streamq.errors import ConnectionLostError, LeaseLostError, StreamqError

LONGEST = 200
"""Most steps of one plan: one that goes on is caught in a loop."""

SHOWN = 3
"""Violations told, the shortest first; the rest is counted."""

T = TypeVar("T")


class Mode(StrEnum):
    """What goes wrong in the schedules."""

    CRASH = "crash"
    RESEND = "resend"
    CUT = "cut"


class Violation(Exception):  # noqa: N818  # what it says is wrong, not the explorer
    """An invariant does not hold."""


class World(Protocol):
    """A fresh stream with everything that is known of it; made anew for every schedule."""

    def begin(self) -> None:
        """Look at the stream as it was seeded; it must be sound."""

    def ask(self, request: Request) -> Reply:
        """Execute a request."""

    def before(self, actor: str) -> None:
        """Note that `actor` takes a step now."""

    def after(self, actor: str) -> None:
        """Judge what was seen right after the request, and raise `Violation` if an invariant does not hold.

        Before the plan sees the reply.
        """

    def recovery(self) -> Plan[None]:
        """What a healthy process does after the crashes."""

    def end(self) -> None:
        """Raise `Violation` if the stream, after recovery, is not as it should be."""

    def close(self) -> None:
        """Remove the stream."""


W = TypeVar("W", bound=World)


class Move(NamedTuple):
    """A choice: who goes on (nobody: all are dropped), and whether the reply is lost."""

    actor: str | None
    lost: bool = False


@dataclass(slots=True)
class Report:
    """What was found."""

    schedules: int = 0
    violations: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        first = sorted(self.violations, key=len)[:SHOWN]
        more = len(self.violations) - len(first)
        head = f"{len(self.violations)} of {self.schedules} schedules break an invariant"
        return "\n".join([head, *first, *([f"... and {more} more"] if more else [])])


def explore(
    world: Callable[[], W],
    plans: Callable[[W], Mapping[str, Plan[Any]]],
    mode: Mode = Mode.CRASH,
    watch: Callable[[W], None] | None = None,
) -> Report:
    """Play all schedules of a scenario.

    Args:
        world: Makes and seeds a world.
        plans: Makes the plans for it, by name.
        mode: What goes wrong.
        watch: Sees each world when its schedule is over.
    """
    report = Report()
    for choose in _paths():
        ground = world()
        try:
            run = _Run(ground, plans(ground), mode)
            try:
                counts = run.play(choose)
            except Violation as violation:
                counts = True
                report.violations.append(f"{violation}\n    {run.trace()}")
            report.schedules += counts
            if watch is not None:
                watch(ground)
        finally:
            ground.close()
    return report


def _paths() -> Iterator[Callable[[list[T]], T]]:
    """Yield functions that choose one of the options they are given, until every sequence of choices was taken."""
    trail: list[list[int]] = []  # per choice: the option taken, and how many there were
    while True:
        depth = 0

        def choose(options: list[T]) -> T:
            nonlocal depth
            if depth == len(trail):
                trail.append([0, len(options)])
            taken, count = trail[depth]
            assert count == len(options), "a replay took another turn: something in the schedule is left to chance"
            depth += 1
            return options[taken]

        yield choose
        del trail[depth:]  # a schedule that ended early, by a violation
        while trail and trail[-1][0] + 1 == trail[-1][1]:
            trail.pop()
        if not trail:
            return
        trail[-1][0] += 1


class _Run:
    """One schedule."""

    def __init__(self, world: World, plans: Mapping[str, Plan[Any]], mode: Mode) -> None:
        self._world = world
        self._actors = {name: _Actor(name, plan) for name, plan in plans.items()}
        self._mode = mode
        self._lost = False
        self._steps: list[str] = []

    def trace(self) -> str:
        return "\n    ".join(f"{at}. {step}" for at, step in enumerate(self._steps, 1)) or "(before the first step)"

    def play(self, choose: Callable[[list[Move]], Move]) -> bool:
        """Play the schedule to its end and through recovery; False if nothing went wrong in it that should."""
        self._world.begin()
        while options := self._options():
            move = choose(options)
            if move.actor is None:
                break
            self._step(self._actors[move.actor], lost=move.lost)
        if self._mode is not Mode.CRASH and not self._lost:
            return False  # CRASH has it
        for actor in self._actors.values():
            if actor.live:
                self._steps.append(f"{actor.name}: dropped")
                actor.drop()
        recovery = _Actor("recovery", self._world.recovery())
        while recovery.live:
            self._step(recovery, lost=False)
        self._world.end()
        return True

    def _options(self) -> list[Move]:
        live = [name for name, actor in self._actors.items() if actor.live]
        if not live:
            return []
        moves = [Move(name) for name in live]
        if self._mode is Mode.CRASH:
            return [Move(None), *moves]
        return moves if self._lost else [*(Move(name, lost=True) for name in live), *moves]

    def _step(self, actor: _Actor, *, lost: bool) -> None:
        self._world.before(actor.name)
        request = actor.next_request()
        if request is None:
            self._steps.append(f"{actor.name}: ended without a request")
            return
        self._lost |= lost
        self._steps.append(f"{actor.name}: {spelled(request)}" + (f", reply lost ({self._mode})" if lost else ""))
        try:
            reply = self._world.ask(request)
        except StreamqError as error:
            reply = error
        self._world.after(actor.name)
        if not lost:
            actor.receive(reply)
        elif self._mode is Mode.CUT:
            actor.fail(ConnectionLostError("reply lost", maybe_executed=True))
        self._steps[-1] += actor.outcome


class _Actor:
    """A plan on its way."""

    def __init__(self, name: str, plan: Plan[Any]) -> None:
        self.name = name
        self.live = True
        self.outcome = ""
        self._plan = plan
        self._request: Request | None = None
        self._begun = False
        self._replies: list[Reply] = []  # of the elements of a pipeline
        self._steps = 0

    def next_request(self) -> Request | None:
        if not self._begun:
            self._begun = True
            self._go_on(lambda: next(self._plan))
        self._steps += 1
        if self._steps > LONGEST:
            raise Violation(f"{self.name} does not come to an end")
        if isinstance(self._request, Pipeline) and len(self._request.requests) > 1:
            return self._request.requests[len(self._replies)]
        return self._request

    def receive(self, reply: Reply) -> None:
        if isinstance(self._request, Pipeline) and len(self._request.requests) > 1:
            self._replies.append(reply)
            if len(self._replies) < len(self._request.requests):
                return
            reply, self._replies = self._replies, []
        if isinstance(reply, StreamqError):
            self.fail(reply)
        else:
            self._go_on(lambda: self._plan.send(reply))

    def fail(self, error: StreamqError) -> None:
        self._replies = []
        self._go_on(lambda: self._plan.throw(error))

    def drop(self) -> None:
        self.live = False
        self._plan.close()

    def _go_on(self, to_next: Callable[[], Request]) -> None:
        try:
            self._request = to_next()
        except StopIteration:
            self.live, self._request = False, None
        except (LeaseLostError, ConnectionLostError) as error:
            # What a caller has to expect; a ConnectionLostError is there in CUT only.
            self.live, self._request, self.outcome = False, None, f" -> {type(error).__name__}"
        except StreamqError as error:
            raise Violation(f"{self.name} failed: {error!r}") from error


def spelled(request: Request) -> str:
    """A request for people."""
    match request:
        case Command(args):
            return " ".join(str(part) for part in args[:2])
        case Script(name):
            return f"{name}.lua"
        case Pipeline(parts):
            return ", ".join(spelled(part) for part in parts)
        case Transaction(parts):
            return f"MULTI {', '.join(spelled(part) for part in parts)} EXEC"
