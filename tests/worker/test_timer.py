"""Jobs that wait for their time: when workers start them, who of a fleet moves them, and how much is asked meanwhile."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
import time
from collections import Counter

import pytest
import servers
from waiting import until
from worker.crew import Crew
from worker.fleet import effects, is_idle, is_over, is_script, options_of, promoter, quick, working

from streamq import Stream
from streamq._ops import promote
from streamq._scripts import source
from streamq.worker import maintenance
from streamq.worker.roles import Flag
from streamq.worker.timer import Timer

ONE_BACKEND = pytest.mark.parametrize("backend", ["redis-7.0"], indirect=True)
TWO_BACKENDS = pytest.mark.parametrize("backend", ["redis-6.2", "valkey-9"], indirect=True)

EARLY = 0.005
"""Due times are whole milliseconds, of a clock that is not the test's."""

LATE = 1.5
"""How late a start may be on a busy machine, where the promise is 0.3 s at most."""

HOUR = 3600


class Starts:
    """Notes when each job starts."""

    def __init__(self):
        self.at = {}
        self.counts = Counter()

    def __call__(self, payload):
        self.at.setdefault(payload["name"], time.monotonic())
        self.counts[payload["name"]] += 1

    def after(self, name, begun):
        """Seconds from then to its first start, which is waited for."""
        until(lambda: name in self.at)
        return self.at[name] - begun


def has_token(raw, s, worker):
    return promoter(raw, s) == worker.consumer


# --- when they start ----------------------------------------------------------------------


@pytest.mark.covers("Q1", "Q9")
def test_a_delayed_job_starts_when_it_is_due_and_a_cancelled_one_never(make_stream, raw):
    s = make_stream()
    starts = Starts()
    with working(quick(s, starts, block=4)):
        begun = time.monotonic()
        s.add({"name": "long"}, delay=2)
        s.add({"name": "short"}, delay=0.1)
        s.add({"name": "none"}, delay=0)
        s.add({"name": "cancelled"}, delay=1, job_id="c")
        assert s.cancel("c") is True
        assert s.scheduled.cancel("c") is False
        assert 0.1 - EARLY < starts.after("short", begun) < 0.1 + LATE
        time.sleep(max(begun + 1.5 - time.monotonic(), 0))
        if time.monotonic() < begun + 1.9:
            assert raw.xlen(s._spec.keys.stream) == 0
            assert "long" not in starts.at
        assert 2 - EARLY < starts.after("long", begun) < 2 + LATE
        until(lambda: is_over(raw, s))
    assert starts.counts == {"long": 1, "short": 1, "none": 1}


@pytest.mark.covers("Q7", "Q8")
def test_an_earlier_job_of_another_process_wakes_a_worker_that_sleeps(make_stream, make_fleet, raw):
    s = make_stream()
    with make_fleet(worker={"block": 4}) as f:
        f.start()
        s.add({"name": "far"}, delay=HOUR, job_id="far")
        s.add({"name": "moved"}, delay=HOUR, job_id="moved")
        until(lambda: promoter(raw, s))
        time.sleep(0.3)  # it sleeps

        def after(name, begun):
            return until(lambda: f.events.all("start", name))[0].at - begun

        begun = time.monotonic()
        s.add({"name": "second"}, delay=1)
        assert 1 - EARLY < after("second", begun) < 1 + LATE
        begun = time.monotonic()
        s.add({"name": "tenth"}, delay=0.1)
        assert 0.1 - EARLY < after("tenth", begun) < 0.1 + LATE
        begun = time.monotonic()
        s.scheduled.reschedule("moved", delay=0.2)
        assert 0.2 - EARLY < after("moved", begun) < 0.2 + LATE
        assert f.terminate() == [0]
    assert [job.job_id for job in s.scheduled.list()] == ["far"]


