"""``streamq inspect``, as a shell and a terminal see it."""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import look
import msgspec
import pytest
import redis
from cli.screen import seat
from cli.shell import at_terminal
from typer.testing import CliRunner
from waiting import until

from streamq import FoundJob, FullSnapshot, Stream, StreamOptions, WorkerSettings
from streamq.cli import app

COMMAND = [sys.executable, "-c", "from streamq.cli import main; main()"]
ROOT = Path(__file__).parent.parent.parent
HOSTILE = b'\x1b[2J\x1b]0;x\x07\x00\xff\xe2\x80\x8f\xe2\x80\xae\xc2\x9b31m[red]<script>alert("x")</script>'
"""Escapes that clear the screen and set a title, NUL, no UTF-8, marks that turn writing around, C1, markup, HTML."""

ONE_BACKEND = pytest.mark.parametrize("backend", ["valkey-9"], indirect=True)
"""What is printed does not depend on the server."""


def environment(**env):
    environ = {key: value for key, value in os.environ.items() if not key.startswith("STREAMQ_")}
    return {name: value for name, value in environ.items() if name not in {"COLUMNS", "NO_COLOR"}} | env


def run(*args, **env):
    """Run ``streamq inspect`` with no terminal."""
    return subprocess.run(
        [*COMMAND, "inspect", *args], env=environment(**env), stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=100,
    )  # fmt: skip


class Printed(NamedTuple):
    """As of a process."""

    returncode: int
    stdout: str
    stderr: str


def call(*args, **env):
    """As `run`, in this process: quicker, where it is only about what is printed."""
    done = CliRunner().invoke(app, ["inspect", *args], env={"COLUMNS": "200", **env})
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return Printed(done.exit_code, done.stdout, done.stderr)


def in_terminal(*args, columns, rows, **env):
    """Run it in a terminal of that size; what the terminal got."""
    done = at_terminal("inspect", *args, columns=columns, rows=rows, **env)
    assert done.returncode == 0
    return done.stdout


def without_colours(text):
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def beat(raw, s, consumer, *, host, pid, ago_s=0, group="workers"):
    """A sign of life, as a `Worker` left it so long ago."""
    seconds, micros = raw.time()
    about = {
        "host": host, "pid": pid, "version": "1.0.0", "started_at": 1_700_000_000_000, "concurrency": 16, "group": group,
        "settings": WorkerSettings.of(StreamOptions(group=group, groups=("workers", "audit"))),
    }  # fmt: skip
    at = seconds * 1000 + micros // 1000 - ago_s * 1000
    raw.hset(s._spec.keys.workers, consumer, f"{at} ".encode() + msgspec.json.encode(about))


