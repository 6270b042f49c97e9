"""Retries by hand-written loops: when they come, how many there are, whose they are, and what stays of a job."""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import look
import pytest
import servers
from look import Row, State

from streamq import Backoff, ConnectionLostError, LeaseLostError


def fail(raw, s, job, error="no", **how):
    """Retry; what was answered, and between which times of the server that was."""
    before = look.server_ms(raw)
    answer = s.retry(job, error, **how)
    return answer, before, look.server_ms(raw)


def ms_of(entry_id):
    return int(entry_id.partition("-")[0])


def due_again(raw, s):
    """Whatever waits is due, and read."""
    look.make_due(raw, s)
    s.promote()
    return s.read("w", count=100)


# --- when, and how often ------------------------------------------------------------------------


@pytest.mark.covers("R1", "R4")
@pytest.mark.parametrize(
    ("policy", "delays"),
    [
        (Backoff.schedule([0.1, 0.2]), [100, 200]),
        (Backoff.exponential(0.05, cap=0.15, limit=4, jitter=0), [50, 100, 150, 150]),
        (Backoff.constant(0.1, limit=2), [100, 100]),
        (Backoff.custom(lambda attempt: attempt / 20, limit=3), [50, 100, 150]),
        (Backoff.custom(lambda attempt: attempt, limit=2, cap=0.1), [100, 100]),
        (Backoff.constant(5, limit=0), []),
    ],
    ids=["schedule", "exponential", "constant", "custom", "capped", "none"],
)
def test_runs_until_the_attempts_are_spent(make_stream, raw, policy, delays):
    s = make_stream(retry=policy)
    job_id = s.add({"n": 1}).job_id
    [job] = s.read("w")
    for attempt, delay in enumerate(delays, 1):
        answer, before, after = fail(raw, s, job, f"error {attempt}")
        assert answer is True
        [(timer, (due, _))] = look.timers(raw, s).items()
        assert timer == f"workers/{job_id}"
        assert before + delay <= due <= after + delay
        assert look.state(raw, s) == State(scheduled=[timer], counters={"retried:workers": attempt})
        [job] = s.read("w", block=10)
        assert ms_of(job.entry_id) >= due
        assert (job.id, job.payload, job.attempt, job.deliveries) == (job_id, {"n": 1}, attempt + 1, 1)
        assert s.read("w") == []
    assert s.retry(job, "last") is False
    [letter] = s.dead_letters.list()
    assert (letter.reason, letter.attempts, letter.error) == ("attempts", len(delays) + 1, "last")
    errors = json.loads(dict(letter.fields).get(b"sq:errors", b"[]"))
    assert errors == [f"error {n}" for n in range(1, len(delays) + 1)]
    now = look.state(raw, s)
    assert (now.stream, now.pending, now.scheduled) == ([], {}, [])


@pytest.mark.covers("R1")
@pytest.mark.parametrize(("chance", "share"), [(0.0, 0.8), (0.5, 1.0), (1.0, 1.2)])
def test_jitter_spreads_to_both_sides(make_stream, raw, monkeypatch, chance, share):
    monkeypatch.setattr(random, "random", lambda: chance)
    s = make_stream(retry=Backoff.exponential(100, jitter=0.2))
    s.add({})
    _, before, after = fail(raw, s, s.read("w")[0])
    [(due, _)] = look.timers(raw, s).values()
    assert before + share * 100_000 <= due <= after + share * 100_000


@pytest.mark.covers("Q9")
@pytest.mark.parametrize("attempt", [40, 400, 10_000, 10**13])
def test_far_exponents_are_capped(make_stream, raw, attempt):
    s = make_stream(retry=Backoff.exponential(1, cap=900, limit=None, jitter=0))
    look.by_hand(raw, s, "job", "{}", "sq:attempt", str(attempt))
    [job] = s.read("w")
    assert job.attempt == attempt
    _, before, after = fail(raw, s, job)
    [(due, fields)] = look.timers(raw, s).values()
    assert before + 900_000 <= due <= after + 900_000
    assert dict(fields)[b"sq:attempt"] == str(attempt + 1).encode()


@pytest.mark.covers("Q9")
def test_a_policy_gets_no_more_than_max_delay(make_stream, raw):
    s = make_stream(retry=Backoff.constant(3600), max_delay=60)
    s.add({})
    _, before, after = fail(raw, s, s.read("w")[0])
    [(due, _)] = look.timers(raw, s).values()
    assert before + 60_000 <= due <= after + 60_000


