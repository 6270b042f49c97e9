"""Every pair of steps, on one job: made from one plan a step, so that a new step without its pairs fails a test.

A step's plan needs something of the world (a delivery in somebody's hands, a letter, an entry that only another group
handles); a pair's world has what the two need, all of it of the same job, so that the two really meet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import Any

from faults.explorer import Mode
from faults.world import Scenario, World

from streamq._requests import Plan
from streamq._scripts_upkeep import Role


@dataclass(frozen=True, slots=True)
class Act:
    """One step's plan.

    Attributes:
        verb: What it shows, as `faults.ground.verbs_of` calls it.
        plan: Made for a world and a consumer.
        needs: What the world must have: held (job a is old's in group g), letter (a died in a group), lost (its body is
            gone), foreign (only g handles it), finished (others are done with it, and entries are kept), idle (a consumer
            without jobs), scheduled (job a waits, in some group or all), orphan (something waits that is no job).
    """

    verb: str
    plan: Callable[[World, str], Plan[Any]]
    needs: frozenset[str] = frozenset()


def act(verb: str, plan: Callable[[World, str], Plan[Any]], *needs: str) -> Act:
    return Act(verb, plan, frozenset(needs))


def _late(verb: Callable[[World, Any], Plan[Any]]) -> Callable[[World, str], Plan[Any]]:
    """A plan on what the seed left in old's hands."""
    return lambda w, me: verb(w, w.held["a"])


def _read(w: World, me: str) -> Plan[Any]:
    """In the group that has not read job a, or will get it again."""
    return w.reading(me, then=w.committing, group="h" if "a" in w.held else "g")


def _claim(w: World, me: str) -> Plan[Any]:
    """In the group that has not read job a, or gets another entry of its ID; and go no further."""
    return w.reading(me, group="h" if w.held.keys() & {"a", "l", "s"} and not w.knows("b") else "g")


def _waiting(verb: Callable[..., Plan[Any]]) -> Callable[[World, str], Plan[Any]]:
    """A plan on the job that waits, in the group in which it does."""

    def plan(w: World, me: str) -> Plan[Any]:
        groups = [timer.group for timer in w.view.timers.values()]
        return verb(w, "x", *filter(None, groups[:1]))

    return plan


ACTS: tuple[Act, ...] = (
    act("add", lambda w, me: w.adding("p", job_id="x")),
    act("schedule", lambda w, me: w.scheduling("s", job_id="x")),
    act("replace", lambda w, me: w.scheduling(f"r{me}", job_id="x", replace=True), "scheduled"),
    act("reschedule", _waiting(World.rescheduling), "scheduled"),
    act("promote", lambda w, me: w.promoting(), "scheduled"),
    act("run now", _waiting(World.running_now), "scheduled"),
    act("drop orphan", lambda w, me: w.promoting(), "orphan"),
    act("read", _read),
    act("claim ID", _claim),
    act("pass over", lambda w, me: w.reading(me, count=5, group="h"), "foreign"),
    act("renew", _late(World.extending), "held"),
    act("ack", _late(World.acking), "held"),
    act("commit", _late(World.committing), "held"),
    act("retry", _late(World.retrying_later), "held"),
    act("retry at once", _late(World.retrying), "held"),
    act("dead-letter", _late(World.rejecting), "held"),
    act("release", _late(World.releasing), "held"),
    act("reclaim", lambda w, me: w.reclaiming(me, then=w.committing), "held"),
    act("tombstone", lambda w, me: w.reclaiming(me), "held", "lost"),
    act("start", lambda w, me: w.working(me, then=w.committing), "held"),
    act("cancel", lambda w, me: w.cancelling("x")),
    act("redrive", lambda w, me: w.redriving(*w.letters()), "letter"),
    act("purge", lambda w, me: w.purging(*w.letters()), "letter"),
    act("trim", lambda w, me: w.trimming(), "finished"),
    act("create group", lambda w, me: w.creating("k")),
    act("drop group", lambda w, me: w.dropping("h")),
    act("delete", lambda w, me: w.deleting()),
    act("prune", lambda w, me: w.pruning(), "idle"),
    act("leave", lambda w, me: w.leaving(*({"A", "B"} - {me})), "idle"),
    act("pause", lambda w, me: w.pausing()),
    act("tick", lambda w, me: w.ticking(me, *Role)),
    act("once", lambda w, me: w.applying_once("o")),
    act("result", lambda w, me: w.asking("x")),
    act("sweep", lambda w, me: w.sweeping()),
)
"""One a step, and for requests that move no job but may stand between those that do."""

