"""streamq beside other systems for jobs on Redis, and beside loops over clients, on this machine.

    python -m tests.benchmarks.peers                   everything, into docs/benchmarks.md: about 80 minutes
    python -m tests.benchmarks.peers --quick           best settings, few rounds, recovery of streamq only: 10 to 15 minutes
    python -m tests.benchmarks.peers --report          nothing is measured: the report is written anew from what is kept
    python -m tests.benchmarks.peers --workloads drain --systems raw-async,streamq --profiles default,best --seconds 1

Where systems, workloads or profiles are chosen, the figures are printed, and nothing is kept or written without --publish.

Virtual environments, one for each system, are made when they are missing (some minutes, 2 GB), with packages of PyPI; BullMQ
on Node needs node and npm, else it is left out, as is all that cannot be installed. Linux only: CPU time and memory are read
from /proc. Nothing else should run meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a program, the tests' helpers are not on the path

import redis
from servers import ServerUnavailableError, discover

from . import report
from .results import Results, Row
from .systems import RAW, ROOT, SYSTEMS, US, Environments, System, UnavailableError
from .workloads import WORKLOADS, Plan, Workload

ROUNDS = 3
DOCS = ROOT / "docs"
KEPT = Path(__file__).parent / "results" / "rows.jsonl.gz"
QUICK: dict[str, Any] = {
    "seconds": 1.0,
    "latency_jobs": 150,
    "crash_s": 40.0,
    "fast_crash_s": 20.0,
    "backlogs": (1_000, 100_000),
}
FAILURES = (RuntimeError, OSError, ValueError, subprocess.TimeoutExpired, redis.RedisError, ServerUnavailableError)


def say(text: str) -> None:
    """Progress, on stderr."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stderr.flush()


class Run:
    """Takes systems through workloads.

    Args:
        systems: Those that are there.
        plan: How much is done.
        rounds: How often; None for what each workload takes.
        is_quick: Whether what takes long is done to streamq and the yardstick only.
    """

    def __init__(self, systems: list[System], plan: Plan, *, rounds: int | None, is_quick: bool) -> None:
        self.systems = systems
        self.plan = plan
        self.rounds = rounds
        self.is_quick = is_quick
        self.rows: list[Row] = []

    def take(self, name: str, workload: Workload) -> None:
        """Take all systems through a workload."""
        taken = [system for system in self.systems if workload.for_all or system.name == US]
        if self.is_quick and (workload.waits or name == "backlog"):
            taken = [system for system in taken if system.name in {US, "raw-sync"}]
        if workload.waits:
            with ThreadPoolExecutor(max(1, len(taken))) as pool:
                for _ in pool.map(
                    lambda place: self._one(name, workload, taken[place], 0, delay=1.5 * place), range(len(taken))
                ):
                    pass
            return
        rounds = 1 if self.is_quick and workload.rounds else self.rounds or workload.rounds or ROUNDS
        for turn in range(rounds):
            for system in taken if turn % 2 == 0 else reversed(taken):
                self._one(name, workload, system, turn)

    def _one(self, name: str, workload: Workload, system: System, turn: int, *, delay: float = 0) -> None:
        time.sleep(delay)  # they start in turn
        rows = workload.take(system, self.plan)
        try:
            for row in rows:
                self._keep(name, system, turn, row)
        except FAILURES as error:
            self._keep(name, system, turn, {"error": str(error)[-400:]})

    def _keep(self, name: str, system: System, turn: int, row: Row) -> None:
        values = {key: round(value, 5) if isinstance(value, float) else value for key, value in row.items()}
        self.rows.append({"workload": name, "system": system.name, "round": turn, **values})
        say(f"{name} {system.name} {turn + 1}: " + json.dumps({k: v for k, v in values.items() if k != "quantiles"}))


def brief(results: Results) -> Iterator[str]:
    """Medians, one line each; rates also beside the first of their kind."""
    names = (
        "rate",
        "client_cpu_1k",
        "server_cpu_1k",
        "round_trips",
        "p50",
        "p99",
        "all_s",
        "duplicates",
        "requests",
        "bytes_left",
    )
    first: dict[tuple[str, Any], float] = {}
    for workload in WORKLOADS:
        for key in results.keys(workload, "profile", "mode", "processes", "queued"):
            given = {name: value for name, value in key.items() if value is not None}
            figures = {name: results.figure(name, workload, **given) for name in names}
            values = {name: figure.middle for name, figure in figures.items() if figure}
            text = f"{' '.join(map(str, (workload, *given.values()))):40}"
            if "rate" in values:
                rate = values.pop("rate")
                text += f" {rate:>10,.0f}/s  x {rate / first.setdefault((workload, key['mode']), rate):.3f}"
            yield text + "".join(f"  {name} {value:.4f}" for name, value in values.items())


def machine_text() -> str:
    """Which machine this is."""
    model = platform.machine()
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return f"{os.cpu_count()} cores ({model}), Linux {platform.release()}"


def publish(results: Results, environments: Environments, folder: Path) -> None:
    """Write the report."""
    environments.make(["plots"], say)
    drawn = subprocess.run(
        [str(environments.interpreter("plots")), str(Path(__file__).parent / "plots.py"), str(folder)],
        input=json.dumps(report.plotted(results)),
        text=True,
        capture_output=True,
    )
    if drawn.returncode:
        say(f"no plots: {drawn.stderr[-300:]}")
    plots = [name for name in report.PLOTS if (folder / name).exists()]
    (folder / "benchmarks.md").write_text(report.markdown(results, plots=plots), encoding="utf-8")
    text = json.dumps(report.summary(results), indent=1)
    (folder / "benchmarks.json").write_text(text + "\n", encoding="utf-8")
    say(f"wrote {folder}/benchmarks.md")


