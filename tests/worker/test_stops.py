"""Workers that are stopped at any moment, again and again: nothing is lost, nothing waits for a lease, nothing is left behind."""

from __future__ import annotations

import asyncio
import gc
import random
import secrets
import time
from collections import defaultdict

import look
import pytest
from waiting import PATIENCE, until
from worker.fleet import effects, is_idle, options_of, quick, working

from streamq import AsyncStream, ConfigurationError, Worker
from streamq.worker.fetch import Fetcher

ONE_BACKEND = pytest.mark.parametrize("backend", ["redis-7.0"], indirect=True)

LEASE_S = 60
"""Longer than any of these tests takes: what comes back did not wait for it."""


def by_name(payload, job):
    job.effects.hincrby("effects", payload["name"])


def held(raw, stream, consumer):
    """Delivery counts of what a consumer holds; None if there is no such consumer."""
    key = stream._spec.keys.stream
    if consumer not in {row["name"].decode() for row in raw.xinfo_consumers(key, "workers")}:
        return None
    return {row["times_delivered"] for row in raw.xpending_range(key, "workers", "-", "+", 1000, consumer)}


@pytest.fixture
def weak_url(raw, redis_url, ns):
    """The server as a user sees it who may not end a read that waits: neither CLIENT ID nor CLIENT UNBLOCK."""
    name = f"{ns}-weak"
    look.call(raw, "ACL", "SETUSER", name, "on", ">pw", "~*", "+@all", "-client")
    yield redis_url.replace("redis://", f"redis://{name}:pw@")
    look.call(raw, "ACL", "DELUSER", name)


@pytest.fixture
def stops(ns, raw, handler, redis_url):
    """Stop workers one after the other, each at some moment of its first `within` seconds, while jobs keep coming.

    Returns how often each job was started with which delivery count, and how long each stop took.
    """
    starts = defaultdict(list)
    took = []
    options = options_of({"lease": LEASE_S})

    def body(payload, job):
        starts[payload["name"]].append(job.deliveries)
        job.effects.hincrby("effects", payload["name"])

    async def traffic(stream, stopped):
        added = 0
        while not stopped.is_set():
            count = random.randint(1, 3)
            await stream.add_many({"name": str(added + n)} for n in range(count))
            added += count
            await asyncio.sleep(random.uniform(0, 0.012))

    async def main(url, count, within, block):
        async with AsyncStream(ns, redis=redis_url, options=options) as producer:
            stopped = asyncio.Event()
            adding = asyncio.create_task(traffic(producer, stopped))
            async with AsyncStream(ns, redis=url, options=options) as stream:
                for _ in range(count):
                    settings = {"concurrency": 4, "prefetch": random.choice([0, 6]), "block": block}
                    worker = Worker(stream, handler(body, random.uniform(0, 0.004)), **settings)
                    async with worker:
                        await asyncio.sleep(random.uniform(0, within))
                        begun = time.monotonic()
                    took.append(time.monotonic() - begun)
                    assert held(raw, stream, worker.consumer) in (None, {0}), "something charged was left behind"
                stopped.set()
                await adding

    def run(url, count, *, within, block):
        seed = secrets.randbits(32)
        print(f"seed {seed}")  # noqa: T201  # shown if the test fails
        random.seed(seed)
        asyncio.run(main(url, count, within, block))
        return starts, took

    return run


@pytest.fixture
def finish(make_stream, raw):
    """Do what is left; then every job was started once, and charged that start alone."""

    def run(starts):
        s = make_stream(lease=LEASE_S)

        def body(payload, job):
            starts[payload["name"]].append(job.deliveries)
            job.effects.hincrby("effects", payload["name"])

        with working(quick(s, body)):
            until(lambda: is_idle(s))
        names = [str(n) for n in range(len(starts))]
        assert starts == {name: [1] for name in names}
        assert effects(raw, s) == dict.fromkeys(names, 1)
        assert s.inspect().dead == 0

    return run


@pytest.mark.covers("C01", "C27", "C74")
@pytest.mark.parametrize("count", [20, pytest.param(200, marks=[pytest.mark.full, pytest.mark.timeout(300)])])
def test_stops_at_any_moment_under_traffic(stops, finish, redis_url, count):
    starts, took = stops(redis_url, count, within=0.06, block=4)
    finish(starts)
    assert max(took) < 3  # none waited for its read to end by itself


@pytest.mark.covers("C01")
@ONE_BACKEND
@pytest.mark.parametrize("kind", ["async def"], indirect=True)
@pytest.mark.parametrize("count", [10, pytest.param(100, marks=[pytest.mark.full, pytest.mark.timeout(300)])])
def test_stops_of_a_user_who_may_not_end_a_read(stops, finish, weak_url, count):
    starts, took = stops(weak_url, count, within=0.06, block=0.4)
    finish(starts)
    assert max(took) < 1.9  # the rest of the block at most


@ONE_BACKEND
def test_an_idle_worker_of_a_user_who_may_not_end_a_read(weak_url, make_stream, raw):
    """The stop waits for the end of the read: a job that comes meanwhile is not left with a worker that is gone."""
    s = make_stream(redis=weak_url, lease=LEASE_S)
    worker = quick(s, by_name, block=1)
    with working(worker):
        until(lambda: any("b" in client["flags"] for client in raw.client_list()))
        begun = time.monotonic()
        worker.stop()
        time.sleep(0.2)
        s.add({"name": "late"})
    assert time.monotonic() - begun < 2.5 * PATIENCE
    assert held(raw, s, worker.consumer) in (None, {0})
    with working(quick(s, by_name)):
        until(lambda: effects(raw, s) == {"late": 1})


@pytest.mark.covers("C27")
@ONE_BACKEND
@pytest.mark.parametrize("kind", ["def"], indirect=True)
def test_what_a_stopped_worker_had_read_ahead_is_started_by_another_one(make_stream, make_fleet, kind, raw):
    s = make_stream(lease=LEASE_S)
    ahead = [f"ahead{n}" for n in range(7)]
    s.add_many([{"name": "first", "gated": True}, *({"name": name} for name in ahead)])
    with make_fleet(handler=kind, lease=LEASE_S, worker={"concurrency": 1, "prefetch": 8}) as f:
        stopping = f.start()
        until(lambda: f.events.all("start", "first") and s.inspect().pending == 8)
        other = f.start()
        until(lambda: len(f.events.all("up")) == 2)
        stopping.terminate()
        stopped = time.monotonic()
        until(lambda: len(f.events.all("end")) == len(ahead))
        f.events.open("first")
        until(lambda: is_idle(s))
        assert stopping.wait(10) == 0
        assert f.terminate() == [0]
    starts = {event.name: event for event in f.events.all("start") if event.name in ahead}
    assert {event.pid for event in starts.values()} == {other.pid}
    assert max(event.at for event in starts.values()) - stopped < 3
    assert f.events.starts() == dict.fromkeys(["first", *ahead], 1)
    assert {event.deliveries for event in f.events.all("start")} == {1}
    assert effects(raw, s) == dict.fromkeys(["first", *ahead], 1)


@ONE_BACKEND
def test_a_stop_that_comes_together_with_a_failure_is_a_stop(make_stream, caplog, monkeypatch):
    async def fail(fetcher):
        fetcher._post.stopping.set()
        raise ConfigurationError("it cannot be used")

    monkeypatch.setattr(Fetcher, "open", fail)
    quick(make_stream(), by_name).run()
    gc.collect()
    assert 'a role failed as the worker was stopped: role="streamq-read' in caplog.text
    assert "never retrieved" not in caplog.text
