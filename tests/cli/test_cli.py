"""The command line, as a shell sees it: exit status, one stream for answers, one for complaints."""

from __future__ import annotations

import json

import pytest
from cli.shell import run

from streamq import Stream


def test_inspect_of_one_stream_as_json(redis_url, ns):
    with Stream(ns, redis=redis_url) as s:
        s.add_many({"n": n} for n in range(3))
        s.reject(s.read("w")[0], "no")
        s.read("w")
    done = run("inspect", ns, "--url", redis_url, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert {key: found[key] for key in ("ready", "pending", "scheduled", "dead")} == {
        "ready": 1,
        "pending": 1,
        "scheduled": 0,
        "dead": 1,
    }
    assert found["groups"]["workers"]["pending"] == 1


def test_inspect_of_all_streams(redis_url, ns, raw):
    for name in ("one", "two"):
        with Stream(f"{ns}-{name}", redis=redis_url, deployment=ns) as s:
            s.add({})
    with Stream(f"{ns}-one", redis=redis_url, deployment=ns) as s:
        s.read("w")  # this one is in the registry, the other one only in the keyspace
    done = run("inspect", "--deployment", ns, "--json", STREAMQ_URL=redis_url)
    assert done.returncode == 0
    assert [(found["name"], found["ready"]) for found in json.loads(done.stdout)] == [
        (f"{ns}-one", 0),
        (f"{ns}-two", 1),
    ]
    table = run("inspect", "--deployment", ns, "--url", redis_url).stdout
    assert f"{ns}-one" in table
    assert "ready" in table
    raw.unlink(f"{ns}:streamq:streams")


def test_a_bad_member_of_the_registry_hides_nothing(redis_url, ns, raw):
    with Stream("good", redis=redis_url, deployment=ns) as s:
        s.read("w")
    raw.sadd(f"{ns}:streamq:streams", "bad name", "\x1b[2J", "{}")
    done = run("inspect", "--deployment", ns, "--url", redis_url, "--json")
    assert [found["name"] for found in json.loads(done.stdout)] == ["good"]


@pytest.mark.covers("C66")
def test_inspect_of_what_was_never_used(redis_url, ns, raw):
    done = run("inspect", ns, "--url", redis_url)
    assert (done.returncode, done.stderr) == (0, "")
    assert raw.keys(f"*{ns}*") == []
    assert run("inspect", "--url", redis_url, "--deployment", ns).stdout == f"no streams in deployment {ns}\n"


def test_foreign_names_cannot_speak_to_the_terminal(redis_url, ns, raw):
    key = f"streamq:{{{ns}}}:stream"
    raw.xadd(key, {"job": "{}"})
    raw.xgroup_create(key, "evil\x1b[2J\x07[/red]", "0")
    done = run("inspect", ns, "--url", redis_url)
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    assert "\x07" not in done.stdout
    assert r"evil\x1b[2J\x07[/red]" in done.stdout


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("redis://127.0.0.1:1", "cannot reach"),
        ("ftp://x", "must begin with"),
        ("redis+cluster://127.0.0.1:1", "cannot reach"),
        ("redis://127.0.0.1:1?no_such_option=1", "no_such_option"),
    ],
)
def test_bad_servers_are_one_line_and_exit_2(url, words):
    done = run("inspect", "orders", "--url", url)
    assert done.returncode == 2
    assert done.stdout == ""
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_wrong_password(new_server):
    server = new_server(args=("--requirepass", "right"))
    done = run("inspect", "--url", server.url.replace("redis://", "redis://:wrong@"))
    assert done.returncode == 2
    assert "password" in done.stderr
    assert done.stderr.count("\n") == 1
    assert "wrong" not in done.stderr.replace("WRONGPASS", "")


def test_bad_names_and_usage(redis_url):
    done = run("inspect", "a{b}", "--url", redis_url)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert run("inspect", "--no-such-option").returncode == 2
    assert run("--version").stdout.startswith("streamq ")
    assert "demo" in run("--help").stdout
