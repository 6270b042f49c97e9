"""Several groups on one stream: each gets every job, for itself."""

from __future__ import annotations

import itertools
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import look
import pytest
import servers
from look import Row

from streamq import Backoff, ConfigurationError, JobStateError
from streamq.keys import registry

ONE_BACKEND = pytest.mark.parametrize("backend", ["redis-7.0"], indirect=True)
"""For mistakes that are found before anything is sent."""

NAMES = ("a", "b", "c")


@pytest.fixture
def three(make_stream):
    """Open one stream for each of three groups; options as of `StreamOptions`."""

    def make(**options):
        settings = {"retry": Backoff.constant(0, limit=2), **options}
        return [make_stream(group=name, groups=[n for n in NAMES if n != name], **settings) for name in NAMES]

    return make


def receipts(raw, s):
    """How often each group committed the effect of each job."""
    return {name.decode(): int(n) for name, n in raw.hgetall(s._spec.keys.data("receipts")).items()}


def commit(s, job, result=None):
    job.effects.hincrby("receipts", f"{s.options.group}/{job.payload['n']}")
    s.commit(job, result)


# --- each group for itself -------------------------------------------------------------------


@pytest.mark.covers("S7", "I8")
@pytest.mark.parametrize("job_id", [None, "k"])
def test_two_groups_fail_at_once_and_one_is_slow(three, raw, job_id):
    a, b, slow = three()
    added = a.add({"n": 1}, job_id=job_id)
    [[at_a], [at_b], [at_slow]] = [s.read("w") for s in (a, b, slow)]
    assert a.retry(at_a, "a fails") is True
    assert b.retry(at_b, "b fails") is True
    [at_a], [at_b] = a.read("w", count=9), b.read("w", count=9)
    assert [(job.id, job.attempt, job.payload) for job in (at_a, at_b)] == [(added.job_id, 2, {"n": 1})] * 2
    commit(a, at_a, "of a")
    assert raw.xlen(a._spec.keys.stream) == 3  # the slow group has passed over neither retry yet
    b.reject(at_b, "b gives up")
    assert slow.read("w", count=9) == []  # the others' retries are theirs
    assert look.state(raw, a).stream == [added.entry_id]  # all others are settled by all
    assert [letter.group for letter in a.dead_letters.list()] == ["b"]
    commit(slow, at_slow, "of c")
    now = look.state(raw, a)
    assert (now.stream, [len(look.pending(raw, a, group=name)) for name in NAMES]) == ([], [0, 0, 0])
    assert now.counters == {
        "done:a": 1, "retried:a": 1, "passed:a": 1, "retried:b": 1, "dead:b": 1, "passed:b": 1, "done:c": 1, "passed:c": 2,
    }  # fmt: skip
    assert receipts(raw, a) == {"a/1": 1, "c/1": 1}
    assert now.done == {f"a/{added.job_id}": 'done "of a"', f"c/{added.job_id}": 'done "of c"'}
    assert [a.result(added.job_id).value, b.result(added.job_id).value, slow.result(added.job_id).value] == [
        "of a", None, "of c",
    ]  # fmt: skip


def work(s, place, count):
    """Handle `count` jobs with failures in between, then pass over what the others' failures have left."""
    done = 0
    while done < count:
        for job in s.read("w", count=3, block=0.05):
            if job.attempt <= (job.payload["n"] + place) % 3:
                s.retry(job, "not yet")
            else:
                commit(s, job)
                done += 1


@pytest.mark.covers("S7")
def test_three_groups_work_at_once(three, raw):
    streams = three(retry=Backoff.constant(0, limit=5))
    count = 30
    assert streams[0].add_many({"n": n} for n in range(count)) == count
    with ThreadPoolExecutor(3) as pool:
        for ended in [pool.submit(work, s, place, count) for place, s in enumerate(streams)]:
            ended.result(60)
    for s in streams:
        assert s.read("w", count=1_000) == []  # only retries of the others are left
    assert receipts(raw, streams[0]) == {f"{name}/{n}": 1 for name in NAMES for n in range(count)}
    assert look.state(raw, streams[0]).stream == []


