"""End deliveries: acknowledge, commit, retry, release. Every one is fenced by owner and delivery count."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from streamq import _scripts
from streamq._codec import encode_result, errors_with
from streamq._requests import Pipeline, Plan, ask, ask_each, entry_order
from streamq._scripts import UNCLAIMED, Fence, Held, Settled, in_batches
from streamq._spec import Spec
from streamq.errors import EffectError, LeaseLostError
from streamq.messages import Job, JobIdKind

T = TypeVar("T")


def settled(job: Job[Any], result: bytes = b"") -> Settled:
    """What the scripts need to know of a job that ends.

    Raises:
        LeaseLostError: This process knows already that the job is not its own any more: it gave it back, or lost it.
            The server cannot tell a released delivery from a later one to the same consumer with the same count.
    """
    if job.lease_lost:
        raise LeaseLostError(entry_id=job.entry_id, gone=False)
    return Settled(job.entry_id, job.deliveries, job._kind, job.id, result)  # noqa: SLF001  # its maker's package


def _ascending(items: Sequence[Settled]) -> Sequence[Settled]:
    """`items` once each, ascending by entry ID. As they are if they ascend already, as those of one read do."""
    before = ""
    for item in items:
        entry_id = item.entry_id
        # Like this if both times have 13 digits, until 2286. With others the script finds each by itself: slow, not wrong.
        if not (before < entry_id if len(before) == len(entry_id) else _follows(before, entry_id)):
            return sorted({i.entry_id: i for i in items}.values(), key=lambda i: entry_order(i.entry_id))
        before = entry_id
    return items


def _follows(before: str, entry_id: str) -> bool:
    """Whether `entry_id` comes behind `before`, which is of another length. Strict, so that none can come twice."""
    return (before[:13], len(before)) < (entry_id[:13], len(entry_id))


def ack(spec: Spec[T], consumer: str, items: Sequence[Settled]) -> Plan[dict[str, Fence]]:
    """Acknowledge deliveries of one consumer; what the fence found, by entry ID. One request per 500."""
    ordered = _ascending(items)
    codes = yield from _ack(spec, consumer, ordered)
    return dict(zip([item.entry_id for item in ordered], codes, strict=True))


def _ack(spec: Spec[T], consumer: str, ordered: Sequence[Settled]) -> Plan[list[Fence]]:
    codes: list[Fence] = []
    for batch in in_batches(ordered):
        codes += yield from ask(_scripts.ack(spec.keys, spec.options, consumer=consumer, batch=batch))
    return codes


def pass_over(spec: Spec[T], consumer: str, batch: Sequence[tuple[Held, str]]) -> Plan[list[tuple[Held, str]]]:
    """Acknowledge what other groups handle; what no group handles, and so is this one's to dead-letter. One request per 500."""
    unclaimed: list[tuple[Held, str]] = []
    for part in in_batches(batch):
        codes = yield from ask(_scripts.pass_over(spec.keys, spec.options, consumer=consumer, batch=part))
        unclaimed += [item for item, code in zip(part, codes, strict=True) if code == UNCLAIMED]
    return unclaimed


def ack_one(spec: Spec[T], job: Job[T]) -> Plan[bool]:
    """Acknowledge one job: True if it was pending, False if it is not any more."""
    item = settled(job)
    found = yield from ack(spec, job._consumer, [item])  # noqa: SLF001
    if found[item.entry_id] is Fence.LOST:
        raise LeaseLostError(entry_id=item.entry_id, gone=False)
    return found[item.entry_id] is Fence.MINE


def ack_many(spec: Spec[T], jobs: Sequence[Job[T]]) -> Plan[int]:
    """Acknowledge jobs; how many were still this consumer's. No request without jobs."""
    by_consumer: dict[str, list[Settled]] = {}
    for job in jobs:
        if not job.lease_lost:
            item = Settled(job.entry_id, job.deliveries, job._kind, job.id, b"")  # noqa: SLF001  # as `settled` does
            if job._consumer in by_consumer:  # noqa: SLF001
                by_consumer[job._consumer].append(item)  # noqa: SLF001
            else:
                by_consumer[job._consumer] = [item]  # noqa: SLF001
    count = 0
    for consumer, items in by_consumer.items():
        codes = yield from _ack(spec, consumer, _ascending(items))
        count += codes.count(Fence.MINE)
    return count


