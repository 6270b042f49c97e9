"""``streamq migrate``: what it says, asks and answers, and that it changes nothing when it should not."""

from __future__ import annotations

import json
from pathlib import Path

import look
import pytest
import redis
from cli import shell
from migrations.previous import fill, previous

import streamq
from streamq.keys import Keys, migration_lock, migration_record


@pytest.fixture
def cli(redis_url, ns):
    """Run a subcommand in this process, for the test's own deployment."""

    def call(*args, deployment=ns):
        return shell.call("migrate", *args, "--url", redis_url, "--deployment", deployment)

    return call


@pytest.fixture
def old(redis_url, ns):
    with previous(redis_url, "mail", ns, lease=900) as stream:
        fill(stream)
        yield stream


@pytest.fixture
def applied(old, cli):
    assert cli("apply", "--yes").returncode == 0
    return old


def commands(monitor, raw):
    """Names of all that the server was sent meanwhile, but for what connecting takes."""
    raw.echo("the end")
    names = set()
    while "the end" not in (command := monitor.next_command()["command"]):
        names.add(command.split()[0])
    return names - {"CLIENT", "SELECT"}


def read_only(cli, raw, ns):
    """All that changes nothing: the outcome of each."""
    before = look.dumps(raw, ns)
    done = {name: cli(*name.split()) for name in ("list", "status", "plan", "verify", "cleanup", "list --json")}
    assert look.dumps(raw, ns) == before
    return done


def test_a_fresh_store_has_nothing_to_do(cli, raw, ns):
    done = read_only(cli, raw, ns)
    assert [each.returncode for each in done.values()] == [0] * 6
    assert done["list"].stdout == "001_hash_tags: up to date: there are no keys of the previous layout\n"
    assert done["cleanup"].stdout == "no migration is applied: nothing to clean\n"
    assert cli("apply").stdout == done["list"].stdout
    assert cli("cleanup", "001_hash_tags").returncode == 3
    assert look.dumps(raw, ns) == {}


@pytest.mark.covers("M1", "M10")
@pytest.mark.usefixtures("old")
def test_what_is_pending_is_said(cli, raw, ns):
    done = read_only(cli, raw, ns)
    codes = {"list": 0, "status": 3, "plan": 0, "verify": 1, "cleanup": 0, "list --json": 0}
    assert {name: each.returncode for name, each in done.items()} == codes
    assert "pending: " in done["status"].stdout
    assert "nobody is migrating" in done["status"].stdout
    assert "  mail: 6 scheduled, 11 entries, " in done["plan"].stdout
    assert "groups other, workers" in done["plan"].stdout
    [told] = json.loads(done["list --json"].stdout)
    assert (told["name"], told["state"], told["streams"]) == ("001_hash_tags", "pending", 1)
    refused = cli("cleanup", "001_hash_tags", "--yes")
    assert refused.returncode == 3
    assert "not applied yet" in refused.stderr
    assert f"streamq migrate apply --deployment {ns}" in refused.stderr


@pytest.mark.covers("M5", "M10", "M8")
def test_apply_verify_and_cleanup(old, cli, raw, redis_url, ns):
    done = cli("apply", "--yes")
    assert done.returncode == 0
    assert "001_hash_tags: applied, 1 stream" in done.stdout
    assert f"streamq migrate cleanup 001_hash_tags --deployment {ns}" in done.stdout
    with redis.Redis.from_url(redis_url) as watching, watching.monitor() as monitor:
        again = cli("apply")
        assert (again.returncode, commands(monitor, raw)) == (0, {"HELLO", "HGETALL", "SCAN"})
    assert ", up to date; left for cleanup: " in again.stdout
    old.resume()
    for n in range(3):
        old.add({}, delay=60 + n)
    verified = cli("verify")
    assert verified.returncode == 0
    assert "  mail: 3 scheduled" in verified.stdout
    assert "once no process of the previous version runs any more: " in verified.stdout
    before = look.dumps(raw, ns)
    listed = cli("cleanup")
    assert (listed.returncode, look.dumps(raw, ns)) == (0, before)
    assert "001_hash_tags: would remove " in listed.stdout
    cleaned = cli("cleanup", "001_hash_tags", "--yes", "--json")
    [stream] = json.loads(cleaned.stdout)["streams"]
    assert (cleaned.returncode, stream["scheduled"], stream["removed"] > 0) == (0, 3, True)
    assert cli("cleanup", "001_hash_tags", "--yes").stdout == "001_hash_tags: nothing to clean\n"
    assert cli("verify").stdout.endswith("verified: all is well\n")


@pytest.mark.covers("M8")
@pytest.mark.usefixtures("applied")
def test_verify_finds_a_time_without_an_entry(cli, raw, ns):
    raw.zadd(Keys("mail", ns).scheduled, {"/lost\x1b[2J": 1})
    done = cli("verify")
    assert done.returncode == 1
    assert "  defect: 1 times in " in done.stdout
    assert "\x1b" not in done.stdout


