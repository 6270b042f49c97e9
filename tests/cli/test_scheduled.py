"""``streamq scheduled``, as an operator and a script see it: what it prints, what it changes, how it ends."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from itertools import chain

import pytest
import redis
import servers
from cli.shell import COMMAND, call, environ, run_at_terminal

from streamq import Stream

ON_ONE = pytest.mark.parametrize("backend", ["valkey-9"], indirect=True)
"""For what is the command line's own, and the same on every server."""

HOUR = 3_600


@pytest.fixture
def cli(redis_url, ns):
    """``streamq scheduled COMMAND NAME ...`` on the stream of this test."""

    def of_stream(command, *args, typed=None, **env):
        words = ("scheduled", command, ns, *args)
        env["STREAMQ_URL"] = redis_url
        return call(*words, **env) if typed is None else run_at_terminal(typed, *words, **env)

    return of_stream


@pytest.fixture
def everything(raw, ns):
    """All that is stored of the stream's jobs, to compare."""

    def look():
        found = {}
        for key in sorted(raw.scan_iter(match=f"*{ns}*")):
            if not key.endswith((b":meta", b":wake")):
                found[key] = raw.dump(key)
        return found

    return look


def due_of(stream):
    return {(job.group, job.job_id): job.due_at for job in stream.scheduled.list(count=1_000)}


def add_all(stream, count, *, first=0, delay=HOUR, every=1.0):
    stream.add_many(
        ({"n": n} for n in range(first, first + count)),
        job_id=lambda payload: f"j{payload['n']:05}",
        delay=lambda payload: delay + every * payload["n"],
    )


def wait_for_next_attempt(stream, job_id, error="it failed"):
    """Add a job that fails: the group's next attempt waits for an hour."""
    stream.add({"of": job_id}, job_id=job_id)
    for job in stream.read("w", count=100):
        if job.id == job_id:
            stream.retry(job, error, delay=HOUR)


# --- one job --------------------------------------------------------------------------------


@pytest.mark.covers("Q1")
def test_cancel_then_cancel_again(stream, cli, raw, ns):
    stream.add({"n": 1}, job_id="k", delay=HOUR)
    done = cli("cancel", "k")
    assert (done.returncode, done.stdout, done.stderr) == (0, "k: cancelled\n", "")
    assert not raw.exists(f"streamq:{{{ns}}}:scheduled", f"streamq:{{{ns}}}:scheduled:jobs", f"streamq:{{{ns}}}:stream")
    again = cli("cancel", "k")
    assert (again.returncode, again.stdout, again.stderr) == (0, "k: not scheduled\n", "")
    assert stream.add({"n": 2}, job_id="k", delay=HOUR).created


@pytest.mark.covers("Q5")
def test_what_does_not_wait_is_refused_with_its_state(stream, cli, everything):
    """Three calls for all states: those of every one are told, and the job that waits is done all the same."""
    for job_id in ("done", "pending"):
        stream.add({}, job_id=job_id)
    [first, _] = stream.read("w", count=2)
    stream.ack(first)
    stream.add({}, job_id="ready")
    ids = ("ready", "pending", "done", "unknown")
    before = everything()
    for command, options in (("reschedule", ["--delay", "5"]), ("run", [])):
        found = cli(command, *ids, *options, "--yes", "--json")
        assert found.returncode == 1
        assert {job["job_id"]: (job["outcome"], job["state"]) for job in json.loads(found.stdout)["jobs"]} == {
            job_id: ("refused", job_id) for job_id in ids
        }
        told = cli(command, *ids, *options, "--yes")
        assert (told.returncode, told.stdout) == (
            1,
            f"0 {'made ready' if command == 'run' else 'rescheduled'}, 4 refused\n",
        )
        for job_id, line in zip(ids, told.stderr.splitlines(), strict=True):
            assert line.startswith(f"streamq: job {job_id} is {job_id}, not scheduled")
    assert everything() == before

    stream.add({}, job_id="waits", delay=HOUR)
    found = cli("cancel", *ids, "waits", "--yes")
    assert found.returncode == 1
    assert found.stdout.splitlines() == [
        "done: not scheduled",
        "unknown: not scheduled",
        "waits: cancelled",
        "1 cancelled, 2 not scheduled, 2 refused",
    ]
    assert [line.partition(":")[2][:18] for line in found.stderr.splitlines()] == [
        " job ready is read",
        " job pending is pe",
    ]
    assert everything() == before


