"""``streamq acl``: the line that gives a user of the server what its work needs, and no more."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Final

import typer

from streamq.cli.output import AsJson, Deployment, print_json, say
from streamq.errors import ConfigurationError
from streamq.keys import Keys, check_deployment, registry

_USER: Final = re.compile(r"[A-Za-z0-9._@+-]{1,128}")
"""Names that redis-cli takes as they are."""


class Role(StrEnum):
    """What a user does."""

    PRODUCER = "producer"
    WORKER = "worker"
    OPERATOR = "operator"
    VIEWER = "viewer"


def acl(
    role: Annotated[
        Role,
        typer.Argument(help="producer adds; worker handles; operator does all that commands do; viewer only looks."),
    ],
    *,
    user: Annotated[str, typer.Option("--user", help="Name of the user.")],
    name: Annotated[
        str | None, typer.Option("--stream", help="The only stream it may use; all of the deployment without it.")
    ] = None,
    cluster: Annotated[bool, typer.Option("--cluster", help="For the nodes of a cluster.")] = False,
    redis_6: Annotated[
        bool, typer.Option("--redis-6", help="For Redis 6.2, which cannot tell keys to read from keys to write.")
    ] = False,
    deployment: Deployment = None,
    as_json: AsJson = False,
) -> None:
    """Print the ACL SETUSER line of a user, to be given to redis-cli. It connects to no server.

    The line sets what the user may do, and leaves its passwords as they are: give it again after an update of streamq. A new
    user cannot log in before it has one.
    """
    if not _USER.fullmatch(user):
        raise ConfigurationError(
            f"user {user!r:.80} is not valid: use 1 to 128 of the characters A-Z a-z 0-9 . _ @ + -"
        )
    check_deployment(deployment)
    patterns = _patterns(name, deployment)
    if role is Role.VIEWER and not redis_6:
        patterns = [f"%R{pattern}" for pattern in patterns]
    commands = _commands(role, is_for_all=name is None)
    if cluster:
        commands |= {"CLUSTER SLOTS", "ASKING"}
        if role in {Role.OPERATOR, Role.VIEWER}:
            commands |= {"CLUSTER INFO", "CLUSTER NODES"}  # for `doctor`
    rules = [
        "on",
        "resetkeys",
        *patterns,
        "-@all",
        *(f"+{each.lower().replace(' ', '|')}" for each in sorted(commands)),
    ]
    if as_json:
        print_json({"role": role.value, "user": user, "rules": rules})
    else:
        say(f"ACL SETUSER {user} {' '.join(rules)}")


def _patterns(name: str | None, deployment: str | None) -> list[str]:
    if name is not None:
        return [f"~{Keys(name, deployment).pattern}", f"~{registry(deployment)}"]
    return [f"~{deployment or 'streamq'}:*"]


def _commands(role: Role, *, is_for_all: bool) -> set[str]:
    from streamq._ops import access
    from streamq._ops.doctor.rights import COURTESIES, SCRIPTS

    making = {"XGROUP CREATE", "SADD"}
    match role:
        case Role.PRODUCER:
            return {*access.SCHEDULER, *SCRIPTS, *making}
        case Role.WORKER:
            return {*access.READER, *SCRIPTS, *making, *COURTESIES, *access.EFFECTS}
        case Role.OPERATOR:
            return {*access.VIEWER, *access.READER, *SCRIPTS, *making, "XGROUP DESTROY", "SREM", "SCAN", "ZSCAN"}
        case Role.VIEWER:
            # SCAN shows the names of all keys of the server; who looks at one stream does without.
            return {*access.VIEWER, *(("SCAN",) if is_for_all else ())}
