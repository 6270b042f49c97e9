"""Effects commit with the job, all or none."""

from __future__ import annotations

import re
import secrets

import look
import pytest
from look import Row, State

from streamq import ConfigurationError, EffectError, Effects

MAX = 2**63 - 1


def started(s):
    """A job in our hands; its entry ID is `entry_id`."""
    s.add({})
    return s.read("w")[0]


def data(raw, s):
    """What effects have written: key -> value, of any type."""
    prefix = f"{s._spec.keys.prefix}:data:"
    found = {}
    for key in raw.scan_iter(match=f"{prefix}*".replace("[", "\\["), count=1000):
        read = {
            b"string": raw.get,
            b"hash": raw.hgetall,
            b"set": raw.smembers,
            b"list": lambda k: raw.lrange(k, 0, -1),
            b"zset": lambda k: raw.zrange(k, 0, -1, withscores=True),
            b"stream": lambda k: [tuple(pairs) for _, pairs in look.entries(raw, k)],
        }[raw.type(key)]
        found[key.decode().removeprefix(prefix)] = read(key)
    return found


def refused(s, raw, job):
    """Commit must fail and change nothing; the error."""
    before, keys = look.state(raw, s), data(raw, s)
    with pytest.raises(EffectError) as caught:
        s.commit(job)
    assert look.state(raw, s) == before
    assert data(raw, s) == keys
    assert look.pending(raw, s)[job.entry_id] == Row("w", 1)
    return caught.value


def test_every_effect_is_applied_with_the_acknowledgement(make_stream, raw):
    s = make_stream()
    job = started(s)
    raw.set(s._spec.keys.data("old"), "x")
    job.effects.hset("h", {"a": 1, "b": "ü", "c": b"\xff", "d": 0.5}).hincrby("h2", "n", -3).incrby("n", 7)
    job.effects.set("s", "v").sadd("set", "x", "y").srem("set", "y").zadd("z", {"m": 1.5, "k": 2}).zrem("z", "k")
    job.effects.rpush("list", "1", 2).xadd("log", {"f": "v"}).delete("old").expire("s", 1000)
    s.commit(job)
    assert data(raw, s) == {
        "h": {b"a": b"1", b"b": "ü".encode(), b"c": b"\xff", b"d": b"0.5"},
        "h2": {b"n": b"-3"},
        "n": b"7",
        "s": b"v",
        "set": {b"x"},
        "z": [(b"m", 1.5)],
        "list": [b"1", b"2"],
        "log": [((b"f", b"v"),)],
    }
    assert 0 < raw.ttl(s._spec.keys.data("s")) <= 1000
    assert look.state(raw, s) == State(counters={"done:workers": 1})


@pytest.mark.covers("I7")
def test_a_second_effect_on_a_key_of_the_wrong_type(make_stream, raw):
    s = make_stream()
    raw.set(s._spec.keys.data("receipt"), "x")
    job = started(s)
    job.effects.incrby("balance", 5).hset("receipt", {"a": 1})
    error = refused(s, raw, job)
    assert (error.key, error.command) == ("receipt", "HSET")
    assert "WRONGTYPE" in error.reason
    assert "receipt" in str(error)
    raw.delete(s._spec.keys.data("receipt"))
    s.commit(job)
    assert data(raw, s) == {"balance": b"5", "receipt": {b"a": b"1"}}
    assert look.state(raw, s) == State(counters={"done:workers": 1})


@pytest.mark.covers("I7")
@pytest.mark.parametrize(
    ("note", "command"),
    [
        (lambda e: e.sadd("k", "m").hset("k", {"a": 1}), "HSET"),
        (lambda e: e.incrby("k").rpush("k", "x"), "RPUSH"),
        (lambda e: e.hincrby("k", "f").zadd("k", {"m": 1}), "ZADD"),
        (lambda e: e.set("k", "v").xadd("k", {"a": 1}), "XADD"),
        (lambda e: e.xadd("k", {"a": 1}).srem("k", "m"), "SREM"),
        (lambda e: e.incrby("k").hincrby("k", "f"), "HINCRBY"),
        (lambda e: e.rpush("k", "x").delete("k").sadd("k", "m").rpush("k", "x"), "RPUSH"),
    ],
)
def test_two_types_on_one_absent_key(make_stream, raw, note, command):
    s = make_stream()
    job = started(s)
    job.effects.set("first", "x")
    note(job.effects)
    error = refused(s, raw, job)
    assert (error.key, error.command) == ("k", command)


