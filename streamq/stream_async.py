"""The asyncio facade. Made from ``stream.py`` by ``tests/parity.py``: do not edit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, overload

from streamq import connection
from streamq._codec import EntryCodec
from streamq._flows import intake, outcome
from streamq._ops import dead_letter, enqueue, identity, inspect, settle
from streamq._ops import read as reading
from streamq._requests import Plan
from streamq._spec import Spec
from streamq.backoff import to_ms
from streamq.effects import Effects
from streamq.errors import ConfigurationError, LeaseLostError
from streamq.keys import Keys, check_name
from streamq.messages import Added, DeadLetter, Job, Reclaimed, Snapshot
from streamq.options import StreamOptions

T = TypeVar("T")
R = TypeVar("R")


class AsyncStream(Generic[T]):
    """A stream of jobs on one server, for one consumer group, with asyncio.

    Tasks of one event loop may share one; call `aclose` before the loop ends. After a fork the child makes
    connections of its own. Nothing is sent before the first call.

    Args:
        name: Name of the stream: letters, digits, ``.``, ``_``, ``-``, 1 to 128 of them.
        type: Type of the payloads: a msgspec Struct, any other type that msgspec decodes, ``dict`` (the default), or
            ``bytes`` for raw payloads.
        redis: URL (``redis://``, ``rediss://``, ``unix://``, ``embedded://[/directory]``), or a redis-py client whose
            settings are used for connections of our own, or None for the environment's ``STREAMQ_URL``, else
            ``redis://localhost:6379``.
        deployment: Namespace, where several deployments share a server.
        options: See `StreamOptions`; the defaults fit most streams.

    Raises:
        ConfigurationError: An argument is not valid; the message says which and what to do.
    """

    def __init__(
        self,
        name: str,
        type: type[T] = dict,  # type: ignore[assignment]  # noqa: A002  # a default for a type variable
        *,
        redis: connection.RedisSource = None,
        deployment: str | None = None,
        options: StreamOptions | None = None,
    ) -> None:
        options = StreamOptions() if options is None else options
        self.name = name
        self._spec: Spec[T] = Spec(Keys(name, deployment), options, EntryCodec(type, options))
        self._settings = connection.settings_of(redis)
        self._driver = self._settings.asynchronous()
        self._prepared = False
        self.dead_letters = AsyncDeadLetters(self._spec, self._run)

    @property
    def options(self) -> StreamOptions:
        """The stream's settings."""
        return self._spec.options

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections. What is pending stays pending; a later call opens them anew."""
        await self._driver.aclose()

    async def add(self, payload: T, *, job_id: str | None = None, headers: Mapping[str, str] | None = None) -> Added:
        """Add a job: when this returns, its entry is in the stream.

        Args:
            payload: Of the stream's type; at most `max_payload` bytes encoded.
            job_id: Makes adding idempotent: for `idempotency_ttl` after the job was added, retried or done, nothing is
                added and the answer says where the job is. The payload of the first stands. 1 to 512 bytes
                of UTF-8 without control characters.
            headers: Text that travels with the job, such as a trace ID.

        Returns:
            The job's ID, its entry ID, whether it was created, and its state.

        Raises:
            JobEncodingError: The payload or a header cannot be stored; fix it. Nothing was written.
            ConfigurationError: The job ID is not valid, or the stream's key holds something else. Nothing was written.
            ConnectionLostError: With `maybe_executed` the job may have been added: with a `job_id`, add it again.
            ServerError: The server refused, for example for lack of memory. Nothing was written.

        Round trips: 1. Atomic: yes (XADD, or a script with `job_id`). Server: Redis 6.2, Valkey.
        """
        return await self._run(enqueue.add(self._spec, payload, job_id=job_id, headers=headers))

    async def add_many(
        self,
        payloads: Iterable[T],
        *,
        job_id: Callable[[T], str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> int:
        """Add jobs from any iterable, in writes of up to 500 jobs or 1 MiB, so memory stays bounded.

        Args:
            payloads: Of the stream's type.
            job_id: Gives each payload its job ID; see `add`.
            headers: The same for all.

        Returns:
            How many were added; known job IDs do not count.

        Raises:
            JobEncodingError: A payload cannot be stored; the message says which. Those before it were added.
            StreamqError: As of `add`. Every error carries ``added``: jobs known to be added before it.

        Round trips: 1 per 500 jobs. Atomic: each job by itself.
        """
        return await self._run(enqueue.add_many(self._spec, payloads, job_id=job_id, headers=headers))

    async def read(self, consumer: str, *, count: int = 1, block: float | timedelta | None = None) -> list[Job[T]]:
        """Take up to `count` new jobs: when this returns, they are pending under `consumer` and its lease runs.

        Entries that cannot become a job are dead-lettered and not returned: neither are jobs whose ID is done already
        (acknowledged) or runs elsewhere (released). The group is made, from the stream's beginning, when it is missing.

        Args:
            consumer: Unique per process start, for example host, pid and a random part: fencing tells consumers apart.
            count: Most jobs, 1 to 1,000.
            block: Seconds to wait for the first one; None for no wait.

        Returns:
            The jobs, in stream order; empty when there are none.

        Raises:
            ConnectionLostError: Jobs may be pending unseen; they come back by `reclaim` when their lease has run out.

        Round trips: 1 (a first call 4 more; 1 more when a job has a chosen ID). Atomic: yes (XREADGROUP).
        """
        plan = intake.read(self._spec, _consumer(consumer), count=_count(count), block_ms=_block_ms(block))
        await self._prepare()
        return await self._run(plan)

    async def reclaim(
        self,
        consumer: str,
        *,
        count: int = 100,
        min_idle: float | timedelta | None = None,
        exclude: Iterable[Job[T]] = (),
    ) -> Reclaimed[T]:
        """Take over jobs whose lease ran out, and dead-letter those that were started `max_deliveries` times.

        For hand-written loops: the call is the start, so each claimed job's delivery count is raised by one. Looks at up
        to 1,000 pending entries from where the group's last reclaim ended, whoever called it; call it again and again.

        Args:
            consumer: Who takes them.
            count: Most jobs, those to dead-letter included.
            min_idle: Seconds without a sign of life; default is the lease, longer for jobs that crashed twice or more
                (`crash_backoff`). An explicit value is taken as it is.
            exclude: Jobs that this process still runs.

        Returns:
            ``claimed, dead, missing``, and ``failed``: entries that could not be dead-lettered. They stay pending.

        Raises:
            StreamqError: Anything that broke off the work; ``partial`` holds what was done if it had begun.

        Round trips: 1, and 1 per 10 dead letters. Atomic: claiming is (a script), every dead letter is (MULTI/EXEC).
        """
        plan = intake.reclaim(
            self._spec,
            _consumer(consumer),
            count=_count(count),
            min_idle_ms=None if min_idle is None else to_ms(min_idle, "min_idle"),
            raise_count=True,
            exclude=[job.entry_id for job in exclude],
        )
        await self._prepare()
        return await self._run(plan)

    @overload
    async def ack(self, jobs: Job[T]) -> bool: ...
    @overload
    async def ack(self, jobs: Sequence[Job[T]]) -> int: ...
    async def ack(self, jobs: Job[T] | Sequence[Job[T]]) -> bool | int:
        """Acknowledge: when this returns, the jobs are not pending any more, and their entries are gone unless kept.

        Args:
            jobs: One job, or several (one request per 500).

        Returns:
            For one job True, or False if it is not pending any more. For several how many were still ours.

        Raises:
            LeaseLostError: One job, and another delivery of it is under way. Drop it; nothing was changed.

        Round trips: 1. Atomic: yes (a script, fenced by consumer and delivery count). Works while memory is full.
        """
        if isinstance(jobs, Job):
            return await self._run(settle.ack_one(self._spec, jobs))
        return await self._run(settle.ack_many(self._spec, jobs))

    async def commit(self, job: Job[T], result: Any = None) -> None:
        """Acknowledge one job together with its effects and its result: all of it happens, or nothing.

        Args:
            job: With its `effects`.
            result: Kept for `idempotency_ttl` and given to duplicates; JSON, at most 64 KB.

        Raises:
            LeaseLostError: The job is not ours any more; drop it.
            EffectError: That effect cannot be applied. The job is still pending: `retry` or `reject` it.
            JobEncodingError: The result cannot be stored. The job is still pending.

        Round trips: 1. Atomic: yes (a script).
        """
        await self._run(settle.commit(self._spec, job, result))

    async def retry(self, job: Job[T], error: str = "") -> bool:
        """Try the job again: it is added as a new entry with the next attempt's number, and this delivery ends.

        When the attempts of `StreamOptions.retry` are spent, it is dead-lettered with reason ``attempts``.

        Args:
            job: The job whose attempt failed.
            error: Kept with the job: the last five, cut to 500 characters.

        Returns:
            True if it runs again, False if it was dead-lettered.

        Raises:
            LeaseLostError: The job is not ours any more; drop it.
            ServerError: It could not be added again, or not dead-lettered; it stays pending.

        Round trips: 1. Atomic: yes (a script).
        """
        return await self._run(outcome.retry(self._spec, job, error))

    async def reject(self, job: Job[T], reason: str = "") -> None:
        """Dead-letter the job now, with reason ``rejected``.

        Args:
            job: The job.
            reason: Kept in the dead letter as its error, cut to 4 KB.

        Raises:
            LeaseLostError: The job is not ours any more; drop it.
            ServerError: It could not be dead-lettered; it stays pending.

        Round trips: 1. Atomic: yes (MULTI/EXEC of a guarded script).
        """
        await self._run(outcome.bury(self._spec, job, "rejected", reason, attempts=job.attempt))

    async def release(self, job: Job[T]) -> None:
        """Give the job back unrun: others may reclaim it at once, and this delivery does not count.

        Raises:
            LeaseLostError: The job is not ours any more; drop it.

        Round trips: 1. Atomic: yes (a script).
        """
        [fence] = await self._run(settle.release(self._spec, [job]))
        if fence <= 0:
            raise LeaseLostError(entry_id=job.entry_id, gone=fence != -1)

    async def once(self, job_id: str, effects: Effects) -> bool:
        """Apply effects the first time this is called with an ID, and never again while it is remembered.

        For work that is no job of this stream; a job's own effects belong into `commit`.

        Args:
            job_id: The ID, remembered per group for `idempotency_ttl`.
            effects: What to write.

        Returns:
            True if they were applied, False if the ID was known.

        Raises:
            EffectError: That effect cannot be applied; none was, and the ID stays free.

        Round trips: 1. Atomic: yes (a script).
        """
        return await self._run(identity.once(self._spec, job_id, effects))

    async def inspect(self) -> Snapshot:
        """The stream at this moment. Changes nothing; works for a stream that was never used, and with read-only users.

        Round trips: 1; up to 10 more per group where the server does not know how much is unread.
        """
        return await self._run(inspect.snapshot(self._spec))

    async def _prepare(self) -> None:
        if not self._prepared:
            await self._run(reading.prepare(self._spec))
            self._prepared = True

    async def _run(self, plan: Plan[R]) -> R:
        return await self._driver.run(plan)


class AsyncDeadLetters(Generic[T]):
    """The dead letters of a stream; `AsyncStream.dead_letters`."""

    def __init__(self, spec: Spec[T], run: Callable[[Plan[Any]], Awaitable[Any]]) -> None:
        self._spec = spec
        self._run = run

    async def list(self, *, count: int = 100, after: str | None = None) -> list[DeadLetter]:
        """Dead letters, oldest first.

        Args:
            count: Most of them, 1 to 1,000.
            after: Only those behind the one with this ID: the last `id` of the page before.

        Round trips: 1.
        """
        letters: list[DeadLetter] = await self._run(dead_letter.listing(self._spec, count=_count(count), after=after))
        return letters


def _consumer(name: str) -> str:
    return check_name(name, "consumer")


def _count(count: int) -> int:
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= reading.MAX_COUNT:
        raise ConfigurationError(f"count must be a whole number from 1 to {reading.MAX_COUNT:,}, not {count!r}")
    return count


def _block_ms(block: float | timedelta | None) -> int | None:
    return None if block is None else to_ms(block, "block", most_ms=86_400_000) or None
