"""docs/migrations.md shows what the commands print."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cli import shell
from migrations.previous import fill, previous

PAGE = Path(__file__).parents[2] / "docs" / "migrations.md"


@pytest.mark.covers("T2")
@pytest.mark.parametrize("backend", ["redis-6.2", "valkey-9"], indirect=True)
def test_the_sample_is_what_the_commands_print(redis_url, ns):
    sample = re.search(r"<!-- runs -->\n```\n(.*?)```\n<!-- /runs -->", PAGE.read_text("utf-8"), re.DOTALL)[1]
    with previous(redis_url, "mail", ns, lease=900) as old:
        fill(old)
    printed = ""
    for line in re.findall(r"^\$ (streamq .*)$", sample, re.MULTILINE):
        _, *words = line.split()
        done = shell.call(*words, "--url", redis_url, "--deployment", ns)
        assert (done.returncode, done.stderr) == (0, "")
        printed += f"$ {line}\n{done.stdout}"
    printed = printed.replace(f" --deployment {ns}", "")
    when = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC")
    assert when.sub("WHEN", printed) == when.sub("WHEN", sample)
