"""What a worker's tick asks and says: which maintenance is its own now, and that it is alive; and who is forgotten."""

from __future__ import annotations

import json
import time
from contextlib import closing

import look
import pytest
import redis
from colours import open_stream
from waiting import until

from streamq._ops import consumers as consumer_ops
from streamq._ops import inspect
from streamq._scripts_upkeep import Role
from streamq.worker import maintenance

BEAT = json.dumps({"host": "h", "pid": 1, "version": "0", "started_at": 1, "concurrency": 2}).encode()
UPKEEP = {Role.PROMOTE, Role.SWEEP, Role.TRIM, Role.PRUNE, Role.WATCH}
ALL = {Role.RECLAIM, *UPKEEP}


def tick(s, consumer="w", *, may_reclaim=True, is_solo=False, beat=BEAT):
    return s.run(maintenance.tick(s._spec, consumer, may_reclaim=may_reclaim, is_solo=is_solo, beat=beat))


def beats(raw, s):
    """Consumer -> time in ms, and what it says."""
    found = {}
    for consumer, value in raw.hgetall(s._spec.keys.workers).items():
        at, _, beat = value.partition(b" ")
        found[consumer.decode()] = (int(at), beat)
    return found


def consumers(raw, s):
    return {row["name"].decode() for row in raw.xinfo_consumers(s._spec.keys.stream, s.options.group)}


# --- tokens ----------------------------------------------------------------------------------


def test_a_solo_worker_has_a_token_of_its_own(make_stream):
    s = make_stream()
    s.add({})
    s.read("dead")
    assert set(tick(s, "a").roles) == ALL
    assert set(tick(s, "solo", is_solo=True).roles) == {Role.RECLAIM_LAST}
    assert set(tick(s, "solo 2", is_solo=True).roles) == set()


def test_each_role_is_one_workers(make_stream, raw):
    s = make_stream()
    s.add({})
    s.read("dead")
    assert set(tick(s, "a").roles) == ALL
    assert tick(s, "b").roles == ()
    keys = s._spec.keys
    assert {key.decode() for key in raw.scan_iter(match=f"{keys.prefix}:tick:*", count=1_000)} == {
        keys.tick(role) for role in ("reclaim:workers", "promote", "prune:workers", "sweep", "trim", "watch")
    }
    assert raw.get(keys.tick("trim")) == b"a"


def test_a_token_goes_with_its_period(make_stream, raw, monkeypatch):
    monkeypatch.setattr(maintenance, "TRIM_MS", 50)
    s = make_stream()
    assert Role.TRIM in tick(s).roles
    again = until(lambda: set(tick(s).roles) - {Role.PROMOTE})
    assert again == {Role.TRIM}


@pytest.mark.covers("Q7")
def test_whoever_promotes_goes_on_while_it_ticks(make_stream, raw):
    """It sleeps until something is due: were it another one at each tick, all would have to sleep along."""
    a, b = make_stream(group="a", groups=("b",)), make_stream(group="b")
    token = a._spec.keys.tick("promote")
    assert Role.PROMOTE in tick(a, "one").roles
    raw.pexpire(token, 60)
    assert Role.PROMOTE in tick(a, "one").roles
    assert raw.pttl(token) > 1_000  # as long as ever
    assert Role.PROMOTE not in tick(b, "two").roles
    raw.pexpire(token, 50)  # it died, or its event loop stands still
    until(lambda: Role.PROMOTE in tick(b, "two").roles)
    assert Role.PROMOTE not in tick(a, "one").roles
    assert raw.get(token) == b"two"
    b.run(consumer_ops.leave(b._spec, "two"))
    assert Role.PROMOTE in tick(a, "one").roles  # whoever stops gives it up


def test_a_promoter_that_lets_a_job_lie_is_followed(make_stream, raw):
    s = make_stream()
    token, scheduled = s._spec.keys.tick("promote"), s._spec.keys.scheduled
    assert Role.PROMOTE in tick(s, "dead").roles
    s.add({}, job_id="j", delay=60)
    now = look.server_ms(raw)
    raw.zadd(scheduled, {"/j": now})
    assert Role.PROMOTE not in tick(s, "other").roles  # it has only just come due
    raw.zadd(scheduled, {"/j": now - 2_000})
    s.pause()
    assert Role.PROMOTE not in tick(s, "other").roles  # nobody is to move it
    s.resume()
    assert Role.PROMOTE in tick(s, "other").roles
    assert raw.get(token) == b"other"
    assert raw.pttl(token) > 1_000
    assert s.promote() == 1
    assert Role.PROMOTE not in tick(s, "late").roles
    raw.set(scheduled, "of another type")
    assert Role.PROMOTE not in tick(s, "late").roles


