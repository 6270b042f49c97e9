"""What a program is told about its worker, to count, trace and alert."""

from __future__ import annotations

import inspect
import logging
import traceback
from collections.abc import Callable, Iterable
from pathlib import PurePath
from typing import Any, Literal, TypeAlias, get_args

import msgspec

from streamq.errors import ConfigurationError
from streamq.messages import Job, Reason
from streamq.worker import log

HookName: TypeAlias = Literal[
    "started", "ended", "succeeded", "retried", "dead_lettered", "released", "lease_lost", "unhealthy", "healthy"
]

_log = logging.getLogger("streamq.worker")


class Buried(msgspec.Struct, frozen=True, kw_only=True):
    """A job that this worker has dead-lettered.

    Attributes:
        stream: Name of the stream.
        group: The consumer group that gave it up.
        entry_id: Its entry in the stream.
        job_id: Its job ID; None where the entry does not tell.
        reason: Why; one of a closed list, see `DeadLetter`.
        error: The last error, as it is kept in the dead letter. It may quote the payload.
        job: The job; None where the entry could not become one.
    """

    stream: str
    group: str = ""
    entry_id: str
    job_id: str | None = None
    reason: Reason
    error: str = ""
    job: Job[Any] | None = None


class Hooks:
    """Override what you want to be told, and give it to a worker.

    Each is called in the thread of the worker's event loop, so it must be quick, and a plain ``def``. What it raises is
    logged and changes nothing. What is told has happened on the server already; a worker that dies between the two tells
    nobody, and one whose reply was lost may tell twice.
    """

    def started(self, job: Job[Any]) -> None:
        """A handler is about to be called."""

    def ended(self, job: Job[Any]) -> None:
        """Its handler has ended, or its time is over, and its outcome is to be settled. Told once after each `started`."""

    def succeeded(self, job: Job[Any]) -> None:
        """A job was acknowledged, its effects and its result with it."""

    def retried(self, job: Job[Any], error: str) -> None:
        """An attempt failed, and another one follows. `error` may quote the payload."""

    def dead_lettered(self, dead: Buried) -> None:
        """A job was given up: its attempts or deliveries are spent, it was rejected, or it could not be read."""

    def released(self, job: Job[Any]) -> None:
        """A job was given back without an attempt."""

    def lease_lost(self, job: Job[Any]) -> None:
        """A job is not this worker's any more: what its handler did was dropped, and another worker runs it."""

    def unhealthy(self, problem: str) -> None:
        """The worker has failed to reach its server for a while. `problem` names the cause."""

    def healthy(self) -> None:
        """The worker has recovered by itself."""


class HookList:
    """Tells several `Hooks`, in order.

    Args:
        hooks: Whom to tell.

    Raises:
        ConfigurationError: One is no instance of `Hooks`, or overrides a hook by an ``async def``.
    """

    def __init__(self, hooks: Iterable[Hooks] = ()) -> None:
        # Only what is overridden: a worker without hooks pays nothing per job.
        self._told: dict[HookName, list[tuple[str, Callable[..., Any]]]] = {name: [] for name in get_args(HookName)}
        for one in hooks:
            if not isinstance(one, Hooks):
                raise ConfigurationError(f"hooks are instances of streamq.Hooks; {one!r} is not")
            for name, told in self._told.items():
                hook, label = getattr(one, name), f"{type(one).__name__}.{name}"
                if inspect.iscoroutinefunction(hook):
                    raise ConfigurationError(f"hook {label} is an async def: nobody would await it")
                if getattr(hook, "__func__", None) is not getattr(Hooks, name):
                    told.append((label, hook))

    def __bool__(self) -> bool:
        """Whether there is anybody to tell anything."""
        return any(self._told.values())

    def tell(self, name: HookName, *arguments: Any) -> None:
        """Call every hook of that name. Never raises."""
        for label, hook in self._told[name]:
            try:
                hook(*arguments)
            except BaseException as error:  # noqa: BLE001  # a hook must not end the worker, whatever it raises
                about = {"hook": label, "entry_id": getattr(arguments[0], "entry_id", None) if arguments else None}
                log.event(_log, logging.ERROR, "hook failed", **about, error=type(error).__name__, where=_where(error))


def _where(error: BaseException) -> str:
    """File and line that raised: its text may quote a payload, so this is all that the log can say."""
    *_, (frame, line) = traceback.walk_tb(error.__traceback__)
    return f"{PurePath(frame.f_code.co_filename).name}:{line}"
