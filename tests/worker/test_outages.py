"""Servers that go away, forget, refuse, or stay silent under a running worker."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter

import pytest
import redis
from waiting import PATIENCE, until
from worker.fleet import effects, is_idle, is_script, load, quick, working

from streamq import ConfigurationError, Release, StreamqError
from streamq.worker import maintenance

ONE_BACKEND = pytest.mark.parametrize("backend", ["redis-7.0"], indirect=True)
TWO_BACKENDS = pytest.mark.parametrize("backend", ["redis-6.2", "valkey-9"], indirect=True)

DEF_ONLY = pytest.mark.parametrize("kind", ["def"], indirect=True)


def by_name(payload, job):
    job.effects.hincrby("effects", payload["name"])


def owner(raw, stream):
    """Whose the only pending entry is."""
    [row] = raw.xpending_range(stream._spec.keys.stream, "workers", "-", "+", 1)
    return row["consumer"].decode()


def names(letters):
    """Name and reason of each dead letter."""
    return sorted((letter.payload.decode().split('"name":"')[1].split('"')[0], letter.reason) for letter in letters)


# --- the stream or the group is gone ------------------------------------------------------


def flush_all(raw, keys):
    raw.flushall()


def delete_stream(raw, keys):
    raw.delete(keys.stream)


def destroy_group(raw, keys):
    raw.xgroup_destroy(keys.stream, "workers")


@pytest.mark.covers("F14", "C32")
@pytest.mark.parametrize("loss", [flush_all, delete_stream, destroy_group])
def test_a_stream_or_group_that_vanishes_is_made_again(own, loss, caplog):
    _, s, raw = own(lease=15)

    def calls():
        return raw.info("commandstats").get("cmdstat_xreadgroup", {"calls": 0})["calls"]

    s.add({"name": "before"})
    # Its usual wait: what is counted is how often a quiet worker asks.
    with working(quick(s, by_name, block=0.5)):
        until(lambda: effects(raw, s) == {"before": 1} and is_idle(s))
        time.sleep(0.1)  # in its blocking read again
        loss(raw, s._spec.keys)
        before = calls()
        begin = time.monotonic()
        time.sleep(0.6)
        for name in "abc":
            s.add({"name": name})
        added = time.monotonic()
        until(lambda: {"a", "b", "c"} <= set(effects(raw, s)), timeout=5)
        assert time.monotonic() - added < 5 * PATIENCE
        assert calls() - before <= 2 * (time.monotonic() - begin) + 5
        until(lambda: is_idle(s))
    found = effects(raw, s)
    found.pop("before", None)
    assert found == {"a": 1, "b": 1, "c": 1}
    made_again = [record for record in caplog.records if "making it again" in record.getMessage()]
    assert len(made_again) <= 1  # told once


@pytest.mark.covers("F14", "C32")
@TWO_BACKENDS
def test_everything_is_flushed_under_load(own):
    _, s, raw = own(lease=15)
    with working(*(quick(s, by_name, block=4) for _ in range(2))):
        with load(s) as names:
            until(lambda: len(names) >= 200)
            raw.flushall()
            gone = len(names) + 10  # a batch may be on its way
            until(lambda: len(names) >= gone + 200)
        until(lambda: set(names[gone:]) <= effects(raw, s).keys(), timeout=2)
        until(lambda: is_idle(s))
    assert set(effects(raw, s).values()) == {1}


@pytest.mark.covers("F14", "C32")
@pytest.mark.parametrize("loss", [delete_stream, destroy_group])
def test_a_group_that_vanishes_before_a_reclaim(make_stream, raw, loss):
    """All slots are taken when the group goes, so that the next that is asked for it is a reclaim, not a read."""
    s = make_stream(lease=0.4)
    started, go = threading.Event(), threading.Event()

    def body(payload, job):
        if payload["name"] == "slow":
            started.set()
            go.wait(10)
        by_name(payload, job)

    s.add({"name": "slow"})
    with working(quick(s, body, concurrency=1)):
        assert started.wait(5)
        loss(raw, s._spec.keys)
        time.sleep(2 * maintenance.tick_ms(400) / 1000)
        go.set()
        s.add({"name": "after"})
        until(lambda: effects(raw, s).get("after"), timeout=5)


@pytest.mark.covers("C15")
def test_work_read_and_unread_when_its_group_is_destroyed_is_done_once(make_stream, raw):
    s = make_stream(lease=1)
    begun = []

    def body(payload, job):
        begun.append(payload["name"])
        by_name(payload, job)

    s.add_many(({"name": f"first{n}"} for n in range(5)), job_id=lambda payload: payload["name"])
    with working(quick(s, body)):
        until(lambda: is_idle(s))
    s.add_many(({"name": f"unread{n}"} for n in range(5)), job_id=lambda payload: payload["name"])
    raw.xgroup_destroy(s._spec.keys.stream, "workers")
    with working(quick(s, body)):
        s.add_many(({"name": f"last{n}"} for n in range(5)), job_id=lambda payload: payload["name"])
        until(lambda: len(effects(raw, s)) == 15 and is_idle(s))
    expected = {f"{when}{n}": 1 for when in ["first", "unread", "last"] for n in range(5)}
    assert effects(raw, s) == expected
    assert Counter(begun) == expected


@pytest.mark.covers("C15")
def test_with_retention_keep_a_group_made_again_does_not_repeat_what_is_done(make_stream, raw):
    s = make_stream(lease=1, retention="keep")
    s.add_many(({"name": f"first{n}"} for n in range(5)), job_id=lambda payload: payload["name"])
    with working(quick(s, by_name)):
        until(lambda: is_idle(s) and len(effects(raw, s)) == 5)
        raw.xgroup_destroy(s._spec.keys.stream, "workers")
        s.add({"name": "last"}, job_id="last")
        until(lambda: effects(raw, s).get("last") and is_idle(s))
    assert effects(raw, s) == {f"first{n}": 1 for n in range(5)} | {"last": 1}


# --- the server dies, or does not answer --------------------------------------------------


@TWO_BACKENDS
def test_a_server_killed_and_restarted_under_load(own, handler):
    server, s, _ = own(appendonly=True, args=("--appendfsync", "always"), lease=1.5)

    added, unknown = [], []
    finished = threading.Event()

    def produce():
        n = 0
        while not finished.is_set():
            name = str(n)
            n += 1
            while True:  # with a job ID, adding again is harmless
                try:
                    s.add({"name": name}, job_id=name)
                except StreamqError:
                    unknown.append(name)
                    time.sleep(0.02)
                    if finished.is_set():
                        return
                else:
                    added.append(name)
                    break
            time.sleep(0.002)

    with working(quick(s, handler(by_name, seconds=0.01), concurrency=8)):
        producer = threading.Thread(target=produce)
        producer.start()
        until(lambda: len(added) > 60)
        server.kill()
        time.sleep(0.5)
        server.start()
        size = len(added)
        until(lambda: len(added) > size + 60)
        finished.set()
        producer.join()
        watch = redis.Redis.from_url(server.url, single_connection_client=True)
        until(lambda: is_idle(s))
        found = {k.decode(): int(v) for k, v in watch.hgetall(s._spec.keys.data("effects")).items()}
        watch.close()
    assert set(added) <= set(found)
    assert set(found) <= set(added) | set(unknown)
    assert set(found.values()) == {1}
    assert s.inspect().dead == 0


@pytest.mark.covers("C43")
@ONE_BACKEND
def test_a_connection_that_stays_silent_is_given_up(make_stream, proxy, raw):
    s = make_stream(lease=1)
    behind = make_stream(redis=proxy.url, lease=1)
    with working(quick(behind, by_name, block=1)):
        s.add({"name": "before"})
        until(lambda: effects(raw, s) == {"before": 1})
        proxy.freeze()
        time.sleep(6.5)  # beyond the read timeout of 5 s
        s.add({"name": "during"})
        proxy.thaw()
        until(lambda: effects(raw, s).get("during"), timeout=11)
        until(lambda: is_idle(s))
    assert effects(raw, s) == {"before": 1, "during": 1}


@pytest.mark.covers("R7")
@ONE_BACKEND
def test_recovery_without_a_restart_and_a_prompt_stop_in_an_outage(own, caplog):
    server, s, _ = own(lease=1)
    worker = quick(s, by_name)
    with working(worker):
        s.add({"name": "a"})
        until(lambda: is_idle(s))
        server.kill()
        until(lambda: "in_a_row=3 " in caplog.text)
        server.start()
        s.add({"name": "b"})
        until(lambda: is_idle(s), timeout=5)
        failures = caplog.text.count("in_a_row=3 ")
        server.kill()
        until(lambda: caplog.text.count("in_a_row=3 ") > failures)
        begin = time.monotonic()
        worker.stop()
        until(lambda: "has stopped" in caplog.text or time.monotonic() - begin > 0.5)
    assert time.monotonic() - begin < 2 * PATIENCE  # of them half a second at most waiting to try again


@pytest.mark.covers("R7")
@ONE_BACKEND
def test_a_worker_may_be_started_before_its_server(own):
    server, s, _ = own(lease=1)
    server.kill()
    with working(quick(s, by_name)):
        time.sleep(0.4)
        server.start()
        s.add({"name": "a"})
        until(lambda: s.inspect().groups["workers"].done == 1 if s.inspect().groups else False, timeout=5)


@pytest.mark.covers("C31", "C76")
@ONE_BACKEND
def test_an_outage_longer_than_the_lease_starts_nothing_twice(own):
    """All leases have run out by then, and whose workers live is not known until they have reached the server, too."""
    server, s, _ = own(appendonly=True, args=("--appendfsync", "always"), lease=1)
    starts, gate = Counter(), threading.Event()

    def held(payload, job):
        starts[payload["name"]] += 1
        assert gate.wait(30)

    def are_renewed():
        rows = watch.xpending_range(s._spec.keys.stream, "workers", "-", "+", 10)
        return all(row["time_since_delivered"] < 1000 for row in rows)

    s.add_many({"name": str(n)} for n in range(6))
    with working(*(quick(s, held, concurrency=6) for _ in range(3))):
        try:
            until(lambda: len(starts) == 6)
            server.kill()
            time.sleep(1.5)
            server.start()
            with redis.Redis.from_url(server.url, single_connection_client=True) as watch:
                until(are_renewed)
        finally:
            gate.set()
        until(lambda: is_idle(s))
    assert set(starts.values()) == {1}


@pytest.mark.covers("R5")
@pytest.mark.parametrize(
    ("when", "script"),
    [("after", script) for script in ["ack", "commit", "retry", "dead_letter", "start", "reclaim"]]
    + [("before", "commit"), ("before", "retry")],
)
def test_a_lost_settlement_costs_no_attempt(make_stream, proxy, raw, script, when):
    """The connection breaks before or after the server has executed it: one effect, and the attempt is what it was."""
    s = make_stream(lease=0.6, retries=1)
    behind = make_stream(redis=proxy.url, lease=0.6, retries=1)
    seen = []

    def body(payload, job):
        seen.append((payload["name"], job.attempt))
        if script != "ack":
            job.effects.hincrby("effects", payload["name"])
        if (script == "retry" and job.attempt == 1) or script == "dead_letter":
            raise ValueError("fails")

    s.add({"name": "J"})
    if script in {"start", "reclaim"}:
        s.read("dead")
    trap = (proxy.cut_after if when == "after" else proxy.drop_before)(is_script(script))
    with working(quick(behind, body)):
        trap.wait()
        until(lambda: is_idle(s), timeout=8)
        s.add({"name": "next"})
        until(lambda: is_idle(s), timeout=8)
    runs = 2 if script in {"retry", "dead_letter"} else 1
    assert [one for one in seen if one[0] == "J"] == [("J", n) for n in range(1, runs + 1)]
    if script == "dead_letter":
        assert names(s.dead_letters.list()) == [("J", "attempts"), ("next", "attempts")]
    else:
        assert s.inspect().dead == 0
        assert effects(raw, s) == ({} if script == "ack" else {"J": 1, "next": 1})


@pytest.mark.covers("R5", "C01")
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_lost_read_strands_nothing(make_stream, proxy, raw, when):
    s = make_stream(lease=30)  # nobody waits for that: the reader itself finds what it was given
    behind = make_stream(redis=proxy.url, lease=30)
    runs = Counter()

    def body(payload, job):
        runs[payload["name"]] += 1
        by_name(payload, job)

    def is_read(command):
        return command[0] == b"XREADGROUP"

    with working(quick(behind, body, block=1)):
        until(lambda: proxy.count(is_read) > 0)
        trap = (proxy.cut_after if when == "after" else proxy.drop_before)(is_read)
        s.add_many({"name": str(n)} for n in range(30))
        trap.wait()
        until(lambda: is_idle(s), timeout=5)
    assert effects(raw, s) == {str(n): 1 for n in range(30)}
    assert set(runs.values()) == {1}


@pytest.mark.covers("R5", "C05")
@pytest.mark.parametrize("is_suspect", [False, True])
def test_a_lost_read_brings_back_nothing_that_was_given_back(make_stream, proxy, raw, is_suspect):
    """What a handler released waits for its time, and the start after it counts, though a read is lost meanwhile."""
    s = make_stream(lease=1.5)
    behind = make_stream(redis=proxy.url, lease=1.5)
    starts, seen = [], set()

    def body(payload, job):
        if payload["name"] == "released":
            starts.append((time.monotonic(), job.deliveries))
            if len(starts) == 1:
                raise Release("not now")
        seen.add(payload["name"])

    def is_read(command):
        return command[0] == b"XREADGROUP"

    s.add({"name": "released"})
    if is_suspect:
        s.read("dead")
    with working(quick(behind, body, block=1)):
        until(lambda: starts and proxy.count(is_script("release")))
        trap = proxy.cut_after(is_read)
        s.add({"name": "lost"})
        trap.wait()
        until(lambda: "lost" in seen, timeout=5)
        until(lambda: is_idle(s), timeout=8)
    (first, counted), (second, again) = starts
    assert second - first > 1.4
    assert (counted, again) == ((2, 2) if is_suspect else (1, 1))  # a release takes its charge back
    assert seen == {"released", "lost"}


# --- the server forgets scripts, or refuses -----------------------------------------------


@pytest.mark.covers("C59", "R8")
@DEF_ONLY
def test_scripts_flushed_all_the_time(make_stream, handler, raw, redis_url, caplog):
    s = make_stream(lease=2, retries=3)
    attempts = Counter()

    def body(payload, job):
        attempts[payload["name"]] += 1
        by_name(payload, job)
        if payload["n"] % 10 == 0 and job.attempt == 1:
            raise ValueError("once")

    over = threading.Event()

    def flush():
        with redis.Redis.from_url(redis_url) as client:
            while not over.wait(0.05):
                client.script_flush()

    flusher = threading.Thread(target=flush)
    flusher.start()
    try:
        with working(quick(s, handler(body, seconds=0.005), concurrency=5)):
            s.add_many(({"name": str(n), "n": n} for n in range(500)), job_id=lambda payload: payload["name"])
            until(lambda: is_idle(s))
    finally:
        over.set()
        flusher.join()
    assert effects(raw, s) == {str(n): 1 for n in range(500)}
    assert attempts == {str(n): 2 if n % 10 == 0 else 1 for n in range(500)}
    assert "NOSCRIPT" not in caplog.text
    assert s.inspect().dead == 0


@pytest.mark.covers("C89")
def test_a_key_of_another_type_ends_the_start(make_stream, raw):
    s = make_stream()
    raw.set(s._spec.keys.stream, "mine")
    with pytest.raises(ConfigurationError, match=rf"{s._spec.keys.stream} holds a string, not a stream"):
        quick(s, by_name).run()
    assert raw.get(s._spec.keys.stream) == b"mine"


@pytest.mark.covers("C89")
@TWO_BACKENDS
def test_a_key_that_changes_its_type_under_the_worker(make_stream, proxy, raw, caplog):
    s = make_stream(lease=1)
    behind = make_stream(redis=proxy.url, lease=1)
    key = s._spec.keys.stream
    with working(quick(behind, by_name, block=0.5)):
        s.add({"name": "before"})
        until(lambda: is_idle(s) and effects(raw, s))
        raw.set(key, "mine")
        until(lambda: "cannot be read" in caplog.text, timeout=5)
        before, begin = len(proxy.commands), time.monotonic()
        time.sleep(1.5)
        tries = len([r for r in caplog.records if "cannot be read" in r.getMessage()])
        # A try may be a few commands: a reclaim's token, the reclaim itself, looking for what was lost.
        assert len(proxy.commands) - before <= 8 * (time.monotonic() - begin)
        assert tries <= 6
        assert raw.get(key) == b"mine"
        raw.delete(key)
        s.add({"name": "after"})
        until(lambda: effects(raw, s).get("after"), timeout=6)
        until(lambda: is_idle(s))
    assert effects(raw, s) == {"before": 1, "after": 1}


@pytest.mark.covers("C42")
@pytest.mark.parametrize("with_effects", [False, True], ids=["plain", "effects"])
def test_memory_is_full_while_jobs_end(own, with_effects):
    _, s, raw = own(lease=1, retries=1)
    gate = threading.Event()
    starts = Counter()

    def body(payload, job):
        starts[payload["name"]] += 1
        if job.attempt == 1:
            gate.wait(20)
        if payload["name"].startswith("poison"):
            raise ValueError("always")
        if payload["name"].startswith("fails") and job.attempt == 1:
            raise ValueError("once")
        if with_effects:
            by_name(payload, job)

    good = [f"good{n}" for n in range(4)]
    fails = [f"fails{n}" for n in range(4)]
    s.add_many({"name": name} for name in [*good, *fails, "poison0", "poison1"])
    with working(quick(s, body, concurrency=16, drain=1)):
        until(lambda: len(starts) == 10)
        raw.config_set("maxmemory-policy", "noeviction")
        raw.config_set("maxmemory", 1)
        gate.set()
        before = raw.info("stats")["total_commands_processed"]
        begin = time.monotonic()
        time.sleep(1)
        # 10 outcomes, tried again after 0.1 s, 0.2 s, ... up to 1 s, and a dozen commands in each script. No hot loop.
        assert raw.info("stats")["total_commands_processed"] - before < 1000 * (time.monotonic() - begin)
        if not with_effects:
            assert s.inspect().groups["workers"].done == len(good)  # acknowledging works while memory is full
        raw.config_set("maxmemory", 0)
        until(lambda: is_idle(s), timeout=8)
    if with_effects:
        assert effects(raw, s) == dict.fromkeys([*good, *fails], 1)
    assert names(s.dead_letters.list()) == [("poison0", "attempts"), ("poison1", "attempts")]
    assert starts == dict.fromkeys(good, 1) | dict.fromkeys([*fails, "poison0", "poison1"], 2)


@pytest.mark.covers("C42")
def test_a_spent_job_that_cannot_be_dead_lettered_is_not_started_again(own):
    """It is this worker's while memory is full, and a lost read must not take it for one that was read."""
    _, s, raw = own(lease=0.5, max_deliveries=2)
    s.add({"name": "killer"})
    assert s.read("first")
    time.sleep(0.6)
    assert s.reclaim("second").claimed
    starts = []
    raw.config_set("maxmemory-policy", "noeviction")
    raw.config_set("maxmemory", 1)
    with working(quick(s, lambda payload: starts.append(payload["name"]))):
        until(lambda: owner(raw, s) not in ("first", "second"))
        for _ in range(5):
            raw.client_kill_filter(_type="normal", skipme=True)
            time.sleep(0.3)
        raw.config_set("maxmemory", 0)
        until(lambda: is_idle(s))
    assert starts == []
    assert names(s.dead_letters.list()) == [("killer", "deliveries")]