@pytest.mark.parametrize("lease", [0.05, 86_400])
@TWO_BACKENDS
def test_leases_of_any_length(make_stream, lease, raw):
    s = make_stream(lease=lease, retries=[0.3])
    runs = []

    def handle(payload, job):
        runs.append((job.attempt, time.monotonic()))
        if job.attempt == 1:
            raise ValueError("once")

    with working(quick(s, handle)):
        begun = time.monotonic()
        s.add({}, delay=0.3)
        until(lambda: len(runs) == 2)
        until(lambda: is_over(raw, s))
    assert [attempt for attempt, _ in runs] == [1, 2]
    assert 0.3 - EARLY < runs[0][1] - begun < 0.3 + LATE
    assert 0.3 - EARLY < runs[1][1] - runs[0][1] < 0.3 + LATE


@pytest.mark.covers("Q1")
@TWO_BACKENDS
def test_several_streams_of_one_worker(redis_url, ns, raw):
    starts = Starts()
    names = ["a", "b", "c"]
    streams = [Stream(f"{ns}-{name}", redis=redis_url, options=options_of({})) for name in names]
    try:
        worker = quick(streams[0], starts, block=4)
        for s in streams[1:]:
            worker.add_stream(s, starts)
        with working(worker):
            until(lambda: all(has_token(raw, s, worker) for s in streams))
            begun = time.monotonic()
            for n, s in enumerate(streams):
                s.add({"name": names[n]}, delay=0.3 * (n + 1))
            for n, name in enumerate(names):
                assert 0.3 * (n + 1) - EARLY < starts.after(name, begun) < 0.3 * (n + 1) + LATE
            until(lambda: all(is_over(raw, s) for s in streams))
        assert all(promoter(raw, s) == "" for s in streams)
    finally:
        for s in streams:
            raw.srem("streamq:streams", s._spec.keys.name)
            s.close()


@TWO_BACKENDS
def test_what_falls_due_in_a_pause_waits_and_runs_after_it(make_stream, raw):
    s = make_stream(lease=1)
    starts = Starts()
    with working(quick(s, starts)):
        until(lambda: promoter(raw, s))
        s.pause()
        time.sleep(0.4)  # longer than a tick: the worker has seen it
        names = [f"J{n}" for n in range(5)]
        for n, name in enumerate(names):
            s.add({"name": name}, delay=0.1 * n)
        time.sleep(1)
        assert raw.xlen(s._spec.keys.stream) == 1  # the one without a delay
        assert starts.at == {}
        s.resume()
        until(lambda: is_over(raw, s))
    assert starts.counts == dict.fromkeys(names, 1)


@pytest.mark.covers("S7")
@TWO_BACKENDS
def test_a_delayed_job_is_for_all_groups_and_its_retry_for_one(make_stream, raw):
    one, two = (make_stream(group=group, groups=("one", "two"), retries=[0.1, 0.1]) for group in ("one", "two"))
    runs = []

    def handler(group):
        def handle(payload, job):
            runs.append((group, job.attempt))
            if group == "one" and job.attempt < 3:
                raise ValueError("not yet")

        return handle

    with working(quick(one, handler("one")), quick(two, handler("two"))):
        one.add({}, delay=0.2, job_id="J")
        until(lambda: len(runs) == 4)
        until(lambda: is_over(raw, one))
    assert sorted(runs) == [("one", 1), ("one", 2), ("one", 3), ("two", 1)]


# --- how much is asked --------------------------------------------------------------------


@pytest.mark.covers("Q7")
@ONE_BACKEND
def test_jobs_due_one_after_the_other_make_no_storm(make_stream, proxy, raw):
    s = make_stream()
    behind = make_stream(redis=proxy.url)
    delays = iter([0.3 + n / 1000 for n in range(1500)])
    names = [str(n) for n in range(1500)]
    starts = Starts()
    with working(quick(behind, starts, concurrency=50)):
        begun = time.monotonic()
        s.add_many(({"name": name} for name in names), delay=lambda _: next(delays))
        until(lambda: is_over(raw, s))
        passed = time.monotonic() - begun
    assert starts.counts == dict.fromkeys(names, 1)
    assert proxy.count(is_script("promote")) <= 100 * passed + 10


