"""Processes that die: killed from outside, and by the jobs they run."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time

import pytest
from waiting import PATIENCE, until
from worker.fleet import Events, effects, handler_of, is_idle, quick, working

from streamq import Hooks
from streamq._scripts import source

GOOD = ["A", "B", "C", "D", "E"]
ONE_BACKEND = pytest.mark.parametrize("backend", ["redis-7.0"], indirect=True)


def names(letters):
    """Name and reason of each dead letter."""
    return sorted((letter.payload.decode().split('"name":"')[1].split('"')[0], letter.reason) for letter in letters)


@pytest.mark.covers("C04", "S4")
def test_a_job_that_kills_its_process_is_buried_and_its_neighbours_are_not(make_stream, make_fleet, raw):
    settings = {"lease": 0.6, "max_deliveries": 5, "crash_delay": 0.5}
    s = make_stream(**settings)
    for name in GOOD[:3]:
        s.add({"name": name})
    s.add({"name": "P", "do": "die"})
    for name in GOOD[3:]:
        s.add({"name": name, "seconds": 0.1})
    with make_fleet(**settings) as f:
        f.supervise(1)
        until(lambda: is_idle(s) and s.inspect().dead, timeout=40)
        assert f.terminate() == [0]
    assert f.events.starts()["P"] == 5
    assert f.restarts == 5
    assert effects(raw, s) == dict.fromkeys(GOOD, 1)
    assert names(s.dead_letters.list()) == [("P", "deliveries")]
    [letter] = s.dead_letters.list()
    assert (letter.deliveries, letter.attempts) == (5, 0)
    # None waited for P to finish dying.
    last_death = f.events.all("start", "P")[-1].at
    assert all(f.events.all("end", name)[-1].at < last_death for name in GOOD)


@pytest.mark.covers("C04", "S4")
@ONE_BACKEND
def test_a_killer_is_started_exactly_max_deliveries_times(make_stream, make_fleet, kind, raw):
    settings = {"lease": 0.4, "max_deliveries": 5}
    s = make_stream(**settings)
    s.add({"name": "P", "do": "die"})
    with make_fleet(handler=kind, **settings) as f:
        f.supervise(2)
        until(lambda: s.inspect().dead, timeout=40)
        s.add({"name": "after"})
        until(lambda: is_idle(s))
        assert f.terminate() == [0, 0]
    assert f.events.starts() == {"P": 5, "after": 1}
    assert [event.deliveries for event in f.events.all("start", "P")] == [1, 2, 3, 4, 5]
    assert names(s.dead_letters.list()) == [("P", "deliveries")]
    assert effects(raw, s) == {"after": 1}


@pytest.mark.covers("C04", "S4")
@ONE_BACKEND
def test_several_killers_bury_no_bystander(make_stream, make_fleet, raw):
    settings = {"lease": 0.8, "max_deliveries": 3}
    s = make_stream(**settings)
    good = [f"good{n}" for n in range(30)]
    killers = {5: "P1", 12: "P2", 21: "P3"}
    for n, name in enumerate(good):
        if n in killers:
            s.add({"name": killers[n], "do": "die", "seconds": 0.02})
        s.add({"name": name, "seconds": 0.05})
    with make_fleet(worker={"concurrency": 8}, **settings) as f:
        f.supervise(2)
        until(lambda: is_idle(s) and s.inspect().dead == 3, timeout=60)
        assert f.terminate() == [0, 0]
    starts = f.events.starts()
    assert all(starts[name] <= 3 for name in killers.values()), starts
    assert names(s.dead_letters.list()) == [("P1", "deliveries"), ("P2", "deliveries"), ("P3", "deliveries")]
    assert effects(raw, s) == dict.fromkeys(good, 1)


@pytest.mark.covers("S4")
def test_a_job_started_often_enough_is_buried_unrun(make_stream, raw):
    s = make_stream(lease=0.3, max_deliveries=3)
    runs = []
    s.add({"name": "spent"})
    s.read("dead1")
    for n in range(2, 4):  # two more that died with it
        until(lambda: s.reclaim(f"dead{n}").claimed)  # noqa: B023
    with working(quick(s, lambda payload: runs.append(payload["name"]))):
        s.add({"name": "good"})
        until(lambda: is_idle(s))
    assert runs == ["good"]
    assert names(s.dead_letters.list()) == [("spent", "deliveries")]
    assert raw.xpending(s._spec.keys.stream, "workers")["pending"] == 0


@pytest.mark.covers("C19", "I4")
@pytest.mark.parametrize("chosen", [False, True], ids=["generated-id", "chosen-id"])
@ONE_BACKEND
def test_killed_between_its_start_and_its_effect(make_stream, make_fleet, raw, chosen):
    s = make_stream(lease=1)
    payload = {"name": "J", "first": 60, "seconds": 0.1}
    s.add(payload, job_id="order:1" if chosen else None)
    with make_fleet(lease=1) as f:
        first = f.start()
        until(lambda: f.events.all("start"))
        if chosen:  # it is marked as running, and the mark ends by itself if everybody dies
            ttls = [raw.ttl(key) for key in s._spec.keys.done if raw.hexists(key, "workers/order:1")]
            assert len(ttls) == 1
            assert ttls[0] > 0
        second = f.start()
        until(lambda: len(f.events.all("up")) == 2)
        killed = time.monotonic()
        first.kill()
        first.wait()
        until(lambda: is_idle(s))
        assert effects(raw, s) == {"J": 1}
        restarted = f.events.all("start")[1]
        assert restarted.pid == second.pid
        assert restarted.at - killed < 3  # the lease, a tick, and nothing beyond them
        assert f.terminate() == [0]
    assert f.events.starts() == {"J": 2}
    assert s.inspect().dead == 0
    if chosen:
        assert s.add(payload, job_id="order:1").state == "done"


@pytest.mark.covers("C19")
def test_a_second_entry_of_a_running_id_is_neither_run_nor_lost(make_stream, raw):
    s = make_stream(lease=0.5)
    runs = []
    go, started = threading.Event(), threading.Event()

    def body(payload, job):
        runs.append((job.entry_id, payload["n"]))
        started.set()
        job.effects.hincrby("effects", job.id)

    def slow(payload, job):
        body(payload, job)
        go.wait(10)

    first = s.add({"n": 1}, job_id="order:1").entry_id
    with working(quick(s, slow)):
        assert started.wait(5)
        raw.xadd(s._spec.keys.stream, {"job": '{"n":2}', "sq:id": "order:1"})
        time.sleep(1)
        assert raw.xpending(s._spec.keys.stream, "workers")["pending"] == 2
        assert runs == [(first, 1)]
        go.set()
        until(lambda: is_idle(s))
    assert runs == [(first, 1)]
    assert effects(raw, s) == {"order:1": 1}
    assert s.inspect().dead == 0


@pytest.mark.covers("C46")
@ONE_BACKEND
def test_killed_in_the_middle_of_a_reclaim(make_stream, make_fleet, raw, proxy):
    """The process dies with the tick's token set and jobs claimed that it has never seen."""
    settings = {"lease": 1, "max_deliveries": 3}
    s = make_stream(**settings)
    s.add_many({"name": f"J{n}"} for n in range(5))
    s.read("dead", count=5)
    sha = source("reclaim").sha.encode()

    def is_reclaim(command):
        return command[0] in {b"EVALSHA", b"EVAL"} and (command[1] == sha or b"-- reclaim.lua" in command[1][:20])

    with make_fleet(url=proxy.url, **settings) as f:
        until(lambda: s.inspect().pending == 5)
        time.sleep(1.1)
        trap = proxy.cut_after(is_reclaim)
        victim = f.start()
        trap.wait()
        victim.send_signal(signal.SIGKILL)
        victim.wait()
        owners = {row["consumer"] for row in raw.xpending_range(s._spec.keys.stream, "workers", "-", "+", 10)}
        assert owners != {b"dead"}  # they were claimed
        begin = time.monotonic()
        f.start()
        until(lambda: is_idle(s))
        assert time.monotonic() - begin < 4 * PATIENCE
        assert f.terminate() == [0]
    assert effects(raw, s) == {f"J{n}": 1 for n in range(5)}
    assert {event.deliveries for event in f.events.all("start")} == {2}  # a claim without a start costs nothing


