"""The blocking facade. ``stream_async.py`` is made from this file by ``tests/parity.py``: edit here, then run it."""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from types import TracebackType, UnionType
from typing import Any, Generic, Literal, Self, TypeAlias, TypeVar, cast, get_args, overload

from streamq import connection
from streamq._codec import EntryCodec
from streamq._flows import intake, opening, outcome
from streamq._ops import (
    consumers,
    enqueue,
    groups,
    identity,
    inspect,
    lease,
    letters,
    pause,
    promote,
    registry,
    remove,
    schedule,
    settle,
    trim,
)
from streamq._ops import read as reading
from streamq._ops.enqueue import Terms
from streamq._requests import Plan
from streamq._scripts_timers import When, when
from streamq._spec import Spec
from streamq.backoff import Backoff, to_ms
from streamq.effects import Effects
from streamq.errors import ConfigurationError, LeaseLostError
from streamq.keys import Keys, check_flag, check_name, is_whole
from streamq.messages import Added, DeadLetter, Job, Reclaimed, Redriven, Result, ScheduledJob, Snapshot
from streamq.options import Durability, GroupStart, StreamOptions, check_durability
from streamq.snapshots import FoundJob, FullSnapshot

T = TypeVar("T")
R = TypeVar("R")

_Run: TypeAlias = Callable[[Plan[Any]], Any]

PAUSE_SEEN_S = 0.9
"""How long it is believed that the stream is not paused, so that reading fast costs no request more."""


