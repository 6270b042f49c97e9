"""One stream's dead letters, as the commands need them: those that filters leave, and what became of each."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, Final, TypeAlias, get_args

import msgspec

from streamq._ops import letters as ops
from streamq._ops.letters import Fields
from streamq._requests import Command, ask
from streamq.cli import times
from streamq.cli.client import Client
from streamq.cli.entries import text_or_base64
from streamq.errors import ConfigurationError, StreamqError
from streamq.messages import DeadLetter, Reason, Redriven
from streamq.options import StreamOptions

Stored: TypeAlias = tuple[DeadLetter, Fields]
"""A letter, and all the fields that are stored of it."""

FIRST_PAGE, MOST_ON_A_PAGE, PAGE_BYTES = 10, 1_000, 4 << 20
"""Letters come with their payloads: pages are as long as those allow."""

MOST_PAYLOAD: Final = 256 << 20
"""How large a payload any stream may allow; which one this stream allows, only its workers know."""

MOST_TOLD: Final = 10
"""Letters that stay and are told one by one where many are redriven."""


class Row(msgspec.Struct, kw_only=True):
    """A letter in JSON; its payload, too, if that was asked for: as text, or in base64 if it is no UTF-8."""

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
    payload_bytes: int | None
    payload: str | msgspec.UnsetType = msgspec.UNSET
    payload_base64: str | msgspec.UnsetType = msgspec.UNSET


Bytes: TypeAlias = str | dict[str, str]
"""Text, or ``{"base64": ...}`` of what is no UTF-8."""


class Exported(Row, kw_only=True):
    """A letter as it is stored, field by field in order, and the entry if the letter only refers to it."""

    stored: list[tuple[Bytes, Bytes]]
    entry: list[tuple[Bytes, Bytes]] | msgspec.UnsetType = msgspec.UNSET


class Outcome(msgspec.Struct, omit_defaults=True):
    """What became of one letter: ``moved``, ``superseded``, ``refused`` or ``missing``."""

    id: str
    outcome: str
    entry_id: str | None = None
    state: str | None = None
    why: str | None = None


class Report(msgspec.Struct):
    """What became of all letters that were to be redriven.

    Attributes:
        action: ``redrive``.
        dry_run: Whether it only says what would become of them.
        complete: Whether it came to its end.
        matched: How many letters were meant.
        moved: How many jobs are ready again.
        superseded: How many letters stay, because their job ID is scheduled, ready, pending or done again.
        refused: How many letters stay, because they cannot be redriven.
        missing: How many were not there: redriven or purged before.
        letters: Of letters that were named: what became of each. Of others: the first ones that stay.
    """

    action: str
    dry_run: bool
    complete: bool
    matched: int
    moved: int = 0
    superseded: int = 0
    refused: int = 0
    missing: int = 0
    letters: list[Outcome] = []

    @property
    def stay(self) -> int:
        """How many letters could not be redriven."""
        return self.superseded + self.refused

    def add(self, done: Redriven, *, named: bool) -> list[Outcome]:
        """Count what became of some, and return it one by one."""
        found = [Outcome(each, "moved", entry_id=entry_id or None) for each, entry_id in done.moved.items()]
        found += [Outcome(each, "superseded", state=state) for each, state in done.superseded.items()]
        found += [Outcome(each, "refused", why=why) for each, why in done.refused.items()]
        found += [Outcome(each, "missing") for each in done.missing]
        self.moved += len(done.moved)
        self.superseded += len(done.superseded)
        self.refused += len(done.refused)
        self.missing += len(done.missing)
        for outcome in found:
            if named or (outcome.outcome in {"superseded", "refused"} and len(self.letters) < MOST_TOLD):
                self.letters.append(outcome)
        return found


class Purged(msgspec.Struct):
    """What became of letters that were to be purged: how many were meant and there, are gone now, and were not there."""

    action: str
    dry_run: bool
    complete: bool
    matched: int
    purged: int = 0
    missing: int = 0


class Letters(Client):
    """The dead letters of one stream.

    Args:
        name: Of the stream.
        url: Of the server, or None for the default.
        deployment: Its namespace, or None.

    Raises:
        ConfigurationError: A name or the URL is not valid.
    """

    def __init__(self, name: str, url: str | None, deployment: str | None) -> None:
        super().__init__(name, url, deployment, StreamOptions(max_payload=MOST_PAYLOAD))

    def count(self) -> int:
        """How many there are."""
        dead = self.keys.dead
        return self._driver.run(ask(Command(("XLEN", dead), (dead,), int)))

    def one(self, letter_id: str) -> Stored | None:
        """The letter of an ID."""
        found = self._driver.run(ops.stored(self._spec, only=letter_id))
        return found[0] if found else None

    def is_last(self, letter_id: str) -> bool:
        """Whether there is none behind it."""
        return not self._driver.run(ops.stored(self._spec, after=letter_id))

    def each(self, after: str | None = None) -> Iterator[Stored]:
        """All letters behind one, oldest first."""
        count = FIRST_PAGE
        while page := self._driver.run(ops.stored(self._spec, count=count, after=after)):
            yield from page
            after = page[-1][0].id
            size = sum(len(value) for _, fields in page for _, value in fields)
            count = min(max(len(page) * PAGE_BYTES // max(size, 1), 1), MOST_ON_A_PAGE)

    def with_entry(self, letter: DeadLetter) -> DeadLetter:
        """The letter with the fields of its entry, if it only refers to that."""
        return self._driver.run(ops.with_entry(self._spec, letter))

    def redrive(self, letter_ids: Sequence[str], how: Redriving) -> Redriven:
        """As `Stream.dead_letters.redrive`."""
        plan = ops.redrive(
            self._spec,
            letter_ids,
            new_id=how.new_id,
            payload=how.payload,
            max_redrives=how.max_redrives,
            dry_run=how.dry_run,
        )
        done: Redriven = self._operate(self._spec, plan)
        return done

    def purge(self, letter_ids: Sequence[str]) -> int:
        """As `Stream.dead_letters.purge`."""
        purged: int = self._operate(self._spec, ops.purge(self._spec, letter_ids))
        return purged


@dataclass(frozen=True, slots=True)
class Redriving:
    """How letters are redriven; `rate` is how many a second at most."""

    new_id: str | None
    payload: bytes | None
    max_redrives: int
    dry_run: bool
    rate: float | None

    def with_payload(self, raw: bytes, letter: DeadLetter | None) -> Redriving:
        """The same with another payload.

        Raises:
            ConfigurationError: The letter's was JSON, or msgpack, as its entry says, and this one is not.
        """
        if letter is not None and letter.payload is not None:
            packed = (b"sq:codec", b"msgpack") in letter.fields
            if _is_encoded(letter.payload, packed=packed) and not _is_encoded(raw, packed=packed):
                what = "msgpack" if packed else "JSON"
                raise ConfigurationError(
                    f"the payload of letter {letter.id} is {what}, but what --payload gives is not"
                )
        return replace(self, payload=raw)

    def each(self, letters: Letters, ids: Sequence[str], report: Report, *, named: bool) -> Iterator[list[Outcome]]:
        """Redrive them in writes of ten, and count what becomes of them, page by page."""
        size = ops.REDRIVEN if self.rate is None else min(max(int(self.rate), 1), ops.REDRIVEN)
        began = time.monotonic()
        for at in range(0, len(ids), size):
            if self.rate is not None and not self.dry_run:
                time.sleep(max(began + at / self.rate - time.monotonic(), 0))
            try:
                done = letters.redrive(ids[at : at + size], self)
            except StreamqError as error:
                if isinstance(error.partial, Redriven):
                    report.add(error.partial, named=named)
                raise
            yield report.add(done, named=named)


def _is_encoded(raw: bytes, *, packed: bool) -> bool:
    try:
        msgspec.msgpack.decode(raw) if packed else msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def purge_each(letters: Letters, ids: Sequence[str], report: Purged) -> Iterator[int]:
    """Purge them, and count it; how many were looked at since the last time."""
    for at in range(0, len(ids), ops.PURGED):
        some = ids[at : at + ops.PURGED]
        report.purged += letters.purge(some)
        yield len(some)


@dataclass(frozen=True, slots=True)
class Filters:
    """Which letters are meant: those that all of these fit."""

    ids: list[str] | None = None
    reasons: list[str] | None = None
    error: str | None = None
    group: str | None = None
    older_than: str | None = None
    after: str | None = None
    limit: int | None = None

    def __post_init__(self) -> None:
        for letter_id in (*self.letter_ids, *([] if self.after is None else [self.after])):
            ops.check_letter_id(letter_id)
        if self.ids and self.after is not None:
            raise ConfigurationError("--after goes on with a list: it does not go with IDs")
        for reason in self.reasons or ():
            if reason not in get_args(Reason):
                raise ConfigurationError(f"--reason {reason!r:.80} is none of {', '.join(get_args(Reason))}")
        if not 0 <= self._age_s < _FAR_S:
            raise ConfigurationError(f"--older-than {self.older_than!r:.80} must be from 0 seconds to 1000 years")

    @property
    def letter_ids(self) -> list[str]:
        """The IDs, each once."""
        return list(dict.fromkeys(self.ids or ()))

    @property
    def _age_s(self) -> float:
        return 0 if self.older_than is None else times.duration(self.older_than, "--older-than")

    @property
    def any(self) -> bool:
        """Whether they leave less than all there are."""
        return bool(self.ids or self._by_content)

    @property
    def only_ids(self) -> bool:
        """Whether letters are meant by their IDs, whatever they hold."""
        return bool(self.ids) and not self._by_content and self.limit is None

    @property
    def _by_content(self) -> bool:
        given = (self.error, self.group, self.older_than)
        return bool(self.reasons) or any(value is not None for value in given)

    def each(self, letters: Letters, step: Callable[[int], None] = lambda _: None) -> Iterator[Stored]:
        """The letters that they leave, oldest first, of those that are there now; `step` is told of each one looked at."""
        until = None if self.older_than is None else letters.now() - timedelta(seconds=self._age_s)
        return islice(self._each(letters, until, step), self.limit)

    def _each(self, letters: Letters, until: datetime | None, step: Callable[[int], None]) -> Iterator[Stored]:
        stored: Iterable[Stored | None]
        if self.ids:
            stored = (letters.one(letter_id) for letter_id in self.letter_ids)
        else:
            stored = islice(letters.each(self.after), letters.count())  # not those that come meanwhile
        for found in stored:
            step(1)
            if found is None:
                continue
            letter, _ = found
            # By the letter's ID, as purging by age: it is the server's, and there is always one.
            if until is not None and times.EPOCH + timedelta(milliseconds=_ms(letter.id)) > until:
                if self.ids:
                    continue
                return  # all others are younger
            if (
                (not self.reasons or letter.reason in self.reasons)
                and (self.error is None or self.error in letter.error)
                and (self.group is None or letter.group == self.group)
            ):
                yield found

    def find(self, letters: Letters, step: Callable[[int], None]) -> tuple[list[str], Counter[str]]:
        """IDs of the letters that they leave, and how many there are of each reason."""
        ids: list[str] = []
        reasons: Counter[str] = Counter()
        for letter, _ in self.each(letters, step):
            ids.append(letter.id)
            reasons[letter.reason] += 1
        return ids, reasons


_FAR_S: Final = 1_000 * 365 * 86_400


def _ms(letter_id: str) -> int:
    return min(int(letter_id.partition("-")[0]), 10**14)  # somebody may have chosen a huge one


def row(letter: DeadLetter, *, payload: bool) -> Row:
    """A letter as JSON has it."""
    return Row(**_about(letter, payload=payload))


def exported(letters: Letters, stored: Stored) -> Exported:
    """A letter as an export has it: all there is of it."""
    letter, fields = stored
    whole = letters.with_entry(letter)
    entry = _as_json(whole.fields) if whole is not letter else msgspec.UNSET
    return Exported(**_about(whole, payload=False), stored=_as_json(fields), entry=entry)


def _about(letter: DeadLetter, *, payload: bool) -> dict[str, Any]:
    body = letter.payload
    found = {name: getattr(letter, name) for name in DeadLetter.__struct_fields__ if name != "fields"}
    found["payload_bytes"] = None if body is None else len(body)
    if payload and body is not None:
        found |= text_or_base64("payload", body)
    return found


def _as_json(fields: Fields) -> list[tuple[Bytes, Bytes]]:
    return [(_value(name), _value(value)) for name, value in fields]


def _value(raw: bytes) -> Bytes:
    found = text_or_base64("text", raw)
    return found["text"] if "text" in found else {"base64": found["text_base64"]}
