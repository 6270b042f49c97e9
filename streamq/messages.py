"""What goes in and comes out: jobs, and the answers of a stream. Values only, no I/O."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Generic, Literal, Self, TypeVar

import msgspec

from streamq._times import moment
from streamq.backoff import Backoff, to_ms
from streamq.effects import Effects

T = TypeVar("T")

AddState = Literal["scheduled", "ready", "pending", "done"]
ResultState = Literal["scheduled", "ready", "pending", "done", "unknown"]
Reason = Literal[
    "deliveries",
    "attempts",
    "rejected",
    "undecodable",
    "invalid",
    "oversized",
    "unknown_type",
    "unknown_group",
    "entry_missing",
    "adopted",
]
"""Why a job was dead-lettered. A closed list."""


MOST_MS = 10**14 - 1
"""Fourteen digits: a double, and so Lua, can count them. The year 5138; entry IDs go on, their age does not matter."""


class JobIdKind(StrEnum):
    """Where a job's ID comes from, which decides what is remembered of it."""

    GENERATED = "generated"
    """The first entry's ID. Nothing is remembered: leaving the pending entries list is the proof."""
    CHOSEN = "chosen"
    """A caller's. Remembered for `idempotency_ttl`."""


class Added(msgspec.Struct, frozen=True, gc=False):
    """Answer of `add`.

    Attributes:
        job_id: The job's ID: the caller's, else the entry ID, or a random one if it waits for its time.
        entry_id: Where the job is: its entry in the stream (of the earlier job, if there was one). None while it waits for
            its time.
        created: False when the ID was known already and nothing was added.
        state: Where the job is now: ``scheduled``, ``ready``, ``pending`` or ``done``.
    """

    job_id: str
    entry_id: str | None
    created: bool
    state: AddState


class Job(msgspec.Struct, Generic[T], eq=False, kw_only=True):
    """A delivery: a job in this consumer's hands until it is settled or its lease runs out.

    Attributes:
        payload: The decoded payload.
        id: The job ID. Pass it on as the idempotency key of what you do outside Redis.
        entry_id: The entry in the stream; a retry gets a new one.
        attempt: Number of this attempt; the first is 1. Raised by a run that ends in an exception.
        deliveries: Number of this delivery of the entry, by Redis' count. Raised when a process dies, too.
        headers: The headers given to `add`.
        enqueued_at: When the job was first added, by the server's clock.
        stream: Name of its stream.
        group: The consumer group that it was delivered to.
        lease_lost: True once this process knows that another consumer may run the job. Stop then: what you settle
            from here is refused.
        timed_out: True once the job's time is over: what its handler does from here counts for nothing. A handler in a
            thread cannot be stopped, so a long one looks here and at `lease_lost` from time to time.
    """

    # A Struct because one is made per job: a sixth of the time of a class of Python's.
    payload: T
    id: str
    entry_id: str
    deliveries: int
    attempt: int = 1
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    stream: str = ""
    group: str = ""
    lease_lost: bool = False
    timed_out: bool = False
    _consumer: str
    _at: int | None = None
    _errors: tuple[str, ...] = ()
    _kind: JobIdKind = JobIdKind.GENERATED
    _retry: Backoff | None = None
    _effects: Effects | None = None

    @property
    def effects(self) -> Effects:
        """Writes that commit with this job's acknowledgement; see `Effects`."""
        if self._effects is None:
            self._effects = Effects()
        return self._effects

    @property
    def has_effects(self) -> bool:
        """Whether any effect was noted."""
        return bool(self._effects)

    @property
    def _enqueued_ms(self) -> int:
        # Without a time of its own the job was first added with its entry, whose ID begins with the time.
        return min(int(self.entry_id.partition("-")[0]), MOST_MS) if self._at is None else self._at

    @property
    def enqueued_at(self) -> datetime:
        """When the job was first added, by the server's clock."""
        return moment(self._enqueued_ms)

    def __repr__(self) -> str:
        # Never the payload: reprs end up in logs.
        return f"Job(id={self.id!r}, entry_id={self.entry_id!r}, attempt={self.attempt}, deliveries={self.deliveries})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [(name, getattr(self, name)) for name in ("id", "entry_id", "attempt", "deliveries")]


