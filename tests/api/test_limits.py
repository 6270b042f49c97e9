"""max_ready: so many jobs wait and no more, however the server counts."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import look
import pytest
from colours import open_stream

from streamq import Backoff, ConfigurationError, QueueFullError

ONE_BACKEND = pytest.mark.parametrize("backend", ["redis-7.0"], indirect=True)
"""For mistakes that are found before anything is sent."""


def unread(raw, s, group="workers"):
    """Entries that the group has not read, counted one by one."""
    last = look.groups(raw, s).get(group, "0-0")
    return len(look.call(raw, "XRANGE", s._spec.keys.stream, f"({last}", "+"))


def fill(s):
    """Add until the stream is full; how many were added."""
    for count in itertools.count():
        try:
            s.add({"n": count})
        except QueueFullError:
            return count
    raise AssertionError


@pytest.mark.covers("C28")
@pytest.mark.parametrize("job_id", [None, "k"])
def test_a_full_stream_refuses_and_writes_nothing(make_stream, raw, job_id):
    s = make_stream(max_ready=3)
    assert fill(s) == 3
    before = look.dumps(raw, s.name)
    with pytest.raises(QueueFullError) as caught:
        s.add({}, job_id=job_id)
    assert (caught.value.ready, caught.value.max_ready) == (3, 3)
    assert look.dumps(raw, s.name) == before
    s.read("w")
    assert s.add({}, job_id=job_id).created is True
    if job_id:
        assert fill(s) == 0
        assert s.add({}, job_id=job_id).created is False  # known: nothing has to be added


@pytest.mark.parametrize("limit", [1, 50])
def test_exactly_the_limit_by_many_at_once(make_stream, raw, colour, redis_url, limit):
    s = make_stream(max_ready=limit)
    s.read("w")
    with ExitStack() as stack:
        adders = [
            stack.enter_context(closing(open_stream(colour, s.name, redis=redis_url, max_ready=limit)))
            for _ in range(8)
        ]
        with ThreadPoolExecutor(8) as pool:
            assert sum(pool.map(fill, adders)) == limit
            assert raw.xlen(s._spec.keys.stream) == limit
            assert len(s.read("w", count=20)) == min(limit, 20)
            assert sum(pool.map(fill, adders)) == min(limit, 20)
    assert unread(raw, s) == limit


@pytest.mark.parametrize("job_id", [None, lambda payload: f"k{payload['n']}"])
@pytest.mark.parametrize("limit", [1, 7, 499, 500, 501, 1_100])
def test_of_many_the_first_are_added(make_stream, raw, job_id, limit):
    s = make_stream(max_ready=limit)
    with pytest.raises(QueueFullError) as caught:
        s.add_many(({"n": n} for n in range(1_200)), job_id=job_id)
    assert caught.value.added == limit
    assert [dict(fields)[b"job"] for _, fields in look.entries(raw, s._spec.keys.stream)] == [
        b'{"n":%d}' % n for n in range(limit)
    ]
    s.ack(s.read("w", count=1_000))
    if job_id:  # the rest, by repeating the whole: nothing is added twice
        known = min(limit, 1_000)
        with pytest.raises(QueueFullError) if 1_200 - known > limit else ExitStack():
            assert s.add_many(({"n": n} for n in range(1_200)), job_id=job_id) == 1_200 - limit


def test_known_ids_take_no_place(make_stream, raw):
    s = make_stream(max_ready=5)
    payloads = [{"n": n % 3} for n in range(9)]
    assert s.add_many(payloads, job_id=lambda p: f"k{p['n']}") == 3
    assert s.add_many(payloads, job_id=lambda p: f"k{p['n']}") == 0
    assert raw.xlen(s._spec.keys.stream) == 3


@pytest.mark.covers("S7")
@pytest.mark.parametrize("retention", ["delete", "keep"])
@pytest.mark.parametrize("settle", [True, False])
def test_reading_makes_room(make_stream, raw, retention, settle):
    s = make_stream(max_ready=4, retention=retention)
    for taken in (4, 1, 3, 2, 4):
        fill(s)
        assert unread(raw, s) == 4
        jobs = s.read("w", count=taken)
        if settle:
            s.ack(jobs)
        assert fill(s) == taken


@pytest.mark.covers("S7")
@pytest.mark.parametrize("retention", ["delete", "keep"])
def test_the_group_that_is_furthest_behind_counts(make_stream, raw, retention):
    a = make_stream(group="a", groups=("b",), max_ready=5, retention=retention)
    b = make_stream(group="b", max_ready=5, retention=retention)
    assert fill(a) == 5
    a.ack(a.read("w", count=5))
    assert fill(a) == 0
    b.read("w", count=2)
    assert fill(a) == 2
    a.ack(a.read("w", count=9))
    b.read("w", count=9)
    assert fill(b) == 5
    assert (unread(raw, a, "a"), unread(raw, a, "b")) == (5, 5)


@pytest.mark.covers("C58")
@pytest.mark.parametrize("seed", range(4))
def test_unread_jobs_that_were_taken_back_make_room(make_stream, raw, seed):
    s = make_stream(max_ready=6)
    s.read("w")
    held = []
    for step in range(5):
        fill(s)
        assert unread(raw, s) == 6
        held += s.read("w", count=1 + (seed + step) % 3)
        last = look.groups(raw, s)["workers"]
        ids = [i.decode() for i, _ in look.call(raw, "XRANGE", s._spec.keys.stream, f"({last}", "+")]
        for entry_id in ids[seed::2][: 1 + step % 3]:
            if step % 2:
                s.cancel(entry_id)
            else:
                raw.xdel(s._spec.keys.stream, entry_id)
        room = 6 - unread(raw, s)
        assert room > 0
        assert fill(s) == room
        if step == 3:
            s.ack(held)
            held = []


@pytest.mark.covers("F15")
@pytest.mark.parametrize("rest", ["acknowledged by others", "pending without body", "kept for a letter"])
def test_what_is_in_the_stream_but_not_ready(make_stream, raw, rest):
    s = make_stream(max_ready=3)
    s.read("w")
    if rest == "kept for a letter":
        for _ in range(4):
            look.by_hand(raw, s, "job", "{}", *[part for n in range(4_999) for part in (f"f{n}", "v")])
        s.read("w", count=9)
    else:
        ids = [look.by_hand(raw, s, "job", "{}") for _ in range(4)]
        s.read("w", count=9)
        if rest == "acknowledged by others":
            look.call(raw, "XACK", s._spec.keys.stream, "workers", *ids)
        else:
            raw.xdel(s._spec.keys.stream, *ids)
    assert fill(s) == 3
    assert unread(raw, s) == 3


@pytest.mark.parametrize("retention", ["delete", "keep"])
def test_where_much_is_pending_or_kept(make_stream, raw, retention):
    s = make_stream(max_ready=150, retention=retention)
    s.read("w")
    for _ in range(3):
        assert fill(s) == 150
        s.ack(s.read("w", count=150)[: 150 if retention == "keep" else 0])
    raw.xdel(s._spec.keys.stream, s.add({}).entry_id)
    assert fill(s) == 150
    s.read("w", count=70)
    assert fill(s) == 70


def test_retries_and_redrives_are_never_refused(make_stream, raw):
    s = make_stream(max_ready=2, retry=Backoff.constant(0, limit=3))
    fill(s)
    first, second = s.read("w", count=2)
    fill(s)
    assert s.retry(first) is True
    s.reject(second)
    [letter] = s.dead_letters.list()
    assert s.dead_letters.redrive(letter.id).moved
    assert unread(raw, s) == 4
    with pytest.raises(QueueFullError) as caught:
        s.add({})
    assert caught.value.ready >= 2
    assert [(job.attempt, job.deliveries) for job in s.read("w", count=9)] == [(1, 1), (1, 1), (2, 1), (1, 1)]
    assert fill(s) == 2


def test_a_stream_without_groups(make_stream, raw):
    s = make_stream(max_ready=3)
    assert fill(s) == 3
    raw.delete(s._spec.keys.stream)
    assert fill(s) == 3


@ONE_BACKEND
@pytest.mark.parametrize("max_ready", [0, -1, True, 1.5, "5", 1_000_001, []])
def test_wrong_options(make_stream, max_ready):
    with pytest.raises(ConfigurationError, match="max_ready"):
        make_stream(max_ready=max_ready)