def test_a_key_may_change_its_type_by_being_deleted(make_stream, raw):
    s = make_stream()
    raw.rpush(s._spec.keys.data("k"), "x")
    job = started(s)
    job.effects.delete("k").sadd("k", "m").set("k", "v").delete("k").hset("k", {"a": 1})
    s.commit(job)
    assert data(raw, s) == {"k": {b"a": b"1"}}


@pytest.mark.covers("I7")
@pytest.mark.parametrize(
    ("before", "amounts"),
    [
        (MAX - 1, (1, 1)),
        (-MAX, (-1, -1)),
        (None, (MAX, 1)),
        (None, (-MAX, -2)),
        (0, (MAX, MAX)),
        (-5, (MAX, 6)),
        (None, (0, MAX, 1)),
        (3, (0, MAX)),
    ],
)
@pytest.mark.parametrize("kind", ["string", "field", "field beside others"])
def test_the_same_counter_over_the_edge(make_stream, raw, before, amounts, kind):
    s = make_stream()
    key = s._spec.keys.data("n")
    if kind == "field beside others":
        raw.hset(key, "other", "x")
    if before is not None:
        raw.set(key, before) if kind == "string" else raw.hset(key, "f", before)
    job = started(s)
    for amount in amounts:
        if kind == "string":
            job.effects.incrby("n", amount)
        else:
            job.effects.hincrby("n", "f", amount)
    error = refused(s, raw, job)
    assert error.key == "n"
    assert "overflow" in error.reason
    raw.delete(key)
    if kind == "string":
        raw.set(key, -MAX if amounts[-1] > 0 else MAX)
    else:
        raw.hset(key, "f", -MAX if amounts[-1] > 0 else MAX)
    s.commit(job)
    value = raw.get(key) if kind == "string" else raw.hget(key, "f")
    assert int(value) == (-MAX if amounts[-1] > 0 else MAX) + sum(amounts)


@pytest.mark.covers("I7")
@pytest.mark.parametrize("value", ["abc", "1.5", "", " 1", str(2**63)])
def test_not_an_integer(make_stream, raw, value):
    s = make_stream()
    raw.hset(s._spec.keys.data("h"), "f", value)
    raw.set(s._spec.keys.data("s"), value)
    job = started(s)
    job.effects.set("x", "1").incrby("absent", 3).hincrby("absent-hash", "f", 3).hincrby("h", "f", 1)
    error = refused(s, raw, job)
    assert (error.key, error.command) == ("h", "HINCRBY")
    assert "integer" in error.reason
    assert not re.search(r"script|user_script|[0-9a-f]{40}", error.reason)
    raw.hset(s._spec.keys.data("h"), "f", 10)
    job.effects.incrby("s", 1)
    error = refused(s, raw, job)
    assert (error.key, error.command) == ("s", "INCRBY")
    assert "integer" in error.reason
    raw.set(s._spec.keys.data("s"), 20)
    s.commit(job)
    assert data(raw, s) == {
        "x": b"1", "absent": b"3", "absent-hash": {b"f": b"3"}, "h": {b"f": b"11"}, "s": b"21",
    }  # fmt: skip


@pytest.mark.covers("I7")
def test_undone_increments_keep_a_time_to_live(make_stream, raw):
    s = make_stream()
    raw.set(s._spec.keys.data("n"), 5, ex=1000)
    job = started(s)
    job.effects.incrby("n", 2).incrby("m", MAX).incrby("m", 1)
    refused(s, raw, job)
    assert raw.get(s._spec.keys.data("n")) == b"5"
    assert 0 < raw.ttl(s._spec.keys.data("n")) <= 1000


