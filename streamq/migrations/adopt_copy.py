"""Takes over what others have built by hand on a cluster, where nothing moves whole from slot to slot: by copying.

The old keys stay as they are. Copies keep their IDs, so that a second run goes on where the first ended, and adds nothing twice.
At the end all is read once more in both places, and compared; what was compared is noted. `clean` removes the old keys one by
one, if they are still what was noted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeAlias

import msgspec

from streamq import _scripts_adopt as scripts
from streamq._ops import registry
from streamq._requests import (
    Arg,
    Command,
    Pipeline,
    Plan,
    Reply,
    Transaction,
    ask,
    ask_each,
    groups_of,
    named,
    server_ms,
    text,
)
from streamq._scripts import check as check_script
from streamq._scripts_migrate import Lock
from streamq.errors import ConfigurationError, MigrationError
from streamq.keys import Keys, check_id
from streamq.migrations.adopt import Adopted, refuse_if_in_use, some, without_time
from streamq.migrations.adopt_source import Source, record, record_of
from streamq.migrations.m001_hash_tags import Told

COMMANDS: Final = (
    "XADD",
    "XCLAIM",
    "XRANGE",
    "XPENDING",
    "XGROUP CREATE",
    "XGROUP DESTROY",
    "XSETID",
    "HSET",
    "ZADD",
    "UNLINK",
)

PAGE: Final = 100
"""Entries, pending ones or timers in a request: they may be large."""

_LAST_MS: Final = 10**14

Fields: TypeAlias = list[bytes]
Shape: TypeAlias = Callable[[str, Fields], Fields]


class Structure(msgspec.Struct):
    """What a structure holds: how much, its SHA-256, and the last ID of a stream."""

    count: int = 0
    digest: str = ""
    last: str = ""


class Digests(msgspec.Struct):
    """Of all structures, as they were copied."""

    entries: Structure
    groups: Structure
    dead: Structure
    scheduled: Structure


class _Sum:
    """Counts and digests what it is told."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self.count = 0

    def add(self, *parts: bytes) -> None:
        for part in parts:
            self._hash.update(b"%d:" % len(part) + part)
        self._hash.update(b";")
        self.count += 1

    def structure(self, last: str = "") -> Structure:
        return Structure(self.count, self._hash.hexdigest(), last)


def move(lock: Lock, source: Source, keys: Keys, told: Told) -> Plan[Adopted]:
    """Copy all of it, compare it, and note that. The lock must be held.

    Raises:
        MigrationError: Somebody uses the old stream: what is read there now would run in both.
    """
    denied = yield from ask(check_script(keys, commands=COMMANDS))
    if denied:
        raise ConfigurationError(f"the user may not run {', '.join(denied)} on {keys.stream}; nothing was done")
    yield from refuse_if_in_use(source)
    noted = yield from ask(record(keys))
    if noted.get("state") in {"adopted", "removed"}:
        return Adopted()
    begun = int(noted["begun"]) if "begun" in noted else (yield from ask(server_ms(keys.stream)))
    yield from _note(lock, keys, source, state="begun", begun=begun)
    done = Adopted()
    done.scheduled, done.failed = yield from _copy_timers(lock, source, keys, begun, told)
    if source.dead is not None:
        done.dead = yield from _copy_entries(lock, source.dead, keys.dead, _letters(source), told)
    done.entries = yield from _copy_entries(lock, source.stream, keys.stream, _renamed(source), told)
    yield from _copy_groups(lock, source, keys)
    was = yield from _digests(lock, source, begun)
    now = yield from _digests_of_copies(lock, keys)
    done.failed += [
        f"{name} differ: {old.count:,} there, {new.count:,} copied: somebody uses the old keys, or has used stream {keys.name}, "
        f"which streamq delete {keys.name} removes; the old keys are whole"
        for name in Digests.__struct_fields__
        if (old := getattr(was, name)) != (new := getattr(now, name))
    ]
    yield from registry.note(keys)
    if not done.failed:
        at = yield from ask(server_ms(keys.stream))
        moved = msgspec.json.encode(done)
        yield from _note(lock, keys, source, state="adopted", at=at, digests=msgspec.json.encode(was), moved=moved)
    return done


