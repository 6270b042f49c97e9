"""Dead letters, taken up again or removed: the same fields, all attempts anew, one run."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import look
import msgspec
import pytest
import servers
from colours import open_stream
from look import Row, State

from streamq import Backoff, ConfigurationError, ConnectionLostError, JobEncodingError, StreamqError

ONE_BACKEND = pytest.mark.parametrize("backend", ["redis-7.0"], indirect=True)
"""For mistakes that are found before anything is sent."""

FIELDS = [
    (b"trace", b"abc"),
    (b"id", b"7"),
    (b"error", b"mine"),
    (b"job", b'{ "n" : 1.10 }'),
    (b"attempts", b"x"),
    (b"stream", b""),
    (b"\xff", b"\x00\xfe\r\n"),
    (b"dead:x", b"1"),
    (b"dead:reason", b"theirs"),
    (b"dead:dead:x", b"2"),
    (b"dead:", b"3"),
    (b"trace", b"twice"),
    (b"sq:unknown", b"4"),
    (b"sq:h:traceparent", b"00-1"),
    (b"", b"no name"),
]
OURS = {b"sq:id", b"sq:generated", b"sq:at", b"sq:attempt", b"sq:group", b"sq:errors", b"sq:redrives"}


def put(raw, s, fields):
    """XADD by hand of fields in order."""
    return look.by_hand(raw, s, *[part for pair in fields for part in pair])


def theirs(fields):
    """The fields that are not ours."""
    return [(name, value) for name, value in fields if name not in OURS]


def only_entry(raw, s):
    """Fields of the one entry in the stream."""
    [(_, fields)] = look.entries(raw, s._spec.keys.stream)
    return fields


def rejected(s, count=1, **arguments):
    """Add jobs and reject them; their letters' IDs."""
    s.add_many(({"n": n} for n in range(count)), **arguments)
    left = count
    while left:
        for job in s.read("w", count=100):
            s.reject(job, "no")
            left -= 1
    return [letter.id for letter in s.dead_letters.list(count=1_000)]


# --- fields ----------------------------------------------------------------------------------


@pytest.mark.covers("S8", "F8", "C64")
@pytest.mark.parametrize("fields", [FIELDS, [(b"job", b"{}")]], ids=["odd", "only job"])
@pytest.mark.parametrize("how", ["attempts", "rejected", "deliveries"])
def test_fields_survive_retry_dead_letter_and_redrive(make_stream, raw, fields, how):
    s = make_stream(retry=Backoff.constant(0, limit=1))
    first = put(raw, s, fields)
    [job] = s.read("w")
    for _ in range(2):
        s.retry(job, "e" * 5_000_000)
        assert theirs(only_entry(raw, s)) == fields
        [job] = s.read("w")
        if how == "attempts":
            assert s.retry(job, "e" * 5_000_000) is False
        elif how == "rejected":
            s.reject(job, "e" * 5_000_000)
        else:
            look.age(raw, s, count=5)
            s.reclaim("w")
        [letter] = s.dead_letters.list()
        assert (letter.reason, theirs(letter.fields)) == (how, fields)
        assert len(letter.error) <= 4096
        assert s.dead_letters.get(letter.id) == letter
        s.dead_letters.redrive(letter.id)
        assert theirs(only_entry(raw, s)) == fields
        [job] = s.read("w")
        assert (job.id, job.attempt, job.deliveries) == (first, 1, 1)
        assert job.headers == ({"traceparent": "00-1"} if len(fields) > 1 else {})
        assert job.enqueued_at == letter.enqueued_at
    s.ack(job)
    assert look.state(raw, s).dead == look.state(raw, s).stream == []


