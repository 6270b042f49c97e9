"""``streamq pause|resume|trim|delete|groups|consumers``, as an operator and a script see them."""

from __future__ import annotations

import json
import re
import subprocess

import pytest
from cli.shell import COMMAND, call, environ, run, run_at_terminal

from streamq import Stream, StreamOptions

ON_ONE = pytest.mark.parametrize("backend", ["valkey-9"], indirect=True)
"""For what is the command line's own, and the same on every server."""

HOUR = 3_600
HOSTILE = "\x1b[2J\x07[/red]\u202e\x9b31m"
SHOWN = r"\x1b[2J\x07[/red]\u202e\x9b31m"
UNSAFE = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]")

COMMANDS = (
    ("pause",),
    ("resume",),
    ("trim", "--yes"),
    ("delete", "--yes"),
    ("groups list",),
    ("groups drop", "workers", "--yes"),
    ("consumers list",),
    ("consumers prune", "--yes"),
)
"""All that are about a stream that is there."""


@pytest.fixture
def cli(redis_url, ns):
    """``streamq COMMAND NAME ...`` on the stream of this test, in this process, or at a terminal where somebody types."""

    def ask(command, *args, typed=None):
        words = (*command.split(), ns, *args)
        if typed is not None:
            return run_at_terminal(typed, *words, STREAMQ_URL=redis_url)
        return call(*words, STREAMQ_URL=redis_url)

    return ask


@pytest.fixture
def everything(raw, ns):
    """All that is stored of the stream, to compare."""
    return lambda: {key: raw.dump(key) for key in sorted(raw.scan_iter(match=f"*{ns}*"))}


@pytest.fixture
def say_of_a_worker(raw, ns):
    """A live worker says that it has these settings."""

    def say(name="w", group="workers", **settings):
        seconds, micros = raw.time()
        about = json.dumps({"group": group, "settings": settings})
        raw.hset(f"streamq:{{{ns}}}:workers", name, f"{seconds * 1000 + micros // 1000 + 600_000} {about}")

    return say


# --- what is common to all ------------------------------------------------------------------


@ON_ONE
@pytest.mark.covers("C5")
def test_a_stream_that_is_not_there(cli, raw, ns):
    for command, *args in COMMANDS:
        done = cli(command, *args)
        assert (done.returncode, done.stdout) == (1, ""), command
        assert done.stderr == f"streamq: there is no stream {ns}; nothing was changed\n"
    assert raw.keys(f"*{ns}*") == []


@ON_ONE
def test_a_deployment_is_another_place(stream, cli, ns):
    stream.add({})
    done = cli("pause", "--deployment", "other")
    assert (done.returncode, done.stderr) == (
        1,
        f"streamq: there is no stream {ns} in deployment other; nothing was changed\n",
    )
    assert not stream.inspect().paused


@ON_ONE
@pytest.mark.covers("F16")
def test_bad_input_is_one_line_and_exit_2(stream, cli, everything, redis_url):
    stream.add({})
    before = everything()
    for command, *args in (
        ("trim", "--keep-for", "soon"),
        ("trim", "--keep-for", "-5"),
        ("trim", "--keep-last", "-1"),
        ("trim", "--keep-last", "9" * 20),
        ("groups create", "a b"),
        ("groups create", HOSTILE),
        ("groups create", ""),
        ("consumers prune", "--min-idle", "-5"),
        ("consumers prune", "--min-idle", "1w"),
        ("consumers prune", "--min-idle", "9" * 400),
    ):
        done = cli(command, *args)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), (args, done.stderr)
        assert not UNSAFE.search(done.stderr)
    for name in ("a{b}", HOSTILE, ""):
        for command, *args in COMMANDS:
            done = call(*command.split(), name, *args, STREAMQ_URL=redis_url)
            assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), command
            assert not UNSAFE.search(done.stderr)
    assert cli("groups create", "g", "--start", "middle").returncode == 2
    assert everything() == before


def test_no_server_and_usage():
    for command, *args in (*COMMANDS, ("groups create", "g")):
        done = call(*command.split(), "orders", *args, "--url", "redis://127.0.0.1:1")
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), command
        assert "cannot reach" in done.stderr
        assert call(*command.split()).returncode == 2
        assert call(*command.split(), "orders", *args, "--no-such-option").returncode == 2


@ON_ONE
def test_a_key_of_another_type(cli, raw, ns):
    raw.set(f"streamq:{{{ns}}}:stream", "no stream")
    for command, *args in (*COMMANDS[2:], ("groups create", "g")):
        done = cli(command, *args)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), (command, done.stderr)
        assert "WRONGTYPE" in done.stderr or "not a stream" in done.stderr
    assert "of which a key holds something else" in cli("delete", "--force").stderr
    forced = json.loads(cli("delete", "--force", "--yes", "--json").stdout)
    assert forced == {"stream": ns, "keys": 1, "lost": None}


