"""From entries to jobs: decode, bury what is malformed, settle whose job ID may run."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import TypeVar

from streamq._codec import Malformed, OtherGroups
from streamq._ops import dead_letter, identity, settle
from streamq._ops import read as read_ops
from streamq._ops import reclaim as reclaim_ops
from streamq._ops.dead_letter import Letter, Moved
from streamq._ops.identity import Claim
from streamq._ops.read import Delivery
from streamq._requests import Plan
from streamq._scripts import Held, Settled
from streamq._spec import Spec
from streamq.errors import StreamqError
from streamq.messages import Failed, Job, JobIdKind, Reclaimed

T = TypeVar("T")

ELSEWHERE_MS = 5_000
"""Longest wait before an entry whose ID runs elsewhere is looked at again: long enough not to spin, short enough to notice."""

_log = logging.getLogger("streamq")


def read(spec: Spec[T], consumer: str, *, count: int, block_ms: int | None) -> Plan[list[Job[T]]]:
    """Read new jobs. One request; one more if a job has a chosen ID, and one per ten malformed entries."""
    deliveries = yield from read_ops.new(spec, consumer, count=count, block_ms=block_ms)
    return (yield from sort(spec, consumer, deliveries, Moved()))


def recover(spec: Spec[T], consumer: str, held: frozenset[str]) -> Plan[list[Job[T]]]:
    """Jobs that a lost or abandoned read left with this consumer."""
    deliveries = yield from read_ops.unseen(spec, consumer, held)
    return (yield from sort(spec, consumer, deliveries, Moved()))


def reclaim(
    spec: Spec[T],
    consumer: str,
    *,
    count: int,
    min_idle_ms: int | None,
    raise_count: bool,
    exclude: Iterable[str] = (),
) -> Plan[Reclaimed[T]]:
    """Take over jobs whose lease ran out, and dead-letter those whose deliveries are spent.

    One request, and one per ten dead letters. An error after the first request carries what was done as ``partial``.
    """
    page = yield from reclaim_ops.page(
        spec,
        consumer,
        min_idle_ms=spec.options.lease_ms if min_idle_ms is None else min_idle_ms,
        count=count,
        raise_count=raise_count,
        crash_delays=min_idle_ms is None,
        exclude=exclude,
    )
    for entry_id in page.missing:
        _log.warning("stream %s: entry %s was pending but its body is gone", spec.keys.name, entry_id)
    moved = Moved(failed=[Failed(i, "entry_missing", "the tombstone could not be written") for i in page.stuck])
    claimed: list[Job[T]] = []
    try:
        limit = spec.options.max_deliveries
        letters = [
            Letter(held, "deliveries", f"started {held.count} times without an end (max_deliveries {limit})")
            for held in page.spent
        ]
        yield from dead_letter.move(spec, consumer, letters, moved)
        deliveries = [Delivery(entry_id, fields, deliveries) for entry_id, deliveries, fields in page.claimed]
        claimed = yield from sort(spec, consumer, deliveries, moved)
    except StreamqError as error:
        error.partial = Reclaimed(claimed, moved.dead, page.missing, moved.failed)  # type: ignore[attr-defined]
        raise
    for failed in moved.failed:
        _log.error("stream %s: entry %s stays pending: %s", spec.keys.name, failed.entry_id, failed.error)
    return Reclaimed(claimed, moved.dead, page.missing, moved.failed)


def sort(spec: Spec[T], consumer: str, deliveries: Sequence[Delivery], moved: Moved) -> Plan[list[Job[T]]]:
    """Make jobs of deliveries; malformed ones are dead-lettered, other groups' acknowledged, done IDs not run again."""
    jobs: list[Job[T]] = []
    letters: list[Letter] = []
    others: list[Settled] = []
    for delivery in deliveries:
        job = spec.codec.job(delivery.entry_id, delivery.fields, deliveries=delivery.count, consumer=consumer)
        match job:
            case Job():
                jobs.append(job)
            case OtherGroups():
                others.append(_plain(delivery.entry_id, delivery.count))
            case Malformed(reason, error):
                size = sum(map(len, delivery.fields))
                letters.append(Letter(Held(delivery.entry_id, delivery.count), reason, error, size))
    if letters:
        before = len(moved.failed)
        yield from dead_letter.move(spec, consumer, letters, moved)
        for failed in moved.failed[before:]:
            _log.error("stream %s: entry %s stays pending: %s", spec.keys.name, failed.entry_id, failed.error)
    if others:
        yield from settle.ack(spec, consumer, others)
    chosen = [job for job in jobs if job._kind is JobIdKind.CHOSEN]  # noqa: SLF001
    if chosen:
        unrun = yield from _claim(spec, consumer, chosen)
        jobs = [job for job in jobs if job.entry_id not in unrun]
    return jobs


def _claim(spec: Spec[T], consumer: str, jobs: Sequence[Job[T]]) -> Plan[set[str]]:
    """Claim the jobs' IDs; entry IDs of those that must not run."""
    answers = yield from identity.claim_ids(spec, consumer, jobs)
    done: list[Settled] = []
    elsewhere: list[Job[T]] = []
    unrun: set[str] = set()
    for job, answer in zip(jobs, answers, strict=True):
        if answer.claim is Claim.RUN:
            continue
        unrun.add(job.entry_id)
        if answer.claim is Claim.DONE:
            done.append(_plain(job.entry_id, job.deliveries))
        elif answer.claim is Claim.ELSEWHERE:
            elsewhere.append(job)
    if done:
        yield from settle.ack(spec, consumer, done)
    if elsewhere:
        yield from settle.release(spec, elsewhere, wait_ms=min(spec.options.lease_ms, ELSEWHERE_MS))
    return unrun


def _plain(entry_id: str, count: int) -> Settled:
    return Settled(entry_id, count, JobIdKind.GENERATED, "", b"")