def test_reschedule_moves_and_run_makes_ready(stream, cli, raw, ns):
    stream.add({"n": 1}, job_id="k", delay=HOUR)
    done = cli("reschedule", "k", "--delay", "2d")
    [due_at] = due_of(stream).values()
    assert (done.returncode, done.stdout) == (0, f"k: rescheduled, due {due_at:%Y-%m-%d %H:%M:%SZ}\n")
    assert timedelta(days=1.9) < due_at - datetime.now(UTC) < timedelta(days=2.1)

    at = (datetime.now(UTC) + timedelta(days=30)).replace(microsecond=0)
    found = json.loads(cli("reschedule", "k", "--at", at.isoformat(), "--json").stdout)
    assert found["jobs"] == [
        {"job_id": "k", "outcome": "done", "state": "scheduled", "due_at": f"{at:%Y-%m-%dT%H:%M:%SZ}"}
    ]
    assert due_of(stream) == {(None, "k"): at}

    ran = cli("run", "k")
    [(entry_id, _)] = raw.xrange(f"streamq:{{{ns}}}:stream")
    assert (ran.returncode, ran.stdout) == (0, f"k: made ready, entry {entry_id.decode()}\n")
    assert due_of(stream) == {}
    assert [job.id for job in stream.read("w", count=10)] == ["k"]


@ON_ONE
def test_show_tells_all_but_the_payload(stream, cli, for_group):
    stream.add({"card": "visa"}, job_id="k", headers={"trace": "00-[b]ab"})
    [job] = stream.read("w")
    stream.retry(job, "first")
    stream.scheduled.run_now("k")
    [job] = stream.read("w")
    stream.retry(job, "second", delay=HOUR - 20)
    told = cli("show", "k")
    assert (told.returncode, told.stderr) == (0, "")
    for words in ("workers", "in 59m", " 3 ", "first", "second", "00-[b]ab", "15 bytes, json"):
        assert words in told.stdout
    assert "visa" not in told.stdout
    assert "visa" not in cli("show", "k", "--json").stdout
    assert '{"card":"visa"}' in cli("show", "k", "--show-payloads").stdout
    found = json.loads(cli("show", "k", "--show-payloads", "--json").stdout)
    assert {**found, "due_at": "", "enqueued_at": ""} == {
        "job_id": "k",
        "group": "workers",
        "due_at": "",
        "attempt": 3,
        "enqueued_at": "",
        "errors": ["first", "second"],
        "entry_lost": False,
        "state": "scheduled",
        "headers": {"trace": "00-[b]ab"},
        "reserved": {},
        "other_fields": {},
        "codec": "json",
        "payload_bytes": 15,
        "payload": '{"card":"visa"}',
    }


@ON_ONE
def test_show_of_what_does_not_wait(stream, cli):
    stream.add({}, job_id="k")
    told = cli("show", "k")
    assert (told.returncode, told.stdout, told.stderr) == (1, "", "streamq: job k is ready, not scheduled\n")
    found = cli("show", "none", "--json")
    assert found.returncode == 1
    assert json.loads(found.stdout) == {"job_id": "none", "state": "unknown", "scheduled_for": []}


@ON_ONE
def test_a_payload_that_is_no_text(redis_url, ns, cli):
    with Stream(ns, bytes, redis=redis_url) as s:
        s.add(b"\xff\x00\x1b", job_id="k", delay=HOUR)
    assert json.loads(cli("show", "k", "--show-payloads", "--json").stdout)["payload_base64"] == "/wAb"
    assert "base64: /wAb" in cli("show", "k", "--show-payloads").stdout


# --- groups ---------------------------------------------------------------------------------


@ON_ONE
@pytest.mark.parametrize(
    ("command", "options"), [("show", []), ("cancel", []), ("reschedule", ["--delay", "1d"]), ("run", [])]
)
def test_who_waits_for_another_group_is_found(for_group, cli, everything, command, options):
    billing = for_group("billing")
    wait_for_next_attempt(billing, "k")
    before = everything()
    found = cli(command, "k", *options)
    assert (found.returncode, found.stdout) == (1, "")
    assert found.stderr.endswith("it is scheduled for group billing: give --group billing\n")
    assert found.stderr.count("\n") == 1
    assert everything() == before
    asked = json.loads(cli(command, "k", *options, "--json").stdout)
    assert (asked if command == "show" else asked["jobs"][0])["scheduled_for"] == ["billing"]
    done = cli(command, "k", *options, "--group", "billing")
    assert (done.returncode, done.stderr) == (0, "")
    if command in {"cancel", "run"}:
        assert due_of(billing) == {}


