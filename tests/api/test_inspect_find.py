"""Where a job is: for each group, in each state, as far as it can be known."""

from __future__ import annotations

import datetime as dt
import re
import time

import look
import msgspec
import pytest
import servers

from streamq import Backoff, ConfigurationError, FoundJob
from streamq.messages import JobIdKind

KINDS = pytest.mark.parametrize("kind", [JobIdKind.CHOSEN, JobIdKind.GENERATED])


def find(s, job_id, **arguments):
    found = s.find(job_id, **arguments)
    assert msgspec.json.decode(msgspec.json.encode(found), type=FoundJob) == found
    return found


def only(s, job_id, **arguments):
    """Where it is for the one group."""
    [one] = find(s, job_id, **arguments).groups
    return one


def add(s, kind, **arguments):
    return s.add({"n": 1}, job_id="order:17" if kind is JobIdKind.CHOSEN else None, **arguments).job_id


@KINDS
def test_before_there_is_a_group(make_stream, raw, kind):
    s = make_stream()
    job_id = add(s, kind)
    one = only(s, job_id)
    assert (one.group, one.state, one.attempt, one.deliveries) == (None, "ready", 1, None)


@KINDS
def test_scheduled(make_stream, kind):
    s = make_stream()
    began = dt.datetime.now(dt.UTC)
    job_id = add(s, kind, delay=3_600)
    for _ in range(2):
        one = only(s, job_id)
        assert (one.state, one.entry_id, one.attempt) == ("scheduled", None, 1)
        assert dt.timedelta(minutes=59) < one.due_at - began < dt.timedelta(minutes=61)
        assert abs((one.enqueued_at - began).total_seconds()) < 30
        s.groups.create("workers")


@KINDS
def test_ready_then_pending_then_done(make_stream, raw, kind):
    s = make_stream()
    s.read("w")
    job_id = add(s, kind)
    assert (only(s, job_id).state, only(s, job_id).consumer) == ("ready", None)
    [job] = s.read("w")
    one = only(s, job_id)
    assert (one.state, one.consumer, one.deliveries, one.entry_id) == ("pending", "w", 1, job.entry_id)
    assert (one.alive, one.attempt) == (True, 1)
    assert 0 <= one.idle < 60
    s.commit(job, {"receipt": 4})
    one, found = only(s, job_id), find(s, job_id)
    assert (one.state, one.result_bytes) == ("done", 13)
    assert dt.timedelta(hours=24) <= one.remembered_until - found.at <= dt.timedelta(hours=33)
    assert "when it was done is not recorded" in found.unknown


def test_done_without_a_result_is_known_of_chosen_ids_only(make_stream):
    s = make_stream()
    chosen, generated = add(s, JobIdKind.CHOSEN), add(s, JobIdKind.GENERATED)
    s.ack(s.read("w", count=2))
    assert (only(s, chosen).state, only(s, chosen).result_bytes) == ("done", None)
    found = find(s, generated)
    assert (found.groups[0].state, found.is_known) == ("unknown", False)
    assert "not remembered" in found.unknown[-1]


@KINDS
def test_between_two_attempts_and_after(make_stream, kind):
    s = make_stream(retry=Backoff.schedule([3_600, 0]))
    job_id = add(s, kind)
    added = only(s, job_id).enqueued_at
    s.retry(s.read("w")[0], "first \x1b[2J")
    one = only(s, job_id)
    assert (one.state, one.attempt, one.enqueued_at) == ("scheduled", 2, added)
    assert one.errors == ("first \\x1b[2J",)
    s.scheduled.run_now(job_id)
    assert (only(s, job_id).state, only(s, job_id).attempt) == ("ready", 2)
    [job] = s.read("w")
    one = only(s, job_id)
    assert (one.state, one.attempt, one.entry_id, one.deliveries) == ("pending", 2, job.entry_id, 1)
    assert job.entry_id != job_id
    s.retry(job, "second")
    assert (only(s, job_id).state, only(s, job_id).errors) == ("ready", ("first \\x1b[2J", "second"))


