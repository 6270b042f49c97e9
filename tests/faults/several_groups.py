"""Scenarios of several consumer groups: each gets every job, fails by itself, and may come and go."""

from __future__ import annotations

from typing import Any

from faults.explorer import Mode
from faults.scenarios import GROUPS, alone, held, nothing, reader
from faults.world import Scenario, World

from streamq._requests import Plan
from streamq.backoff import Backoff

CRASH = (Mode.CRASH,)
THREE = ("g", "h", "i")

# --- seeds --------------------------------------------------------------------------------


def held_in_both(w: World) -> None:
    """Job a of ID x: g's delivery is a, h's is b."""
    w.run(w.adding("a", job_id="x"))
    w.read("old", "a", group="g")
    w.read("other", "b", group="h")


def held_in_one(w: World) -> None:
    """g has job a in hand, h has not read it."""
    w.run(w.adding("a", job_id="x"))
    w.read("old", "a", group="g")


def retried(w: World) -> None:
    """All but g are done with job a, which g tries again."""
    w.add("a")
    for group in w.view_groups():
        w.read("old", group, group=group)
    for group in w.view_groups():
        w.run(w.retrying(w.held["g"], "g") if group == "g" else w.committing(w.held[group], group))


def passed_late(w: World) -> None:
    """As `retried`; h's consumer has read what it has to pass over, and died."""
    retried(w)
    w.raw(("XREADGROUP", "GROUP", "h", "dead", "STREAMS", w.keys.stream, ">"))


def passed_often(w: World) -> None:
    """As `passed_late`, and so did two others who took it over."""
    passed_late(w)
    [entry_id] = w.view_entries()
    w.raw(("XCLAIM", w.keys.stream, "h", "dead", 0, entry_id, "RETRYCOUNT", 3, "JUSTID"))


def nobodys(w: World) -> None:
    """A job that only group k handles, which does not exist."""
    w.add("a", sq_group="k")


def nobodys_read(w: World) -> None:
    """As `nobodys`; g's consumer has read it, and died."""
    nobodys(w)
    w.raw(("XREADGROUP", "GROUP", "g", "dead", "STREAMS", w.keys.stream, ">"))


def finished(w: World) -> None:
    """g has done job a, which is kept."""
    w.add("a", "b")
    w.read("old", "a")
    w.run(w.committing(w.held["a"]))


# --- plans --------------------------------------------------------------------------------


def passing(consumer: str, group: str) -> Any:
    """Read in a group, and commit what is its own."""
    return lambda w: w.reading(consumer, count=5, then=w.committing, group=group)


def reclaiming(consumer: str, group: str) -> Any:
    return lambda w: w.reclaiming(consumer, then=w.committing, group=group)


def other(verb: Any) -> Any:
    """On h's delivery."""
    return lambda w: verb(w, w.held["b"], "h")


def create(w: World) -> Plan[None]:
    return w.creating("k")


# --- scenarios ----------------------------------------------------------------------------

