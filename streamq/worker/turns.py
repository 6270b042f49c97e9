"""Shares a worker's slots among its streams by weight. No I/O.

Stride scheduling: every stream has a pass that grows with each job it starts, the slower the more it weighs; whoever has the
lowest pass is next. Only streams with a backlog compete. A stream that was idle comes back at the pass of the others: having
been idle is no credit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_ONLY: Final = (0,)


class Turns:
    """Whose turn it is.

    Args:
        weights: Of each stream, above 0; one with twice the weight starts twice the jobs while both have some.
    """

    def __init__(self, weights: Sequence[float]) -> None:
        self._weights = list(weights)
        self._passes = [0.0] * len(self._weights)
        self._busy: set[int] = set()
        self._others = len(self._weights) > 1

    def order(self) -> Sequence[int]:
        """The streams, whose turn is first at the front."""
        if not self._others:
            return _ONLY
        return sorted(range(len(self._passes)), key=self._passes.__getitem__)

    def started(self, stream: int, jobs: int = 1) -> None:
        """`stream` has started jobs."""
        if self._others:
            self._passes[stream] += jobs / self._weights[stream]

    def found(self, stream: int, *, more: bool) -> None:
        """`stream` has been read: is there `more` than what was asked for?"""
        if more and stream not in self._busy:
            least = min((self._passes[other] for other in self._busy), default=max(self._passes))
            self._passes[stream] = max(self._passes[stream], least)
            self._busy.add(stream)
        elif not more:
            self._busy.discard(stream)

    def competes(self, stream: int) -> bool:
        """Whether other streams may be kept waiting for `stream`: then its read must not wait for jobs."""
        return len(self._weights) > 1 and stream in self._busy

    def share(self, stream: int, slots: int) -> int:
        """How many of the free slots `stream` may read for now; 0 while it is another's turn."""
        if slots <= 0 or stream not in self._busy:
            return max(slots, 0)
        if self._passes[stream] > min(self._passes[other] for other in self._busy):
            return 0
        whole = sum(self._weights[other] for other in self._busy)
        return max(int(slots * self._weights[stream] / whole), 1)
