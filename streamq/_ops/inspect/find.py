"""Where a job is, for each group: by its timers, its records, its entries and its dead letters."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple, TypeVar

from streamq._beats import beat_of
from streamq._codec import about_entry, unpack_entry
from streamq._letters import letter_of
from streamq._ops.inspect.beats import About, WorkerBeat, is_alive
from streamq._ops.inspect.counting import next_count
from streamq._ops.inspect.full import GROUPS
from streamq._ops.inspect.groups import shortened
from streamq._ops.inspect.replies import Page, entries, entry_ms, moment_or_none, time_ms, value_of
from streamq._requests import (
    Command,
    Pipeline,
    Plan,
    ask,
    ask_each,
    entry_order,
    groups_of,
    is_entry_id,
    server_ms,
    text,
)
from streamq._spec import Spec
from streamq.errors import ServerError
from streamq.keys import SLICES, check_id
from streamq.messages import DeadLetter
from streamq.snapshots import FoundJob, FoundLetter, JobInGroup, Standing

T = TypeVar("T")

SEARCHED: Final = 1_000
SEARCHED_BYTES: Final = 2 << 20
"""Entries, and about their bytes, that are searched at either end of the stream, and among the dead letters."""

PAGES: Final = 8
"""Most requests of a search."""

ENTRIES: Final = 5
"""Most entries of one job that are followed."""

LETTERS: Final = 100
"""Most dead letters of one job that are told."""


class _Record(NamedTuple):
    """What is remembered of an ID, and until when."""

    word: str
    value: str
    size: int
    until_ms: int


class _Holder(NamedTuple):
    """A row of XPENDING."""

    consumer: str
    idle_ms: int
    deliveries: int


class _Entry(NamedTuple):
    """An entry of the job: its fields (None if it has no body any more), and which groups hold it."""

    id: str
    fields: list[bytes] | None
    holders: dict[str, _Holder]


class _Timer(NamedTuple):
    due_ms: int
    fields: list[bytes]


class _Evidence(NamedTuple):
    """All that was found of a job."""

    now_ms: int | None
    groups: dict[str, str]
    """Name -> ID of the last entry that it has read."""
    timers: dict[str, _Timer]
    queued: _Record | None
    done: dict[str, _Record]
    entries: list[_Entry]
    letters: list[DeadLetter]
    beats: dict[str, WorkerBeat]


def find(spec: Spec[T], job_id: str, *, payloads: bool = False) -> Plan[FoundJob]:
    """Where a job is now, and its history. A handful of writes; less than a hundred commands."""
    check_id(job_id, "job ID")
    keys = spec.keys
    unknown: list[str] = []
    now_ms, groups, lengths, queued = yield from _first(spec, job_id, unknown)
    timers, done = yield from _records(spec, job_id, [*groups], now_ms)
    known = [job_id] if is_entry_id(job_id) else []
    known += [record.value for record in (queued, *done.values()) if record and is_entry_id(record.value)]
    found = yield from _entries(spec, dict.fromkeys(known), [*groups])
    found = [entry for entry in found if _is_of(entry, job_id)]
    searched, is_all = yield from _search(keys.stream, b"sq:id", job_id, both_ends=True)
    new = [entry_id for entry_id, _ in searched if entry_id not in {entry.id for entry in found}]
    found += yield from _entries(spec, new[:ENTRIES], [*groups])
    letters, is_every = yield from _search(keys.dead, b"dead:job_id", job_id, both_ends=False)
    held = {holder.consumer for entry in found for holder in entry.holders.values()}
    evidence = _Evidence(
        now_ms,
        groups,
        timers,
        queued,
        done,
        sorted(found, key=lambda entry: entry_order(entry.id), reverse=True),
        [letter_of(keys.name, letter_id, fields) for letter_id, fields in letters[:LETTERS]],
        (yield from _beats(spec, held)),
    )
    judge = _Judge(spec, job_id, evidence, payloads=payloads)
    standings = [judge.standing(group) for group in evidence.groups or [None]]
    unknown += _left_open(job_id, standings, evidence)
    if not is_all:
        unknown.append(
            f"of {lengths[0]:,} entries only those at both ends were searched for others of this job: "
            f"{SEARCHED:,} at each, or less where they are large"
        )
    if not is_every:
        unknown.append(f"of {lengths[1]:,} dead letters only the newest were searched: {SEARCHED:,}, or less")
    return FoundJob(
        job_id=job_id,
        stream=keys.name,
        deployment=keys.deployment,
        at=moment_or_none(now_ms),
        groups=standings,
        letters=[_told(letter) for letter in evidence.letters],
        unknown=unknown,
    )


def _left_open(job_id: str, standings: list[JobInGroup], evidence: _Evidence) -> Iterable[str]:
    states = {one.state for one in standings}
    if "done" in states:
        yield "when it was done is not recorded"
    if "unknown" in states and (evidence.queued or evidence.done):
        yield "for a group without a record: whether it has handled the job, or was not to"
    elif "unknown" in states and is_entry_id(job_id):
        yield (
            "a job without an ID of its own is not remembered when it has left the stream: "
            "it was done, cancelled or removed, or it was never added"
        )
    elif "unknown" in states:
        yield (
            "it was never added, or it was cancelled or removed, or it ended longer ago than it is remembered "
            "(idempotency_ttl)"
        )


# --- looks -----------------------------------------------------------------------------------


def _first(
    spec: Spec[T], job_id: str, unknown: list[str]
) -> Plan[tuple[int | None, dict[str, str], tuple[int, int], _Record | None]]:
    stream, dead = spec.keys.stream, spec.keys.dead
    parts: list[Command[Any]] = [
        server_ms(stream),
        groups_of(stream),
        Command(("XLEN", stream), (stream,), int),
        Command(("XLEN", dead), (dead,), int),
        *(Command(("HMGET", key, "", job_id), (key,), list) for key in spec.keys.ids),
    ]
    answers: list[Any] = yield from ask_each(Pipeline(tuple(parts)))
    now_ms, groups, *rest = answers
    if isinstance(now_ms, Exception):
        unknown.append(f"the server's time, and so ages and whether records still hold: {now_ms}")
        now_ms = None
    if isinstance(groups, ServerError) and groups.code == "ERR":
        groups = []  # no such key
    for answer in (groups, *rest):
        if isinstance(answer, Exception):
            raise answer
    if len(groups) > GROUPS:
        unknown.append(f"where it is for {len(groups) - GROUPS:,} more groups: {GROUPS} are looked into")
    last = {text(row["name"]): text(row["last-delivered-id"]) for row in groups[:GROUPS]}
    length, letters, *slices = rest
    return now_ms, last, (length, letters), _record([(ends, value) for ends, value in slices], now_ms)


def _record(found: Iterable[tuple[bytes | None, bytes | None]], now_ms: int | None) -> _Record | None:
    """The record of the slices, each with the time until which it holds."""
    for ends, value in found:
        until_ms = time_ms(ends)
        if value is not None and until_ms is not None and (now_ms is None or until_ms > now_ms):
            word, _, rest = text(value).partition(" ")
            return _Record(word, rest, len(value) - len(word) - 1, until_ms)
    return None


def _records(
    spec: Spec[T], job_id: str, groups: list[str], now_ms: int | None
) -> Plan[tuple[dict[str, _Timer], dict[str, _Record]]]:
    scheduled, jobs = spec.keys.scheduled, spec.keys.jobs
    owners = ["", *groups]
    names = [f"{owner}/{job_id}" for owner in owners]
    parts: list[Command[Any]] = []
    for name in names:
        parts.append(Command(("ZSCORE", scheduled, name), (scheduled,), time_ms))
        parts.append(Command(("HGET", jobs, name), (jobs,), unpack_entry))
    parts += [Command(("HMGET", key, "", *names), (key,), list) for key in spec.keys.done]
    answers: list[Any] = yield from ask_each(Pipeline(tuple(parts)))
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    timers, done = {}, {}
    slices = answers[-SLICES:]
    for at, owner in enumerate(owners):
        due_ms, fields = answers[2 * at : 2 * at + 2]
        if due_ms is not None:
            timers[owner] = _Timer(due_ms, fields)
        record = _record([(each[0], each[at + 1]) for each in slices], now_ms)
        if record is not None:
            done[owner] = record
    return timers, done


def _entries(spec: Spec[T], entry_ids: Iterable[str], groups: list[str]) -> Plan[list[_Entry]]:
    """These entries, as far as they are there or pending."""
    stream = spec.keys.stream
    ids = [*entry_ids][:ENTRIES]
    if not ids:
        return []
    parts: list[Command[Any]] = []
    for entry_id in ids:
        parts.append(entries(stream, entry_id, entry_id, 1))
        parts += [Command(("XPENDING", stream, name, entry_id, entry_id, 1), (stream,), _holder) for name in groups]
    answers: list[Any] = yield from ask_each(Pipeline(tuple(parts)))
    found = []
    for at, entry_id in enumerate(ids):
        page, *holders = answers[at * (1 + len(groups)) : (at + 1) * (1 + len(groups))]
        if isinstance(page, Exception):
            raise page
        held = {n: h for n, h in zip(groups, holders, strict=True) if h is not None and not isinstance(h, Exception)}
        if page.ids or held:
            found.append(_Entry(entry_id, page.fields[0] if page.ids else None, held))
    return found


def _is_of(entry: _Entry, job_id: str) -> bool:
    """Whether an entry is the job's: an ID that looks like an entry's may be another job's."""
    return entry.fields is None or (value_of(entry.fields, b"sq:id") or entry.id.encode()) == job_id.encode()


