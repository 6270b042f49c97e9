"""Replies that get lost, scripts that the server forgot, and connections in the wrong process or loop."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import subprocess
import sys
import threading
import traceback
from contextlib import closing

import children
import look
import pytest
import redis
import servers
from colours import open_stream
from look import Row, State
from waiting import until

from streamq import AsyncStream, Backoff, ConnectionLostError, Effects, LeaseLostError, Stream, connection
from streamq._scripts import source
from streamq.keys import registry


def script(name):
    """Whether a command runs that script."""
    known = source(name)
    return lambda command: (
        command[0] in {b"EVAL", b"EVALSHA"}
        and command[1]
        in {
            known.sha.encode(),
            known.text.encode(),
        }
    )


@pytest.fixture(autouse=True)
def _scripts_are_known(raw):
    """So that the first matching command runs, and is not the one that the server answers with NOSCRIPT."""
    for name in ("add", "ack", "commit", "retry", "reclaim", "dead_letter", "claim_id", "once", "release"):
        raw.script_load(source(name).text)


# --- lost replies ----------------------------------------------------------------------------


@pytest.mark.covers("C02")
def test_the_reply_of_a_dead_letter_is_lost(make_stream, raw, proxy):
    s = make_stream(redis=proxy.url)
    entry_id = s.add({}, job_id="a").entry_id
    s.read("w")
    look.age(raw, s, count=5)
    before = proxy.count(servers.named("EXEC"))
    trap = proxy.cut_after(servers.named("EXEC"))
    with pytest.raises(ConnectionLostError) as caught:
        s.reclaim("w")
    assert caught.value.maybe_executed is True
    trap.wait()
    assert proxy.count(servers.named("EXEC")) == before + 1  # not sent again
    expected = State(dead=[(entry_id, "deliveries")], counters={"dead:workers": 1})
    assert look.state(raw, s) == expected
    assert s.reclaim("w", min_idle=0) == ([], [], [])
    assert look.state(raw, s) == expected


@pytest.mark.covers("C02")
def test_a_dead_letter_never_arrives(make_stream, raw, proxy):
    s = make_stream(redis=proxy.url)
    entry_id = s.add({}).entry_id
    s.read("w")
    look.age(raw, s, count=5)
    proxy.drop_before(servers.named("EXEC"))
    with pytest.raises(ConnectionLostError) as caught:
        s.reclaim("w2")
    assert caught.value.maybe_executed is True
    until(lambda: look.pending(raw, s) == {entry_id: Row("w2", 5)})
    assert s.reclaim("w3", min_idle=0).dead == [entry_id]
    assert look.state(raw, s) == State(dead=[(entry_id, "deliveries")], counters={"dead:workers": 1})


@pytest.mark.covers("C02")
@pytest.mark.parametrize("job_id", [None, "a"])
@pytest.mark.parametrize("case", [(True, 0), (True, 60), (False, 0), (False, 60)])
def test_the_reply_of_a_retry_is_lost(make_stream, raw, proxy, job_id, case):
    arrives, delay = case
    s = make_stream(redis=proxy.url)
    first = s.add({}, job_id=job_id)
    [job] = s.read("w")
    (proxy.cut_after if arrives else proxy.drop_before)(script("retry"))
    with pytest.raises(ConnectionLostError) as caught:
        s.retry(job, "no", delay=delay)
    assert caught.value.maybe_executed is True
    if arrives:
        with pytest.raises(LeaseLostError) as lost:
            s.retry(job, "no", delay=delay)
        assert lost.value.gone is True
    else:
        assert s.retry(job, "no", delay=delay) is True
    now = look.state(raw, s)
    assert now.scheduled == ([f"workers/{first.job_id}"] if delay else [])
    if delay:
        s.scheduled.run_now(first.job_id)
    assert raw.xlen(s._spec.keys.stream) == 1
    assert (now.pending, now.dead, now.counters) == ({}, [], {"retried:workers": 1})
    [job] = s.read("w")
    assert (job.attempt, job.id) == (2, first.job_id)


@pytest.mark.covers("C02")
@pytest.mark.parametrize("arrives", [True, False])
def test_the_reply_of_an_acknowledgement_is_lost(make_stream, raw, proxy, arrives):
    s = make_stream(redis=proxy.url)
    s.add({})
    [job] = s.read("w")
    (proxy.cut_after if arrives else proxy.drop_before)(script("ack"))
    with pytest.raises(ConnectionLostError):
        s.ack(job)
    assert s.ack(job) is not arrives
    assert look.state(raw, s) == State(counters={"done:workers": 1})


@pytest.mark.covers("C02")
def test_the_reply_of_a_commit_is_lost(make_stream, raw, proxy):
    s = make_stream(redis=proxy.url)
    s.add({})
    [job] = s.read("w")
    job.effects.incrby("n")
    proxy.cut_after(script("commit"))
    with pytest.raises(ConnectionLostError) as caught:
        s.commit(job)
    assert caught.value.maybe_executed is True
    with pytest.raises(LeaseLostError):
        s.commit(job)
    assert raw.get(s._spec.keys.data("n")) == b"1"
    assert look.state(raw, s) == State(counters={"done:workers": 1})


@pytest.mark.covers("C02")
def test_the_reply_of_an_add_is_lost(make_stream, raw, proxy):
    s = make_stream(redis=proxy.url)
    proxy.cut_after(script("add"))
    with pytest.raises(ConnectionLostError) as caught:
        s.add({}, job_id="a")
    assert caught.value.maybe_executed is True
    again = s.add({}, job_id="a")
    assert (again.created, again.state) == (False, "ready")
    proxy.cut_after(servers.named("XADD"))
    with pytest.raises(ConnectionLostError):
        s.add({})
    assert proxy.count(servers.named("XADD")) == 1
    assert raw.xlen(s._spec.keys.stream) == 2


@pytest.mark.covers("C02")
def test_the_reply_of_once_is_lost(make_stream, raw, proxy):
    s = make_stream(redis=proxy.url)
    effects = Effects().incrby("n")
    proxy.cut_after(script("once"))
    with pytest.raises(ConnectionLostError):
        s.once("a", effects)
    assert s.once("a", effects) is False
    assert raw.get(s._spec.keys.data("n")) == b"1"


@pytest.mark.covers("C02")
def test_add_many_is_cut_off(make_stream, raw, proxy):
    s = make_stream(redis=proxy.url)
    proxy.drop_before(servers.named("XADD"), nth=700)
    with pytest.raises(ConnectionLostError) as caught:
        s.add_many({"n": n} for n in range(1_000))
    assert caught.value.maybe_executed is True
    assert caught.value.added == 500
    assert raw.xlen(s._spec.keys.stream) == 699


@pytest.mark.covers("C02")
def test_the_reply_of_a_read_is_lost(make_stream, raw, proxy):
    s = make_stream(redis=proxy.url)
    ids = [s.add({"n": n}).entry_id for n in range(3)]
    proxy.cut_after(servers.named("XREADGROUP"))
    with pytest.raises(ConnectionLostError):
        s.read("w", count=2)
    assert look.pending(raw, s) == {i: Row("w", 1) for i in ids[:2]}
    assert [job.entry_id for job in s.read("w", count=2)] == ids[2:]
    assert [job.entry_id for job in s.reclaim("w", min_idle=0).claimed] == ids


@pytest.mark.slow
def test_a_server_that_is_silent_longer_than_a_wait(new_server, colour, monkeypatch):
    """What it says later must not pass for the answer to something else."""
    monkeypatch.setattr(connection, "READ_TIMEOUT_S", 0.5)
    server = new_server()
    with closing(open_stream(colour, "x", redis=server.url)) as s:
        s.add({"n": 1})
        s.ack(s.read("w", block=0.01))
        s.read("w", block=0.01)
        with redis.Redis.from_url(server.url) as raw:
            raw.execute_command("CLIENT", "PAUSE", 2_000, "ALL")
        with pytest.raises(ConnectionLostError):
            s.read("w", block=0.2)
        with redis.Redis.from_url(server.url) as raw:
            raw.ping()  # it answers again
        assert s.add({"n": 2}, job_id="k").created is True
        assert [job.payload for job in s.read("w")] == [{"n": 2}]


def test_a_connection_that_the_server_closed_meanwhile(make_stream, raw, colour):
    s = make_stream()
    others = {client["id"] for client in raw.client_list()}
    s.add({"n": 0})
    [own] = {client["id"] for client in raw.client_list()} - others
    raw.client_kill_filter(_id=own)
    if colour == "async":
        s.idle(0.1)  # as any program's loop would run meanwhile
    added = s.add({"n": 1})  # noticed before anything was sent
    assert added.created
    assert raw.xlen(s._spec.keys.stream) == 2


# --- forgotten scripts -----------------------------------------------------------------------


@pytest.mark.covers("C59")
def test_scripts_are_flushed_before_every_call(make_stream, raw):
    s = make_stream(max_deliveries=2, retry=Backoff.constant(0, limit=1))

    def flushed(call):
        raw.script_flush()
        return call()

    assert flushed(lambda: s.add({"n": 0}, job_id="j0")).created
    assert flushed(lambda: s.add_many([{"n": n} for n in range(1, 30)], job_id=lambda p: f"j{p['n']}")) == 29
    jobs = flushed(lambda: s.read("w", count=30))
    assert len(jobs) == 30
    assert flushed(lambda: s.ack(jobs[:3])) == 3
    jobs[3].effects.incrby("n")
    flushed(lambda: s.commit(jobs[3]))
    assert flushed(lambda: s.retry(jobs[4], "no")) is True
    flushed(lambda: s.reject(jobs[5], "no"))
    flushed(lambda: s.release(jobs[6]))
    assert flushed(lambda: s.once("x", Effects().incrby("n"))) is True
    look.age(raw, s)
    claimed = flushed(lambda: s.reclaim("w")).claimed
    assert [job.attempt for job in claimed] == [1] * 24
    look.age(raw, s, count=2)
    assert len(flushed(lambda: s.reclaim("w")).dead) == 24
    assert flushed(s.inspect).groups["workers"].dead == 25
    assert raw.get(s._spec.keys.data("n")) == b"2"


@pytest.mark.covers("C59")
@pytest.mark.slow
def test_scripts_are_flushed_all_the_time(make_stream, raw, redis_url):
    s = make_stream(max_deliveries=1)
    over = threading.Event()

    def flush():
        with look.twin(raw) as client:
            while not over.is_set():
                client.script_flush()

    thread = threading.Thread(target=flush)
    thread.start()
    try:
        assert s.add_many(({"n": n} for n in range(2_000)), job_id=lambda p: f"j{p['n']}") == 2_000
        done = dead = 0
        while jobs := s.read("w", count=100):
            assert {job.attempt for job in jobs} == {1}
            done += s.ack(jobs[:50])
        while moved := s.reclaim("w", min_idle=0, count=50).dead:
            dead += len(moved)
    finally:
        over.set()
        thread.join()
    assert (done, dead) == (1_000, 1_000)
    now = look.state(raw, s)
    assert (now.stream, now.pending, len(now.dead)) == ([], {}, 1_000)


@pytest.mark.covers("C59")
def test_several_commits_in_one_write_after_a_flush(make_stream, raw):
    from streamq._ops import settle

    s = make_stream()
    s.add_many({"n": n} for n in range(20))
    jobs = s.read("w", count=20)
    for job in jobs:
        job.effects.incrby("n")
    raw.script_flush()
    outcomes = s.run(settle.commit_each(s._spec, [(job, b"") for job in jobs]))
    assert outcomes == [None] * 20
    assert raw.get(s._spec.keys.data("n")) == b"20"


# --- processes and loops ---------------------------------------------------------------------


def add_after_fork(stream, pipe):
    """In the child: add a hundred jobs with the parent's object."""
    try:
        if isinstance(stream, Stream):
            for n in range(100):
                stream.add({"n": n})
        else:

            async def add():
                for n in range(100):
                    await stream.add({"n": n})
                await stream.aclose()

            asyncio.run(add())
        pipe.send("done")
    except BaseException:  # noqa: BLE001  # the parent shows it
        pipe.send(traceback.format_exc())
    finally:
        pipe.close()
        os._exit(0)


