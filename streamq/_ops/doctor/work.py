"""Work that stands still: groups nobody reads, deliveries of the dead, timers that lost a half. No payload is shown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from streamq._ops.doctor.findings import Finding, is_denied, many, streamq
from streamq._ops.doctor.layout import Kinds
from streamq._ops.doctor.workers import Beats
from streamq._requests import Command, Pipeline, Plan, Reply, ask_each, consumers_of, entry_order, groups_of, text
from streamq._text import duration
from streamq.keys import NAME, Keys
from streamq.options import StreamOptions

LISTED: Final = 2_000
"""Most consumers of a group that are listed: some milliseconds of the server's time."""

GROUPS: Final = 100
"""Most groups of a stream that are looked into."""

EXACT: Final = 1_000
"""Most timers that are all looked at, one by one."""

SAMPLED: Final = 200
"""Of more of them, and of a group's pending entries, so many."""

HEARD_MS: Final = 60_000
"""A consumer that does not beat is alive if the server heard of it within so long, or a lease if that is longer."""

LEAKED_MS: Final = 600_000
"""A consumer that holds nothing and was not heard of for so long is what workers prune."""

LEAKED: Final = 20
"""So many of those are worth a note; a hundred times as many are a problem: each costs memory and every look at the group."""

OVERDUE_S: Final = 10.0
"""What was due so long ago should have been moved."""

_CRASHED_MS: Final = 120_000
"""Beyond its lease a job that crashed is left alone for a minute at most; then a while for who takes it."""

_LEASES: Final = 3
"""After so many leases a delivery should have been taken over."""

_DEFAULT_LEASE_MS: Final = StreamOptions().lease_ms

_RUN: Final = "streamq run MODULE:WORKER"


class Late(NamedTuple):
    """Of a group's first pending entries, those that should have been taken over, and how long the first was silent."""

    deliveries: int
    idle_ms: int


@dataclass(slots=True)
class Group:
    """A consumer group."""

    name: str
    pending: int
    consumers: int
    is_listed: bool
    live: int
    """Consumers that were heard of, and workers that beat."""
    leaked: int
    unread_ms: int | None
    """When the first entry that it has not read was added, 0 if nobody knows; None if it has read all."""
    late: Late | None
    lease_ms: int | None


@dataclass(slots=True)
class Work:
    """A stream's work, as far as the user may see it."""

    now_ms: int
    length: int = 0
    dead: int = 0
    scheduled: int = 0
    first_due_ms: int | None = None
    is_paused: bool = False
    paused_ms: int | None = None
    orphans: int = 0
    bodiless: int = 0
    untimed: int = 0
    is_sampled: bool = False
    groups: list[Group] = field(default_factory=list)
    hidden: set[str] = field(default_factory=set)
    """Commands that the user may not run, so that something is missing here."""


def look(keys: Keys, kinds: Kinds, beats: Beats) -> Plan[Work]:
    """The stream's work. Four requests, and up to three a group; none reads more than a thousand rows, or one entry's body."""
    work = Work(beats.now_ms)
    answers = yield from _figures(keys, kinds, work)
    work.length, work.dead, work.scheduled = (answers.get(name) or 0 for name in ("length", "dead", "scheduled"))
    work.first_due_ms = answers.get("first")
    paused, orphans = answers.get("meta") or (None, None)
    work.is_paused = paused is not None
    work.orphans = int(orphans) if orphans and orphans.isdigit() and len(orphans) <= 15 else 0  # noqa: PLR2004  # no number of ours
    work.paused_ms = answers.get("wake") if work.is_paused else None
    yield from _timers(keys, kinds, work)
    for row in (answers.get("groups") or [])[:GROUPS]:
        work.groups.append((yield from _group(keys, row, beats, work)))
    return work


