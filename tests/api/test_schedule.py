"""Jobs that wait for their time: added with a delay or a time, replaced, and moved into the stream when they are due."""

from __future__ import annotations

import itertools
import json
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta, timezone

import look
import pytest
import redis
import servers
from colours import open_stream
from look import Row, State
from redis.crc import key_slot

from streamq import Backoff, ConfigurationError, ConnectionLostError, JobEncodingError, JobStateError, ServerError
from streamq._flows import intake
from streamq._ops import promote
from streamq.keys import registry

ONE_BACKEND = pytest.mark.parametrize("backend", ["redis-7.0"], indirect=True)
"""For mistakes that are found before anything is sent."""


def ms_of(entry_id):
    """The server's time when an entry was added."""
    return int(entry_id.partition("-")[0])


def value(fields, name):
    return dict(fields).get(name)


# --- the time ---------------------------------------------------------------------------------


@pytest.mark.covers("Q1", "Q9")
@pytest.mark.parametrize("job_id", [None, "k"])
def test_a_job_starts_at_its_time_and_not_before(make_stream, raw, job_id):
    s = make_stream()
    s.read("w")
    before = look.server_ms(raw)
    added = s.add({"n": 1}, job_id=job_id, delay=0.4)
    after = look.server_ms(raw)
    assert (added.created, added.state, added.entry_id) == (True, "scheduled", None)
    assert job_id == added.job_id if job_id else re.fullmatch("[0-9a-f]{32}", added.job_id)
    timer = f"/{added.job_id}"
    assert look.state(raw, s) == State(scheduled=[timer])
    [due] = [timer.due_ms for timer in look.timers(raw, s).values()]
    assert before + 400 <= due <= after + 400
    assert s.read("w") == []
    [job] = s.read("w", block=10)
    assert 0 <= ms_of(job.entry_id) - due < 2_000
    assert (job.id, job.payload, job.attempt, job.deliveries) == (added.job_id, {"n": 1}, 1, 1)
    assert before <= job.enqueued_at.timestamp() * 1000 <= after
    assert look.state(raw, s) == State(
        stream=[job.entry_id],
        pending={job.entry_id: Row("w", 1)},
        ids={"k": f"queued {job.entry_id}"} if job_id else {},
        done={"workers/k": f"running {job.entry_id}"} if job_id else {},
    )
    assert s.ack(job) is True
    assert look.state(raw, s) == State(
        ids={"k": f"done {job.entry_id}"} if job_id else {},
        done={"workers/k": "done "} if job_id else {},
        counters={"done:workers": 1},
    )


@pytest.mark.covers("Q1")
@pytest.mark.parametrize("how", ["seconds", "timedelta", "at", "at in another zone"])
def test_ways_to_say_when(make_stream, raw, how):
    s = make_stream()
    now = datetime.now(UTC)
    ahead = timedelta(hours=1)
    when = {
        "seconds": {"delay": 3600},
        "timedelta": {"delay": ahead},
        "at": {"at": now + ahead},
        "at in another zone": {"at": (now + ahead).astimezone(timezone(timedelta(hours=-9)))},
    }[how]
    s.add({}, job_id="k", **when)
    assert abs(look.timers(raw, s)["/k"].due_ms - (now + ahead).timestamp() * 1000) < 5_000
    assert (s.promote(), s.read("w", block=0.05)) == (0, [])
    assert look.state(raw, s) == State(scheduled=["/k"])


@pytest.mark.covers("Q9")
@pytest.mark.parametrize("job_id", [None, "k"])
@pytest.mark.parametrize(
    "when",
    [
        {"delay": 0},
        {"delay": 0.0004},
        {"delay": timedelta(0)},
        {"at": datetime.fromtimestamp(1, UTC)},
        {"at": datetime(1066, 10, 14, tzinfo=UTC)},
        {"at": datetime.min.replace(tzinfo=UTC)},
    ],
)
def test_no_delay_and_what_is_past_is_now(make_stream, raw, job_id, when):
    s = make_stream()
    added = s.add({"n": 1}, job_id=job_id, **when)
    assert (added.created, added.state) == (True, "ready")
    assert look.state(raw, s) == State(stream=[added.entry_id], ids={"k": f"queued {added.entry_id}"} if job_id else {})
    [job] = s.read("w")
    assert (job.id, job.entry_id, job.payload) == (added.job_id, added.entry_id, {"n": 1})


@pytest.mark.covers("Q9")
def test_a_wait_ends_when_something_is_due(make_stream, raw, monkeypatch):
    """A hand-written loop that just had a job: it would not look for another second."""
    monkeypatch.setattr(intake, "WATCH_MS", 4_000)
    s = make_stream(retry=Backoff.constant(0.1))
    s.add({})
    [job] = s.read("w", block=1)
    s.retry(job, "no")
    [timer] = look.timers(raw, s).values()
    [job] = s.read("w", block=4)
    assert job.attempt == 2
    assert 0 <= ms_of(job.entry_id) - timer.due_ms < 2_500


