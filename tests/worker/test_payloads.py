"""Entries and jobs that make trouble, through a running worker: bytes, types of other versions, what operators bring back."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
import redis
from waiting import until
from worker.fleet import effects, is_idle, options_of, quick, working

from streamq import Stream

TWO_BACKENDS = pytest.mark.parametrize("backend", ["redis-7.0", "valkey-9"], indirect=True)


class Mail(msgspec.Struct, tag="mail"):
    name: str


class Call(msgspec.Struct, tag="call"):
    name: str


class Fax(msgspec.Struct, tag="fax"):
    name: str


@pytest.mark.covers("C13")
@pytest.mark.parametrize("decode", [False, True], ids=["bytes", "decode_responses"])
@TWO_BACKENDS
def test_entries_of_any_bytes_hide_no_others(redis_url, ns, raw, handler, decode):
    """Whatever client the stream was given: nine of twelve run, and the others are kept byte for byte."""
    client = redis.Redis.from_url(redis_url, decode_responses=decode)
    with client, Stream(ns, redis=client, options=options_of({"lease": 1})) as s:
        key = s._spec.keys.stream
        good = [str(n) for n in range(9)]
        for n, name in enumerate(good):
            s.add({"name": name})
            if n == 3:
                raw.xadd(key, {"job": b"\x80\xff"})
            if n == 5:
                raw.xadd(key, {"job": b'{"name":"x"}', b"\x80\xff": b"\xfe"})  # a field of the producer's own
            if n == 7:
                raw.xadd(key, {"no job": b"\x00"})
        with working(quick(s, handler(by_name))):
            until(lambda: is_idle(s))
        assert effects(raw, s) == dict.fromkeys([*good, "x"], 1)
        letters = [(letter.reason, letter.fields) for letter in s.dead_letters.list()]
        assert sorted(letters) == [
            ("invalid", ((b"no job", b"\x00"),)),
            ("undecodable", ((b"job", b"\x80\xff"),)),
        ]
        raw.srem("streamq:streams", ns)


@pytest.mark.covers("C14")
@TWO_BACKENDS
def test_a_rolling_deploy_loses_no_job_of_a_new_type(redis_url, ns, raw, handler):
    """An old worker beside a new one: what the old one does not know is kept, and can be brought back."""
    with (
        Stream(ns, Mail | Call | Fax, redis=redis_url, options=options_of({})) as producer,
        Stream(ns, Mail | Call, redis=redis_url, options=options_of({})) as new,
        Stream(ns, Mail, redis=redis_url, options=options_of({})) as old,
    ):
        done = Counter()

        def body(payload, job):
            done[type(payload).__name__, payload.name] += 1

        producer.add_many(kind(str(n)) for n in range(20) for kind in (Mail, Call))
        producer.add(Fax("nobody knows me"))
        with working(quick(old, handler(body), concurrency=2), quick(new, handler(body), concurrency=2)):
            until(lambda: is_idle(new))
        letters = new.dead_letters.list(count=100)
        assert {letter.reason for letter in letters} == {"unknown_type"}
        calls = [letter for letter in letters if b'"call"' in letter.payload]
        assert sum(kind == "Call" for kind, _ in done) + len(calls) == 20
        assert len(letters) == len(calls) + 1
        new.dead_letters.redrive([letter.id for letter in calls])
        with working(quick(new, handler(body))):  # the old one is gone
            until(lambda: is_idle(new))
        assert done == {(kind, str(n)): 1 for kind in ("Mail", "Call") for n in range(20)}
        [left] = new.dead_letters.list()
        assert b"nobody knows me" in left.payload
        raw.srem("streamq:streams", ns)


@pytest.mark.covers("C11")
def test_what_is_redriven_runs_again_with_all_its_attempts(make_stream, handler, raw):
    s = make_stream(lease=1, retries=1)
    starts, mended = Counter(), set()

    def body(payload, job):
        starts[payload["name"]] += 1
        if payload["name"] not in mended:
            raise ValueError("as told")
        by_name(payload, job)

    for name in ["J", "J2"]:
        s.add({"name": name}, job_id=name)
    with working(quick(s, handler(body))):
        until(lambda: s.inspect().dead == 2)
        assert starts == {"J": 2, "J2": 2}
        mended.add("J")
        letters = [letter.id for letter in s.dead_letters.list()]
        assert len(s.dead_letters.redrive(letters).moved) == 2
        assert s.dead_letters.redrive(letters).moved == {}  # once more does nothing
        until(lambda: is_idle(s) and s.inspect().dead == 1)
    assert starts == {"J": 3, "J2": 4}
    assert effects(raw, s) == {"J": 1}
    [letter] = s.dead_letters.list()
    assert (letter.job_id, letter.reason, letter.attempts, letter.redrives) == ("J2", "attempts", 2, 1)
    assert s.result("J").state == "done"


def by_name(payload, job):
    job.effects.hincrby("effects", payload["name"])
