"""What workers cost: one with nothing to do, and many together; and that none takes more than it can hold and settle."""

from __future__ import annotations

import gc
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import redis
from waiting import until
from worker import fleet
from worker.fleet import effects, is_idle, options_of, quick, working

from streamq import Stream, Worker
from streamq._drivers.asynchronous import AsyncConnections
from streamq._drivers.blocking import Connections
from streamq.worker import maintenance, starter

TWO_BACKENDS = pytest.mark.parametrize("backend", ["redis-7.0", "valkey-9"], indirect=True)
WINDOW = pytest.mark.parametrize("seconds", [12, pytest.param(60, marks=pytest.mark.full)])

FIRST_S = 5.0
"""In which a worker opens its stream, and each role takes its first turn."""


@pytest.fixture
def requests(monkeypatch):
    """Counts what drivers send, by kind: writes to a socket, each of one request or more."""
    counted = Counter()

    async def exchange(self, commands, *, original=AsyncConnections.exchange, **more):
        counted["async"] += 1
        return await original(self, commands, **more)

    def exchange_blocking(self, commands, original=Connections.exchange, **more):
        counted["blocking"] += 1
        return original(self, commands, **more)

    monkeypatch.setattr(AsyncConnections, "exchange", exchange)
    monkeypatch.setattr(Connections, "exchange", exchange_blocking)
    return counted


def cpu_s(pid):
    """Seconds of CPU that a process has used, in all its threads."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


@pytest.mark.covers("C90", "Q7")
@TWO_BACKENDS
@WINDOW
def test_an_idle_worker_sends_a_request_a_second_at_most(new_server, requests, tmp_path, seconds):
    """With default options, and jobs far ahead: each is the one that sleeps until they are due.

    One in this process is counted by its driver, one in a process of its own by the server.
    """
    ours, theirs = new_server(), new_server()
    with (
        Stream("jobs", redis=ours.url) as s,
        Stream("jobs", redis=theirs.url) as other,
        redis.Redis.from_url(theirs.url, single_connection_client=True) as raw,
        fleet.Fleet(theirs.url, "jobs", tmp_path, worker={"block": 4.0}, lease=15) as f,
        working(Worker(s, print)),
    ):
        for each in (s, other):
            each.add_many(({"name": str(n)} for n in range(100)), delay=3600)
        pid = f.start().pid
        until(lambda: f.events.all("up"))
        time.sleep(FIRST_S)
        requests.clear()
        reads, cpu = raw.info("stats")["total_reads_processed"], cpu_s(pid)
        time.sleep(seconds)
        sent = requests.total()
        reads = raw.info("stats")["total_reads_processed"] - reads - 1  # the one that asks
        cpu = cpu_s(pid) - cpu
        assert 0 < sent <= seconds
        assert 0 < reads <= seconds
        assert cpu <= 0.3 * max(seconds / 60, 0.4)  # in a short window a single pass of upkeep shows


# --- many workers -------------------------------------------------------------------------


@pytest.mark.covers("C90")
@TWO_BACKENDS
@pytest.mark.parametrize(
    ("pending", "lease", "seconds"),
    [(3_000, 20, 6), pytest.param(50_000, 60, 30, marks=[pytest.mark.full, pytest.mark.timeout(300)])],
)
def test_looking_for_the_dead_costs_the_same_however_many_look(new_server, monkeypatch, pending, lease, seconds):
    """What is pending is alive. One worker and ten go through it equally often, in steps that hold up nobody."""
    pages = []

    def page(*args, original=maintenance.reclaim, **kwargs):
        pages.append(args)
        return original(*args, **kwargs)

    monkeypatch.setattr(maintenance, "reclaim", page)
    server = new_server(args=("--slowlog-log-slower-than", "50000"))
    with (
        Stream("jobs", redis=server.url, options=options_of({"lease": lease})) as s,
        redis.Redis.from_url(server.url, single_connection_client=True) as raw,
    ):
        s.add_many({"n": n} for n in range(pending))
        held = []
        while len(held) < pending:
            held += s.read("alive", count=1000)
        workers = [quick(s, print, block=4) for _ in range(11)]

        def looks():
            """Pages of pending entries that workers went through, a second."""
            for start in range(0, pending, 1000):
                s.extend(held[start : start + 1000])
            time.sleep(1)
            raw.slowlog_reset()
            pages.clear()
            time.sleep(seconds)
            assert raw.slowlog_get() == []
            return len(pages) / seconds

        with working(workers[0]):
            until(lambda: workers[0].health().state == "running")
            alone = looks()
        with working(*workers[1:]):
            until(lambda: all(worker.health().state == "running" for worker in workers[1:]))
            together = looks()
        assert alone > 0
        assert together <= 2 * alone
        assert s.inspect().groups["workers"].pending == pending


# --- back-pressure ------------------------------------------------------------------------


@TWO_BACKENDS
@pytest.mark.parametrize("prefetch", [0, 20])
def test_reading_waits_while_settling_lags(new_server, prefetch):
    """Handlers go on ending, but the server takes no outcome: no more is read than a few times what may run."""
    server = new_server()
    with redis.Redis.from_url(server.url, single_connection_client=True) as raw:
        raw.execute_command("ACL", "SETUSER", "worker", "on", ">pw", "~*", "&*", "+@all")
        url = server.url.replace("://", "://worker:pw@")
        starts = Counter()

        async def handle(payload, job):
            starts[payload["name"]] += 1
            job.effects.hincrby("effects", payload["name"])

        with Stream("jobs", redis=url) as s, working(worker := quick(s, handle, concurrency=5, prefetch=prefetch)):
            until(lambda: worker.health().state == "running")
            raw.execute_command("ACL", "SETUSER", "worker", "-xack")
            s.add_many({"name": str(n)} for n in range(500))
            until(lambda: len(starts) >= 5)
            time.sleep(1.5)
            held = raw.xpending(s._spec.keys.stream, "workers")["pending"]
            assert held <= 3 * 5 + 2 * prefetch
            assert held >= 5
            raw.execute_command("ACL", "SETUSER", "worker", "+xack")
            until(lambda: is_idle(s))
            assert effects(raw, s) == dict.fromkeys(map(str, range(500)), 1)
    assert set(starts.values()) == {1}


@pytest.mark.covers("C77")
@TWO_BACKENDS
@pytest.mark.parametrize("jobs", [16, pytest.param(40, marks=[pytest.mark.full, pytest.mark.timeout(300)])])
def test_large_jobs_are_read_as_they_can_start(new_server, tmp_path, jobs):
    """10 MB each: what waits on the server is no memory of the worker's."""
    server = new_server()
    options = {"max_payload": 16 << 20, "lease": 15}
    with (
        Stream("jobs", redis=server.url, options=options_of(options)) as s,
        redis.Redis.from_url(server.url, single_connection_client=True) as raw,
        fleet.Fleet(server.url, "jobs", tmp_path, worker={"concurrency": 2}, **options) as f,
    ):
        for n in range(jobs):
            s.add({"name": str(n), "pad": "x" * (10 << 20)})
        process = f.start()
        until(lambda: is_idle(s), timeout=100)
        peak_kb = int(Path(f"/proc/{process.pid}/status").read_text().partition("VmHWM:")[2].split()[0])
        assert effects(raw, s) == {str(n): 1 for n in range(jobs)}
        assert set(f.events.starts().values()) == {1}
        assert peak_kb < 256 << 10
        assert f.terminate() == [0]


