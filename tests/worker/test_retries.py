"""Failed jobs come back when promised, once, whatever happens meanwhile; and what is done to them by hand counts."""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from waiting import until
from worker.fleet import effects, is_over, is_script, quick, working

from streamq import Backoff, Hooks, JobStateError, Reject, Retry, Stream, StreamOptions

ONE_BACKEND = pytest.mark.parametrize("backend", ["redis-7.0"], indirect=True)
TWO_BACKENDS = pytest.mark.parametrize("backend", ["redis-6.2", "valkey-9"], indirect=True)

TESTS = Path(__file__).parent.parent

EARLY = 0.005
"""Due times are whole milliseconds, of a clock that is not the test's."""

LATE = 0.8
"""How late a run may be on a busy machine."""


class Runs:
    """A handler that fails until `good`, and notes each run: (attempt, when, deliveries)."""

    def __init__(self, good=None):
        self.good = good
        self.all = []

    def __call__(self, payload, job):
        self.all.append((job.attempt, time.monotonic(), job.deliveries))
        if self.good is None or job.attempt < self.good:
            raise ValueError("not yet")
        job.effects.hincrby("effects", job.id)

    @property
    def attempts(self):
        return [attempt for attempt, _, _ in self.all]

    def between(self):
        """Seconds from each run to the next."""
        return [b[1] - a[1] for a, b in itertools.pairwise(self.all)]


def about(found, expected):
    """Whether those times passed: never less, and not much more."""
    return len(found) == len(expected) and all(
        least - EARLY < time_ < least + LATE for time_, least in zip(found, expected, strict=True)
    )


# --- when they run ------------------------------------------------------------------------


class Letters(Hooks):
    """Notes each dead letter: the attempt, and how many the server had at that moment."""

    def __init__(self, stream):
        self.told = []
        self._stream = stream

    def dead_lettered(self, dead):
        self.told.append((dead.reason, dead.job.attempt, self._stream.inspect().dead))


@pytest.mark.covers("R1", "R2", "R6")
def test_runs_follow_the_schedule_and_then_there_is_a_dead_letter(make_stream, raw):
    s = make_stream(retries=[1, 2])
    runs, letters = Runs(), Letters(s)
    with working(quick(s, runs, block=4, hooks=[letters])):
        begun = time.monotonic()
        s.add({}, job_id="J")
        time.sleep(0.5)
        if time.monotonic() < begun + 0.9:
            assert runs.attempts == [1]  # a failing handler does not storm
        until(lambda: letters.told)
        until(lambda: is_over(raw, s))
        time.sleep(0.3)
    assert runs.attempts == [1, 2, 3]
    assert about(runs.between(), [1, 2])
    assert letters.told == [("attempts", 3, 1)]  # once, after the letter was stored
    [letter] = s.dead_letters.list()
    assert (letter.reason, letter.job_id, letter.attempts) == ("attempts", "J", 3)


@pytest.mark.covers("R3")
@pytest.mark.parametrize("unit", [0.5, pytest.param(1, marks=pytest.mark.full)])
def test_a_run_by_hand_takes_the_place_of_the_one_that_waits(make_stream, raw, unit):
    s = make_stream(retries=[2 * unit, 4 * unit])
    runs = Runs()
    with working(quick(s, runs)):
        s.add({}, job_id="J")
        until(lambda: s.scheduled.get("J"))
        s.scheduled.run_now("J")
        until(lambda: len(runs.all) == 2)
        until(lambda: s.scheduled.get("J"))
        until(lambda: is_over(raw, s))
        time.sleep(unit)
    assert runs.attempts == [1, 2, 3]  # nothing when the first retry would have been due, nothing after
    first, second = runs.between()
    assert first < 2 * unit
    assert about([second], [4 * unit])


