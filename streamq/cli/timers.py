"""One stream's schedule, as the commands need it: by job ID for one group, and all of it, each job for its own group."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Final, TypeAlias

from streamq._ops import identity, inspect, schedule
from streamq._requests import Pipeline, Plan
from streamq.cli.client import AnySpec, Client
from streamq.errors import ConfigurationError, StreamqError
from streamq.keys import check_id
from streamq.messages import ScheduledJob
from streamq.options import StreamOptions

Act: TypeAlias = Callable[[AnySpec, str], Plan[Any]]
"""What is done to the job of an ID."""

_NOBODY: Final = "-"
"""A group that no stream has: with it, a job of all groups is found, but never some group's next attempt of that job."""


class Timers(Client):
    """The schedule of one stream.

    Args:
        name: Of the stream.
        url: Of the server, or None for the default.
        deployment: Its namespace, or None.
        group: Whose next attempts are meant by job IDs, beside jobs of all groups; None for the default.

    Raises:
        ConfigurationError: A name or the URL is not valid.
    """

    def __init__(self, name: str, url: str | None, deployment: str | None, group: str | None = None) -> None:
        super().__init__(name, url, deployment, None if group is None else StreamOptions(group=group))
        self._groups: list[str] | None = None

    @property
    def group(self) -> str:
        """Whose next attempts are meant by job IDs."""
        return self._spec.options.group

    @property
    def max_delay_ms(self) -> int:
        """How far ahead a job may be scheduled."""
        return self._spec.options.max_delay_ms

    def page(
        self, count: int, *, after: ScheduledJob | None = None, due_before: datetime | None = None
    ) -> list[ScheduledJob]:
        """As `Stream.scheduled.list`."""
        return self._driver.run(schedule.listing(self._spec, count=count, after=after, due_before=due_before))

    def count(self, *, after: ScheduledJob | None = None, due_before: datetime | None = None) -> int:
        """How many there are."""
        return self._driver.run(schedule.count(self._spec, after=after, due_before=due_before))

    def get(self, job_id: str) -> ScheduledJob | None:
        """As `Stream.scheduled.get`."""
        return self._driver.run(schedule.get(self._spec, job_id))

    def state(self, job_id: str) -> str:
        """As `Stream.result` says."""
        return self._driver.run(identity.result(self._spec, job_id)).state

    def other_groups(self, job_id: str) -> list[str]:
        """The stream's other groups whose next attempt of this job waits."""
        if self._groups is None:
            self._groups = [
                name for name in self._driver.run(inspect.snapshot(self._spec)).groups if name != self.group
            ]
        found = []
        for group in self._groups:
            with suppress(ConfigurationError):  # somebody made a group whose name is none
                job = self._driver.run(schedule.get(self.spec_of(dict, StreamOptions(group=group)), job_id))
                if job is not None and job.group == group:
                    found.append(group)
        return found

    def do(self, act: Act, job_id: str) -> Any:
        """Do it to the job of this ID."""
        return self._operate(self._spec, act(self._spec, job_id))

    def do_for(self, act: Act, jobs: Iterable[ScheduledJob]) -> list[Any]:
        """Do it to listed jobs, to each for its own group, in one write. What came of each: an answer, or an error.

        The error is a `BadTimerError` if no job can have this ID, or no group this name.
        """
        plan = _together([self._for_its_group(act, job) for job in jobs])
        answers: list[Any] = self._operate(self._spec, plan)
        return answers

    def _for_its_group(self, act: Act, job: ScheduledJob) -> Plan[Any]:
        try:
            check_id(job.job_id, "job ID")
            options = StreamOptions(group=_NOBODY if job.group is None else job.group)
        except ConfigurationError as error:
            raise BadTimerError(str(error)) from None
        return (yield from act(self.spec_of(dict, options), job.job_id))


class BadTimerError(ConfigurationError):
    """What waits was not put there by streamq, and cannot be addressed."""


def _together(plans: Sequence[Plan[Any]]) -> Plan[list[Any]]:
    """Plans of one request each, in one write. What each returns, or the error that it raises."""
    answers: list[Any] = [None] * len(plans)
    requests = {}
    for at, plan in enumerate(plans):
        try:
            requests[at] = next(plan)
        except StreamqError as error:
            answers[at] = error
    replies = (yield Pipeline(tuple(requests.values()))) if requests else ()  # type: ignore[arg-type]  # scripts
    for at, reply in zip(requests, replies, strict=True):
        try:
            if isinstance(reply, Exception):
                plans[at].throw(reply)
            else:
                plans[at].send(reply)
        except StopIteration as stop:
            answers[at] = stop.value
        except StreamqError as error:
            answers[at] = error
    return answers
