"""Handlers that do not end: their time is over, their slots are told of, and nobody waits for them for ever."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict
from itertools import pairwise

import pytest
from waiting import until
from worker.fleet import free_port, is_idle, quick, told_by_http, working

TWO_BACKENDS = pytest.mark.parametrize("backend", ["redis-7.0", "valkey-9"], indirect=True)


@pytest.mark.covers("C49")
@TWO_BACKENDS
def test_a_handler_that_hangs_is_a_failed_attempt_each_time(make_stream, kind):
    """Each attempt ends a second after its time at the latest, and beside it the others run."""
    s = make_stream(lease=1, retries=2)
    never, begun = threading.Event(), defaultdict(list)

    def hang(payload, job):
        begun[payload["name"]].append((job.attempt, job.deliveries, time.monotonic()))
        if payload["name"] == "hangs":
            never.wait(30)

    async def hang_async(payload, job):
        begun[payload["name"]].append((job.attempt, job.deliveries, time.monotonic()))
        if payload["name"] == "hangs":
            await asyncio.Event().wait()

    s.add({"name": "hangs"})
    worker = quick(s, hang if kind == "def" else hang_async, concurrency=4, timeout=0.5, drain=1)
    try:
        with working(worker):
            until(lambda: begun["hangs"])
            for n in range(20):
                s.add({"name": str(n)})
            until(lambda: s.inspect().dead == 1, timeout=10)
            until(lambda: is_idle(s))
            over = time.monotonic()
            stuck = worker.health().stuck
            # A thread cannot be stopped: its slot is gone, and that is told. A coroutine's slot is free again.
            assert stuck == (3 if kind == "def" else 0)
            assert worker.health().healthy
    finally:
        never.set()
    assert [(attempt, deliveries) for attempt, deliveries, _ in begun["hangs"]] == [(1, 1), (2, 1), (3, 1)]
    times = [at for *_, at in begun["hangs"]] + [over]
    assert all(0.45 <= later - at <= 1.7 for at, later in pairwise(times))
    assert len(begun) == 21
    [letter] = s.dead_letters.list()
    assert (letter.reason, letter.attempts, letter.error) == ("attempts", 3, "TimeoutError: ran longer than 0.5 s")


@pytest.mark.covers("C49")
@pytest.mark.parametrize("backend", ["redis-7.0"], indirect=True)
def test_a_worker_whose_handlers_all_hang_is_unhealthy_until_one_ends(make_stream):
    s = make_stream(lease=1, retries=0)
    go = threading.Event()

    def hang(payload, job):
        if payload["name"] == "hangs":
            go.wait(30)

    with working(worker := quick(s, hang, concurrency=2, timeout=0.2, drain=1)):
        s.add_many({"name": "hangs"} for _ in range(2))
        until(lambda: worker.health().stuck == 2)
        health = worker.health()
        assert not health.healthy
        assert health.problems == ["every handler runs past its timeout and cannot be stopped"]
        s.add({"name": "next"})
        time.sleep(0.5)
        assert s.inspect().ready == 1  # left to those who have a slot
        go.set()
        until(lambda: worker.health().healthy)
        until(lambda: is_idle(s))
        assert worker.health().stuck == 0
    assert s.inspect().dead == 2


@pytest.mark.parametrize("backend", ["redis-7.0"], indirect=True)
def test_renewal_ends_with_the_time_of_a_handler(make_stream, raw):
    """What the thread does from there is no delivery of anybody's: another worker has the next attempt."""
    s = make_stream(lease=0.4, retries=1)
    go, seen = threading.Event(), []

    def hang(payload, job):
        seen.append(job)
        if job.attempt == 1:
            go.wait(30)

    s.add({"name": "J"})
    with working(quick(s, hang, concurrency=1, timeout=0.3, drain=0)):
        until(lambda: seen and seen[0].timed_out)
        # Its only slot is stuck, so it reads nothing; another one is free.
        with working(quick(s, hang, concurrency=1, timeout=0.3)):
            until(lambda: is_idle(s), timeout=5)
        assert [job.attempt for job in seen] == [1, 2]
        go.set()
    assert s.inspect().groups["workers"].done == 1


@pytest.mark.parametrize("backend", ["redis-7.0"], indirect=True)
def test_a_blocked_event_loop_is_told_by_http_while_it_is_blocked(make_stream, monkeypatch):
    monkeypatch.setattr("streamq.worker.runner.PULSE_S", 0.2)
    s = make_stream(lease=1)
    go = threading.Event()

    async def block(payload):
        go.wait(20)  # the fault to be tried

    port = free_port()
    with working(worker := quick(s, block, health=port)):
        until(lambda: told_by_http(port)[1].get("state") == "running")
        s.add({"name": "J"})
        until(lambda: told_by_http(port)[0] == 503, timeout=5)
        status, body = told_by_http(port)
        assert status == 503
        assert not body["healthy"]
        assert "the event loop has been blocked for" in body["problems"][0]
        go.set()
        until(lambda: told_by_http(port)[0] == 200)
        until(lambda: is_idle(s))
    assert worker.health().state == "stopped"


@pytest.mark.parametrize("backend", ["redis-7.0"], indirect=True)
def test_a_long_end_is_no_blocked_event_loop(make_stream, monkeypatch):
    monkeypatch.setattr("streamq.worker.runner.PULSE_S", 0.1)
    s = make_stream(lease=1)
    begun, go = threading.Event(), threading.Event()

    def slow(payload):
        begun.set()
        go.wait(20)

    with working(worker := quick(s, slow, drain=5)):
        s.add({"name": "J"})
        assert begun.wait(5)
        worker.stop()
        until(lambda: worker.health().state == "stopping")
        time.sleep(1)
        assert worker.health().problems == []
        go.set()
    assert s.inspect().groups["workers"].done == 1