def _payload_of(fields: tuple[tuple[bytes, bytes], ...]) -> bytes | None:
    return next((value for name, value in fields if name == b"job"), None)


class DeadLetter(msgspec.Struct, frozen=True):
    """A job that was given up, with its entry exactly as it was.

    Attributes:
        id: Entry ID in the dead-letter stream.
        reason: Why.
        error: The last error, or where the entry is malformed; cut to 4 KB.
        stream: Name of the stream.
        source_id: The entry's ID in the stream.
        job_id: The job's ID.
        group: The consumer group that gave it up.
        consumer: The consumer that held it last.
        deliveries: Redis' delivery count of the last entry.
        attempts: Runs that ended by exception.
        redrives: How often the job was redriven before.
        enqueued_at: When the job was first added.
        died_at: When it was dead-lettered.
        fields: All fields of the original entry, in order, byte for byte. Empty when the body was gone or, with reason
            ``oversized``, too large to copy; then the entry itself stays in the stream.
    """

    id: str
    reason: str
    error: str
    stream: str
    source_id: str
    job_id: str
    group: str
    consumer: str
    deliveries: int
    attempts: int
    redrives: int
    enqueued_at: datetime | None
    died_at: datetime | None
    fields: tuple[tuple[bytes, bytes], ...]

    @property
    def payload(self) -> bytes | None:
        """The encoded payload (field ``job``), or None if there is none."""
        return _payload_of(self.fields)


class Result(msgspec.Struct, frozen=True):
    """Answer of `result`: what became of a job, for the stream's group.

    Attributes:
        job_id: The job's ID.
        state: ``done``, ``pending`` (in somebody's hands), ``ready`` (not begun), ``scheduled`` (waiting for its time, or
            for its next attempt), or ``unknown``: never added, dead-lettered, cancelled, or forgotten after
            `idempotency_ttl`. A job with a generated ID and without a result is not remembered.
        value: What its handler returned, decoded from JSON; None where there is nothing.
    """

    job_id: str
    state: ResultState
    value: Any = None


class ScheduledJob(msgspec.Struct, frozen=True):
    """A job that waits for its time, or for its next attempt.

    Attributes:
        job_id: The job's ID.
        group: The consumer group whose next attempt it is; None for a job of all groups.
        due_at: When it moves into the stream, by the server's clock.
        attempt: Number of the attempt that will run; 1 for a job that never ran.
        errors: Of the last attempts, newest last; at most five.
        enqueued_at: When the job was first added.
        fields: All fields of the entry, in order, byte for byte. Empty if the entry is lost or malformed: such a job is taken
            out when it is due.
    """

    job_id: str
    group: str | None
    due_at: datetime
    attempt: int
    errors: tuple[str, ...]
    enqueued_at: datetime | None
    fields: tuple[tuple[bytes, bytes], ...]

    @property
    def payload(self) -> bytes | None:
        """The encoded payload (field ``job``), or None if there is none."""
        return _payload_of(self.fields)


class Redriven(msgspec.Struct, frozen=True):
    """Answer of `redrive`.

    Attributes:
        moved: Letter ID -> ID of the entry that its job has now.
        superseded: Letter ID -> ``scheduled``, ``ready``, ``pending`` or ``done``: where its job ID is again meanwhile. The
            letter stays.
        refused: Letter ID -> why it cannot be redriven. The letter stays.
        missing: Letter IDs that are not there: redriven or purged by somebody else.
    """

    moved: dict[str, str]
    superseded: dict[str, str]
    refused: dict[str, str]
    missing: list[str]


class Failed(msgspec.Struct, frozen=True):
    """An entry that could not be dead-lettered. It stays pending and is tried again by the next reclaim."""

    entry_id: str
    reason: str
    error: str


