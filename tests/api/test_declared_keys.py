"""Scripts touch the keys that they are given, and no others: a cluster could not tell where to send them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from unittest import mock

import clusters
import look
import pytest
import redis
from migrations.by_hand import HandBuilt, take_over
from migrations.previous import fill, migrate, previous

from streamq import Backoff, Effects, QueueFullError, _scripts
from streamq._drivers import exchange
from streamq._flows import checkup, recovery
from streamq._ops import identity, lease, trim
from streamq._scripts import Fence, Held, Source
from streamq.connection import settings_of
from streamq.keys import Keys, slot_of
from streamq.migrations import adopt, adopt_copy
from streamq.worker import maintenance

NAMES = sorted(path.stem for path in (Path(__file__).parents[2] / "lua").glob("*.lua"))

# Compares every key with the declared ones, on any server.
HARNESS = """
local real, declared = redis, {}
for _, key in ipairs(KEYS) do declared[key] = true end
local function check(command, a, b, ...)
  if command == 'TIME' then return end
  local key = a
  if command == 'XINFO' or command == 'XGROUP' or command == 'XREAD' then key = b end
  if command == 'XREADGROUP' then key = select(3, ...) end
  if not declared[key] then error('HARNESS ' .. command .. ' on undeclared key ' .. tostring(key)) end
end
local function checked(f)
  return function(command, ...)
    if command == 'DEL' or command == 'UNLINK' or command == 'EXISTS' then
      for _, key in ipairs({ ... }) do check(command, key) end
    else
      check(command, ...)
    end
    return f(command, ...)
  end
