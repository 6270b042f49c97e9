"""What the explorer plays: operations that can meet, each operation alone, and plans that are wrong on purpose."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from faults.explorer import Mode
from faults.world import GROUP, Scenario, World

from streamq._requests import Plan
from streamq.backoff import Backoff
from streamq.errors import ConnectionLostError

GROUPS = ("g", "h")

# --- seeds --------------------------------------------------------------------------------


def one_held(w: World) -> None:
    """Job a is old's; its lease may have run out."""
    w.add("a")
    w.read("old", "a")


def two_unread(w: World) -> None:
    w.add("a", "b")


def two_held(w: World) -> None:
    w.add("a", "b")
    w.read("old", "a", "b")


def two_spent_three_stale(w: World) -> None:
    """Counts 3 (spent), 1, 3 (spent), 2, 1, all of processes that are dead."""
    w.deliver("dead", a=3, b=1, c=3, d=2, e=1)


def one_spent_two_stale(w: World) -> None:
    w.deliver("dead", a=2, b=3, c=1)


def one_missing(w: World) -> None:
    """Job a has lost its body, b not."""
    two_held(w)
    w.lose_body("a")


def spent_missing(w: World) -> None:
    """Job a has lost its body and its deliveries, b its deliveries, c nothing."""
    w.add("a")
    w.read("old", "a")
    w.reclaim("old", "a")
    w.reclaim("old", "a")
    w.lose_body("a")
    w.deliver("dead", b=3, c=1)


def taken_over(w: World) -> None:
    """Job a was old's, is new's now; both think they have it."""
    one_held(w)
    w.reclaim("new", "new")


def taken_over_by_itself(w: World) -> None:
    """Job a was delivered twice to the same consumer, which holds both."""
    one_held(w)
    w.reclaim("old", "new")


def released(w: World) -> None:
    """Job a was started once, taken over and given back: count 1 again."""
    taken_over(w)
    w.release("new")


def taken_over_twice(w: World) -> None:
    """Job a was delivered three times, to three consumers: its deliveries are spent."""
    taken_over(w)
    w.reclaim("last", "last")


def released_by_itself(w: World) -> None:
    """Job a was delivered twice to the same consumer, which gave it back then, and holds both."""
    taken_over_by_itself(w)
    w.release("new")


def chosen_added(w: World) -> None:
    """As `chosen_held`, by a producer that uses streamq: the ID is known to `add` too."""
    w.run(w.adding("a", job_id="x"))
    w.read("old", "a")


def chosen_held(w: World) -> None:
    w.add("a", job_id="x")
    w.read("old", "a")


def duplicate_unread(w: World) -> None:
    """Two entries with one ID, by plain producers; one is running."""
    chosen_held(w)
    w.add("b", job_id="x")


def duplicates_unread(w: World) -> None:
    w.add("a", "b", job_id="x")


def duplicate_charged(w: World) -> None:
    """Entry a of ID x was started once and given back by a second owner; b runs the ID now."""
    w.add("a", job_id="x")
    w.read("old", "a")
    w.reclaim("mid", "again")
    w.release("again")
    w.add("b", job_id="x")
    w.read("other", "b")


def three_chosen(w: World) -> None:
    w.add("a", "b", job_id="x")
    w.add("c")


def nothing(w: World) -> None:
    """An empty stream."""


def two_groups(w: World) -> None:
    """Job a is pending in both groups."""
    w.add("a")
    w.read("old", "a", group="g")
    w.read("other", "b", group="h")


# --- scenarios ----------------------------------------------------------------------------


def held(verb: Callable[[World, Any], Plan[Any]], name: str = "a") -> Callable[[World], Plan[Any]]:
    """A plan on a delivery that the seed left."""
    return lambda w: verb(w, w.held[name])


def reclaimer(consumer: str, count: int = 100, *, run: bool = False) -> Callable[[World], Plan[Any]]:
    return lambda w: w.reclaiming(consumer, count=count, then=w.committing if run else None)


def worker(consumer: str, count: int = 100) -> Callable[[World], Plan[Any]]:
    return lambda w: w.working(consumer, count=count, then=w.committing)


def reader(consumer: str, count: int = 1) -> Callable[[World], Plan[Any]]:
    return lambda w: w.reading(consumer, count=count, then=w.committing)


def reading_again(w: World) -> Plan[None]:
    """As a worker does when the reply to a read was lost."""
    try:
        yield from w.reading("A", count=2)
    except ConnectionLostError:
        yield from w.recovering("A", then=w.committing)