@pytest.mark.covers("M10")
def test_a_name_that_there_is_not(cli):
    done = cli("cleanup", "002_else")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "there is no migration '002_else': there is 001_hash_tags" in done.stderr


@pytest.mark.covers("M11")
@pytest.mark.parametrize("backend", ["valkey-9"], indirect=True)
@pytest.mark.usefixtures("old")
@pytest.mark.parametrize("typed", [b"no\n", b"\n", b"\x04"])
def test_only_yes_goes_on(redis_url, raw, ns, typed):
    before = look.dumps(raw, ns)
    done = shell.run_at_terminal(typed, "migrate", "apply", "--url", redis_url, "--deployment", ns)
    assert done.returncode == 3
    assert "This will move 36 items of 1 stream to the present layout. Go on? [y/N]" in done.stderr
    assert "not confirmed: cancelled, nothing changed" in done.stderr
    assert look.dumps(raw, ns) == before


@pytest.mark.covers("M11")
@pytest.mark.parametrize("backend", ["valkey-9"], indirect=True)
@pytest.mark.usefixtures("old")
def test_yes_at_a_terminal_and_nobody_to_ask(redis_url, cli, raw, ns):
    before = look.dumps(raw, ns)
    refused = cli("apply")
    assert (refused.returncode, look.dumps(raw, ns)) == (3, before)
    done = shell.run_at_terminal(b"YES\n", "migrate", "apply", "--url", redis_url, "--deployment", ns)
    assert (done.returncode, "applied" in done.stdout) == (0, True)
    refused = cli("cleanup", "001_hash_tags")
    assert (refused.returncode, "give --yes" in refused.stderr) == (3, True)


@pytest.mark.covers("M12")
@pytest.mark.usefixtures("old")
def test_somebody_else_holds_the_lock(cli, raw, ns):
    key = migration_lock(ns)
    raw.set(key, "host:1:a", px=30_000)
    before = look.dumps(raw, ns)
    for args in (["apply", "--yes"], ["unlock"]):
        done = cli(*args)
        assert (done.returncode, done.stderr.count("\n")) == (3, 1)
        assert "host:1:a" in done.stderr
    assert look.dumps(raw, ns) == before
    assert "host:1:a holds the lock, for " in cli("status").stdout
    assert cli("unlock", "--yes").stdout == "host:1:a does not hold the lock any more\n"
    assert cli("unlock").stdout == "nobody holds the lock\n"
    assert cli("apply", "--yes").returncode == 0
    raw.set(key, "host:1:a", px=30_000)
    assert cli("cleanup", "001_hash_tags", "--yes").returncode == 3
    raw.delete(key)
    assert not raw.exists(key)


@pytest.mark.covers("M13")
def test_what_cannot_be_moved_ends_with_1(old, cli, raw, ns):
    dead = old._spec.keys.dead
    raw.unlink(dead)
    raw.set(dead, "x")
    planned = cli("plan")
    assert planned.returncode == 1
    assert f"wrong: {dead} holds a string, not a stream" in planned.stdout
    done = cli("apply", "--yes")
    assert done.returncode == 1
    assert f"{dead} holds a string, not a stream" in done.stderr
    assert not raw.exists(migration_record(ns, "001_hash_tags"))
    raw.unlink(dead)
    assert cli("apply", "--yes").returncode == 0


@pytest.mark.covers("M6")
def test_an_old_worker_that_is_alive_refuses_cleanup(applied, cli):
    applied.resume()
    applied.add({})
    applied.read("w")
    done = cli("cleanup", "001_hash_tags", "--yes")
    assert (done.returncode, "is alive" in done.stderr) == (3, True)


@pytest.mark.covers("M1")
@pytest.mark.usefixtures("old")
@pytest.mark.parametrize("backend", ["valkey-9"], indirect=True)
def test_add_and_run_end_with_3(redis_url, raw, ns, tmp_path):
    done = shell.call("add", "mail", "{}", "--url", redis_url, "--deployment", ns)
    assert (done.returncode, f"Run: streamq migrate apply --deployment {ns}" in done.stderr) == (3, True)
    (tmp_path / "jobs.py").write_text(
        "from streamq import Stream, Worker\n"
        f"worker = Worker(Stream('mail', redis={redis_url!r}, deployment={ns!r}), print)\n"
    )
    before = look.dumps(raw, ns)
    done = shell.run("run", "jobs:worker", PYTHONPATH=f"{tmp_path}:{Path(streamq.__file__).parents[1]}")
    assert (done.returncode, f"Run: streamq migrate apply --deployment {ns}" in done.stderr) == (3, True)
    assert look.dumps(raw, ns) == before


def test_a_deployment_that_is_no_name(cli):
    done = cli("list", deployment="a:b")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
