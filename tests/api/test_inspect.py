"""Looking at a stream: right numbers, and nothing touched."""

from __future__ import annotations

import secrets

import look
import pytest
import servers

from streamq import Backoff
from streamq.messages import GroupSnapshot, Snapshot


def empty(name, **numbers):
    """What an unused stream looks like, but for `numbers`."""
    zeros = dict.fromkeys(("ready", "pending", "scheduled", "dead", "length"), 0)
    return Snapshot(**{"name": name, "deployment": None, "paused": False, "groups": {}, **zeros, **numbers})


def group(name="workers", **numbers):
    """What an unused group looks like, but for `numbers`."""
    zeros = dict.fromkeys(("ready", "pending", "consumers", "done", "retried", "dead", "redriven"), 0)
    return GroupSnapshot(**{"name": name, "exact": True, "abandoned": False, **zeros, **numbers})


@pytest.mark.covers("C66")
def test_a_stream_that_was_never_used(make_stream, raw, ns):
    s = make_stream()
    assert s.inspect() == empty(s.name)
    assert look.dumps(raw, ns) == {}


@pytest.mark.covers("C66")
def test_a_deployment_is_named(make_stream, ns):
    s = make_stream(deployment=f"{ns}-d")
    assert s.inspect() == empty(s.name, deployment=f"{ns}-d")


@pytest.mark.covers("C66")
def test_a_stream_without_group(make_stream):
    s = make_stream()
    s.add_many([{}, {}, {}])
    assert s.inspect() == empty(s.name, ready=3, length=3)


@pytest.mark.covers("C66")
def test_a_group_without_pending(make_stream):
    s = make_stream()
    s.read("w")
    snapshot = s.inspect()
    assert snapshot == empty(s.name, groups={"workers": group(consumers=snapshot.groups["workers"].consumers)})


@pytest.mark.covers("C66")
def test_after_everything_was_trimmed(make_stream, raw):
    s = make_stream()
    s.add_many([{}, {}, {}])
    s.read("w")
    raw.xtrim(s._spec.keys.stream, maxlen=0, approximate=False)
    assert s.inspect() == empty(s.name, pending=1, groups={"workers": group(pending=1, consumers=1)})


@pytest.mark.covers("C66")
def test_dead_letters_alone(make_stream, raw, ns):
    s = make_stream()
    raw.xadd(s._spec.keys.dead, {"dead:reason": "rejected"})
    before = look.dumps(raw, ns)
    assert s.inspect() == empty(s.name, dead=1)
    assert look.dumps(raw, ns) == before
    assert not raw.exists(s._spec.keys.stream)


@pytest.mark.covers("C66")
def test_the_numbers_of_a_busy_stream(make_stream):
    s = make_stream(retry=Backoff.constant(0, limit=1))
    s.read("w")
    s.add_many({"n": n} for n in range(10))
    jobs = s.read("w", count=6)
    s.ack(jobs[:2])
    s.reject(jobs[2])
    s.retry(jobs[3])  # a new entry: ready
    assert s.inspect() == empty(
        s.name,
        ready=5,
        pending=2,
        dead=1,
        length=7,
        groups={"workers": group(ready=5, pending=2, consumers=1, done=2, retried=1, dead=1)},
    )


@pytest.mark.covers("C66")
def test_two_groups(make_stream):
    one, two = make_stream(group="one"), make_stream(group="two")
    for s in (one, two):
        s.read("w")
    one.add_many([{}, {}, {}])
    one.ack(one.read("w", count=2))
    two.read("w")
    snapshot = one.inspect()
    assert (snapshot.ready, snapshot.pending, snapshot.length) == (1 + 2, 1, 3)
    assert snapshot.groups["one"] == group("one", ready=1, done=2, consumers=1)
    assert snapshot.groups["two"] == group("two", ready=2, pending=1, consumers=1)


@pytest.mark.covers("C66")
def test_unread_entries_where_the_server_has_no_number(make_stream, raw):
    s = make_stream()
    s.read("w")
    s.add_many({"n": n} for n in range(2_500))
    s.read("w", count=10)
    ids = [entry_id for entry_id, _ in look.entries(raw, s._spec.keys.stream)]
    raw.xdel(s._spec.keys.stream, *ids[100:150])  # later than what was read: from 7.0 lag is unknown
    [row] = raw.xinfo_groups(s._spec.keys.stream)
    assert row.get("lag") is None
    found = s.inspect().groups["workers"]
    assert (found.ready, found.exact, found.pending) == (2_440, True, 10)


@pytest.mark.covers("C66")
@pytest.mark.slow
def test_a_long_backlog_is_exact_where_little_is_read(make_stream, raw):
    s = make_stream()
    s.read("w")
    s.add_many({"n": n} for n in range(10_500))
    s.read("w")
    ids = [entry_id for entry_id, _ in look.entries(raw, s._spec.keys.stream)]
    raw.xdel(s._spec.keys.stream, ids[5_000])
    found = s.inspect().groups["workers"]
    assert (found.ready, found.exact) == (10_498, True)


@pytest.mark.covers("C66")
@pytest.mark.slow
def test_counting_is_bounded(make_stream, raw, proxy):
    s = make_stream(redis=proxy.url)
    s.read("w")
    s.add_many({"n": n} for n in range(20_500))
    for _ in range(11):
        s.read("w", count=1_000)
    ids = [entry_id for entry_id, _ in look.entries(raw, s._spec.keys.stream)]
    raw.xdel(s._spec.keys.stream, ids[10_100], ids[11_100])
    before = proxy.count(servers.named("XRANGE"))
    s.add_many({"n": n} for n in range(1_000))
    found = s.inspect().groups["workers"]
    assert (found.ready, found.exact, found.pending) == (10_000, False, 11_000)
    assert proxy.count(servers.named("XRANGE")) - before <= 18


@pytest.mark.covers("C52")
def test_looking_changes_nothing(make_stream, raw, ns, proxy):
    s = make_stream()
    s.add_many(({"n": n} for n in range(100)), job_id=lambda p: f"j{p['n']}")
    jobs = s.read("w", count=30)
    s.ack(jobs[:10])
    s.reject(jobs[10])
    looker = make_stream(redis=proxy.url)
    before, state = look.dumps(raw, ns), look.state(raw, s)
    for _ in range(3):
        looker.inspect()
        looker.dead_letters.list()
    assert look.dumps(raw, ns) == before
    assert look.state(raw, s) == state
    sent = {command[0].upper() for command in proxy.commands}
    assert sent <= {b"XLEN", b"XINFO", b"ZCARD", b"HGETALL", b"XRANGE", b"HELLO", b"CLIENT", b"SELECT"}


@pytest.mark.covers("C52")
def test_a_user_that_may_only_read(make_stream, raw, redis_url):
    s = make_stream()
    s.add_many([{}, {}])
    s.reject(s.read("w")[0])
    name = f"u{secrets.token_hex(6)}"
    look.call(raw, "ACL", "SETUSER", name, "on", ">pw", "~*", "+@read", "+@connection")
    try:
        reader = make_stream(redis=look.as_user(redis_url, name, "pw"))
        assert reader.inspect() == s.inspect()
        assert len(reader.dead_letters.list()) == 1
        reader.close()
    finally:
        look.call(raw, "ACL", "DELUSER", name)


@pytest.mark.covers("C52")
def test_a_fresh_stream_is_looked_at_in_one_write(make_stream, proxy):
    s = make_stream(redis=proxy.url)
    s.inspect()
    assert proxy.count(servers.named("XLEN", "XINFO", "ZCARD", "HGETALL")) == 5