class Stream(Generic[T]):
    """A stream of jobs on one server, for one consumer group.

    Threads may share one. After a fork the child makes connections of its own. Nothing is sent before the first call.

    Args:
        name: Name of the stream: letters, digits, ``.``, ``_``, ``-``, 1 to 128 of them.
        type: Type of the payloads: a msgspec Struct, any other type that msgspec decodes, ``dict`` (the default), or
            ``bytes`` for raw payloads. Of a union type checkers must be told: ``s: Stream[A | B] = Stream("s", A | B)``.
        redis: URL (``redis://``, ``rediss://``, ``redis+cluster://``, ``redis+sentinel://``, ``unix://``,
            ``embedded://[/directory]``), or a redis-py client whose settings are used for connections of our own, or None for
            the environment's ``STREAMQ_URL``, else ``redis://localhost:6379``.
        deployment: Namespace, where several deployments share a server.
        options: See `StreamOptions`; the defaults fit most streams.

    Raises:
        ConfigurationError: An argument is not valid; the message says which and what to do.
    """

    def __init__(
        self,
        name: str,
        type: type[T] | UnionType = dict,  # type: ignore[assignment]  # noqa: A002  # a default for a type variable
        *,
        redis: connection.RedisSource = None,
        deployment: str | None = None,
        options: StreamOptions | None = None,
    ) -> None:
        options = StreamOptions() if options is None else options
        self.name = name
        self._spec: Spec[T] = Spec(Keys(name, deployment), options, EntryCodec(cast("Any", type), options, name))
        self._settings = connection.settings_of(redis)
        self._driver = self._settings.blocking()
        self._opened: set[opening.Opening[T]] = set()
        self._unpaused_at = -PAUSE_SEEN_S
        self.dead_letters = DeadLetters(self._spec, self._run, self._operate)
        self.groups = Groups(self._spec, self._run)
        self.scheduled = Schedule(self._spec, self._run, self._operate)

    @property
    def options(self) -> StreamOptions:
        """The stream's settings."""
        return self._spec.options

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. What is pending stays pending; a later call opens them anew."""
        self._driver.close()

    def add(
        self,
        payload: T,
        *,
        job_id: str | None = None,
        delay: float | timedelta | None = None,
        at: datetime | None = None,
        replace: bool = False,
        retry: Backoff | None = None,
        headers: Mapping[str, str] | None = None,
        durability: Durability | None = None,
    ) -> Added:
        """Add a job: when this returns, its entry is in the stream, or with `delay` or `at` it waits for its time.

        What waits moves into the stream when it is due, by the server's clock, if a worker, a `read` or a `promote` is
        there to move it. Scheduled jobs are not counted by `max_ready`.

        Args:
            payload: Of the stream's type; at most `max_payload` bytes encoded.
            job_id: Makes adding idempotent: for `idempotency_ttl` after the job was added, retried or done, nothing is
                added and the answer says where the job is. The payload of the first stands. 1 to 512 bytes
                of UTF-8 without control characters.
            delay: Seconds until it is due, at most `max_delay`; 0 is now.
            at: Instead, the time when it is due: an aware datetime. A past one is now.
            replace: If a job of this `job_id` waits, for its time or for its next attempt, it gets this payload, this time, and
                all its attempts anew. One that is ready, pending or done stays as it is.
            retry: A retry policy of its own, in place of the stream's.
            headers: Text that travels with the job, such as a trace ID.
            durability: In place of the stream's; see `StreamOptions`.

        Returns:
            The job's ID, its entry ID, whether it was created (or replaced), and its state.

        Raises:
            JobEncodingError: The payload or a header cannot be stored; fix it. Nothing was written.
            ConfigurationError: The job ID, the delay or the time is not valid or too far ahead, or the stream's key holds
                something else. Nothing was written.
            ConnectionLostError: With `maybe_executed` the job may have been added: with a `job_id`, add it again.
            NotDurableError: It was added, but not `replicated` or `fsynced` in time; ``partial`` is the answer.
            QueueFullError: `max_ready` jobs wait already. Nothing was written.
            ServerError: The server refused, for example for lack of memory. Nothing was written.

        Round trips: 1 (a first call 2 more, 2 with `groups`, 2 with `job_id`, `max_ready` or a time, and 1 with `durability`).
        Atomic: yes (XADD, or a script with any of those). Server: Redis 6.2, Valkey.
        """
        due = when(delay, at, most_ms=self.options.max_delay_ms)
        terms = Terms(headers, retry, replace, self._durability(durability))
        plan = enqueue.add(self._spec, payload, job_id=job_id, due=due, new_id=draw_id, terms=terms)
        first = self._openings(terms, by_script=job_id is not None, waits=due is not None or replace)
        return self._run_behind(plan, *first)

    def add_many(
        self,
        payloads: Iterable[T],
        *,
        job_id: Callable[[T], str] | None = None,
        delay: float | timedelta | Callable[[T], float | timedelta] | None = None,
        retry: Backoff | None = None,
        headers: Mapping[str, str] | None = None,
        durability: Durability | None = None,
    ) -> int:
        """Add jobs from any iterable, in writes of up to 500 jobs or 1 MiB, so memory stays bounded.

        Args:
            payloads: Of the stream's type. While the server works on one write, those of the next are taken: after an error
                up to 500 may have been taken that were not added.
            job_id: Gives each payload its job ID; see `add`.
            delay: Seconds until they are due, the same for all or given by each payload; see `add`.
            retry: The same for all; see `add`.
            headers: The same for all.
            durability: The same for all; see `add`.

        Returns:
            How many were added; known job IDs do not count.

        Raises:
            JobEncodingError: A payload cannot be stored; the message says which. Those before it were added.
            QueueFullError: The stream filled up on the way. The first ``added`` new jobs were added, none behind them.
            NotDurableError: A write was not `replicated` or `fsynced` in time; no more were added behind it.
            StreamqError: As of `add`. Every error carries ``added``: jobs known to be added before it.

        Round trips: 1 per 500 jobs. Atomic: each job by itself; with `job_id` or `max_ready` each write (a script).
        """
        terms = Terms(headers, retry, durability=self._durability(durability))
        plan = enqueue.add_many(
            self._spec,
            payloads,
            job_id=job_id,
            due=_each_due(delay, self.options.max_delay_ms),
            new_id=draw_id,
            terms=terms,
        )
        first = self._openings(terms, by_script=job_id is not None, waits=delay is not None)
        return self._run_behind(plan, *first)

    def read(self, consumer: str, *, count: int = 1, block: float | timedelta | None = None) -> list[Job[T]]:
        """Take up to `count` new jobs: when this returns, they are pending under `consumer` and its lease runs.

        Entries that cannot become a job are dead-lettered and not returned: neither are jobs whose ID is done already
        (acknowledged) or runs elsewhere (released). The group is made, from the stream's beginning, when it is missing.
        While the stream is paused, nothing is read; a wait goes on until it is resumed. Scheduled jobs that are due are moved
        into the stream along the way.

        Args:
            consumer: Unique per process start, for example host, pid and a random part: fencing tells consumers apart.
            count: Most jobs, 1 to 1,000.
            block: Seconds to wait for the first one; None for no wait.

        Returns:
            The jobs, in stream order; empty when there are none.

        Raises:
            ConnectionLostError: Jobs may be pending unseen; they come back by `reclaim` when their lease has run out.

        Round trips: 1 if there are some, else 3, and 1 per second of waiting (a first call 6 more; 1 more when a job has a
        chosen ID, and 2 a second to see whether the stream is paused, and what is due). Atomic: yes (XREADGROUP).
        """
        looked = self._time_to_look()
        plan = intake.read(
            self._spec,
            _consumer(consumer),
            count=_count(count),
            block_ms=_block_ms(block),
            look_for_pause=looked is not None,
        )
        jobs = self._run_behind(plan, opening.reader)
        if looked is not None and jobs:
            self._unpaused_at = looked
        return jobs

    def reclaim(
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

        Round trips: 1, and 1 per 10 dead letters (1 a second to see whether the stream is paused: then nothing is taken).
        Atomic: claiming is (a script), every dead letter is (MULTI/EXEC).
        """
        looked = self._time_to_look()
        plan = intake.reclaim(
            self._spec,
            _consumer(consumer),
            count=_count(count),
            min_idle_ms=None if min_idle is None else to_ms(min_idle, "min_idle"),
            raise_count=True,
            exclude=[job.entry_id for job in exclude],
            look_for_pause=looked is not None,
        )
        found = self._run_behind(plan, opening.reader)
        if looked is not None and any(found):
            self._unpaused_at = looked
        return found

    @overload
    def ack(self, jobs: Job[T]) -> bool: ...
    @overload
    def ack(self, jobs: Sequence[Job[T]]) -> int: ...
    def ack(self, jobs: Job[T] | Sequence[Job[T]]) -> bool | int:
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
            return self._run(settle.ack_one(self._spec, jobs))
        return self._run(settle.ack_many(self._spec, jobs))

    def commit(self, job: Job[T], result: Any = None) -> None:
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
        self._run(settle.commit(self._spec, job, result))

    def retry(self, job: Job[T], error: str = "", *, delay: float | timedelta | None = None) -> bool:
        """Try the job again: it is scheduled with the next attempt's number, and this delivery ends.

        When the attempts of its policy are spent, it is dead-lettered with reason ``attempts``.

        Args:
            job: The job whose attempt failed.
            error: Kept with the job: the last five, cut to 500 characters.
            delay: Seconds until then, at most `max_delay`; by the job's or the stream's retry policy without it.

        Returns:
            True if it runs again, False if it was dead-lettered.

        Raises:
            LeaseLostError: The job is not ours any more; drop it.
            ConfigurationError: The delay is not valid. The job is still pending.
            ServerError: It could not be scheduled, or not dead-lettered; it stays pending.

        Round trips: 1. Atomic: yes (a script). By the server's clock.
        """
        asked_ms = None if delay is None else to_ms(delay, "delay", most_ms=self.options.max_delay_ms)
        delay_ms = outcome.delay_ms(self._spec, job, asked_ms, random.random())  # noqa: S311  # jitter
        return self._run(outcome.retry(self._spec, job, error, delay_ms)) is None

    def reject(self, job: Job[T], reason: str = "") -> None:
        """Dead-letter the job now, with reason ``rejected``.

        Args:
            job: The job.
            reason: Kept in the dead letter as its error, cut to 4 KB.

        Raises:
            LeaseLostError: The job is not ours any more; drop it.
            ServerError: It could not be dead-lettered; it stays pending.

        Round trips: 1. Atomic: yes (MULTI/EXEC of a guarded script).
        """
        self._run(outcome.bury(self._spec, job, "rejected", reason, attempts=job.attempt))

    def release(self, job: Job[T]) -> None:
        """Give the job back unrun: others may reclaim it at once, and this delivery does not count.

        Raises:
            LeaseLostError: The job is not ours any more; drop it.

        Round trips: 1. Atomic: yes (a script).
        """
        [fence] = self._run(settle.release(self._spec, [job]))
        if fence <= 0:
            raise LeaseLostError(entry_id=job.entry_id, gone=fence != -1)

    @overload
    def extend(self, jobs: Job[T]) -> None: ...
    @overload
    def extend(self, jobs: Sequence[Job[T]]) -> int: ...
    def extend(self, jobs: Job[T] | Sequence[Job[T]]) -> int | None:
        """Begin leases anew: when this returns, nobody may take the jobs for another `lease`.

        For hand-written loops whose jobs take long: call it at least twice a lease. A `Worker` does it by itself.

        Args:
            jobs: One job, or several (one request per 500).

        Returns:
            For one job nothing; for several how many are still ours. The `lease_lost` of the others is set.

        Raises:
            LeaseLostError: One job, and it is not ours any more: stop working on it.

        Round trips: 1. Atomic: yes (a script, fenced by consumer and delivery count). Works while memory is full.
        """
        if isinstance(jobs, Job):
            self._run(lease.extend_one(self._spec, jobs))
            return None
        return self._run(lease.extend_many(self._spec, jobs))

    def cancel(self, job_id: str) -> bool:
        """Take a job back that nobody has begun, or that waits for its time or its next attempt.

        When this returns True, it will never run, and its ID is free again. Where there are several groups, one that waits for
        this group's next attempt is taken from this group only.

        Args:
            job_id: The job's ID. A job without a chosen one is found by the ID that `add` returned until its first run, and
                while it waits for another.

        Returns:
            True if it was there; False if there is no such job: never added, dead-lettered, cancelled, or forgotten.

        Raises:
            JobStateError: A group has begun it (``state`` is ``pending``), or it is ``done``. Nothing was changed.

        Round trips: 1. Atomic: yes (a script).
        """
        return self._operate(remove.cancel(self._spec, job_id))

    def promote(self) -> int:
        """Move jobs that are due into the stream: for hand-written loops that do not `read` often. Workers do it by themselves.

        Returns:
            How many were moved.

        Raises:
            ServerError: The next one could not be moved, for example for lack of memory; it waits on.

        Round trips: 1 per 200. Atomic: each (a script).
        """
        return self._run_behind(promote.all_due(self._spec), opening.reader)

    def result(self, job_id: str) -> Result:
        """What became of a job, for this stream's group, and what its handler returned. Changes nothing.

        Args:
            job_id: The job's ID.

        Raises:
            JobEncodingError: The stored result is no JSON: somebody else wrote it.

        Round trips: 1. Atomic: yes (a script).
        """
        return self._run(identity.result(self._spec, job_id))

    def once(self, job_id: str, effects: Effects) -> bool:
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
        return self._run(identity.once(self._spec, job_id, effects))

    @overload
    def inspect(self, *, full: Literal[False] = False) -> Snapshot: ...
    @overload
    def inspect(self, *, full: Literal[True], payloads: bool = False) -> FullSnapshot: ...
    def inspect(self, *, full: bool = False, payloads: bool = False) -> Snapshot | FullSnapshot:
        """The stream at this moment. Changes nothing; works for a stream that was never used, and with read-only users.

        Args:
            full: Whether to look into it: ages, consumers and whether they are alive, reasons of dead letters, memory,
                settings on which workers differ, and a verdict. ``after.since(before)`` has rates, too.
            payloads: With `full`, whether to bring the beginning of the oldest ready payloads.

        Round trips: 1; 2 more per group with entries to read, up to 10 where the server does not know how many. With `full`
        3 to 5, and as many where something must be counted: less than a hundred read commands in all.
        """
        if check_flag(full, "full"):
            return self._run(inspect.full(self._spec, payloads=check_flag(payloads, "payloads")))
        return self._run(inspect.snapshot(self._spec))

    def find(self, job_id: str, *, payloads: bool = False) -> FoundJob:
        """Where a job is now, for each group, and how it got there. Changes nothing; works with read-only users.

        Args:
            job_id: The job's ID, as `add` returned it. Nothing is remembered of a job without a chosen one when it is done.
            payloads: Whether to bring the beginning of its payload.

        Returns:
            Its state for each group, its dead letters, and what cannot be known: in a long stream not all is searched.

        Raises:
            ConfigurationError: The job ID is not valid.

        Round trips: 4 to 20: less than a hundred read commands.
        """
        return self._run(inspect.find(self._spec, job_id, payloads=check_flag(payloads, "payloads")))

    def pause(self) -> bool:
        """Pause the stream, for all its groups: two seconds later nothing starts any more. What runs, ends as always.

        Jobs can still be added. Workers keep their connections and go on when the stream is resumed; hand-written loops
        get nothing from `read` and `reclaim` meanwhile.

        Returns:
            True, or False if it was paused already.

        Round trips: 1. Atomic: yes (a script). Works while memory is full.
        """
        return self._run(pause.change(self._spec, paused=True))

    def resume(self) -> bool:
        """End a pause: waiting readers go on at once, workers within two seconds.

        Returns:
            True, or False if it was not paused.

        Round trips: 1. Atomic: yes (a script).
        """
        return self._run(pause.change(self._spec, paused=False))

    def trim(self) -> int:
        """Remove finished entries that are still in the stream: read and settled by every group.

        With ``retention="delete"`` those are what others acknowledged, or a dropped group left; with ``keep`` those that
        `keep_for` and `keep_last` let go, or all of them where neither is set. Unread and pending entries stay, and what a
        dead letter refers to. Workers do it by themselves every five seconds, but for ``keep`` without a rule.

        Returns:
            How many were removed.

        Round trips: 1 per 1,000 entries looked at, or 10,000 removed at the head. Atomic: each (a script).
        """
        return self._run(trim.trim(self._spec))

    def prune_consumers(self, min_idle: float | timedelta = 3_600.0) -> list[str]:
        """Remove consumers of the group that hold nothing and were not heard of for a while.

        A live one that is removed does not notice: its next delivery makes it again. Workers do it by themselves, every
        minute. What workers said of themselves (``T:workers``) goes with them.

        Args:
            min_idle: Seconds since the server heard of it; an hour keeps dead ones in sight for a while. On servers before
                Redis 7.2 a consumer that waits without getting anything is heard of only if it is a `Worker`.

        Returns:
            Their names.

        Round trips: 1 per 100. Atomic: each (a script: never one with pending entries).
        """
        return self._run(consumers.prune(self._spec, min_idle_ms=to_ms(min_idle, "min_idle")))

    def delete(self, *, force: bool = False) -> int:
        """Delete the stream: entries, groups, dead letters, schedule, records, what effects wrote, and its name.

        Stop its workers first: one that still runs makes the stream again, empty.

        Args:
            force: Whether to delete it with the work that it has left: unread, pending, scheduled, dead.

        Returns:
            How many keys were removed.

        Raises:
            JobStateError: It has work left. Nothing was deleted.

        Round trips: 2, and 1 per 1,000 keys of the server. Atomic: everything that holds jobs (a script); the rest follows.
        If that is broken off, call it again.
        """
        removed = self._run(remove.delete(self._spec, force=force))
        self._run(registry.forget(self._spec.keys))
        self._opened.clear()
        return removed

    def _time_to_look(self) -> float | None:
        """Now, if it is time to see again whether the stream is paused."""
        now = time.monotonic()
        return now if now - self._unpaused_at >= PAUSE_SEEN_S else None

    def _durability(self, chosen: Durability | None) -> Durability:
        return self.options.durability if chosen is None else check_durability(chosen)

    def _openings(self, terms: Terms, *, by_script: bool, waits: bool) -> list[opening.Opening[T]]:
        first: list[opening.Opening[T]] = [opening.producer]
        if waits:
            first.append(opening.scheduler)
        elif by_script or self.options.max_ready is not None:
            first.append(opening.remembering_producer)
        if terms.durability != "accepted":
            first.append(opening.replicating if terms.durability == "replicated" else opening.fsyncing)
        return first

    def _operate(self, plan: Plan[R]) -> R:
        """Run a plan whose scripts write more than once: a permission missing in their middle would leave half of it."""
        return self._run_behind(plan, opening.operator)

    def _run_behind(self, plan: Plan[R], *first: opening.Opening[T]) -> R:
        if not self._opened.issuperset(first):
            plan = opening.behind(self._spec, plan, (opening.migrated, *first), self._opened)
        return self._run(plan)

    def _run(self, plan: Plan[R]) -> R:
        return self._driver.run(plan)