@KINDS
def test_dead_and_given_back(make_stream, kind):
    s = make_stream()
    job_id = add(s, kind)
    s.reject(s.read("w")[0], "no such customer")
    found = find(s, job_id)
    [letter] = found.letters
    assert (found.groups[0].state, letter.reason, letter.error) == ("dead", "rejected", "no such customer")
    assert (letter.group, letter.consumer, letter.deliveries, letter.attempts) == ("workers", "w", 1, 1)
    assert letter.id == s.dead_letters.list()[0].id
    s.dead_letters.redrive(letter.id)
    found = find(s, job_id)
    assert (found.groups[0].state, found.groups[0].redrives, found.letters) == ("ready", 1, [])


def test_each_group_by_itself(make_stream):
    names = ("audit", "billing", "mail", "search")
    audit, billing, mail, _ = (make_stream(group=name, groups=names) for name in names)
    audit.add({"n": 1}, job_id="j")
    audit.retry(audit.read("a")[0], "later", delay=60)
    billing.ack(billing.read("b"))
    mail.read("m")
    states = {one.group: one.state for one in find(mail, "j").groups}
    assert states == {"audit": "scheduled", "billing": "done", "mail": "pending", "search": "ready"}
    audit.scheduled.run_now("j")  # now the record names the entry that is audit's alone
    states = {one.group: one.state for one in find(mail, "j").groups}
    assert states == {"audit": "ready", "billing": "done", "mail": "pending", "search": "ready"}


def test_what_is_kept_was_done(make_stream):
    s = make_stream(retention="keep")
    job_id = add(s, JobIdKind.GENERATED)
    s.ack(s.read("w"))
    one = only(s, job_id)
    assert (one.state, one.entry_id, one.attempt) == ("done", job_id, 1)


def test_a_pending_entry_without_its_body(make_stream, raw):
    s = make_stream()
    job_id = add(s, JobIdKind.GENERATED)
    s.read("w")
    raw.xdel(s._spec.keys.stream, job_id)
    one = only(s, job_id)
    assert (one.state, one.consumer, one.attempt) == ("pending", "w", None)


def test_the_entry_of_another_job_is_not_this_one(make_stream):
    s = make_stream()
    entry_id = s.add({}, job_id="order:17").entry_id
    assert only(s, entry_id).state == "unknown"
    assert only(s, "order:17").entry_id == entry_id


def test_an_id_that_a_plain_producer_gave(make_stream, raw):
    s = make_stream()
    s.groups.create("workers")
    s.add_many([{}] * 300)
    look.by_hand(raw, s, "job", "{}", "sq:id", "theirs")
    s.add_many([{}] * 300)
    assert only(s, "theirs").state == "ready"


def test_who_holds_it_may_be_dead(make_stream, raw):
    s = make_stream()
    job_id = add(s, JobIdKind.CHOSEN)
    s.read("dead")
    raw.hset(s._spec.keys.workers, "dead", "1700000000000 {}")
    key = s._spec.keys.stream
    entry_id = only(s, job_id).entry_id
    look.call(raw, "XCLAIM", key, "workers", "dead", 0, entry_id, "IDLE", 90_000, "RETRYCOUNT", 4, "JUSTID")
    one = only(s, job_id)
    assert (one.state, one.alive, one.deliveries) == ("pending", False, 4)
    assert 90 <= one.idle < 150


@pytest.mark.parametrize(
    "job_id", ["nope", "1-1", "0-0", "18446744073709551615-18446744073709551615", "9" * 25 + "-1", "ü/x"]
)
def test_a_job_that_nobody_knows(make_stream, raw, ns, job_id):
    s = make_stream()
    found = find(s, job_id)
    assert (found.is_known, [one.state for one in found.groups], found.letters) == (False, ["unknown"], [])
    assert found.unknown
    assert look.dumps(raw, ns) == {}


@pytest.mark.parametrize("job_id", ["", "a\x1b", "x" * 513, 7, None])
def test_bad_ids_are_refused_before_anything_is_sent(make_stream, proxy, job_id):
    s = make_stream(redis=proxy.url)
    with pytest.raises(ConfigurationError, match="job ID"):
        s.find(job_id)
    assert not proxy.commands