@pytest.mark.covers("I7")
def test_an_append_to_a_stream_that_is_full(make_stream, raw):
    s = make_stream()
    raw.xadd(s._spec.keys.data("log"), {"f": "v"}, id="18446744073709551615-18446744073709551615")
    job = started(s)
    job.effects.incrby("n").set("mark", "x").hset("h", {"a": 1}).xadd("log", {"f": "v"})
    error = refused(s, raw, job)
    assert (error.key, error.command) == ("log", "XADD")


@pytest.fixture
def user(redis_url, raw):
    """A user of the shared server: gives its URL, and a function that changes its rights."""
    name, password = f"u{secrets.token_hex(6)}", secrets.token_hex(12)

    def rights(*rules):
        assert look.call(raw, "ACL", "SETUSER", name, *rules) == b"OK"

    rights("on", f">{password}", "~*", "&*", "+@all")
    yield look.as_user(redis_url, name, password), rights
    look.call(raw, "ACL", "DELUSER", name)


@pytest.mark.covers("I7")
@pytest.mark.parametrize("denied", ["RPUSH", "SET", "HSET", "HINCRBY", "INCRBY", "SADD", "XADD", "DEL", "EXPIRE"])
def test_a_command_that_the_user_may_not_run(make_stream, raw, user, denied):
    url, rights = user
    s = make_stream(redis=url)
    raw.set(s._spec.keys.data("old"), "x")
    job = started(s)
    job.effects.zadd("first", {"m": 1}).incrby("n", 4).hincrby("f", "x", 2)
    job.effects.set("s", "v").hset("h", {"a": 1}).sadd("set", "m").rpush("list", "x").xadd("log", {"a": 1})
    job.effects.expire("s", 1000).delete("old")
    rights(f"-{denied.lower()}")
    error = refused(s, raw, job)
    assert error.command == denied
    assert error.key
    rights(f"+{denied.lower()}")
    s.commit(job)
    assert data(raw, s) == {
        "first": [(b"m", 1.0)], "n": b"4", "f": {b"x": b"2"}, "s": b"v", "h": {b"a": b"1"},
        "set": {b"m"}, "list": [b"x"], "log": [((b"a", b"1"),)],
    }  # fmt: skip
    assert look.state(raw, s) == State(counters={"done:workers": 1})


@pytest.mark.covers("I7", "C83")
def test_who_may_not_ask_whether_a_stream_is_full(make_stream, raw, user):
    """XADD of a stream that is there asks before: without the right the effect is refused, as without one for XADD."""
    url, rights = user
    s = make_stream(redis=url)
    raw.xadd(s._spec.keys.data("log"), {"f": "v"})
    job = started(s)
    job.effects.incrby("n").xadd("log", {"f": "v"})
    rights("-xinfo")
    error = refused(s, raw, job)
    assert (error.key, error.command) == ("log", "XADD")
    assert "XINFO STREAM" in error.reason
    rights("+xinfo")
    s.commit(job)
    assert raw.xlen(s._spec.keys.data("log")) == 2


@pytest.mark.covers("I7")
def test_a_key_that_the_user_may_not_touch(make_stream, raw, user):
    url, rights = user
    s = make_stream(redis=url)
    job = started(s)
    job.effects.set("a", "1").incrby("n").set("b", "2")
    keys = s._spec.keys
    allowed = [keys.stream, keys.meta, *keys.ids, *keys.done, *map(keys.data, ("a", "n", "~probe"))]
    rights("resetkeys", *(f"~{key}" for key in allowed))
    before = look.state(raw, s)
    with pytest.raises((EffectError, ConfigurationError)):
        s.commit(job)
    assert (look.state(raw, s), data(raw, s)) == (before, {})
    rights("~*")
    s.commit(job)
    assert data(raw, s) == {"a": b"1", "n": b"1", "b": b"2"}


