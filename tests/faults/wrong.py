"""Plans that are wrong on purpose, and what must be said of each: the explorer's own test."""

from __future__ import annotations

from typing import Any

import msgspec
from faults.explorer import Mode
from faults.scenarios import GROUPS, chosen_added, held, nothing, one_held, reader, reclaimer
from faults.several_groups import held_in_both
from faults.timers import promote, retry_waiting, waiting
from faults.view import order
from faults.world import GROUP, Scenario, World, body

from streamq._flows.recovery import NoteState
from streamq._ops import consumers
from streamq._requests import Arg, Command, Plan, Reply, Transaction, ask

# --- of a job's own life ------------------------------------------------------------------


def _raw(key: str, *args: Arg) -> Command[Reply]:
    return Command(args, (key,), lambda reply: reply)


def _dead(w: World) -> tuple[Command[Any], Command[Any]]:
    """The letter, and its count."""
    fields = ("dead:reason", "deliveries", "dead:source", w.held["a"].entry_id, "dead:group", GROUP)
    letter = _raw(w.keys.dead, "XADD", w.keys.dead, "*", *fields, "job", body("a"))
    return letter, _raw(w.keys.meta, "HINCRBY", w.keys.meta, f"dead:{GROUP}", 1)


def _xack(w: World) -> Command[Any]:
    return _raw(w.keys.stream, "XACK", w.keys.stream, GROUP, w.held["a"].entry_id)


def bare_move(w: World) -> Plan[None]:
    """MULTI{XADD, XACK, XDEL}EXEC, which nothing guards."""
    remove = _raw(w.keys.stream, "XDEL", w.keys.stream, w.held["a"].entry_id)
    yield Transaction((*_dead(w), _xack(w), remove))


def ack_then_add(w: World) -> Plan[None]:
    yield from ask(_xack(w))
    yield Transaction(_dead(w))


def add_then_ack(w: World) -> Plan[None]:
    yield Transaction(_dead(w))
    yield from ask(_xack(w))


def bare_ack(w: World) -> Plan[None]:
    yield from ask(_xack(w))


def effect_then_ack(w: World) -> Plan[None]:
    key = w.keys.data("receipts")
    yield from ask(_raw(key, "HINCRBY", key, f"{GROUP}/a", 1))
    yield from w.acking(w.held["a"])


def retry_by_hand(w: World) -> Plan[None]:
    yield from ask(_raw(w.keys.stream, "XADD", w.keys.stream, "*", "job", body("a")))
    yield from ask(_xack(w))


def unfenced_claim(w: World) -> Plan[None]:
    """List, then claim: the count that was listed may be old by then."""
    key, entry_id = w.keys.stream, w.held["a"].entry_id
    rows = yield from ask(_raw(key, "XPENDING", key, GROUP, "-", "+", 10))
    if rows:
        yield from ask(_raw(key, "XCLAIM", key, GROUP, "B", 0, entry_id))
        w.hand_out(entry_id, "B", rows[0][3] + 1)


def unfenced_starts(w: World) -> Plan[None]:
    """Claim uncharged, then count the starts of whatever was claimed, whoever has it by then."""
    key = w.keys.stream
    jobs = yield from w.claiming("A")
    for job in jobs:
        job.deliveries += 1
        yield from ask(_raw(key, "XCLAIM", key, GROUP, "A", 0, job.entry_id, "RETRYCOUNT", job.deliveries, "JUSTID"))
        w._hand_out(job, GROUP, started=True)


# --- of operators and maintenance ---------------------------------------------------------


def one_unread(w: World) -> None:
    w.add("a")


def one_dead(w: World) -> None:
    one_held(w)
    w.run(w.rejecting(w.held["a"]))


def one_finished(w: World) -> None:
    """With `retention="keep"`."""
    one_held(w)
    w.run(w.committing(w.held["a"]))


def large_dead_twice(w: World) -> None:
    """A job of too many fields to copy, dead in both groups: two letters refer to its entry."""
    w.add_large("a")
    for group in ("g", "h"):
        w.run(w.reading("old", group=group))


def _last(w: World) -> Plan[list[str]]:
    """Where each group is, by XINFO."""
    rows = yield from ask(_raw(w.keys.stream, "XINFO", "GROUPS", w.keys.stream))
    return [dict(zip(row[::2], row[1::2], strict=True))[b"last-delivered-id"].decode() for row in rows]


