"""The chaos laboratory: workers under load, while everything around them is broken, and a ledger at the end.

    python -m tests.faults.chaos --seed 7 --minutes 2
    python -m tests.faults.chaos --seed 7 --minutes 0.5 --server valkey-9 --faults kill,stop
    python -m tests.faults.chaos --mutant unfenced

The same seed makes the same jobs and the same faults; how they interleave is up to the machine. Exit status 1 if anything
was not as it must be, 2 if it could not be run.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent.parent))  # run as a program, the tests' helpers are not on the path

from faults.chaos import mutants, plan
from faults.chaos.run import Report, Settings, mutated, run
from servers import discover


def settings_of(argv: list[str] | None) -> tuple[Settings, argparse.Namespace]:
    found, _ = discover()
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults.chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=int(time.time()), help="default: another one each time")
    parser.add_argument("--minutes", type=float, help="default: 1; of a mutant, what shows it")
    parser.add_argument("--server", choices=sorted(found), default=list(found)[-1] if found else None)
    parser.add_argument("--processes", type=int, default=4, help="workers (default: 4)")
    parser.add_argument("--supervised", action="store_true", help="let `streamq run` run the workers (Linux)")
    parser.add_argument("--faults", help="only these, by commas: " + ", ".join(plan.Fault))
    parser.add_argument(
        "--mutant", choices=sorted(mutants.MUTANTS), help="a weakened build, with the faults that show it"
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--log", type=Path, help="write what the workers logged to this file")
    given = parser.parse_args(argv)
    if not found:
        parser.error("no server program was found")
    try:
        weights = plan.kinds_of(given.faults.split(",")) if given.faults else None
    except ValueError as error:
        parser.error(str(error))
    settings = Settings(
        backend=found[given.server], seed=given.seed, processes=given.processes, supervised=given.supervised
    )
    if given.mutant:
        settings = mutated(settings, given.mutant)
    if given.minutes:
        settings = replace(settings, seconds=given.minutes * 60)
    if weights:
        settings = replace(settings, faults=weights)
    return settings, given


def summary(report: Report) -> dict[str, Any]:
    """The report as plain values."""
    evidence = report.ledger.evidence
    kinds = Counter(str(evidence.jobs[name].kind) for name in evidence.accepted)
    return {
        "server": f"{report.settings.backend.name} ({report.settings.backend.version})",
        "seed": report.settings.seed,
        "minutes": round(report.settings.seconds / 60, 2),
        "processes": report.settings.processes,
        "supervised": report.settings.supervised,
        "mutant": report.settings.mutant,
        "posted": report.posted,
        "jobs": dict(sorted(kinds.items())),
        "uncertain": len(evidence.uncertain),
        "faults": dict(sorted(report.faults.items())),
        "server stalls": len([blow for blow in evidence.blows if blow.fault == "stall"]),
        "worker processes": report.workers,
        "starts": len(report.ledger.runs),
        "redeliveries": report.ledger.redelivered,
        "effects": sum(evidence.effects.values()),
        "dead letters": dict(sorted(Counter(letter.reason for letter in evidence.letters).items())),
        "drained after, s": round(report.drained_s, 1),
        "violations": [violation._asdict() for violation in report.violations],
    }


def table(report: Report) -> str:
    """The report for people: a table, and each violation with the history of its job."""
    rows = summary(report) | {"violations": len(report.violations)}
    lines = []
    for name, value in rows.items():
        if isinstance(value, dict):
            parts = ", ".join(f"{n} {kind}" for kind, n in value.items())
            lines.append(f"{name:18} {sum(value.values())}" + (f"  ({parts})" if parts else ""))
        elif value is not None:
            lines.append(f"{name:18} {value}")
    for violation in report.violations:
        lines += ["", f"{violation.rule}: {violation.what}", *(f"    {line}" for line in violation.history)]
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    settings, given = settings_of(argv)
    report = run(settings)
    if given.log:
        given.log.write_text(report.log)
    sys.stdout.write((json.dumps(summary(report), indent=2) if given.json else table(report)) + "\n")
    return 1 if report.violations else 0


if __name__ == "__main__":
    sys.exit(main())
