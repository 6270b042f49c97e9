"""What users install: the wheel works by itself, and holds scripts, type marker and the demo's data."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
JOBS = "demo/data/github-webhooks.jsonl.gz"


def run(*command: str | Path, **options) -> str:
    """Run a command and return its output; its error output is the message if it fails."""
    # Nothing of this process's search path may reach the child: it would find the checkout's streamq.
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    result = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=100, env=env, **options
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def files_below(folder: Path) -> dict[str, str]:
    """Names below `folder`, each with the SHA-256 of the file; without caches and hidden files."""
    names = {path.relative_to(folder): path for path in sorted(folder.rglob("*")) if path.is_file()}
    return {
        name.as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for name, path in names.items()
        if not any(part.startswith(".") or part == "__pycache__" for part in name.parts)
    }


@pytest.fixture(scope="module")
def archives(tmp_path_factory) -> Path:
    """A directory with the wheel and the sdist, built without network: hatchling is its own build backend."""
    directory = tmp_path_factory.mktemp("dist")
    for target in ("wheel", "sdist"):
        run(sys.executable, "-m", "hatchling", "build", "-t", target, "-d", directory, cwd=ROOT)
    return directory


@pytest.fixture(scope="module")
def installed(archives, tmp_path_factory) -> Path:
    """Python of a new environment with the wheel in it, and this environment's packages behind it."""
    home = tmp_path_factory.mktemp("venv")
    run(sys.executable, "-m", "venv", "--without-pip", home)
    python = home / "bin" / "python"
    (wheel,) = archives.glob("*.whl")
    run(
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        wheel,
    )
    site_packages = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    # Dependencies come from here. Directories that a .pth adds stand behind the environment's own, and their
    # own .pth files are not read, so an editable streamq among them stays unseen.
    parents = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
    Path(site_packages, "parent.pth").write_text("\n".join(parents) + "\n")
    return python


def test_wheel_works_by_itself(installed, tmp_path):
    probe = """
import hashlib, json, sys
from importlib.resources import files
import streamq

def walk(folder, prefix=""):
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from walk(entry, f"{prefix}{entry.name}/")
        else:
            yield f"{prefix}{entry.name}", hashlib.sha256(entry.read_bytes()).hexdigest()

print(json.dumps({"file": streamq.__file__, "files": dict(walk(files("streamq")))}))
"""
    seen = json.loads(run(installed, "-I", "-c", probe, cwd=tmp_path))
    assert Path(seen["file"]).is_relative_to(installed.parent.parent)
    lua = {f"lua/{name}": digest for name, digest in files_below(ROOT / "lua").items()}
    assert lua
    assert all(name.endswith(".lua") for name in lua)
    data = {f"demo/data/{name}": digest for name, digest in files_below(ROOT / "examples" / "data").items()}
    package = files_below(ROOT / "streamq")
    assert {JOBS, "py.typed", "__init__.py"} <= data.keys() | package.keys()
    wheel = {name: digest for name, digest in seen["files"].items() if "__pycache__" not in name}
    assert wheel == lua | data | package


def test_command_of_the_wheel_runs(installed, tmp_path):
    assert "Usage" in run(installed.parent / "streamq", "--help", cwd=tmp_path)


def test_data_of_the_demo_reads(archives):
    (wheel,) = archives.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        lines = gzip.decompress(archive.read(f"streamq/{JOBS}")).splitlines()
    assert lines
    assert all(json.loads(line) for line in lines)


def test_wheel_holds_nothing_else(archives):
    (wheel,) = archives.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    (metadata,) = {name.partition("/")[0] for name in names} - {"streamq"}
    assert metadata.endswith(".dist-info")
    assert any(name.startswith(f"{metadata}/licenses/LICENSE") for name in names)


def test_sdist_holds_what_the_tests_need(archives):
    (sdist,) = archives.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for folder in ("lua", "tests", "docs", "examples", "streamq"):
        wanted = {f"{folder}/{name}" for name in files_below(ROOT / folder)}
        assert wanted, folder
        assert wanted <= names
    assert {"pyproject.toml", "README.md", "LICENSE", "CONTRIBUTING.md"} <= names


def test_import_is_light():
    """A process that only adds jobs pays for no command line, and for the client only when it connects."""
    code = "import sys, streamq; print(*{'typer', 'rich', 'redis'} & sys.modules.keys())"
    assert run(sys.executable, "-c", code, cwd=ROOT).split() == []