@pytest.mark.covers("Q7")
def test_a_tick_says_when_the_first_is_due(make_stream, raw):
    s = make_stream()
    assert tick(s).wait_ms is None
    s.add({}, delay=100)
    assert 90_000 < tick(s).wait_ms <= 100_000
    s.add({}, delay=9)
    assert 0 < tick(s).wait_ms <= 9_000
    s.add({}, job_id="k", delay=5)
    raw.zadd(s._spec.keys.scheduled, {"/k": 1})
    assert tick(s).wait_ms == 0
    raw.delete(s._spec.keys.scheduled)
    assert tick(s).wait_ms == 0  # entries without a time: there is something to take out
    raw.delete(s._spec.keys.jobs)
    assert tick(s).wait_ms is None
    raw.set(s._spec.keys.scheduled, "x")
    assert tick(s).wait_ms == 0  # the promoter is to report it


def test_groups_reclaim_and_prune_by_themselves_and_share_the_rest(make_stream, raw):
    a, b = make_stream(group="a", groups=("b",)), make_stream(group="b")
    a.add({})
    for s in (a, b):
        assert len(s.read("dead")) == 1
    assert set(tick(a).roles) == ALL
    assert set(tick(b, "v").roles) == {Role.RECLAIM, Role.PRUNE}


@pytest.mark.covers("Q7")
def test_nobody_reclaims_where_nothing_is_pending(make_stream, raw):
    s = make_stream()
    assert set(tick(s, "first").roles) == UPKEEP  # there is no stream
    s.groups.create("workers")
    s.add({})
    assert tick(s).roles == ()
    [job] = s.read("v")
    assert tick(s, may_reclaim=False).roles == ()
    assert tick(s).roles == (Role.RECLAIM,)
    s.ack(job)
    raw.delete(s._spec.keys.tick("reclaim:workers"))
    assert tick(s).roles == ()


@pytest.mark.parametrize("command", [("SET", "x"), ("XADD", "*", "job", "{}")])
def test_without_group_or_stream_nothing_is_pending(make_stream, raw, command):
    s = make_stream()
    look.call(raw, command[0], s._spec.keys.stream, *command[1:])
    assert set(tick(s).roles) == UPKEEP


def test_a_tick_sees_a_pause(make_stream):
    s = make_stream()
    assert tick(s).paused is False
    s.pause()
    assert tick(s).paused is True


# --- beats -----------------------------------------------------------------------------------


@pytest.mark.covers("C74")
def test_a_tick_says_who_is_alive(make_stream, raw):
    s = make_stream()
    before = look.call(raw, "TIME")
    tick(s, "a")
    tick(s, "b", beat=None)
    [(consumer, (at, beat))] = beats(raw, s).items()
    assert (consumer, beat) == ("a", BEAT)
    assert 0 <= at - int(before[0]) * 1000 - int(before[1]) // 1000 < 60_000
    time.sleep(0.01)
    tick(s, "a", beat=b"{}")
    assert beats(raw, s)["a"][0] > at
    assert beats(raw, s)["a"][1] == b"{}"


def test_a_beat_that_cannot_be_written_costs_nothing(make_stream, raw):
    s = make_stream()
    s.add({})
    s.read("dead")
    raw.set(s._spec.keys.workers, "x")
    assert set(tick(s).roles) == ALL
    assert raw.get(s._spec.keys.workers) == b"x"


@pytest.mark.covers("C26", "C74")
def test_who_beats_is_not_pruned_though_it_has_read_nothing_for_long(make_stream, raw):
    """Before Redis 7.2 a consumer that waits for jobs looks idle."""
    s = make_stream()
    for consumer in ("alive", "dead"):
        s.add({})
        s.ack(s.read(consumer))
        tick(s, consumer)
    time.sleep(0.6)
    tick(s, "alive")
    assert s.prune_consumers(0.5) == ["dead"]
    assert consumers(raw, s) == set(beats(raw, s)) == {"alive"}
    assert s.prune_consumers(0) == ["alive"]
    assert beats(raw, s) == {}


