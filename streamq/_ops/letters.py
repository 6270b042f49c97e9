"""Dead letters: look at them, give their jobs back, or remove them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias, TypeVar

import msgspec

from streamq import _scripts_upkeep
from streamq._letters import letter_of
from streamq._requests import Command, Pipeline, Plan, Script, ask, ask_each, is_entry_id, server_ms, text
from streamq._spec import Spec
from streamq.errors import ConfigurationError, JobEncodingError, StreamqError
from streamq.keys import check_id, is_whole
from streamq.messages import DeadLetter, Redriven

T = TypeVar("T")

Fields: TypeAlias = tuple[tuple[bytes, bytes], ...]

REDRIVEN = 10
"""Letters of one write of `redrive`: each copies a body on the server."""

MAX_REDRIVES = 1_000_000
"""Highest `max_redrives`: a bound that nobody reaches, which the script can still count."""

PURGED = 20
"""Letters of one request of `purge`."""


def listing(spec: Spec[T], *, count: int, after: str | None) -> Plan[list[DeadLetter]]:
    """Dead letters, oldest first. One request."""
    found = yield from stored(spec, count=count, after=after)
    return [letter for letter, _ in found]


def stored(
    spec: Spec[T], *, count: int = 1, after: str | None = None, only: str | None = None
) -> Plan[list[tuple[DeadLetter, Fields]]]:
    """Dead letters, oldest first, or the one of an ID, each with all the fields that are stored of it. One request."""
    dead, name = spec.keys.dead, spec.keys.name
    start, end = ("-", "+") if only is None else (check_letter_id(only), only)
    if after is not None:
        start = f"({check_letter_id(after)}"

    def decode(reply: Any) -> list[tuple[DeadLetter, Fields]]:
        return [(letter_of(name, text(letter_id), fields), _pairs(fields)) for letter_id, fields in reply]

    return (yield from ask(Command(("XRANGE", dead, start, end, "COUNT", count), (dead,), decode)))


def get(spec: Spec[T], letter_id: str) -> Plan[DeadLetter | None]:
    """One dead letter, with the fields of the entry that it refers to if it holds no copy. One request, or two."""
    found = yield from stored(spec, only=check_letter_id(letter_id))
    return (yield from with_entry(spec, found[0][0])) if found else None


def with_entry(spec: Spec[T], letter: DeadLetter) -> Plan[DeadLetter]:
    """The letter, with the fields of the entry that it refers to if it holds no copy. One request then, else none."""
    stream = spec.keys.stream
    if letter.reason != "oversized" or letter.fields or not is_entry_id(letter.source_id):
        return letter
    source = letter.source_id
    kept = yield from ask(Command(("XRANGE", stream, source, source, "COUNT", 1), (stream,), _rows))
    return msgspec.structs.replace(letter, fields=_pairs(kept[0][1])) if kept else letter


def redrive(
    spec: Spec[T],
    letter_ids: Iterable[str],
    *,
    new_id: str | None,
    max_redrives: int,
    payload: bytes | None = None,
    dry_run: bool = False,
) -> Plan[Redriven]:
    """Give jobs back to the groups that gave them up. One write per ten letters; each letter by itself atomic.

    An error carries what was done as ``partial``.
    """
    if new_id is not None:
        check_id(new_id, "job ID")
    if not is_whole(max_redrives, 0, MAX_REDRIVES):
        raise ConfigurationError(
            f"max_redrives must be a whole number from 0 to {MAX_REDRIVES:,}, not {max_redrives!r:.80}"
        )
    if payload is not None:
        _check_payload(payload, spec.options.max_payload)
    done = Redriven(moved={}, superseded={}, refused={}, missing=[])
    script = partial(
        _scripts_upkeep.redrive,
        spec.keys,
        spec.options,
        new_id=new_id,
        max_redrives=max_redrives,
        payload=payload,
        only_look=dry_run,
    )
    try:
        yield from _redrive_each(letter_ids, script, done)
    except StreamqError as error:
        error.partial = done
        raise
    return done


def _check_payload(payload: bytes, most: int) -> None:
    if not isinstance(payload, bytes):
        raise ConfigurationError(f"payload must be bytes, encoded as it is to be stored, not {type(payload).__name__}")
    if len(payload) > most:
        raise JobEncodingError(f"payload has {len(payload):,} bytes, max_payload is {most:,}")


def _redrive_each(
    letter_ids: Iterable[str], script: Callable[..., Script[tuple[int, str]]], done: Redriven
) -> Plan[None]:
    for ids in _batches(letter_ids, REDRIVEN):
        answers = yield from ask_each(Pipeline(tuple(script(letter_id=letter_id) for letter_id in ids)))
        for letter_id, answer in zip(ids, answers, strict=True):
            match answer:
                case Exception():
                    done.refused[letter_id] = str(answer)
                case (1, entry_id):
                    done.moved[letter_id] = entry_id
                case (-1, state):
                    done.superseded[letter_id] = state
                case (-2, why):
                    done.refused[letter_id] = why
                case _ if letter_id not in done.moved:  # the same ID twice is no mistake
                    done.missing.append(letter_id)


def purge(spec: Spec[T], letter_ids: Iterable[str]) -> Plan[int]:
    """Remove dead letters; how many were there. One request per 100; atomic each."""
    purged = 0
    for ids in _batches(letter_ids, PURGED):
        purged += sum((yield from ask(_scripts_upkeep.purge(spec.keys, letter_ids=ids))))
    return purged


def purge_older(spec: Spec[T], age_ms: int) -> Plan[int]:
    """Remove dead letters that died at least `age_ms` ago, by the server's clock; how many. Two requests per ten."""
    dead = spec.keys.dead
    now = yield from ask(server_ms(dead))
    last = f"{max(now - age_ms, 0)}-{2**64 - 1}"
    purged = 0
    while True:
        rows = yield from ask(Command(("XRANGE", dead, "-", last, "COUNT", REDRIVEN), (dead,), _rows))
        if not rows:
            return purged
        purged += yield from purge(spec, [letter_id for letter_id, _ in rows])


def _batches(letter_ids: Iterable[str], size: int) -> Iterator[Sequence[str]]:
    if isinstance(letter_ids, str):
        letter_ids = (letter_ids,)
    if not isinstance(letter_ids, Iterable):
        raise ConfigurationError(f"IDs of dead letters must be a str or several, not {letter_ids!r:.80}")
    seen: list[str] = []
    for letter_id in letter_ids:
        seen.append(check_letter_id(letter_id))
        if len(seen) == size:
            yield seen
            seen = []
    if seen:
        yield seen


def check_letter_id(letter_id: str) -> str:
    if not isinstance(letter_id, str) or not is_entry_id(letter_id):
        raise ConfigurationError(f"{letter_id!r:.80} is no ID of a dead letter: those look like 1700000000000-0")
    return letter_id


def _rows(reply: Any) -> list[tuple[str, list[bytes]]]:
    return [(text(entry_id), fields) for entry_id, fields in reply]


def _pairs(flat: list[bytes]) -> Fields:
    return tuple(zip(flat[::2], flat[1::2], strict=True))
