"""Keep deliveries: renew their leases, and count the start of reclaimed ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from streamq import _scripts
from streamq._requests import Plan, ask
from streamq._scripts import Fence, Held, in_batches
from streamq._spec import Spec
from streamq.errors import LeaseLostError
from streamq.messages import Job

T = TypeVar("T")


def renew(spec: Spec[T], consumer: str, batch: Sequence[Held]) -> Plan[dict[str, Fence]]:
    """Begin the leases anew; what the fence found, by entry ID. One request per 500."""
    found: dict[str, Fence] = {}
    for part in in_batches(batch):
        codes = yield from ask(_scripts.renew(spec.keys, spec.options, consumer=consumer, batch=part))
        found.update(zip((held.entry_id for held in part), codes, strict=True))
    return found


def extend_one(spec: Spec[T], job: Job[T]) -> Plan[None]:
    """Begin the lease of one job anew. One request; atomic."""
    if job.lease_lost:
        raise LeaseLostError(entry_id=job.entry_id, gone=False)
    found = yield from renew(spec, job._consumer, [Held(job.entry_id, job.deliveries)])  # noqa: SLF001  # its maker's package
    fence = found[job.entry_id]
    if fence is not Fence.MINE:
        job.lease_lost = True
        raise LeaseLostError(entry_id=job.entry_id, gone=fence is not Fence.LOST)


def extend_many(spec: Spec[T], jobs: Sequence[Job[T]]) -> Plan[int]:
    """Begin the leases of jobs anew; how many are still their consumers'. No request without jobs."""
    by_consumer: dict[str, list[Job[T]]] = {}
    for job in jobs:
        if not job.lease_lost:
            by_consumer.setdefault(job._consumer, []).append(job)  # noqa: SLF001
    count = 0
    for consumer, ours in by_consumer.items():
        found = yield from renew(spec, consumer, [Held(job.entry_id, job.deliveries) for job in ours])
        for job in ours:
            job.lease_lost = found[job.entry_id] is not Fence.MINE
            count += not job.lease_lost
    return count


def start(spec: Spec[T], consumer: str, targets: Sequence[Held]) -> Plan[list[Fence]]:
    """Count the starts of reclaimed deliveries; per delivery `Fence.MINE` if its handler may begin.

    `targets` name the count that each shall have, so sending them again counts once. One request per 500; atomic each.
    """
    found: list[Fence] = []
    for part in in_batches(targets):
        found += yield from ask(_scripts.start(spec.keys, spec.options, consumer=consumer, targets=part))
    return found
