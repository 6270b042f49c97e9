"""A worker on a paused stream: nothing starts, what runs ends, and it goes on by itself."""

from __future__ import annotations

import threading
import time

import pytest
from waiting import until
from worker.fleet import effects, is_idle, quick, working


@pytest.mark.parametrize("backend", ["redis-7.0"], indirect=True)  # takes long, and does not depend on the server
def test_nothing_starts_two_seconds_after_a_pause(make_stream, handler, raw):
    s = make_stream()
    starts = []

    def body(payload, job):
        starts.append(time.monotonic())
        job.effects.hincrby("effects", str(payload["n"]))

    with working(quick(s, handler(body, seconds=0.02), concurrency=2, block=1)):
        until(lambda: raw.exists(s._spec.keys.stream))
        for n in range(30):
            s.add({"n": n})
        until(lambda: len(starts) > 10)
        assert s.pause() is True
        paused = time.monotonic()
        n = 30
        while time.monotonic() < paused + 2.6:
            s.add({"n": n})
            n += 1
            time.sleep(0.05)
        assert max(starts) - paused < 2.0
        until(lambda: len(effects(raw, s)) == len(starts))  # what had begun has ended and is settled
        before = len(starts)
        resumed = time.monotonic()
        s.resume()
        until(lambda: len(starts) > before)
        assert starts[before] - resumed < 2.0 + 1.0  # within two seconds, on a slow machine
        until(lambda: is_idle(s))
    assert effects(raw, s) == {str(k): 1 for k in range(n)}


@pytest.mark.parametrize("backend", ["redis-7.0"], indirect=True)  # takes long, and does not depend on the server
def test_what_was_read_ahead_since_the_last_look_does_not_start_in_a_pause(make_stream, raw, monkeypatch):
    monkeypatch.setattr("streamq.worker.fetch.random.uniform", max)  # the longest time between two ticks
    s = make_stream()
    starts = []

    def handle(payload):
        starts.append(time.monotonic())
        time.sleep(0.05)

    worker = quick(s, handle, concurrency=1, prefetch=60)
    with working(worker):
        beat = until(lambda: raw.hget(s._spec.keys.workers, worker.consumer))
        until(lambda: raw.hget(s._spec.keys.workers, worker.consumer) != beat)  # it has looked just now
        s.add_many({} for _ in range(60))
        until(lambda: starts)
        s.pause()
        paused = time.monotonic()
        time.sleep(3)
        assert max(starts) - paused < 2.0
        assert len(starts) < 60
        s.resume()
        until(lambda: is_idle(s))
    assert len(starts) == 60


def test_a_lost_read_is_not_taken_up_in_a_pause(make_stream, proxy, raw):
    behind, direct = make_stream(redis=proxy.url), make_stream()
    starts = []

    def is_read(command):
        return command[0] == b"XREADGROUP"

    trap = proxy.cut_after(is_read)
    with working(quick(behind, lambda payload: starts.append(payload["n"]), block=4)):
        until(lambda: proxy.count(is_read) > 0)
        direct.pause()
        time.sleep(2)  # nothing starts from now on, though the read is still on its way
        direct.add({"n": 1})
        trap.wait()
        time.sleep(1.5)
        assert starts == []
        direct.resume()
        until(lambda: starts == [1])
        until(lambda: is_idle(direct))


def test_what_runs_ends_and_is_settled_in_a_pause(make_stream, handler, raw):
    s = make_stream(lease=0.5)
    begun = threading.Event()

    def body(payload, job):
        job.effects.hincrby("effects", payload["name"])
        begun.set()

    s.add({"name": "long"})
    with working(quick(s, handler(body, seconds=0.8))):
        assert begun.wait(10)
        s.pause()
        until(lambda: effects(raw, s) == {"long": 1})
        s.add({"name": "later"})
        time.sleep(0.5)
        assert effects(raw, s) == {"long": 1}
        s.resume()
        until(lambda: is_idle(s))
    assert effects(raw, s) == {"long": 1, "later": 1}
    assert s.inspect().dead == 0


@pytest.mark.parametrize("deliveries", [1, 2])
def test_a_worker_that_begins_in_a_pause(make_stream, handler, raw, deliveries):
    s = make_stream(lease=0.2)
    s.add_many({"name": str(n)} for n in range(20))
    left = s.read("dead", count=5)  # of a worker that died
    for _ in range(deliveries - 1):
        left = s.reclaim("dead", min_idle=0).claimed
    s.pause()
    runs = []

    def body(payload, job):
        runs.append(payload["name"])
        job.effects.hincrby("effects", payload["name"])

    with working(quick(s, handler(body), concurrency=4)):
        time.sleep(1.0)
        assert runs == []
        now = s.inspect()
        assert (now.pending, now.ready, now.paused) == (len(left), 15, True)
        s.resume()
        until(lambda: is_idle(s))
    assert effects(raw, s) == {str(n): 1 for n in range(20)}
    assert sorted(runs, key=int) == [str(n) for n in range(20)]
