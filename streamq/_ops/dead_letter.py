"""Move entries to the dead-letter stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from streamq import _scripts
from streamq._codec import cut
from streamq._requests import Plan, Script, Transaction, ask_each
from streamq._scripts import Fence, Held
from streamq._spec import Spec
from streamq.errors import ConfigurationError, ServerError
from streamq.messages import Failed, Reason

T = TypeVar("T")

EXEC_ENTRIES = 10
EXEC_BYTES = 1 << 20
"""Most entries and bytes of bodies in one EXEC: it copies them, and the server does nothing else meanwhile."""


@dataclass(frozen=True, slots=True)
class Letter:
    """An entry to dead-letter. Job ID and attempts are taken from the entry unless they are given."""

    held: Held
    reason: Reason
    error: str
    size: int = 0
    job_id: str = ""
    attempts: int | None = None


@dataclass(slots=True)
class Moved:
    """What became of letters, by entry ID."""

    dead: dict[str, Reason] = field(default_factory=dict)
    not_mine: dict[str, Fence] = field(default_factory=dict)
    failed: list[Failed] = field(default_factory=list)


def move(spec: Spec[T], consumer: str, letters: Sequence[Letter], moved: Moved) -> Plan[None]:
    """Dead-letter entries; adds to `moved` as it goes, so that an error loses no part. One MULTI/EXEC per ten.

    An entry that cannot be moved stays pending and is named in ``moved.failed``; the others go on.
    """
    for page in _pages(letters):
        calls = tuple(_call(spec, consumer, letter) for letter in page)
        try:
            answers = yield from ask_each(Transaction(calls))
        except (ServerError, ConfigurationError) as error:
            # Refused as a whole (memory is full, no permission): nothing of this page was written.
            moved.failed += [Failed(letter.held.entry_id, letter.reason, cut(str(error), 300)) for letter in page]
            continue
        for letter, answer in zip(page, answers, strict=True):
            if isinstance(answer, Exception):
                moved.failed.append(Failed(letter.held.entry_id, letter.reason, cut(str(answer), 300)))
            elif answer is Fence.MINE:
                moved.dead[letter.held.entry_id] = letter.reason
            else:
                moved.not_mine[letter.held.entry_id] = answer


def _call(spec: Spec[T], consumer: str, letter: Letter) -> Script[Fence]:
    return _scripts.dead_letter(
        spec.keys,
        spec.options,
        consumer=consumer,
        held=letter.held,
        reason=letter.reason,
        error=cut(letter.error),
        job_id=letter.job_id,
        attempts="" if letter.attempts is None else letter.attempts,
    )


def _pages(letters: Sequence[Letter]) -> Iterator[list[Letter]]:
    page: list[Letter] = []
    size = 0
    for letter in letters:
        if page and (len(page) >= EXEC_ENTRIES or size + letter.size > EXEC_BYTES):
            yield page
            page, size = [], 0
        page.append(letter)
        size += letter.size
    if page:
        yield page
