"""Mistakes of the caller or of the set-up: a clear error, and nothing written before it."""

from __future__ import annotations

from contextlib import closing

import look
import pytest
import servers
from colours import open_stream

from streamq import (
    Backoff,
    ConfigurationError,
    ConnectionLostError,
    JobEncodingError,
    QueueFullError,
    ServerTooOldError,
    StreamqError,
)
from streamq.keys import registry

BAD_NAMES = [
    "", "a:b", "a{b}c", "}x", "{", "{x}", "{}", "a b", "é", "x" * 129, "x" * 300, "a\n", "\n", "a\x00", "\x7f", "a/b",
    "*", "?", "\ud800", None, 7, b"x",
]  # fmt: skip


@pytest.fixture
def nothing_written(make_stream, raw, ns):
    """Checks after the test that it wrote no key, and registered no stream."""
    known = raw.smembers(registry(None))
    yield
    assert look.dumps(raw, ns) == {}
    assert raw.smembers(registry(None)) == known


@pytest.mark.covers("C34")
@pytest.mark.parametrize("name", BAD_NAMES)
def test_names_of_streams(colour, name):
    with pytest.raises(ConfigurationError, match="stream name"):
        open_stream(colour, name, redis="redis://localhost:1")


@pytest.mark.covers("C34")
@pytest.mark.parametrize("name", [*(name for name in BAD_NAMES if name is not None), "streamq"])
def test_names_of_deployments(colour, name):
    with pytest.raises(ConfigurationError, match="deployment"):
        open_stream(colour, "x", redis="redis://localhost:1", deployment=name)


@pytest.mark.covers("C34")
@pytest.mark.parametrize("name", ["", "a:b", "{x}", "a\x00", "x" * 129, None])
def test_names_of_consumers(make_stream, nothing_written, name):
    s = make_stream()
    with pytest.raises(ConfigurationError, match="consumer"):
        s.read(name)
    with pytest.raises(ConfigurationError, match="consumer"):
        s.reclaim(name)


@pytest.mark.covers("F16")
@pytest.mark.parametrize("value", [0, -1, True, 1.5, "5", None])
def test_max_deliveries(make_stream, value):
    with pytest.raises(ConfigurationError, match="max_deliveries"):
        make_stream(max_deliveries=value)


@pytest.mark.parametrize("value", [0, -1, 0.001, float("nan"), float("inf"), "15", None, True, 10**9])
def test_lease(make_stream, value):
    with pytest.raises(ConfigurationError, match="lease"):
        make_stream(lease=value)


@pytest.mark.parametrize(
    "options",
    [
        {"idempotency_ttl": 0},
        {"idempotency_ttl": -1},
        {"retention": "forever"},
        {"max_payload": 0},
        {"max_payload": 2**40},
        {"group": "a{b}"},
        {"retry": 3},
        {"crash_backoff": None},
    ],
)
def test_options(make_stream, options):
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        make_stream(**options)


@pytest.mark.parametrize(
    ("verb", "arguments"),
    [
        ("read", {"count": 0}),
        ("read", {"count": 1_001}),
        ("read", {"count": True}),
        ("read", {"count": 1.5}),
        ("read", {"block": -1}),
        ("read", {"block": float("nan")}),
        ("read", {"block": "1"}),
        ("reclaim", {"count": 0}),
        ("reclaim", {"min_idle": -0.1}),
        ("reclaim", {"min_idle": float("inf")}),
    ],
)
def test_arguments(make_stream, nothing_written, verb, arguments):
    s = make_stream()
    with pytest.raises(ConfigurationError, match=next(iter(arguments))):
        getattr(s, verb)("w", **arguments)


@pytest.mark.parametrize("count", [0, -1, 1_001, "7"])
def test_count_of_dead_letters(make_stream, nothing_written, count):
    with pytest.raises(ConfigurationError, match="count"):
        make_stream().dead_letters.list(count=count)


@pytest.mark.parametrize("after", ["", "x", "1-2-3", "(1-0", "-"])
def test_place_among_dead_letters(make_stream, nothing_written, after):
    with pytest.raises(StreamqError):
        make_stream().dead_letters.list(after=after)