@pytest.mark.covers("Q7")
def test_who_sleeps_is_told_of_an_earlier_job_only(make_stream, raw):
    s = make_stream()
    told = []
    for delay in (60, 90, 30, 3600, 10):
        s.add({}, delay=delay)
        told.append([(name, int(due)) for _, fields in look.entries(raw, s._spec.keys.wake) for name, due in fields])
    dues = [timer.due_ms for timer in look.timers(raw, s).values()]
    ten, thirty, sixty, *_ = ([(b"due", due)] for due in dues)
    assert told == [sixty, sixty, thirty, thirty, ten]


@pytest.mark.covers("Q8", "C55")
@pytest.mark.parametrize("hours", [-1, 1])
def test_clocks_that_are_off_change_no_due_time(make_stream, raw, monkeypatch, hours):
    s = make_stream()
    s.add({}, job_id="retried")
    [job] = s.read("w")
    true = time.time
    monkeypatch.setattr(time, "time", lambda: true() + hours * 3600)
    monkeypatch.setattr(time, "time_ns", lambda: int((true() + hours * 3600) * 1e9))
    before = look.server_ms(raw)
    s.add({}, job_id="added", delay=10)
    s.retry(job, "no", delay=20)
    s.add({}, job_id="moved", delay=1)
    s.scheduled.reschedule("moved", delay=30)
    after = look.server_ms(raw)
    timers = look.timers(raw, s)
    for timer, delay in [("/added", 10), ("workers/retried", 20), ("/moved", 30)]:
        assert before + delay * 1000 <= timers[timer].due_ms <= after + delay * 1000
    assert before <= int(value(timers["/added"].fields, b"sq:at")) <= after
    assert (s.promote(), s.read("w", block=0.05)) == (0, [])  # nor does this clock say that they are due
    look.make_due(raw, s)
    assert s.promote() == 3


@pytest.mark.covers("C94")
def test_the_streams_last_id_is_far_in_the_future(make_stream, raw):
    """Entry IDs are the server's: made of due times they would go backwards."""
    s = make_stream()
    s.read("w")
    far = look.call(raw, "XADD", s._spec.keys.stream, "99999999999999-0", "job", "{}").decode()
    for n in range(10):
        s.add({}, job_id=f"early-{n}", delay=60)
    look.make_due(raw, s)
    assert s.promote() == 10
    for n in range(10):
        s.add({}, job_id=f"late-{n}", delay=0)
    jobs = s.read("w", count=100)
    assert len(jobs) == 21
    assert jobs[0].entry_id == far
    assert [job.attempt for job in jobs if s.retry(job, "no", delay=60)] == [1] * 21
    look.make_due(raw, s)
    assert s.promote() == 21
    assert s.ack(s.read("w", count=100)) == 21
    assert look.state(raw, s).stream == []


# --- keys -------------------------------------------------------------------------------------


@pytest.mark.covers("Q2")
@pytest.mark.parametrize("deployed", [False, True])
def test_the_keys_are_those_of_the_layout_and_of_one_slot(make_stream, raw, ns, deployed):
    deployment = f"{ns}-dp" if deployed else None
    s = make_stream(deployment=deployment, groups=("other",))
    s.add({}, job_id="waits", delay=60)
    s.add({}, delay=60)
    for job_id in ("acked", "retried", "rejected", "committed"):
        s.add({}, job_id=job_id)
    acked, retried, rejected, committed = s.read("w", count=9)
    s.ack(acked)
    s.retry(retried, "no", delay=60)
    s.reject(rejected, "no")
    committed.effects.hincrby("receipts", "1")
    s.commit(committed)
    prefix = f"{deployment}:streamq:{{{deployment}:{ns}}}" if deployed else f"streamq:{{{ns}}}"
    found = {key.decode() for key in raw.scan_iter(match=f"*{ns}*", count=1_000)}
    registered = f"{deployment}:streamq:streams" if deployed else "streamq:streams"
    assert raw.sismember(registered, ns)
    own = found - {registered}
    single = {"stream", "dead", "scheduled", "scheduled:jobs", "meta", "wake", "data:receipts"}
    assert {f"{prefix}:{rest}" for rest in single} == {key for key in own if not re.search(r":(ids|done):[0-3]$", key)}
    slices = own - {f"{prefix}:{rest}" for rest in single}
    assert {key.rpartition(":")[0] for key in slices} == {f"{prefix}:ids", f"{prefix}:done"}
    assert len({slot(raw, key) for key in own}) == 1
    assert slot(raw, registry(deployment)) == slot(raw, registered)


def slot(raw, key):
    """As the server says, where it does; plain servers do not."""
    computed = key_slot(key.encode())
    with suppress(redis.ResponseError):
        assert look.call(raw, "CLUSTER", "KEYSLOT", key) == computed
    return computed


# --- promote ----------------------------------------------------------------------------------


