"""``streamq bench``: what it tells adds up, it stays within its bounds, and leaves nothing behind. No time is asserted."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
from pathlib import Path

import look
import msgspec
import pytest
import redis
from cli.shell import COMMAND, at_terminal, call, environ
from waiting import until

from streamq import Stream
from streamq.bench.report import Report
from streamq.cli import bench, bench_report
from streamq.errors import ServerError

ON_ONE = pytest.mark.parametrize("backend", ["valkey-9"], indirect=True)
"""For what is the command line's own, and the same on every server."""

QUICK = ("--rounds", "1", "--jobs", "10", "--seconds", "60")
"""Ten jobs end each part, however slow the machine is."""
PARTS = ["add", "add_many", "drain async", "drain sync", "drain batch"]
ROW = re.compile(r"│ (.+?) +│ +([\d,]+) │")


@pytest.fixture
def run(redis_url, ns):
    """The command, in a deployment of its own."""

    def start(*words, how=call, **options):
        return how("bench", *QUICK, *words, STREAMQ_URL=redis_url, STREAMQ_DEPLOYMENT=ns, **options)

    return start


@pytest.fixture
def contents(raw, ns):
    """All keys of the deployment, with what they hold."""
    return lambda: {key: raw.dump(key) for key in raw.scan_iter(f"*{ns}*")}


def test_json_has_all_that_was_measured_and_nothing_is_left(run, contents, redis_url, ns):
    with Stream("orders", redis=redis_url, deployment=ns) as stream:
        stream.add({}, job_id="one")
    before = contents()
    done = run("--yes", "--json", "--rounds", "2", "--payload-bytes", "50")
    assert (done.returncode, done.stderr) == (0, "")
    msgspec.json.decode(done.stdout, type=Report, strict=True)
    found = json.loads(done.stdout)
    assert contents() == before
    assert re.fullmatch("bench-[0-9a-f]{12}", found["stream"])
    assert [part["name"] for part in found["parts"]] == PARTS
    for part in found["parts"]:
        assert (part["rounds"], part["jobs"], part["raw_jobs"]) == (2, 10, 10), part
        for figure in (part["per_second"], part["raw_per_second"], part["ratio"]):
            assert 0 < figure["low"] <= figure["median"] <= figure["high"], part
        assert part["cpu_ms_per_1000"]["median"] >= 0
        assert part["server_reads_per_job"] >= 0
    assert found["parts"][0]["server_reads_per_job"] >= 1  # each of them is a round trip
    for latency in (found["latency"], found["raw_latency"], found["ping"]):
        assert latency["samples"] == 10
        assert len(latency["quantiles"]) == 101
        assert latency["quantiles"] == sorted(latency["quantiles"])
        assert 0 < latency["p50"] <= latency["p99"] <= latency["max"]
    assert found["memory"]["jobs"] >= 20
    assert found["memory"]["bytes_per_job"] > 50
    assert found["memory"]["raw_bytes_per_job"] > 50
    assert found["notes"] == []
    assert found["settings"]["payload_bytes"] == 50
    assert found["versions"].keys() == {"streamq", "redis_py", "hiredis", "python"}
    assert found["server"]["version"]


@ON_ONE
def test_tables_and_plots(run, contents):
    done = run()
    assert (done.returncode, done.stderr) == (0, "")
    rows = dict(ROW.findall(done.stdout))
    assert {name: rows[name] for name in PARTS} == dict.fromkeys(PARTS, "10")
    assert {"add to handler", "XADD to XREADGROUP", "PING"} <= set(rows)
    for words in ("valkey 9", "redis-py", "Python 3", "payload 100 bytes", "bytes of the server for a queued job"):
        assert words in done.stdout, words
    assert done.stdout.count("█") > 10
    assert "\x1b" not in done.stdout
    assert contents() == {}


def shape(text):
    """Without figures, the names of servers and versions, and what is drawn."""
    text = re.sub(r"redis server \S+|(redis|valkey) [\d.]+", "SERVER", text)
    text = re.sub(r"streamq \S+, redis-py \S+, hiredis \S+, Python \S+", "VERSIONS", text)
    words = re.sub(r"[ ▁-▏━─┏┓┗┛┡┩┳╇┴└┘│┃]+", " ", re.sub(r"[\d.,]*\d", "N", text))
    return [line.strip() for line in words.split("\n") if line.strip()]


