"""From entries to jobs: decode, bury what is malformed, settle whose job ID may run."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeVar

from streamq._codec import OtherGroups
from streamq._flows import opening
from streamq._ops import dead_letter, identity, pause, promote, settle
from streamq._ops import read as read_ops
from streamq._ops import reclaim as reclaim_ops
from streamq._ops.dead_letter import Letter, Moved
from streamq._ops.identity import Claim
from streamq._ops.read import Delivery
from streamq._requests import Plan
from streamq._scripts import Held, Page, Settled
from streamq._scripts_timers import Promoted
from streamq._spec import Spec
from streamq.errors import StreamqError
from streamq.messages import Failed, Job, JobIdKind, Reason, Reclaimed

T = TypeVar("T")

ELSEWHERE_MS = 5_000
"""Longest wait before an entry whose ID runs elsewhere is looked at again: long enough not to spin, short enough to notice."""

WATCH_MS = 1_000
"""Longest wait of one read that watches for a pause: with a look that is a second old, nothing starts 2 s after it."""

LEAST_MS = 10
"""Shortest wait until something is due: a stream of retries must not make a storm of requests."""

_log = logging.getLogger("streamq")


@dataclass(slots=True)
class Sorted(Generic[T]):
    """Deliveries by what must become of them."""

    deliveries: Sequence[Delivery]
    """All of them, as they came."""
    jobs: list[Job[T]] = field(default_factory=list)
    chosen: list[Job[T]] = field(default_factory=list)
    """Jobs whose ID must be claimed before they may run."""
    letters: list[Letter] = field(default_factory=list)
    others: list[tuple[Held, str]] = field(default_factory=list)
    """Entries that only another group handles, with its name."""

    def ready(self) -> list[Job[T]]:
        """The jobs that may run, as they came."""
        if self.chosen:
            place = {delivery.entry_id: at for at, delivery in enumerate(self.deliveries)}
            self.jobs.sort(key=lambda job: place[job.entry_id])
        return self.jobs


@dataclass(frozen=True, slots=True)
class Taken(Generic[T]):
    """What a read brought."""

    jobs: list[Job[T]]
    dead: dict[str, Reason]
    """Entries that were dead-lettered at once, and why."""


def read_once(spec: Spec[T], consumer: str, *, count: int, block_ms: int) -> Plan[Taken[T]]:
    """Read new jobs with a single wait, for whoever watches `pause` by himself. Requests as of `read`."""
    plain = partial(read_ops.new, spec, consumer, count=count, block_ms=block_ms)
    deliveries = yield from opening.with_group(spec, plain)
    return (yield from _take_in(spec, consumer, deliveries, charged=True))


def read(
    spec: Spec[T], consumer: str, *, count: int, block_ms: int | None, look_for_pause: bool = False
) -> Plan[list[Job[T]]]:
    """Read new jobs. One request; one more if a job has a chosen ID, and one per ten malformed entries.

    Whoever watches `pause` by himself passes waits of two seconds at most. With `look_for_pause`, and in the middle of longer
    waits, it is watched here: while the stream is paused nothing is read, but the wait goes on. What is due is moved into the
    stream then, too, and no wait goes on beyond the time when something is: so one that begins looks for that first.
    """
    left = block_ms or 0
    due_ms = WATCH_MS
    if left and not look_for_pause:
        deliveries = yield from opening.with_group(spec, partial(read_ops.new, spec, consumer, count=count, block_ms=0))
        if deliveries:
            return (yield from _take_in(spec, consumer, deliveries, charged=True)).jobs
        due_ms = _due_ms((yield from promote.for_a_reader(spec)))
    while True:
        if look_for_pause:
            after_pause = yield from pause.until_resumed(spec, left)
            if after_pause is None:
                return []
            left = after_pause
            due_ms = _due_ms((yield from promote.for_a_reader(spec)))
        wait = min(left, due_ms)
        left -= wait
        if left:
            flag, step = pause.flag(spec), promote.step(spec)
            watched = partial(read_ops.new_or_flag, spec, consumer, flag, step, count=count, block_ms=wait)
            deliveries, look_for_pause, promoted = yield from opening.with_group(spec, watched)
            if isinstance(promoted, Promoted):
                promote.report(spec, promoted)
            due_ms = _due_ms(promoted)
        else:
            plain = partial(read_ops.new, spec, consumer, count=count, block_ms=wait)
            deliveries = yield from opening.with_group(spec, plain)
        if deliveries or not left:
            return (yield from _take_in(spec, consumer, deliveries, charged=True)).jobs


def _due_ms(promoted: Promoted | Exception | None) -> int:
    """How long a read may wait for what is due next."""
    if not isinstance(promoted, Promoted) or promoted.wait_ms is None:
        return WATCH_MS
    return min(max(promoted.wait_ms, LEAST_MS), WATCH_MS)


def recover(spec: Spec[T], consumer: str, held: frozenset[str]) -> Plan[Taken[T]]:
    """Jobs that a lost or abandoned read left with this consumer."""
    deliveries = yield from opening.with_group(spec, lambda: read_ops.unseen(spec, consumer, held))
    # A lost reclaim charged nothing, and the two cannot be told apart: better one charge too many than a start uncounted.
    return (yield from _take_in(spec, consumer, deliveries, charged=False))


def _take_in(spec: Spec[T], consumer: str, deliveries: Sequence[Delivery], *, charged: bool) -> Plan[Taken[T]]:
    found = _sort(spec, consumer, deliveries)
    moved = Moved()
    yield from _finish(spec, consumer, found, moved, charged=charged)
    _report(spec, moved)
    return Taken(found.ready(), moved.dead)


def reclaim(
    spec: Spec[T],
    consumer: str,
    *,
    count: int,
    min_idle_ms: int | None,
    raise_count: bool,
    exclude: Iterable[str] = (),
    least_count: int = 0,
    most_last: int | None = None,
    last_patience_ms: int = 0,
    look_for_pause: bool = False,
) -> Plan[Reclaimed[T]]:
    """Take over jobs whose lease ran out, and dead-letter those whose deliveries are spent.

    One request, and one per ten dead letters. An error after the first request carries what was done as ``partial``:
    counts were raised, so somebody must get those jobs. Which are passed over, see `reclaim.page`; they do not make the
    answer's ``more`` true.
    """
    if look_for_pause and (yield from pause.is_paused(spec)):
        return Reclaimed([], {}, [], [])
    page = yield from opening.with_group(
        spec,
        lambda: reclaim_ops.page(
            spec,
            consumer,
            min_idle_ms=spec.options.lease_ms if min_idle_ms is None else min_idle_ms,
            count=count,
            raise_count=raise_count,
            crash_delays=min_idle_ms is None,
            exclude=exclude,
            least_count=least_count,
            most_last=most_last,
            last_patience_ms=last_patience_ms,
        ),
    )
    for entry_id in page.missing:
        _log.warning("stream %s: entry %s was pending but its body is gone", spec.keys.name, entry_id)
    taken = len(page.claimed) + len(page.spent)
    more = taken >= count or (taken > 0 and page.cursor != "0-0")  # full by number, or by bytes
    found = _sort(spec, consumer, [Delivery(entry_id, fields, n) for entry_id, n, fields in page.claimed])
    limit = spec.options.max_deliveries
    found.letters += [
        Letter(held, "deliveries", f"started {held.count} times without an end (max_deliveries {limit})")
        for held in page.spent
    ]
    moved = Moved(failed=[Failed(i, "entry_missing", "the tombstone could not be written") for i in page.stuck])
    try:
        yield from _finish(spec, consumer, found, moved, charged=raise_count)
    except StreamqError as error:
        error.partial = _answer(found, moved, page, more=more)
        raise
    _report(spec, moved)
    return _answer(found, moved, page, more=more)


def _answer(found: Sorted[T], moved: Moved, page: Page, *, more: bool) -> Reclaimed[T]:
    return Reclaimed(found.ready(), moved.dead, page.missing, moved.failed, more)


def _report(spec: Spec[T], moved: Moved) -> None:
    for failed in moved.failed:
        _log.error("stream %s: entry %s stays pending: %s", spec.keys.name, failed.entry_id, failed.error)


def _sort(spec: Spec[T], consumer: str, deliveries: Sequence[Delivery]) -> Sorted[T]:
    found: Sorted[T] = Sorted(deliveries)
    job_of, chosen = spec.codec.job, JobIdKind.CHOSEN  # looked up once, not once an entry
    for delivery in deliveries:
        job = job_of(delivery.entry_id, delivery.fields, deliveries=delivery.count, consumer=consumer)
        if isinstance(job, Job):
            (found.chosen if job._kind is chosen else found.jobs).append(job)  # noqa: SLF001
        elif isinstance(job, OtherGroups):
            found.others.append((Held(delivery.entry_id, delivery.count), job.group))
        else:
            size = sum(map(len, delivery.fields))
            found.letters.append(Letter(Held(delivery.entry_id, delivery.count), job.reason, job.error, size))
    return found


def _finish(spec: Spec[T], consumer: str, found: Sorted[T], moved: Moved, *, charged: bool) -> Plan[None]:
    """Claim chosen IDs, pass over what is other groups', dead-letter what is malformed, spent, or nobody's."""
    if found.chosen:
        found.jobs += yield from _claim(spec, consumer, found.chosen, charged=charged)
    if found.others:
        unclaimed = yield from settle.pass_over(spec, consumer, found.others)
        found.letters += [Letter(held, "unknown_group", f"group {group} does not exist") for held, group in unclaimed]
    yield from dead_letter.move(spec, consumer, found.letters, moved)


def _claim(spec: Spec[T], consumer: str, jobs: Sequence[Job[T]], *, charged: bool) -> Plan[list[Job[T]]]:
    """Claim the jobs' IDs; the jobs that may run."""
    answers = yield from identity.claim_ids(spec, consumer, jobs)
    run: list[Job[T]] = []
    done: list[Settled] = []
    elsewhere: list[Job[T]] = []
    for job, answer in zip(jobs, answers, strict=True):
        match answer:
            case Claim.RUN:
                run.append(job)
            case Claim.DONE:
                done.append(_plain(job.entry_id, job.deliveries))
            case Claim.ELSEWHERE:
                elsewhere.append(job)
    if done:
        yield from settle.ack(spec, consumer, done)
    if elsewhere:
        yield from settle.release(spec, elsewhere, charged=charged, wait_ms=min(spec.options.lease_ms, ELSEWHERE_MS))
    return run


def _plain(entry_id: str, count: int) -> Settled:
    return Settled(entry_id, count, JobIdKind.GENERATED, "", b"")