@pytest.mark.covers("R4")
def test_a_run_by_hand_that_succeeds_is_the_last(make_stream, raw):
    s = make_stream(retries=[0.6, 0.6])
    runs = Runs(good=2)
    with working(quick(s, runs)):
        s.add({}, job_id="J")
        until(lambda: s.scheduled.get("J"))
        s.scheduled.run_now("J")
        until(lambda: is_over(raw, s))
        with pytest.raises(JobStateError) as refused:
            s.scheduled.run_now("J")
        assert refused.value.state == "done"
        time.sleep(0.8)  # beyond the time of the automatic one
    assert [(attempt, deliveries) for attempt, _, deliveries in runs.all] == [(1, 1), (2, 1)]
    assert effects(raw, s) == {"J": 1}
    assert s.inspect().dead == 0


def retry_of(payload):
    return Retry("later", delay=payload["delay"])


@pytest.mark.covers("R1", "Q9")
@TWO_BACKENDS
def test_a_handler_may_say_when(make_stream, raw, caplog):
    """What it says wrong is its error, and the job waits by its policy."""
    s = make_stream(retries=[0.3])
    runs = defaultdict(list)

    def handle(payload, job):
        runs[payload["name"]].append((job.attempt, time.monotonic()))
        if job.attempt == 1:
            raise retry_of(payload)

    with working(quick(s, handle)):
        for name, delay in [("soon", 0.1), ("now", 0), ("late", 0.6), ("bad", -1), ("words", "1 s")]:
            s.add({"name": name, "delay": delay})
        until(lambda: is_over(raw, s))
    for name, delay in [("soon", 0.1), ("now", 0), ("late", 0.6), ("bad", 0.3), ("words", 0.3)]:
        (first, begun), (second, ended) = runs[name]
        assert (first, second) == (1, 2)
        assert about([ended - begun], [delay]), name
    assert sum("error=ConfigurationError" in message for message in caplog.messages) == 2


@TWO_BACKENDS
def test_no_job_waits_longer_than_max_delay(make_stream, raw):
    s = make_stream(retries=[60], max_delay=0.2)
    runs = defaultdict(list)

    def handle(payload, job):
        runs[payload["name"]].append(time.monotonic())
        if job.attempt == 1:
            raise Retry(delay=3600) if payload["name"] == "asks" else ValueError("by the policy")

    with working(quick(s, handle)):
        s.add_many([{"name": "asks"}, {"name": "fails"}])
        until(lambda: is_over(raw, s))
    assert all(about([b - a], [0.2]) for a, b in runs.values())


@pytest.mark.covers("R1")
def test_a_job_may_bring_its_own_policy(make_stream, raw):
    s = make_stream(retries=[60])
    runs = defaultdict(list)

    def handle(payload, job):
        runs[payload["name"]].append(time.monotonic())
        raise ValueError("always")

    with working(quick(s, handle)):
        s.add({"name": "twice"}, retry=Backoff.schedule([0.2, 0.4]))
        s.add({"name": "never"}, retry=Backoff.constant(0, limit=0))
        s.add({"name": "waits"}, job_id="w")
        until(lambda: s.inspect().dead == 2)
        assert [job.job_id for job in s.scheduled.list()] == ["w"]
    found = {name: [b - a for a, b in itertools.pairwise(times)] for name, times in runs.items()}
    assert about(found.pop("twice"), [0.2, 0.4])
    assert found == {"never": [], "waits": []}
    assert {letter.attempts for letter in s.dead_letters.list()} == {1, 3}


@TWO_BACKENDS
def test_a_custom_backoff_that_fails_lets_its_jobs_wait(redis_url, ns, raw, caplog):
    def delay(attempt):
        if attempt == 1:
            return 0.1
        raise LookupError("no table")

    runs = Runs()
    with Stream(ns, redis=redis_url, options=StreamOptions(retry=Backoff.custom(delay))) as s:
        with working(quick(s, runs)):
            s.add({}, job_id="J")
            until(lambda: len(runs.all) == 2)
            job = until(lambda: s.scheduled.get("J"))
        seconds, micros = raw.time()
        assert 55 < job.due_at.timestamp() - (seconds + micros / 1e6) <= 60
        assert (job.attempt, len(job.errors)) == (3, 2)
        raw.srem("streamq:streams", ns)
    assert about(runs.between(), [0.1])
    assert any("custom backoff failed for attempt 2: LookupError" in message for message in caplog.messages)