@pytest.mark.covers("C46")
@pytest.mark.parametrize("rounds", [8, pytest.param(100, marks=pytest.mark.full)])
def test_many_reclaimers_start_a_stale_job_once(make_stream, raw, tmp_path, rounds):
    s = make_stream(lease=0.5, max_deliveries=100)
    events = Events(tmp_path / "events")
    stream = s._spec.keys.stream
    s.groups.create("workers")
    with working(*(quick(s, handler_of("async def", events), block=0.5) for _ in range(8))):
        for n in range(rounds):
            with raw.pipeline() as transaction:  # nobody else reads it in between
                transaction.xadd(stream, {"job": f'{{"name":"J{n}","seconds":0.02}}'})
                transaction.xreadgroup("workers", "dead", {stream: ">"})
                entry_id = transaction.execute()[0]
            # Looks as if its owner had died long ago.
            raw.xclaim(stream, "workers", "dead", 0, [entry_id], idle=60_000, retrycount=1, justid=True)
            until(lambda: is_idle(s))
    assert events.starts() == {f"J{n}": 1 for n in range(rounds)}
    assert {event.deliveries for event in events.all("start")} == {2}
    assert effects(raw, s) == {f"J{n}": 1 for n in range(rounds)}


@pytest.mark.covers("C37")
def test_a_dead_workers_backlog_does_not_keep_new_jobs_waiting(make_stream, raw):
    s = make_stream(lease=0.5, retries=2)
    failing = {10, 100, 240}
    new_at = {}

    def body(payload, job):
        if payload["n"] in failing:
            raise ValueError("always")
        job.effects.hincrby("effects", str(payload["n"]))
        if payload["n"] >= 1000:
            new_at.setdefault(payload["n"], time.monotonic())

    s.add_many({"n": n} for n in range(250))
    s.read("dead", count=250)
    time.sleep(0.5)
    begin = time.monotonic()
    s.add_many({"n": n} for n in range(1000, 1010))
    with working(quick(s, body)):
        until(lambda: is_idle(s))
    assert effects(raw, s) == {str(n): 1 for n in [*range(250), *range(1000, 1010)] if n not in failing}
    assert max(new_at.values()) - begin < 5
    letters = s.dead_letters.list()
    assert [(letter.reason, letter.attempts) for letter in letters] == [("attempts", 3)] * 3