class Schedule(Generic[T]):
    """The jobs of a stream that wait for their time, or for their next attempt; `Stream.scheduled`.

    What is changed here by job ID is a job of all groups, or the next attempt of this stream's group.
    """

    def __init__(self, spec: Spec[T], run: _Run, operate: _Run) -> None:
        self._spec = spec
        self._run = run
        self._operate = operate

    def list(
        self, *, count: int = 100, after: ScheduledJob | None = None, due_before: datetime | None = None
    ) -> list[ScheduledJob]:
        """Jobs that wait, of all groups, the next one first. Changes nothing.

        Args:
            count: Most of them, 1 to 1,000.
            after: Only those behind this one: the last of the page before. It need not wait any more.
            due_before: Only those that are due before this time: an aware datetime.

        Round trips: 2; 3 with `after`.
        """
        plan = schedule.listing(self._spec, count=_count(count), after=after, due_before=due_before)
        found: list[ScheduledJob] = self._run(plan)
        return found

    def get(self, job_id: str) -> ScheduledJob | None:
        """The job, or None if it does not wait. Changes nothing.

        Round trips: 1.
        """
        found: ScheduledJob | None = self._run(schedule.get(self._spec, job_id))
        return found

    def cancel(self, job_id: str) -> bool:
        """Take a job back that waits: when this returns True, it will not run, and its ID is free again.

        Returns:
            True; False if it is not scheduled: never, not any more, or done.

        Raises:
            JobStateError: It is ``ready`` or ``pending``. Nothing was changed; `Stream.cancel` takes back what is ready.

        Round trips: 1. Atomic: yes (a script).
        """
        cancelled: bool = self._operate(remove.cancel(self._spec, job_id, only_scheduled=True))
        return cancelled

    def reschedule(
        self, job_id: str, *, delay: float | timedelta | None = None, at: datetime | None = None
    ) -> datetime:
        """Give a job that waits another time. Its payload and attempts stay.

        Args:
            job_id: The job's ID.
            delay: Seconds until it is due, at most `max_delay`; 0 is now.
            at: Instead, the time when it is due: an aware datetime. A past one is now.

        Returns:
            When it is due, by the server's clock.

        Raises:
            JobStateError: It is not scheduled, but ``ready``, ``pending``, ``done`` or ``unknown``. Nothing was changed.
            ConfigurationError: The time is not valid or too far ahead. Nothing was changed.

        Round trips: 1. Atomic: yes (a script).
        """
        due = when(delay, at, most_ms=self._spec.options.max_delay_ms)
        if due is None:
            raise ConfigurationError("a job is due after a delay or at a time: give delay or at")
        moved: datetime = self._operate(schedule.reschedule(self._spec, job_id, due))
        return moved

    def run_now(self, job_id: str) -> str:
        """Run a job that waits without waiting: when this returns, it is ready. This run takes the place of the one that waited.

        Attempts are counted on: if it fails, the policy says when the next one comes.

        Returns:
            Its entry ID.

        Raises:
            JobStateError: It is not scheduled, but ``ready``, ``pending``, ``done`` or ``unknown``. Nothing was changed.

        Round trips: 1. Atomic: yes (a script).
        """
        entry_id: str = self._operate(schedule.run_now(self._spec, job_id))
        return entry_id


