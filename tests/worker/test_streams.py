"""One worker on several streams: the slots are shared, and none holds up another."""

from __future__ import annotations

import threading
import time
from collections import Counter

import pytest
from waiting import PATIENCE, until
from worker.fleet import effects, is_idle, options_of, quick, working

from streamq import ConfigurationError, Stream, Worker
from streamq.worker.last_chance import LastChance


@pytest.fixture
def make_streams(redis_url, ns, raw):
    """Open streams of this test by name; options as of `fleet.options_of`."""
    opened = []

    def make(*names, redis=redis_url, **options):
        made = [Stream(f"{ns}-{name}", redis=redis, options=options_of(options)) for name in names]
        opened.extend(made)
        return made

    yield make
    for stream in opened:
        stream.close()
        raw.srem("streamq:streams", stream._spec.keys.name)


class Runs:
    """What ran, in which order, and how many at once."""

    def __init__(self):
        self.order = []
        self.most = 0
        self._running = 0
        self._lock = threading.Lock()

    def handler(self, label, seconds=0.0):
        def handle(payload, job):
            with self._lock:
                self.order.append(label)
                self._running += 1
                self.most = max(self.most, self._running)
            time.sleep(seconds)
            with self._lock:
                self._running -= 1
            job.effects.hincrby("effects", payload["name"])

        return handle


def add(stream, count, prefix="j"):
    stream.add_many({"name": f"{prefix}{n}"} for n in range(count))


@pytest.mark.covers("C85")
@pytest.mark.parametrize("seconds", [0.005, 0.4], ids=["short", "long"])
def test_a_few_jobs_beside_a_long_backlog(make_streams, raw, seconds):
    """The backlog takes every slot as soon as it is free, and yet new jobs and those of a dead worker get their turn."""
    a, b = make_streams("a", "b", lease=1)
    add(a, 2_000 if seconds < 0.1 else 200)
    add(b, 2, "stale")
    assert len(b.read("dead", count=2)) == 2
    add(b, 5, "new")
    time.sleep(1)  # for the lease of the dead one
    runs = Runs()
    worker = quick(a, runs.handler("a", seconds), concurrency=2, drain=1)
    worker.add_stream(b, runs.handler("b", seconds))
    with working(worker):
        until(lambda: len(effects(raw, b)) == 7, timeout=10)
        assert not is_idle(a)
    assert effects(raw, b) == dict.fromkeys([*(f"stale{n}" for n in range(2)), *(f"new{n}" for n in range(5))], 1)
    assert runs.most <= 2


@pytest.mark.covers("C85")
def test_starts_follow_the_weights_while_both_have_jobs(make_streams):
    a, b = make_streams("a", "b")
    add(a, 600)
    add(b, 600)
    runs = Runs()
    worker = quick(a, runs.handler("a", 0.002), concurrency=8, weight=3)
    worker.add_stream(b, runs.handler("b", 0.002), weight=1)
    with working(worker):
        until(lambda: is_idle(a) and is_idle(b))
    assert runs.most <= 8
    first = Counter(runs.order[40:640])  # what both had jobs for
    assert 2.4 <= first["a"] / first["b"] <= 3.8
    assert Counter(runs.order) == {"a": 600, "b": 600}


@pytest.mark.covers("C85")
def test_what_a_stream_does_not_need_the_other_gets(make_streams, raw):
    """The idle one has just had jobs, and its next read waits: nobody waits with it."""
    a, b = make_streams("a", "b")
    runs = Runs()
    worker = Worker(a, runs.handler("a", 0.01), concurrency=2, weight=1, block=4)
    worker.add_stream(b, runs.handler("b", 0.01), weight=100)
    with working(worker):
        add(b, 20)
        until(lambda: is_idle(b))
        begin = time.monotonic()
        add(a, 100)
        until(lambda: is_idle(a))
        assert time.monotonic() - begin < 2.5 * PATIENCE  # 0.5 s of work
        begin = time.monotonic()
        for n in range(10):  # both, again and again
            add(a, 10)
            add(b, n)
            until(lambda: is_idle(a) and is_idle(b))
        assert time.monotonic() - begin < 5 * PATIENCE
    assert runs.most <= 2