@pytest.mark.covers("C74")
def test_what_dead_workers_said_goes_though_they_never_read(make_stream, raw):
    s = make_stream()
    for n in range(300):
        tick(s, f"gone-{n}")
    time.sleep(0.6)
    tick(s, "alive")
    assert s.prune_consumers(0.5) == []
    assert set(beats(raw, s)) == {"alive"}
    assert not raw.exists(s._spec.keys.stream)


def test_beats_of_other_groups_consumers_stay(make_stream, raw):
    """Their owners may be too busy to tick."""
    a, b = make_stream(group="a", groups=("b",)), make_stream(group="b")
    a.add({})
    [job] = b.read("busy")
    for consumer in ("busy", "gone"):
        tick(b, consumer)
    raw.hset(a._spec.keys.workers, "foreign", "no time")
    assert a.prune_consumers(0) == []
    assert set(beats(raw, a)) == {"busy"}
    b.ack(job)
    assert b.prune_consumers(0) == ["busy"]
    assert beats(raw, a) == {}


@pytest.mark.slow
def test_thousands_of_beats_are_looked_at_some_by_some(make_stream, raw, monkeypatch):
    monkeypatch.setattr(consumer_ops, "BEATS", 10)
    s = make_stream()
    raw.hset(s._spec.keys.workers, mapping={f"gone-{n}": "1 " + "x" * 100 for n in range(1_000)})
    s.prune_consumers(1)
    left = raw.hlen(s._spec.keys.workers)
    assert 800 < left < 1_000
    until(lambda: s.prune_consumers(1) == [] and raw.hlen(s._spec.keys.workers) == 0)


# --- idle ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("slice_ms", "sweep_ms"), [(100, 2_000), (8_000, 2_000), (40_000, 10_000), (28_800_000, 60_000)]
)
def test_ids_are_swept_four_times_a_slice(slice_ms, sweep_ms):
    assert maintenance.sweep_ms(slice_ms) == sweep_ms


@pytest.mark.covers("Q7")
def test_upkeep_of_an_idle_stream_is_ten_requests_a_minute(make_stream, raw, proxy):
    """One request a role, and one write of three for the groups: counted on the wire, for what falls due in a minute."""
    s = make_stream(redis=proxy.url, groups=("other",))
    s.add({})
    for name in ("workers", "other"):
        group = make_stream(group=name)
        group.ack(group.read("w"))
    s.run(maintenance.upkeep(s._spec, Role))  # connected, and scripts are known
    periods = {
        Role.SWEEP: maintenance.sweep_ms(s.options.slice_ms),
        Role.TRIM: maintenance.TRIM_MS,
        Role.PRUNE: maintenance.PRUNE_MS,
        Role.WATCH: maintenance.WATCH_MS,
    }
    a_minute = 0.0
    for role, period in periods.items():
        before = len(list(proxy.commands))
        s.run(maintenance.upkeep(s._spec, [role]))
        a_minute += (len(list(proxy.commands)) - before) * 60_000 / period
    assert 3 <= a_minute <= 12


@pytest.mark.covers("C86")
def test_who_is_abandoned_is_seen_by_where_groups_are(make_stream, raw):
    s = make_stream(groups=("other",))
    for name in ("workers", "other"):
        s.groups.create(name)
    assert s.run(inspect.abandoned(s._spec)) == []
    added = s.add({}).entry_id
    assert sorted(s.run(inspect.abandoned(s._spec))) == ["other", "workers"]
    [_job] = s.read("w")
    assert s.run(inspect.abandoned(s._spec)) == ["other"]
    s.pause()
    assert s.run(inspect.abandoned(s._spec)) == []
    s.resume()
    raw.xdel(s._spec.keys.stream, added)  # it pins nothing any more
    assert s.run(inspect.abandoned(s._spec)) == []


@pytest.mark.covers("C42")
def test_a_tick_while_memory_is_full(new_server, colour):
    """Whoever reclaims frees memory, so it must come to that."""
    server = new_server()
    with closing(open_stream(colour, "x", redis=server.url)) as s, redis.Redis.from_url(server.url) as raw:
        s.add({})
        s.read("dead")
        raw.config_set("maxmemory", 1)
        assert set(tick(s).roles) == ALL
        assert set(beats(raw, s)) == {"w"}
