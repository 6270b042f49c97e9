"""What `inspect(full=True)` and `find` answer. Values only, no I/O; as JSON (``streamq inspect --json``) they stay stable.

Ages and times are by the server's clock. A figure that the user may not see is None, and `FullSnapshot.omitted` says why.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal, Self

import msgspec

from streamq.backoff import Backoff, to_ms
from streamq.messages import GroupSnapshot, Snapshot
from streamq.options import StreamOptions

Severity = Literal["note", "warning", "critical"]
Condition = Literal["ok", "note", "warning", "critical"]

FindingKind = Literal[
    "no_worker",
    "stuck",
    "overdue",
    "paused",
    "abandoned_group",
    "full",
    "dead_letters_growing",
    "settings_differ",
    "evicts",
    "orphans",
    "dead_letters",
    "behind",
    "keeps_all",
    "never_used",
]
"""What a verdict can say. A closed list."""

Standing = Literal["scheduled", "ready", "pending", "done", "dead", "unknown"]

SECONDS_AT_LEAST = 0.001
"""Two samples closer than that make no rate."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that a verdict says.

    Attributes:
        kind: Which.
        severity: ``critical`` (work stands still, or jobs may be lost), ``warning`` (somebody should look), or ``note``.
        group: The group it is about, or None for the stream.
        text: A sentence for people.
        command: What to type next, or None where no single command helps. Give it the ``--url`` that you use.
    """

    kind: FindingKind
    severity: Severity
    group: str | None = None
    text: str
    command: str | None = None


class Omission(msgspec.Struct, frozen=True):
    """A figure that is not shown, or only in part.

    Attributes:
        figure: Which.
        reason: Why.
    """

    figure: str
    reason: str


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker says of its settings; see `StreamOptions`. Times are seconds.

    `retry` and `crash_backoff` are in words, to be read and compared.
    """

    lease: float
    max_deliveries: int
    retry: str
    crash_backoff: str
    idempotency_ttl: float
    groups: tuple[str, ...]
    retention: str
    keep_for: float | None
    keep_last: int | None
    max_ready: int | None
    max_payload: int

    @classmethod
    def of(cls, options: StreamOptions) -> Self:
        """Those of a stream."""
        return cls(
            lease=options.lease_ms / 1000,
            max_deliveries=options.max_deliveries,
            retry=_in_words(options.retry),
            crash_backoff=_in_words(options.crash_backoff),
            idempotency_ttl=to_ms(options.idempotency_ttl, "idempotency_ttl") / 1000,
            groups=tuple(sorted(options.all_groups)),
            retention=options.retention,
            keep_for=None if options.keep_ms is None else options.keep_ms / 1000,
            keep_last=options.keep_last,
            max_ready=options.max_ready,
            max_payload=options.max_payload,
        )


OF_A_GROUP = frozenset({"lease", "max_deliveries", "retry", "crash_backoff"})
"""Settings that only the workers of one group must agree on."""