@pytest.mark.covers("C12")
def test_number_like_ids_and_payloads_survive_all_of_it(make_stream, raw):
    s = make_stream(type=bytes, retry=Backoff.constant(0, limit=1))
    ids = [
        "300000000",
        "9007199254740993",
        "18446744073709551615",
        "007",
        "1e3",
        "nan",
        "-0",
        "0x10",
        "1-1",
        "\u0663-\u0663",
    ]
    payload = b'{"id":130775545883395173,"a":[],"f":1.10,"n":null}'
    for job_id in ids:
        s.add(payload, job_id=job_id)
    for attempt in (1, 2):
        jobs = s.read("w", count=50)
        assert [(job.id, job.payload, job.attempt) for job in jobs] == [(i, payload, attempt) for i in ids]
        for job in jobs:
            assert s.retry(job, "1e3") is (attempt == 1)
    letters = s.dead_letters.list()
    assert [(letter.job_id, letter.payload) for letter in letters] == [(i, payload) for i in ids]
    moved = s.dead_letters.redrive([letter.id for letter in letters]).moved
    assert look.records(raw, s._spec.keys.ids) == {
        job_id: f"queued {moved[letter.id]}" for job_id, letter in zip(ids, letters, strict=True)
    }
    jobs = s.read("w", count=50)
    assert [(job.id, job.payload, job.attempt) for job in jobs] == [(i, payload, 1) for i in ids]
    s.ack(jobs)
    now = look.state(raw, s)
    assert (now.stream, now.dead, set(now.ids)) == ([], [], set(ids))
    assert now.done == {f"workers/{job_id}": "done " for job_id in ids}


class One(msgspec.Struct, tag="t1"):
    n: int


class Two(msgspec.Struct, tag="t2"):
    n: int


@pytest.mark.covers("C14")
def test_jobs_of_a_type_that_an_old_worker_does_not_know(make_stream, raw):
    old, new = make_stream(type=One), make_stream(type=One | Two)
    new.add_many(Two(n) for n in range(20))
    put(raw, new, [(b"job", b'{"type":"t9","n":1}')])
    assert old.read("w", count=10) == []
    handled = [job.payload.n for job in new.read("w2", count=50)]
    letters = new.dead_letters.list()
    assert {letter.reason for letter in letters} == {"unknown_type"}
    assert len(letters) == 11
    new.dead_letters.redrive(letter.id for letter in letters)
    handled += [job.payload.n for job in new.read("w2", count=50)]
    assert sorted(handled) == list(range(20))
    [orphan] = new.dead_letters.list()
    assert (orphan.reason, orphan.payload, orphan.redrives) == ("unknown_type", b'{"type":"t9","n":1}', 1)


# --- one run, with everything anew -----------------------------------------------------------


@pytest.mark.covers("C11")
def test_a_redriven_job_runs_within_the_dedupe_window(make_stream, raw):
    s = make_stream(retry=Backoff.constant(0, limit=1))
    s.add({"n": 1}, job_id="J")
    for _ in range(2):
        s.retry(s.read("w")[0])
    [letter] = s.dead_letters.list()
    again = s.dead_letters.redrive(letter.id)
    assert (list(again.moved), again.superseded, again.refused, again.missing) == ([letter.id], {}, {}, [])
    entry_id = again.moved[letter.id]
    assert look.state(raw, s) == State(
        stream=[entry_id],
        ids={"J": f"queued {entry_id}"},
        counters={"retried:workers": 1, "dead:workers": 1, "redriven:workers": 1},
    )
    assert s.inspect().groups["workers"].redriven == 1
    known = s.add({"n": 2}, job_id="J")
    assert (known.created, known.state, known.entry_id) == (False, "ready", entry_id)
    [job] = s.read("w", count=9)
    job.effects.incrby("runs")
    s.commit(job, "ok")
    assert raw.get(s._spec.keys.data("runs")) == b"1"
    assert s.result("J").value == "ok"
    assert s.read("w") == []


@pytest.mark.covers("C11")
def test_a_job_that_fails_again_gets_all_its_attempts(make_stream, raw):
    s = make_stream(retry=Backoff.constant(0, limit=2))
    s.add({"n": 1}, job_id="J2")
    for redrives in range(3):
        attempts = []
        while jobs := s.read("w"):
            attempts.append((jobs[0].attempt, jobs[0].deliveries))
            s.retry(jobs[0], f"round {redrives}")
        assert attempts == [(1, 1), (2, 1), (3, 1)]
        [letter] = s.dead_letters.list()
        assert (letter.attempts, letter.redrives, letter.job_id) == (3, redrives, "J2")
        assert letter.error == f"round {redrives}"
        s.dead_letters.redrive(letter.id)