def test_json_is_the_whole_snapshot(stream, redis_url):
    stream.add_many([{}] * 3)
    stream.reject(stream.read("w")[0])
    done = run(stream.name, "--url", redis_url, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found = msgspec.json.decode(done.stdout, type=FullSnapshot)
    assert (found.ready, found.dead, found.dead_letters.reasons) == (2, 1, {"rejected": 1})
    assert found.condition == "warning"


@pytest.mark.covers("C66")
def test_what_was_never_used(stream, redis_url, raw):
    done = run(stream.name, "--url", redis_url)
    assert (done.returncode, done.stderr) == (0, "")
    assert "never_used" in done.stdout
    assert json.loads(run(stream.name, "--url", redis_url, "--json").stdout)["groups"] == {}
    assert raw.keys(f"*{stream.name}*") == []


@ONE_BACKEND
def test_rates_of_two_samples(stream, redis_url):
    stream.ack(stream.read("w"))
    done = call(stream.name, "--url", redis_url, "--interval", "0.1", "--json")
    assert json.loads(done.stdout)["groups"]["workers"]["rates"]["done"] == 0
    assert "per second" in call(stream.name, "--url", redis_url, "--interval", "0.1").stdout
    assert "per second" not in call(stream.name, "--url", redis_url).stdout
    assert call("--url", redis_url, "--interval", "0.1").stdout.split("\n")[0].split()[7:9] == ["in/s", "done/s"]
    assert call("--url", redis_url, "--interval", "-1").returncode == 2


def test_where_a_job_is(stream, redis_url):
    stream.add({}, job_id="order:17")
    stream.retry(stream.read("w")[0], "no such customer", delay=5_400)
    done = call(stream.name, "--job", "order:17", "--url", redis_url)
    assert (done.returncode, done.stderr) == (0, "")
    for words in ("order:17", "scheduled", "attempt 2", "error: no such customer", "due in 1h"):
        assert words in done.stdout
    found = call(stream.name, "--job", "order:17", "--url", redis_url, "--json")
    assert msgspec.json.decode(found.stdout, type=FoundJob).groups[0].state == "scheduled"


@ONE_BACKEND
def test_a_job_that_nobody_knows_is_exit_1(stream, redis_url):
    done = call(stream.name, "--job", "nope", "--url", redis_url)
    assert (done.returncode, done.stderr) == (1, "")
    assert "not known: it was never added" in done.stdout
    assert call(stream.name, "--job", "nope", "--url", redis_url, "--json").returncode == 1


@ONE_BACKEND
@pytest.mark.parametrize("args", [("--job", "x"), ("orders", "--job", ""), ("orders", "--job", "a\x1b"), ("a b",)])
def test_bad_input_is_one_line_and_exit_2(redis_url, args):
    done = run(*args, "--url", redis_url)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "\x1b" not in done.stderr


@ONE_BACKEND
def test_a_stream_that_cannot_be_looked_at_hides_no_other(redis_url, raw, ns):
    for name in ("bad", "good"):
        with Stream(name, redis=redis_url, deployment=ns) as s:
            s.read("w")
    raw.set(f"{ns}:streamq:{{{ns}:bad}}:meta", "x")
    for more in ((), ("--json",), ("--interval", "0.01")):
        done = call("--deployment", ns, "--url", redis_url, *more)
        assert (done.returncode, done.stderr.count("\n")) == (1, 1)
        assert "stream bad cannot be looked at" in done.stderr
        assert "good" in done.stdout


# --- what others wrote ---------------------------------------------------------------------------


def is_harmless(text):
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2066-\u2069]", text)
    return True


@pytest.fixture
def hostile(stream, raw):
    """A stream in which everything that others may write is hostile."""
    keys = stream._spec.keys
    raw.xadd(keys.stream, {"job": HOSTILE})
    raw.xgroup_create(keys.stream, HOSTILE, "0")
    raw.xgroup_create(keys.stream, "workers", "0")
    raw.xreadgroup(HOSTILE, HOSTILE, {keys.stream: ">"})
    entry = {"sq:id": "j", "sq:errors": msgspec.json.encode([HOSTILE.decode("utf-8", "replace")])}
    raw.xadd(keys.stream, {"job": HOSTILE + b"x" * (20 << 20), **entry})
    letter = {f"dead:{name}": HOSTILE for name in ("reason", "error", "group", "consumer", "source", "at")}
    raw.xadd(keys.dead, {**letter, "dead:job_id": "j"})
    about = {"host": HOSTILE.decode("utf-8", "replace"), "version": HOSTILE.decode("utf-8", "replace"), "pid": 1}
    raw.hset(keys.workers, mapping={HOSTILE: b"1 " + msgspec.json.encode(about)})
    return stream


