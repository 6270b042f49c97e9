"""Times without entries, entries without times, and what is no entry at all: taken out, told, and never in others' way."""

from __future__ import annotations

import look
import pytest
from look import State
from waiting import until

MALFORMED = [
    b"",
    b"\xc1",
    b"{}",
    b"\x91\xa1a",
    b"\x92\x01\x02",
    b"\x92\xa1a\xa1",
    b"\x81\xa1a\xa1b",
    b"\xa1a",
    b"\x92\xa1a\xc0",
]


def meta(raw, s, name):
    return int(raw.hget(s._spec.keys.meta, name) or 0)


def spoil(raw, s, job_id, how, group=""):
    """Make a scheduled job one that is none; its timer."""
    timer = f"{group}/{job_id}"
    s.add({"spoiled": job_id}, job_id=job_id, delay=60)
    if how == "lost":
        raw.hdel(s._spec.keys.jobs, timer)
    elif how == "untimed":
        raw.zrem(s._spec.keys.scheduled, timer)
    else:
        raw.hset(s._spec.keys.jobs, timer, how)
    return timer


@pytest.mark.covers("Q6")
@pytest.mark.parametrize("by", ["promote", "read"])
@pytest.mark.parametrize("how", ["lost", b"\xc1"])
def test_what_is_no_job_is_taken_out_and_the_next_is_served(make_stream, raw, caplog, how, by):
    s = make_stream()
    s.read("w")
    timer = spoil(raw, s, "bad", how)
    s.add({"n": 1}, job_id="good", delay=60)
    look.make_due(raw, s, timer, "/good")
    if by == "promote":
        assert s.promote() == 1
    [job] = s.read("w", count=9)
    assert job.payload == {"n": 1}
    assert look.timers(raw, s) == {}
    assert meta(raw, s, "orphans") == 1
    assert "what is scheduled as /bad is no job" in caplog.text
    letters = s.dead_letters.list()
    assert len(letters) == (how != "lost")
    for letter in letters:
        assert (letter.reason, letter.job_id, letter.group, letter.fields) == (
            "invalid",
            "bad",
            "workers",
            ((b"packed", how),),
        )
        assert "it is no packed entry" in letter.error
    assert s.promote() == 0
    assert meta(raw, s, "orphans") == 1


@pytest.mark.covers("Q6")
@pytest.mark.parametrize("packed", MALFORMED)
def test_whatever_somebody_has_packed(make_stream, raw, packed):
    s = make_stream()
    look.make_due(raw, s, spoil(raw, s, "bad", packed))
    assert s.promote() == 0
    assert look.timers(raw, s) == {}
    assert [letter.fields for letter in s.dead_letters.list()] == [((b"packed", packed),)]
    assert s.add({}, job_id="bad").created is True  # its ID is free


@pytest.mark.covers("Q6")
def test_a_job_that_lost_its_time_is_a_dead_letter_and_can_be_redriven(make_stream, raw, caplog):
    s = make_stream()
    s.read("w")
    spoil(raw, s, "k", "untimed")
    assert s.promote() == 0
    assert look.timers(raw, s) == {}
    [letter] = s.dead_letters.list()
    assert (letter.reason, letter.job_id, letter.group) == ("invalid", "k", "workers")
    assert (letter.payload, letter.error) == (b'{"spoiled":"k"}', "scheduled as /k, but without a time")
    assert (meta(raw, s, "orphans"), meta(raw, s, "dead:workers")) == (1, 1)
    assert "no job: it had no time" in caplog.text
    assert letter.id in s.dead_letters.redrive(letter.id).moved
    [job] = s.read("w")
    assert (job.id, job.payload, job.attempt) == ("k", {"spoiled": "k"}, 1)


@pytest.mark.covers("Q6", "S7")
def test_a_group_buries_its_own(make_stream, raw):
    a, b = make_stream(group="a", groups=("b",)), make_stream(group="b")
    a.add({}, job_id="k")
    for s in (a, b):
        s.retry(s.read("w")[0], "no", delay=60)
    raw.zrem(a._spec.keys.scheduled, "b/k")
    raw.hset(a._spec.keys.jobs, "a/k", "x")
    look.make_due(raw, a, "a/k")
    for _ in range(2):
        a.promote()
    assert sorted(letter.group for letter in a.dead_letters.list()) == ["a", "b"]


@pytest.mark.covers("C23", "Q6")
def test_ten_bad_ones_first_in_line_hold_up_nobody(make_stream, raw, monkeypatch):
    s = make_stream()
    kinds = ["lost", "untimed", *MALFORMED[:4]]
    bad = [spoil(raw, s, f"bad{n}", kinds[n % len(kinds)]) for n in range(10)]
    for n in range(40):
        s.add({"n": n}, job_id=f"good{n}", delay=60)
    look.make_due(raw, s, *bad, *(f"/good{n}" for n in range(40)))
    assert s.promote() == 40
    assert s.promote() == 0
    assert sorted(job.id for job in s.read("w", count=100)) == sorted(f"good{n}" for n in range(40))
    now = look.state(raw, s)
    assert (len(now.stream), now.scheduled, now.counters["orphans"]) == (40, [], 10)
    assert look.timers(raw, s) == {}


