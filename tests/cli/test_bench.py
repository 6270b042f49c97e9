"""``streamq bench``: what it tells adds up, it stays within its bounds, and leaves nothing behind. No time is asserted."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess

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

QUICK = ("--rounds", "1", "--jobs", "20", "--seconds", "1", "--concurrency", "4")
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


@pytest.mark.covers("T2")
def test_json_has_all_that_was_measured_and_nothing_is_left(run, contents, redis_url, ns):
    with Stream("orders", redis=redis_url, deployment=ns) as stream:
        stream.add({}, job_id="one")
    before = contents()
    done = run("--yes", "--json", "--rounds", "2", "--payload-bytes", "50")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert contents() == before
    assert re.fullmatch("bench-[0-9a-f]{12}", found["stream"])
    assert [part["name"] for part in found["parts"]] == PARTS
    for part in found["parts"]:
        assert (part["rounds"], part["jobs"], part["raw_jobs"]) == (2, 20, 20), part
        for figure in (part["per_second"], part["raw_per_second"], part["ratio"]):
            assert 0 < figure["low"] <= figure["median"] <= figure["high"], part
        assert part["cpu_ms_per_1000"]["median"] >= 0
        assert part["server_reads_per_job"] >= 0
    assert found["parts"][0]["server_reads_per_job"] >= 1  # each of them is a round trip
    for latency in (found["latency"], found["raw_latency"], found["ping"]):
        assert latency["samples"] == 20
        assert len(latency["quantiles"]) == 101
        assert latency["quantiles"] == sorted(latency["quantiles"])
        assert 0 < latency["p50"] <= latency["p99"] <= latency["max"]
    assert found["memory"]["jobs"] >= 40
    assert found["memory"]["bytes_per_job"] > 50
    assert found["memory"]["raw_bytes_per_job"] > 50
    assert found["notes"] == []
    assert found["settings"]["payload_bytes"] == 50
    assert found["versions"].keys() == {"streamq", "redis_py", "hiredis", "python"}
    assert found["server"]["version"]


@ON_ONE
def test_its_schema_is_that_of_the_report(run):
    msgspec.json.decode(run("--json").stdout, type=Report, strict=True)


@ON_ONE
def test_tables_and_plots(run, contents):
    done = run()
    assert (done.returncode, done.stderr) == (0, "")
    rows = dict(ROW.findall(done.stdout))
    assert {name: rows[name] for name in PARTS} == dict.fromkeys(PARTS, "20")
    assert {"add to handler", "XADD to XREADGROUP", "PING"} <= set(rows)
    for words in ("valkey 9", "redis-py", "Python 3", "payload 100 bytes", "bytes of the server for a queued job"):
        assert words in done.stdout, words
    assert done.stdout.count("█") > 10
    assert "\x1b" not in done.stdout
    assert contents() == {}


@ON_ONE
@pytest.mark.parametrize(("columns", "plots"), [(36, False), (100, True)])
def test_a_terminal_sees_progress_and_plots_that_fit(run, columns, plots):
    done = run(how=at_terminal, columns=columns, rows=30)
    assert done.returncode == 0, done.stdout
    assert "\x1b[2K" in done.stdout  # where the progress was
    assert "rounds" in done.stdout
    assert ("jobs a second" in done.stdout) == plots
    colours = r"\x1b\[[0-9;]*3[0-9]m"
    assert re.search(colours, done.stdout)
    assert not re.search(colours, run(how=at_terminal, columns=100, rows=30, NO_COLOR="1").stdout)


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


@ON_ONE
@pytest.mark.parametrize("part", ["add", "drain sync", "latency"])
@pytest.mark.parametrize(("error", "ends"), [(KeyboardInterrupt(), 130), (ServerError("no", code="ERR"), 1)])
def test_what_is_broken_off_leaves_nothing(run, contents, monkeypatch, part, error, ends):  # noqa: PLR0917
    def tell(what):
        if what == part:
            assert contents()
            raise error

    monkeypatch.setattr(bench, "_progress", lambda settings: contextlib.nullcontext(tell))
    done = run()
    assert (done.returncode, done.stdout) == (ends, "")
    assert "left behind" not in done.stderr
    assert contents() == {}


@ON_ONE
@pytest.mark.parametrize(("number", "ends"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_a_worker_runs_leaves_nothing(contents, raw, redis_url, ns, number, ends):  # noqa: PLR0917
    """Wherever it comes: as it begins, drains, ends, or while something is cleaned up."""
    command = [*COMMAND, "bench", "--jobs", "500", "--rounds", "50"]
    with subprocess.Popen(
        command,
        env=environ(STREAMQ_URL=redis_url, STREAMQ_DEPLOYMENT=ns),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        until(lambda: any(raw.hlen(key) for key in raw.scan_iter(f"{ns}:*}}:workers")), timeout=60)
        process.send_signal(number)
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=100)
    assert (process.returncode, stdout) == (ends, ""), stderr
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