MEETINGS: tuple[Scenario, ...] = (
    *(
        Scenario(
            name=f"two groups: {first} | {second}, reads",
            seed=held_in_both,
            plans={"g": held(one), "h": other(two), "R": passing("R", "g")},
            groups=GROUPS,
            options={"retry": Backoff.constant(0, limit=limit)},
            modes=CRASH,
            rows=("S7", "C09"),
        )
        for first, one, second, two, limit in (
            ("commit", World.committing, "commit", World.committing, 2),
            ("retry", World.retrying, "commit", World.committing, 2),
            ("retry", World.retrying, "retry", World.retrying, 2),
            ("retry", World.retrying, "reject", World.rejecting, 2),
            ("last retry", World.retrying, "last retry", World.retrying, 0),
            ("reject", World.rejecting, "reject", World.rejecting, 2),
        )
    ),
    Scenario(
        name="two groups: retry | retry | cancel",
        seed=held_in_both,
        plans={"g": held(World.retrying), "h": other(World.retrying), "C": lambda w: w.cancelling("x")},
        groups=GROUPS,
        rows=("S7", "Q5"),
    ),
    Scenario(
        name="two groups: commit | result for the other, read",
        seed=held_in_one,
        plans={"g": held(World.committing), "A": lambda w: w.asking("x", "h"), "R": passing("R", "h")},
        groups=GROUPS,
        modes=CRASH,
        rows=("S7", "I8"),
    ),
    Scenario(
        name="two groups: ack | read, ack",
        seed=held_in_one,
        plans={"g": held(World.acking), "R": lambda w: w.reading("R", then=w.acking, group="h")},
        groups=GROUPS,
        effects=False,
        rows=("S7",),
    ),
    Scenario(
        name="two groups: pass over | reads of the retry",
        seed=retried,
        plans={"G": passing("G", "g"), "H": passing("H", "h")},
        groups=GROUPS,
        rows=("S7",),
    ),
    Scenario(
        name="two groups: pass over | reclaim | commit of the retry",
        seed=passed_late,
        plans={"G": passing("G", "g"), "H": reclaiming("H", "h"), "I": reclaiming("I", "h")},
        groups=GROUPS,
        modes=CRASH,
        rows=("S7",),
    ),
    Scenario(
        name="three groups: pass over | pass over | read of the retry",
        seed=retried,
        plans={"G": passing("G", "g"), "H": passing("H", "h"), "I": passing("I", "i")},
        groups=THREE,
        modes=CRASH,
        rows=("S7",),
    ),
    Scenario(
        name="unknown group | the other group",
        seed=nobodys,
        plans={"G": passing("G", "g"), "H": passing("H", "h")},
        groups=GROUPS,
        rows=("S7", "C14"),
    ),
    Scenario(
        name="unknown group | reclaim | the other group",
        seed=nobodys_read,
        plans={"G": reclaiming("G", "g"), "H": passing("H", "h")},
        groups=GROUPS,
        rows=("S7", "C14"),
    ),
    Scenario(
        name="unknown group | the group is made",
        seed=nobodys,
        plans={"G": passing("G", "g"), "H": passing("H", "h"), "K": create},
        groups=GROUPS,
        late=("k",),
        modes=CRASH,
        rows=("S7", "C14"),
    ),
    Scenario(
        name="unknown group | the first group is dropped",
        seed=nobodys_read,
        plans={"D": lambda w: w.dropping("g"), "H": passing("H", "h")},
        groups=GROUPS,
        trims=True,
        modes=CRASH,
        rows=("S7",),
    ),
    Scenario(
        name="create group | ack | trim",
        seed=held_in_one,
        plans={"K": create, "old": held(World.acking), "T": World.trimming},
        groups=("g",),
        late=("k",),
        effects=False,
        modes=CRASH,
        rows=("S7", "F15"),
    ),
    Scenario(
        name="create group behind the newest | commit | add",
        seed=held_in_one,
        plans={
            "K": lambda w: w.creating("k", start="new"),
            "old": held(World.committing),
            "P": lambda w: w.adding("p"),
        },
        groups=("g",),
        late=("k",),
        trims=True,
        modes=CRASH,
        rows=("S7",),
    ),
    Scenario(
        name="create group | create group | add | read",
        seed=nothing,
        plans={
            "K": lambda w: w.creating("k", "g"),
            "L": lambda w: w.creating("k", "g"),
            "P": lambda w: w.adding("a"),
        },
        groups=("g",),
        late=("k",),
        modes=CRASH,
        rows=("S7",),
    ),
    Scenario(
        name="create group | trim | commit, all kept",
        seed=finished,
        plans={"K": create, "T": World.trimming, "R": reader("R")},
        options={"retention": "keep"},
        groups=("g",),
        late=("k",),
        trims=True,
        modes=CRASH,
        rows=("F15", "S7", "C28"),
    ),
    Scenario(
        name="trim | ack in two groups, all kept",
        seed=held_in_both,
        plans={"g": held(World.committing), "h": other(World.committing), "T": World.trimming},
        options={"retention": "keep"},
        groups=GROUPS,
        trims=True,
        rows=("F15", "S7", "C28"),
    ),
    Scenario(
        name="drop group | ack of both",
        seed=held_in_both,
        plans={"D": lambda w: w.dropping("h"), "g": held(World.acking), "h": other(World.acking)},
        groups=GROUPS,
        effects=False,
        trims=True,
        modes=CRASH,
        rows=("S7", "C86"),
    ),
    Scenario(
        name="drop group if idle | read | commit",
        seed=held_in_one,
        plans={
            "D": lambda w: w.dropping("h", force=False),
            "R": passing("R", "h"),
            "g": held(World.committing),
        },
        groups=GROUPS,
        trims=True,
        modes=CRASH,
        rows=("S7", "C86"),
    ),
    Scenario(
        name="drop group | read, which makes it again | commit",
        seed=held_in_one,
        plans={"D": lambda w: w.dropping("h"), "R": passing("R", "h"), "g": held(World.committing)},
        groups=GROUPS,
        trims=True,
        modes=CRASH,
        rows=("S7", "F14"),
    ),
)
"""Operations that can meet."""

ALONE: tuple[Scenario, ...] = (
    alone("create groups", nothing, lambda w: w.creating("g", "k"), "S7", late=("k",)),
    alone("drop group", held_in_both, lambda w: w.dropping("h"), "S7", groups=GROUPS, trims=True),
    alone("drop group, refused", held_in_both, lambda w: w.dropping("h", force=False), "S7", groups=GROUPS),
    alone("pass over", retried, passing("A", "h"), "S7", groups=GROUPS),
    alone("reclaim of what is passed over", passed_late, reclaiming("A", "h"), "S7", groups=GROUPS),
    alone("reclaim of what was to be passed over often", passed_often, reclaiming("A", "h"), "S7", groups=GROUPS),
    alone("read of nobody's job", nobodys, passing("A", "g"), "S7", groups=GROUPS),
)
"""Every operation by itself."""
