"""What the fetchers of a worker share: where their jobs go, and whom they tell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from streamq.errors import StreamqError
from streamq.messages import Reason
from streamq.worker.journal import Journal
from streamq.worker.lane import Lane
from streamq.worker.roles import Flag


class Post(Protocol):
    """What a fetcher needs of its worker."""

    consumer: str
    prefetch: int
    is_solo: bool
    last_patience_ms: int
    about: Mapping[str, Any]
    """Who this worker is, for `inspect`; as JSON."""
    stalled_at: float
    """When the event loop last stood still for a good part of a lease."""
    lane: Lane
    stopping: Flag

    journal: Journal | None
    """Where what is in hand is noted for a supervisor, if there is one."""

    def changed(self) -> None:
        """Something may start, or be read, that could not before."""

    def start(self) -> None:
        """Begin what may start, at once."""

    def kept_back(self) -> int:
        """Slots that are not to be filled by reads."""

    def buried(self, stream: int, dead: Mapping[str, Reason]) -> None:
        """Entries were dead-lettered before they became jobs of this worker."""

    def reached(self, source: str) -> None:
        """The server answered."""

    def failed(self, source: str, error: StreamqError) -> None:
        """The server could not be reached, or refused."""

    def reclaiming(self, stream: int, *, under_way: bool) -> None:
        """A reclaim begins, or what it claimed is noted."""