def clean(lock: Lock, source: Source, keys: Keys, told: Told) -> Plan[Adopted]:
    """Remove the old keys, if they are still what was copied. The lock must be held.

    Raises:
        MigrationError: They are not, or somebody uses them, or nothing was adopted yet.
    """
    noted = yield from ask(record(keys))
    if noted.get("state") not in {"adopted", "removed"}:
        raise MigrationError(f"stream {keys.name} is not adopted yet; nothing was done")
    yield from refuse_if_in_use(source)
    was = msgspec.json.decode(noted["digests"], type=Digests)
    now = yield from _digests(lock, source, int(noted["begun"]))
    for name in Digests.__struct_fields__:
        old, new = getattr(was, name), getattr(now, name)
        if old != new and (new.count or new.last):  # those that are gone were removed by a run before
            raise MigrationError(
                f"{name} of the old keys are not what was copied ({old.count:,} then, {new.count:,} now); nothing was done: "
                "what was written there since, or done with it, you must put right yourself"
            )
    done = Adopted()
    of = {
        source.stream: was.entries,
        source.dead: was.dead,
        source.scheduled: was.scheduled,
        source.bodies: was.scheduled,
    }
    for key in source.kinds:
        yield from ask(scripts.hold(lock))
        there = yield from ask(Command(("EXISTS", key), (key,), int))
        if (yield from ask(scripts.unlink(key, count=of[key].count, last=of[key].last))):
            done.removed += there
        else:
            done.failed.append(f"{key} has changed since it was compared, and stays")
        told(of[key].count)
    if not done.failed:
        at = yield from ask(server_ms(keys.stream))
        yield from _note(lock, keys, source, state="removed", removed_at=at)
    return done


# --- entries and dead letters -----------------------------------------------------------------


def _renamed(source: Source) -> Shape:
    """Fields of a copy: its payload is named job. One that was named so already is was:job. As lua/shared/moving.lua."""
    wanted = source.payload.encode()

    def shape(_: str, fields: Fields) -> Fields:
        names = fields[::2]
        if wanted == b"job" or wanted not in names:
            return fields
        at = names.index(wanted)
        changed = [b"was:job" if name == b"job" else name for name in names]
        changed[at] = b"job"
        return [part for pair in zip(changed, fields[1::2], strict=True) for part in pair]

    return shape


def _letters(source: Source) -> Shape:
    """Fields of a dead letter. As lua/migrate_adopt_letters.lua."""
    renamed = _renamed(source)

    def shape(entry_id: str, fields: Fields) -> Fields:
        ms = entry_id.partition("-")[0]
        about = {
            "reason": "adopted", "error": f"it was entry {entry_id} of dead letters that others kept", "source": entry_id,
            "job_id": entry_id, "group": source.group, "consumer": "", "deliveries": "0", "attempts": "0", "enqueued_at": ms,
            "at": ms, "redrives": "0",
        }  # fmt: skip
        letter = [part.encode() for name, value in about.items() for part in (f"dead:{name}", value)]
        original = renamed(entry_id, fields)
        for name, value in zip(original[::2], original[1::2], strict=True):
            letter += [b"dead:" + name if name.startswith(b"dead:") else name, value]
        return letter

    return shape


def _as_it_is(_: str, fields: Fields) -> Fields:
    return fields


def _page(key: str, after: str) -> Command[list[tuple[str, Fields]]]:
    def decode(reply: Reply) -> list[tuple[str, Fields]]:
        return [(text(entry_id), fields) for entry_id, fields in reply if fields]

    return Command(("XRANGE", key, f"({after}", "+", "COUNT", PAGE), (key,), decode)


def _last_id(key: str) -> Plan[str]:
    """The last ID that a stream gave out; 0-0 without it."""
    if not (yield from ask(Command(("EXISTS", key), (key,), bool))):
        return "0-0"
    about: dict[str, Any] = yield from ask(Command(("XINFO", "STREAM", key), (key,), named))
    return text(about["last-generated-id"])


def _copy_entries(lock: Lock, old: str, new: str, shape: Shape, told: Told) -> Plan[int]:
    last = yield from _last_id(old)
    after = yield from _last_id(new)
    copied = 0
    while page := (yield from ask(_page(old, after))):
        yield from ask(scripts.hold(lock))
        yield from _all(Pipeline(tuple(_add(new, entry_id, shape(entry_id, fields)) for entry_id, fields in page)))
        after = page[-1][0]
        copied += len(page)
        told(len(page))
    if (yield from _last_id(new)) not in {"0-0", last}:
        yield from ask(Command(("XSETID", new, last), (new,), bool))
    return copied


