"""``streamq dead-letters``, as an operator and a script see it: what it prints, what it changes, how it ends."""

from __future__ import annotations

import base64
import json
import re
import signal
import stat
import subprocess
import time

import look
import msgspec
import pytest
import servers
from cli.shell import COMMAND, call, environ, run, run_at_terminal
from waiting import until

from streamq import Backoff
from streamq.keys import Keys

ON_ONE = pytest.mark.parametrize("backend", ["valkey-9"], indirect=True)
"""For what is the command line's own, and the same on every server."""


@pytest.fixture
def cli(redis_url, ns):
    """``streamq dead-letters COMMAND NAME ...`` on the stream of this test."""

    def of_stream(command, *args, stdin=b"", **env):
        return call("dead-letters", command, ns, *args, stdin=stdin, **{"STREAMQ_URL": redis_url, **env})

    return of_stream


def listed(done):
    """What ``list --json`` printed."""
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)["letters"]


def give_up(stream, count=1, error="no", first=0):
    """Add jobs and reject them; their letters' IDs, oldest first."""
    had = {letter.id for letter in stream.dead_letters.list(count=1_000)}
    stream.add_many(({"n": n} for n in range(first, first + count)), job_id=lambda payload: f"j{payload['n']}")
    left = count
    while left:
        for job in stream.read("w", count=100):
            stream.reject(job, error)
            left -= 1
    return [letter.id for letter in stream.dead_letters.list(count=1_000) if letter.id not in had]


# --- looking --------------------------------------------------------------------------------


@pytest.mark.covers("S5")
def test_json_tells_what_happened(stream, cli, raw):
    stream.read("w1")
    added = stream.add({"card": "visa"}, job_id="order-7")
    stream.read("w1")
    look.age(raw, stream, count=5)
    stream.reclaim("w2")
    [letter] = stream.dead_letters.list()
    [told] = listed(cli("list", "--json", "--show-payloads"))
    assert told.pop("consumer") in {"w1", "w2"}
    for name, at in (("enqueued_at", letter.enqueued_at), ("died_at", letter.died_at)):
        assert msgspec.convert(told.pop(name), type=type(at)) == at
    assert told == {
        "id": letter.id,
        "reason": "deliveries",
        "error": letter.error,
        "stream": stream.name,
        "source_id": added.entry_id,
        "job_id": "order-7",
        "group": "workers",
        "deliveries": 5,
        "attempts": 0,
        "redrives": 0,
        "payload_bytes": 15,
        "payload": '{"card":"visa"}',
    }
    [without] = listed(cli("list", "--json"))
    assert "visa" not in json.dumps(without)
    assert (without["payload_bytes"], without["job_id"]) == (15, "order-7")
    [line] = cli("list", "--json", "--all", "--show-payloads").stdout.splitlines()
    assert json.loads(line)["payload"] == '{"card":"visa"}'


@pytest.fixture
def several(for_group, raw):
    """Five letters: of two groups, three reasons, and old ones."""
    workers = for_group("workers", retry=Backoff.constant(0, limit=0))
    mail = for_group("mail")
    look.by_hand(raw, workers, "job", "no JSON")
    workers.read("w")
    give_up(workers, 2, "HTTP 503 from payments")
    workers.add({"n": 7}, job_id="tried")
    for job in workers.read("w"):
        workers.retry(job, "HTTP 500")
    mail.groups.create("mail", start="new")
    mail.add({"n": 8}, job_id="both")
    for job in mail.read("m", count=10):
        mail.reject(job, "mailbox is full")
    return workers


@ON_ONE
def test_filters(several, cli):
    letters = several.dead_letters.list()
    names = [letter.job_id for letter in letters]
    assert [letter.reason for letter in letters] == ["undecodable", "rejected", "rejected", "attempts", "rejected"]
    hand, j0, j1, tried, both = names

    def found(*filters):
        return [row["job_id"] for row in listed(cli("list", "--json", *filters))]

    assert found() == names
    assert found("--reason", "rejected") == [j0, j1, both]
    assert found("--reason", "attempts", "--reason", "undecodable") == [hand, tried]
    assert found("--error", "HTTP 5") == [j0, j1, tried]
    assert found("--error", "http 5") == []
    assert found("--group", "mail") == [both]
    assert found("--reason", "rejected", "--group", "workers", "--error", "503") == [j0, j1]
    assert found("--id", letters[3].id, "--id", letters[0].id, "--id", "1-1") == [tried, hand]
    assert found("--id", letters[3].id, "--id", letters[0].id, "--reason", "attempts") == [tried]
    assert found("--older-than", "0") == names
    assert found("--older-than", "1h") == found("--older-than", "1h", "--id", letters[0].id) == []
    assert found("--after", letters[2].id) == [tried, both]
    assert found("--after", letters[0].id, "--reason", "rejected", "--limit", "2") == [j0, j1]


