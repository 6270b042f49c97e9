"""Pausing: nothing new is started, everything else goes on."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import look
import pytest
import redis
from colours import open_stream
from look import Row, State
from waiting import PATIENCE, until

from streamq import ConfigurationError

SOON = 1.5 * PATIENCE
"""Seconds in which something must have happened that happens at once: a slow machine is no failure."""


def test_pausing_and_resuming(make_stream, raw, ns):
    s = make_stream()
    assert s.resume() is False
    assert look.dumps(raw, ns) == {}
    assert [s.pause(), s.pause()] == [True, False]
    assert look.state(raw, s) == State(paused=True, wake=["1"])
    assert s.inspect().paused is True
    assert [s.resume(), s.resume()] == [True, False]
    assert look.state(raw, s) == State(wake=["0"])
    assert s.inspect().paused is False


@pytest.mark.covers("C66")
def test_nothing_is_read_or_reclaimed_and_all_else_goes_on(make_stream, raw):
    worker = make_stream(group="a", groups=("b",))
    worker.add_many({"n": n} for n in range(8))
    jobs = worker.read("w", count=7)
    look.age(raw, worker, [jobs[6].entry_id], group="a")
    other = make_stream(group="b")
    other.pause()
    fresh = make_stream(group="a")  # has not looked yet, so it looks now
    entries, held = look.entries(raw, worker._spec.keys.stream), look.pending(raw, worker, group="a")
    for s in (fresh, other):  # all groups
        assert s.read("w2", count=9) == []
        assert tuple(s.reclaim("w2", min_idle=0)) == ([], [], [])
    assert look.entries(raw, worker._spec.keys.stream) == entries
    assert (look.pending(raw, worker, group="a"), look.pending(raw, worker, group="b")) == (held, {})
    # What runs ends as always, and jobs can be added.
    assert worker.ack(jobs[0]) is True
    worker.commit(jobs[1])
    assert worker.retry(jobs[2], delay=0) is True
    worker.reject(jobs[3])
    worker.release(jobs[4])
    worker.extend(jobs[5])
    [letter] = worker.dead_letters.list()
    assert worker.dead_letters.redrive(letter.id).moved
    added = worker.add({"n": 9}, job_id="k")
    assert worker.cancel("k") is True
    assert added.created
    assert worker.trim() == 0
    assert fresh.read("w2", count=9) == []
    worker.resume()
    assert len(fresh.read("w2", count=9)) == 3  # unread, retried, redriven
    assert len(fresh.reclaim("w2", min_idle=10).claimed) == 2


def loop(s, block, starts, stop):
    """A hand-written loop; notes when it starts jobs."""
    while not stop.is_set():
        for job in [*s.read(f"w-{block}", block=block), *s.reclaim(f"w-{block}").claimed]:
            starts.append(time.monotonic())
            s.ack(job)


@pytest.mark.slow
def test_readers_in_loops_start_nothing_two_seconds_later(make_stream):
    producer = make_stream()
    starts, stop = [], threading.Event()
    with ThreadPoolExecutor(3) as pool:
        loops = [pool.submit(loop, make_stream(), block, starts, stop) for block in (0.05, 0.9, 5)]
        try:
            for _ in range(30):
                producer.add({})
                time.sleep(0.02)
            producer.pause()
            paused = time.monotonic()
            while time.monotonic() < paused + 2.5:
                producer.add({})
                time.sleep(0.02)
            assert len(starts) >= 20
            assert max(starts) - paused < 2.0
            producer.resume()
            resumed = time.monotonic()
            until(lambda: starts[-1] > resumed)
            assert starts[-1] - resumed < SOON
        finally:
            stop.set()
            producer.resume()
        for ended in loops:
            ended.result(30)


def test_a_waiting_reader_goes_on_at_once_when_resumed(make_stream, raw):
    s, operator = make_stream(), make_stream()
    operator.pause()
    operator.add({"n": 1})
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(s.read, "w", block=20)
        time.sleep(0.3)
        assert not reading.done()
        assert look.pending(raw, s) == {}
        begin = time.monotonic()
        operator.resume()
        [job] = reading.result(20)
        assert time.monotonic() - begin < SOON
    assert job.payload == {"n": 1}


def test_a_wait_that_ends_in_a_pause(make_stream, raw):
    s = make_stream()
    s.read("w")
    s.pause()
    s.add({})
    other = make_stream()
    begin = time.monotonic()
    assert other.read("w", block=0.3) == []
    assert 0.2 < time.monotonic() - begin < 0.3 + SOON
    assert look.pending(raw, s) == {}


@pytest.mark.slow
def test_a_pause_in_the_middle_of_a_wait(make_stream, raw):
    s, operator = make_stream(), make_stream()
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(s.read, "w", block=20)
        until(lambda: raw.exists(s._spec.keys.stream))
        operator.pause()
        time.sleep(2.0)
        entry_id = operator.add({}).entry_id
        time.sleep(0.5)
        assert not reading.done()
        assert look.pending(raw, s) == {}
        operator.resume()
        [job] = reading.result(20)
    assert job.entry_id == entry_id
    assert look.pending(raw, s) == {entry_id: Row("w", 1)}


def test_pausing_with_memory_full_and_a_restart(colour, new_server):
    server = new_server(appendonly=True)
    with closing(open_stream(colour, "x", redis=server.url)) as s:
        s.add({})
        with redis.Redis.from_url(server.url) as raw:
            raw.config_set("maxmemory", 1)
        assert [s.pause(), s.pause()] == [True, False]
        assert s.inspect().paused is True
        assert [s.resume(), s.resume()] == [True, False]
        assert s.pause() is True
    server.kill()
    server.start()
    with closing(open_stream(colour, "x", redis=server.url)) as s:
        assert s.inspect().paused is True
        assert s.read("w") == []
        assert s.resume() is True
        assert len(s.read("w")) == 1


def test_a_pause_is_of_one_stream(make_stream, ns):
    s, other, elsewhere = make_stream(), make_stream("2"), make_stream(deployment=f"{ns}-d")
    for each in (s, other, elsewhere):
        each.add({})
    s.pause()
    assert [len(each.read("w")) for each in (s, other, elsewhere)] == [0, 1, 1]


@pytest.mark.covers("C89")
@pytest.mark.parametrize("key", ["meta", "wake"])
def test_keys_of_the_wrong_type(make_stream, raw, key):
    s = make_stream()
    raw.set(getattr(s._spec.keys, key), "x")
    before = look.dumps(raw, s.name)
    with pytest.raises(ConfigurationError, match="WRONGTYPE"):
        s.pause()
    assert look.dumps(raw, s.name) == before


@pytest.mark.parametrize("colour", ["sync"])  # an AsyncStream belongs to one event loop
@pytest.mark.slow
def test_threads_that_share_a_stream_see_the_pause(make_stream):
    s = make_stream()
    s.add_many([{}] * 50)
    assert len(s.read("w")) == 1
    s.pause()
    time.sleep(1.0)  # what it knows is older than that
    got = []
    threads = [threading.Thread(target=lambda n=n: got.append(s.read(f"w{n}", block=0.2))) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert got == [[], [], [], []]