@pytest.mark.covers("Q3")
@pytest.mark.slow
def test_several_promoters_move_each_job_once(make_stream, raw):
    count = 5_000
    streams = [make_stream() for _ in range(4)]
    s = streams[0]
    assert s.add_many(({"n": n} for n in range(count)), job_id=lambda p: f"j{p['n']}", delay=3600) == count
    key = s._spec.keys.scheduled
    raw.zadd(key, dict.fromkeys(raw.zrange(key, 0, -1), 1))
    together = threading.Barrier(len(streams))

    def move(stream):
        together.wait()
        moved = 0
        while found := stream.run(promote.some(stream._spec)).moved:
            moved += found
        return moved

    with ThreadPoolExecutor(len(streams)) as pool:
        moved = list(pool.map(move, streams))
    assert sum(moved) == count
    ids = [dict(fields)[b"sq:id"].decode() for _, fields in look.entries(raw, s._spec.keys.stream)]
    assert sorted(ids) == sorted(f"j{n}" for n in range(count))
    assert look.timers(raw, s) == {}
    assert look.records(raw, s._spec.keys.ids).keys() == set(ids)


def test_what_is_due_first_comes_first(make_stream, raw):
    s = make_stream()
    for n, delay in enumerate([30, 10, 20]):
        s.add({"n": n}, delay=delay)
    look.make_due(raw, s)
    assert s.promote() == 3
    assert [job.payload["n"] for job in s.read("w", count=9)] == [1, 2, 0]


def test_a_batch_is_bounded_by_number_and_bytes(make_stream, raw):
    s = make_stream(type=bytes)
    s.add_many((b"x" * 200_000 for _ in range(20)), delay=60)
    s.add_many((b"x" for _ in range(400)), delay=90)
    look.make_due(raw, s)
    steps = []
    while (found := s.run(promote.some(s._spec))).moved:
        steps.append(found.moved)
        assert (found.wait_ms == 0) == bool(raw.zcard(s._spec.keys.scheduled))
    assert sum(steps) == 420
    assert steps[0] * 200_000 < 2 * promote.BATCH_BYTES
    assert max(steps) == 200


@pytest.mark.covers("S7")
def test_every_group_gets_a_job_that_was_due(make_stream, raw):
    a, b = make_stream(group="a", groups=("b",)), make_stream(group="b")
    a.add({"n": 1}, job_id="k", delay=60)
    look.make_due(raw, a)
    assert b.promote() == 1
    [job], [other] = a.read("w"), b.read("w")
    assert job.entry_id == other.entry_id
    a.ack(job)
    assert raw.xlen(a._spec.keys.stream) == 1
    b.ack(other)
    assert look.state(raw, a).stream == []


def test_scheduled_jobs_do_not_count_as_ready(make_stream, raw):
    s = make_stream(max_ready=1)
    s.add({})
    assert s.add({}, job_id="k", delay=60).state == "scheduled"
    look.make_due(raw, s)
    assert s.promote() == 1
    assert s.inspect().ready == 2


def test_what_add_was_told_travels_along(make_stream, raw):
    s = make_stream(codec="msgpack")
    s.add({"at": datetime(2030, 1, 1, tzinfo=UTC)}, delay=60, headers={"trace": "ü"}, retry=Backoff.constant(7))
    look.make_due(raw, s)
    s.promote()
    [job] = s.read("w")
    assert (job.payload, job.headers) == ({"at": datetime(2030, 1, 1, tzinfo=UTC)}, {"trace": "ü"})
    s.retry(job, "no")
    [timer] = look.timers(raw, s).values()
    policy = json.loads(value(timer.fields, b"sq:retry"))
    assert (policy["delays_ms"], policy["limit"]) == ([7_000], 10)


# --- many -------------------------------------------------------------------------------------


@pytest.mark.parametrize("chosen", [False, True])
def test_many_with_delays_of_their_own(make_stream, raw, chosen):
    s = make_stream()
    payloads = [{"n": n} for n in range(700)]
    options = {"job_id": lambda p: f"j{p['n']}"} if chosen else {}
    assert s.add_many(payloads, delay=lambda p: p["n"] and 1_000 + p["n"], **options) == 700
    timers = look.timers(raw, s)
    assert len(timers) == 699
    dues = [timer.due_ms - int(value(timer.fields, b"sq:at")) for timer in timers.values()]
    assert sorted(dues) == [1_000 * (1_000 + n) for n in range(1, 700)]
    assert [job.payload["n"] for job in s.read("w", count=9)] == [0]  # without a delay it is ready at once
    assert s.add_many(payloads, delay=5, **options) == (0 if chosen else 700)


@pytest.mark.covers("Q9")
def test_a_bad_delay_among_many(make_stream, raw):
    s = make_stream()
    with pytest.raises(ConfigurationError, match=r"payload 3: delay.*-1") as caught:
        s.add_many(({"n": n} for n in range(9)), delay=lambda p: -1 if p["n"] == 3 else 60)
    assert caught.value.added == 3
    assert len(look.timers(raw, s)) == 3


# --- IDs --------------------------------------------------------------------------------------