def _figures(keys: Keys, kinds: Kinds, work: Work) -> Plan[dict[str, Any]]:
    stream, dead, timers, meta, wake = keys.stream, keys.dead, keys.scheduled, keys.meta, keys.wake
    asked = {
        "length": Command(("XLEN", stream), (stream,), int),
        "groups": groups_of(stream),
        "dead": Command(("XLEN", dead), (dead,), int),
        "scheduled": Command(("ZCARD", timers), (timers,), int),
        "first": Command(("ZRANGE", timers, 0, 0, "WITHSCORES"), (timers,), _due),
        "meta": Command(("HMGET", meta, "paused", "orphans"), (meta,), tuple),
        "wake": Command(("XREVRANGE", wake, "+", "-", "COUNT", 1), (wake,), _paused_at),
    }
    asked = {
        name: command for name, command in asked.items() if kinds.may_be(command.keys[0], keys.kinds[command.keys[0]])
    }
    return (yield from _ask(asked, work))


def _ask(asked: dict[str, Command[Any]], work: Work) -> Plan[dict[str, Any]]:
    """One write; what failed is left out, and noted if that is for a missing permission."""
    if not asked:
        return {}
    answers = yield from ask_each(Pipeline(tuple(asked.values())))
    for command, answer in zip(asked.values(), answers, strict=True):
        if is_denied(answer):
            words = command.args[: 2 if command.args[0] == "XINFO" else 1]
            work.hidden.add(" ".join(word for word in words if isinstance(word, str)))
    named = zip(asked, answers, strict=True)
    return {name: answer for name, answer in named if not isinstance(answer, Exception)}


def _group(keys: Keys, row: dict[str, Any], beats: Beats, work: Work) -> Plan[Group]:
    stream, name = keys.stream, row["name"]
    last = text(row["last-delivered-id"])
    asked: dict[str, Command[Any]] = {}
    if row["consumers"] <= LISTED:
        asked["consumers"] = consumers_of(stream, name)
    if row["pending"]:
        asked["pending"] = Command(("XPENDING", stream, name, "-", "+", SAMPLED), (stream,), list)
    if entry_order(last) < (2**64 - 1, 2**64 - 1):  # else there is nothing behind it, and the server refuses to look
        asked["unread"] = Command(("XRANGE", stream, f"({last}", "+", "COUNT", 1), (stream,), _first_added)
    answers = yield from _ask(asked, work)
    consumers = answers.get("consumers") or []
    group = text(name)
    lease_ms = beats.lease_ms(group)
    idle = {text(one["name"]): one for one in consumers}
    lease = lease_ms or _DEFAULT_LEASE_MS
    heard_ms = max(HEARD_MS, lease)
    live = {one for one, said in idle.items() if said["idle"] <= heard_ms or beats.is_live(one)}
    of_group = {group} if consumers else {group, None}  # who does not say its group counts where that may be
    live |= {one for one, about in beats.live.items() if about.group in of_group}
    leaked = [
        one for one, said in idle.items() if said["pending"] == 0 and said["idle"] >= LEAKED_MS and one not in live
    ]
    late_ms = max(_LEASES * lease, lease + (_CRASHED_MS if live else 0))
    late = [idle_ms for _, _, idle_ms, _ in answers.get("pending") or [] if idle_ms > late_ms]
    return Group(
        name=group,
        pending=row["pending"],
        consumers=row["consumers"],
        is_listed="consumers" in answers,
        live=len(live),
        leaked=len(leaked),
        unread_ms=answers.get("unread"),
        late=Late(len(late), max(late)) if late else None,
        lease_ms=lease_ms,
    )


def _timers(keys: Keys, kinds: Kinds, work: Work) -> Plan[None]:
    """Look for times without an entry, and entries without a time: the first times, and all entries or some at random."""
    if not kinds.may_be(keys.scheduled, "zset") or not kinds.may_be(keys.jobs, "hash"):
        return
    times, jobs = keys.scheduled, keys.jobs
    size = yield from _ask({"entries": Command(("HLEN", jobs), (jobs,), int)}, work)
    entries = size.get("entries", 0)
    if not work.scheduled and not entries:
        return
    work.is_sampled = max(work.scheduled, entries) > EXACT
    all_or_some = ("HRANDFIELD", jobs, SAMPLED) if work.is_sampled else ("HKEYS", jobs)
    last = SAMPLED - 1 if work.is_sampled else EXACT
    found = yield from _ask(
        {
            "timed": Command(("ZRANGE", times, 0, last), (times,), list),
            "stored": Command(all_or_some, (jobs,), list),
        },
        work,
    )
    timed, stored = found.get("timed", []), found.get("stored", [])
    without_entry = yield from _absent(timed, _has_entry(jobs), _has_time(times))
    without_time = yield from _absent(stored, _has_time(times), _has_entry(jobs))
    work.bodiless, work.untimed = len(without_entry), len(without_time)


