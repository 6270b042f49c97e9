"""A worker on a paused stream: nothing starts, what runs ends, and it goes on by itself."""

from __future__ import annotations

import threading
import time

import pytest
from worker.fleet import effects, is_idle, quick, until, working


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
