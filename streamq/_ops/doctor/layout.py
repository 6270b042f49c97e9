"""Which streams there are, what their keys hold, and where the keys lie. No value of a key is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from streamq._ops.doctor.findings import Finding, is_denied, is_key_denied, many, redis, streamq
from streamq._requests import Command, Pipeline, Plan, Reply, ask_each, scan, text, texts
from streamq._scripts_upkeep import Role
from streamq.errors import ServerError
from streamq.keys import HASH_TAGS, NAME, Keys, deployment_pattern, migration_record, owner_of, registry, slot_of

_PAGE: Final = 1_000

SCANNED: Final = 100_000
"""Most keys of the server looked at for streams that are missing from the registry."""


_NAMED: Final = 3
"""Most keys that are named: enough to find the others."""


class Discovered(NamedTuple):
    """The streams of a deployment."""

    names: list[str]
    """All that are to be looked at."""
    findings: list[Finding]


def discover(deployment: str | None) -> Plan[Discovered]:
    """Names in the registry, and of streams of this layout or the previous one that it misses. One request per 1,000 keys."""
    key = registry(deployment)
    [listed] = yield from ask_each(Pipeline((Command(("SMEMBERS", key), (key,), texts),)))
    found: set[str] = set()
    findings = []
    if isinstance(listed, Exception):
        findings.append(_unlisted(key, listed))
        listed = []
    cursor, looked = "0", 0
    while looked < SCANNED:
        pattern = deployment_pattern(deployment)
        [page] = yield from ask_each(Pipeline((scan(cursor, "MATCH", pattern, "COUNT", _PAGE),)))
        if isinstance(page, Exception):
            findings.append(_unscanned(page))
            break
        cursor, keys = page
        found.update(owner[0] for each in keys if (owner := owner_of(each, deployment)) is not None)
        looked += _PAGE
        if cursor == "0":
            break
    else:
        findings.append(_unscanned(None))
    known = {name for name in listed if NAME.fullmatch(name)}
    if strange := len(listed) - len(known):
        findings.append(
            Finding(
                check="streams",
                severity="note",
                text=f"{many(strange, 'member', 'members')} of {key} cannot be the name of a stream: not of our making",
            )
        )
    return Discovered(sorted(known | found), findings)


def _unlisted(key: str, error: Exception) -> Finding:
    if is_denied(error) and "WRONGTYPE" in str(error):
        said, remedy = (
            f"{key}, where the names of streams are kept, holds something else",
            redis("RENAME", key, f"{key}.old"),
        )
    else:
        said, remedy = f"the names of streams cannot be read: {error}", None
    return Finding(
        check="streams", severity="problem", text=said, remedy=remedy or "name a stream: streamq doctor NAME"
    )


def _unscanned(error: Exception | None) -> Finding:
    said = f"only {SCANNED:,} keys of the server were" if error is None else "the keys of the server cannot be"
    why = "" if error is None else f" ({error})"
    return Finding(
        check="streams",
        severity="note",
        text=f"{said} looked through for streams that nobody has listed{why}",
        remedy="name a stream that is missing here: streamq doctor NAME",
    )


class Kinds(NamedTuple):
    """What the keys of a stream hold."""

    now: Mapping[str, Any]
    """Key -> the answer of TYPE."""
    previous: Mapping[str, Any]
    """Those of the previous layout that are there."""
    is_migrated: bool = False
    """Whether what these held was moved."""

    def may_be(self, key: str, kind: str) -> bool:
        """Whether `key` may be asked for what a `kind` holds: it is one, or not there, or the user may not see."""
        return self.now[key] in {kind, "none"} if isinstance(self.now[key], str) else True

    @property
    def is_shut_out(self) -> bool:
        """Whether the user may touch none of the keys."""
        return all(is_key_denied(answer) for answer in self.now.values())

    @property
    def is_reachable(self) -> bool:
        """Whether the server has any word on the keys of this layout: nodes of a cluster send us elsewhere."""
        return not all(isinstance(answer, ServerError) for answer in self.now.values())

    @property
    def is_seen(self) -> bool:
        """Whether the user may see what all keys hold."""
        return not any(isinstance(answer, Exception) for answer in self.now.values())


def kinds(keys: Keys) -> Plan[Kinds]:
    """What the keys hold. Two requests; a third one if there are keys of the previous layout."""
    now = yield from _types(tuple(keys.kinds))
    previous = yield from _types(tuple(keys.previous))
    old = {k: kind for k, kind in previous.items() if kind == keys.previous[k]}
    record = migration_record(keys.deployment, HASH_TAGS)
    asked = (Command(("HGET", record, "state"), (record,), _is_applied),) if old else ()
    [is_migrated] = (yield from ask_each(Pipeline(asked))) if asked else [False]
    return Kinds(now, old, is_migrated is True)


def _is_applied(reply: Reply) -> bool:
    return bool(reply == b"applied")


def _types(names: tuple[str, ...]) -> Plan[dict[str, Any]]:
    asked = Pipeline(tuple(Command(("TYPE", name), (name,), text) for name in names))
    return dict(zip(names, (yield from ask_each(asked)), strict=True))


def judge(keys: Keys, found: Kinds) -> Iterator[Finding]:
    """What to say of a stream's keys."""
    if not found.is_reachable:
        yield _unreachable(keys, next(iter(found.now.values())))
    there = {key: kind for key, kind in found.now.items() if not isinstance(kind, Exception) and kind != "none"}
    wrong = {key: kind for key, kind in there.items() if kind != keys.kinds[key]}
    for key, kind in wrong.items():
        wanted = keys.kinds[key]
        yield Finding(
            check="types",
            severity="problem",
            stream=keys.name,
            text=f"{key} holds a {kind}; nothing may be there"
            if wanted == "none"
            else f"{key} holds a {kind}, not a {wanted}",
            remedy=f"move it away: {redis('RENAME', key, key + '.wrong')}",
        )
    if there and not wrong:
        slots = {slot_of(key) for key in there}
        yield Finding(
            check="layout",
            severity="ok" if len(slots) == 1 else "problem",
            stream=keys.name,
            text=f"{many(len(there), 'key', 'keys')} of the present layout, all in slot {keys.slot}",
        )
    yield from _previous(keys, found)
    if found.is_seen and not there and not found.previous:
        yield Finding(
            check="layout",
            severity="note",
            stream=keys.name,
            text="there is nothing under this name: it was never used, or is spelled otherwise",
            remedy=streamq(keys, "inspect"),
        )


