"""Job IDs: adding twice, running twice, and what is remembered for how long."""

from __future__ import annotations

from contextlib import ExitStack

import children
import look
import pytest
import redis
from benchmarks import records
from look import Row, State
from waiting import until

from streamq import Backoff, ConfigurationError, EffectError, Effects, LeaseLostError
from streamq._ops import identity
from streamq.worker import maintenance


def by_hand(raw, s, *fields):
    """XADD, as a plain producer does it; the entry's ID."""
    return look.call(raw, "XADD", s._spec.keys.stream, "*", *fields).decode()


# --- once ------------------------------------------------------------------------------------


@pytest.mark.covers("I1")
@pytest.mark.slow
def test_many_processes_apply_each_id_once(make_stream, raw, colour, redis_url, ns):
    s = make_stream()
    ids = [f"id-{n}" for n in range(100)]
    with ExitStack() as stack:
        pipes = [
            stack.enter_context(children.running(children.once_each, colour, redis_url, ns, ids))[1] for _ in range(8)
        ]
        for pipe in pipes:
            assert pipe.recv() == "ready"
        for pipe in pipes:
            pipe.send("go")
        assert sum(pipe.recv() for pipe in pipes) == 100
    assert [raw.get(s._spec.keys.data(f"receipt-{job_id}")) for job_id in ids] == [b"1"] * 100
    assert look.state(raw, s) == State(done={f"once:workers/{job_id}": "done " for job_id in ids})


@pytest.mark.covers("I1")
def test_once_says_whether_it_did(make_stream, raw):
    s = make_stream()
    effects = Effects().incrby("n", 5)
    assert [s.once("a", effects), s.once("a", effects), s.once("b", effects)] == [True, False, True]
    assert raw.get(s._spec.keys.data("n")) == b"10"
    other_group = make_stream(group="others")
    assert other_group.once("a", effects) is True


@pytest.mark.covers("I3")
def test_once_with_a_key_of_the_wrong_type_leaves_the_id_free(make_stream, raw):
    s = make_stream()
    raw.sadd(s._spec.keys.data("receipt"), "x")
    effects = Effects().incrby("count").hset("receipt", {"a": 1})
    with pytest.raises(EffectError) as caught:
        s.once("a", effects)
    assert (caught.value.key, caught.value.command) == ("receipt", "HSET")
    assert look.state(raw, s) == State()
    assert not raw.exists(s._spec.keys.data("count"))
    raw.delete(s._spec.keys.data("receipt"))
    assert [s.once("a", effects), s.once("a", effects)] == [True, False]
    assert raw.get(s._spec.keys.data("count")) == b"1"


@pytest.mark.covers("I3")
def test_commit_with_a_key_of_the_wrong_type_marks_nothing(make_stream, raw):
    s = make_stream()
    entry_id = s.add({}, job_id="a").entry_id
    raw.sadd(s._spec.keys.data("receipt"), "x")
    [job] = s.read("w")
    job.effects.hset("receipt", {"a": 1})
    before = look.state(raw, s)
    with pytest.raises(EffectError):
        s.commit(job)
    assert look.state(raw, s) == before
    raw.delete(s._spec.keys.data("receipt"))
    look.age(raw, s)
    [again] = s.reclaim("w2").claimed
    again.effects.hset("receipt", {"a": 1})
    s.commit(again)
    assert raw.hgetall(s._spec.keys.data("receipt")) == {b"a": b"1"}
    assert look.state(raw, s) == State(
        ids={"a": f"done {entry_id}"}, done={"workers/a": "done "}, counters={"done:workers": 1}
    )


# --- adding ----------------------------------------------------------------------------------


@pytest.mark.covers("C58", "I8")
def test_adding_an_id_again(make_stream, raw):
    s = make_stream()
    first = s.add({"n": 1}, job_id="a")
    assert (first.created, first.state, first.job_id) == (True, "ready", "a")

    def again():
        added = s.add({"n": 2}, job_id="a")
        assert (added.created, added.entry_id) == (False, first.entry_id)
        return added.state

    assert again() == "ready"
    [job] = s.read("w")
    assert again() == "pending"
    assert job.payload == {"n": 1}
    s.ack(job)
    assert again() == "done"
    assert look.state(raw, s) == State(
        ids={"a": f"done {first.entry_id}"}, done={"workers/a": "done "}, counters={"done:workers": 1}
    )


