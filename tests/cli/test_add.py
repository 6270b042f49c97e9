"""``streamq add``, as an operator and a script see it: what it adds, what it says, how it ends, and how it goes on."""

from __future__ import annotations

import errno
import fcntl
import io
import json
import os
import pty
import re
import signal
import subprocess
import termios
from datetime import UTC, datetime, timedelta

import pytest
from cli.shell import COMMAND, call, environ
from waiting import until

from streamq import Stream
from streamq.cli import add
from streamq.errors import ConnectionLostError

ON_ONE = pytest.mark.parametrize("backend", ["valkey-9"], indirect=True)
"""For what is the command line's own, and the same on every server."""

HOSTILE = "\x1b[2J\x07[/red]\u202e\x9b31m"
UNSAFE = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]")


@pytest.fixture
def stream(redis_url, ns):
    with Stream(ns, bytes, redis=redis_url) as opened:
        yield opened


@pytest.fixture
def cli(redis_url, ns):
    """``streamq add NAME ...`` on the stream of this test, in this process."""
    return lambda *args, stdin=b"": call("add", ns, *args, stdin=stdin, STREAMQ_URL=redis_url)


@pytest.fixture
def entries(raw, ns):
    """All that is in the stream: of each entry its fields."""
    return lambda: [fields for _, fields in raw.xrange(f"streamq:{{{ns}}}:stream")]


@pytest.fixture
def say_of_a_worker(raw, ns):
    """A live worker says that it has these settings."""

    def say(**settings):
        seconds, micros = raw.time()
        about = json.dumps({"group": "workers", "settings": settings})
        raw.hset(f"streamq:{{{ns}}}:workers", "w", f"{seconds * 1000 + micros // 1000 + 600_000} {about}")

    return say


def numbered(first, last):
    return b"".join(b'{"id":%d}\n' % n for n in range(first, last + 1))


def is_empty(pipe):
    """Whether all that was written to it was read."""
    return fcntl.ioctl(pipe, termios.FIONREAD, b"\0" * 4) == b"\0" * 4


def ids_in(entries):
    return [json.loads(fields[b"job"])["id"] for fields in entries()]


# --- one job --------------------------------------------------------------------------------


def test_one_job_and_the_same_again(stream, cli, entries):
    done = cli('{"n": 1}', "--job-id", "k")
    [job] = stream.read("w")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"k: added, entry {job.entry_id}\n", "")
    assert (job.id, job.payload) == ("k", b'{"n": 1}')
    again = cli('{"n": 2}', "--job-id", "k")
    assert (again.returncode, again.stderr) == (0, "")
    assert again.stdout == f"k: known already, pending, entry {job.entry_id}; nothing was added\n"
    found = cli('{"n": 2}', "--job-id", "k", "--json")
    assert json.loads(found.stdout) == {
        "job_id": "k",
        "entry_id": job.entry_id,
        "created": False,
        "state": "pending",
    }
    assert len(entries()) == 1


@ON_ONE
def test_payload_and_headers_arrive_as_they_were_written(stream, cli):
    payload = '{"big": 123456789012345678901234567890, "f": 1.10, "t":"\\u00e9 é", "n": null}'
    done = cli(payload, "--header", "trace=00-ab=c", "--header", "empty=", "--json")
    added = json.loads(done.stdout)
    [job] = stream.read("w")
    assert job.payload == payload.encode()
    assert job.headers == {"trace": "00-ab=c", "empty": ""}
    assert added == {"job_id": job.id, "entry_id": job.entry_id, "created": True, "state": "ready"}
    for other in ("5", '"text"', "[1]", "null", "true"):
        assert cli(other).returncode == 0
    assert cli("--", "-5").returncode == 0
    assert [job.payload for job in stream.read("w", count=10)] == [b"5", b'"text"', b"[1]", b"null", b"true", b"-5"]


def test_a_job_for_later_and_another_in_its_place(stream, cli, entries):
    at = (datetime.now(UTC) + timedelta(days=3)).replace(microsecond=0)
    done = cli('{"n":1}', "--at", at.isoformat(), "--job-id-field", "n")
    assert (done.returncode, done.stdout) == (0, "1: added, waits for its time\n")
    [waiting] = stream.scheduled.list()
    assert (waiting.job_id, waiting.due_at, waiting.payload) == ("1", at, b'{"n":1}')

    assert "known already, scheduled; nothing" in cli('{"n":2}', "--job-id", "1", "--delay", "1h").stdout
    assert stream.scheduled.list() == [waiting]
    assert cli('{"n":2}', "--job-id", "1", "--delay", "1h", "--replace").stdout == "1: added, waits for its time\n"
    [waiting] = stream.scheduled.list()
    assert waiting.payload == b'{"n":2}'
    assert timedelta(minutes=59) < waiting.due_at - datetime.now(UTC) < timedelta(minutes=61)

    assert cli('{"n":3}', "--job-id", "1", "--replace").returncode == 0
    assert (stream.scheduled.list(), [fields[b"job"] for fields in entries()]) == ([], [b'{"n":3}'])
    assert "ready, entry" in (stays := cli('{"n":4}', "--job-id", "1", "--replace").stdout)
    assert stays.endswith("; it stays as it is\n")
    assert len(entries()) == 1


