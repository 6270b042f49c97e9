"""What README and docs show of commands is what they print, but for IDs, times and the widths that come of them.

`SITUATIONS` has those that are tried here, command by command, at a terminal. Others are held where their situation is made.
"""

from __future__ import annotations

import re
import shlex
from itertools import chain
from pathlib import Path

import pytest
from cli.shell import at_terminal, call
from cli.test_inspect import SAMPLES

from streamq import Backoff, Stream, StreamOptions

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
HOUR = 3_600

RECIPE = "acl producer --user web --deployment dp_1"
HELD_ELSEWHERE = {
    "bench",
    "doctor",
    *chain.from_iterable(SAMPLES.values()),
    RECIPE,
    f"{RECIPE} --stream orders",
    "migrate plan",
}
"""By test_bench, test_doctor, test_inspect, test_acl, and tests/migrations/test_page."""


def blocks():
    """All of the docs that show a command and what it prints: first command -> text."""
    found = {}
    for page in PAGES:
        for block in re.findall(r"```\n(\$ streamq .*?)```", page.read_text("utf-8"), re.DOTALL):
            first = block.partition("\n")[0].removeprefix("$ streamq ")
            found.setdefault(first, []).append(block)
    return found


def scheduled(open_stream):
    workers, mail = open_stream("workers"), open_stream("mail")
    workers.add({}, job_id="order:17")
    workers.retry(workers.read("w")[0], "HTTP 503 from payments", delay=45)
    workers.add({}, job_id="order:18", delay=900)
    workers.add({}, job_id="order:19")
    workers.read("w")
    for job in mail.read("m", count=10):
        if job.id == "order:19":
            mail.retry(job, "mailbox is full", delay=HOUR)


def dead_letters(open_stream):
    workers, mail = open_stream("workers", retry=Backoff.constant(0, limit=1)), open_stream("mail")
    workers.add({"n": 17}, job_id="order:17")
    for job in workers.read("w") + workers.read("w"):
        workers.retry(job, "HTTP 503 from payments")
    for job in workers.read("w"):
        workers.retry(job, "HTTP 503 from payments")
    workers.add({"n": 18}, job_id="order:18")
    workers.reject(workers.read("w")[0], "no such customer")
    mail.groups.create("mail", start="new")
    workers.add({"n": 19}, job_id="order:19")
    mail.reject(mail.read("m")[0], "mailbox is full")
    workers.add({"n": 18}, job_id="order:18")


def bulk(open_stream):
    open_stream("workers")
    lines = ('{"id": 1}', '{"id": 2}', '{"id" 3}', '{"id": 4}')
    Path("orders.jsonl").write_text("\n".join(lines), "utf-8")


def groups(open_stream):
    workers, mail, audit = (open_stream(group) for group in ("workers", "mail", "audit"))
    for stream, name in ((workers, "workers"), (mail, "mail"), (audit, "audit")):
        stream.groups.create(name)
    workers.add_many([{}] * 3)
    workers.ack(workers.read("web-1-4711-1c0b"))
    workers.read("web-1-4711-9f3a", count=2)
    mail.read("web-2-17-03be", count=3)


SITUATIONS = {
    "scheduled list orders": scheduled,
    "dead-letters list orders": dead_letters,
    """add orders '{"customer": "ada", "cents": 4200}' --job-id order:17""": bulk,
    "groups list orders": groups,
}
"""What makes each: by the first command of the block."""


def normal(text, pairs):
    """Without what differs from run to run; `pairs` are IDs of letters in the docs, and here, which commands name."""
    for at, pair in enumerate(pairs):
        for letter_id in pair:
            text = text.replace(letter_id, f"LETTER{at}")
    text = re.sub(r"\b\d{13}-\d+\b", "ID", text)
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ", "TIME", text)
    text = re.sub(r"\bnow\b", "0s ago", text)
    text = re.sub(r"\b\d+(\.\d)?[dhms]( \d+[hms])?\b", "AGE", text)
    return re.sub("[ ━─]+", " ", text)


def test_every_capture_is_held():
    assert set(blocks()) == HELD_ELSEWHERE | set(SITUATIONS)


@pytest.mark.covers("T2")
@pytest.mark.parametrize("backend", ["valkey-9"], indirect=True)
@pytest.mark.parametrize("first", SITUATIONS, ids=lambda first: " ".join(first.split()[:2]))
def test_the_docs_show_what_is_printed(redis_url, ns, tmp_path, monkeypatch, first):
    monkeypatch.chdir(tmp_path)
    opened = []

    def open_stream(group, **options):
        opened.append(Stream("orders", redis=redis_url, deployment=ns, options=StreamOptions(group=group, **options)))
        return opened[-1]

    SITUATIONS[first](open_stream)
    ours = [letter.id for letter in opened[0].dead_letters.list()]
    for each in opened:
        each.close()
    [block] = blocks()[first]
    pairs = list(zip(re.findall(r"^│ (\d{13}-\d+)", block, re.MULTILINE), ours, strict=True))
    printed = ""
    for words in re.findall(r"^\$ streamq (.*)\n", block, re.MULTILINE):
        given = words.replace("--min-idle 10m", "--min-idle 0")  # nobody is silent for so long here
        for one, other in pairs:
            given = given.replace(one, other)
        given, _, source = given.partition(" < ")
        where = {"STREAMQ_URL": redis_url, "STREAMQ_DEPLOYMENT": ns}
        if source:
            done = call(*shlex.split(given), stdin=Path(source).read_bytes(), **where)
            output = done.stderr + done.stdout
        else:
            output = at_terminal(*shlex.split(given), columns=200, rows=50, typed=b"y\n", **where).stdout
        printed += f"$ streamq {words}\n{output}"
    printed = re.sub(r"\x1b\[[0-9;]*m", "", printed)
    assert normal(printed, pairs) == normal(block, pairs), f"put into the docs:\n{printed}"