class Graves(Hooks):
    """What was dead-lettered: entry ID and reason."""

    def __init__(self):
        self.told = []

    def dead_lettered(self, dead):
        self.told.append((dead.entry_id, dead.reason))


@pytest.mark.covers("C36", "F3")
def test_entries_that_lost_their_bodies_under_a_dead_worker(make_stream, raw):
    s = make_stream(lease=0.3)
    s.add_many({"n": n} for n in range(3))
    ids = [job.entry_id for job in s.read("dead", count=3)]
    raw.xdel(s._spec.keys.stream, *ids[:2])
    graves, runs = Graves(), []

    def body(payload, job):
        runs.append(payload["n"])
        job.effects.hincrby("effects", str(payload["n"]))

    with working(quick(s, body, hooks=[graves])):
        until(lambda: is_idle(s))
    assert runs == [2]
    assert effects(raw, s) == {"2": 1}
    assert sorted(graves.told) == [(entry_id, "entry_missing") for entry_id in ids[:2]]
    assert [letter.reason for letter in s.dead_letters.list()] == ["entry_missing"] * 2


@pytest.mark.covers("C36")
def test_an_entry_that_loses_its_body_while_its_handler_runs(make_stream, raw, caplog):
    s = make_stream(lease=0.4)
    entry_id = s.add({}).entry_id
    started, ended = threading.Event(), []

    async def body(payload, job):
        started.set()
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            ended.append(job.lease_lost)
            raise
        job.effects.hincrby("effects", "done")

    with working(quick(s, body)):
        assert started.wait(5)
        raw.xdel(s._spec.keys.stream, entry_id)
        until(lambda: s.inspect().dead and is_idle(s))
        until(lambda: ended)
    assert ended == [True]
    assert effects(raw, s) == {}
    assert [(letter.source_id, letter.reason) for letter in s.dead_letters.list()] == [(entry_id, "entry_missing")]
    assert entry_id in caplog.text


@ONE_BACKEND
def test_worker_processes_killed_again_and_again(make_stream, make_fleet, kind, raw):
    settings = {"lease": 0.5, "max_deliveries": 50}
    s = make_stream(**settings)
    s.add_many({"name": str(n), "seconds": 0.05} for n in range(150))
    with make_fleet(handler=kind, worker={"concurrency": 5}, **settings) as f:
        f.supervise(2)
        for n in range(4):
            until(lambda: len(f.events.all("start")) > 20 * n + 10)  # noqa: B023
            victim = next(p for p in reversed(f.processes) if p.poll() is None)
            os.kill(victim.pid, signal.SIGKILL)
        until(lambda: is_idle(s), timeout=40)
        assert f.terminate() == [0, 0]
    assert effects(raw, s) == {str(n): 1 for n in range(150)}
    assert s.inspect().dead == 0
    assert f.restarts >= 4
