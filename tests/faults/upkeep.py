"""Scenarios of operators and maintenance: cancel, dead letters, trim, prune, pause, delete, and a limit on what waits."""

from __future__ import annotations

from faults.explorer import Mode, Violation
from faults.scenarios import GROUPS, NOT_AGAIN, alone, chosen_added, held, nothing, one_held, reader, reclaimer
from faults.world import Scenario, World

from streamq._requests import Plan
from streamq._scripts_upkeep import Role

CRASH = (Mode.CRASH,)
KEEP = {"retention": "keep"}

# --- seeds --------------------------------------------------------------------------------


def chosen_unread(w: World) -> None:
    w.run(w.adding("a", job_id="x"))


def chosen_dead(w: World) -> None:
    chosen_added(w)
    w.run(w.rejecting(w.held["a"]))


def two_dead(w: World) -> None:
    w.add("a", "b")
    w.read("old", "a", "b")
    for name in "ab":
        w.run(w.rejecting(w.held[name]))


def dead_in_both(w: World) -> None:
    """Job a of ID x, dead in both groups."""
    w.run(w.adding("a", job_id="x"))
    for group in GROUPS:
        w.read("old", group, group=group)
        w.run(w.rejecting(w.held[group], group))


def missing_dead(w: World) -> None:
    """A letter without a body, which cannot be redriven."""
    one_held(w)
    w.lose_body("a")
    w.run(w.reclaiming("B"))


def large_unread(w: World) -> None:
    w.add_large("a")


def large_dead(w: World) -> None:
    large_unread(w)
    w.run(w.reading("old"))


def large_dead_and_unread(w: World) -> None:
    """Dead in g, unread in h."""
    large_dead(w)


def large_dead_in_both(w: World) -> None:
    large_dead(w)
    w.run(w.reading("old", group="h"))


def idle_consumers(w: World) -> None:
    """Job a is unread; A and B hold nothing."""
    w.add("a")
    w.raw(*(("XGROUP", "CREATECONSUMER", w.keys.stream, "g", name) for name in "AB"))


def finished_held_unread(w: World) -> None:
    """Entries are kept: one is finished, one held, one unread."""
    w.add("done", "a", "b")
    w.read("old", "done", "a")
    w.run(w.committing(w.held["done"]))


def finished_many(w: World) -> None:
    """Three finished entries, and one that is held."""
    w.add("one", "two", "three", "a")
    w.read("old", "one", "two", "three", "a")
    for name in ("one", "two", "three"):
        w.run(w.committing(w.held[name]))


def paused(w: World) -> None:
    w.add("a")
    w.run(w.pausing())


def full(w: World) -> None:
    """One waits, which is all that may; another is in hand."""
    w.add("a", "b")
    w.read("old", "a")


def full_but_cancelled(w: World) -> None:
    """Two jobs are in hand, none waits; three were cancelled before anybody read them."""
    w.add("first")
    w.read("old", "first")
    for name in ("x", "y", "z"):
        w.run(w.adding(name, job_id=name))
    for name in ("x", "y", "z"):
        w.run(w.cancelling(name))
    w.add("second")
    w.read("old", "second")


def add_where_room_is(w: World) -> Plan[None]:
    """It must be added: the world's checks do not know whether a refusal was right."""
    before = len(w.view.entries)
    yield from w.adding("p")
    if len(w.view.entries) == before:
        raise Violation("nothing waits, but the stream is full")


# --- plans --------------------------------------------------------------------------------


def cancel(w: World) -> Plan[None]:
    return w.cancelling("x")


def redrive(w: World) -> Plan[None]:
    return w.redriving(*w.letters())


def purge(w: World) -> Plan[None]:
    return w.purging(*w.letters())


def read_and_reject(w: World) -> Plan[int]:
    return w.reading("R", then=w.rejecting)


def cancelling_entry(w: World) -> Plan[None]:
    """By the ID of its entry, where nobody chose one."""
    [entry_id] = w.view.entries
    return w.cancelling(entry_id)


# --- scenarios ----------------------------------------------------------------------------