@ON_ONE
def test_one_group_leaves_another_ones_attempt_alone(for_group, cli):
    both = [for_group(group, groups=("a", "b")) for group in ("a", "b")]
    both[0].add({}, job_id="k")
    for one in both:
        [job] = one.read("w")
        one.retry(job, "no", delay=HOUR)
    assert cli("cancel", "k", "--group", "b").returncode == 0
    assert list(due_of(both[0])) == [("a", "k")]
    found = cli("cancel", "k", "--group", "b")
    assert found.returncode == 1  # it would run, though not for b: who cancels must not believe it gone
    assert "give --group a" in found.stderr


# --- confirmation ---------------------------------------------------------------------------


@ON_ONE
@pytest.mark.parametrize("typed", [b"y\n", b"YES\n"])
def test_who_says_yes_goes_on(stream, cli, typed):
    add_all(stream, 3)
    done = cli("cancel", "--all", typed=typed)
    assert (done.returncode, done.stdout) == (0, "3 cancelled\n")
    assert "This will cancel 3 jobs of stream" in done.stderr
    assert due_of(stream) == {}


@ON_ONE
@pytest.mark.parametrize("typed", [b"n\n", b"\n", b"yep\n", b"\xff\n", b"\x04", b"\x03"])
def test_who_says_anything_else_changes_nothing(stream, cli, everything, typed):
    add_all(stream, 3)
    before = everything()
    done = cli("run", "j00000", "j00001", typed=typed)
    assert (done.returncode, done.stdout) == (3, "")
    assert "This will run 2 jobs of stream" in done.stderr
    assert "cancelled, nothing changed" in done.stderr
    assert everything() == before


@ON_ONE
@pytest.mark.parametrize("which", [["--all"], ["--due-before", "2h"], ["j00000", "j00001"]])
def test_without_a_terminal_it_takes_a_yes(stream, cli, everything, which):
    add_all(stream, 3)
    before = everything()
    for command, options in (("cancel", []), ("reschedule", ["--delay", "1d"]), ("run", [])):
        done = cli(command, *which, *options)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (3, "", 1)
        assert "--yes" in done.stderr
        assert everything() == before
    assert cli("cancel", *which, "--yes").returncode == 0
    assert len(due_of(stream)) == 3 - (2 if "j00000" in which else 3)


