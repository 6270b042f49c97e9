"""What the user may do on the keys of a stream, and what for. Writes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from streamq import _scripts
from streamq._ops.doctor.findings import Finding, is_denied, is_key_denied, redis
from streamq._requests import Arg, Command, Pipeline, Plan, ask_each, ignore
from streamq.errors import ConnectionLostError
from streamq.keys import Keys, registry

SCRIPTS: Final = ("EVAL", "EVALSHA", "MULTI", "EXEC")
"""Of everybody who does more than XADD."""

COURTESIES: Final = ("CLIENT ID", "CLIENT UNBLOCK")
"""Without these a worker only stops later."""


class Role(NamedTuple):
    """Something that users do with a stream."""

    does: str
    """To be read after "may" and "may not"."""
    needs: tuple[str, ...]
    marks: tuple[str, ...]
    """Commands that write and that roles before it do not need: who may run one of them is meant to have the role. None that
    old servers cannot tell of."""


class Rights(NamedTuple):
    """What one user may not do on the keys of one stream."""

    commands: frozenset[str]
    is_shut_out: bool = False
    """Whether no key of it may be touched at all."""


def denied(keys: Keys, commands: Sequence[str]) -> Plan[Rights]:
    """Those of `commands` that the user may not run. Four requests, which find no key to work on.

    The key of the probe must not be there. Before Redis 7.0 nobody can tell of HSET, HINCRBY, SET and SADD without running them.
    """
    direct = {name: args for name, args in _direct(keys).items() if name in {*commands, *SCRIPTS}}
    asked: list[Command[Any]] = [Command(("TYPE", keys.probe), (keys.probe,), ignore)]
    asked += [Command(args, (keys.probe,), ignore) for args in direct.values()]
    looked, *answers = yield from ask_each(Pipeline(tuple(asked)))
    if is_key_denied(looked):
        return Rights(frozenset(commands), is_shut_out=True)
    missing = {name for name, answer in zip(direct, answers, strict=True) if is_denied(answer)}
    begun = yield from ask_each(Pipeline(tuple(Command((name,), (), ignore) for name in ("MULTI", "EXEC"))))
    missing |= {"MULTI"} if is_denied(begun[0]) else set()
    if not missing & {"EVAL", "EVALSHA"}:
        rest = [name for name in commands if name not in direct and name not in {"MULTI", "SADD"}]
        names = registry(keys.deployment)
        [found] = yield from ask_each(Pipeline((_scripts.check(keys, commands=rest),)))
        listing: Any = None
        with suppress(ConnectionLostError):  # of a cluster another node, which may be down
            [listing] = yield from ask_each(Pipeline((_scripts.check(keys, commands=["SADD"], on=names),)))
        missing |= set() if isinstance(found, Exception) else set(found)
        missing |= {"SADD"} if is_denied(listing) or listing == ["SADD"] else set()
    return Rights(frozenset(missing & {*commands, *COURTESIES}))


def _direct(keys: Keys) -> dict[str, tuple[Arg, ...]]:
    """A call that does nothing, of the commands that no script can ask for, and of those that tell a role."""
    probe = keys.probe
    return {
        "XADD": ("XADD", probe, "NOMKSTREAM", "*", "f", "v"),
        "EVAL": ("EVAL", "return 0", 0),
        "EVALSHA": ("EVALSHA", "0" * 40, 0),
        "EXEC": ("EXEC",),
        "XGROUP CREATE": ("XGROUP", "CREATE", probe, "g", "0"),
        "XGROUP DESTROY": ("XGROUP", "DESTROY", probe, "g"),
        "SREM": ("SREM", probe, "m"),
        "SCAN": ("SCAN", 0, "COUNT", 1),
        "HDEL": ("HDEL", probe, "f"),
        "UNLINK": ("UNLINK", probe),
        "PEXPIREAT": ("PEXPIREAT", probe, 1),
        "ZADD": ("ZADD", probe, "XX", 1, "m"),
        "ZREM": ("ZREM", probe, "m"),
        "XDEL": ("XDEL", probe, "0-1"),
        "XREADGROUP": ("XREADGROUP", "GROUP", "g", "c", "STREAMS", probe, ">"),
        "XACK": ("XACK", probe, "g", "0-1"),
        "XCLAIM": ("XCLAIM", probe, "g", "c", 0, "0-1", "JUSTID"),
        "XAUTOCLAIM": ("XAUTOCLAIM", probe, "g", "c", 0, "0", "COUNT", 1, "JUSTID"),
        "CLIENT ID": ("CLIENT", "ID"),
        "CLIENT UNBLOCK": ("CLIENT", "UNBLOCK", 0),
    }


def judge(rights: Rights, keys: Keys, roles: Sequence[Role], user: str) -> Iterator[Finding]:
    """What to say of a user's rights.

    Who lacks something of a role that was partly given gets a problem: it is a mistake. Who has nothing of a role is not meant to
    have it.
    """
    whom = f"user {user}" if user else "the user"
    if rights.is_shut_out:
        yield Finding(
            check="rights",
            severity="problem",
            stream=keys.name,
            text=f"{whom} may not touch the keys {keys.pattern}",
            remedy=redis("ACL", "SETUSER", user or "USER", f"~{keys.pattern}"),
        )
        return
    able, unable, wrong = _sorted(rights, roles)
    for missing, tasks in wrong.items():
        yield Finding(
            check="rights",
            severity="problem",
            stream=keys.name,
            text=f"{whom} may not run {', '.join(sorted(missing))}, and so may not {_or(tasks)}",
            remedy=redis("ACL", "SETUSER", user or "USER", *_grants(missing)),
        )
    if able:
        all_of_it = "do all that there is to do" if len(able) == len(roles) else _and(able)
        yield Finding(check="rights", severity="ok", stream=keys.name, text=f"{whom} may {all_of_it}")
    if unable:
        yield Finding(
            check="rights",
            severity="note",
            stream=keys.name,
            text=f"{whom} is not meant to {_or([role.does for role in unable])}: the commands for it are not allowed",
        )
    late = rights.commands & set(COURTESIES)
    if late and roles[-1].does in able:
        yield Finding(
            check="rights",
            severity="note",
            stream=keys.name,
            text=f"{whom} may not run {', '.join(sorted(late))}: a worker that is stopped ends up to its `block` later",
            remedy=redis("ACL", "SETUSER", user or "USER", *_grants(late)),
        )


def _sorted(rights: Rights, roles: Sequence[Role]) -> tuple[list[str], list[Role], dict[frozenset[str], list[str]]]:
    """Roles that the user can do, roles that it is not meant to have, and by what is missing those that it should have."""
    able: list[str] = []
    unable: list[Role] = []
    wrong: dict[frozenset[str], list[str]] = {}
    for role in roles:
        missing = frozenset(role.needs) & rights.commands
        if not missing:
            able.append(role.does)
        elif set(role.marks) - rights.commands:
            wrong.setdefault(missing, []).append(role.does)
        else:
            unable.append(role)
    for role in tuple(unable):
        # What is missing by mistake for one is so for another, too.
        missing = frozenset(role.needs) & rights.commands
        if (cause := next((one for one in wrong if missing <= one), None)) is not None:
            wrong[cause].append(role.does)
            unable.remove(role)
    return able, unable, wrong


def _grants(commands: frozenset[str]) -> list[str]:
    return [f"+{name.lower().replace(' ', '|')}" for name in sorted(commands)]


def _and(tasks: Sequence[str]) -> str:
    return _listed(tasks, "and")


def _or(tasks: Sequence[str]) -> str:
    return _listed(tasks, "or")


def _listed(tasks: Sequence[str], word: str) -> str:
    *most, last = tasks
    return f"{', '.join(most)} {word} {last}" if most else last