@pytest.mark.covers("C85")
def test_a_paused_stream_with_a_backlog_does_not_hold_up_the_other(make_streams):
    a, b = make_streams("a", "b", lease=1)
    add(a, 3_000)
    add(b, 3_000)
    runs = Runs()
    worker = quick(a, runs.handler("a", 0.005), concurrency=4)
    worker.add_stream(b, runs.handler("b", 0.005))
    with working(worker):
        until(lambda: {"a", "b"} <= set(runs.order))
        b.pause()
        time.sleep(1)
        before = Counter(runs.order)
        until(lambda: runs.order.count("a") > before["a"] + 100, timeout=5)
        assert runs.order.count("b") == before["b"]
        b.resume()
        until(lambda: runs.order.count("b") > before["b"] + 20, timeout=5)
        assert not is_idle(a)


@pytest.mark.covers("C85")
@pytest.mark.parametrize("fault", ["refused", "frozen"])
@pytest.mark.parametrize("backend", ["redis-7.0"], indirect=True)
def test_a_stream_whose_server_is_down_does_not_stop_the_other(make_streams, new_server, proxy, raw, fault):
    [a] = make_streams("a", lease=1)
    if fault == "refused":
        server = new_server()
        url = server.url
    else:
        url = proxy.url
    [b] = make_streams("b", redis=url, lease=1)
    runs = Runs()
    worker = quick(a, runs.handler("a", 0.01), concurrency=4)
    worker.add_stream(b, runs.handler("b", 0.01))
    with working(worker):
        add(b, 10)
        until(lambda: is_idle(b))
        if fault == "refused":
            server.kill()
        else:
            proxy.freeze()
        for n in range(3):
            begin = time.monotonic()
            add(a, 50, f"{n}-")
            until(lambda: is_idle(a))
            assert time.monotonic() - begin < 2 * PATIENCE
            time.sleep(0.5)
        if fault == "refused":
            server.start()
        else:
            proxy.thaw()
        add(b, 10, "after")
        until(lambda: is_idle(b), timeout=12)
    assert Counter(runs.order) == {"a": 150, "b": 20}


@pytest.mark.covers("C85")
@pytest.mark.parametrize("fault", ["refused", "frozen"])
@pytest.mark.parametrize("backend", ["redis-7.0"], indirect=True)
def test_suspects_whose_server_is_down_do_not_stop_the_other_stream(make_streams, new_server, proxy, raw, fault):
    """They wait for others of their kind to end; their starts cannot be counted meanwhile."""
    [a] = make_streams("a", lease=2)
    server = new_server() if fault == "refused" else None
    [b] = make_streams("b", redis=server.url if server else proxy.url, lease=2)
    add(b, 6)
    for n in range(2):
        assert len(b.read("dead", count=6) or b.reclaim(f"dead{n}", count=6).claimed) == 6
        time.sleep(2.2)
    runs = Runs()
    worker = quick(a, runs.handler("a"), concurrency=4, drain=1)
    worker.add_stream(b, runs.handler("b", 1))
    with working(worker):
        until(lambda: worker.health().waiting and worker.health().running)
        if server:
            server.kill()
        else:
            proxy.freeze()
        time.sleep(1.5)  # those that run end, and the next ones' turn has come
        add(a, 50)
        until(lambda: is_idle(a), timeout=9)  # a connection that is silent is given up after 5 s
        assert runs.order.count("a") == 50
        if server:
            server.start()
        else:
            proxy.thaw()
            until(lambda: is_idle(b))


@pytest.mark.covers("C85")
@pytest.mark.parametrize("backend", ["redis-7.0"], indirect=True)
def test_outcomes_whose_server_is_down_do_not_stop_the_others_last_chance(make_streams, new_server, raw):
    """A job that is to run alone waits until outcomes are settled, or were tried."""
    server = new_server()
    [a] = make_streams("a", lease=2, max_deliveries=2)
    [b] = make_streams("b", redis=server.url, lease=2)
    gates = [threading.Event() for _ in range(3)]
    runs = Runs()
    run_a = runs.handler("a")

    def run_b(payload):
        gates[int(payload["name"][1:])].wait(20)

    worker = quick(a, run_a, concurrency=4, drain=1)
    worker.add_stream(b, run_b)
    add(b, 3)
    add(a, 1, "last")
    assert a.read("dead")
    with working(worker):
        until(lambda: worker.health().running == 3)
        server.kill()
        for gate in gates:  # the first is refused; the others come while it waits
            gate.set()
            time.sleep(0.4)
        until(lambda: is_idle(a), timeout=8)
        assert runs.order == ["a"]