@pytest.mark.parametrize("options", [None, (), ("--show-payloads",), ("--job", "j", "--show-payloads")])
def test_nothing_that_others_wrote_speaks_to_the_terminal(hostile, redis_url, options):
    args = () if options is None else (hostile.name, *options)
    done = call(*args, "--url", redis_url)
    assert (done.returncode, done.stderr) == (0, "")
    assert is_harmless(done.stdout)
    assert r"\x1b[2J\x1b]0;x\x07\x00\xff\u200f\u202e\x9b31m[red]<script>" in done.stdout or options is None
    assert len(done.stdout) < 20_000 or options is None  # else of the streams of other tests, too
    as_json = call(*args, "--url", redis_url, "--json")
    assert is_harmless(as_json.stdout)
    assert json.loads(as_json.stdout)
    assert len(as_json.stdout) < 30_000 or options is None


@ONE_BACKEND
def test_payloads_only_when_asked_for(stream, redis_url):
    stream.groups.create("workers")
    stream.add({"card": "visa-secret"}, job_id="j")
    for args in ((stream.name,), (stream.name, "--job", "j"), ()):
        for more in ((), ("--json",)):
            assert "visa" not in call(*args, *more, "--url", redis_url).stdout
    for args in ((stream.name,), (stream.name, "--job", "j")):
        for more in ((), ("--json",)):
            assert "visa-secret" in call(*args, *more, "--show-payloads", "--url", redis_url).stdout


# --- terminals -----------------------------------------------------------------------------------


@ONE_BACKEND
@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (200, 50), (40, 24)])
def test_lines_fit_the_terminal(stream, raw, redis_url, columns, rows):
    stream.add_many([{}] * 1_234)
    stream.groups.create("audit-of-everything-that-was-ever-ordered")
    stream.reject(stream.read("shop-1.example.com-4711-0f3a9c7e", count=3)[0], "no such customer " * 20)
    beat(raw, stream, "shop-1.example.com-4711-0f3a9c7e", host="shop-1.example.com", pid=4711)
    job_id = stream.add({}, delay=60).job_id
    for args in ((), (stream.name,), (stream.name, "--interval", "0.01"), (stream.name, "--job", job_id)):
        got = in_terminal(*args, "--url", redis_url, columns=columns, rows=rows)
        assert "\x1b[" in got  # colours
        lines = without_colours(got).split("\n")
        assert max(len(line) for line in lines) <= columns
        assert "Traceback" not in got


@ONE_BACKEND
def test_no_colours_where_none_are_wanted_and_plain_text_in_a_pipe(stream, redis_url):
    stream.add_many([{}] * 3)
    for args in ((), (stream.name,)):
        assert "\x1b[3" not in in_terminal(*args, "--url", redis_url, columns=80, rows=24, NO_COLOR="1")
        assert "\x1b" not in run(*args, "--url", redis_url).stdout
        assert "\x1b" not in run(*args, "--url", redis_url, COLUMNS="80").stdout


@pytest.mark.covers("C52")
def test_a_user_that_may_only_read(stream, raw, redis_url):
    stream.add_many([{}] * 3)
    stream.read("w")
    name, parts = f"u{secrets.token_hex(6)}", urlsplit(redis_url)
    raw.execute_command("ACL", "SETUSER", name, "on", ">pw", "~*", "+@read")
    try:
        url = parts._replace(netloc=f"{name}:pw@{parts.hostname}:{parts.port}").geturl()
        for args in ((), (stream.name,), (stream.name, "--job", "1-1")):
            done = run(*args, "--url", url)
            assert (done.returncode, done.stderr) == ("--job" in args, "")
        assert "not shown: server's time (TIME)" in run(stream.name, "--url", url).stdout
    finally:
        raw.execute_command("ACL", "DELUSER", name)


# --- the docs ------------------------------------------------------------------------------------


def same(text):
    """Output without what differs from run to run: ages, times, entry IDs, bytes, and the widths that come of them."""
    text = re.sub(r"\b\d+(\.\d)?[smhd]( \d+[smh])?\b", "AGE", text)
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ", "TIME", text)
    text = re.sub(r"\b\d{13}-\d+\b", "ID", text)
    text = re.sub(r"memory +about [^)]*\)", "memory MEMORY", text)
    text = re.sub("[▁-█]+", "BARS", re.sub("─+", "─", text))
    text = re.sub(r"\s+", " ", text)
    return text.strip()