@pytest.mark.covers("C11")
def test_two_redrives_of_a_letter_make_one_run(make_stream, raw):
    s = make_stream()
    [letter_id] = rejected(s, job_id=lambda p: "J")
    assert list(s.dead_letters.redrive(letter_id).moved) == [letter_id]
    assert s.dead_letters.redrive(letter_id).missing == [letter_id]
    assert len(s.read("w", count=9)) == 1


@pytest.mark.covers("C11")
def test_many_redrives_of_the_same_letters_at_once(make_stream, raw, colour, redis_url):
    s = make_stream()
    ids = rejected(s, 40)

    def redrive(_):
        with closing(open_stream(colour, s.name, redis=redis_url)) as own:
            return own.dead_letters.redrive(ids)

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(redrive, range(4)))
    assert sorted(letter_id for answer in answers for letter_id in answer.moved) == ids
    assert all(len(answer.moved) + len(answer.missing) == 40 for answer in answers)
    now = look.state(raw, s)
    assert (len(now.stream), now.dead, now.counters["redriven:workers"]) == (40, [], 40)


@pytest.mark.covers("C11")
def test_a_redrive_whose_reply_was_lost_makes_one_run(make_stream, raw, proxy):
    s = make_stream()
    [letter_id] = rejected(s)
    other = make_stream(redis=proxy.url)
    other.inspect()
    proxy.cut_after(servers.named("EVALSHA", "EVAL"))
    with pytest.raises(ConnectionLostError) as caught:
        other.dead_letters.redrive(letter_id)
    assert caught.value.maybe_executed is True
    assert caught.value.partial.moved == {}
    # Repeating is harmless, whether it had happened (the script was known there) or not.
    answer = other.dead_letters.redrive(letter_id)
    assert len(answer.moved) + len(answer.missing) == 1
    assert len(s.read("w", count=9)) == 1


@pytest.mark.covers("C11")
def test_a_redrive_is_for_the_group_that_gave_up(make_stream, raw):
    a, b = make_stream(group="a", groups=("b",)), make_stream(group="b")
    a.add({"n": 1}, job_id="k")
    [of_a] = a.read("w")
    a.reject(of_a)
    [of_b] = b.read("w")
    [letter] = a.dead_letters.list()
    moved = b.dead_letters.redrive(letter.id).moved  # whichever group's stream asks
    assert b.read("w") == []
    [again] = a.read("w")
    assert (again.entry_id, again.id) == (moved[letter.id], "k")
    b.commit(of_b, "b")
    a.commit(again, "a")
    now = look.state(raw, a)
    assert (now.stream, now.done) == ([], {"a/k": 'done "a"', "b/k": 'done "b"'})


# --- what is not moved -----------------------------------------------------------------------


@pytest.mark.covers("C11", "C58")
@pytest.mark.parametrize("state", ["ready", "pending", "done"])
def test_an_id_that_is_there_again_supersedes_the_letter(make_stream, raw, state):
    s = make_stream()
    [letter_id] = rejected(s, job_id=lambda p: "k")
    s.add({"n": 2}, job_id="k")
    if state != "ready":
        [job] = s.read("w")
        if state == "done":
            s.commit(job, 7)
    before = look.dumps(raw, s.name)
    answer = s.dead_letters.redrive(letter_id)
    assert (answer.moved, answer.superseded, answer.refused, answer.missing) == ({}, {letter_id: state}, {}, [])
    assert look.dumps(raw, s.name) == before
    # With an ID of its own it can run all the same.
    moved = s.dead_letters.redrive(letter_id, new_id="k2").moved
    assert [job.id for job in s.read("w", count=9) if job.entry_id == moved[letter_id]] == ["k2"]
    assert s.add({}, job_id="k2").state == "pending"
    assert s.dead_letters.list() == []


