"""Servers that refuse for a while, rights that come and go, and mistakes of ours: nothing needs a restart."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter

import pytest
from waiting import PATIENCE, until
from worker import fleet
from worker.fleet import effects, is_idle, quick, working

from streamq import ConfigurationError, Stream
from streamq._drivers.asynchronous import AsyncConnections
from streamq._drivers.blocking import Connections
from streamq.worker import maintenance, roles

ONE_BACKEND = pytest.mark.parametrize("backend", ["redis-7.0"], indirect=True)
TWO_BACKENDS = pytest.mark.parametrize("backend", ["redis-7.0", "valkey-9"], indirect=True)


def by_name(payload, job):
    job.effects.hincrby("effects", payload["name"])


# --- the server refuses -------------------------------------------------------------------


@pytest.mark.covers("C61")
def test_a_server_that_turns_into_a_replica_and_back(own, handler, caplog):
    """READONLY is nobody's fault: no attempt is spent, nothing is dead-lettered, and all is settled when it is over."""
    _, s, raw = own(lease=1, retries=1)
    starts, go = Counter(), threading.Event()

    def body(payload, job):
        starts[payload["name"]] += 1
        assert job.attempt == 1 or payload["name"].startswith("fails")
        by_name(payload, job)
        if payload["name"].startswith("fails") and job.attempt == 1:
            raise ValueError("once")

    def slow(payload, job):
        go.wait(20)
        body(payload, job)

    names = [f"good{n}" for n in range(40)] + [f"fails{n}" for n in range(10)]
    s.add_many({"name": name} for name in names)
    with working(worker := quick(s, slow, concurrency=50, drain=5)):
        until(lambda: worker.health().running == 50)
        raw.execute_command("REPLICAOF", "127.0.0.1", "1")
        go.set()
        until(lambda: "read only replica" in caplog.text)
        time.sleep(2)  # beyond the lease
        assert effects(raw, s) == {}
        raw.execute_command("REPLICAOF", "NO", "ONE")
        begin = time.monotonic()
        until(lambda: is_idle(s), timeout=10)
        s.add({"name": "after"})
        until(lambda: effects(raw, s).get("after"), timeout=max(10 - (time.monotonic() - begin), 1))
    assert effects(raw, s) == dict.fromkeys([*names, "after"], 1)
    assert s.inspect().dead == 0


@pytest.mark.covers("C42")
@ONE_BACKEND
def test_memory_is_full_when_it_starts(own, caplog):
    _, s, raw = own(args=("--maxmemory-policy", "noeviction"))
    s.add({"name": "a"})
    raw.config_set("maxmemory", 1)
    with working(worker := quick(s, by_name)):
        until(lambda: "cannot be opened yet" in caplog.text)
        assert "maxmemory" in caplog.text
        assert worker.health().state == "starting"
        raw.config_set("maxmemory", 0)
        until(lambda: effects(raw, s) == {"a": 1} and is_idle(s), timeout=5)
        assert worker.health().state == "running"


@pytest.mark.covers("C32")
@TWO_BACKENDS
def test_a_stream_that_expires_is_made_again(own, handler):
    _, s, raw = own(lease=15)
    with working(quick(s, handler(by_name), block=0.5)):
        s.add({"name": "before"})
        until(lambda: effects(raw, s) and is_idle(s))
        raw.pexpire(s._spec.keys.stream, 50)
        time.sleep(0.5)  # it may be made again at once: nobody can wait to see it gone
        s.add({"name": "after"})
        until(lambda: effects(raw, s).get("after") and is_idle(s), timeout=5)
    assert effects(raw, s) == {"before": 1, "after": 1}


# --- rights -------------------------------------------------------------------------------


@pytest.mark.covers("C83")
@pytest.mark.parametrize("command", ["xautoclaim", "xack", "xreadgroup", "hset"])
@TWO_BACKENDS
def test_a_right_that_is_missing_at_the_start_is_named(own, command):
    _, s, raw = own(user="worker")
    raw.execute_command("ACL", "SETUSER", "worker", f"-{command}")
    s_all = s.inspect()
    with pytest.raises(ConfigurationError, match=rf"(?i){command}"):
        quick(s, by_name).run()
    assert s_all == s.inspect()


