"""Scenarios of a supervisor that gives back what its dead child held."""

from __future__ import annotations

from faults.explorer import Mode
from faults.scenarios import alone, held, one_held, reader, reclaimer, worker
from faults.world import Scenario, World

from streamq._flows.recovery import NoteState
from streamq._requests import Plan

CRASH = (Mode.CRASH,)
READ, HELD, STARTING, STARTED = NoteState

# --- seeds --------------------------------------------------------------------------------


def six_of_a_dead_child(w: World) -> None:
    """It had read a and begun b, taken over c, counted d's start and not yet e's; f was on its way to it."""
    w.deliver("dead", a=1, b=1, c=1, d=2, e=1, f=1)
    w.unbegun("a", "d", "f")


def two_of_a_dead_child(w: World) -> None:
    """It had read a, and begun b."""
    w.deliver("dead", a=1, b=1)
    w.unbegun("a")


def begun_for_the_last_time(w: World) -> None:
    """Job a has used up its starts, b has one left, whose start was counted but not made."""
    w.deliver("dead", a=3, b=3)
    w.unbegun("b")


def taking_over(w: World) -> None:
    """A reclaim of count 1 was on its way to the dead child: what it takes over was started once before."""
    w.deliver("dead", a=1)


def unread_too(w: World) -> None:
    """And one that nobody has read."""
    two_of_a_dead_child(w)
    w.add("c")


def missing_of_a_dead_child(w: World) -> None:
    one_held(w)
    w.lose_body("a")


# --- plans --------------------------------------------------------------------------------


def bury_six(w: World) -> Plan[None]:
    return w.giving_back("dead", a=(1, READ), b=(1, STARTED), c=(1, HELD), d=(2, STARTING), e=(2, STARTING))


def bury_two(w: World) -> Plan[None]:
    return w.giving_back("dead", a=(1, READ), b=(1, STARTED))


def bury_last(w: World) -> Plan[None]:
    return w.giving_back("dead", a=(3, STARTED), b=(3, STARTING))


def bury_old(w: World) -> Plan[None]:
    """Who lives in truth, and has begun a."""
    return w.giving_back("old", a=(1, STARTED))


def bury_unnoted(w: World) -> Plan[None]:
    return w.giving_back("dead", reclaiming=True)


# --- scenarios ----------------------------------------------------------------------------

MEETINGS: tuple[Scenario, ...] = (
    Scenario(
        name="give back | give back",
        seed=six_of_a_dead_child,
        plans={"A": bury_six, "B": bury_six},
        rows=("C05", "C18", "C74"),
    ),
    Scenario(
        name="give back | reclaim and start",
        seed=two_of_a_dead_child,
        plans={"A": bury_two, "W": worker("W")},
        rows=("C05", "F9", "S7"),
    ),
    Scenario(
        name="give back | reclaim | give back",
        seed=two_of_a_dead_child,
        plans={"A": bury_two, "R": reclaimer("R", 1), "B": bury_two},
        modes=CRASH,
        rows=("C05", "F9", "S7"),
    ),
    Scenario(
        name="give back of the last start | reclaim and start",
        seed=begun_for_the_last_time,
        plans={"A": bury_last, "W": worker("W")},
        rows=("C04", "F1"),
    ),
    Scenario(
        name="give back without notes | reclaim",
        seed=taking_over,
        plans={"A": bury_unnoted, "R": reclaimer("R", run=True)},
        rows=("C04", "F1"),
    ),
    Scenario(
        name="give back | late commit | reclaim",
        seed=one_held,
        plans={"A": bury_old, "old": held(World.committing), "R": reclaimer("R", run=True)},
        modes=CRASH,
        rows=("F9", "I1"),
    ),
    Scenario(
        name="give back | late renew, late retry",
        seed=one_held,
        plans={"A": bury_old, "beat": held(World.renewing), "old": held(World.retrying)},
        modes=CRASH,
        rows=("F9", "C18"),
    ),
    Scenario(
        name="give back | late ack",
        seed=one_held,
        plans={"A": bury_old, "old": held(World.acking)},
        effects=False,
        rows=("F9",),
    ),
    Scenario(
        name="give back | read of the dead one | read",
        seed=unread_too,
        plans={"A": bury_two, "dead": lambda w: w.losing_read("dead"), "R": reader("R")},
        modes=CRASH,
        rows=("C26", "C74"),
    ),
    Scenario(
        name="give back of a missing body | reclaim",
        seed=missing_of_a_dead_child,
        plans={"A": bury_old, "R": reclaimer("R")},
        rows=("F3", "S6"),
    ),
    Scenario(
        name="leave | read of that consumer | prune",
        seed=unread_too,
        plans={
            "A": lambda w: w.leaving("R"),
            "R": reader("R"),
            "P": World.pruning,
        },
        modes=CRASH,
        rows=("C26", "C74"),
    ),
)  # fmt: skip
"""Operations that can meet."""

ALONE: tuple[Scenario, ...] = (
    alone("give back", six_of_a_dead_child, bury_six, "C05", "C74"),
    alone("give back of the last start", begun_for_the_last_time, bury_last, "C04", "F1"),
    alone("give back of a missing body", missing_of_a_dead_child, bury_old, "F3"),
    alone("leave", one_held, lambda w: w.leaving("old"), "C26"),
)
"""Every operation by itself."""