@ON_ONE
@pytest.mark.parametrize("typed", [b"n\n", b"\x03"])
def test_nothing_happens_without_a_yes(stream, cli, everything, typed):
    stream.add({})
    before = everything()
    done = cli("delete", "--force", typed=typed)
    assert (done.returncode, done.stdout) == (3, "")
    assert "with the work that it has left, which is lost (1 ready). Go on? [y/N]" in done.stderr
    assert "nothing changed" in done.stderr
    assert everything() == before


@ON_ONE
def test_without_a_terminal_a_yes_is_needed(stream, redis_url, cli, everything, ns):
    stream.add({})
    stream.ack(stream.read("w"))
    before = everything()
    for command, *args in (
        ("delete",),
        ("trim",),
        ("trim", "--keep-last", "0"),
        ("groups drop", "workers"),
        ("consumers prune", "--min-idle", "0"),
    ):
        done = cli(command, *args)
        assert (done.returncode, done.stdout) == (3, ""), command
        assert "give --yes" in done.stderr
    assert everything() == before
    done = run("delete", ns, STREAMQ_URL=redis_url)  # as a process, with </dev/null
    assert (done.returncode, done.stdout) == (3, "")


# --- pause, resume --------------------------------------------------------------------------


def test_pause_and_resume(stream, cli):
    stream.add({})
    assert cli("pause").stdout.endswith(": paused: in two seconds nothing starts any more\n")
    assert stream.inspect().paused
    assert stream.read("w") == []
    again = cli("pause")
    assert (again.returncode, again.stdout.partition(": ")[2]) == (0, "paused already\n")
    found = json.loads(cli("resume", "--json").stdout)
    assert found == {"stream": stream.name, "paused": False, "changed": True}
    assert len(stream.read("w")) == 1
    assert cli("resume").stdout.endswith(": not paused\n")
    assert json.loads(cli("pause", "--json").stdout) == {"stream": stream.name, "paused": True, "changed": True}


# --- trim -----------------------------------------------------------------------------------


@pytest.mark.covers("F15")
def test_trim_leaves_what_is_pending_and_unread(redis_url, ns, cli):
    with Stream(ns, redis=redis_url, options=StreamOptions(retention="keep")) as kept:
        kept.add_many({"n": n} for n in range(10_008))
        pending = kept.read("w", count=5)
        for _ in range(10):
            kept.ack(kept.read("w", count=1_000))
        assert kept.inspect().length == 10_008
        done = cli("trim", "--yes")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == f"{ns}: 10,000 finished entries removed, 8 left\n"
        [again] = [kept.reclaim("other", count=10, min_idle=0)]
        assert [job.payload for job in again.claimed] == [job.payload for job in pending]
        assert [job.payload["n"] for job in kept.read("w", count=10)] == [10_005, 10_006, 10_007]


def keep(stream, finished):
    stream.add_many({"n": n} for n in range(finished))
    while jobs := stream.read("w", count=1_000):
        stream.ack(jobs)


@ON_ONE
def test_trim_keeps_what_the_workers_keep(redis_url, ns, cli, say_of_a_worker, everything):
    """A kept history must not go because somebody typed trim."""
    with Stream(ns, redis=redis_url, options=StreamOptions(retention="keep")) as kept:
        keep(kept, 1_000)
        say_of_a_worker(retention="keep", keep_for=None, keep_last=None)
        before = everything()
        done = cli("trim", "--yes")
        assert (done.returncode, done.stdout) == (3, "")
        assert "keep all finished entries; nothing was removed" in done.stderr
        say_of_a_worker("v", retention="keep", keep_for=60.0, keep_last=None)
        done = cli("trim", "--yes")
        assert (done.returncode, done.stdout) == (2, "")
        assert "do not agree" in done.stderr
        say_of_a_worker("v", retention="\x1b[2J", keep_for=None, keep_last=None)
        say_of_a_worker("w", retention="\x1b[2J", keep_for=None, keep_last=None)
        done = cli("trim", "--yes")
        assert (done.returncode, done.stdout) == (2, "")
        assert not UNSAFE.search(done.stderr)
        assert {k: v for k, v in everything().items() if not k.endswith(b":workers")} == {
            k: v for k, v in before.items() if not k.endswith(b":workers")
        }

        for name in "vw":
            say_of_a_worker(name, retention="keep", keep_for=None, keep_last=700)
        asked = "remove the finished entries of stream {}, but for the newest 700, as its workers do"
        assert asked.format(ns) in cli("trim").stderr
        assert json.loads(cli("trim", "--yes", "--json").stdout) == {
            "stream": ns,
            "removed": 300,
            "left": 700,
            "keep_for": None,
            "keep_last": 700,
        }
        assert json.loads(cli("trim", "--keep-for", "1h", "--yes", "--json").stdout)["removed"] == 0
        assert cli("trim", "--keep-last", "100", "--yes").stdout == f"{ns}: 600 finished entries removed, 100 left\n"
        for name in "vw":
            say_of_a_worker(name, retention="delete", keep_for=None, keep_last=None)
        assert cli("trim", "--yes").stdout == f"{ns}: 100 finished entries removed, 0 left\n"