@pytest.mark.covers("Q7")
@ONE_BACKEND
def test_a_flood_of_ever_earlier_jobs_makes_no_storm(make_stream, proxy):
    """Each of them wakes whoever sleeps until the first is due."""
    s = make_stream()
    behind = make_stream(redis=proxy.url)
    with working(quick(behind, Starts())):
        until(lambda: proxy.count(is_script("tick")))
        begun = time.monotonic()
        for n in range(1000):
            s.add({"name": str(n)}, delay=HOUR - n)
        passed = time.monotonic() - begun
    listens = proxy.count(lambda c: c[0] == b"XREAD" and c[-2] == s._spec.keys.wake.encode())
    assert 0 < proxy.count(is_script("promote")) <= 100 * passed + 10
    assert 0 < listens <= 100 * passed + 10


@pytest.mark.covers("Q7")
@ONE_BACKEND
def test_thousands_of_retries_make_no_storm(make_stream, proxy, raw):
    s = make_stream(retries=[0.05] * 4)
    behind = make_stream(redis=proxy.url, retries=[0.05] * 4)
    runs = Counter()

    async def handle(payload, job):
        runs[payload["name"]] += 1
        if job.attempt < 5:
            raise ValueError("not yet")

    names = [str(n) for n in range(300)]
    with working(quick(behind, handle, concurrency=300)):
        begun = time.monotonic()
        s.add_many({"name": name} for name in names)
        until(lambda: is_over(raw, s))
        passed = time.monotonic() - begun
    assert runs == dict.fromkeys(names, 5)
    assert proxy.count(is_script("promote")) <= 100 * passed + 10