@pytest.mark.covers("C58")
@pytest.mark.parametrize("how", ["rejected", "deliveries", "attempts", "entry_missing"])
def test_an_id_is_free_after_its_dead_letter(make_stream, raw, how):
    s = make_stream(retry=Backoff.constant(0, limit=0))
    first = s.add({"n": 1}, job_id="a")
    [job] = s.read("w")
    if how == "rejected":
        s.reject(job)
    elif how == "attempts":
        s.retry(job)
    elif how == "deliveries":
        look.age(raw, s, count=5)
        s.reclaim("w")
    else:
        look.age(raw, s)
        raw.xdel(s._spec.keys.stream, job.entry_id)
        s.reclaim("w")
    assert [letter.reason for letter in s.dead_letters.list()] == [how]
    second = s.add({"n": 2}, job_id="a")
    assert (second.created, second.state) == (True, "ready")
    assert second.entry_id != first.entry_id
    [job] = s.read("w2")
    assert job.payload == {"n": 2}
    s.ack(job)
    assert look.state(raw, s).ids == {"a": f"done {second.entry_id}"}


@pytest.mark.covers("C58")
def test_an_id_is_taken_while_its_job_is_retried(make_stream, raw):
    s = make_stream(retry=Backoff.constant(3600))
    first = s.add({"n": 1}, job_id="a")
    assert s.retry(s.read("w")[0], "no")
    again = s.add({"n": 2}, job_id="a")
    assert (again.created, again.state, again.entry_id) == (False, "scheduled", None)
    s.scheduled.run_now("a")
    again = s.add({"n": 2}, job_id="a")
    assert (again.created, again.state) == (False, "ready")
    assert again.entry_id != first.entry_id  # where the job is now
    [job] = s.read("w")
    assert (job.payload, job.attempt, job.id, job.entry_id) == ({"n": 1}, 2, "a", again.entry_id)
    assert s.add({"n": 2}, job_id="a").state == "pending"
    s.ack(job)
    assert look.state(raw, s) == State(
        ids={"a": f"done {again.entry_id}"},
        done={"workers/a": "done "},
        counters={"done:workers": 1, "retried:workers": 1},
    )


@pytest.mark.covers("C58")
def test_an_id_is_free_when_its_entry_was_flushed(make_stream, raw):
    s = make_stream()
    s.add({"n": 1}, job_id="a")
    raw.delete(s._spec.keys.stream)
    assert s.add({"n": 2}, job_id="a").created is True


@pytest.mark.covers("C58")
def test_add_many_with_ids_counts_new_ones(make_stream, raw):
    s = make_stream()
    payloads = [{"id": f"j{n % 700}"} for n in range(1_400)]
    assert s.add_many(payloads, job_id=lambda p: p["id"]) == 700
    assert s.add_many(payloads, job_id=lambda p: p["id"]) == 0
    assert raw.xlen(s._spec.keys.stream) == 700


@pytest.mark.covers("I5")
def test_deployments_do_not_share_ids(make_stream, raw, ns):
    streams = [make_stream(deployment=deployment) for deployment in (None, f"{ns}-a", f"{ns}-b")]
    for s in streams:
        assert s.add({}, job_id="a").created is True
        [job] = s.read("w")
        job.effects.incrby("n")
        s.commit(job)
        assert s.once("a", Effects().incrby("n")) is True
        assert raw.get(s._spec.keys.data("n")) == b"2"


@pytest.mark.covers("I5")
def test_streams_do_not_share_ids(make_stream):
    assert [make_stream(name).add({}, job_id="a").created for name in ("x", "y")] == [True, True]


# --- running ---------------------------------------------------------------------------------


