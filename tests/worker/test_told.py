"""What a worker tells while it works: its hooks, its health, and what a web framework sees of it."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from waiting import until
from worker.fleet import effects, free_port, is_idle, options_of, quick, told_by_http, working

from streamq import AsyncStream, ConfigurationError, Hooks, Reject, Release, Stream, Worker
from streamq._scripts import source

TWO_BACKENDS = pytest.mark.parametrize("backend", ["redis-6.2", "valkey-9"], indirect=True)
ONE_BACKEND = pytest.mark.parametrize("backend", ["redis-7.0"], indirect=True)


class Told(Hooks):
    """Keeps what it is told, in order, and what the server said at that moment if it is given a stream."""

    def __init__(self, stream=None):
        self.events = []
        self.threads = set()
        self._stream = stream

    def _keep(self, what, name, *more):
        self.threads.add(threading.current_thread().name)
        done = None
        if self._stream is not None:
            now = self._stream.inspect()
            done = (now.groups["workers"].done, now.dead)
        self.events.append((what, name, *more) if done is None else (what, name, *more, done))

    def of(self, name):
        return [(what, *more) for what, *rest in self.events if rest[:1] == [name] for more in [rest[1:]]]

    def started(self, job):
        self._keep("started", job.payload["name"], job.attempt)

    def succeeded(self, job):
        self._keep("succeeded", job.payload["name"])

    def retried(self, job, error):
        self._keep("retried", job.payload["name"], error)

    def dead_lettered(self, dead):
        name = dead.entry_id if dead.job is None else dead.job.payload["name"]
        self._keep("dead_lettered", name, dead.reason, dead.error)

    def released(self, job):
        self._keep("released", job.payload["name"])

    def lease_lost(self, job):
        self._keep("lease_lost", job.payload["name"])

    def unhealthy(self, problem):
        self.events.append(("unhealthy", problem))

    def healthy(self):
        self.events.append(("healthy",))


class Raising(Hooks):
    """Fails whenever it is told something."""

    def _fail(self, *_):
        raise SystemExit("a hook must change nothing")

    started = ended = succeeded = retried = dead_lettered = released = lease_lost = unhealthy = healthy = _fail


# --- hooks --------------------------------------------------------------------------------


@pytest.mark.covers("C25")
def test_hooks_are_told_what_has_happened(make_stream, handler, raw):
    s = make_stream(lease=1, retries=1)
    told = Told()
    runs = []

    def body(payload, job):
        name = payload["name"]
        runs.append(name)
        if name == "fails" or (name == "fails once" and job.attempt == 1):
            raise ValueError(f"{name} as told")
        if name == "rejected":
            raise Reject("no such customer")
        if name == "released" and runs.count(name) == 1:
            raise Release("not now")

    for name in ["good", "fails", "fails once", "rejected", "released"]:
        s.add({"name": name})
    undecodable = raw.xadd(s._spec.keys.stream, {"job": b"\xff\xfe"}).decode()
    with working(quick(s, handler(body), hooks=[Raising(), told])):
        until(lambda: is_idle(s) and len(runs) == 8)
    assert told.of("good") == [("started", 1), ("succeeded",)]
    # A retry may start before its hook is called: it is read as soon as it is there.
    error = "ValueError: fails as told"
    assert told.of("fails")[-1] == ("dead_lettered", "attempts", error)
    assert sorted(told.of("fails")[:-1], key=str) == [("retried", error), ("started", 1), ("started", 2)]
    error = "ValueError: fails once as told"
    assert sorted(told.of("fails once"), key=str) == [
        ("retried", error),
        ("started", 1),
        ("started", 2),
        ("succeeded",),
    ]
    assert told.of("rejected") == [("started", 1), ("dead_lettered", "rejected", "no such customer")]
    assert told.of("released") == [("started", 1), ("released",), ("started", 1), ("succeeded",)]
    assert told.of(undecodable) == [("dead_lettered", "undecodable", "")]
    assert len(told.threads) == 1  # of the event loop, and of nothing else
    assert len(told.events) == 17


@TWO_BACKENDS
def test_what_is_told_has_happened_on_the_server(make_stream):
    s = make_stream(retries=0)
    told = Told(s)

    def body(payload):
        if payload["name"] == "b":
            raise ValueError("as told")

    s.add({"name": "a"})
    with working(quick(s, body, concurrency=1, hooks=[told])):
        until(lambda: is_idle(s))
        s.add({"name": "b"})
        until(lambda: is_idle(s))
    assert told.of("a") == [("started", 1, (0, 0)), ("succeeded", (1, 0))]
    assert told.of("b")[-1] == ("dead_lettered", "attempts", "ValueError: as told", (1, 1))


def test_hooks_are_told_of_what_others_left(make_stream, raw):
    """Spent deliveries, and entries without a body."""
    s = make_stream(lease=0.3, max_deliveries=2)
    told = Told()
    spent, gone = (s.add({"name": name}).entry_id for name in ["spent", "gone"])
    s.read("dead", count=2)
    raw.xclaim(s._spec.keys.stream, "workers", "dead", 0, [spent], retrycount=2, justid=True)
    raw.xdel(s._spec.keys.stream, gone)
    with working(quick(s, print, hooks=[told])):
        until(lambda: s.inspect().dead == 2 and is_idle(s))
        until(lambda: len(told.events) == 2)
    assert sorted(told.events) == sorted(
        [("dead_lettered", spent, "deliveries", ""), ("dead_lettered", gone, "entry_missing", "")]
    )


def test_hooks_are_told_when_a_lease_is_lost(make_stream, kind, raw):
    s = make_stream(lease=0.6)
    told = Told()
    go, begun = threading.Event(), threading.Event()

    def slow(payload, job):
        begun.set()
        go.wait(10)

    async def slow_async(payload, job):
        begun.set()
        await asyncio.sleep(10)

    entry_id = s.add({"name": "J"}).entry_id
    with working(quick(s, slow if kind == "def" else slow_async, hooks=[told], drain=1)):
        assert begun.wait(5)
        raw.xclaim(s._spec.keys.stream, "workers", "thief", 0, [entry_id])
        if kind == "def":
            time.sleep(0.4)
            go.set()
        until(lambda: ("lease_lost",) in told.of("J"))
    assert told.of("J") == [("started", 1), ("lease_lost",)]


class Spans(Hooks):
    """Keeps when handlers started and ended, by job."""

    def __init__(self):
        self.events = []

    def started(self, job):
        self.events.append(("started", job.payload["name"]))

    def ended(self, job):
        self.events.append(("ended", job.payload["name"]))

    def running(self):
        return sum(1 if what == "started" else -1 for what, _ in self.events)


@TWO_BACKENDS
def test_ended_is_told_once_after_each_start_however_it_ends(make_stream, kind):
    s = make_stream(lease=5, retries=1)
    spans, go = Spans(), threading.Event()

    def end(name):
        if name == "fails":
            raise ValueError("as told")
        if name == "rejected":
            raise Reject("as told")

    def body(payload):
        if payload["name"] == "late":
            go.wait(10)
        end(payload["name"])

    async def body_async(payload):
        if payload["name"] == "late":
            await asyncio.sleep(10)
        end(payload["name"])

    for name in ["good", "fails", "rejected", "late"]:
        s.add({"name": name})
    with working(quick(s, body if kind == "def" else body_async, hooks=[spans], timeout=0.3)):
        until(lambda: s.inspect().dead == 3 and is_idle(s))
        assert spans.running() == 0  # though the threads of the late one are still at work
        go.set()
    starts = {"good": 1, "fails": 2, "rejected": 1, "late": 2}
    for name, count in starts.items():
        mine = [what for what, whose in spans.events if whose == name]
        assert mine == ["started", "ended"] * count


@ONE_BACKEND
def test_ended_is_told_for_each_job_of_a_batch_and_when_a_stop_cancels(make_stream):
    s = make_stream(lease=5)
    spans = Spans()

    async def forever(jobs):
        await asyncio.sleep(60)

    s.add_many({"name": str(n)} for n in range(3))
    with working(quick(s, forever, hooks=[spans], batch=3, batch_wait=1.0, drain=0.1)):
        until(lambda: spans.running() == 3)
    assert spans.running() == 0
    assert spans.events[3:] == [("ended", str(n)) for n in range(3)]


@pytest.mark.covers("R6")
@pytest.mark.parametrize("script", ["ack", "commit", "retry", "dead_letter"])
@ONE_BACKEND
def test_what_was_settled_is_told_though_its_reply_was_lost(make_stream, proxy, script):
    """Once, and as what it was: nobody else has the job."""
    s = make_stream(lease=2, retries=1)
    behind = make_stream(redis=proxy.url, lease=2, retries=1)
    told = Told()

    def body(payload, job):
        if script == "commit":
            job.effects.hincrby("effects", payload["name"])
        if script == "dead_letter" or (script == "retry" and job.attempt == 1):
            raise ValueError("as told")

    first = [("started", 1), ("succeeded",)]
    again = [("started", 1), ("retried", "ValueError: as told"), ("started", 2)]
    ends = {
        "retry": [*again, ("succeeded",)],
        "dead_letter": [*again, ("dead_lettered", "attempts", "ValueError: as told")],
    }
    expected = ends.get(script, first)

    sha, head = source(script).sha.encode(), f"-- {script}.lua".encode()
    with working(quick(behind, body, hooks=[told])):
        trap = proxy.cut_after(
            lambda command: command[0] in {b"EVALSHA", b"EVAL"} and (command[1] == sha or head in command[1])
        )
        s.add({"name": "J"})
        trap.wait()
        until(lambda: is_idle(s) and len(told.of("J")) >= len(expected))
    assert sorted(told.of("J")) == sorted(expected)  # the next attempt need not wait for the news of the last one


def test_what_a_stop_gives_back_is_told(make_stream):
    s = make_stream(lease=5)
    told = Told()
    begun = threading.Event()

    async def slow(payload, job):
        begun.set()
        await asyncio.sleep(60)

    s.add({"name": "J"})
    worker = quick(s, slow, hooks=[told], drain=0.2)
    with working(worker):
        assert begun.wait(5)
    assert told.of("J") == [("started", 1), ("released",)]


@pytest.mark.covers("R7")
@ONE_BACKEND
def test_ten_failures_in_a_row_are_told_with_their_cause(new_server, caplog):
    """After some 6.5 s, without anything of a job; and so is the recovery, which needs no restart."""
    server = new_server()
    told = Told()
    with Stream("jobs", redis=server.url, options=options_of({"lease": 1})) as s:
        s.add({"name": "secret-payload"})
        with working(worker := quick(s, lambda payload: None, hooks=[Raising(), told])):
            until(lambda: ("succeeded",) in told.of("secret-payload"))
            server.kill()
            begin = time.monotonic()
            until(lambda: worker.health().failures >= 3)
            assert worker.health().healthy  # a blip is no illness
            until(lambda: not worker.health().healthy)
            assert 4.5 <= time.monotonic() - begin <= 9
            health = worker.health()
            assert health.state == "running"
            assert all("cannot reach redis server 127.0.0.1" in problem for problem in health.problems)
            server.start()
            until(lambda: worker.health().healthy)
            s.add({"name": "after"})
            until(lambda: ("succeeded",) in told.of("after"))
    words = [event for event in told.events if event[0] in {"unhealthy", "healthy"}]
    assert [event[0] for event in words] == ["unhealthy", "healthy"]
    assert "cannot reach redis server 127.0.0.1" in words[0][1]
    assert "secret" not in words[0][1] + caplog.text


# --- health, over a worker's life ---------------------------------------------------------


@ONE_BACKEND
def test_health_over_a_workers_life(new_server):
    server = new_server()
    begun, go = threading.Event(), threading.Event()

    def slow(payload):
        begun.set()
        go.wait(20)

    port = free_port()
    with Stream("jobs", redis=server.url, options=options_of({"lease": 1})) as s:
        worker = quick(s, slow, health=f"127.0.0.1:{port}", concurrency=1, prefetch=2)
        health = worker.health()
        assert (health.state, health.healthy, health.streams, health.running) == ("new", True, ["jobs"], 0)
        assert health.consumer == worker.consumer
        assert told_by_http(port) == (0, {})
        server.kill()
        with working(worker):
            until(lambda: told_by_http(port)[1].get("failures", 0) >= 2)
            assert told_by_http(port)[1]["state"] == "starting"
            server.start()
            until(lambda: told_by_http(port)[1]["state"] == "running")
            s.pause()
            until(lambda: told_by_http(port)[1]["state"] == "paused")
            s.resume()
            until(lambda: told_by_http(port)[1]["state"] == "running")
            s.add_many({"n": n} for n in range(3))
            assert begun.wait(5)
            until(lambda: (told_by_http(port)[1]["running"], told_by_http(port)[1]["waiting"]) == (1, 2))
            worker.stop()
            until(lambda: told_by_http(port)[1]["state"] == "stopping")
            assert told_by_http(port)[0] == 200
            go.set()
        assert worker.health().state == "stopped"
        assert told_by_http(port) == (0, {})  # the port is free again


# --- in somebody else's event loop --------------------------------------------------------


def test_in_the_lifespan_of_a_web_application(redis_url, ns, raw):
    """Started with the application, stopped with it, and what it works on is settled by then."""
    ended = []

    async def handle(payload, job):
        job.effects.hincrby("effects", payload["name"])
        if payload["name"] == "slow":
            await asyncio.sleep(0.3)
            ended.append("slow")

    async def application():
        async with AsyncStream(ns, redis=redis_url) as stream:
            async with Worker(stream, handle, block=0.2) as worker:
                assert worker.health().state == "running"  # it is open when the block begins
                await stream.add({"name": "a"})
                while not raw.hgetall(stream._spec.keys.data("effects")):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                await stream.add({"name": "slow"})
                while worker.health().running == 0:  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
            assert worker.health().state == "stopped"
            assert ended == ["slow"]
            assert (await stream.inspect()).pending == 0
            assert effects(raw, stream) == {"a": 1, "slow": 1}
        return {task.get_name() for task in asyncio.all_tasks()}

    assert len(asyncio.run(application())) == 1  # its own
    raw.srem("streamq:streams", ns)


@ONE_BACKEND
def test_a_lifespan_that_cannot_begin_raises(redis_url, ns, raw):
    async def application():
        async with AsyncStream(ns, redis=redis_url) as stream:
            raw.set(stream._spec.keys.stream, "mine")
            async with Worker(stream, print, block=0.2):
                raise AssertionError("it must not come to this")

    with pytest.raises(ConfigurationError, match="holds a string, not a stream"):
        asyncio.run(application())


@ONE_BACKEND
def test_a_lifespan_given_up_while_it_begins_leaves_nothing(new_server):
    server = new_server()
    server.kill()

    async def application():
        async with AsyncStream("jobs", redis=server.url) as stream:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5), Worker(stream, print, block=0.2):
                    raise AssertionError("its server is down")
            return [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("streamq")]

    assert asyncio.run(application()) == []


@ONE_BACKEND
def test_what_the_body_of_a_lifespan_raises_comes_out_of_it(redis_url, ns, raw):
    async def application():
        async with AsyncStream(ns, redis=redis_url) as stream, Worker(stream, print, block=0.2) as worker:
            try:
                raise LookupError("of the application")
            finally:
                asyncio.get_running_loop().call_later(0, worker.stop)

    with pytest.raises(LookupError, match="of the application"):
        asyncio.run(application())
    raw.srem("streamq:streams", ns)


@ONE_BACKEND
def test_a_stop_at_any_moment_ends_it(make_stream):
    """Before it runs, while it opens its stream, just after, and when it has ended."""
    s = make_stream()
    for delay in [None, 0.0, 0.001, 0.003, 0.01, 0.05, 0.2]:
        worker = quick(s, print)
        if delay is None:
            worker.stop()
        ended = threading.Event()

        def run(worker=worker, ended=ended):
            worker.run()
            ended.set()

        threading.Thread(target=run, daemon=True).start()
        if delay is not None:
            time.sleep(delay)
            threading.Thread(target=worker.stop).start()
            worker.stop()
        assert ended.wait(3), delay
        worker.stop()
        assert worker.health().state == "stopped"


@ONE_BACKEND
def test_nothing_of_a_worker_is_left_on_the_server(make_stream, redis_url, raw):
    """Neither a connection nor a consumer; and it makes no thread but its own."""
    s = make_stream()

    def mine():
        return [one for one in raw.client_list() if one["id"] not in before]

    s.inspect()
    before = {one["id"] for one in raw.client_list()}
    with working(quick(s, lambda payload: None)):
        s.add({"name": "a"})
        until(lambda: is_idle(s) and s.inspect().groups["workers"].done == 1)
        assert mine()
    until(lambda: not mine())
    assert raw.xinfo_consumers(s._spec.keys.stream, "workers") == []
    until(lambda: not [thread for thread in threading.enumerate() if thread.name.startswith("streamq-")], timeout=5)
