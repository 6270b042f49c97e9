"""Let jobs wait for their time, look at those that do, and change their minds about them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from streamq import _scripts_timers
from streamq._codec import about_entry, unpack_entry
from streamq._requests import Command, Pipeline, Plan, Script, ask, ask_each, text
from streamq._scripts_timers import When, time_ms, too_far
from streamq._spec import Spec
from streamq._times import moment, ms_of
from streamq.errors import JobStateError
from streamq.keys import check_id
from streamq.messages import MOST_MS, ScheduledJob

T = TypeVar("T")


def reschedule(spec: Spec[T], job_id: str, due: When) -> Plan[datetime]:
    """Give a job that waits another time; which it is. One request; atomic."""
    script = _scripts_timers.reschedule(spec.keys, spec.options, job_id=check_id(job_id, "job ID"), when=due)
    code, value = yield from ask(script)
    if code < 0:
        raise too_far(value, spec.options.max_delay_ms)
    if code == 0:
        raise _not_scheduled(job_id, value, "rescheduled")
    return moment(int(value))


def run_now(spec: Spec[T], job_id: str) -> Plan[str]:
    """Move a job that waits into the stream; its entry ID. One request; atomic."""
    code, value = yield from ask(_scripts_timers.run_now(spec.keys, spec.options, job_id=check_id(job_id, "job ID")))
    if code < 0:
        raise JobStateError(
            f"job {job_id} is scheduled, but its entry is lost or malformed: it is taken out when it is due",
            state="scheduled",
        )
    if code == 0:
        raise _not_scheduled(job_id, value, "run by hand")
    return value


def _not_scheduled(job_id: str, state: str, what: str) -> JobStateError:
    return JobStateError(
        f"job {job_id} is {state}, not scheduled: only a job that waits for its time can be {what}; nothing was changed",
        state=state,
    )


def get(spec: Spec[T], job_id: str) -> Plan[ScheduledJob | None]:
    """The job if it waits: for this group, or for all. One request of four commands."""
    scheduled, jobs = spec.keys.scheduled, spec.keys.jobs
    timers = [f"{group}/{check_id(job_id, 'job ID')}" for group in (spec.options.group, "")]
    commands: list[Command[Any] | Script[Any]] = []
    for timer in timers:
        commands.append(Command(("ZSCORE", scheduled, timer), (scheduled,), _score))
        commands.append(Command(("HGET", jobs, timer), (jobs,), _bytes_or_none))
    answers: list[Any] = yield from ask_each(Pipeline(tuple(commands)))
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    for at, timer in enumerate(timers):
        due, packed = answers[2 * at : 2 * at + 2]
        if due is not None:
            return _job(_Timer(timer, due), packed)
    return None


class _Timer(NamedTuple):
    id: str
    due_ms: int


def listing(
    spec: Spec[T], *, count: int, after: ScheduledJob | None, due_before: datetime | None
) -> Plan[list[ScheduledJob]]:
    """Jobs that wait, the next one first, behind `after`. Two requests, three with `after`.

    More if that one does not wait any more, and others of the same ms come before it.
    """
    most = _most(due_before)
    timers: list[_Timer] = []
    offset = 0
    first: str | int = "-inf"
    last = None if after is None else _timer_of(after)
    if last is not None:
        behind = yield from _behind(spec, last, count)
        if behind is not None:
            return (yield from _with_entries(spec, [timer for timer in behind if _is_before(timer, due_before)]))
        first = last.due_ms or "-inf"
    while True:
        page = yield from ask(_page(spec, first, most, offset, count))
        timers += [timer for timer in page if last is None or _order(timer) > _order(last)]
        offset += len(page)
        if len(timers) >= count or len(page) < count:
            return (yield from _with_entries(spec, timers[:count]))


def count(spec: Spec[T], *, after: ScheduledJob | None = None, due_before: datetime | None = None) -> Plan[int]:
    """How many jobs wait, behind `after`. One request of two commands; a second one if that one does not wait any more."""
    scheduled = spec.keys.scheduled
    most = _most(due_before)
    commands: list[Command[Any]] = [_number(spec, "-inf", most)]
    if after is not None:
        commands.append(Command(("ZRANK", scheduled, _timer_of(after).id), (scheduled,), _whole_or_none))
    answers: list[Any] = yield from ask_each(Pipeline(tuple(commands)))
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    if after is None:
        return int(answers[0])
    total, rank = answers
    if rank is not None:
        return int(max(total - rank - 1, 0))
    return (yield from ask(_number(spec, f"({_timer_of(after).due_ms}", most)))


def _number(spec: Spec[T], first: str, most: str) -> Command[int]:
    return Command(("ZCOUNT", spec.keys.scheduled, first, most), (spec.keys.scheduled,), int)


def _behind(spec: Spec[T], last: _Timer, count: int) -> Plan[list[_Timer] | None]:
    """Timers behind one by its rank: a million that are due in one ms are not walked once for every page. Two requests.

    None if it is not there any more, or was moved between the two.
    """
    scheduled = spec.keys.scheduled
    asked = Command(("ZRANK", scheduled, last.id), (scheduled,), _whole_or_none)
    [rank] = yield from ask_each(Pipeline((asked,)))
    if rank is None or isinstance(rank, Exception):
        return None  # or the user may not ask for it: there is another way
    args = ("ZRANGE", scheduled, rank, rank + count, "WITHSCORES")
    page = yield from ask(Command(args, (scheduled,), _timers))
    return page[1:] if page[:1] == [last] else None


def _most(due_before: datetime | None) -> str:
    return "+inf" if due_before is None else f"({time_ms(due_before, 'due_before')}"


def _is_before(timer: _Timer, due_before: datetime | None) -> bool:
    return due_before is None or timer.due_ms < time_ms(due_before, "due_before")


def _timer_of(job: ScheduledJob) -> _Timer:
    return _Timer(f"{job.group or ''}/{job.job_id}", ms_of(job.due_at))


def _timers(reply: Any) -> list[_Timer]:
    return [_Timer(text(timer), _score(due) or 0) for timer, due in zip(reply[::2], reply[1::2], strict=True)]


def _order(timer: _Timer) -> tuple[int, bytes]:
    """As the server orders them: by time, then by the bytes of the ID."""
    return timer.due_ms, timer.id.encode("utf-8", "backslashreplace")


def _page(spec: Spec[T], first: str | int, most: str, offset: int, count: int) -> Command[list[_Timer]]:
    scheduled = spec.keys.scheduled
    args = ("ZRANGEBYSCORE", scheduled, first, most, "WITHSCORES", "LIMIT", offset, count)
    return Command(args, (scheduled,), _timers)


def _with_entries(spec: Spec[T], timers: Sequence[_Timer]) -> Plan[list[ScheduledJob]]:
    if not timers:
        return []
    jobs = spec.keys.jobs
    entries: list[bytes | None] = yield from ask(
        Command(("HMGET", jobs, *(timer.id for timer in timers)), (jobs,), list)
    )
    return [_job(timer, packed) for timer, packed in zip(timers, entries, strict=True)]


def _job(timer: _Timer, packed: bytes | None) -> ScheduledJob:
    group, _, job_id = timer.id.partition("/")
    fields = unpack_entry(packed)
    attempt, enqueued_ms, errors = about_entry(fields)
    return ScheduledJob(
        job_id=job_id,
        group=group or None,
        due_at=moment(timer.due_ms),
        attempt=attempt,
        errors=errors,
        enqueued_at=None if enqueued_ms is None else moment(enqueued_ms),
        fields=tuple(zip(fields[::2], fields[1::2], strict=True)),
    )


def _score(reply: Any) -> int | None:
    """A due time in ms, within what datetime can say: somebody else may have written anything."""
    return None if reply is None else int(min(max(float(reply), 0), MOST_MS))


def _whole_or_none(reply: Any) -> int | None:
    return None if reply is None else int(reply)


def _bytes_or_none(reply: Any) -> bytes | None:
    return reply  # type: ignore[no-any-return]  # RESP's bulk string