@pytest.mark.covers("I4", "C19")
@pytest.mark.slow
def test_a_worker_killed_before_the_effect(make_stream, raw, colour, redis_url, ns):
    s = make_stream()
    entry_id = s.add({}, job_id="a").entry_id
    with children.running(children.hold, colour, redis_url, ns, 1) as (victim, pipe):
        assert pipe.recv() == [entry_id]
        children.kill(victim)
    assert look.state(raw, s) == State(
        stream=[entry_id],
        pending={entry_id: Row("victim", 1)},
        ids={"a": f"queued {entry_id}"},
        done={"workers/a": f"running {entry_id}"},
    )
    slices = [key for key in (*s._spec.keys.ids, *s._spec.keys.done) if raw.exists(key)]
    assert len(slices) == 2
    assert all(raw.pttl(key) > 0 for key in slices)
    look.age(raw, s, idle=15)  # the lease, and nothing more
    [job] = s.reclaim("second").claimed
    assert job.deliveries == 2
    job.effects.incrby("n")
    s.commit(job, {"by": "second"})
    assert raw.get(s._spec.keys.data("n")) == b"1"
    assert look.state(raw, s) == State(
        ids={"a": f"done {entry_id}"}, done={"workers/a": 'done {"by":"second"}'}, counters={"done:workers": 1}
    )


@pytest.mark.covers("I4")
def test_a_late_finisher_overwrites_nothing(make_stream, raw):
    s = make_stream()
    s.add({}, job_id="a")
    [late] = s.read("w1")
    late.effects.incrby("n")
    look.age(raw, s)
    [job] = s.reclaim("w2").claimed
    for finish in (lambda: s.commit(late, "late"), lambda: s.ack(late)):
        with pytest.raises(LeaseLostError):
            finish()
    job.effects.incrby("n")
    s.commit(job, "first")
    after = look.state(raw, s)
    with pytest.raises(LeaseLostError) as caught:
        s.commit(late, "late")
    assert caught.value.gone
    assert s.ack(late) is False
    assert look.state(raw, s) == after
    assert after.done == {"workers/a": 'done "first"'}
    assert raw.get(s._spec.keys.data("n")) == b"1"


@pytest.mark.covers("I4", "I8")
def test_a_second_entry_of_a_running_id(make_stream, raw):
    s = make_stream()
    first = s.add({}, job_id="a").entry_id
    second = by_hand(raw, s, "job", "{}", "sq:id", "a")
    [job] = s.read("w1", count=5)
    assert job.entry_id == first
    assert look.state(raw, s) == State(  # neither run nor acknowledged nor charged
        stream=[first, second],
        pending={first: Row("w1", 1), second: Row("w1", 0)},
        ids={"a": f"queued {first}"},
        done={"workers/a": f"running {first}"},
    )
    for _ in range(7):
        look.age(raw, s, [second])
        assert s.reclaim("w2") == ([], [], [])
    assert look.pending(raw, s) == {first: Row("w1", 1), second: Row("w2", 0)}
    s.ack(job)
    look.age(raw, s)
    assert s.reclaim("w2") == ([], [], [])  # done: acknowledged unrun
    now = look.state(raw, s)
    assert (now.stream, now.pending, now.dead) == ([], {}, [])
    assert now.done == {"workers/a": "done "}


@pytest.mark.covers("I4")
@pytest.mark.parametrize("how", ["retry", "reject", "release"])
def test_a_second_entry_runs_when_the_first_did_not_succeed(make_stream, raw, how):
    s = make_stream()
    s.add({"n": 1}, job_id="a")
    [job] = s.read("w1")
    second = by_hand(raw, s, "job", '{"n":2}', "sq:id", "a")
    assert s.read("w1") == []
    getattr(s, how)(job)
    assert look.state(raw, s).done == {}
    look.age(raw, s, [second])
    [job] = s.reclaim("w2", min_idle=60).claimed
    assert (job.entry_id, job.payload, job.deliveries) == (second, {"n": 2}, 1)


