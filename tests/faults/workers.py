"""Scenarios of a worker's rounds: ask whose turn it is, claim uncharged, start many in one request, or give some back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from faults.explorer import Mode
from faults.scenarios import alone, held, nothing, one_held, reader, reclaimer
from faults.world import Scenario, World

from streamq._requests import Plan
from streamq._scripts_upkeep import Role
from streamq.errors import ConnectionLostError

LAST = 2
"""Starts after which a single one is left, of three."""


def last_and_first(w: World) -> None:
    """Job a was started twice and has a single start left, b was started once; both are old's."""
    w.add("a")
    w.read("old", "first")
    w.reclaim("old", "a")
    w.add("b")
    w.read("old", "b")


def two_last(w: World) -> None:
    """Jobs a and c have a single start left, b has two; of processes that are dead."""
    w.deliver("dead", a=2, b=1, c=2)


def last_and_spent(w: World) -> None:
    """Job a has a single start left, b none, c was never started."""
    w.deliver("dead", a=2, b=3, c=0)


def round_of(consumer: str, **which: Any) -> Callable[[World], Plan[Any]]:
    return lambda w: w.round(consumer, **which)


def starting_again(w: World) -> Plan[None]:
    """As a worker does when the reply to its starts was lost: they name their targets."""
    jobs = yield from w.claiming("W")
    try:
        began = yield from w.starting("W", jobs)
    except ConnectionLostError:
        began = yield from w.starting("W", jobs)
    yield from w.each(began, w.committing)


MEETINGS: tuple[Scenario, ...] = (
    Scenario(
        name="round | late renew | late release",
        seed=last_and_first,
        plans={
            "A": round_of("A", tick=True, most_last=1),
            "beat": held(World.renewing),
            "old": held(World.releasing, "b"),
        },
        modes=(Mode.CRASH,),
        rows=("F9", "S4"),
    ),
    Scenario(
        name="round | late commit | late release of a last chance",
        seed=last_and_first,
        plans={"A": round_of("A", most_last=1), "b": held(World.committing, "b"), "a": held(World.releasing)},
        modes=(Mode.CRASH,),
        rows=("F9", "S4"),
    ),
    Scenario(
        name="round | reclaim",
        seed=last_and_first,
        plans={"A": round_of("A", tick=True, most_last=1), "B": reclaimer("B", run=True)},
        modes=(Mode.CRASH,),
        rows=("F1", "F9", "S4"),
    ),
    Scenario(
        name="round | reclaim, requests twice",
        seed=last_and_first,
        plans={"A": round_of("A"), "B": reclaimer("B")},
        modes=(Mode.RESEND,),
        rows=("F1", "F9", "S4"),
    ),
    Scenario(
        name="round | round of a solo child",
        seed=two_last,
        plans={"A": round_of("A", most_last=0), "S": round_of("S", least_count=LAST, most_last=1)},
        modes=(Mode.CRASH, Mode.RESEND),
        rows=("F9", "S4"),
    ),
    Scenario(
        name="round | round of a solo child that finds a spent one",
        seed=last_and_spent,
        plans={"A": round_of("A", most_last=1), "S": round_of("S", least_count=LAST)},
        modes=(Mode.CRASH,),
        rows=("F9", "S4"),
    ),
    Scenario(
        name="round that gives back | round",
        seed=last_and_first,
        plans={"A": round_of("A", give_back=1), "B": round_of("B", give_back=1)},
        rows=("F9", "S4"),
    ),
    Scenario(
        name="round | round, one of them has the turn",
        seed=one_held,
        plans={"A": round_of("A", tick=True), "B": round_of("B", tick=True), "old": held(World.committing)},
        modes=(Mode.CRASH,),
        rows=("F9",),
    ),
    Scenario(
        name="starts asked for again | reclaim",
        seed=last_and_first,
        plans={"W": starting_again, "B": reclaimer("B", run=True)},
        modes=(Mode.CUT,),
        rows=("F9", "S4"),
    ),
    Scenario(
        name="round | body deleted by hand",
        seed=last_and_first,
        plans={"A": round_of("A"), "hand": lambda w: w.losing_body("b")},
        rows=("F3",),
    ),
    Scenario(
        name="turn to reclaim | read | commit",
        seed=one_held,
        plans={"A": lambda w: w.ticking("A", *Role), "B": reader("B"), "old": held(World.committing)},
        rows=("Q7",),
    ),
)

ALONE: tuple[Scenario, ...] = (
    alone("round", last_and_spent, round_of("A", tick=True), "F9", "S4"),
    alone("round that gives back", two_last, round_of("A", give_back=1, most_last=1), "F9", "S4"),
    alone("starts asked for again", two_last, starting_again, "F9", "S4", modes=(Mode.CUT,)),
    alone("round with nothing to do", nothing, round_of("A", tick=True)),
)
