"""The life of a job as data: which step leads from where to where, and who repairs what a crash leaves.

``docs/guarantees.md`` draws its diagram from this table (a test holds the two together), and the crash tests take from it
the steps they must try. Every step is one atomic unit on the server.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class State(StrEnum):
    """Where a job is, for one group. At every instant it is in exactly one of them."""

    SCHEDULED = "scheduled"
    READY = "ready"
    PENDING = "pending"
    DONE = "done"
    DEAD = "dead"
    GONE = "gone"
    """Taken away on purpose: cancelled, purged, or dropped with its group or stream."""


class Step(NamedTuple):
    """One edge of a job's life."""

    verb: str
    source: State | None
    target: State
    unit: str
    after_crash: str


STEPS: tuple[Step, ...] = (
    Step(
        "add",
        None,
        State.READY,
        "XADD, or add.lua with a job ID",
        "the job is there or not; the caller's error says unknown",
    ),
    Step(
        "schedule",
        None,
        State.SCHEDULED,
        "schedule.lua; what is due already is READY at once",
        "the job waits or not; the caller's error says unknown",
    ),
    Step("replace", State.SCHEDULED, State.SCHEDULED, "schedule.lua", "it is the one or the other; replace it again"),
    Step("reschedule", State.SCHEDULED, State.SCHEDULED, "reschedule.lua", "it is due then or before; do it again"),
    Step("promote", State.SCHEDULED, State.READY, "promote.lua, per 200 jobs", "the next promoter goes on"),
    Step("run now", State.SCHEDULED, State.READY, "run_now.lua", "it waits or is ready; the error says unknown"),
    Step("read", State.READY, State.PENDING, "XREADGROUP", "reclaim, when the lease has run out"),
    Step("claim ID", State.PENDING, State.PENDING, "claim_id.lua", "the entry's next owner takes the ID over"),
    Step("renew", State.PENDING, State.PENDING, "renew.lua", "the lease runs out; reclaim"),
    Step("reclaim", State.PENDING, State.PENDING, "reclaim.lua", "reclaim by another, after another lease"),
    Step("start", State.PENDING, State.PENDING, "start.lua", "reclaim; the start counts"),
    Step("ack", State.PENDING, State.DONE, "ack.lua", "reclaim, if the acknowledgement did not arrive"),
    Step("commit", State.PENDING, State.DONE, "commit.lua", "reclaim; no effect was applied"),
    Step("retry", State.PENDING, State.SCHEDULED, "retry.lua", "reclaim; the attempt was not counted"),
    Step("retry at once", State.PENDING, State.READY, "retry.lua", "reclaim; the attempt was not counted"),
    Step("release", State.PENDING, State.PENDING, "release.lua", "reclaim, when the lease has run out"),
    Step(
        "dead-letter",
        State.PENDING,
        State.DEAD,
        "MULTI, dead_letter.lua per entry, EXEC",
        "reclaim; then dead-lettered",
    ),
    Step(
        "tombstone",
        State.PENDING,
        State.DEAD,
        "reclaim.lua, renew.lua or start.lua, for an entry without body",
        "reclaim finds it again",
    ),
    Step(
        "pass over",
        State.PENDING,
        State.DONE,
        "pass_over.lua, for what only another group handles",
        "reclaim; then passed over",
    ),
    Step("cancel", State.READY, State.GONE, "cancel.lua", "the job is there or not; cancel it again"),
    Step("cancel", State.SCHEDULED, State.GONE, "cancel.lua", "the job is there or not; cancel it again"),
    Step(
        "drop orphan",
        State.SCHEDULED,
        State.DEAD,
        "promote.lua, for an entry without time, or that is none",
        "the next promoter finds it again",
    ),
    Step("redrive", State.DEAD, State.READY, "redrive.lua, per letter", "the job is dead or ready; redrive it again"),
    Step("purge", State.DEAD, State.GONE, "purge.lua, per 20 letters", "the letters are there or not; purge again"),
    Step("trim", State.DONE, State.DONE, "trim.lua, per pass", "the next trim goes on"),
    Step("create group", None, State.READY, "XGROUP CREATE", "the next reader makes it"),
    Step("drop group", State.READY, State.GONE, "drop_group.lua, with force", "the group is there or not"),
    Step("drop group", State.PENDING, State.GONE, "drop_group.lua, with force", "the group is there or not"),
    Step("delete", State.READY, State.GONE, "delete.lua, with force", "its jobs are gone or not; delete it again"),
    Step("delete", State.SCHEDULED, State.GONE, "delete.lua, with force", "its jobs are gone or not; delete it again"),
    Step("delete", State.PENDING, State.GONE, "delete.lua, with force", "its jobs are gone or not; delete it again"),
    Step("delete", State.DEAD, State.GONE, "delete.lua, with force", "its jobs are gone or not; delete it again"),
)