@pytest.mark.covers("I4")
def test_a_plain_entry_of_a_done_id_is_acknowledged_unrun(make_stream, raw):
    s = make_stream()
    s.add({}, job_id="a")
    s.ack(s.read("w")[0])
    before = look.state(raw, s)
    by_hand(raw, s, "job", "{}", "sq:id", "a")
    assert s.read("w") == []
    after = look.state(raw, s)
    assert (after.stream, after.pending, after.dead) == ([], {}, [])
    assert (after.ids, after.done) == (before.ids, before.done)


@pytest.mark.covers("I4")
def test_a_running_record_of_an_entry_that_is_gone_holds_nothing(make_stream, raw):
    s = make_stream()
    s.add({}, job_id="a")
    [job] = s.read("w")
    look.call(raw, "XACK", s._spec.keys.stream, "workers", job.entry_id)
    second = by_hand(raw, s, "job", "{}", "sq:id", "a")
    assert [job.entry_id for job in s.read("w")] == [second]


@pytest.mark.covers("I8")
def test_groups_keep_records_of_their_own(make_stream, raw):
    one, two = make_stream(group="one"), make_stream(group="two")
    for s in (one, two):
        s.read("w")
    entry_id = one.add({}, job_id="a").entry_id
    [job] = one.read("w")
    [other] = two.read("w")
    one.commit(job, 1)
    assert raw.xlen(one._spec.keys.stream) == 1  # the other group still needs it
    two.commit(other, 2)
    assert look.state(raw, one) == State(
        ids={"a": f"done {entry_id}"},
        done={"one/a": "done 1", "two/a": "done 2"},
        counters={"done:one": 1, "done:two": 1},
    )


# --- odd IDs ---------------------------------------------------------------------------------

NUMBER_LIKE = ("300000000", "9007199254740993", "18446744073709551615", "007", "1e3", "nan", "-0", "0x10", " 1")
PAYLOAD = b'{"id":130775545883395173,"a":[],"f":1.10,"n":null}'


@pytest.mark.covers("C12")
def test_number_like_ids_survive_every_step(make_stream, raw):
    s = make_stream(type=bytes, retry=Backoff.constant(0, limit=1))
    keys = s._spec.keys
    count = len(NUMBER_LIKE)

    def check(record):
        stored = [dict(fields) for _, fields in look.entries(raw, keys.stream)]
        assert [fields[b"sq:id"].decode() for fields in stored] == list(NUMBER_LIKE)
        assert {fields[b"job"] for fields in stored} == {PAYLOAD}
        assert set(look.records(raw, keys.ids)) == set(NUMBER_LIKE)
        assert set(look.records(raw, keys.done)) == record

    for job_id in NUMBER_LIKE:
        assert s.add(PAYLOAD, job_id=job_id).created
    check(set())
    jobs = s.read("w", count=count)
    check({f"workers/{job_id}" for job_id in NUMBER_LIKE})
    for job in jobs:
        assert s.retry(job, "1e3") is True
    check(set())
    jobs = s.read("w", count=count)
    assert [(job.id, job.payload, job.attempt) for job in jobs] == [(i, PAYLOAD, 2) for i in NUMBER_LIKE]
    for job in jobs:
        assert s.retry(job, "nan") is False
    letters = s.dead_letters.list()
    assert [(letter.job_id, letter.payload) for letter in letters] == [(i, PAYLOAD) for i in NUMBER_LIKE]
    now = look.state(raw, s)
    assert (now.stream, now.pending, now.ids, now.done) == ([], {}, {}, {})


@pytest.mark.covers("C12")
def test_number_like_ids_are_remembered_by_their_text(make_stream, raw):
    s = make_stream()
    for job_id in NUMBER_LIKE:
        s.add({}, job_id=job_id)
    for job in s.read("w", count=50):
        s.commit(job, {"id": 9007199254740993})
    now = look.state(raw, s)
    assert set(now.ids) == set(NUMBER_LIKE)
    assert now.done == {f"workers/{job_id}": 'done {"id":9007199254740993}' for job_id in NUMBER_LIKE}