def _search(
    key: str, field: bytes, job_id: str, *, both_ends: bool
) -> Plan[tuple[list[tuple[str, list[bytes]]], bool]]:
    """Entries that have this job's ID in a field, the newest first, and whether all were searched."""
    wanted = job_id.encode()
    found: dict[str, list[bytes]] = {}
    first, last = "-", "+"
    count, looked, size = 1, 0, 0
    for _ in range(PAGES):
        parts = [entries(key, first, last, count, newest_first=True)]
        if both_ends:
            parts.append(entries(key, first, last, count))
        pages: list[Any] = yield from ask_each(Pipeline(tuple(parts)))
        for page in pages:
            if isinstance(page, Exception):
                raise page
            found.update({i: f for i, f in zip(page.ids, page.fields, strict=True) if value_of(f, field) == wanted})
        tail: Page = pages[0]
        head: Page = pages[-1]
        if len(tail.ids) < count or (both_ends and entry_order(tail.ids[-1]) <= entry_order(head.ids[-1])):
            return _newest_first(found), True
        last = f"({tail.ids[-1]}"
        first = f"({head.ids[-1]}" if both_ends else first
        looked += count
        size += max(page.size for page in pages)
        count = min(next_count(*pages), SEARCHED - looked)
        if count <= 0 or size >= SEARCHED_BYTES:
            break
    return _newest_first(found), False


