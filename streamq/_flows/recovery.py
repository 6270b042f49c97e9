"""Give back what a process held that is known to be dead, by the notes that it has left."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, TypeVar

from streamq._ops import consumers, settle
from streamq._ops.consumers import LISTED
from streamq._requests import Pending, Plan
from streamq._scripts import Fence, Held
from streamq._spec import Spec

T = TypeVar("T")

MOST = 10_000
"""Most deliveries of one consumer that are looked at: more than a worker ever holds."""


class NoteState(IntEnum):
    """How far a delivery has come."""

    READ = 1
    """Read from the stream: charged one delivery, its handler has not begun."""
    HELD = 2
    """Taken over: not charged, its handler has not begun."""
    STARTING = 3
    """Its start is being counted; the note's count is what it shall be."""
    STARTED = 4
    """Its handler has begun, or ended too; it is not settled."""


@dataclass(frozen=True, slots=True, order=True)
class Note:
    """A delivery in a process's hands."""

    stream: int
    """Which of the worker's streams, by its place."""
    entry_id: str
    count: int
    """Its delivery count on the server; of a `NoteState.STARTING`, the count that it gets."""
    state: NoteState


class Returned(NamedTuple):
    """What `give_back` did."""

    released: int
    """Deliveries given back that were not begun: none of them is charged."""
    started: int
    """Deliveries given back that were begun: each stays charged."""
    left: bool
    """Whether the consumer is gone. It stays as long as nobody has taken over what it gave back."""


def give_back(spec: Spec[T], consumer: str, notes: Iterable[Note], *, reclaiming: bool) -> Plan[Returned]:
    """Give back all that `consumer` has pending, due at once, and remove it when it holds nothing.

    Two requests per 100 deliveries, and one. Each is atomic; a crash between them leaves some deliveries to their leases.
    Doing it again is harmless: what is given back already is left as it is. Where the consumer lives in truth, its fences
    refuse what was changed behind its back. A delivery that crashed processes before waits for its crash backoff as ever.

    Args:
        spec: The stream.
        consumer: Whose process is dead.
        notes: What it held of this stream.
        reclaiming: Whether a delivery without a note may be one that it took over, which is not charged, rather than one
            of a read whose reply never came, which is.
    """
    noted = {note.entry_id: note for note in notes}
    released = started = 0
    after = ""
    for _ in range(MOST // LISTED):
        rows = yield from consumers.pending(spec, consumer, after=after)
        lease_ms = spec.options.lease_ms
        batch = [(row, _next_count(row, noted.get(row.entry_id), lease_ms, reclaiming=reclaiming)) for row in rows]
        # What was given back before is due, with that count; its crash backoff must not begin anew.
        batch = [(row, count) for row, count in batch if count != row.count or row.idle_ms < lease_ms]
        found = yield from settle.give_back(spec, consumer, [(Held(r.entry_id, r.count), count) for r, count in batch])
        for (row, _), fence in zip(batch, found, strict=True):
            if fence is Fence.MINE:
                note = noted.get(row.entry_id)
                begun = note is not None and note.state is NoteState.STARTED
                started += begun
                released += not begun
        if len(rows) < LISTED:
            break
        after = rows[-1].entry_id
    return Returned(released, started, (yield from consumers.leave(spec, consumer)))


def _next_count(row: Pending, note: Note | None, lease_ms: int, *, reclaiming: bool) -> int:
    """The count without this delivery, if it is charged on the server and its handler never began; else as it is."""
    match note:
        case None:
            # What is due was given back by the process itself, with the count that it should have.
            charged = row.count == 1 and row.idle_ms < lease_ms and not reclaiming
        case Note(count=count, state=NoteState.READ | NoteState.STARTING):
            charged = row.count == count  # else its start was not counted, or it was given back already
        case _:
            charged = False
    return row.count - charged