@pytest.mark.parametrize("job_id", ["", "x" * 513, "ü" * 257, "a\nb", "\x00", "\x7f", "\ud800", 7, b"x"])
def test_ids_that_cannot_be(make_stream, raw, ns, job_id):
    s = make_stream()
    with pytest.raises(ConfigurationError):
        s.add({}, job_id=job_id)
    with pytest.raises(ConfigurationError):
        s.once(job_id, Effects().incrby("n"))
    assert look.dumps(raw, ns) == {}


# --- forgetting ------------------------------------------------------------------------------


def clock(raw):
    """The server's time in ms."""
    seconds, micros = raw.time()
    return seconds * 1000 + micros // 1000


@pytest.mark.covers("I2", "C71")
@pytest.mark.slow
def test_records_are_kept_for_the_window_and_little_longer(make_stream, raw):
    s = make_stream(idempotency_ttl=0.45)
    keys, turn = s._spec.keys, s._spec.options.slice_ms
    added = []  # per batch: when it began, when it was done, its IDs
    checks, next_check = 0, clock(raw)
    while checks < 13:  # each slice is used again at least twice
        began = clock(raw)
        ids = [f"{began:018d}{n:018d}" for n in range(50)]
        assert s.add_many([{"id": job_id} for job_id in ids], job_id=lambda p: p["id"]) == 50
        assert s.ack(s.read("w", count=50)) == 50
        added.append((began, clock(raw), ids))
        if began < next_check:
            continue
        checks, next_check = checks + 1, next_check + turn
        known = set(look.records(raw, keys.ids))
        done = {field.partition("/")[2] for field in look.records(raw, keys.done)}
        now = clock(raw)
        for began_at, done_at, batch in added:
            if now < began_at + 3 * turn:
                assert known.issuperset(batch)
                assert done.issuperset(batch)
            if done_at + 4 * turn <= began:  # four turns are less than two windows
                assert known.isdisjoint(batch)
                assert done.isdisjoint(batch)
        assert -1 not in [raw.pttl(key) for key in (*keys.ids, *keys.done)]
    assert done_at - added[0][0] > 11 * turn


@pytest.mark.covers("C71", "I2")
@pytest.mark.slow
def test_records_vanish_when_nobody_adds_any_more(make_stream, raw):
    s = make_stream(idempotency_ttl=1)
    keys = s._spec.keys
    count = 20_000
    assert s.add_many(({"n": n} for n in range(count)), job_id=lambda p: f"{p['n']:036d}") == count
    done = 0
    while jobs := s.read("w", count=1_000):
        done += s.ack(jobs)
    assert done == count

    def forgotten():
        s.run(identity.sweep(s._spec))  # as workers do
        return not raw.exists(*keys.ids, *keys.done)

    until(forgotten)
    left = set(raw.scan_iter(match=f"{keys.prefix}:*", count=1000))
    assert left == {keys.stream.encode(), keys.meta.encode()}
    assert s.add({}, job_id=f"{0:036d}").created is True  # forgotten


@pytest.mark.covers("C71")
def test_all_that_may_grow_without_a_job_has_a_time_to_live(make_stream, raw):
    s = make_stream(retry=Backoff.constant(0, limit=1))
    keys = s._spec.keys
    for n in range(6):
        s.add({"n": n}, job_id=f"j{n}")
    jobs = s.read("w", count=6)
    s.ack(jobs[0])
    jobs[1].effects.incrby("n")
    s.commit(jobs[1], {"a": 1})
    s.retry(jobs[2], "no")
    s.reject(jobs[3], "no")
    s.release(jobs[4])
    s.once("x", Effects().incrby("n"))
    s.run(maintenance.tick(s._spec, "w", may_reclaim=True, beat=b"{}"))
    may_stay = {keys.stream, keys.scheduled, keys.jobs, keys.dead, keys.meta, keys.workers, keys.wake, keys.data("n")}
    found = {key.decode() for key in raw.scan_iter(match=f"{keys.prefix}:*", count=1000)}
    assert len(found & {*keys.ids, *keys.done}) >= 2
    assert {key for key in found if raw.pttl(key) == -1} <= may_stay
    assert keys.tick("reclaim:workers") in found - may_stay