# --- nothing goes on ----------------------------------------------------------------------


@pytest.mark.covers("C87", "C88")
def test_idle_on_an_empty_database(own, caplog):
    caplog.set_level(logging.INFO)
    server, s, raw = own(lease=0.8)
    seen = []
    with redis.Redis.from_url(server.url) as client, client.monitor() as monitor:
        with working(quick(s, by_name, block=1)):
            time.sleep(1.5)
            added = time.monotonic()
            s.add({"name": "first"})
            until(lambda: effects(raw, s), timeout=1)
            assert time.monotonic() - added < PATIENCE
            # A batch in which every entry failed, and one of entries whose body is gone.
            for n in range(5):
                raw.xadd(s._spec.keys.stream, {"job": "no json", "n": n})
            until(lambda: s.inspect().dead == 5)
            with raw.pipeline(transaction=True) as together:  # so that this reader gets them, not the worker
                for n in range(3):
                    together.xadd(s._spec.keys.stream, {"job": "{}"}, id=f"99999999999999-{n}")
                together.xreadgroup("workers", "dead", {s._spec.keys.stream: ">"})
                together.xdel(s._spec.keys.stream, *(f"99999999999999-{n}" for n in range(3)))
                together.execute()
            until(lambda: is_idle(s))
        raw.echo("over")
        while "over" not in (command := monitor.next_command()["command"]):
            seen.append(command.split())
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR] == []
    quiet = [
        r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING and "body is gone" not in r.getMessage()
    ]
    assert quiet == []
    for words in seen:
        least = {"XACK": 4, "XDEL": 3, "XCLAIM": 6, "ZREM": 3, "HDEL": 3}.get(words[0].upper())
        assert least is None or len(words) >= least, words