@pytest.mark.covers("Q4")
def test_the_first_stands_unless_it_is_replaced(make_stream, raw):
    s = make_stream()
    s.add({"n": 1}, job_id="k", delay=60)
    before = look.dumps(raw, s.name)
    for when in ({"delay": 5}, {"delay": 0}, {}, {"at": datetime.fromtimestamp(1, UTC)}):
        again = s.add({"n": 2}, job_id="k", **when)
        assert (again.job_id, again.entry_id, again.created, again.state) == ("k", None, False, "scheduled")
    assert s.add_many([{"n": 2}], job_id=lambda _: "k") == s.add_many([{"n": 2}], job_id=lambda _: "k", delay=5) == 0
    assert look.dumps(raw, s.name) == before
    first = look.timers(raw, s)["/k"]
    replaced = s.add({"n": 2}, job_id="k", delay=90, replace=True)
    assert (replaced.entry_id, replaced.created, replaced.state) == (None, True, "scheduled")
    assert look.state(raw, s) == State(scheduled=["/k"])
    second = look.timers(raw, s)["/k"]
    assert 29_000 < second.due_ms - first.due_ms < 40_000
    assert value(second.fields, b"job") == b'{"n":2}'


@pytest.mark.covers("Q4")
def test_what_was_replaced_runs_once_at_its_new_time(make_stream, raw):
    s = make_stream()
    s.add({"n": 1}, job_id="k", delay=0.1)
    s.add({"n": 2}, job_id="k", delay=0.5, replace=True)
    [timer] = look.timers(raw, s).values()
    [job] = s.read("w", block=10)
    assert job.payload == {"n": 2}
    assert ms_of(job.entry_id) >= timer.due_ms
    s.ack(job)
    assert s.read("w", block=0.05) == []
    assert s.add({}, job_id="k", delay=60).state == "done"


@pytest.mark.covers("Q4")
@pytest.mark.parametrize("when", [{}, {"delay": 0}, {"at": datetime.fromtimestamp(1, UTC)}])
def test_replaced_to_run_now(make_stream, raw, when):
    s = make_stream()
    s.add({"n": 1}, job_id="k", delay=60)
    added = s.add({"n": 2}, job_id="k", replace=True, **when)
    assert (added.created, added.state) == (True, "ready")
    assert look.state(raw, s) == State(stream=[added.entry_id], ids={"k": f"queued {added.entry_id}"})
    [job] = s.read("w")
    assert (job.payload, job.id) == ({"n": 2}, "k")


@pytest.mark.covers("Q4")
def test_a_replaced_retry_has_all_its_attempts_again(make_stream, raw):
    s = make_stream(retry=Backoff.constant(60, limit=1))
    s.add({"n": 1}, job_id="k", headers={"old": "1"})
    s.retry(s.read("w")[0], "first")
    assert s.scheduled.get("k").attempt == 2
    s.add({"n": 2}, job_id="k", delay=30, replace=True)
    now = s.scheduled.get("k")
    assert (now.attempt, now.errors, now.group) == (1, (), "workers")
    look.make_due(raw, s)
    [job] = s.read("w", block=0.05) or s.read("w", block=2)
    assert (job.payload, job.attempt, job.headers) == ({"n": 2}, 1, {})
    assert s.retry(job) is True
    s.scheduled.run_now("k")
    assert s.retry(s.read("w")[0]) is False


@pytest.mark.covers("Q4", "S7")
def test_what_is_replaced_stays_each_groups_own(make_stream, raw):
    a, b, c = (make_stream(group=name, groups=tuple("abc")) for name in "abc")
    a.add({"n": 1}, job_id="k")
    c.ack(c.read("w")[0])
    for s in (a, b):
        s.retry(s.read("w")[0], "no", delay=60)
    assert c.add({"n": 2}, job_id="k", delay=90, replace=True).created is True
    timers = look.timers(raw, a)
    assert set(timers) == {"a/k", "b/k"}
    for timer, (_, fields) in timers.items():
        assert (value(fields, b"job"), value(fields, b"sq:group")) == (b'{"n":2}', timer[:1].encode())
    look.make_due(raw, a)
    assert c.promote() == 2
    for s in (a, b):
        [job] = s.read("w", count=9)
        assert job.payload == {"n": 2}
        s.ack(job)
    assert c.read("w", count=9) == []
    now = look.state(raw, a)
    assert (now.stream, now.pending, now.scheduled, now.dead) == ([], {}, [], [])


@pytest.mark.covers("Q4", "Q5")
@pytest.mark.parametrize("state", ["ready", "pending", "done"])
def test_what_waits_no_more_is_not_replaced(make_stream, raw, state):
    s = make_stream()
    entry_id = s.add({"n": 1}, job_id="k").entry_id
    if state != "ready":
        [job] = s.read("w")
    if state == "done":
        s.ack(job)
    before = look.dumps(raw, s.name)
    for when in ({}, {"delay": 60}):
        added = s.add({"n": 2}, job_id="k", replace=True, **when)
        assert (added.created, added.state, added.entry_id) == (False, state, entry_id)
    assert look.dumps(raw, s.name) == before


@pytest.mark.covers("Q4")
def test_an_unknown_id_with_replace_is_added(make_stream, raw):
    s = make_stream()
    assert s.add({}, job_id="k", delay=60, replace=True).created is True
    assert s.add({}, job_id="now", replace=True).state == "ready"
    assert look.state(raw, s).scheduled == ["/k"]