@pytest.mark.covers("C23", "F6")
def test_a_dead_letter_stream_of_the_wrong_type(make_stream, raw, caplog):
    """What cannot become a letter stays, is told, and holds up nobody else."""
    s = make_stream()
    bad = [spoil(raw, s, "malformed", b"\xc1"), spoil(raw, s, "untimed", "untimed")]
    for n in range(5):
        s.add({"n": n}, job_id=f"good{n}", delay=60)
    look.make_due(raw, s, bad[0], *(f"/good{n}" for n in range(5)))
    raw.set(s._spec.keys.dead, "x")
    assert s.promote() == 5
    assert s.promote() == 0
    assert len(s.read("w", count=9)) == 5
    assert set(raw.hkeys(s._spec.keys.jobs)) == {timer.encode() for timer in bad}
    assert meta(raw, s, "orphans") == 0
    assert "the dead letter cannot be written" in caplog.text
    raw.delete(s._spec.keys.dead)
    for _ in range(2):
        s.promote()
    assert sorted(letter.job_id for letter in s.dead_letters.list()) == ["malformed", "untimed"]
    assert (meta(raw, s, "orphans"), raw.exists(s._spec.keys.jobs)) == (2, 0)


@pytest.mark.covers("C93", "Q6")
@pytest.mark.parametrize("gone", ["jobs", "scheduled", "ids", "meta"])
def test_one_of_the_keys_is_gone(make_stream, raw, gone):
    """As eviction or somebody's own DEL leaves it: nothing fails, and what is left of jobs is told of."""
    s = make_stream()
    s.read("w")
    s.add_many(({"n": n} for n in range(300)), job_id=lambda p: f"k{p['n']}", delay=60)
    look.make_due(raw, s)
    key = s._spec.keys.ids[0] if gone == "ids" else getattr(s._spec.keys, gone)
    raw.delete(key)
    moved = s.promote()
    s.promote()
    assert moved == (300 if gone in {"ids", "meta"} else 0)
    assert look.timers(raw, s) == {}
    assert raw.xlen(s._spec.keys.dead) == (300 if gone == "scheduled" else 0)
    assert meta(raw, s, "orphans") == (300 - moved)
    s.add({"n": 1}, job_id="new", delay=60)
    s.scheduled.run_now("new")
    assert "new" in {job.id for job in s.read("w", count=1_000)}


@pytest.mark.covers("Q6")
def test_thousands_of_entries_without_a_time(make_stream, raw):
    s = make_stream()
    s.add_many(({"n": n} for n in range(2_500)), delay=60)
    raw.delete(s._spec.keys.scheduled)
    s.add({"n": "good"}, delay=60)
    until(lambda: s.promote() == 0 and raw.hlen(s._spec.keys.jobs) == 1)
    assert raw.xlen(s._spec.keys.dead) == meta(raw, s, "orphans") == 2_500
    look.make_due(raw, s)
    assert s.promote() == 1


@pytest.mark.covers("Q6", "C66")
@pytest.mark.parametrize("timer", [b"", b"/", b"no slash", b"\xff/\xff", b"a/b/c", b"workers/", b"//", b"x" * 2_000])
@pytest.mark.parametrize("packed", [None, b"x", b"\x92\xa3job\xa2{}"])
def test_timers_of_other_names(make_stream, raw, timer, packed):
    s = make_stream()
    raw.zadd(s._spec.keys.scheduled, {timer: 1})
    if packed is not None:
        raw.hset(s._spec.keys.jobs, timer, packed)
    [shown] = s.scheduled.list()
    assert shown.due_at.timestamp() == 0.001
    whole = packed is not None and len(packed) > 1
    assert s.promote() == whole
    assert raw.exists(s._spec.keys.scheduled, s._spec.keys.jobs) == 0
    assert raw.xlen(s._spec.keys.dead) == (packed == b"x")
    if whole:
        [job] = s.read("w")
        assert (job.payload, job.id) == ({}, job.entry_id)


@pytest.mark.covers("Q6")
def test_a_scheduled_entry_that_is_no_job(make_stream, raw):
    """It is moved like any other; whoever reads it buries it."""
    s = make_stream()
    s.read("w")
    s.add({}, job_id="k", delay=60)
    raw.hset(s._spec.keys.jobs, "/k", b"\x92\xa3job\xa2{]")
    look.make_due(raw, s)
    assert s.promote() == 1
    assert s.read("w") == []
    [letter] = s.dead_letters.list()
    assert letter.reason == "undecodable"
    now = look.state(raw, s)
    assert now == State(dead=now.dead, counters={"dead:workers": 1})