def _in_words(backoff: Backoff) -> str:
    times = "without limit" if backoff.limit is None else f"{backoff.limit} times"
    if backoff.compute is not None:
        return f"{times}, by a function"
    delays = ", ".join(f"{ms / 1000:.15g}" for ms in backoff.delays_ms)
    growth = "" if backoff.factor == 1 else f", then x{backoff.factor:.15g}"
    jitter = f", jitter {backoff.jitter:.15g}" if backoff.jitter else ""
    return f"{times}: {delays} s{growth}, at most {backoff.cap_ms / 1000:.15g} s{jitter}"


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """A setting on which live workers do not agree.

    Attributes:
        setting: Its name.
        group: The group whose workers differ, or None where it is a setting of the stream.
        values: Each value, in JSON, with the workers that have it (ten at most).
    """

    setting: str
    group: str | None
    values: dict[str, list[str]]


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer of a group.

    Attributes:
        name: Of the consumer.
        alive: True if it was heard of lately: a `Worker` says so every two seconds, a hand-written loop is heard of by its
            requests. False for a `Worker` that is silent. None for another consumer that is silent: on servers before
            Redis 7.2 one that waits without getting anything is not heard of.
        pending: Entries it holds.
        idle: Seconds since the server heard of it as a consumer; None for a worker that has read nothing yet.
        inactive: Seconds since it was given an entry; None where the server does not say, or it never was.
        beat: Seconds since it said that it is alive; None if it is no `Worker`.
        host: Where it runs.
        pid: Its process.
        version: Of streamq.
        started_at: When it started, by its own clock.
        concurrency: Its slots.
    """

    name: str
    alive: bool | None
    pending: int
    idle: float | None
    inactive: float | None = None
    beat: float | None = None
    host: str | None = None
    pid: int | None = None
    version: str | None = None
    started_at: datetime | None = None
    concurrency: int | None = None


class OldestReady(msgspec.Struct, frozen=True, kw_only=True):
    """The first entry that a group has not read.

    Attributes:
        entry_id: Of it.
        job_id: Of its job.
        age: Seconds since it was added to the stream; None where the server's time is unknown, or its ID tells none.
        payload: The beginning of the payload, if it was asked for.
        payload_bytes: Its whole length, if it was asked for.
    """

    entry_id: str
    job_id: str
    age: float | None
    payload: str | None = None
    payload_bytes: int | None = None


class OldestPending(msgspec.Struct, frozen=True, kw_only=True):
    """The first entry that a group has read and not settled.

    Attributes:
        entry_id: Of it.
        age: Seconds since it was added to the stream; see `OldestReady`.
        consumer: Who holds it.
        alive: Whether that one is; see `Member`.
        idle: Seconds since it was delivered, or its lease began anew.
        deliveries: How often it was delivered.
    """

    entry_id: str
    age: float | None
    consumer: str
    alive: bool | None
    idle: float
    deliveries: int


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """Per second, between two samples.

    Attributes:
        entered: Entries that came for the group, retries included; None where `ready` was not exact.
        done: Jobs acknowledged.
        retried: Attempts that are followed by another.
        dead: Jobs dead-lettered.
    """

    entered: float | None
    done: float
    retried: float
    dead: float


class FullGroup(GroupSnapshot, frozen=True, kw_only=True):
    """One consumer group in depth: a `GroupSnapshot`, and more.

    Attributes:
        passed: Entries of other groups that it acknowledged unseen.
        lease: Seconds, as its workers say, else as this process has it.
        oldest_ready: The first entry it has not read.
        oldest_pending: The first it has read and not settled.
        silent: Of the first hundred pending entries, those whose lease ran out.
        stuck: Of these, those that should have been taken over long ago.
        live: Consumers that are alive.
        members: Consumers, those with most pending entries first; at most a thousand.
        rates: Per second, if two samples were taken.
    """

    passed: int = 0
    lease: float = 15.0
    oldest_ready: OldestReady | None = None
    oldest_pending: OldestPending | None = None
    silent: int = 0
    stuck: int = 0
    live: int = 0
    members: list[Member] = msgspec.field(default_factory=list)
    rates: Rates | None = None


class DeadLetterFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What the dead letters say, from the newest on.

    Attributes:
        reasons: Reason -> how many.
        exact: False when there are more than were looked at.
        looked_at: How many were.
        recent: Those of the last hour, at least; None where the server's time is unknown.
        newest: Seconds since the newest one; None without any.
    """

    reasons: dict[str, int]
    exact: bool
    looked_at: int
    recent: int | None
    newest: float | None