@ON_ONE
def test_closed_standard_input_is_no_yes(stream, redis_url, ns):
    add_all(stream, 2)
    command = [*COMMAND, "scheduled", "cancel", ns, "--all", "--url", redis_url]
    closed = ["sh", "-c", '"$@" <&-', "sh", *command]
    done = subprocess.run(closed, env=environ(), capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (3, "")
    assert len(due_of(stream)) == 2


@ON_ONE
def test_one_job_needs_no_confirmation_and_none_has_none(stream, cli):
    add_all(stream, 1)
    assert cli("cancel", "j00000", "j00000").returncode == 0
    done = cli("cancel", "--all")
    assert (done.returncode, done.stdout) == (0, "0 cancelled\n")


# --- many -----------------------------------------------------------------------------------


@pytest.fixture
def crowd(for_group):
    """2,500 jobs of all groups, and next attempts of two groups among them."""
    workers, billing = for_group("workers"), for_group("billing")
    wait_for_next_attempt(workers, "w1")
    wait_for_next_attempt(billing, "b1")
    workers.ack(workers.read("w", count=10))
    billing.ack(billing.read("w", count=10))
    add_all(workers, 2_498, delay=0.5 * HOUR)
    assert len(workers.scheduled.list(count=1_000)) == 1_000
    return workers


def test_cancel_of_all_is_of_all_groups(crowd, cli, raw, ns):
    done = cli("cancel", "--all", "--yes", "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout) == {
        "action": "cancel",
        "matched": 2_500,
        "done": 2_500,
        "skipped": 0,
        "refused": 0,
        "due_at": None,
        "jobs": [],
        "errors": [],
    }
    assert not raw.exists(f"streamq:{{{ns}}}:scheduled", f"streamq:{{{ns}}}:scheduled:jobs")


@ON_ONE
def test_run_of_what_is_due_before(crowd, cli, raw, ns):
    before = raw.xlen(f"streamq:{{{ns}}}:stream")
    done = cli("run", "--due-before", "40m", "--yes")
    count = int(re.fullmatch(r"(\d+) made ready\n", done.stdout)[1])
    assert 599 <= count <= 2_000  # 600 were due within 40 minutes, and one more with each second since
    assert raw.xlen(f"streamq:{{{ns}}}:stream") - before == count
    assert raw.zcard(f"streamq:{{{ns}}}:scheduled") == 2_500 - count
    left = crowd.scheduled.list(count=1)[0]
    assert left.due_at > datetime.now(UTC) + timedelta(minutes=20)


@pytest.mark.parametrize(
    "when",
    [["--delay", "0"], ["--delay", "50m"], ["--delay", "300d"], ["--at", "1999-12-31T23:59:59Z"]],
    ids=lambda when: when[1],
)
@ON_ONE
def test_reschedule_of_all_moves_each_once(crowd, cli, raw, ns, when):
    """To a time before, amid or behind those of all: whoever was moved already is not met again."""
    done = json.loads(cli("reschedule", "--all", *when, "--yes", "--json").stdout)
    assert (done["matched"], done["done"], done["refused"]) == (2_500, 2_500 - done["skipped"], 0)
    assert done["skipped"] <= 1  # one was due in that very millisecond
    due = {score for _, score in raw.zrange(f"streamq:{{{ns}}}:scheduled", 0, -1, withscores=True)}
    latest = datetime.fromisoformat(done["due_at"])
    assert max(due) == (latest - datetime.fromtimestamp(0, UTC)) // timedelta(milliseconds=1)
    assert raw.zcard(f"streamq:{{{ns}}}:scheduled") == 2_500
    if when[1] in {"50m", "300d"}:
        assert len(due) == 1
    else:
        assert max(due) - min(due) < 60_000


@ON_ONE
def test_reschedule_of_some_leaves_the_others(crowd, cli):
    until = datetime.now(UTC) + timedelta(minutes=45)
    before = due_of(crowd)
    at = until + timedelta(minutes=2)
    moved = json.loads(
        cli("reschedule", "--due-before", until.isoformat(), "--at", at.isoformat(), "--yes", "--json").stdout
    )
    kept = {job: due for job, due in before.items() if due >= until}
    after = due_of(crowd)  # of both, the first thousand
    assert moved["done"] == moved["matched"] == sum(due < until for due in before.values())
    assert all(after[job] == due for job, due in kept.items() if job in after)
    assert all(due >= until for due in after.values())


@ON_ONE
def test_many_while_others_cancel(crowd, cli, redis_url, ns, raw):
    """Two that take back the same jobs at once, from both ends: each job by one of them, and all of them."""
    key = f"streamq:{{{ns}}}:scheduled"
    ids = [timer.partition(b"/")[2].decode() for timer in raw.zrange(key, 0, -1) if timer.startswith(b"/")]
    cancelled = []

    def from_behind():
        with Stream(ns, redis=redis_url) as other:
            cancelled.extend(job_id for job_id in reversed(ids) if other.scheduled.cancel(job_id))

    thread = threading.Thread(target=from_behind)
    thread.start()
    done = json.loads(cli("cancel", "--all", "--yes", "--json").stdout)
    thread.join()
    assert done["done"] + len(cancelled) == 2_500
    assert done["done"] + done["skipped"] + done["refused"] == done["matched"]
    assert done["refused"] == 0
    assert raw.zcard(key) == 0


@ON_ONE
def test_many_while_others_add_comes_to_an_end(stream, cli, redis_url, ns):
    """No more are touched than were there when it began, however fast others come behind them."""
    add_all(stream, 300)
    enough = threading.Event()

    def add():
        with Stream(ns, redis=redis_url) as other:
            number = 10_000
            while not enough.is_set():
                add_all(other, 50, first=number)
                number += 50

    thread = threading.Thread(target=add)
    thread.start()
    try:
        done = json.loads(cli("reschedule", "--all", "--delay", "2h", "--yes", "--json").stdout)
    finally:
        enough.set()
        thread.join()
    assert done["done"] + done["skipped"] == done["matched"] >= 300


@ON_ONE
def test_progress_at_a_terminal_only(crowd, cli):
    done = cli("cancel", "--all", "--yes", typed=b"", TERM="xterm")
    assert (done.returncode, done.stdout) == (0, "2,500 cancelled\n")
    assert "2500/2500" in done.stderr


@ON_ONE
def test_what_was_done_before_an_error_is_told(crowd, proxy, raw, ns):
    proxy.drop_before(servers.named("EVALSHA"), nth=1_250)
    done = call("scheduled", "cancel", ns, "--all", "--yes", "--url", proxy.url)
    assert (done.returncode, done.stdout) == (2, "")
    broken, _ = done.stderr.splitlines()
    told = re.match(r"streamq: broken off: at least (\d?,?\d{3}) of 2,500 were cancelled, and stay so", broken)
    gone = 2_500 - raw.zcard(f"streamq:{{{ns}}}:scheduled")
    assert gone - 100 <= int(told[1].replace(",", "")) <= gone < 2_500


@ON_ONE
def test_a_full_server_runs_none_and_loses_none(new_server, ns):
    server = new_server()
    with Stream(ns, redis=server.url) as full, redis.Redis.from_url(server.url) as client:
        add_all(full, 150)
        client.config_set("maxmemory", 1_000)
        done = call("scheduled", "run", ns, "--all", "--yes", "--url", server.url)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
        assert "maxmemory" in done.stderr
        assert full.inspect().scheduled == 150


# --- lists ----------------------------------------------------------------------------------


@ON_ONE
def test_a_table_is_cut_and_goes_on(stream, cli):
    add_all(stream, 250)
    told = cli("list")
    assert (told.returncode, told.stderr) == (0, "")
    assert re.findall(r"│ (j\d{5})", told.stdout) == [f"j{n:05}" for n in range(100)]
    [place] = re.findall(r"^\.\.\. 150 more: raise --limit, or go on with --after (\S+)$", told.stdout, re.MULTILINE)
    rest = cli("list", "--after", place, "--limit", "200").stdout
    assert re.findall(r"j\d{5}", rest) == [f"j{n:05}" for n in range(100, 250)]
    assert "more" not in rest
    soon = cli("list", "--due-before", "3605s", "--limit", "3").stdout
    assert re.findall(r"│ (j\d{5})", soon)[:2] == ["j00000", "j00001"]


@ON_ONE
def test_a_script_walks_all(crowd, cli):
    pages, place = [], []
    while place != [None]:
        done = cli("list", "--json", "--limit", "1000", *([] if not place else ["--after", place[0]]))
        page = json.loads(done.stdout)
        pages.append([(job["group"], job["job_id"]) for job in page["jobs"]])
        place = [page["next"]]
        assert page["more"] == 2_500 - sum(map(len, pages))
    assert list(map(len, pages)) == [1_000, 1_000, 500]
    lines = cli("list", "--json", "--all").stdout.splitlines()
    assert [(job["group"], job["job_id"]) for job in map(json.loads, lines)] == list(chain(*pages))
    assert set(json.loads(lines[0])) == {
        "job_id", "group", "due_at", "attempt", "enqueued_at", "errors", "entry_lost",
    }  # fmt: skip


@ON_ONE
def test_a_reader_that_goes_ends_it_quietly(crowd, redis_url, ns):
    line = ["sh", "-c", '"$@" | head -n 1', "sh", *COMMAND, "scheduled", "list", ns, "--json", "--all"]
    done = subprocess.run(line, env=environ(STREAMQ_URL=redis_url), capture_output=True, text=True, timeout=100)
    assert done.stdout.count("\n") == 1
    assert "Traceback" not in done.stderr


@ON_ONE
def test_a_stream_that_was_never_used(cli, raw, ns):
    told = cli("list")
    assert (told.returncode, told.stdout, told.stderr) == (0, f"no scheduled job in stream {ns}\n", "")
    assert json.loads(cli("list", "--json").stdout) == {"jobs": [], "more": 0, "next": None}
    assert cli("list", "--json", "--all").stdout == ""
    assert cli("show", "k").returncode == 1
    assert cli("cancel", "k").stdout == "k: not scheduled\n"
    assert cli("cancel", "--all", "--yes").stdout == "0 cancelled\n"
    assert cli("run", "k").returncode == 1
    assert raw.keys(f"*{ns}*") == []


@ON_ONE
def test_deployments_are_apart(redis_url, ns, cli):
    with Stream(ns, redis=redis_url, deployment=ns) as s:
        s.add({}, job_id="k", delay=HOUR)
    assert "k" not in cli("list").stdout.replace(ns, "")
    assert cli("cancel", "k", STREAMQ_DEPLOYMENT=ns).stdout == "k: cancelled\n"


# --- what others have written ---------------------------------------------------------------


HOSTILE = "\x1b[2J\x07[/red]\u202e\x9b31m:smile:\\"
SHOWN = r"\x1b[2J\x07[/red]\u202e\x9b31m:smile:\\"[:-1]
UNSAFE = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]")


