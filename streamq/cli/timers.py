"""One stream's schedule, as the commands need it: by job ID for one group, and all of it, each job for its own group."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Final, Self, TypeAlias

from streamq._codec import EntryCodec
from streamq._flows import opening
from streamq._ops import identity, inspect, schedule
from streamq._requests import Command, Pipeline, Plan, ask, text
from streamq._spec import Spec
from streamq.connection import settings_of
from streamq.errors import ConfigurationError, ServerError, StreamqError
from streamq.keys import Keys, check_id
from streamq.messages import ScheduledJob
from streamq.options import StreamOptions

_Spec: TypeAlias = Spec[dict[str, object]]

Act: TypeAlias = Callable[[_Spec, str], Plan[Any]]
"""What is done to the job of an ID."""

_NOBODY: Final = "-"
"""A group that no stream has: with it, a job of all groups is found, but never some group's next attempt of that job."""

_TOLD: Final = frozenset({b"sq:id", b"sq:at", b"sq:attempt", b"sq:errors", b"sq:group", b"sq:generated"})
"""Fields of ours that `ScheduledJob` tells, or that tell an operator nothing."""


class Timers:
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
        self._keys = Keys(name, deployment)
        self._spec = self._spec_of(StreamOptions() if group is None else StreamOptions(group=group))
        self._opened: set[opening.Opening[dict[str, object]]] = set()
        self._groups: list[str] | None = None
        self._driver = settings_of(url).blocking()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._driver.close()

    @property
    def name(self) -> str:
        """Of the stream."""
        return self._keys.name

    @property
    def group(self) -> str:
        """Whose next attempts are meant by job IDs."""
        return self._spec.options.group

    @property
    def max_delay_ms(self) -> int:
        """How far ahead a job may be scheduled."""
        return self._spec.options.max_delay_ms

    def now(self) -> datetime:
        """The server's time: by it jobs are due. Of this machine, if the server does not tell."""
        try:
            seconds, micros = self._driver.run(ask(Command(("TIME",), (), lambda reply: tuple(map(int, reply)))))
        except (ConfigurationError, ServerError):
            return datetime.now(UTC)
        return datetime.fromtimestamp(seconds, UTC) + timedelta(microseconds=micros)

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
                job = self._driver.run(schedule.get(self._spec_of(StreamOptions(group=group)), job_id))
                if job is not None and job.group == group:
                    found.append(group)
        return found

    def do(self, act: Act, job_id: str) -> Any:
        """Do it to the job of this ID."""
        return self._run(self._spec, act(self._spec, job_id))

    def do_for(self, act: Act, jobs: Iterable[ScheduledJob]) -> list[Any]:
        """Do it to listed jobs, to each for its own group, in one write. What came of each: an answer, or an error.

        The error is a `BadTimerError` if no job can have this ID, or no group this name.
        """
        plan = _together([self._for_its_group(act, job) for job in jobs])
        answers: list[Any] = self._run(self._spec, plan)
        return answers

    def _for_its_group(self, act: Act, job: ScheduledJob) -> Plan[Any]:
        try:
            check_id(job.job_id, "job ID")
            options = StreamOptions(group=_NOBODY if job.group is None else job.group)
        except ConfigurationError as error:
            raise BadTimerError(str(error)) from None
        return (yield from act(self._spec_of(options), job.job_id))

    def _run(self, spec: _Spec, plan: Plan[Any]) -> Any:
        if not self._opened:
            plan = opening.behind(spec, plan, (opening.operator,), self._opened)
        return self._driver.run(plan)

    def _spec_of(self, options: StreamOptions) -> _Spec:
        return Spec(self._keys, options, EntryCodec(dict, options))


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


def about(job: ScheduledJob, *, payload: bool) -> dict[str, Any]:
    """What the fields of its entry say beside what `ScheduledJob` has.

    Args:
        job: That waits.
        payload: Whether its payload is wanted: as ``payload``, or as ``payload_base64`` if it is no UTF-8.
    """
    headers: dict[str, str] = {}
    reserved: dict[str, str] = {}
    others: dict[str, int] = {}
    codec = "json"
    for name, value in job.fields:
        if name.startswith(b"sq:h:"):
            headers[text(name[5:])] = text(value)
        elif name == b"sq:codec":
            codec = text(value)
        elif name.startswith(b"sq:"):
            if name not in _TOLD:
                reserved[text(name)] = text(value)
        elif name != b"job":
            others[text(name)] = len(value)
    found: dict[str, Any] = {
        "headers": headers,
        "reserved": reserved,
        "other_fields": others,
        "codec": codec,
        "payload_bytes": None if job.payload is None else len(job.payload),
    }
    if payload and job.payload is not None:
        try:
            found["payload"] = job.payload.decode()
        except UnicodeDecodeError:
            found["payload_base64"] = base64.b64encode(job.payload).decode()
    return found