@pytest.mark.covers("I8", "C58")
def test_an_id_is_known_while_it_waits_longer_than_ids_are_remembered(make_stream, raw):
    s = make_stream(idempotency_ttl=0.5)
    s.add({"n": 1}, job_id="added", delay=3600)
    s.add({"n": 1}, job_id="retried")
    s.retry(s.read("w")[0], "no", delay=3600)
    for key in (*s._spec.keys.ids, *s._spec.keys.done):
        raw.delete(key)  # as if all that was long ago
    for job_id in ("added", "retried"):
        again = s.add({"n": 2}, job_id=job_id)
        assert (again.created, again.state) == (False, "scheduled")
        assert s.result(job_id).state == "scheduled"
    look.make_due(raw, s)
    assert s.promote() == 2
    assert [s.add({}, job_id=job_id).state for job_id in ("added", "retried")] == ["ready", "ready"]
    assert [job.payload["n"] for job in s.read("w", count=9)] == [1, 1]


@pytest.mark.covers("I8")
def test_the_same_id_in_every_state(make_stream, raw):
    s = make_stream(retry=Backoff.constant(60, limit=1))

    def again(state):
        added = s.add({"n": 9}, job_id="k")
        assert (added.created, added.state, s.result("k").state) == (False, state, state)

    s.add({"n": 1}, job_id="k", delay=60)
    again("scheduled")
    look.make_due(raw, s)
    s.promote()
    again("ready")
    [job] = s.read("w")
    again("pending")
    s.retry(job, "no")
    again("scheduled")
    s.scheduled.run_now("k")
    again("ready")
    s.commit(s.read("w")[0], 7)
    again("done")
    assert s.result("k").value == 7


@pytest.mark.covers("C58")
def test_a_letter_whose_id_is_scheduled_again_is_superseded(make_stream, raw):
    s = make_stream()
    s.add({"n": 1}, job_id="k")
    s.reject(s.read("w")[0], "no")
    [letter] = s.dead_letters.list()
    s.add({"n": 2}, job_id="k", delay=60)
    before = look.dumps(raw, s.name)
    assert s.dead_letters.redrive(letter.id).superseded == {letter.id: "scheduled"}
    assert look.dumps(raw, s.name) == before
    s.scheduled.cancel("k")
    assert letter.id in s.dead_letters.redrive(letter.id).moved


@pytest.mark.covers("I5")
def test_deployments_and_streams_do_not_share_timers(make_stream, raw, ns):
    streams = [make_stream(name, deployment=deployment) for name in "xy" for deployment in (None, f"{ns}-1")]
    for place, s in enumerate(streams):
        assert s.add({"n": place}, job_id="k", delay=60).created is True
    look.make_due(raw, streams[0])
    assert [s.promote() for s in streams] == [1, 0, 0, 0]


# --- the same bytes, all the way ---------------------------------------------------------------

NUMBERS = [
    "300000000",
    "9007199254740993",
    "18446744073709551615",
    "007",
    "1e3",
    "nan",
    "0x10",
    "-0",
    "a/b",
    "/",
    "ü " * 9,
]
PAYLOAD = b'{"id":130775545883395173,"a":[],"o":{},"f":1.10,"e":1e3,"n":null,"big":18446744073709551616}'


@pytest.mark.covers("C12")
@pytest.mark.parametrize("job_id", NUMBERS)
def test_numbers_and_payloads_are_not_touched_at_any_stage(make_stream, raw, job_id):
    s = make_stream(type=bytes, retry=Backoff.constant(60, limit=1))

    def due():
        look.make_due(raw, s)
        assert s.promote() == 1
        [job] = s.read("w")
        assert (job.payload, job.id) == (PAYLOAD, job_id)
        return job

    s.add(PAYLOAD, job_id=job_id, delay=60)
    assert s.scheduled.get(job_id).payload == PAYLOAD
    assert list(look.timers(raw, s)) == [f"/{job_id}"]
    job = due()
    assert look.state(raw, s).done == {f"workers/{job_id}": f"running {job.entry_id}"}
    s.retry(job, "no")
    assert s.scheduled.get(job_id).payload == PAYLOAD
    assert list(look.timers(raw, s)) == [f"workers/{job_id}"]
    assert s.retry(due(), "no") is False
    [letter] = s.dead_letters.list()
    assert (letter.payload, letter.job_id) == (PAYLOAD, job_id)
    assert letter.id in s.dead_letters.redrive(letter.id).moved
    [job] = s.read("w")
    assert (job.payload, job.id, job.attempt) == (PAYLOAD, job_id, 1)
    s.retry(job, "no")
    assert s.scheduled.run_now(job_id)
    s.ack(s.read("w")[0])
    now = look.state(raw, s)
    assert (now.stream, now.pending, now.dead, now.scheduled) == ([], {}, [], [])
    assert set(now.ids) == {job_id}
    assert now.done == {f"workers/{job_id}": "done "}


