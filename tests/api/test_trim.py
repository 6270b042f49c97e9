"""What is finished goes, what anybody needs stays: entries and consumers."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import look
import pytest
from look import Row, State
from waiting import until

from streamq import Backoff, ConfigurationError

ONE_BACKEND = pytest.mark.parametrize("backend", ["redis-7.0"], indirect=True)
"""For mistakes that are found before anything is sent."""


def fill(raw, s, count, *, size=0):
    """Add entries as a plain producer does; their IDs."""
    with raw.pipeline(transaction=False) as pipe:
        for n in range(count):
            pipe.xadd(s._spec.keys.stream, {"job": f'{{"n":{n}}}', **({"x": "y" * size} if size else {})})
        return [entry_id.decode() for entry_id in pipe.execute()]


def read_raw(raw, s, count, *, group="workers", consumer="foreign"):
    """Read as a foreign client does; the IDs."""
    reply = look.call(
        raw, "XREADGROUP", "GROUP", group, consumer, "COUNT", count, "STREAMS", s._spec.keys.stream, ">"
    )  # fmt: skip
    return [entry_id.decode() for entry_id, _ in reply[0][1]] if reply else []


def xack(raw, s, ids, *, group="workers"):
    for at in range(0, len(ids), 1_000):
        look.call(raw, "XACK", s._spec.keys.stream, group, *ids[at : at + 1_000])


# --- what goes -------------------------------------------------------------------------------


@pytest.mark.covers("S2")
@pytest.mark.parametrize("retention", ["delete", "keep"])
def test_what_an_acknowledgement_leaves(make_stream, raw, retention):
    s = make_stream(retention=retention)
    ids = fill(raw, s, 3)
    [job, other, _] = s.read("w", count=3)
    assert s.ack(job) is True
    assert s.ack(job) is False
    s.commit(other)
    assert look.state(raw, s) == State(
        stream=ids if retention == "keep" else ids[2:], pending={ids[2]: Row("w", 1)}, counters={"done:workers": 2}
    )


@pytest.mark.covers("F15")
@pytest.mark.parametrize("at", ["head", "middle", "end"])
@pytest.mark.slow
def test_ten_thousand_that_a_foreign_client_acknowledged(make_stream, raw, at):
    s = make_stream()
    s.read("w")
    ids = fill(raw, s, 10_005)
    assert read_raw(raw, s, 20_000) == ids
    first = {"head": 0, "middle": 5_000, "end": 10_000}[at]
    left = ids[first : first + 5]
    xack(raw, s, [entry_id for entry_id in ids if entry_id not in set(left)])
    assert s.trim() == 10_000
    assert look.state(raw, s) == State(stream=left, pending={entry_id: Row("foreign", 1) for entry_id in left})
    look.age(raw, s)
    assert [job.payload["n"] for job in s.reclaim("w2").claimed] == list(range(first, first + 5))
    assert s.trim() == 0


@pytest.mark.covers("C62")
def test_a_drained_stream_is_empty(make_stream, raw):
    s = make_stream()
    s.add_many({"n": n} for n in range(2_000))
    while jobs := s.read("w", count=500):
        s.ack(jobs)
    assert raw.xlen(s._spec.keys.stream) == 0
    assert s.trim() == 0


@pytest.mark.covers("C28", "F15")
def test_nothing_that_is_unread_or_pending_goes(make_stream, raw):
    s = make_stream(retention="keep", keep_last=0, keep_for=0)
    s.read("w")
    ids = fill(raw, s, 500)
    pending = read_raw(raw, s, 20)
    assert s.trim() == 0
    assert look.state(raw, s).stream == ids
    look.age(raw, s)
    handled = [*s.reclaim("w").claimed, *s.read("w", count=1_000)]
    assert [job.entry_id for job in handled] == ids
    assert [job.entry_id for job in handled[:20]] == pending
    s.ack(handled)
    until(lambda: s.trim() + 1 and not raw.xlen(s._spec.keys.stream))


@pytest.mark.covers("F15")
def test_pending_entries_behind_many_without_body(make_stream, raw):
    s = make_stream()
    s.read("w")
    ids = fill(raw, s, 400)
    read_raw(raw, s, 400)
    raw.xdel(s._spec.keys.stream, *ids[1:300])
    assert s.trim() == 0
    assert look.state(raw, s).stream == [ids[0], *ids[300:]]
    xack(raw, s, ids[350:360])
    assert s.trim() == 10
    assert look.state(raw, s).stream == [ids[0], *ids[300:350], *ids[360:]]


@pytest.mark.covers("S7", "F15")
@pytest.mark.parametrize("seed", range(6))
def test_groups_that_have_come_to_different_places(make_stream, raw, seed):
    chance = random.Random(seed)
    names = ("a", "b", "c")
    streams = [make_stream(group=name, groups=names) for name in names]
    s = streams[0]
    for each in streams:
        each.read("w")
    ids = fill(raw, s, 300)
    needed = set()
    for name in names[: chance.choice([2, 3, 3])]:
        got = read_raw(raw, s, chance.choice([150, 299, 300]), group=name)
        done = [entry_id for entry_id in got if chance.random() < 0.8]
        xack(raw, s, done, group=name)
        needed |= set(ids) - set(done)
    for name in names:
        if look.groups(raw, s)[name] == "0-0":
            needed = set(ids)
    before = [look.pending(raw, s, group=name) for name in names]
    assert s.trim() == 300 - len(needed)
    assert look.state(raw, s).stream == [entry_id for entry_id in ids if entry_id in needed]
    assert [look.pending(raw, s, group=name) for name in names] == before


@pytest.mark.covers("F13", "F15")
def test_what_a_dead_letter_refers_to_stays(make_stream, raw):
    s = make_stream()
    s.read("w")
    before = fill(raw, s, 250)
    big = look.by_hand(raw, s, "job", "{}", *[part for n in range(4_999) for part in (f"f{n}", "v")])
    after = fill(raw, s, 250)
    got = read_raw(raw, s, 250)
    assert s.read("w") == []  # the big one is dead-lettered
    got += read_raw(raw, s, 250)
    assert got == before + after
    xack(raw, s, got)
    assert s.trim() == 500
    assert look.state(raw, s) == State(
        stream=[big], dead=[(big, "oversized")], kept={big: 1}, counters={"dead:workers": 1}
    )  # fmt: skip


@pytest.mark.covers("C66")
def test_where_there_is_nothing_to_trim(make_stream, raw, ns):
    s = make_stream()
    assert s.trim() == 0
    assert s.prune_consumers(0) == []
    assert look.dumps(raw, ns) == {}
    ids = fill(raw, s, 3)
    assert s.trim() == 0  # no group: all of it is work
    s.groups.create("late", start="all")
    assert s.trim() == 0
    assert look.state(raw, s).stream == ids


# --- rules of keep ---------------------------------------------------------------------------


def finished(raw, s, ages):
    """Entries that the group has settled, so many seconds old each; their IDs."""
    now = int(raw.time()[0])
    s.groups.create("workers")
    ids = [
        raw.xadd(s._spec.keys.stream, {"job": "{}"}, id=f"{(now - age) * 1000}-{n}").decode()
        for n, age in enumerate(ages)
    ]
    s.ack(s.read("w", count=1_000))
    return ids


@pytest.mark.covers("S2")
@pytest.mark.parametrize(
    ("rules", "stays"),
    [
        ({}, 0),
        ({"keep_for": 3_600}, 4),
        ({"keep_last": 3}, 3),
        ({"keep_last": 30}, 10),
        ({"keep_last": 0}, 0),
        ({"keep_for": 3_600, "keep_last": 3}, 3),
        ({"keep_for": 3_600, "keep_last": 7}, 4),
        ({"keep_for": 0}, 0),
    ],
)
def test_the_rules(make_stream, raw, rules, stays):
    s = make_stream(retention="keep", **rules)
    ids = finished(raw, s, [9_000, 8_000, 7_000, 6_000, 5_000, 4_000, 3_000, 2_000, 1_000, 500])
    assert s.trim() == 10 - stays
    assert look.state(raw, s).stream == (ids[-stays:] if stays else [])
    assert s.trim() == 0


@pytest.mark.covers("S2")
@pytest.mark.parametrize("count", [12, 3_000])
def test_the_newest_are_kept_whatever_is_pending_before_them(make_stream, raw, count):
    s = make_stream(retention="keep", keep_last=count // 2)
    s.read("w")
    ids = fill(raw, s, count)
    read_raw(raw, s, count)
    xack(raw, s, [*ids[:2], *ids[count // 2 :]])
    assert s.trim() == 2
    assert look.state(raw, s).stream == ids[2:]
    xack(raw, s, ids[2 : count // 2])
    assert s.trim() == count // 2 - 2
    assert look.state(raw, s).stream == ids[count // 2 :]


@pytest.mark.covers("S2")
def test_unread_entries_are_the_newest(make_stream, raw):
    s = make_stream(retention="keep", keep_last=5)
    s.read("w")
    ids = fill(raw, s, 20)
    xack(raw, s, read_raw(raw, s, 12))
    assert s.trim() == 12
    assert look.state(raw, s).stream == ids[12:]


# --- consumers -------------------------------------------------------------------------------


def consumers(raw, s):
    return {row["name"].decode() for row in raw.xinfo_consumers(s._spec.keys.stream, s.options.group)}


@pytest.mark.covers("C26", "C74", "F15")
def test_consumers_that_hold_nothing_go(make_stream, raw):
    s = make_stream()
    s.groups.create("workers")
    fill(raw, s, 300)
    for n in range(150):
        s.ack(s.read(f"gone-{n}"))
    held = s.read("dead", count=5)
    before = look.state(raw, s)
    assert s.prune_consumers() == []  # all were heard of within the hour
    assert sorted(s.prune_consumers(min_idle=0)) == sorted(f"gone-{n}" for n in range(150))
    assert consumers(raw, s) == {"dead"}
    assert look.state(raw, s) == before
    look.age(raw, s)
    assert [job.entry_id for job in s.reclaim("w").claimed] == [job.entry_id for job in held]
    assert s.prune_consumers(min_idle=0) == ["dead"]


@pytest.mark.covers("C26")
def test_only_consumers_of_the_streams_group(make_stream, raw):
    a, b = make_stream(group="a", groups=("b",)), make_stream(group="b")
    a.add({})
    for s in (a, b):
        s.ack(s.read("w"))
    assert a.prune_consumers(0) == ["w"]
    assert (consumers(raw, a), consumers(raw, b)) == (set(), {"w"})


@pytest.mark.covers("C26")
def test_pruning_races_with_reading_by_that_name(make_stream, raw):
    s, pruner = make_stream(), make_stream()
    s.groups.create("workers")
    rounds = 200
    fill(raw, s, rounds * 2)
    stop = []

    def prune():
        removed = 0
        while not stop:
            removed += len(pruner.prune_consumers(min_idle=0))
        return removed

    with ThreadPoolExecutor(1) as pool:
        pruning = pool.submit(prune)
        seen = []
        for _ in range(rounds):
            jobs = s.read("w", count=2)
            assert s.extend(jobs) == 2  # still its own: nothing was thrown away with the consumer
            assert s.ack(jobs) == 2
            seen += [job.payload["n"] for job in jobs]
        stop.append(True)
        pruning.result(30)
    assert seen == list(range(rounds * 2))
    assert look.state(raw, s) == State(counters={"done:workers": rounds * 2})


# --- mistakes --------------------------------------------------------------------------------


@ONE_BACKEND
@pytest.mark.parametrize("min_idle", [-1, "1", None, True, float("nan"), float("inf"), 10**12])
def test_wrong_arguments(make_stream, raw, ns, proxy, min_idle):
    s = make_stream(redis=proxy.url)
    with pytest.raises(ConfigurationError, match="min_idle"):
        s.prune_consumers(min_idle)
    assert list(proxy.commands) == []
    assert look.dumps(raw, ns) == {}


@ONE_BACKEND
@pytest.mark.parametrize(
    "options",
    [
        {"keep_for": 60},
        {"keep_last": 5},
        {"retention": "keep", "keep_for": -1},
        {"retention": "keep", "keep_for": "60"},
        {"retention": "keep", "keep_for": True},
        {"retention": "keep", "keep_last": -1},
        {"retention": "keep", "keep_last": 1.5},
        {"retention": "keep", "keep_last": True},
        {"retention": "keep", "keep_last": 2**60},
        {"retention": None},
    ],
)
def test_wrong_options(make_stream, options):
    with pytest.raises(ConfigurationError, match=r"keep|retention"):
        make_stream(retry=Backoff.constant(0), **options)


@pytest.mark.covers("C89")
def test_a_meta_key_of_the_wrong_type(make_stream, raw):
    s = make_stream()
    s.groups.create("workers")
    xack(raw, s, [*fill(raw, s, 10), *read_raw(raw, s, 10)])
    raw.set(s._spec.keys.meta, "x")
    before = look.dumps(raw, s.name)
    with pytest.raises(ConfigurationError, match="WRONGTYPE"):
        s.trim()
    assert look.dumps(raw, s.name) == before
