"""Reading new jobs, and acknowledging them."""

from __future__ import annotations

import threading
import time

import look
import msgspec
import pytest
from look import Row, State
from waiting import until

from streamq import JobEncodingError, LeaseLostError


@pytest.mark.covers("S1")
def test_read_hands_new_entries_to_the_consumer(make_stream, raw):
    s = make_stream()
    ids = [s.add({"n": n}).entry_id for n in range(3)]
    first = s.read("a", count=2)
    assert [(j.entry_id, j.payload, j.deliveries, j.attempt) for j in first] == [
        (ids[0], {"n": 0}, 1, 1),
        (ids[1], {"n": 1}, 1, 1),
    ]
    assert look.state(raw, s) == State(stream=ids, pending={ids[0]: Row("a", 1), ids[1]: Row("a", 1)})
    assert [j.entry_id for j in s.read("b", count=2)] == [ids[2]]
    assert s.read("a", count=2) == []
    assert look.pending(raw, s) == {ids[0]: Row("a", 1), ids[1]: Row("a", 1), ids[2]: Row("b", 1)}


def test_a_job_says_where_it_is_from(make_stream):
    """One group has it from the other's stream: whichever fields its entry has."""
    for group in ("billing", "mail"):
        s = make_stream(group=group, groups=("billing", "mail"))
        if group == "billing":
            s.add({"n": 1})
            s.add({"n": 2}, job_id="two", headers={"a": "b"})
        assert [(job.stream, job.group) for job in s.read("a", count=2)] == [(s.name, group)] * 2


@pytest.mark.covers("S1")
def test_read_of_nothing_does_not_wait(make_stream):
    s = make_stream()
    s.read("a")  # connects and makes the group

    def seconds():
        begin = time.perf_counter()
        assert s.read("a", count=2) == []
        return time.perf_counter() - begin

    assert min(seconds() for _ in range(20)) < 0.05


@pytest.mark.covers("S1")
def test_read_waits_when_asked(make_stream, raw):
    s = make_stream()
    begin = time.monotonic()
    assert s.read("a", block=0.2) == []
    assert time.monotonic() - begin >= 0.19

    def add_later():
        until(lambda: any(c["flags"] == "b" for c in raw.client_list()))
        raw.xadd(s._spec.keys.stream, {"job": "{}"})

    thread = threading.Thread(target=add_later)
    thread.start()
    [job] = s.read("a", block=30)
    thread.join()
    assert job.payload == {}


@pytest.mark.covers("S1")
def test_an_empty_read_of_a_fresh_stream_makes_the_group_only(make_stream, raw):
    s = make_stream()
    assert s.read("a") == []
    assert look.state(raw, s) == State()
    assert [group["name"] for group in raw.xinfo_groups(s._spec.keys.stream)] == [b"workers"]


@pytest.mark.covers("S2")
@pytest.mark.parametrize("retention", ["delete", "keep"])
def test_ack_settles_once(make_stream, raw, retention):
    s = make_stream(retention=retention)
    ids = [s.add({"n": n}).entry_id for n in range(3)]
    one, two, three = s.read("a", count=3)
    assert s.ack(one) is True
    kept = ids if retention == "keep" else ids[1:]
    assert look.state(raw, s) == State(
        stream=kept, pending={ids[1]: Row("a", 1), ids[2]: Row("a", 1)}, counters={"done:workers": 1}
    )
    assert s.ack(one) is False
    assert s.ack([one, two, three]) == 2
    assert s.ack([one, two, three]) == 0
    kept = ids if retention == "keep" else []
    assert look.state(raw, s) == State(stream=kept, counters={"done:workers": 3})


@pytest.mark.covers("S2")
def test_a_job_named_twice_in_one_ack_counts_once(make_stream, raw):
    s = make_stream()
    s.add({})
    [job] = s.read("a")
    assert s.ack([job, job]) == 1
    assert look.state(raw, s) == State(counters={"done:workers": 1})


@pytest.mark.covers("S2")
def test_ack_of_more_jobs_than_one_request_takes(make_stream, raw):
    s = make_stream()
    s.add_many({"n": n} for n in range(1_000))
    jobs = s.read("a", count=1_000)
    assert s.ack(jobs[::-1]) == 1_000
    assert look.state(raw, s) == State(counters={"done:workers": 1_000})


@pytest.mark.covers("S2")
def test_jobs_of_several_consumers_in_one_ack(make_stream, raw):
    s = make_stream()
    s.add_many({"n": n} for n in range(4))
    jobs = [s.read(consumer)[0] for consumer in "abab"]
    assert s.ack(jobs) == 4
    assert look.state(raw, s) == State(counters={"done:workers": 4})


@pytest.mark.covers("F9")
def test_ack_by_a_former_owner_removes_nothing(make_stream, raw):
    s = make_stream()
    entry_id = s.add({}).entry_id
    [of_a] = s.read("a")
    look.age(raw, s)
    [of_b] = s.reclaim("b").claimed
    expected = State(stream=[entry_id], pending={entry_id: Row("b", 2)})
    with pytest.raises(LeaseLostError) as caught:
        s.ack(of_a)
    assert (caught.value.entry_id, caught.value.gone) == (entry_id, False)
    assert s.ack([of_a]) == 0
    assert look.state(raw, s) == expected
    assert s.ack(of_b) is True
    assert s.ack(of_a) is False
    assert look.state(raw, s) == State(counters={"done:workers": 1})


