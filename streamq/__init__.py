"""streamq: jobs that survive crashes, deploys and failovers, on Redis Streams consumer groups.

Names are loaded when they are first used, so that importing streamq costs nothing: neither redis nor typer comes with it.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streamq.backoff import Backoff
    from streamq.effects import Effects
    from streamq.errors import (
        ConfigurationError,
        ConnectionLostError,
        EffectError,
        JobEncodingError,
        JobStateError,
        LeaseLostError,
        NotDurableError,
        QueueFullError,
        ServerError,
        ServerTooOldError,
        StreamqError,
    )
    from streamq.messages import (
        Added,
        DeadLetter,
        Failed,
        GroupSnapshot,
        Job,
        Reclaimed,
        Redriven,
        Reject,
        Release,
        Result,
        Retry,
        ScheduledJob,
        Snapshot,
    )
    from streamq.options import StreamOptions
    from streamq.snapshots import (
        DeadLetterFigures,
        Difference,
        Finding,
        FoundJob,
        FoundLetter,
        FullGroup,
        FullSnapshot,
        JobInGroup,
        Member,
        OldestPending,
        OldestReady,
        Omission,
        Rates,
        WorkerSettings,
    )
    from streamq.stream import Stream
    from streamq.stream_async import AsyncStream
    from streamq.worker import Worker
    from streamq.worker.health import Health
    from streamq.worker.hooks import Buried, Hooks

_HOMES = {
    "streamq.backoff": ("Backoff",),
    "streamq.effects": ("Effects",),
    "streamq.errors": (
        "ConfigurationError", "ConnectionLostError", "EffectError", "JobEncodingError",
        "JobStateError", "LeaseLostError", "NotDurableError", "QueueFullError", "ServerError",
        "ServerTooOldError", "StreamqError",
    ),
    "streamq.messages": (
        "Added", "DeadLetter", "Failed", "GroupSnapshot", "Job",
        "Reclaimed", "Redriven", "Reject", "Release", "Result", "Retry", "ScheduledJob", "Snapshot",
    ),
    "streamq.options": ("StreamOptions",),
    "streamq.snapshots": (
        "DeadLetterFigures", "Difference", "Finding", "FoundJob", "FoundLetter", "FullGroup", "FullSnapshot",
        "JobInGroup", "Member", "OldestPending", "OldestReady", "Omission", "Rates", "WorkerSettings",
    ),
    "streamq.stream": ("Stream",),
    "streamq.stream_async": ("AsyncStream",),
    "streamq.worker": ("Worker",),
    "streamq.worker.health": ("Health",),
    "streamq.worker.hooks": ("Buried", "Hooks"),
}  # fmt: skip
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Added",
    "AsyncStream",
    "Backoff",
    "Buried",
    "ConfigurationError",
    "ConnectionLostError",
    "DeadLetter",
    "DeadLetterFigures",
    "Difference",
    "EffectError",
    "Effects",
    "Failed",
    "Finding",
    "FoundJob",
    "FoundLetter",
    "FullGroup",
    "FullSnapshot",
    "GroupSnapshot",
    "Health",
    "Hooks",
    "Job",
    "JobEncodingError",
    "JobInGroup",
    "JobStateError",
    "LeaseLostError",
    "Member",
    "NotDurableError",
    "OldestPending",
    "OldestReady",
    "Omission",
    "QueueFullError",
    "Rates",
    "Reclaimed",
    "Redriven",
    "Reject",
    "Release",
    "Result",
    "Retry",
    "ScheduledJob",
    "ServerError",
    "ServerTooOldError",
    "Snapshot",
    "Stream",
    "StreamOptions",
    "StreamqError",
    "Worker",
    "WorkerSettings",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        try:
            return version("streamq")
        except PackageNotFoundError:
            return "0+unknown"
    try:
        value = getattr(import_module(_HOME[name]), name)
    except KeyError:
        raise AttributeError(f"module 'streamq' has no attribute {name!r}") from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
