"""Field faults that have no home of their own: clients, server settings, sizes."""

from __future__ import annotations

import time

import look
import pytest
import redis

from streamq import Stream, StreamOptions, Worker


@pytest.mark.covers("C24")
@pytest.mark.parametrize("backend", ["redis-7.0"], indirect=True)
def test_blocking_longer_than_the_clients_timeout(make_stream, raw, redis_url):
    """An idle queue is no error: no time-outs, no reconnects, and the job that comes is there at once."""
    client = redis.Redis.from_url(redis_url, socket_timeout=1)
    s = make_stream(redis=client)
    s.read("w")
    before = raw.info("stats")["total_connections_received"]
    begun = time.monotonic()
    assert s.read("w", block=6) == []
    assert time.monotonic() - begun >= 6
    assert raw.info("stats")["total_connections_received"] - before <= 2
    client.close()


@pytest.mark.covers("C62", "S2")
def test_finished_work_leaves_nothing(make_stream, raw):
    s = make_stream()
    s.add_many({"n": n} for n in range(2_000))
    while jobs := s.read("w", count=500):
        assert s.ack(jobs) == len(jobs)
    assert look.state(raw, s) == look.State(counters={"done:workers": 2_000})


@pytest.mark.covers("C92")
@pytest.mark.parametrize("backend", ["redis-6.2"], indirect=True)
def test_server_that_replicates_scripts_as_text(new_server):
    server = new_server(args=("--lua-replicate-commands", "no"))
    with Stream("s", redis=server.url, options=StreamOptions(max_deliveries=2)) as s:
        s.add({"n": 1}, job_id="a")
        s.add({"n": 2})
        first, second = s.read("w", count=2)
        first.effects.hincrby("h", "f")
        s.commit(first, result="r")
        assert s.retry(second, "no", delay=0.05) is True
        s.add({"n": 3}, job_id="b", delay=60)
        s.add({"n": 3}, job_id="b", delay=90, replace=True)
        s.scheduled.reschedule("b", delay=80)
        s.scheduled.run_now("b")
        s.cancel("b")
        [again] = s.read("w", block=5)
        s.release(again)
        [again] = s.reclaim("w", min_idle=0).claimed
        s.reject(again, "no")
        assert [letter.reason for letter in s.dead_letters.list()] == ["rejected"]
        assert s.inspect().pending == 0


@pytest.mark.covers("C68")
def test_jobs_of_a_killed_worker_come_back_whatever_xautoclaim_answers(make_stream, raw):
    s = make_stream()
    s.add_many({"n": n} for n in range(5))
    s.read("dead", count=5)
    assert [job.payload["n"] for job in s.reclaim("w", min_idle=0).claimed] == list(range(5))


@pytest.mark.covers("C77")
@pytest.mark.parametrize("backend", ["redis-7.0"], indirect=True)
def test_large_payloads_do_not_come_all_at_once(redis_url, ns):
    """A worker holds no more of them than it runs."""
    options = StreamOptions(max_payload=4 << 20)
    with Stream(ns, bytes, redis=redis_url, options=options) as s:
        s.add_many(bytes([n]) * (3 << 20) for n in range(20))
        most = 0
        seen = []

        def handle(payload: bytes) -> None:
            nonlocal most
            most = max(most, len(worker._runner.feeds[0].fetcher.hand.held))
            seen.append(payload[0])
            if len(seen) == 20:
                worker.stop()

        worker = Worker(s, handle, concurrency=2, block=0.2)
        worker.run()
        assert sorted(seen) == list(range(20))
        assert most <= 4  # running, or ended and on their way to the server
        assert s.inspect().ready == s.inspect().pending == 0
