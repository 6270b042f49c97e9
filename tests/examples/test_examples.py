"""Every example runs, on a server and with nothing installed, and says what it should."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent.parent / "examples").glob("*.py"))
STANDALONE = [path for path in EXAMPLES if path.name != "orders.py"]
"""Those that start a server of their own if there is none."""

RETRIES = 62
"""Of the webhooks: the receiver's faults are the same in every run, and one delivery is put off."""

LAST_LINES = {
    "hand_written_loop.py": "done 10, dead letters 1 (rejected: negative amount)",
    "hand_written_loop_async.py": "done 10, dead letters 1 (rejected: negative amount)",
    "orders.py": "added 10 orders",
    "telemetry.py": "send > process > charge > process > charge",
    "webhooks.py": "dead: 090-installation: rejected: nobody subscribed to installation",
}


def run(path: Path, *args: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(path), *args],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_all_are_known():
    assert [path.name for path in EXAMPLES] == sorted(LAST_LINES)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_on_a_server(path, redis_url, raw):
    before = set(raw.keys("*"))
    assert run(path, "--url", redis_url)[-1] == LAST_LINES[path.name]
    raw.unlink(*(set(raw.keys("*")) - before) or {"-"})


@pytest.mark.parametrize("name", ["hand_written_loop.py", "hand_written_loop_async.py"])
def test_a_loop_tries_again_what_fails_and_applies_effects_once(name, redis_url, raw):
    before = set(raw.keys("*"))
    lines = run(EXAMPLES[0].parent / name, "--url", redis_url)
    assert lines[-2] == "reclaimed 5 jobs of the dead process, retried 3 that failed"
    made = set(raw.keys("*")) - before
    [revenue] = [key for key in made if key.endswith(b":data:revenue")]
    assert raw.hgetall(revenue) == {b"ada": b"12774", b"bob": b"300", b"fay": b"700"}
    assert not [key for key in made if b":scheduled" in key]
    raw.unlink(*made)


def test_webhooks_wait_for_their_time_are_run_by_hand_and_delivered_once(redis_url, raw):
    before = set(raw.keys("*"))
    lines = run(EXAMPLES[0].parent / "webhooks.py", "--url", redis_url)
    assert lines[0] == ("000-branch_protection_rule waits for attempt 2 (answered 503, Retry-After: 3600): run by hand")
    assert lines[1] == f"330 webhooks: 323 delivered, 7 dead letters, {RETRIES} retries"
    made = set(raw.keys("*")) - before
    [receipts] = [key for key in made if key.endswith(b":data:receipts")]
    assert set(raw.hvals(receipts)) == {b"1"}
    assert raw.hexists(receipts, "digest-of-today")
    assert not [key for key in made if b":scheduled" in key]
    raw.unlink(*made)


def test_orders_under_a_supervisor(new_server):
    server = new_server()
    env = os.environ | {"STREAMQ_URL": server.url}
    folder = EXAMPLES[0].parent
    subprocess.run([sys.executable, "orders.py"], cwd=folder, env=env, check=True, capture_output=True, timeout=60)
    command = [sys.executable, "-c", "from streamq.cli import main; main()", "run", "orders:worker", "--processes", "2"]
    with subprocess.Popen(command, cwd=folder, env=env, stderr=subprocess.PIPE, text=True) as process:
        lines = [next(line for line in process.stderr if "charged" in line) for _ in range(10)]
        process.terminate()
        process.stderr.read()
    assert process.returncode == 0
    assert sum("customer-0" in line for line in lines) == 4


@pytest.mark.parametrize("path", STANDALONE, ids=lambda path: path.name)
def test_with_nothing_installed(path):
    assert run(path)[-1] == LAST_LINES[path.name]