def arguments_of(argv: list[str] | None) -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    shorts = ", ".join(f"{name} ({workload.short})" for name, workload in WORKLOADS.items())
    parser.add_argument("--systems", help="only these, by commas: " + ", ".join(SYSTEMS))
    parser.add_argument("--workloads", help="only these, by commas: " + shorts)
    parser.add_argument("--profiles", help="drain with these only, by commas, such as default,best")
    parser.add_argument("--seconds", type=float, help="of adding and of draining, each time (default: 4)")
    parser.add_argument("--repeat", type=int, help="rounds (default: 3; latency 5)")
    parser.add_argument("--quick", action="store_true", help="see above")
    parser.add_argument("--report", action="store_true", help="see above")
    parser.add_argument(
        "--publish", action="store_true", help="keep the rows and write the report, whatever was chosen"
    )
    parser.add_argument("--add", action="store_true", help="the same, with the rows that are kept already")
    parser.add_argument("--server", default="redis-7.0", help="one that tests/servers.py finds (default: redis-7.0)")
    parser.add_argument("--python", default=sys.executable, help="makes the environments (default: this one)")
    parser.add_argument(
        "--venvs", type=Path, default=Path.home() / ".cache" / "streamq-benchmarks", help="where they are"
    )
    parser.add_argument("--here", action="store_true", help="no environments: what this Python can import is measured")
    parser.add_argument("--rows", type=Path, default=KEPT, help="where the rows are kept")
    parser.add_argument("--docs", type=Path, default=DOCS, help="where the report is written")
    parser.add_argument("--latency-jobs", type=int, help="of a round (default: 1,000)")
    chosen = parser.parse_args(argv)
    chosen.is_whole = not (chosen.systems or chosen.workloads or chosen.profiles)
    by_short = {workload.short: name for name, workload in WORKLOADS.items()}
    chosen.workloads = [by_short.get(name, name) for name in (chosen.workloads or ",".join(WORKLOADS)).split(",")]
    chosen.systems = (chosen.systems or ",".join(SYSTEMS)).split(",")
    for what, names, there in (("system", chosen.systems, SYSTEMS), ("workload", chosen.workloads, WORKLOADS)):
        for name in names:
            if name not in there:
                parser.error(f"no {what} {name}; there are {', '.join(there)}")
    return chosen


def command_of(given: list[str]) -> str:
    """What was typed, without what is said about the place."""
    words = iter(given)
    kept = ["python", "-m", "tests.benchmarks.peers"]
    for word in words:
        if word in {"--python", "--venvs", "--rows", "--docs"}:
            next(words)
        else:
            kept.append(word)
    return shlex.join(kept)


def plan_of(chosen: argparse.Namespace) -> Plan:
    """How much is to be done."""
    found, missing = discover()
    if chosen.server not in found:
        sys.exit(f"no server {chosen.server}: {missing.get(chosen.server, 'found are ' + ', '.join(found))}")
    more = dict(QUICK) if chosen.quick else {}
    for name in ("seconds", "latency_jobs"):
        if getattr(chosen, name) is not None:
            more[name] = getattr(chosen, name)
    profiles = tuple(chosen.profiles.split(",")) if chosen.profiles else None
    return Plan(found[chosen.server], profiles, is_quick=chosen.quick, **more)


def measure(chosen: argparse.Namespace, environments: Environments, command: str) -> Results:
    """Measure what was asked for."""
    plan = plan_of(chosen)
    began = time.monotonic()
    environments.make(dict.fromkeys(SYSTEMS[name][1] for name in chosen.systems), say)
    systems, left_out = [], {}
    for name in chosen.systems:
        try:
            systems.append(environments.system(name))
        except UnavailableError as error:
            left_out[name] = str(error)
            say(f"no {name}: {error}")
    run = Run(
        systems, plan, rounds=chosen.repeat or (2 if chosen.quick else None), is_quick=chosen.quick and chosen.is_whole
    )
    about: Row = {
        "command": command,
        "date": time.strftime("%Y-%m-%d"),
        "server": f"{plan.backend.product.title()} {plan.backend.version}",
        "python": platform.python_version(),
        "machine": machine_text(),
        "seconds": plan.seconds,
        "rounds": run.rounds or ROUNDS,
        "left_out": left_out,
        "systems": {system.name: dict(system.about) for system in systems},
    }
    about["python"] = next((s.about["versions"]["python"] for s in systems if s.name in {US, *RAW}), about["python"])
    for name in chosen.workloads:
        run.take(name, WORKLOADS[name])
    loads = [row["load"] for row in run.rows if "load" in row] or [0.0]
    about |= {"minutes": (time.monotonic() - began) / 60, "load": [min(loads), max(loads)]}
    return Results(about, run.rows)


def main(argv: list[str] | None = None) -> int:
    """Run from the command line."""
    chosen = arguments_of(argv)
    environments = Environments(None if chosen.here else chosen.venvs, chosen.python)
    if chosen.report:
        publish(Results.load(chosen.rows), environments, chosen.docs)
        return 0
    results = measure(chosen, environments, command_of(sys.argv[1:] if argv is None else argv))
    sys.stdout.write("\n".join(brief(results)) + "\n")
    if chosen.add:
        results = Results.load(chosen.rows).joined(results)
    if chosen.is_whole or chosen.publish or chosen.add:
        results.save(chosen.rows)
        publish(results, environments, chosen.docs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
