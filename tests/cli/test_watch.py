"""``streamq inspect --watch``, as somebody in front of a terminal sees it, and as a pipe gets it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys

import look
import pytest
from cli.screen import seat
from cli.shell import COMMAND, call, environ

from streamq import Stream

ONE_BACKEND = pytest.mark.parametrize("backend", ["valkey-9"], indirect=True)
"""What is shown does not depend on the server."""

QUICK = ("--every", "0.5")
COLOUR = re.compile(rb"\x1b\[[\d;]*[39]\dm")


@pytest.fixture
def shop(redis_url, ns):
    """Two streams of a deployment of our own: its arguments."""
    for name, count in (("mail", 3), ("orders", 1_234)):
        with Stream(name, redis=redis_url, deployment=ns) as s:
            s.read("w")
            s.add_many([{}] * count)
    return ("--deployment", ns, "--url", redis_url)


# --- at a terminal -------------------------------------------------------------------------------


@ONE_BACKEND
def test_streams_are_chosen_opened_and_left_at_80_by_24(shop, redis_url, ns):
    with seat("inspect", "--watch", *shop, *QUICK) as terminal:
        terminal.until("> mail +3 .*(?s:.*)  orders +1,234 .*(?s:.*)q quit")
        assert terminal.is_full_screen
        assert max(map(len, terminal.lines)) <= 80
        terminal.type(b"j")
        terminal.until("> orders")
        terminal.type(b"\x1b[A\x1bOB\r")
        terminal.until("stream orders of deployment(?s:.*)b back")
        with Stream("orders", redis=redis_url, deployment=ns) as s:
            s.ack(s.read("w", count=34))
        terminal.until("ready +1,200 (?s:.*)34 done")  # it goes on by itself
        terminal.type(b"\x1b")
        terminal.until("> orders +1,200")
        terminal.type(b"?")
        terminal.until("Ctrl-C +quit(?s:.*)q quit")
        terminal.type(b"\x7fp")
        terminal.until("paused, as of .* ago(?s:.*)> orders")
        terminal.type(b"p")
        terminal.until("every 0.5s")
        assert terminal.settings() != terminal.settings_before
        terminal.type(b"\x03")
        assert terminal.end() == 0
        assert terminal.settings() == terminal.settings_before
        assert not terminal.is_full_screen
        assert not COLOUR.search(terminal.got)  # NO_COLOR


@ONE_BACKEND
def test_it_fits_every_size_of_the_window_and_gives_it_back_by_ctrl_z_and_by_sigterm(shop):
    surroundings = {"COLUMNS": "", "NO_COLOR": "", "PYTHONIOENCODING": "ascii"}
    with seat("inspect", "mail", "--watch", *shop, *QUICK, columns=200, rows=50, **surroundings) as terminal:
        terminal.until("stream mail(?s:.*)q quit")
        assert re.match("ready .* in/s ", terminal.lines[1])  # two charts side by side
        assert "# 3 to 3" in terminal.lines[1]  # bars for a terminal that has no others
        assert COLOUR.search(terminal.got)
        terminal.resize(80, 24)
        terminal.until(lambda: terminal.lines[23].startswith("j/k scroll") and "done/s" in terminal.lines[5])
        terminal.resize(40, 10)
        terminal.until(lambda: terminal.lines[9].startswith("j/k scroll"))

        terminal.type(b"\x1a")
        terminal.until(lambda: os.waitpid(terminal.process.pid, os.WUNTRACED | os.WNOHANG)[0])
        terminal.until(lambda: not terminal.is_full_screen)
        assert terminal.settings() == terminal.settings_before
        terminal.process.send_signal(signal.SIGCONT)
        terminal.until(lambda: terminal.is_full_screen)
        terminal.until(lambda: terminal.lines[9].startswith("j/k scroll"))
        assert terminal.settings() != terminal.settings_before
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.end() == 128 + signal.SIGTERM
        assert terminal.settings() == terminal.settings_before
        assert not terminal.is_full_screen


@ONE_BACKEND
def test_a_fault_of_ours_leaves_the_terminal_as_it_was(shop):
    code = "import streamq.cli.live.watch as w; w.looked = lambda *_: 1 / 0; from streamq.cli import main; main()"
    with seat("inspect", "--watch", *shop, *QUICK, command=[sys.executable, "-c", code]) as terminal:
        assert terminal.end() == 1
        assert b"ZeroDivisionError" in terminal.got
        assert terminal.settings() == terminal.settings_before
        assert not terminal.is_full_screen


@ONE_BACKEND
def test_a_server_that_dies_and_one_that_is_silent_are_waited_for(new_server):
    server = new_server()
    with Stream("orders", redis=server.url) as s:
        s.add_many([{}] * 7)
    with seat("inspect", "--watch", "--url", server.url, *QUICK) as terminal:
        terminal.until("> orders +7 ")
        server.kill()
        terminal.until("as of .* ago: cannot reach(?s:.*)> orders +7 ")
        server.start()
        terminal.until(lambda: "every 0.5s" in terminal.text and "cannot reach" not in terminal.text)
        os.kill(server.pid, signal.SIGSTOP)
        try:
            terminal.until("as of .* ago: no answer yet")
            terminal.type(b"?")  # keys are obeyed meanwhile
            terminal.until("Ctrl-C +quit")
            terminal.type(b"q")
            assert terminal.end() == 0
        finally:
            os.kill(server.pid, signal.SIGCONT)


def test_no_server_at_all_is_one_line_and_the_terminal_is_not_touched():
    with seat("inspect", "--watch", "--url", "redis://127.0.0.1:1") as terminal:
        assert terminal.end() == 2
        assert re.fullmatch(rb"streamq: cannot reach [^\n]*\r\n", terminal.got)
        assert terminal.settings() == terminal.settings_before


# --- with none -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((), "--watch needs a terminal, and standard input is none"),
        (("orders",), "streamq inspect --watch --json"),
        (("--prometheus",), "not with --prometheus"),
        (("orders", "--job", "j", "--json"), "not with --job"),
        (("orders", "--show-payloads", "--json"), "not with --show-payloads"),
        (("--interval", "1", "--json"), "not with --interval"),
        (("--every", "0.4", "--json"), "--every must be from 0.5 to 3600 seconds, not 0.4"),
        (("--every", "nan", "--json"), "not nan"),
        (("a b", "--json"), "a b"),
        (("--json", "--url", "redis://127.0.0.1:1"), "cannot reach"),
    ],
)
def test_what_cannot_be_is_one_line_and_exit_2(args, words):
    done = call("inspect", "--watch", "--url", "redis://127.0.0.1:2", *args)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert words in done.stderr


def test_where_terminals_are_others_it_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "termios", None)
    done = call("inspect", "--watch")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "streamq: --watch needs a terminal, of a POSIX system; for a program or a file: streamq inspect --watch --json\n"
    )


def test_every_without_watch_is_refused():
    done = call("inspect", "--every", "2")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "--every needs --watch" in done.stderr


def piped(*args):
    return subprocess.Popen(
        [*COMMAND, "inspect", "--watch", "--json", *QUICK, *args],
        env=environ(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@ONE_BACKEND
def test_a_line_of_json_for_each_look_until_ctrl_c(new_server):
    server = new_server()
    with Stream("orders", redis=server.url) as s:
        s.add_many([{}] * 7)
        jobs = s.read("w", count=3)
    with piped("orders", "--url", server.url) as process:
        first = json.loads(process.stdout.readline())
        assert (first["name"], first["ready"], first["groups"]["workers"]["rates"]) == ("orders", 4, None)
        with Stream("orders", redis=server.url) as s:
            s.ack(jobs)
        rates = (json.loads(line)["groups"]["workers"]["rates"]["done"] for line in process.stdout)
        assert next(rate for rate in rates if rate) > 0
        server.kill()
        said = process.stderr.readline()
        server.start()
        assert json.loads(process.stdout.readline())["name"] == "orders"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0
        assert all(json.loads(line) for line in out.splitlines())
        assert re.match(r"streamq: (cannot reach|connection to) ", said)
        assert "Traceback" not in err


@ONE_BACKEND
@pytest.mark.covers("C52")
def test_a_stream_that_cannot_be_looked_at_is_told_once_and_nothing_is_changed(shop, raw, ns, monkeypatch):
    raw.set(f"{ns}:streamq:{{{ns}:mail}}:meta", "x")
    before = look.dumps(raw, ns)
    sleeps = iter([None, None])

    def sleep(seconds):
        assert seconds >= 0
        if next(sleeps, "ended") == "ended":
            raise KeyboardInterrupt

    monkeypatch.setattr("streamq.cli.live.feed.time.sleep", sleep)
    done = call("inspect", "--watch", "--json", *shop, *QUICK)
    assert done.returncode == 0
    assert [[found["name"] for found in json.loads(line)] for line in done.stdout.splitlines()] == [["orders"]] * 3
    assert done.stderr.startswith("streamq: stream mail cannot be looked at: ")
    assert done.stderr.count("\n") == 1
    assert look.dumps(raw, ns) == before


@ONE_BACKEND
def test_it_ends_quietly_when_nobody_reads_any_more(shop):
    with piped(*shop) as process:
        assert [found["name"] for found in json.loads(process.stdout.readline())] == ["mail", "orders"]
        process.stdout.close()
        assert process.wait(60) == 1
        assert process.stderr.read() == ""
