"""The figures of `FullSnapshot`: a handful of writes, whatever the stream holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeVar

from msgspec.structs import replace

from streamq._beats import some_beats
from streamq._ops.inspect import beats as told
from streamq._ops.inspect.beats import WorkerBeat
from streamq._ops.inspect.counting import STEPS, Unread, next_count, unread
from streamq._ops.inspect.groups import Figures, Look
from streamq._ops.inspect.replies import (
    LAST_ID,
    Page,
    age_s,
    counter,
    entries,
    entry_ms,
    mapping,
    moment_or_none,
    time_ms,
    value_of,
)
from streamq._ops.inspect.verdict import verdict
from streamq._requests import (
    Command,
    Pipeline,
    Plan,
    ask,
    ask_each,
    consumers_of,
    groups_of,
    named,
    rows,
    server_ms,
    text,
    texts,
)
from streamq._spec import Spec
from streamq.errors import ConfigurationError, ServerError
from streamq.keys import Keys
from streamq.snapshots import (
    DeadLetterFigures,
    FullGroup,
    FullSnapshot,
    Omission,
)

T = TypeVar("T")

GROUPS: Final = 6
"""Most groups that are looked into."""

ROWS: Final = 100
"""Pending entries of a group that are looked at: the first ones."""

LETTERS: Final = 1_000
LETTERS_BYTES: Final = 1 << 20
"""Most dead letters that are looked at, and about their bytes: the newest ones."""

BEATS: Final = 1_000
BEAT_PAGES: Final = 5
"""Workers of one request, about, and most requests."""

CLOCK_CONSUMERS: Final = 1_000
"""Most consumers of all groups with which the server's time is looked for where TIME is refused."""

RECENT_MS: Final = 3_600_000

_EXACT_LAG: Final = {b"redis": 8, b"valkey": 9}
"""From these versions on the server's lag is right whenever there is one; before, it stays too high after some deletions."""


class _First(NamedTuple):
    """Answers of the first write."""

    now_ms: int | None
    length: int
    groups: list[dict[str, Any]]
    dead: int
    scheduled: int
    jobs: int
    next_ms: int | None
    counters: dict[bytes, bytes]
    doubts: bool
    policy: str | None
    workers: tuple[str, dict[str, WorkerBeat]]
    letters: Page
    memory: dict[str, int] | None


