"""Dead letters: how entries get there, and what is kept of them."""

from __future__ import annotations

import random
import time
from collections import Counter
from datetime import UTC, datetime, timedelta

import children
import look
import pytest
from look import Row, State
from waiting import until

from streamq import Backoff, ServerError


def spent(s, raw, fields):
    """Put an entry into the stream by hand and let its deliveries be used up; its ID."""
    args = [part for pair in fields for part in pair]
    entry_id = look.call(raw, "XADD", s._spec.keys.stream, "*", *args).decode()
    s.reclaim("dead")  # makes the group
    look.call(raw, "XREADGROUP", "GROUP", "workers", "dead", "STREAMS", s._spec.keys.stream, ">")
    look.age(raw, s, [entry_id], count=s.options.max_deliveries)
    return entry_id


# --- what is kept ----------------------------------------------------------------------------


@pytest.mark.covers("S5")
def test_a_dead_letter_tells_what_happened(make_stream, raw):
    s = make_stream(max_deliveries=3)
    s.read("w1")
    before = datetime.now(UTC) - timedelta(seconds=2)
    added = s.add({"n": 1}, job_id="order-7", headers={"trace": "t1"})
    s.read("w1")
    look.age(raw, s, count=3)
    s.reclaim("w2")
    [letter] = s.dead_letters.list()
    assert letter.payload == b'{"n":1}'
    assert (letter.source_id, letter.job_id, letter.deliveries) == (added.entry_id, "order-7", 3)
    assert (letter.reason, letter.stream, letter.group) == ("deliveries", s.name, "workers")
    assert letter.consumer in {"w1", "w2"}
    assert "3" in letter.error
    assert letter.attempts == 0
    assert before < letter.enqueued_at <= letter.died_at < datetime.now(UTC) + timedelta(seconds=2)
    assert dict(letter.fields)[b"sq:h:trace"] == b"t1"
    assert letter.id == look.entries(raw, s._spec.keys.dead)[0][0]


@pytest.mark.covers("S5")
def test_listing_by_pages(make_stream):
    s = make_stream()
    s.add_many({"n": n} for n in range(5))
    for job in s.read("w", count=5):
        s.reject(job, f"no {job.payload['n']}")
    first = s.dead_letters.list(count=2)
    second = s.dead_letters.list(count=2, after=first[-1].id)
    rest = s.dead_letters.list(after=second[-1].id)
    assert [letter.error for letter in [*first, *second, *rest]] == [f"no {n}" for n in range(5)]
    assert {letter.reason for letter in first} == {"rejected"}
    assert s.dead_letters.list(after=rest[-1].id) == []


@pytest.mark.covers("S5")
def test_no_dead_letters(make_stream, raw, ns):
    s = make_stream()
    assert s.dead_letters.list() == []
    assert look.dumps(raw, ns) == {}


@pytest.mark.covers("S5")
def test_attempts_spent(make_stream, raw):
    s = make_stream(retry=Backoff.constant(0, limit=2))
    s.add({})
    answers = [s.retry(s.read("w")[0], f"error {n}") for n in (1, 2, 3)]
    assert answers == [True, True, False]
    [letter] = s.dead_letters.list()
    assert (letter.reason, letter.error, letter.attempts, letter.deliveries) == ("attempts", "error 3", 3, 1)
    now = look.state(raw, s)
    assert now == State(dead=[(letter.source_id, "attempts")], counters={"retried:workers": 2, "dead:workers": 1})


@pytest.mark.covers("F8", "C64")
@pytest.mark.parametrize("how", ["deliveries", "rejected"])
def test_fields_are_kept_byte_for_byte_and_in_order(make_stream, raw, how):
    s = make_stream()
    fields = [
        (b"trace", b"abc"),
        (b"id", b"7"),
        (b"error", b"mine"),
        (b"job", b'{ "n" : 1.10 }'),
        (b"attempts", b"x"),
        (b"stream", b""),
        (b"\xff", b"\x00\xfe\r\n"),
        (b"dead:reason", b"not yours"),
        (b"dead:dead:reason", b"2"),
        (b"dead:", b"3"),
        (b"dead:x", b"4"),
        (b"dead:error", b"5"),
        (b"trace", b"twice"),
        (b"sq:unknown", b"6"),
        (b"", b"no name"),
    ]
    if how == "deliveries":
        entry_id = spent(s, raw, fields)
        s.reclaim("w")
    else:
        entry_id = look.call(raw, "XADD", s._spec.keys.stream, "*", *[p for pair in fields for p in pair]).decode()
        s.reject(s.read("w")[0], "because")
    [letter] = s.dead_letters.list()
    assert list(letter.fields) == fields
    assert (letter.reason, letter.source_id, letter.job_id) == (how, entry_id, entry_id)
    assert look.state(raw, s) == State(dead=[(entry_id, how)], counters={"dead:workers": 1})


