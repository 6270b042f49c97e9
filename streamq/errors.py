"""Every error streamq raises, sorted by what the caller should do about it.

    StreamqError
    ├── ConfigurationError      fix a setting, a name, a key or a permission
    │   └── ServerTooOldError   upgrade the server
    ├── ConnectionLostError     try again later; `maybe_executed` says whether the write may have happened
    ├── ServerError             the server refused: `code` is the first word of its reply (OOM, READONLY, NOGROUP, ...)
    ├── JobEncodingError        fix the payload: `path` says where in it
    ├── NotDurableError         written, but not confirmed by a replica or the disk in time; look at these, or add again
    ├── EffectError             fix the key that the effect names, then the job runs again
    ├── JobStateError           look at `state`: what was asked cannot be done with a job, or a stream, in it
    ├── LeaseLostError          drop the job: another consumer has it, or it is settled
    └── QueueFullError          add again later, or shed load: `max_ready` jobs wait already

`Retry`, `Reject` and `Release` are not errors but words a handler says by raising; they are not under `StreamqError`.

This module imports nothing of streamq.
"""

from __future__ import annotations

from typing import Any


class StreamqError(Exception):
    """Base of all errors that streamq raises on purpose.

    Attributes:
        added: Of `add_many`: how many jobs were added before it.
        partial: Of `reclaim` and `redrive`: what was done before it, in the form of their answers; None where nothing was.
            Of `NotDurableError` see there.
    """

    added: int = 0
    partial: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        # Attributes travel in __dict__: errors with keyword-only arguments survive pickling
        # (multiprocessing hands exceptions to the parent that way).
        return (_rebuild, (type(self), self.args), self.__dict__)


def _rebuild(kind: type[StreamqError], args: tuple[Any, ...]) -> StreamqError:
    error = kind.__new__(kind)
    error.args = args
    return error


class ConfigurationError(StreamqError):
    """A setting, a name, a key's type or a permission is wrong; nothing was written. The message says which."""


class ServerTooOldError(ConfigurationError):
    """The server lacks a command that streamq needs (Redis 6.2 or Valkey is required)."""


class ConnectionLostError(StreamqError):
    """The server could not be reached, or the connection broke.

    Attributes:
        maybe_executed: False when nothing can have reached the server, so that repeating is harmless. True when the
            request was sent and its reply was lost: it may have happened.
    """

    def __init__(self, message: str, *, maybe_executed: bool) -> None:
        super().__init__(message)
        self.maybe_executed = maybe_executed


class ServerError(StreamqError):
    """The server answered with an error that streamq does not resolve by itself.

    Attributes:
        code: First word of the server's reply, such as ``OOM``, ``READONLY``, ``NOGROUP`` or ``ERR``.
    """

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message)
        self.code = code


class JobEncodingError(StreamqError):
    """A payload, a header or a result cannot be encoded, decoded or is too large; nothing was written.

    Attributes:
        path: Where in the value, in msgspec's form (``$.cents``), or ``$`` for the whole.
    """

    def __init__(self, message: str, *, path: str = "$") -> None:
        super().__init__(message)
        self.path = path


class NotDurableError(StreamqError):
    """What was asked for was written, but what `durability` asks for was not confirmed in time.

    It may be confirmed a moment later, or be lost if the primary fails now. Look at the replicas, or at the disk. Adding a job
    again is harmless if it has a job ID: then what is there already is confirmed.

    Attributes:
        partial: Of `add` its answer.
        added: Of `add_many` how many jobs were added, those that are not confirmed included.
    """


class EffectError(StreamqError):
    """An effect could not be applied; none of the job's effects was, and the job is still pending.

    Attributes:
        key: The effect's key, without the stream's prefix.
        command: The Redis command, such as ``HINCRBY``.
        reason: The server's words.
    """

    def __init__(self, *, key: str, command: str, reason: str) -> None:
        super().__init__(f"effect {command} on {key!r} cannot be applied: {reason}; no effect of this job was applied")
        self.key = key
        self.command = command
        self.reason = reason


class LeaseLostError(StreamqError):
    """The delivery is no longer this consumer's: settled already, or taken over after its lease ran out.

    Nothing was changed. Drop the job; do not repeat the call.

    Attributes:
        entry_id: The delivery's entry ID.
        gone: True when the entry is not pending at all any more (settled, dead-lettered or removed), False when another
            consumer, or a later delivery to this one, holds it.
    """

    def __init__(self, *, entry_id: str, gone: bool) -> None:
        where = "it is not pending any more" if gone else "another delivery of it is under way"
        super().__init__(f"lease of entry {entry_id} is lost: {where}; nothing was changed")
        self.entry_id = entry_id
        self.gone = gone


class JobStateError(StreamqError):
    """What was asked cannot be done in the state that a job, a group or a stream is in; nothing was changed.

    Attributes:
        state: The state in one word, such as ``pending`` or ``done``.
    """

    def __init__(self, message: str, *, state: str) -> None:
        super().__init__(message)
        self.state = state


class QueueFullError(StreamqError):
    """The stream holds `max_ready` jobs that nobody has read yet; the job was not added.

    Attributes:
        ready: How many wait, at least.
        max_ready: How many may.
    """

    def __init__(self, *, ready: int, max_ready: int) -> None:
        super().__init__(f"the stream is full: {ready:,} jobs are ready, max_ready is {max_ready:,}; nothing was added")
        self.ready = ready
        self.max_ready = max_ready