@ON_ONE
def test_nothing_speaks_to_the_terminal(stream, cli, raw, ns, for_group):
    evil = "evil" + HOSTILE
    key = f"streamq:{{{ns}}}:scheduled"
    stream.add({"x": HOSTILE}, job_id="k", headers={"trace": HOSTILE})
    [job] = stream.read("w")
    stream.retry(job, HOSTILE, delay=HOUR)
    raw.zadd(key, {f"/{evil}": 4e12, f"{evil}/x": 4e12, b"/\xff\xfe": 4e12, "no timer at all": 4e12})
    raw.xgroup_create(f"streamq:{{{ns}}}:stream", evil, "0")
    outputs = [
        cli(*args)
        for args in (
            ("list",),
            ("list", "--json"),
            ("list", "--json", "--all"),
            ("list", "--limit", "2"),
            ("show", "k", "--show-payloads"),
            ("show", "k", "--show-payloads", "--json"),
            ("show", "none" + HOSTILE.replace("\x1b", "").replace("\x07", "").replace("\x9b", "")),
            ("show", "evil" + HOSTILE),
            ("cancel", "none\u202e"),
            ("list", "--after", "\x1b"),
        )
    ]
    for done in outputs:
        assert not UNSAFE.search(done.stdout + done.stderr), done.args
        assert "Traceback" not in done.stderr
    assert "evil" + SHOWN in outputs[0].stdout
    assert "evil" + HOSTILE in [job["job_id"] for job in json.loads(outputs[1].stdout)["jobs"]]
    assert json.loads(outputs[5].stdout)["headers"] == {"trace": HOSTILE}
    assert [done.returncode for done in outputs] == [0, 0, 0, 0, 0, 0, 1, 2, 0, 2]


