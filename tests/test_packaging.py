"""What users install: wheel, sdist and editable checkout work by themselves, with scripts, type marker and demo data."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
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


def make_environment(home: Path, *arguments: str | Path) -> Path:
    """Make an environment, with this environment's packages behind it; install with pip's `arguments`; return its Python.

    Without network: sdist and checkout are built by this environment's hatchling.
    """
    run(sys.executable, "-m", "venv", "--without-pip", home)
    python = home / "bin" / "python"
    site_packages = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    # Dependencies come from here. Directories that a .pth adds stand behind the environment's own, and their
    # own .pth files are not read, so an editable streamq among them stays unseen.
    parents = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
    Path(site_packages, "parent.pth").write_text("\n".join(parents) + "\n")
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet")
    # Whatever streamq is visible behind the environment is not its own, and stays.
    run(*pip, "--ignore-installed", "--no-deps", "--no-index", "--no-build-isolation", *arguments)
    return python


@pytest.fixture(scope="module")
def installed(archives, tmp_path_factory) -> Path:
    """Python of a new environment with the wheel in it."""
    return make_environment(tmp_path_factory.mktemp("wheel"), *archives.glob("*.whl"))


@pytest.fixture(scope="module")
def from_sdist(archives, tmp_path_factory) -> Path:
    """Python of a new environment with the sdist in it, of which pip makes a wheel."""
    return make_environment(tmp_path_factory.mktemp("sdist"), *archives.glob("*.tar.gz"))


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    """A copy of what belongs to the checkout: to write to, and at a place that nothing else knows."""
    copy = tmp_path_factory.mktemp("checkout")
    for name in ("streamq", "lua", "examples"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    return copy


@pytest.fixture(scope="module")
def editable(checkout, tmp_path_factory) -> Path:
    """Python of a new environment with that checkout as an editable install."""
    return make_environment(tmp_path_factory.mktemp("editable"), "-e", checkout)


def installed_files(python: Path, directory: Path) -> tuple[Path, dict[str, str]]:
    """Where streamq is, seen from an empty `directory`, and the digests of its files as `importlib.resources` reads them."""
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
    seen = json.loads(run(python, "-I", "-c", probe, cwd=directory))
    return Path(seen["file"]), {name: digest for name, digest in seen["files"].items() if "__pycache__" not in name}


@pytest.mark.parametrize("way", ["installed", "from_sdist"])
def test_package_holds_all_it_needs(way, request, tmp_path):
    python = request.getfixturevalue(way)
    file, files = installed_files(python, tmp_path)
    assert file.is_relative_to(python.parent.parent)
    lua = {f"lua/{name}": digest for name, digest in files_below(ROOT / "lua").items()}
    assert lua
    assert all(name.endswith(".lua") for name in lua)
    data = {f"demo/data/{name}": digest for name, digest in files_below(ROOT / "examples" / "data").items()}
    package = files_below(ROOT / "streamq")
    assert {JOBS, "py.typed", "__init__.py"} <= data.keys() | package.keys()
    assert files == lua | data | package


def test_editable_install_is_the_checkout(editable, checkout, tmp_path):
    file, files = installed_files(editable, tmp_path)
    assert file == checkout / "streamq" / "__init__.py"
    assert files == files_below(ROOT / "streamq")


def test_editable_install_follows_the_scripts_of_the_checkout(editable, checkout, tmp_path):
    probe = "from streamq._scripts import source; print('-- edited' in source('ack').text)"
    script = checkout / "lua" / "ack.lua"
    before = script.read_text()
    assert run(editable, "-I", "-c", probe, cwd=tmp_path) == "False\n"
    script.write_text(f"{before}\n-- edited\n")
    try:
        assert run(editable, "-I", "-c", probe, cwd=tmp_path) == "True\n"
    finally:
        script.write_text(before)


WORKS = """
import sys
from importlib.metadata import version
from streamq import Job, Stream, Worker

with Stream("packaged", redis="embedded://") as stream:
    def handle(payload, job):
        job.effects.hincrby("sums", "n", payload["n"])
        worker.stop()

    stream.add({"n": 7}, job_id="a")
    worker = Worker(stream, handle)
    worker.run()
    state = stream.inspect()
    assert (state.ready, state.pending) == (0, 0), state
assert "pytest" not in sys.modules
print(version("streamq"))
"""


@pytest.mark.parametrize("way", ["installed", "from_sdist", "editable"])
def test_library_and_command_work(way, request, tmp_path):
    """Away from the checkout: scripts are found and run on a server, and the command line starts."""
    python = request.getfixturevalue(way)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert run(python, "-I", "-c", WORKS, cwd=tmp_path).strip() == project["version"]
    command = python.parent / "streamq"
    assert run(command, "--version", cwd=tmp_path).strip() == f"streamq {project['version']}"
    assert "Usage" in run(command, "inspect", "--help", cwd=tmp_path)


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