end
local redis = setmetatable({ call = checked(real.call), pcall = checked(real.pcall) }, { __index = real })
"""


# With this line in front, a node of a cluster refuses keys of other slots than those of the declared ones, from 7.0 on.
STRICT = "#!lua\n"


@pytest.fixture
def harness(monkeypatch, server):
    """All scripts run under one of both, or both on a cluster; gives the names of those that did."""
    front = STRICT + HARNESS if isinstance(server, clusters.Cluster) else HARNESS
    plain, ran = _scripts.source, set()

    def source(name):
        ran.add(name)
        whole = front + plain(name).text
        return Source(whole, hashlib.sha1(whole.encode()).hexdigest())

    monkeypatch.setattr(exchange, "source", source)
    return ran


@pytest.mark.covers("C60")
def test_the_harness_finds_an_undeclared_key(raw, ns):
    with pytest.raises(Exception, match="HARNESS GET on undeclared key"):
        raw.eval(f"{HARNESS} return redis.call('GET', ARGV[1])", 1, f"{ns}-a", f"{ns}-b")
    assert raw.eval(f"{HARNESS} return redis.call('GET', KEYS[1])", 1, f"{ns}-a") is None


def timers(s, raw):
    """All that is done with jobs that wait."""
    for n in range(4):
        s.add({"n": n}, job_id=f"t{n}", delay=60)
    s.add({}, job_id="t0", delay=0, replace=True)
    s.add({}, job_id="t1", delay=90, replace=True)
    assert not s.add({}, job_id="t1").created
    s.scheduled.reschedule("t1", delay=0)
    assert s.scheduled.run_now("t2")
    assert s.scheduled.cancel("t3")
    raw.zadd(s._spec.keys.scheduled, {"/lost": 1, "/odd": 2})
    raw.hset(s._spec.keys.jobs, mapping={"/odd": "?", "/untimed": "?"})
    assert s.promote() == 1
    assert s.promote() == 0
    assert not raw.exists(s._spec.keys.scheduled, s._spec.keys.jobs)


@pytest.mark.covers("C2")
def test_a_cluster_finds_a_key_of_another_slot(server, raw, ns):
    if not isinstance(server, clusters.Cluster):
        pytest.skip("needs a cluster")
    script, tag = "return redis.call('GET', ARGV[1])", f"{{{ns}}}"
    home = server.primary_of(tag)
    # Another slot of the same node: without that line it would not mind.
    near = next(key for n in range(10_000) if server.primary_of(slot_of(key := f"{{{ns}-{n}}}")) is home)
    assert raw.eval(script, 1, tag, near) is None
    with pytest.raises(redis.ResponseError, match="do not hash to the same slot"):
        raw.eval(STRICT + script, 1, tag, near)
    assert raw.eval(STRICT + script, 1, tag, f"{tag}:other") is None


@pytest.mark.covers("C2", "F17", "C60")
@pytest.mark.parametrize("retention", ["delete", "keep"])
def test_scripts_touch_declared_keys_only(make_stream, raw, harness, retention):
    s = make_stream(retention=retention, max_deliveries=3, retry=Backoff.constant(0, limit=1))
    other = make_stream(group="other")  # its entries must be looked at before one is deleted
    other.read("w")
    for n in range(12):
        s.add({"n": n}, job_id=f"j{n}")
    s.add({}, job_id="j0")
    raw.xadd(s._spec.keys.stream, {"job": "{}", "sq:id": "j0"})
    raw.xadd(s._spec.keys.stream, {"job": "{"})
    jobs = s.read("w", count=20)
    s.ack(jobs[:2])
    jobs[2].effects.incrby("n").hset("h", {"a": 1}).sadd("s", "x").delete("gone").expire("h", 100).xadd("l", {"a": 1})
    s.commit(jobs[2], "result")
    jobs[3].effects.incrby("n", 2**63 - 1).incrby("n", 2**63 - 1)
    with pytest.raises(Exception, match="overflow"):
        s.commit(jobs[3])
    s.retry(jobs[3], "no")
    s.retry(s.read("w")[0], "no")
    s.reject(jobs[4], "no")
    s.release(jobs[5])
    s.once("x", Effects().hincrby("h", "n").rpush("list", "x"))
    raw.hset(next(key for key in s._spec.keys.done if raw.exists(key)), "", 1)  # due
    s.run(identity.sweep(s._spec))
    held = [Held(job.entry_id, job.deliveries) for job in jobs[6:9]]
    s.run(lease.renew(s._spec, "w", held))
    look.age(raw, s)
    assert s.run(lease.start(s._spec, "w", [Held(jobs[6].entry_id, 2)])) == [Fence.MINE]
    raw.xdel(s._spec.keys.stream, jobs[7].entry_id)
    s.reclaim("w2", min_idle=0)
    look.age(raw, s, count=3)
    s.reclaim("w3")
    raw.xadd(s._spec.keys.stream, {"job": "{}", "sq:group": "nobody"})
    raw.xadd(s._spec.keys.stream, dict.fromkeys(range(3600), "x"))
    for group in (s, other):
        group.ack(group.read("w", count=100))
    letters = s.dead_letters.list()
    assert {"unknown_group", "oversized", "rejected"} <= {letter.reason for letter in letters}
    s.dead_letters.redrive([letter.id for letter in letters])
    s.dead_letters.purge([letter.id for letter in s.dead_letters.list()])
    full = make_stream(retention=retention, max_ready=1)
    with pytest.raises(QueueFullError):
        full.add_many([{}] * 9)
    s.add({}, job_id="late")
    s.cancel("late")
    timers(s, raw)
    s.result("j1")
    s.pause()
    s.resume()
    s.run(maintenance.tick(s._spec, "w", may_reclaim=True, beat=b"{}"))
    s.trim()
    s.run(trim.trim_some(s._spec))
    s.prune_consumers(0)
    s.run(recovery.give_back(s._spec, "w2", [], reclaiming=False))
    s.run(checkup.of_server(s._spec.keys, Keys("elsewhere", s._spec.keys.deployment), "a1", is_node=False))
    s.groups.drop("other", force=True)
    s.delete(force=True)
    assert harness == {name for name in NAMES if not name.startswith("migrate_")}


@pytest.mark.covers("C60")
def test_scripts_that_migrate_touch_declared_keys_only(raw, redis_url, ns, server, harness):
    if isinstance(server, clusters.Cluster):
        pytest.skip("nothing is migrated on a cluster")
    driver = settings_of(redis_url).blocking()
    with previous(redis_url, ns, ns, lease=900) as old:
        for mark in "ab":  # a stream that moves whole, then one that moves entry by entry
            fill(old, mark)
            look.by_hand(raw, old, "job", "{}", "sq:id", "twice")
            raw.unlink(*(Keys(ns, ns).data(key) for key in ("note", "receipts")))
            look.age(raw, old, idle=1_000)
            look.age(raw, old, idle=1_000, group="other")
            assert migrate(driver, ns, clean=mark == "b").failed == []
    for at, by in enumerate((adopt, adopt_copy)):
        built = HandBuilt(raw, f"{ns}-{at}").fill()
        for clean in (False, True):
            with mock.patch.object(adopt, "QUIET_MS", 0):
                assert take_over(driver, built.ns, built.source, clean=clean, by=by).failed == []
    driver.close()
    assert harness >= {name for name in NAMES if name.startswith("migrate_")}
