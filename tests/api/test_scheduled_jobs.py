"""What an operator does with jobs that wait: list, get, cancel, reschedule, run now; and what they are refused."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import look
import pytest
from look import Row, State

from streamq import Backoff, ConfigurationError, JobStateError
from streamq._scripts import source

ONE_BACKEND = pytest.mark.parametrize("backend", ["redis-7.0"], indirect=True)
"""For mistakes that are found before anything is sent."""


def names(page):
    return [(job.group, job.job_id) for job in page]


def in_state(s, raw, state):
    """A job k of a stream, in that state."""
    if state == "unknown":
        s.read("w")
        return None
    if state == "scheduled":
        return s.add({"n": 1}, job_id="k", delay=60)
    added = s.add({"n": 1}, job_id="k")
    if state == "ready":
        return added
    [job] = s.read("w")
    match state:
        case "done":
            s.commit(job, 7)
        case "dead":
            s.reject(job, "no")
        case "released":
            s.release(job)
        case "retried at once":
            s.retry(job, "no", delay=0)
    return job


# --- looking ----------------------------------------------------------------------------------


def test_what_there_is_to_see(make_stream, raw):
    s = make_stream()
    before = datetime.fromtimestamp(look.server_ms(raw) / 1000, UTC)
    s.add({"n": 1}, job_id="added", delay=60)
    s.add({"n": 2}, job_id="retried", headers={"trace": "t"})
    [job] = s.read("w")
    for n in range(7):
        s.retry(job, f"error {n}", delay=0)
        [job] = s.read("w")
    s.retry(job, "last", delay=90)
    first, second = s.scheduled.list()
    assert (first.job_id, first.group, first.attempt, first.errors, first.payload) == ("added", None, 1, (), b'{"n":1}')
    assert (second.job_id, second.group, second.attempt, second.payload) == ("retried", "workers", 9, b'{"n":2}')
    assert second.errors == ("error 3", "error 4", "error 5", "error 6", "last")
    assert dict(second.fields)[b"sq:h:trace"] == b"t"
    for found, delay in [(first, 60), (second, 90)]:
        assert before <= found.enqueued_at <= before + timedelta(seconds=30)
        assert before + timedelta(seconds=delay) <= found.due_at <= before + timedelta(seconds=delay + 30)
        assert s.scheduled.get(found.job_id) == found
    assert s.scheduled.get("nobody") is None
    assert b"trace" not in repr(first).encode()


def test_looking_changes_nothing(make_stream, raw, ns):
    s = make_stream()
    assert (s.scheduled.list(), s.scheduled.get("k")) == ([], None)
    assert look.dumps(raw, ns) == {}
    s.add({}, job_id="k", delay=60)
    before = look.dumps(raw, ns)
    assert names(s.scheduled.list(due_before=datetime.now(UTC) + timedelta(hours=1))) == [(None, "k")]
    assert s.scheduled.get("k").job_id == "k"
    assert look.dumps(raw, ns) == before


@pytest.mark.covers("S7")
def test_a_group_gets_its_own_before_that_of_all(make_stream, raw):
    a, b = make_stream(group="a", groups=("b",)), make_stream(group="b")
    a.add({}, job_id="k")
    a.retry(a.read("w")[0], "no", delay=60)
    b.ack(b.read("w")[0])
    assert (a.scheduled.get("k").group, b.scheduled.get("k")) == ("a", None)
    assert names(b.scheduled.list()) == [("a", "k")]  # all groups' are seen
    raw.zadd(a._spec.keys.scheduled, {"/k": 1})
    assert [s.scheduled.get("k").group for s in (a, b)] == ["a", None]


def test_pages_without_a_gap_or_a_double(make_stream, raw):
    """Of 2,500 timers, hundreds in one ms, whatever their bytes."""
    s = make_stream()
    key = s._spec.keys.scheduled
    words = ["%d", "\U0001f600%d", "ü%d", "Z/%d", "w/%d"]
    raw.zadd(key, {f"g/{words[n % 5] % n}": 10**12 + n // 500 for n in range(2_500)})
    expected = [member.decode() for member in raw.zrange(key, 0, -1)]
    for count in (1_000, 333, 7):
        found, after = [], None
        while page := s.scheduled.list(count=count, after=after):
            assert len(page) == count or len(found) + len(page) == 2_500
            found += [f"{job.group}/{job.job_id}" for job in page]
            after = page[-1]
            if count == 7 and len(found) > 700:
                break
        assert found == expected[: len(found)]
        assert len(found) == 2_500 or count == 7


def test_a_page_behind_one_that_is_gone(make_stream, raw):
    s = make_stream()
    for n in range(9):
        s.add({}, job_id=f"k{n}", delay=60)
    raw.zadd(s._spec.keys.scheduled, {f"/k{n}": 10**12 for n in range(9)})
    page = s.scheduled.list(count=3)
    raw.zadd(s._spec.keys.scheduled, {"/k0": 1})
    for gone in ("k1", "k2"):
        assert s.scheduled.cancel(gone) is True
    assert [job.job_id for job in s.scheduled.list(count=4, after=page[-1])] == ["k3", "k4", "k5", "k6"]
    s.scheduled.run_now("k0")
    assert [job.job_id for job in s.scheduled.list(count=4, after=page[0])] == ["k3", "k4", "k5", "k6"]


def test_what_is_due_before_a_time(make_stream, raw):
    s = make_stream()
    at = datetime(2100, 1, 1, tzinfo=UTC)
    for n, off in enumerate([-1, 0, 1]):
        s.add({}, job_id=f"k{n}", delay=60)
        raw.zadd(s._spec.keys.scheduled, {f"/k{n}": round(at.timestamp() * 1000) + off})
    assert [job.job_id for job in s.scheduled.list(due_before=at)] == ["k0"]
    assert [job.job_id for job in s.scheduled.list(due_before=at + timedelta(milliseconds=1))] == ["k0", "k1"]
    assert [job.job_id for job in s.scheduled.list(due_before=at, after=s.scheduled.get("k0"))] == []
    assert s.scheduled.list(due_before=datetime(1960, 1, 1, tzinfo=UTC)) == []
    assert len(s.scheduled.list(due_before=datetime.max.replace(tzinfo=UTC))) == 3


@pytest.mark.covers("Q6")
@pytest.mark.parametrize("due", ["-inf", -1.5, 0, 1.5, 10**15, 1e300, "+inf"])
def test_times_that_somebody_else_wrote(make_stream, raw, due):
    s = make_stream()
    s.add({}, job_id="k", delay=60)
    raw.zadd(s._spec.keys.scheduled, {"/k": due})
    [job] = s.scheduled.list()
    assert job == s.scheduled.get("k")
    assert datetime(1970, 1, 1, tzinfo=UTC) <= job.due_at
    s.scheduled.reschedule("k", delay=0)
    assert s.promote() == 1


@pytest.mark.covers("Q6")
@pytest.mark.parametrize("packed", [None, b"", b"\xc1", b"\x91\xa1a", b"\x92\x01\x02", b"{}", b"\x92\xa1a\xa1"])
def test_an_entry_that_is_lost_or_malformed_is_shown_without_fields(make_stream, raw, packed):
    s = make_stream()
    s.add({}, job_id="k", delay=60)
    raw.hdel(s._spec.keys.jobs, "/k") if packed is None else raw.hset(s._spec.keys.jobs, "/k", packed)
    for job in (*s.scheduled.list(), s.scheduled.get("k")):
        assert (job.job_id, job.fields, job.payload, job.attempt, job.enqueued_at) == ("k", (), None, 1, None)
    before = look.dumps(raw, s.name)
    with pytest.raises(JobStateError, match="lost or malformed"):
        s.scheduled.run_now("k")
    assert look.dumps(raw, s.name) == before
    assert s.scheduled.cancel("k") is True
    assert look.state(raw, s) == State()


@ONE_BACKEND
@pytest.mark.parametrize(
    "arguments",
    [{"count": 0}, {"count": 1_001}, {"count": True}, {"due_before": datetime(2030, 1, 1)}, {"due_before": 5}],  # noqa: DTZ001
)
def test_wrong_arguments(make_stream, proxy, arguments):
    s = make_stream(redis=proxy.url)
    with pytest.raises(ConfigurationError, match=next(iter(arguments))):
        s.scheduled.list(**arguments)
    assert list(proxy.commands) == []


# --- cancel -----------------------------------------------------------------------------------


@pytest.mark.covers("Q1", "C58")
@pytest.mark.parametrize("by", ["cancel", "scheduled.cancel"])
@pytest.mark.parametrize("job_id", [None, "k"])
def test_a_cancelled_job_never_runs(make_stream, raw, by, job_id):
    s = make_stream()
    added = s.add({}, job_id=job_id, delay=0.1)
    cancel = s.cancel if by == "cancel" else s.scheduled.cancel
    assert cancel(added.job_id) is True
    assert look.state(raw, s) == State()
    assert cancel(added.job_id) is False
    assert s.read("w", block=0.3) == []
    assert s.add({}, job_id=added.job_id, delay=60).created is True


@pytest.mark.covers("Q5", "Q1")
@pytest.mark.parametrize(
    ("state", "answer"),
    [
        ("unknown", False),
        ("dead", False),
        ("done", False),
        ("scheduled", True),
        ("ready", "ready"),
        ("pending", "pending"),
        ("released", "pending"),
        ("retried at once", "ready"),
    ],
)
def test_only_what_waits_is_cancelled(make_stream, raw, state, answer):
    s = make_stream()
    in_state(s, raw, state)
    before = look.dumps(raw, s.name)
    if isinstance(answer, bool):
        assert s.scheduled.cancel("k") is answer
        assert (look.dumps(raw, s.name) == before) is not answer
        return
    with pytest.raises(JobStateError, match=f"k is {answer}") as caught:
        s.scheduled.cancel("k")
    assert caught.value.state == answer
    assert look.dumps(raw, s.name) == before


# --- reschedule and run now --------------------------------------------------------------------


@pytest.mark.covers("Q5")
@pytest.mark.parametrize("verb", ["reschedule", "run_now"])
@pytest.mark.parametrize(
    ("state", "answer"),
    [
        ("unknown", "unknown"),
        ("dead", "unknown"),
        ("done", "done"),
        ("ready", "ready"),
        ("pending", "pending"),
        ("released", "pending"),
        ("retried at once", "ready"),
    ],
)
def test_what_does_not_wait_is_refused_with_its_state(make_stream, raw, verb, state, answer):
    s = make_stream()
    in_state(s, raw, state)
    before = look.dumps(raw, s.name)
    with pytest.raises(JobStateError, match=f"k is {answer}, not scheduled") as caught:
        s.scheduled.run_now("k") if verb == "run_now" else s.scheduled.reschedule("k", delay=5)
    assert caught.value.state == answer
    assert look.dumps(raw, s.name) == before


@pytest.mark.covers("Q5")
@pytest.mark.parametrize("job_id", [None, "k"])
def test_another_time(make_stream, raw, job_id):
    s = make_stream()
    k = s.add({"n": 1}, job_id=job_id, delay=60).job_id
    first = look.timers(raw, s)[f"/{k}"]
    before = look.server_ms(raw)
    due = s.scheduled.reschedule(k, delay=90)
    after = look.server_ms(raw)
    now = look.timers(raw, s)[f"/{k}"]
    assert before + 90_000 <= now.due_ms <= after + 90_000
    assert (round(due.timestamp() * 1000), s.scheduled.get(k).due_at) == (now.due_ms, due)
    assert now.fields == first.fields  # payload, attempts and all
    at = datetime.now(UTC).replace(microsecond=0) + timedelta(minutes=9)
    assert s.scheduled.reschedule(k, at=at) == at
    assert s.scheduled.reschedule(k, at=datetime.fromtimestamp(5, UTC)) <= datetime.now(UTC) + timedelta(minutes=1)
    [job] = s.read("w")
    assert (job.id, job.payload, job.attempt) == (k, {"n": 1}, 1)


@pytest.mark.covers("Q7")
def test_who_sleeps_is_told_of_an_earlier_time(make_stream, raw):
    s = make_stream()
    for n in (60, 90):
        s.add({}, job_id=f"k{n}", delay=n)
    told = look.entries(raw, s._spec.keys.wake)
    s.scheduled.reschedule("k90", delay=70)
    s.scheduled.reschedule("k60", delay=80)
    assert look.entries(raw, s._spec.keys.wake) == told
    due = s.scheduled.reschedule("k60", delay=5)
    [(_, fields)] = look.entries(raw, s._spec.keys.wake)
    assert fields == [(b"due", str(round(due.timestamp() * 1000)).encode())]


@pytest.mark.covers("Q5", "R4")
@pytest.mark.parametrize("job_id", [None, "k"])
def test_run_now_takes_the_place_of_the_run_that_waited(make_stream, raw, job_id):
    s = make_stream()
    k = s.add({"n": 1}, job_id=job_id, delay=0.3).job_id
    entry_id = s.scheduled.run_now(k)
    assert look.state(raw, s) == State(stream=[entry_id], ids={"k": f"queued {entry_id}"} if job_id else {})
    [job] = s.read("w")
    assert (job.id, job.entry_id, job.payload, job.attempt, job.deliveries) == (k, entry_id, {"n": 1}, 1, 1)
    s.ack(job)
    assert s.read("w", block=0.5) == []
    assert look.state(raw, s).stream == []


@pytest.mark.covers("S7", "Q5")
def test_what_is_changed_is_the_groups_own(make_stream, raw):
    a, b = make_stream(group="a", groups=("b",)), make_stream(group="b")
    for job_id in ("cancelled", "moved", "run"):
        a.add({}, job_id=job_id)
    for s in (a, b):
        for job in s.read("w", count=9):
            s.retry(job, "no", delay=60)
    before = look.timers(raw, a)
    assert len(before) == 6
    assert a.scheduled.cancel("cancelled") is True
    a.scheduled.reschedule("moved", delay=3600)
    a.scheduled.run_now("run")
    now = look.timers(raw, a)
    assert set(now) == {"a/moved", "b/cancelled", "b/moved", "b/run"}
    assert {name: timer for name, timer in now.items() if name[0] == "b"} == {
        name: timer for name, timer in before.items() if name[0] == "b"
    }
    assert a.add({}, job_id="cancelled", delay=5).state == "scheduled"  # b's next attempt holds it
    assert b.read("w", count=9) == []
    [job] = a.read("w", count=9)
    assert (job.id, job.attempt) == ("run", 2)
    assert a.result("cancelled").state == "unknown"
    assert b.result("cancelled").state == "scheduled"


@pytest.mark.covers("Q5")
def test_a_job_of_all_groups_is_changed_by_any(make_stream, raw):
    a, b = make_stream(group="a", groups=("b",)), make_stream(group="b")
    for job_id in ("cancelled", "run"):
        a.add({}, job_id=job_id, delay=60)
    assert b.scheduled.cancel("cancelled") is True
    b.scheduled.run_now("run")
    assert look.timers(raw, a) == {}
    assert [s.read("w")[0].id for s in (a, b)] == ["run", "run"]


@pytest.mark.covers("Q5")
def test_one_copy_whoever_comes_first(make_stream, raw):
    """A promoter, a reader that fails and an operator, at once, on 60 jobs: each ends exactly once, as somebody was told."""
    worker, operator, promoter = make_stream(retry=Backoff.constant(0.005)), make_stream(), make_stream()
    ids = [f"k{n}" for n in range(60)]
    worker.add_many([{"id": k} for k in ids], job_id=lambda p: p["id"], delay=0.01)
    cancelled, runs, over = set(), {k: [] for k in ids}, threading.Event()
    with ThreadPoolExecutor(3) as pool:
        working = pool.submit(fail_three_times, worker, runs, cancelled)
        others = [pool.submit(operate, operator, ids, cancelled), pool.submit(move, promoter, over)]
        try:
            ended = working.result(60)
        finally:
            over.set()
        for other in others:
            other.result(60)
    assert not ended & cancelled
    for job_id, attempts in runs.items():
        assert attempts == list(range(1, len(attempts) + 1))  # one after the other, none twice
        assert (len(attempts) == 4) == (job_id in ended)
    now = look.state(raw, worker)
    assert (now.stream, now.pending, now.scheduled, now.dead) == ([], {}, [], [])


def operate(s, ids, cancelled):
    for turn in range(4):
        for n, job_id in enumerate(ids):
            with suppress(JobStateError):
                if (n + turn) % 3 == 0:
                    s.scheduled.run_now(job_id)
                elif (n + turn) % 3 == 1:
                    s.scheduled.reschedule(job_id, delay=0.01)
                elif turn == 2 and s.scheduled.cancel(job_id):
                    cancelled.add(job_id)


def move(s, over):
    while not over.is_set():
        s.promote()


def fail_three_times(s, runs, cancelled):
    ended = set()
    while len(ended | cancelled) < len(runs):
        for job in s.read("w", count=5, block=0.05):
            runs[job.id].append(job.attempt)
            if job.attempt < 4:
                s.retry(job, "no")
            else:
                s.ack(job)
                ended.add(job.id)
    return ended


def test_scripts_that_only_look_or_move_are_refused_nothing_after_a_flush(make_stream, raw):
    s = make_stream()
    raw.script_load(source("promote").text)
    s.add({}, job_id="k", delay=60)
    raw.script_flush()
    s.scheduled.reschedule("k", delay=5)
    raw.script_flush()
    assert s.scheduled.run_now("k")


# --- groups that are gone ----------------------------------------------------------------------


@pytest.mark.covers("S7")
def test_the_retries_of_a_dropped_group_become_letters(make_stream, raw):
    a, b = make_stream(group="a", groups=("b",)), make_stream(group="b")
    a.add({"n": 1}, job_id="k")
    a.ack(a.read("w")[0])
    b.retry(b.read("w")[0], "no", delay=60)
    with pytest.raises(JobStateError) as caught:
        a.groups.drop("b")
    assert caught.value.state == "scheduled"
    assert a.groups.drop("b", force=True) is True
    assert list(look.timers(raw, a)) == ["b/k"]
    look.make_due(raw, a)
    alone = make_stream(group="a")
    assert alone.promote() == 1
    assert alone.read("w") == []
    [letter] = alone.dead_letters.list()
    assert (letter.reason, letter.job_id, letter.payload) == ("unknown_group", "k", b'{"n":1}')
    now = look.state(raw, alone, group="a")
    assert (now.stream, now.pending, now.scheduled) == ([], {}, [])
    assert alone.add({}, job_id="k").created is True


def test_a_groups_timer_in_hand(make_stream, raw):
    """Timers of an ID do not make pending what is not."""
    s = make_stream()
    s.add({}, job_id="k")
    [job] = s.read("w")
    assert look.pending(raw, s) == {job.entry_id: Row("w", 1)}
    s.retry(job, "no", delay=60)
    assert look.pending(raw, s) == {}