@pytest.mark.covers("C79")
def test_a_stream_made_before_a_fork(make_stream, raw, colour):
    s = make_stream()
    s.add({})
    inner = s if colour == "sync" else s.target
    context = multiprocessing.get_context("fork")
    started = []
    for _ in range(4):
        ours, theirs = context.Pipe()
        process = context.Process(target=add_after_fork, args=(inner, theirs))
        process.start()
        theirs.close()
        started.append((process, ours))
    own = [s.add({"parent": n}).created for n in range(100)]  # at the same time, on the connection from before
    for process, pipe in started:
        assert pipe.recv() == "done"
        process.join()
        process.close()
        pipe.close()
    assert all(own)
    assert raw.xlen(s._spec.keys.stream) == 501


@pytest.mark.covers("C79")
@pytest.mark.slow
def test_a_spawned_process(make_stream, raw, colour, redis_url, ns):
    s = make_stream()
    s.add({})
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=children.add_hundred, args=(theirs, colour, redis_url, ns))
    process.start()
    theirs.close()
    assert ours.recv() == "done"
    process.join()
    process.close()
    ours.close()
    assert raw.xlen(s._spec.keys.stream) == 101


@pytest.mark.covers("C79")
def test_one_object_in_two_event_loops_one_after_the_other(redis_url, ns, raw):
    stream = AsyncStream(ns, redis=redis_url)

    async def add():
        await stream.add({})
        await stream.aclose()

    asyncio.run(add())
    asyncio.run(add())
    assert raw.xlen(stream._spec.keys.stream) == 2


