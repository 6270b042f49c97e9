"""Killed with SIGKILL at random times, and run again: nothing is lost, nothing is there twice."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
import warnings

import look
import pytest
from migrations.previous import layout, migrate, previous
from migrations.test_apply import work
from waiting import PATIENCE

from streamq import MigrationError
from streamq.connection import settings_of
from streamq.keys import Keys, migration_lock
from streamq.migrations import coordinator

DUE_S = 3_600


def fill(old, raw, count):
    """Jobs of all kinds, `count` in all: half of them wait, a tenth is pending, a tenth is dead."""
    tenth = count // 10
    old.groups.create("workers")
    old.add_many(({"n": n} for n in range(4 * tenth)), job_id=lambda job: f"job{job['n']}")
    for reading in range(0, 2 * tenth, 500):
        jobs = old.read(f"w{reading % 3}", count=min(500, 2 * tenth - reading))
        if reading < tenth:
            for job in jobs:
                old.reject(job, "no")
    old.add_many(({"n": n} for n in range(5 * tenth)), job_id=lambda job: f"later{job['n']}", delay=DUE_S)
    look.age(raw, old, idle=900)


def killed_after(url, deployment, seconds):
    """Apply in a process of its own, and kill it so much later; True if it came to its end before."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside threads of others, which it does not need
        child = os.fork()
    if child == 0:
        with contextlib.suppress(MigrationError):
            migrate(settings_of(url).blocking(), deployment, clean=False)
        os._exit(0)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.WIFEXITED(status)


def kill_and_finish(url, raw, driver, ns, *, count, kills, longest_s):
    with previous(url, "mail", ns) as old:
        fill(old, raw, count)
        before = layout(raw, old._spec.keys)
        keys = Keys("mail", ns)
        raw.xgroup_create(keys.stream, "workers", mkstream=True)  # so that entries are moved one by one
        ended = 0
        for _ in range(kills):
            ended += killed_after(url, ns, random.random() * longest_s)
            raw.delete(migration_lock(ns))
            if ended:
                break
        assert migrate(driver, ns).failed == []
        after = layout(raw, keys)
        assert (after.timers, after.dead, after.done) == (before.timers, before.dead, before.done)
        assert work(after, "workers") == work(before, "workers")
        assert set(after.ids) == set(before.ids)
        assert not list(raw.scan_iter(match=f"{ns}:streamq:mail:*", count=1_000))
        assert driver.run(coordinator.standing(ns))[0].state == "applied"
        assert not raw.exists(migration_lock(ns))


@pytest.mark.covers("M4", "C29")
@pytest.mark.parametrize("backend", ["redis-6.2", "valkey-9"], indirect=True)
def test_a_thousand_jobs_and_twenty_kills(redis_url, raw, driver, ns):
    kill_and_finish(redis_url, raw, driver, ns, count=1_000, kills=20, longest_s=0.03)


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.covers("M4", "C29")
def test_a_hundred_thousand_jobs_and_a_hundred_kills(redis_url, raw, driver, ns):
    kill_and_finish(redis_url, raw, driver, ns, count=100_000, kills=100, longest_s=0.15)


PING = """
import select, sys, time, redis
client = redis.Redis.from_url(sys.argv[1])
client.ping()
print("ready", flush=True)
took = []
while not select.select([sys.stdin], [], [], 0.002)[0]:
    began = time.perf_counter()
    client.ping()
    took.append((time.perf_counter() - began) * 1000)
print(*took)
"""


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.covers("M4")
def test_a_million_that_wait_move_fast_beside_others(redis_url, raw, driver, ns, capsys):
    old = Keys("mail", ns).untagged
    made = """for i = ARGV[1], ARGV[2] do local id = '/' .. string.format('%032d', i)
      redis.call('ZADD', KEYS[1], ARGV[3] + i, id)
      redis.call('HSET', KEYS[2], id, cmsgpack.pack({ 'job', '{"n": ' .. i .. '}', 'sq:id', id, 'sq:generated', '1' })) end"""
    for first in range(0, 1_000_000, 10_000):
        raw.eval(made, 2, old.scheduled, old.jobs, first, first + 9_999, look.server_ms(raw) + 3_600_000)
    # In a process of its own: a thread of this one would wait for the interpreter.
    pinging = subprocess.Popen([sys.executable, "-c", PING, redis_url], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert pinging.stdout.readline() == b"ready\n"
    began = time.perf_counter()
    assert migrate(driver, ns, clean=False).total("scheduled") == 1_000_000
    seconds = time.perf_counter() - began
    said, _ = pinging.communicate()
    took = sorted(map(float, said.split()))
    p50, p99 = took[len(took) // 2], took[len(took) * 99 // 100]
    figures = (
        f"{1_000_000 / seconds:,.0f} jobs/s; {len(took):,} PINGs: p50 {p50:.1f}, p99 {p99:.1f}, max {took[-1]:.1f} ms"
    )
    with capsys.disabled():
        sys.stdout.write(f"\n{figures}\n")
    assert raw.zcard(Keys("mail", ns).scheduled) == 1_000_000
    assert p99 < 50 * PATIENCE
    assert 1_000_000 / seconds > 5_000  # ten times slower machines