@pytest.mark.covers("C83")
@pytest.mark.parametrize(
    ("command", "symptom"), [("xreadgroup", "cannot be read"), ("xack", "not settled yet"), ("evalsha", "")]
)
@TWO_BACKENDS
def test_a_right_taken_away_and_given_back(own, command, symptom, caplog):
    """The worker says so, tries again at its leisure, and nothing is lost or charged for it."""
    _, s, raw = own(user="worker", lease=1, retries=0)
    starts = Counter()

    def body(payload, job):
        starts[payload["name"]] += 1
        by_name(payload, job)

    with Stream("jobs", redis=raw_url(raw), options=s.options) as others, working(quick(s, body, concurrency=2)):
        others.add({"name": "before"})
        until(lambda: is_idle(others) and effects(raw, others))
        raw.execute_command("ACL", "SETUSER", "worker", f"-{command}")
        begin, calls = time.monotonic(), raw.info("stats")["total_commands_processed"]
        others.add_many({"name": str(n)} for n in range(6))
        until(lambda: "lacks a permission" in caplog.text and symptom in caplog.text, timeout=5)
        time.sleep(1.5)
        asked = raw.info("stats")["total_commands_processed"] - calls
        assert asked <= 150 * (time.monotonic() - begin) + 100  # no hot loop
        assert others.inspect().dead == 0
        raw.execute_command("ACL", "SETUSER", "worker", f"+{command}")
        until(lambda: is_idle(others), timeout=10)
    assert effects(raw, others) == dict.fromkeys(["before", *map(str, range(6))], 1)
    assert set(starts.values()) == {1}


def raw_url(raw):
    where = raw.connection_pool.connection_kwargs
    return f"redis://{where['host']}:{where['port']}"


# --- a server that throws keys away -------------------------------------------------------


@pytest.mark.covers("C93")
@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-lru", "noeviction"])
@TWO_BACKENDS
def test_an_eviction_policy_is_warned_of_at_the_start(own, policy, caplog):
    _, s, _ = own(args=("--maxmemory-policy", policy))
    s.add({"name": "a"})
    with working(quick(s, by_name)):
        until(lambda: is_idle(s))
    warnings = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    if policy == "noeviction":
        assert warnings == []
    else:
        [warning] = warnings
        assert f"maxmemory-policy is {policy}" in warning
        assert "set it to noeviction" in warning
    assert s.inspect().groups["workers"].done == 1


@pytest.mark.covers("C93")
@ONE_BACKEND
def test_an_eviction_policy_that_may_not_be_asked_is_nobodys_warning(own, caplog):
    _, s, raw = own(args=("--maxmemory-policy", "allkeys-lru"), user="worker")
    raw.execute_command("ACL", "SETUSER", "worker", "-config")
    s.add({"name": "a"})
    with working(quick(s, by_name)):
        until(lambda: is_idle(s))
    assert [r.getMessage() for r in caplog.records if r.levelname == "WARNING"] == []


@pytest.mark.covers("C93")
@pytest.mark.parametrize("part", ["records", "meta", "workers"])
@TWO_BACKENDS
def test_keys_that_were_thrown_away_stop_nobody(make_stream, raw, part):
    """Beside the stream itself: what is remembered is lost with them, and the rest goes on."""
    s = make_stream(lease=0.5, retries=1)
    runs, go = Counter(), threading.Event()

    def body(payload, job):
        runs[payload["name"]] += 1
        go.wait(10)
        by_name(payload, job)
        if payload["name"] == "fails" and job.attempt == 1:
            raise ValueError("once")

    with working(worker := quick(s, body)):
        for name in ["a", "b", "fails"]:
            s.add({"name": name}, job_id=name)
        until(lambda: worker.health().running == 3)
        keys = s._spec.keys
        raw.delete(*{"records": (*keys.ids, *keys.done), "meta": [keys.meta], "workers": [keys.workers]}[part])
        go.set()
        until(lambda: is_idle(s))
        s.add({"name": "after"}, job_id="after")
        until(lambda: effects(raw, s).get("after") and is_idle(s))
    assert effects(raw, s) == dict.fromkeys(["a", "b", "fails", "after"], 1)
    assert runs == {"a": 1, "b": 1, "fails": 2, "after": 1}
    assert s.inspect().dead == 0


# --- how often a worker tries -------------------------------------------------------------


@pytest.fixture
def tries(monkeypatch):
    """Counts how often drivers ask for a connection, by kind."""
    counted = Counter()

    async def checkout(self, original=AsyncConnections._checkout):
        counted["async"] += 1
        return await original(self)

    def checkout_blocking(self, original=Connections._checkout):
        counted["blocking"] += 1
        return original(self)

    monkeypatch.setattr(AsyncConnections, "_checkout", checkout)
    monkeypatch.setattr(Connections, "_checkout", checkout_blocking)
    return counted


