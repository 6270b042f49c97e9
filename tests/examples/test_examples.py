"""Every example runs, on a server and with nothing installed, and says what it should."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent.parent / "examples").glob("*.py"))
LAST_LINES = {
    "hand_written_loop.py": "done 9, dead letters 1 (rejected: negative amount)",
    "hand_written_loop_async.py": "done 9, dead letters 1 (rejected: negative amount)",
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


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_with_nothing_installed(path):
    assert run(path) == LAST_LINES[path.name]