@pytest.mark.covers("F9")
def test_ack_of_an_earlier_delivery_to_the_same_consumer(make_stream, raw):
    s = make_stream()
    entry_id = s.add({}).entry_id
    [earlier] = s.read("a")
    look.age(raw, s)
    [later] = s.reclaim("a").claimed
    with pytest.raises(LeaseLostError):
        s.ack(earlier)
    assert look.state(raw, s) == State(stream=[entry_id], pending={entry_id: Row("a", 2)})
    assert s.ack(later) is True


@pytest.mark.covers("F9")
@pytest.mark.parametrize("job_id", [None, "chosen"])
@pytest.mark.parametrize("verb", ["ack", "commit", "retry", "reject", "release"])
def test_no_verb_of_a_former_owner_changes_anything(make_stream, raw, verb, job_id):
    s = make_stream()
    s.add({}, job_id=job_id)
    [job] = s.read("a")
    job.effects.set("mark", "x")
    look.age(raw, s)
    s.reclaim("b")
    before = look.state(raw, s)
    with pytest.raises(LeaseLostError) as caught:
        getattr(s, verb)(job)
    assert caught.value.gone is False
    assert look.state(raw, s) == before
    assert not raw.exists(s._spec.keys.data("mark"))


@pytest.mark.covers("F9")
@pytest.mark.parametrize("verb", ["commit", "retry", "reject", "release"])
def test_verbs_say_that_the_job_is_settled(make_stream, raw, verb):
    s = make_stream()
    s.add({})
    [job] = s.read("a")
    s.ack(job)
    before = look.state(raw, s)
    with pytest.raises(LeaseLostError) as caught:
        getattr(s, verb)(job)
    assert caught.value.gone is True
    assert look.state(raw, s) == before


def test_release_gives_back_uncharged(make_stream, raw):
    s = make_stream()
    entry_id = s.add({}).entry_id
    [job] = s.read("a")
    s.release(job)
    assert look.state(raw, s) == State(stream=[entry_id], pending={entry_id: Row("a", 0)})
    [again] = s.reclaim("b").claimed
    assert again.deliveries == 1


class Refund(msgspec.Struct):
    order: str
    cents: int
    note: str | None = None
    share: float = 1.0


@pytest.mark.covers("F12")
@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (dict, {"none": None, "yes": True, "list": [1, 2.5, "x", []], "deep": {"é": "\x00\n"}, "empty": {}}),
        (dict, {"big": 2**70, "neg": -(2**63), "float": 1e300, "exact": 0.1}),
        (bytes, b"\xff\xfe\x00"),
        (bytes, b""),
        (Refund, Refund("A1", 130775545883395173, None, 0.5)),
        (list, [None, True, 0, "0", 0.0]),
        (str, "ü"),
        (int, 2**63 - 1),
    ],
)
def test_values_come_back_as_they_were(make_stream, kind, payload):
    s = make_stream(type=kind)
    s.add(payload)
    [job] = s.read("a")
    assert job.payload == payload
    assert type(job.payload) is kind


@pytest.mark.covers("F12")
@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (dict, {"x": object()}),
        (dict, None),
        (dict, ["list"]),
        (dict, {"x": float("nan")}),
        (dict, {"x": float("inf")}),
        (dict, {1: "the key would come back as text"}),
        (dict, {"x": "\ud800"}),
        (bytes, "text"),
        (bytes, bytearray(b"x")),
        (int, "1"),
        (Refund, {"order": "A1"}),
        (Refund, Refund("A1", "7")),
    ],
)
def test_values_that_would_not_come_back_are_refused(make_stream, raw, ns, kind, payload):
    s = make_stream(type=kind)
    with pytest.raises(JobEncodingError):
        s.add(payload)
    assert look.dumps(raw, ns) == {}


@pytest.mark.covers("F12")
def test_headers_and_ids_come_back(make_stream):
    s = make_stream()
    added = s.add({}, job_id="Auftrag 7/ü", headers={"trace": "a\nb", "x-y.z": ""})
    [job] = s.read("a")
    assert (job.id, job.headers) == ("Auftrag 7/ü", {"trace": "a\nb", "x-y.z": ""})
    assert (added.job_id, added.entry_id) == (job.id, job.entry_id)


@pytest.mark.covers("C88")
def test_ack_of_nothing_asks_nothing(make_stream, proxy):
    s = make_stream(redis=proxy.url)
    s.read("a")
    before = len(proxy.commands)
    assert s.ack([]) == 0
    assert len(proxy.commands) == before


@pytest.mark.covers("C88")
def test_no_command_without_ids_on_an_idle_stream(make_stream, proxy, raw):
    s = make_stream(redis=proxy.url, type=int)
    for payload in ("x", "y"):
        raw.xadd(s._spec.keys.stream, {"job": payload})
    assert s.read("a", count=2) == []  # both malformed
    assert s.reclaim("a") == ([], [], [])
    s.ack([])
    names = {command[0].upper() for command in proxy.commands}
    assert not names & {b"XACK", b"XDEL", b"XCLAIM", b"ZREM"}
    assert all(b"" not in command[:4] for command in proxy.commands)
