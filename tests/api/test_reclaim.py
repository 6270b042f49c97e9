"""Taking over deliveries whose lease has run out, in loops written by hand."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import children
import look
import pytest
import servers
from look import Row, State
from waiting import until

from streamq import Backoff, ConnectionLostError, LeaseLostError
from streamq._flows import intake
from streamq._ops import lease
from streamq._scripts import MAX_BATCH, Fence, Held


def held(s, count, consumer="dead"):
    """Add jobs and let `consumer` read them; their entry IDs."""
    s.add_many({"n": n} for n in range(count))
    return [job.entry_id for job in s.read(consumer, count=count)]


def starts(raw, s):
    """All delivery counts, as the server has them."""
    return sum(row.deliveries for row in look.pending(raw, s).values())


# --- what is taken ---------------------------------------------------------------------------


@pytest.mark.covers("S3")
@pytest.mark.slow
def test_takes_what_a_killed_worker_held(make_stream, raw, colour, redis_url, ns):
    s = make_stream()
    s.add_many({"n": n} for n in range(7))
    with children.running(children.hold, colour, redis_url, ns, 5) as (victim, pipe):
        ids = pipe.recv()
        children.kill(victim)
    fresh = [job.entry_id for job in s.read("alive", count=2)]
    look.age(raw, s, ids)
    claimed, dead, missing = s.reclaim("heir")
    assert [(job.entry_id, job.deliveries, job.payload["n"]) for job in claimed] == [
        (entry_id, 2, n) for n, entry_id in enumerate(ids)
    ]
    assert (dead, missing) == ([], [])
    assert look.state(raw, s) == State(
        stream=ids + fresh,
        pending={i: Row("heir", 2) for i in ids} | {i: Row("alive", 1) for i in fresh},
    )


@pytest.mark.covers("S3")
def test_nothing_is_taken_before_the_lease_ran_out(make_stream, raw):
    s = make_stream(lease=30)
    ids = held(s, 2)
    look.age(raw, s, ids[:1], idle=29)
    assert s.reclaim("heir") == ([], [], [])
    look.age(raw, s, ids[:1], idle=30)
    assert [job.entry_id for job in s.reclaim("heir").claimed] == ids[:1]
    assert s.reclaim("other") == ([], [], [])  # the new lease runs


@pytest.mark.covers("S3")
def test_a_lease_runs_out_by_itself(make_stream, raw):
    s = make_stream(lease=0.1)
    [entry_id] = held(s, 1)
    [job] = until(lambda: s.reclaim("heir").claimed)
    assert (job.entry_id, job.deliveries) == (entry_id, 2)


@pytest.mark.covers("S4")
def test_started_as_often_as_allowed_then_dead_lettered(make_stream, raw):
    s = make_stream(max_deliveries=3)
    entry_id = s.add({}).entry_id
    run = [job.deliveries for job in s.read("w1")]
    for consumer in ("w2", "w3", "w4", "w5"):
        look.age(raw, s)
        run += [job.deliveries for job in s.reclaim(consumer).claimed]
    assert run == [1, 2, 3]
    assert look.state(raw, s) == State(dead=[(entry_id, "deliveries")], counters={"dead:workers": 1})


@pytest.mark.covers("S4")
def test_one_delivery_allowed(make_stream, raw):
    s = make_stream(max_deliveries=1)
    [entry_id] = held(s, 1)
    look.age(raw, s)
    assert s.reclaim("w") == ([], [entry_id], [])
    assert look.state(raw, s) == State(dead=[(entry_id, "deliveries")], counters={"dead:workers": 1})


@pytest.mark.covers("S3")
def test_excluded_jobs_stay_where_they_are(make_stream, raw):
    s = make_stream()
    s.add_many({"n": n} for n in range(3))
    jobs = s.read("me", count=3)
    look.age(raw, s)
    claimed, _, _ = s.reclaim("me", exclude=jobs[:2])
    assert [job.entry_id for job in claimed] == [jobs[2].entry_id]
    assert [row.deliveries for row in look.pending(raw, s).values()] == [1, 1, 2]


# --- one atomic step -------------------------------------------------------------------------


@pytest.mark.covers("F1")
def test_a_spent_entry_does_not_cost_the_others(make_stream, raw):
    s = make_stream(max_deliveries=3)
    ids = held(s, 20)
    look.age(raw, s)
    look.age(raw, s, ids[:1], count=3)
    before = starts(raw, s) - 3
    first = s.reclaim("w", count=10)
    assert [job.entry_id for job in first.claimed] == ids[1:10]
    assert (first.dead, first.missing, first.failed) == (ids[:1], [], [])
    second = s.reclaim("w", count=10)
    assert [job.entry_id for job in second.claimed] == ids[10:]
    handed_out = len(first.claimed) + len(second.claimed)
    assert starts(raw, s) - before == handed_out == 19
    assert look.state(raw, s) == State(
        stream=ids[1:],
        pending={i: Row("w", 2) for i in ids[1:]},
        dead=[(ids[0], "deliveries")],
        counters={"dead:workers": 1},
    )


@pytest.mark.covers("F1b")
@pytest.mark.slow
def test_entries_that_fall_due_meanwhile(make_stream, raw):
    s = make_stream(max_deliveries=1_000_000, crash_backoff=Backoff.constant(0, limit=None))
    ids = held(s, 50)
    over = threading.Event()

    def fall_due():
        with look.twin(raw) as client:
            while not over.is_set():
                entry_id = random.choice(ids)
                look.call(
                    *(client, "XCLAIM", s._spec.keys.stream, "workers", "dead", 0, entry_id),
                    *("IDLE", 3_600_000, "JUSTID"),
                )

    thread = threading.Thread(target=fall_due)
    thread.start()
    try:
        results = [s.reclaim("w", count=7) for _ in range(1_000)]
    finally:
        over.set()
        thread.join()
    handed_out = Counter(job.entry_id for result in results for job in result.claimed)
    assert sum(len(r.dead) + len(r.missing) + len(r.failed) for r in results) == 0
    assert handed_out.total() > 0
    assert {i: row.deliveries - 1 for i, row in look.pending(raw, s).items()} == {i: handed_out[i] for i in ids}


@pytest.mark.covers("F11")
def test_an_error_carries_what_was_done(make_stream, raw, proxy):
    s = make_stream(redis=proxy.url, max_deliveries=3)
    ids = held(s, 17)
    look.age(raw, s)
    look.age(raw, s, ids[:12], count=3)
    proxy.drop_before(servers.named("EXEC"), nth=2)
    with pytest.raises(ConnectionLostError) as caught:
        s.reclaim("w")
    partial = caught.value.partial
    assert partial.dead == ids[:10]
    # Their delivery counts were raised, so somebody must get them: nobody else will.
    assert [job.entry_id for job in partial.claimed] == ids[12:]


@pytest.mark.covers("F4")
@pytest.mark.slow
def test_many_reclaimers_at_once(make_stream, raw):
    s = make_stream()
    ids = held(s, 500)
    look.age(raw, s)
    look.age(raw, s, ids[::2], count=5)
    streams = [make_stream() for _ in range(4)]

    def loop(index):
        return [streams[index].reclaim(f"w{index}", count=5) for _ in range(80)]

    with ThreadPoolExecutor(4) as threads:
        results = [result for found in threads.map(loop, range(4)) for result in found]
    claimed = [job.entry_id for result in results for job in result.claimed]
    dead = [entry_id for result in results for entry_id in result.dead]
    assert sorted(claimed) == sorted(ids[1::2])
    assert sorted(dead) == sorted(ids[::2])
    now = look.state(raw, s)
    assert sorted(source for source, _ in now.dead) == sorted(ids[::2])
    assert {i: row.deliveries for i, row in now.pending.items()} == dict.fromkeys(ids[1::2], 2)
    assert now.counters == {"dead:workers": 250}


@pytest.mark.covers("C46")
def test_a_stale_entry_is_started_by_one_of_many(make_stream, raw):
    s = make_stream(max_deliveries=1_000_000)
    [entry_id] = held(s, 1)
    streams = [make_stream(max_deliveries=1_000_000) for _ in range(8)]
    for stream in streams:
        stream.reclaim("warm-up")
    with ThreadPoolExecutor(8) as threads:
        for round_ in range(100):
            look.age(raw, s)
            found = threads.map(lambda at: streams[at].reclaim(f"w{at}", min_idle=60).claimed, range(8))
            jobs = [job for claimed in found for job in claimed]
            assert [(job.entry_id, job.deliveries) for job in jobs] == [(entry_id, round_ + 2)]


# --- bodies that are gone --------------------------------------------------------------------


@pytest.mark.covers("F2")
def test_removed_entries_leave_tombstones_and_block_nothing(make_stream, raw):
    s = make_stream(max_deliveries=3)
    ids = held(s, 5)
    look.age(raw, s)
    look.age(raw, s, ids[1:3], count=3)
    raw.xdel(s._spec.keys.stream, ids[1], ids[3])  # one of the spent ones, and one other
    claimed, dead, missing = s.reclaim("w")
    assert [job.entry_id for job in claimed] == [ids[0], ids[4]]
    assert (dead, missing) == ([ids[2]], [ids[1], ids[3]])
    assert look.state(raw, s) == State(
        stream=[ids[0], ids[4]],
        pending={ids[0]: Row("w", 2), ids[4]: Row("w", 2)},
        dead=[(ids[1], "entry_missing"), (ids[3], "entry_missing"), (ids[2], "deliveries")],
        counters={"dead:workers": 3},
    )
    tombstone = look.letters(raw, s)[0]
    assert (tombstone[b"dead:deliveries"], tombstone[b"dead:group"]) == ("3", "workers")
    assert tombstone[b"dead:consumer"] == "dead"  # who held it, not who found it


@pytest.mark.covers("F2")
def test_one_spent_and_one_other_of_five_removed(make_stream, raw):
    s = make_stream(max_deliveries=3)
    ids = held(s, 5)
    look.age(raw, s)
    look.age(raw, s, ids[:1], count=3)
    raw.xdel(s._spec.keys.stream, ids[0], ids[1])
    result = s.reclaim("w")
    assert [job.entry_id for job in result.claimed] == ids[2:]
    assert result.missing == ids[:2]
    assert list(look.pending(raw, s)) == ids[2:]


@pytest.mark.covers("F3", "C36")
@pytest.mark.slow
def test_two_of_three_removed_under_a_killed_worker(make_stream, raw, colour, redis_url, ns):
    s = make_stream()
    s.add_many({"n": n} for n in range(3))
    with children.running(children.hold, colour, redis_url, ns, 3) as (victim, pipe):
        ids = pipe.recv()
        raw.xdel(s._spec.keys.stream, *ids[:2])
        children.kill(victim)
    until(lambda: len(look.pending(raw, s)) == 3)
    time.sleep(0.1)  # until each has been idle long enough: they were read within a millisecond or two
    result = s.reclaim("heir", min_idle=0.05)
    assert [job.entry_id for job in result.claimed] == ids[2:]
    assert result.missing == ids[:2]
    assert s.ack(result.claimed[0])
    assert look.state(raw, s) == State(
        dead=[(i, "entry_missing") for i in ids[:2]], counters={"dead:workers": 2, "done:workers": 1}
    )


@pytest.mark.covers("F3")
def test_the_last_pending_entry_is_gone(make_stream, raw):
    s = make_stream()
    [entry_id] = held(s, 1)
    raw.xtrim(s._spec.keys.stream, maxlen=0, approximate=False)
    assert s.reclaim("w") == ([], [], [])  # its lease still runs
    assert until(lambda: s.reclaim("w", min_idle=0.01).missing) == [entry_id]
    assert s.reclaim("w", min_idle=0) == ([], [], [])
    assert look.state(raw, s) == State(dead=[(entry_id, "entry_missing")], counters={"dead:workers": 1})


@pytest.mark.covers("C36")
@pytest.mark.parametrize("verb", ["retry", "reject", "release", "ack"])
def test_settling_a_job_whose_entry_was_removed(make_stream, raw, verb):
    s = make_stream()
    s.add({})
    [job] = s.read("w")
    raw.xdel(s._spec.keys.stream, job.entry_id)
    if verb == "release":
        with suppress(LeaseLostError):  # 6.2 does not notice; reclaim does
            s.release(job)
    else:
        assert getattr(s, verb)(job) in {"ack": [True], "retry": [False], "reject": [None]}[verb]
    counters = {"done:workers": 1} if verb == "ack" else {"dead:workers": 1}
    dead = [] if verb == "ack" else [(job.entry_id, "entry_missing")]
    s.reclaim("w", min_idle=0)
    assert look.state(raw, s) == State(dead=dead, counters=counters)


# --- starvation ------------------------------------------------------------------------------


@pytest.mark.covers("F5")
@pytest.mark.parametrize("live", [200, 1_500])
def test_stale_entries_behind_many_live_ones(make_stream, raw, live):
    s = make_stream()
    s.add_many({"n": n} for n in range(live + 100))
    for consumer, count in (("alive", live // 2), ("alive", live // 2), ("dead", 100)):
        assert len(s.read(consumer, count=count)) == count
    stale = [i for i, row in look.pending(raw, s).items() if row.consumer == "dead"]
    look.age(raw, s, stale)
    pages = -(-(live + 100) // 1_000)
    claimed = [job.entry_id for _ in range(pages + 100 // 10) for job in s.reclaim("w", count=10).claimed]
    assert claimed == stale
    assert Counter(row.consumer for row in look.pending(raw, s).values()) == {"alive": live, "w": 100}


@pytest.mark.covers("F5")
def test_the_cursor_wraps_around(make_stream, raw):
    s = make_stream()
    ids = held(s, 5)
    look.age(raw, s)
    assert [job.entry_id for job in s.reclaim("w", count=2).claimed] == ids[:2]
    look.age(raw, s, ids[:2], idle=100)
    claimed = s.reclaim("w", count=4, min_idle=60).claimed
    assert [job.entry_id for job in claimed] == [*ids[2:], ids[0]]
    assert [job.entry_id for job in s.reclaim("w", count=4, min_idle=60).claimed] == [ids[1]]


@pytest.mark.covers("F5")
def test_reclaimers_share_the_cursor(make_stream, raw):
    one, two = make_stream(), make_stream()
    ids = held(one, 6)
    look.age(raw, one)
    found = [s.reclaim("w", count=2).claimed for s in (one, two, one)]
    assert [[job.entry_id for job in claimed] for claimed in found] == [ids[:2], ids[2:4], ids[4:]]


@pytest.mark.covers("F5")
def test_a_cursor_behind_the_end_finds_the_rest(make_stream, raw):
    s = make_stream()
    ids = held(s, 3)
    raw.hset(s._spec.keys.meta, "cursor:reclaim:workers", "99999999999999-0")
    look.age(raw, s)
    assert [job.entry_id for job in s.reclaim("w").claimed] == ids


@pytest.mark.covers("F6")
def test_one_entry_that_cannot_be_dead_lettered(make_stream, raw):
    s = make_stream(max_deliveries=3)
    ids = held(s, 6)
    look.age(raw, s)
    look.age(raw, s, ids[:1], count=3)
    raw.set(s._spec.keys.dead, "x")
    result = s.reclaim("w", count=10)
    assert [job.entry_id for job in result.claimed] == ids[1:]
    assert (result.dead, result.missing) == ([], [])
    [failed] = result.failed
    assert (failed.entry_id, failed.reason) == (ids[0], "deliveries")
    assert "WRONGTYPE" in failed.error
    assert look.pending(raw, s) == {ids[0]: Row("w", 3)} | {i: Row("w", 2) for i in ids[1:]}


@pytest.mark.covers("F6")
def test_a_window_full_of_entries_that_cannot_be_dead_lettered(make_stream, raw):
    s = make_stream(max_deliveries=3)
    ids = held(s, 20)
    look.age(raw, s)
    look.age(raw, s, ids[:10], count=3)
    raw.set(s._spec.keys.dead, "x")
    results = [s.reclaim("w", count=10) for _ in range(2)]
    assert [job.entry_id for result in results for job in result.claimed] == ids[10:]
    assert [failed.entry_id for result in results for failed in result.failed] == ids[:10]
    raw.delete(s._spec.keys.dead)
    look.age(raw, s, ids[:10])
    assert s.reclaim("w").dead == ids[:10]
    assert list(look.pending(raw, s)) == ids[10:]


@pytest.mark.covers("F6", "F2")
def test_a_tombstone_that_cannot_be_written(make_stream, raw):
    s = make_stream()
    ids = held(s, 3)
    raw.set(s._spec.keys.dead, "x")
    look.age(raw, s)
    raw.xdel(s._spec.keys.stream, ids[1])
    result = s.reclaim("w")
    assert [job.entry_id for job in result.claimed] == [ids[0], ids[2]]
    assert [(f.entry_id, f.reason) for f in result.failed] == [(ids[1], "entry_missing")]
    assert look.pending(raw, s)[ids[1]] == Row("dead", 1)
    raw.delete(s._spec.keys.dead)
    assert s.reclaim("w").missing == [ids[1]]
    assert list(look.pending(raw, s)) == [ids[0], ids[2]]


# --- how long to wait ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("deliveries", "idle", "due"),
    [
        (0, 1, True),
        *[(1, 1, True), (2, 10, False), (2, 11, True), (3, 20, False), (3, 21, True), (4, 20, False), (4, 21, True)],
        (5, 1, True),
    ],
)
def test_crash_backoff_is_added_to_the_lease(make_stream, raw, deliveries, idle, due):
    s = make_stream(lease=1, crash_backoff=Backoff.schedule([10, 20]), max_deliveries=5)
    ids = held(s, 1)
    look.age(raw, s, idle=idle, count=deliveries)
    result = s.reclaim("w")
    assert [job.entry_id for job in result.claimed] + result.dead == (ids if due else [])


@pytest.mark.parametrize("deliveries", [1, 2, 4])
def test_an_explicit_min_idle_is_taken_as_it_is(make_stream, raw, deliveries):
    s = make_stream(lease=3600, max_deliveries=9, crash_backoff=Backoff.constant(1_000, limit=None))
    ids = held(s, 2)
    look.age(raw, s, ids[:1], idle=1800, count=deliveries)
    assert [job.entry_id for job in s.reclaim("w", min_idle=1800).claimed] == ids[:1]
    assert [job.entry_id for job in s.reclaim("w", min_idle=0).claimed] == ids


def test_a_page_is_bounded_in_bytes(make_stream, raw):
    s = make_stream(type=bytes, max_payload=16 << 20)
    for _ in range(3):
        s.add(b"x" * (5 << 20))
    ids = [job.entry_id for job in s.read("dead", count=3)]
    look.age(raw, s)
    for entry_id in ids:
        assert [job.entry_id for job in s.reclaim("w", min_idle=60).claimed] == [entry_id]


# --- what is passed over ---------------------------------------------------------------------


def counted(s, raw, *counts):
    """Jobs of a dead worker that were delivered so often; their entry IDs."""
    ids = held(s, len(counts))
    for entry_id, count in zip(ids, counts, strict=True):
        look.age(raw, s, [entry_id], count=count)
    return ids


def take(s, *, count=100, consumer="w", **which):
    """As a worker reclaims: uncharged, and with a choice."""
    plan = intake.reclaim(s._spec, consumer, count=count, min_idle_ms=None, raise_count=False, **which)
    return s.run(plan)


def ids_of(page):
    return [job.entry_id for job in page.claimed]


def test_so_many_with_a_single_start_left_and_no_more(make_stream, raw):
    s = make_stream(max_deliveries=3)
    ids = counted(s, raw, 2, 1, 2, 0, 2, 3)
    page = take(s, most_last=2)
    assert (ids_of(page), page.dead, page.more) == (ids[:4], [ids[5]], False)
    assert look.pending(raw, s) == {
        ids[0]: Row("w", 2), ids[1]: Row("w", 1), ids[2]: Row("w", 2), ids[3]: Row("w", 0), ids[4]: Row("dead", 2)
    }  # fmt: skip
    assert ids_of(take(s, most_last=0)) == []
    assert ids_of(take(s)) == [ids[4]]  # its idle time was left alone too


def test_the_cursor_goes_on_behind_what_was_passed_over(make_stream, raw):
    s = make_stream(max_deliveries=2)
    ids = counted(s, raw, 1, 1, 0, 1, 0)
    page = take(s, count=1, most_last=0)
    assert (ids_of(page), page.more) == ([ids[2]], True)
    assert ids_of(take(s, count=1)) == [ids[3]]  # from there on
    assert ids_of(take(s, count=1, most_last=0)) == [ids[4]]
    page = take(s, most_last=0)
    assert (ids_of(page), page.more) == ([], False)
    assert ids_of(take(s)) == ids[:2]


def test_the_raised_count_is_not_looked_at(make_stream, raw):
    """Whoever charges as he claims is asked for what the entry was before."""
    s = make_stream(max_deliveries=3)
    ids = counted(s, raw, 1, 1, 2)
    plan = intake.reclaim(s._spec, "w", count=9, min_idle_ms=None, raise_count=True, most_last=0)
    assert [(job.entry_id, job.deliveries) for job in s.run(plan).claimed] == [(entry_id, 2) for entry_id in ids[:2]]


def test_a_job_that_was_never_started_has_more_than_a_single_start_left(make_stream, raw):
    s = make_stream(max_deliveries=1)
    ids = counted(s, raw, 0)
    assert ids_of(take(s, most_last=0, last_patience_ms=10**9)) == ids


def test_smaller_counts_are_passed_over_but_spent_ones_buried(make_stream, raw):
    s = make_stream(max_deliveries=4)
    ids = counted(s, raw, 0, 1, 2, 3, 4)
    page = take(s, least_count=3)
    assert (ids_of(page), page.dead) == ([ids[3]], [ids[4]])
    assert {i: row for i, row in look.pending(raw, s).items() if row.consumer == "dead"} == {
        ids[0]: Row("dead", 0), ids[1]: Row("dead", 1), ids[2]: Row("dead", 2)
    }  # fmt: skip
    assert ids_of(take(s, least_count=1)) == ids[1:3]
    assert ids_of(take(s)) == ids[:1]


@pytest.mark.parametrize(
    ("deliveries", "idle", "due"),
    [(0, 1, True), (1, 1, True), (2, 11, True), (3, 40, False), (3, 41, True), (4, 1, True)],
)
def test_what_has_a_single_start_left_is_left_to_others_for_a_while(make_stream, raw, deliveries, idle, due):
    s = make_stream(lease=1, crash_backoff=Backoff.constant(10, limit=None), max_deliveries=4)
    ids = held(s, 1)
    look.age(raw, s, idle=idle, count=deliveries)
    result = take(s, last_patience_ms=30_000)
    assert ids_of(result) + result.dead == (ids if due else [])


def test_patience_holds_however_many_starts_there_are(make_stream, raw):
    """More than there are crash delays sent along."""
    s = make_stream(lease=1, crash_backoff=Backoff.constant(1, limit=None), max_deliveries=1_000)
    ids = held(s, 2)
    look.age(raw, s, ids[:1], idle=5, count=998)
    look.age(raw, s, ids[1:], idle=5, count=999)
    assert ids_of(take(s, last_patience_ms=30_000)) == ids[:1]
    assert ids_of(take(s)) == ids[1:]


# --- many starts in one request --------------------------------------------------------------


@pytest.mark.covers("F9")
def test_starts_are_counted_for_whom_they_are(make_stream, raw):
    s = make_stream()
    ids = counted(s, raw, 1, 2, 1, 1, 1)
    jobs = take(s).claimed
    targets = [Held(job.entry_id, job.deliveries + 1) for job in jobs]
    look.age(raw, s, ids[2:3])
    assert ids_of(take(s, consumer="other")) == ids[2:3]
    s.ack(jobs[3])
    look.age(raw, s, ids[4:], count=3)  # another delivery
    before = look.pending(raw, s)
    found = s.run(lease.start(s._spec, "w", targets))
    assert found == [Fence.MINE, Fence.MINE, Fence.LOST, Fence.GONE, Fence.LOST]
    after = before | {ids[0]: Row("w", 2), ids[1]: Row("w", 3)}
    assert look.pending(raw, s) == after
    assert s.run(lease.start(s._spec, "w", targets)) == found  # sent again, it counts once
    assert look.pending(raw, s) == after


@pytest.mark.covers("F9")
@pytest.mark.slow
def test_starts_go_by_500(make_stream, raw, proxy):
    s = make_stream(redis=proxy.url)
    count = MAX_BATCH + 3
    held(s, count)
    look.age(raw, s)
    targets = [Held(job.entry_id, job.deliveries + 1) for job in take(s, count=count).claimed]
    s.run(lease.start(s._spec, "w", targets[:1]))  # the script is known
    is_script = servers.named("EVALSHA")
    before = proxy.count(is_script)
    assert s.run(lease.start(s._spec, "w", targets)) == [Fence.MINE] * count
    assert proxy.count(is_script) - before == 2
    assert set(look.pending(raw, s).values()) == {Row("w", 2)}
    assert s.run(lease.start(s._spec, "w", [])) == []
    assert proxy.count(is_script) - before == 2