@TWO_BACKENDS
def test_what_an_error_means_decides_whether_its_job_waits(make_stream, raw):
    s = make_stream(retries=[0.2], lease=0.4)
    runs = defaultdict(list)
    kinds = {"key": KeyError, "value": ValueError, "os": OSError, "reject": Reject}

    def handle(payload, job):
        runs[payload["name"]].append(job.attempt)
        if len(runs[payload["name"]]) == 1:
            raise kinds[payload["name"]]("as told")

    with working(quick(s, handle, errors={KeyError: "reject", OSError: "release"})):
        s.add_many({"name": name} for name in kinds)
        until(lambda: is_over(raw, s))
    assert runs == {"key": [1], "value": [1, 2], "os": [1, 1], "reject": [1]}
    assert [letter.reason for letter in s.dead_letters.list()] == ["rejected", "rejected"]


@TWO_BACKENDS
def test_each_job_of_a_batch_waits_for_itself(make_stream, raw):
    s = make_stream(retries=[0.3])
    runs = defaultdict(list)

    def handle(jobs):
        for job in jobs:
            runs[job.payload["name"]].append((job.attempt, time.monotonic()))
        later = {"a": Retry(delay=0.1), "b": Retry(delay=0.7), "c": ValueError("by the policy"), "d": None}
        return [later[job.payload["name"]] if job.attempt == 1 else None for job in jobs]

    with working(quick(s, handle, batch=4, batch_wait=0.2)):
        s.add_many({"name": name} for name in "abcd")
        until(lambda: is_over(raw, s))
    found = {name: [at for _, at in times] for name, times in runs.items()}
    waited = {name: [b - a for a, b in itertools.pairwise(times)] for name, times in found.items()}
    assert waited.pop("d") == []
    assert all(about(waited[name], [delay]) for name, delay in [("a", 0.1), ("b", 0.7), ("c", 0.3)])


# --- whose clock --------------------------------------------------------------------------

SKEWED = """
import datetime, sys, time
from pathlib import Path

now, now_ns = time.time, time.time_ns


def skew():
    return float(Path({path!r}).read_text())


class Skewed(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(time.time(), tz)


time.time = lambda: now() + skew()
time.time_ns = lambda: now_ns() + int(skew() * 1e9)
datetime.datetime = Skewed
sys.path.insert(0, {tests!r})
from worker import fleet

fleet.main(sys.argv[1])
"""


@pytest.mark.covers("Q8", "C55")
@pytest.mark.parametrize("hours", [-1, 1])
@TWO_BACKENDS
def test_a_workers_clock_that_is_off_moves_nothing(make_stream, make_fleet, tmp_path, hours):
    """It schedules the retry, or promotes it; and while jobs wait it jumps by a day."""
    path = tmp_path / "skew"
    path.write_text(str(hours * 3600))
    skewed = ("-c", SKEWED.format(path=str(path), tests=str(TESTS)))
    s = make_stream(retries=[0.5])
    with make_fleet(program=skewed, retries=[0.5]) as f:
        f.start()
        until(lambda: f.events.all("up"))
        s.add({"name": "retried", "do": "fail", "fails": 1})
        s.add_many(({"name": f"far{n}"} for n in range(100)), delay=60)
        runs = until(lambda: len(found := f.events.all("start", "retried")) == 2 and found)
        path.write_text(str(hours * 86_400))
        begun = time.monotonic()
        s.add({"name": "next"}, delay=0.5)
        [later] = until(lambda: f.events.all("start", "next"))
        assert f.terminate() == [0]
    assert about([runs[1].at - runs[0].at, later.at - begun], [0.5, 0.5])
    assert s.inspect().scheduled == 100


