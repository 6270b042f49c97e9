"""The figures of `Snapshot`, and the groups that nobody reads."""

from __future__ import annotations

from typing import Any, TypeVar

from streamq._ops.inspect.counting import unread
from streamq._ops.inspect.replies import counter, entries, mapping
from streamq._requests import Command, Pipeline, Plan, ask_each, consumers_of, entry_order, groups_of, text
from streamq._spec import Spec
from streamq.errors import ServerError
from streamq.messages import GroupSnapshot, Snapshot

T = TypeVar("T")

UNHEARD_MS = 60_000
"""A group is abandoned when none of its consumers was heard of for so long, or for a lease if that is longer."""


def snapshot(spec: Spec[T]) -> Plan[Snapshot]:
    """The stream now. One write of five requests; more only for groups with unread entries: who reads them, how many."""
    keys = spec.keys
    answers: list[Any] = yield from ask_each(
        Pipeline(
            (
                Command(("XLEN", keys.stream), (keys.stream,), int),
                groups_of(keys.stream),
                Command(("XLEN", keys.dead), (keys.dead,), int),
                Command(("ZCARD", keys.scheduled), (keys.scheduled,), int),
                Command(("HGETALL", keys.meta), (keys.meta,), mapping),
            )
        )
    )
    length, groups, dead, scheduled, counters = answers
    if isinstance(groups, ServerError) and groups.code == "ERR":
        groups = []  # no such key: a stream that was never used has no groups
    for answer in (length, groups, dead, scheduled, counters):
        if isinstance(answer, Exception):
            raise answer
    paused = b"paused" in counters
    found: dict[str, GroupSnapshot] = {}
    for row in groups:
        ready, exact = yield from unread(spec, row, length)
        abandoned = ready > 0 and not paused and (yield from _unheard(spec, row))
        found[text(row["name"])] = _group(row, ready, exact=exact, abandoned=abandoned, counters=counters)
    return Snapshot(
        name=keys.name,
        deployment=keys.deployment,
        ready=sum(group.ready for group in found.values()) if found else length,
        pending=sum(group.pending for group in found.values()),
        scheduled=scheduled,
        dead=dead,
        length=length,
        paused=paused,
        groups=found,
    )


def _unheard(spec: Spec[T], row: dict[str, Any]) -> Plan[bool]:
    """Whether no consumer of the group was heard of for a while. One request, none if there is no consumer."""
    if row["consumers"] == 0:
        return True
    stream = spec.keys.stream
    consumers = yield from ask_each(Pipeline((consumers_of(stream, row["name"]),)))
    if isinstance(consumers[0], Exception):
        return False  # the group, or the stream, is gone meanwhile
    longest = max(UNHEARD_MS, spec.options.lease_ms)
    return all(consumer["idle"] >= longest for consumer in consumers[0])


def abandoned(spec: Spec[T]) -> Plan[list[str]]:
    """Names of the groups that nobody reads: each pins the entries that it has not read.

    One write of three requests, and one request for each group that has entries to read.
    """
    stream, meta = spec.keys.stream, spec.keys.meta
    answers: list[Any] = yield from ask_each(
        Pipeline(
            (
                groups_of(stream),
                Command(("HEXISTS", meta, "paused"), (meta,), bool),
                entries(stream, "-", "+", 1, newest_first=True),
            )
        )
    )
    groups, paused, last = answers
    if paused is not False or isinstance(groups, Exception) or isinstance(last, Exception) or not last.ids:
        return []  # nobody is to read it, it is not there, or there is nothing to read
    found = []
    for row in groups:
        is_behind = entry_order(text(row["last-delivered-id"])) < entry_order(last.ids[0])
        if is_behind and (yield from _unheard(spec, row)):
            found.append(text(row["name"]))
    return found


def _group(
    row: dict[str, Any], ready: int, *, exact: bool, abandoned: bool, counters: dict[bytes, bytes]
) -> GroupSnapshot:
    def count(name: str) -> int:
        return counter(counters, f"{name}:".encode() + row["name"])

    return GroupSnapshot(
        name=text(row["name"]),
        ready=ready,
        exact=exact,
        pending=row["pending"],
        consumers=row["consumers"],
        done=count("done"),
        retried=count("retried"),
        dead=count("dead"),
        redriven=count("redriven"),
        abandoned=abandoned,
    )