@pytest.mark.covers("R7")
@ONE_BACKEND
@pytest.mark.parametrize("seconds", [5, pytest.param(20, marks=pytest.mark.full)])
def test_tries_in_an_outage_are_few_and_go_on(own, tries, seconds):
    """Reading, maintenance, settling and heartbeats each try by themselves: quickly at first, then once a second."""
    server, s, _ = own(lease=1.5)
    go, begun = threading.Event(), Counter()

    def hold(payload, job):
        begun[payload["name"]] += 1
        if payload["name"] == "ends":
            go.wait(30)
        elif begun["holds"] == 1:
            time.sleep(seconds + 1)

    with working(worker := quick(s, hold, concurrency=4, drain=0)):
        s.add_many({"name": name} for name in ["ends", "holds"])
        until(lambda: len(begun) == 2)
        server.kill()
        tries.clear()
        go.set()
        time.sleep(seconds)
        # Per role: 0.1, 0.2, 0.4 and 0.8 s, then each second, give or take a fifth; a heartbeat each half second.
        assert seconds / 1.2 * 3 - 3 <= tries["async"] <= 3 * (seconds * 1.25 + 5)
        assert tries["blocking"] <= seconds / 0.5 + 2
        before = tries["async"]
        time.sleep(1.5)
        assert tries["async"] > before  # it never gives up
        assert worker.health().state == "running"
        server.start()
        s.add({"name": "after"})
        until(lambda: begun["after"], timeout=5)


@pytest.mark.covers("R7")
@ONE_BACKEND
@pytest.mark.parametrize("seconds", [0.5, 4])
def test_sigterm_in_a_back_off_ends_in_a_second(own, tmp_path, seconds):
    server, s, raw = own()
    with fleet.Fleet(server.url, "jobs", tmp_path) as f:
        f.start()
        until(lambda: raw.exists(s._spec.keys.stream))
        server.kill()
        time.sleep(seconds)
        begin = time.monotonic()
        f.processes[0].send_signal(signal.SIGTERM)
        assert f.processes[0].wait(10) == 0
        assert time.monotonic() - begin < 1.3 * PATIENCE  # of them some for the interpreter's own end


# --- mistakes of ours ---------------------------------------------------------------------


@pytest.fixture
def broken(monkeypatch):
    """Let the next `times` ticks fail as if by a mistake in the code."""
    left = [0]

    def tick(*args, original=maintenance.tick, **kwargs):
        if left[0]:
            left[0] -= 1
            raise RuntimeError("a mistake of ours")
        return original(*args, **kwargs)

    monkeypatch.setattr(maintenance, "tick", tick)

    def fail(times):
        left[0] = times

    return fail


@TWO_BACKENDS
def test_a_role_that_fails_begins_again(make_stream, broken, raw, caplog):
    s = make_stream(lease=0.4)
    broken(3)
    with working(quick(s, by_name)):
        s.add({"name": "a"})
        until(lambda: effects(raw, s))  # the others go on meanwhile
        until(lambda: "(3 in a row)" in caplog.text)
        s.add({"name": "left"})
        until(lambda: is_idle(s))
        s.add({"name": "stale"})
        s.read("dead")
        until(lambda: is_idle(s), timeout=5)  # it is maintained again
    failed = [record for record in caplog.records if record.exc_info and "role 'maintain" in record.getMessage()]
    assert len(failed) == 3
    assert "a mistake of ours" in caplog.text


@ONE_BACKEND
def test_a_role_that_fails_ten_times_in_a_row_ends_the_worker(make_stream, broken, monkeypatch, caplog):
    """Loudly: whoever runs it starts a new one. What it ran comes back by its lease."""
    assert roles.FAILURES == 10
    monkeypatch.setattr(roles, "FAILURES", 4)
    s = make_stream(lease=0.4)
    broken(4)
    worker = quick(s, by_name)
    with pytest.raises(RuntimeError, match="a mistake of ours"):
        worker.run()
    assert worker.health().state == "stopped"
    assert len([record for record in caplog.records if record.exc_info]) == 4
    s.add({"name": "a"})
    with working(quick(s, by_name)):
        until(lambda: is_idle(s))
