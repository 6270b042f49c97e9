"""What follows a handler's end: retry while attempts are left, then dead-letter."""

from __future__ import annotations

from typing import TypeVar

from streamq._codec import cut
from streamq._ops import dead_letter, settle
from streamq._ops.dead_letter import Letter, Moved
from streamq._requests import Plan
from streamq._scripts import Fence, Held
from streamq._spec import Spec
from streamq.backoff import Backoff
from streamq.errors import LeaseLostError, ServerError
from streamq.messages import Job, Reason

T = TypeVar("T")


def policy(spec: Spec[T], job: Job[T]) -> Backoff:
    """The retry policy of a job: its own, or the stream's."""
    return job._retry or spec.options.retry  # noqa: SLF001  # its maker's package


def delay_ms(spec: Spec[T], job: Job[T], asked_ms: int | None, chance: float) -> int:
    """How long a job whose attempt failed waits: as it was asked, or by its policy, with `chance` from 0 to 1."""
    return policy(spec, job).delay_ms(job.attempt, chance) if asked_ms is None else asked_ms


def retry(spec: Spec[T], job: Job[T], error: str, delay_ms: int) -> Plan[Reason | None]:
    """Try the job again: None if it will run, else why it was dead-lettered: its attempts were spent, or its body is gone.

    Args:
        spec: The stream.
        job: The job.
        error: Of the attempt that failed.
        delay_ms: Time until then.
    """
    if policy(spec, job).exhausted(job.attempt):
        yield from bury(spec, job, "attempts", error, attempts=job.attempt)
        return "attempts"
    fence = yield from settle.retry(spec, job, error, delay_ms)
    if fence is Fence.MISSING:
        yield from bury(spec, job, "entry_missing", error, attempts=job.attempt)
        return "entry_missing"
    if fence is not Fence.MINE:
        raise LeaseLostError(entry_id=job.entry_id, gone=fence is Fence.GONE)
    return None


def bury(spec: Spec[T], job: Job[T], reason: Reason, error: str, *, attempts: int) -> Plan[None]:
    """Dead-letter one job.

    Raises:
        LeaseLostError: It is not this consumer's any more.
        ServerError: It could not be moved; it stays pending.
    """
    moved = Moved()
    item = settle.settled(job)
    held = Held(item.entry_id, item.count)
    yield from dead_letter.move(
        spec,
        job._consumer,  # noqa: SLF001
        [Letter(held, reason, cut(error), job_id=job.id, attempts=attempts)],
        moved,
    )
    for fence in moved.not_mine.values():
        raise LeaseLostError(entry_id=job.entry_id, gone=fence is Fence.GONE)
    for failed in moved.failed:
        raise ServerError(
            f"entry {failed.entry_id} could not be dead-lettered and stays pending: {failed.error}", code="DEADLETTER"
        )
