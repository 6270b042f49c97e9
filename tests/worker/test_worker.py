"""The worker on real servers: what becomes of jobs, how many run at once, how it stops."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import threading
import time
from collections import Counter

import pytest
from waiting import PATIENCE, until
from worker import fleet
from worker.fleet import effects, is_idle, quick, working

from streamq import AsyncStream, ConfigurationError, Reject, Retry, Worker
from streamq.worker.fetch import Fetcher

ONE_BACKEND = pytest.mark.parametrize("backend", ["redis-7.0"], indirect=True)
"""For what starts processes and does not depend on the server."""


def pending(raw, stream):
    """Rows of XPENDING: entry ID -> (consumer, delivery count)."""
    rows = raw.xpending_range(stream._spec.keys.stream, "workers", "-", "+", 1000)
    return {row["message_id"].decode(): (row["consumer"].decode(), row["times_delivered"]) for row in rows}


# --- what becomes of jobs -----------------------------------------------------------------


@pytest.mark.covers("I2", "C71")
def test_an_idle_worker_forgets_ids_that_are_due(make_stream, raw):
    s = make_stream(lease=1)
    due = [s._spec.keys.ids[0], s._spec.keys.done[3]]
    for key in due:
        raw.hset(key, mapping={"old": "done ", "": 1})
    kept = s._spec.keys.done[1]
    raw.hset(kept, mapping={"new": "done ", "": 1 << 44})
    with working(quick(s, lambda payload: None)):
        until(lambda: not raw.exists(*due))
    assert raw.exists(kept)


def test_every_job_is_done_once_with_its_effect(make_stream, handler, raw):
    s = make_stream()
    runs = Counter()

    def body(payload, job):
        runs[payload["n"]] += 1
        job.effects.hincrby("effects", str(payload["n"]))

    s.add_many({"n": n} for n in range(200))
    with working(quick(s, handler(body), concurrency=8)):
        until(lambda: is_idle(s))
    assert runs == Counter(range(200))
    assert effects(raw, s) == {str(n): 1 for n in range(200)}
    now = s.inspect()
    assert (now.length, now.dead, now.groups["workers"].done, now.groups["workers"].retried) == (0, 0, 200, 0)


def test_jobs_added_while_it_waits_are_done(make_stream, handler, raw):
    s = make_stream()
    done = threading.Event()
    with working(quick(s, handler(lambda payload, job: done.set()), block=0.5)):
        until(lambda: raw.exists(s._spec.keys.stream))
        time.sleep(0.1)
        begin = time.monotonic()
        s.add({})
        assert done.wait(5)
        assert time.monotonic() - begin < 0.3 * PATIENCE  # woken by the job, not by the end of a wait
        until(lambda: is_idle(s))


def test_chosen_ids_run_once_and_results_are_kept(make_stream, handler, raw):
    s = make_stream()
    runs = Counter()

    def body(payload, job):
        runs[job.id] += 1
        job.effects.hincrby("effects", job.id)
        return {"seen": payload["n"]}

    for n in range(20):
        assert s.add({"n": n}, job_id=f"order:{n}").created
        assert not s.add({"n": -1}, job_id=f"order:{n}").created
    # Another producer knows nothing of IDs that are taken: a second entry each.
    for n in range(20):
        raw.xadd(s._spec.keys.stream, {"job": '{"n":-2}', "sq:id": f"order:{n}"})
    with working(quick(s, handler(body), concurrency=4)):
        until(lambda: is_idle(s))
    assert runs == {f"order:{n}": 1 for n in range(20)}
    assert effects(raw, s) == {f"order:{n}": 1 for n in range(20)}
    records = {}
    for key in s._spec.keys.done:
        records.update(raw.hgetall(key))
    assert {k: v for k, v in records.items() if k} == {
        f"workers/order:{n}".encode(): f'done {{"seen":{n}}}'.encode() for n in range(20)
    }
    assert s.add({"n": 0}, job_id="order:0").state == "done"


def test_retry_until_the_attempts_are_spent(make_stream, handler, raw):
    s = make_stream(retries=3)
    attempts = []

    def body(payload, job):
        attempts.append((job.attempt, job.deliveries))
        job.effects.hincrby("effects", "never")
        if job.attempt == 2:
            raise Retry("asked for")
        raise ValueError(f"attempt {job.attempt}")

    added = s.add({"n": 1}, job_id="order:1", headers={"trace": "t1"})
    with working(quick(s, handler(body))):
        until(lambda: is_idle(s))
    assert attempts == [(1, 1), (2, 1), (3, 1), (4, 1)]
    [letter] = s.dead_letters.list()
    assert (letter.reason, letter.attempts, letter.job_id, letter.error) == (
        "attempts", 4, added.job_id, "ValueError: attempt 4",
    )  # fmt: skip
    assert letter.payload == b'{"n":1}'
    assert effects(raw, s) == {}
    assert s.inspect().groups["workers"].retried == 3
    assert s.add({"n": 1}, job_id="order:1").created  # its ID is free again


def test_a_job_that_fails_twice_and_then_succeeds(make_stream, handler, raw):
    s = make_stream(retries=5)

    def body(payload, job):
        if job.attempt < 3:
            raise ValueError("not yet")
        job.effects.hincrby("effects", payload["name"])

    s.add({"name": "A"})
    with working(quick(s, handler(body))):
        until(lambda: is_idle(s))
    assert effects(raw, s) == {"A": 1}
    assert s.inspect().dead == 0


def test_reject_buries_at_once(make_stream, handler):
    s = make_stream(retries=5)
    runs = []

    def body(payload, job):
        runs.append(job.attempt)
        raise Reject("no such customer")

    s.add({})
    with working(quick(s, handler(body))):
        until(lambda: is_idle(s))
    assert runs == [1]
    [letter] = s.dead_letters.list()
    assert (letter.reason, letter.error, letter.attempts) == ("rejected", "no such customer", 1)


def test_an_effect_that_cannot_be_applied_is_a_failed_attempt_of_that_job_only(make_stream, handler, raw):
    s = make_stream(retries=2)
    raw.set(s._spec.keys.data("number"), "no number")
    runs = Counter()

    def body(payload, job):
        runs[payload["name"]] += 1
        job.effects.hincrby("effects", payload["name"])
        if payload["name"] == "bad":
            job.effects.incrby("number")

    s.add_many({"name": name} for name in ["a", "bad", "b", "c"])
    with working(quick(s, handler(body))):
        until(lambda: is_idle(s))
    assert runs == {"a": 1, "bad": 3, "b": 1, "c": 1}
    assert effects(raw, s) == {"a": 1, "b": 1, "c": 1}
    [letter] = s.dead_letters.list()
    assert (letter.reason, letter.attempts) == ("attempts", 3)
    assert "'number'" in letter.error
    assert "integer" in letter.error


def test_entries_that_are_no_jobs_are_buried_and_the_others_run(make_stream, handler, raw):
    s = make_stream()
    s.read("nobody")  # the group
    raw.xadd(s._spec.keys.stream, {"job": b"\xff\xfe"})
    raw.xadd(s._spec.keys.stream, {"other": "x"})
    s.add({"name": "good"})
    with working(quick(s, handler(lambda payload, job: job.effects.hincrby("effects", payload["name"]) and None))):
        until(lambda: is_idle(s))
    assert effects(raw, s) == {"good": 1}
    assert [letter.reason for letter in s.dead_letters.list()] == ["undecodable", "invalid"]


@pytest.mark.covers("C25")
def test_whatever_a_handler_raises_later_jobs_are_handled(make_stream, handler, raw):
    s = make_stream(retries=0)
    faults = {
        "exit": SystemExit(1),
        "interrupt": KeyboardInterrupt(),
        "cancelled": asyncio.CancelledError(),
        "stop": StopIteration(),
        "base": BaseException("base"),
    }

    def body(payload, job):
        if payload["name"] in faults:
            raise faults[payload["name"]]
        job.effects.hincrby("effects", payload["name"])

    for name in faults:
        s.add({"name": name})
        s.add({"name": f"after {name}"})
    with working(quick(s, handler(body), concurrency=1)):
        until(lambda: is_idle(s))
    assert effects(raw, s) == {f"after {name}": 1 for name in faults}
    assert Counter(letter.reason for letter in s.dead_letters.list()) == {"attempts": len(faults)}


@pytest.mark.covers("C25")
@pytest.mark.parametrize("script", ["ack", "commit", "retry", "dead_letter"])
@pytest.mark.parametrize("backend", ["redis-6.2", "valkey-9"], indirect=True)
def test_a_settlement_that_fails_once_is_repeated(make_stream, raw, script):
    """The dead-letter stream, or the records, are of a wrong type for a while: nothing is lost, nothing runs twice."""
    s = make_stream(retries=0 if script == "dead_letter" else 1)
    runs = Counter()
    blocked = s._spec.keys.dead if script == "dead_letter" else s._spec.keys.done[0]

    def body(payload, job):
        runs[payload["name"]] += 1
        if payload["name"] == "first" and runs["first"] == 1:
            raw.set(blocked, "in the way")
            if script == "commit":
                job.effects.hincrby("effects", "first")
            if script in {"retry", "dead_letter"}:
                raise ValueError("fail")
            return "result"
        return None

    s.add({"name": "first"}, job_id="first")
    with working(quick(s, body, concurrency=1)):
        until(lambda: raw.exists(blocked))
        time.sleep(0.3)
        assert len(pending(raw, s)) == 1
        raw.delete(blocked)
        s.add({"name": "later"})
        until(lambda: is_idle(s))
    assert runs == {"first": 2 if script == "retry" else 1, "later": 1}
    assert s.inspect().dead == (script == "dead_letter")


# --- how many at once ---------------------------------------------------------------------


def test_concurrency_is_never_exceeded_and_nothing_is_read_that_cannot_start(make_stream, handler, kind, raw):
    s = make_stream()
    lock = threading.Lock()
    now, most, most_pending = 0, 0, 0

    def enter(payload, job):
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)

    if kind == "def":

        def work(payload, job):
            nonlocal now
            enter(payload, job)
            time.sleep(0.02)
            with lock:
                now -= 1

    else:

        async def work(payload, job):
            nonlocal now
            enter(payload, job)
            await asyncio.sleep(0.02)
            now -= 1

    s.add_many({"n": n} for n in range(40))
    with working(quick(s, work, concurrency=4)):
        until(lambda: raw.exists(s._spec.keys.stream) and raw.xinfo_groups(s._spec.keys.stream))
        while not is_idle(s):
            most_pending = max(most_pending, len(pending(raw, s)))
            time.sleep(0.002)
    assert most == 4
    # Those that run, and those whose handler has ended and whose acknowledgement is on its way.
    assert most_pending <= 8


def test_nothing_is_read_while_all_slots_are_taken(make_stream, kind, raw):
    s = make_stream()
    go = threading.Event()
    started = []

    async def waiting(payload):
        started.append(payload["n"])
        while not go.is_set():  # noqa: ASYNC110  # of a thread
            await asyncio.sleep(0.005)

    def plain(payload):
        started.append(payload["n"])
        go.wait(10)

    s.add_many({"n": n} for n in range(10))
    with working(quick(s, plain if kind == "def" else waiting, concurrency=3)):
        until(lambda: len(started) == 3)
        time.sleep(0.2)
        assert len(pending(raw, s)) == len(started) == 3
        assert s.inspect().ready == 7
        go.set()
        until(lambda: is_idle(s))
    assert sorted(started) == list(range(10))


@pytest.mark.parametrize("concurrency", [0, -1, 1001, True])
def test_a_concurrency_out_of_bounds_is_refused(concurrency):
    with pytest.raises(ConfigurationError, match="concurrency must be from 1 to 1,000"):
        Worker(AsyncStream("x"), lambda payload: None, concurrency=concurrency)


@pytest.mark.parametrize("wrong", [{"drain": -1}, {"block": 0}, {"block": 5}, {"drain": "1"}, {"block": float("nan")}])
def test_times_out_of_bounds_are_refused(wrong):
    with pytest.raises(ConfigurationError, match=r"^(drain|block) must be"):
        Worker(AsyncStream("x"), lambda payload: None, **wrong)


def test_consumer_names_are_unique():
    names = {Worker(AsyncStream("x"), lambda payload: None).consumer for _ in range(50)}
    assert len(names) == 50


# --- how it stops -------------------------------------------------------------------------


def test_stop_lets_running_handlers_end_and_settles_them(make_stream, handler, raw):
    s = make_stream()
    started = threading.Event()

    def body(payload, job):
        job.effects.hincrby("effects", str(payload["n"]))
        started.set()

    s.add_many({"n": n} for n in range(10))
    worker = quick(s, handler(body, seconds=0.3), concurrency=2)
    with working(worker):
        assert started.wait(5)
        worker.stop()
        worker.stop()
    done = effects(raw, s)
    assert 1 <= len(done) <= 2
    assert set(done.values()) == {1}
    assert pending(raw, s) == {}
    assert s.inspect().ready == 10 - len(done)


def test_stop_before_the_start_and_after_the_end(make_stream, handler, raw):
    s = make_stream()
    s.add({})
    worker = quick(s, handler(lambda payload, job: None))
    worker.stop()
    worker.run()  # ends by itself
    worker.stop()
    with pytest.raises(ConfigurationError, match="has run already"):
        worker.run()


def test_a_first_signal_after_a_stop_cuts_nothing_off(make_stream, handler, raw):
    """An application that stops its worker as it shuts down gets SIGTERM at about the same time."""
    s = make_stream()
    s.add({"n": 1})

    def body(payload, job):
        job.effects.hincrby("effects", "n")

    worker = quick(s, handler(body, seconds=2.0))

    def end():
        until(lambda: worker.health().running)
        worker.stop()
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGTERM)

    ending = threading.Thread(target=end)
    ending.start()
    worker.run()
    ending.join()
    assert effects(raw, s) == {"n": 1}


def test_stop_gives_an_async_handler_its_time_and_then_releases_its_job(make_stream, raw):
    s = make_stream(lease=4)
    started = threading.Event()

    async def endless(payload):
        started.set()
        await asyncio.sleep(60)

    s.add({})
    begin = time.monotonic()
    with working(quick(s, endless, drain=0.3)):
        assert started.wait(5)
    assert time.monotonic() - begin < 5 * PATIENCE
    # Uncharged, and due at once: another worker runs it at the next tick, without waiting for the lease.
    [(_, count)] = pending(raw, s).values()
    assert count == 0
    done = threading.Event()
    with working(quick(s, lambda payload: done.set())):
        assert done.wait(5)
        until(lambda: is_idle(s))


def test_stop_leaves_a_thread_that_does_not_end_to_its_lease(make_stream, raw):
    s = make_stream()
    started, go = threading.Event(), threading.Event()

    def stubborn(payload):
        started.set()
        go.wait(30)

    s.add({})
    with working(quick(s, stubborn, drain=0.2), timeout=5):
        assert started.wait(5)
    [(_, count)] = pending(raw, s).values()
    assert count == 1  # charged, and not up for others before its lease is over: it may still be at work
    assert s.reclaim("other").claimed == []
    go.set()


def test_run_async_in_a_loop_of_the_users(redis_url, ns, raw, handler):
    async def main():
        async with AsyncStream(ns, redis=redis_url) as s:
            await s.add_many({"n": n} for n in range(20))
            worker = quick(s, handler(lambda payload, job: job.effects.hincrby("effects", str(payload["n"])) and None))
            task = asyncio.create_task(worker.run_async())
            deadline = time.monotonic() + 10
            while (now := await s.inspect()).ready or now.pending or not now.groups:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.01)
            worker.stop()
            await task
            # The stream goes on in this loop.
            await s.add({"n": 1})
            assert (await s.inspect()).ready == 1
            return effects(raw, s)

    try:
        assert asyncio.run(main()) == {str(n): 1 for n in range(20)}
    finally:
        raw.srem("streamq:streams", ns)


def test_run_async_cancelled_leaves_no_task_and_no_connection(redis_url, ns, raw):
    async def main():
        started = asyncio.Event()

        async def endless(payload):
            started.set()
            await asyncio.sleep(60)

        async with AsyncStream(ns, redis=redis_url) as s:
            await s.add({})
            worker = quick(s, endless)
            task = asyncio.create_task(worker.run_async())
            await asyncio.wait_for(started.wait(), 5)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert asyncio.all_tasks() == {asyncio.current_task()}

    before = {client["id"] for client in raw.client_list()}
    try:
        asyncio.run(main())
        until(lambda: {client["id"] for client in raw.client_list()} <= before)
    finally:
        raw.srem("streamq:streams", ns)


@pytest.mark.covers("C79", "G5")
@ONE_BACKEND
def test_a_worker_made_before_a_fork(make_stream, raw, tmp_path):
    """Every copy of it works under a name of its own: a fence that names the consumer could not tell them apart."""
    s = make_stream(lease=1)
    s.groups.create("workers")
    s.add_many({"name": str(n), "seconds": 0.05} for n in range(60))
    events = fleet.Events(tmp_path / "events")
    worker = quick(s, fleet.handler_of("def", events), concurrency=4)
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=worker.run) for _ in range(3)]
    for process in processes:
        process.start()
    try:
        until(lambda: len({owner for owner, _ in pending(raw, s).values()}) == 3)
        until(lambda: is_idle(s))
    finally:
        for process in processes:
            process.terminate()
            process.join(10)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    with working(worker):  # the one that they are copies of
        s.add({"name": "parent"})
        until(lambda: is_idle(s) and effects(raw, s).get("parent"))
    names = [*map(str, range(60)), "parent"]
    assert effects(raw, s) == dict.fromkeys(names, 1)
    assert events.starts() == dict.fromkeys(names, 1)


def test_two_workers_in_one_loop(redis_url, ns, raw):
    async def main():
        async with AsyncStream(ns, redis=redis_url) as s:
            await s.add_many({"n": n} for n in range(50))

            async def work(payload, job):
                job.effects.hincrby("effects", str(payload["n"]))

            workers = [quick(s, work, concurrency=3) for _ in range(2)]
            tasks = [asyncio.create_task(worker.run_async()) for worker in workers]
            deadline = time.monotonic() + 10
            while (now := await s.inspect()).ready or now.pending or not now.groups:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.01)
            for worker in workers:
                worker.stop()
            await asyncio.gather(*tasks)
            return effects(raw, s)

    try:
        assert asyncio.run(main()) == {str(n): 1 for n in range(50)}
    finally:
        raw.srem("streamq:streams", ns)


@pytest.mark.covers("C27")
@ONE_BACKEND
def test_sigterm_finishes_what_runs_and_starts_nothing_more(make_stream, make_fleet, kind, raw):
    s = make_stream(lease=60)
    s.add({"name": "running", "seconds": 0.6})
    s.add_many({"name": f"waiting{n}"} for n in range(7))
    with make_fleet(handler=kind, worker={"concurrency": 1, "drain": 10}, lease=60) as f:
        first = f.start()
        until(lambda: f.events.all("start"))
        first.terminate()
        assert first.wait(10) == 0
        assert f.events.starts() == {"running": 1}
        assert effects(raw, s) == {"running": 1}
        assert pending(raw, s) == {}
        assert [event.what for event in f.events.all()] == ["up", "start", "end", "down"]
        begin = time.monotonic()
        f.start()
        until(lambda: is_idle(s))
        assert time.monotonic() - begin < 15  # handed over, not left to the lease of 60 s
        assert f.terminate() == [0]
    assert effects(raw, s) == {"running": 1} | {f"waiting{n}": 1 for n in range(7)}


@pytest.mark.covers("C27")
@ONE_BACKEND
def test_a_second_sigterm_ends_at_once_and_the_job_comes_back(make_stream, make_fleet, kind, raw):
    s = make_stream(lease=1)
    s.add({"name": "long", "first": 60, "seconds": 0})
    with make_fleet(handler=kind, worker={"drain": 50}, lease=1) as f:
        first = f.start()
        until(lambda: f.events.all("start"))
        first.terminate()
        time.sleep(0.2)
        assert first.poll() is None  # it drains
        begin = time.monotonic()
        first.terminate()
        first.wait(10)
        assert time.monotonic() - begin < 2 * PATIENCE
        assert len(pending(raw, s)) == 1
        f.start()
        until(lambda: is_idle(s))
        assert f.terminate() == [0]
    assert f.events.starts() == {"long": 2}
    assert effects(raw, s) == {"long": 1}


@ONE_BACKEND
def test_sigterm_at_rest_ends_within_a_second(make_stream, make_fleet):
    with make_fleet(worker={"block": 0.5}) as f:
        f.start()
        s = make_stream()
        until(lambda: s.inspect().groups)
        begin = time.monotonic()
        assert f.terminate() == [0]
        assert time.monotonic() - begin < 1.5 * PATIENCE


# --- taking over --------------------------------------------------------------------------


def test_on_a_quiet_stream_the_jobs_of_a_dead_worker_are_taken_over(make_stream, handler, raw):
    s = make_stream(lease=0.5)
    s.add_many({"n": n} for n in range(5))
    assert len(s.read("dead", count=5)) == 5
    runs = []

    def body(payload, job):
        runs.append((payload["n"], job.deliveries))
        job.effects.hincrby("effects", str(payload["n"]))

    begin = time.monotonic()
    with working(quick(s, handler(body))):
        until(lambda: is_idle(s))
    assert time.monotonic() - begin < 3 * PATIENCE  # lease, one tick, and some
    assert sorted(runs) == [(n, 2) for n in range(5)]
    assert effects(raw, s) == {str(n): 1 for n in range(5)}


@pytest.mark.parametrize("backend", ["redis-7.0", "valkey-9"], indirect=True)
def test_a_backlog_does_not_starve_what_a_dead_worker_left(make_stream, raw):
    """Slots are never free but for a millisecond: a tick that finds none keeps the next one for a reclaim."""
    s = make_stream(lease=0.5)
    s.add_many({"name": f"stale{n}"} for n in range(2))
    s.read("dead", count=2)
    s.add_many({"name": f"new{n}"} for n in range(100))
    time.sleep(0.5)

    def slow(payload, job):
        time.sleep(0.2)
        job.effects.hincrby("effects", payload["name"])

    with working(quick(s, slow, concurrency=1, drain=0)):
        until(lambda: {"stale0", "stale1"} <= set(effects(raw, s)), timeout=6)
        assert not is_idle(s)


def test_more_than_a_page_of_a_dead_workers_jobs(make_stream, handler, raw):
    s = make_stream(lease=0.3)
    s.add_many({"n": n} for n in range(60))
    s.read("dead", count=60)

    def body(payload, job):
        job.effects.hincrby("effects", str(payload["n"]))

    with working(quick(s, handler(body)), quick(s, handler(body))):
        until(lambda: is_idle(s))
    assert effects(raw, s) == {str(n): 1 for n in range(60)}


def test_released_jobs_are_run_and_charged_once(make_stream, handler, raw):
    s = make_stream(lease=60)
    s.add_many({"n": n} for n in range(6))
    for job in s.read("stopped", count=6):
        s.release(job)
    counts = []

    def body(payload, job):
        counts.append(job.deliveries)
        job.effects.hincrby("effects", str(payload["n"]))

    with working(quick(s, handler(body))):
        until(lambda: is_idle(s))
    assert counts == [1] * 6
    assert effects(raw, s) == {str(n): 1 for n in range(6)}


@pytest.mark.covers("C05")
def test_released_jobs_survive_a_start_that_fails(make_stream, raw, proxy):
    """The connection breaks at the first start of a page: the others of the page are not forgotten."""
    from streamq._scripts import source

    s = make_stream(lease=0.5)
    s.add_many({"n": n} for n in range(6))
    for job in s.read("stopped", count=6):
        s.release(job)
    sha = source("start").sha.encode()
    trap = proxy.drop_before(lambda command: command[0] == b"EVALSHA" and command[1] == sha)
    behind = make_stream(redis=proxy.url, lease=0.5)
    counts = []

    def body(payload, job):
        counts.append(job.deliveries)
        job.effects.hincrby("effects", str(payload["n"]))

    with working(quick(behind, body)):
        trap.wait()
        until(lambda: is_idle(s), timeout=4)
    assert effects(raw, s) == {str(n): 1 for n in range(6)}
    assert set(counts) <= {1, 2}
    assert s.inspect().dead == 0


# --- handlers that hang, roles that fail --------------------------------------------------


@pytest.mark.covers("C49")
def test_a_coroutine_that_hangs_fails_its_attempts_and_frees_its_slot(make_stream, raw):
    s = make_stream(lease=0.6, retries=1)
    begun = []

    async def hang(payload, job):
        if payload["name"] == "hangs":
            begun.append((job.attempt, time.monotonic()))
            await asyncio.Event().wait()
        job.effects.hincrby("effects", payload["name"])

    s.add({"name": "hangs"})
    with working(quick(s, hang, concurrency=1, timeout=1)):
        until(lambda: begun)
        s.add({"name": "other"})
        until(lambda: effects(raw, s) == {"other": 1})  # in the only slot
        until(lambda: s.inspect().dead and is_idle(s))
        assert time.monotonic() - begun[0][1] < 5
    assert [attempt for attempt, _ in begun] == [1, 2]
    assert begun[1][1] - begun[0][1] >= 1
    [letter] = s.dead_letters.list()
    assert (letter.reason, letter.attempts) == ("attempts", 2)
    assert "longer than 1 s" in letter.error


@pytest.mark.covers("C49")
def test_a_thread_that_hangs_fails_its_attempts_and_its_slots_are_told_lost(make_stream, raw):
    s = make_stream(lease=0.6, retries=1)
    begun, told, go = [], [], threading.Event()

    def hang(payload, job):
        if payload["name"] == "hangs":
            begun.append(job.attempt)
            go.wait(30)
            told.append(job.timed_out)
        job.effects.hincrby("effects", payload["name"])

    s.add({"name": "hangs"})
    worker = quick(s, hang, concurrency=2, timeout=0.5)
    with working(worker):
        until(lambda: s.inspect().dead and is_idle(s))  # nothing renews it
        assert begun == [1, 2]
        until(lambda: not worker.health().healthy)
        assert "cannot be stopped" in worker.health().problems[0]
        s.add({"name": "other"})
        time.sleep(0.5)
        assert effects(raw, s) == {}
        go.set()
        until(lambda: effects(raw, s) == {"other": 1})
        assert worker.health().healthy
    assert told == [True, True]
    [letter] = s.dead_letters.list()
    assert (letter.reason, letter.attempts) == ("attempts", 2)


class FlawError(Exception):
    """Of ours: no StreamqError."""


@pytest.mark.covers("C25")
@pytest.mark.parametrize("role", ["read", "maintain"])
@ONE_BACKEND
def test_a_role_that_fails_by_a_mistake_begins_again(make_stream, raw, monkeypatch, caplog, role):
    s = make_stream(lease=0.5)
    work, calls = getattr(Fetcher, role), []

    async def flawed(self):
        calls.append(self)
        if len(calls) == 1:
            raise FlawError
        await work(self)

    def body(payload, job):
        job.effects.hincrby("effects", payload["name"])

    monkeypatch.setattr(Fetcher, role, flawed)
    s.add({"name": "later"})
    with working(quick(s, body)):
        until(lambda: effects(raw, s) == {"later": 1})
        until(lambda: len(calls) == 2)
    assert caplog.text.count("failed (1 in a row)") == 1


@pytest.mark.covers("C05")
@pytest.mark.parametrize("batch", [None, 3])
@ONE_BACKEND
def test_jobs_outlast_a_worker_that_cannot_start_threads(make_stream, raw, monkeypatch, caplog, batch):
    """Their handlers are not called for longer than it takes to spend all deliveries; that costs no job anything."""
    s = make_stream(lease=0.4, max_deliveries=2, retries=1)
    s.add_many({"name": str(n)} for n in range(20))
    runs = Counter()

    def done(payload, job):
        runs[payload["name"], job.attempt, job.deliveries] += 1
        job.effects.hincrby("effects", payload["name"])

    def done_all(jobs):
        for job in jobs:
            done(job.payload, job)

    def refuse(**arguments):
        if arguments.get("name", "").startswith("streamq-handler"):
            raise RuntimeError("can't start new thread")
        return thread(**arguments)

    thread = threading.Thread
    monkeypatch.setattr(threading, "Thread", refuse)
    with working(quick(s, done_all if batch else done, concurrency=2, batch=batch)):
        time.sleep(2)
        assert not runs
        assert 0 < caplog.text.count("job not begun") <= 4 * 2  # it does not go through all jobs to find out
        monkeypatch.undo()
        until(lambda: is_idle(s))
    assert runs == {(str(n), 1, 1): 1 for n in range(20)}
    assert effects(raw, s) == {str(n): 1 for n in range(20)}
    assert s.inspect().dead == 0


def test_fleet_helpers_count_overlaps(tmp_path):
    events = fleet.Events(tmp_path / "events")
    for what in ["start", "start", "end", "start", "end", "end", "start", "end"]:
        events.tell(what, "A")
    assert events.overlaps("A") == 2
    assert events.starts() == {"A": 4}