@pytest.mark.covers("F8")
@pytest.mark.parametrize("first", [b"dead:reason", b"dead:error", b"dead:at", b"dead:redrives", b"dead:dead:at"])
def test_a_first_field_named_like_ours(make_stream, raw, first):
    s = make_stream()
    fields = [(first, b"theirs"), (b"job", b"{}")]
    spent(s, raw, fields)
    s.reclaim("w")
    [letter] = s.dead_letters.list()
    assert list(letter.fields) == fields
    assert letter.reason == "deliveries"


@pytest.mark.covers("F8")
def test_an_entry_without_job_field(make_stream, raw):
    s = make_stream()
    spent(s, raw, [(b"x", b"1")])
    s.reclaim("w")
    [letter] = s.dead_letters.list()
    assert (letter.fields, letter.payload) == (((b"x", b"1"),), None)


@pytest.mark.covers("C64")
@pytest.mark.parametrize("text", ["x", "ü", "\x00", "\ud800"])
def test_a_huge_error_text_is_cut(make_stream, text):
    s = make_stream()
    s.add({})
    s.reject(s.read("w")[0], text * 5_000_000)
    [letter] = s.dead_letters.list()
    assert 1_000 < len(letter.error.encode()) <= 4096
    assert letter.payload == b"{}"


@pytest.mark.covers("C64")
def test_a_huge_error_text_travels_cut_with_a_retry(make_stream, raw):
    s = make_stream(retry=Backoff.constant(0))
    s.add({})
    for _ in range(7):
        assert s.retry(s.read("w")[0], "ü" * 5_000_000)
    [(_, fields)] = look.entries(raw, s._spec.keys.stream)
    assert len(dict(fields)[b"sq:errors"]) < 5 * 600


@pytest.mark.covers("F13")
@pytest.mark.parametrize("found_by", ["read", "reclaim"])
def test_a_foreign_entry_with_thousands_of_fields(make_stream, raw, found_by):
    s = make_stream()
    fields = [(b"job", b"{}"), *((f"f{n}".encode(), b"v") for n in range(4_999))]
    if found_by == "reclaim":
        entry_id = spent(s, raw, fields)
    else:
        entry_id = look.call(raw, "XADD", s._spec.keys.stream, "*", *[p for pair in fields for p in pair]).decode()
    s.add({"n": 1})
    if found_by == "reclaim":
        assert s.reclaim("w").dead == [entry_id]
    [job] = s.read("w", count=2)  # the queue is not blocked
    assert job.payload == {"n": 1}
    assert s.ack(job)
    [letter] = s.dead_letters.list()
    assert (letter.reason, letter.source_id, letter.fields) == ("oversized", entry_id, ())
    assert look.entries(raw, s._spec.keys.stream) == [(entry_id, fields)]
    assert look.pending(raw, s) == {}


@pytest.mark.covers("F13")
@pytest.mark.parametrize("count", [257, 3_500])
def test_a_foreign_entry_with_more_fields_than_are_handled(make_stream, raw, count):
    s = make_stream()
    fields = [(b"job", b"{}"), *((f"f{n}".encode(), b"v") for n in range(count - 1))]
    look.call(raw, "XADD", s._spec.keys.stream, "*", *[p for pair in fields for p in pair])
    assert s.read("w") == []
    [letter] = s.dead_letters.list()
    assert letter.reason == "oversized"
    assert list(letter.fields) == fields
    assert raw.xlen(s._spec.keys.stream) == 0


# --- never in neither place ------------------------------------------------------------------


@pytest.mark.covers("F7", "C03")
def test_a_dead_letter_key_of_the_wrong_type(make_stream, raw):
    s = make_stream(max_deliveries=3)
    entry_id = s.add({"n": 0}).entry_id
    s.read("w")
    other = s.add({"n": 1}).entry_id
    raw.set(s._spec.keys.dead, "x")
    look.age(raw, s, count=3)
    [job] = s.read("w")
    result = s.reclaim("w")
    assert [failed.entry_id for failed in result.failed] == [entry_id]
    assert (result.claimed, result.dead, result.missing) == ([], [], [])
    assert look.pending(raw, s) == {entry_id: Row("w", 3), other: Row("w", 1)}
    assert s.ack(job)  # others go on
    assert raw.get(s._spec.keys.dead) == b"x"
    raw.delete(s._spec.keys.dead)
    look.age(raw, s)
    assert s.reclaim("w").dead == [entry_id]
    assert look.state(raw, s) == State(dead=[(entry_id, "deliveries")], counters={"dead:workers": 1, "done:workers": 1})


