"""streamq beside other systems.

    python -m tests.benchmarks.peers
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from .rig import Rig  # noqa: F401  # puts the tests' helpers on the path
from servers import discover

from .systems import SYSTEMS, Environments, UnavailableError
from .workloads import WORKLOADS, Plan


def say(text: str) -> None:
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.peers")
    parser.add_argument("--systems", default=",".join(SYSTEMS))
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--profiles")
    parser.add_argument("--server", default="redis-7.0")
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--venvs", type=Path, default=Path.home() / ".cache" / "streamq-benchmarks")
    o = parser.parse_args(argv)
    found, _ = discover()
    environments = Environments(o.venvs, o.python)
    names = o.systems.split(",")
    environments.make(dict.fromkeys(SYSTEMS[name][1] for name in names), say)
    systems = []
    for name in names:
        try:
            systems.append(environments.system(name))
        except UnavailableError as error:
            say(f"no {name}: {error}")
    plan = Plan(found[o.server], o.profiles.split(",") if o.profiles else None, o.seconds)
    rows = []
    for workload in o.workloads.split(","):
        for turn in range(o.repeat):
            for system in systems if turn % 2 == 0 else systems[::-1]:
                try:
                    for row in WORKLOADS[workload](system, plan):
                        rows.append({"workload": workload, "system": system.name, **row})
                        say(json.dumps({k: round(v, 4) if isinstance(v, float) else v for k, v in rows[-1].items()}))
                except (RuntimeError, OSError) as error:
                    say(f"{workload} {system.name}: {error}")
    import statistics

    keys = list(dict.fromkeys((r["workload"], r.get("mode", ""), r["system"], r["profile"]) for r in rows))
    ref = {}
    for key in keys:
        mine = [r for r in rows if (r["workload"], r.get("mode", ""), r["system"], r["profile"]) == key]
        rate = statistics.median(r["rate"] for r in mine)
        ref.setdefault(key[:2], rate)
        cpu, srv = (statistics.median(r[k] for r in mine) for k in ("client_cpu_1k", "server_cpu_1k"))
        print(f"{' '.join(key):40} {rate:10,.0f}/s  x{rate / ref[key[:2]]:.3f}  client {cpu * 1e3:7.2f} us  server {srv * 1e3:7.2f} us  trips {mine[0].get('round_trips', 0):.4f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