@ON_ONE
@pytest.mark.covers("T2")
def test_the_docs_show_what_is_printed(run):
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text("utf-8")
    [block] = re.findall(r"```\n\$ streamq bench\n(.*?)```", page, re.DOTALL)
    printed = run(COLUMNS="100").stdout
    assert shape(printed) == shape(block), f"put into the docs, as a long run prints it:\n{printed}"


@ON_ONE
@pytest.mark.parametrize(("columns", "is_wide", "surroundings"), [(36, False, {"NO_COLOR": "1"}), (100, True, {})])
def test_a_terminal_sees_progress_and_what_fits(run, columns, is_wide, surroundings):
    done = run(how=at_terminal, columns=columns, rows=30, **surroundings)
    assert done.returncode == 0, done.stdout
    assert "\x1b[2K" in done.stdout  # where the progress was
    assert "rounds" in done.stdout
    assert ("━┳━" in done.stdout) == is_wide  # else each row by itself
    assert bool(re.search(r"\x1b\[[0-9;]*3[0-9]m", done.stdout)) == (not surroundings)


def test_a_terminal_without_unicode_gets_plots_of_ascii():
    assert bench_report._bar(0.5, 10, is_utf=False) == "#####     "
    assert bench_report._bar(1 / 16, 4, is_utf=True) == "▎   "
    assert list(bench_report._curve([0, 0.5, 1], "_=")) == ["  =", "  =", " ==", " =="]


@ON_ONE
def test_beside_other_streams_it_asks(run, contents, redis_url, ns):
    with Stream("orders", redis=redis_url, deployment=ns) as stream:
        stream.add({}, job_id="one")
    before = contents()
    done = run()
    assert (done.returncode, done.stdout) == (3, "")
    assert "a stream that others may use (orders)" in done.stderr
    assert "--yes" in done.stderr
    done = run(how=at_terminal, columns=200, rows=30, typed=b"n\n")
    assert done.returncode == 3
    assert "cancelled, nothing changed" in done.stdout
    assert contents() == before


@ON_ONE
def test_what_the_user_may_not_ask_is_left_out_and_said(raw, redis_url, ns):
    """Who may what an operator and a worker may, can measure; without INFO and MEMORY less is told."""
    granted = set()
    for role in ("operator", "worker"):
        line = call("acl", role, "--user", "u", "--deployment", ns).stdout
        granted.update(word for word in line.split() if word.startswith("+"))
    try:
        told = []
        for words in (granted | {"+ping"}, granted - {"+info", "+memory|usage"}):
            raw.execute_command("ACL", "SETUSER", ns, "reset", "on", ">pw", f"~{ns}:*", "-@all", *sorted(words))
            done = call("bench", *QUICK, "--json", "--url", look.as_user(redis_url, ns, "pw"), "--deployment", ns)
            assert done.returncode == 0, done.stderr
            told.append(json.loads(done.stdout))
        whole, part = told
        assert whole["notes"] == []
        assert {note.partition(":")[0] for note in part["notes"]} == {"no round trip", "no memory", "no reads a job"}
        assert part["ping"] is part["memory"] is part["parts"][0]["server_reads_per_job"] is None
        assert part["parts"][4]["raw_jobs"] == 10
        for missing in ("srem", "xautoclaim", "xadd"):
            raw.execute_command("ACL", "SETUSER", ns, f"-{missing}")
            done = call("bench", *QUICK, "--url", look.as_user(redis_url, ns, "pw"), "--deployment", ns)
            assert (done.returncode, done.stdout) == (2, "")
            assert missing in done.stderr.lower()
            assert "left behind" not in done.stderr
            assert raw.keys(f"{ns}:*") == []
            raw.execute_command("ACL", "SETUSER", ns, f"+{missing}")
    finally:
        raw.execute_command("ACL", "DELUSER", ns)


@ON_ONE
def test_without_redis_py_beside_it_measures_all_the_same(run, monkeypatch):
    def refuses(settings):
        raise redis.exceptions.NoPermissionError("this user has no permissions to run the 'command' command")

    monkeypatch.setattr("streamq.bench.raw.client_of", refuses)
    done = run()
    assert done.returncode == 0, done.stderr
    assert "not measured: nothing of redis-py to compare with: the user lacks a permission" in done.stdout
    assert "XADD to XREADGROUP" not in done.stdout
    assert ROW.findall(done.stdout)[0] == ("add", "10")