@ON_ONE
@pytest.mark.covers("F16")
@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((), "say what to add"),
        (("",), "no JSON"),
        (("{a}",), "no JSON"),
        (("NaN",), "no JSON"),
        (('"\udcff"',), "no JSON"),
        (("[" * 100_000,), "no JSON"),
        (("{} {}",), "no JSON"),
        (("1", "--max-payload", "0"), "max_payload must be from 1"),
        (("123", "--max-payload", "2"), "max_payload is 2"),
        (("1", "--job-id", ""), "job ID"),
        (("1", "--job-id", "a\nb"), "job ID"),
        (("1", "--job-id", "x" * 513), "job ID"),
        (("1", "--job-id-field", "id"), "no JSON object"),
        (('{"ID":1}', "--job-id-field", "id"), "no field 'id'"),
        (('{"id":true}', "--job-id-field", "id"), "a text or a whole number"),
        (('{"id":1.5}', "--job-id-field", "id"), "a text or a whole number"),
        (('{"id":"a\\u0000"}', "--job-id-field", "id"), "job ID"),
        (("1", "--job-id", "k", "--job-id-field", "id"), "--job-id-field"),
        (("-", "--job-id", "k"), "--job-id-field"),
        (("1", "--replace"), "--replace needs a job ID"),
        (("1", "--header", "trace"), "K=V"),
        (("1", "--header", "a=1", "--header", "a=2"), "twice"),
        (("1", "--header", "a b=1"), "header name"),
        (("-", "--header", "a b=1"), "header name"),
        (("1", "--header", "a=\udcff"), "header a"),
        (("1", "--delay", "-5"), "delay"),
        (("1", "--delay", "366d"), "delay"),
        (("1", "--delay", "soon"), "no duration"),
        (("1", "--at", "2030-01-31T12:00:00"), "no zone"),
        (("1", "--at", "9999-01-31T12:00:00Z"), "max_delay"),
        (("1", "--at", "2030-01-31T12:00:00Z", "--delay", "5"), "not both"),
        (("1", "--keep-going"), "standard input"),
        (("1", "--from-line", "2"), "standard input"),
    ],
    ids=lambda value: (
        " ".join(value).encode("ascii", "backslashreplace").decode()[:40] if isinstance(value, tuple) else ""
    ),
)
def test_bad_input_is_one_line_and_exit_2(cli, raw, ns, args, words):
    done = cli(*args, stdin=b"{}\n")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert words in done.stderr
    assert not UNSAFE.search(done.stderr)
    assert raw.keys(f"*{ns}*") == []


@ON_ONE
def test_names_that_are_none_and_usage(redis_url):
    for name, options in (("a{b}", ()), ("a b", ()), ("\x1b[2J", ()), ("x" * 129, ()), ("ok", ("--deployment", "a:b"))):
        done = call("add", name, "1", *options, STREAMQ_URL=redis_url)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert not UNSAFE.search(done.stderr)
    assert call("add").returncode == 2
    assert call("add", "s", "1", "2").returncode == 2
    assert call("add", "s", "-", "--from-line", "0").returncode == 2


def test_no_server_is_one_line_and_exit_2():
    for what in ("1", "-"):
        done = call("add", "orders", what, "--url", "redis://127.0.0.1:1", stdin=b"1\n")
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert "cannot reach" in done.stderr


# --- lines ----------------------------------------------------------------------------------


def test_twenty_thousand_lines_twice(cli, redis_url, ns, tmp_path, entries):
    """As a shell does it, from a file; with job IDs the second time adds nothing."""
    (tmp_path / "jobs").write_bytes(numbered(1, 20_000))
    with (tmp_path / "jobs").open("rb") as file:
        done = subprocess.run(
            [*COMMAND, "add", ns, "-", "--job-id-field", "id"],
            env=environ(STREAMQ_URL=redis_url),
            stdin=file,
            capture_output=True,
            text=True,
            timeout=100,
        )
    assert (done.returncode, done.stdout, done.stderr) == (0, "20,000 added\n", "")
    assert cli("-", "--job-id-field", "id", stdin=numbered(1, 20_000)).stdout == "0 added, 20,000 known already\n"
    assert ids_in(entries) == list(range(1, 20_001))
    assert entries()[0][b"sq:id"] == b"1"