def _newest_first(found: dict[str, list[bytes]]) -> list[tuple[str, list[bytes]]]:
    return sorted(found.items(), key=lambda item: entry_order(item[0]), reverse=True)


def _beats(spec: Spec[T], consumers: Iterable[str]) -> Plan[dict[str, WorkerBeat]]:
    workers = spec.keys.workers
    names = sorted(consumers)
    if not names:
        return {}
    values: list[Any] = yield from ask(Command(("HMGET", workers, *names), (workers,), list))
    beats = {name: beat_of(value, About) for name, value in zip(names, values, strict=True) if value is not None}
    return {name: beat for name, beat in beats.items() if beat is not None}


# --- the answer ------------------------------------------------------------------------------


class _Judge:
    """Says where the job is for a group, by what was found."""

    def __init__(self, spec: Spec[Any], job_id: str, evidence: _Evidence, *, payloads: bool) -> None:
        self._job_id = job_id
        self._found = evidence
        self._lease_ms = spec.options.lease_ms
        self._payloads = payloads

    def standing(self, group: str | None) -> JobInGroup:
        """In the order in which scripts look: timer, result, pending, ready; then what is left of it."""
        found = self._found
        name = group or ""
        timer = found.timers.get(name) or found.timers.get("")
        if timer is not None:
            return self._job(group, "scheduled", timer.fields, due_at=moment_or_none(timer.due_ms))
        record = found.done.get(name)
        if record is not None and record.word == "done":
            until = moment_or_none(record.until_ms)
            return self._job(group, "done", None, result_bytes=record.size or None, remembered_until=until)
        mine = [entry for entry in found.entries if self._handles(entry, name)]
        return self._alive(group, mine) or self._left(group, [entry for entry in mine if entry.fields is not None])

    def _alive(self, group: str | None, mine: list[_Entry]) -> JobInGroup | None:
        """Pending or ready, by the newest entry that is."""
        name = group or ""
        last = self._found.groups.get(name)
        for entry in mine:
            if name in entry.holders:
                return self._pending(group, entry, entry.holders[name])
        for entry in mine:
            if entry.fields is not None and (last is None or entry_order(entry.id) > entry_order(last)):
                return self._job(group, "ready", entry.fields, entry_id=entry.id)
        return None

    def _left(self, group: str | None, mine: list[_Entry]) -> JobInGroup:
        """By what is left of it: a dead letter, an entry that was settled, or a record."""
        if any(letter.group == (group or "") for letter in self._found.letters):
            return self._job(group, "dead", None)
        if mine:  # read, and settled: it is kept, or another group needs it
            return self._job(group, "done", mine[0].fields, entry_id=mine[0].id)
        queued = self._found.queued
        if queued is not None and queued.word == "done" and len(self._found.groups) <= 1:
            return self._job(group, "done", None, remembered_until=moment_or_none(queued.until_ms))
        return self._job(group, "unknown", None)

    def _handles(self, entry: _Entry, group: str) -> bool:
        only = None if entry.fields is None else value_of(entry.fields, b"sq:group")
        return only is None or text(only) == group or not group

    def _pending(self, group: str | None, entry: _Entry, holder: _Holder) -> JobInGroup:
        beat = self._found.beats.get(holder.consumer)
        told = None if beat is None else beat.about.settings
        lease_ms = self._lease_ms if told is None else round(told.lease * 1000)
        return self._job(
            group,
            "pending",
            entry.fields,
            entry_id=entry.id,
            consumer=holder.consumer,
            alive=is_alive(beat, holder.idle_ms, lease_ms, self._found.now_ms),
            idle=holder.idle_ms / 1000,
            deliveries=holder.deliveries,
        )

    def _job(self, group: str | None, state: Standing, fields: list[bytes] | None, **about: Any) -> JobInGroup:
        if not fields:
            return JobInGroup(group=group, state=state, **about)
        attempt, at_ms, errors = about_entry(fields)
        redrives = value_of(fields, b"sq:redrives") or b""
        payload = value_of(fields, b"job") if self._payloads else None
        return JobInGroup(
            group=group,
            state=state,
            attempt=attempt,
            errors=errors,
            enqueued_at=moment_or_none(entry_ms(about.get("entry_id", "0-0")) if at_ms is None else at_ms),
            redrives=int(redrives) if redrives.isdigit() and len(redrives) <= 9 else 0,  # noqa: PLR2004  # may be foreign
            payload=None if payload is None else shortened(payload),
            payload_bytes=None if payload is None else len(payload),
            **about,
        )


def _told(letter: DeadLetter) -> FoundLetter:
    return FoundLetter(**{name: getattr(letter, name) for name in FoundLetter.__struct_fields__})


def _holder(reply: Any) -> _Holder | None:
    if not reply:
        return None
    [[_, consumer, idle_ms, count]] = reply
    return _Holder(text(consumer), idle_ms, count)
