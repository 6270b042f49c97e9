"""Entries of plain producers, malformed ones, and clients of any setting."""

from __future__ import annotations

import asyncio

import look
import msgspec
import pytest
import redis
import redis.asyncio
from look import State

from streamq import Backoff, ConfigurationError


class Refund(msgspec.Struct):
    order: str
    cents: int


class Mail(msgspec.Struct, tag="mail"):
    to: str


class Call(msgspec.Struct, tag="call"):
    number: str


def by_hand(raw, s, *fields):
    """XADD, as a plain producer does it; the entry's ID."""
    return look.call(raw, "XADD", s._spec.keys.stream, "*", *fields).decode()


def foreign(fields):
    """Without the fields that are ours."""
    return [(name, value) for name, value in fields if not name.startswith(b"sq:")]


# --- plain producers -------------------------------------------------------------------------


@pytest.mark.covers("S8")
def test_an_entry_with_nothing_but_a_job(make_stream, raw):
    s = make_stream(type=Refund)
    entry_id = by_hand(raw, s, "job", '{ "order" : "A1", "cents": 7, "more": [] }')
    [job] = s.read("w")
    assert job.payload == Refund("A1", 7)
    assert (job.id, job.entry_id, job.attempt, job.headers) == (entry_id, entry_id, 1, {})
    assert round(job.enqueued_at.timestamp() * 1000) == int(entry_id.partition("-")[0])
    assert s.ack(job)
    assert look.state(raw, s) == State(counters={"done:workers": 1})


@pytest.mark.covers("S8", "F8")
def test_every_field_survives_retries_and_the_dead_letter(make_stream, raw):
    s = make_stream(retry=Backoff.constant(0, limit=2))
    fields = [
        (b"trace", b"t-1"),
        (b"job", b'{ "n": 1.10 }'),
        (b"\xff\x00", b"\x80"),
        (b"trace", b"again"),
        (b"sq:h:tenant", b"acme"),
        (b"sq:later", b"\xff of a later version"),
        (b"", b""),
        (b"dead:reason", b"x"),
    ]
    entry_id = by_hand(raw, s, *(part for pair in fields for part in pair))
    for attempt in (1, 2):
        [job] = s.read("w")
        assert (job.id, job.attempt, job.headers) == (entry_id, attempt, {"tenant": "acme"})
        assert s.retry(job, f"error {attempt}")
        [(_, stored)] = look.entries(raw, s._spec.keys.stream)
        assert foreign(stored) == foreign(fields)
        assert [pair for pair in stored if pair in fields] == fields  # those of later versions, too
    [job] = s.read("w")
    assert s.retry(job, "error 3") is False
    [letter] = s.dead_letters.list()
    assert foreign(letter.fields) == foreign(fields)
    assert [pair for pair in letter.fields if pair in fields] == fields
    assert (letter.job_id, letter.reason, letter.attempts) == (entry_id, "attempts", 3)
    assert letter.enqueued_at.timestamp() * 1000 == pytest.approx(int(entry_id.partition("-")[0]), abs=0.5)


@pytest.mark.covers("S8")
def test_a_retried_entry_is_for_its_group_alone(make_stream, raw):
    one, two = make_stream(group="one"), make_stream(group="two")
    for s in (one, two):
        s.read("w")
    by_hand(raw, one, "job", "{}")
    one.retry(one.read("w")[0], "no", delay=0)
    two.ack(two.read("w")[0])
    assert two.read("w") == []
    assert one.ack(one.read("w")[0])
    assert raw.xlen(one._spec.keys.stream) == 0


@pytest.mark.covers("C94")
@pytest.mark.parametrize("entry_id", ["99999999999999-0", f"{2**63}-5", "18446744073709551614-1", "1-0"])
def test_an_entry_id_of_another_time(make_stream, raw, entry_id):
    s = make_stream(retry=Backoff.constant(0, limit=1))
    s.read("w")
    look.call(raw, "XADD", s._spec.keys.stream, entry_id, "job", "{}")
    [job] = s.read("w")
    assert job.id == entry_id
    assert job.enqueued_at
    assert s.retry(job, "no") is True
    [job] = s.read("w")
    assert (job.id, job.attempt) == (entry_id, 2)
    assert s.retry(job, "no") is False
    [letter] = s.dead_letters.list()
    assert (letter.job_id, letter.reason) == (entry_id, "attempts")
    assert s.add({}).created
    assert s.ack(s.read("w")[0])