@pytest.mark.covers("S8")
@pytest.mark.parametrize("payload", [b'{ "n" : 2 }', b"", b"\xff\x00\r\n", b"1"])
def test_another_payload_takes_the_place_of_the_old_one(make_stream, raw, payload):
    """Of the first field of that name: it is the one that is read. All other fields stay, byte for byte and in order."""
    s = make_stream(type=bytes)
    fields = [*FIELDS, (b"other", b"job")]
    put(raw, s, fields)
    s.reject(s.read("w")[0])
    [letter] = s.dead_letters.list()
    before = look.dumps(raw, s.name)
    assert s.dead_letters.redrive(letter.id, payload=payload, dry_run=True).moved == {letter.id: ""}
    assert look.dumps(raw, s.name) == before
    [entry_id] = s.dead_letters.redrive(letter.id, payload=payload).moved.values()
    assert theirs(only_entry(raw, s)) == [(n, payload if n == b"job" else v) for n, v in fields]
    [job] = s.read("w")
    assert (job.entry_id, job.payload, job.attempt) == (entry_id, payload, 1)
    assert s.dead_letters.redrive(letter.id, payload=b"late").missing == [letter.id]


def test_a_letter_without_payload_gets_one(make_stream, raw):
    s = make_stream()
    put(raw, s, [(b"trace", b"abc")])
    assert s.read("w") == []
    [letter] = s.dead_letters.list()
    assert (letter.reason, letter.payload) == ("invalid", None)
    s.dead_letters.redrive(letter.id, payload=b'{"n":1}')
    assert theirs(only_entry(raw, s)) == [(b"trace", b"abc"), (b"job", b'{"n":1}')]
    assert [job.payload for job in s.read("w")] == [{"n": 1}]


def test_a_payload_that_is_too_large(make_stream, raw):
    s = make_stream(max_payload=10)
    [letter_id] = rejected(s)
    before = look.dumps(raw, s.name)
    with pytest.raises(JobEncodingError, match="max_payload is 10"):
        s.dead_letters.redrive(letter_id, payload=b"x" * 11)
    assert look.dumps(raw, s.name) == before


def test_a_dry_run_says_what_a_redrive_does(make_stream, raw):
    s = make_stream()
    ready, superseded, spent = rejected(s, 3, job_id=lambda payload: f"k{payload['n']}")
    s.add({}, job_id="k1")
    s.dead_letters.redrive(spent)
    s.reject(next(job for job in s.read("w", count=2) if job.id == "k2"))
    spent = s.dead_letters.list()[-1].id
    before = look.dumps(raw, s.name)
    ids = [ready, superseded, spent, "1-1"]
    told = s.dead_letters.redrive(ids, max_redrives=1, dry_run=True)
    assert look.dumps(raw, s.name) == before
    done = s.dead_letters.redrive(ids, max_redrives=1)
    assert (told.superseded, told.refused, told.missing) == (done.superseded, done.refused, done.missing)
    assert (list(told.moved), list(done.moved), list(done.refused)) == ([ready], [ready], [spent])


@pytest.mark.covers("C11")
def test_a_new_id_that_is_taken(make_stream, raw):
    s = make_stream()
    [letter_id] = rejected(s)
    s.add({}, job_id="taken")
    before = look.dumps(raw, s.name)
    assert s.dead_letters.redrive(letter_id, new_id="taken").superseded == {letter_id: "ready"}
    assert look.dumps(raw, s.name) == before


def test_the_guard_against_loops(make_stream, raw):
    s = make_stream()
    [letter_id] = rejected(s)
    for _ in range(5):
        assert s.dead_letters.redrive(letter_id).moved
        s.reject(s.read("w")[0])
        letter_id = s.dead_letters.list()[0].id
    before = look.dumps(raw, s.name)
    answer = s.dead_letters.redrive(letter_id)
    assert "5 times" in answer.refused[letter_id]
    assert answer.moved == {}
    assert s.dead_letters.redrive(letter_id, max_redrives=0).refused
    assert look.dumps(raw, s.name) == before
    assert s.dead_letters.redrive(letter_id, max_redrives=6).moved


@pytest.mark.covers("F2")
def test_a_tombstone_cannot_be_redriven(make_stream, raw):
    s = make_stream()
    entry_id = s.add({}).entry_id
    s.read("w")
    look.age(raw, s)
    raw.xdel(s._spec.keys.stream, entry_id)
    s.reclaim("w")
    [letter] = s.dead_letters.list()
    before = look.dumps(raw, s.name)
    assert "body was gone" in s.dead_letters.redrive(letter.id).refused[letter.id]
    assert look.dumps(raw, s.name) == before