@ON_ONE
def test_what_cannot_be_addressed_is_told_and_left(stream, cli, raw, ns):
    add_all(stream, 2)
    key = f"streamq:{{{ns}}}:scheduled"
    others = {b"/\x1b[2J": 4e12, b"bad group/x": 4e12, b"no slash": 4e12, b"/" + b"x" * 600: 4e12}
    raw.zadd(key, others)
    done = cli("cancel", "--all", "--yes")
    assert done.returncode == 1
    assert done.stdout == "2 cancelled, 4 refused\n"
    assert done.stderr.count("\n") == 4
    assert not UNSAFE.search(done.stderr)
    assert set(raw.zrange(key, 0, -1)) == set(others)


@ON_ONE
def test_a_job_whose_entry_is_lost(stream, cli, raw, ns):
    stream.add({}, job_id="k", delay=HOUR)
    raw.hset(f"streamq:{{{ns}}}:scheduled:jobs", "/k", b"\xc1")
    assert "lost or malformed" in cli("list").stdout
    assert "lost or malformed" in cli("show", "k").stdout
    assert json.loads(cli("list", "--json").stdout)["jobs"][0]["entry_lost"]
    for which in (["k"], ["--all", "--yes"]):
        done = cli("run", *which)
        assert done.returncode == 1
        assert "its entry is lost" in done.stderr
    assert cli("cancel", "k").stdout == "k: cancelled\n"


@ON_ONE
def test_a_key_of_another_type(cli, raw, ns):
    raw.set(f"streamq:{{{ns}}}:scheduled", "no schedule")
    for args in (("list",), ("show", "k"), ("cancel", "k"), ("run", "--all", "--yes")):
        done = cli(*args)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), args
        assert "WRONGTYPE" in done.stderr or "sorted set" in done.stderr


# --- bad input ------------------------------------------------------------------------------


