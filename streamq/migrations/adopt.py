"""Takes over what others have built by hand: a stream with its groups, their dead letters, a sorted set and a hash of timers.

Everything moves, as in 001_hash_tags: each batch is one script, which looks for the lock first and moves what it takes whole.
So each job is in one place at every instant, and whoever is killed is followed by a second run. What is still written to the
old keys afterwards a further run takes over; `clean` removes them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from streamq import _scripts_adopt as scripts
from streamq import _scripts_migrate
from streamq._ops import registry
from streamq._requests import Arg, Command, Plan, Reply, ask, groups_of, named, rows, server_ms, text
from streamq._scripts_migrate import Copied, Lock
from streamq._text import duration
from streamq.errors import MigrationError, ServerError
from streamq.keys import Keys
from streamq.migrations import m001_hash_tags
from streamq.migrations.adopt_source import Source, record, record_of
from streamq.migrations.m001_hash_tags import BYTES, JOBS, LETTERS, Told

QUIET_MS: Final = 60_000
"""For how long nobody may have used the old stream before its key is removed."""

_TRIES: Final = 5
_EXAMPLES: Final = 3

_WHY: Final = {
    "body": "have no payload",
    "id": "are no job IDs (1 to 512 bytes without control characters)",
    "time": "have a time that is none",
    "there": "wait in the stream already, under the same ID",
}


@dataclass
class Adopted:
    """What became of it.

    Attributes:
        finished: Entries that were removed, because every group was done with them.
        removed: Keys that were removed.
        failed: What stays where it was, and why.
    """

    entries: int = 0
    finished: int = 0
    dead: int = 0
    scheduled: int = 0
    removed: int = 0
    failed: list[str] = field(default_factory=list)


def held(plan: Plan[Adopted]) -> Plan[Adopted]:
    """Run `move` or `clean`, which need the lock.

    Raises:
        MigrationError: It is somebody else's by now.
    """
    try:
        return (yield from plan)
    except ServerError as error:
        if error.code != "LOCKLOST":
            raise
        raise MigrationError(
            "the lock ran out, or was taken away, before the next batch: somebody else may be migrating. What was moved stays "
            "moved; to go on, give the same command again"
        ) from error


def move(lock: Lock, source: Source, keys: Keys, told: Told) -> Plan[Adopted]:
    """Move all of it, part by part. What cannot be moved is said, and stays. The lock must be held."""
    yield from m001_hash_tags.check(keys)
    noted = yield from ask(record(keys))
    if noted.get("state") not in {"adopted", "removed"}:
        yield from _note(lock, keys, source, state="begun")
    done = Adopted()
    yield from _move(lock, source, keys, told, done)
    yield from registry.note(keys)
    if not done.failed:
        now = yield from ask(server_ms())
        yield from _note(lock, keys, source, state="adopted", at=now, moved=msgspec.json.encode(done))
    return done


def clean(lock: Lock, source: Source, keys: Keys, told: Told) -> Plan[Adopted]:
    """Move what was written to the old keys since, and remove them. The lock must be held.

    Raises:
        MigrationError: Somebody still uses them.
    """
    noted = yield from ask(record(keys))
    if noted.get("state") not in {"adopted", "removed"}:
        raise MigrationError(f"stream {keys.name} is not adopted yet; nothing was done")
    yield from refuse_if_in_use(source)
    done = Adopted()
    left = ""
    for _ in range(_TRIES):
        yield from _move(lock, source, keys, told, done)
        if done.failed:
            return done
        done.removed, left = yield from ask(scripts.drop(lock, tuple(source.kinds)))
        if not left:
            now = yield from ask(server_ms())
            yield from _note(lock, keys, source, state="removed", removed_at=now)
            return done
    done.failed.append(f"{left} still holds something, or is written to: stop who uses it first")
    return done


def _move(lock: Lock, source: Source, keys: Keys, told: Told, done: Adopted) -> Plan[None]:
    yield from _timers(lock, source, keys, told, done)
    yield from _stream(lock, source, keys, told, done)
    yield from _letters(lock, source, keys, told, done)


def _timers(lock: Lock, source: Source, keys: Keys, told: Told, done: Adopted) -> Plan[None]:
    if source.scheduled is None or source.bodies is None:
        return
    stuck: dict[str, list[str]] = {}
    skip, left = 0, True
    while left:
        batch = scripts.timers(lock, source.scheduled, source.bodies, keys, most=JOBS, max_bytes=BYTES, skip=skip)
        moved, stay, left = yield from ask(batch)
        for name, why in stay:
            stuck.setdefault(why, []).append(name)
        skip += len(stay)
        done.scheduled += moved
        told(moved)
    for why, names in stuck.items():
        done.failed.append(f"{len(names):,} of {source.scheduled} {_WHY[why]}: {some(names)}")
    alone = yield from without_time(source.scheduled, source.bodies)
    if alone:
        done.failed.append(f"{len(alone):,} of {source.bodies} have no time in {source.scheduled}: {some(alone)}")


def without_time(scheduled: str, bodies: str) -> Plan[list[str]]:
    """Payloads that no time belongs to. Two requests per 1,000 that are left."""
    alone: dict[str, None] = {}
    cursor = "0"
    while True:
        cursor, names = yield from ask(_hash_page(bodies, cursor))
        for at in range(0, len(names), JOBS):
            some = names[at : at + JOBS]
            scores: list[Any] = yield from ask(Command(("ZMSCORE", scheduled, *some), (scheduled,), list))
            alone |= {text(name): None for name, score in zip(some, scores, strict=True) if score is None}
        if cursor == "0":
            return list(alone)


def _hash_page(key: str, cursor: str) -> Command[tuple[str, list[bytes]]]:
    def decode(reply: Reply) -> tuple[str, list[bytes]]:
        return text(reply[0]), reply[1][::2]

    return Command(("HSCAN", key, cursor, "COUNT", JOBS), (key,), decode)


def _stream(lock: Lock, source: Source, keys: Keys, told: Told, done: Adopted) -> Plan[None]:
    if source.payload == "job":
        entries = yield from ask(_scripts_migrate.stream(lock, source.stream, keys.stream))
        if entries is not None:
            done.entries += entries
            told(entries)
            return

    def took(batch: Copied) -> None:
        done.entries += batch.moved + batch.superseded
        done.finished += batch.finished

    stuck = yield from m001_hash_tags.copy(lock, keys, took, told, source=source.stream, payload=source.payload)
    if stuck:
        done.failed.append(f"{stuck:,} entries of {source.stream} have too many fields to be copied")


def _letters(lock: Lock, source: Source, keys: Keys, told: Told, done: Adopted) -> Plan[None]:
    if source.dead is None:
        return
    after, stuck = "0-0", 0
    while after:
        batch = scripts.letters(
            lock,
            source.dead,
            keys,
            group=source.group,
            most=LETTERS,
            max_bytes=BYTES,
            after=after,
            payload=source.payload,
        )
        moved, stay, after = yield from ask(batch)
        done.dead += moved
        stuck += stay
        told(moved)
    if stuck:
        done.failed.append(f"{stuck:,} entries of {source.dead} have too many fields to be copied")


def refuse_if_in_use(source: Source) -> Plan[None]:
    """Nobody may have read from the old stream, or written to it, within the last minute."""
    key = source.stream
    if not (yield from ask(Command(("EXISTS", key), (key,), bool))):
        return
    now = yield from ask(server_ms(key))
    about: dict[str, Any] = yield from ask(Command(("XINFO", "STREAM", key), (key,), named))
    silent_ms = now - int(text(about["last-generated-id"]).partition("-")[0])
    if 0 <= silent_ms < QUIET_MS:
        raise MigrationError(_busy(key, f"was written to {duration(silent_ms / 1000)} ago"))
    for group in (yield from ask(groups_of(key))):
        consumers: list[dict[str, Any]] = yield from ask(
            Command(("XINFO", "CONSUMERS", key, group["name"]), (key,), rows)
        )
        for consumer in consumers:
            if consumer["idle"] < QUIET_MS:
                who = f"consumer {text(consumer['name'])} of group {text(group['name'])}"
                raise MigrationError(_busy(key, f"was read by {who} {duration(consumer['idle'] / 1000)} ago"))


def _busy(key: str, why: str) -> str:
    return f"{key} {why}: somebody still uses it; nothing was done. Stop who does, and try again a minute later"


def _note(lock: Lock, keys: Keys, source: Source, *, state: str, **more: Arg) -> Plan[None]:
    fields: list[Arg] = ["state", state]
    for name, value in {**source.said, **more}.items():
        fields += [name, value]
    yield from ask(_scripts_migrate.record(lock, record_of(keys), fields=fields))


def some(names: list[str]) -> str:
    """The first of many, for a message."""
    return ", ".join(names[:_EXAMPLES]) + (" ..." if len(names) > _EXAMPLES else "")