def _has_entry(jobs: str) -> Any:
    return lambda member: Command(("HEXISTS", jobs, member), (jobs,), bool)


def _has_time(times: str) -> Any:
    return lambda member: Command(("ZSCORE", times, member), (times,), lambda reply: reply is not None)


def _absent(members: Sequence[bytes], other: Any, own: Any) -> Plan[list[bytes]]:
    """Members that lack the other half, and still have their own when that is known: what has just moved on has neither."""
    if not members:
        return []
    has = yield from ask_each(Pipeline(tuple(other(member) for member in members)))
    lacking = [member for member, answer in zip(members, has, strict=True) if answer is False]
    if not lacking:
        return []
    still = yield from ask_each(Pipeline(tuple(own(member) for member in lacking)))
    return [member for member, answer in zip(lacking, still, strict=True) if answer is True]


def _due(reply: Reply) -> int | None:
    """Score of the first time; None without any, or if it is no time."""
    if not reply:
        return None
    score = float(reply[1])
    return round(score) if abs(score) < 10**15 else None


def _paused_at(reply: Reply) -> int | None:
    """When the stream was paused, if that is the last thing that sleepers were told."""
    for entry_id, fields in reply:
        if list(fields[:2]) == [b"paused", b"1"]:
            return _added_ms(text(entry_id))
    return None


def _first_added(reply: Reply) -> int | None:
    return _added_ms(text(reply[0][0])) if reply else None


def _added_ms(entry_id: str) -> int:
    """When an entry was added; 0 if its ID was chosen by a producer and is no time."""
    ms = int(entry_id.partition("-")[0])
    return ms if 10**12 <= ms < 10**14 else 0


def judge(keys: Keys, work: Work, beats: Beats) -> Iterator[Finding]:
    """What to say of a stream's work."""
    yield from _judge_groups(keys, work, beats)
    yield from _judge_timers(keys, work)
    if work.is_paused:
        for_long = (
            f"has been paused for {duration(max(work.now_ms - work.paused_ms, 0) / 1000)}"
            if work.paused_ms
            else "is paused"
        )
        yield Finding(
            check="paused",
            severity="note",
            stream=keys.name,
            text=f"the stream {for_long}: nothing is started",
            remedy=streamq(keys, "resume", keys.name),
        )
    if work.dead:
        yield Finding(
            check="dead_letters",
            severity="note",
            stream=keys.name,
            text=f"{many(work.dead, 'dead letter waits', 'dead letters wait')} for a decision",
            remedy=streamq(keys, "dead-letters", "list", keys.name),
        )
    if work.hidden:
        yield Finding(
            check="hidden",
            severity="note",
            stream=keys.name,
            text=f"the user may not run {', '.join(sorted(work.hidden))}: what they would tell is not checked",
        )


def _judge_groups(keys: Keys, work: Work, beats: Beats) -> Iterator[Finding]:
    if not work.groups and work.length and not {"XINFO GROUPS"} & work.hidden:
        yield Finding(
            check="groups",
            severity="problem",
            stream=keys.name,
            text=f"{many(work.length, 'entry waits', 'entries wait')}, and there is no consumer group: nobody has ever read",
            remedy=_RUN,
        )
    names = {group.name for group in work.groups}
    for name in sorted({about.group for about in beats.live.values() if about.group} - names):
        yield Finding(
            check="groups",
            severity="problem",
            stream=keys.name,
            group=name,
            text=f"group {name} is not there, though workers of it live: they make it again at their next read",
        )
    for group in work.groups:
        found = list(_judge_group(keys, group, work))
        yield from found
        if all(one.severity == "ok" for one in found):
            yield Finding(
                check="groups",
                severity="ok",
                stream=keys.name,
                group=group.name,
                text=f"group {group.name}: {group.pending:,} pending, {many(group.live, 'live consumer', 'live consumers')}",
            )


