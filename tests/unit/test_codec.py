"""The stored entry: values to fields, and fields to values."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamq import ConfigurationError, Job, JobEncodingError, StreamOptions
from streamq._codec import (
    EntryCodec,
    Malformed,
    OtherGroups,
    PayloadCodec,
    cut,
    encode_result,
    errors_with,
)
from streamq.messages import JobIdKind


class Refund(msgspec.Struct):
    order: str
    cents: int


class Mail(msgspec.Struct, tag_field="kind", tag="mail"):
    to: str


class Call(msgspec.Struct, tag_field="kind", tag="call"):
    number: str


def decoded(*fields, kind=dict, **options):
    """What becomes of an entry with these fields."""
    codec = EntryCodec(kind, StreamOptions(**options))
    raw = [part if isinstance(part, bytes) else part.encode() for part in fields]
    return codec.job("1700000000000-3", raw, deliveries=2, consumer="w")


# --- writing ---------------------------------------------------------------------------------


def test_fields_of_a_plain_job():
    codec = EntryCodec(dict, StreamOptions())
    assert codec.fields({"n": 1}, job_id=None, headers=None) == ["job", b'{"n":1}']


def test_fields_of_a_job_with_everything():
    codec = EntryCodec(Refund, StreamOptions())
    fields = codec.fields(Refund("A1", 7), job_id="id", headers={"trace": "ü"})
    assert fields == ["job", b'{"order":"A1","cents":7}', "sq:id", "id", "sq:h:trace", "ü".encode()]


def test_bytes_are_stored_as_they_are():
    assert EntryCodec(bytes, StreamOptions()).fields(b"\xff\x00", job_id=None, headers=None) == ["job", b"\xff\x00"]


@pytest.mark.covers("F12")
def test_a_payload_of_another_type_is_refused_with_its_place():
    with pytest.raises(JobEncodingError, match="Refund") as caught:
        PayloadCodec(Refund, 1_000).encode(Refund("A1", "7"))
    assert caught.value.path == "$.cents"


def test_a_type_that_cannot_be_decoded():
    with pytest.raises(ConfigurationError, match="cannot be decoded"):
        PayloadCodec(list[int] | set[int], 1_000)


@pytest.mark.covers("F13")
@pytest.mark.parametrize(("size", "fits"), [(9, True), (10, True), (11, False)])
def test_the_longest_payload(size, fits):
    codec = PayloadCodec(bytes, 10)
    if fits:
        assert codec.encode(b"x" * size) == b"x" * size
    else:
        with pytest.raises(JobEncodingError, match="11 bytes"):
            codec.encode(b"x" * size)


# --- reading ---------------------------------------------------------------------------------


def test_a_job_of_a_plain_entry():
    job = decoded("job", '{"n":1}')
    assert isinstance(job, Job)
    assert (job.payload, job.id, job.entry_id, job.attempt, job.deliveries) == (
        {"n": 1}, "1700000000000-3", "1700000000000-3", 1, 2,
    )  # fmt: skip
    assert job._kind is JobIdKind.GENERATED
    assert job.enqueued_at.timestamp() == 1_700_000_000


def test_a_job_of_a_retried_entry():
    job = decoded(
        *("job", "{}", "sq:id", "a", "sq:at", "1600000000000", "sq:attempt", "3"),
        *("sq:group", "workers", "sq:errors", '["x","y"]', "sq:h:t", "1", "sq:codec", "json"),
    )
    assert (job.id, job.attempt, job.headers, job._errors) == ("a", 3, {"t": "1"}, ("x", "y"))
    assert job._kind is JobIdKind.CHOSEN
    assert job.enqueued_at.timestamp() == 1_600_000_000


@pytest.mark.parametrize("order", [("sq:id", "a", "sq:generated", "1"), ("sq:generated", "1", "sq:id", "a")])
def test_an_id_that_was_generated_stays_so(order):
    job = decoded("job", "{}", *order)
    assert (job.id, job._kind) == ("a", JobIdKind.GENERATED)


def test_what_is_written_is_read():
    codec = EntryCodec(Refund, StreamOptions())
    fields = codec.fields(Refund("ü", -1), job_id="Ä 1", headers={"a": "b\n"})
    job = decoded(*fields, kind=Refund)
    assert (job.payload, job.id, job.headers) == (Refund("ü", -1), "Ä 1", {"a": "b\n"})


def test_an_entry_of_another_group():
    assert decoded("job", "{}", "sq:group", "others") == OtherGroups("others")
    assert isinstance(decoded("job", "{}", "sq:group", "others", group="others"), Job)


def test_another_groups_entry_is_none_of_ours_even_when_it_is_malformed():
    assert decoded("job", "{", "sq:group", "others") == OtherGroups("others")


def test_unknown_fields_are_carried_along():
    assert isinstance(decoded("job", "{}", "sq:of-tomorrow", b"\xff", b"\xff", b"\xff"), Job)


@pytest.mark.covers("S8", "F12")
@pytest.mark.parametrize(
    ("raw", "kind", "reason", "error"),
    [
        (b"\xff", dict, "undecodable", "$: "),
        (b"", dict, "undecodable", "$: "),
        (b"[]", dict, "undecodable", "$: expected object, got array"),
        (b'{"order":"A","cents":"7"}', Refund, "undecodable", "$.cents: expected int, got str"),
        (b'{"order":"A"}', Refund, "undecodable", "$: object missing required field cents"),
        (b"x" * 101, bytes, "oversized", "$: 101 bytes, max_payload is 100"),
        (b'{"kind":"fax"}', Mail | Call, "unknown_type", "$.kind: invalid value 'fax'"),
        (b'{"kind":7}', Mail | Call, "undecodable", "$.kind: "),
        (b'{"kind":"mail","to":7}', Mail | Call, "undecodable", "$.to: expected str, got int"),
    ],
)
def test_payloads_that_are_none(raw, kind, reason, error):
    found = decoded("job", raw, kind=kind, max_payload=100)
    assert isinstance(found, Malformed)
    assert found.reason == reason
    assert found.error.startswith(error)


def test_a_tag_of_one_type_alone():
    found = decoded("job", b'{"kind":"fax"}', kind=Mail)
    assert isinstance(found, Malformed)
    assert found.reason == "unknown_type"


@pytest.mark.covers("F13")
@pytest.mark.parametrize(("count", "fits"), [(256, True), (257, False)])
def test_the_most_fields(count, fits):
    found = decoded("job", "{}", *(part for n in range(count - 1) for part in (f"f{n}", "x")))
    assert isinstance(found, Job) is fits
    if not fits:
        assert (found.reason, found.error) == ("oversized", "257 fields, at most 256 are handled")


# --- msgpack ---------------------------------------------------------------------------------


def test_only_what_is_not_json_says_so():
    fields = EntryCodec(dict, StreamOptions(codec="msgpack")).fields({"n": 1}, job_id="id", headers={"t": "x"})
    assert fields == ["job", b"\x81\xa1n\x01", "sq:codec", "msgpack", "sq:id", "id", "sq:h:t", b"x"]


@pytest.mark.covers("F12")
@pytest.mark.parametrize("of_stream", ["json", "msgpack"])
def test_an_entry_says_what_it_is_whatever_the_stream_writes(of_stream):
    packed = msgspec.msgpack.encode({"n": 1})
    for fields in [
        ("job", '{"n":1}'),
        ("job", '{"n":1}', "sq:codec", "json"),
        ("job", packed, "sq:codec", "msgpack"),
        ("sq:codec", "msgpack", "job", packed, "x", "y"),
    ]:
        job = decoded(*fields, codec=of_stream)
        assert (job.payload, job.id, job.attempt) == ({"n": 1}, "1700000000000-3", 1)


@pytest.mark.parametrize("value", ["cbor", "MSGPACK", "", b"\xff", "pickle", "json "])
@pytest.mark.parametrize("kind", [dict, bytes])
def test_codecs_that_are_unknown(kind, value):
    found = decoded("job", "{}", "sq:codec", value, kind=kind)
    assert found.reason == "invalid"
    assert found.error.startswith("field sq:codec: ")


def test_raw_payloads_have_no_codec():
    with pytest.raises(ConfigurationError, match="raw"):
        EntryCodec(bytes, StreamOptions(codec="msgpack"))
    assert decoded("job", b"\xc1", "sq:codec", "msgpack", kind=bytes).payload == b"\xc1"


@pytest.mark.covers("F12")
def test_extensions_are_no_payloads():
    codec = PayloadCodec(dict, 1_000, "msgpack")
    with pytest.raises(JobEncodingError, match=r"extension type 5|Extension type 5"):
        codec.encode({"x": msgspec.msgpack.Ext(5, b"code")})
    found = codec.decode(msgspec.msgpack.encode({"x": msgspec.msgpack.Ext(5, b"code")}), b"msgpack")
    assert found == Malformed("undecodable", "$: extension type 5 is not known")


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text() | st.binary()
    | st.datetimes(timezones=st.none() | st.just(UTC) | st.just(timezone(timedelta(hours=9)))) | st.decimals(),
    lambda inner: st.lists(inner) | st.tuples(inner) | st.sets(st.integers() | st.text())
    | st.dictionaries(st.text() | st.integers() | st.binary(), inner),
    max_leaves=8,
)  # fmt: skip


@pytest.mark.covers("F12")
@pytest.mark.parametrize("name", ["json", "msgpack"])
@given(payload=st.dictionaries(st.text(), values, max_size=4))
def test_a_payload_comes_back_equal_or_is_refused(name, payload):
    codec = EntryCodec(dict, StreamOptions(codec=name))
    try:
        fields = codec.fields(payload, job_id=None, headers=None)
    except JobEncodingError:
        return
    raw = [part if isinstance(part, bytes) else part.encode() for part in fields]
    assert codec.job("1-0", raw, deliveries=1, consumer="w").payload == payload


@pytest.mark.covers("F12")
@pytest.mark.parametrize("kind", [dict, object, Refund, Mail | Call, list[datetime], dict[int, bytes]])
@given(raw=st.binary(max_size=60))
def test_any_bytes_become_a_payload_or_malformed(kind, raw):
    for name in (b"json", b"msgpack"):
        PayloadCodec(kind, 1_000).decode(raw, name)  # raises nothing


def test_nan_equals_nothing_so_it_is_refused():
    for name in ("json", "msgpack"):
        with pytest.raises(JobEncodingError, match="NaN"):
            PayloadCodec(dict, 1_000, name).encode({"x": math.nan})


# --- a job -----------------------------------------------------------------------------------


def test_a_job_keeps_its_payload_out_of_logs():
    job = decoded("job", '{"password":"secret"}')
    assert "secret" not in repr(job)
    assert "secret" not in str(job.__rich_repr__())


def test_jobs_are_equal_to_themselves_alone():
    first, second = decoded("job", "{}"), decoded("job", "{}")
    assert first != second
    assert len({first, second}) == 2


# --- errors and results ----------------------------------------------------------------------


@pytest.mark.covers("C64")
@pytest.mark.parametrize(
    "text", ["", "x", "x" * 4_096, "x" * 4_097, "ü" * 5_000, "\x00" * 9_999, "\ud800" * 9_999, "€" * 1_366]
)
def test_cut(text):
    found = cut(text)
    assert len(found.encode()) <= 4_096
    if len(text.encode("utf-8", "backslashreplace")) <= 4_096 and "\x00" not in text:
        assert found == text
    else:
        assert found.endswith(" ...")
    assert "\x00" not in found


def test_cut_keeps_lines_and_shows_control_characters():
    assert cut("a\n\tb\x1b[31m\r") == "a\n\tb\\x1b[31m\\x0d"


def test_the_last_five_errors_are_kept():
    job = decoded("job", "{}", "sq:errors", '["1","2","3","4","5","6"]')
    assert errors_with(job, "7") == b'["3","4","5","6","7"]'
    assert len(errors_with(job, "x" * 10_000)) < 600


@pytest.mark.parametrize(
    ("result", "raw"), [(None, b""), ({"a": [1]}, b'{"a":[1]}'), (0, b"0"), ("", b'""'), (False, b"false")]
)
def test_results(result, raw):
    assert encode_result(result) == raw


@pytest.mark.parametrize("result", [object(), {"x": object()}, "x" * 65_535, {1: {2: object()}}])
def test_results_that_cannot_be_kept(result):
    with pytest.raises(JobEncodingError, match="result"):
        encode_result(result)


def test_the_longest_result():
    assert len(encode_result("x" * 65_534)) == 65_536
