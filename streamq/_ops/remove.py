"""Take a job, or the whole stream, away."""

from __future__ import annotations

from typing import TypeVar

from streamq import _scripts, _scripts_upkeep
from streamq._requests import Command, Plan, ask, scan
from streamq._scripts_upkeep import Left
from streamq._spec import Spec
from streamq.errors import JobStateError
from streamq.keys import check_flag, check_id

T = TypeVar("T")

_PAGE = 1_000
_UNLINKED = 100


def cancel(spec: Spec[T], job_id: str, *, only_scheduled: bool = False) -> Plan[bool]:
    """Remove a job that waits for its time, or that nobody has begun; False if there is none. One request; atomic.

    With `only_scheduled` only one that waits.
    """
    script = _scripts.cancel(spec.keys, spec.options, job_id=check_id(job_id, "job ID"), only_scheduled=only_scheduled)
    code, state = yield from ask(script)
    if code < 0:
        which = "that waits for its time" if only_scheduled else "that nobody has begun"
        raise JobStateError(f"job {job_id} is {state}: only a job {which} can be cancelled", state=state)
    return code == 1


def delete(spec: Spec[T], *, force: bool) -> Plan[int]:
    """Remove the stream's keys; how many there were.

    The first request removes what holds jobs, atomically; then come keys of effects and maintenance, found by SCAN: one
    request per 1,000 keys of the server, and one per 100 found. Whatever breaks it off, calling it again goes on.
    """
    yield from ask(scan("0", "COUNT", 1))  # who may not do this must not do half of it
    answer = yield from ask(_scripts_upkeep.delete(spec.keys, force=check_flag(force, "force")))
    if isinstance(answer, Left):
        raise _has_work(spec, answer)
    removed = answer
    cursor = "0"
    while True:
        cursor, found = yield from ask(scan(cursor, "MATCH", spec.keys.pattern, "COUNT", _PAGE))
        ours = [key for key in found if spec.keys.is_open_ended(key)]
        for at in range(0, len(ours), _UNLINKED):
            some = tuple(ours[at : at + _UNLINKED])
            removed += yield from ask(Command(("UNLINK", *some), some, int))
        if cursor == "0":
            return removed


def _has_work(spec: Spec[T], left: Left) -> JobStateError:
    parts = {
        "entries to read": left.unread,
        "pending entries": left.pending,
        "scheduled jobs": left.scheduled,
        "dead letters": left.dead,
    }
    named = ", ".join(
        f"{count:,} {what}" if what != "entries to read" else what for what, count in parts.items() if count
    )
    return JobStateError(
        f"stream {spec.keys.name} still has {named}; nothing was deleted. Delete it with force to lose them",
        state="ready" if left.unread else "pending" if left.pending else "scheduled" if left.scheduled else "dead",
    )