@pytest.mark.covers("C87")
@ONE_BACKEND
def test_an_idle_worker_asks_seldom(own):
    _, s, raw = own()
    with working(quick(s, by_name, block=1)):
        until(lambda: s.inspect().groups)
        time.sleep(0.3)
        before = raw.info("stats")["total_commands_processed"]
        time.sleep(2)
        assert raw.info("stats")["total_commands_processed"] - before <= 20


# --- stopping in the middle ---------------------------------------------------------------


@pytest.mark.covers("C01")
@ONE_BACKEND
def test_stop_within_milliseconds_of_an_add(make_stream, raw):
    s = make_stream(lease=0.5)
    runs = Counter()

    def body(payload, job):
        runs[payload["name"]] += 1
        by_name(payload, job)

    for n in range(40):
        worker = quick(s, body, block=0.1)
        with working(worker):
            until(lambda: any("b" in client["flags"] for client in raw.client_list()))  # it waits for a job
            s.add({"name": str(n)})
            time.sleep(n % 8 / 4000)
            worker.stop()
    # What a stopped worker was given, it has run or given back uncharged: nothing waits for its lease.
    left = raw.xpending_range(s._spec.keys.stream, "workers", "-", "+", 100)
    assert [row["times_delivered"] for row in left] == [0] * len(left)
    with working(quick(s, body)):
        until(lambda: is_idle(s))
    assert effects(raw, s) == {str(n): 1 for n in range(40)}
    assert set(runs.values()) == {1}


@pytest.mark.covers("C01")
def test_stop_beside_another_worker(make_stream, raw):
    s = make_stream(lease=0.5)
    with working(quick(s, by_name)):
        for n in range(20):
            worker = quick(s, by_name)
            with working(worker):
                s.add({"name": str(n)})
                time.sleep(n % 5 / 2000)
                worker.stop()
        until(lambda: is_idle(s))
    assert effects(raw, s) == {str(n): 1 for n in range(20)}
