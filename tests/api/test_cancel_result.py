"""Jobs taken back, and what became of jobs: the same ID in every state that it can be in."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import look
import msgspec
import pytest
import servers
from look import Row, State
from waiting import until

from streamq import Backoff, ConfigurationError, ConnectionLostError, JobEncodingError, JobStateError

ONE_BACKEND = pytest.mark.parametrize("backend", ["redis-7.0"], indirect=True)
"""For mistakes that are found before anything is sent."""

STRANGE = [
    "0-0",
    "1-1",
    "007-1",
    "1-01",
    "99999999999999999999-0",
    "18446744073709551616-0",
    "9" * 200 + "-1",
    "-",
    "+",
    "$",
]
"""IDs that look like those of entries, or that a command might take for one."""


# --- cancel ----------------------------------------------------------------------------------


@pytest.mark.covers("C58")
@pytest.mark.parametrize("job_id", ["k", None])
@pytest.mark.parametrize("retention", ["delete", "keep"])
def test_a_job_that_nobody_has_begun(make_stream, raw, job_id, retention):
    s = make_stream(retention=retention)
    s.read("w")
    before = s.add({"n": 0}).entry_id
    added = s.add({"n": 1}, job_id=job_id)
    behind = s.add({"n": 2}).entry_id
    assert s.cancel(added.job_id) is True
    assert look.state(raw, s) == State(stream=[before, behind])
    assert s.cancel(added.job_id) is False
    assert [job.payload["n"] for job in s.read("w", count=9)] == [0, 2]
    if job_id:
        assert s.add({"n": 3}, job_id=job_id).created is True  # its ID is free again
        assert [job.payload["n"] for job in s.read("w", count=9)] == [3]


@pytest.mark.covers("C58")
def test_a_job_of_a_stream_without_groups(make_stream, raw, ns):
    s = make_stream()
    s.add({"n": 1}, job_id="k")
    plain = s.add({"n": 2})
    assert [s.cancel("k"), s.cancel(plain.job_id)] == [True, True]
    assert look.state(raw, s) == State()


@pytest.mark.covers("C58", "I8")
@pytest.mark.parametrize("job_id", ["k", None])
def test_a_job_that_was_begun_is_not_cancelled(make_stream, raw, job_id):
    s = make_stream()
    added = s.add({"n": 1}, job_id=job_id)
    [job] = s.read("w")
    before = look.state(raw, s)
    with pytest.raises(JobStateError, match="pending") as caught:
        s.cancel(added.job_id)
    assert caught.value.state == "pending"
    assert look.state(raw, s) == before
    s.commit(job, 1)
    before = look.state(raw, s)
    if job_id:
        with pytest.raises(JobStateError) as caught:
            s.cancel(added.job_id)
        assert caught.value.state == "done"
    else:
        assert s.cancel(added.job_id) is False  # nothing is remembered of it
    assert look.state(raw, s) == before


@pytest.mark.covers("S7")
@pytest.mark.parametrize("begun", ["pending", "settled", "dead"])
def test_one_group_that_has_begun_is_enough(make_stream, raw, begun):
    a, b = make_stream(group="a", groups=("b",)), make_stream(group="b")
    entry_id = a.add({"n": 1}).entry_id
    [job] = a.read("w")
    if begun == "settled":
        a.ack(job)
    elif begun == "dead":
        a.reject(job)
    before = look.dumps(raw, a.name)
    for s in (a, b):
        with pytest.raises(JobStateError) as caught:
            s.cancel(entry_id)
        assert caught.value.state == "pending"
    assert look.dumps(raw, a.name) == before
    assert [job.entry_id for job in b.read("w")] == [entry_id]


@pytest.mark.covers("C58", "Q1")
@pytest.mark.parametrize("delay", [0, 60])
@pytest.mark.parametrize("retention", ["delete", "keep"])
def test_a_retry_that_waits_is_cancelled_by_its_id(make_stream, raw, delay, retention):
    s = make_stream(retention=retention)
    first = s.add({"n": 1}, job_id="k").entry_id
    s.retry(s.read("w")[0], "no", delay=delay)
    assert s.cancel("k") is True
    kept = [first] if retention == "keep" else []
    assert look.state(raw, s) == State(stream=kept, counters={"retried:workers": 1})
    assert s.read("w") == []
    assert s.cancel("k") is False
    assert s.result("k").state == "unknown"
    assert s.add({"n": 2}, job_id="k").created is True


@pytest.mark.covers("C58", "S7")
def test_a_retry_of_one_group_of_several_is_not_cancelled(make_stream, raw):
    a, b = make_stream(group="a", groups=("b",)), make_stream(group="b")
    a.add({"n": 1}, job_id="k")
    a.retry(a.read("w")[0], "no", delay=0)
    before = look.state(raw, a)
    with pytest.raises(JobStateError) as caught:  # b still waits for the job's first entry: True would be a lie
        a.cancel("k")
    assert caught.value.state == "pending"
    assert look.state(raw, a) == before
    assert len(b.read("w")) == 1


@pytest.mark.covers("C58", "S7", "Q4", "Q5")
@pytest.mark.parametrize("delay", [None, 3600])
def test_what_was_replaced_in_one_group_of_several_is_not_cancelled_for_the_others(make_stream, raw, delay):
    a, b = make_stream(group="a", groups=("b",)), make_stream(group="b")
    a.add({"n": 1}, job_id="k")
    [running] = b.read("w")
    a.retry(a.read("w")[0], "no", delay=3600)
    assert a.add({"n": 2}, job_id="k", delay=delay, replace=True).created is True
    if delay is None:  # ready in a: another cannot tell from this entry alone that b is at work
        before = look.dumps(raw, a.name)
        for s in (a, b):
            with pytest.raises(JobStateError) as caught:
                s.cancel("k")
            assert caught.value.state == "pending"
        assert look.dumps(raw, a.name) == before
        assert [job.payload["n"] for job in a.read("w")] == [2]
    else:  # it waits for a only, and is taken from a only
        assert a.cancel("k") is True
        assert a.scheduled.get("k") is None
    assert a.add({"n": 3}, job_id="k").created is False
    assert b.ack(running) is True


@pytest.mark.covers("C58")
def test_a_dead_job_is_not_there_and_a_redriven_one_is(make_stream, raw):
    s = make_stream()
    s.add({"n": 1}, job_id="k")
    s.reject(s.read("w")[0])
    assert s.cancel("k") is False
    [letter] = s.dead_letters.list()
    s.dead_letters.redrive(letter.id)
    assert s.cancel("k") is True
    assert look.state(raw, s) == State(counters={"dead:workers": 1, "redriven:workers": 1})
    assert s.read("w") == []


@pytest.mark.covers("C58")
def test_a_job_whose_entry_was_flushed(make_stream, raw):
    s = make_stream()
    s.add({}, job_id="k")
    raw.delete(s._spec.keys.stream)
    assert s.cancel("k") is False
    assert s.result("k").state == "unknown"


@pytest.mark.covers("C12", "C66")
@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize("job_id", STRANGE)
def test_ids_that_look_like_entries(make_stream, raw, ns, used, job_id):
    s = make_stream()
    if used:
        look.call(raw, "XADD", s._spec.keys.stream, "7-1", "job", "{}")
        s.read("w")
        look.call(raw, "XADD", s._spec.keys.stream, "8-1", "job", "{}")
    before = look.dumps(raw, ns)
    assert s.cancel(job_id) is False
    assert s.result(job_id).state == "unknown"
    assert look.dumps(raw, ns) == before
    assert s.add({"n": 1}, job_id=job_id).created is True
    assert s.result(job_id).state == "ready"
    assert s.cancel(job_id) is True


def test_an_id_like_another_jobs_entry(make_stream, raw):
    s = make_stream()
    other = s.add({"n": 1}, job_id="k")
    assert s.cancel(other.entry_id) is False  # that job's ID is k
    mine = s.add({"n": 2}, job_id=other.entry_id)
    assert s.cancel(other.entry_id) is True
    assert look.state(raw, s).stream == [other.entry_id]
    assert mine.entry_id != other.entry_id


@pytest.mark.covers("C58")
def test_cancelling_while_it_is_read(make_stream, raw):
    s, reader = make_stream(), make_stream()
    reader.read("w")
    count = 200
    ids = [s.add({"n": n}, job_id=f"k{n}").job_id for n in range(count)]

    def read():
        got = []
        while len(got) < count:
            jobs = reader.read("w", count=3)
            if not jobs and not reader.inspect().ready:
                break
            got += jobs
        return [job.id for job in got]

    def cancel():
        taken_back = []
        for job_id in reversed(ids):
            with suppress(JobStateError):
                taken_back += [job_id] * s.cancel(job_id)
        return taken_back

    with ThreadPoolExecutor(2) as pool:
        reading, cancelling = pool.submit(read), pool.submit(cancel)
        ran, taken_back = reading.result(60), cancelling.result(60)
    assert sorted(ran + taken_back) == sorted(ids)  # each one of both, never both


# --- the same ID, in every state -------------------------------------------------------------


@pytest.mark.covers("C58", "I8")
def test_adding_an_id_again_in_every_state(make_stream, raw):
    s = make_stream(retry=Backoff.constant(0, limit=1))

    def length():
        return raw.xlen(s._spec.keys.stream)

    def again(created, state):
        before = length()
        added = s.add({"n": 9}, job_id="k")
        assert (added.job_id, added.created, added.state) == ("k", created, state)
        assert length() == before + created
        assert s.result("k").state == state

    again(True, "ready")
    again(False, "ready")
    [job] = s.read("w")
    again(False, "pending")
    s.retry(job)
    again(False, "ready")
    [job] = s.read("w")
    again(False, "pending")
    assert s.retry(job) is False
    assert s.result("k").state == "unknown"  # dead
    [letter] = s.dead_letters.list()
    s.dead_letters.redrive(letter.id)
    again(False, "ready")
    s.cancel("k")
    assert s.result("k").state == "unknown"
    again(True, "ready")  # after cancel
    [job] = s.read("w")
    s.reject(job)
    again(True, "ready")  # after a dead letter
    s.dead_letters.purge(older_than=0)
    again(False, "ready")
    [job] = s.read("w")
    s.reject(job)
    s.dead_letters.purge(older_than=0)
    again(True, "ready")  # after purge
    [job] = s.read("w")
    s.commit(job, {"total": 1.5})
    again(False, "done")
    assert s.result("k").value == {"total": 1.5}


@pytest.mark.covers("I8")
@pytest.mark.parametrize("outcome", ["running", "success", "retry", "dead"])
def test_a_second_entry_of_an_id(make_stream, raw, outcome):
    s = make_stream(retry=Backoff.constant(0))
    s.add({"n": 1}, job_id="k")
    [job] = s.read("w1")
    second = look.by_hand(raw, s, "job", '{"n":2}', "sq:id", "k")
    if outcome == "running":
        assert s.read("w2") == []
        # Neither run, nor acknowledged, nor charged: it comes again.
        assert look.pending(raw, s)[second] == Row("w2", 0)
        s.commit(job, "one")
        look.age(raw, s, [second])
        assert s.reclaim("w2").claimed == []
        assert look.state(raw, s) == State(
            ids={"k": f"done {job.entry_id}"}, done={"workers/k": 'done "one"'}, counters={"done:workers": 2}
        )
        return
    if outcome == "success":
        s.commit(job, "one")
        assert s.read("w2") == []
        now = look.state(raw, s)
        assert (now.stream, now.done) == ([], {"workers/k": 'done "one"'})
        return
    s.retry(job) if outcome == "retry" else s.reject(job)
    [other] = s.read("w2")  # the first did not succeed, so this one may
    assert (other.entry_id, other.payload) == (second, {"n": 2})
    s.commit(other, "two")
    assert s.read("w2", count=9) == []  # and the retry of the first is a duplicate then
    now = look.state(raw, s)
    assert (now.stream, now.done) == ([], {"workers/k": 'done "two"'})


@pytest.mark.covers("I8")
def test_after_its_time_an_id_and_its_result_are_forgotten(make_stream, raw):
    s = make_stream(idempotency_ttl=0.5)
    s.add({"n": 1}, job_id="k")
    s.commit(s.read("w")[0], "one")
    assert s.result("k") == s.result("k")
    until(lambda: s.result("k").state == "unknown")
    assert s.result("k").value is None
    until(lambda: s.add({"n": 2}, job_id="k").created)
    assert s.read("w")[0].payload == {"n": 2}


@pytest.mark.covers("I5")
def test_the_same_id_elsewhere_is_another_job(make_stream, raw, ns):
    streams = [
        make_stream(name, deployment=deployment) for name in ("x", "y") for deployment in (None, f"{ns}-1", f"{ns}-2")
    ]
    for place, s in enumerate(streams):
        assert s.add({"n": place}, job_id="k").created is True
    for place, s in enumerate(streams):
        [job] = s.read("w", count=9)
        job.effects.hincrby("receipts", "k")
        s.commit(job, place)
    for place, s in enumerate(streams):
        assert s.result("k").value == place
        assert raw.hgetall(s._spec.keys.data("receipts")) == {b"k": b"1"}
        assert look.state(raw, s).done == {"workers/k": f"done {place}"}
    assert len({s._spec.keys.stream for s in streams}) == 6


# --- results ---------------------------------------------------------------------------------


@pytest.mark.covers("I8")
@pytest.mark.parametrize("value", [None, 0, "", [], {"a": [1.5, None, "ü"]}, 9007199254740993, "x" * 65_534])
@pytest.mark.parametrize("job_id", ["k", None])
def test_a_result_comes_back_as_it_was(make_stream, value, job_id):
    s = make_stream()
    added = s.add({}, job_id=job_id)
    s.commit(s.read("w")[0], value)
    found = s.result(added.job_id)
    # A generated ID without a result is not remembered.
    assert found.state == ("unknown" if job_id is None and value is None else "done")
    assert found.value == value


def test_looking_at_results_changes_nothing(make_stream, raw, ns):
    s = make_stream()
    assert s.result("k") == msgspec.structs.replace(s.result("k"), state="unknown", value=None)
    assert look.dumps(raw, ns) == {}
    added = s.add({}, job_id="k")
    s.add({}, job_id="ready")
    s.read("w")
    before = look.dumps(raw, ns)
    for job_id in ("k", "ready", "nobody", added.entry_id):
        s.result(job_id)
    assert look.dumps(raw, ns) == before


@pytest.mark.covers("S7", "I8")
def test_a_result_is_of_the_streams_group(make_stream, raw):
    a, b = make_stream(group="a", groups=("b",)), make_stream(group="b")
    producer = make_stream(group="nobody")
    chosen, plain = a.add({}, job_id="k"), a.add({})

    def states(job_id):
        return [s.result(job_id).state for s in (a, b, producer)]

    assert states("k") == states(plain.job_id) == ["ready", "ready", "ready"]
    first, second = a.read("w", count=2)
    assert states("k") == states(plain.job_id) == ["pending", "ready", "ready"]
    a.commit(first, 1)
    a.ack(second)
    assert states("k")[:2] == ["done", b.result("k").state]
    assert states(plain.job_id) == ["unknown", "ready", "ready"]  # a has settled it, without a record
    assert [(job.entry_id, job.id) for job in b.read("w", count=2)] == [
        (chosen.entry_id, "k"),
        (plain.entry_id, plain.job_id),
    ]
    assert states("k")[1] == states(plain.job_id)[1] == "pending"
    assert b.result("k").value is None


def test_a_result_that_somebody_else_wrote(make_stream, raw):
    s = make_stream()
    s.add({}, job_id="k")
    s.commit(s.read("w")[0], 1)
    [key] = [key for key in s._spec.keys.done if raw.hexists(key, "workers/k")]
    raw.hset(key, "workers/k", b"done \xff{")
    with pytest.raises(JobEncodingError, match="k"):
        s.result("k")


# --- a crash between the effect and the acknowledgement -----------------------------------------


@pytest.mark.covers("I6")
@pytest.mark.parametrize("cut", ["cut_after", "drop_before"])
@pytest.mark.parametrize("job_id", ["k", None])
def test_a_commit_whose_reply_never_comes(make_stream, raw, proxy, cut, job_id):
    s = make_stream()
    s.add({"n": 0})
    s.commit(s.read("w")[0])  # its script is known to the server
    worker = make_stream(redis=proxy.url)
    added = s.add({"n": 1}, job_id=job_id)
    [job] = worker.read("w")
    job.effects.hincrby("receipts", "1")
    getattr(proxy, cut)(servers.named("EVALSHA", "EVAL"))
    with pytest.raises(ConnectionLostError) as caught:
        worker.commit(job)
    assert caught.value.maybe_executed is True
    happened = cut == "cut_after"
    assert look.pending(raw, s) == ({} if happened else {added.entry_id: Row("w", 1)})
    look.age(raw, s)
    for again in s.reclaim("w2").claimed:
        again.effects.hincrby("receipts", "1")
        s.commit(again)
    assert raw.hgetall(s._spec.keys.data("receipts")) == {b"1": b"1"}
    now = look.state(raw, s)
    assert (now.stream, now.pending, now.counters) == ([], {}, {"done:workers": 2})


# --- mistakes --------------------------------------------------------------------------------


@ONE_BACKEND
@pytest.mark.parametrize("verb", ["cancel", "result"])
@pytest.mark.parametrize("job_id", ["", "x" * 513, "a\nb", "\x00", "\ud800", 7, b"x", None])
def test_wrong_arguments(make_stream, proxy, verb, job_id):
    s = make_stream(redis=proxy.url)
    with pytest.raises(ConfigurationError, match="job ID"):
        getattr(s, verb)(job_id)
    assert list(proxy.commands) == []


@pytest.mark.covers("I3")
@pytest.mark.parametrize("verb", ["cancel", "result"])
def test_records_of_the_wrong_type(make_stream, raw, verb):
    s = make_stream()
    s.add({}, job_id="k")
    for key in s._spec.keys.ids:
        raw.delete(key)
    raw.set(s._spec.keys.ids[1], "x")
    before = look.dumps(raw, s.name)
    with pytest.raises(ConfigurationError, match="ids:1"):
        getattr(s, verb)("k")
    assert look.dumps(raw, s.name) == before