@ON_ONE
def test_what_is_old_is_told_by_the_servers_clock(stream, cli, raw):
    """By the letter's ID: a field of it may say anything."""
    give_up(stream)
    raw.delete(stream._spec.keys.dead)
    now_ms = raw.time()[0] * 1_000
    for age_s in (7_200, 3_700, 60):
        raw.xadd(stream._spec.keys.dead, {"dead:reason": "rejected"}, id=f"{now_ms - age_s * 1_000}-0")
    assert len(listed(cli("list", "--json", "--older-than", "1h"))) == 2
    done = cli("purge", "--older-than", "1h", "--yes")
    assert (done.returncode, done.stdout) == (0, "2 purged\n")
    assert raw.xlen(stream._spec.keys.dead) == 1


@ON_ONE
def test_a_table_is_cut_and_goes_on(stream, cli):
    ids = give_up(stream, 130)
    told = cli("list")
    assert re.findall(r"│ (\d+-\d+)", told.stdout) == ids[:100]
    [place] = re.findall(r"^\.\.\. there are more: .* go on with --after (\S+)$", told.stdout, re.MULTILINE)
    rest = cli("list", "--after", place)
    assert re.findall(r"│ (\d+-\d+)", rest.stdout) == ids[100:]
    assert "more" not in rest.stdout
    page = json.loads(cli("list", "--json", "--limit", "130").stdout)
    assert ([row["id"] for row in page["letters"]], page["next"]) == (ids, None)
    named = [word for letter_id in ids for word in ("--id", letter_id)]
    assert [row["id"] for row in listed(cli("list", "--json", *named))] == ids
    assert "there may be more" in cli("list", "--reason", "rejected", "--limit", "129").stdout
    assert json.loads(cli("list", "--json", "--limit", "129").stdout)["next"] == ids[128]
    assert [json.loads(line)["id"] for line in cli("list", "--json", "--all").stdout.splitlines()] == ids


@ON_ONE
def test_a_narrow_screen_can_be_read(several, cli):
    told = cli("list", COLUMNS="80", FORCE_COLOR="1", TERM="xterm").stdout
    lines = re.sub(r"\x1b\[\d+m", "", told).splitlines()
    assert max(map(len, lines)) <= 80
    for letter in several.dead_letters.list():
        assert any(re.match(rf"(letter ID +)?{letter.id}\b", line) for line in lines)
    assert "deliveries" not in told
    assert "deliveries" in cli("list", COLUMNS="100").stdout


@ON_ONE
def test_show(stream, cli, raw):
    stream.add({"card": "visa"}, job_id="k", headers={"trace": "00-[b]ab"})
    stream.reject(stream.read("w")[0], "no such card")
    [letter] = stream.dead_letters.list()
    told = cli("show", letter.id)
    assert (told.returncode, told.stderr) == (0, "")
    for words in (letter.id, letter.source_id, "rejected", "no such card", "workers", "00-[b]ab", "15 bytes, json"):
        assert words in told.stdout
    assert "visa" not in told.stdout + cli("show", letter.id, "--json").stdout
    assert '{"card":"visa"}' in cli("show", letter.id, "--show-payloads").stdout
    found = json.loads(cli("show", letter.id, "--show-payloads", "--json").stdout)
    assert (found["payload"], found["headers"], found["source_id"]) == (
        '{"card":"visa"}',
        {"trace": "00-[b]ab"},
        letter.source_id,
    )
    none = cli("show", "1-1")
    assert (none.returncode, none.stdout, none.stderr.count("\n")) == (1, "", 1)


@ON_ONE
def test_a_stream_that_was_never_used(cli, raw, ns):
    assert cli("list").stdout == f"no dead letter in stream {ns}\n"
    assert cli("list", "--reason", "attempts").stdout == f"no dead letter like that in stream {ns}\n"
    assert json.loads(cli("list", "--json").stdout) == {"letters": [], "next": None}
    for command in ("redrive", "purge"):
        done = cli(command, "--all")
        assert (done.returncode, done.stdout) == (0, f"no dead letter in stream {ns}\n")
    assert cli("export", "-").stdout == ""
    assert raw.keys(f"*{ns}*") == []