@ON_ONE
def test_lines_of_every_kind(cli, stream):
    data = b'\xef\xbb\xbf{"id":"a"}\r\n\n  \t\n {"id":2} \n\r\n{"id":"\xc3\xa9"}'
    found = cli("-", "--job-id-field", "id", "--header", "from=file", "--json", stdin=data)
    assert (found.returncode, found.stderr) == (0, "")
    assert json.loads(found.stdout) == {"added": 3, "known": 0, "bad": 0, "next_line": None, "errors": []}
    jobs = stream.read("w", count=10)
    assert [(job.id, job.payload, job.headers) for job in jobs] == [
        ("a", b'{"id":"a"}', {"from": "file"}),
        ("2", b'{"id":2}', {"from": "file"}),
        ("é", '{"id":"é"}'.encode(), {"from": "file"}),
    ]
    assert cli("-").stdout == "0 added\n"
    assert cli("-", "--from-line", "6", stdin=data).stdout == "1 added\n"


@ON_ONE
def test_lines_for_later(cli, stream):
    assert cli("-", "--delay", "1h", stdin=numbered(1, 600)).stdout == "600 added\n"
    assert stream.inspect().scheduled == 600
    assert cli("-", "--job-id-field", "id", "--replace", "--delay", "0", stdin=numbered(1, 2)).stdout == "2 added\n"
    assert stream.inspect().ready == 2


BAD = {
    b"{a}": "no JSON",
    b"{} {}": "no JSON",
    b"\xff": "no JSON",
    b'"\xff"': "no JSON",
    b"\x1b[2J\x00": "no JSON",
    b"[" * 100_000: "no JSON",
    b'"%s"' % (b"x" * 200_001): "longer than 200,000 bytes",
    b"7": "no JSON object",
    b'{"x":1}': "no field 'id'",
    b'{"id":{}}': "a text or a whole number",
    b'{"id":""}': "job ID",
    b'{"id":"%s"}' % (b"x" * 600): "job ID",
    b'{"id":"\\u001b[2J"}': "job ID",
}


@ON_ONE
def test_a_bad_line_stops_it_and_it_goes_on_behind(cli, entries):
    for bad, why in BAD.items():
        before = len(entries())
        data = numbered(before + 1, before + 3) + b"\n" + bad + b"\n" + numbered(before + 4, before + 5)
        options = ("-", "--job-id-field", "id", "--max-payload", "200000")
        done = cli(*options, stdin=data)
        assert (done.returncode, done.stdout) == (1, "3 added, 1 bad line\n"), done.stderr
        first, last = done.stderr.splitlines()
        assert first.startswith("streamq: line 5: ")
        assert why in first
        assert len(first) < 400
        assert "all before line 5 was added" in last
        assert last.endswith("--from-line 5")
        assert not UNSAFE.search(done.stderr)
        assert len(entries()) == before + 3
        mended = cli(*options, "--from-line", "5", stdin=data.replace(bad, b""))
        assert (mended.returncode, mended.stdout) == (0, "2 added\n")
    assert ids_in(entries) == list(range(1, 5 * len(BAD) + 1))


@ON_ONE
def test_a_bad_first_line_adds_nothing(cli, raw, ns):
    done = cli("-", "--json", stdin=b"{\n{}\n")
    assert done.returncode == 1
    assert "nothing was added" in done.stderr
    assert {**(found := json.loads(done.stdout)), "errors": 0} == {
        "added": 0,
        "known": 0,
        "bad": 1,
        "next_line": 1,
        "errors": 0,
    }
    assert [error["line"] for error in found["errors"]] == [1]
    assert raw.keys(f"*{ns}*") == []


@ON_ONE
def test_keep_going_passes_over_bad_lines_and_counts_them(cli, entries):
    data = b"\n".join(b"%d" % n if n % 2 else b"bad" for n in range(40))
    done = cli("-", "--keep-going", stdin=data)
    assert (done.returncode, done.stdout) == (1, "20 added, 20 bad lines\n")
    assert [int(line.split()[2].rstrip(":")) for line in done.stderr.splitlines()] == list(range(1, 41, 2))
    assert [fields[b"job"] for fields in entries()] == [b"%d" % n for n in range(1, 40, 2)]
    found = json.loads(cli("-", "--keep-going", "--json", stdin=data).stdout)
    assert [found[key] for key in ("added", "known", "bad", "next_line")] == [20, 0, 20, None]
    assert [error["line"] for error in found["errors"]] == list(range(1, 20, 2))