def make_due(raw, keys):
    """Slices whose time is over, all but those written now: each with a record."""
    due = [key for key in (*keys.ids, *keys.done) if not raw.exists(key)]
    for key in due:
        raw.hset(key, mapping={"old": "done ", "": 1})
        raw.expire(key, 1000)
    return due


@pytest.mark.covers("I2")
@pytest.mark.parametrize(
    ("step", "kinds"),
    [
        ("add", {"ids"}),
        ("once", {"done"}),
        ("read", {"ids", "done"}),  # it promotes what is due
        ("ack", {"ids", "done"}),
        ("commit", {"ids", "done"}),
        ("retry", {"ids", "done"}),
        ("schedule", {"ids"}),
        ("reject", {"ids", "done"}),
        ("sweep", {"ids", "done"}),
    ],
)
def test_whoever_looks_unlinks_what_is_due(make_stream, raw, step, kinds):
    s = make_stream()
    keys = s._spec.keys
    s.add({}, job_id="a")
    jobs = s.read("w") if step in ("ack", "commit", "retry", "reject") else []
    due = make_due(raw, keys)
    if step == "add":
        s.add({}, job_id="b")
    elif step == "schedule":
        s.add({}, job_id="b", delay=60)
    elif step == "retry":
        s.retry(jobs[0], delay=0)
    elif step == "once":
        s.once("b", Effects().incrby("n"))
    elif step == "read":
        s.read("w")
    elif step == "sweep":
        s.run(identity.sweep(s._spec))
    else:
        getattr(s, step)(jobs[0])
    left = {key for key in due if raw.hexists(key, "old")}
    assert left == {key for key in due if key.split(":")[-2] not in kinds}


@pytest.mark.covers("I3")
def test_nothing_is_unlinked_beside_a_slice_of_the_wrong_type(make_stream, raw):
    s = make_stream()
    keys = s._spec.keys
    s.add({}, job_id="a")
    due = make_due(raw, keys)
    wrong = next(key for key in reversed(due) if key in keys.ids)
    raw.delete(wrong)
    raw.sadd(wrong, "x")
    before = look.dumps(raw, keys.name)
    with pytest.raises(ConfigurationError, match="holds a set, not a hash"):
        s.add({}, job_id="b")
    assert look.dumps(raw, keys.name) == before
    s.run(identity.sweep(s._spec))  # says nothing, and does what it can
    assert [key for key in due if raw.exists(key)] == [key for key in due if key in keys.ids]


@pytest.mark.covers("I8", "C71")
def test_a_record_is_kept_for_the_whole_time(make_stream, raw):
    s = make_stream(idempotency_ttl=3600)
    s.add({}, job_id="a")
    s.ack(s.read("w")[0])
    now = clock(raw)
    slices = [key for key in (*s._spec.keys.ids, *s._spec.keys.done) if raw.exists(key)]
    assert len(slices) >= 2
    for key in slices:
        due = int(raw.hget(key, ""))
        assert now + 3_600_000 <= due <= now + 4_800_000
        assert abs(now + raw.pttl(key) - (due + 3_610_000)) < 1_000  # late: it may stop the server
    assert s.add({}, job_id="a").state == "done"


@pytest.mark.covers("I2")
def test_once_records_vanish_too(make_stream, raw):
    s = make_stream(idempotency_ttl=0.5)
    assert s.once("a", Effects().incrby("n")) is True
    until(lambda: s.once("a", Effects().incrby("n")))
    assert raw.get(s._spec.keys.data("n")) == b"2"


@pytest.mark.full
@pytest.mark.covers("I2")
@pytest.mark.parametrize("backend", ["redis-7.0", "valkey-9"], indirect=True)
def test_the_server_does_not_stand_still_when_records_are_forgotten(new_server):
    """Not the wheel of Redis 6.2: it is built without jemalloc, and glibc tidies up after the background in the foreground."""
    server = new_server()
    with redis.Redis.from_url(server.url, single_connection_client=True) as client:
        scene = records.Scene(server, client, 500_000)
        late = scene.due_at_write()
        scene.stream.close()
        assert client.hlen(scene.keys.done[scene.current]) == 2
    assert late.of(99) < 10
