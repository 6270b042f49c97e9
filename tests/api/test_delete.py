"""Deleting a stream: all of it and nothing else, and never with work left unless told."""

from __future__ import annotations

import look
import pytest

from streamq import ConfigurationError, Effects, JobStateError
from streamq.keys import registry
from streamq.worker import maintenance

ONE_BACKEND = pytest.mark.parametrize("backend", ["redis-7.0"], indirect=True)
"""For mistakes that are found before anything is sent."""


def keys_of(raw, s):
    return {key.decode() for key in raw.scan_iter(match=f"{s._spec.keys.prefix}:*", count=1_000)}


def dumps(raw, ns):
    """All there is, but for tokens of maintenance, which go by themselves."""
    return {key: value for key, value in look.dumps(raw, ns).items() if b":tick:" not in key}


def finished(s, raw, *, data=3):
    """Use everything that a stream has, and leave no work: how many keys it has then."""
    keys = s._spec.keys
    s.add({}, job_id="k")
    [job] = s.read("w")
    for n in range(data):
        job.effects.hset(f"d{n}", {"a": 1})
    s.commit(job, 1)
    s.once("o", Effects().incrby("once"))
    s.pause()
    s.resume()
    s.run(maintenance.tick(s._spec, "w", may_reclaim=True, beat=b"{}"))
    found = keys_of(raw, s)
    for key in found:
        raw.persist(key)  # a token that goes by itself would change the number
    assert found >= {keys.stream, keys.meta, keys.wake, keys.workers, keys.tick("prune:workers"), keys.data("once")}
    return len(found)


@pytest.mark.covers("C66")
def test_all_of_it_goes_and_nothing_else(make_stream, raw, ns):
    s = make_stream("name")
    others = [
        make_stream("name2"),
        make_stream("name.2"),
        make_stream("nam"),
        make_stream("name", deployment=f"{ns}-d"),
    ]
    for other in others:
        finished(other, raw)
        other.add({"n": 1})
    raw.set(f"{s._spec.keys.prefix}x:data:d0", "foreign")
    raw.set(f"x{s._spec.keys.prefix}:data:d0", "foreign")
    before = dumps(raw, ns)
    count = finished(s, raw, data=120)
    assert raw.sismember(registry(None), s.name)
    assert s.delete() == count
    assert dumps(raw, ns) == before
    assert not raw.sismember(registry(None), s.name)
    for other in others:
        assert raw.sismember(registry(other._spec.keys.deployment), other.name)
    assert s.delete() == 0
    assert s.delete(force=True) == 0
    assert dumps(raw, ns) == before


def unread(s, raw):
    s.add({})


def unread_by_one(s, raw):
    s.groups.create("b")
    s.add({})
    s.ack(s.read("w"))


def pending(s, raw):
    s.add({})
    s.read("w")


def scheduled(s, raw):
    raw.zadd(s._spec.keys.scheduled, {"/k": 1})
    raw.hset(s._spec.keys.jobs, "/k", "x")


def dead(s, raw):
    s.add({})
    s.reject(s.read("w")[0])


def without_group(s, raw):
    look.by_hand(raw, s, "job", "{}")
    s.groups.drop("workers", force=True)


@pytest.mark.parametrize(
    ("work", "state"),
    [
        (unread, "ready"),
        (unread_by_one, "ready"),
        (without_group, "ready"),
        (pending, "pending"),
        (scheduled, "scheduled"),
        (dead, "dead"),
    ],
)
def test_work_that_is_left(make_stream, raw, ns, work, state):
    s = make_stream()
    finished(s, raw)
    work(s, raw)
    raw.delete(*[key for key in keys_of(raw, s) if ":tick:" in key])
    before = look.dumps(raw, ns)
    with pytest.raises(JobStateError, match="nothing was deleted") as caught:
        s.delete()
    assert caught.value.state == state
    assert look.dumps(raw, ns) == before
    assert raw.sismember(registry(None), s.name)
    assert s.delete(force=True) == len(before)
    assert look.dumps(raw, ns) == {}
    assert not raw.sismember(registry(None), s.name)


def test_all_the_work_is_named(make_stream, raw):
    s = make_stream()
    pending(s, raw)
    dead(s, raw)
    scheduled(s, raw)
    unread(s, raw)
    with pytest.raises(JobStateError) as caught:
        s.delete()
    for words in ("entries to read", "1 pending", "1 scheduled", "1 dead"):
        assert words in str(caught.value)


@pytest.mark.covers("C66")
def test_a_stream_that_was_never_used(make_stream, raw, ns):
    s = make_stream()
    assert s.delete() == 0
    assert look.dumps(raw, ns) == {}


def test_what_only_foreign_clients_made(make_stream, raw, ns):
    s = make_stream()
    raw.set(s._spec.keys.data("x"), "1")
    assert s.delete() == 1
    assert look.dumps(raw, ns) == {}


def test_the_same_stream_can_be_used_again(make_stream, raw):
    s = make_stream(groups=("b",))
    s.add({"n": 1}, job_id="k")
    s.pause()
    assert s.delete(force=True) > 0
    assert s.add({"n": 2}, job_id="k").created is True  # nothing is remembered
    assert raw.sismember(registry(None), s.name)
    assert look.groups(raw, s).keys() == {"workers", "b"}
    assert [job.payload["n"] for job in make_stream().read("w", count=9)] == [2]


@ONE_BACKEND
@pytest.mark.parametrize("force", ["no", 1, 0, None, "true"])
def test_wrong_arguments(make_stream, raw, force):
    s = make_stream()
    s.add({})
    before = look.dumps(raw, s.name)
    with pytest.raises(ConfigurationError, match="force"):
        s.delete(force=force)
    assert look.dumps(raw, s.name) == before


@pytest.mark.covers("C89")
@pytest.mark.parametrize("key", ["stream", "dead", "scheduled"])
def test_keys_of_the_wrong_type(make_stream, raw, ns, key):
    s = make_stream()
    raw.set(getattr(s._spec.keys, key), "x")
    before = look.dumps(raw, ns)
    with pytest.raises(ConfigurationError, match="WRONGTYPE"):
        s.delete()
    assert look.dumps(raw, ns) == before
    assert s.delete(force=True) == 1
    assert look.dumps(raw, ns) == {}