def _unreachable(keys: Keys, answer: Any) -> Finding:
    code = answer.code if isinstance(answer, ServerError) else ""
    if code == "MOVED":
        node = str(answer).split(" (")[0].split()[-1]
        said = f"its keys (slot {keys.slot}) lie on another node of the cluster, {node}"
    elif code == "CLUSTERDOWN":
        said = f"nobody in the cluster serves its keys (slot {keys.slot}): {answer}"
    else:
        said = f"its keys (slot {keys.slot}) cannot be looked at: {answer}"
    return Finding(check="reach", severity="problem", stream=keys.name, text=said)


def _previous(keys: Keys, found: Kinds) -> Iterator[Finding]:
    if not found.previous:
        return
    old = sorted(found.previous)
    slots = len({slot_of(key) for key in old})
    some = ", ".join(old[:_NAMED]) + (", ..." if len(old) > _NAMED else "")
    said, remedy = "what they hold is not seen", streamq(keys, "migrate", "apply")
    if found.is_migrated:
        said = "what they held was moved, what they hold since is not seen"
        remedy = streamq(keys, "migrate", "cleanup", HASH_TAGS)
    yield Finding(
        check="previous_layout",
        severity="note" if found.is_migrated else "problem",
        stream=keys.name,
        text=f"{many(len(old), 'key', 'keys')} of the previous layout, which has no hash tag, in {many(slots, 'slot', 'slots')} "
        f"({some}): {said}",
        remedy=remedy,
    )


def tokens(keys: Keys, groups: list[str]) -> Plan[list[Finding]]:
    """Tokens of maintenance that will never end, so that nobody does that work any more. One request."""
    # Some are a group's, others the stream's: those are there without a group, too.
    names = sorted({keys.tick(role.token(group)) for role in Role for group in (*groups, "")})
    asked = Pipeline(tuple(Command(("PTTL", name), (name,), _whole) for name in names))
    answers = yield from ask_each(asked)
    return [
        Finding(
            check="maintenance",
            severity="problem",
            stream=keys.name,
            text=f"{name} never ends: nobody does the work that it stands for. A backup or a hand has put it there",
            remedy=redis("UNLINK", name),
        )
        for name, left in zip(names, answers, strict=True)
        if left == -1
    ]


def _whole(reply: Reply) -> int:
    return int(reply)