@pytest.mark.parametrize("backend", ["redis-7.0"], indirect=True)
def test_a_worker_starts_when_one_of_its_servers_is_down(make_streams, new_server, raw):
    """It works on what it can reach, and says that it cannot reach the rest."""
    server = new_server()
    [a] = make_streams("a", lease=1)
    [b] = make_streams("b", redis=server.url, lease=1)
    server.kill()
    runs = Runs()
    worker = quick(b, runs.handler("b"))
    worker.add_stream(a, runs.handler("a"))
    with working(worker):
        add(a, 3)
        until(lambda: is_idle(a) and len(effects(raw, a)) == 3, timeout=5)
        server.start()
        add(b, 3)
        until(lambda: is_idle(b) and runs.order.count("b") == 3, timeout=5)
        assert worker.health().state == "running"


def test_streams_with_options_of_their_own(make_streams, raw):
    """Batches here, a timeout there, errors and middlewares apart."""
    a, b, c = make_streams("a", "b", "c", lease=1, retries=0)
    sizes, around = [], []

    def batched(jobs):
        sizes.append(len(jobs))

    def fails(payload):
        raise ValueError("as told")

    def slow(payload, job):
        while not job.timed_out:
            time.sleep(0.01)

    def middleware(job, call):
        around.append(job.payload["name"])
        return call()

    add(a, 20)
    add(b, 2)
    add(c, 1)
    worker = quick(a, batched, batch=10, batch_wait=0.2, concurrency=3)
    worker.add_stream(b, fails, errors={ValueError: "reject"}, middlewares=[middleware])
    worker.add_stream(c, slow, timeout=0.2)
    with working(worker):
        until(lambda: all(map(is_idle, (a, b, c))))
    assert sum(sizes) == 20
    assert max(sizes) == 10
    assert sorted(around) == ["j0", "j1"]
    assert [letter.reason for letter in b.dead_letters.list()] == ["rejected", "rejected"]
    assert [letter.reason for letter in c.dead_letters.list()] == ["attempts"]


def test_what_is_refused(make_streams):
    a, b = make_streams("a", "b")
    worker = quick(a, print)
    with pytest.raises(ConfigurationError, match="is in this worker already"):
        worker.add_stream(a, print)
    for weight in [0, -1, float("inf"), True]:
        with pytest.raises(ConfigurationError, match="weight must be above 0"):
            worker.add_stream(b, print, weight=weight)
    with working(worker):
        until(lambda: worker.health().state == "running")
        with pytest.raises(ConfigurationError, match="takes no further stream once it runs"):
            worker.add_stream(b, print)


def test_a_last_chance_that_waits_at_the_stop_is_given_back_to_its_own_stream(make_streams, raw, monkeypatch):
    """Whichever stream of the worker leaves first, and though the role that looks after it was cut off."""

    async def cut_off(self):
        await self._runner.stopping.wait()

    monkeypatch.setattr(LastChance, "run", cut_off)
    first, second = make_streams("a", "b", lease=3, max_deliveries=2)
    begun, go = threading.Event(), threading.Event()

    def slow(payload):
        begun.set()
        go.wait(20)

    entry_id = second.add({}).entry_id
    second.read("dead")
    second.add({})
    worker = quick(first, print)
    worker.add_stream(second, slow)
    with working(worker):
        assert begun.wait(10)
        until(lambda: worker.health().waiting == 1)  # its lease has run out, and it waits for the slow one to end
        worker.stop()
        time.sleep(0.3)
        go.set()
    [row] = raw.xpending_range(second._spec.keys.stream, "workers", "-", "+", 10)
    assert (row["message_id"].decode(), row["times_delivered"]) == (entry_id, 1)
    assert row["time_since_delivered"] >= 3_000  # due at once, for whoever comes
