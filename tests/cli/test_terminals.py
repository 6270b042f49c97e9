"""Every command at terminals of two sizes, and piped: what it shows fits, is whole, and is nobody else's orders.

A command that is not in `SCENARIOS` fails a test here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import look
import pytest
import typer
from cli import shell
from rich.cells import cell_len

from streamq import Stream, StreamOptions
from streamq._text import INVISIBLE, shown
from streamq.cli import app

pytestmark = pytest.mark.parametrize("backend", ["valkey-9"], indirect=True)
"""What is shown does not depend on the server."""

HOUR = 3_600
NAME = "orders-of-the-shop-in-the-high-street-and-of-all-others"
GROUP = "audit-of-everything-that-was-ever-ordered"
WORKER = "shop-1.example.com-4711-0f3a9c7e"
LONG = "order-of-a-customer-who-is-known-by-a-long-name:2026-11-30T19:00:00Z:0f3a9c7e-4711-4c0b-9f3a-77aa1c0bdead"
WIDE = "注文:東京都千代田区千代田一丁目一番一号:2026-11-30"
HOSTILE = "evil\x1b[2J\x1b]0;x\x07[/red]\u202e\x9b31m"
DONE = 1_234_567
SAID = "no such customer: "

SIZES = ((80, 24), (200, 50))

SHRED = 6
"""Characters of which a text is broken into less can nobody read."""

STYLING = re.compile(r"\x1b\[[0-9;]*m|\x1b\[\?25[lh]|\x1b\[2K|\x1b\[1A|\r")
"""What a terminal is told by us: colours and weights, and a line of progress drawn again."""

REDRAWN = re.compile(r"[^\n]*\r\x1b\[2K")
"""A line of progress, and that it is taken back: nobody sees both it and the next one."""

UNSAFE = re.compile(rf"[\x00-\x09\x0b-\x1f\x7f-\x9f{INVISIBLE}]")


class Scenario(NamedTuple):
    """A command on the stream of `seed`.

    Attributes:
        args: Behind the command; ``NAME``, ``LETTER`` and ``OTHERS`` stand for the stream, and for the IDs of its dead letters:
            of the job `LONG`, and of somebody else's.
        shows: What must be in its output, whole.
        ends: Its exit status.
        asks: Whether it asks, or at no terminal wants ``--yes``.
        looks: Whether it changes nothing.
    """

    args: tuple[str, ...]
    shows: tuple[str, ...] = ()
    ends: int = 0
    asks: bool = False
    looks: bool = False


def of(*args: str, shows: tuple[str, ...] = (), ends: int = 0, asks: bool = False) -> Scenario:
    return Scenario(args, shows, ends, asks)


def look_at(*args: str, shows: tuple[str, ...], ends: int = 0) -> Scenario:
    return Scenario(args, shows, ends, looks=True)


SCENARIOS = {
    "run": [look_at("no.such.module:worker", shows=("no.such.module",), ends=2)],
    "demo": [look_at("--url", "redis://127.0.0.1:1", shows=("127.0.0.1:1",), ends=2)],
    "inspect": [
        look_at(shows=("NAME", "warning", GROUP, "streamq dead-letters list")),
        look_at("NAME", shows=("NAME", f"{DONE:,}", GROUP, WORKER, shown(HOSTILE))),
        look_at("NAME", "--interval", "0.01", shows=("NAME", f"{DONE:,}", "per second")),
        look_at("NAME", "--show-payloads", shows=("oldest ready payload",)),
        look_at("NAME", "--job", LONG, shows=(LONG, "NAME", "LETTER", "rejected", SAID * 20)),
        look_at("NAME", "--job", "nope", shows=("nope", "never added"), ends=1),
    ],
    "doctor": [
        look_at(shows=("NAME", GROUP, "1 stream examined"), ends=1),
        look_at("NAME", "-v", shows=("NAME",), ends=1),
    ],
    "bench": [
        Scenario(
            ("--rounds", "1", "--jobs", "10", "--seconds", "0.2"),
            shows=("that others may use", "NAME", "drain batch", "XADD to XREADGROUP", "jobs a second"),
            asks=True,
            looks=True,
        )
    ],
    "add": [
        of("NAME", "{}", "--job-id", f"{LONG}-new", shows=(f"{LONG}-new",)),
        of("NAME", "{}", "--job-id", LONG + "-later", shows=(f"{LONG}-later", "known already, scheduled")),
        of("NAME", "{", shows=("no JSON",), ends=2),
    ],
    "scheduled list": [
        look_at("NAME", shows=(f"{LONG}-later", f"{WIDE}-later", shown(HOSTILE), "again", "HTTP 503")),
        look_at("NAME", "--limit", "1", shows=("again", "... 24 more", "--after", ":workers/again")),
    ],
    "scheduled show": [
        look_at("NAME", f"{LONG}-later", "--show-payloads", shows=(f"{LONG}-later", "(all)", '{"customer":"ada"}')),
        look_at("NAME", "again", shows=("again", "HTTP 503 from payments")),
        look_at("NAME", "nope", shows=("nope", "not scheduled"), ends=1),
    ],
    "scheduled cancel": [
        of("NAME", f"{LONG}-later", shows=(f"{LONG}-later", "cancelled")),
        of("NAME", "--all", shows=("NAME", "23 cancelled, 2 refused"), ends=1, asks=True),
    ],
    "scheduled reschedule": [of("NAME", "--all", "--delay", "3h", shows=("NAME", "2 refused"), ends=1, asks=True)],
    "scheduled run": [of("NAME", f"{WIDE}-later", shows=(f"{WIDE}-later", "made ready, entry"))],
    "dead-letters list": [
        look_at("NAME", shows=("LETTER", "OTHERS", LONG, WIDE, "rejected", "workers", shown(HOSTILE))),
        look_at("NAME", "--limit", "1", shows=("LETTER", LONG, "--after LETTER")),
        look_at("NAME", "--show-payloads", shows=("LETTER", LONG, WIDE, '{"customer":"ada"}', shown(HOSTILE))),
    ],
    "dead-letters show": [
        look_at(
            "NAME", "LETTER", "--show-payloads", shows=("LETTER", LONG, WORKER, "deliveries", '{"customer":"ada"}')
        ),
        look_at("NAME", "OTHERS", "--show-payloads", shows=("OTHERS", shown(f"field {HOSTILE}"), shown(HOSTILE))),
        look_at("NAME", "1-1", shows=("1-1",), ends=1),
    ],
    "dead-letters redrive": [
        of("NAME", "LETTER", shows=("LETTER", "redriven, entry")),
        of("NAME", "--all", shows=("NAME", "OTHERS", "2 redriven, 1 refused"), ends=1, asks=True),
    ],
    "dead-letters purge": [of("NAME", "--all", shows=("NAME", "3 letters", "3 purged"), asks=True)],
    "dead-letters export": [look_at("NAME", "-", shows=("LETTER", r"evil\u001b[2J\u001b]0;x\u0007[/red]\u202e"))],
    "acl": [
        look_at("worker", "--user", "shop", "--stream", "NAME", shows=("ACL SETUSER shop on resetkeys", "+xreadgroup"))
    ],
    "migrate list": [look_at(shows=("001_hash_tags", "up to date"))],
    "migrate plan": [look_at(shows=("001_hash_tags", "up to date"))],
    "migrate apply": [look_at("--yes", shows=("001_hash_tags", "up to date"))],
    "migrate verify": [look_at(shows=("001_hash_tags", shown(HOSTILE)), ends=1)],
    "migrate cleanup": [look_at(shows=("nothing to clean",))],
    "migrate unlock": [look_at("--yes", shows=("nobody holds the lock",))],
    "migrate status": [look_at(shows=("001_hash_tags", "nobody is migrating"))],
    "migrate adopt": [look_at("--stream", "nope", "--group", "g", "--as", "NAME", shows=("no key 'nope'",), ends=2)],
    "pause": [of("NAME", shows=("NAME", "paused"))],
    "resume": [of("NAME", shows=("NAME", "not paused"))],
    "groups list": [look_at("NAME", shows=(GROUP, "nobody reads it", shown(HOSTILE), "consumers"))],
    "groups create": [of("NAME", f"{GROUP}-2", shows=(f"{GROUP}-2", "made"))],
    "groups drop": [
        of("NAME", GROUP, shows=(GROUP, "NAME", "--force"), ends=3),
        of("NAME", GROUP, "--force", shows=(GROUP, "NAME", "dropped"), asks=True),
    ],
    "consumers list": [look_at("NAME", shows=(WORKER, shown(HOSTILE), "workers"))],
    "consumers prune": [of("NAME", "--min-idle", "0", shows=(WORKER, "holds 2 pending"), ends=1, asks=True)],
    "trim": [of("NAME", "--keep-last", "5", shows=("NAME", "entries removed"), asks=True)],
    "delete": [of("NAME", "--force", shows=("NAME", "2 pending", "25 scheduled", "3 dead", "deleted"), asks=True)],
}


def commands(command: Any, *words: str) -> Iterator[str]:
    """All there are, of one and of those below it."""
    below = getattr(command, "commands", None)
    if below is None:
        yield " ".join(words)
    else:
        for name, each in below.items():
            yield from commands(each, *words, name)


@pytest.fixture
def seed(redis_url, raw, ns):
    """Make a stream in which names, IDs and errors are long, wide or hostile. What ``LETTER`` and ``OTHERS`` are, and where."""

    def make(deployment):
        opened = {
            group: Stream(NAME, redis=redis_url, deployment=f"{ns}-{deployment}", options=StreamOptions(group=group))
            for group in ("workers", GROUP)
        }
        stream = opened["workers"]
        keys = stream._spec.keys
        for each in opened:
            stream.groups.create(each)
        for job_id in (LONG, WIDE):
            stream.add({"customer": "ada"}, job_id=job_id)
        for job in stream.read(WORKER, count=2):
            stream.reject(job, SAID * 20)
        stream.add({}, job_id="again")
        stream.retry(stream.read(WORKER)[0], "HTTP 503 from payments " * 20, delay=HOUR)
        for job_id in (f"{LONG}-later", f"{WIDE}-later"):
            stream.add({"customer": "ada"}, job_id=job_id, delay=90 * 24 * HOUR)
        stream.add_many([{}] * 20, delay=2 * HOUR)
        raw.zadd(keys.scheduled, {f"/{HOSTILE}": 4e12, f"{HOSTILE.replace('/', '')}/x": 4e12})
        letter = {f"dead:{what}": HOSTILE for what in ("reason", "error", "group", "consumer", "job_id")}
        others = raw.xadd(keys.dead, {**letter, "job": HOSTILE, f"field {HOSTILE}": "1"}).decode()
        stream.add_many([{}] * 4)
        stream.read(WORKER, count=2)
        raw.xgroup_create(keys.stream, HOSTILE, "$")
        raw.xgroup_createconsumer(keys.stream, HOSTILE, HOSTILE)
        raw.hset(keys.meta, "done:workers", DONE)
        look.age(raw, stream, idle=3 * HOUR)
        first = stream.dead_letters.list(count=1)[0].id
        for each in opened.values():
            each.close()
        return {"LETTER": first, "OTHERS": others, "deployment": f"{ns}-{deployment}"}

    return make


def filled(text, stands_for):
    for word in ("LETTER", "OTHERS"):
        text = text.replace(word, stands_for[word])
    return text.replace("NAME", NAME)


def is_whole(text, lines):
    """Whether `text` is in them: as in a sentence, or folded over several that follow each other, and into no shreds."""
    if text in " ".join(" ".join(lines).split()):
        return True
    for at in range(len(lines)):
        left = text.replace(" ", "")
        for line in lines[at:]:
            packed = re.sub(r"[ │\\]", "", line) if "\\" not in text else re.sub("[ │]", "", line)
            size = next((size for size in range(len(left), 0, -1) if left[:size] in packed), 0)
            if size < min(SHRED, len(left)):
                break
            left = left[size:]
            if not left:
                break
        if not left:
            return True
    return False


def check(output, scenario, stands_for, columns):
    assert "Traceback" not in output
    assert not UNSAFE.search(output.replace("\n", "")), output
    lines = output.split("\n")
    for line in lines:
        # One word stays whole, and so does a command for another program, to be copied: the terminal breaks it.
        is_copied = len(line.split()) == 1 or line.startswith("ACL SETUSER ")
        assert columns is None or cell_len(line.rstrip()) <= columns or is_copied, line
    for text in scenario.shows:
        assert is_whole(filled(text, stands_for), lines), (text, output)


def test_no_command_is_left_out(backend):
    assert set(commands(typer.main.get_command(app))) == set(SCENARIOS)


@pytest.mark.parametrize(
    ("command", "scenario"),
    [
        pytest.param(command, one, id=f"{command} {' '.join(one.args[:3])}"[:60])
        for command, rows in SCENARIOS.items()
        for one in rows
    ],
)
def test_it_fits_the_terminal_and_is_plain_in_a_pipe(seed, redis_url, monkeypatch, command, scenario):
    monkeypatch.setattr("streamq.cli.run.log_to_stderr", lambda level: None)  # logging is this process's
    stands_for = seed("first")
    for columns, rows in SIZES:
        words = (*command.split(), *(filled(word, stands_for) for word in scenario.args))
        where = {"STREAMQ_DEPLOYMENT": stands_for["deployment"]}
        where |= {} if command == "demo" else {"STREAMQ_URL": redis_url}
        done = shell.at_terminal(*words, columns=columns, rows=rows, typed=b"y\n", **where)
        assert done.returncode == scenario.ends, done.stdout
        assert ("Go on? [y/N]" in done.stdout) == scenario.asks
        screen = STYLING.sub("", REDRAWN.sub("", done.stdout))
        check(screen, scenario, stands_for, columns if command != "dead-letters export" else None)
        stands_for = stands_for if scenario.looks else seed(f"after-{columns}")

    words = (*command.split(), *(filled(word, stands_for) for word in scenario.args))
    where["STREAMQ_DEPLOYMENT"] = stands_for["deployment"]
    done = shell.call(*words, *(["--yes"] if scenario.asks else []), COLUMNS=None, NO_COLOR=None, **where)
    assert done.returncode == scenario.ends, done.stderr
    # What is asked at a terminal is not said in a pipe.
    shows = tuple(text for text in scenario.shows if not scenario.asks or text in done.stdout + done.stderr)
    check(done.stdout + done.stderr, scenario._replace(shows=shows), stands_for, None)


def test_every_help_reads_like_a_manual(backend):
    for command in SCENARIOS:
        done = shell.at_terminal(*command.split(), "--help", columns=80, rows=24)
        assert done.returncode == 0
        text = STYLING.sub("", done.stdout)
        assert max(map(cell_len, text.split("\n"))) <= 80, command
        assert f"streamq {command}" in " ".join(text.partition("Examples:")[2].split()), command
        assert "--json" in text or command == "run"
