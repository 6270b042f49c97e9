"""Which systems there are, what each needs, and how their adapters are started: each in a virtual environment of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
SIDE = Path(__file__).parent / "side"
NODE = "node"

REQUIREMENTS: Mapping[str, tuple[str, ...]] = {
    "raw": ("redis==8.1.0", "hiredis==3.5.0", "uvloop==0.23.0"),
    "streamq": ("-e", str(ROOT), "uvloop==0.23.0"),
    "streaq": ("streaq==7.2.0", "uvloop==0.23.0"),
    "taskiq": ("taskiq==0.13.0", "taskiq-redis==1.2.4", "uvloop==0.23.0", "hiredis"),
    "faststream": ("faststream[redis,cli]==0.7.8", "uvloop==0.23.0", "hiredis"),
    "arq": ("arq==0.28.0", "uvloop==0.23.0", "hiredis"),
    # saq imports typing_extensions without asking for it.
    "saq": ("saq[redis,hiredis]==0.26.4", "uvloop==0.23.0", "typing_extensions"),
    "docket": ("pydocket==0.27.0", "uvloop==0.23.0", "hiredis"),
    "rq": ("rq==3.0.0", "hiredis"),
    "dramatiq": ("dramatiq[redis]==2.2.1", "hiredis"),
    "celery": ("celery[redis]==5.7.0", "hiredis"),
    "huey": ("huey==3.5.4", "redis", "hiredis"),
    "bullmq": ("bullmq==3.4.4", "hiredis"),
    NODE: ("bullmq@6.7.0", "ioredis"),
    "plots": ("matplotlib",),
}
"""Virtual environment -> what pip (npm for node) installs there. One for each: they pin different versions of redis-py."""

SYSTEMS: Mapping[str, tuple[str, str]] = {
    "raw-socket": ("raw_socket", "raw"),
    "raw-sync": ("raw_sync", "raw"),
    "raw-async": ("raw_async", "raw"),
    "raw-one": ("raw_one", "raw"),
    "ref-async": ("ref_async", "raw"),
    "streamq": ("streamq", "streamq"),
    "faststream": ("faststream", "faststream"),
    "taskiq": ("taskiq", "taskiq"),
    "docket": ("docket", "docket"),
    "streaq": ("streaq", "streaq"),
    "saq": ("saq", "saq"),
    "arq": ("arq", "arq"),
    "dramatiq": ("dramatiq", "dramatiq"),
    "huey": ("huey", "huey"),
    "rq": ("rq", "rq"),
    "celery": ("celery", "celery"),
    "bullmq-py": ("bullmq_py", "bullmq"),
    "bullmq-node": ("bullmq_node", NODE),
}
"""Name -> its adapter, its environment. In the order of the report."""

US = "streamq"
RAW = ("raw-socket", "raw-sync", "raw-async", "raw-one", "ref-async")
"""Not systems: loops to compare with."""


NOT_PYTHON = ("bullmq-node",)


class UnavailableError(Exception):
    """A system cannot be measured here; the message says why."""


@dataclass(frozen=True)
class System:
    """A system that can be measured."""

    name: str
    command: tuple[str, ...]
    path: tuple[str, ...]
    node_modules: str
    about: Mapping[str, Any]
    """What its adapter says: versions, profiles, ways to add."""

    def start(self, role: str, *arguments: object, port: int, profile: str, **more: object) -> subprocess.Popen[bytes]:
        """Start the adapter in a role, in a process group of its own."""
        return subprocess.Popen(
            self.arguments(role, *arguments),
            env=self.environment(port, profile, **more),
            stdin=subprocess.DEVNULL,
            stdout=more.get("output", subprocess.PIPE),  # type: ignore[call-overload]
            stderr=subprocess.STDOUT if "output" in more else subprocess.PIPE,
            start_new_session=True,
        )

    def call(self, role: str, *arguments: object, port: int, profile: str, timeout: float, **more: object) -> str:
        """Run the adapter in a role to its end; what it printed."""
        done = subprocess.run(
            self.arguments(role, *arguments),
            env=self.environment(port, profile, **more),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        if done.returncode:
            raise RuntimeError(f"{self.name} {role}: {done.stderr[-600:]}")
        return done.stdout

    def arguments(self, role: str, *arguments: object) -> list[str]:
        return [*self.command, role, *map(str, arguments)]

    def environment(
        self, port: int, profile: str, *, hits: Path | None = None, hold: float = 0, first: int = 0, **_: object
    ):
        own = {
            "PEERS_PORT": str(port),
            "PEERS_PROFILE": profile,
            "PEERS_HOLD": str(hold),
            "PEERS_FIRST": str(first),
            "PEERS_HITS": str(hits or os.devnull),
            "PEERS_NODE_MODULES": self.node_modules,
            "PYTHONPATH": os.pathsep.join(self.path),
            "NODE_ENV": "production",
        }
        return {**os.environ, **own}


class Environments:
    """The virtual environments.

    Args:
        home: The folder that holds them, or None to use `python` as it is, for what it can import.
        python: The interpreter that they are made with.
    """

    def __init__(self, home: Path | None, python: str) -> None:
        version = "import sys; print('py%d.%d' % sys.version_info[:2])"
        self.python = python
        self.home = home and home / subprocess.check_output([python, "-c", version], text=True).strip()

    def interpreter(self, name: str) -> Path:
        """Of an environment."""
        return Path(self.python) if self.home is None else self.home / name / "bin" / "python"

    def make(self, names: Iterable[str], say: Callable[[str], None]) -> None:
        """Make what is not there yet, or was made for other requirements; one that fails is told, and left out."""
        for name in names:
            if self.home is None:
                continue
            place = self.home / name
            made = place / "made-for.json"
            wanted = json.dumps(REQUIREMENTS[name])
            if made.exists() and made.read_text() == wanted:
                continue
            say(f"making an environment for {name}")
            try:
                self._install(name, place)
            except (OSError, subprocess.CalledProcessError) as error:
                said = getattr(error, "stderr", None) or str(error)
                say(f"no {name}: {said.strip()[-300:]}")
                continue
            made.write_text(wanted)

    def _install(self, name: str, place: Path) -> None:
        place.mkdir(parents=True, exist_ok=True)
        if name == NODE:
            steps = [["npm", "install", "--no-audit", "--no-fund", "--prefix", str(place), *REQUIREMENTS[name]]]
        else:
            pip = [str(place / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            steps = [[self.python, "-m", "venv", str(place)], [*pip, *REQUIREMENTS[name]]]
        for step in steps:
            subprocess.run(step, check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL)

    def system(self, name: str) -> System:
        """A system that is ready.

        Raises:
            UnavailableError: It is not.
        """
        adapter, environment = SYSTEMS[name]
        modules = str(Path(self.home or "", NODE, "node_modules"))
        if environment == NODE:
            command: tuple[str, ...] = (shutil.which("node") or "node", str(SIDE / f"{adapter}.js"))
        else:
            command = (str(self.interpreter(environment)), str(SIDE / "host.py"), adapter)
        # The checkout that runs this is the one that is measured, whichever the environment was made for.
        path = (str(SIDE), str(ROOT)) if environment == "streamq" else (str(SIDE),)
        system = System(name, command, path, modules, {})
        try:
            about = json.loads(system.call("meta", port=0, profile="default", timeout=60))
        except (OSError, RuntimeError, subprocess.TimeoutExpired) as error:
            raise UnavailableError(str(error).strip()[-300:]) from error
        return System(name, command, path, modules, about)