class FullSnapshot(Snapshot, frozen=True, kw_only=True):
    """A stream in depth: a `Snapshot`, and more.

    Attributes:
        groups: Each group, by name.
        at: The server's time.
        slot: In a cluster, of all its keys.
        next_due: When the first scheduled job is due.
        due: Scheduled jobs that are due and were not moved yet.
        dead_letters: Their reasons.
        memory: Bytes by key, estimated by the server from a few samples: ``stream``, ``dead``, ``scheduled``, ``ids``,
            ``done``, ``other``. What effects wrote is not counted.
        eviction_policy: What the server throws away when its memory is full.
        settings: Those of the live workers (of the dead ones, if none is alive); see `differences`.
        differences: Settings on which live workers do not agree.
        orphans: Of what was scheduled, what turned out to be no job, since the stream was made.
        unmatched: Scheduled entries without a time, or times without an entry: what will be orphans.
        omitted: Figures that are not shown, or only in part.
        condition: The worst severity of the verdict, or ``ok``.
        verdict: What to do, the worst first.
    """

    groups: dict[str, FullGroup]  # type: ignore[assignment]  # narrower, and never changed
    at: datetime | None
    slot: int
    next_due: datetime | None
    due: int
    dead_letters: DeadLetterFigures
    memory: dict[str, int] | None
    eviction_policy: str | None
    settings: WorkerSettings | None
    differences: list[Difference]
    orphans: int
    unmatched: int
    omitted: list[Omission]
    condition: Condition = "ok"
    verdict: list[Finding] = msgspec.field(default_factory=list)

    def since(self, earlier: FullSnapshot) -> FullSnapshot:
        """This snapshot with the rates since an earlier one of the same stream; without, where they cannot be known."""
        if self.at is None or earlier.at is None:
            return self
        seconds = (self.at - earlier.at).total_seconds()
        if seconds < SECONDS_AT_LEAST:
            return self
        groups = {
            name: msgspec.structs.replace(group, rates=_rates(earlier.groups[name], group, seconds))
            if name in earlier.groups
            else group
            for name, group in self.groups.items()
        }
        return msgspec.structs.replace(self, groups=groups)


def _rates(before: FullGroup, after: FullGroup, seconds: float) -> Rates:
    def settled(group: FullGroup) -> int:
        return group.done + group.passed + group.retried + group.dead

    entered = (
        (after.ready + after.pending + settled(after)) - (before.ready + before.pending + settled(before))
        if before.exact and after.exact
        else None
    )
    return Rates(
        entered=None if entered is None else max(entered, 0) / seconds,
        done=max(after.done - before.done, 0) / seconds,
        retried=max(after.retried - before.retried, 0) / seconds,
        dead=max(after.dead - before.dead, 0) / seconds,
    )


class JobInGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Where a job is for one group, and what is known of how it got there.

    Attributes:
        group: Name of the group; None where the stream has none yet.
        state: ``scheduled``, ``ready``, ``pending``, ``done``, ``dead``, or ``unknown``.
        entry_id: Its entry in the stream.
        due_at: When it moves into the stream.
        consumer: Who holds it.
        alive: Whether that one is; see `Member`.
        idle: Seconds since it was delivered, or its lease began anew.
        deliveries: Of this entry: how often it was delivered.
        attempt: Number of this attempt, or of the next one.
        errors: Of the last attempts, newest last; at most five.
        enqueued_at: When the job was first added.
        redrives: How often it was redriven.
        result_bytes: Length of the stored result; None where there is none.
        remembered_until: Until when it is known that the job is done.
        payload: The beginning of the payload, if it was asked for.
        payload_bytes: Its whole length, if it was asked for.
    """

    group: str | None
    state: Standing
    entry_id: str | None = None
    due_at: datetime | None = None
    consumer: str | None = None
    alive: bool | None = None
    idle: float | None = None
    deliveries: int | None = None
    attempt: int | None = None
    errors: tuple[str, ...] = ()
    enqueued_at: datetime | None = None
    redrives: int = 0
    result_bytes: int | None = None
    remembered_until: datetime | None = None
    payload: str | None = None
    payload_bytes: int | None = None


class FoundLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A dead letter of a job; see `DeadLetter`, which has its fields, too."""

    id: str
    group: str
    reason: str
    error: str
    consumer: str
    deliveries: int
    attempts: int
    redrives: int
    source_id: str
    enqueued_at: datetime | None
    died_at: datetime | None


class FoundJob(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `find`: where a job is, for each group.

    Attributes:
        job_id: Of the job.
        stream: Name of the stream.
        deployment: Its namespace, or None.
        at: The server's time.
        groups: Where it is for each group, by name.
        letters: Its dead letters, newest first; at most a hundred.
        unknown: What cannot be known, or was not looked at, a sentence each.
    """

    job_id: str
    stream: str
    deployment: str | None
    at: datetime | None
    groups: list[JobInGroup]
    letters: list[FoundLetter]
    unknown: list[str]

    @property
    def is_known(self) -> bool:
        """Whether anything was found of it."""
        return bool(self.letters) or any(one.state != "unknown" for one in self.groups)