# --- redriving ------------------------------------------------------------------------------


def test_redrive_tells_what_became_of_each(stream, cli, raw):
    ready, again, missing_body = *give_up(stream, 2), "1-1"
    stream.add({}, job_id="j1")
    before = look.dumps(raw, stream.name)
    looked = cli("redrive", ready, again, missing_body, "--dry-run")
    assert look.dumps(raw, stream.name) == before
    assert (looked.returncode, looked.stdout.splitlines()[0]) == (1, f"{ready}: would be redriven")
    assert looked.stdout.splitlines()[-1] == "1 would be redriven, 1 superseded, 1 not there; nothing changed"
    done = cli("redrive", ready, again, missing_body, "--yes")
    assert done.returncode == 1
    entry_id = look.entries(raw, stream._spec.keys.stream)[-1][0]
    assert done.stdout.splitlines() == [
        f"{ready}: redriven, entry {entry_id}",
        "1-1: no such letter; it was redriven or purged, or never there",
        "1 redriven, 1 superseded, 1 not there",
    ]
    assert done.stderr == (
        f"streamq: letter {again} is superseded: its job ID is ready again; purge it, or give the job another ID with "
        "--new-id\n"
    )
    told = json.loads(cli("redrive", ready, again, "--max-redrives", "0", "--yes", "--json").stdout)
    assert told == {
        "action": "redrive",
        "dry_run": False,
        "complete": True,
        "matched": 2,
        "moved": 0,
        "superseded": 0,
        "refused": 1,
        "missing": 1,
        "letters": [
            {"id": again, "outcome": "refused", "why": "it was redriven 0 times already"},
            {"id": ready, "outcome": "missing"},
        ],
    }
    one = cli("redrive", again, "--new-id", "k")  # one needs no confirmation
    assert (one.returncode, one.stderr) == (0, "")
    assert [job.id for job in stream.read("w", count=9)] == ["j1", "j0", "k"]
    gone = cli("redrive", again)  # nor is it a failure that somebody was faster
    assert (gone.returncode, gone.stderr) == (0, "")


@ON_ONE
def test_redrive_by_filters_leaves_the_others(several, cli):
    done = cli("redrive", "--error", "503", "--limit", "1", "--yes")
    assert (done.returncode, done.stdout) == (0, "1 redriven\n")
    assert len(several.dead_letters.list()) == 4
    done = json.loads(cli("redrive", "--group", "workers", "--reason", "rejected", "--yes", "--json").stdout)
    assert (done["matched"], done["moved"], done["letters"]) == (1, 1, [])
    assert [letter.reason for letter in several.dead_letters.list()] == ["undecodable", "attempts", "rejected"]
    assert [job.payload for job in several.read("w", count=9)][-2:] == [{"n": 0}, {"n": 1}]


@ON_ONE
def test_redrive_of_all_at_a_rate(stream, cli):
    give_up(stream, 12)
    began = time.monotonic()
    done = cli("redrive", "--all", "--rate", "20/s", "--yes")
    assert (done.returncode, done.stdout) == (0, "12 redriven\n")
    assert time.monotonic() - began >= 0.5  # the second ten
    assert len(stream.read("w", count=20)) == 12


@ON_ONE
def test_what_is_broken_off_goes_on(stream, redis_url, cli):
    """By Ctrl-C amid its waiting, and once more: each job has one run."""
    ids = give_up(stream, 6)
    command = [*COMMAND, "dead-letters", "redrive", stream.name, "--all", "--rate", "2/m", "--yes", "--json"]
    with subprocess.Popen(
        command, env=environ(STREAMQ_URL=redis_url), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        until(lambda: len(stream.dead_letters.list()) < 6, timeout=60)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=100)
    left = [letter.id for letter in stream.dead_letters.list()]
    assert 0 < len(left) < 6
    assert left == ids[-len(left) :]
    assert process.returncode not in {0, 2, 3}
    told = json.loads(stdout)
    assert (told["matched"], told["complete"]) == (6, False)
    assert 6 - len(left) - 1 <= told["moved"] <= 6 - len(left)
    assert f"broken off: at least {told['moved']} of 6 were redriven, and stay so" in stderr
    assert "Traceback" not in stderr
    done = cli("redrive", "--all", "--yes")
    assert (done.returncode, done.stdout) == (0, f"{len(left)} redriven\n")
    assert [job.id for job in stream.read("w", count=20)] == [f"j{n}" for n in range(6)]


