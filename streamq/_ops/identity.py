"""Job IDs chosen by callers: who may run one, and effects that happen once."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import TypeVar

import msgspec

from streamq import _scripts
from streamq._requests import Pipeline, Plan, ask, ask_each
from streamq._scripts import Held
from streamq._spec import Spec
from streamq.effects import Effects
from streamq.errors import EffectError, JobEncodingError
from streamq.keys import check_id
from streamq.messages import Job, Result

T = TypeVar("T")


class Claim(Enum):
    """What may be done with a delivery whose job ID was chosen by a caller."""

    RUN = auto()
    DONE = auto()
    ELSEWHERE = auto()
    NOT_MINE = auto()


_CLAIMS = {1: Claim.RUN, 2: Claim.DONE, 3: Claim.ELSEWHERE, 0: Claim.NOT_MINE, -1: Claim.NOT_MINE}


def claim_ids(spec: Spec[T], consumer: str, jobs: Sequence[Job[T]]) -> Plan[list[Claim]]:
    """Note that these deliveries run their IDs, where nothing else does. One request; atomic."""
    batch = [(Held(job.entry_id, job.deliveries), job.id) for job in jobs]
    answers = yield from ask(_scripts.claim_id(spec.keys, spec.options, consumer=consumer, batch=batch))
    return [_CLAIMS[code] for code in answers]


def once(spec: Spec[T], once_id: str, effects: Effects) -> Plan[bool]:
    """Apply `effects` unless `once_id` is known. One request; atomic."""
    script = _scripts.once(spec.keys, spec.options, once_id=check_id(once_id, "job ID"), effects=effects)
    answer = yield from ask(script)
    if isinstance(answer, EffectError):
        raise answer
    return answer


def result(spec: Spec[T], job_id: str) -> Plan[Result]:
    """What became of a job. One request; reads only."""
    known_id = check_id(job_id, "job ID")
    state, raw = yield from ask(_scripts.result(spec.keys, spec.options, job_id=known_id))
    try:
        value = msgspec.json.decode(raw) if raw else None
    except msgspec.DecodeError as error:
        raise JobEncodingError(f"the stored result of job {known_id} is no JSON: {error}", path="$") from None
    return Result(known_id, state, value)  # type: ignore[arg-type]  # result.lua's words


def sweep(spec: Spec[T]) -> Plan[None]:
    """Forget IDs that are due. What the server refuses, the next step that must remember something will say."""
    yield from ask_each(Pipeline((_scripts.sweep(spec.keys),)))
