"""Put jobs into the stream."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import msgspec

from streamq import _scripts, _scripts_timers
from streamq._durability import confirmed
from streamq._requests import Arg, Command, Pipeline, Plan, ask, ask_each
from streamq._scripts import NewJob
from streamq._scripts_timers import When, too_far
from streamq._spec import Spec
from streamq.backoff import Backoff
from streamq.errors import ConfigurationError, NotDurableError, QueueFullError, StreamqError
from streamq.keys import check_flag, check_id
from streamq.messages import Added, JobIdKind
from streamq.options import Durability

T = TypeVar("T")
R = TypeVar("R")

CHUNK_JOBS = 500
"""Most jobs in one write of `add_many`: beyond a few hundred a pipeline gains nothing more."""

CHUNK_BYTES = 1 << 20
"""Most payload bytes in one write, so that memory stays bounded whatever the iterable yields."""

_NOW = When("in", 0)


class Terms(NamedTuple):
    """What `add` is told besides the payload and its ID, the same for all jobs of a call."""

    headers: Mapping[str, str] | None = None
    retry: Backoff | None = None
    replace: bool = False
    durability: Durability | None = None
    """None is the stream's."""


_USUAL = Terms()


def add(
    spec: Spec[T],
    payload: T,
    *,
    job_id: str | None,
    due: When | None = None,
    new_id: Callable[[], str] = str,
    terms: Terms = _USUAL,
) -> Plan[Added]:
    """Add one job. One request; atomic. `new_id` draws an ID for a job that waits for its time and has none of its own."""
    if check_flag(terms.replace, "replace") and job_id is None:
        raise ConfigurationError("replace=True needs a job_id: it says which job is to be replaced")
    job = _job(spec, payload, job_id, _wait(due, terms), new_id=new_id, terms=terms)
    return (yield from _whole(_durably(spec, terms, _add_one(spec, job))))


def add_many(
    spec: Spec[T],
    payloads: Iterable[T],
    *,
    job_id: Callable[[T], str] | None,
    due: Callable[[T], When] | None = None,
    new_id: Callable[[], str] = str,
    terms: Terms = _USUAL,
) -> Plan[int]:
    """Add jobs in chunks, one write a chunk. An error carries ``added``, the count so far."""

    def make(payload: T) -> NewJob | _Timed:
        chosen = None if job_id is None else job_id(payload)
        return _job(spec, payload, chosen, None if due is None else due(payload), new_id=new_id, terms=terms)

    added = 0
    chunks = _Ahead(_chunks(payloads, make))
    try:
        while chunk := chunks.next():
            (created, error), lacking = yield from _durably(spec, terms, _count_chunk(spec, chunk, chunks.prepare))
            added += created
            if error is not None:
                raise error
            if lacking is not None:
                raise lacking
    except StreamqError as failure:
        failure.added = added
        raise
    return added


def _count_chunk(spec: Spec[T], chunk: _Chunk, meanwhile: Callable[[], None]) -> Plan[tuple[int, Exception | None]]:
    """As `_add_chunk`; how many are new, and the first error."""
    if _all_plain(spec, chunk):
        answers = yield Pipeline(_xadds(spec, chunk), meanwhile)  # whose IDs nobody asks for
    else:
        answers = yield from _add_chunk(spec, chunk, meanwhile)
    errors = [answer for answer in answers if isinstance(answer, Exception)]
    known = [answer for answer in answers if isinstance(answer, Added) and not answer.created]
    return len(answers) - len(errors) - len(known), errors[0] if errors else None


class _Ahead:
    """Chunks of which the next may be made before it is asked for: while the server works on the one before.

    Args:
        chunks: Which.
    """

    def __init__(self, chunks: Iterator[_Chunk]) -> None:
        self._chunks = chunks
        self._made: _Chunk | Exception | None = None

    def prepare(self) -> None:
        """Make the next one. An error is kept until it is asked for."""
        try:
            self._made = next(self._chunks, [])
        except Exception as error:  # noqa: BLE001  # of the caller's iterable too
            self._made = error

    def next(self) -> _Chunk:
        """The next one; empty at the end."""
        if self._made is None:
            self.prepare()
        made, self._made = self._made, None
        if isinstance(made, Exception):
            raise made
        return made or []


def add_each(
    spec: Spec[T],
    jobs: Iterable[tuple[T, str | None]],
    *,
    due: When | None = None,
    new_id: Callable[[], str] = str,
    terms: Terms = _USUAL,
) -> Plan[list[Added | Exception]]:
    """Add a chunk of jobs, payloads with their IDs, in one write; of each what came of it, in order."""
    wait = _wait(due, terms)
    chunk = [_job(spec, payload, job_id, wait, new_id=new_id, terms=terms) for payload, job_id in jobs]
    return (yield from _whole(_durably(spec, terms, _add_chunk(spec, chunk)))) if chunk else []


def _durably(spec: Spec[T], terms: Terms, plan: Plan[R]) -> Plan[tuple[R, NotDurableError | None]]:
    return confirmed(plan, spec.options, terms.durability or spec.options.durability)