# --- malformed entries -----------------------------------------------------------------------


@pytest.mark.covers("S8", "F12")
@pytest.mark.parametrize(
    ("fields", "reason", "error"),
    [
        ({"x": "1"}, "invalid", "field job: missing"),
        ({"job": b"\xff\xfe"}, "undecodable", "$: "),
        ({"job": ""}, "undecodable", "$: "),
        ({"job": "{"}, "undecodable", "$: "),
        ({"job": '{"order":"A","cents":"7"}'}, "undecodable", "$.cents: expected int, got str"),
        ({"job": '{"order":"A","cents":null}'}, "undecodable", "$.cents: expected int, got null"),
        ({"job": '{"order":"A"}'}, "undecodable", "$: object missing required field cents"),
        ({"job": "7"}, "undecodable", "$: expected object, got int"),
        ({"job": b'{"order":"\xff","cents":7}'}, "undecodable", "$"),
        ({"job": f'{{"order":"{"x" * 1000}","cents":7}}'}, "oversized", "$: 1,022 bytes, max_payload is 1,000"),
    ],
)
def test_a_payload_that_is_none(make_stream, raw, fields, reason, error):
    s = make_stream(type=Refund, max_payload=1_000)
    bad = by_hand(raw, s, *(part for pair in fields.items() for part in pair))
    good = s.add(Refund("A1", 7)).entry_id
    assert [job.entry_id for job in s.read("w", count=2)] == [good]
    [letter] = s.dead_letters.list()
    assert (letter.reason, letter.source_id) == (reason, bad)
    assert letter.error.startswith(error)
    if error.endswith("got str"):
        assert letter.error == error
    expected = [(n.encode(), v if isinstance(v, bytes) else v.encode()) for n, v in fields.items()]
    assert list(letter.fields) == expected
    assert list(look.pending(raw, s)) == [good]


@pytest.mark.covers("F12")
def test_a_payload_nested_deeper_than_the_stack(make_stream, raw):
    s = make_stream()
    by_hand(raw, s, "job", '{"x":' + "[" * 500_000)
    good = s.add({}).entry_id
    assert [job.entry_id for job in s.read("w", count=2)] == [good]
    assert [letter.reason for letter in s.dead_letters.list()] == ["undecodable"]


@pytest.mark.covers("S8")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sq:attempt", "abc"),
        ("sq:attempt", "0"),
        ("sq:attempt", "-1"),
        ("sq:attempt", "1e3"),
        ("sq:attempt", "9" * 16),
        ("sq:attempt", "²"),
        ("sq:at", "-1"),
        ("sq:at", "x"),
        ("sq:at", "9" * 15),
        ("sq:id", ""),
        ("sq:id", "x" * 513),
        ("sq:id", "a\nb"),
        ("sq:id", b"\xff"),
        ("sq:group", "{x}"),
        ("sq:group", b"\xff"),
        ("sq:codec", "cbor"),
        ("sq:errors", "no"),
        ("sq:errors", "[1]"),
        ("sq:h:x", b"\xff"),
        (b"sq:h:\xff", "x"),
    ],
)
def test_a_reserved_field_that_is_malformed(make_stream, raw, name, value):
    s = make_stream()
    bad = by_hand(raw, s, "job", "{}", name, value)
    good = s.add({}).entry_id
    jobs = s.read("w", count=2)
    assert [job.entry_id for job in jobs] == [good]
    assert jobs[0].enqueued_at.year > 2000
    [letter] = s.dead_letters.list()
    assert (letter.reason, letter.source_id) == ("invalid", bad)
    shown = name if isinstance(name, str) else "sq:h:"
    assert letter.error.startswith(f"field {shown}")
    assert list(look.pending(raw, s)) == [good]