CANNOT_MEET: dict[frozenset[str], str] = {
    frozenset(
        {"tombstone", "start"}
    ): "an entry whose body is gone is buried where it would be claimed, so never started",
    frozenset(
        {"tombstone", "pass over"}
    ): "an entry whose body is gone is not read by the groups that would pass it over",
}
"""Pairs that no world can bring together, and why."""


def seed(w: World, needs: frozenset[str]) -> None:
    """Job a, of ID x, in groups g and h, with what is needed of it."""
    w.run(w.adding("a", job_id="x"))
    dead_in = ("h" if "held" in needs else "g") if "letter" in needs else ""
    if "foreign" in needs:
        w.read("other", "o", group="h")
        w.run(w.committing(w.held["o"], "h"))
        w.read("first", "f", group="g")
        w.run(w.retrying(w.held["f"], "g"))
        dead_in = dead_in and "g"
    if "scheduled" in needs:
        _schedule(w, needs)
    if dead_in:
        w.read("dead", "l", group=dead_in)
        w.run(w.rejecting(w.held["l"], dead_in))
    elif "finished" in needs and not needs & {"foreign", "scheduled"}:
        w.read("other", "o", group="h")
        w.run(w.committing(w.held["o"], "h"))
    if "held" in needs:
        w.read("old", "a", group="g")
    if "orphan" in needs:
        w.orphan("g/orphan", b"no entry")
    if "lost" in needs:
        w.add("b", job_id="x")  # by a plain producer: another entry of the ID
        w.lose_body("a")
    if "idle" in needs:
        # One that holds nothing; and the reader that the pair may have.
        w.raw(*(("XGROUP", "CREATECONSUMER", w.keys.stream, "g", name) for name in ("idle", "A", "B")))


def _schedule(w: World, needs: frozenset[str]) -> None:
    """Job a waits for another attempt: in h if g holds it, or gave it up; else in g."""
    group = "h" if needs & {"held", "letter"} else "g"
    if "finished" in needs:
        w.read("other", "o", group="h")
        w.run(w.committing(w.held["o"], "h"))
    w.read("first", "s", group=group)
    w.run(w.retrying_later(w.held["s"], group))


def _together(first: Act, second: Act) -> Scenario:
    needs = first.needs | second.needs
    verbs = {first.verb, second.verb}
    plain = verbs & {"ack", "release", "claim ID", "pass over"}  # those that go on without effects
    return Scenario(
        name=f"{first.verb} & {second.verb}",
        seed=lambda w: seed(w, needs),
        plans={"A": lambda w: first.plan(w, "A"), "B": lambda w: second.plan(w, "B")},
        options={"retention": "keep"} if "finished" in needs else {},
        groups=("g", "h"),
        late=("k",) if "create group" in verbs else (),
        effects=not plain,
        # Whoever drops a group, or takes a letter or a body away, may leave entries to maintenance.
        trims="finished" in needs or bool(verbs & {"drop group"}),
        modes=(Mode.CRASH,),
    )


def _pairs() -> Iterator[Scenario]:
    for first, second in combinations_with_replacement(ACTS, 2):
        if frozenset({first.verb, second.verb}) not in CANNOT_MEET:
            yield _together(first, second)


PAIRS: tuple[Scenario, ...] = tuple(_pairs())