def test_a_letter_whose_group_was_dropped(make_stream, raw):
    s = make_stream()
    [letter_id] = rejected(s)
    s.groups.drop("workers")
    assert "workers does not exist" in s.dead_letters.redrive(letter_id).refused[letter_id]
    s.groups.create("workers")
    assert s.dead_letters.redrive(letter_id).moved


@pytest.mark.parametrize(
    "fields",
    [
        {"job": "{}"},
        {"dead:group": "workers"},
        {"dead:reason": "oversized"},
        {"dead:reason": "oversized", "dead:source": "nonsense"},
        {"dead:reason": "oversized", "dead:source": "99999999999999999999-0"},
        {"dead:reason": "rejected", "dead:group": "workers", "job": "{}"},
        {"dead:reason": "rejected", "dead:group": "workers", "dead:redrives": "x", "job": "{}"},
    ],
)
def test_letters_that_somebody_else_wrote(make_stream, raw, fields):
    s = make_stream()
    s.read("w")
    letter_id = raw.xadd(s._spec.keys.dead, fields).decode()
    before = look.dumps(raw, s.name)
    answer = s.dead_letters.redrive(letter_id)
    assert list(answer.refused) == [letter_id]
    assert "attempt to" not in answer.refused[letter_id]  # a script that stumbled
    assert look.dumps(raw, s.name) == before
    assert s.dead_letters.get(letter_id).id == letter_id
    assert s.dead_letters.purge(letter_id) == 1
    assert look.state(raw, s) == State()


def test_several_of_them_each_for_itself(make_stream, raw):
    s = make_stream()
    ids = rejected(s, 25, job_id=lambda p: f"k{p['n']}")
    s.add({}, job_id="k3")
    gone = "1-1"
    answer = s.dead_letters.redrive([gone, *ids])
    assert list(answer.moved) == [letter_id for n, letter_id in enumerate(ids) if n != 3]
    assert (answer.superseded, answer.refused, answer.missing) == ({ids[3]: "ready"}, {}, [gone])
    assert [job.id for job in s.read("w", count=50)] == ["k3", *(f"k{n}" for n in range(25) if n != 3)]


@pytest.mark.covers("F11")
def test_what_was_moved_before_an_error_is_told(make_stream, raw):
    s = make_stream()
    ids = rejected(s, 15)
    with pytest.raises(ConfigurationError) as caught:
        s.dead_letters.redrive([*ids[:12], "nonsense", *ids[12:]])
    assert list(caught.value.partial.moved) == ids[:10]
    assert raw.xlen(s._spec.keys.stream) == 10


def test_redriving_while_memory_is_full(colour, new_server):
    server = new_server()
    with closing(open_stream(colour, "x", redis=server.url)) as s:
        ids = rejected(s, 3)
        raw = servers.redis.Redis.from_url(server.url)
        raw.config_set("maxmemory", 1)
        answer = s.dead_letters.redrive(ids)
        assert (answer.moved, list(answer.refused)) == ({}, ids)
        assert raw.xlen(s._spec.keys.dead) == 3
        raw.config_set("maxmemory", 0)
        assert list(s.dead_letters.redrive(ids).moved) == ids
        raw.close()


@pytest.mark.covers("F7")
@pytest.mark.parametrize("what", ["stream", "ids"])
def test_redriving_into_a_key_of_the_wrong_type(make_stream, raw, what):
    s = make_stream()
    [letter_id] = rejected(s, job_id=lambda p: "k")
    wrong = s._spec.keys.stream if what == "stream" else s._spec.keys.ids[0]
    raw.delete(wrong)
    raw.set(wrong, "x")
    before = look.dumps(raw, s.name)
    assert "WRONGTYPE" in s.dead_letters.redrive(letter_id).refused[letter_id]
    assert look.dumps(raw, s.name) == before


# --- too large to copy -----------------------------------------------------------------------


