"""The scripts: their headers tell the truth, and they touch only the keys that they are given."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import look
import pytest
from migrations.previous import fill, migrate, previous

from streamq import (
    Backoff,
    Effects,
    QueueFullError,
    StreamOptions,
    _scripts,
    _scripts_migrate,
    _scripts_timers,
    _scripts_upkeep,
)
from streamq._drivers import exchange
from streamq._flows import checkup, recovery
from streamq._ops import access, identity, lease, trim
from streamq._scripts import Fence, Held, NewJob, Settled, Source
from streamq._scripts_migrate import Lock
from streamq._scripts_timers import When
from streamq._scripts_upkeep import Role
from streamq.connection import settings_of
from streamq.keys import Keys, migration_lock, migration_record
from streamq.messages import JobIdKind
from streamq.worker import maintenance

LUA = Path(__file__).parents[2] / "lua"
NAMES = sorted(path.stem for path in LUA.glob("*.lua"))
SHARED = sorted(path.stem for path in (LUA / "shared").glob("*.lua"))

_DOCUMENTED = re.compile(r"^-- (KEYS|ARGV)\[(\d+)(\.\.)?(\d+)?\]\s+(.*)$", re.MULTILINE)
_USED = re.compile(r"\b(KEYS|ARGV)\[(\d+)\]")


def text(name):
    return (LUA / f"{name}.lua").read_text("utf-8")


def code(source):
    """Without comments."""
    return re.sub(r"--.*", "", source)


def documented(name, what):
    """Rows of the header: (first, last or None when it is open, the rest of the line)."""
    rows = []
    for kind, first, dots, last, rest in _DOCUMENTED.findall(text(name)):
        if kind == what:
            rows.append((int(first), int(last) if last else None if dots else int(first), rest))
    return rows


def calls():
    """One call of every script, from its constructor."""
    keys, options = Keys("x"), StreamOptions()
    effects = Effects().incrby("a").set("b", "v").incrby("a")
    item = Settled("1-0", 2, JobIdKind.CHOSEN, "id", b"r")
    held = Held("1-0", 1)
    c = {"consumer": "w"}
    return {
        "ack": _scripts.ack(keys, options, batch=[item], **c),
        "add": _scripts.add(keys, options, jobs=[NewJob("id", ["job", b"{}"]), NewJob(None, ["job", b"{}"])]),
        "cancel": _scripts.cancel(keys, options, job_id="id", only_scheduled=False),
        "claim_id": _scripts.claim_id(keys, options, batch=[(held, "id")], **c),
        "commit": _scripts.commit(keys, options, item=item, effects=effects, **c),
        "dead_letter": _scripts.dead_letter(
            keys, options, held=held, reason="rejected", error="e", job_id="id", attempts=1, **c
        ),
        "check": _scripts.check(keys, commands=access.READER),
        "delete": _scripts_upkeep.delete(keys, force=False),
        "drop_group": _scripts_upkeep.drop_group(keys, group="g", force=False),
        "leave": _scripts_upkeep.leave(keys, options, **c),
        "once": _scripts.once(keys, options, once_id="id", effects=effects),
        "pass_over": _scripts.pass_over(keys, options, batch=[(held, "g")], **c),
        "pause": _scripts_upkeep.pause(keys, paused=True),
        "prune": _scripts_upkeep.prune(keys, options, min_idle_ms=1, count=2, look=3),
        "promote": _scripts_timers.promote(keys, options, most=2, max_bytes=3),
        "probe": _scripts_upkeep.probe(*keys.trial("a1"), ttl_ms=1),
        "purge": _scripts_upkeep.purge(keys, letter_ids=["1-0"]),
        "redrive": _scripts_upkeep.redrive(keys, options, letter_id="1-0", new_id=None, max_redrives=5),
        "reschedule": _scripts_timers.reschedule(keys, options, job_id="id", when=When("in", 5)),
        "run_now": _scripts_timers.run_now(keys, options, job_id="id"),
        "schedule": _scripts_timers.schedule(
            *(keys, options),
            job_id="id",
            kind=JobIdKind.CHOSEN,
            when=When("at", 5),
            replace=False,
            fields=["job", b"{}"],
        ),
        "result": _scripts.result(keys, options, job_id="id"),
        "reclaim": _scripts.reclaim(
            *(keys, options),
            **c,
            min_idle_ms=1,
            count=2,
            look=3,
            max_bytes=4,
            raise_count=True,
            least_count=0,
            most_last=2,
            last_patience_ms=7,
            delays_ms=[5, 6],
            exclude=["1-0"],
        ),
        "release": _scripts.release(keys, options, batch=[(held, 0, 1, "id")], **c),
        "renew": _scripts.renew(keys, options, batch=[held], **c),
        "retry": _scripts.retry(keys, options, item=item, enqueued_ms=1, attempt=2, errors=b"[]", delay_ms=7, **c),
        "start": _scripts.start(keys, options, targets=[held], **c),
        "tick": _scripts_upkeep.tick(keys, options, beat=b"{}", periods_ms={Role.TRIM: 1, Role.RECLAIM: 2}, **c),
        "trim": _scripts_upkeep.trim(keys, options, look=1, cursor="", stop=""),
        "sweep": _scripts.sweep(keys),
    } | migrating(keys)


def migrating(keys):
    """Of those that move what the previous layout holds."""
    old = keys.untagged
    lock = Lock(migration_lock(None), "me", 1)
    of_both = (lock, old, keys)
    return {
        "migrate_data": _scripts_migrate.data(*of_both, found=[old.data("a")]),
        "migrate_drop": _scripts_migrate.drop(lock, old),
        "migrate_entries": _scripts_migrate.entries(*of_both, most=1, max_bytes=2, after="0-0"),
        "migrate_letters": _scripts_migrate.letters(*of_both, most=1, max_bytes=2),
        "migrate_meta": _scripts_migrate.meta(*of_both),
        "migrate_record": _scripts_migrate.record(lock, migration_record(None, "001"), fields=["at", 1]),
        "migrate_records": _scripts_migrate.records(lock, old.ids[0], keys.ids, target=0, cursor="0", count=1),
        "migrate_scheduled": _scripts_migrate.scheduled(*of_both, most=1, max_bytes=2),
        "migrate_stream": _scripts_migrate.stream(*of_both),
        "migrate_unlock": _scripts_migrate.unlock(lock.key, owner="me"),
    }


def pattern(key):
    """A key as headers write it: T, old (the previous layout), and D (what belongs to the deployment)."""
    if key.startswith("streamq:migration"):
        return re.sub(r":migration:.*$", ":migration:<name>", key.replace("streamq:", "D:"))
    key = key.replace("streamq:x", "old")
    if key.startswith("old:data:"):
        return "old:data:<key>"
    if ":data:" in key:
        return "T:data:<key>"
    key = re.sub(r":tick:.*$", ":tick:<role>", key)
    key = re.sub(r":probe:.*$", ":probe:<token>", key)
    return re.sub(r":(ids|done):\d+$", r":\1:<slice>", key.replace("streamq:{x}", "T"))


def test_every_script_has_a_constructor():
    assert sorted(calls()) == NAMES
    assert all(name == script.name for name, script in calls().items())


@pytest.mark.covers("C60")
@pytest.mark.parametrize("name", NAMES)
def test_the_constructor_gives_the_keys_of_the_header(name):
    given = [pattern(key) for key in calls()[name].keys]
    expected = []
    for first, last, rest in documented(name, "KEYS"):
        assert first == len(expected) + 1, "numbers must follow one another"
        found = re.findall(r"\b(?:T|D|old):[a-z_:]+(?:<[a-z]+>)?", rest)
        count = len(given) - first + 1 if last is None else last - first + 1
        if not rest.startswith("pairs"):
            assert len(found) == 1
        expected += found * (count // len(found))
    assert given == expected


@pytest.mark.parametrize("name", NAMES)
def test_the_constructor_gives_the_arguments_of_the_header(name):
    given = len(calls()[name].argv)
    rows = documented(name, "ARGV")
    assert [first for first, _, _ in rows] == list(range(1, len(rows) + 1))
    if not rows:
        assert given == 0
        return
    *fixed, (first, last, _) = rows
    assert all(a == b for a, b, _ in fixed)
    assert given == first if last is not None else given >= first


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("what", ["KEYS", "ARGV"])
def test_what_is_documented_is_used_and_the_reverse(name, what):
    used = {int(index) for kind, index in _USED.findall(code(text(name))) if kind == what}
    rows = documented(name, what)
    fixed = {n for first, last, _ in rows if last is not None for n in range(first, last + 1)}
    assert used == fixed
    if any(last is None for _, last, _ in rows):
        [start] = [first for first, last, _ in rows if last is None]
        # The rest is read by a loop, which begins where the header says.
        body = code(text(name))
        assert f"#{what}" in body or f"({what}, {start}," in body


@pytest.mark.parametrize("name", NAMES)
def test_the_shared_parts_named_are_those_used(name):
    uses = re.search(r"^-- Uses: (.+)$", text(name), re.MULTILINE)
    named = [part.strip() for part in uses[1].split(",")] if uses else []
    assert set(named) <= set(SHARED)
    body = code(text(name)) + "".join(code(text(f"shared/{part}")) for part in named)
    for part in named:
        functions = re.findall(r"^local function (\w+)", text(f"shared/{part}"), re.MULTILINE)
        assert any(len(re.findall(rf"\b{function}\(", body)) > 1 for function in functions), part


@pytest.mark.covers("C60")
@pytest.mark.parametrize("name", [*NAMES, *(f"shared/{part}" for part in SHARED)])
def test_no_key_is_put_together(name):
    body = code(text(name))
    literals = re.findall(r"'[^'\n]*'|\"[^\"\n]*\"", body)
    assert not [literal for literal in literals if re.search(r"streamq|[{}]", literal)]
    suffixes = "stream|dead|scheduled|jobs|ids|done|meta|workers|tick|wake|data"
    assert not re.search(rf"\.\.\s*['\"]:({suffixes})", body)
    assert not re.search(r"redis\.p?call\(\s*'[A-Z]+'\s*,\s*[^,()]*\.\.", body)


@pytest.mark.parametrize("name", NAMES)
def test_the_header_tells_replies_atomicity_and_server(name):
    header = text(name).partition("\n\n")[0]
    assert header.startswith(f"-- {name}.lua: ")
    assert "-- Returns" in header
    assert "-- Atomic because" in header
    assert "Redis >= 6.2" in header


# --- keys that are not declared --------------------------------------------------------------

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


@pytest.fixture
def harness(monkeypatch):
    """All scripts run under the harness; gives the names of those that did."""
    plain, ran = _scripts.source, set()

    def source(name):
        ran.add(name)
        whole = HARNESS + plain(name).text
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


@pytest.mark.covers("C60")
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
def test_scripts_that_migrate_touch_declared_keys_only(raw, redis_url, ns, harness):
    driver = settings_of(redis_url).blocking()
    with previous(redis_url, ns, ns, lease=900) as old:
        for mark in "ab":  # a stream that moves whole, then one that moves entry by entry
            fill(old, mark)
            look.by_hand(raw, old, "job", "{}", "sq:id", "twice")
            raw.unlink(*(Keys(ns, ns).data(key) for key in ("note", "receipts")))
            look.age(raw, old, idle=1_000)
            look.age(raw, old, idle=1_000, group="other")
            assert migrate(driver, ns, clean=mark == "b").failed == []
    driver.close()
    assert harness >= {name for name in NAMES if name.startswith("migrate_")}


def test_scripts_have_the_sha_that_servers_give_them(raw):
    for name in NAMES:
        assert raw.script_load(_scripts.source(name).text) == _scripts.source(name).sha
