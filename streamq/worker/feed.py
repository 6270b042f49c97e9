"""A stream of a worker, and the roles at work on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from streamq._drivers.asynchronous import AsyncDriver
from streamq._spec import Spec
from streamq.connection import Settings
from streamq.worker.dispatch import Dispatcher, Outcome
from streamq.worker.fetch import Fetcher
from streamq.worker.heartbeat import Heartbeat
from streamq.worker.lane import Call, Line
from streamq.worker.settle import Settler


@dataclass(frozen=True, slots=True)
class Source:
    """A stream of a worker, and what is done with its jobs."""

    spec: Spec[Any]
    settings: Settings
    dispatcher: Dispatcher[Any]
    line: Line


@dataclass(slots=True)
class Feed:
    """A stream at work."""

    source: Source
    driver: AsyncDriver
    fetcher: Fetcher
    settler: Settler[Any]
    beat: Heartbeat
    came_back: Callable[[Outcome[Any]], None]
    """Told the end of a call that needs no task."""
    running: dict[str, asyncio.Task[None] | Call] = field(default_factory=dict)
    """Entry ID -> the task of the call that handles it, or the call itself if it needs none."""

    @property
    def name(self) -> str:
        """Of the stream."""
        return self.source.spec.keys.name

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """Of calls that run."""
        return [task for task in self.running.values() if isinstance(task, asyncio.Task)]