@pytest.mark.covers("S7", "S2")
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_an_entry_goes_when_the_last_group_has_settled_it(three, raw, order):
    streams = three()
    streams[0].add_many([{"n": 1}, {"n": 2}])
    for place in order[:-1]:
        s = streams[place]
        assert s.ack(s.read("w", count=2)) == 2
        assert raw.xlen(s._spec.keys.stream) == 2  # the last one has not read them yet
    last = streams[order[-1]]
    first, second = last.read("w", count=2)
    assert raw.xlen(last._spec.keys.stream) == 2
    assert last.ack(first)
    assert raw.xlen(last._spec.keys.stream) == 1
    assert last.ack(second)
    assert raw.xlen(last._spec.keys.stream) == 0


@pytest.mark.covers("S7")
@pytest.mark.parametrize("how", ["ack", "commit", "reject", "retry", "oversized"])
def test_however_a_group_settles_the_others_keep_theirs(three, raw, how):
    a, b, c = three()
    fields = [(b"job", b'{"n":1}')] + ([(b"f%d" % n, b"") for n in range(300)] if how == "oversized" else [])
    entry_id = None
    for s in (a, b, c):
        s.read("w")
    entry_id = look.by_hand(raw, a, *[part for pair in fields for part in pair])
    [job] = a.read("w") or [None]
    if job:
        getattr(a, how)(job)
    assert dict(look.entries(raw, a._spec.keys.stream))[entry_id] == fields
    assert look.pending(raw, a, group="a") == {}
    if how != "oversized":
        assert [s.read("w")[0].entry_id for s in (b, c)] == [entry_id] * 2
    assert raw.xlen(a._spec.keys.dead) == (how in {"reject", "oversized"})


# --- made, made later, made again ------------------------------------------------------------


@pytest.mark.covers("S7")
def test_a_producer_that_knows_the_groups_makes_them_first(make_stream, raw, proxy):
    s = make_stream(redis=proxy.url, group="a", groups=("b", "c", "a", "b"))
    s.add({"n": 1})
    sent = [command[0].upper() for command in proxy.commands if command[0].upper() in {b"XGROUP", b"XADD"}]
    assert sent == [b"XGROUP", b"XGROUP", b"XGROUP", b"XADD"]
    assert look.groups(raw, s) == {"a": "0-0", "b": "0-0", "c": "0-0"}
    assert raw.sismember(registry(None), s.name)
    s.add({"n": 2})
    assert proxy.count(servers.named("XGROUP")) == 3  # once
    for name in ("a", "b", "c"):
        assert [job.payload["n"] for job in make_stream(group=name).read("w", count=9)] == [1, 2]


@pytest.mark.parametrize("how", ["add", "add with ID", "add_many"])
def test_a_producer_that_knows_no_groups_makes_none(make_stream, raw, how):
    s = make_stream(group="a")
    if how == "add_many":
        s.add_many([{}])
    else:
        s.add({}, job_id=None if how == "add" else "x")
    assert look.groups(raw, s) == {}
    assert raw.xlen(s._spec.keys.stream) == 1


def test_a_producer_with_groups_where_one_is_there_already(make_stream, raw):
    make_stream(group="b").read("w")
    s = make_stream(group="a", groups=("b",))
    entry_id = s.add({}).entry_id
    assert make_stream(group="b").read("w")[0].entry_id == entry_id
    assert look.groups(raw, s) == {"a": "0-0", "b": entry_id}


@pytest.mark.covers("S7")
@pytest.mark.parametrize("start", ["all", "new"])
@pytest.mark.parametrize("by", ["create", "option"])
def test_a_group_that_is_made_later(make_stream, raw, start, by):
    a = make_stream(group="a")
    a.read("w")
    old = a.add({"n": 1}).entry_id
    late = make_stream(group="late", group_start=start) if by == "option" else make_stream(group="late")
    if by == "create":
        assert a.groups.create("late", start=start) is True
        assert a.groups.create("late", start=start) is False
    assert [job.entry_id for job in late.read("w", count=9)] == ([old] if start == "all" else [])
    new = a.add({"n": 2}).entry_id
    assert [job.entry_id for job in late.read("w", count=9)] == [new]
    # What it does not need does not wait for it.
    a.ack(a.read("w", count=9))
    assert look.state(raw, a).stream == ([old, new] if start == "all" else [new])


def test_creating_a_group_makes_the_stream(make_stream, raw):
    s = make_stream()
    assert s.groups.create("late") is True
    assert look.groups(raw, s) == {"late": "0-0"}
    assert s.inspect().groups.keys() == {"late"}