def full(spec: Spec[T], *, payloads: bool = False) -> Plan[FullSnapshot]:
    """The stream now. Five writes, some more where things must be counted; less than a hundred commands in all."""
    omitted: list[Omission] = []
    first = yield from _first(spec, omitted)
    looks, now_ms = yield from _look(spec, first, omitted)
    due, unmatched = yield from _timers(spec, first, now_ms)
    beats = yield from _beats(spec, first, omitted)
    letters = yield from _letters(spec, first, now_ms)
    figures = Figures(spec, first.counters, beats, now_ms, payloads=payloads)
    groups: dict[str, FullGroup] = {}
    steps = max(STEPS // max(len(looks), 1), 2)
    for look in looks:
        ready = yield from unread(spec, look.row, first.length, doubts=first.doubts, steps=steps)
        groups[text(look.row["name"])] = figures.group(look, ready, omitted)
    for row in first.groups[GROUPS:]:
        lag = row.get("lag")
        ready = Unread(min(lag or 0, first.length), exact=lag is not None and not first.doubts)
        groups[text(row["name"])] = figures.unseen(row, ready)
    return _judged(
        FullSnapshot(
            name=spec.keys.name,
            deployment=spec.keys.deployment,
            ready=sum(group.ready for group in groups.values()) if groups else first.length,
            pending=sum(group.pending for group in groups.values()),
            scheduled=first.scheduled,
            dead=first.dead,
            length=first.length,
            paused=b"paused" in first.counters,
            groups=groups,
            at=moment_or_none(now_ms),
            slot=spec.keys.slot,
            next_due=moment_or_none(first.next_ms),
            due=due,
            dead_letters=letters,
            memory=first.memory,
            eviction_policy=first.policy,
            settings=told.settings(beats, now_ms),
            differences=told.differences(beats, now_ms),
            orphans=counter(first.counters, b"orphans"),
            unmatched=unmatched,
            omitted=omitted,
        )
    )


def _judged(found: FullSnapshot) -> FullSnapshot:
    findings = verdict(found)
    return replace(found, verdict=findings, condition=findings[0].severity if findings else "ok")


# --- the first write: everything that needs to know nothing ---------------------------------


def _first(spec: Spec[T], omitted: list[Omission]) -> Plan[_First]:
    keys = spec.keys
    needed, allowed = _needed(keys), _allowed(keys)
    memory = _memory(keys)
    commands = {**needed, **allowed}
    answers: list[Any] = yield from ask_each(Pipeline((*commands.values(), *(command for _, command in memory))))
    by_name = dict(zip(commands, answers, strict=False))
    if isinstance(by_name["groups"], ServerError) and by_name["groups"].code == "ERR":
        by_name["groups"] = []  # no such key: a stream that was never used has no groups
    for name in needed:
        if isinstance(by_name[name], Exception):
            raise by_name[name]
    for name in allowed:
        by_name[name] = _or_omitted(by_name[name], name, omitted)
    sizes: dict[str, int] | None = {}
    for (part, _), answer in zip(memory, answers[len(commands) :], strict=True):
        size = _or_omitted(answer, "memory", omitted) if sizes is not None else None
        if size is None or sizes is None:
            sizes = None
        else:
            sizes[part] = sizes.get(part, 0) + size
    return _First(**by_name, memory=sizes)


def _needed(keys: Keys) -> dict[str, Command[Any]]:
    stream, dead, meta = (keys.stream,), (keys.dead,), (keys.meta,)
    scheduled, jobs = (keys.scheduled,), (keys.jobs,)
    return {
        "length": Command(("XLEN", *stream), stream, int),
        "groups": groups_of(keys.stream),
        "dead": Command(("XLEN", *dead), dead, int),
        "scheduled": Command(("ZCARD", *scheduled), scheduled, int),
        "jobs": Command(("HLEN", *jobs), jobs, int),
        "next_ms": Command(
            ("ZRANGE", *scheduled, 0, 0, "WITHSCORES"), scheduled, lambda reply: time_ms(reply[1] if reply else None)
        ),
        "counters": Command(("HGETALL", *meta), meta, mapping),
        "workers": some_beats(keys, "0", BEATS, told.About),
        "letters": entries(keys.dead, "-", "+", 1, newest_first=True),
    }


def _allowed(keys: Keys) -> dict[str, Command[Any]]:
    """What a user that may only read is refused, or a service has not."""
    stream = (keys.stream,)
    return {
        "now_ms": server_ms(*stream),
        "doubts": Command(("HELLO",), stream, _doubts),
        "policy": Command(("CONFIG", "GET", "maxmemory-policy"), stream, _policy),
    }


def _memory(keys: Keys) -> list[tuple[str, Command[Any]]]:
    parts = {
        "stream": (keys.stream,),
        "dead": (keys.dead,),
        "scheduled": (keys.scheduled, keys.jobs),
        "ids": keys.ids,
        "done": keys.done,
        "other": (keys.meta, keys.workers, keys.wake),
    }
    return [
        (part, Command(("MEMORY", "USAGE", key, "SAMPLES", 5), (key,), lambda size: size or 0))
        for part, them in parts.items()
        for key in them
    ]


_NAMES: Final = {
    "now_ms": "server's time (TIME)",
    "doubts": "server's version (HELLO)",
    "policy": "eviction policy (CONFIG GET)",
    "memory": "memory (MEMORY USAGE)",
}


def _or_omitted(answer: Any, name: str, omitted: list[Omission]) -> Any:
    if not isinstance(answer, Exception):
        return answer
    if not isinstance(answer, ServerError | ConfigurationError):
        raise answer
    omitted.append(Omission(_NAMES[name], str(answer)))
    return name == "doubts" or None


# --- the second write: the groups ------------------------------------------------------------


def _look(spec: Spec[T], first: _First, omitted: list[Omission]) -> Plan[tuple[list[Look], int | None]]:
    stream = spec.keys.stream
    seen = first.groups[:GROUPS]
    if len(first.groups) > GROUPS:
        omitted.append(Omission("groups", f"{len(first.groups):,} groups: {GROUPS} are looked into"))
    commands: list[Command[Any]] = []
    for row in seen:
        name, last = row["name"], text(row["last-delivered-id"])
        commands.append(consumers_of(stream, name))
        commands.append(Command(("XPENDING", stream, name, "-", "+", ROWS), (stream,), _pending))
        behind = last if last == LAST_ID else f"({last}"  # behind the last possible ID the server refuses to look
        commands.append(entries(stream, behind, "+", 1))
    asks_clock = first.now_ms is None and 0 < sum(row["consumers"] for row in first.groups) <= CLOCK_CONSUMERS
    if asks_clock:
        commands.append(Command(("XINFO", "STREAM", stream, "FULL", "COUNT", 1), (stream,), _seen))
    if not commands:
        return [], first.now_ms
    answers: list[Any] = yield from ask_each(Pipeline(tuple(commands)))
    looks = []
    for at, row in enumerate(seen):
        parts = answers[3 * at : 3 * at + 3]
        for part in parts:
            if isinstance(part, ConfigurationError):
                raise part
        if not any(isinstance(part, Exception) for part in parts):  # else it is gone meanwhile
            looks.append(Look(row, *parts))
    now_ms = first.now_ms
    if asks_clock and not isinstance(answers[-1], Exception):
        now_ms = _clock(looks, answers[-1])
    return looks, now_ms


def _clock(looks: list[Look], seen: Mapping[tuple[bytes, bytes], int]) -> int | None:
    """The server's time without TIME: when it heard of a consumer, and how long ago that was."""
    times = [
        seen[look.row["name"], row["name"]] + row["idle"]
        for look in looks
        for row in look.consumers
        if (look.row["name"], row["name"]) in seen
    ]
    return max(times, default=None)


# --- what goes on over pages -----------------------------------------------------------------


def _timers(spec: Spec[T], first: _First, now_ms: int | None) -> Plan[tuple[int, int]]:
    """Scheduled jobs that are due, and entries without times or the reverse: looked at twice, for they come and go."""
    if first.scheduled == first.jobs == 0:
        return 0, 0
    scheduled, jobs = (spec.keys.scheduled,), (spec.keys.jobs,)
    most = "-inf" if now_ms is None else now_ms
    answers: list[Any] = yield from ask_each(
        Pipeline(
            (
                Command(("ZCOUNT", *scheduled, "-inf", most), scheduled, int),
                Command(("ZCARD", *scheduled), scheduled, int),
                Command(("HLEN", *jobs), jobs, int),
            )
        )
    )
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    due, times, held = answers
    return due, min(abs(first.scheduled - first.jobs), abs(times - held))


def _beats(spec: Spec[T], first: _First, omitted: list[Omission]) -> Plan[dict[str, WorkerBeat]]:
    cursor, found = first.workers
    for _ in range(BEAT_PAGES - 1):
        if cursor == "0":
            return found
        cursor, more = yield from ask(some_beats(spec.keys, cursor, BEATS, told.About))
        found = {**found, **more}
    if cursor != "0":
        omitted.append(
            Omission("workers", f"more than {len(found):,} have left a sign of life: not all were looked at")
        )
    return found


def _letters(spec: Spec[T], first: _First, now_ms: int | None) -> Plan[DeadLetterFigures]:
    dead, page = spec.keys.dead, first.letters
    newest = entry_ms(page.ids[0]) if page.ids else None
    reasons: dict[str, int] = {}
    count = recent = size = 0
    is_all = True
    while page.ids:
        for letter_id, fields in zip(page.ids, page.fields, strict=True):
            reason = text(value_of(fields, b"dead:reason") or b"")[:100]
            reasons[reason] = reasons.get(reason, 0) + 1
            at = entry_ms(letter_id)
            recent += now_ms is not None and at is not None and now_ms - at <= RECENT_MS
        count += len(page.ids)
        size += page.size
        is_all = count >= first.dead
        left = min(LETTERS - count, next_count(page))
        if is_all or left <= 0 or size >= LETTERS_BYTES:
            break
        command = entries(dead, "-", f"({page.ids[-1]}", left, newest_first=True)
        page = yield from ask(command)
    return DeadLetterFigures(
        reasons=dict(sorted(reasons.items(), key=lambda item: (-item[1], item[0]))),
        exact=is_all or not page.ids,
        looked_at=count,
        recent=None if now_ms is None else recent,
        newest=age_s(now_ms, newest),
    )


# --- decoding --------------------------------------------------------------------------------


def _pending(reply: Any) -> list[tuple[str, str, int, int]]:
    return [(text(entry_id), text(consumer), idle_ms, count) for entry_id, consumer, idle_ms, count in reply]


def _doubts(reply: Any) -> bool:
    about = named(reply)
    least = _EXACT_LAG.get(about.get("server", b""))
    major = about.get("version", b"").partition(b".")[0]
    return least is None or not major.isdigit() or int(major) < least


def _policy(reply: Any) -> str | None:
    return texts(reply)[1] if reply else None


def _seen(reply: Any) -> dict[tuple[bytes, bytes], int]:
    """When the server heard of each consumer, by group and name."""
    return {
        (group["name"], consumer["name"]): consumer["seen-time"]
        for group in rows(named(reply)["groups"])
        for consumer in rows(group["consumers"])
    }
