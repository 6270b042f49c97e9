"""What is done to jobs that wait: to those of some IDs, or to all there are; and what became of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

import msgspec

from streamq._ops import remove, schedule
from streamq._scripts_timers import When, time_ms, too_far
from streamq.cli.timers import Act, BadTimerError, Timers
from streamq.cli.times import EPOCH
from streamq.errors import JobStateError
from streamq.messages import ScheduledJob

PAGE: Final = 100
"""Jobs that are listed, and changed in one write: few, so that what is done is done to what was just seen."""

MOST_TOLD: Final = 10
"""Refusals that are told one by one where many are touched."""


class Outcome(msgspec.Struct, omit_defaults=True):
    """What became of one job ID: ``done``, ``not scheduled`` or ``refused``."""

    job_id: str
    outcome: str
    state: str | None = None
    due_at: datetime | None = None
    entry_id: str | None = None
    scheduled_for: list[str] = []
    error: str | None = None


class Changed(msgspec.Struct):
    """What became of all.

    Attributes:
        action: What was to be done.
        matched: How many jobs were meant.
        done: To how many it was done.
        skipped: How many were not scheduled, or not any more when their turn came, or due at that time already.
        refused: To how many it could not be done.
        due_at: The one time to which many were moved.
        jobs: Of job IDs that were named: what became of each.
        errors: Of others: why the first ones were refused.
    """

    action: str
    matched: int
    done: int = 0
    skipped: int = 0
    refused: int = 0
    due_at: datetime | None = None
    jobs: list[Outcome] = []
    errors: list[str] = []

    def add(self, outcome: Outcome) -> None:
        """Count one that was named."""
        self.jobs.append(outcome)
        self.done += outcome.outcome == "done"
        self.skipped += outcome.outcome == "not scheduled"
        self.refused += outcome.outcome == "refused"

    def take(self, answer: Any) -> None:
        """Count one that was not named.

        Raises:
            StreamqError: It is one that says nothing of this job, but of the server.
        """
        # One that is not scheduled any more is skipped. One that is, and yet cannot be moved, has lost its entry.
        if isinstance(answer, BadTimerError) or (isinstance(answer, JobStateError) and answer.state == "scheduled"):
            self.refused += 1
            if len(self.errors) < MOST_TOLD:
                self.errors.append(str(answer))
        elif isinstance(answer, Exception):
            if not isinstance(answer, JobStateError):
                raise answer
        elif answer is not False:
            self.done += 1
            if isinstance(answer, datetime):
                self.due_at = answer


def hint(groups: Sequence[str]) -> str:
    """Which group to name instead."""
    return f"it is scheduled for group {' and '.join(groups)}: give --group {groups[0]}"


@dataclass(frozen=True, slots=True)
class Change:
    """What is done to jobs that wait: cancel, reschedule or run.

    Attributes:
        name: One of these.
        past: Its name when it is done.
        due: Of reschedule: when the jobs are to be due.
    """

    name: str
    past: str
    due: When | None = None

    def check(self, now: datetime, most_ms: int) -> None:
        """See that the jobs would not be due too far from now, the server's time.

        Raises:
            ConfigurationError: They would.
        """
        if self.due is not None and self.due.kind == "at":
            ahead_ms = self.due.ms - time_ms(now, "now")
            if ahead_ms > most_ms:
                raise too_far(str(ahead_ms), most_ms)

    def one(self, timers: Timers, job_id: str) -> Outcome:
        """Do it to the job of an ID, for the group that was named."""
        try:
            answer = timers.do(self._act(), job_id)
        except JobStateError as error:
            refused = Outcome(job_id, "refused", state=error.state, error=str(error))
        else:
            if answer is not False:
                return _done(job_id, answer)
            refused = Outcome(job_id, "not scheduled")
        others = timers.other_groups(job_id)
        if others:
            refused.outcome = "refused"
            refused.scheduled_for = others
            what = refused.error or f"job {job_id} is not scheduled for group {timers.group}"
            refused.error = f"{what}; {hint(others)}"
        return refused

    def many(self, timers: Timers, due_before: datetime | None, changed: Changed) -> Iterator[int]:
        """Do it to all that are due before a time, to each for its own group, and count what becomes of them, page by page.

        No more than `changed.matched` are touched: so many were asked for, and so it ends though others are added meanwhile.

        Yields:
            How many were touched since the last time.
        """
        if self.due is None:
            pages = each_page(timers, due_before)
        else:
            now_ms = time_ms(timers.now(), "now")
            ms = now_ms + self.due.ms if self.due.kind == "in" else max(self.due.ms, now_ms)
            changed.due_at = EPOCH + timedelta(milliseconds=ms)
            pages = _each_page_to_move(timers, due_before, changed.due_at, changed)
        act = self._act(changed.due_at)
        left = changed.matched
        while left and (jobs := next(pages, [])[:left]):
            for answer in timers.do_for(act, jobs):
                changed.take(answer)
            left -= len(jobs)
            yield len(jobs)
        changed.skipped = changed.matched - changed.done - changed.refused

    def _act(self, due_at: datetime | None = None) -> Act:
        if self.name == "run":
            return schedule.run_now
        if self.name == "cancel":
            return partial(remove.cancel, only_scheduled=True)
        due = self.due if due_at is None else When("at", time_ms(due_at, "at"))
        assert due is not None  # noqa: S101  # reschedule has it
        return partial(schedule.reschedule, due=due)


def _done(job_id: str, answer: Any) -> Outcome:
    if isinstance(answer, datetime):
        return Outcome(job_id, "done", state="scheduled", due_at=answer)
    if isinstance(answer, str):
        return Outcome(job_id, "done", state="ready", entry_id=answer)
    return Outcome(job_id, "done")


def each_page(
    timers: Timers, due_before: datetime | None, after: ScheduledJob | None = None, *, count: int = PAGE
) -> Iterator[list[ScheduledJob]]:
    """All jobs that wait, in order."""
    while jobs := timers.page(count, after=after, due_before=due_before):
        yield jobs
        after = jobs[-1]


def _each_page_to_move(
    timers: Timers, due_before: datetime | None, due_at: datetime, changed: Changed
) -> Iterator[list[ScheduledJob]]:
    """All jobs that wait, but for those that were just moved, and those that are due at that time anyway.

    All are moved to one time: first those that are due before it, which gets them out of the way, then those that are due
    behind it, which gets them behind us. So none is met twice. A time that is now goes on, as `changed.due_at` does.
    """
    yield from each_page(timers, due_at if due_before is None else min(due_before, due_at))
    after = None
    while True:
        latest = changed.due_at or due_at
        if after is None or after.due_at <= latest:
            after = _before_all_behind(latest)
        jobs = timers.page(PAGE, after=after, due_before=due_before)
        if not jobs:
            return
        yield jobs
        after = jobs[-1]


def _before_all_behind(due_at: datetime) -> ScheduledJob:
    """Stands before all jobs that are due behind a time: no ID is smaller."""
    return ScheduledJob("", "\0", due_at + timedelta(milliseconds=1), 1, (), None, ())
