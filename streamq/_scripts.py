"""The Lua scripts: their text, and one typed constructor a script. The only module that makes a `Script`.

Call sites never see positions of KEYS and ARGV, and codes of replies become values here. The scripts live in ``lua/`` at
the top of a checkout and in ``streamq/lua`` inside a wheel.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from streamq._requests import Arg, Reply, Script, text, texts
from streamq.errors import EffectError
from streamq.keys import Keys
from streamq.messages import JobIdKind
from streamq.options import StreamOptions

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

    from streamq.effects import Effects

T = TypeVar("T")

_USES = re.compile(r"^-- Uses: ([a-z_, ]+)$", re.MULTILINE)

_PRELUDE = "if redis.replicate_commands then redis.replicate_commands() end\n"
"""Redis 6.2 may be set to replicate scripts as text, and then refuses writes after TIME or XPENDING; later ones ignore it."""

MAX_BATCH = 500
"""Most deliveries in one call: bounds the time the server does nothing else, and keeps Lua's unpack below its limit."""


def in_batches(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """`items` in parts of one call each; none without items."""
    for at in range(0, len(items), MAX_BATCH):
        yield items[at : at + MAX_BATCH]


def _folder() -> Traversable:
    packaged = files("streamq") / "lua"
    return packaged if packaged.is_dir() else Path(__file__).parent.parent / "lua"


@dataclass(frozen=True, slots=True)
class Source:
    """Text of a script as it is sent, and its SHA-1, by which the server knows it."""

    text: str
    sha: str


@cache
def source(name: str) -> Source:
    """Text of ``lua/<name>.lua`` behind the shared parts that it uses."""
    folder = _folder()
    text = (folder / f"{name}.lua").read_text("utf-8")
    uses = _USES.search(text)
    shared = [part.strip() for part in uses[1].split(",")] if uses else []
    parts = [(folder / "shared" / f"{part}.lua").read_text("utf-8") for part in shared]
    whole = _PRELUDE + "\n".join([*parts, text])
    return Source(whole, hashlib.sha1(whole.encode(), usedforsecurity=False).hexdigest())


class Fence(IntEnum):
    """What a guarded script found, per delivery."""

    MINE = 1
    GONE = 0
    LOST = -1
    MISSING = -3


class Settled(msgspec.Struct, frozen=True, gc=False):
    """A delivery to acknowledge: what the fence compares, and what to remember of it."""

    entry_id: str
    count: int
    kind: JobIdKind
    job_id: str
    result: bytes


class Held(msgspec.Struct, frozen=True, gc=False):
    """A delivery as the fence compares it."""

    entry_id: str
    count: int


@dataclass(frozen=True, slots=True)
class Page:
    """A page of `reclaim`."""

    cursor: str
    claimed: list[tuple[str, int, list[bytes]]]
    spent: list[Held]
    missing: list[str]
    stuck: list[str]


_FENCES = {int(fence): fence for fence in Fence}


def _fences(reply: Reply) -> list[Fence]:
    return [_FENCES[code] for code in reply]


def check(keys: Keys, *, commands: Iterable[str], on: str | None = None) -> Script[list[str]]:
    """``check.lua``: those of the commands that the user may not run, on the stream's keys or another key that is not there."""
    return Script("check", (on or keys.probe,), tuple(commands), texts)


class NewJob(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A job to add: its ID if the caller chose one, and the fields of its entry."""

    job_id: str | None
    fields: Sequence[Arg]


def add(
    keys: Keys, options: StreamOptions, *, jobs: Sequence[NewJob], meanwhile: Callable[[], None] | None = None
) -> Script[list[tuple[int, str, str]]]:
    """``add.lua``: per job (1 added, 0 known, -1 full; entry ID, or how many are ready; state)."""

    def decode(reply: Reply) -> list[tuple[int, str, str]]:
        return [(code, text(value), text(state)) for code, value, state in reply]

    argv: list[Arg] = [options.slice_ms, options.max_ready or 0]
    for job in jobs:
        argv += (job.job_id or "", len(job.fields), *job.fields)
    return Script("add", (keys.stream, keys.scheduled, *keys.ids), tuple(argv), decode, meanwhile)


def cancel(keys: Keys, options: StreamOptions, *, job_id: str, only_scheduled: bool) -> Script[tuple[int, str]]:
    """``cancel.lua``: (1 removed, 0 unknown, -1 refused; entry ID, or the state)."""

    def decode(reply: Reply) -> tuple[int, str]:
        return reply[0], text(reply[1]) if len(reply) > 1 else ""

    return Script(
        "cancel",
        (keys.stream, keys.scheduled, keys.jobs, *keys.ids),
        (job_id, options.group, int(only_scheduled)),
        decode,
    )


def result(keys: Keys, options: StreamOptions, *, job_id: str) -> Script[tuple[str, bytes]]:
    """``result.lua``: the state, and the encoded result of a job that is done."""

    def decode(reply: Reply) -> tuple[str, bytes]:
        return text(reply[0]), reply[1] if len(reply) > 1 else b""

    return Script("result", (keys.stream, keys.scheduled, *keys.ids, *keys.done), (options.group, job_id), decode)


def ack(keys: Keys, options: StreamOptions, *, consumer: str, batch: Sequence[Settled]) -> Script[list[Fence]]:
    """``ack.lua``: one answer a delivery. Fast if `batch` ascends by entry ID; it must not name one twice."""
    heads: list[str] = []
    notes: list[Arg] = []
    chosen = JobIdKind.CHOSEN  # looked up once, not once a delivery
    for place, item in enumerate(batch, 1):
        remembered = item.kind is chosen or item.result
        if item.count != 1 or remembered:
            heads.append(f"{place} {item.count} {item.kind}")
            notes += (item.job_id if remembered else "", item.result)
    if heads:
        notes = [" ".join(heads), *notes]
    return Script(
        "ack",
        (keys.stream, keys.meta, *keys.ids, *keys.done),
        (
            options.group, consumer, options.retention, options.slice_ms,
            len(batch), batch[0].entry_id, batch[-1].entry_id, " ".join([item.entry_id for item in batch]), *notes,
        ),
        _fences,
    )  # fmt: skip


UNCLAIMED = 2
"""Answer of ``pass_over.lua``: nobody handles this entry, so it is this group's to dead-letter."""


def pass_over(
    keys: Keys, options: StreamOptions, *, consumer: str, batch: Iterable[tuple[Held, str]]
) -> Script[list[int]]:
    """``pass_over.lua``: per (delivery, its handler's group) what the fence found, or `UNCLAIMED`."""
    argv: list[Arg] = [options.group, consumer, options.retention]
    for held, group in batch:
        argv += (held.entry_id, held.count, group)
    return Script("pass_over", (keys.stream, keys.meta), tuple(argv), list)


def _effect_args(keys: Keys, effects: Effects) -> tuple[tuple[str, ...], list[Arg]]:
    places: dict[str, int] = {}
    argv: list[Arg] = [len(effects)]
    for command, key, arguments in effects:
        place = places.setdefault(keys.data(key), len(places) + 1)
        argv += (command, place, len(arguments), *arguments)
    return (keys.probe, *places), argv


def _effect_error(effects: Effects, reply: Reply) -> EffectError:
    command, key, _ = list(effects)[reply[1] - 1]
    return EffectError(key=key, command=command, reason=text(reply[2]))


def commit(
    keys: Keys, options: StreamOptions, *, consumer: str, item: Settled, effects: Effects
) -> Script[Fence | EffectError]:
    """``commit.lua``: what the fence found, or the effect that cannot be applied."""
    data, effect_argv = _effect_args(keys, effects)
    remembered = item.kind is JobIdKind.CHOSEN or item.result

    def decode(reply: Reply) -> Fence | EffectError:
        return _effect_error(effects, reply) if reply[0] == -2 else Fence(reply[0])  # noqa: PLR2004  # its header says

    return Script(
        "commit",
        (keys.stream, keys.meta, *keys.ids, *keys.done, *data),
        (
            options.group, consumer, options.retention, options.slice_ms, item.entry_id, item.count,
            item.kind, item.job_id if remembered else "", item.result, *effect_argv,
        ),
        decode,
    )  # fmt: skip


def once(keys: Keys, options: StreamOptions, *, once_id: str, effects: Effects) -> Script[bool | EffectError]:
    """``once.lua``: True if the effects were applied, False if the ID was known, or the effect that cannot be applied."""
    data, effect_argv = _effect_args(keys, effects)

    def decode(reply: Reply) -> bool | EffectError:
        return _effect_error(effects, reply) if reply[0] == -2 else reply[0] == 1  # noqa: PLR2004  # its header says

    return Script("once", (*keys.done, *data), (options.group, once_id, options.slice_ms, *effect_argv), decode)


def sweep(keys: Keys) -> Script[None]:
    """``sweep.lua``."""

    def decode(_: Reply) -> None:
        return None

    return Script("sweep", (*keys.ids, *keys.done), (), decode)


def claim_id(
    keys: Keys, options: StreamOptions, *, consumer: str, batch: Sequence[tuple[Held, str]]
) -> Script[list[int]]:
    """``claim_id.lua``: per (delivery, job ID) the answer's code. Fast if `batch` ascends by entry ID."""
    are_first = all(held.count == 1 for held, _ in batch)
    return Script(
        "claim_id",
        (keys.stream, *keys.done),
        (
            options.group, consumer, options.slice_ms, " ".join([held.entry_id for held, _ in batch]),
            "" if are_first else " ".join([str(held.count) for held, _ in batch]), *[job_id for _, job_id in batch],
        ),
        list,
    )  # fmt: skip


def retry(
    keys: Keys,
    options: StreamOptions,
    *,
    consumer: str,
    item: Settled,
    enqueued_ms: int,
    attempt: int,
    errors: bytes,
    delay_ms: int,
) -> Script[tuple[Fence, str]]:
    """``retry.lua``: what the fence found, and the new entry's ID if it waits for nothing."""

    def decode(reply: Reply) -> tuple[Fence, str]:
        return Fence(reply[0]), text(reply[1]) if len(reply) > 1 else ""

    return Script(
        "retry",
        (keys.stream, keys.scheduled, keys.jobs, keys.wake, keys.meta, *keys.ids, *keys.done),
        (
            options.group, consumer, options.retention, options.slice_ms, item.entry_id, item.count,
            item.kind, item.job_id, enqueued_ms, attempt, errors, delay_ms,
        ),
        decode,
    )  # fmt: skip


def dead_letter(
    keys: Keys,
    options: StreamOptions,
    *,
    consumer: str,
    held: Held,
    reason: str,
    error: str,
    job_id: str,
    attempts: int | str,
) -> Script[Fence]:
    """``dead_letter.lua``: what the fence found; `Fence.MINE` when it was moved, in whatever form."""

    def decode(reply: Reply) -> Fence:
        return Fence.MINE if reply > 0 else Fence(reply)

    return Script(
        "dead_letter",
        (keys.stream, keys.dead, keys.meta, *keys.ids, *keys.done),
        (options.group, consumer, options.retention, held.entry_id, held.count, reason, error, job_id, attempts),
        decode,
    )


def reclaim(
    keys: Keys,
    options: StreamOptions,
    *,
    consumer: str,
    min_idle_ms: int,
    count: int,
    look: int,
    max_bytes: int,
    raise_count: bool,
    least_count: int,
    most_last: int,
    last_patience_ms: int,
    delays_ms: Sequence[int],
    exclude: Iterable[str],
) -> Script[Page]:
    """``reclaim.lua``: one page. `delays_ms` are for counts 1, 2, and so on."""

    def decode(reply: Reply) -> Page:
        cursor, claimed, spent, missing, stuck = reply
        return Page(
            cursor=text(cursor),
            claimed=[(text(entry_id), deliveries, fields) for entry_id, deliveries, fields in claimed],
            spent=[Held(text(entry_id), deliveries) for entry_id, deliveries in spent],
            missing=texts(missing),
            stuck=texts(stuck),
        )

    return Script(
        "reclaim",
        (keys.stream, keys.dead, keys.meta),
        (
            options.group, consumer, min_idle_ms, count, look, max_bytes, options.max_deliveries,
            int(raise_count), least_count, most_last, last_patience_ms, len(delays_ms), *delays_ms, *exclude,
        ),
        decode,
    )  # fmt: skip


def start(keys: Keys, options: StreamOptions, *, consumer: str, targets: Iterable[Held]) -> Script[list[Fence]]:
    """``start.lua``: one answer a delivery; `targets` name the count each shall have."""
    argv: list[Arg] = [options.group, consumer]
    for held in targets:
        argv += (held.entry_id, held.count)
    return Script("start", (keys.stream, keys.dead, keys.meta), tuple(argv), _fences)


def renew(keys: Keys, options: StreamOptions, *, consumer: str, batch: Iterable[Held]) -> Script[list[Fence]]:
    """``renew.lua``: one answer a delivery."""
    argv: list[Arg] = [options.group, consumer]
    for held in batch:
        argv += (held.entry_id, held.count)
    return Script("renew", (keys.stream, keys.dead, keys.meta), tuple(argv), _fences)


def release(
    keys: Keys, options: StreamOptions, *, consumer: str, batch: Iterable[tuple[Held, int, int, str]]
) -> Script[list[Fence]]:
    """``release.lua``: per (delivery, count from now on, idle ms from now on, chosen job ID or "") one answer."""
    argv: list[Arg] = [options.group, consumer]
    for held, next_count, idle_ms, job_id in batch:
        argv += (held.entry_id, held.count, next_count, idle_ms, job_id)
    return Script("release", (keys.stream, keys.dead, keys.meta, *keys.done), tuple(argv), _fences)