@pytest.mark.covers("C79")
@pytest.mark.slow
def test_one_object_in_two_event_loops_unclosed(redis_url, ns, raw):
    code = """if True:
        import asyncio, sys
        import streamq

        async def add(stream):
            await stream.add({})

        async def close(stream):
            await stream.aclose()

        stream = streamq.AsyncStream(sys.argv[1], redis=sys.argv[2])
        asyncio.run(add(stream))
        try:
            asyncio.run(add(stream))
        except streamq.ConfigurationError as error:
            print(error)
        else:
            print("added")
        """
    ended = subprocess.run([sys.executable, "-c", code, ns, redis_url], capture_output=True, text=True, timeout=50)
    assert ended.returncode == 0, ended.stderr
    assert "event loop" in ended.stdout
    assert "aclose" in ended.stdout
    assert "Event loop is closed" not in ended.stdout + ended.stderr
    assert raw.xlen(f"streamq:{{{ns}}}:stream") == 1


@pytest.mark.covers("C79")
@pytest.mark.slow
def test_tasks_share_one_object(redis_url, ns, raw):
    async def work():
        async with AsyncStream(ns, redis=redis_url) as stream:
            await asyncio.gather(*(stream.add({"n": n}) for n in range(200)))
            read = await asyncio.gather(*(stream.read(f"w{n}", count=20) for n in range(10)))
            return sorted(job.payload["n"] for jobs in read for job in jobs)

    assert asyncio.run(work()) == list(range(200))
    raw.srem(registry(None), ns)


def test_a_read_ends_wherever_it_is_cancelled(redis_url, ns, raw):
    async def work():
        async with AsyncStream(ns, redis=redis_url) as stream:
            await stream.read("w")
            for turns in range(40):
                task = asyncio.create_task(stream.read("w", block=30))
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                done, _ = await asyncio.wait([task], timeout=10)
                assert done, f"the cancellation after {turns} turns of the loop was lost"
                assert task.cancelled()

    asyncio.run(work())
    raw.srem(registry(None), ns)


def test_a_cancelled_read_leaves_no_reply_behind(redis_url, ns, raw):
    async def work():
        async with AsyncStream(ns, redis=redis_url) as stream:
            for _ in range(20):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(stream.read("w", block=30), 0.02)
                added = await stream.add({})
                [job] = (await stream.reclaim("w", min_idle=0)).claimed or await stream.read("w")
                assert job.entry_id == added.entry_id
                assert await stream.ack(job)

    asyncio.run(work())
    raw.srem(registry(None), ns)