def _whole(plan: Plan[tuple[R, NotDurableError | None]]) -> Plan[R]:
    """The result of what was confirmed; else it is in the error."""
    result, lacking = yield from plan
    if lacking is not None:
        lacking.partial = result
        raise lacking
    return result


def _wait(due: When | None, terms: Terms) -> When | None:
    """When a job is due if a script has to look for that, as it has for one that may replace another; None for now."""
    if terms.replace:
        return _NOW if due is None else due
    return None if due == _NOW else due


def _add_one(spec: Spec[T], job: NewJob | _Timed) -> Plan[Added]:
    if _all_plain(spec, (job,)):
        return (yield from ask(_xadds(spec, (job,))[0]))
    [answer] = yield from _add_chunk(spec, [job])
    if isinstance(answer, Exception):
        raise answer
    return answer


def _add_chunk(
    spec: Spec[T], chunk: _Chunk, meanwhile: Callable[[], None] | None = None
) -> Plan[list[Added | Exception]]:
    timed = [job for job in chunk if isinstance(job, _Timed)]
    if timed:
        return (yield from _schedule_each(spec, timed))
    if _all_plain(spec, chunk):
        return (yield from ask_each(Pipeline(_xadds(spec, chunk), meanwhile)))
    jobs = [job for job in chunk if isinstance(job, NewJob)]
    answers = yield from ask(_scripts.add(spec.keys, spec.options, jobs=jobs, meanwhile=meanwhile))
    return [_added(spec, job, answer) for job, answer in zip(jobs, answers, strict=True)]


def _schedule_each(spec: Spec[T], jobs: Sequence[_Timed]) -> Plan[list[Added | Exception]]:
    answers = yield from ask_each(
        Pipeline(
            tuple(
                _scripts_timers.schedule(
                    spec.keys,
                    spec.options,
                    job_id=job.job_id,
                    kind=job.kind,
                    when=job.due,
                    replace=job.replace,
                    fields=job.fields,
                )
                for job in jobs
            )
        )
    )
    return [_scheduled(spec, job, answer) for job, answer in zip(jobs, answers, strict=True)]


def _chunks(payloads: Iterable[T], make: Callable[[T], NewJob | _Timed]) -> Iterator[list[NewJob | _Timed]]:
    chunk: list[NewJob | _Timed] = []
    size = 0
    for index, payload in enumerate(payloads):
        try:
            job = make(payload)
        except StreamqError as error:
            if chunk:
                yield chunk  # what came before the bad one is good
            error.args = (f"payload {index}: {error}",)
            raise
        chunk.append(job)
        size += len(job.fields[1])  # type: ignore[arg-type]  # the payload, always bytes
        if len(chunk) >= CHUNK_JOBS or size >= CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


class _Timed(msgspec.Struct, frozen=True, eq=False):
    """A job to add when its time has come."""

    job_id: str
    kind: JobIdKind
    due: When
    replace: bool
    fields: Sequence[Arg]


_Chunk: TypeAlias = Sequence[NewJob | _Timed]


def _job(
    spec: Spec[T], payload: T, job_id: str | None, due: When | None, *, new_id: Callable[[], str], terms: Terms
) -> NewJob | _Timed:
    known_id = None if job_id is None else check_id(job_id, "job ID")
    if due is None:
        return NewJob(known_id, spec.codec.fields(payload, job_id=known_id, headers=terms.headers, retry=terms.retry))
    return _Timed(
        job_id=new_id() if known_id is None else known_id,
        kind=JobIdKind.GENERATED if known_id is None else JobIdKind.CHOSEN,
        due=due,
        replace=terms.replace,
        fields=spec.codec.fields(payload, job_id=None, headers=terms.headers, retry=terms.retry),
    )


def _all_plain(spec: Spec[T], chunk: _Chunk) -> bool:
    """Whether nothing has to be looked up, so that plain XADDs do it."""
    are_new = [isinstance(job, NewJob) and job.job_id is None for job in chunk]
    return spec.options.max_ready is None and all(are_new)


def _xadds(spec: Spec[T], chunk: _Chunk) -> tuple[Command[Added], ...]:
    stream = spec.keys.stream
    begin, keys = ("XADD", stream, "*"), (stream,)
    return tuple([Command((*begin, *job.fields), keys, _generated) for job in chunk])


def _generated(reply: Any) -> Added:
    entry_id = reply.decode()  # our own command's: an entry ID
    return Added(job_id=entry_id, entry_id=entry_id, created=True, state="ready")


def _added(spec: Spec[T], job: NewJob, answer: tuple[int, str, str]) -> Added | Exception:
    code, value, state = answer
    if code < 0:
        return QueueFullError(ready=int(value), max_ready=spec.options.max_ready or 0)
    return Added(job_id=job.job_id or value, entry_id=value or None, created=code == 1, state=state)  # type: ignore[arg-type]  # add.lua's words


def _scheduled(spec: Spec[T], job: _Timed, answer: tuple[int, str, str] | Exception) -> Added | Exception:
    if isinstance(answer, Exception):
        return answer
    code, value, state = answer
    if code < 0:
        return too_far(value, spec.options.max_delay_ms)
    return Added(job_id=job.job_id, entry_id=value or None, created=code == 1, state=state)  # type: ignore[arg-type]  # schedule.lua's words
