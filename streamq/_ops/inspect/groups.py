"""Figures of one group: of what was seen of it, makes a `FullGroup`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from streamq._ops.inspect import beats as told
from streamq._ops.inspect.beats import WorkerBeat
from streamq._ops.inspect.counting import Unread
from streamq._ops.inspect.replies import Page, age_s, counter, entry_ms, value_of
from streamq._requests import text
from streamq._spec import Spec
from streamq.snapshots import FullGroup, Member, OldestPending, OldestReady, Omission

LISTED: Final = 1_000
"""Most consumers of a group that are listed."""

PAYLOAD_CHARS: Final = 1_000
"""Most characters of a payload that are shown."""

_TAKEOVER_MS: Final = 60_000
"""Crash backoff: so much longer than its lease an entry may wait to be taken over."""


class Look(NamedTuple):
    """What the second write tells of a group."""

    row: dict[str, Any]
    consumers: list[dict[str, Any]]
    pending: list[tuple[str, str, int, int]]
    first: Page


class Figures:
    """Makes groups of what was found."""

    def __init__(
        self,
        spec: Spec[Any],
        counters: dict[bytes, bytes],
        beats: dict[str, WorkerBeat],
        now_ms: int | None,
        *,
        payloads: bool,
    ) -> None:
        self._options = spec.options
        self._counters = counters
        self._beats = beats
        self._now_ms = now_ms
        self._payloads = payloads
        self._paused = b"paused" in counters

    def group(self, look: Look, ready: Unread, omitted: list[Omission]) -> FullGroup:
        """One that was looked into."""
        name = text(look.row["name"])
        known = {text(row["name"]) for row in look.consumers}
        # A worker that says no group is of an earlier version: it counts where it is a consumer.
        beats = {n: beat for n, beat in self._beats.items() if n in known or beat.about.group == name}
        lease_ms = told.lease_ms_of(beats.values(), self._options.lease_ms, self._now_ms)
        members = told.members(look.consumers, beats, lease_ms, self._now_ms)
        silent = [row for row in look.pending if row[2] >= lease_ms]
        spent_ms = max(lease_ms * self._options.max_deliveries, lease_ms + _TAKEOVER_MS)
        stuck = [row for row in silent if row[2] >= spent_ms and not _is_alive(members, row[1])]
        listed = sorted(members.values(), key=lambda one: (-one.pending, not one.alive, one.idle or 0.0, one.name))
        if len(listed) > LISTED:
            omitted.append(Omission(f"consumers of {name}", f"{len(listed):,}: {LISTED:,} are listed"))
        idle = [row["idle"] for row in look.consumers]
        return replace(
            self.unseen(look.row, ready),
            abandoned=ready.ready > 0
            and not self._paused
            and all(ms >= max(told.HEARD_MS, lease_ms) for ms in idle)
            and not any(one.alive for one in members.values()),
            lease=lease_ms / 1000,
            oldest_ready=self._oldest_ready(look.first),
            oldest_pending=self._oldest_pending(look.pending, members),
            silent=len(silent),
            stuck=len(stuck),
            live=sum(one.alive is True for one in members.values()),
            members=listed[:LISTED],
        )

    def unseen(self, row: dict[str, Any], ready: Unread) -> FullGroup:
        """One of which only this is known."""

        def count(name: str) -> int:
            return counter(self._counters, f"{name}:".encode() + row["name"])

        return FullGroup(
            name=text(row["name"]),
            ready=ready.ready,
            exact=ready.exact,
            pending=row["pending"],
            consumers=row["consumers"],
            done=count("done"),
            retried=count("retried"),
            dead=count("dead"),
            redriven=count("redriven"),
            abandoned=False,
            passed=count("passed"),
            lease=self._options.lease_ms / 1000,
        )

    def _oldest_ready(self, page: Page) -> OldestReady | None:
        if not page.ids:
            return None
        [entry_id], [fields] = page.ids, page.fields
        payload = value_of(fields, b"job") if self._payloads else None
        return OldestReady(
            entry_id=entry_id,
            job_id=text(value_of(fields, b"sq:id") or entry_id.encode()),
            age=age_s(self._now_ms, entry_ms(entry_id)),
            payload=None if payload is None else shortened(payload),
            payload_bytes=None if payload is None else len(payload),
        )

    def _oldest_pending(
        self, pending: list[tuple[str, str, int, int]], members: Mapping[str, Member]
    ) -> OldestPending | None:
        if not pending:
            return None
        entry_id, consumer, idle_ms, deliveries = pending[0]
        return OldestPending(
            entry_id=entry_id,
            age=age_s(self._now_ms, entry_ms(entry_id)),
            consumer=consumer,
            alive=members[consumer].alive if consumer in members else None,
            idle=idle_ms / 1000,
            deliveries=deliveries,
        )


def _is_alive(members: Mapping[str, Member], consumer: str) -> bool:
    return consumer in members and members[consumer].alive is True


def shortened(payload: bytes) -> str:
    """The beginning of a payload as text."""
    return text(payload[: 4 * PAYLOAD_CHARS])[:PAYLOAD_CHARS]