@pytest.mark.covers("C12", "S8")
def test_fields_of_plain_producers_are_kept_byte_for_byte(make_stream, raw):
    """Values of every length that MessagePack has a header for, names that are no text, a doubled name, 200 fields."""
    s = make_stream()
    sizes = [0, 1, 31, 32, 255, 256, 65_535, 65_536]
    fields = [(b"job", b'{"a":[]}'), (b"\xff\x00", b"\x80\xc1"), (b"1.0", b"1.0"), (b"twice", b"1"), (b"twice", b"2")]
    fields += [(f"size {size}".encode(), b"\xc1" * size) for size in sizes]
    fields += [(f"f{n}".encode(), str(n).encode()) for n in range(200 - len(fields))]
    look.by_hand(raw, s, *itertools.chain(*fields), "sq:h:trace", "t", "sq:later", "v")
    kept = [*fields, (b"sq:h:trace", b"t"), (b"sq:later", b"v")]
    [job] = s.read("w")
    s.retry(job, "no", delay=60)
    [timer] = look.timers(raw, s).values()
    ours = [name for name, _ in timer.fields[len(kept) :]]
    assert timer.fields[: len(kept)] == kept
    assert ours == [b"sq:id", b"sq:at", b"sq:attempt", b"sq:group", b"sq:errors", b"sq:generated"]
    assert list(s.scheduled.get(job.id).fields) == timer.fields
    look.make_due(raw, s)
    s.promote()
    [(_, entry)] = look.entries(raw, s._spec.keys.stream)
    assert entry == timer.fields
    [job] = s.read("w")
    assert (job.payload, job.attempt, job.headers) == ({"a": []}, 2, {"trace": "t"})
    s.reject(job, "no")
    [letter] = s.dead_letters.list()
    assert list(letter.fields) == entry
    s.dead_letters.redrive(letter.id)
    [(_, again)] = look.entries(raw, s._spec.keys.stream)
    assert again[: len(kept)] == kept


# --- mistakes ---------------------------------------------------------------------------------

NOT_DELAYS = [
    -1, -0.001, float("nan"), float("inf"), float("-inf"), 366 * 86_400, 10**400, True, "5", b"5", [5], 1j,
    timedelta(days=-1), timedelta(days=366),
]  # fmt: skip
NOT_TIMES = [
    datetime(2030, 1, 1), datetime(9999, 12, 31), "2030-01-01", 1893456000, datetime(2030, 1, 1).date(), timedelta(1),  # noqa: DTZ001
]  # fmt: skip


def each_way(s, **when):
    """Every call that takes a time, on a stream that has a job in hand and one that waits."""
    [job] = s.reclaim("w", min_idle=0).claimed
    yield lambda: s.add({}, **when)
    yield lambda: s.add({}, job_id="new", **when)
    yield lambda: s.add({}, job_id="waits", replace=True, **when)
    yield lambda: s.scheduled.reschedule("waits", **when)
    if "delay" in when:
        yield lambda: s.add_many([{}], **when)
        yield lambda: s.add_many([{}], delay=lambda _: when["delay"])
        yield lambda: s.retry(job, "no", **when)


@pytest.fixture
def used(make_stream):
    """A stream with a job in hand and one that waits; nobody needs to open anything any more."""
    s = make_stream(max_deliveries=1_000)
    s.add({}, job_id="held")
    s.read("w")
    s.add({}, job_id="waits", delay=60)
    s.scheduled.reschedule("waits", delay=60)
    return s


@ONE_BACKEND
@pytest.mark.covers("Q9", "C66")
@pytest.mark.parametrize("delay", NOT_DELAYS, ids=repr)
def test_delays_that_are_none(used, raw, delay):
    for call in each_way(used, delay=delay):
        before = look.dumps(raw, used.name)
        with pytest.raises(ConfigurationError, match="delay"):
            call()
        assert look.dumps(raw, used.name) == before


@ONE_BACKEND
@pytest.mark.covers("Q9", "C66")
@pytest.mark.parametrize("at", NOT_TIMES, ids=repr)
def test_times_that_are_none(used, raw, at):
    for call in each_way(used, at=at):
        before = look.dumps(raw, used.name)
        with pytest.raises(ConfigurationError, match="at must be"):
            call()
        assert look.dumps(raw, used.name) == before


@pytest.mark.covers("Q9")
@pytest.mark.parametrize("at", [datetime.max.replace(tzinfo=UTC), timedelta(days=366)], ids=repr)
def test_a_time_too_far_ahead(used, raw, at):
    at = at if isinstance(at, datetime) else datetime.now(UTC) + at
    for call in each_way(used, at=at):
        before = look.dumps(raw, used.name)
        with pytest.raises(ConfigurationError, match=r"ahead of the server's clock, max_delay is 31,536,000; nothing"):
            call()
        assert look.dumps(raw, used.name) == before


@pytest.mark.covers("Q9")
def test_the_streams_own_max_delay(make_stream, raw):
    s = make_stream(max_delay=60)
    s.add({}, job_id="a", delay=60)
    s.add({}, job_id="b", at=datetime.now(UTC) + timedelta(seconds=55))
    with pytest.raises(ConfigurationError, match=r"from 0 to 60 seconds, not 60\.001"):
        s.add({}, delay=60.001)
    with pytest.raises(ConfigurationError, match="max_delay is 60"):
        s.add({}, at=datetime.now(UTC) + timedelta(seconds=90))
    with pytest.raises(ConfigurationError, match="max_delay is 60"):
        s.scheduled.reschedule("a", at=datetime.now(UTC) + timedelta(seconds=90))
    assert set(look.timers(raw, s)) == {"/a", "/b"}