@pytest.mark.covers("R1")
@pytest.mark.parametrize("wrong", [ZeroDivisionError, -1, float("nan"), "5", None, 10**400])
def test_a_custom_policy_that_fails_loses_no_job(make_stream, raw, caplog, wrong):
    def delay(attempt):
        if wrong is ZeroDivisionError:
            raise wrong
        return wrong

    s = make_stream(retry=Backoff.custom(delay))
    s.add({})
    _, before, after = fail(raw, s, s.read("w")[0])
    [(due, _)] = look.timers(raw, s).values()
    assert before + 60_000 <= due <= after + 60_000
    assert "custom backoff failed for attempt 1" in caplog.text


@pytest.mark.covers("R1")
def test_a_delay_of_ones_own_comes_before_the_policys(make_stream, raw):
    s = make_stream(retry=Backoff.constant(60, limit=2))
    s.add({}, job_id="k")
    answer, before, after = fail(raw, s, s.read("w")[0], delay=300)
    [(due, _)] = look.timers(raw, s).values()
    assert answer is True
    assert before + 300_000 <= due <= after + 300_000
    [job] = due_again(raw, s)
    assert s.retry(job, "at once", delay=0) is True
    assert look.state(raw, s).scheduled == []
    [job] = s.read("w")
    assert job.attempt == 3
    assert s.retry(job, "spent", delay=5) is False


def test_the_last_five_errors_travel_along(make_stream, raw):
    s = make_stream(retry=Backoff.constant(0, limit=7))
    s.add({})
    for n in range(7):
        assert s.retry(s.read("w")[0], f"error {n}", delay=0 if n < 6 else 60) is True
    [found] = s.scheduled.list()
    assert found.errors == tuple(f"error {n}" for n in range(2, 7))
    [job] = due_again(raw, s)
    assert s.retry(job, "last") is False
    assert s.dead_letters.list()[0].error == "last"


# --- by hand ----------------------------------------------------------------------------------


@pytest.mark.covers("R3", "R4")
@pytest.mark.parametrize("job_id", [None, "k"])
@pytest.mark.slow
def test_a_run_by_hand_takes_the_place_of_the_retry(make_stream, raw, job_id):
    s = make_stream(retry=Backoff.schedule([0.4, 0.6]))
    k = s.add({"n": 1}, job_id=job_id).job_id
    assert s.retry(s.read("w")[0], "first") is True
    s.scheduled.run_now(k)
    [job] = s.read("w", count=9)
    assert (job.id, job.attempt, job.deliveries) == (k, 2, 1)
    answer, before, _ = fail(raw, s, job, "second")
    assert answer is True
    [job] = s.read("w", block=10)  # nothing came when the first retry was due
    assert (job.attempt, job.deliveries) == (3, 1)
    assert ms_of(job.entry_id) >= before + 600
    assert s.retry(job, "third") is False
    assert s.read("w", block=0.3) == []
    now = look.state(raw, s)
    assert (now.stream, now.pending, now.scheduled, len(now.dead)) == ([], {}, [], 1)


@pytest.mark.covers("R3", "R4")
def test_a_run_by_hand_that_succeeds_is_the_last(make_stream, raw):
    s = make_stream(retry=Backoff.constant(0.3))
    s.add({}, job_id="k")
    s.retry(s.read("w")[0], "no")
    s.scheduled.run_now("k")
    [job] = s.read("w")
    assert (job.attempt, job.deliveries) == (2, 1)
    s.ack(job)
    assert s.read("w", block=0.6) == []
    assert look.state(raw, s) == State(
        ids={"k": f"done {job.entry_id}"},
        done={"workers/k": "done "},
        counters={"retried:workers": 1, "done:workers": 1},
    )


# --- a policy of its own ------------------------------------------------------------------------


@pytest.mark.covers("R1", "S8")
def test_a_jobs_own_policy_stays_with_it(make_stream, raw):
    s = make_stream(retry=Backoff.constant(1, limit=9))
    policy = Backoff(delays_ms=(7_000, 9_000), factor=2, cap_ms=12_000, limit=3)
    s.add({}, job_id="k", retry=policy)
    s.add({}, job_id="plain")

    def run_until_dead(job):
        dues = []
        while True:
            answer, before, after = fail(raw, s, job)
            if not answer:
                return dues
            (due, fields) = look.timers(raw, s)["workers/k"]
            assert json.loads(dict(fields)[b"sq:retry"])["delays_ms"] == [7_000, 9_000]
            dues.append(round((due - (before + after) / 2) / 1_000))
            look.make_due(raw, s, "workers/k")
            s.promote()
            [job] = s.read("w")

    job, plain = s.read("w", count=2)
    _, before, after = fail(raw, s, plain)
    assert before + 1_000 <= look.timers(raw, s)["workers/plain"].due_ms <= after + 1_000
    assert run_until_dead(job) == [7, 9, 12]
    [letter] = s.dead_letters.list()
    assert (letter.reason, letter.attempts) == ("attempts", 4)
    s.dead_letters.redrive(letter.id)
    s.scheduled.cancel("plain")
    [job] = s.read("w")
    assert job.attempt == 1
    assert run_until_dead(job) == [7, 9, 12]


