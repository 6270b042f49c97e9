"""Scenarios of jobs that wait for their time, or for their next attempt. Pairs of steps are all in `pairs`; here is more.

What waits is due whenever somebody promotes: any time may have passed (`Ground._pass_time`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from faults.explorer import Mode
from faults.scenarios import (
    GROUPS,
    alone,
    chosen_added,
    chosen_held,
    duplicate_unread,
    held,
    nothing,
    one_held,
    one_missing,
    reader,
    reclaimer,
    taken_over,
    two_unread,
)
from faults.several_groups import held_in_both, held_in_one, other
from faults.upkeep import chosen_dead, chosen_unread, dead_in_both
from faults.world import Scenario, World, body

from streamq._requests import Plan
from streamq.backoff import Backoff

CRASH = (Mode.CRASH,)

# --- seeds --------------------------------------------------------------------------------


def waiting(w: World) -> None:
    """Job a of ID x waits for its time, in all groups."""
    w.run(w.scheduling("a", job_id="x"))


def waiting_without_group(w: World) -> None:
    """As `waiting`, in a stream that lost its group."""
    waiting(w)
    w.raw(("XGROUP", "DESTROY", w.keys.stream, "g"))


def three_waiting(w: World) -> None:
    """As `waiting`; so do b, whose ID nobody chose, and c."""
    waiting(w)
    w.run(w.scheduling("b"))
    w.run(w.scheduling("c", job_id="z"))


def retry_waiting(w: World) -> None:
    """Job a of ID x waits for its second attempt."""
    chosen_added(w)
    w.run(w.retrying_later(w.held["a"]))


def waiting_in_one(w: World) -> None:
    """Job a of ID x waits for g's second attempt; h's delivery is b."""
    held_in_both(w)
    w.run(w.retrying_later(w.held["a"], "g"))


def waiting_in_both(w: World) -> None:
    """Job a of ID x waits for the second attempts of both groups."""
    waiting_in_one(w)
    w.run(w.retrying_later(w.held["b"], "h"))


def dead_and_waiting(w: World) -> None:
    """Job a of ID x is dead in g, and waits for another attempt in h."""
    held_in_both(w)
    w.run(w.rejecting(w.held["a"], "g"))
    w.run(w.retrying_later(w.held["b"], "h"))


def dead_and_added_again(w: World) -> None:
    """Job a of ID x is dead; another of its ID waits for its time."""
    chosen_dead(w)
    w.run(w.scheduling("b", job_id="x"))


def orphans(w: World) -> None:
    """A job waits, and three things that are no job: a time, an entry, and one that cannot be unpacked."""
    waiting(w)
    w.orphan("g/lost", None)
    w.orphan("/untimed", msgspec.msgpack.encode(["job", body("untimed"), "sq:id", "untimed"]), timed=False)
    w.orphan("h/malformed", b"no entry")


# --- plans --------------------------------------------------------------------------------


def promote(w: World) -> Plan[Any]:
    return w.promoting()


def promote_singly(w: World) -> Plan[Any]:
    """One job a request."""
    return w.promoting(each=1)


def replace(marker: str) -> Callable[[World], Plan[Any]]:
    return lambda w: w.scheduling(marker, job_id="x", replace=True)


def replace_now(w: World) -> Plan[Any]:
    return w.adding("now", job_id="x", replace=True)


def on_x(verb: Callable[..., Plan[Any]], group: str = "", **more: Any) -> Callable[[World], Plan[Any]]:
    return lambda w: verb(w, "x", group, **more)


retry = held(World.retrying_later)
cancel, reschedule, run_now = map(on_x, (World.cancelling, World.rescheduling, World.running_now))


def add(w: World) -> Plan[Any]:
    return w.adding("p", job_id="x")


def schedule(marker: str) -> Callable[[World], Plan[Any]]:
    return lambda w: w.scheduling(marker, job_id="x")


def read_and_retry(consumer: str) -> Callable[[World], Plan[Any]]:
    return lambda w: w.reading(consumer, then=w.retrying_later)


def redrive(w: World) -> Plan[Any]:
    return w.redriving(*w.letters())


def read_that_looks(w: World) -> Plan[Any]:
    """As a hand-written loop does: what is due is moved along the way."""
    return w.reading("R", then=w.committing, look_for_pause=True)


# --- scenarios ----------------------------------------------------------------------------


def meeting(
    name: str,
    seed: Callable[[World], None],
    *rows: str,
    modes: tuple[Mode, ...] = (Mode.CRASH, Mode.RESEND),
    groups: tuple[str, ...] = ("g",),
    late: tuple[str, ...] = (),
    options: dict[str, Any] | None = None,
    effects: bool = True,
    trims: bool = False,
    **plans: Callable[[World], Plan[Any]],
) -> Scenario:
    return Scenario(
        name=f"two groups: {name}" if len(groups) > 1 else name, seed=seed, plans=plans, groups=groups, late=late,
        options=options or {}, effects=effects, trims=trims, modes=modes, rows=rows,
    )  # fmt: skip


ONE_GROUP = (
    meeting("promote | promote | promote", three_waiting, "Q3", A=promote, B=promote, C=promote),
    meeting("promote one by one | promote one by one", three_waiting, "Q3", A=promote_singly, B=promote_singly),
    meeting("promote | promote one by one | read", three_waiting, "Q3", A=promote, B=promote_singly,
            R=lambda w: w.reading("R", count=3, then=w.acking), effects=False, modes=CRASH),
    meeting("promote | read that looks", waiting, "Q3", A=promote, R=read_that_looks, modes=CRASH),
    meeting("retry | reclaim | promote", chosen_added, "C09", "C18", old=retry, B=reclaimer("B", run=True), P=promote),
    meeting("retry | reclaim, retry | promote", one_held, "C09", "C18", old=retry, P=promote,
            B=lambda w: w.reclaiming("B", then=w.retrying_later)),
    meeting("retry | commit of the same delivery | promote", chosen_added, "C09", old=retry, P=promote,
            again=held(World.committing)),
    meeting("retry | retry of a job taken over | promote", taken_over, "C09", old=retry,
            new=held(World.retrying_later, "new"), P=promote),
    meeting("retry | reject | promote", chosen_added, "C09", old=retry, X=held(World.rejecting), P=promote),
    meeting("retry | release | promote", chosen_added, "C09", old=retry, X=held(World.releasing), P=promote),
    meeting("retry | promote | read, retry", chosen_added, "C09", "R3", old=retry, P=promote, R=read_and_retry("R"),
            modes=CRASH),
    meeting("retry | run now | promote", chosen_added, "Q5", "R3", old=retry, N=run_now, P=promote),
    meeting("retry | cancel | promote", chosen_added, "Q5", old=retry, C=cancel, P=promote),
    meeting("retry | replace | promote", chosen_added, "Q4", old=retry, X=replace("b"), P=promote),
    meeting("retry | reschedule | promote", chosen_added, "Q5", old=retry, X=reschedule, P=promote),
    meeting("retry of a chosen ID | add | promote", chosen_added, "Q4", old=retry, A=add, P=promote),
    meeting("retry of a plain producer's ID | add | read", chosen_held, "C09", old=retry, A=add, R=reader("R", 2),
            modes=CRASH),
    meeting("retry | read of a duplicate, retry | promote", duplicate_unread, "C09", old=retry, R=read_and_retry("R"),
            P=promote, modes=CRASH),
    meeting("last retry | reclaim, last retry", one_held, "C09", "C18", old=retry,
            B=lambda w: w.reclaiming("B", then=w.retrying_later), options={"retry": Backoff.constant(1, limit=0)}),
    meeting("missing body | retry | reclaim | promote", one_missing, "S6", old=retry, B=reclaimer("B"), P=promote),
    meeting("run now | promote | read", retry_waiting, "Q5", "R3", N=run_now, P=promote, R=reader("R")),
    meeting("run now | run now | promote", retry_waiting, "Q5", "R3", N=run_now, M=run_now, P=promote),
    meeting("run now | cancel | read", retry_waiting, "Q5", N=run_now, C=cancel, R=reader("R")),
    meeting("run now | reschedule | read", waiting, "Q5", N=run_now, X=reschedule, R=reader("R")),
    meeting("run now | replace | promote", waiting, "Q4", "Q5", N=run_now, X=replace("b"), P=promote),
    meeting("cancel | promote | read", retry_waiting, "Q1", "Q5", C=cancel, P=promote, R=reader("R")),
    meeting("cancel of what waits | promote | cancel", waiting, "Q1", "Q5", P=promote, D=cancel,
            C=on_x(World.cancelling, only_scheduled=True)),
    meeting("cancel of what waits | cancel | add of the same ID", waiting, "Q1", C=cancel, D=cancel, A=add, modes=CRASH),
    meeting("replace | promote | read", waiting, "Q4", X=replace("b"), P=promote, R=reader("R", 2)),
    # Not sent again: the latest stands, and that is it then.
    meeting("replace | replace | promote", waiting, "Q4", X=replace("b"), Y=replace("c"), P=promote, modes=CRASH),
    meeting("replace with what is due | promote | read", retry_waiting, "Q4", X=replace_now, P=promote,
            R=reader("R", 2)),
    meeting("replace | cancel | promote", waiting, "Q4", X=replace("b"), C=cancel, P=promote, modes=CRASH),
    meeting("reschedule | promote | cancel", waiting, "Q5", X=reschedule, P=promote, C=cancel),
    meeting("schedule | schedule of one ID | promote", nothing, "Q4", A=schedule("a"), B=schedule("b"), P=promote),
    meeting("schedule | add of one ID | read", nothing, "Q4", A=schedule("a"), B=add, R=reader("R")),
    meeting("add of the same ID | promote | read", waiting, "Q4", "I8", A=add, P=promote, R=reader("R")),
    meeting("schedule of the same ID | commit", chosen_added, "Q4", "I8", A=schedule("p"), old=held(World.committing)),
    meeting("schedule of the same ID | reject | promote", chosen_added, "Q4", A=schedule("p"), P=promote,
            old=held(World.rejecting)),
    meeting("redrive | schedule of the same ID | promote", chosen_dead, "C11", A=redrive, B=schedule("p"), P=promote),
    meeting("redrive | promote of another of its ID | read", dead_and_added_again, "C11", A=redrive, P=promote,
            R=reader("R")),
    meeting("redrive | cancel of another of its ID", dead_and_added_again, "C11", A=redrive, C=cancel, modes=CRASH),
    meeting("orphans | promote | promote one by one", orphans, "Q6", A=promote, B=promote_singly),
    meeting("orphans | promote | run now | purge", orphans, "Q6", A=promote, N=on_x(World.running_now),
            D=World.purging, modes=CRASH),
    meeting("delete | retry | promote", chosen_added, "C18", D=World.deleting, old=retry, P=promote, modes=CRASH),
    meeting("delete | promote | schedule", waiting, "C18", D=World.deleting, P=promote, A=schedule("p"), modes=CRASH),
    meeting("delete if empty | schedule | promote", nothing, "C18", D=lambda w: w.deleting(force=False),
            A=schedule("p"), P=promote, modes=CRASH),
    meeting("delete if empty | cancel | promote", waiting, "C18", D=lambda w: w.deleting(force=False), C=cancel,
            P=promote, modes=CRASH),
    meeting("create group | promote | read", waiting, "S7", K=lambda w: w.creating("k"), P=promote, R=reader("R"),
            late=("k",), modes=CRASH),
    meeting("create group behind the newest | promote | read", waiting, "S7", K=lambda w: w.creating("k", start="new"),
            P=promote, R=reader("R"), late=("k",), trims=True, modes=CRASH),
    meeting("trim | promote | commit, all kept", retry_waiting, "F15", T=World.trimming, P=promote, R=reader("R"),
            options={"retention": "keep"}, trims=True, modes=CRASH),
    meeting("result | promote | read", retry_waiting, "I8", A=lambda w: w.asking("x"), P=promote, R=reader("R")),
)  # fmt: skip
"""In one group."""

TWO_GROUPS = (
    *(
        meeting(f"{first} | {second}, promote", held_in_both, "S7", "C09", g=held(one), h=other(two), P=promote,
                groups=GROUPS, modes=CRASH if limit else (Mode.CRASH, Mode.RESEND),
                options={"retry": Backoff.constant(0, limit=limit)})
        for first, one, second, two, limit in (
            ("retry", World.retrying_later, "retry", World.retrying_later, 2),
            ("retry", World.retrying_later, "commit", World.committing, 2),
            ("retry", World.retrying_later, "reject", World.rejecting, 2),
            ("retry", World.retrying_later, "retry at once", World.retrying, 2),
            ("last retry", World.retrying_later, "last retry", World.retrying_later, 0),
        )
    ),
    meeting("retry | retry | run now", held_in_both, "S7", "R3", g=retry, h=other(World.retrying_later), N=run_now,
            groups=GROUPS),
    meeting("retry later | retry later | cancel", held_in_both, "S7", "Q5", g=retry, h=other(World.retrying_later), C=cancel,
            groups=GROUPS),
    meeting("retry | read of the other | promote", held_in_one, "S7", g=retry, P=promote, groups=GROUPS, modes=CRASH,
            R=lambda w: w.reading("R", then=w.committing, group="h")),
    meeting("run now of one | retry of the other | promote", waiting_in_one, "S7", "R3", N=run_now, P=promote,
            h=other(World.retrying_later), groups=GROUPS),
    meeting("run now of both | promote", waiting_in_both, "S7", "R3", N=run_now, M=on_x(World.running_now, "h"),
            P=promote, groups=GROUPS),
    meeting("cancel of both | promote", waiting_in_both, "S7", "Q5", C=cancel, D=on_x(World.cancelling, "h"),
            P=promote, groups=GROUPS),
    meeting("reschedule | run now of the other | promote", waiting_in_both, "S7", "Q5", X=reschedule,
            N=on_x(World.running_now, "h"), P=promote, groups=GROUPS),
    meeting("replace of both | promote | read", waiting_in_both, "S7", "Q4", X=replace("b"), P=promote,
            R=reader("R", 2), groups=GROUPS, modes=CRASH),
    meeting("replace with what is due | promote", waiting_in_both, "S7", "Q4", X=replace_now, P=promote, groups=GROUPS),
    meeting("replace with what is due | cancel", waiting_in_one, "S7", "Q4", "Q5", X=replace_now, C=cancel,
            groups=GROUPS),
    meeting("promote | promote one by one", waiting_in_both, "S7", "Q3", A=promote, B=promote_singly, groups=GROUPS),
    meeting("promote | pass over | read", waiting_in_both, "S7", P=promote, groups=GROUPS, modes=CRASH,
            G=lambda w: w.reading("G", count=5, then=w.committing),
            H=lambda w: w.reading("H", count=5, then=w.committing, group="h")),
    meeting("promote of a job of all | cancel of the other", waiting, "S7", "Q5", P=promote,
            C=on_x(World.cancelling, "h"), R=reader("R"), groups=GROUPS, modes=CRASH),
    meeting("run now of a job of all by both", waiting, "S7", "Q5", N=run_now, M=on_x(World.running_now, "h"),
            P=promote, groups=GROUPS),
    meeting("result of the other | promote | commit", waiting_in_one, "S7", "I8", P=promote,
            A=lambda w: w.asking("x", "h"), h=other(World.committing), groups=GROUPS, modes=CRASH),
    meeting("add of the same ID | commit | promote", waiting_in_one, "S7", "Q4", A=add, P=promote,
            h=other(World.committing), groups=GROUPS, modes=CRASH),
    meeting("redrive | promote of the other | cancel", dead_and_waiting, "S7", "C11", A=redrive, P=promote,
            C=on_x(World.cancelling, "h"), groups=GROUPS, modes=CRASH),
    meeting("redrive of both | schedule of the same ID", dead_in_both, "S7", "C11", A=redrive, B=schedule("p"),
            groups=GROUPS, modes=CRASH),
    meeting("drop group | retry | promote", held_in_both, "S7", "C86", D=lambda w: w.dropping("h"), P=promote,
            h=other(World.retrying_later), groups=GROUPS, effects=False, trims=True, modes=CRASH),
    meeting("drop group | promote | read", waiting_in_both, "S7", "C86", D=lambda w: w.dropping("h"), P=promote,
            R=reader("R", 2), groups=GROUPS, trims=True, modes=CRASH),
    meeting("drop group | cancel, run now in it", waiting_in_both, "S7", "C86", D=lambda w: w.dropping("h"),
            C=on_x(World.cancelling, "h"), N=on_x(World.running_now, "h"), groups=GROUPS, trims=True, modes=CRASH),
    meeting("orphans | promote | promote", orphans, "S7", "Q6", A=promote, B=promote, groups=GROUPS),
)  # fmt: skip
"""In two groups: the next attempt of one is nothing to the other."""

MEETINGS: tuple[Scenario, ...] = (*ONE_GROUP, *TWO_GROUPS)
"""Operations that can meet."""

ALONE: tuple[Scenario, ...] = (
    alone("schedule", nothing, lambda w: w.scheduling("a"), "Q1"),
    alone("schedule with an ID", nothing, schedule("a"), "Q1", "C02"),
    alone("schedule what is due", nothing, lambda w: w.adding("a", job_id="x", delay_ms=0), "Q1", "C02"),
    alone("schedule of an ID that is ready", chosen_unread, schedule("p"), "Q4", "C02"),
    alone("schedule many", nothing, lambda w: w.adding_many("a", "b", "c", delay_ms=1000), "Q1"),
    alone("schedule many with IDs", nothing, lambda w: w.adding_many("a", "b", chosen=True, delay_ms=1000), "Q1"),
    alone("replace", waiting, replace("b"), "Q4", "C02"),
    alone("replace of a retry", retry_waiting, replace("b"), "Q4", "C02"),
    alone("replace with what is due", retry_waiting, replace_now, "Q4", "C02"),
    alone("replace of what is ready", chosen_unread, replace("b"), "Q4"),
    alone("replace of what is held", chosen_added, replace("b"), "Q4"),
    alone("reschedule", waiting, reschedule, "Q5"),
    alone("reschedule of what is held", chosen_added, reschedule, "Q5"),
    alone("reschedule to now", waiting, on_x(World.rescheduling, delay_ms=0), "Q5"),
    alone("promote", three_waiting, promote, "Q3"),
    alone("promote one by one", three_waiting, promote_singly, "Q3"),
    alone("promote a retry", retry_waiting, promote, "Q3", "C09"),
    alone("promote nothing", two_unread, promote, "Q3"),
    alone("promote without a group", waiting_without_group, promote, "Q3", "F14"),
    alone("promote of orphans", orphans, promote_singly, "Q6"),
    alone("run now", waiting, run_now, "R3"),
    alone("run now of a retry", retry_waiting, run_now, "R3"),
    alone("run now of what is held", chosen_added, run_now, "Q5"),
    alone("run now of what is lost", orphans, lambda w: w.running_now("lost"), "Q6"),
    alone("cancel of what waits", waiting, cancel, "Q1"),
    alone("cancel of what waits only", waiting, on_x(World.cancelling, only_scheduled=True), "Q1"),
    alone("cancel of what waits only, of what is held", chosen_added, on_x(World.cancelling, only_scheduled=True), "Q1"),
    alone("result of what waits", retry_waiting, lambda w: w.asking("x"), "I8"),
    alone("retry later", one_held, retry, "C09", "C02"),
    alone("retry later of a chosen ID", chosen_added, retry, "C09", "C02"),
    alone("retry later of a duplicate", duplicate_unread, retry, "C09", "C02"),
    alone("retry later of missing", one_missing, retry, "S6", "C02"),
    alone("last retry later", one_held, retry, "S6", "C02", options={"retry": Backoff.constant(1, limit=0)}),
    alone("read that looks", three_waiting, read_that_looks, "Q3"),
    alone("redrive while another of its ID waits", dead_and_added_again, redrive, "C11"),
    alone("two groups: retry later", held_in_both, retry, "S7", groups=GROUPS),
    alone("two groups: promote", waiting_in_both, promote, "S7", groups=GROUPS),
    alone("two groups: replace of both", waiting_in_both, replace("b"), "S7", "Q4", groups=GROUPS),
)  # fmt: skip
"""Every operation by itself."""