def look_then_cancel(w: World) -> Plan[None]:
    """Two requests: whether it was read, then XDEL."""
    entry_id = next(iter(w.view.entries), None)
    if entry_id is None:
        return
    if order((yield from _last(w))[0]) < order(entry_id):
        w._allow("cancel", "a")
        if (yield from ask(_raw(w.keys.stream, "XDEL", w.keys.stream, entry_id))):
            w.check_cancelled("a")


def _again(w: World) -> Transaction[Any]:
    add = _raw(w.keys.stream, "XADD", w.keys.stream, "*", "job", body("a"), "sq:group", GROUP)
    return Transaction((add,))


def _out(w: World) -> Command[Any]:
    [letter_id] = w.view.letters
    w._allow("purge", letter_id)
    return _raw(w.keys.dead, "XDEL", w.keys.dead, letter_id)


def redrive_add_first(w: World) -> Plan[None]:
    yield _again(w)
    yield from ask(_out(w))


def redrive_out_first(w: World) -> Plan[None]:
    """Its caller would redrive it later, if it lived."""
    [letter_id] = w.view.letters
    yield from ask(_raw(w.keys.dead, "XDEL", w.keys.dead, letter_id))
    yield _again(w)


def look_then_prune(w: World) -> Plan[None]:
    """Two requests: who holds nothing, then XGROUP DELCONSUMER."""
    key = w.keys.stream
    rows = yield from ask(_raw(key, "XINFO", "CONSUMERS", key, GROUP))
    for row in rows:
        consumer = dict(zip(row[::2], row[1::2], strict=True))
        if consumer[b"pending"] == 0:
            yield from ask(_raw(key, "XGROUP", "DELCONSUMER", key, GROUP, consumer[b"name"]))


def look_then_leave(w: World) -> Plan[None]:
    """Two requests: what a dead process holds, then XGROUP DELCONSUMER."""
    key = w.keys.stream
    if not (yield from consumers.pending(w.spec(), "R")):
        yield from ask(_raw(key, "XGROUP", "DELCONSUMER", key, GROUP, "R"))


def consumer_without_jobs(w: World) -> None:
    one_unread(w)
    w.raw(("XGROUP", "CREATECONSUMER", w.keys.stream, GROUP, "R"))


def look_then_trim(w: World) -> Plan[None]:
    """Two requests: how far all groups are, then XTRIM."""
    furthest_behind = min((yield from _last(w)), key=order)
    ms, seq = order(furthest_behind)
    yield from ask(_raw(w.keys.stream, "XTRIM", w.keys.stream, "MINID", f"{ms}-{seq + 1}"))


def purge_with_entry(w: World) -> Plan[None]:
    """Whose entry another letter refers to."""
    letter_id, letter = next(iter(w.view.letters.items()))
    w._allow("purge", letter_id)
    out = _raw(w.keys.dead, "XDEL", w.keys.dead, letter_id)
    yield Transaction((out, _raw(w.keys.stream, "XDEL", w.keys.stream, letter.source)))


def look_then_add(w: World) -> Plan[None]:
    """Two requests: XLEN, then XADD."""
    if (yield from ask(_raw(w.keys.stream, "XLEN", w.keys.stream))) < 1:
        yield from ask(_raw(w.keys.stream, "XADD", w.keys.stream, "*", "job", body(w._actor)))


def read_heedless(w: World) -> Plan[None]:
    """A read that does not look whether the stream is paused, and says that it did."""
    paused = w.view.paused
    found = yield from w.reading("R")
    w.check_paused("R", paused, found)


# --- of jobs that wait --------------------------------------------------------------------


def _fields(group: str, attempt: int) -> list[str]:
    own = ["sq:group", group] if group else []
    return ["job", body("a"), "sq:id", "x", "sq:attempt", str(attempt), *own]


def _put_timer(w: World, timer: str, group: str, attempt: int) -> tuple[Command[Any], Command[Any]]:
    packed = msgspec.msgpack.encode(_fields(group, attempt))
    scheduled, jobs = w.keys.scheduled, w.keys.jobs
    return _raw(jobs, "HSET", jobs, timer, packed), _raw(scheduled, "ZADD", scheduled, 1, timer)