class DeadLetters(Generic[T]):
    """The dead letters of a stream, of all its groups; `Stream.dead_letters`."""

    def __init__(self, spec: Spec[T], run: _Run, operate: _Run) -> None:
        self._spec = spec
        self._run = run
        self._operate = operate

    def list(self, *, count: int = 100, after: str | None = None) -> list[DeadLetter]:
        """Dead letters, oldest first.

        Args:
            count: Most of them, 1 to 1,000.
            after: Only those behind the one with this ID: the last `id` of the page before.

        Round trips: 1.
        """
        found: list[DeadLetter] = self._run(letters.listing(self._spec, count=_count(count), after=after))
        return found

    def get(self, letter_id: str) -> DeadLetter | None:
        """One dead letter, or None if there is no such one.

        Args:
            letter_id: Its `id`. Where it only refers to its entry (``oversized``), the fields are that entry's.

        Raises:
            ConfigurationError: That is no ID of a letter.

        Round trips: 1, or 2.
        """
        found: DeadLetter | None = self._run(letters.get(self._spec, letter_id))
        return found

    def redrive(
        self,
        letter_ids: str | Iterable[str],
        *,
        new_id: str | None = None,
        payload: bytes | None = None,
        max_redrives: int = 5,
        dry_run: bool = False,
    ) -> Redriven:
        """Give jobs back to the groups that gave them up: when this returns, each is ready, and its letter is gone.

        A job begins again with all its attempts and deliveries, and with the same fields byte for byte and in order, but for
        those of ours. Only its own group gets it. Two redrives of one letter make one run.

        Args:
            letter_ids: One ID, or several.
            new_id: A job ID to give it instead of its own, for one letter only.
            payload: Another payload, for one letter only, encoded as the old one was: it takes its place in the same step,
                unchecked but for `max_payload`. Everything else stays as it was.
            max_redrives: How often a job may be redriven in all. It keeps a script that redrives whatever dies from
                going round with a job that always dies.
            dry_run: Change nothing: say what would become of each now. Entry IDs in ``moved`` are empty then.

        Returns:
            What became of each letter. One whose job ID is queued, running or done again is ``superseded`` and stays.

        Raises:
            ConfigurationError: An ID is not valid, or `new_id` or `payload` is given for several. Nothing more was moved.
            JobEncodingError: `payload` is too large.
            StreamqError: Anything that broke off the work; ``partial`` holds what was done before it.

        Round trips: 1 per 10. Atomic: each letter (a script).
        """
        for name, value in (("new_id", new_id), ("payload", payload)):
            if value is not None and not isinstance(letter_ids, str):
                raise ConfigurationError(f"{name} can be given to one letter only: pass its ID as a str")
        plan = letters.redrive(
            self._spec, letter_ids, new_id=new_id, max_redrives=max_redrives, payload=payload, dry_run=dry_run
        )
        done: Redriven = self._operate(plan)
        return done

    def purge(
        self, letter_ids: str | Iterable[str] | None = None, *, older_than: float | timedelta | None = None
    ) -> int:
        """Remove dead letters for good, and with the last letter that refers to an entry that entry.

        Args:
            letter_ids: One ID, or several.
            older_than: Instead of IDs: all that died so many seconds ago or more; 0 for all there are.

        Returns:
            How many were removed.

        Raises:
            ConfigurationError: An ID is not valid, or not exactly one of the two was given.

        Round trips: 1 per 20; with `older_than` 2 per 10. Atomic: each request (a script).
        """
        if letter_ids is not None and older_than is None:
            count: int = self._operate(letters.purge(self._spec, letter_ids))
        elif letter_ids is not None or older_than is None:
            raise ConfigurationError("purge takes IDs of letters, or older_than, and not both")
        else:
            count = self._operate(letters.purge_older(self._spec, to_ms(older_than, "older_than")))
        return count