def commit(spec: Spec[T], job: Job[T], result: Any) -> Plan[None]:
    """Acknowledge one job with its effects and its result. One request; atomic."""
    [outcome] = yield from commit_each(spec, [(job, encode_result(result))])
    if isinstance(outcome, Exception):
        raise outcome


def commit_each(spec: Spec[T], batch: Sequence[tuple[Job[T], bytes]]) -> Plan[list[Exception | None]]:
    """Commit jobs, each by itself, in one write; per job None or what went wrong."""
    answers = yield from ask_each(
        Pipeline(
            tuple(
                _scripts.commit(
                    spec.keys,
                    spec.options,
                    consumer=job._consumer,  # noqa: SLF001
                    item=settled(job, result),
                    effects=job.effects,
                )
                for job, result in batch
            )
        )
    )
    return [_refused(job.entry_id, answer) for (job, _), answer in zip(batch, answers, strict=True)]


def _refused(entry_id: str, answer: Fence | EffectError | Exception) -> Exception | None:
    if isinstance(answer, Exception):
        return answer
    return None if answer is Fence.MINE else LeaseLostError(entry_id=entry_id, gone=answer is not Fence.LOST)


def retry(spec: Spec[T], job: Job[T], error: str, delay_ms: int) -> Plan[Fence]:
    """Schedule the job again with the next attempt's number, and settle this delivery. One request; atomic."""
    fence, _ = yield from ask(
        _scripts.retry(
            spec.keys,
            spec.options,
            consumer=job._consumer,  # noqa: SLF001
            item=settled(job),
            enqueued_ms=job._enqueued_ms,  # noqa: SLF001
            attempt=job.attempt + 1,
            errors=errors_with(job, error),
            delay_ms=min(delay_ms, spec.options.max_delay_ms),
        )
    )
    return fence


def release(spec: Spec[T], jobs: Sequence[Job[T]], *, charged: bool = True, wait_ms: int = 0) -> Plan[list[Fence]]:
    """Give deliveries back unrun; they can be reclaimed after `wait_ms`. One request per 500; atomic each.

    Args:
        spec: The stream.
        jobs: Of one consumer.
        charged: Whether this delivery raised the count (a read, or a start), so that one is taken back.
        wait_ms: Time until others may take them.
    """
    idle_ms = max(spec.options.lease_ms - wait_ms, 0)
    terms = [
        (
            Held(item.entry_id, item.count),
            max(item.count - charged, 0),
            idle_ms,
            item.job_id if item.kind is JobIdKind.CHOSEN else "",
        )
        for item in map(settled, jobs)
    ]
    found: list[Fence] = []
    for part in in_batches(list(zip(jobs, terms, strict=True))):
        consumer, batch = jobs[0]._consumer, [term for _, term in part]  # noqa: SLF001
        found += yield from ask(_scripts.release(spec.keys, spec.options, consumer=consumer, batch=batch))
        for job, _ in part:
            job.lease_lost = True  # whoever reclaims it gets a job of its own; this one is over
    return found


def give_back(spec: Spec[T], consumer: str, batch: Sequence[tuple[Held, int]]) -> Plan[list[Fence]]:
    """Give deliveries back on behalf of a dead consumer, due at once, each with a count of its own; what the fence found.

    One request per 500, none without deliveries; atomic each. `running` records of chosen job IDs stay: they are bound to the
    entry, and whoever takes it over takes them over too.
    """
    found: list[Fence] = []
    for part in in_batches([(held, count, spec.options.lease_ms, "") for held, count in batch]):
        found += yield from ask(_scripts.release(spec.keys, spec.options, consumer=consumer, batch=part))
    return found