@pytest.mark.covers("F12")
@pytest.mark.parametrize("job_id", [None, "a"])
def test_a_payload_that_cannot_be_encoded(make_stream, nothing_written, job_id):
    with pytest.raises(JobEncodingError, match="cannot be encoded"):
        make_stream().add({"x": object()}, job_id=job_id)


@pytest.mark.covers("F12")
def test_a_payload_within_itself(make_stream, nothing_written):
    payload = {}
    payload["x"] = payload
    with pytest.raises(JobEncodingError):
        make_stream().add(payload)


@pytest.mark.covers("F13")
@pytest.mark.parametrize("job_id", [None, "a"])
def test_a_payload_over_the_limit(make_stream, nothing_written, job_id):
    s = make_stream(type=bytes, max_payload=1_000)
    with pytest.raises(JobEncodingError, match="1,001 bytes, max_payload is 1,000"):
        s.add(b"x" * 1_001, job_id=job_id)


def test_a_payload_at_the_limit(make_stream):
    s = make_stream(type=bytes, max_payload=1_000)
    s.add(b"x" * 1_000)
    assert s.read("w")[0].payload == b"x" * 1_000


@pytest.mark.parametrize(
    "headers", [{"a b": "x"}, {"": "x"}, {"x": 7}, {"x": "\ud800"}, {7: "x"}, {f"h{n}": "x" for n in range(65)}]
)
def test_headers(make_stream, nothing_written, headers):
    with pytest.raises(JobEncodingError) as caught:
        make_stream().add({}, headers=headers)
    assert caught.value.path.startswith("headers")


def test_a_bad_payload_among_many(make_stream, raw):
    s = make_stream(type=int)
    with pytest.raises(JobEncodingError, match="payload 700") as caught:
        s.add_many(n if n != 700 else "x" for n in range(1_000))
    assert caught.value.added == 700
    assert raw.xlen(s._spec.keys.stream) == 700


def test_an_iterable_that_fails(make_stream, raw):
    """It is asked for the next jobs while the server has those before: its error comes when they are counted."""
    s = make_stream(type=int)

    def numbers():
        yield from range(700)
        raise LookupError("no more")

    with pytest.raises(LookupError, match="no more"):
        s.add_many(numbers())
    assert raw.xlen(s._spec.keys.stream) == 500


def test_what_is_taken_beyond_an_error(make_stream, raw):
    s = make_stream(type=int, max_ready=300)
    numbers = iter(range(5_000))
    with pytest.raises(QueueFullError) as caught:
        s.add_many(numbers)
    assert caught.value.added == raw.xlen(s._spec.keys.stream) == 300
    assert next(numbers) <= 1_000


@pytest.mark.parametrize("result", [object(), "x" * 65_536])
def test_a_result_that_cannot_be_kept(make_stream, raw, result):
    s = make_stream()
    s.add({}, job_id="a")
    [job] = s.read("w")
    job.effects.incrby("n")
    before = look.state(raw, s)
    with pytest.raises(JobEncodingError, match="result"):
        s.commit(job, result)
    assert look.state(raw, s) == before
    assert not raw.exists(s._spec.keys.data("n"))


# --- the server ------------------------------------------------------------------------------


@pytest.mark.covers("C89")
@pytest.mark.parametrize(
    "verb",
    [
        lambda s: s.add({}),
        lambda s: s.add({}, job_id="a"),
        lambda s: s.add_many([{}, {}]),
        lambda s: s.read("w"),
        lambda s: s.read("w", block=1),
        lambda s: s.reclaim("w"),
        lambda s: s.inspect(),
    ],
    ids=["add", "add with ID", "add_many", "read", "read and wait", "reclaim", "inspect"],
)
@pytest.mark.parametrize("kind", ["string", "hash"])
def test_a_stream_key_of_the_wrong_type(make_stream, raw, ns, verb, kind):
    s = make_stream()
    key = s._spec.keys.stream
    raw.set(key, "x") if kind == "string" else raw.hset(key, "f", "v")
    before = look.dumps(raw, ns)
    with pytest.raises(ConfigurationError) as caught:
        verb(s)
    assert key in str(caught.value)
    assert look.dumps(raw, ns) == before
    assert not raw.sismember(registry(None), s.name)