class Reclaimed(tuple[list[Job[T]], list[str], list[str]], Generic[T]):  # noqa: SLOT001  # `failed` needs a place
    """Answer of `reclaim`. Unpacks into ``claimed, dead, missing``; the others stand beside them.

    Attributes:
        claimed: Jobs that are this consumer's now, in the order they were found.
        dead: Entry IDs that were dead-lettered.
        reasons: Of each of those, why.
        missing: Entry IDs whose body was gone; each left a tombstone (reason ``entry_missing``) among the dead letters.
        failed: Entries that could not be dead-lettered, with the reason; they stay pending.
        more: Whether the page was full, so that asking again at once may bring more.
    """

    reasons: dict[str, Reason]
    failed: list[Failed]
    more: bool

    def __new__(
        cls,
        claimed: list[Job[T]],
        reasons: dict[str, Reason],
        missing: list[str],
        failed: list[Failed],
        more: bool = False,  # noqa: FBT001, FBT002  # made by streamq only
    ) -> Self:
        """The three lists make the tuple."""
        self = super().__new__(cls, (claimed, list(reasons), missing))
        self.reasons = reasons
        self.failed = failed
        self.more = more
        return self

    @property
    def claimed(self) -> list[Job[T]]:  # noqa: D102  # the class says it
        return self[0]

    @property
    def dead(self) -> list[str]:  # noqa: D102
        return self[1]

    @property
    def missing(self) -> list[str]:  # noqa: D102
        return self[2]


class GroupSnapshot(msgspec.Struct, frozen=True):
    """One consumer group at one moment.

    Attributes:
        name: Of the group.
        ready: Entries the group has not read.
        exact: False when `ready` was counted to a bound and there are more.
        pending: Entries read and not settled.
        consumers: Consumers known to the server, dead ones included.
        done: Jobs acknowledged since the stream was made.
        retried: Attempts that were followed by another.
        dead: Jobs dead-lettered by this group since the stream was made.
        redriven: Dead letters given back to it.
        abandoned: Nobody reads it: it has entries to read, and no consumer that was heard of for a minute, or a lease. It pins
            those entries: start its workers, or drop the group.
    """

    name: str
    ready: int
    exact: bool
    pending: int
    consumers: int
    done: int
    retried: int
    dead: int
    redriven: int
    abandoned: bool


class Snapshot(msgspec.Struct, frozen=True):
    """A stream at one moment, as `inspect` sees it.

    Attributes:
        name: Of the stream.
        deployment: Its namespace, or None.
        ready: Entries not read, summed over the groups; all entries when there is no group yet.
        pending: Entries read and not settled, summed over the groups.
        scheduled: Jobs that wait for their time.
        dead: Dead letters.
        length: Entries in the stream.
        paused: Whether nothing may be started.
        groups: Each group, by name.
    """

    name: str
    deployment: str | None
    ready: int
    pending: int
    scheduled: int
    dead: int
    length: int
    paused: bool
    groups: dict[str, GroupSnapshot]


class Retry(Exception):  # noqa: N818  # a word a handler says, no error
    """Raise it in a handler to try the job again; counts as an attempt.

    Args:
        reason: Kept with the job's last errors.
        delay: Seconds until then; by the retry policy without it. A stream's `max_delay` is the most it gets.

    Raises:
        ConfigurationError: The delay is negative, not finite, or longer than a year. It is the handler that fails with it.
    """

    def __init__(self, reason: str = "", *, delay: float | timedelta | None = None) -> None:
        super().__init__(reason)
        self.delay_ms = None if delay is None else to_ms(delay, "delay")


class Reject(Exception):  # noqa: N818  # a word a handler says, no error
    """Raise it in a handler to dead-letter the job now, with reason ``rejected``.

    Args:
        reason: Kept in the dead letter.
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)


class Release(Exception):  # noqa: N818  # a word a handler says, no error
    """Raise it in a handler to give the job back: another worker may take it after a short wait. No attempt, no charge.

    For trouble that is the worker's and not the job's, such as a service that cannot be reached from here. A job that is
    always released never ends: nothing counts how often it was.

    Args:
        reason: For whoever reads the handler; it is not kept.
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