def test_many_jobs_with_one_policy(make_stream, raw):
    s = make_stream()
    s.add_many([{}, {}], retry=Backoff.constant(50, limit=None))
    s.add_many([{}], retry=Backoff.constant(50, limit=None), delay=1)
    jobs = [*s.read("w", count=2), *due_again(raw, s)]
    for job in jobs:
        _, before, after = fail(raw, s, job)
        assert before + 50_000 <= look.timers(raw, s)[f"workers/{job.id}"].due_ms <= after + 50_000


@pytest.mark.covers("S8")
def test_a_plain_producers_policy(make_stream, raw):
    s = make_stream(retry=Backoff.constant(1, limit=9))
    look.by_hand(raw, s, "job", "{}", "sq:retry", '{"delays_ms": [4000], "limit": 1, "of a later version": {}}')
    _, before, after = fail(raw, s, s.read("w")[0])
    [(due, _)] = look.timers(raw, s).values()
    assert before + 4_000 <= due <= after + 4_000
    assert s.retry(due_again(raw, s)[0]) is False


@pytest.mark.parametrize(
    "policy",
    [
        b"", b"{", b"[]", b"5", b"\xff", b"{}", b'{"delays_ms":[]}', b'{"delays_ms":[-1]}', b'{"delays_ms":["1"]}',
        b'{"delays_ms":[1.5]}', b'{"delays_ms":[1e99]}', b'{"delays_ms":[99999999999]}', b'{"delays_ms":null}',
        b'{"delays_ms":[1],"factor":0.5}', b'{"delays_ms":[1],"factor":1e400}', b'{"delays_ms":[1],"limit":-1}',
        b'{"delays_ms":[1],"limit":true}', b'{"delays_ms":[1],"jitter":2}', b'{"delays_ms":[1],"cap_ms":-1}',
        b'{"delays_ms":[' + b",".join([b"1"] * 101) + b"]}",
    ],
)  # fmt: skip
def test_a_malformed_policy_makes_a_dead_letter(make_stream, raw, policy):
    s = make_stream()
    look.by_hand(raw, s, "job", "{}", "sq:retry", policy)
    s.add({"n": 1})
    assert [job.payload for job in s.read("w", count=9)] == [{"n": 1}]
    [letter] = s.dead_letters.list()
    assert letter.reason == "invalid"
    assert "sq:retry" in letter.error
    assert dict(letter.fields)[b"sq:retry"] == policy


# --- groups, and what is kept -------------------------------------------------------------------


@pytest.mark.covers("S7")
@pytest.mark.parametrize("job_id", [None, "k"])
def test_two_groups_retry_one_job_each_by_itself(make_stream, raw, job_id):
    a, b, c = (make_stream(group=name, groups=tuple("abc")) for name in "abc")
    k = a.add({"n": 1}, job_id=job_id).job_id
    c.ack(c.read("w")[0])
    jobs = {s: s.read("w")[0] for s in (a, b)}
    for s, delay in [(a, 60), (b, 90)]:
        s.retry(jobs[s], f"by {s.options.group}", delay=delay)
    assert raw.xlen(a._spec.keys.stream) == 0
    timers = look.timers(raw, a)
    assert list(timers) == [f"a/{k}", f"b/{k}"]
    assert [(s.scheduled.get(k).errors, s.scheduled.get(k).attempt) for s in (a, b)] == [(("by a",), 2), (("by b",), 2)]
    assert c.scheduled.get(k) is None
    look.make_due(raw, a, f"b/{k}")
    assert c.promote() == 1
    [again] = b.read("w", count=9)
    assert (again.id, again.attempt) == (k, 2)
    assert (a.read("w", count=9), c.read("w", count=9)) == ([], [])
    assert b.retry(again, "no", delay=30) is True
    assert list(look.timers(raw, a)) == [f"b/{k}", f"a/{k}"]
    for s in (a, b):
        s.scheduled.run_now(k)
        [last] = s.read("w", count=9)
        assert last.attempt == (2 if s is a else 3)
        s.ack(last)
    for s in (a, b, c):
        assert s.read("w", count=9) == []
    now = look.state(raw, a)
    assert (now.stream, now.scheduled, now.dead) == ([], [], [])
    done = {name: count for name, count in now.counters.items() if name.startswith("done")}
    assert done == {"done:a": 1, "done:b": 1, "done:c": 1}


