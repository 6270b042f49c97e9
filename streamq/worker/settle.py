"""Settles outcomes in batches, and keeps at it until the server has taken them."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Any, Generic, TypeVar

import msgspec

from streamq._drivers.asynchronous import AsyncDriver
from streamq._flows import outcome as flows
from streamq._ops import settle as verbs
from streamq._requests import Plan
from streamq._scripts import MAX_BATCH, Fence
from streamq._spec import Spec
from streamq.backoff import RECONNECT
from streamq.errors import ConnectionLostError, EffectError, LeaseLostError, StreamqError
from streamq.messages import Reason
from streamq.worker import log, roles
from streamq.worker.dispatch import End, Outcome
from streamq.worker.hooks import Buried, HookList

T = TypeVar("T")

NOT_NOW_MS = 5_000
"""Longest wait before a job that its handler gave back is looked at again."""

_log = logging.getLogger("streamq.worker")


class Fate(Enum):
    """What has become of a delivery."""

    SUCCEEDED = auto()
    RETRIED = auto()
    DEAD = auto()
    RELEASED = auto()
    LOST = auto()
    """Its lease was lost: the outcome was dropped."""


class Settlement(msgspec.Struct, Generic[T], frozen=True, gc=False):
    """Outcomes that are over, all in the same way."""

    outcomes: Sequence[Outcome[T]]
    fate: Fate
    error: str = ""
    """Of what was retried or is dead."""
    reason: Reason | None = None
    """Of what is dead."""


class Settler(Generic[T]):
    """Takes outcomes and settles them; one batch at a time.

    Args:
        spec: The stream.
        consumer: Whose deliveries they are.
        driver: To run the plans.
        settled: Told the outcomes that are over, one way or the other.
    """

    def __init__(
        self, spec: Spec[T], consumer: str, driver: AsyncDriver, settled: Callable[[Settlement[T]], None]
    ) -> None:
        self._spec = spec
        self._consumer = consumer
        self._driver = driver
        self._settled = settled
        self._new: list[Outcome[T]] = []
        self._refused: list[Outcome[T]] = []
        self._sent: set[str] = set()
        """Entries whose outcome was sent, and may have been taken: the reply was lost."""
        self._wake = roles.Flag()
        self._tried = roles.Flag()
        self._tried.set()
        self._empty = roles.Flag()
        self._empty.set()
        self._failures = 0
        self._unreachable = False
        self._again_at = 0.0

    def put(self, outcome: Outcome[T]) -> None:
        """Settle `outcome` soon."""
        self._new.append(outcome)
        if len(self._new) == 1:  # else all of this is done
            self._tried.clear()
            self._empty.clear()
            self._wake.set()

    async def tried(self) -> None:
        """Wait until every outcome was settled, or refused at least once."""
        await self._tried.wait()

    async def flushed(self) -> None:
        """Wait until every outcome is settled."""
        await self._empty.wait()

    async def run(self) -> None:
        """Settle what comes, until cancelled. What was refused is tried again later, and holds up nothing else."""
        while True:
            batch = await self._next_batch()
            try:
                left = await self._settle(batch)
            except Exception:
                self._refused += batch  # by a mistake of ours: the role begins again, and none of them is forgotten
                raise
            if left:
                self._failures += 1
                self._again_at = _now() + RECONNECT.delay_ms(self._failures) / 1000
                self._refused += left
            elif batch:
                self._failures = 0
            if not self._new:
                self._tried.set()
                if not self._refused:
                    self._empty.set()

    async def _next_batch(self) -> list[Outcome[T]]:
        while True:
            now = _now()
            if self._refused and now >= self._again_at:
                batch, self._refused = self._refused[:MAX_BATCH], self._refused[MAX_BATCH:]
                return batch
            if self._new and not (self._unreachable and now < self._again_at):
                batch, self._new = self._new[:MAX_BATCH], self._new[MAX_BATCH:]
                return batch
            if self._new:  # as good as refused
                self._refused, self._new = self._refused + self._new, []
                self._tried.set()
            self._wake.clear()
            pause = max(self._again_at - now, 0.001) if self._refused else None
            await roles.until_any(self._wake, limit_s=pause)

    async def _settle(self, batch: list[Outcome[T]]) -> list[Outcome[T]]:
        """Settle a batch; returns those that could not be, to be tried again."""
        self._unreachable = False
        acks: list[Outcome[T]] = []
        commits: list[Outcome[T]] = []
        others: list[Outcome[T]] = []
        for outcome in batch:
            if outcome.job.lease_lost:
                self._lost(outcome, gone=False)
            elif outcome.end is not End.DONE:
                others.append(outcome)
            else:
                (commits if outcome.job.has_effects else acks).append(outcome)
        left = await self._acknowledge(acks) if acks else []
        if commits:
            left += commits if self._unreachable else await self._commit(commits)
        for outcome in others:
            # A server that is away is asked once, not once an outcome: each may take as long as a connection's timeout.
            if self._unreachable or not await self._one(outcome):
                left.append(outcome)
        return left

    async def _acknowledge(self, batch: list[Outcome[T]]) -> list[Outcome[T]]:
        try:
            items = [verbs.settled(o.job, o.result) for o in batch]
            found = await self._driver.run(verbs.ack(self._spec, self._consumer, items))
        except StreamqError as error:
            self._report(error, batch)
            return batch
        mine = [o for o in batch if found[o.job.entry_id] is Fence.MINE]
        if mine:
            self._over(Settlement(mine, Fate.SUCCEEDED))
        if len(mine) < len(batch):
            for outcome in batch:
                if (fence := found[outcome.job.entry_id]) is not Fence.MINE:
                    self._lost(outcome, gone=fence is Fence.GONE)
        return []

    async def _commit(self, batch: list[Outcome[T]]) -> list[Outcome[T]]:
        try:
            answers = await self._driver.run(verbs.commit_each(self._spec, [(o.job, o.result) for o in batch]))
        except StreamqError as error:
            self._report(error, batch)
            return batch
        left = []
        for outcome, answer in zip(batch, answers, strict=True):
            if answer is None:
                self._over(Settlement([outcome], Fate.SUCCEEDED))
            elif isinstance(answer, LeaseLostError):
                self._lost(outcome, gone=answer.gone)
            elif not isinstance(answer, EffectError):
                self._report(answer, [outcome])
                left.append(outcome)
            else:  # an effect that cannot be applied is an attempt that failed
                failed = Outcome(outcome.job, End.FAILED, error=str(answer))
                if not await self._one(failed):
                    left.append(failed)
        return left

    def _plan(self, outcome: Outcome[T]) -> Plan[Settlement[T]]:
        job, error = outcome.job, outcome.error
        match outcome.end:
            case End.FAILED:
                chance = random.random()  # noqa: S311  # jitter
                delay_ms = flows.delay_ms(self._spec, job, outcome.delay_ms, chance)
                reason = yield from flows.retry(self._spec, job, error, delay_ms)
                return Settlement([outcome], Fate.DEAD if reason else Fate.RETRIED, error, reason)
            case End.REJECTED:
                yield from flows.bury(self._spec, job, "rejected", error, attempts=job.attempt)
                return Settlement([outcome], Fate.DEAD, error, "rejected")
            case End.RELEASED:  # by the handler itself: it would come back at once, and turn in a circle
                yield from verbs.release(self._spec, [job], wait_ms=min(self._spec.options.lease_ms, NOT_NOW_MS))
                return Settlement([outcome], Fate.RELEASED)
            case _:
                yield from verbs.release(self._spec, [job])
                return Settlement([outcome], Fate.RELEASED)

    async def _one(self, outcome: Outcome[T]) -> bool:
        """Settle one outcome; False if it must be tried again."""
        try:
            settlement = await self._driver.run(self._plan(outcome))
        except LeaseLostError as error:
            self._lost(outcome, gone=error.gone)
        except StreamqError as error:
            self._report(error, [outcome])
            return False
        else:
            self._over(settlement)
        return True

    def _lost(self, outcome: Outcome[T], *, gone: bool) -> None:
        job = outcome.job
        if gone and job.entry_id in self._sent:
            self._over(self._as_sent(outcome))
            return
        how = "is not pending any more" if gone else "belongs to another delivery"
        message = f"job {how}, its outcome was dropped"
        log.event(_log, logging.WARNING, message, stream=self._spec.keys.name, **log.about(job))
        self._over(Settlement([outcome], Fate.LOST))

    def _as_sent(self, outcome: Outcome[T]) -> Settlement[T]:
        """What was sent, and is not pending any more, has been done, as far as anybody can tell: only its reply was lost."""
        match outcome.end:
            case End.DONE:
                return Settlement([outcome], Fate.SUCCEEDED)
            case End.REJECTED:
                return Settlement([outcome], Fate.DEAD, outcome.error, "rejected")
            case End.FAILED if flows.policy(self._spec, outcome.job).exhausted(outcome.job.attempt):
                return Settlement([outcome], Fate.DEAD, outcome.error, "attempts")
            case End.FAILED:
                return Settlement([outcome], Fate.RETRIED, outcome.error)
            case _:
                return Settlement([outcome], Fate.LOST)

    def _over(self, settlement: Settlement[T]) -> None:
        if self._sent:
            self._sent.difference_update(outcome.job.entry_id for outcome in settlement.outcomes)
        self._settled(settlement)

    def _report(self, error: Exception, batch: list[Outcome[T]]) -> None:
        if isinstance(error, ConnectionLostError):
            self._unreachable = True
            if error.maybe_executed:
                self._sent.update(outcome.job.entry_id for outcome in batch)
        log.event(
            _log,
            logging.WARNING if isinstance(error, ConnectionLostError) else logging.ERROR,
            "outcomes are not settled yet",
            stream=self._spec.keys.name,
            jobs=len(batch),
            first_entry_id=batch[0].job.entry_id,
            error=error,
        )


def tell(hooks: HookList, settlement: Settlement[Any]) -> None:
    """Tell `hooks` what has become of jobs."""
    for outcome in settlement.outcomes:
        job = outcome.job
        match settlement.fate:
            case Fate.SUCCEEDED:
                hooks.tell("succeeded", job)
            case Fate.RETRIED:
                hooks.tell("retried", job, settlement.error)
            case Fate.DEAD:
                assert settlement.reason is not None  # noqa: S101  # what is dead has one
                hooks.tell(
                    "dead_lettered",
                    Buried(
                        stream=job.stream,
                        group=job.group,
                        entry_id=job.entry_id,
                        job_id=job.id,
                        reason=settlement.reason,
                        error=settlement.error,
                        job=job,
                    ),
                )
            case Fate.RELEASED:
                hooks.tell("released", job)
            case Fate.LOST:
                hooks.tell("lease_lost", job)


def _now() -> float:
    return asyncio.get_running_loop().time()