# --- what is lost on the way --------------------------------------------------------------


@pytest.mark.covers("R5", "C02")
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_settlement_that_is_cut_makes_one_retry(make_stream, proxy, raw, when):
    s = make_stream(retries=[0.4])
    behind = make_stream(redis=proxy.url, retries=[0.4])
    runs = Runs(good=2)
    with working(quick(behind, runs)):
        trap = proxy.drop_before(is_script("retry")) if when == "before" else proxy.cut_after(is_script("retry"))
        s.add({}, job_id="J")
        trap.wait()
        until(lambda: s.scheduled.get("J"))
        assert raw.zcard(s._spec.keys.scheduled) == raw.hlen(s._spec.keys.jobs) == 1
        assert raw.xlen(s._spec.keys.stream) == 0
        until(lambda: is_over(raw, s))
    assert [(attempt, deliveries) for attempt, _, deliveries in runs.all] == [(1, 1), (2, 1)]
    assert effects(raw, s) == {"J": 1}


@pytest.mark.covers("R5")
@TWO_BACKENDS
def test_a_worker_that_dies_before_it_could_settle_costs_no_attempt(make_stream, make_fleet, proxy, raw):
    s = make_stream(lease=1, retries=[0.2])
    with make_fleet(lease=1, retries=[0.2]) as f:
        victim = f.start(url=proxy.url)
        s.add({"name": "J", "gated": True, "do": "fail", "fails": 1})
        until(lambda: f.events.all("start"))
        proxy.freeze()
        f.events.open("J")
        until(lambda: f.events.all("end"))
        victim.kill()
        victim.wait()
        f.start()
        until(lambda: is_over(raw, s))
        assert f.terminate() == [0]
        runs = [(event.attempt, event.deliveries) for event in f.events.all("start")]
    assert runs == [(1, 1), (1, 2), (2, 1)]
    assert effects(raw, s) == {"J": 1}


DIES_IN_THE_HOOK = """
import json, os, sys
sys.path.insert(0, {tests!r})
from streamq import Hooks, Stream, Worker
from worker.fleet import Events, handler_of, options_of


class Dies(Hooks):
    def dead_lettered(self, dead):
        events.tell("dead", dead.job.payload["name"], dead.job)
        os._exit(9)


given = json.loads(sys.argv[1])
events = Events(given["events"])
with Stream(given["stream"], redis=given["url"], options=options_of(given["options"])) as stream:
    Worker(stream, handler_of("def", events), hooks=[Dies()], **given["worker"]).run()
"""


@pytest.mark.covers("R6")
@TWO_BACKENDS
def test_a_worker_that_dies_in_the_hook_leaves_one_dead_letter(make_stream, make_fleet, raw):
    s = make_stream(lease=0.5, retries=[0.1])
    with make_fleet(lease=0.5, retries=[0.1], program=("-c", DIES_IN_THE_HOOK.format(tests=str(TESTS)))) as f:
        s.add({"name": "J", "do": "fail"})
        assert f.start().wait(30) == 9
        assert s.inspect().dead == 1
        f.start()
        s.add({"name": "K"})
        until(lambda: f.events.all("end", "K"))
        time.sleep(0.7)  # longer than the lease
        assert [(event.name, event.attempt) for event in f.events.all("dead")] == [("J", 2)]
        assert f.events.starts() == {"J": 2, "K": 1}
    assert is_over(raw, s)
    assert [letter.reason for letter in s.dead_letters.list()] == ["attempts"]