def reclaiming_again(w: World) -> Plan[None]:
    """As a worker does when the reply to its reclaim was lost."""
    try:
        yield from w.working("W", count=1)
    except ConnectionLostError:
        yield from w.recovering("W", started=False)


def _reclaimers() -> Iterator[Scenario]:
    for count in (1, 2, 3):
        yield Scenario(
            name=f"2 reclaimers of {count}",
            seed=two_spent_three_stale,
            plans={"A": reclaimer("A", count, run=True), "B": reclaimer("B", count, run=count < 3)},
            rows=("F1", "F4", "S6", "C02"),
        )
        yield Scenario(
            name=f"3 reclaimers of {count}",
            seed=two_spent_three_stale,
            plans={name: reclaimer(name, count) for name in "ABC"},
            modes=(Mode.CRASH, Mode.RESEND) if count == 1 else (Mode.CRASH,),
            rows=("F1", "F4", "S6", "C02"),
        )


MEETINGS: tuple[Scenario, ...] = (
    Scenario(
        name="ack | reclaim",
        seed=one_held,
        plans={"old": held(World.acking), "B": reclaimer("B", run=True)},
        effects=False,
        rows=("F9",),
    ),
    Scenario(
        name="ack | ack",
        seed=one_held,
        plans={"first": held(World.acking), "second": held(World.acking)},
        effects=False,
        rows=("F9",),
    ),
    Scenario(
        name="ack of several | reclaim of one",
        seed=two_held,
        plans={"old": lambda w: w.acking_all(w.held["a"], w.held["b"]), "B": reclaimer("B", 1, run=True)},
        effects=False,
        rows=("F9",),
    ),
    *_reclaimers(),
    Scenario(
        name="reclaim | late commit",
        seed=one_held,
        plans={"old": held(World.committing), "B": reclaimer("B", run=True)},
        rows=("F9", "I1"),
    ),
    Scenario(
        name="commit | commit of a job taken over",
        seed=taken_over,
        plans={"old": held(World.committing), "new": held(World.committing, "new"), "B": reclaimer("B", run=True)},
        rows=("F9", "I1"),
    ),
    Scenario(
        name="commit | commit of the same delivery",
        seed=one_held,
        plans={"first": held(World.committing), "second": held(World.committing)},
        rows=("I1",),
    ),
    Scenario(
        name="commits in one pipeline | reclaim",
        seed=two_held,
        plans={"old": lambda w: w.committing_all(w.held["a"], w.held["b"]), "B": reclaimer("B", 1, run=True)},
        rows=("I1",),
    ),
    Scenario(
        name="reject | late ack",
        seed=one_held,
        plans={"reject": held(World.rejecting), "ack": held(World.acking)},
        effects=False,
        rows=("S6", "F4", "C02"),
    ),
    Scenario(
        name="dead-letter spent | late commit",
        seed=taken_over_twice,
        plans={
            "old": held(World.committing),
            "last": held(World.committing, "last"),
            "B": reclaimer("B"),
        },
        rows=("S6", "F4"),
    ),
    Scenario(
        name="reject | reject",
        seed=one_held,
        plans={"first": held(World.rejecting), "second": held(World.rejecting)},
        rows=("S6", "F4", "C02"),
    ),
    Scenario(
        name="reject | reclaim",
        seed=one_held,
        plans={"old": held(World.rejecting), "B": reclaimer("B", run=True), "C": reclaimer("C")},
        rows=("S6", "F4", "C02"),
    ),
    Scenario(
        name="retry | reclaim",
        seed=one_held,
        plans={"old": held(World.retrying), "B": reclaimer("B", run=True)},
        rows=("C09", "C18", "C02"),
    ),
    Scenario(
        name="retry | retry",
        seed=one_held,
        plans={"first": held(World.retrying), "second": held(World.retrying), "reader": reader("R")},
        rows=("C09", "C18", "C02"),
    ),
    Scenario(
        name="retry | retry of a job taken over",
        seed=taken_over,
        plans={"old": held(World.retrying), "new": held(World.retrying, "new"), "reader": reader("R")},
        rows=("C09", "C18"),
    ),
    Scenario(
        name="retry of a chosen ID | add | read",
        seed=chosen_held,
        plans={
            "old": held(World.retrying),
            "producer": lambda w: w.adding("p", job_id="x"),
            "reader": reader("R", 2),
        },
        rows=("C09",),
    ),
    Scenario(
        name="last retry | reclaim",
        seed=one_held,
        plans={"old": held(World.retrying), "B": lambda w: w.reclaiming("B", then=w.retrying)},
        options={"retry": Backoff.constant(0, limit=0)},
        rows=("C18",),
    ),
    Scenario(
        name="release | reclaim",
        seed=one_held,
        plans={"old": held(World.releasing), "B": reclaimer("B", run=True), "C": reclaimer("C")},
        rows=("F9",),
    ),
    Scenario(
        name="release | reclaim by the same consumer",
        seed=taken_over_by_itself,
        plans={"new": held(World.releasing, "new"), "again": reclaimer("old", run=True)},
        # Not re-sent: the same consumer, having taken it again with the same count, cannot be told from itself.
        modes=(Mode.CRASH,),
        rows=("F9",),
    ),
    Scenario(
        name="late commit | released job reclaimed by the same consumer",
        seed=released_by_itself,
        plans={
            "late": held(World.committing, "new"),
            "older": held(World.committing),
            "again": reclaimer("old", run=True),
        },
        rows=("F9",),
    ),
    Scenario(
        name="missing body | 2 reclaimers",
        seed=one_missing,
        plans={"A": reclaimer("A", 1, run=True), "B": reclaimer("B", run=True)},
        rows=("F3", "S6"),
    ),
    Scenario(
        name="missing body, spent | 2 reclaimers",
        seed=spent_missing,
        plans={"A": reclaimer("A", 2), "B": reclaimer("B", run=True)},
        rows=("F2", "S6"),
    ),
    Scenario(
        name="missing body | commit, retry, reject, release of it",
        seed=one_missing,
        plans={
            "commit": held(World.committing),
            "retry": held(World.retrying),
            "reject": held(World.rejecting),
            "release": held(World.releasing),
        },
        modes=(Mode.CRASH,),
        rows=("F3", "S6"),
    ),
    Scenario(
        name="missing body | retry, reclaim",
        seed=one_missing,
        plans={"retry": held(World.retrying), "B": reclaimer("B")},
        rows=("F3", "S6"),
    ),
    Scenario(
        name="missing body | release, reclaim",
        seed=one_missing,
        plans={"release": held(World.releasing), "B": reclaimer("B", run=True)},
        rows=("F3", "S6"),
    ),
    Scenario(
        name="renew | reclaim",
        seed=two_held,
        plans={"old": lambda w: w.renewing(w.held["a"], w.held["b"]), "B": reclaimer("B", 1, run=True)},
        rows=("F9",),
    ),
    Scenario(
        name="renew | commit | reclaim",
        seed=one_held,
        plans={"beat": held(World.renewing), "handler": held(World.committing), "B": reclaimer("B", run=True)},
        rows=("F9",),
    ),
    Scenario(
        name="renew of a missing body | reclaim",
        seed=one_missing,
        plans={"old": lambda w: w.renewing(w.held["a"], w.held["b"]), "B": reclaimer("B", run=True)},
        rows=("F3", "S6"),
    ),
    Scenario(
        name="start | reclaim",
        seed=one_spent_two_stale,
        plans={"worker": worker("A", 2), "B": reclaimer("B", 2, run=True)},
        modes=(Mode.CRASH,),
        rows=("F1", "F9"),
    ),
    Scenario(
        name="start | start",
        seed=one_held,
        plans={"A": worker("A"), "B": worker("B")},
        rows=("F1", "F9", "I1"),
    ),
    Scenario(
        name="start | start | late commit",
        seed=one_held,
        plans={"A": worker("A"), "B": worker("B"), "old": held(World.committing)},
        modes=(Mode.CRASH,),
        rows=("F1", "F9", "I1"),
    ),
    Scenario(
        name="start | reclaim of a released job",
        seed=released,
        plans={"A": worker("A"), "B": reclaimer("B", run=True), "late": held(World.committing)},
        modes=(Mode.CRASH,),
        rows=("F9",),
    ),
    Scenario(
        name="same consumer, old | new delivery",
        seed=taken_over_by_itself,
        plans={"old": held(World.committing), "new": held(World.committing, "new"), "B": reclaimer("B", run=True)},
        rows=("F9", "I1"),
    ),
    Scenario(
        name="same consumer, old renew | new delivery",
        seed=taken_over_by_itself,
        plans={"old": held(World.renewing), "new": held(World.committing, "new"), "B": reclaimer("B")},
        rows=("F9",),
    ),
    Scenario(
        name="add | add of one ID | read",
        seed=nothing,
        plans={
            "P": lambda w: w.adding("a", job_id="x"),
            "Q": lambda w: w.adding("a", job_id="x"),
            "reader": reader("R"),
        },
        rows=("C02",),
    ),
    Scenario(
        name="add | commit of the ID",
        seed=chosen_added,
        plans={"P": lambda w: w.adding("a", job_id="x"), "old": held(World.committing)},
        rows=("C02",),
    ),
    Scenario(
        name="add | commit of the ID of a plain producer | read",
        seed=chosen_held,
        plans={"P": lambda w: w.adding("p", job_id="x"), "old": held(World.committing), "reader": reader("R")},
        rows=("I1",),
        modes=(Mode.CRASH,),
    ),
    Scenario(
        name="read | read of two entries with one ID",
        seed=duplicates_unread,
        plans={"A": reader("A"), "B": reader("B")},
        rows=("I1",),
    ),
    Scenario(
        name="read of several | reclaim, two of one ID",
        seed=three_chosen,
        plans={"A": reader("A", 3), "B": reclaimer("B", run=True)},
        modes=(Mode.CRASH,),
        rows=("I1",),
    ),
    Scenario(
        name="read of a duplicate | commit, reclaim of the first",
        seed=duplicate_unread,
        plans={"old": held(World.committing), "B": reclaimer("B", 1, run=True), "reader": reader("R")},
        modes=(Mode.CRASH,),
        rows=("I1",),
    ),
    Scenario(
        name="read of a duplicate | commit of the first",
        seed=duplicate_unread,
        plans={"old": held(World.committing), "reader": reader("R")},
        rows=("I1",),
    ),
    Scenario(
        name="read of a duplicate | reject of the first",
        seed=duplicate_unread,
        plans={"old": held(World.rejecting), "reader": reader("R"), "P": lambda w: w.adding("p", job_id="x")},
        modes=(Mode.CRASH,),
        rows=("I1",),
    ),
    Scenario(
        name="duplicate that was started | worker's reclaim",
        seed=duplicate_charged,
        plans={"other": held(World.rejecting, "b"), "worker": worker("W", 1)},
        rows=("I1",),
    ),
    Scenario(
        name="claim ID | late commit | reclaim",
        seed=chosen_held,
        plans={"old": held(World.committing), "B": reclaimer("B", run=True), "C": reclaimer("C", run=True)},
        modes=(Mode.CRASH,),
        rows=("F9", "I1"),
    ),
    Scenario(
        name="claim ID | late commit",
        seed=chosen_held,
        plans={"old": held(World.committing), "B": reclaimer("B", run=True)},
        rows=("F9", "I1"),
    ),
    Scenario(
        name="claim ID | late release",
        seed=duplicate_unread,
        plans={"old": held(World.releasing), "B": reclaimer("B", run=True), "reader": lambda w: w.reading("R")},
        modes=(Mode.CRASH,),
        rows=("I1",),
    ),
    Scenario(
        name="once | once",
        seed=nothing,
        plans={name: lambda w: w.applying_once("o") for name in "PQR"},
        rows=("I1",),
    ),
    Scenario(
        name="duplicate that was started | worker's lost reclaim, taken up again",
        seed=duplicate_charged,
        plans={"other": held(World.rejecting, "b"), "worker": reclaiming_again},
        modes=(Mode.CUT,),
        rows=("I1",),
    ),
    Scenario(
        name="lost read, taken up again | reclaim",
        seed=two_unread,
        plans={"A": reading_again, "B": reclaimer("B", 1, run=True)},
        modes=(Mode.CUT,),
        rows=("C02",),
    ),
    Scenario(
        name="two groups: retry | commit",
        seed=two_groups,
        plans={
            "g": held(World.retrying),
            "h": lambda w: w.committing(w.held["b"], "h"),
            "reader of h": lambda w: w.reading("R", then=w.committing, group="h"),
        },
        groups=GROUPS,
        rows=("C09",),
    ),
    Scenario(
        name="two groups: reject | reclaim, commit",
        seed=two_groups,
        plans={
            "g": held(World.rejecting),
            "h": lambda w: w.committing(w.held["b"], "h"),
            "reclaimer of h": lambda w: w.reclaiming("R", then=w.committing, group="h"),
        },
        groups=GROUPS,
        rows=("S6",),
    ),
)
"""Operations that can meet."""


