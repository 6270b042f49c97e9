"""Batches of acknowledgements in any order and of any mixture: one answer for each, and nothing else touched."""

from __future__ import annotations

import random

import look
import pytest
import servers

from streamq import ConnectionLostError
from streamq._ops import settle
from streamq._requests import entry_order
from streamq._scripts import MAX_BATCH, Fence, Settled
from streamq.messages import JobIdKind


def item(entry_id, count=1):
    return Settled(entry_id, count, JobIdKind.GENERATED, "", b"")


def expected(pending, consumer, one):
    row = pending.get(one.entry_id)
    if row is None:
        return Fence.GONE
    return Fence.MINE if row == (consumer, one.count) else Fence.LOST


def check(raw, s, consumer, batch, *, keep=False):
    """Acknowledge and compare with what was pending before, entry by entry."""
    pending, stream = look.pending(raw, s), look.state(raw, s).stream
    wanted = {one.entry_id: expected(pending, consumer, one) for one in batch}
    assert s.run(settle.ack(s._spec, consumer, batch)) == wanted
    mine = {entry_id for entry_id, fence in wanted.items() if fence is Fence.MINE}
    assert look.pending(raw, s) == {i: row for i, row in pending.items() if i not in mine}
    assert look.state(raw, s).stream == [i for i in stream if keep or i not in mine]


@pytest.mark.covers("S2")
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("retention", ["delete", "keep"])
def test_any_mixture_in_any_order(make_stream, raw, seed, retention):
    chance = random.Random(seed)
    s = make_stream(retention=retention)
    s.add_many({"n": n} for n in range(150))
    read = []
    while jobs := s.read(chance.choice("abc"), count=chance.randint(1, 30)):
        read += [job.entry_id for job in jobs]
    look.age(raw, s, chance.sample(read, 20), count=chance.randint(2, 9))
    for entry_id in chance.sample(read, 20):
        raw.xack(s._spec.keys.stream, "workers", entry_id)
    for entry_id in chance.sample(read, 5):
        raw.xdel(s._spec.keys.stream, entry_id)
    unknown = [f"{chance.randint(1, 10**13)}-{chance.randint(0, 20)}" for _ in range(5)]
    for _ in range(4):
        pending = look.pending(raw, s)
        batch = [
            item(i, pending[i].deliveries if i in pending and chance.random() < 0.9 else 1)
            for i in chance.sample(read + unknown, chance.randint(1, 60))
        ]
        if chance.random() < 0.5:
            batch.sort(key=lambda one: entry_order(one.entry_id))
        check(raw, s, chance.choice("abc"), batch, keep=retention == "keep")


@pytest.mark.covers("S2")
def test_ids_of_any_length_in_any_order(make_stream, raw):
    s = make_stream()
    ids = ["1-1", "1-2", "1-10", "9-9", "10-1", "99-5", "100-0", f"{2**63}-1", f"{2**63}-{2**64 - 1}"]
    for entry_id in ids:
        raw.xadd(s._spec.keys.stream, {"job": "{}"}, id=entry_id)
    jobs = s.read("w", count=20)
    assert [job.entry_id for job in jobs] == ids
    check(raw, s, "w", [item(entry_id) for entry_id in ["10-1", "1-10", "100-0", "1-2"]])
    assert s.ack(jobs[::-1]) == 5
    assert look.state(raw, s).counters == {"done:workers": 9}


@pytest.mark.covers("S2")
def test_jobs_still_held_in_between(make_stream, raw):
    """A worker finishes in any order, so what it settles lies far apart among what it still runs."""
    s = make_stream()
    s.add_many({"n": n} for n in range(900))
    jobs = s.read("w", count=900)
    assert s.ack(jobs[::30]) == 30
    assert s.ack(jobs[1::2]) == 450
    assert s.ack(jobs[:MAX_BATCH] + jobs) == 900 - 30 - 450
    assert look.state(raw, s).stream == []


@pytest.mark.covers("S7")
def test_an_entry_that_another_group_needs_stays(make_stream, raw):
    s, other = make_stream(), make_stream(group="others")
    other.read("o")
    s.add_many({"n": n} for n in range(6))
    jobs = s.read("w", count=6)
    mine = other.read("o", count=4)
    assert other.ack([mine[0], mine[2]]) == 2
    assert s.ack(jobs) == 6
    assert look.state(raw, s).stream == [jobs[at].entry_id for at in (1, 3, 4, 5)]
    assert other.ack([mine[1], mine[3], *other.read("o", count=9)]) == 4
    assert look.state(raw, s).stream == []


