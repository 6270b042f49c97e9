"""The permissions that docs/operations.md lists are enough; with one of them missing, that is said before a job is touched."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

import look
import pytest
from colours import open_stream

from streamq import ConfigurationError, Effects
from streamq._ops import access, consumers, promote
from streamq.worker import maintenance

PAGE = (Path(__file__).parents[2] / "docs" / "operations.md").read_text("utf-8")
ROWS = re.findall(
    r"^\| ([^|]+) \| (?:and )?(`.+`)[^|]* \|$", PAGE.partition("### Which command is for what")[2], re.MULTILINE
)
COMMANDS = [re.sub(r"\\", "", names.strip("`")).split() for _, names in ROWS]
PRODUCER = [*COMMANDS[0], *COMMANDS[1]]
SCHEDULER = [*PRODUCER, *COMMANDS[2]]
OPERATOR = [*SCHEDULER, *COMMANDS[4]]
READER = {name.replace("|", " ") for row in COMMANDS[:-1] for name in row}
CLUSTER = ["cluster|slots", "asking"]
ALL = [name for row in COMMANDS for name in row]


@pytest.fixture
def as_user(raw, redis_url, ns, colour):
    """Open a stream as a user who may do only that, with the keys of the recipe."""
    names = []

    def login(commands, deployment="dp"):
        name = f"{ns}-{len(names)}"
        commands = [*commands, *(CLUSTER if "+cluster" in redis_url else [])]
        rules = ["on", ">pw", f"~{ns}-{deployment}:*", *(f"+{command.lower()}" for command in commands)]
        look.call(raw, "ACL", "SETUSER", name, *rules)
        names.append(name)
        url = look.as_user(redis_url, name, "pw")
        return open_stream(colour, "s", redis=url, deployment=f"{ns}-{deployment}", max_ready=100)

    opened = []

    def open_and_note(*args, **kwargs):
        opened.append(login(*args, **kwargs))
        return opened[-1]

    yield open_and_note
    for stream in opened:
        stream.close()
    for name in names:
        look.call(raw, "ACL", "DELUSER", name)


def test_the_page_lists_them():
    assert [who for who, _ in ROWS][:5] == [
        "adds jobs without IDs",
        "adds jobs with IDs, or up to `max_ready`",
        "adds jobs with a time (`delay`, `at`, `replace`)",
        "makes groups",
        "cancels, reschedules, runs by hand, redrives, purges",
    ]
    beside = {"EVAL", "EVALSHA", "MULTI", "EXEC", "SADD", "XGROUP CREATE"}
    for role, listed in [(access.PRODUCER, PRODUCER), (access.SCHEDULER, SCHEDULER), (access.OPERATOR, OPERATOR)]:
        assert set(role) == {name.replace("|", " ") for name in listed} - beside
    assert set(access.READER) == READER - beside


@pytest.mark.covers("C83")
def test_a_producer_needs_no_more(as_user):
    s = as_user(PRODUCER)
    assert s.add({}, job_id="a").created
    assert not s.add({}, job_id="a").created
    assert s.add_many([{}, {}]) == 2


@pytest.mark.covers("C83")
def test_who_adds_jobs_with_a_time_needs_no_more(as_user):
    s = as_user(SCHEDULER)
    assert s.add({}, delay=60).state == "scheduled"
    assert s.add({}, job_id="a", delay=60).created
    assert s.add({}, job_id="a", delay=9, replace=True).created
    assert s.add({}, job_id="a", replace=True).state == "ready"
    assert s.add_many([{}, {}], delay=60) == 2


@pytest.mark.covers("C83")
def test_who_changes_what_is_scheduled_needs_no_more(as_user):
    s = as_user(OPERATOR)
    for job_id in ("a", "b"):
        s.add({}, job_id=job_id, delay=60)
    assert s.scheduled.reschedule("a", delay=90)
    assert s.scheduled.run_now("a")
    assert s.scheduled.cancel("b") is True
    assert s.cancel("a") is True
    assert s.scheduled.get("a") is None


@pytest.mark.covers("C83")
@pytest.mark.parametrize("missing", sorted(set(access.OPERATOR)))
def test_what_an_operator_lacks_is_named_before_a_job_is_touched(as_user, raw, ns, server, missing):
    whole = as_user(ALL)
    whole.add({}, job_id="a", delay=60)
    before = look.dumps(raw, ns)
    one = as_user([name for name in ALL if name != missing.replace(" ", "|")])
    if server.version.startswith("6.") and missing in {"HSET", "HINCRBY"}:
        return  # before 7.0 nobody can tell without doing it
    for change in (one.scheduled.run_now, one.scheduled.cancel, one.cancel):
        with pytest.raises(ConfigurationError, match="(?i)" + missing):
            change("a")
    with pytest.raises(ConfigurationError, match="(?i)" + missing):
        one.scheduled.reschedule("a", delay=9)
    if missing in access.SCHEDULER:
        with pytest.raises(ConfigurationError, match="(?i)" + missing):
            one.add({}, delay=60)
    assert look.dumps(raw, ns) == before


@pytest.mark.covers("C83")
def test_the_whole_life_of_a_job_needs_no_more(as_user, raw):
    s = as_user([*ALL, "HINCRBY", "SET"])
    s.groups.create("other")
    for n in range(8):
        s.add({"n": n}, job_id=f"j{n}")
    jobs = s.read("w", count=8, block=0.01)
    s.ack(jobs[0])
    jobs[1].effects.hincrby("h", "n", 1).set("k", "v")
    s.commit(jobs[1], {"a": 1})
    s.retry(jobs[2], "no")
    s.scheduled.run_now("j2")
    s.reject(jobs[3], "no")
    s.release(jobs[4])
    s.extend(jobs[5])
    s.once("x", Effects().hincrby("h", "n"))
    assert s.reclaim("w2", min_idle=0).failed == []
    [letter] = s.dead_letters.list()
    assert letter.id in s.dead_letters.redrive(letter.id).moved
    s.reject(s.read("w", count=9)[0], "no")
    s.dead_letters.purge(s.dead_letters.list()[0].id)
    s.add({}, job_id="late")
    assert s.cancel("late") is True
    for job_id in ("s1", "s2", "s3"):
        s.add({}, job_id=job_id, delay=60)
    assert [job.job_id for job in s.scheduled.list(count=2)]
    assert s.scheduled.get("s1").job_id == "s1"
    s.scheduled.reschedule("s1", at=datetime.fromtimestamp(0, UTC))
    assert s.promote() == 1
    s.scheduled.run_now("s2")
    s.scheduled.cancel("s3")
    raw.hset(s._spec.keys.jobs, "/untimed", "x")
    s.promote()
    s.run(maintenance.tick(s._spec, "w", may_reclaim=True, beat=b"{}"))
    s.run(maintenance.tick(s._spec, "w", may_reclaim=True, beat=b"{}"))
    s.run(promote.wake(s._spec, "0-0", 10))
    s.ack(s.read("w", count=9))
    s.run(consumers.leave(s._spec, "w"))
    assert s.result("j1").value == {"a": 1}
    s.inspect()
    s.pause()
    assert s.read("w", block=0.01) == []
    s.resume()
    s.prune_consumers(0)
    s.trim()
    s.groups.drop("other", force=True)
    s.delete(force=True)


@pytest.mark.covers("C83")
@pytest.mark.parametrize("missing", access.READER)
def test_what_a_reader_lacks_is_named_before_a_job_is_touched(as_user, raw, server, missing):
    whole = as_user(ALL)
    whole.add({})
    one = as_user([name for name in ALL if name != missing.replace(" ", "|")])
    if server.version.startswith("6.") and missing in {"HSET", "HINCRBY", "SET"}:
        assert len(one.read("w")) == 1  # before 7.0 nobody can tell without doing it
        return
    with pytest.raises(ConfigurationError, match="(?i)" + missing):
        one.read("w")
    assert look.pending(raw, whole) == {}
    assert whole.inspect().length == 1


@pytest.mark.covers("C83")
def test_who_may_not_end_transactions_is_told_before_a_job_is_touched(raw, redis_url, ns, colour):
    look.call(raw, "ACL", "SETUSER", ns, "on", ">pw", f"~{ns}:*", "+@all", "-exec")
    s = open_stream(colour, "s", redis=look.as_user(redis_url, ns, "pw"), deployment=ns)
    try:
        s.add({})
        with pytest.raises(ConfigurationError, match="exec"):
            s.read("w")
        assert s.inspect().length == 1
    finally:
        s.close()
        look.call(raw, "ACL", "DELUSER", ns)