@ON_ONE
def test_memory_is_bounded_and_what_is_read_is_added(cli, stream):
    """However many lines there are, few are read ahead of what was added: also lines that never end."""

    class Endless(io.BytesIO):
        count = 0

        def read1(self, size=-1):
            if self.count >= 20_000:
                return b'"' + b"x" * 60_000 if self.count < 20_000 + 500 and self._more() else b""
            assert stream.inspect().length >= self.count - 8_000
            first, self.count = self.count, self.count + 4_000
            return numbered(first + 1, self.count)

        def _more(self):
            self.count += 1
            return True

    done = cli("-", "--keep-going", stdin=Endless())
    assert (done.returncode, done.stdout) == (1, "20,000 added, 1 bad line\n")
    assert done.stderr.startswith("streamq: line 20001: longer than 1,048,576 bytes")


def test_what_comes_by_and_by_is_added_at_once_and_ctrl_c_says_how_to_go_on(stream, redis_url, ns, entries):
    with subprocess.Popen(
        [*COMMAND, "add", ns, "-", "--json"],
        env=environ(STREAMQ_URL=redis_url),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        for first, last in ((1, 1), (2, 600)):
            process.stdin.write(numbered(first, last))
            process.stdin.flush()
            until(lambda last=last: len(entries()) == last)
        process.stdin.write(b'{"id":')  # half of the next one waits for its end
        process.stdin.flush()
        until(lambda: is_empty(process.stdin))  # it reads on when it knows that all others were added
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=100)
    assert process.returncode != 0
    assert b"Traceback" not in err
    assert b"all before line 601 was added; go on with --from-line 601\n" in err
    assert json.loads(out) == {"added": 600, "known": 0, "bad": 0, "next_line": 601, "errors": []}


# --- broken off -----------------------------------------------------------------------------


def lose(monkeypatch, call_number, *, maybe_executed, before=False):
    """The connection breaks at a write: before it, or when it has happened already."""
    usual, calls = add._Adding.add, []

    def broken(self, jobs):
        calls.append(len(jobs))
        if len(calls) != call_number:
            return usual(self, jobs)
        if not before:
            usual(self, jobs)
        raise ConnectionLostError("the connection broke", maybe_executed=maybe_executed)

    monkeypatch.setattr(add._Adding, "add", broken)


@ON_ONE
def test_a_write_of_which_nobody_knows(cli, monkeypatch, entries):
    data = numbered(1, 1_200)
    lose(monkeypatch, 2, maybe_executed=True)
    done = cli("-", stdin=data)
    assert (done.returncode, done.stdout) == (2, "500 added\n")
    [advice, error] = done.stderr.splitlines()
    assert "lines 501 to 1000 may have been added, some or all: --from-line 501 adds them again" in advice
    assert "--from-line 1001 passes over them" in advice
    assert "the connection broke" in error
    assert cli("-", "--from-line", "1001", stdin=data).stdout == "200 added\n"
    assert ids_in(entries) == list(range(1, 1_201))


@ON_ONE
def test_with_job_ids_it_goes_on_and_adds_nothing_twice(cli, monkeypatch, entries):
    data = numbered(1, 1_200)
    lose(monkeypatch, 2, maybe_executed=True)
    done = cli("-", "--job-id-field", "id", "--json", stdin=data)
    assert done.returncode == 2
    assert json.loads(done.stdout)["next_line"] == 501
    assert "go on with --from-line 501: nothing is added twice" in done.stderr
    assert cli("-", "--job-id-field", "id", stdin=data).stdout == "200 added, 1,000 known already\n"
    assert ids_in(entries) == list(range(1, 1_201))


@ON_ONE
def test_a_write_that_never_left(cli, monkeypatch, entries):
    data = numbered(1, 700)
    lose(monkeypatch, 2, maybe_executed=False, before=True)
    done = cli("-", stdin=data)
    assert done.returncode == 2
    assert "all before line 501 was added; go on with --from-line 501" in done.stderr
    assert cli("-", "--from-line", "501", stdin=data).stdout == "200 added\n"
    assert ids_in(entries) == list(range(1, 701))