@pytest.mark.covers("F7", "C03")
@pytest.mark.parametrize("verb", ["reject", "retry"])
def test_a_job_that_cannot_be_dead_lettered_stays_pending(make_stream, raw, verb):
    s = make_stream(retry=Backoff.constant(0, limit=0))
    entry_id = s.add({}, job_id="j").entry_id
    [job] = s.read("w")
    raw.set(s._spec.keys.dead, "x")
    with pytest.raises(ServerError, match=entry_id):
        getattr(s, verb)(job, "no")
    assert look.pending(raw, s) == {entry_id: Row("w", 1)}
    raw.delete(s._spec.keys.dead)
    getattr(s, verb)(job, "no")
    [letter] = s.dead_letters.list()
    assert (letter.source_id, letter.error) == (entry_id, "no")
    assert look.pending(raw, s) == {}


@pytest.mark.covers("F7", "C03")
def test_a_malformed_entry_that_cannot_be_dead_lettered_stays_pending(make_stream, raw):
    s = make_stream()
    bad = raw.xadd(s._spec.keys.stream, {"job": "["}).decode()
    good = s.add({}).entry_id
    raw.set(s._spec.keys.dead, "x")
    assert [job.entry_id for job in s.read("w", count=2)] == [good]
    assert look.pending(raw, s) == {bad: Row("w", 1), good: Row("w", 1)}
    raw.delete(s._spec.keys.dead)
    look.age(raw, s, [bad])
    result = s.reclaim("w")
    assert (result.claimed, result.dead) == ([], [bad])
    [letter] = s.dead_letters.list()
    assert (letter.reason, letter.payload) == ("undecodable", b"[")


@pytest.mark.covers("S6")
@pytest.mark.slow
def test_pending_or_dead_at_every_instant(make_stream, raw, colour, redis_url, ns):
    s = make_stream()
    s.add_many({"n": n} for n in range(400))
    ids = {job.entry_id for job in s.read("dead", count=400)}
    look.age(raw, s, count=5)

    def halves():
        with raw.pipeline(transaction=True) as both:
            both.xrange(s._spec.keys.dead)
            both.xpending_range(s._spec.keys.stream, "workers", "-", "+", 1_000)
            dead, pending = both.execute()
        return [f[b"dead:source"].decode() for _, f in dead], [row["message_id"].decode() for row in pending]

    def check():
        dead, pending = halves()
        assert Counter(dead + pending) == Counter(ids)

    options = {"lease": 0.01, "max_deliveries": 5}
    for _ in range(5):
        with children.running(children.reclaim_always, colour, redis_url, ns, options) as (reclaimer, pipe):
            assert pipe.recv() == "ready"
            pipe.send("go")
            deadline = time.monotonic() + random.uniform(0, 0.02)
            while time.monotonic() < deadline:
                check()
            children.kill(reclaimer)
        check()
    with children.running(children.reclaim_always, colour, redis_url, ns, options) as (_, pipe):
        pipe.send("go")
        until(lambda: not look.pending(raw, s))
    now = look.state(raw, s)
    assert now == State(dead=now.dead, counters={"dead:workers": 400})
    assert Counter(now.dead) == Counter((entry_id, "deliveries") for entry_id in ids)


@pytest.mark.covers("C04")
@pytest.mark.slow
def test_a_job_that_ends_its_process(make_stream, raw, colour, redis_url, ns):
    s = make_stream()
    ids = {name: s.add({"name": name}).entry_id for name in "PABCDE"}
    told: list[str] = []
    deadline = time.monotonic() + 100  # ten processes that start one after another, on a busy machine
    while not s.dead_letters.list() or len(told) < 10:
        assert time.monotonic() < deadline, told
        with children.running(children.work_or_die, colour, redis_url, ns) as (worker, pipe):
            while worker.is_alive() and not (s.dead_letters.list() and len(told) >= 10):
                while pipe.poll(0.05):
                    try:
                        told.append(pipe.recv())
                    except EOFError:
                        worker.join()
                        break
    assert Counter(told) == {"P": 5, "A": 1, "B": 1, "C": 1, "D": 1, "E": 1}
    assert told[:7] == list("PABCDEP")  # none of the others waited for P
    until(lambda: not look.pending(raw, s))
    assert look.state(raw, s) == State(dead=[(ids["P"], "deliveries")], counters={"dead:workers": 1, "done:workers": 5})
    assert s.dead_letters.list()[0].deliveries == 5
