"""What handlers may say, and what may wait in a worker: error classes, Release, middlewares, prefetch."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter, defaultdict
from itertools import pairwise

import pytest
from waiting import until
from worker.fleet import effects, is_idle, quick, working

from streamq import ConfigurationError, Reject, Release
from streamq.worker import settle

TWO_BACKENDS = pytest.mark.parametrize("backend", ["redis-7.0", "valkey-9"], indirect=True)


def pending(raw, stream):
    """Entry ID -> delivery count of what is pending."""
    rows = raw.xpending_range(stream._spec.keys.stream, "workers", "-", "+", 1000)
    return {row["message_id"].decode(): row["times_delivered"] for row in rows}


# --- what an exception means --------------------------------------------------------------


def test_an_exception_means_what_its_class_was_said_to_mean(make_stream, handler, raw):
    s = make_stream(lease=0.4, retries=1)
    runs = Counter()

    class BusyError(KeyError):
        pass

    def body(payload, job):
        name = payload["name"]
        runs[name] += 1
        match name:
            case "rejected":
                raise ValueError("not a number")
            case "released" if runs[name] == 1:
                raise BusyError("not now")
            case "retried":
                raise RuntimeError("of no class that is named")
            case "word":
                raise Reject("said so")
        job.effects.hincrby("effects", name)

    names = ["rejected", "released", "retried", "word", "good"]
    s.add_many({"name": name} for name in names)
    errors = {ValueError: "reject", KeyError: "release", Exception: "retry"}
    with working(quick(s, handler(body), errors=errors)):
        until(lambda: is_idle(s))
    assert effects(raw, s) == {"good": 1, "released": 1}
    assert runs == {"rejected": 1, "released": 2, "retried": 2, "word": 1, "good": 1}
    letters = sorted((letter.reason, letter.error) for letter in s.dead_letters.list())
    assert letters == [
        ("attempts", "RuntimeError: of no class that is named"),
        ("rejected", "ValueError: not a number"),
        ("rejected", "said so"),
    ]


def test_release_costs_nothing_and_does_not_turn_in_a_circle(make_stream, handler, raw, monkeypatch):
    monkeypatch.setattr(settle, "NOT_NOW_MS", 300)
    s = make_stream(lease=2, retries=0, max_deliveries=2)
    seen = []

    def body(payload, job):
        if payload["name"] == "J":
            seen.append((time.monotonic(), job.attempt, job.deliveries))
            if len(seen) < 3:
                raise Release("not now")
        job.effects.hincrby("effects", payload["name"])

    entry_id = s.add({"name": "J"}).entry_id
    with working(quick(s, handler(body))):
        until(lambda: len(seen) == 1 and pending(raw, s) == {entry_id: 0})  # the delivery was taken back
        s.add({"name": "next"})
        until(lambda: is_idle(s))
    # Each time it comes back when its short wait is over and a worker looks, not at once.
    assert [(attempt, deliveries) for _, attempt, deliveries in seen] == [(1, 1)] * 3
    assert all(later - at >= 0.3 for (at, *_), (later, *_) in pairwise(seen))
    assert effects(raw, s) == {"J": 1, "next": 1}
    assert s.inspect().dead == 0


@TWO_BACKENDS
@pytest.mark.parametrize(("lease", "least", "most"), [(0.8, 0.7, 3.0), (30, 4.9, 9.0)])
def test_by_default_a_released_job_comes_back_after_its_lease_or_five_seconds(make_stream, lease, least, most):
    s = make_stream(lease=lease)
    seen = []

    def body(payload):
        seen.append(time.monotonic())
        if len(seen) == 1:
            raise Release("not now")

    s.add({"name": "J"})
    with working(quick(s, body)):
        until(lambda: is_idle(s))
    assert len(seen) == 2
    assert least <= seen[1] - seen[0] <= most


# --- middlewares --------------------------------------------------------------------------


def test_middlewares_stand_around_the_handler(make_stream, kind, handler, raw):
    s = make_stream(lease=0.5, retries=1)
    trace = defaultdict(list)

    def mark(label):
        def plain(job, call):
            trace[job.payload["name"]].append(f"{label}>")
            try:
                return call()
            finally:
                trace[job.payload["name"]].append(f"<{label}")

        async def waiting(job, call):
            trace[job.payload["name"]].append(f"{label}>")
            try:
                return await call()
            finally:
                trace[job.payload["name"]].append(f"<{label}")

        return plain if label.islower() else waiting

    def body(payload, job):
        trace[payload["name"]].append(f"run{job.attempt}")
        if payload["name"] == "fails":
            raise ValueError("as told")
        return 7

    # In front of a def handler may stand both kinds, async ones first.
    chain = [mark("A"), mark("B")] if kind == "async def" else [mark("A"), mark("b"), mark("c")]
    s.add({"name": "good"}, job_id="good")
    s.add({"name": "fails"})
    with working(quick(s, handler(body), middlewares=chain)):
        until(lambda: is_idle(s))
    inner = "AB" if kind == "async def" else "Abc"
    around = lambda n: [f"{x}>" for x in inner] + [f"run{n}"] + [f"<{x}" for x in reversed(inner)]  # noqa: E731
    assert trace == {"good": around(1), "fails": around(1) + around(2)}
    assert s.result("good").value == 7
    assert [letter.reason for letter in s.dead_letters.list()] == ["attempts"]


@TWO_BACKENDS
def test_a_middleware_may_answer_itself_change_the_outcome_or_call_again(make_stream, kind, raw):
    s = make_stream(retries=3)
    runs = Counter()

    async def skips(job, call):
        return "not needed" if job.payload["name"] == "skipped" else await call()

    async def translates(job, call):
        try:
            return await call()
        except ValueError as error:
            if job.payload["name"] == "translated":
                raise Reject("translated") from error
            return await call()

    async def adds(job, call):
        return (await call()) + 1

    def run(payload):
        runs[payload["name"]] += 1
        if payload["name"] in {"translated", "again"} and runs[payload["name"]] == 1:
            raise ValueError("as told")
        return 1

    async def run_async(payload):
        return run(payload)

    for name in ["skipped", "translated", "again", "plain"]:
        s.add({"name": name}, job_id=name)
    with working(quick(s, run if kind == "def" else run_async, middlewares=[skips, translates, adds])):
        until(lambda: is_idle(s))
    assert runs == {"translated": 1, "again": 2, "plain": 1}
    assert [s.result(name).value for name in ["skipped", "again", "plain"]] == ["not needed", 2, 2]
    assert [(letter.job_id, letter.reason) for letter in s.dead_letters.list()] == [("translated", "rejected")]


# --- prefetch -----------------------------------------------------------------------------


def test_no_more_is_held_than_runs_and_may_wait(make_stream, handler, raw):
    s = make_stream(lease=5)
    held = []

    def body(payload, job):
        pass

    s.add_many({"name": str(n)} for n in range(150))
    with working(worker := quick(s, handler(body, seconds=0.02), concurrency=3, prefetch=4)):
        waiting = []
        until(lambda: worker.health().running)
        while not is_idle(s):
            health = worker.health()
            held.append(len(pending(raw, s)))
            waiting.append(health.waiting)
            assert health.running <= 3
            time.sleep(0.002)
    assert max(waiting) <= 4 + 3  # with those that are about to start
    assert max(held) > 3  # some did wait
    assert max(held) <= 3 + 4 + 3  # what runs, what waits, what has ended and is being settled


def test_what_waits_too_long_is_given_back_uncharged(make_stream, handler, raw):
    """To a worker that has a free slot: what waits here runs nowhere else."""
    s = make_stream(lease=1)
    go = threading.Event()
    ran = []

    def hold(payload, job):
        go.wait(20)

    def run(payload, job):
        ran.append((payload["name"], job.deliveries, job.attempt))

    first = s.add({"name": "slow"}).entry_id
    with working(worker := quick(s, hold, concurrency=1, prefetch=3, drain=10)):
        until(lambda: worker.health().running == 1)
        s.add_many({"name": str(n)} for n in range(3))
        until(lambda: worker.health().waiting == 3)
        begin = time.monotonic()
        with working(quick(s, run, concurrency=3)):
            until(lambda: len(ran) == 3, timeout=8)
        assert 0.4 <= time.monotonic() - begin <= 6
        assert pending(raw, s) == {first: 1}
        go.set()
        until(lambda: is_idle(s))
    assert sorted(ran) == [(str(n), 1, 1) for n in range(3)]


@TWO_BACKENDS
def test_without_prefetch_nothing_waits(make_stream, raw):
    s = make_stream(lease=5)
    go = asyncio.Event()

    async def hold(payload):
        await go.wait()

    s.add_many({"name": str(n)} for n in range(20))
    with working(worker := quick(s, hold, concurrency=3, drain=0)):
        until(lambda: worker.health().running == 3)
        time.sleep(0.5)
        assert (worker.health().waiting, len(pending(raw, s))) == (0, 3)


@pytest.mark.parametrize("prefetch", [-1, 1.5, True, 10_001])
def test_a_prefetch_out_of_bounds_is_refused(prefetch, redis_url, make_stream):
    with pytest.raises(ConfigurationError, match="prefetch must be from 0 to 10,000"):
        quick(make_stream(), print, prefetch=prefetch)
