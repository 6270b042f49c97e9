"""What a dead consumer held goes back at once, each delivery with the count that it should have."""

from __future__ import annotations

import pytest

from streamq._flows.recovery import Note, NoteState, Returned, give_back
from streamq._ops.consumers import LISTED

READ, HELD, STARTING, STARTED = NoteState
LEASE_MS = 60_000


@pytest.fixture
def stream(make_stream):
    return make_stream(lease=LEASE_MS / 1000)


@pytest.fixture
def back(stream):
    """Give back what ``dead`` held, by notes (state, count) per entry."""

    def run(notes=(), *, reclaiming=False):
        found = [Note(0, entry_id, count, state) for entry_id, (state, count) in dict(notes).items()]
        return stream._run(give_back(stream._spec, "dead", found, reclaiming=reclaiming))

    return run


@pytest.fixture
def rows(stream, raw):
    """Pending entries as the server has them: entry ID -> (owner, count, whether it is due)."""

    def look():
        found = raw.xpending_range(stream._spec.keys.stream, "workers", "-", "+", 1_000)
        return {
            row["message_id"].decode(): (
                row["consumer"].decode(),
                row["times_delivered"],
                row["time_since_delivered"] >= LEASE_MS,
            )
            for row in found
        }

    return look


@pytest.fixture
def hold(stream, raw):
    """Let ``dead`` hold one entry per count; their IDs."""

    def make(*counts):
        key = stream._spec.keys.stream
        stream.add_many({} for _ in counts)
        held = [job.entry_id for job in stream.read("dead", count=len(counts))]
        for entry_id, count in zip(held, counts, strict=True):
            raw.xclaim(key, "workers", "dead", 0, [entry_id], retrycount=count, justid=True)
        return held

    return make


@pytest.mark.covers("C05")
@pytest.mark.parametrize(
    ("count", "note", "after"),  # on the server; as noted; on the server then
    [
        pytest.param(1, (READ, 1), 0, id="read"),
        pytest.param(0, (READ, 1), 0, id="read, and given back by itself"),
        pytest.param(0, (HELD, 0), 0, id="taken over, never begun"),
        pytest.param(3, (HELD, 3), 3, id="taken over, begun thrice"),
        pytest.param(3, (STARTING, 3), 2, id="start counted"),
        pytest.param(2, (STARTING, 3), 2, id="start not counted"),
        pytest.param(1, (STARTING, 1), 0, id="first start counted"),
        pytest.param(1, (STARTED, 1), 1, id="begun"),
        pytest.param(3, (STARTED, 3), 3, id="begun again"),
        pytest.param(1, None, 0, id="of a read that had no reply"),
        pytest.param(0, None, 0, id="of a read that had no reply, given back"),
        pytest.param(2, None, 2, id="of a reclaim that had no reply"),
    ],
)
def test_each_delivery_gets_the_count_of_its_starts(hold, back, rows, count, note, after):  # noqa: PLR0917  # a table's columns
    [entry_id] = hold(count)
    begun = note is not None and note[0] is STARTED
    assert back({entry_id: note} if note else {}) == Returned(not begun, begun, left=False)
    assert rows() == {entry_id: ("dead", after, True)}
    assert back({entry_id: note} if note else {}) == Returned(0, 0, left=False)  # again
    assert rows() == {entry_id: ("dead", after, True)}


@pytest.mark.covers("C04")
def test_without_a_note_nothing_is_taken_back_where_a_reclaim_was_under_way(hold, back, rows):
    one, two = hold(1, 2)
    back(reclaiming=True)
    assert rows() == {one: ("dead", 1, True), two: ("dead", 2, True)}


def test_what_it_had_given_back_itself_keeps_its_count(stream, hold, back, rows, raw):
    """Else a suspect that its process gave back before it died would have one start more."""
    [one] = hold(1)
    raw.xclaim(stream._spec.keys.stream, "workers", "dead", 0, [one], idle=LEASE_MS, retrycount=1, justid=True)
    assert back() == Returned(0, 0, left=False)
    assert rows() == {one: ("dead", 1, True)}


def test_more_than_a_page_and_then_the_consumer_goes(stream, raw, hold, back, rows):
    held = hold(*([1] * (2 * LISTED + 1)))
    notes = {entry_id: (STARTED if n % 2 else READ, 1) for n, entry_id in enumerate(held)}
    assert back(notes) == Returned(LISTED + 1, LISTED, left=False)
    assert rows() == {entry_id: ("dead", n % 2, True) for n, entry_id in enumerate(held)}
    taken = []
    while page := stream.reclaim("next", count=100).claimed:
        taken += page
    assert {job.entry_id: job.deliveries for job in taken} == {e: n % 2 + 1 for n, e in enumerate(held)}
    assert back(notes) == Returned(0, 0, left=True)
    consumers = raw.xinfo_consumers(stream._spec.keys.stream, "workers")
    assert [consumer["name"] for consumer in consumers] == [b"next"]


def test_others_deliveries_are_left_alone(stream, hold, back, rows):
    [mine] = hold(1)
    stream.add({})
    [other] = stream.read("alive")
    back({mine: (READ, 1), other.entry_id: (READ, 1)})
    assert rows() == {mine: ("dead", 0, True), other.entry_id: ("alive", 1, False)}


def test_giving_back_again_does_not_begin_a_crash_backoff_anew(make_stream, raw):
    stream = make_stream(lease=0.2, crash_delay=0.3)
    stream.add({})
    entry_id = stream.read("dead")[0].entry_id
    raw.xclaim(stream._spec.keys.stream, "workers", "dead", 0, [entry_id], retrycount=2, justid=True)
    note = Note(0, entry_id, 2, STARTED)
    stream._run(give_back(stream._spec, "dead", [note], reclaiming=False))
    assert stream.reclaim("next").claimed == []  # it has crashed a process before, and may do so again
    [row] = raw.xpending_range(stream._spec.keys.stream, "workers", "-", "+", 1)
    stream._run(give_back(stream._spec, "dead", [note], reclaiming=False))
    [again] = raw.xpending_range(stream._spec.keys.stream, "workers", "-", "+", 1)
    assert again["time_since_delivered"] >= row["time_since_delivered"] >= 200


def test_where_there_is_nothing_it_leaves(back, stream, raw):
    assert back() == Returned(0, 0, left=True)  # no stream
    stream.read("alive")
    assert back() == Returned(0, 0, left=True)  # no such consumer
    for consumer in ("dead", "alive"):
        raw.xgroup_createconsumer(stream._spec.keys.stream, "workers", consumer)
    for _ in range(2):  # it may have told who it is, and never have read
        raw.hset(stream._spec.keys.workers, "dead", "who it was")
        assert back() == Returned(0, 0, left=True)
        assert raw.hlen(stream._spec.keys.workers) == 0
        assert [c["name"] for c in raw.xinfo_consumers(stream._spec.keys.stream, "workers")] == [b"alive"]