def test_payloads_only_when_asked_for_and_cut(make_stream):
    s = make_stream()
    s.add({"text": "x" * 5_000}, job_id="j")
    assert (only(s, "j").payload, only(s, "j").payload_bytes) == (None, None)
    one = only(s, "j", payloads=True)
    assert (len(one.payload), one.payload_bytes) == (1_000, 5_011)


def test_ages_are_by_the_servers_clock(make_stream, monkeypatch):
    s = make_stream()
    s.add({}, job_id="j")
    monkeypatch.setattr(time, "time", lambda: 0.0)
    found = find(s, "j")
    assert 0 <= (found.at - found.groups[0].enqueued_at).total_seconds() < 60


def test_malformed_fields_of_others_harm_nothing(make_stream, raw):
    s = make_stream()
    s.groups.create("workers")
    bad = ("sq:attempt", "x", "sq:errors", b"\xff", "sq:at", "9" * 30, "sq:redrives", "-1")
    entry_id = look.by_hand(raw, s, "job", b"\xff\x00", "sq:id", "j", *bad)
    raw.xadd(
        s._spec.keys.dead, {"dead:job_id": "j", "dead:deliveries": "x", "dead:at": "9" * 40, "dead:group": b"\xff"}
    )
    raw.zadd(s._spec.keys.scheduled, {"/k": "inf"})
    raw.hset(s._spec.keys.jobs, "/k", b"\xc1")
    raw.hset(s._spec.keys.ids[0], mapping={"": "no time", "j": "queued x"})
    raw.hset(s._spec.keys.done[0], mapping={"": "99999999999999", "workers/j": b"\xff"})
    found = find(s, "j", payloads=True)
    [one], [letter] = found.groups, found.letters
    assert (one.state, one.entry_id, one.attempt, one.errors, one.redrives) == ("ready", entry_id, 1, (), 0)
    assert (one.payload, letter.group, letter.deliveries, letter.died_at) == ("\\xff\x00", "\\xff", 0, None)
    assert only(s, "k").state == "scheduled"


@pytest.mark.slow
def test_a_long_stream_is_searched_at_both_ends_and_says_so(make_stream, raw, proxy):
    s = make_stream(redis=proxy.url)
    s.groups.create("workers")
    for place in ("head", "middle", "tail"):
        s.add_many([{}] * 900)
        look.by_hand(raw, s, "job", "{}", "sq:id", place)
        s.add_many([{}] * 600)
    pipe = raw.pipeline(transaction=False)
    for n in range(1_500):
        pipe.xadd(s._spec.keys.dead, {"dead:reason": "rejected", "dead:job_id": f"d{n}", "dead:group": "workers"})
    pipe.execute()
    before = len(proxy.commands)
    assert only(s, "head").state == only(s, "tail").state == "ready"
    found = find(s, "middle")
    assert found.groups[0].state == "unknown"
    assert [bool(re.match(r"of 4,503 entries|of 1,500 dead", text)) for text in found.unknown] == [False, True, True]
    assert only(s, "d1400").state == "dead"
    assert only(s, "d100").state == "unknown"
    assert len(proxy.commands) - before < 5 * 100


def test_many_groups_cost_little(make_stream, raw, proxy):
    s = make_stream(redis=proxy.url)
    for n in range(12):
        s.groups.create(f"g{n:02}")
    s.add({}, job_id="j")
    for _ in range(5):
        look.by_hand(raw, s, "job", "{}", "sq:id", "j")
    before = len(proxy.commands)
    found = find(s, "j")
    assert len(proxy.commands) - before < 100
    assert len(found.groups) == 6
    assert "6 more groups" in found.unknown[0]


def test_reading_only_is_enough(make_stream, proxy):
    make_stream().add({}, job_id="j")
    looker = make_stream(redis=proxy.url)
    assert only(looker, "j").state == "ready"
    assert proxy.count(servers.named("EVAL", "EVALSHA", "FCALL")) == 0
    assert len(proxy.commands) < 40
