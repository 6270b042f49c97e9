"""What was built by hand comes under streamq: nothing is lost, nothing is there twice, and nothing else is touched."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import look
import pytest
import redis
from cli import shell
from migrations.by_hand import DAY_MS, T0, HandBuilt, take_over
from migrations.previous import OWNER, Steps, stored
from waiting import until

from streamq import MigrationError, Stream, StreamOptions
from streamq.connection import settings_of
from streamq.errors import ConfigurationError
from streamq.keys import Keys, migration_lock
from streamq.migrations import adopt, coordinator
from streamq.migrations.adopt_source import Source
from streamq.migrations.adopt_source import look as look_at

ON_ONE = pytest.mark.parametrize("backend", ["valkey-9"], indirect=True)
"""The same requests on all servers."""


@pytest.fixture
def built(raw, ns):
    return HandBuilt(raw, ns).fill()


@pytest.fixture
def cli(redis_url, ns, built):
    def call(*args, group="senders"):
        return shell.call(
            *("migrate", "adopt", "--stream", built.stream, "--group", group, "--as", "mail"),
            *("--url", redis_url, "--deployment", ns, *args),
        )

    return call


TIMERS = ("--scheduled", "{ns}-due", "--bodies", "{ns}-bodies")


@pytest.mark.parametrize("backend", ["redis-6.2", "valkey-9"], indirect=True)
@pytest.mark.covers("C29")
def test_a_stream_is_renamed_with_all_that_groups_know_of_it(driver, raw, ns, built):
    before, entries, groups = built.whole(), look.entries(raw, built.stream), raw.xinfo_groups(built.stream)
    idle = {
        row["message_id"]: row["time_since_delivered"]
        for row in raw.xpending_range(built.stream, "senders", "-", "+", 9)
    }
    done = take_over(driver, ns, built.source)
    assert (done.entries, done.dead, done.scheduled, done.failed) == (8, 3, 4, [])
    assert built.whole() == before
    assert look.entries(raw, built.keys.stream) == entries
    for was, now in zip(groups, raw.xinfo_groups(built.keys.stream), strict=True):
        assert (was["name"], was["pending"], was["last-delivered-id"]) == (
            now["name"],
            now["pending"],
            now["last-delivered-id"],
        )
    for row in raw.xpending_range(built.keys.stream, "senders", "-", "+", 9):
        assert row["time_since_delivered"] >= idle[row["message_id"]]
    assert [row["name"] for row in raw.xinfo_groups(built.stream)] == [b"audit", b"senders"]
    assert raw.xlen(built.stream) == 0
    assert not raw.exists(built.times, built.bodies, migration_lock(ns))


def test_dead_letters_and_timers_are_those_of_the_format(driver, redis_url, raw, ns, built):
    take_over(driver, ns, built.source)
    options = StreamOptions(group="senders", groups=("audit",))
    with Stream("mail", redis=redis_url, deployment=ns, options=options) as s:
        letters = s.dead_letters.list()
        assert [(letter.reason, letter.source_id, letter.group) for letter in letters] == [
            ("adopted", f"{T0 + n}-0", "senders") for n in range(3)
        ]
        [(_, fields)] = look.entries(raw, built.keys.dead)[:1]
        assert fields[-3:] == [(b"job", b'{"d": 0}'), (b"why", b"no"), (b"dead:dead:x", b"y")]
        s.dead_letters.redrive([letters[0].id])
        assert sorted(job.job_id for job in s.scheduled.list()) == [f"later/{n}" for n in range(4)]
        assert s.scheduled.run_now("later/2")
        jobs = s.read("w", count=10)
        assert [job.payload for job in jobs] == [{"n": 6}, {"n": 7}, {"d": 0}, {"l": 2}]
        assert jobs[-1].id == "later/2"
        assert [(job.payload, job.deliveries) for job in s.reclaim("w", min_idle=100).claimed] == [
            ({"n": 2}, 2),
            ({"n": 3}, 4),
        ]
        assert s.dead_letters.list()[-1].reason == "deliveries"  # the eighth


@pytest.mark.parametrize("backend", ["redis-6.2", "valkey-9"], indirect=True)
def test_a_payload_of_another_name_is_job_afterwards(driver, redis_url, raw, ns):
    built = HandBuilt(raw, ns, "data").fill()
    raw.xadd(built.stream, {"job": "kind", "data": '{"n": 8}'}, id=f"{T0 + 8}-1")
    before = built.whole()
    done = take_over(driver, ns, built.source)
    assert done.failed == []
    after = built.whole()
    assert (after.dead, after.timers, after.unread) == (before.dead, before.timers, before.unread)
    assert after.pending == before.pending
    last = look.entries(raw, built.keys.stream)[-1][1]
    assert last[:2] == [(b"was:job", b"kind"), (b"job", b'{"n": 8}')]
    assert (b"sq:id", f"{T0 + 8}-1".encode()) in last


@ON_ONE
def test_what_was_written_since_is_taken_over_and_then_the_old_keys_go(driver, raw, ns, built):
    take_over(driver, ns, built.source)
    raw.xadd(built.stream, {"job": '{"n": 9}'}, id=f"{T0 + 9}-1")
    raw.zadd(built.times, {"late": look.server_ms(raw) + DAY_MS})
    raw.hset(built.bodies, "late", "{}")
    before = built.whole()
    done = take_over(driver, ns, built.source, clean=True)
    assert (done.entries, done.scheduled, done.removed, done.failed) == (1, 1, 2, [])
    assert not raw.exists(*built.source.kinds)
    assert built.whole() == before


@pytest.mark.parametrize("how", ["written", "read"])
@ON_ONE
def test_old_keys_in_use_are_not_removed(driver, raw, ns, built, how):
    take_over(driver, ns, built.source)
    if how == "written":
        raw.xadd(built.stream, {"job": "{}"})
    else:
        raw.xgroup_createconsumer(built.stream, "senders", "w0")  # as reading does; on 6.2 only if there is an entry
    before = look.dumps(raw, ns)
    with pytest.raises(MigrationError, match="somebody still uses it"):
        take_over(driver, ns, built.source, clean=True)
    assert look.dumps(raw, ns) == before


@pytest.mark.parametrize("payload", ["job", "data"])
@pytest.mark.parametrize("clean", [False, True], ids=["adopt", "remove"])
@pytest.mark.covers("C29")
@ON_ONE
def test_it_may_be_broken_off_after_each_request(driver, raw, ns, payload, clean):
    built = HandBuilt(raw, ns, payload).fill()
    if clean:
        take_over(driver, ns, built.source)
        for group, consumer in (("senders", "w0"), ("senders", "w1"), ("senders", "w2"), ("audit", "a0")):
            raw.xgroup_delconsumer(built.stream, group, consumer)  # they read a moment ago
        raw.xadd(built.stream, {payload: '{"n": 9}'}, id=f"{T0 + 9}-1")
        raw.zadd(built.times, {"late": look.server_ms(raw) + DAY_MS})
        raw.hset(built.bodies, "late", "{}")
    before, put_back = built.whole(), stored(raw, ns)
    lock = coordinator.new_lock(ns, OWNER)
    work = adopt.clean if clean else adopt.move
    for taken in range(100):
        driver.run(coordinator.acquire(lock, ns))
        steps = Steps(driver, work(lock, built.source, built.keys, lambda _: None))
        ended = steps.take(taken)
        steps.drop()
        assert built.whole() == before, f"after {taken} requests"
        raw.unlink(lock.key)
        assert take_over(driver, ns, built.source, clean=clean).failed == []
        assert built.whole() == before, f"after {taken} requests and once more"
        assert raw.xlen(built.stream) == raw.exists(built.times, built.bodies) == 0
        if ended:
            return
        put_back()
    pytest.fail("it does not end")


@ON_ONE
def test_the_third_run_changes_nothing(cli, raw, ns, built):
    words = ("--dead", built.dead, *(word.format(ns=ns) for word in TIMERS), "--yes")
    assert cli(*words).returncode == 0
    before = look.dumps(raw, ns)
    done = cli(*words)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "mail: nothing to move")
    assert look.dumps(raw, ns) == before


@ON_ONE
def test_what_cannot_be_moved_is_named_and_stays(cli, raw, ns, built):
    raw.zadd(built.times, {"nothing": T0})
    raw.hset(built.bodies, "untimed", "{}")
    done = cli(*(word.format(ns=ns) for word in TIMERS), "--yes")
    assert done.returncode == 1
    assert f"1 of {built.times} have no payload: nothing" in done.stderr
    assert f"1 of {built.bodies} have no time in {built.times}: untimed" in done.stderr
    assert raw.zrange(built.times, 0, -1) == [b"nothing"]
    assert raw.hkeys(built.bodies) == [b"untimed"]
    assert raw.zcard(built.keys.scheduled) == 4
    assert raw.xlen(built.dead) == 3  # it was not named


@ON_ONE
def test_a_dry_run_says_what_there_is_and_changes_nothing(cli, raw, ns, built):
    raw.xadd(built.stream, {"other": "1"}, id=f"{T0 + 20}-0")
    raw.xadd(built.stream, {"job": "{"}, id=f"{T0 + 21}-0")
    before = look.dumps(raw, ns)
    words = ("--dead", built.dead, *(word.format(ns=ns) for word in TIMERS), "--dry-run")
    done, told = cli(*words), cli(*words, "--json")
    assert (done.returncode, told.returncode) == (0, 0)
    assert "use it with StreamOptions(group='senders', groups=('audit',))" in done.stdout
    assert "of the first 10 entries, 8 have a field job that is JSON; 1 have none" in done.stdout
    found = json.loads(told.stdout)
    assert (found["entries"], found["dead"], found["scheduled"], found["way"]) == (10, 3, 4, "rename")
    assert found["sample"] | {"fields": None} == {"looked": 10, "without": 1, "undecodable": 1, "fields": None}
    assert look.dumps(raw, ns) == before


@ON_ONE
def test_bad_input_is_one_line_and_touches_nothing(cli, raw, ns, built):
    raw.set(f"{ns}-text", "x")
    raw.zadd(f"{ns}-seconds", {"later/0": T0 / 1000})
    cases = {
        (2, "there is no key"): cli("--dead", f"{ns}-none", "--yes"),
    }
    before = look.dumps(raw, ns)
    cases |= {
        (2, "holds a string, not a stream"): cli("--dead", f"{ns}-text", "--yes"),
        (2, "has no group nobody: it has audit, senders"): cli("--yes", group="nobody"),
        (2, "give both --scheduled and --bodies"): cli("--scheduled", built.times, "--yes"),
        (2, "is given twice"): cli("--dead", built.stream, "--yes"),
        (2, "is streamq's already"): cli("--dead", built.keys.dead, "--yes"),
        (2, "Say with --payload-field which one holds the payload: job, trace"): cli(
            "--payload-field", "body", "--yes"
        ),
        (2, "are no ms"): cli("--scheduled", f"{ns}-seconds", "--bodies", built.bodies, "--yes"),
        (3, "not confirmed"): cli(),
    }
    for (status, words), done in cases.items():
        last = [line for line in done.stderr.splitlines() if line]
        assert (done.returncode, len(last)) == (status, 1), done
        assert words in last[0]
    assert look.dumps(raw, ns) == before


@ON_ONE
@pytest.mark.parametrize("typed", [b"no\n", b"y\n"])
def test_it_says_what_there_is_and_asks(redis_url, raw, ns, built, typed):
    words = ("--stream", built.stream, "--group", "senders", "--as", "mail", "--url", redis_url, "--deployment", ns)
    before = look.dumps(raw, ns)
    done = shell.at_terminal("migrate", "adopt", *words, columns=160, rows=40, typed=typed)
    assert done.returncode == (0 if typed == b"y\n" else 3)
    assert "group senders: 4 pending" in done.stdout
    assert (look.dumps(raw, ns) == before) is (done.returncode != 0)


@ON_ONE
def test_a_name_that_is_taken_and_a_lock_that_is_held_are_refused(cli, raw, redis_url, ns, built):
    raw.set(migration_lock(ns), "other:1:x", px=30_000)
    done = cli("--yes")
    assert (done.returncode, done.stderr.count("\n")) == (3, 1)
    assert "is migrating already" in done.stderr
    raw.unlink(migration_lock(ns))
    with Stream("mail", redis=redis_url, deployment=ns) as s:
        s.add({})
    before = look.dumps(raw, ns)
    done = cli("--yes")
    assert (done.returncode, "there is a stream mail already" in done.stderr) == (3, True)
    assert look.dumps(raw, ns) == before


@ON_ONE
def test_another_source_under_the_same_name_is_refused(driver, raw, ns, built):
    take_over(driver, ns, built.source)
    raw.xadd(f"{ns}-more", {"job": "{}"})
    raw.xgroup_create(f"{ns}-more", "senders", "0")
    with pytest.raises(MigrationError, match="was adopted with --stream"):
        driver.run(look_at(Source(f"{ns}-more", "senders"), built.keys))


@ON_ONE
def test_a_lock_that_ran_out_stops_its_owner_before_the_next_batch(driver, raw, ns, built):
    lock = coordinator.new_lock(ns, OWNER)
    driver.run(coordinator.acquire(lock, ns))
    steps = Steps(driver, adopt.held(adopt.move(lock, built.source, built.keys, lambda _: None)))
    steps.take(5)
    raw.set(lock.key, "other:1:x")
    before = look.dumps(raw, ns)
    with pytest.raises(MigrationError, match="the lock ran out"):
        steps.take(50)
    assert look.dumps(raw, ns) == before


@ON_ONE
def test_foreign_keys_stay_as_they_are(driver, raw, ns, built):
    for n in range(20):
        raw.set(f"{ns}-mails:{n}", n)
    raw.xadd(f"{ns}-mails2", {"job": "{}"})
    before = look.dumps(raw, f"{ns}-mails:") | look.dumps(raw, f"{ns}-mails2")
    take_over(driver, ns, built.source)
    take_over(driver, ns, built.source, clean=True)
    assert look.dumps(raw, f"{ns}-mails:") | look.dumps(raw, f"{ns}-mails2") == before


@ON_ONE
def test_a_reader_that_waits_feels_nothing(driver, redis_url, raw, ns, built):
    raw.xreadgroup("senders", "w0", {built.stream: ">"})

    def read_one():
        with redis.Redis.from_url(redis_url) as other:
            while True:  # 6.2 wakes it for nothing
                for _, entries in other.xreadgroup("senders", "w0", {built.stream: ">"}, block=60_000):
                    for _, fields in entries:
                        return fields

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(read_one)
        until(lambda: int(raw.info("clients")["blocked_clients"]) > 0)
        take_over(driver, ns, built.source)
        raw.xadd(built.stream, {"job": '{"n": 10}'})
        assert waiting.result(timeout=60) == {b"job": b'{"n": 10}'}


@ON_ONE
def test_names_are_checked(driver, ns):
    with pytest.raises(ConfigurationError, match="group"):
        driver.run(look_at(Source(f"{ns}-x", "a/b"), Keys("mail", ns)))


def killed_after(url, deployment, source, seconds):
    """Adopt in a process of its own, and kill it so much later; True if it came to its end before."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside threads of others, which it does not need
        child = os.fork()
    if child == 0:
        with contextlib.suppress(MigrationError):
            take_over(settings_of(url).blocking(), deployment, source)
        os._exit(0)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.WIFEXITED(status)


@pytest.mark.full
@pytest.mark.covers("C29")
@ON_ONE
def test_killed_at_random_times_and_run_again(redis_url, driver, raw, ns):
    built = HandBuilt(raw, ns, "data").fill()
    pipe = raw.pipeline(transaction=False)
    for n in range(10, 2_000):
        pipe.xadd(built.stream, {"data": json.dumps({"n": n})}, id=f"{T0 + n}-1")
        pipe.xadd(built.dead, {"data": json.dumps({"d": n})}, id=f"{T0 + n}-1")
        pipe.zadd(built.times, {f"more/{n}": look.server_ms(raw) + DAY_MS})
        pipe.hset(built.bodies, f"more/{n}", "{}")
    pipe.execute()
    before = built.whole()
    ended = False
    for _ in range(20):
        ended = ended or killed_after(redis_url, ns, built.source, random.random() * 0.1)
        assert built.whole() == before
        raw.unlink(migration_lock(ns))
    assert take_over(driver, ns, built.source).failed == []
    assert built.whole() == before
    assert raw.xlen(built.stream) == raw.xlen(built.dead) == raw.exists(built.times, built.bodies) == 0