def _drop_timer(w: World, timer: str) -> tuple[Command[Any], Command[Any]]:
    scheduled, jobs = w.keys.scheduled, w.keys.jobs
    return _raw(scheduled, "ZREM", scheduled, timer), _raw(jobs, "HDEL", jobs, timer)


def _settle(w: World, name: str, group: str) -> tuple[Command[Any], Command[Any]]:
    """The acknowledgement of a retry, and its count."""
    stream, meta = w.keys.stream, w.keys.meta
    entry_id = w.held[name].entry_id
    return _raw(stream, "XACK", stream, group, entry_id), _raw(meta, "HINCRBY", meta, f"retried:{group}", 1)


def _ready(w: World, group: str, attempt: int) -> Command[Any]:
    return _raw(w.keys.stream, "XADD", w.keys.stream, "*", *_fields(group, attempt))


def schedule_then_ack(w: World) -> Plan[None]:
    yield Transaction(_put_timer(w, "g/x", "g", 2))
    yield Transaction(_settle(w, "a", "g"))


def ack_then_schedule(w: World) -> Plan[None]:
    yield Transaction(_settle(w, "a", "g"))
    yield Transaction(_put_timer(w, "g/x", "g", 2))


def time_then_entry(w: World) -> Plan[None]:
    """The retry is settled with its time, its entry is the next request."""
    entry, time = _put_timer(w, "g/x", "g", 2)
    yield Transaction((time, *_settle(w, "a", "g")))
    yield from ask(entry)


def retry_uncounted(w: World) -> Plan[None]:
    """In one step, but with the attempt that it had."""
    yield Transaction((*_put_timer(w, "g/x", "g", 1), *_settle(w, "a", "g")))


def retry_of_all(name: str, group: str) -> Any:
    """In one step, but the timer is called by the job's ID only."""
    return lambda w: _retry_of_all(w, name, group)


def _retry_of_all(w: World, name: str, group: str) -> Plan[None]:
    yield Transaction((*_put_timer(w, "/x", group, 2), *_settle(w, name, group)))


def retry_for_all(w: World) -> Plan[None]:
    """In one step, but nothing says that it is one group's."""
    yield Transaction((*_put_timer(w, "g/x", "", 2), *_settle(w, "a", "g")))


def _due(w: World) -> Plan[bool]:
    """What a promoter sees: whether the job waits."""
    return (yield from ask(_raw(w.keys.scheduled, "ZSCORE", w.keys.scheduled, "/x"))) is not None


def promote_out_first(w: World) -> Plan[None]:
    if (yield from _due(w)):
        yield Transaction(_drop_timer(w, "/x"))
        yield from ask(_ready(w, "", 1))


def promote_add_first(w: World) -> Plan[None]:
    if (yield from _due(w)):
        yield from ask(_ready(w, "", 1))
        yield Transaction(_drop_timer(w, "/x"))


def promote_unchecked(w: World) -> Plan[None]:
    """In one step, but whether it waits still is what the request before has seen."""
    if (yield from _due(w)):
        yield Transaction((_ready(w, "", 1), *_drop_timer(w, "/x")))


def run_beside(w: World) -> Plan[None]:
    """It runs now, and when its time comes."""
    yield from ask(_ready(w, "g", 2))


def cancel_unchecked(w: World) -> Plan[None]:
    """Whether there was something to cancel it does not ask."""
    w._allow("cancel", "x")
    yield Transaction(_drop_timer(w, "g/x"))
    w.check_cancelled("x")


def reschedule_unchecked(w: World) -> Plan[None]:
    yield from ask(_raw(w.keys.scheduled, "ZADD", w.keys.scheduled, 2, "/x"))


def replace_unchecked(w: World) -> Plan[None]:
    """Without a look whether it waits still."""
    w._allow("replace", "x")
    yield Transaction(_put_timer(w, "/x", "", 1))


def _wrong(
    name: str,
    said: str,
    *rows: str,
    seed: Any,
    groups: tuple[str, ...] = (GROUP,),
    late: tuple[str, ...] = (),
    options: Any = None,
    **plans: Any,
) -> tuple[Scenario, str]:
    scenario = Scenario(
        name=name, seed=seed, plans=plans, options=options or {}, groups=groups, late=late, modes=(Mode.CRASH,), rows=rows,
    )  # fmt: skip
    return scenario, said


