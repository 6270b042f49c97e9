"""Payloads as JSON, as msgpack, and both in one stream."""

from __future__ import annotations

from datetime import UTC, datetime

import look
import msgspec
import pytest
from look import State

from streamq import Backoff, ConfigurationError, JobEncodingError


class Order(msgspec.Struct):
    customer: str
    photo: bytes
    at: datetime


class Mail(msgspec.Struct, tag="mail"):
    to: str


class Call(msgspec.Struct, tag="call"):
    number: str


ORDER = Order("ada", b"\xff\x00", datetime(2026, 7, 1, tzinfo=UTC))


def by_hand(raw, s, *fields):
    """XADD, as a plain producer does it; the entry's ID."""
    return look.call(raw, "XADD", s._spec.keys.stream, "*", *fields).decode()


def stored(raw, s):
    """Fields of each entry."""
    return [fields for _, fields in look.entries(raw, s._spec.keys.stream)]


@pytest.mark.covers("F12")
def test_a_payload_comes_back_as_it_was(make_stream, raw):
    s = make_stream(type=Order, codec="msgpack")
    s.add(ORDER)
    assert stored(raw, s) == [[(b"job", msgspec.msgpack.encode(ORDER)), (b"sq:codec", b"msgpack")]]
    [job] = s.read("w")
    assert job.payload == ORDER
    assert s.ack(job)
    assert look.state(raw, s) == State(counters={"done:workers": 1})


@pytest.mark.covers("F12")
def test_a_dict_may_hold_what_json_has_not(make_stream):
    payload = {1: b"\xff", "at": datetime(2026, 7, 1, 12, 30, tzinfo=UTC), "none": [None, 2**64 - 1, -(2**63), 1.5]}
    with pytest.raises(JobEncodingError):
        make_stream().add(payload)
    s = make_stream(codec="msgpack")
    s.add(payload)
    assert s.read("w")[0].payload == payload


@pytest.mark.covers("F12")
def test_a_stream_that_is_switched_reads_both_kinds(make_stream, raw):
    old, new = make_stream(), make_stream(codec="msgpack")
    old.add({"n": 1})
    new.add({"n": 2})
    by_hand(raw, new, "job", '{"n": 3}')  # a plain producer knows nothing of codecs
    by_hand(raw, new, "job", '{"n": 4}', "sq:codec", "json")
    by_hand(raw, new, "sq:codec", "msgpack", "trace", "t", "job", msgspec.msgpack.encode({"n": 5}))
    for number in range(6, 11):
        (old if number % 2 else new).add({"n": number})
    jobs = new.read("w", count=5) + old.read("w", count=5)
    assert [job.payload["n"] for job in jobs] == list(range(1, 11))
    assert new.ack(jobs) == 10


@pytest.mark.covers("F12")
def test_with_job_ids_headers_and_in_bulk(make_stream):
    s = make_stream(codec="msgpack")
    assert s.add({"n": b"0"}, job_id="a", headers={"trace": "t"}).created
    assert not s.add({"n": b"0"}, job_id="a").created
    assert s.add_many([{"n": b"1"}, {"n": b"2"}]) == 2
    assert s.add_many([{"n": b"3"}, {"n": b"3"}], job_id=lambda payload: payload["n"].decode()) == 1
    jobs = s.read("w", count=9)
    assert [(job.payload, job.headers) for job in jobs[:2]] == [({"n": b"0"}, {"trace": "t"}), ({"n": b"1"}, {})]
    assert (jobs[0].id, jobs[3].id) == ("a", "3")
    assert s.ack(jobs) == 4


@pytest.mark.covers("S8", "F12")
def test_the_codec_survives_retries_and_the_dead_letter(make_stream, raw):
    """The workers that take over are of the other kind: the entry says what it is, not the stream."""
    s, other = make_stream(codec="msgpack", retry=Backoff.constant(0, limit=1)), make_stream(type=dict)
    s.add({"n": b"\xff"}, headers={"trace": "t"})
    [first] = s.read("w")
    s.retry(first, "no")
    [second] = other.read("w")
    assert (second.payload, second.attempt, second.headers) == ({"n": b"\xff"}, 2, {"trace": "t"})
    assert second.enqueued_at == first.enqueued_at
    assert not s.retry(second, "no")
    [letter] = s.dead_letters.list()
    assert letter.reason == "attempts"
    assert letter.payload == msgspec.msgpack.encode({"n": b"\xff"})
    assert (b"sq:codec", b"msgpack") in letter.fields


