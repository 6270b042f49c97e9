"""Which migrations there are, what became of each, and the order in which their steps are taken.

Whoever moves something holds the deployment's lock. Each batch renews it, and does nothing if it is somebody else's by then: a
process that stood still for longer than the lock lasts stops before its next batch, and may be run again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

import msgspec

from streamq import _scripts_migrate as scripts
from streamq._ops import registry
from streamq._ops.doctor import workers
from streamq._requests import Arg, Command, Pipeline, Plan, ask, ask_each, named_texts, server_ms, text
from streamq._scripts_migrate import Lock
from streamq._times import moment
from streamq.errors import MigrationError, ServerError
from streamq.keys import Keys, migration_lock, migration_record
from streamq.migrations import discovery, gate, m001_hash_tags
from streamq.migrations.discovery import Discovered
from streamq.migrations.m001_hash_tags import Held, Moved, Told

LOCK_MS: Final = 60_000
"""How long the lock of a process that died keeps others away. Batches take milliseconds, and each renews it."""

DEFAULT_LEASE_MS: Final = 15_000

NAMES: Final = (m001_hash_tags.NAME,)
"""All migrations, in order. They are numbered, and never renamed: stores remember them by name."""


class State(StrEnum):
    """Of a migration, for a deployment."""

    PENDING = "pending"
    APPLIED = "applied"
    NOT_APPLICABLE = "not_applicable"
    NOT_NEEDED = "not_needed"
    """There is nothing that it would move, and there never was."""


class Standing(msgspec.Struct):
    """A migration, and what became of it.

    Attributes:
        name: Its name.
        title: What it does.
        state: See `State`.
        at: When it was applied, or found not to be applicable.
        reason: Why it is not applicable.
        cleaned_at: When its last keys were removed.
        keys: How many keys of the previous layout there are.
        streams: Of how many streams.
    """

    name: str
    title: str
    state: State
    at: datetime | None = None
    reason: str | None = None
    cleaned_at: datetime | None = None
    keys: int = 0
    streams: int = 0


class Holder(msgspec.Struct):
    """Who holds the lock: host, process and a random part; and for how long, if it is not renewed. None: for ever."""

    owner: str
    left_s: float | None


class LockedError(MigrationError):
    """Somebody else is migrating; nothing was done."""


class InUseError(MigrationError):
    """A process of the previous version seems to be alive; nothing was done."""


@dataclass
class Outcome:
    """What became of all streams."""

    streams: list[Moved] = field(default_factory=list)

    @property
    def failed(self) -> list[str]:
        """What could not be moved, and why."""
        return [why for stream in self.streams for why in stream.failed]

    def total(self, what: str) -> int:
        """How many of these there were of all streams."""
        return sum(getattr(stream, what) for stream in self.streams)


def new_lock(deployment: str | None, owner: str) -> Lock:
    """The lock, for an owner of whom there is only one."""
    return Lock(migration_lock(deployment), owner, LOCK_MS)


def standing(deployment: str | None, name: str = m001_hash_tags.NAME) -> Plan[tuple[Standing, Discovered]]:
    """What became of a migration, and the streams that it is about. One request per 1,000 keys of the server, and two more."""
    record = migration_record(deployment, name)
    said = yield from ask_each(Pipeline((Command(("HGETALL", record), (record,), named_texts),)))
    fields: dict[str, str] = {} if isinstance(said[0], Exception) else said[0]
    found = Standing(name, m001_hash_tags.TITLE, State.NOT_NEEDED)
    found.at, found.cleaned_at = _moment(fields.get("at")), _moment(fields.get("cleaned_at"))
    if (yield from discovery.is_cluster()):
        found.state, found.reason = State.NOT_APPLICABLE, m001_hash_tags.NOT_ON_A_CLUSTER
        return found, Discovered()
    there = yield from discovery.discover(deployment)
    found.keys, found.streams = there.keys, len(there.streams)
    if fields.get("state") == State.APPLIED:
        found.state = State.APPLIED
    elif there.streams:
        found.state = State.PENDING
    return found, there


def look(deployment: str | None, there: Discovered) -> Plan[list[Held]]:
    """What each stream has in the previous layout. Two requests a stream."""
    held = []
    for name, found in there.streams.items():
        held.append((yield from m001_hash_tags.look(Keys(name, deployment), found.data)))
    return held


def holder(deployment: str | None) -> Plan[Holder | None]:
    """Who holds the lock. One request."""
    key = migration_lock(deployment)
    owner, left = yield from ask_each(
        Pipeline((Command(("GET", key), (key,), lambda reply: reply), Command(("PTTL", key), (key,), int)))
    )
    if isinstance(owner, Exception):
        raise owner
    return None if owner is None else Holder(text(owner), left / 1000 if isinstance(left, int) and left >= 0 else None)


def acquire(lock: Lock, deployment: str | None) -> Plan[None]:
    """Take the lock. One request, or two.

    Raises:
        LockedError: Somebody else has it.
    """
    taken = Command(("SET", lock.key, lock.owner, "NX", "PX", lock.ttl_ms), (lock.key,), bool)
    if (yield from ask(taken)):
        return
    other = yield from holder(deployment)
    who = "somebody" if other is None else other.owner
    until = (
        "" if other is None or other.left_s is None else f", and its lock ends in {other.left_s:,.0f} s if it is dead"
    )
    raise LockedError(
        f"{who} is migrating already{until}; nothing was done. If it is dead: {gate.command(deployment, 'unlock')}"
    )


def release(lock: Lock) -> Plan[bool]:
    """Give the lock back, if it is still ours. One request."""
    return (yield from ask(scripts.unlock(lock.key, owner=lock.owner)))


def note_not_applicable(deployment: str | None, name: str, reason: str) -> Plan[None]:
    """Note on a cluster that there is nothing to do. One request; a node that has not this key is not asked again."""
    record = migration_record(deployment, name)
    now = yield from ask(server_ms())
    said: Sequence[Arg] = ("state", State.NOT_APPLICABLE, "at", now, "reason", reason)
    yield from ask_each(Pipeline((Command(("HSET", record, *said), (record,), int),)))


def apply(lock: Lock, deployment: str | None, there: Discovered, told: Told) -> Plan[Outcome]:
    """Move what the streams have in the previous layout, and note it if nothing failed. The lock must be held.

    Raises:
        MigrationError: The lock is somebody else's by now.
    """
    for name in there.streams:
        yield from m001_hash_tags.check(Keys(name, deployment))
    done = Outcome()
    for name in there.streams:
        keys = Keys(name, deployment)
        done.streams.append((yield from _held(m001_hash_tags.move(lock, keys, told), deployment)))
        yield from registry.note(keys)
    if not done.failed:
        counts = msgspec.json.encode(done.streams)
        yield from _note(lock, deployment, ("state", State.APPLIED), ("moved", counts))
    return done


def cleanup(lock: Lock, deployment: str | None, there: Discovered, told: Told) -> Plan[Outcome]:
    """Move what the previous version has written since, and remove its keys. The lock must be held.

    Raises:
        InUseError: A process of the previous version is alive.
        MigrationError: The lock is somebody else's by now.
    """
    now_ms = yield from ask(server_ms())
    for name in there.streams:
        yield from m001_hash_tags.check(Keys(name, deployment))
        yield from _refuse_if_in_use(Keys(name, deployment), now_ms)
    done = Outcome()
    for name in there.streams:
        done.streams.append((yield from _held(m001_hash_tags.clean(lock, Keys(name, deployment), told), deployment)))
    if not done.failed:
        yield from _note(lock, deployment, at="cleaned_at")
    return done


def verify(deployment: str | None, there: Discovered) -> Plan[list[str]]:
    """What is wrong in either layout, of all streams that there are."""
    names = yield from registry.names(deployment)
    found = []
    for name in sorted({*names, *there.streams}):
        keys = Keys(name, deployment)
        if name in there.streams:
            held = yield from m001_hash_tags.look(keys, 0)
            found += held.wrong
        found += yield from m001_hash_tags.defects(keys)
    return found


def _refuse_if_in_use(keys: Keys, now_ms: int) -> Plan[None]:
    beats = yield from workers.beats(keys.untagged, now_ms)
    why = None
    if beats.live:
        why = f"worker {next(iter(beats.live))} of stream {keys.name} has just given a sign of life in the previous layout"
    else:
        leases = [beats.lease_ms(about.group or "") for about in (beat.about for beat in beats.by_name.values())]
        lease_ms = max((DEFAULT_LEASE_MS, *(lease for lease in leases if lease is not None)))
        why = yield from m001_hash_tags.in_use(keys, lease_ms)
    if why is not None:
        raise InUseError(f"{why}; nothing was done. Stop it, or wait for its lease to end")


def _held(plan: Plan[Moved], deployment: str | None) -> Plan[Moved]:
    """Run what needs the lock."""
    try:
        return (yield from plan)
    except ServerError as error:
        raise _lost(error, deployment) from error


def _lost(error: ServerError, deployment: str | None) -> Exception:
    if error.code != "LOCKLOST":
        return error
    return MigrationError(
        "the lock ran out, or was taken away, before the next batch: somebody else may be migrating. What was moved stays moved; "
        f"to go on: {gate.command(deployment, 'apply')}"
    )


def _note(lock: Lock, deployment: str | None, *fields: tuple[Arg, Arg], at: str = "at") -> Plan[None]:
    now = yield from ask(server_ms())
    flat = [part for pair in ((at, now), *fields) for part in pair]
    try:
        yield from ask(scripts.record(lock, migration_record(deployment, m001_hash_tags.NAME), fields=flat))
    except ServerError as error:
        raise _lost(error, deployment) from error


def _moment(value: Any) -> datetime | None:
    return moment(int(value)) if isinstance(value, str) and value.isdigit() else None