@pytest.mark.covers("I7")
def test_the_other_jobs_are_unaffected(make_stream, raw):
    s = make_stream()
    raw.set(s._spec.keys.data("bad"), "x")
    ids = [s.add({"n": n}).entry_id for n in range(3)]
    jobs = s.read("w", count=3)
    for job in jobs:
        job.effects.incrby("sum", 10 ** job.payload["n"])
    jobs[1].effects.hset("bad", {"a": 1})
    s.commit(jobs[0])
    with pytest.raises(EffectError):
        s.commit(jobs[1])
    s.commit(jobs[2])
    assert raw.get(s._spec.keys.data("sum")) == b"101"
    assert look.state(raw, s) == State(stream=[ids[1]], pending={ids[1]: Row("w", 1)}, counters={"done:workers": 2})
    raw.delete(s._spec.keys.data("bad"))
    s.commit(jobs[1])
    assert raw.get(s._spec.keys.data("sum")) == b"111"
    assert look.state(raw, s) == State(counters={"done:workers": 3})


@pytest.mark.covers("I7")
def test_several_jobs_in_one_write(make_stream, raw):
    from streamq._ops import settle

    s = make_stream()
    raw.set(s._spec.keys.data("bad"), "x")
    s.add_many({"n": n} for n in range(3))
    jobs = s.read("w", count=3)
    for job in jobs:
        job.effects.incrby("sum", 10 ** job.payload["n"])
    jobs[1].effects.hset("bad", {"a": 1})
    outcomes = s.run(settle.commit_each(s._spec, [(job, b"") for job in jobs]))
    assert [type(outcome) for outcome in outcomes] == [type(None), EffectError, type(None)]
    assert raw.get(s._spec.keys.data("sum")) == b"101"
    assert look.pending(raw, s) == {jobs[1].entry_id: Row("w", 1)}


@pytest.mark.covers("I7")
def test_records_of_the_wrong_type_stop_effects_and_acknowledgement(make_stream, raw):
    s = make_stream()
    s.add({}, job_id="a")
    [job] = s.read("w")
    job.effects.incrby("n")
    slice_ = next(key for key in s._spec.keys.ids if not raw.exists(key))
    raw.set(slice_, "x")
    for settle in (lambda: s.commit(job), lambda: s.ack(job)):
        with pytest.raises(ConfigurationError, match="WRONGTYPE"):
            settle()
    assert data(raw, s) == {}
    assert list(look.pending(raw, s)) == [job.entry_id]
    raw.delete(slice_)
    s.commit(job)
    assert data(raw, s) == {"n": b"1"}


@pytest.mark.parametrize(
    "note",
    [
        lambda e: e.set("k", 1).incrby("k"),
        lambda e: e.delete("k").incrby("k"),
        lambda e: e.hset("k", {"f": 1}).hincrby("k", "f"),
        lambda e: e.delete("k").hincrby("k", "f"),
        lambda e: e.incrby("k", 2**63),
        lambda e: e.incrby("k", -(2**63)),
        lambda e: e.incrby("k", True),
        lambda e: e.incrby("k", 1.5),
        lambda e: e.hset("k", {}),
        lambda e: e.sadd("k"),
        lambda e: e.zadd("k", {"m": float("nan")}),
        lambda e: e.zadd("k", {"m": float("inf")}),
        lambda e: e.set("k", None),
        lambda e: e.set("k", True),
        lambda e: e.set("k", "\ud800"),
        lambda e: e.set("", "v"),
        lambda e: e.set("a\nb", "v"),
        lambda e: e.expire("k", 0),
        lambda e: e.rpush("k", *range(1_001)),
    ],
)
def test_what_cannot_be_an_effect_is_refused_when_noted(note):
    with pytest.raises(ConfigurationError):
        note(Effects())


def test_too_many_effects():
    effects = Effects()
    for n in range(128):
        effects.incrby(f"k{n}")
    with pytest.raises(ConfigurationError, match="128"):
        effects.incrby("one more")
    assert len(effects) == 128


def test_a_field_may_be_set_beside_one_that_counts(make_stream, raw):
    s = make_stream()
    job = started(s)
    job.effects.hset("h", {"name": "x"}).hincrby("h", "n", 2)
    s.commit(job)
    assert data(raw, s) == {"h": {b"name": b"x", b"n": b"2"}}
