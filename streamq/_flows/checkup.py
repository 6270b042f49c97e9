"""The examination of a server and its streams, in order; `streamq doctor` runs it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from streamq._ops import access
from streamq._ops.doctor import abilities, layout, rights, trial, work, workers
from streamq._ops.doctor.findings import Finding
from streamq._ops.doctor.rights import SCRIPTS, Rights, Role
from streamq._requests import Plan
from streamq.keys import Keys

_WORKER: Final = (*access.READER, *SCRIPTS, "XGROUP CREATE", "SADD")

ROLES: Final = (
    Role("add jobs", ("XADD",), ("XADD",)),
    Role("add jobs with IDs", (*access.PRODUCER, *SCRIPTS), ("HDEL", "UNLINK", "PEXPIREAT")),
    Role("schedule jobs", (*access.SCHEDULER, *SCRIPTS, "SADD"), ("ZADD", "ZREM")),
    Role("operate (cancel, redrive, purge)", (*access.OPERATOR, *SCRIPTS), ("XDEL",)),
    Role(
        "administer (drop groups, pause, delete)",
        (*_WORKER, "XGROUP DESTROY", "SREM", "SCAN"),
        ("XGROUP DESTROY", "SREM"),
    ),
    Role("work (read, settle, maintain)", _WORKER, ("XREADGROUP", "XACK", "XCLAIM", "XAUTOCLAIM")),
)
"""What users do with a stream, as docs/operations.md has it under Permissions."""

_COMMANDS: Final = tuple(dict.fromkeys((*(name for role in ROLES for name in role.needs), *rights.COURTESIES)))


def of_server(keys: Keys, elsewhere: Keys, token: str, *, is_node: bool) -> Plan[tuple[list[Finding], list[str]]]:
    """The trial, on keys beside those of a stream: findings, and commands that the user was denied. Some seven requests.

    Args:
        keys: Of a stream: the user may touch no others, perhaps.
        elsewhere: Of one that is not there, in another slot.
        token: Drawn, so that nobody has the keys.
        is_node: Whether the server says that it is a node of a cluster.
    """
    found = yield from rights.denied(keys, SCRIPTS)
    may_multi = not found.commands & {"MULTI", "EXEC"}
    tried = yield from trial.run(keys, elsewhere, token, may_multi=may_multi)
    known = yield from abilities.look(keys.trial(token)[0])
    findings = [*abilities.judge(known), *trial.judge(tried, is_node=is_node, may_multi=may_multi)]
    return findings, [] if isinstance(tried.script, Exception) else tried.script


def of_user(keys: Keys, user: str, known: Iterable[str] = ()) -> Plan[list[Finding]]:
    """What the user may do on the keys of a stream. Five requests.

    Args:
        keys: Of the stream.
        user: The user's name; empty if it is not known.
        known: Commands that were denied in the trial: not every server can tell without running them.
    """
    found = yield from rights.denied(keys, _COMMANDS)
    found = found._replace(commands=found.commands | set(known))
    return list(rights.judge(found, keys, ROLES, user))


def of_stream(keys: Keys, user: str, now_ms: int, known: Iterable[str] = ()) -> Plan[list[Finding]]:
    """All that can be said of one stream. Some dozen requests, a few more a group; each of bounded cost.

    Args:
        keys: Of the stream.
        user: The user's name; empty if it is not known.
        now_ms: The server's time.
        known: As of `of_user`.
    """
    kinds = yield from layout.kinds(keys)
    findings = list(layout.judge(keys, kinds))
    if kinds.is_shut_out:
        return findings + list(rights.judge(Rights(frozenset(), is_shut_out=True), keys, ROLES, user))
    if not kinds.is_reachable:
        return findings
    if kinds.may_be(keys.probe, "none"):
        findings += yield from of_user(keys, user, known)
    beats = workers.Beats({}, now_ms)
    if kinds.may_be(keys.workers, "hash"):
        beats = yield from workers.beats(keys, now_ms)
    found = yield from work.look(keys, kinds, beats)
    findings += work.judge(keys, found, beats)
    findings += workers.judge(keys, beats)
    findings += yield from layout.tokens(keys, [group.name for group in found.groups])
    return findings