@pytest.mark.covers("F13")
def test_an_entry_of_thousands_of_fields_is_kept_by_reference(make_stream, raw):
    s = make_stream()
    fields = [(b"job", b"{}"), *((b"f%d" % n, b"\xff") for n in range(4_999))]
    entry_id = put(raw, s, fields)
    assert s.read("w") == []
    [letter] = s.dead_letters.list()
    assert (letter.reason, letter.source_id, letter.fields) == ("oversized", entry_id, ())
    kept = State(
        stream=[entry_id], dead=[(entry_id, "oversized")], kept={entry_id: 1}, counters={"dead:workers": 1}
    )  # fmt: skip
    assert look.state(raw, s) == kept
    assert list(s.dead_letters.get(letter.id).fields) == fields
    assert entry_id in s.dead_letters.redrive(letter.id).refused[letter.id]
    assert s.trim() == 0
    assert look.state(raw, s) == kept
    s.add({"n": 1})
    s.ack(s.read("w")[0])  # the queue goes on
    assert s.dead_letters.purge(letter.id) == 1
    assert look.state(raw, s) == State(counters={"dead:workers": 1, "done:workers": 1})
    assert s.dead_letters.get(letter.id) is None


@pytest.mark.covers("F13", "S7")
def test_an_entry_that_several_letters_refer_to(make_stream, raw):
    a, b, c = (make_stream(group=name, groups=("a", "b", "c")) for name in "abc")
    a.read("w")
    entry_id = put(raw, a, [(b"job", b"{}"), *((b"f%d" % n, b"") for n in range(4_999))])
    a.read("w")
    b.read("w")
    first, second = a.dead_letters.list()
    assert look.state(raw, a).kept == {entry_id: 2}
    assert a.dead_letters.purge(first.id) == 1
    assert look.state(raw, a).kept == {entry_id: 1}
    assert a.dead_letters.get(second.id).fields[0] == (b"job", b"{}")
    assert a.dead_letters.purge([second.id, second.id]) == 1
    assert (look.state(raw, a).kept, look.state(raw, a).stream) == ({}, [entry_id])  # a group has not read it
    assert c.read("w") == []
    [third] = c.dead_letters.list()
    assert c.dead_letters.purge(third.id) == 1
    assert (look.state(raw, a).kept, look.state(raw, a).stream, look.state(raw, a).dead) == ({}, [], [])


@pytest.mark.covers("F13")
def test_a_letter_whose_kept_entry_somebody_removed(make_stream, raw):
    s = make_stream()
    entry_id = put(raw, s, [(b"job", b"{}"), *((b"f%d" % n, b"") for n in range(4_999))])
    s.read("w")
    raw.xdel(s._spec.keys.stream, entry_id)
    [letter] = s.dead_letters.list()
    assert s.dead_letters.get(letter.id) == letter
    assert s.dead_letters.purge(letter.id) == 1
    assert look.state(raw, s) == State(counters={"dead:workers": 1})


# --- get and purge ---------------------------------------------------------------------------


def test_one_letter(make_stream):
    s = make_stream()
    rejected(s, 3)
    for letter in s.dead_letters.list():
        assert s.dead_letters.get(letter.id) == letter
    assert s.dead_letters.get("1-1") is None
    assert s.dead_letters.get(f"{2**64 - 1}-{2**64 - 1}") is None


def test_purging_by_id(make_stream, raw):
    s = make_stream()
    ids = rejected(s, 250)
    pending = s.add({"n": 1}, job_id="other").entry_id
    s.read("w")
    assert s.dead_letters.purge(ids[0]) == 1
    assert s.dead_letters.purge(ids[0]) == 0
    assert s.dead_letters.purge([]) == 0
    assert s.dead_letters.purge(iter(ids[:240])) == 239
    assert [letter.id for letter in s.dead_letters.list()] == ids[240:]
    assert s.dead_letters.purge(older_than=3_600) == 0
    assert s.dead_letters.purge(older_than=0) == 10
    assert s.dead_letters.purge(older_than=0) == 0
    assert look.state(raw, s) == State(
        stream=[pending],
        pending={pending: Row("w", 1)},
        ids={"other": f"queued {pending}"},
        done={"workers/other": f"running {pending}"},
        counters={"dead:workers": 250},
    )