@pytest.mark.covers("C15", "F14")
@pytest.mark.parametrize("lost", ["group", "stream"])
@pytest.mark.parametrize("start", ["all", "new"])
def test_what_was_added_since_a_group_went_is_not_skipped(three, raw, lost, start):
    a, b, c = three(group_start=start)
    for s in (a, b, c):
        s.read("w")
    if lost == "group":
        look.call(raw, "XGROUP", "DESTROY", a._spec.keys.stream, "b")
    else:
        raw.delete(a._spec.keys.stream)
    entry_id = a.add({"n": 1}).entry_id
    for s in (b, a, c):
        [job] = s.read("w")
        assert job.entry_id == entry_id
        s.ack(job)
    assert look.state(raw, a).stream == []


@pytest.mark.covers("C15")
@pytest.mark.parametrize("retention", ["delete", "keep"])
def test_a_group_made_again_runs_nothing_twice(make_stream, raw, retention):
    s = make_stream(retention=retention)
    ids = (f"j{n}" for n in range(100))

    def add(count):
        for _ in range(count):
            s.add({"n": 0}, job_id=next(ids))

    def work():
        for job in s.read("w", count=100):
            job.effects.hincrby("receipts", job.id)
            s.commit(job)

    add(5)
    work()
    add(5)
    look.call(raw, "XGROUP", "DESTROY", s._spec.keys.stream, "workers")
    work()
    add(5)
    work()
    assert receipts(raw, s) == {f"j{n}": 1 for n in range(15)}
    assert look.pending(raw, s) == {}


# --- entries for one group -------------------------------------------------------------------


@pytest.mark.covers("S7", "S8")
def test_an_entry_for_one_group_reaches_that_group_only(three, raw):
    streams = three()
    for s in streams:
        s.read("w")
    entry_id = look.by_hand(raw, streams[0], "job", '{"n":1}', "sq:group", "b")
    found = [[job.entry_id for job in s.read("w")] for s in streams]
    assert found == [[], [entry_id], []]
    assert [look.pending(raw, s, group=s.options.group) for s in streams] == [{}, {entry_id: Row("w", 1)}, {}]


@pytest.mark.covers("S7")
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("retention", ["delete", "keep"])
def test_an_entry_for_a_missing_group_leaves_one_letter(three, raw, order, retention):
    streams = three(retention=retention)
    for s in streams:
        s.read("w")
    fields = [(b"sq:group", b"zz"), (b"job", b'{"n":1}'), (b"x", b"\xff")]
    entry_id = look.by_hand(raw, streams[0], *[part for pair in fields for part in pair])
    for place in order:
        assert streams[place].read("w", count=9) == []
    [letter] = streams[0].dead_letters.list()
    last = streams[order[-1]].options.group
    assert (letter.reason, letter.group, letter.source_id) == ("unknown_group", last, entry_id)
    assert list(letter.fields) == fields
    now = look.state(raw, streams[0])
    assert now.stream == ([] if retention == "delete" else [entry_id])
    assert now.counters == {f"dead:{last}": 1} | {f"passed:{name}": 1 for name in "abc" if name != last}
    assert [look.pending(raw, s, group=s.options.group) for s in streams] == [{}, {}, {}]


@pytest.mark.covers("S7")
def test_entries_for_a_missing_group_read_by_all_at_once(three, raw):
    streams = three()
    for s in streams:
        s.read("w")
    ids = [look.by_hand(raw, streams[0], "job", "{}", "sq:group", "zz") for _ in range(60)]

    def read(s):
        return [s.read("w", count=6) for _ in range(10)]

    with ThreadPoolExecutor(3) as pool:
        assert [list(map(len, found)) for found in pool.map(read, streams)] == [[0] * 10] * 3
    now = look.state(raw, streams[0])
    assert Counter(now.dead) == Counter((entry_id, "unknown_group") for entry_id in ids)
    assert now.stream == []