@pytest.fixture
def night(new_server):
    """What the docs show: at night the only worker of a group has died."""
    server = new_server()
    with (
        redis.Redis.from_url(server.url, single_connection_client=True, protocol=2) as raw,
        Stream("mail", redis=server.url) as mail,
        Stream("orders", redis=server.url) as orders,
        Stream("orders", redis=server.url, options=StreamOptions(group="audit")) as audit,
    ):
        mail.groups.create("workers")
        for group in ("audit", "workers"):
            orders.groups.create(group)
        key, now = orders._spec.keys.stream, raw.time()[0] * 1000
        for n, age_s in enumerate((2_400, 2_400, 1_500, 960, 955, 950)):
            raw.xadd(key, {"job": "{}", "sq:id": f"order:{n}"}, id=f"{now - age_s * 1000}-{n}")
        audit.ack(audit.read("shop-3-9-c4d1", count=6))
        done, dead, held = orders.read("shop-2-44-b01c", count=3)
        orders.ack(done)
        orders.reject(dead, "no such customer")
        silent = ("IDLE", 930_000, "RETRYCOUNT", 3, "JUSTID")
        look.call(raw, "XCLAIM", key, "workers", "shop-2-44-b01c", 0, held.entry_id, *silent)
        beat(raw, orders, "shop-2-44-b01c", host="shop-2", pid=44, ago_s=925)
        orders.add({"customer": "ada"}, job_id="order:later", delay=5_400)
        # Claiming was heard of, as if the consumer lived.
        until(lambda: raw.xinfo_consumers(key, "workers")[0]["idle"] > 10_000)
        for stream, consumer, pid, group in (
            (orders, "shop-3-9-c4d1", 9, "audit"),
            (mail, "shop-1-31-77aa", 31, "workers"),
        ):
            beat(
                raw, stream, consumer, host=consumer[:6], pid=pid, group=group, ago_s=-600
            )  # alive as long as this takes
        yield server.url


SAMPLES = {
    "README.md": ["inspect"],
    "docs/operations.md": ["inspect", "inspect orders", "inspect orders --job order:2", "inspect --watch"],
}
WATCH = "$ streamq inspect --watch"


def samples(url):
    """What each command prints, without blanks at the ends of lines."""
    printed = {}
    for words in {words for commands in SAMPLES.values() for words in commands} - {"inspect --watch"}:
        done = run(*words.split()[1:], "--url", url, COLUMNS="80")
        assert (done.returncode, done.stderr) == (0, "")
        lines = [line.rstrip() for line in f"$ streamq {words}\n{done.stdout}".split("\n")]
        printed[words] = "\n".join(lines).rstrip() + "\n"
    return printed


def watched(url):
    """What is on the screen of ``streamq inspect --watch``."""
    with seat("inspect", "--watch", "--url", url, "--every", "0.5") as terminal:
        terminal.until("j/k choose")
        terminal.type(b"j")
        terminal.until("> orders .* 0 +[▁█]+ critical(?s:.*)j/k")  # there were two looks: there is a rate
        screen = terminal.text.replace("0.5s", "2s")
    return f"{WATCH}\n{re.sub(r'127.0.0.1:[0-9]+', 'localhost:6379', screen)}\n"


@ONE_BACKEND
def test_the_docs_show_what_is_printed(night):
    printed = {**samples(night), WATCH.removeprefix("$ streamq "): watched(night)}
    for page, commands in SAMPLES.items():
        text = (ROOT / page).read_text("utf-8")
        blocks = {
            block.split("\n")[0]: block for block in re.findall(r"```\n(\$ streamq inspect.*?)```", text, re.DOTALL)
        }
        for words in commands:
            shown = blocks.get(f"$ streamq {words}", "")
            assert same(shown) == same(printed[words]), f"put into {page}:\n{printed[words]}"