@pytest.mark.covers("Q3")
@pytest.mark.parametrize("count", [3_000, pytest.param(20_000, marks=pytest.mark.full)])
@ONE_BACKEND
def test_many_jobs_due_in_the_same_moment_all_run_once_and_no_script_takes_long(own, count, raw):
    _, s, raw = own()
    raw.config_set("slowlog-log-slower-than", 0)
    raw.config_set("slowlog-max-len", 100_000)
    names = [str(n) for n in range(count)]
    runs = Counter()

    async def handle(payload):
        runs[payload["name"]] += 1

    body = "x" * 1024
    due_in = 1 + count / 3_000
    begun = time.monotonic()
    s.add_many(
        ({"name": name, "body": body} for name in names), delay=lambda _: max(due_in - (time.monotonic() - begun), 0)
    )
    with working(quick(s, handle, concurrency=200, prefetch=1_000)):
        until(lambda: is_over(raw, s), timeout=60)
        rows = raw.slowlog_get(100_000)
    assert runs == dict.fromkeys(names, 1)
    name = source("promote").sha.encode()
    took = sorted(row["duration"] for row in rows if name in row["command"][:60])
    print(f"promote: {took[len(took) // 2]} us in the middle, {took[-1]} us at most")  # noqa: T201
    # Of the middle one: now and then the machine has its cores for others.
    assert took[len(took) // 2] <= 20_000


# --- who moves them -----------------------------------------------------------------------


@pytest.mark.covers("Q7")
@ONE_BACKEND
def test_in_a_fleet_one_worker_at_a_time_moves_jobs(make_stream, server, raw):
    s = make_stream()
    starts = Starts()
    with servers.CutProxy(server) as a, servers.CutProxy(server) as b, servers.CutProxy(server) as c:
        proxies = [a, b, c]
        workers = [quick(make_stream(redis=proxy.url), starts) for proxy in proxies]
        with working(*workers):
            until(lambda: promoter(raw, s))
            until(lambda: all(proxy.count(is_script("tick")) for proxy in proxies))
            names = [str(n) for n in range(30)]
            delays = iter([0.1 + n / 15 for n in range(30)])
            s.add_many(({"name": name} for name in names), delay=lambda _: next(delays))
            until(lambda: is_over(raw, s))
            mine = [has_token(raw, s, worker) for worker in workers]
            calls = [proxy.count(is_script("promote")) for proxy in proxies]
        listens = [proxy.count(lambda c: c[0] == b"XREAD") for proxy in proxies]
    assert starts.counts == dict.fromkeys(names, 1)
    assert [count > 0 for count in calls] == mine == [count > 0 for count in listens]
    assert sum(mine) == 1


@TWO_BACKENDS
def test_large_jobs_are_moved_a_few_at_a_time(make_stream, raw):
    """A script that copies all of them holds up the whole server."""
    s = make_stream()
    s.add_many(({"name": str(n), "body": "x" * 500_000} for n in range(40)), delay=0.01)
    time.sleep(0.02)
    moved = []
    while sum(moved) < 40:
        moved.append(s._run(promote.some(s._spec)).moved)
    assert raw.xlen(s._spec.keys.stream) == 40
    assert max(moved) <= 3


@pytest.mark.covers("Q6")
@TWO_BACKENDS
def test_large_jobs_are_looked_through_a_few_at_a_time(make_stream, raw):
    """For those without a time."""
    s = make_stream()
    s.add_many(({"name": str(n), "body": "x" * 500_000} for n in range(60)), delay=HOUR)
    raw.delete(s._spec.keys.scheduled)
    found = []
    while sum(found) < 60:
        found.append(len(s._run(promote.some(s._spec)).dropped))
    assert max(found) < 30
    assert s.inspect().dead == 60
    assert raw.hlen(s._spec.keys.jobs) == 0


@TWO_BACKENDS
def test_a_worker_that_stops_gives_up_the_promoters_token_though_its_handler_runs_on(make_stream, raw):
    s = make_stream()
    begun, go = threading.Event(), threading.Event()
    starts = Starts()

    def slow(payload):
        starts(payload)
        begun.set()
        assert go.wait(20)

    first, second = quick(s, slow), quick(s, starts)
    try:
        with working(first):
            until(lambda: has_token(raw, s, first))
            s.add({"name": "slow"})
            assert begun.wait(5)
            with working(second):
                until(lambda: second.consumer.encode() in raw.hkeys(s._spec.keys.workers))
                first.stop()
                # Its token would outlast three ticks of two seconds.
                until(lambda: has_token(raw, s, second), timeout=3.5)
                s.add({"name": "quick"}, delay=0.1)
                assert starts.after("quick", time.monotonic()) < 0.1 + LATE
                go.set()
                until(lambda: is_over(raw, s))
    finally:
        go.set()
    assert starts.counts == {"slow": 1, "quick": 1}
    assert promoter(raw, s) == ""


@pytest.mark.covers("Q3")
@TWO_BACKENDS
def test_a_promoter_that_is_killed_is_followed_soon(make_stream, make_fleet, raw):
    s = make_stream(lease=1)
    with make_fleet(lease=1, worker={"concurrency": 2}) as f:
        by_pid = {f.start().pid: n for n in range(2)}
        until(lambda: len(f.events.all("up")) == 2 and promoter(raw, s))
        killed = pid_of(promoter(raw, s))
        f.processes[by_pid[killed]].kill()
        begun = time.monotonic()
        s.add({"name": "J"}, delay=0.1)
        started = until(lambda: f.events.all("start", "J"))[0]
        assert started.pid != killed
        assert started.at - begun < 4 * 1.25 * 0.25 + LATE  # the token's three ticks, and one of its heir's
        assert sorted(f.terminate()) == [0]


def pid_of(consumer):
    return int(consumer.rsplit("-", 2)[1])


@TWO_BACKENDS
def test_the_token_of_a_worker_that_is_long_dead_holds_up_nothing_for_long(make_stream, raw):
    s = make_stream(lease=0.4)
    starts = Starts()
    s.add({"name": "J"}, delay=0.01)
    raw.set(s._spec.keys.tick("promote"), "long-dead", px=maintenance.PROMOTER_TICKS * 100)
    with working(quick(s, starts)):
        assert starts.after("J", time.monotonic()) < 0.5 + LATE


@TWO_BACKENDS
def test_an_event_loop_that_stands_still_hands_over_to_another_worker(make_stream, raw):
    s = make_stream(lease=1)
    begun, go = threading.Event(), threading.Event()
    starts = Starts()

    async def blocking(payload):
        if payload["name"] == "block":
            begun.set()
            go.wait(20)  # the fault to be tried: nothing else of this event loop goes on
        starts(payload)

    first, second = quick(s, blocking, concurrency=1), quick(s, starts)
    try:
        with working(first):
            until(lambda: has_token(raw, s, first))
            s.add({"name": "block"})
            assert begun.wait(5)
            with working(second):
                s.add({"name": "J"}, delay=0.1)
                assert starts.after("J", time.monotonic()) < 4 * 1.25 * 0.25 + LATE
                assert has_token(raw, s, second)
                go.set()
                until(lambda: is_over(raw, s))
                time.sleep(0.4)  # it ticks again
                assert has_token(raw, s, second)
    finally:
        go.set()
    assert starts.counts == {"block": 1, "J": 1}


@pytest.mark.covers("Q3")
@pytest.mark.parametrize(("count", "most"), [(500, 4), pytest.param(5_000, 100, marks=pytest.mark.full)])
@ONE_BACKEND
def test_promoters_that_are_killed_again_and_again_move_each_job_once(make_stream, make_fleet, raw, count, most):
    """Entries are kept, so that each that was ever added can be counted."""
    options = {"lease": 0.4, "retention": "keep", "max_deliveries": 50}
    s = make_stream(**options)
    names = [f"J{n}" for n in range(count)]
    kills = 0
    with make_fleet(**options, worker={"concurrency": 4}) as f:
        f.supervise(3)
        until(lambda: len(f.events.all("up")) >= 3)
        delays = iter([0.3 + n / 250 for n in range(count)])
        s.add_many(({"name": name} for name in names), job_id=lambda p: p["name"], delay=lambda _: next(delays))
        while s.inspect().scheduled and kills < most:
            consumer = until(lambda: promoter(raw, s))
            time.sleep(0.05)
            for process in f.running:
                if process.pid == pid_of(consumer):
                    process.kill()
                    kills += 1
            until(lambda c=consumer: promoter(raw, s) != c)
        until(lambda: not s.inspect().scheduled and is_idle(s), timeout=60)
        f.terminate()
    entries = raw.xrange(s._spec.keys.stream)
    assert Counter(fields[b"sq:id"].decode() for _, fields in entries) == dict.fromkeys(names, 1)
    if "entries-added" in (info := raw.xinfo_stream(s._spec.keys.stream)):  # from Redis 7.0
        assert info["entries-added"] == count
    assert effects(raw, s) == dict.fromkeys(names, 1)
    assert kills >= 2


@pytest.mark.parametrize("backend", ["valkey-9"], indirect=True)
def test_under_a_supervisor_the_heir_of_a_dead_child_need_not_wait_and_the_solo_child_moves_nothing(
    make_stream, redis_url, ns, tmp_path, raw
):
    s = make_stream()
    with Crew(redis_url, ns, tmp_path) as crew:
        crew.start("--processes", "2", "--solo", "1")
        crew.until_up(3)
        owner = until(lambda: promoter(raw, s))
        [child] = [child for child in crew.children() if child.consumer == owner]
        assert not child.name.startswith("solo")
        os.kill(child.pid, signal.SIGKILL)
        # The supervisor gives the token up, which would last for six seconds; another child sees it at its next tick.
        until(lambda: promoter(raw, s) not in ("", owner), timeout=4)
        s.add({"name": "J"}, delay=0.1)
        until(lambda: crew.events.all("end", "J"), timeout=LATE + 1)
        crew.until_up(3)
        assert crew.stop() == 0
    assert promoter(raw, s) == ""


# --- what goes wrong ----------------------------------------------------------------------


@pytest.mark.covers("C34", "C93")
@pytest.mark.parametrize("key", ["scheduled", "jobs", "wake"])
@TWO_BACKENDS
def test_a_key_of_the_timer_that_changes_its_type_under_the_worker(make_stream, raw, caplog, key):
    s = make_stream(lease=1, retries=[0.1])
    wrong = getattr(s._spec.keys, key)
    starts = Starts()

    def handle(payload, job):
        starts(payload)
        if payload["name"] == "fails" and job.attempt == 1:
            raise ValueError("once")

    with working(quick(s, handle, concurrency=2)):
        until(lambda: promoter(raw, s))
        s.add({"name": "before"}, delay=0.1)
        until(lambda: is_over(raw, s))
        raw.delete(wrong)
        raw.set(wrong, "something else")
        raw.client_kill_filter(_type="normal", skipme=True)  # who listens already hears no more of it
        until(lambda: any("earlier jobs" in m or "cannot be moved" in m for m in caplog.messages))
        s.add({"name": "plain"})
        s.add({"name": "fails"})
        until(lambda: {"plain", "fails"} <= starts.at.keys())  # reading goes on
        if key == "wake":
            s.add({"name": "delayed"}, delay=0.1)
            until(lambda: is_over(raw, s))
        else:
            time.sleep(0.3)
            assert (
                raw.xpending(s._spec.keys.stream, "workers")["pending"] == 1
            )  # the retry cannot be scheduled, and is not lost
            raw.delete(wrong)
            until(lambda: is_over(raw, s))
    assert starts.counts == Counter(before=1, plain=1, fails=2) + Counter({"delayed": key == "wake"})
    assert sum("in_a_row=" in m and "cannot be moved" in m for m in caplog.messages) < 10  # no hot loop
    assert sum("earlier jobs" in m for m in caplog.messages) <= 1


@pytest.mark.covers("C93", "Q6")
@pytest.mark.parametrize("lost", ["jobs", "scheduled"])
@TWO_BACKENDS
def test_half_of_what_is_scheduled_is_deleted_under_the_worker(make_stream, raw, caplog, lost):
    s = make_stream(lease=1)
    keys = s._spec.keys
    starts = Starts()
    with working(quick(s, starts)):
        until(lambda: promoter(raw, s))
        s.add({"name": "far"}, delay=HOUR, job_id="far")
        for n in range(3):
            s.add({"name": f"J{n}"}, delay=0.5, job_id=f"J{n}")
        raw.delete(getattr(keys, lost))
        s.add({"name": "next"}, delay=0.7)
        until(lambda: "next" in starts.at)
        until(lambda: raw.hget(keys.meta, "orphans") == (b"3" if lost == "jobs" else b"4"))
    left = ["far"] if lost == "jobs" else []  # its time stays until it has come
    assert [job.job_id for job in s.scheduled.list()] == left
    assert raw.hlen(keys.jobs) == 0
    assert starts.counts == {"next": 1}
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(told) == (3 if lost == "jobs" else 4)
    assert all("is no job" in message for message in told)
    letters = s.dead_letters.list()
    if lost == "jobs":
        assert letters == []
    else:
        assert {letter.job_id: letter.reason for letter in letters} == dict.fromkeys(
            ["far", "J0", "J1", "J2"], "invalid"
        )


@pytest.mark.parametrize("end", ["killed", "frozen"])
@TWO_BACKENDS
def test_a_listener_whose_connection_is_gone(make_stream, proxy, raw, end):
    """Killed, it makes another. Frozen with all others of its worker, another worker takes over."""
    s = make_stream(lease=1)
    behind = make_stream(redis=proxy.url, lease=1)
    starts = Starts()
    first, second = quick(behind, starts), quick(s, starts)
    with working(first):
        until(lambda: has_token(raw, s, first))
        with working(second):
            if end == "killed":
                for n in range(3):
                    raw.client_kill_filter(_type="normal", skipme=True)
                    begun = time.monotonic()
                    s.add({"name": f"J{n}"}, delay=0.3)
                    assert 0.3 - EARLY < starts.after(f"J{n}", begun) < 0.3 + 1 + LATE
            else:
                proxy.freeze()
                begun = time.monotonic()
                s.add({"name": "J"}, delay=0.3)
                assert 0.3 - EARLY < starts.after("J", begun) < 4 * 1.25 * 0.25 + LATE
                proxy.thaw()
            until(lambda: is_over(raw, s))
    assert set(starts.counts.values()) == {1}


@pytest.mark.parametrize("state", ["listens", "server is silent"])
@ONE_BACKEND
def test_a_promoter_stops_at_once(make_stream, proxy, raw, state):
    s = make_stream(redis=proxy.url)
    s.add({"name": "far"}, delay=HOUR)
    worker = quick(s, Starts(), block=4)
    with working(worker):
        until(lambda: has_token(raw, s, worker))
        until(lambda: proxy.count(lambda c: c[0] == b"XREAD"))
        time.sleep(0.2)
        if state == "server is silent":
            proxy.freeze()
        begun = time.monotonic()
        worker.stop()
    took = time.monotonic() - begun
    proxy.thaw()
    assert took < (1 if state == "listens" else 6)
    if state == "listens":
        assert promoter(raw, s) == ""


# --- the timer by itself ------------------------------------------------------------------


class Server:
    """Answers a timer's requests: `wait_ms` after each promotion; words when the test says so."""

    def __init__(self, *waits):
        self.waits = list(waits)
        self.promoted = 0
        self.words = asyncio.Queue()

    async def run(self, plan):
        request = next(plan)
        if hasattr(request, "args") and "XREAD" in request.args:
            return await self.words.get()
        self.promoted += 1
        await asyncio.sleep(0.01)
        wait = self.waits.pop(0) if self.waits else -1
        try:
            plan.send([1, wait, []])
        except StopIteration as stop:
            return stop.value
        raise AssertionError("one request")


class Post:
    def __init__(self):
        self.stopping = Flag()


@pytest.fixture
def spec(redis_url, ns):
    with Stream(ns, redis=redis_url) as s:
        yield s._spec


def timed(spec, server, body):
    """Run a timer, and `body` beside it."""

    async def run():
        post = Post()
        timer = Timer(spec, server, post)
        tasks = [asyncio.create_task(timer.promote()), asyncio.create_task(timer.listen())]
        await body(timer)
        post.stopping.set()
        await asyncio.wait_for(asyncio.gather(*tasks), 1)

    asyncio.run(run())


async def comes_to(server, count):
    async with asyncio.timeout(5):
        while server.promoted < count:  # noqa: ASYNC110  # it is told to nobody
            await asyncio.sleep(0.002)


@ONE_BACKEND
def test_a_word_of_an_earlier_job_outlives_a_tick_that_did_not_know_of_it(spec):
    """The tick was answered first, but the word arrives before it does."""
    server = Server()

    async def body(timer):
        timer.told(has_token=True, paused=False, wait_ms=None)
        await asyncio.sleep(0.02)
        server.words.put_nowait("1-0")
        while timer._due_at is None:  # noqa: ASYNC110  # until it has heard, and before it has gone on
            await asyncio.sleep(0)
        timer.told(has_token=True, paused=False, wait_ms=None)
        await comes_to(server, 1)

    timed(spec, server, body)


@ONE_BACKEND
def test_a_word_that_comes_during_a_promotion_makes_another(spec):
    server = Server(-1, -1)

    async def body(timer):
        timer.told(has_token=True, paused=False, wait_ms=0)
        await comes_to(server, 1)
        server.words.put_nowait("1-0")
        timer.told(has_token=True, paused=False, wait_ms=5_000)
        await comes_to(server, 2)
        await asyncio.sleep(0.1)
        assert server.promoted == 2

    timed(spec, server, body)


@ONE_BACKEND
def test_who_is_no_promoter_any_more_heeds_no_word(spec):
    server = Server()

    async def body(timer):
        timer.told(has_token=True, paused=False, wait_ms=None)
        await asyncio.sleep(0.02)
        timer.told(has_token=False, paused=False, wait_ms=0)
        server.words.put_nowait("1-0")
        await asyncio.sleep(0.1)
        assert server.promoted == 0
        timer.told(has_token=True, paused=True, wait_ms=0)
        await asyncio.sleep(0.05)
        assert server.promoted == 0
        timer.told(has_token=True, paused=False, wait_ms=0)
        await comes_to(server, 1)

    timed(spec, server, body)