@ONE_BACKEND
@pytest.mark.covers("Q9")
def test_delay_and_at_and_neither(used, raw):
    before = look.dumps(raw, used.name)
    both = {"delay": 1, "at": datetime.now(UTC)}
    for call in (
        lambda: used.add({}, **both),
        lambda: used.scheduled.reschedule("waits", **both),
        lambda: used.scheduled.reschedule("waits"),
        lambda: used.add({}, delay=5, replace=True),
        lambda: used.add({}, job_id="waits", replace="yes"),
        lambda: used.add({}, job_id="waits", replace=1),
    ):
        with pytest.raises(ConfigurationError, match=r"delay or at|job_id|replace"):
            call()
    assert look.dumps(raw, used.name) == before


@ONE_BACKEND
@pytest.mark.covers("Q9")
@pytest.mark.parametrize("job_id", ["", "x" * 513, "a\nb", "\x00", "\ud800", 7, b"x"])
def test_malformed_ids(make_stream, proxy, job_id):
    s = make_stream(redis=proxy.url)
    for call in (
        lambda: s.add({}, job_id=job_id, delay=1),
        lambda: s.add_many([{}], job_id=lambda _: job_id, delay=1),
        lambda: s.scheduled.get(job_id),
        lambda: s.scheduled.cancel(job_id),
        lambda: s.scheduled.reschedule(job_id, delay=1),
        lambda: s.scheduled.run_now(job_id),
    ):
        with pytest.raises(ConfigurationError, match="job ID"):
            call()
    assert list(proxy.commands) == []


@ONE_BACKEND
def test_a_payload_or_a_policy_that_cannot_be_stored(make_stream, proxy):
    s = make_stream(redis=proxy.url)
    with pytest.raises(JobEncodingError):
        s.add({"n": object()}, delay=1)
    for policy in (5, "exponential", Backoff, Backoff.custom(lambda _: 1)):
        for delay in (None, 1):
            with pytest.raises(ConfigurationError, match=r"Backoff|custom"):
                s.add({}, delay=delay, retry=policy)
    assert list(proxy.commands) == []


# --- what can go wrong ------------------------------------------------------------------------


@pytest.mark.covers("C23", "F7", "I3")
@pytest.mark.parametrize("wrong", ["stream", "scheduled", "jobs", "dead", "ids"])
def test_keys_of_the_wrong_type(make_stream, raw, wrong):
    """Nothing is written where something could not be; a broken dead-letter stream is no reason to promote nothing."""
    s = make_stream()
    s.add({}, job_id="held")
    [job] = s.read("w")
    for job_id in ("a", "b"):
        s.add({}, job_id=job_id, delay=60)
    s.scheduled.reschedule("a", delay=60)
    look.make_due(raw, s)
    keys = s._spec.keys
    key = keys.ids[0] if wrong == "ids" else getattr(keys, wrong)
    held = raw.dump(key)
    raw.delete(key)
    raw.set(key, "x")
    before = look.dumps(raw, s.name)
    calls = {
        "schedule": (lambda: s.add({}, job_id="c", delay=60), {"stream", "scheduled", "jobs", "ids"}),
        "promote": (s.promote, {"stream", "scheduled", "jobs", "ids"}),
        "run_now": (lambda: s.scheduled.run_now("a"), {"stream", "scheduled", "jobs", "ids"}),
        "reschedule": (lambda: s.scheduled.reschedule("a", delay=9), {"scheduled", "ids"}),
        "cancel": (lambda: s.scheduled.cancel("a"), {"scheduled", "jobs", "ids"}),
        "retry": (lambda: s.retry(job, "no", delay=60), {"stream", "scheduled", "jobs", "ids"}),
        "list": (s.scheduled.list, {"scheduled", "jobs"}),
        "get": (lambda: s.scheduled.get("a"), {"scheduled", "jobs"}),
    }
    for call, refused in calls.values():
        if wrong in refused:
            with pytest.raises((ConfigurationError, ServerError)) as caught:
                call()
            assert key in str(caught.value)
    assert look.dumps(raw, s.name) == before
    if wrong == "dead":
        assert s.promote() == 2
        return
    raw.delete(key)
    if held:
        raw.restore(key, 0, held)
    assert s.promote() == 2
    assert sorted(job.id for job in s.read("w", count=9)) == ["a", "b"]


def admin(server):
    return redis.Redis.from_url(server.url, single_connection_client=True, protocol=2)