@pytest.mark.covers("R8", "C59")
@pytest.mark.parametrize("fault", ["flush", "restart"])
@TWO_BACKENDS
def test_scripts_that_are_forgotten_under_load_fail_no_retry(own, fault, caplog):
    server, s, raw = own(appendonly=True, args=("--appendfsync", "always"), retries=[0.1] * 3)
    attempts = defaultdict(list)

    def handle(payload, job):
        attempts[job.id].append(job.attempt)
        if job.attempt <= 3:
            raise ValueError("not yet")
        job.effects.hincrby("effects", job.id)

    ids = [f"J{n}" for n in range(100)]
    with working(quick(s, handle, concurrency=20)):
        s.add_many(({"name": name} for name in ids), job_id=lambda p: p["name"])
        if fault == "flush":
            while not is_over(raw, s):
                raw.script_flush()
                time.sleep(0.002)
        else:
            until(lambda: sum(map(len, list(attempts.values()))) > 150)
            server.kill()
            server.start()
            raw.connection.disconnect()
            until(lambda: is_over(raw, s))
    assert effects(raw, s) == dict.fromkeys(ids, 1)
    assert s.inspect().dead == 0
    if fault == "flush":
        assert all(numbers == [1, 2, 3, 4] for numbers in attempts.values())
    else:  # a run whose end met a dead server may come again, under its number
        assert all(sorted(set(numbers)) == [1, 2, 3, 4] for numbers in attempts.values())
        assert all(numbers == sorted(numbers) for numbers in attempts.values())
    assert not any("NOSCRIPT" in message for message in caplog.messages)


@pytest.mark.covers("C42")
@TWO_BACKENDS
def test_retries_and_due_jobs_wait_while_memory_is_full(own):
    _, s, raw = own(retries=[0.2], lease=1)
    starts = Counter()
    go = threading.Event()

    def handle(payload, job):
        name = payload["name"]
        starts[name] += 1
        assert go.wait(20)
        if name.startswith("poison"):
            raise Reject("as told")
        if name.startswith("fails") and job.attempt == 1:
            raise ValueError("once")
        job.effects.hincrby("effects", name)

    good, fails, late = ([f"{kind}{n}" for n in range(5)] for kind in ("good", "fails", "late"))
    with working(quick(s, handle, concurrency=20)):
        s.add_many({"name": name} for name in [*good, *fails, "poison0", "poison1"])
        s.add_many(({"name": name} for name in late), delay=1)
        until(lambda: len(starts) == 12)
        raw.config_set("maxmemory-policy", "noeviction")
        raw.config_set("maxmemory", 1)
        go.set()
        time.sleep(2)
        assert set(starts.values()) == {1}  # nothing runs again, and what is due waits
        assert len(starts) == 12
        assert s.inspect().dead == 0
        assert raw.zcard(s._spec.keys.scheduled) == 5
        raw.config_set("maxmemory", 0)
        until(lambda: is_over(raw, s))
    assert effects(raw, s) == dict.fromkeys([*good, *fails, *late], 1)
    assert starts == Counter([*good, *fails, *fails, *late, "poison0", "poison1"])
    assert s.inspect().dead == 2
    assert raw.hlen(s._spec.keys.jobs) == 0


# --- one copy, always ---------------------------------------------------------------------


def copies(raw, s):
    """How often each job is there at this moment: in the stream, or waiting for its time."""
    keys = s._spec.keys
    with raw.pipeline(transaction=True) as together:
        together.xrange(keys.stream)
        together.zrange(keys.scheduled, 0, -1)
        entries, timers = together.execute()
    found = Counter(fields[b"sq:id"].decode() for _, fields in entries)
    return found + Counter(timer.decode().partition("/")[2] for timer in timers)


class Meddler(threading.Thread):
    """Moves jobs that wait for their time about, until it is told to stop."""

    def __init__(self, seed, stream, ids, mortal):
        super().__init__()
        self.cancelled = {}
        self.error = None
        self.stopped = threading.Event()
        self._draw = random.Random(seed)
        self._stream = stream
        self._ids = ids
        self._mortal = mortal

    def run(self):
        try:
            while not self.stopped.is_set():
                with contextlib.suppress(JobStateError):
                    self._move(self._draw.choice(self._ids))
        except Exception as error:  # noqa: BLE001  # the test looks at it
            self.error = error

    def _move(self, job_id):
        scheduled, what = self._stream.scheduled, self._draw.randrange(20)
        if what == 0 and job_id in self._mortal:
            if scheduled.cancel(job_id):
                self.cancelled[job_id] = time.monotonic()
        elif what % 2:
            scheduled.run_now(job_id)
        else:
            scheduled.reschedule(job_id, delay=self._draw.choice([0, 0.01, 0.05]))