@pytest.mark.covers("S7")
@pytest.mark.parametrize("seed", range(2))
def test_what_other_groups_need_stays_whatever_the_order(make_stream, raw, seed):
    """They have read some, settled some of that, and the rest lies in between; one holds more than a call looks at."""
    chance = random.Random(seed)
    s, *others = (make_stream(group=name) for name in ("workers", "b", "c"))
    for other in others:
        other.read("o")
    stream = s._spec.keys.stream
    ids = [f"{ms}-{n}" for ms in (9, 10, 99, 100) for n in range(1, 31)]
    for entry_id in ids:
        raw.xadd(stream, {"job": "{}"}, id=entry_id)
    needed = set()
    for other, count in zip(others, (90, 120), strict=True):
        read = [job.entry_id for job in other.read("o", count=count)]
        settled = set(chance.sample(read, count // 3))
        raw.xack(stream, other._spec.options.group, *settled)
        needed |= set(ids) - settled
    jobs = s.read("w", count=len(ids))
    chance.shuffle(jobs)
    sizes = (1, 2, 40, 7, 1, 69)
    for start, size in zip((0, 1, 3, 43, 50, 51), sizes, strict=True):
        assert s.ack(jobs[start : start + size]) == size
        gone = {job.entry_id for job in jobs[: start + size]} - needed
        assert look.state(raw, s).stream == [entry_id for entry_id in ids if entry_id not in gone]
    assert len(gone) > 5


@pytest.mark.covers("I8")
def test_as_many_chosen_ids_as_one_read_takes(make_stream, raw):
    s = make_stream()
    assert s.add_many(({"n": n} for n in range(1_000)), job_id=lambda payload: f"{payload['n']:0>512}") == 1_000
    for n in (0, 999):  # the same ID again, by a producer that does not ask
        raw.xadd(s._spec.keys.stream, {"job": "{}", "sq:id": f"{n:0>512}"})
    jobs = s.read("w", count=1_000)
    assert [job.payload["n"] for job in jobs] == list(range(1_000))
    assert set(look.state(raw, s).done.values()) == {f"running {job.entry_id}" for job in jobs}
    assert s.read("w", count=9) == []  # both run elsewhere, so they were released
    assert s.ack(jobs) == 1_000
    assert len(look.state(raw, s).stream) == 2
    assert set(look.state(raw, s).done.values()) == {"done "}


@pytest.mark.covers("I8")
def test_one_id_twice_in_one_read(make_stream, raw):
    s = make_stream()
    first, second = (raw.xadd(s._spec.keys.stream, {"job": "{}", "sq:id": "a"}).decode() for _ in range(2))
    [job] = s.read("w", count=2)
    assert job.entry_id == first
    assert look.state(raw, s).done == {"workers/a": f"running {first}"}
    assert s.ack(job)
    claimed, _, _ = s.reclaim("w", min_idle=0)
    assert claimed == []  # the ID is done: the other was acknowledged unrun
    assert look.state(raw, s).stream == []
    assert second not in look.pending(raw, s)


def test_many_are_given_back_by_500(make_stream, raw, proxy):
    s = make_stream(redis=proxy.url, lease=3600)
    count = MAX_BATCH + 1
    s.add_many({"n": n} for n in range(count))
    jobs = s.read("w", count=count)
    assert s.run(settle.release(s._spec, jobs)) == [Fence.MINE] * count
    assert proxy.count(servers.named("EVALSHA", "EVAL")) >= 2
    assert all(job.lease_lost for job in jobs)
    assert set(look.pending(raw, s).values()) == {look.Row("w", 0)}
    assert len(s.reclaim("v", count=count).claimed) == count  # at once, without waiting for the lease
    assert s.run(settle.release(s._spec, [])) == []


def test_what_was_given_back_before_an_error_is_over(make_stream, raw, proxy):
    s = make_stream(redis=proxy.url)
    count = MAX_BATCH + 1
    s.add_many({"n": n} for n in range(count))
    jobs = s.read("w", count=count)
    s.run(settle.release(s._spec, [jobs.pop()]))  # the script is known
    jobs += s.reclaim("w", count=1).claimed
    assert len(jobs) == count
    proxy.drop_before(servers.named("EVALSHA"), nth=2)
    with pytest.raises(ConnectionLostError):
        s.run(settle.release(s._spec, jobs))
    assert [job.lease_lost for job in jobs] == [True] * MAX_BATCH + [False]
