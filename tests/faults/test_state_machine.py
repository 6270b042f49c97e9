"""Random sequences of public operations against a real server and a model of the life of a job, compared after every step.

The seeds are fixed, so that a run says the same everywhere. To look for more, at random:
``STREAMQ_EXAMPLES=2000 pytest tests/faults/test_state_machine.py -k valkey``; what it finds is printed as a small program.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from faults.model import MAX_DELIVERIES, MAX_REDRIVES, Delivery, Entry, Letter, Lost, Model, Refused
from faults.view import RECEIPTS, Server, TimerView, look_commands, view_of
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from streamq import Added, Backoff, Job, Stream, StreamOptions
from streamq.errors import JobStateError, LeaseLostError

EXAMPLES = int(os.environ.get("STREAMQ_EXAMPLES", "0"))
GROUPS = ("g", "h", "k")  # k is not there in the beginning

group_names = st.sampled_from(GROUPS)
consumers = st.sampled_from(("c1", "c2"))
job_ids = st.sampled_from(("x", "y"))
picks = st.integers(0, 7)
LATER_S = 3600
LATE = 6
"""Picks from here on are of deliveries and letters that may be over."""


def told(timer: TimerView) -> tuple[str, int, str | None]:
    """What is known of a job that waits: its marker, its next attempt, and the only group that gets it."""
    marker = json.loads(timer.fields[b"job"])["marker"]
    return marker, int(timer.fields.get(b"sq:attempt", 1)), timer.group or None


class Life(RuleBasedStateMachine):
    """The operations, each on the model and on the server."""

    server: Server
    url: str

    def __init__(self) -> None:
        super().__init__()
        name = self.server.next_name()
        self.streams: dict[str, Stream[dict]] = {
            group: Stream(
                name,
                redis=self.url,
                deployment=self.server.deployment,
                options=StreamOptions(
                    group=group, max_deliveries=MAX_DELIVERIES, retry=Backoff.constant(0, limit=1), max_payload=1000
                ),
            )
            for group in GROUPS
        }
        self.keys = self.streams["g"]._spec.keys
        self.model = Model("g", "h")
        self.jobs: list[tuple[Delivery, Job[dict]]] = []
        self.letters: list[tuple[Letter, str]] = []
        self.markers = 0
        self.dropped: set[str] = set()
        self.unread_removed = False
        self.finished: Counter[tuple[str, str]] = Counter()  # group, chosen ID -> acknowledged and committed runs
        self.streams["g"].groups.create("g")
        self.streams["g"].groups.create("h")

    def teardown(self) -> None:
        for stream in self.streams.values():
            stream.close()

    # --- helpers --------------------------------------------------------------------------

    def both(self, wanted: Callable[[], Any], got: Callable[[], Any]) -> Any:
        """What both answer; errors are answers."""
        try:
            want = wanted()
        except (Lost, Refused) as error:
            want = (type(error), str(error))
            refused = True
        else:
            refused = False
        try:
            found = got()
        except LeaseLostError:
            found = (Lost, "")
        except JobStateError as error:
            found = (Refused, error.state)
        if refused or isinstance(found, tuple):
            assert found == want
            return None
        return want, found

    def take(self, deliveries: list[Delivery], jobs: list[Job[dict]]) -> None:
        assert [(d.entry.id, d.count, d.entry.attempt) for d in deliveries] == [
            (job.entry_id, job.deliveries, job.attempt) for job in jobs
        ]
        self.jobs += zip(deliveries, jobs, strict=True)

    def live(self) -> list[tuple[Delivery, Job[dict]]]:
        return [pair for pair in self.jobs if not pair[0].over and self.model.fence(pair[0])]

    def pick(self, at: int) -> tuple[Delivery, Job[dict], Stream[dict]]:
        """Mostly one that is true, sometimes one that was."""
        some = self.live() if at < LATE else self.jobs
        delivery, job = some[-1 - at % len(some)]
        return delivery, job, self.streams[delivery.group]

    def pick_letter(self, at: int) -> tuple[Letter, str]:
        """Mostly one that is there."""
        there = [pair for pair in self.letters if pair[0] in self.model.letters]
        some = there if there and at < LATE else self.letters
        return some[-1 - at % len(some)]

    def note_new_entries(self) -> None:
        """Learn the IDs that the server gave to what was added again."""
        new = [entry for entry in self.model.entries if not entry.id]
        if new:
            [last] = self.server.raw(("XREVRANGE", self.keys.stream, "+", "-", "COUNT", len(new)))
            for entry, (entry_id, _) in zip(reversed(new), last, strict=True):
                entry.id = entry_id.decode()

    @initialize(
        wanted=st.lists(st.none() | job_ids, min_size=1, max_size=4),
        counts=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    )
    def begin(self, wanted: list[str | None], counts: tuple[int, int]) -> None:
        """Not with nothing: with jobs, some of them in hand."""
        for job_id in wanted:
            self.add(job_id)
        for group, count in zip("gh", counts, strict=True):
            if count:
                self.read(group, "c1", count)

    # --- rules: a job's own life ----------------------------------------------------------

    @rule(job_id=st.none() | job_ids)
    def add(self, job_id: str | None) -> None:
        self.markers += 1
        marker = f"m{self.markers}"
        created, state, entry = self.model.add(marker, job_id)
        added = self.streams["g"].add({"marker": marker}, job_id=job_id)
        self.check_added(added, created, state, entry)

    def check_added(self, added: Added, created: bool, state: str, entry: Entry | None) -> None:
        self.note_new_entries()
        assert (added.created, added.state, added.entry_id) == (created, state, entry and entry.id)

    @rule(job_id=st.none() | job_ids, later=st.booleans(), replace=st.booleans())
    def schedule(self, job_id: str | None, later: bool, replace: bool) -> None:
        """For later; or with `replace` also for now, in place of what waits."""
        self.markers += 1
        marker = f"m{self.markers}"
        replace = replace and job_id is not None
        if not later and not replace:
            return
        delay = LATER_S if later else None
        added = self.streams["g"].add({"marker": marker}, job_id=job_id, delay=delay, replace=replace)
        wanted = self.model.schedule(marker, job_id, added.job_id, later=later, replace=replace)
        self.check_added(added, *wanted)

    @rule(group=group_names)
    def add_for_one_group(self, group: str) -> None:
        """As a producer in another language may."""
        self.markers += 1
        fields = ("job", f'{{"marker":"m{self.markers}"}}', "sq:group", group)
        [entry_id] = self.server.raw(("XADD", self.keys.stream, "*", *fields))
        self.model._append(Entry(0, f"m{self.markers}", only=group, id=entry_id.decode()))

    @rule(group=group_names, consumer=consumers, count=st.integers(1, 3))
    def read(self, group: str, consumer: str, count: int) -> None:
        wanted = self.model.read(group, consumer, count)
        self.take(wanted, self.streams[group].read(consumer, count=count))

    @rule(group=group_names, consumer=consumers)
    def reclaim(self, group: str, consumer: str) -> None:
        jobs, dead, missing = self.model.reclaim(group, consumer)
        found = self.streams[group].reclaim(consumer, min_idle=0)
        self.take(jobs, found.claimed)
        assert found.dead == [entry.id for entry in dead]
        assert found.missing == [entry.id for entry in missing]
        assert not found.failed

    @precondition(lambda self: self.live())
    @rule(at=picks)
    def ack(self, at: int) -> None:
        delivery, job, stream = self.pick(at)
        answers = self.both(lambda: self.model.ack(delivery), lambda: stream.ack(job))
        assert answers is None or answers[0] == answers[1]
        if answers is not None and answers[1] and delivery.entry.chosen:
            self.finished[delivery.group, delivery.entry.chosen] += 1

    @precondition(lambda self: self.live())
    @rule(at=picks)
    def commit(self, at: int) -> None:
        delivery, job, stream = self.pick(at)
        if not job.has_effects:
            job.effects.hincrby(RECEIPTS, f"{delivery.group}/{delivery.entry.marker}", 1)
        if self.both(lambda: self.model.commit(delivery), lambda: stream.commit(job)) and delivery.entry.chosen:
            self.finished[delivery.group, delivery.entry.chosen] += 1

    @precondition(lambda self: self.live())
    @rule(at=picks)
    def retry(self, at: int) -> None:
        delivery, job, stream = self.pick(at)
        answers = self.both(lambda: self.model.retry(delivery, job.id), lambda: stream.retry(job, "boom"))
        assert answers is None or answers[0] == answers[1]
        self.note_new_entries()

    @precondition(lambda self: self.live())
    @rule(at=picks)
    def retry_later(self, at: int) -> None:
        delivery, job, stream = self.pick(at)
        answers = self.both(
            lambda: self.model.retry(delivery, job.id, later=True), lambda: stream.retry(job, "boom", delay=LATER_S)
        )
        assert answers is None or answers[0] == answers[1]

    @precondition(lambda self: self.live())
    @rule(at=picks)
    def reject(self, at: int) -> None:
        delivery, job, stream = self.pick(at)
        self.both(lambda: self.model.reject(delivery), lambda: stream.reject(job))

    @precondition(lambda self: self.live())
    @rule(at=picks)
    def release(self, at: int) -> None:
        delivery, job, stream = self.pick(at)
        self.both(lambda: self.model.release(delivery), lambda: stream.release(job))

    @precondition(lambda self: self.live())
    @rule(at=picks)
    def extend(self, at: int) -> None:
        delivery, job, stream = self.pick(at)
        self.both(lambda: self.model.extend(delivery), lambda: stream.extend(job))

    # --- rules: operators, and a vandal ---------------------------------------------------

    @precondition(lambda self: self.model.queued or self.model.timers)
    @rule(group=group_names, job_id=job_ids, only_scheduled=st.booleans())
    def cancel(self, group: str, job_id: str, only_scheduled: bool) -> None:
        stream = self.streams[group]
        cancel = stream.scheduled.cancel if only_scheduled else stream.cancel
        waited = len(self.model.timers)
        answers = self.both(
            lambda: self.model.cancel(group, job_id, only_scheduled=only_scheduled), lambda: cancel(job_id)
        )
        assert answers is None or answers[0] == answers[1]
        self.unread_removed |= answers is not None and answers[1] and waited == len(self.model.timers)

    # --- rules: what waits ----------------------------------------------------------------

    @precondition(lambda self: self.model.timers)
    @rule()
    def promote(self) -> None:
        """Time has passed for all that waits."""
        times = [part for place, timer in enumerate(self.model.timers, 1) for part in (place, timer)]
        self.server.raw(("ZADD", self.keys.scheduled, "XX", *times))
        wanted = self.model.promote()
        assert self.streams["g"].promote() == wanted  # it would make a group that is not there, as a read does
        self.note_new_entries()

    @precondition(lambda self: self.model.queued or self.model.timers)
    @rule(group=group_names, at=picks, job_id=job_ids)
    def run_now(self, group: str, at: int, job_id: str) -> None:
        group, job_id = self.pick_timer(at) or (group, job_id)
        answers = self.both(
            lambda: self.model.run_now(group, job_id), lambda: self.streams[group].scheduled.run_now(job_id)
        )
        if answers is not None:
            entry, entry_id = answers
            entry.id = entry_id

    @precondition(lambda self: self.model.queued or self.model.timers)
    @rule(group=group_names, at=picks, job_id=job_ids, hours=st.integers(1, 9))
    def reschedule(self, group: str, at: int, job_id: str, hours: int) -> None:
        group, job_id = self.pick_timer(at) or (group, job_id)
        stream = self.streams[group]
        answers = self.both(
            lambda: self.model.reschedule(group, job_id),
            lambda: stream.scheduled.reschedule(job_id, delay=hours * LATER_S),
        )
        if answers is not None:
            found = stream.scheduled.get(job_id)
            assert found is not None
            assert found.due_at == answers[1]

    def pick_timer(self, at: int) -> tuple[str, str] | None:
        """Mostly one that is there: a group that has it, and its job's ID."""
        timers = list(self.model.timers)
        if not timers or at >= LATE:
            return None
        group, _, job_id = timers[at % len(timers)].partition("/")
        return group or "g", job_id

    @precondition(lambda self: self.model.queued or self.model.timers)
    @rule(group=group_names, job_id=job_ids)
    def result(self, group: str, job_id: str) -> None:
        assert self.streams[group].result(job_id).state == self.model.result(group, job_id)

    @precondition(lambda self: self.letters)
    @rule(at=picks)
    def redrive(self, at: int) -> None:
        letter, letter_id = self.pick_letter(at)
        wanted = self.model.redrive(letter)
        found = self.streams["g"].dead_letters.redrive(letter_id, max_redrives=MAX_REDRIVES)
        assert letter_id in getattr(found, wanted), (wanted, found)
        self.note_new_entries()

    @precondition(lambda self: self.letters)
    @rule(at=picks)
    def purge(self, at: int) -> None:
        letter, letter_id = self.pick_letter(at)
        assert self.streams["g"].dead_letters.purge(letter_id) == self.model.purge(letter)

    @precondition(lambda self: self.dropped and self.model.entries)  # else every entry goes with its last settlement
    @rule()
    def trim(self) -> None:
        assert self.streams["g"].trim() == self.model.trim()

    @precondition(lambda self: len(self.model.groups) < len(GROUPS))
    @rule(group=group_names)
    def create_group(self, group: str) -> None:
        assert self.streams["g"].groups.create(group) == self.model.create(group)

    @precondition(lambda self: len(self.model.groups) > 1)
    @rule(group=st.sampled_from(("h", "k")), force=st.booleans())
    def drop_group(self, group: str, force: bool) -> None:
        answers = self.both(
            lambda: self.model.drop(group, force=force), lambda: self.streams["g"].groups.drop(group, force=force)
        )
        assert answers is None or answers[0] == answers[1]
        if answers is not None and answers[0]:
            self.dropped.add(group)

    @rule(group=group_names)
    def prune(self, group: str) -> None:
        """Takes no job from anybody."""
        self.streams[group].prune_consumers(min_idle=0)

    @precondition(lambda self: self.model.entries)
    @rule(at=picks)
    def vandalize(self, at: int) -> None:
        entry = self.model.entries[at % len(self.model.entries)]
        self.model.vandalize(entry)
        self.unread_removed = True
        assert self.server.raw(("XDEL", self.keys.stream, entry.id)) == [1]

    # --- what must hold -------------------------------------------------------------------

    @invariant()
    def everything_is_where_the_model_says(self) -> None:
        view = view_of(self.server.raw(*look_commands(self.keys, GROUPS)), GROUPS)
        model = self.model
        assert list(view.entries) == [entry.id for entry in model.entries]
        assert view.groups.keys() == model.groups.keys()
        for name, group in view.groups.items():
            assert group.unread == {entry.id for entry in model.unread(name)}
            assert group.pending == {entry.id: row for entry, row in model.groups[name].pending.items()}
            passed = model.groups[name].counts["passed"]
            assert view.counter("passed", name) == passed
        waits = {timer: (entry.marker, entry.attempt, entry.only) for timer, entry in model.timers.items()}
        assert {timer: told(one) for timer, one in view.timers.items()} == waits
        assert not view.orphans
        known = {letter_id for _, letter_id in self.letters}
        new = [letter_id for letter_id in view.letters if letter_id not in known]
        self.letters += zip([one for one in model.letters if one not in dict(self.letters)], new, strict=True)
        ids = dict(self.letters)
        wanted = {ids[one]: (one.entry.id, one.group) for one in model.letters}
        assert {i: (one.source, one.group) for i, one in view.letters.items()} == wanted
        receipts = {f"{group}/{marker}": n for (group, marker), n in model.receipts.items()}
        assert view.receipts == receipts

    @invariant()
    def inspect_says_so(self) -> None:
        seen = self.streams["g"].inspect()
        found = {
            name: (one.ready, one.pending, one.done, one.retried, one.dead, one.redriven)
            for name, one in seen.groups.items()
        }
        wanted = self.model.snapshot()
        if self.unread_removed:  # Redis 7.0's lag, from which `ready` is taken, counts such entries for good
            found, wanted = ({name: row[1:] for name, row in one.items()} for one in (found, wanted))
        assert found == wanted
        assert (seen.length, seen.dead) == (len(self.model.entries), len(self.model.letters))
        assert seen.scheduled == len(self.model.timers)
        listed = {f"{one.group or ''}/{one.job_id}": one.attempt for one in self.streams["g"].scheduled.list()}
        assert listed == {timer: entry.attempt for timer, entry in self.model.timers.items()}

    @invariant()
    def nothing_is_done_twice(self) -> None:
        """A group that was never dropped does a job once; and no group does a chosen ID twice."""
        assert not [key for key, n in self.model.receipts.items() if n > 1 and key[0] not in self.dropped]
        assert not [key for key, n in self.finished.items() if n > 1]


@pytest.mark.covers("S7", "F9", "F15", "I8", "Q1", "Q3", "Q4", "Q5", "R3", "C09", "C11", "C18", "C26", "C28", "C58")
@pytest.mark.timeout(1_800)  # half a minute where nothing else runs; one that is cut off is taken for many failures
def test_random_lives(worlds: Server, redis_url: str):
    machine = type("Life", (Life,), {"server": worlds, "url": redis_url})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=EXAMPLES or 100,
            stateful_step_count=50,
            derandomize=not EXAMPLES,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            print_blob=False,
        ),
    )