@ON_ONE
@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ((), ", all of them: no live worker says what is kept, with"),
        (("--keep-last", "0"), ", all of them, with"),
        (("--keep-for", "1h", "--keep-last", "0"), ", all of them, with"),
        (("--keep-for", "0"), ", all of them, with"),
        (("--keep-for", "90m"), ", but for those younger than 1h 30m, with"),
        (("--keep-last", "1000"), ", but for the newest 1,000, with"),
        (("--keep-for", "1h", "--keep-last", "9"), ", but for the newest 9, as far as they are younger than 1h, with"),
    ],
)
def test_trim_says_what_goes_before_it_goes(stream, cli, rules, words):
    stream.add({})
    done = cli("trim", *rules)
    assert (done.returncode, done.stdout) == (3, "")
    assert f"to remove the finished entries of stream {stream.name}{words} no terminal to ask at" in done.stderr


# --- groups ---------------------------------------------------------------------------------


def test_groups_are_made_listed_and_dropped(stream, cli, raw, ns):
    assert cli("groups create", "workers").stdout == "workers: made; it begins with the oldest entry\n"
    assert raw.sismember("streamq:streams", ns)
    for _ in range(3):
        stream.add({})
    assert cli("groups create", "late", "--start", "new").stdout == (
        "late: made; it begins with what is added from now on\n"
    )
    again = cli("groups create", "late", "--json")
    assert (again.returncode, json.loads(again.stdout)) == (0, {"stream": ns, "group": "late", "created": False})
    assert cli("groups create", "late").stdout == "late: there already, nothing was changed\n"
    stream.read("w")
    assert json.loads(cli("groups list", "--json").stdout) == {
        "stream": ns,
        "groups": [
            {"name": "late", "ready": 0, "exact": True, "pending": 0, "consumers": 0, "abandoned": False},
            {"name": "workers", "ready": 2, "exact": True, "pending": 1, "consumers": 1, "abandoned": False},
        ],
    }
    told = cli("groups list").stdout
    assert re.search(r"workers +│ +2 │ +1 │ +1 │", told)

    refused = cli("groups drop", "workers", "--yes")
    assert (refused.returncode, refused.stdout) == (3, "")
    assert "has work left: 2 ready, 1 pending; nothing was changed: --force" in refused.stderr
    done = cli("groups drop", "late", "--yes")
    assert (done.returncode, done.stdout, done.stderr) == (0, "late: dropped\n", "")
    unknown = cli("groups drop", "late", "--yes")
    assert (unknown.returncode, unknown.stderr) == (
        1,
        f"streamq: stream {ns} has no group late; nothing was changed\n",
    )
    forced = json.loads(cli("groups drop", "workers", "--force", "--yes", "--json").stdout)
    assert forced == {"stream": ns, "group": "workers", "dropped": True, "lost": {"ready": 2, "pending": 1}}
    assert cli("groups list").stdout.startswith(f"stream {ns} has no groups")


@ON_ONE
def test_a_group_whose_next_attempts_wait_is_not_dropped(stream, cli):
    stream.add({}, job_id="k")
    stream.retry(stream.read("w")[0], "no", delay=HOUR)
    done = cli("groups drop", "workers", "--yes")
    assert (done.returncode, done.stdout) == (3, "")
    assert "jobs that wait for their next attempt" in done.stderr
    assert done.stderr.endswith("--force drops it all the same\n")
    assert cli("groups drop", "workers", "--yes", "--force").returncode == 0


@ON_ONE
def test_who_drops_or_deletes_is_told_of_live_workers(stream, cli, say_of_a_worker):
    stream.groups.create("workers")
    say_of_a_worker("a")
    say_of_a_worker("b", group="mail")
    assert "which 1 live worker reads and will make again" in cli("groups drop", "workers").stderr
    assert "which 2 live workers read and will make again" in cli("delete").stderr