@pytest.mark.covers("C42")
def test_memory_is_full(new_server, colour):
    server = new_server()
    with closing(open_stream(colour, "x", redis=server.url)) as s, admin(server) as raw:
        for job_id in ("held", "other"):
            s.add({}, job_id=job_id)
        held, other = s.read("w", count=2)
        for job_id in ("due", "by hand", "cancelled"):
            s.add({}, job_id=job_id, delay=3600)
        s.scheduled.reschedule("by hand", delay=3600)
        look.make_due(raw, s, "/due")
        s.add({"n": "ready"})
        raw.config_set("maxmemory", 1)
        before = look.dumps(raw, "x")
        for call in (
            lambda: s.add({}, job_id="new", delay=60),
            lambda: s.add({}, delay=60),
            lambda: s.add({}, job_id="due", delay=60, replace=True),
            lambda: s.retry(held, "no", delay=60),
            lambda: s.retry(held, "no", delay=0),
            s.promote,
            lambda: s.scheduled.run_now("by hand"),
            lambda: s.scheduled.reschedule("by hand", delay=60),
        ):
            with pytest.raises(ServerError) as caught:
                call()
            assert caught.value.code == "OOM"
        assert look.dumps(raw, "x") == before
        assert s.scheduled.cancel("cancelled") is True  # it frees memory
        s.ack(other)
        [ready] = s.read("w", block=0.05)  # what is due cannot be moved, but what is there comes
        assert ready.payload == {"n": "ready"}
        raw.config_set("maxmemory", 0)
        assert s.retry(held, "no", delay=60) is True
        assert s.scheduled.run_now("by hand")
        assert s.promote() == 1
        assert sorted(job.id for job in s.read("w", count=9)) == ["by hand", "due"]
        assert set(look.timers(raw, s)) == {"workers/held"}


@pytest.mark.covers("C02")
@pytest.mark.parametrize("arrives", [True, False])
@pytest.mark.parametrize("verb", ["schedule", "replace", "reschedule", "run_now", "cancel", "promote"])
def test_the_reply_is_lost(make_stream, raw, proxy, verb, arrives):
    s = make_stream(redis=proxy.url)
    s.read("w")
    if verb != "schedule":
        s.add({"n": 1}, job_id="k", delay=60)
    s.add({}, job_id="open", delay=3600)
    s.scheduled.cancel("open")
    look.make_due(raw, s, "/k")
    call = {
        "schedule": lambda: s.add({"n": 2}, job_id="k", delay=60).created,
        "replace": lambda: s.add({"n": 2}, job_id="k", delay=60, replace=True).created,
        "reschedule": lambda: bool(s.scheduled.reschedule("k", delay=60)),
        "run_now": lambda: bool(s.scheduled.run_now("k")),
        "cancel": lambda: s.scheduled.cancel("k"),
        "promote": s.promote,
    }[verb]
    (proxy.cut_after if arrives else proxy.drop_before)(servers.named("EVALSHA", "EVAL"))
    with pytest.raises(ConnectionLostError) as caught:
        call()
    assert caught.value.maybe_executed is True
    if verb == "run_now" and arrives:
        with pytest.raises(JobStateError) as refused:
            call()
        assert refused.value.state == "ready"
    else:
        once = {"schedule", "cancel", "promote"}  # the others do the same again
        assert bool(call()) is (not arrives or verb not in once)
    waits, runs = (verb in {"schedule", "replace", "reschedule"}), verb in {"run_now", "promote"}
    now = look.state(raw, s)
    assert (len(now.scheduled), len(now.stream)) == (int(waits), int(runs))
    look.make_due(raw, s)
    s.promote()
    jobs = s.read("w", count=9)
    assert [job.id for job in jobs] == ["k"] * (verb != "cancel")
    assert {job.payload["n"] for job in jobs} <= {2 if verb in {"schedule", "replace"} else 1}


@pytest.mark.covers("C59")
def test_scripts_are_flushed_before_every_call(make_stream, raw):
    s = make_stream()

    def flushed(call):
        raw.script_flush()
        return call()

    assert flushed(lambda: s.add({}, job_id="a", delay=60)).created
    assert flushed(lambda: s.add_many(({} for _ in range(3)), delay=60)) == 3
    assert flushed(lambda: s.scheduled.reschedule("a", delay=90))
    look.make_due(raw, s, "/a")
    assert flushed(s.promote) == 1
    assert flushed(lambda: s.retry(s.read("w")[0], "no", delay=60))
    assert flushed(lambda: s.scheduled.run_now("a"))
    assert flushed(lambda: s.read("w", block=0.05))[0].attempt == 2


# --- the whole stream -------------------------------------------------------------------------


@pytest.mark.parametrize("orphaned", [False, True])
def test_a_stream_with_scheduled_work_is_not_deleted_unforced(make_stream, raw, ns, orphaned):
    s = make_stream()
    s.add({}, job_id="k", delay=60)
    if orphaned:
        raw.delete(s._spec.keys.scheduled)  # the job is still there
    before = look.dumps(raw, ns)
    with pytest.raises(JobStateError, match="1 scheduled jobs") as caught:
        s.delete()
    assert caught.value.state == "scheduled"
    assert look.dumps(raw, ns) == before
    s.delete(force=True)
    assert look.dumps(raw, ns) == {}


def test_inspect_counts_what_is_scheduled(make_stream):
    s = make_stream()
    for n in range(3):
        s.add({"n": n}, delay=60)
    seen = s.inspect()
    assert (seen.scheduled, seen.ready, seen.length) == (3, 0, 0)
