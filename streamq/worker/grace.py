"""When not to reclaim: just after an outage leases have run out whose holders live, but had nobody to renew them with."""

from __future__ import annotations

from typing import Final

OUTAGE_S: Final = 1.0
"""Least time without an answer that counts as one, however short the lease is."""

GRACE_S: Final = 2.0
"""How long after one nothing is reclaimed: who lives renews its leases meanwhile, trying once a second at least."""


class Grace:
    """Knows when the server answered, and so when others may have been cut off from it, too.

    Args:
        lease_s: Of the stream.
        now: The time, of any clock. It is told each time that the server answers, much more often than once a lease.
    """

    def __init__(self, lease_s: float, now: float) -> None:
        self._outage_s = max(lease_s / 2, OUTAGE_S)  # leases are renewed when a third of them is over
        self._answered_at = now
        self._was_late = False
        self._until = float("-inf")

    def answered(self, now: float) -> None:
        """The server answers."""
        is_late = now - self._answered_at > self._outage_s
        if is_late and not self._was_late:  # else it would never end where all is slow
            self._until = now + GRACE_S
        self._answered_at, self._was_late = now, is_late

    def holds(self, now: float) -> bool:
        """Whether others are still to be left the time."""
        return now < self._until
