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

LAST_LINES = {
    "hand_written_loop.py": "done 9, dead letters 1 (rejected: negative amount)",
    "hand_written_loop_async.py": "done 9, dead letters 1 (rejected: negative amount)",
    "orders.py": "added 10 orders",
    "telemetry.py": "send > process > charge > process > charge",
    "webhooks.py": "dead: 090-installation: rejected: nobody subscribed to installation",
}


def run(path: Path, *args: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(path), *args],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()[-1]


def test_all_are_known():
    assert [path.name for path in EXAMPLES] == sorted(LAST_LINES)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_on_a_server(path, redis_url, raw):
    before = set(raw.keys("*"))
    assert run(path, "--url", redis_url) == LAST_LINES[path.name]
    raw.unlink(*(set(raw.keys("*")) - before) or {"-"})


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
    assert run(path) == LAST_LINES[path.name]