@pytest.mark.covers("S7", "C14")
def test_a_letter_of_a_missing_group_is_redriven_to_it_when_it_exists(three, make_stream, raw):
    streams = three()
    for s in streams:
        s.read("w")
    look.by_hand(raw, streams[0], "job", '{"n":1}', "sq:group", "zz", "sq:id", "k")
    for s in streams:
        s.read("w")
    [letter] = streams[0].dead_letters.list()
    before = look.dumps(raw, streams[0].name)
    refused = streams[0].dead_letters.redrive(letter.id)
    assert (refused.moved, list(refused.refused)) == ({}, [letter.id])
    assert "zz" in refused.refused[letter.id]
    assert look.dumps(raw, streams[0].name) == before
    streams[0].groups.create("zz", start="new")
    moved = streams[0].dead_letters.redrive(letter.id).moved
    late = make_stream(group="zz")
    [job] = late.read("w", count=9)
    assert (job.entry_id, job.id, job.payload) == (moved[letter.id], "k", {"n": 1})
    for s in streams:
        assert s.read("w", count=9) == []
    late.ack(job)
    now = look.state(raw, late)
    assert (now.stream, now.dead, now.done) == ([], [], {"zz/k": "done "})


# --- dropping --------------------------------------------------------------------------------


@pytest.mark.covers("C86")
@pytest.mark.parametrize(("left", "state"), [("unread", "ready"), ("pending", "pending"), ("both", "pending")])
def test_a_group_with_work_left_is_not_dropped(make_stream, raw, left, state):
    s = make_stream(group="a", groups=("b",))
    b = make_stream(group="b")
    s.add_many([{}] * 2)
    if left != "unread":
        b.read("w", count=1 if left == "both" else 2)
    before = look.dumps(raw, s.name)
    with pytest.raises(JobStateError, match="group b") as caught:
        s.groups.drop("b")
    assert caught.value.state == state
    assert look.dumps(raw, s.name) == before
    assert s.groups.drop("b", force=True) is True
    assert look.groups(raw, s).keys() == {"a"}
    assert s.groups.drop("b", force=True) is False
    assert s.groups.drop("b") is False


@pytest.mark.covers("C86", "C62")
def test_dropping_an_abandoned_group_frees_what_it_pinned(make_stream, raw):
    s = make_stream(group="a", groups=("b",))
    b = make_stream(group="b")
    s.add_many({"n": n} for n in range(300))
    b.reject(b.read("w")[0])
    while jobs := s.read("w", count=100):
        s.ack(jobs)
    assert raw.xlen(s._spec.keys.stream) == 299
    assert s.trim() == 0  # unread work is never trimmed
    assert s.groups.drop("b", force=True) is True
    assert s.trim() == 299
    now = look.state(raw, s)
    assert (now.stream, now.counters) == ([], {"done:a": 300})  # its counters went with it, its letter stays
    assert [letter.group for letter in s.dead_letters.list()] == ["b"]


def test_a_group_without_work_is_dropped(make_stream, raw):
    s = make_stream(group="a", groups=("b",))
    b = make_stream(group="b")
    s.add({})
    b.ack(b.read("w")[0])
    assert s.groups.drop("b") is True
    assert look.groups(raw, s).keys() == {"a"}
    assert [job.deliveries for job in s.read("w")] == [1]


def test_dropping_where_there_is_nothing(make_stream, raw, ns):
    s = make_stream()
    assert s.groups.drop("b") is False
    assert look.dumps(raw, ns) == {}


def test_a_dropped_group_is_made_again_by_who_reads(make_stream, raw):
    s = make_stream()
    s.add({})
    s.read("w")
    s.groups.drop("workers", force=True)
    assert [job.deliveries for job in s.read("w")] == [1]


# --- seen ------------------------------------------------------------------------------------


@pytest.mark.covers("C86")
def test_a_group_that_nobody_reads_is_named(make_stream, raw):
    s = make_stream(group="a", groups=("b", "idle"))
    b = make_stream(group="b")

    def abandoned():
        return {name for name, group in s.inspect().groups.items() if group.abandoned}

    s.read("w")
    assert abandoned() == set()  # nothing to read
    s.add_many([{}, {}])
    s.read("w")
    assert abandoned() == {"b", "idle"}  # no consumer was ever heard of there
    b.read("w")
    assert abandoned() == {"idle"}
    make_stream(group="idle").read("w")
    assert abandoned() == set()