# --- consumers ------------------------------------------------------------------------------


@pytest.mark.covers("F15")
def test_prune_refuses_whoever_holds_something(stream, redis_url, ns, cli, raw):
    """DELCONSUMER would throw away what it has pending."""
    with Stream(ns, redis=redis_url, options=StreamOptions(group="mail")) as mail:
        for _ in range(10):
            stream.add({})
        held = stream.read("holds", count=10)
        mail.ack(mail.read("free", count=10))
        stream.read("empty")
        rows = json.loads(cli("consumers list", "--json").stdout)
        assert rows["stream"] == ns
        expected = [("mail", "free", 0), ("workers", "empty", 0), ("workers", "holds", 10)]
        if not any(row["name"] == "empty" for row in rows["consumers"]):
            del expected[1]  # before Redis 7.0 who got nothing is no consumer
        assert [(row["group"], row["name"], row["pending"]) for row in rows["consumers"]] == expected
        assert all(row["alive"] is False and 0 <= row["idle"] < 600 for row in rows["consumers"])
        assert re.search(r"workers │ holds +│ +10 │", cli("consumers list").stdout)

        assert cli("consumers prune").stdout == "0 removed\n"  # nobody is silent for an hour
        done = cli("consumers prune", "--min-idle", "0", "--yes")
        assert done.returncode == 1
        gone = [f"{name} of group {group}: removed\n" for group, name, pending in expected if not pending]
        assert done.stdout == "".join(gone) + f"{len(gone)} removed, 1 refused\n"
        assert done.stderr.startswith("streamq: holds of group workers holds 10 pending entries, and was not heard of")
        [info] = raw.xinfo_consumers(f"streamq:{{{ns}}}:stream", "workers")
        assert (info["name"], info["pending"]) == (b"holds", 10)
        found = json.loads(cli("consumers prune", "--min-idle", "0", "--yes", "--json").stdout)
        assert {what: [row["name"] for row in found[what]] for what in ("removed", "holding", "alive")} == {
            "removed": [],
            "holding": ["holds"],
            "alive": [],
        }
        assert stream.ack(held) == 10
        done = cli("consumers prune", "--min-idle", "0", "--group", "workers", "--yes", "--json")
        assert (done.returncode, [row["name"] for row in json.loads(done.stdout)["removed"]]) == (0, ["holds"])


@ON_ONE
def test_prune_of_one_group_and_of_the_living(stream, redis_url, ns, cli, say_of_a_worker):
    stream.add({})
    with Stream(ns, redis=redis_url, options=StreamOptions(group="mail")) as mail:
        mail.ack(mail.read("m"))
        stream.ack(stream.read("w"))
        say_of_a_worker("w")
        assert [row["alive"] for row in json.loads(cli("consumers list", "--json").stdout)["consumers"]] == [
            False,
            True,
        ]
        done = cli("consumers prune", "--min-idle", "0", "--yes", "--group", "workers")
        assert (done.returncode, done.stdout) == (0, "0 removed, 1 alive all the same\n")
        done = cli("consumers prune", "--min-idle", "0", "--yes")
        assert done.stdout == "m of group mail: removed\n1 removed, 1 alive all the same\n"
    for command in ("consumers list", "consumers prune"):
        unknown = cli(command, "--group", "none")
        assert (unknown.returncode, unknown.stderr) == (
            1,
            f"streamq: stream {ns} has no group none; nothing was changed\n",
        )
    assert cli("consumers list", "--group", "mail").stdout == f"stream {ns} has no consumers in group mail\n"


# --- delete ---------------------------------------------------------------------------------


@pytest.mark.covers("C5")
def test_delete_removes_keys_and_name(stream, cli, raw, ns):
    stream.add({}, job_id="k")
    stream.ack(stream.read("w"))
    raw.set(f"streamq:{{{ns}}}:data:sums", 1)
    assert raw.sismember("streamq:streams", ns)
    done = cli("delete", "--yes")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(rf"{ns}: deleted, \d+ keys removed\n", done.stdout)
    assert raw.keys(f"*{ns}*") == []
    assert not raw.sismember("streamq:streams", ns)
    assert cli("delete", "--yes").returncode == 1


def test_delete_is_refused_while_work_is_left(stream, cli, everything, raw, ns):
    stream.add({}, delay=HOUR)
    for _ in range(3):
        stream.add({})
    stream.reject(stream.read("w")[0])
    stream.read("w")
    before = everything()
    done = cli("delete", "--yes")
    assert (done.returncode, done.stdout) == (3, "")
    assert "has work left: 1 ready, 1 pending, 1 scheduled, 1 dead; nothing was deleted: --force" in done.stderr
    assert everything() == before
    found = json.loads(cli("delete", "--yes", "--force", "--json").stdout)
    assert found["lost"] == {"ready": 1, "pending": 1, "scheduled": 1, "dead": 1}
    assert found["keys"] >= 4
    assert raw.keys(f"*{ns}*") == []