@ON_ONE
def test_where_memory_is_short_it_asks_and_a_full_server_is_exit_1(new_server):
    server = new_server()
    with redis.Redis.from_url(server.url) as raw:
        raw.config_set("maxmemory", 1)
        done = call("bench", *QUICK, "--url", server.url)
        assert done.returncode == 3
        assert "of maxmemory" in done.stderr
        done = call("bench", *QUICK, "--url", server.url, "--yes")
        assert done.returncode == 1, done.stderr
        assert "maxmemory" in done.stderr
        assert raw.keys() == []


def interrupt():
    signal.raise_signal(signal.SIGINT)


def terminate():
    signal.raise_signal(signal.SIGTERM)


def refuse():
    raise ServerError("no", code="ERR")


@ON_ONE
@pytest.mark.parametrize("part", ["add", "drain sync", "latency"])
@pytest.mark.parametrize(("end", "status"), [(interrupt, 130), (terminate, 143), (refuse, 1)])
def test_what_is_broken_off_leaves_nothing(run, contents, monkeypatch, part, end, status):  # noqa: PLR0917
    def tell(what):
        if what == part:
            assert contents()
            end()

    monkeypatch.setattr(bench, "_progress", lambda settings: contextlib.nullcontext(tell))
    done = run()
    assert (done.returncode, done.stdout) == (status, "")
    assert "left behind" not in done.stderr
    assert contents() == {}


@ON_ONE
def test_ctrl_c_while_a_worker_runs_leaves_nothing(contents, raw, redis_url, ns):
    """Wherever it comes: as it begins, drains, ends, or while something is cleaned up; and given twice."""
    command = [*COMMAND, "bench", "--jobs", "500", "--rounds", "50"]
    with subprocess.Popen(
        command,
        env=environ(STREAMQ_URL=redis_url, STREAMQ_DEPLOYMENT=ns),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        until(lambda: any(raw.hlen(key) for key in raw.scan_iter(f"{ns}:*}}:workers")), timeout=60)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=100)
    assert (process.returncode, stdout) == (130, ""), stderr
    assert "Traceback" not in stderr
    assert contents() == {}


@ON_ONE
def test_what_a_lost_server_keeps_is_named(new_server, monkeypatch):
    server = new_server()

    def tell(what):
        if what == "drain async":
            server.kill()

    monkeypatch.setattr(bench, "_progress", lambda settings: contextlib.nullcontext(tell))
    done = call("bench", *QUICK, "--url", server.url)
    assert (done.returncode, done.stdout) == (2, "")
    said = re.search(r"stream (bench-\w{12}) was left behind: streamq delete \1 --force removes it", done.stderr)
    assert said, done.stderr


@ON_ONE
def test_what_a_killed_one_leaves_is_seen_and_deleted_by_hand(run, contents, redis_url, ns, monkeypatch):
    def tell(what):
        if what == "drain sync":
            monkeypatch.setattr(Stream, "delete", lambda stream, force: None)  # as if it never came so far
            raise KeyboardInterrupt

    monkeypatch.setattr(bench, "_progress", lambda settings: contextlib.nullcontext(tell))
    run()
    monkeypatch.undo()
    assert any(b":data:raw" in key for key in contents())
    where = {"STREAMQ_URL": redis_url, "STREAMQ_DEPLOYMENT": ns}
    [left] = json.loads(call("inspect", "--json", **where).stdout)
    assert left["name"].startswith("bench-")
    assert call("delete", left["name"], "--force", "--yes", **where).returncode == 0
    assert contents() == {}


@ON_ONE
@pytest.mark.parametrize(
    "words",
    [
        ("--jobs", "9"),
        ("--jobs", "1000001"),
        ("--seconds", "0"),
        ("--seconds", "61"),
        ("--rounds", "0"),
        ("--concurrency", "1001"),
        ("--prefetch", "-1"),
        ("--payload-bytes", "10"),
        ("--jobs", "100000", "--payload-bytes", "100000"),
        ("--deployment", "a{b}"),
        ("--url", "ftp://x"),
        ("--url", "redis://127.0.0.1:1"),
    ],
    ids=" ".join,
)
def test_bad_options_are_exit_2(run, contents, words):
    done = run(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr
    assert contents() == {}


@ON_ONE
def test_its_time_is_bounded_too(run, contents):
    """A part that has no time does one thing a round."""
    found = json.loads(run("--json", "--jobs", "100000", "--seconds", "0.05").stdout)
    assert all(1 <= part["jobs"] <= 100_000 for part in found["parts"])
    assert found["parts"][0]["jobs"] < 100_000
    assert contents() == {}