@pytest.mark.covers("F12")
@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"", "$: "),
        (b"\xc1", "$: "),
        (b'{"n":1}', "$: "),
        (b"\x81\xa1n", "$: "),  # cut off
        (b"\x80\x80", "$: "),  # something behind it
        (b"\x90", "$: expected object, got array"),
        (b"\x81\xa1n\xa1\xff", "$: "),  # no UTF-8
        (b"\x81\xa1n" + b"\x91" * 100_000, "$: "),  # nested deeper than the stack
        (b"\x81\xa1n\xdd\xff\xff\xff\xff", "$: "),  # promises four billion values
        (b"\x81\xa1n\xc7\x01\x05x", "$: extension type 5 is not known"),
        (b"\x81\xa1n\xc7\x03\xffabc", "$[...]: "),  # a timestamp of no length that there is
        (b"\x81\x81\xa1x\x01\x02", "$: "),  # a key that cannot be one
    ],
)
def test_what_is_no_msgpack(make_stream, raw, body, error):
    s = make_stream(codec="msgpack")
    bad = by_hand(raw, s, "job", body, "sq:codec", "msgpack")
    good = s.add({}).entry_id
    assert [job.entry_id for job in s.read("w", count=2)] == [good]
    [letter] = s.dead_letters.list()
    assert (letter.reason, letter.source_id, letter.payload) == ("undecodable", bad, body)
    assert letter.error.startswith(error)


@pytest.mark.covers("F12")
def test_msgpack_that_does_not_say_so_is_json(make_stream, raw):
    s = make_stream(codec="msgpack")
    by_hand(raw, s, "job", msgspec.msgpack.encode({"n": 1}))
    by_hand(raw, s, "job", msgspec.msgpack.encode({"n": 1}), "sq:codec", "json")
    by_hand(raw, s, "job", "{}", "sq:codec", "cbor")
    by_hand(raw, s, "job", "{}", "sq:codec", "MSGPACK")
    assert s.read("w", count=9) == []
    letters = s.dead_letters.list()
    assert [letter.reason for letter in letters] == ["undecodable", "undecodable", "invalid", "invalid"]
    assert letters[2].error == "field sq:codec: b'cbor' is not known here; json and msgpack are"


@pytest.mark.covers("C14")
def test_a_tag_that_is_not_in_the_union(make_stream, raw):
    s = make_stream(type=Mail | Call, codec="msgpack")
    pack = msgspec.msgpack.encode
    by_hand(raw, s, "job", pack({"type": "fax", "to": "x"}), "sq:codec", "msgpack")
    by_hand(raw, s, "job", pack({"type": "call", "number": 7}), "sq:codec", "msgpack")
    s.add(Mail("me"))
    assert [job.payload for job in s.read("w", count=3)] == [Mail("me")]
    letters = s.dead_letters.list()
    assert [letter.reason for letter in letters] == ["unknown_type", "undecodable"]
    assert "fax" in letters[0].error
    assert letters[1].error == "$.number: expected str, got int"


@pytest.mark.covers("F13")
def test_the_limit_counts_encoded_bytes(make_stream, raw):
    s = make_stream(codec="msgpack", max_payload=100)
    s.add({"n": b"x" * 95})
    with pytest.raises(JobEncodingError, match="101 bytes, max_payload is 100"):
        s.add({"n": b"x" * 96})
    by_hand(raw, s, "job", msgspec.msgpack.encode({"n": b"x" * 96}), "sq:codec", "msgpack")
    assert len(s.read("w", count=2)) == 1
    assert [letter.reason for letter in s.dead_letters.list()] == ["oversized"]


@pytest.mark.covers("F12")
@pytest.mark.parametrize(
    "payload",
    [
        {"x": (1, 2)},
        {"x": {1, 2}},
        {"x": float("nan")},
        {"x": datetime(2026, 7, 1)},  # noqa: DTZ001  # that is the point
        {"x": 2**64},
        {"x": object()},
        {"x": msgspec.msgpack.Ext(5, b"x")},
        [],
    ],
)
def test_what_would_not_come_back_is_refused(make_stream, raw, payload):
    s = make_stream(codec="msgpack")
    with pytest.raises(JobEncodingError):
        s.add(payload)
    assert look.state(raw, s) == State()


@pytest.mark.covers("F12")
def test_the_place_of_what_is_wrong(make_stream):
    with pytest.raises(JobEncodingError, match="Order") as caught:
        make_stream(type=Order, codec="msgpack").add(Order("ada", 7, ORDER.at))
    assert caught.value.path == "$.photo"


@pytest.mark.covers("F12")
def test_bytes_are_raw(make_stream, raw):
    with pytest.raises(ConfigurationError, match="raw"):
        make_stream(type=bytes, codec="msgpack")
    s = make_stream(type=bytes)
    s.add(b"\xff\xfe")
    assert stored(raw, s) == [[(b"job", b"\xff\xfe")]]
    by_hand(raw, s, "job", b"\xc1", "sq:codec", "msgpack")
    assert [job.payload for job in s.read("w", count=2)] == [b"\xff\xfe", b"\xc1"]


@pytest.mark.parametrize("codec", ["pickle", "JSON", "", None, 1])
def test_codecs_that_are_none(make_stream, codec):
    with pytest.raises(ConfigurationError, match="codec"):
        make_stream(codec=codec)