# --- each operation alone -----------------------------------------------------------------


def malformed(w: World) -> None:
    """Eleven entries that no worker can decode (two EXECs), and one job."""
    for n in range(11):
        w.add_spoiled(f"bad{n}")
    w.add("a")


def twelve_spent(w: World) -> None:
    """Two EXECs' worth, and one job that is not."""
    w.deliver("dead", **{f"spent{n}": 3 for n in range(12)}, a=1)


def no_group(w: World) -> None:
    """A job in a stream that lost its group."""
    w.add("a")
    w.raw(("XGROUP", "DESTROY", w.keys.stream, GROUP))


def for_others(w: World) -> None:
    """A job that another group retries, and one for all."""
    w.add("theirs", sq_group="h")
    w.add("a")


def done_and_duplicate(w: World) -> None:
    """The first entry of an ID is done, the second is not read yet."""
    duplicate_unread(w)
    w.run(w.committing(w.held["a"]))


def lost_read(w: World) -> None:
    """Two jobs were read, and the reply never came."""
    w.add("a", "b")
    w.raw(("XREADGROUP", "GROUP", GROUP, "A", "COUNT", 2, "STREAMS", w.keys.stream, ">"))


ALL = (Mode.CRASH, Mode.RESEND, Mode.CUT)
NOT_AGAIN = (Mode.CRASH, Mode.CUT)  # a plain XADD that is sent again is there twice