@pytest.mark.covers("S2", "C58")
def test_entries_that_are_kept(make_stream, raw):
    s = make_stream(retention="keep")
    first = s.add({}, job_id="k").entry_id
    s.retry(s.read("w")[0], "no", delay=60)
    assert look.state(raw, s).stream == [first]
    assert s.add({}, job_id="k").state == "scheduled"
    [job] = due_again(raw, s)
    assert look.state(raw, s) == State(
        stream=[first, job.entry_id],
        pending={job.entry_id: Row("w", 1)},
        ids={"k": f"queued {job.entry_id}"},
        done={"workers/k": f"running {job.entry_id}"},
        counters={"retried:workers": 1},
    )
    s.ack(job)
    assert look.state(raw, s).stream == [first, job.entry_id]
    assert s.trim() == 2


# --- races, and what can go wrong ---------------------------------------------------------------


@pytest.mark.covers("F9")
def test_who_lost_the_job_schedules_nothing(make_stream, raw):
    s = make_stream()
    s.add({}, job_id="k")
    [late] = s.read("w1")
    [job] = s.reclaim("w2", min_idle=0).claimed
    before = look.dumps(raw, s.name)
    with pytest.raises(LeaseLostError) as lost:
        s.retry(late, "no", delay=60)
    assert lost.value.gone is False
    assert look.dumps(raw, s.name) == before
    s.retry(job, "no", delay=60)
    before = look.dumps(raw, s.name)
    for again in (late, job):
        with pytest.raises(LeaseLostError) as lost:
            s.retry(again, "no", delay=5)
        assert lost.value.gone is True
    assert look.dumps(raw, s.name) == before


@pytest.mark.covers("C09")
def test_a_retry_and_a_reclaim_at_once_leave_one_copy(make_stream, raw):
    worker, other = make_stream(), make_stream()
    worker.add_many({"n": n} for n in range(200))
    jobs = worker.read("w", count=200)

    def fail_each():
        for job in jobs:
            with suppress(LeaseLostError):
                worker.retry(job, "no", delay=60)

    def take():
        claimed = []
        while len(claimed) < 100:
            found = other.reclaim("v", min_idle=0, count=3).claimed
            claimed += [job.id for job in found]
            if not found:
                break

    with ThreadPoolExecutor(2) as pool:
        for running in [pool.submit(fail_each), pool.submit(take)]:
            running.result(60)
    waiting = [timer.removeprefix("workers/") for timer in look.timers(raw, worker)]
    held = look.pending(raw, worker)
    assert sorted([*waiting, *held]) == sorted(job.id for job in jobs)
    assert {row.consumer for row in held.values()} <= {"v"}
    assert raw.xlen(worker._spec.keys.stream) == len(held)


@pytest.mark.covers("R5")
def test_a_settlement_that_never_arrives_costs_no_attempt(make_stream, raw, proxy):
    s = make_stream(redis=proxy.url, retry=Backoff.constant(60, limit=1))
    entry_id = s.add({}).entry_id
    [job] = s.read("w")
    proxy.drop_before(servers.named("EVALSHA", "EVAL"))
    with pytest.raises(ConnectionLostError):
        s.retry(job, "no")
    assert look.state(raw, s) == State(stream=[entry_id], pending={entry_id: Row("w", 1)})
    [job] = s.reclaim("w2", min_idle=0).claimed
    assert (job.attempt, job.deliveries) == (1, 2)
    assert s.retry(job, "no") is True
    assert s.scheduled.get(job.id).attempt == 2


@pytest.mark.covers("F3")
def test_a_job_whose_body_is_gone(make_stream, raw):
    s = make_stream()
    added = s.add({}, job_id="k")
    [job] = s.read("w")
    raw.xdel(s._spec.keys.stream, added.entry_id)
    assert s.retry(job, "no", delay=60) is False
    assert look.state(raw, s) == State(dead=[(added.entry_id, "entry_missing")], counters={"dead:workers": 1})


@pytest.mark.covers("R2")
def test_a_job_that_always_fails_makes_no_storm(make_stream, raw):
    s = make_stream(retry=Backoff.constant(60))
    for n in range(5):
        s.add({"n": n}, job_id=f"k{n}")
    for job in s.read("w", count=9):
        s.retry(job, "no")
    assert s.read("w", block=0.5) == []
    assert s.reclaim("w2", min_idle=0) == ([], [], [])
    assert len(look.timers(raw, s)) == 5