@pytest.mark.covers("C89")
@pytest.mark.parametrize("verb", [lambda s: s.read("w"), lambda s: s.reclaim("w")], ids=["read", "reclaim"])
def test_a_stream_key_of_the_wrong_type_is_named_with_its_type(make_stream, raw, verb):
    s = make_stream()
    raw.hset(s._spec.keys.stream, "f", "v")
    with pytest.raises(ConfigurationError, match="holds a hash, not a stream"):
        verb(s)


@pytest.mark.covers("C89")
def test_a_stream_key_that_is_retyped_meanwhile(make_stream, raw, ns):
    s = make_stream()
    s.add({})
    [job] = s.read("w")
    raw.delete(s._spec.keys.stream)
    raw.set(s._spec.keys.stream, "x")
    before = look.dumps(raw, ns)
    for verb in (lambda: s.read("w"), lambda: s.reclaim("w"), lambda: s.ack(job), lambda: s.retry(job)):
        with pytest.raises(ConfigurationError) as caught:
            verb()
        assert s._spec.keys.stream in str(caught.value)
    assert look.dumps(raw, ns) == before


def test_a_server_that_cannot_be_reached(colour):
    with closing(open_stream(colour, "x", redis=f"redis://127.0.0.1:{servers.free_port()}")) as s:
        for verb in (lambda: s.add({}), lambda: s.read("w"), s.inspect, lambda: s.reclaim("w")):
            with pytest.raises(ConnectionLostError, match="redis server 127") as caught:
                verb()
            assert caught.value.maybe_executed is False


def test_a_unix_socket_that_is_not_there(colour, tmp_path):
    with (
        closing(open_stream(colour, "x", redis=f"unix://{tmp_path}/none")) as s,
        pytest.raises(ConnectionLostError, match="none"),
    ):
        s.add({})


@pytest.mark.parametrize("credentials", ["", ":wrong@", "nobody:wrong@"])
def test_a_wrong_password(colour, new_server, credentials):
    server = new_server(args=("--requirepass", "right"))
    url = server.url.replace("redis://", f"redis://{credentials}")
    with closing(open_stream(colour, "x", redis=url)) as s:
        for verb in (lambda: s.add({}), lambda: s.read("w"), s.inspect):
            with pytest.raises(ConfigurationError, match="password") as caught:
                verb()
            assert "wrong" not in str(caught.value)
    with closing(open_stream(colour, "x", redis=server.url.replace("redis://", "redis://:right@"))) as s:
        assert s.inspect().length == 0
        assert s.add({}).created


@pytest.mark.covers("C83")
def test_a_server_without_xautoclaim(colour, new_server):
    server = new_server(args=("--rename-command", "XAUTOCLAIM", ""))
    with closing(open_stream(colour, "x", redis=server.url)) as s:
        for verb in (lambda: s.read("w"), lambda: s.reclaim("w")):
            with pytest.raises(ServerTooOldError, match="XAUTOCLAIM"):
                verb()
        snapshot = s.inspect()
    assert (snapshot.length, snapshot.groups) == (0, {})  # nothing was made


@pytest.mark.parametrize(
    "url",
    [
        "http://x",
        "localhost:6379",
        "",
        "redis://x?nonsense=1",
        "redis://x:port",
        "redis://h/0?db=x",
    ],
)
def test_urls(colour, monkeypatch, url):
    monkeypatch.setenv("STREAMQ_URL", "")
    with pytest.raises(ConfigurationError):
        open_stream(colour, "x", redis=url)


def test_types_that_cannot_be_payloads(colour):
    with pytest.raises(ConfigurationError, match="cannot be decoded"):
        open_stream(colour, "x", dict[tuple[int, ...], object] | set[int] | list[int], redis="redis://localhost:1")


def test_backoff_of_no_retries_dead_letters_at_once(make_stream):
    s = make_stream(retry=Backoff.constant(0, limit=0))
    s.add({})
    assert s.retry(s.read("w")[0]) is False