@ON_ONE
def test_what_was_done_before_an_error_is_told(stream, proxy, cli):
    give_up(stream, 50)
    proxy.drop_before(servers.named("EVALSHA"), nth=30)
    done = cli("redrive", "--all", "--yes", STREAMQ_URL=proxy.url)
    assert (done.returncode, done.stdout) == (2, "")
    left = len(stream.dead_letters.list())
    told = int(re.match(r"streamq: broken off: at least (\d+) of 50 were redriven, and stay so", done.stderr)[1])
    assert 50 - left - 10 <= told <= 50 - left < 50
    assert cli("redrive", "--all", "--yes").stdout == f"{left} redriven\n"
    assert len(stream.read("w", count=99)) == 50


@ON_ONE
@pytest.mark.parametrize("how", ["file", "-"])
def test_another_payload(stream, cli, raw, tmp_path, how):
    [letter] = give_up(stream)
    [bad] = give_up(stream, first=1)
    new = b'{ "n" : 1.10 }\n'
    (tmp_path / "new.json").write_bytes(new)
    for wrong in (b'{"n":', b"\xff"):
        refused = cli("redrive", letter, "--payload", "-", stdin=wrong)
        assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
        assert "is JSON, but what --payload gives is not" in refused.stderr
    given = "-" if how == "-" else str(tmp_path / "new.json")
    for more in ([bad, "--yes"], ["--reason", "rejected"]):
        assert "for one letter" in cli("redrive", letter, *more, "--payload", given, stdin=new).stderr
    done = cli("redrive", letter, "--payload", given, stdin=new if how == "-" else b"")
    assert (done.returncode, done.stderr) == (0, "")
    [(_, fields)] = look.entries(raw, stream._spec.keys.stream)
    assert dict(fields)[b"job"] == new
    assert dict(fields)[b"sq:id"] == b"j0"
    assert [letter.id for letter in stream.dead_letters.list()] == [bad]
    assert cli("redrive", bad, "--payload", str(tmp_path / "none")).returncode == 2


@ON_ONE
def test_the_payload_of_msgpack_stays_msgpack(for_group, cli):
    s = for_group("workers", codec="msgpack")
    [letter] = give_up(s)
    assert "is msgpack" in cli("redrive", letter, "--payload", "-", stdin=b'{"n": 5}').stderr
    assert cli("redrive", letter, "--payload", "-", stdin=msgspec.msgpack.encode({"n": 5})).returncode == 0
    assert [job.payload for job in s.read("w")] == [{"n": 5}]


# --- purging --------------------------------------------------------------------------------


def test_purge(several, cli, raw):
    before = look.dumps(raw, several.name)
    dry = cli("purge", "--group", "workers", "--dry-run")
    assert look.dumps(raw, several.name) == before
    assert dry.stdout == (
        f"would purge 4 letters of stream {several.name} (2 rejected, 1 undecodable, 1 attempts); nothing changed\n"
    )
    first = several.dead_letters.list()[0].id
    assert cli("purge", first, "1-1").returncode == 3
    assert look.dumps(raw, several.name) == before
    done = cli("purge", first)  # the one that is named by its ID
    assert (done.returncode, done.stdout, done.stderr) == (0, "1 purged\n", "")
    told = json.loads(cli("purge", "--group", "workers", "--yes", "--json").stdout)
    assert told == {"action": "purge", "dry_run": False, "complete": True, "matched": 3, "purged": 3, "missing": 0}
    assert [letter.group for letter in several.dead_letters.list()] == ["mail"]
    assert cli("purge", first).returncode == 0


# --- confirmation, progress -----------------------------------------------------------------


@ON_ONE
def test_at_a_terminal_it_asks_and_shows_how_far_it_is(stream, redis_url, raw):
    give_up(stream, 150)
    asked = run_at_terminal(b"n\n", "dead-letters", "redrive", stream.name, "--all", "--url", redis_url)
    assert (asked.returncode, asked.stdout) == (3, "")
    assert f"This will redrive 150 letters of stream {stream.name} (150 rejected). Go on? [y/N]" in asked.stderr
    assert raw.xlen(stream._spec.keys.dead) == 150
    done = run_at_terminal(b"y\n", *("dead-letters", "purge", stream.name, "--all", "--url", redis_url), TERM="xterm")
    assert (done.returncode, done.stdout) == (0, "150 purged\n")
    assert "150/150" in done.stderr