MEETINGS: tuple[Scenario, ...] = (
    Scenario(
        name="add | cancel | read",
        seed=nothing,
        plans={"P": lambda w: w.adding("a", job_id="x"), "C": cancel, "R": reader("R")},
        modes=CRASH,  # an add that is sent again after a cancel adds it again
        rows=("C18", "Q1"),
    ),
    Scenario(
        name="cancel | read",
        seed=chosen_unread,
        plans={"C": cancel, "R": reader("R")},
        rows=("Q1",),
    ),
    Scenario(
        name="cancel | cancel | add of the same ID",
        seed=chosen_unread,
        plans={"C": cancel, "D": cancel, "P": lambda w: w.adding("p", job_id="x")},
        modes=CRASH,
        rows=("Q1",),
    ),
    Scenario(
        name="cancel | retry, read",
        seed=chosen_added,
        plans={"C": cancel, "old": held(World.retrying), "R": reader("R")},
        rows=("Q1", "Q5"),
    ),
    Scenario(
        name="redrive | redrive",
        seed=chosen_dead,
        plans={"A": redrive, "B": redrive, "R": reader("R")},
        rows=("C11", "C18"),
    ),
    Scenario(
        name="redrive of several | redrive of several",
        seed=two_dead,
        plans={"A": lambda w: w.redriving_all(*w.letters()), "B": lambda w: w.redriving_all(*w.letters())},
        rows=("C11",),
    ),
    Scenario(
        name="redrive | purge | purge",
        seed=chosen_dead,
        plans={"A": redrive, "B": purge, "C": purge},
        rows=("C11", "C18"),
    ),
    Scenario(
        name="redrive | add of the same ID | read",
        seed=chosen_dead,
        plans={"A": redrive, "P": lambda w: w.adding("p", job_id="x"), "R": reader("R")},
        rows=("C11", "I8"),
    ),
    Scenario(
        name="redrive under another ID | add of that ID | redrive",
        seed=chosen_dead,
        plans={
            "A": lambda w: w.redriving(*w.letters(), new_id="y"),
            "P": lambda w: w.adding("p", job_id="y"),
            "B": redrive,
        },
        modes=CRASH,
        rows=("C11", "I8"),
    ),
    Scenario(
        name="reject | redrive of what a list shows | purge",
        seed=chosen_added,
        plans={"old": held(World.rejecting), "A": World.redriving, "B": World.purging},
        modes=CRASH,
        rows=("C11", "S6"),
    ),
    Scenario(
        name="redrive | read, reject",
        seed=chosen_dead,
        plans={"A": World.redriving, "R": read_and_reject, "B": World.redriving},
        modes=CRASH,
        rows=("C11", "S6"),
    ),
    Scenario(
        name="two groups: redrive of each one's letter | reads",
        seed=dead_in_both,
        plans={
            "A": lambda w: w.redriving(*w.letters(group="g")),
            "B": lambda w: w.redriving(*w.letters(group="h")),
            "R": reader("R"),
        },
        groups=GROUPS,
        modes=CRASH,
        rows=("C11", "S7"),
    ),
    Scenario(
        name="two groups: redrive of both | cancel",
        seed=dead_in_both,
        plans={"A": lambda w: w.redriving(*w.letters()), "C": cancel},
        groups=GROUPS,
        rows=("C11", "S7"),
    ),
    Scenario(
        name="letter by reference | purge | trim",
        seed=large_unread,
        plans={"R": lambda w: w.reading("R"), "P": World.purging, "T": World.trimming},
        modes=CRASH,
        rows=("F13",),
    ),
    Scenario(
        name="letters by reference in two groups | purge | purge",
        seed=large_dead_in_both,
        plans={
            "A": lambda w: w.purging(*w.letters(group="g")),
            "B": lambda w: w.purging(*w.letters(group="h")),
        },
        groups=GROUPS,
        rows=("F13",),
    ),
    Scenario(
        name="letter by reference | purge | the other group reads",
        seed=large_dead_and_unread,
        plans={"A": purge, "R": lambda w: w.reading("R", group="h"), "T": World.trimming},
        groups=GROUPS,
        modes=CRASH,
        rows=("F13",),
    ),
    Scenario(
        name="letter by reference | purge | drop of the other group",
        seed=large_dead_and_unread,
        plans={"A": purge, "D": lambda w: w.dropping("h")},
        groups=GROUPS,
        trims=True,
        modes=CRASH,
        rows=("F13",),
    ),
    Scenario(
        name="prune | read by that consumer",
        seed=idle_consumers,
        plans={"P": World.pruning, "R": reader("A"), "Q": World.pruning},
        rows=("F15", "C26", "C74"),
    ),
    Scenario(
        name="prune | reclaim | release",
        seed=one_held,
        plans={"P": World.pruning, "B": reclaimer("B", run=True), "old": held(World.releasing)},
        modes=CRASH,
        rows=("F15", "C26", "C74"),
    ),
    Scenario(
        name="trim | commit | read, all kept",
        seed=finished_held_unread,
        plans={"T": World.trimming, "old": held(World.committing), "R": reader("R")},
        options=KEEP,
        trims=True,
        rows=("F15", "C28"),
    ),
    Scenario(
        name="trim | add | read",
        seed=finished_held_unread,
        plans={"T": World.trimming, "P": lambda w: w.adding("p"), "R": reader("R", 2)},
        options=KEEP,
        trims=True,
        modes=CRASH,
        rows=("F15", "C28"),
    ),
    Scenario(
        name="trim | trim by maintenance | commit, one kept",
        seed=finished_many,
        plans={"T": World.trimming, "U": World.trimming_some, "old": held(World.committing)},
        options=KEEP | {"keep_last": 1},
        trims=True,
        kept=1,
        modes=CRASH,
        rows=("F15", "C28"),
    ),
    Scenario(
        name="trim | commit, kept for a time",
        seed=finished_many,
        plans={"T": World.trimming, "U": World.trimming_some, "old": held(World.committing)},
        options=KEEP | {"keep_for": 3600},
        trims=True,
        kept=4,
        modes=CRASH,
        rows=("F15", "C28"),
    ),
    Scenario(
        name="pause | resume | reads that look",
        seed=paused,
        plans={
            "P": World.pausing,
            "Q": World.resuming,
            "R": lambda w: w.reading("R", then=w.committing, look_for_pause=True),
        },
        modes=CRASH,
        rows=("C86",),
    ),
    Scenario(
        name="pause | read that looks | commit",
        seed=full,
        plans={
            "P": World.pausing,
            "R": lambda w: w.reading("R", then=w.committing, look_for_pause=True),
            "old": held(World.committing),
        },
        modes=CRASH,
        rows=("C86",),
    ),
    Scenario(
        name="tick | tick | tick",
        seed=nothing,
        plans={name: lambda w, me=name: w.ticking(me, Role.TRIM, Role.PRUNE) for name in "ABC"},
        rows=("C90",),
    ),
    Scenario(
        name="delete if empty | add | read",
        seed=nothing,
        plans={"D": lambda w: w.deleting(force=False), "P": lambda w: w.adding("a", job_id="x"), "R": reader("R")},
        modes=CRASH,
        rows=("C18",),
    ),
    Scenario(
        name="delete if empty | commit",
        seed=one_held,
        plans={"D": lambda w: w.deleting(force=False), "old": held(World.committing)},
        modes=CRASH,
        rows=("C18",),
    ),
    Scenario(
        name="delete | ack | delete",
        seed=one_held,
        plans={"D": lambda w: w.deleting(), "old": held(World.acking), "E": lambda w: w.deleting(force=False)},
        effects=False,
        modes=CRASH,
        rows=("C18",),
    ),
    Scenario(
        name="max_ready: add | add | read",
        seed=full,
        plans={"P": lambda w: w.adding("p"), "Q": lambda w: w.adding("q"), "R": reader("R")},
        options={"max_ready": 2},
        modes=CRASH,
        rows=("C86",),
    ),
    Scenario(
        name="max_ready: add many | add many | commit",
        seed=full,
        plans={
            "P": lambda w: w.adding_many("p1", "p2"),
            "Q": lambda w: w.adding_many("q1", "q2", chosen=True),
            "old": held(World.committing),
        },
        options={"max_ready": 3},
        modes=CRASH,
        rows=("C86",),
    ),
)
"""Operations that can meet."""

