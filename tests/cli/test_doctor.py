"""`streamq doctor`, as a shell sees it: exit status, what is printed where, and that the docs show what it prints."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
import redis
from cli import shell

from streamq import Stream
from streamq.keys import Keys, registry

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"

BOLD = r"\x1b\[[01]m"
"""What NO_COLOR leaves: weight is no colour."""


def run(*args, **env):
    """``streamq doctor`` with its output in a pipe."""
    return shell.call("doctor", *args, **env)


def on_terminal(*args, columns, **env):
    """What it prints on a terminal of that width."""
    done = shell.at_terminal("doctor", *args, columns=columns, rows=24, **env)
    return done.returncode, done.stdout


def test_all_is_well(new_server):
    server = new_server(appendonly=True)
    done = run("--url", server.url)
    assert (done.returncode, done.stderr) == (0, "")
    title, summary = done.stdout.splitlines()
    assert title == f"redis server 127.0.0.1:{server.port}: {server.backend.product} {server.version}"
    assert summary == "0 streams examined: 0 problems, 0 notes"
    more = run("--url", server.url, "--verbose").stdout
    assert "  ok       a script and a transaction over two keys of one tag work" in more.splitlines()


def test_a_problem_of_one_stream(redis_url, raw, ns):
    keys = Keys("orders", ns)
    raw.set(keys.dead, "x")
    raw.xadd(keys.stream, {"job": "secret"})
    raw.xgroup_create(keys.stream, "workers", "$")
    done = run("--deployment", ns, STREAMQ_URL=redis_url)
    assert (done.returncode, done.stderr) == (1, "")
    assert f"  problem  {keys.dead} holds a string, not a stream" in done.stdout.splitlines()
    assert f"           -> move it away: redis-cli RENAME '{keys.dead}' '{keys.dead}.wrong'" in done.stdout.splitlines()
    assert "secret" not in done.stdout
    assert run("other", "--deployment", ns, "--url", redis_url).returncode == 0


def test_json_for_scripts(redis_url, raw, ns):
    keys = Keys("orders", ns)
    raw.set(keys.dead, "x")
    done = run("orders", "--deployment", ns, "--url", redis_url, "--json")
    assert (done.returncode, done.stderr) == (1, "")
    report = json.loads(done.stdout)
    assert list(report) == ["server", "product", "version", "deployment", "streams", "problems", "notes", "findings"]
    assert (report["deployment"], report["streams"]) == (ns, ["orders"])
    assert {tuple(one) for one in report["findings"]} == {("check", "severity", "stream", "group", "text", "remedy")}
    counted = [one["severity"] for one in report["findings"]]
    assert (counted.count("problem"), counted.count("note")) == (report["problems"], report["notes"])
    assert {"check": "types", "severity": "problem"}.items() <= next(
        one for one in report["findings"] if one["stream"] == "orders"
    ).items()


@pytest.mark.covers("D1")
@pytest.mark.parametrize("output", ["--json", "--verbose"])
def test_the_whole_server_is_as_it_was(new_server, output):
    server = new_server()
    if not server.version.startswith("6."):  # which lets everybody
        server.stop()
        server._args = ("--enable-debug-command", "local")
        server.start()
    with Stream("orders", redis=server.url) as s:
        for n in range(30):
            s.add({"n": n}, job_id=f"j{n}")
        s.add({}, delay=60)
        for job in s.read("w", count=5):
            s.reject(job, "no")
        s.read("w", count=5)
    with redis.Redis.from_url(server.url) as client:
        client.set("foreign", "x")
        before = client.execute_command("DEBUG", "DIGEST"), sorted(client.keys())
        done = run("--url", server.url, output)
        assert (done.returncode, done.stderr) == (0, "")
        assert (client.execute_command("DEBUG", "DIGEST"), sorted(client.keys())) == before
        assert before[0] != b"0" * 40


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--url", "redis://127.0.0.1:1"), "cannot reach"),
        (("--url", "redis+cluster://127.0.0.1:1"), "cannot reach"),
        (("--url", "redis://127.0.0.1:1", "--deployment", "a b"), "deployment 'a b' is not valid"),
        (("a{b}", "--url", "redis://127.0.0.1:1"), "stream name 'a{b}' is not valid"),
        (("\x1b[2J", "--url", "redis://127.0.0.1:1"), "is not valid"),
    ],
)
def test_what_cannot_be_examined_is_one_line_and_exit_2(args, words):
    done = run(*args)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert words in done.stderr
    assert "\x1b" not in done.stderr


def test_a_wrong_password_and_none(new_server):
    server = new_server(args=("--requirepass", "right"))
    for url in (server.url, server.url.replace("redis://", "redis://:wrong@")):
        done = run("--url", url, "--json")
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert "refuses the user name or password" in done.stderr
    assert run("--url", server.url.replace("redis://", "redis://:right@")).returncode == 0


@pytest.mark.parametrize("backend", ["redis-7.0"], indirect=True)
def test_a_server_that_does_not_answer(proxy):
    proxy.freeze()
    begun = time.monotonic()
    done = run("--url", proxy.url)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert time.monotonic() - begun < 60


@pytest.mark.covers("D2")
def test_a_plain_url_of_a_cluster_does_not_succeed(new_server):
    server = new_server(args=("--cluster-enabled", "yes"))
    with redis.Redis.from_url(server.url) as client:
        client.execute_command("CLUSTER", "ADDSLOTS", *range(8192))
    for args in ((), ("a",)):
        done = run(*args, "--url", server.url)
        assert (done.returncode, done.stderr) == (1, "")
        assert "this is a node of a cluster" in done.stdout


@pytest.mark.parametrize("backend", ["valkey-9"], indirect=True)
def test_hostile_names_reach_no_terminal(redis_url, raw, ns):
    evil = "evil\x1b[2J\x07[/red]\u202e"
    keys = Keys("orders", ns)
    raw.xadd(keys.stream, {"job": "\x1b[2J"}, id="1700000000000-0")
    raw.xgroup_create(keys.stream, evil, "0")
    raw.sadd(registry(ns), evil)
    raw.hset(keys.workers, evil, "1 {}")
    done = run("--deployment", ns, "--url", redis_url, "--verbose")
    status, seen = on_terminal("--deployment", ns, "--url", redis_url, "--verbose", columns=200, NO_COLOR="1")
    for text in (done.stdout, re.sub(BOLD, "", seen)):
        assert r"evil\x1b[2J\x07[/red]\u202e" in text
        assert not set(text) & {"\x1b", "\x07", "\u202e"}
    assert (done.returncode, done.stderr, status) == (1, "", 1)


@pytest.mark.parametrize("backend", ["valkey-9"], indirect=True)
@pytest.mark.parametrize("columns", [40, 80, 200])
def test_it_fits_the_terminal(redis_url, raw, ns, columns):
    raw.set(Keys("orders", ns).dead, "x")
    status, plain = on_terminal("--deployment", ns, "--url", redis_url, "-v", columns=columns, NO_COLOR="1")
    assert status == 1
    plain = re.sub(BOLD, "", plain)
    assert "\x1b" not in plain
    assert max(map(len, plain.splitlines())) <= columns
    _, coloured = on_terminal("--deployment", ns, "--url", redis_url, "-v", columns=columns)
    assert "\x1b[1;31m" in coloured  # a problem is red
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured).split() == plain.split()


def test_several_streams_the_worst_first(redis_url, raw, ns):
    for name in ("a", "b"):
        with Stream(name, redis=redis_url, deployment=ns) as s:
            s.add({})
            s.reject(s.read("w")[0], "no")
    raw.set(Keys("b", ns).wake, "x")
    lines = run("--deployment", ns, "--url", redis_url).stdout.splitlines()
    assert [line for line in lines if line.startswith("stream ")] == ["stream b", "stream a"]
    assert lines[-1].startswith("2 streams examined: 1 problem, ")


def comparable(text, server):
    """Output without what differs from run to run: address, version, times."""
    text = text.replace(f"127.0.0.1:{server.port}", "localhost:6379")
    text = re.sub(r"(redis|valkey) \d+\.\d+\.\d+", "redis 8.2.3", text)
    return re.sub(r"\b\d[\d,.]*[dhms]( \d+[hms])?\b", "<time>", text)


@pytest.mark.covers("T2")
@pytest.mark.parametrize("backend", ["redis-8.2"], indirect=True)
def test_the_sample_in_the_docs_is_what_it_prints(new_server):
    server = new_server(appendonly=True)
    found = re.search(r"```\n\$ streamq doctor\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert found is not None
    keys = Keys("orders")
    with redis.Redis.from_url(server.url, single_connection_client=True, protocol=2) as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        client.config_set("maxmemory", "1gb")
        client.xadd(keys.stream, {"job": "{}"}, id=f"{client.time()[0] - 11_520}000-0")
        client.xgroup_create(keys.stream, "audit", "0")
        with Stream("orders", redis=server.url) as s, Stream("mail", redis=server.url) as mail:
            s.add({})
            for job in s.read("w", count=2):
                s.reject(job, "no")
            mail.add({})
            mail.read("w")
            mail.pause()
        done = run("--url", server.url)
    assert done.returncode == 1
    assert comparable(done.stdout, server) == comparable(found[1], server)
