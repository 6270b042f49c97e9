"""What is found, and what mends it. As JSON (``streamq doctor --json``) these stay stable."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal

import msgspec

from streamq.errors import ConfigurationError, ServerTooOldError
from streamq.keys import Keys

Severity = Literal["ok", "note", "problem"]

Check = Literal[
    "connection",
    "version",
    "mode",
    "role",
    "cluster",
    "sentinels",
    "loading",
    "clock",
    "memory",
    "eviction",
    "persistence",
    "replicas",
    "clients",
    "rights",
    "trial",
    "abilities",
    "streams",
    "reach",
    "types",
    "layout",
    "previous_layout",
    "maintenance",
    "timers",
    "overdue",
    "groups",
    "consumers",
    "pending",
    "settings",
    "paused",
    "dead_letters",
    "hidden",
]
"""What a finding is about. A closed list."""

WORST_FIRST: Final[dict[Severity, int]] = {"problem": 0, "note": 1, "ok": 2}


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was looked at.

    Attributes:
        check: What it is about.
        severity: ``problem`` (jobs are lost or stand still, or soon will), ``note`` (somebody should know), or ``ok``.
        stream: The stream it is about, or None for the server.
        group: The group it is about, or None.
        text: A sentence for people.
        remedy: The command or the setting that mends it, or None. Give streamq's commands the ``--url`` that you use.
    """

    check: Check
    severity: Severity
    stream: str | None = None
    group: str | None = None
    text: str
    remedy: str | None = None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All findings, the worst first.

    Attributes:
        server: Its address, without credentials.
        product: ``redis`` or ``valkey``, by its own word.
        version: Of the server.
        deployment: Whose streams were looked at.
        streams: Those that were looked at.
        problems: How many findings are problems.
        notes: How many are notes.
        findings: All of them, also what is well.
    """

    server: str
    product: str
    version: str
    deployment: str | None
    streams: list[str]
    problems: int
    notes: int
    findings: list[Finding]


def sort(findings: Iterable[Finding], streams: Iterable[str]) -> list[Finding]:
    """The server's first, then stream by stream, the worst stream first; within each the worst finding first."""
    found = list(findings)
    worst = dict.fromkeys(streams, 2)
    for one in found:
        if one.stream is not None:
            worst[one.stream] = min(worst.get(one.stream, 2), WORST_FIRST[one.severity])

    def place(one: Finding) -> tuple[int, str, int]:
        where = -1 if one.stream is None else worst[one.stream]
        return where, one.stream or "", WORST_FIRST[one.severity]

    return sorted(found, key=place)


def merge(findings: Iterable[Finding], streams: Sequence[str]) -> list[Finding]:
    """What is said of the user for all of several streams alike is said once."""
    found = list(findings)
    of_all: dict[Finding, set[str]] = {}
    for one in found:
        if one.check in {"rights", "hidden"} and one.stream is not None:
            of_all.setdefault(msgspec.structs.replace(one, stream=None), set()).add(one.stream)
    same = {one for one, where in of_all.items() if len(where) == len(streams) > 1}
    rest = [one for one in found if one.stream is None or msgspec.structs.replace(one, stream=None) not in same]
    return [*same, *rest]


def many(number: int, one: str, several: str) -> str:
    """A number of things, in words."""
    return f"{number:,} {one if number == 1 else several}"


def streamq(keys: Keys, *words: str) -> str:
    """A command of ours, for the stream's deployment."""
    space = () if keys.deployment is None else ("--deployment", keys.deployment)
    return shlex.join(("streamq", *words, *space))


def redis(*words: str) -> str:
    """A command for redis-cli."""
    return shlex.join(("redis-cli", *words))


def is_denied(answer: Any) -> bool:
    """Whether an element of a pipeline failed because the user may not, or the server does not let anybody."""
    return isinstance(answer, ConfigurationError)


def is_unknown(answer: Any) -> bool:
    """Whether the server does not know the command: it is old, or its operator has taken the command away."""
    return isinstance(answer, ServerTooOldError)


def is_key_denied(answer: Any) -> bool:
    """Whether the user may not touch the key, whatever the command."""
    return is_denied(answer) and not is_unknown(answer) and " access " in str(answer)