def test_purging_by_age(make_stream, raw):
    s = make_stream()
    now = int(raw.time()[0])
    for age in (7_200, 3_601, 3_500, 1):
        raw.xadd(s._spec.keys.dead, {"dead:reason": "rejected"}, id=f"{(now - age) * 1000}-0")
    assert s.dead_letters.purge(older_than=3_600) == 2
    assert raw.xlen(s._spec.keys.dead) == 2


@pytest.mark.covers("C58")
def test_an_id_is_free_after_its_letter_was_purged(make_stream):
    s = make_stream()
    [letter_id] = rejected(s, job_id=lambda p: "k")
    s.dead_letters.purge(letter_id)
    assert s.add({"n": 2}, job_id="k").created is True
    assert s.read("w")[0].payload == {"n": 2}


# --- mistakes --------------------------------------------------------------------------------


@ONE_BACKEND
@pytest.mark.parametrize(
    "call",
    [
        *(
            lambda letters, bad=bad, verb=verb: getattr(letters, verb)(bad)
            for bad in ("", "x", "1", "1-", "1-2-3", "(1-0", "-", "+", f"{2**64}-0", "\u0661-\u0661", b"1-0", ["1-0", None], [7])
            for verb in ("redrive", "purge")
        ),
        *(lambda letters, bad=bad: letters.get(bad) for bad in ("", "x", "-", f"0-{2**64}", None, 7, ["1-0"])),
        lambda letters: letters.redrive(None),
        lambda letters: letters.redrive("1-0", new_id=""),
        lambda letters: letters.redrive("1-0", new_id="a\n"),
        lambda letters: letters.redrive("1-0", new_id=7),
        lambda letters: letters.redrive(["1-0"], new_id="a"),
        lambda letters: letters.redrive(["1-0"], payload=b"{}"),
        lambda letters: letters.redrive("1-0", payload="{}"),
        *(lambda letters, bad=bad: letters.redrive("1-0", max_redrives=bad) for bad in (-1, 1.5, "5", None, True, 2**70)),
        lambda letters: letters.purge(),
        lambda letters: letters.purge("1-0", older_than=0),
        *(lambda letters, bad=bad: letters.purge(older_than=bad) for bad in (-1, "", "0", False, True, [], float("nan"))),
        *(lambda letters, bad=bad: letters.list(after=bad) for bad in ("", "x", "-", "(1-0", 7, b"1-0")),
    ],
)  # fmt: skip
def test_wrong_arguments(make_stream, raw, proxy, call):
    s = make_stream()
    rejected(s)
    before = look.dumps(raw, s.name)
    careful = make_stream(redis=proxy.url)
    with pytest.raises(ConfigurationError):
        call(careful.dead_letters)
    assert list(proxy.commands) == []
    assert look.dumps(raw, s.name) == before


@pytest.mark.covers("C88")
def test_nothing_to_do_sends_nothing(make_stream, proxy):
    s = make_stream(redis=proxy.url)
    assert s.dead_letters.purge([]) == 0
    answer = s.dead_letters.redrive([])
    assert (answer.moved, answer.superseded, answer.refused, answer.missing) == ({}, {}, {}, [])
    assert s.ack([]) == 0
    assert s.extend([]) == 0
    assert s.add_many([]) == 0
    assert list(proxy.commands) == []


@pytest.mark.covers("C89")
@pytest.mark.parametrize("verb", ["list", "get", "purge", "purge older"])
def test_a_dead_letter_key_of_the_wrong_type(make_stream, raw, verb):
    s = make_stream()
    raw.set(s._spec.keys.dead, "x")
    calls = {
        "list": s.dead_letters.list,
        "get": lambda: s.dead_letters.get("1-0"),
        "purge": lambda: s.dead_letters.purge("1-0"),
        "purge older": lambda: s.dead_letters.purge(older_than=0),
    }
    with pytest.raises(StreamqError, match="WRONGTYPE") as caught:
        calls[verb]()
    assert s._spec.keys.dead in str(caught.value)
    assert raw.get(s._spec.keys.dead) == b"x"
