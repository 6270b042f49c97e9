"""Leases begun anew by hand-written loops."""

from __future__ import annotations

import look
import pytest
from look import Row, State

from streamq import LeaseLostError


def idle(raw, s):
    """Seconds without a sign of life, by entry."""
    rows = look.call(raw, "XPENDING", s._spec.keys.stream, "workers", "-", "+", 1_000)
    return {entry_id.decode(): ms / 1000 for entry_id, _, ms, _ in rows}


@pytest.mark.covers("F10", "C31")
def test_extending_one_and_several(make_stream, raw):
    s = make_stream()
    s.add_many({"n": n} for n in range(700))
    jobs = s.read("w", count=700)
    before = look.state(raw, s)
    look.age(raw, s, idle=10)
    assert s.extend(jobs[0]) is None
    assert idle(raw, s)[jobs[0].entry_id] < 5
    assert idle(raw, s)[jobs[1].entry_id] >= 10
    assert s.extend(jobs) == 700
    assert max(idle(raw, s).values()) < 5
    assert look.state(raw, s) == before  # neither owner nor count has changed
    assert s.reclaim("w2", min_idle=9).claimed == []


@pytest.mark.covers("F9", "C07")
def test_extending_what_others_have(make_stream, raw):
    s = make_stream()
    s.add_many({"n": n} for n in range(4))
    mine, taken, settled, gone = s.read("w", count=4)
    look.age(raw, s, [taken.entry_id])
    [theirs] = s.reclaim("w2").claimed
    assert s.ack(settled) is True
    raw.xdel(s._spec.keys.stream, gone.entry_id)
    before = look.pending(raw, s)
    assert s.extend([mine, taken, settled, gone]) == 1
    assert [job.lease_lost for job in (mine, taken, settled, gone)] == [False, True, True, True]
    assert look.state(raw, s) == State(
        stream=[mine.entry_id, taken.entry_id],
        pending={entry_id: row for entry_id, row in before.items() if entry_id != gone.entry_id},
        dead=[(gone.entry_id, "entry_missing")],
        counters={"done:workers": 1, "dead:workers": 1},
    )
    assert look.pending(raw, s)[taken.entry_id] == Row("w2", 2)
    for job in (taken, settled, gone):
        with pytest.raises(LeaseLostError):
            s.extend(job)
    assert s.extend([theirs, mine]) == 2  # of two consumers


@pytest.mark.covers("F9")
@pytest.mark.parametrize(("how", "gone"), [("taken", False), ("again", False), ("settled", True), ("flushed", True)])
def test_one_that_is_not_ours(make_stream, raw, how, gone):
    s = make_stream()
    s.add({})
    [job] = s.read("w")
    if how == "settled":
        s.ack(job)
    elif how == "flushed":
        raw.delete(s._spec.keys.stream)
    else:
        s.reclaim("w" if how == "again" else "w2", min_idle=0)
    before = look.state(raw, s)
    with pytest.raises(LeaseLostError) as caught:
        s.extend(job)
    assert (caught.value.gone, caught.value.entry_id, job.lease_lost) == (gone, job.entry_id, True)
    assert look.state(raw, s) == before