@pytest.mark.covers("C66")
@pytest.mark.parametrize("reader_holds", [0, 3])
def test_what_is_ready_after_unread_jobs_were_cancelled(make_stream, raw, reader_holds):
    s = make_stream()
    s.read("w")
    s.add_many({} for _ in range(reader_holds))
    s.read("w", count=9)
    for step in range(4):
        ids = [s.add({}).entry_id for _ in range(3)]
        s.cancel(ids[step % 3])
        s.cancel(ids[2])
        seen = s.inspect().groups["workers"]
        last = look.groups(raw, s)["workers"]
        assert (seen.ready, seen.exact) == (len(raw.xrange(s._spec.keys.stream, f"({last}", "+")), True)
        s.read("w", count=1)
        seen = s.inspect().groups["workers"]
        last = look.groups(raw, s)["workers"]
        assert seen.ready == len(raw.xrange(s._spec.keys.stream, f"({last}", "+"))


# --- mistakes --------------------------------------------------------------------------------


@ONE_BACKEND
@pytest.mark.parametrize(
    "call",
    [
        lambda s: s.groups.create(""),
        lambda s: s.groups.create("a:b"),
        lambda s: s.groups.create(7),
        lambda s: s.groups.create(b"x"),
        lambda s: s.groups.create("x", start="$"),
        lambda s: s.groups.create("x", start=0),
        lambda s: s.groups.create("x", start=None),
        lambda s: s.groups.drop("a{b}"),
        lambda s: s.groups.drop(None),
        lambda s: s.groups.drop("x", force="no"),
        lambda s: s.groups.drop("x", force=1),
    ],
)
def test_wrong_arguments(make_stream, raw, ns, proxy, call):
    s = make_stream(redis=proxy.url)
    with pytest.raises(ConfigurationError):
        call(s)
    assert list(proxy.commands) == []
    assert look.dumps(raw, ns) == {}


@ONE_BACKEND
@pytest.mark.parametrize(
    "options",
    [
        {"groups": "b"},
        {"groups": ("b", "")},
        {"groups": ("b", 7)},
        {"groups": b"bc"},
        {"groups": 7},
        {"groups": None},
        {"group_start": "0"},
        {"group_start": None},
        {"group_start": []},
    ],
)
def test_wrong_options(make_stream, options):
    with pytest.raises(ConfigurationError, match="group"):
        make_stream(**options)


@pytest.mark.covers("C89")
@pytest.mark.parametrize(
    "call",
    [
        lambda s: s.add({}),
        lambda s: s.add_many([{}]),
        lambda s: s.groups.create("x"),
        lambda s: s.groups.drop("x"),
        lambda s: s.trim(),
        lambda s: s.prune_consumers(0),
        lambda s: s.cancel("1-1"),
        lambda s: s.result("1-1"),
        lambda s: s.delete(),
    ],
    ids=["add", "add_many", "create", "drop", "trim", "prune", "cancel", "result", "delete"],
)
def test_a_stream_key_of_the_wrong_type(make_stream, raw, ns, call):
    s = make_stream(groups=("b",))
    raw.set(s._spec.keys.stream, "x")
    before = look.dumps(raw, ns)
    with pytest.raises(ConfigurationError) as caught:
        call(s)
    assert s._spec.keys.stream in str(caught.value)
    assert look.dumps(raw, ns) == before
    assert not raw.sismember(registry(None), s.name)


@pytest.mark.covers("S7", "C58")
def test_an_id_is_free_when_no_group_has_the_job_any_more(make_stream, raw):
    a, b = make_stream(group="a", groups=("b",)), make_stream(group="b")
    first = a.add({"n": 1}, job_id="k")
    a.reject(a.read("w")[0], "no")
    again = a.add({"n": 2}, job_id="k")  # b has still to do it
    assert (again.created, again.entry_id, again.state) == (False, first.entry_id, "ready")
    b.reject(b.read("w")[0], "no")
    assert a.add({"n": 3}, job_id="k").created


@pytest.mark.covers("S7", "C58")
def test_the_letter_of_a_retry_frees_the_id_beside_groups_that_pass_over_it(make_stream, raw):
    a, b = make_stream(group="a", groups=("b",)), make_stream(group="b")
    a.add({"n": 1}, job_id="k")
    b.reject(b.read("w")[0], "no")
    a.retry(a.read("w")[0], "no", delay=0)
    a.reject(a.read("w")[0], "no")  # b has not read the retry, but it would only pass it over
    assert a.add({"n": 2}, job_id="k").created