@pytest.mark.covers("Q5", "C09")
@pytest.mark.parametrize("seconds", [2, pytest.param(30, marks=pytest.mark.full)])
@TWO_BACKENDS
def test_a_failing_job_that_many_hands_move_about_is_there_once(make_stream, raw, seconds):
    s = make_stream(retry=Backoff.constant(0.03, limit=None), lease=5)
    ledger = defaultdict(list)
    ids = [f"J{n}" for n in range(6)]
    mortal = set(ids[4:])

    def handle(payload, job):
        ledger[job.id].append((job.attempt, job.deliveries, time.monotonic()))
        raise ValueError("always")

    meddlers = [Meddler(n, make_stream(), ids, mortal) for n in range(3)]
    with working(*(quick(s, handle) for _ in range(2))):
        s.add_many(({"name": name} for name in ids), job_id=lambda p: p["name"])
        deadline = time.monotonic() + seconds
        for meddler in meddlers:
            meddler.start()
        try:
            while time.monotonic() < deadline:
                found = copies(raw, s)
                assert set(found.values()) <= {1}
                assert set(ids) - set(found) <= mortal
        finally:
            for meddler in meddlers:
                meddler.stopped.set()
                meddler.join()
    assert [meddler.error for meddler in meddlers] == [None] * 3
    cancelled = {job_id: at for meddler in meddlers for job_id, at in meddler.cancelled.items()}
    for job_id, runs in ledger.items():
        assert [attempt for attempt, _, _ in runs] == list(range(1, len(runs) + 1))
        assert {deliveries for _, deliveries, _ in runs} == {1}
        assert job_id not in cancelled or runs[-1][2] < cancelled[job_id]
    assert set(copies(raw, s)) == set(ids) - set(cancelled)
    assert s.inspect().dead == 0
    assert min(len(ledger[job_id]) for job_id in ids[:4]) > 5


@pytest.mark.covers("C09", "Q3")
@pytest.mark.parametrize(
    ("kills", "jobs"), [(6, 30), pytest.param(50, 200, marks=[pytest.mark.full, pytest.mark.timeout(300)])]
)
@ONE_BACKEND
def test_kills_of_workers_between_retries_never_fork_a_job(make_stream, make_fleet, raw, kills, jobs):
    """Of each attempt there is one entry, whoever dies between what was read and what was settled."""
    options = {"lease": 0.5, "retries": [0.2] * 6, "max_deliveries": 50}
    s = make_stream(**options)
    ids = [f"J{n}" for n in range(jobs)]
    draw = random.Random(5)
    with make_fleet(**options, worker={"concurrency": 5}) as f:
        f.supervise(2)
        until(lambda: len(f.events.all("up")) >= 2)
        s.add_many(({"name": name, "do": "fail", "fails": 6} for name in ids), job_id=lambda p: p["name"])
        for _ in range(kills):
            for _ in range(20):
                assert set(copies(raw, s).values()) <= {1}
                time.sleep(draw.random() / 100)
            draw.choice(f.running).kill()
        until(lambda: is_over(raw, s), timeout=60)
        f.terminate()
        events = f.events.all("start")
    entries = defaultdict(set)
    for event in events:
        entries[event.name, event.attempt].add(event.entry_id)
    assert set(entries) == {(name, attempt) for name in ids for attempt in range(1, 8)}
    assert {len(found) for found in entries.values()} == {1}
    for name in ids:
        numbers = [event.attempt for event in events if event.name == name]
        assert numbers == sorted(numbers)
    assert effects(raw, s) == dict.fromkeys(ids, 1)
    assert s.inspect().dead == 0