class Groups(Generic[T]):
    """The consumer groups of a stream; `Stream.groups`. `Stream.inspect` shows them."""

    def __init__(self, spec: Spec[T], run: _Run) -> None:
        self._spec = spec
        self._run = run

    def create(self, name: str, *, start: GroupStart = "all") -> bool:
        """Make a group: when this returns, every job that is added from now on goes to it, too.

        Args:
            name: Of the group. Also name it in `StreamOptions.groups`, so that it is made again after a loss of data.
            start: ``all``: it begins at the oldest entry that is still there; ``new``: behind the newest.

        Returns:
            True, or False if it was there already.

        Raises:
            ConfigurationError: The name is not valid, or the stream's key holds something else.

        Round trips: 1. Atomic: yes (XGROUP CREATE).
        """
        if start not in get_args(GroupStart):
            raise ConfigurationError(f"start must be 'all' or 'new', not {start!r}")
        made: list[str] = self._run(groups.create(self._spec, [check_name(name, "group")], start))
        return bool(made)

    def drop(self, name: str, *, force: bool = False) -> bool:
        """Remove a group, so that it pins no entries any more. What only it needed goes when the stream is trimmed.

        Stop its workers first: one that still runs makes it again.

        Args:
            name: Of the group.
            force: Whether to drop it with the work that it has left: that work is lost for it. Jobs that wait for an attempt of
                it become dead letters (``unknown_group``) when they are due.

        Returns:
            True, or False if there is no such group.

        Raises:
            JobStateError: It has entries pending or not read, or jobs that wait for its next attempt (of more than 10,000
                scheduled jobs not all are looked at). Nothing was changed.

        Round trips: 1. Atomic: yes (a script).
        """
        dropped: bool = self._run(groups.drop(self._spec, name, force=force))
        return dropped


def draw_id() -> str:
    """A job ID that nobody else draws: of a job that waits, and so has no entry ID yet."""
    return secrets.token_hex(16)


def _each_due(
    delay: float | timedelta | Callable[[T], float | timedelta] | None, most_ms: int
) -> Callable[[T], When] | None:
    if delay is None:
        return None
    if callable(delay):
        of = delay
        return lambda payload: When("in", to_ms(of(payload), "delay", most_ms=most_ms))
    same = When("in", to_ms(delay, "delay", most_ms=most_ms))
    return lambda _: same


def _consumer(name: str) -> str:
    return check_name(name, "consumer")


def _count(count: int) -> int:
    if not is_whole(count, 1, reading.MAX_COUNT):
        raise ConfigurationError(f"count must be a whole number from 1 to {reading.MAX_COUNT:,}, not {count!r}")
    return count


def _block_ms(block: float | timedelta | None) -> int | None:
    return None if block is None else to_ms(block, "block", most_ms=86_400_000) or None
