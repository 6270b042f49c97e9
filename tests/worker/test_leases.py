"""Leases: a job that takes long is nobody else's, and one whose worker is gone is somebody's soon."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time

import pytest
from waiting import PATIENCE, until
from worker.fleet import Events, effects, handler_of, is_idle, load, quick, working

from streamq._drivers.asynchronous import AsyncDriver
from streamq._scripts import source
from streamq.worker.fetch import Fetcher
from streamq.worker.starter import Starter

ONE_BACKEND = pytest.mark.parametrize("backend", ["redis-7.0"], indirect=True)

TWO_BACKENDS = pytest.mark.parametrize("backend", ["redis-6.2", "valkey-9"], indirect=True)

DEF_ONLY = pytest.mark.parametrize("kind", ["def"], indirect=True)


def owners(raw, stream):
    """Owner and delivery count of each pending entry."""
    rows = raw.xpending_range(stream._spec.keys.stream, "workers", "-", "+", 1000)
    return [(row["consumer"].decode(), row["times_delivered"]) for row in rows]


@pytest.mark.covers("C06")
@DEF_ONLY
def test_a_worker_does_not_take_its_own_long_job(make_stream, kind, raw, tmp_path):
    s = make_stream(lease=0.5)
    events = Events(tmp_path / "events")
    worker = quick(s, handler_of(kind, events), concurrency=4)
    s.add({"name": "long", "seconds": 1.2})
    seen = set()
    with working(worker):
        until(lambda: events.all("start"))
        while not is_idle(s):
            seen.update(owners(raw, s))
            time.sleep(0.01)
    assert events.starts() == {"long": 1}
    assert effects(raw, s) == {"long": 1}
    assert seen == {(worker.consumer, 1)}


@pytest.mark.covers("F10", "C31")
@DEF_ONLY
@TWO_BACKENDS
def test_a_long_job_is_run_once_beside_other_workers(make_stream, kind, raw, tmp_path):
    s = make_stream(lease=1)
    events = Events(tmp_path / "events")
    s.add_many({"name": f"long{n}", "seconds": 5} for n in range(20))
    with working(*(quick(s, handler_of(kind, events), concurrency=12) for _ in range(2))):
        until(lambda: is_idle(s))
    assert events.starts() == {f"long{n}": 1 for n in range(20)}
    assert effects(raw, s) == {f"long{n}": 1 for n in range(20)}


@pytest.mark.covers("F10", "C06", "C31")
@TWO_BACKENDS
def test_a_handler_that_blocks_the_event_loop_keeps_its_lease(make_stream, raw, tmp_path):
    s = make_stream(lease=1)
    events = Events(tmp_path / "events")
    s.add({"name": "blocking", "seconds": 5, "block": True})
    with working(quick(s, handler_of("async def", events)), quick(s, handler_of("async def", events))):
        until(lambda: is_idle(s))
    assert events.starts() == {"blocking": 1}
    assert effects(raw, s) == {"blocking": 1}


@pytest.mark.covers("F10", "C31")
@ONE_BACKEND
def test_processes_with_long_jobs(make_stream, make_fleet, kind, raw):
    s = make_stream(lease=1)
    s.add_many({"name": f"long{n}", "seconds": 2.2, "block": True} for n in range(4))
    with make_fleet(handler=kind, worker={"concurrency": 2}, lease=1) as f:
        f.start()
        f.start()
        until(lambda: is_idle(s))
        assert f.terminate() == [0, 0]
    assert f.events.starts() == {f"long{n}": 1 for n in range(4)}
    assert effects(raw, s) == {f"long{n}": 1 for n in range(4)}


@pytest.mark.covers("F10", "C31")
@ONE_BACKEND
def test_long_jobs_under_load(make_stream, make_fleet, kind, raw):
    """Long jobs run once while both workers are busy with short ones; those of a worker that stands still move on."""
    lease = min(PATIENCE, 2)  # where others load the machine, a second is lost too easily
    s = make_stream(lease=lease)
    long = [f"long{n}" for n in range(4)]
    held = [f"held{n}" for n in range(4)]
    with make_fleet(handler=kind, lease=lease, worker={"concurrency": 8}) as f:
        f.start()
        f.start()
        until(lambda: len(f.events.all("up")) == 2)
        with load(s, seconds=0.005) as short:
            s.add_many({"name": name, "seconds": 3.2 * lease} for name in long)
            until(lambda: {*long} <= {event.name for event in f.events.all("end")})
            s.add_many({"name": name, "first": 60} for name in held)
            until(lambda: {*held} <= f.events.starts().keys())
            victim = f.events.all("start", held[0])[0].pid
            os.kill(victim, signal.SIGSTOP)
            stopped = time.monotonic()
            theirs = {event.name for event in f.events.all("start") if event.pid == victim and event.name in held}
            until(lambda: theirs <= {event.name for event in f.events.all("end")})
        taken = [event.at - stopped for name in theirs for event in f.events.all("start", name)[1:]]
        assert len(taken) == len(theirs)
        assert 0.5 * lease < min(taken) <= max(taken) < 3 * lease + 1  # the lease, what was left of it, and a tick
        until(lambda: {*short} <= {event.name for event in f.events.all("end")})
    starts = f.events.starts()
    assert {starts[name] for name in long} == {1}
    assert all(starts[name] == 1 for name in short if f.events.all("start", name)[0].pid != victim)
    done = effects(raw, s)
    assert {done[name] for name in [*long, *theirs, *short]} == {1}


@pytest.mark.covers("C07", "F10")
@ONE_BACKEND
def test_a_paused_worker_does_not_take_its_job_back(make_stream, make_fleet, kind, raw):
    s = make_stream(lease=1)
    s.add({"name": "J", "first": 4, "seconds": 2})
    with make_fleet(handler=kind, lease=1) as f:
        first = f.start()
        until(lambda: f.events.all("start"))
        os.kill(first.pid, signal.SIGSTOP)
        [(first_owner, _)] = owners(raw, s)
        stopped = time.monotonic()
        second = f.start()
        until(lambda: len(f.events.all("start")) == 2)
        # As soon as the lease was over and one tick had passed, but not before.
        assert time.monotonic() - stopped < 4 * PATIENCE
        [(owner, count)] = owners(raw, s)
        assert (owner != first_owner, count) == (True, 2)
        os.kill(first.pid, signal.SIGCONT)
        while owners(raw, s):
            assert owners(raw, s) in ([(owner, 2)], [])
            time.sleep(0.01)
        assert effects(raw, s) == {"J": 1}
        until(lambda: "lease lost" in f.log.read_text())
        if kind == "async def":  # cancelled: it does not get to its end
            assert [event.pid for event in f.events.all("end")] == [second.pid]
        else:  # told by job.lease_lost; what it returns is dropped
            until(lambda: len(f.events.all("end")) == 2)
        s.add({"name": "next"})
        until(lambda: effects(raw, s).get("next"))
        assert f.terminate() == [0, 0]
    assert effects(raw, s) == {"J": 1, "next": 1}
    assert s.inspect().dead == 0


@pytest.mark.covers("C76")
def test_one_lost_heartbeat_costs_nothing(make_stream, raw, proxy, tmp_path, caplog):
    s = make_stream(lease=0.6)
    events = Events(tmp_path / "events")
    sha = source("renew").sha.encode()

    def is_beat(command):
        return command[0] == b"EVALSHA" and command[1] == sha

    s.add({"name": "long", "seconds": 1.5})
    behind = make_stream(redis=proxy.url, lease=0.6)
    trap = proxy.cut_after(is_beat)
    with working(quick(behind, handler_of("def", events))):
        until(lambda: events.all("start"))
        with working(quick(s, handler_of("def", events))):  # would take it
            until(lambda: is_idle(s))
    assert trap.fired
    assert proxy.count(is_beat) > 2
    assert events.starts() == {"long": 1}
    assert effects(raw, s) == {"long": 1}
    assert events.all("start")[0].attempt == 1
    assert "lease lost" not in caplog.text


@pytest.mark.covers("C76")
def test_a_lease_that_could_not_be_renewed_is_lost(make_stream, raw, proxy, tmp_path):
    """All heartbeats are dropped for longer than the lease: another worker runs the job, and the late end is refused."""
    s = make_stream(lease=0.5)
    sha = source("renew").sha.encode()
    behind = make_stream(redis=proxy.url, lease=0.5)
    slow_started, go = threading.Event(), threading.Event()

    def slow(payload, job):
        slow_started.set()
        go.wait(10)
        job.effects.hincrby("effects", "slow")

    def fast(payload, job):
        job.effects.hincrby("effects", "fast")

    def drop(command):
        return command[0] == b"EVALSHA" and command[1] == sha

    s.add({"name": "J"})
    for _ in range(50):
        proxy.drop_before(drop)
    with working(quick(behind, slow)):
        assert slow_started.wait(5)
        with working(quick(s, fast)):
            until(lambda: effects(raw, s))
            go.set()
            until(lambda: is_idle(s))
        time.sleep(0.2)  # for the slow one's end to be settled, if it were
    assert effects(raw, s) == {"fast": 1}


def test_a_thread_is_told_and_a_coroutine_cancelled_when_the_lease_is_lost(make_stream, kind, raw):
    s = make_stream(lease=0.6)
    jobs, told = [], threading.Event()

    def plain(payload, job):
        jobs.append(job)
        deadline = time.monotonic() + 10
        while job.deliveries == 1 and not job.lease_lost and time.monotonic() < deadline:
            time.sleep(0.01)
        told.set()
        job.effects.hincrby("effects", "done" if job.deliveries > 1 else "late")

    async def waiting(payload, job):
        jobs.append(job)
        try:
            await asyncio.sleep(10 if job.deliveries == 1 else 0)
        except asyncio.CancelledError:
            if job.lease_lost:
                told.set()
            raise
        job.effects.hincrby("effects", "done")

    s.add({})
    with working(quick(s, plain if kind == "def" else waiting)):
        until(lambda: jobs)
        stream = s._spec.keys.stream
        raw.xclaim(stream, "workers", "thief", 0, [jobs[0].entry_id])
        assert told.wait(5)
        time.sleep(0.1)
        assert [owner for owner, _ in owners(raw, s)] == ["thief"]
        assert effects(raw, s) == {}
        # The thief never settles: the job comes back to this worker when the thief's lease is over.
        until(lambda: is_idle(s))
    assert effects(raw, s) == {"done": 1}
    assert [job.deliveries for job in jobs] == [1, 3]


@pytest.mark.covers("C25", "C76")
@pytest.mark.parametrize("with_effects", [False, True], ids=["ack", "commit"])
def test_a_lease_lost_while_the_outcome_waits_drops_that_outcome_only(make_stream, raw, caplog, with_effects):
    """The job has ended, its settlement is refused for a while, and meanwhile the heartbeat finds it taken over."""
    s = make_stream(lease=0.6)
    blocked = s._spec.keys.done[0]
    jobs = []

    def body(payload, job):
        jobs.append(job)
        if len(jobs) == 1:
            raw.set(blocked, "in the way")
        if with_effects:
            job.effects.hincrby("effects", payload["name"])

    s.add({"name": "taken"}, job_id="taken")
    with working(quick(s, body, concurrency=4)):
        until(lambda: "are not settled yet" in caplog.text)
        raw.xclaim(s._spec.keys.stream, "workers", "thief", 0, [jobs[0].entry_id])
        until(lambda: jobs[0].lease_lost or "its outcome was dropped" in caplog.text)
        raw.delete(blocked)
        s.add({"name": "later"}, job_id="later")
        until(lambda: s.add({"name": "later"}, job_id="later").state == "done", timeout=5)
        # The thief never settles: when its lease is over, the job is run again, and done.
        until(lambda: is_idle(s), timeout=8)
    assert [job.id for job in jobs] == ["taken", "later", "taken"]
    if with_effects:
        assert effects(raw, s) == {"taken": 1, "later": 1}


@pytest.mark.parametrize("moment", ["its start is counted", "it has just begun"])
def test_a_lease_found_lost_while_a_job_starts_takes_no_slot(make_stream, raw, monkeypatch, moment):
    """The heartbeat's thread may find it so at any moment."""
    s = make_stream(lease=0.5)
    s.add({"name": "lost"})
    assert s.read("dead")
    time.sleep(0.6)
    lost = []

    def lose(starter, place, jobs):
        for job in jobs:
            lost.append(job.entry_id)
            job.lease_lost = True
            starter.cancel(starter._feeds[place], job.entry_id)

    count, begin = Fetcher.count_starts, Starter._begin

    async def count_starts(fetcher, tickets):
        if not lost:
            lose(fetcher._post.starter, fetcher.place, [ticket.job for ticket in tickets])
            await asyncio.sleep(0.1)
        return await count(fetcher, tickets)

    def _begin(starter, call):
        begin(starter, call)
        if not lost:
            lose(starter, call.stream, [ticket.job for ticket in call.tickets])

    if moment == "it has just begun":
        monkeypatch.setattr(Starter, "_begin", _begin)
    else:
        monkeypatch.setattr(Fetcher, "count_starts", count_starts)

    async def handle(payload, job):
        job.effects.hincrby("effects", payload["name"])

    with working(quick(s, handle, concurrency=1, drain=1)):
        until(lambda: lost)
        s.add({"name": "next"})
        until(lambda: effects(raw, s).get("next"), timeout=5)


def test_a_start_that_a_stop_cuts_off_is_not_charged(make_stream, raw, monkeypatch):
    """The server is slow: it has counted the start, and the worker stops before it hears of that. It was the last one."""
    s = make_stream(lease=1, max_deliveries=2)
    s.add({"name": "last"})
    assert s.read("dead")
    time.sleep(1.1)
    run, counted = AsyncDriver.run, threading.Event()

    async def slow(driver, plan):
        answer = await run(driver, plan)
        if plan.gi_code.co_name == "start" and not counted.is_set():
            counted.set()
            await asyncio.sleep(10)
        return answer

    monkeypatch.setattr(AsyncDriver, "run", slow)

    async def handle(payload, job):
        job.effects.hincrby("effects", payload["name"])

    with working(quick(s, handle, drain=1)):
        assert counted.wait(10)
    with working(quick(s, handle)):
        until(lambda: is_idle(s))
    assert effects(raw, s) == {"last": 1}
    assert s.inspect().dead == 0