@ON_ONE
@pytest.mark.parametrize("which", [["--all"], ["--reason", "rejected"], ["IDS"]])
def test_without_a_terminal_it_takes_a_yes(stream, cli, raw, which):
    ids = give_up(stream, 2)
    before = look.dumps(raw, stream.name)
    for command in ("redrive", "purge"):
        done = cli(command, *(ids if which == ["IDS"] else which))
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (3, "", 1)
        assert "--yes" in done.stderr
    assert look.dumps(raw, stream.name) == before


# --- exporting ------------------------------------------------------------------------------


def bytes_of(value):
    return value.encode() if isinstance(value, str) else base64.b64decode(value["base64"])


@pytest.mark.covers("S5")
def test_what_is_exported_can_be_put_back(stream, cli, raw, tmp_path):
    look.by_hand(
        raw, stream, b"job", b"\xff\x00", b"dead:x", b"1", b"\xfe", b"\x1b[2J\r\n", b"", b"no name", b"job", b"2"
    )
    stream.read("w")
    give_up(stream, 2, "no\x1b[2J")
    file = tmp_path / "letters.jsonl"
    done = cli("export", str(file))
    assert (done.returncode, done.stdout, done.stderr) == (0, f"3 letters written to {file}\n", "")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [file]
    before = look.entries(raw, stream._spec.keys.dead)
    letters = stream.dead_letters.list()
    raw.delete(stream._spec.keys.dead)
    for line in file.read_text().splitlines():
        row = json.loads(line)
        flat = [bytes_of(part) for pair in row["stored"] for part in pair]
        look.call(raw, "XADD", stream._spec.keys.dead, row["id"], *flat)
    assert stream.dead_letters.list() == letters
    assert look.entries(raw, stream._spec.keys.dead) == before
    assert [row["payload_bytes"] for row in map(json.loads, cli("export", "-").stdout.splitlines())] == [2, 7, 7]
    assert cli("export", "-", "--reason", "rejected", "--limit", "1").stdout.count("\n") == 1


@ON_ONE
def test_export_overwrites_nothing_without_force(stream, cli, tmp_path):
    give_up(stream)
    file = tmp_path / "letters.jsonl"
    file.write_text("mine")
    done = cli("export", str(file))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (3, "", 1)
    assert file.read_text() == "mine"
    assert json.loads(cli("export", str(file), "--force", "--json").stdout)["letters"] == 1
    assert json.loads(file.read_text())["job_id"] == "j0"
    for nowhere in (tmp_path, tmp_path / "none" / "file"):
        done = cli("export", str(nowhere), "--force")
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert "cannot be written" in done.stderr
    assert list(tmp_path.iterdir()) == [file]


@ON_ONE
def test_an_export_that_fails_leaves_no_file(stream, cli, proxy, tmp_path):
    give_up(stream, 30)
    proxy.drop_before(servers.named("XRANGE"), nth=2)
    done = cli("export", str(tmp_path / "letters"), STREAMQ_URL=proxy.url)
    if done.returncode == 0:  # reading is tried again
        assert len((tmp_path / "letters").read_text().splitlines()) == 30
    else:
        assert (done.returncode, list(tmp_path.iterdir())) == (2, [])


@ON_ONE
def test_what_a_letter_only_refers_to(stream, cli, raw, tmp_path):
    fields = [part for n in range(3_600) for part in (f"f{n}", str(n))]
    look.by_hand(raw, stream, "job", "{}", *fields)
    stream.read("w")
    [letter] = stream.dead_letters.list()
    [row] = map(json.loads, cli("export", "-").stdout.splitlines())
    assert len(row["entry"]) == 3_601
    assert row["payload_bytes"] == 2
    refused = cli("redrive", letter.id)
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (1, "", 1)
    assert "too many fields" in refused.stderr


# --- what others have written ---------------------------------------------------------------


HOSTILE = "\x1b[2J\x07[/red]\u202e\x9b31m:smile:<script>\\"
UNSAFE = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]")


