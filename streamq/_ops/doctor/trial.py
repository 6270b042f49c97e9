"""A trial of the server: a script and a transaction over two keys. The only writes of `doctor`, and none of them stays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from streamq import _scripts_upkeep
from streamq._ops.doctor.findings import Finding, is_denied, redis
from streamq._requests import Command, Pipeline, Plan, Transaction, ask_each, ignore
from streamq.errors import ServerError, StreamqError
from streamq.keys import Keys

TTL_MS: Final = 60_000
"""After which the keys would go by themselves. Each request removes what it made, so this is a net."""

_REFUSALS: Final = {
    "OOM": ("memory is full (maxmemory), and adding jobs is refused", "raise maxmemory, or remove what is not needed"),
    "READONLY": ("this is a replica, and refuses all writes", "use the master's URL"),
    "MISCONF": (
        "the server cannot save to its disk, and refuses writes until it can",
        "free disk space and memory for it (the server's log says what is wrong), then redis-cli BGSAVE",
    ),
    "NOREPLICAS": (
        "too few replicas are in step (min-replicas-to-write), and the server refuses writes",
        "bring the replicas back, or lower min-replicas-to-write",
    ),
    "CLUSTERDOWN": ("the cluster is down, or nobody holds the slot", "redis-cli CLUSTER INFO tells more"),
    "MOVED": ("the server sends us elsewhere, as nodes of a cluster do", "use redis+cluster:// instead of redis://"),
    "LOADING": ("the server is reading its data from disk", "wait, then ask again"),
    "BUSY": ("a script has been running for longer than the server allows", redis("SCRIPT", "KILL")),
    "MASTERDOWN": ("this is a replica that has lost its master", "use the master's URL"),
}


class Trial(NamedTuple):
    """What came of it: nothing, a list of commands that the user may not run, or an error."""

    script: Any
    transaction: Any
    across: Any
    """A script over two hash tags: a standalone server runs it, a node of a cluster must refuse."""


def run(keys: Keys, elsewhere: Keys, token: str, *, may_multi: bool) -> Plan[Trial]:
    """Write to two keys of the stream's tag, by a script and by a transaction, then to keys of two tags. Three requests.

    Args:
        keys: Of the stream.
        elsewhere: Of a stream that is not there, in another slot.
        token: Drawn, so that nobody has the keys.
        may_multi: Whether the user may run MULTI and EXEC: a transaction that cannot be ended must not be begun.
    """
    one, other = keys.trial(token)
    far, _ = elsewhere.trial(token)
    [script] = yield from ask_each(Pipeline((_scripts_upkeep.probe(one, other, ttl_ms=TTL_MS),)))
    transaction: Any = None
    if may_multi:
        try:
            answers = yield from ask_each(_writes(one, other))
        except StreamqError as error:
            if not isinstance(error, ServerError) and not is_denied(error):
                raise
            transaction = error
        else:
            transaction = next((answer for answer in answers if isinstance(answer, Exception)), None)
    [across] = yield from ask_each(Pipeline((_scripts_upkeep.probe(one, far, ttl_ms=TTL_MS),)))
    return Trial(script, transaction, across)


def _writes(one: str, other: str) -> Transaction[None]:
    made = [Command(("HSET", key, "f", "v"), (key,), ignore) for key in (one, other)]
    return Transaction((*made, Command(("UNLINK", one, other), (one, other), ignore)))


def judge(trial: Trial, *, is_node: bool, may_multi: bool) -> Iterator[Finding]:
    """What to say of it."""
    both = [("a script", trial.script), *([("a transaction", trial.transaction)] if may_multi else [])]
    wrong = {what: answer for what, answer in both if isinstance(answer, Exception)}
    refused = {what: answer for what, answer in wrong.items() if not is_denied(answer)}
    for what, answer in refused.items():
        code = answer.code if isinstance(answer, ServerError) else ""
        said, remedy = _REFUSALS.get(code, (str(answer), None))
        yield Finding(
            check="trial", severity="problem", text=f"{what} over two keys of one hash tag fails: {said}", remedy=remedy
        )
    if refused:
        return
    if wrong or trial.script:
        yield Finding(
            check="trial",
            severity="note",
            text="scripts and transactions were not tried in full: the user may not write "
            f"({', '.join(sorted(trial.script)) if not isinstance(trial.script, Exception) else 'EVAL'})",
        )
        return
    yield Finding(
        check="trial", severity="ok", text=f"{' and '.join(what for what, _ in both)} over two keys of one tag work"
    )
    yield from _across(trial.across, is_node=is_node)


def _across(answer: Any, *, is_node: bool) -> Iterator[Finding]:
    is_refused = isinstance(answer, ServerError)
    if is_denied(answer) or (answer and not is_refused):
        return  # the user may touch the keys of some streams only
    if is_node and is_refused:
        yield Finding(
            check="trial", severity="ok", text="a script over two tags is refused, as a node of a cluster must"
        )
    elif is_node:
        yield Finding(
            check="trial",
            severity="problem",
            text="a script over two tags runs on what says it is a node of a cluster: something between us hides the cluster",
        )
    elif is_refused:
        yield Finding(
            check="trial",
            severity="note",
            text=f"a script over two hash tags is refused ({answer.code}): behind this address are several servers. streamq "
            "needs no such script; each stream lies on one of them",
        )
    else:
        yield Finding(check="trial", severity="ok", text="a script over two tags works: it is one server")
