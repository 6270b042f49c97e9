"""Put jobs into the stream."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from streamq import _scripts
from streamq._requests import Command, Pipeline, Plan, ask, ask_each
from streamq._scripts import NewJob
from streamq._spec import Spec
from streamq.errors import QueueFullError, StreamqError
from streamq.keys import check_id
from streamq.messages import Added

T = TypeVar("T")

CHUNK_JOBS = 500
"""Most jobs in one write of `add_many`: beyond a few hundred a pipeline gains nothing more."""

CHUNK_BYTES = 1 << 20
"""Most payload bytes in one write, so that memory stays bounded whatever the iterable yields."""


def add(spec: Spec[T], payload: T, *, job_id: str | None, headers: Mapping[str, str] | None) -> Plan[Added]:
    """Add one job. One request; atomic."""
    job = _new_job(spec, payload, job_id, headers)
    if _plain(spec, job):
        return (yield from ask(_xadd(spec, job)))
    [answer] = yield from _add_by_script(spec, [job])
    if isinstance(answer, Exception):
        raise answer
    return answer


def add_many(
    spec: Spec[T], payloads: Iterable[T], *, job_id: Callable[[T], str] | None, headers: Mapping[str, str] | None
) -> Plan[int]:
    """Add jobs in chunks, one write a chunk. An error carries ``added``, the count so far."""
    added = 0
    try:
        for chunk in _chunks(spec, payloads, job_id, headers):
            answers = yield from _add_chunk(spec, chunk)
            added += sum(isinstance(answer, Added) and answer.created for answer in answers)
            for answer in answers:
                if isinstance(answer, Exception):
                    raise answer
    except StreamqError as error:
        error.added = added
        raise
    return added


def _add_chunk(spec: Spec[T], chunk: Sequence[NewJob]) -> Plan[list[Added | Exception]]:
    if all(_plain(spec, job) for job in chunk):
        return (yield from ask_each(Pipeline(tuple(_xadd(spec, job) for job in chunk))))
    return (yield from _add_by_script(spec, chunk))


def _add_by_script(spec: Spec[T], jobs: Sequence[NewJob]) -> Plan[list[Added | Exception]]:
    answers = yield from ask(_scripts.add(spec.keys, spec.options, jobs=jobs))
    return [_added(spec, job, answer) for job, answer in zip(jobs, answers, strict=True)]


def _chunks(
    spec: Spec[T], payloads: Iterable[T], job_id: Callable[[T], str] | None, headers: Mapping[str, str] | None
) -> Iterator[list[NewJob]]:
    chunk: list[NewJob] = []
    size = 0
    for index, payload in enumerate(payloads):
        try:
            job = _new_job(spec, payload, None if job_id is None else job_id(payload), headers)
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


def _new_job(spec: Spec[T], payload: T, job_id: str | None, headers: Mapping[str, str] | None) -> NewJob:
    known_id = None if job_id is None else check_id(job_id, "job ID")
    return NewJob(known_id, spec.codec.fields(payload, job_id=known_id, headers=headers))


def _plain(spec: Spec[T], job: NewJob) -> bool:
    """Whether nothing has to be looked up, so that a plain XADD does it."""
    return job.job_id is None and spec.options.max_ready is None


def _xadd(spec: Spec[T], job: NewJob) -> Command[Added]:
    stream = spec.keys.stream
    return Command(("XADD", stream, "*", *job.fields), (stream,), _generated)


def _generated(reply: Any) -> Added:
    entry_id = reply.decode()  # our own command's: an entry ID
    return Added(job_id=entry_id, entry_id=entry_id, created=True, state="ready")


def _added(spec: Spec[T], job: NewJob, answer: tuple[int, str, str]) -> Added | Exception:
    code, value, state = answer
    if code < 0:
        return QueueFullError(ready=int(value), max_ready=spec.options.max_ready or 0)
    return Added(job_id=job.job_id or value, entry_id=value, created=code == 1, state=state)  # type: ignore[arg-type]  # add.lua's words