@TWO_BACKENDS
@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_batch_of_jobs_takes_two_requests(make_stream, raw, requests, kind):
    """One reads, one settles: with 64 at once no more than 0.05 a job, as driver and server count them."""
    s, jobs = make_stream(), 6_400
    done = Counter()

    def plain(payload):
        done[payload["n"]] += 1

    async def waiting(payload):
        done[payload["n"]] += 1

    s.add_many({"n": n} for n in range(jobs))
    before = raw.info("stats")["total_reads_processed"]
    requests.clear()
    with working(quick(s, plain if kind == "def" else waiting, concurrency=64)):
        until(lambda: len(done) == jobs)
        sent, received = requests.total(), raw.info("stats")["total_reads_processed"] - before
    assert sent <= 0.05 * jobs
    assert received <= 0.05 * jobs
    assert set(done.values()) == {1}


@TWO_BACKENDS
@pytest.mark.parametrize("kind", ["def", "async def"])
def test_what_is_made_for_a_job(make_stream, raw, monkeypatch, kind):
    """A task for each call of an async def, none for a def."""
    s, jobs = make_stream(), 2_000
    tasks, done = [], Counter()
    begin = starter._begin_task
    monkeypatch.setattr(starter, "_begin_task", lambda *args: tasks.append(1) or begin(*args))

    def plain(payload):
        done[payload["n"]] += 1

    async def waiting(payload):
        done[payload["n"]] += 1

    s.add_many({"n": n} for n in range(jobs))
    with working(quick(s, plain if kind == "def" else waiting, concurrency=200)):
        until(lambda: len(done) == jobs)
    assert len(tasks) == (0 if kind == "def" else jobs)


@TWO_BACKENDS
def test_commands_of_jobs_with_ids(make_stream, raw):
    """Inside the scripts: what a batch costs the server besides reading and writing its entries does not grow with it."""
    s, jobs = make_stream(), 100
    s.add_many(({"n": n} for n in range(jobs)), job_id=lambda payload: f"first-{payload['n']}")  # loads the scripts
    s.ack(s.read("w", count=jobs))
    raw.config_resetstat()
    s.add({"n": 0}, job_id="one")
    assert called(raw) <= 12
    s.ack(s.read("w"))
    raw.config_resetstat()
    s.add_many(({"n": n} for n in range(jobs)), job_id=lambda payload: f"second-{payload['n']}")
    assert called(raw) <= jobs + 15
    raw.config_resetstat()
    assert s.ack(s.read("w", count=jobs)) == jobs
    assert called(raw) <= 35


def called(raw):
    """Commands since the statistics began anew, those inside scripts included."""
    return sum(
        row["calls"] for name, row in raw.info("commandstats").items() if "config" not in name and "info" not in name
    )


@TWO_BACKENDS
def test_what_a_job_in_hand_allocates(make_stream):
    """Blocks of memory, and objects that the garbage collector looks at."""
    s, jobs = make_stream(), 500
    s.add_many({"n": n, "text": "x"} for n in range(2 * jobs))
    s.read("w", count=jobs)  # warms up
    gc.collect()
    blocks, tracked = sys.getallocatedblocks(), len(gc.get_objects())
    found = s.read("w", count=jobs)
    gc.collect()
    blocks, tracked = sys.getallocatedblocks() - blocks, len(gc.get_objects()) - tracked
    assert len(found) == jobs
    assert blocks <= 8 * jobs
    assert tracked <= 1.2 * jobs