def _add(key: str, entry_id: str, fields: Fields) -> Command[str]:
    return Command(("XADD", key, entry_id, *fields), (key,), text)


def _digest_entries(lock: Lock, key: str | None, shape: Shape) -> Plan[Structure]:
    total = _Sum()
    if key is None:
        return total.structure()
    after = "0-0"
    while page := (yield from ask(_page(key, after))):
        yield from ask(scripts.hold(lock))
        for entry_id, fields in page:
            total.add(entry_id.encode(), *shape(entry_id, fields))
        after = page[-1][0]
    last = yield from _last_id(key)
    return total.structure("" if last == "0-0" else last)


# --- groups -----------------------------------------------------------------------------------


def _pending(lock: Lock, key: str, group: bytes) -> Plan[list[list[Any]]]:
    """What a group has in hand, without what is gone from the stream: ID, consumer, idle ms, count."""
    found: list[list[Any]] = []
    first = "-"
    while page := (yield from ask(Command(("XPENDING", key, group, first, "+", PAGE), (key,), list))):
        there = yield from _all(
            Pipeline(tuple(Command(("XRANGE", key, row[0], row[0], "COUNT", 1), (key,), bool) for row in page))
        )
        yield from ask(scripts.hold(lock))
        found += [row for row, is_there in zip(page, there, strict=True) if is_there]
        first = f"({text(page[-1][0])}"
    return found


def _copy_groups(lock: Lock, source: Source, keys: Keys) -> Plan[None]:
    """Each anew: a run before may have been broken off in the middle of one."""
    new = keys.stream
    for group in (yield from ask(groups_of(source.stream))):
        name, last = group["name"], group["last-delivered-id"]
        rows = yield from _pending(lock, source.stream, name)
        yield from ask(scripts.hold(lock))
        made = ("XGROUP", "CREATE", new, name)
        again = Pipeline(
            (
                Command((*made, "0", "MKSTREAM"), (new,), bool),  # so that there is one, else the next raises an error
                Command(("XGROUP", "DESTROY", new, name), (new,), bool),
                Command((*made, last, "MKSTREAM"), (new,), bool),
            )
        )
        *_, made_anew = yield from ask_each(again)
        if isinstance(made_anew, Exception):
            raise made_anew
        for at in range(0, len(rows), PAGE):
            yield from ask(scripts.hold(lock))
            yield from _all(Pipeline(tuple(_claim(new, name, row) for row in rows[at : at + PAGE])))


def _claim(key: str, group: bytes, row: list[Any]) -> Command[int]:
    entry_id, consumer, idle_ms, count = row
    how: tuple[Arg, ...] = ("IDLE", idle_ms, "RETRYCOUNT", count, "FORCE", "JUSTID")
    return Command(("XCLAIM", key, group, consumer, 0, entry_id, *how), (key,), len)


def _digest_groups(lock: Lock, key: str) -> Plan[Structure]:
    total = _Sum()
    if not (yield from ask(Command(("EXISTS", key), (key,), bool))):
        return total.structure()
    for group in sorted((yield from ask(groups_of(key))), key=lambda row: row["name"]):
        total.add(group["name"], group["last-delivered-id"])
        for entry_id, consumer, _, count in (yield from _pending(lock, key, group["name"])):
            total.add(entry_id, consumer, b"%d" % count)
    return total.structure()


# --- timers -----------------------------------------------------------------------------------


def _timer_page(source: Source, at: int) -> Plan[list[tuple[bytes, bytes, bytes | None]]]:
    """IDs with their times and payloads, from a rank on."""
    times, bodies = source.scheduled, source.bodies
    if times is None or bodies is None:
        return []
    rows: list[bytes] = yield from ask(Command(("ZRANGE", times, at, at + PAGE - 1, "WITHSCORES"), (times,), list))
    if not rows:
        return []
    found: list[bytes | None] = yield from ask(Command(("HMGET", bodies, *rows[::2]), (bodies,), list))
    return list(zip(rows[::2], rows[1::2], found, strict=True))


def _wrong(name: bytes, due: bytes, body: bytes | None) -> str | None:
    if body is None:
        return "have no payload"
    try:
        check_id(name.decode(), "job ID")
    except (UnicodeDecodeError, ConfigurationError):
        return "are no job IDs"
    return None if float(due) < _LAST_MS else "have a time that is none"