@ON_ONE
def test_nothing_speaks_to_the_terminal(stream, cli, raw):
    give_up(stream, 1, HOSTILE)
    for name in (b"reason", b"job_id", b"group", b"consumer", b"error"):
        look.call(raw, "XADD", stream._spec.keys.dead, "*", b"dead:" + name, HOSTILE.encode(), b"job", HOSTILE.encode())
    look.call(raw, "XADD", stream._spec.keys.dead, "*", b"\xff\x1b", b"\xff", b"sq:h:\x1b", b"\x1b", b"job", b"\xff")
    ids = [letter.id for letter in stream.dead_letters.list()]
    outputs = [
        cli("list", "--show-payloads"),
        cli("list", "--show-payloads", "--json"),
        cli("list", "--show-payloads", "--json", "--all"),
        *(cli("show", letter_id, "--show-payloads") for letter_id in ids),
        *(cli("show", letter_id, "--show-payloads", "--json") for letter_id in ids),
        cli("export", "-"),
        cli("redrive", "--all", "--yes"),
        cli("purge", "--group", HOSTILE, "--dry-run"),
        cli("list", "--reason", HOSTILE),
        cli("show", HOSTILE),
        cli("purge", "--all", "--dry-run"),
    ]
    for done in outputs:
        assert not UNSAFE.search(done.stdout + done.stderr), done.args
        assert "Traceback" not in done.stderr
    assert [done.returncode for done in outputs[-5:]] == [1, 0, 2, 2, 0]
    assert HOSTILE in [row.get("payload") for row in json.loads(outputs[1].stdout)["letters"]]
    assert len(stream.dead_letters.list()) == len(ids) - 1


@ON_ONE
def test_a_key_of_another_type(cli, raw, ns):
    raw.set(Keys(ns).dead, "no letters")
    for args in (("list",), ("show", "1-1"), ("redrive", "--all"), ("purge", "--all", "--yes"), ("export", "-")):
        done = cli(*args)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), args
    refused = cli("redrive", "1-1")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "is refused: WRONGTYPE" in refused.stderr


# --- bad input ------------------------------------------------------------------------------


@ON_ONE
def test_bad_input_is_one_line_and_exit_2(stream, cli, raw):
    [letter] = give_up(stream)
    before = look.dumps(raw, stream.name)
    for args, words in (
        (("redrive",), "which letters"),
        (("redrive", "--limit", "3"), "which letters"),
        (("redrive", letter, "--all"), "not both"),
        (("redrive", "--all", "--reason", "rejected"), "not both"),
        (("redrive", "x"), "no ID of a dead letter"),
        (("redrive", letter, "--new-id", ""), "job ID"),
        (("redrive", letter, "1-1", "--new-id", "k", "--yes"), "for one letter"),
        (("redrive", "--all", "--new-id", "k", "--yes"), "for one letter"),
        (("redrive", letter, "--rate", "0/s"), "no rate"),
        (("redrive", letter, "--rate", "fast"), "no rate"),
        (("redrive", letter, "--max-redrives", "9999999"), "max_redrives"),
        (("purge",), "which letters"),
        (("purge", "--older-than", "soon"), "no duration"),
        (("purge", "--older-than", "-5"), "from 0 seconds"),
        (("purge", "--older-than", "9" * 400), "from 0 seconds"),
        (("purge", "--reason", "bad\x1b"), "none of deliveries, attempts"),
        (("list", "--all"), "--json"),
        (("list", "--after", "x"), "no ID of a dead letter"),
        (("list", "--after", "1-1", "--id", "1-1"), "does not go with IDs"),
        (("show", "a\x1bb"), "no ID of a dead letter"),
    ):
        done = cli(*args)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), (args, done.stderr)
        assert words in done.stderr
        assert not UNSAFE.search(done.stderr)
    for usage in (("list", "--limit", "0"), ("show",), ("export",), ("redrive", "--max-redrives", "-1")):
        assert cli(*usage).returncode == 2
    assert look.dumps(raw, stream.name) == before


def test_no_server_is_one_line_and_exit_2():
    for args in (
        ("list", "s"),
        ("show", "s", "1-1"),
        ("redrive", "s", "1-1"),
        ("purge", "s", "--all"),
        ("export", "s", "-"),
    ):
        done = call("dead-letters", *args, "--url", "redis://127.0.0.1:1")
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert "cannot reach" in done.stderr


def test_help_says_how_it_ends():
    told = run("dead-letters", "--help").stdout
    for command in ("list", "show", "redrive", "purge", "export"):
        assert command in told
        text = " ".join(call("dead-letters", command, "--help").stdout.split())
        for option in ("--url", "STREAMQ_URL", "--deployment", "--json"):
            assert option in text
        assert command == "list" or "Exit status" in text
