"""Handlers that take many jobs at once: an outcome for each of them."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import pytest
from waiting import until
from worker.fleet import effects, is_idle, quick, working

from streamq import Reject, Release

TWO_BACKENDS = pytest.mark.parametrize("backend", ["redis-7.0", "valkey-9"], indirect=True)


@pytest.fixture
def batch_handler(kind):
    """Make a batch handler of that kind from a body ``body(jobs)``."""

    def make(body):
        if kind == "def":
            return body

        async def waiting(jobs):
            await asyncio.sleep(0)
            return body(jobs)

        return waiting

    return make


def name_of(job):
    return job.payload["name"]


def add(stream, names, **kwargs):
    stream.add_many(({"name": name} for name in names), **kwargs)


def test_every_job_of_a_batch_gets_its_own_outcome(make_stream, batch_handler, raw):
    s = make_stream(lease=0.5, retries=1)
    runs = Counter()

    def body(jobs):
        answers = []
        for job in jobs:
            runs[name_of(job)] += 1
            job.effects.hincrby("effects", name_of(job))
            again = runs[name_of(job)] > 1
            match name_of(job):
                case "fails":
                    answers.append(ValueError("always"))
                case "fails once":
                    answers.append(None if again else ValueError("once"))
                case "rejected":
                    answers.append(Reject("no such customer"))
                case "released":
                    answers.append("late" if again else Release("not now"))
                case name:
                    answers.append(f"did {name}")
        return answers

    names = ["a", "fails", "b", "fails once", "rejected", "released", "c"]
    add(s, names, job_id=lambda payload: payload["name"])
    with working(quick(s, batch_handler(body), batch=10, batch_wait=0.1)):
        until(lambda: is_idle(s))
    assert effects(raw, s) == dict.fromkeys(["a", "b", "c", "fails once", "released"], 1)
    assert runs == dict.fromkeys(names, 1) | dict.fromkeys(["fails", "fails once", "released"], 2)
    assert [s.result(name).value for name in ["a", "released"]] == ["did a", "late"]
    letters = {letter.job_id: (letter.reason, letter.error) for letter in s.dead_letters.list()}
    assert letters == {"fails": ("attempts", "ValueError: always"), "rejected": ("rejected", "no such customer")}


def test_what_a_batch_raises_counts_for_all_of_it(make_stream, batch_handler, raw):
    s = make_stream(retries=1)
    batches = []

    def body(jobs):
        batches.append(sorted((name_of(job), job.attempt) for job in jobs))
        for job in jobs:
            job.effects.hincrby("effects", name_of(job))
        if jobs[0].attempt == 1:
            raise ValueError("all of them")

    add(s, "abc")
    with working(quick(s, batch_handler(body), batch=3, batch_wait=0.5)):
        until(lambda: is_idle(s))
    assert batches[0] == [("a", 1), ("b", 1), ("c", 1)]
    assert sorted(row for batch in batches[1:] for row in batch) == [("a", 2), ("b", 2), ("c", 2)]
    assert effects(raw, s) == {"a": 1, "b": 1, "c": 1}


@TWO_BACKENDS
def test_an_effect_that_cannot_be_applied_fails_its_own_job_only(make_stream, batch_handler, raw):
    s = make_stream(retries=0)
    raw.set(s._spec.keys.data("wrong"), "a string")

    def body(jobs):
        for job in jobs:
            job.effects.hincrby("wrong" if name_of(job) == "b" else "effects", name_of(job))

    add(s, "abc")
    with working(quick(s, batch_handler(body), batch=3, batch_wait=0.3)):
        until(lambda: is_idle(s))
    assert effects(raw, s) == {"a": 1, "c": 1}
    [letter] = s.dead_letters.list()
    assert letter.reason == "attempts"
    assert "wrong" in letter.error


@TWO_BACKENDS
def test_a_batch_waits_for_more_from_its_first_job_on(make_stream, batch_handler):
    """With a single slot, too: the batch that fills is read on for."""
    s = make_stream()
    called = []

    def body(jobs):
        called.append((len(jobs), time.monotonic()))

    with working(quick(s, batch_handler(body), concurrency=1, batch=5, batch_wait=0.6)) as _:
        until(lambda: s.inspect().groups)
        for _ in range(2):  # a full batch does not wait
            called.clear()
            first = time.monotonic()
            for name in "abcde":
                add(s, [name])
                time.sleep(0.02)
            until(lambda: called)
            assert called[0][0] == 5
            assert called[0][1] - first < 0.5
        called.clear()
        first = time.monotonic()
        add(s, ["a"])
        time.sleep(0.1)
        add(s, ["b"])
        until(lambda: called)
        assert called[0][0] == 2
        assert 0.5 <= called[0][1] - first < 1.2
        until(lambda: is_idle(s))


def test_no_more_calls_at_once_than_slots_and_no_more_jobs_than_they_take(make_stream, batch_handler, kind, raw):
    s = make_stream(lease=5)
    running = most = held = 0

    def enter(jobs):
        nonlocal running, most, held
        assert len(jobs) <= 10
        running += 1
        most = max(most, running)
        held = max(held, raw.xpending(s._spec.keys.stream, "workers")["pending"])

    def leave():
        nonlocal running
        running -= 1

    async def waiting(jobs):
        enter(jobs)
        await asyncio.sleep(0.02)
        leave()

    add(s, map(str, range(300)))
    with working(quick(s, waiting, concurrency=2, batch=10)):
        until(lambda: is_idle(s))
    assert most <= 2
    # What runs, what may start next, and what has ended and is being settled.
    assert held <= 3 * 20


def test_suspects_run_in_batches_of_one(make_stream, batch_handler):
    s = make_stream(lease=0.3, max_deliveries=5)
    add(s, [f"old{n}" for n in range(6)])
    s.read("dead", count=6)
    time.sleep(0.3)
    add(s, [f"new{n}" for n in range(6)])
    batches = []

    def body(jobs):
        batches.append([(name_of(job)[:3], job.deliveries) for job in jobs])

    with working(quick(s, batch_handler(body), batch=6, batch_wait=0.2)):
        until(lambda: is_idle(s))
    assert [batch for batch in batches if ("old", 2) in batch] == [[("old", 2)]] * 6
    assert sum(map(len, batches)) == 12


def test_a_batch_that_runs_too_long_is_one_failed_attempt_of_each(make_stream, batch_handler, kind):
    s = make_stream(lease=1, retries=0)

    def slow(jobs):
        while not jobs[0].timed_out:
            time.sleep(0.01)

    async def slow_async(jobs):
        await asyncio.sleep(60)

    add(s, "abc")
    with working(quick(s, slow if kind == "def" else slow_async, batch=3, batch_wait=0.2, timeout=0.3)):
        until(lambda: is_idle(s), timeout=5)
    letters = s.dead_letters.list()
    assert [(letter.reason, letter.error) for letter in letters] == [
        ("attempts", "TimeoutError: ran longer than 0.3 s")
    ] * 3


def test_a_middleware_is_around_the_whole_batch(make_stream, batch_handler, kind):
    s = make_stream()
    around = []

    def middleware(jobs, call):
        around.append(sorted(map(name_of, jobs)))
        return call()

    async def middleware_async(jobs, call):
        around.append(sorted(map(name_of, jobs)))
        return await call()

    add(s, "abc")
    seen = []

    def body(jobs):
        seen.extend(map(name_of, jobs))

    chain = [middleware if kind == "def" else middleware_async]
    with working(quick(s, batch_handler(body), batch=3, batch_wait=0.5, middlewares=chain)):
        until(lambda: is_idle(s))
    assert around == [["a", "b", "c"]]
    assert sorted(seen) == ["a", "b", "c"]