ALONE: tuple[Scenario, ...] = (
    alone("cancel", chosen_unread, cancel, "Q1"),
    alone("cancel by entry ID", lambda w: w.run(w.adding("a")), cancelling_entry, "Q1"),
    alone("cancel of a held job", chosen_added, cancel, "Q1"),
    alone("result", chosen_added, lambda w: w.asking("x"), "I8"),
    alone("redrive", chosen_dead, redrive, "C11"),
    alone("redrive of several", two_dead, lambda w: w.redriving_all(*w.letters()), "C11"),
    alone("redrive of what has no body", missing_dead, redrive, "C11"),
    alone("redrive of a letter by reference", large_dead, redrive, "F13", modes=CRASH),
    alone("purge", two_dead, purge, "C11"),
    alone("purge of all", two_dead, World.purging_old, "C11"),
    alone("purge of a letter by reference", large_dead, purge, "F13", modes=NOT_AGAIN),
    alone("trim", finished_many, World.trimming, "F15", "C28", options=KEEP, trims=True),
    alone("trim by maintenance", finished_many, World.trimming_some, "F15", "C28", options=KEEP | {"keep_last": 0}, trims=True),
    alone("prune", idle_consumers, World.pruning, "F15", "C26", "C74"),
    alone("pause", idle_consumers, World.pausing),
    alone("resume", paused, World.resuming),
    alone("tick", nothing, lambda w: w.ticking("A", Role.TRIM, Role.PRUNE), modes=NOT_AGAIN),
    alone("delete", one_held, lambda w: w.deleting()),
    alone("delete if empty", nothing, lambda w: w.deleting(force=False)),
    alone("delete, refused", one_held, lambda w: w.deleting(force=False)),
    alone("extend", one_held, held(World.extending)),
    alone("add, max_ready", full, lambda w: w.adding("p"), "C86", options={"max_ready": 2}, modes=NOT_AGAIN),
    alone("add where room is", full_but_cancelled, add_where_room_is, "C86", options={"max_ready": 1}, modes=(Mode.CRASH,)),
    alone("add many, max_ready", full, lambda w: w.adding_many("p", "q", "r"), "C86", options={"max_ready": 2},
          modes=NOT_AGAIN),
)  # fmt: skip
"""Every operation by itself."""
