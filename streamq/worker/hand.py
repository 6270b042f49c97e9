"""What a worker has in hand of one stream, and what it let go of that is still pending under its name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from streamq.messages import Job
from streamq.worker.journal import Journal, NoteState
from streamq.worker.lane import Standing, Ticket

GIVEN_BACK = 10_000
"""Most entries of which it is known that they were given back: more than a worker holds."""


class Hand:
    """The jobs in hand.

    Args:
        place: Of the stream in the worker.
        journal: Where a supervisor finds how far each is, if there is one.

    Attributes:
        held: The jobs that are this worker's, from their arrival to the end of their settlement. Their leases are renewed.
        starting: Entry IDs whose start is being counted.
    """

    def __init__(self, place: int, journal: Journal | None) -> None:
        self.held: dict[str, Job[Any]] = {}
        self.starting: set[str] = set()
        self._given_back: dict[str, None] = {}
        self._place = place
        self._journal = journal

    def take(self, tickets: Sequence[Ticket]) -> None:
        """These are ours from now on."""
        self.held.update([(ticket.job.entry_id, ticket.job) for ticket in tickets])
        if self._given_back:
            for ticket in tickets:
                self._given_back.pop(ticket.job.entry_id, None)
        if self._journal is not None:
            for ticket in tickets:
                self._note(ticket.job, NoteState.READ if ticket.standing is Standing.NEW else NoteState.HELD)

    def begin_start(self, job: Job[Any]) -> None:
        """Its start is about to be counted."""
        self.starting.add(job.entry_id)
        self._note(job, NoteState.STARTING, charge=1)

    def start_counted(self, job: Job[Any]) -> None:
        """Its start was counted."""
        job.deliveries += 1  # first: the heartbeat's thread believes the count of what is not starting
        self.starting.discard(job.entry_id)

    def begin(self, jobs: Iterable[Job[Any]]) -> None:
        """Their handler is about to be called."""
        if self._journal is not None:
            for job in jobs:
                self._note(job, NoteState.STARTED)

    def drop(self, *entry_ids: str) -> None:
        """These are not ours any more."""
        for entry_id in entry_ids:
            self.held.pop(entry_id, None)
        if self.starting:
            self.starting.difference_update(entry_ids)
        if self._journal is not None:
            for entry_id in entry_ids:
                self._journal.forget(self._place, entry_id)

    def gave_back(self, entry_ids: Iterable[str]) -> None:
        """Others may take these. Until then they are pending with us, and a recovery must not take them for lost."""
        self._given_back.update(dict.fromkeys(entry_ids))
        while len(self._given_back) > GIVEN_BACK:
            del self._given_back[next(iter(self._given_back))]

    @property
    def known(self) -> frozenset[str]:
        """Entries that are pending with us for a reason: what is not among them came with a reply that was lost."""
        return frozenset((*self.held, *self._given_back))

    def _note(self, job: Job[Any], state: NoteState, *, charge: int = 0) -> None:
        if self._journal is not None:
            self._journal.note(self._place, job.entry_id, job.deliveries + charge, state)