@ON_ONE
def test_work_that_came_after_the_look_is_not_deleted(stream, cli, raw, monkeypatch, ns):
    stream.groups.create("workers")
    usual = Stream.delete

    def later(self, **options):
        stream.add({})
        return usual(self, **options)

    monkeypatch.setattr(Stream, "delete", later)
    done = cli("delete", "--yes")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (3, "", 1)
    assert done.stderr.endswith("--force deletes it all the same\n")
    assert stream.inspect().ready == 1


@ON_ONE
def test_a_delete_that_was_broken_off_goes_on(stream, cli, raw, ns):
    """What holds jobs is gone, what effects wrote and the name are left: that is no unknown stream."""
    stream.groups.create("workers")
    stream.read("w")
    raw.set(f"streamq:{{{ns}}}:data:sums", 1)
    for key in raw.keys(f"*{ns}*"):
        if b":data:" not in key:
            raw.unlink(key)
    assert cli("delete", "--yes").stdout == f"{ns}: deleted, 1 key removed\n"
    assert cli("delete", "--yes").returncode == 1


@ON_ONE
def test_yes_at_the_terminal_deletes(stream, cli, raw, ns):
    stream.groups.create("workers")
    done = cli("delete", typed=b"y\n")
    assert (done.returncode, raw.keys(f"*{ns}*")) == (0, [])
    assert f"This will delete stream {ns}. Go on? [y/N]" in done.stderr


# --- what it shows --------------------------------------------------------------------------


@ON_ONE
def test_nothing_speaks_to_the_terminal(stream, cli, raw, ns):
    key = f"streamq:{{{ns}}}:stream"
    stream.add({})
    for group in (f"evil{HOSTILE}", b"\xff\xfe"):
        raw.xgroup_create(key, group, "0")
        raw.xgroup_createconsumer(key, group, f"who{HOSTILE}")
    outputs = [
        cli(command, *args)
        for command, *args in (
            ("groups list",),
            ("groups list", "--json"),
            ("consumers list",),
            ("consumers list", "--json"),
            ("groups drop", f"evil{HOSTILE}", "--yes"),
            ("consumers prune", "--min-idle", "0", "--yes"),
            ("consumers prune", "--group", f"none{HOSTILE}"),
        )
    ]
    for done in outputs:
        assert not UNSAFE.search(done.stdout + done.stderr), done.args
        assert "Traceback" not in done.stderr
    assert f"evil{SHOWN}" in outputs[0].stdout
    assert f"who{SHOWN}" in outputs[2].stdout
    assert f"who{HOSTILE}" in [row["name"] for row in json.loads(outputs[3].stdout)["consumers"]]
    assert [done.returncode for done in outputs] == [0, 0, 0, 0, 3, 0, 1]
    assert outputs[5].stderr.count("left alone") == 2
    assert len(raw.xinfo_groups(key)) == 2


@pytest.mark.covers("F16")
def test_a_worker_with_bad_settings_does_not_start(tmp_path):
    (tmp_path / "shop.py").write_text(
        "from streamq import Stream, StreamOptions, Worker\n"
        "worker = Worker(Stream('s', options=StreamOptions(max_deliveries=0)), print)\n"
    )
    done = subprocess.run(
        [*COMMAND, "run", "shop:worker"], cwd=tmp_path, env=environ(), capture_output=True, text=True, timeout=100
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "max_deliveries must be a whole number >= 1, not 0" in done.stderr
    assert "Traceback" not in done.stderr


def test_help_sorts_the_commands_by_what_they_are_for():
    top = call("--help").stdout
    panels = [title for title in re.findall(r"╭─ ([A-Z][a-z ]+?) ─", top) if title != "Options"]
    assert panels == ["Run", "Look", "Change", "Set up and tear down"]
    assert "--install-completion" in top


def test_commands_are_completed():
    """What a shell's completion asks: the command line tells it, and loads nothing for it."""
    asked = {"_STREAMQ_COMPLETE": "complete_bash", "COMP_WORDS": "streamq con", "COMP_CWORD": "1"}
    code = "import sys; sys.argv = ['streamq']; from streamq.cli import main; main()"
    done = subprocess.run([COMMAND[0], "-c", code], env=environ(**asked), capture_output=True, text=True, timeout=100)
    assert done.stdout.split() == ["consumers"]