@ON_ONE
def test_limits_that_the_workers_tell_are_kept(cli, stream, say_of_a_worker, entries):
    """A stream that is full says where to go on; so does a payload that is longer than they take."""
    say_of_a_worker(max_ready=700, max_payload=100, idempotency_ttl=3_600)
    stream.groups.create("workers")
    data = numbered(1, 1_000)
    done = cli("-", stdin=data)
    assert (done.returncode, done.stdout) == (1, "700 added\n")
    advice, error = done.stderr.splitlines()
    assert "all before line 701 was added; go on with --from-line 701" in advice
    assert "max_ready is 700" in error
    assert cli("1").returncode == 1
    for _ in range(7):
        stream.ack(stream.read("w", count=100))
    assert cli("-", "--from-line", "701", stdin=data).stdout == "300 added\n"
    assert ids_in(entries) == list(range(701, 1_001))
    assert "max_payload is 100" in cli('"%s"' % ("x" * 100)).stderr
    say_of_a_worker(max_ready="\x1b", max_payload=-1)  # no worker of ours
    assert cli("1").returncode == 0


def test_a_full_memory_is_told(new_server, ns):
    server = new_server(args=("--maxmemory", "1", "--maxmemory-policy", "noeviction"))
    for options in (("-",), ("-", "--job-id-field", "id"), ("1",)):
        done = call("add", ns, *options, "--url", server.url, stdin=numbered(1, 3))
        assert done.returncode == 1, done.stderr
        assert "memory" in done.stderr
        assert "Traceback" not in done.stderr


# --- what it shows --------------------------------------------------------------------------


@ON_ONE
def test_nothing_speaks_to_the_terminal(cli):
    evil = json.dumps(HOSTILE)
    for done in (
        cli(evil),
        cli(f'{{"id":{evil}}}', "--job-id-field", "id"),
        cli(f'{{"id":{evil}}}', "--job-id-field", HOSTILE),
        cli("1", "--job-id", "k\u202e"),
        cli("1", "--job-id", "k\u202e", "--json"),
        cli("1", "--header", HOSTILE),
        cli("1", "--header", f"{HOSTILE}=1"),
        cli("-", "--keep-going", stdin=HOSTILE.encode() + b"\n" + evil.encode()),
        cli("-", "--job-id-field", HOSTILE, "--json", stdin=evil.encode()),
    ):
        assert not UNSAFE.search(done.stdout + done.stderr), done.args
        assert "Traceback" not in done.stderr


@ON_ONE
def test_progress_at_a_terminal_only(redis_url, ns, tmp_path):
    (tmp_path / "jobs").write_bytes(numbered(1, 1_990))
    ours, theirs = pty.openpty()
    with (
        (tmp_path / "jobs").open("rb") as file,
        subprocess.Popen(
            [*COMMAND, "add", ns, "-"],
            env=environ(STREAMQ_URL=redis_url, TERM="xterm"),
            stdin=file,
            stdout=subprocess.PIPE,
            stderr=theirs,
        ) as process,
    ):
        os.close(theirs)
        screen = b""
        while b"1,990 jobs" not in screen:
            screen += os.read(ours, 4_096)
        out, _ = process.communicate(timeout=100)
    os.close(ours)
    assert (process.returncode, out) == (0, b"1,990 added\n")


@ON_ONE
def test_a_standard_input_that_cannot_be_read(cli):
    class Directory(io.BytesIO):
        def read1(self, size=-1):
            raise IsADirectoryError(errno.EISDIR, "Is a directory")

    for stdin, words in ((None, "is closed"), (Directory(), "cannot be read: Is a directory")):
        done = cli("-", stdin=stdin)
        assert (done.returncode, done.stdout) == (2, "")
        assert f"standard input {words}" in done.stderr


@ON_ONE
def test_a_user_who_may_only_add(redis_url, raw, ns, entries):
    raw.acl_setuser(ns, enabled=True, passwords=["+pw"], keys=[f"streamq:{{{ns}}}:*"], commands=["+xadd"])
    try:
        url = redis_url.replace("redis://", f"redis://{ns}:pw@")
        assert call("add", ns, "1", "--url", url).returncode == 0
        assert call("add", ns, "-", "--url", url, stdin=b"2\n3\n").stdout == "2 added\n"
        refused = call("add", ns, "4", "--job-id", "k", "--url", url)
        assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
        assert "lacks a permission" in refused.stderr
        assert [fields[b"job"] for fields in entries()] == [b"1", b"2", b"3"]
    finally:
        raw.acl_deluser(ns)


def test_help_shows_how_it_is_used():
    text = " ".join(call("add", "--help").stdout.split())
    for words in (
        "Examples:",
        "streamq add orders",
        "< orders.jsonl",
        "Exit status: 0 done.",
        "--url",
        "STREAMQ_URL",
        "--json",
    ):
        assert words in text
