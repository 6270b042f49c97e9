"""Put jobs into the stream."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from streamq import _scripts
from streamq._requests import Command, Pipeline, Plan, Script, ask, ask_each
from streamq._spec import Spec
from streamq.errors import StreamqError
from streamq.keys import check_id
from streamq.messages import Added

T = TypeVar("T")

CHUNK_JOBS = 500
"""Most jobs in one write of `add_many`: beyond a few hundred a pipeline gains nothing more."""

CHUNK_BYTES = 1 << 20
"""Most payload bytes in one write, so that memory stays bounded whatever the iterable yields."""

_Add = Command[Added] | Script[Added]


def add(spec: Spec[T], payload: T, *, job_id: str | None, headers: Mapping[str, str] | None) -> Plan[Added]:
    """Add one job. One request; atomic."""
    return (yield from ask(_request(spec, payload, job_id, headers)))


def add_many(
    spec: Spec[T], payloads: Iterable[T], *, job_id: Callable[[T], str] | None, headers: Mapping[str, str] | None
) -> Plan[int]:
    """Add jobs in chunks, one write a chunk, each job by itself atomic. An error carries ``added``, the count so far."""
    added = 0
    try:
        for chunk in _chunks(spec, payloads, job_id, headers):
            answers = yield from ask_each(Pipeline(chunk))
            added += sum(isinstance(answer, Added) and answer.created for answer in answers)
            for answer in answers:
                if isinstance(answer, Exception):
                    raise answer
    except StreamqError as error:
        error.added = added  # type: ignore[attr-defined]  # documented at Stream.add_many
        raise
    return added


def _chunks(
    spec: Spec[T], payloads: Iterable[T], job_id: Callable[[T], str] | None, headers: Mapping[str, str] | None
) -> Iterator[tuple[_Add, ...]]:
    chunk: list[_Add] = []
    size = 0
    for index, payload in enumerate(payloads):
        try:
            request = _request(spec, payload, None if job_id is None else job_id(payload), headers)
        except StreamqError as error:
            if chunk:
                yield tuple(chunk)  # what came before the bad one is good
            error.args = (f"payload {index}: {error}",)
            raise
        chunk.append(request)
        size += _payload_size(request)
        if len(chunk) >= CHUNK_JOBS or size >= CHUNK_BYTES:
            yield tuple(chunk)
            chunk, size = [], 0
    if chunk:
        yield tuple(chunk)


def _payload_size(request: _Add) -> int:
    for part in request.args if isinstance(request, Command) else request.argv:
        if isinstance(part, bytes):
            return len(part)  # the first bytes are the payload: IDs are text, and headers come behind it
    return 0


def _generated(reply: Any) -> Added:
    entry_id = reply.decode()
    return Added(job_id=entry_id, entry_id=entry_id, created=True, state="ready")


def _request(spec: Spec[T], payload: T, job_id: str | None, headers: Mapping[str, str] | None) -> _Add:
    fields = spec.codec.fields(payload, job_id=job_id, headers=headers)
    stream = spec.keys.stream
    if job_id is None:
        return Command(("XADD", stream, "*", *fields), (stream,), _generated)
    known_id = check_id(job_id, "job ID")
    script = _scripts.add(spec.keys, spec.options, job_id=known_id, fields=fields)

    def chosen(reply: Any) -> Added:
        created, entry_id, state = script.decode(reply)
        return Added(job_id=known_id, entry_id=entry_id, created=created, state=state)  # type: ignore[arg-type]  # add.lua's words

    return Script(script.name, script.keys, script.argv, chosen)