@ON_ONE
@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("reschedule", "k", "--delay", "-5"), "from 0 to 31536000 seconds"),
        (("reschedule", "k", "--delay", "nan"), "no duration"),
        (("reschedule", "k", "--delay", "inf"), "no duration"),
        (("reschedule", "k", "--delay", "9" * 400), "31536000"),
        (("reschedule", "k", "--delay", "366d"), "31536000"),
        (("reschedule", "k", "--delay", "1w"), "no duration"),
        (("reschedule", "k", "--delay", ""), "no duration"),
        (("reschedule", "k", "--at", "2030-01-31T12:00:00"), "no zone"),
        (("reschedule", "k", "--at", "tomorrow\x1b[2J"), "no time"),
        (("reschedule", "k", "--at", "9999-12-31T23:59:59Z"), "max_delay"),
        (("reschedule", "none", "--at", "9999-12-31T23:59:59Z"), "max_delay"),
        (("reschedule", "k", "--at", "9999-12-31T23:59:59-10:00"), "no time that can be counted"),
        (("reschedule", "k", "--at", "2030-01-31T12:00:00Z", "--delay", "5"), "not both"),
        (("reschedule", "k"), "--delay"),
        (("reschedule", "--all", "--yes", "--at", "2999-01-01T00:00Z"), "max_delay"),
        (("cancel",), "which jobs"),
        (("cancel", "k", "--all"), "only one"),
        (("cancel", "k", "--due-before", "5m"), "only one"),
        (("cancel", "--all", "--due-before", "5m"), "only one"),
        (("cancel", "--all", "--group", "workers", "--yes"), "--group"),
        (("cancel", "k", "--group", "a b"), "group"),
        (("cancel", ""), "job ID"),
        (("cancel", "k", "x" * 513, "--yes"), "job ID"),
        (("cancel", "k", "a\nb", "--yes"), "job ID"),
        (("run", "k", "\udcff", "--yes"), "job ID"),
        (("show", "a\x1bb"), "job ID"),
        (("cancel", "--due-before", "soon", "--yes"), "no time"),
        (("cancel", "--due-before", "9" * 30, "--yes"), "too far"),
        (("cancel", "--due-before", "2030-01-31", "--yes"), "no zone"),
        (("list", "--after", "x"), "no place"),
        (("list", "--after", "9" * 30 + ":/k"), "no place"),
        (("list", "--all"), "--json"),
        (("list", "--all", "--json", "--limit", "3"), "--limit"),
    ],
    ids=lambda value: (
        " ".join(value).encode("ascii", "backslashreplace").decode()[:40] if isinstance(value, tuple) else ""
    ),
)
def test_bad_input_is_one_line_and_exit_2(stream, cli, everything, args, words):
    stream.add({}, job_id="k", delay=HOUR)
    before = everything()
    done = cli(*args)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert words in done.stderr
    assert not UNSAFE.search(done.stderr)
    assert everything() == before


@pytest.mark.parametrize(
    "args", [("list",), ("show", "k"), ("cancel", "k"), ("reschedule", "k", "--delay", "5"), ("run", "k")]
)
def test_no_server_is_one_line_and_exit_2(args):
    command, *rest = args
    done = call("scheduled", command, "orders", *rest, "--url", "redis://127.0.0.1:1")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "cannot reach" in done.stderr


@pytest.mark.parametrize(
    "args",
    [
        ("list",),
        ("list", "s", "--limit", "0"),
        ("show", "s"),
        ("show", "s", "a", "b"),
        ("remove", "s"),
        ("run", "s", "--now"),
    ],
)
def test_usage_errors_exit_2(args):
    assert call("scheduled", *args).returncode == 2


def test_help_says_how_it_ends():
    told = call("scheduled", "--help").stdout
    for command in ("list", "show", "cancel", "reschedule", "run"):
        assert command in told
        text = " ".join(call("scheduled", command, "--help").stdout.split())
        for option in ("--url", "STREAMQ_URL", "--deployment", "--json"):
            assert option in text
        if command != "list":
            assert "Exit status 1" in text
            assert "workers" in text  # the group that is meant without --group
    assert "scheduled" in call("--help").stdout


def test_nothing_is_loaded_before_it_is_used():
    code = "import sys, streamq.cli; print(*{'redis', 'rich', 'streamq._ops', 'streamq.stream'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (0, "\n")
