"""What dead children held, given back: at once, and again until the server can be reached."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from streamq._flows.recovery import Note, Returned, give_back
from streamq._spec import Spec
from streamq.backoff import Backoff
from streamq.connection import Settings
from streamq.errors import ConfigurationError, StreamqError
from streamq.worker.journal import Journal

SERVER_TIMEOUT_S = 1.0
"""Longest wait for one reply. The supervisor's loop waits along: signals and restarts are this late at most."""

_RETRY = Backoff.exponential(0.2, cap=5, limit=None)
"""While the server cannot be reached."""

_VISITS = Backoff.exponential(1, cap=60, limit=12)
"""A consumer is looked at again: a read that was on its way when its process died may arrive after it was given back, and
it goes only when others have taken over what it held. After seven minutes it is left to maintenance."""

_LEAST_VISITS = 2

_log = logging.getLogger("streamq.supervisor")


@dataclass(slots=True)
class _Due:
    """One dead consumer in one stream."""

    consumer: str
    spec: Spec[Any]
    settings: Settings
    notes: list[Note]
    is_sure: bool
    """Whether a delivery without a note can only be a read without a reply."""
    at: float
    visits: int = 0
    failures: int = 0


class Returns:
    """Gives back what dead children held.

    It keeps no connection: the supervisor forks, and a child must not find its parent's. So each call makes one, for a few
    requests.

    Args:
        streams: The worker's streams, in its order.
    """

    def __init__(self, streams: Sequence[tuple[Spec[Any], Settings]]) -> None:
        self._streams = streams
        self._due: list[_Due] = []

    def add(self, consumer: str, journal: Journal | None, now: float) -> None:
        """Take in a child whose process is dead. Without a journal all is given back as it is."""
        notes = [] if journal is None else journal.notes()
        if journal is not None and journal.dropped:
            _log.warning("the journal of %s was full: %d notes are missing", consumer, journal.dropped)
        for place, (spec, settings) in enumerate(self._streams):
            mine = [note for note in notes if note.stream == place]
            sure = journal is not None and not journal.dropped and not journal.is_reclaiming(place)
            self._due.append(_Due(consumer, spec, settings, mine, sure, at=now))

    def next_at(self) -> float:
        """When there is something to do; infinity if nothing is."""
        return min((due.at for due in self._due), default=float("inf"))

    def has_new(self) -> bool:
        """Whether something was not given back yet."""
        return any(not due.visits for due in self._due)

    def hurry(self, now: float) -> None:
        """Make all of it due now."""
        for due in self._due:
            due.at = min(due.at, now)

    def work(self, now: float) -> bool:
        """Do the next thing that is due, if one is; True if others have something to take over now."""
        due = min(self._due, key=lambda each: each.at, default=None)
        if due is None or due.at > now:
            return False
        try:
            done = self._give_back(due)
        except ConfigurationError as error:
            self._due.remove(due)
            _log.error("jobs of %s were not given back, their leases bring them back: %s", due.consumer, error)
            return False
        except StreamqError as error:
            due.failures += 1
            due.at = now + _RETRY.delay_ms(due.failures) / 1000
            _log.warning("jobs of %s are not given back yet: %s", due.consumer, error)
            return False
        due.visits += 1
        due.failures = 0
        due.at = now + _VISITS.delay_ms(due.visits) / 1000
        if (done.left and due.visits >= _LEAST_VISITS) or _VISITS.exhausted(due.visits):
            self._due.remove(due)
        if not (done.released or done.started):
            return False
        _log.warning(
            "gave back what %s held of stream %s: %d jobs not begun, %d begun",
            *(due.consumer, due.spec.keys.name, done.released, done.started),
        )
        return True

    def _give_back(self, due: _Due) -> Returned:
        driver = due.settings.blocking(timeout_s=SERVER_TIMEOUT_S)
        try:
            return driver.run(give_back(due.spec, due.consumer, due.notes, reclaiming=not due.is_sure))
        finally:
            driver.close()