def _judge_group(keys: Keys, group: Group, work: Work) -> Iterator[Finding]:
    whole = {"stream": keys.name, "group": group.name}
    is_ours = NAME.fullmatch(group.name) is not None  # nobody could type another one
    nobody = group.is_listed and not group.live
    if group.late is not None and not work.is_paused:
        yield _judge_late(keys, group, nobody=nobody)
    if nobody and group.unread_ms is not None and not work.is_paused:
        age_ms = work.now_ms - group.unread_ms if group.unread_ms else None
        waits = f", the first for {duration(age_ms / 1000)}" if age_ms and age_ms > 0 else ""
        yield Finding(
            check="groups",
            severity="note" if age_ms is not None and age_ms < HEARD_MS else "problem",
            **whole,
            text=f"nobody reads group {group.name}: entries wait{waits}, and none of them can be removed",
            remedy=f"{_RUN}; or if nobody shall: {streamq(keys, 'groups', 'drop', keys.name, group.name)}"
            if is_ours
            else _RUN,
        )
    if group.consumers > LISTED and (silent := group.consumers - group.live) >= LEAKED:
        said = f"has {group.consumers:,} consumers, and no more than {group.live:,} live by their beats"
        yield _judge_leaked(keys, group, silent, said)
    elif group.leaked >= LEAKED:
        said = (
            f"has {group.leaked:,} consumers that hold nothing and were not heard of for {duration(LEAKED_MS / 1000)}"
        )
        yield _judge_leaked(keys, group, group.leaked, said)


def _judge_leaked(keys: Keys, group: Group, count: int, said: str) -> Finding:
    own = () if group.name == StreamOptions().group else ("--group", group.name)
    return Finding(
        check="consumers",
        severity="problem" if count >= 100 * LEAKED else "note",
        stream=keys.name,
        group=group.name,
        text=f"group {group.name} {said}: processes that are gone have left them",
        remedy=streamq(keys, "consumers", "prune", keys.name, *own) if NAME.fullmatch(group.name) else None,
    )


def _judge_late(keys: Keys, group: Group, *, nobody: bool) -> Finding:
    late = group.late or Late(0, 0)
    silent = f"silent for up to {duration(late.idle_ms / 1000)}"
    what = f"group {group.name}: {many(late.deliveries, 'delivery', 'deliveries')} {silent}"
    if nobody:
        said, remedy = f"{what}, and no worker lives to take them over", _RUN
    else:
        said = f"{what}, and nobody takes them over though somebody reads"
        remedy = (
            "look for a problem with its keys here, and into the workers' log; a hand-written loop must call reclaim"
        )
    is_certain = nobody or group.lease_ms is not None  # a longer lease than the default one may still run
    return Finding(
        check="pending",
        severity="problem" if is_certain else "note",
        stream=keys.name,
        group=group.name,
        text=said,
        remedy=remedy,
    )


def _judge_timers(keys: Keys, work: Work) -> Iterator[Finding]:
    if work.bodiless or work.untimed:
        parts = [
            *([many(work.bodiless, "time without an entry", "times without an entry")] if work.bodiless else []),
            *([many(work.untimed, "entry without a time", "entries without a time")] if work.untimed else []),
        ]
        at_least = "at least " if work.is_sampled else ""
        yield Finding(
            check="timers",
            severity="problem",
            stream=keys.name,
            text=f"of what is scheduled {at_least}{' and '.join(parts)}: by eviction, a restored backup, or commands by hand",
            remedy="a live worker takes them out when they are due: what is left of one becomes a dead letter",
        )
    elif work.scheduled:
        yield Finding(check="timers", severity="ok", stream=keys.name, text=f"{work.scheduled:,} scheduled")
    if work.orphans:
        yield Finding(
            check="timers",
            severity="note",
            stream=keys.name,
            text=f"{many(work.orphans, 'scheduled job was', 'scheduled jobs were')} taken out so far because a half of it was "
            "gone: by eviction, a restored backup, or commands by hand",
        )
    late_s = (work.now_ms - work.first_due_ms) / 1000 if work.first_due_ms is not None else 0.0
    if late_s > OVERDUE_S and not work.is_paused:
        yield Finding(
            check="overdue",
            severity="problem",
            stream=keys.name,
            text=f"the first scheduled job has been due for {duration(late_s)}, and nobody moves it into the stream",
            remedy=_RUN,
        )
