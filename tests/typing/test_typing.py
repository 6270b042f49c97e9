"""What two type checkers make of the public surface: right uses pass, wrong ones are refused. See ``uses.py``."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

USES = Path(__file__).with_name("uses.py")
WRONG = re.compile(r"#\s*(?:type|pyright): ignore.*$", re.MULTILINE)


def run(*command, **options):
    """Run a checker; its exit status and its report."""
    done = subprocess.run(
        [sys.executable, "-m", *map(str, command)], capture_output=True, text=True, timeout=110, **options
    )
    return done.returncode, done.stdout + done.stderr


def mypy(folder):
    return run("mypy", "--strict", "--config-file=", f"--cache-dir={folder / 'cache'}", "uses.py", cwd=folder)


def pyright(folder):
    if importlib.util.find_spec("pyright") is None:
        if os.environ.get("STREAMQ_REQUIRE"):
            pytest.fail("pyright is missing: pip install -e '.[test]'")
        pytest.skip("pyright is not installed: pip install -e '.[test]'")
    settings = {
        "include": ["uses.py"],
        "typeCheckingMode": "strict",
        "pythonVersion": "3.11",
        "enableTypeIgnoreComments": False,  # those are mypy's
        "reportUnnecessaryTypeIgnoreComment": "error",
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    env = {**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    return run("pyright", "--pythonpath", sys.executable, cwd=folder, env=env)


@pytest.mark.parametrize("checker", [mypy, pyright])
def test_uses_are_typed(tmp_path, checker):
    shutil.copy(USES, tmp_path)
    status, report = checker(tmp_path)
    assert status == 0, report


@pytest.mark.parametrize("checker", [mypy, pyright])
def test_wrong_uses_are_refused(tmp_path, checker):
    text = USES.read_text("utf-8")
    wrong = {text[: found.start()].count("\n") + 1 for found in WRONG.finditer(text)}
    (tmp_path / "uses.py").write_text(WRONG.sub("", text), "utf-8")
    status, report = checker(tmp_path)
    assert status == 1, report
    assert {int(line) for line in re.findall(r"uses\.py:(\d+)", report)} == wrong, report
    assert len(wrong) >= 15