UPKEEP: tuple[tuple[Scenario, str], ...] = (
    _wrong("cancel in two requests | read", "may run still", "S7", seed=one_unread, A=look_then_cancel, R=reader("R")),
    _wrong("redrive: XADD, then XDEL", "more than one copy", "C11", "C18", seed=one_dead, A=redrive_add_first),
    _wrong("redrive: XDEL, then XADD", "lost", "C11", "C18", seed=one_dead, A=redrive_out_first),
    _wrong("prune in two requests | read", "lost", "F15", "C74", seed=consumer_without_jobs, A=look_then_prune,
           R=lambda w: w.reading("R")),
    _wrong("trim in two requests | create group", "removed before k", "F15", seed=one_finished, A=look_then_trim,
           B=lambda w: w.creating("k"), late=("k",), options={"retention": "keep"}),
    _wrong("purge of a letter and its entry", "which is gone", "F13", seed=large_dead_twice, A=purge_with_entry,
           groups=("g", "h")),
    _wrong("give back of a begun job as if it was only read", "its count says 0", "C04", seed=one_held,
           A=lambda w: w.giving_back("old", a=(1, NoteState.READ))),
    _wrong("give back | leave in two requests", "lost", "C26", seed=one_unread, A=look_then_leave,
           R=lambda w: w.losing_read("R")),
    _wrong("max_ready in two requests", "max_ready is 1", "C86", seed=nothing, A=look_then_add, B=look_then_add,
           options={"max_ready": 1}),
    _wrong("pause | heedless read", "while the stream was paused", "C86", seed=one_unread, R=read_heedless,
           A=lambda w: w.pausing()),
)  # fmt: skip
"""Of operators and maintenance."""

TIMERS: tuple[tuple[Scenario, str], ...] = (
    _wrong("retry: schedule, then ack", "more than one copy", "C09", "C18", seed=chosen_added, A=schedule_then_ack),
    _wrong("retry: ack, then schedule", "lost", "C18", seed=chosen_added, A=ack_then_schedule),
    _wrong("retry: the time, then the entry", "lost", "C18", "Q6", seed=chosen_added, A=time_then_entry),
    _wrong("retry that is not counted", "its attempt should be 2", "C09", seed=chosen_added, A=retry_uncounted),
    _wrong("timers called by job ID only", "lost", "S7", "C09", seed=held_in_both, A=retry_of_all("a", "g"),
           B=retry_of_all("b", "h"), groups=GROUPS),
    _wrong("retry of one group for all", "more than one copy", "S7", seed=held_in_both, A=retry_for_all, groups=GROUPS),
    _wrong("promote: ZREM, then XADD", "lost", "Q3", seed=waiting, A=promote_out_first),
    _wrong("promote: XADD, then ZREM", "more than one copy", "Q3", seed=waiting, A=promote_add_first),
    _wrong("promote of what waited | promote", "more than one copy", "Q3", seed=waiting, A=promote_unchecked,
           B=promote_unchecked),
    _wrong("promote of what waited | run now, read", "was done and is there again", "Q3", "R3", seed=waiting,
           A=promote_unchecked, N=lambda w: w.running_now("x"), R=reader("R")),
    _wrong("run now that leaves the timer", "more than one copy", "R3", seed=retry_waiting, A=run_beside),
    _wrong("cancel without a check | promote", "may run still", "Q1", "Q5", seed=retry_waiting, A=cancel_unchecked,
           P=promote),
    _wrong("reschedule without a check | promote", "a time without an entry", "Q5", seed=waiting,
           A=reschedule_unchecked, P=promote),
    _wrong("replace without a check | promote", "more than one copy", "Q4", "Q5", seed=waiting, A=replace_unchecked,
           P=promote),
)  # fmt: skip
"""Of jobs that wait."""


WRONG: tuple[tuple[Scenario, str], ...] = (
    *UPKEEP,
    *TIMERS,
    (
        Scenario(
            name="bare MULTI | bare MULTI",
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
            seed=one_held,
            plans={"A": unfenced_claim, "B": reclaimer("B")},
            modes=(Mode.CRASH,),
            rows=("F1",),
        ),
        "which never was true",
    ),
    (
        Scenario(
            name="claim, then XCLAIM to start | reclaim",
            seed=one_held,
            plans={"A": unfenced_starts, "B": reclaimer("B")},
            modes=(Mode.CRASH,),
            rows=("F9",),
        ),
        "was started 3 times",
    ),
)
"""Scenarios of plans that are wrong, and what must be said of each."""