def _copy_timers(lock: Lock, source: Source, keys: Keys, begun: int, told: Told) -> Plan[tuple[int, list[str]]]:
    """How many there are now, and what could not be copied."""
    if source.scheduled is None or source.bodies is None:
        return 0, []
    copied = 0
    wrong: dict[str, list[str]] = {}
    at = 0
    while page := (yield from _timer_page(source, at)):
        at += len(page)
        times: list[Arg] = []
        entries: list[Arg] = []
        for name, due, body in page:
            why = _wrong(name, due, body)
            if why is not None or body is None:
                wrong.setdefault(why or "", []).append(text(name))
                continue
            times += [_score(due), b"/" + name]
            entries += [b"/" + name, _packed(name, body, begun)]
        if times:
            yield from ask(scripts.hold(lock))
            put = Command(("HSET", keys.jobs, *entries), (keys.jobs,), int)
            yield from _all(Transaction((put, Command(("ZADD", keys.scheduled, *times), (keys.scheduled,), int))))
        copied += len(times) // 2
        told(len(page))
    failed = [f"{len(names):,} of {source.scheduled} {why}: {some(names)}" for why, names in wrong.items()]
    alone = yield from without_time(source.scheduled, source.bodies)
    if alone:
        failed.append(f"{len(alone):,} of {source.bodies} have no time in {source.scheduled}: {some(alone)}")
    return copied, failed


def _score(due: bytes) -> str:
    return f"{max(float(due), 0):.0f}"


def _packed(name: bytes, body: bytes, begun: int) -> bytes:
    """An entry as T:scheduled:jobs has it: a MessagePack array of strings, whatever bytes they are."""
    parts = (b"job", body, b"sq:id", name, b"sq:at", b"%d" % begun)
    return bytes([0x90 | len(parts)]) + b"".join(_header(len(part)) + part for part in parts)


def _header(size: int) -> bytes:
    """Of a MessagePack string."""
    if size < 32:  # noqa: PLR2004  # by the format
        return bytes([0xA0 | size])
    for mark, width in ((0xD9, 1), (0xDA, 2)):
        if size < 1 << (8 * width):
            return bytes([mark]) + size.to_bytes(width, "big")
    return b"\xdb" + size.to_bytes(4, "big")


def _digest_timers(lock: Lock, source: Source, begun: int) -> Plan[Structure]:
    total = _Sum()
    at = 0
    while page := (yield from _timer_page(source, at)):
        at += len(page)
        yield from ask(scripts.hold(lock))
        for name, due, body in page:
            if body is not None and _wrong(name, due, body) is None:
                total.add(b"/" + name, _score(due).encode(), _packed(name, body, begun))
    return total.structure()


def _digest_scheduled(lock: Lock, keys: Keys) -> Plan[Structure]:
    total = _Sum()
    at = 0
    copies = Source("", "", scheduled=keys.scheduled, bodies=keys.jobs)
    while page := (yield from _timer_page(copies, at)):
        at += len(page)
        yield from ask(scripts.hold(lock))
        for name, due, body in page:
            total.add(name, _score(due).encode(), body or b"")
    return total.structure()


# --- all together -----------------------------------------------------------------------------


def _digests(lock: Lock, source: Source, begun: int) -> Plan[Digests]:
    return Digests(
        (yield from _digest_entries(lock, source.stream, _renamed(source))),
        (yield from _digest_groups(lock, source.stream)),
        (yield from _digest_entries(lock, source.dead, _letters(source))),
        (yield from _digest_timers(lock, source, begun)),
    )


def _digests_of_copies(lock: Lock, keys: Keys) -> Plan[Digests]:
    return Digests(
        (yield from _digest_entries(lock, keys.stream, _as_it_is)),
        (yield from _digest_groups(lock, keys.stream)),
        (yield from _digest_entries(lock, keys.dead, _as_it_is)),
        (yield from _digest_scheduled(lock, keys)),
    )


def _all(request: Pipeline[Any] | Transaction[Any]) -> Plan[list[Any]]:
    """Run several; the first error is raised."""
    answers = yield from ask_each(request)
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return answers


def _note(lock: Lock, keys: Keys, source: Source, *, state: str, **more: Arg) -> Plan[None]:
    yield from ask(scripts.hold(lock))
    name = record_of(keys)
    pairs: Iterable[tuple[str, Arg]] = {**source.said, **more, "state": state}.items()
    yield from ask(Command(("HSET", name, *(part for pair in pairs for part in pair)), (name,), int))
