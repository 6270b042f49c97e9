"""From figures to findings: what is wrong, how bad it is, and what to type next. No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from streamq._text import duration, shown
from streamq.keys import NAME
from streamq.snapshots import Finding, FullGroup, FullSnapshot, Severity

_ORDER: Final[dict[Severity, int]] = {"critical": 0, "warning": 1, "note": 2}

OVERDUE_S: Final = 10.0
"""A scheduled job that was due so long ago should have been moved."""

BEHIND_S: Final = 60.0
"""A job that waits longer, while there are workers, is worth a note."""

LONG: Final = 100_000
"""Entries of a stream that keeps all of them, from which on that is worth a note."""

_RUN: Final = "streamq run MODULE:WORKER"


def verdict(found: FullSnapshot) -> list[Finding]:
    """The findings, the worst first."""
    findings = [*_work(found), *_stream(found), *_letters(found), *_upkeep(found)]
    return sorted(findings, key=lambda one: _ORDER[one.severity])


def _command(found: FullSnapshot, *words: str) -> str:
    space = () if found.deployment is None else ("--deployment", found.deployment)
    return " ".join(("streamq", *words, *space))


def _work(found: FullSnapshot) -> Iterator[Finding]:
    """Work that stands still."""
    if found.paused:
        yield Finding(
            kind="paused",
            severity="warning",
            text="the stream is paused: nothing is started until it is resumed",
            command=_command(found, "resume", found.name),
        )
        return
    if not found.groups and found.length:
        yield Finding(
            kind="no_worker",
            severity="critical",
            text=f"{_count(found.length, 'entry waits', 'entries wait')}, and no worker has ever read: there is no group",
            command=_RUN,
        )
    is_read = any(group.live for group in found.groups.values())
    for group in found.groups.values():
        if not group.live and (group.ready or group.pending):
            yield _unread(found, group, others=is_read)
        elif group.stuck:
            yield Finding(
                kind="stuck",
                severity="critical",
                group=group.name,
                text=f"group {shown(group.name)}: of the first pending entries {group.stuck:,} should have been taken over "
                "long ago: their consumers are silent, and the live ones do not take them",
                command=_command(found, "doctor"),
            )
        elif group.oldest_ready is not None and (group.oldest_ready.age or 0) > BEHIND_S:
            yield Finding(
                kind="behind",
                severity="note",
                group=group.name,
                text=f"group {shown(group.name)} is behind: the oldest ready job has waited "
                f"{duration(group.oldest_ready.age or 0)}",
                command=f"{_RUN} --processes 4",
            )
    late = 0.0 if found.at is None or found.next_due is None else (found.at - found.next_due).total_seconds()
    if found.due and late > OVERDUE_S:
        jobs = _count(found.due, "scheduled job is", "scheduled jobs are")
        yield Finding(
            kind="overdue",
            severity="warning" if is_read else "critical",
            text=f"{jobs} due, the first for {duration(late)}, and nobody moves them into the stream",
            command=_command(found, "doctor") if is_read else _RUN,
        )


def _unread(found: FullSnapshot, group: FullGroup, *, others: bool) -> Finding:
    name = shown(group.name)
    at_least = "" if group.exact else "at least "
    if others and not group.pending:
        return Finding(
            kind="abandoned_group",
            severity="warning",
            group=group.name,
            text=f"nobody reads group {name}: it pins {at_least}{_count(group.ready, 'entry', 'entries')} that it has not "
            "read. Start its workers, or drop it",
            # A name that nobody could type is not ours.
            command=_command(found, "groups", "drop", found.name, name) if NAME.fullmatch(group.name) else None,
        )
    return Finding(
        kind="no_worker",
        severity="critical",
        group=group.name,
        text=f"nobody handles group {name}: {at_least}{group.ready:,} ready, {group.pending:,} pending, and no live worker",
        command=_RUN,
    )


def _stream(found: FullSnapshot) -> Iterator[Finding]:
    most = found.settings.max_ready if found.settings is not None else None
    ready = max((group.ready for group in found.groups.values()), default=found.length)
    if most is not None and ready >= most:
        yield Finding(
            kind="full",
            severity="warning",
            text=f"the stream is full: {ready:,} ready, max_ready is {most:,}; adding is refused",
            command=f"{_RUN} --processes 4",
        )
    keeps = found.settings is not None and found.settings.retention == "keep"
    if (
        keeps
        and found.settings
        and found.settings.keep_for is found.settings.keep_last is None
        and found.length >= LONG
    ):
        yield Finding(
            kind="keeps_all",
            severity="note",
            text=f"finished entries are kept without a rule (keep_for, keep_last): the stream holds {found.length:,}",
            command=_command(found, "trim", found.name),
        )
    is_empty = not (found.length or found.dead or found.scheduled or found.groups or found.paused)
    if is_empty and found.settings is None:
        yield Finding(
            kind="never_used",
            severity="note",
            text="there is nothing under this name: it was never used, or is spelled otherwise",
            command=_command(found, "inspect"),
        )


def _letters(found: FullSnapshot) -> Iterator[Finding]:
    figures = found.dead_letters
    if not found.dead:
        return
    command = _command(found, "dead-letters", "list", found.name)
    reasons = ", ".join(f"{shown(reason) or 'none'} {count:,}" for reason, count in list(figures.reasons.items())[:4])
    at_least = "" if figures.exact else "at least "
    if figures.recent:
        yield Finding(
            kind="dead_letters_growing",
            severity="warning",
            text=f"{at_least}{_count(figures.recent, 'job was', 'jobs were')} dead-lettered within the last hour, the last "
            f"one {duration(figures.newest or 0)} ago ({reasons})",
            command=command,
        )
    else:
        yield Finding(
            kind="dead_letters",
            severity="note",
            text=f"{_count(found.dead, 'dead letter waits', 'dead letters wait')} for a decision ({reasons})",
            command=command,
        )


def _upkeep(found: FullSnapshot) -> Iterator[Finding]:
    for one in found.differences:
        whose = "workers" if one.group is None else f"workers of group {shown(one.group)}"
        values = "; ".join(f"{shown(value)} ({_names(names)})" for value, names in one.values.items())
        yield Finding(
            kind="settings_differ",
            severity="warning",
            group=one.group,
            text=f"live {whose} do not agree on {one.setting}: {values}",
            command=_command(found, "inspect", found.name, "--json"),
        )
    if found.eviction_policy not in {None, "noeviction"}:
        yield Finding(
            kind="evicts",
            severity="warning",
            text=f"maxmemory-policy is {shown(found.eviction_policy or '')}: a full server throws jobs away",
            command="redis-cli CONFIG SET maxmemory-policy noeviction",
        )
    if found.unmatched or found.orphans:
        lost = f"{found.orphans:,} so far" + (f", {found.unmatched:,} now" if found.unmatched else "")
        yield Finding(
            kind="orphans",
            severity="warning" if found.unmatched else "note",
            text=f"what was scheduled has lost its time or its entry ({lost}): by eviction, a restore, or commands by hand",
            command=_command(found, "doctor"),
        )


def _names(names: list[str]) -> str:
    few = ", ".join(shown(name) for name in names[:2])
    return few + (", ..." if len(names) > 2 else "")  # noqa: PLR2004  # two are enough to find the others


def _count(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"