@pytest.mark.covers("C14")
def test_a_tag_that_is_not_in_the_union(make_stream, raw):
    s = make_stream(type=Mail | Call)
    unknown = by_hand(raw, s, "job", '{"type":"fax","to":"x"}')
    by_hand(raw, s, "job", '{"type":"call","number":7}')
    s.add(Mail("me"))
    [job] = s.read("w", count=3)
    assert job.payload == Mail("me")
    letters = s.dead_letters.list()
    assert [letter.reason for letter in letters] == ["unknown_type", "undecodable"]
    assert letters[0].source_id == unknown
    assert letters[0].payload == b'{"type":"fax","to":"x"}'  # nothing lost: it can be given to a newer worker
    assert "fax" in letters[0].error
    assert letters[1].error == "$.number: expected str, got int"


@pytest.mark.covers("F12", "C13")
def test_bytes_that_are_no_text(make_stream, raw, redis_url):
    with look.kind_of_client(redis.Redis, redis_url)(decode_responses=True) as client:
        s = make_stream(redis=client)
        ids = []
        for n in range(10):
            more = {4: (b"blob", b"\x80\xff"), 6: (b"\x80\xff", b"x")}.get(n, ())
            ids.append(by_hand(raw, s, "job", b"\x80\xff" if n == 8 else "{}", *more))
        jobs = s.read("w", count=10)
        assert [job.entry_id for job in jobs] == [*ids[:8], ids[9]]
        assert s.ack(jobs) == 9
        [letter] = s.dead_letters.list()
        assert (letter.reason, letter.fields) == ("undecodable", ((b"job", b"\x80\xff"),))
        assert look.state(raw, s) == State(
            dead=[(ids[8], "undecodable")], counters={"dead:workers": 1, "done:workers": 9}
        )


# --- clients ---------------------------------------------------------------------------------


@pytest.fixture(params=["2", "3", "default"])
def protocol(request):
    return {} if request.param == "default" else {"protocol": int(request.param)}


@pytest.fixture(params=["bytes", "decoding"])
def decode(request):
    return request.param == "decoding"


@pytest.fixture(params=[redis.Redis, redis.asyncio.Redis], ids=["client", "asyncio client"])
def client(request, redis_url, protocol, decode):
    client = look.kind_of_client(request.param, redis_url)(decode_responses=decode, **protocol)
    yield client
    if isinstance(client, redis.Redis | redis.RedisCluster):
        client.close()
    else:
        asyncio.run(client.aclose())


@pytest.mark.covers("C35", "C13")
def test_a_whole_life_with_any_client(make_stream, raw, client):
    s = make_stream(redis=client, max_deliveries=2, retry=Backoff.constant(0, limit=1))
    ids = [s.add({"n": n}, job_id=f"j{n}" if n else None, headers={"h": "ü"}).entry_id for n in range(4)]
    bad = by_hand(raw, s, "job", b"\xff")
    jobs = s.read("w", count=10, block=1)
    assert [(j.entry_id, j.payload, j.headers) for j in jobs] == [(i, {"n": n}, {"h": "ü"}) for n, i in enumerate(ids)]
    assert s.ack(jobs[0]) is True
    jobs[1].effects.hset("h", {"a": 1})
    s.commit(jobs[1], "fine")
    assert s.retry(jobs[2], "once") is True
    s.release(jobs[3])
    [again] = s.read("w")
    assert (again.id, again.attempt) == ("j2", 2)
    assert s.retry(again, "twice") is False
    [reclaimed] = s.reclaim("w2").claimed
    look.age(raw, s, count=2)
    assert s.reclaim("w3").dead == [reclaimed.entry_id]
    letters = [(letter.source_id, letter.reason, letter.error) for letter in s.dead_letters.list()]
    assert [(source, reason) for source, reason, _ in letters] == [
        (bad, "undecodable"), (again.entry_id, "attempts"), (ids[3], "deliveries"),
    ]  # fmt: skip
    snapshot = s.inspect()
    assert (snapshot.length, snapshot.pending, snapshot.ready, snapshot.dead) == (0, 0, 0, 3)
    group = snapshot.groups["workers"]
    assert (group.done, group.retried, group.dead) == (2, 1, 3)
    assert raw.hgetall(s._spec.keys.data("h")) == {b"a": b"1"}


@pytest.mark.parametrize("client", [object(), 7, redis.ConnectionPool])
def test_what_is_no_client(make_stream, client):
    with pytest.raises(ConfigurationError, match="URL"):
        make_stream(redis=client)