def alone(
    name: str,
    seed: Callable[[World], None],
    plan: Callable[[World], Plan[Any]],
    *rows: str,
    modes: tuple[Mode, ...] = ALL,
    **more: Any,
) -> Scenario:
    return Scenario(name=name, seed=seed, plans={"A": plan}, rows=("C18", *rows), modes=modes, **more)


ALONE: tuple[Scenario, ...] = (
    alone("add", nothing, lambda w: w.adding("a"), modes=NOT_AGAIN),
    alone("add with an ID", nothing, lambda w: w.adding("a", job_id="x"), "C02"),
    alone("add many", nothing, lambda w: w.adding_many("a", "b", "c"), modes=NOT_AGAIN),
    alone("add many with IDs", nothing, lambda w: w.adding_many("a", "b", "c", chosen=True), "C02"),
    alone("read", two_unread, reader("A", 2)),
    alone("read without a group", no_group, reader("A")),
    alone("read of malformed", malformed, reader("A", 20), "S6", "C02"),
    alone("read of others' entry", for_others, reader("A", 2), effects=False),
    alone("read of chosen IDs", three_chosen, reader("A", 3), "I1"),
    alone("read of a done ID", done_and_duplicate, reader("A"), "I1"),
    alone("taking up a lost read", lost_read, lambda w: w.recovering("A", then=w.committing)),
    alone("reclaim", two_held, reclaimer("A", run=True)),
    alone("reclaim of spent", twelve_spent, reclaimer("A", run=True), "S6", "C02"),
    alone("reclaim of missing", spent_missing, reclaimer("A", run=True), "F2", "F3"),
    alone("reclaim and start", one_spent_two_stale, worker("A"), "S6"),
    alone("renew", two_held, lambda w: w.renewing(w.held["a"], w.held["b"])),
    alone("renew of missing", one_missing, held(World.renewing), "F3"),
    alone("ack", one_held, held(World.acking), effects=False),
    alone("ack of a chosen ID", duplicate_unread, held(World.acking), effects=False),
    alone("ack of missing", one_missing, held(World.acking), effects=False),
    alone("commit", one_held, held(World.committing), "I1"),
    alone("commit of a chosen ID", duplicate_unread, held(World.committing), "I1"),
    alone("commits", two_held, lambda w: w.committing_all(w.held["a"], w.held["b"]), "I1"),
    alone("retry", one_held, held(World.retrying), "C09", "C02"),
    alone("retry of a chosen ID", duplicate_unread, held(World.retrying), "C09", "C02"),
    alone("retry of missing", one_missing, held(World.retrying), "S6", "C02"),
    alone(
        "last retry", one_held, held(World.retrying), "S6", "C02",
        options={"retry": Backoff.constant(0, limit=0)},
    ),
    alone("reject", one_held, held(World.rejecting), "S6", "C02"),
    alone("reject of a chosen ID", duplicate_unread, held(World.rejecting), "S6", "C02"),
    alone("reject of missing", one_missing, held(World.rejecting), "S6", "C02"),
    alone("release", one_held, held(World.releasing)),
    alone("release of missing", one_missing, held(World.releasing), "F3"),
    alone("release of a chosen ID", duplicate_unread, held(World.releasing)),
    alone("once", nothing, lambda w: w.applying_once("o"), "I1"),
    alone("two groups: commit", two_groups, held(World.committing), groups=GROUPS),
    alone("two groups: retry", two_groups, held(World.retrying), groups=GROUPS),
)  # fmt: skip
"""Every operation by itself."""
