"""What the explorer plays: operations that can meet, each operation alone, and plans that are wrong on purpose."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from faults.explorer import Mode
from faults.world import GROUP, Scenario, World, body

from streamq._requests import Command, Plan, Transaction, ask
from streamq.backoff import Backoff
from streamq.errors import ConnectionLostError


def verbs(*names: str) -> frozenset[str]:
    return frozenset(names)


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
            verbs=verbs("reclaim", "dead-letter", "commit"),
            seed=two_spent_three_stale,
            plans={"A": reclaimer("A", count, run=True), "B": reclaimer("B", count, run=count < 3)},
            rows=("F1", "F4", "S6", "C02"),
        )
        yield Scenario(
            name=f"3 reclaimers of {count}",
            verbs=verbs("reclaim", "dead-letter"),
            seed=two_spent_three_stale,
            plans={name: reclaimer(name, count) for name in "ABC"},
            modes=(Mode.CRASH, Mode.RESEND) if count == 1 else (Mode.CRASH,),
            rows=("F1", "F4", "S6", "C02"),
        )


MEETINGS: tuple[Scenario, ...] = (
    Scenario(
        name="ack | reclaim",
        verbs=verbs("ack", "reclaim", "commit"),
        seed=one_held,
        plans={"old": held(World.acking), "B": reclaimer("B", run=True)},
        effects=False,
        rows=("F9",),
    ),
    Scenario(
        name="ack | ack",
        verbs=verbs("ack"),
        seed=one_held,
        plans={"first": held(World.acking), "second": held(World.acking)},
        effects=False,
        rows=("F9",),
    ),
    Scenario(
        name="ack of several | reclaim of one",
        verbs=verbs("ack", "reclaim"),
        seed=two_held,
        plans={"old": lambda w: w.acking_all(w.held["a"], w.held["b"]), "B": reclaimer("B", 1, run=True)},
        effects=False,
        rows=("F9",),
    ),
    *_reclaimers(),
    Scenario(
        name="reclaim | late commit",
        verbs=verbs("reclaim", "commit"),
        seed=one_held,
        plans={"old": held(World.committing), "B": reclaimer("B", run=True)},
        rows=("F9", "I1"),
    ),
    Scenario(
        name="commit | commit of a job taken over",
        verbs=verbs("commit"),
        seed=taken_over,
        plans={"old": held(World.committing), "new": held(World.committing, "new"), "B": reclaimer("B", run=True)},
        rows=("F9", "I1"),
    ),
    Scenario(
        name="commit | commit of the same delivery",
        verbs=verbs("commit"),
        seed=one_held,
        plans={"first": held(World.committing), "second": held(World.committing)},
        rows=("I1",),
    ),
    Scenario(
        name="commits in one pipeline | reclaim",
        verbs=verbs("commit", "reclaim"),
        seed=two_held,
        plans={"old": lambda w: w.committing_all(w.held["a"], w.held["b"]), "B": reclaimer("B", 1, run=True)},
        rows=("I1",),
    ),
    Scenario(
        name="reject | late ack",
        verbs=verbs("dead-letter", "ack"),
        seed=one_held,
        plans={"reject": held(World.rejecting), "ack": held(World.acking)},
        effects=False,
        rows=("S6", "F4", "C02"),
    ),
    Scenario(
        name="dead-letter spent | late commit",
        verbs=verbs("reclaim", "dead-letter", "commit"),
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
        verbs=verbs("dead-letter"),
        seed=one_held,
        plans={"first": held(World.rejecting), "second": held(World.rejecting)},
        rows=("S6", "F4", "C02"),
    ),
    Scenario(
        name="reject | reclaim",
        verbs=verbs("dead-letter", "reclaim"),
        seed=one_held,
        plans={"old": held(World.rejecting), "B": reclaimer("B", run=True), "C": reclaimer("C")},
        rows=("S6", "F4", "C02"),
    ),
    Scenario(
        name="retry | reclaim",
        verbs=verbs("retry", "reclaim", "commit"),
        seed=one_held,
        plans={"old": held(World.retrying), "B": reclaimer("B", run=True)},
        rows=("C09", "C18", "C02"),
    ),
    Scenario(
        name="retry | retry",
        verbs=verbs("retry"),
        seed=one_held,
        plans={"first": held(World.retrying), "second": held(World.retrying), "reader": reader("R")},
        rows=("C09", "C18", "C02"),
    ),
    Scenario(
        name="retry | retry of a job taken over",
        verbs=verbs("retry", "read"),
        seed=taken_over,
        plans={"old": held(World.retrying), "new": held(World.retrying, "new"), "reader": reader("R")},
        rows=("C09", "C18"),
    ),
    Scenario(
        name="retry of a chosen ID | add | read",
        verbs=verbs("retry", "add", "read", "claim ID"),
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
        verbs=verbs("retry", "dead-letter", "reclaim"),
        seed=one_held,
        plans={"old": held(World.retrying), "B": lambda w: w.reclaiming("B", then=w.retrying)},
        options={"retry": Backoff.constant(0, limit=0)},
        rows=("C18",),
    ),
    Scenario(
        name="release | reclaim",
        verbs=verbs("release", "reclaim"),
        seed=one_held,
        plans={"old": held(World.releasing), "B": reclaimer("B", run=True), "C": reclaimer("C")},
        rows=("F9",),
    ),
    Scenario(
        name="release | reclaim by the same consumer",
        verbs=verbs("release", "reclaim"),
        seed=taken_over_by_itself,
        plans={"new": held(World.releasing, "new"), "again": reclaimer("old", run=True)},
        # Not re-sent: the same consumer, having taken it again with the same count, cannot be told from itself.
        modes=(Mode.CRASH,),
        rows=("F9",),
    ),
    Scenario(
        name="late commit | released job reclaimed by the same consumer",
        verbs=verbs("release", "reclaim", "commit"),
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
        verbs=verbs("tombstone", "reclaim"),
        seed=one_missing,
        plans={"A": reclaimer("A", 1, run=True), "B": reclaimer("B", run=True)},
        rows=("F3", "S6"),
    ),
    Scenario(
        name="missing body, spent | 2 reclaimers",
        verbs=verbs("tombstone", "reclaim", "dead-letter"),
        seed=spent_missing,
        plans={"A": reclaimer("A", 2), "B": reclaimer("B", run=True)},
        rows=("F2", "S6"),
    ),
    Scenario(
        name="missing body | commit, retry, reject, release of it",
        verbs=verbs("commit", "retry", "dead-letter", "release", "tombstone"),
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
        verbs=verbs("retry", "reclaim", "tombstone"),
        seed=one_missing,
        plans={"retry": held(World.retrying), "B": reclaimer("B")},
        rows=("F3", "S6"),
    ),
    Scenario(
        name="missing body | release, reclaim",
        verbs=verbs("release", "reclaim", "tombstone"),
        seed=one_missing,
        plans={"release": held(World.releasing), "B": reclaimer("B", run=True)},
        rows=("F3", "S6"),
    ),
    Scenario(
        name="renew | reclaim",
        verbs=verbs("renew", "reclaim", "commit"),
        seed=two_held,
        plans={"old": lambda w: w.renewing(w.held["a"], w.held["b"]), "B": reclaimer("B", 1, run=True)},
        rows=("F9",),
    ),
    Scenario(
        name="renew | commit | reclaim",
        verbs=verbs("renew", "reclaim", "commit"),
        seed=one_held,
        plans={"beat": held(World.renewing), "handler": held(World.committing), "B": reclaimer("B", run=True)},
        rows=("F9",),
    ),
    Scenario(
        name="renew of a missing body | reclaim",
        verbs=verbs("renew", "reclaim", "tombstone"),
        seed=one_missing,
        plans={"old": lambda w: w.renewing(w.held["a"], w.held["b"]), "B": reclaimer("B", run=True)},
        rows=("F3", "S6"),
    ),
    Scenario(
        name="start | reclaim",
        verbs=verbs("start", "reclaim", "commit"),
        seed=one_spent_two_stale,
        plans={"worker": worker("A", 2), "B": reclaimer("B", 2, run=True)},
        modes=(Mode.CRASH,),
        rows=("F1", "F9"),
    ),
    Scenario(
        name="start | start",
        verbs=verbs("start", "reclaim", "commit"),
        seed=one_held,
        plans={"A": worker("A"), "B": worker("B")},
        rows=("F1", "F9", "I1"),
    ),
    Scenario(
        name="start | start | late commit",
        verbs=verbs("start", "reclaim", "commit"),
        seed=one_held,
        plans={"A": worker("A"), "B": worker("B"), "old": held(World.committing)},
        modes=(Mode.CRASH,),
        rows=("F1", "F9", "I1"),
    ),
    Scenario(
        name="start | reclaim of a released job",
        verbs=verbs("start", "reclaim", "commit"),
        seed=released,
        plans={"A": worker("A"), "B": reclaimer("B", run=True), "late": held(World.committing)},
        modes=(Mode.CRASH,),
        rows=("F9",),
    ),
    Scenario(
        name="same consumer, old | new delivery",
        verbs=verbs("commit", "ack", "reclaim"),
        seed=taken_over_by_itself,
        plans={"old": held(World.committing), "new": held(World.committing, "new"), "B": reclaimer("B", run=True)},
        rows=("F9", "I1"),
    ),
    Scenario(
        name="same consumer, old renew | new delivery",
        verbs=verbs("renew", "commit", "reclaim"),
        seed=taken_over_by_itself,
        plans={"old": held(World.renewing), "new": held(World.committing, "new"), "B": reclaimer("B")},
        rows=("F9",),
    ),
    Scenario(
        name="add | add of one ID | read",
        verbs=verbs("add", "read", "claim ID", "commit"),
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
        verbs=verbs("add", "commit"),
        seed=chosen_added,
        plans={"P": lambda w: w.adding("a", job_id="x"), "old": held(World.committing)},
        rows=("C02",),
    ),
    Scenario(
        name="add | commit of the ID of a plain producer | read",
        verbs=verbs("add", "commit", "read"),
        seed=chosen_held,
        plans={"P": lambda w: w.adding("p", job_id="x"), "old": held(World.committing), "reader": reader("R")},
        rows=("I1",),
        modes=(Mode.CRASH,),
    ),
    Scenario(
        name="read | read of two entries with one ID",
        verbs=verbs("read", "claim ID", "commit", "release", "ack"),
        seed=duplicates_unread,
        plans={"A": reader("A"), "B": reader("B")},
        rows=("I1",),
    ),
    Scenario(
        name="read of several | reclaim, two of one ID",
        verbs=verbs("read", "claim ID", "commit", "release", "ack", "reclaim"),
        seed=three_chosen,
        plans={"A": reader("A", 3), "B": reclaimer("B", run=True)},
        modes=(Mode.CRASH,),
        rows=("I1",),
    ),
    Scenario(
        name="read of a duplicate | commit, reclaim of the first",
        verbs=verbs("read", "claim ID", "commit", "release", "ack", "reclaim"),
        seed=duplicate_unread,
        plans={"old": held(World.committing), "B": reclaimer("B", 1, run=True), "reader": reader("R")},
        modes=(Mode.CRASH,),
        rows=("I1",),
    ),
    Scenario(
        name="read of a duplicate | commit of the first",
        verbs=verbs("read", "claim ID", "commit", "release", "ack"),
        seed=duplicate_unread,
        plans={"old": held(World.committing), "reader": reader("R")},
        rows=("I1",),
    ),
    Scenario(
        name="read of a duplicate | reject of the first",
        verbs=verbs("read", "claim ID", "commit", "release", "dead-letter"),
        seed=duplicate_unread,
        plans={"old": held(World.rejecting), "reader": reader("R"), "P": lambda w: w.adding("p", job_id="x")},
        modes=(Mode.CRASH,),
        rows=("I1",),
    ),
    Scenario(
        name="duplicate that was started | worker's reclaim",
        verbs=verbs("reclaim", "claim ID", "release", "start"),
        seed=duplicate_charged,
        plans={"other": held(World.rejecting, "b"), "worker": worker("W", 1)},
        rows=("I1",),
    ),
    Scenario(
        name="claim ID | late commit | reclaim",
        verbs=verbs("claim ID", "commit", "reclaim"),
        seed=chosen_held,
        plans={"old": held(World.committing), "B": reclaimer("B", run=True), "C": reclaimer("C", run=True)},
        modes=(Mode.CRASH,),
        rows=("F9", "I1"),
    ),
    Scenario(
        name="claim ID | late commit",
        verbs=verbs("claim ID", "commit", "reclaim"),
        seed=chosen_held,
        plans={"old": held(World.committing), "B": reclaimer("B", run=True)},
        rows=("F9", "I1"),
    ),
    Scenario(
        name="claim ID | late release",
        verbs=verbs("claim ID", "release", "reclaim"),
        seed=duplicate_unread,
        plans={"old": held(World.releasing), "B": reclaimer("B", run=True), "reader": lambda w: w.reading("R")},
        modes=(Mode.CRASH,),
        rows=("I1",),
    ),
    Scenario(
        name="once | once",
        verbs=verbs(),
        seed=nothing,
        plans={name: lambda w: w.applying_once("o") for name in "PQR"},
        rows=("I1",),
    ),
    Scenario(
        name="duplicate that was started | worker's lost reclaim, taken up again",
        verbs=verbs("reclaim", "claim ID", "release", "start"),
        seed=duplicate_charged,
        plans={"other": held(World.rejecting, "b"), "worker": reclaiming_again},
        modes=(Mode.CUT,),
        rows=("I1",),
    ),
    Scenario(
        name="lost read, taken up again | reclaim",
        verbs=verbs("read", "reclaim", "commit"),
        seed=two_unread,
        plans={"A": reading_again, "B": reclaimer("B", 1, run=True)},
        modes=(Mode.CUT,),
        rows=("C02",),
    ),
    Scenario(
        name="two groups: retry | commit",
        verbs=verbs("retry", "commit", "read"),
        seed=two_groups,
        plans={
            "g": held(World.retrying),
            "h": lambda w: w.committing(w.held["b"], "h"),
            "reader of h": lambda w: w.reading("R", then=w.committing, group="h"),
        },
        groups=("g", "h"),
        rows=("C09",),
    ),
    Scenario(
        name="two groups: reject | reclaim, commit",
        verbs=verbs("dead-letter", "commit", "reclaim"),
        seed=two_groups,
        plans={
            "g": held(World.rejecting),
            "h": lambda w: w.committing(w.held["b"], "h"),
            "reclaimer of h": lambda w: w.reclaiming("R", then=w.committing, group="h"),
        },
        groups=("g", "h"),
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
    verbs_: frozenset[str],
    seed: Callable[[World], None],
    plan: Callable[[World], Plan[Any]],
    *rows: str,
    modes: tuple[Mode, ...] = ALL,
    **more: Any,
) -> Scenario:
    return Scenario(name=name, verbs=verbs_, seed=seed, plans={"A": plan}, rows=("C18", *rows), modes=modes, **more)


ALONE: tuple[Scenario, ...] = (
    alone("add", verbs("add"), nothing, lambda w: w.adding("a"), modes=NOT_AGAIN),
    alone("add with an ID", verbs("add"), nothing, lambda w: w.adding("a", job_id="x"), "C02"),
    alone("add many", verbs("add"), nothing, lambda w: w.adding_many("a", "b", "c"), modes=NOT_AGAIN),
    alone("add many with IDs", verbs("add"), nothing, lambda w: w.adding_many("a", "b", "c", chosen=True), "C02"),
    alone("read", verbs("read"), two_unread, reader("A", 2)),
    alone("read without a group", verbs("read"), no_group, reader("A")),
    alone("read of malformed", verbs("read", "dead-letter"), malformed, reader("A", 20), "S6", "C02"),
    alone("read of others' entry", verbs("read", "ack"), for_others, reader("A", 2), effects=False),
    alone("read of chosen IDs", verbs("read", "claim ID", "release"), three_chosen, reader("A", 3), "I1"),
    alone("read of a done ID", verbs("read", "claim ID", "ack"), done_and_duplicate, reader("A"), "I1"),
    alone("taking up a lost read", verbs("read"), lost_read, lambda w: w.recovering("A", then=w.committing)),
    alone("reclaim", verbs("reclaim", "commit"), two_held, reclaimer("A", run=True)),
    alone("reclaim of spent", verbs("reclaim", "dead-letter"), twelve_spent, reclaimer("A", run=True), "S6", "C02"),
    alone("reclaim of missing", verbs("reclaim", "tombstone"), spent_missing, reclaimer("A", run=True), "F2", "F3"),
    alone("reclaim and start", verbs("reclaim", "start"), one_spent_two_stale, worker("A"), "S6"),
    alone("renew", verbs("renew"), two_held, lambda w: w.renewing(w.held["a"], w.held["b"])),
    alone("renew of missing", verbs("renew", "tombstone"), one_missing, held(World.renewing), "F3"),
    alone("ack", verbs("ack"), one_held, held(World.acking), effects=False),
    alone("ack of a chosen ID", verbs("ack"), duplicate_unread, held(World.acking), effects=False),
    alone("ack of missing", verbs("ack"), one_missing, held(World.acking), effects=False),
    alone("commit", verbs("commit"), one_held, held(World.committing), "I1"),
    alone("commit of a chosen ID", verbs("commit"), duplicate_unread, held(World.committing), "I1"),
    alone("commits", verbs("commit"), two_held, lambda w: w.committing_all(w.held["a"], w.held["b"]), "I1"),
    alone("retry", verbs("retry"), one_held, held(World.retrying), "C09", "C02"),
    alone("retry of a chosen ID", verbs("retry"), duplicate_unread, held(World.retrying), "C09", "C02"),
    alone("retry of missing", verbs("retry", "dead-letter"), one_missing, held(World.retrying), "S6", "C02"),
    alone(
        "last retry", verbs("retry", "dead-letter"), one_held, held(World.retrying), "S6", "C02",
        options={"retry": Backoff.constant(0, limit=0)},
    ),
    alone("reject", verbs("dead-letter"), one_held, held(World.rejecting), "S6", "C02"),
    alone("reject of a chosen ID", verbs("dead-letter"), duplicate_unread, held(World.rejecting), "S6", "C02"),
    alone("reject of missing", verbs("dead-letter", "tombstone"), one_missing, held(World.rejecting), "S6", "C02"),
    alone("release", verbs("release"), one_held, held(World.releasing)),
    alone("release of missing", verbs("release", "tombstone"), one_missing, held(World.releasing), "F3"),
    alone("release of a chosen ID", verbs("release"), duplicate_unread, held(World.releasing)),
    alone("once", verbs(), nothing, lambda w: w.applying_once("o"), "I1"),
    alone("two groups: commit", verbs("commit"), two_groups, held(World.committing), groups=("g", "h")),
    alone("two groups: retry", verbs("retry"), two_groups, held(World.retrying), groups=("g", "h")),
)  # fmt: skip
"""Every operation by itself."""


# --- wrong on purpose ---------------------------------------------------------------------


def _dead(w: World) -> Command[Any]:
    fields = ("dead:reason", "deliveries", "dead:source", w.held["a"].entry_id, "dead:group", GROUP)
    return Command(("XADD", w.keys.dead, "*", *fields, "job", body("a")), (w.keys.dead,), lambda reply: reply)


def _xack(w: World) -> Command[Any]:
    entry_id = w.held["a"].entry_id
    return Command(("XACK", w.keys.stream, GROUP, entry_id), (w.keys.stream,), lambda reply: reply)


def bare_move(w: World) -> Plan[None]:
    """MULTI{XADD, XACK, XDEL}EXEC, which nothing guards."""
    key = w.keys.stream
    remove = Command(("XDEL", key, w.held["a"].entry_id), (key,), lambda reply: reply)
    yield Transaction((_dead(w), _xack(w), remove))


def ack_then_add(w: World) -> Plan[None]:
    yield from ask(_xack(w))
    yield from ask(_dead(w))


def add_then_ack(w: World) -> Plan[None]:
    yield from ask(_dead(w))
    yield from ask(_xack(w))


def bare_ack(w: World) -> Plan[None]:
    yield from ask(_xack(w))


def effect_then_ack(w: World) -> Plan[None]:
    key = w.keys.data("receipts")
    yield from ask(Command(("HINCRBY", key, f"{GROUP}/a", 1), (key,), lambda reply: reply))
    yield from w.acking(w.held["a"])


def retry_by_hand(w: World) -> Plan[None]:
    key = w.keys.stream
    yield from ask(Command(("XADD", key, "*", "job", body("a")), (key,), lambda reply: reply))
    yield from ask(_xack(w))


def unfenced_claim(w: World) -> Plan[None]:
    """List, then claim: the count that was listed may be old by then."""
    key, entry_id = w.keys.stream, w.held["a"].entry_id
    rows = yield from ask(Command(("XPENDING", key, GROUP, "-", "+", 10), (key,), lambda reply: reply))
    if rows:
        claim = ("XCLAIM", key, GROUP, "B", 0, entry_id)
        yield from ask(Command(claim, (key,), lambda reply: reply))
        w.hand_out(entry_id, "B", rows[0][3] + 1)


WRONG: tuple[tuple[Scenario, str], ...] = (
    (
        Scenario(
            name="bare MULTI | bare MULTI",
            verbs=verbs(),
            seed=one_held,
            plans={"A": bare_move, "B": bare_move},
            modes=(Mode.CRASH,),
            rows=("F4",),
        ),
        "dead-lettered twice",
    ),
    (
        Scenario(
            name="bare MULTI, sent again",
            verbs=verbs(),
            seed=one_held,
            plans={"A": bare_move},
            modes=(Mode.RESEND,),
            rows=("C02",),
        ),
        "dead-lettered twice",
    ),
    (
        Scenario(
            name="bare MULTI | late commit",
            verbs=verbs(),
            seed=one_held,
            plans={"A": bare_move, "old": held(World.committing)},
            modes=(Mode.CRASH,),
            rows=("S6",),
        ),
        "was done and is there again",
    ),
    (
        Scenario(
            name="bare MULTI | reclaim",
            verbs=verbs(),
            seed=one_held,
            plans={"A": bare_move, "B": reclaimer("B", run=True)},
            modes=(Mode.CRASH,),
            rows=("S6",),
        ),
        "was done and is there again",
    ),
    (
        Scenario(
            name="XACK, then XADD",
            verbs=verbs(),
            seed=one_held,
            plans={"A": ack_then_add},
            modes=(Mode.CRASH,),
            rows=("C18",),
        ),
        "lost",
    ),
    (
        Scenario(
            name="XADD, then XACK",
            verbs=verbs(),
            seed=one_held,
            plans={"A": add_then_ack},
            modes=(Mode.CRASH,),
            rows=("S6",),
        ),
        "pending and dead",
    ),
    (
        Scenario(
            name="late XACK | reclaim",
            verbs=verbs(),
            seed=one_held,
            plans={"A": bare_ack, "B": reclaimer("B")},
            modes=(Mode.CRASH,),
            rows=("F9",),
        ),
        "lost",
    ),
    (
        Scenario(
            name="effect, then ack",
            verbs=verbs(),
            seed=one_held,
            plans={"A": effect_then_ack},
            modes=(Mode.CRASH,),
            rows=("I1",),
        ),
        "effects applied, but not done",
    ),
    (
        Scenario(
            name="retry: XADD, then XACK",
            verbs=verbs(),
            seed=one_held,
            plans={"A": retry_by_hand},
            modes=(Mode.CRASH,),
            rows=("C09",),
        ),
        "more than one copy",
    ),
    (
        Scenario(
            name="XPENDING, XCLAIM | reclaim",
            verbs=verbs(),
            seed=one_held,
            plans={"A": unfenced_claim, "B": reclaimer("B")},
            modes=(Mode.CRASH,),
            rows=("F1",),
        ),
        "which never was true",
    ),
)
"""Scenarios of plans that are wrong, and what must be said of each."""
