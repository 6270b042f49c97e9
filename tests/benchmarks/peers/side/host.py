"""Runs one adapter inside its virtual environment; the benchmark starts this program, nobody else.

host.py NAME meta
host.py NAME produce one|bulk JOBS SECONDS [cold]    SECONDS 0: until all are added; prints what it took as JSON
host.py NAME latency JOBS GAP FILE                   one every GAP seconds; FILE gets the times of the calls
host.py NAME worker PROFILE                          until it is killed
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import os
import platform
import resource
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from adapters.base import HIT, Adapter

WARM = 300
"""Jobs that are added before the clock runs: they connect, load scripts and fill caches."""


def meta(adapter: Adapter) -> dict[str, Any]:
    """What the report says of a system."""
    versions = {"python": platform.python_version()}
    for package in adapter.packages:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    names = ("name", "bulk", "profiles", "adds", "sweep", "notes", "limits")
    return {**{name: getattr(adapter, name) for name in names}, "versions": versions}


async def done(value: Any) -> Any:
    """Await what may be a coroutine."""
    return await value if inspect.isawaitable(value) else value


def cpu_s() -> float:
    """CPU seconds of this process and its children."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def peak_mb() -> float:
    """Most memory that this process has held; what getrusage says may be its parent's."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


async def add(adapter: Adapter, mode: str, jobs: int, seconds: float = 0) -> int:
    """Add so many jobs, for so long at most, and return how many were added."""
    end = time.monotonic() + seconds if seconds else float("inf")
    added = 0
    if mode == "bulk":
        while added < jobs and time.monotonic() < end:
            high = min(jobs, added + adapter.chunk)
            await done(adapter.add_bulk(added, high))
            added = high
        return added
    one = adapter.add_one
    if adapter.is_async:
        while added < jobs and (added & 15 or time.monotonic() < end):
            await one(added)
            added += 1
    else:
        while added < jobs and (added & 15 or time.monotonic() < end):
            one(added)
            added += 1
    return added


async def produce(adapter: Adapter, mode: str, jobs: int, seconds: float, *, cold: bool) -> None:
    """Add jobs and print what it took."""
    await done(adapter.open())
    warm = 0 if cold else WARM
    await add(adapter, mode, warm)
    cpu, began = cpu_s(), time.monotonic()
    added = await add(adapter, mode, jobs, seconds)
    took = {"seconds": time.monotonic() - began, "client_cpu_s": cpu_s() - cpu}
    sys.stdout.write(json.dumps({"jobs": added, "warm": warm, **took, "rss_mb": peak_mb()}) + "\n")
    await done(adapter.close())


async def latency(adapter: Adapter, jobs: int, gap: float, path: str) -> None:
    """Add jobs one by one, and write when each call began."""
    await done(adapter.open())
    first = int(os.environ.get("PEERS_FIRST", "0"))
    calls = []
    due = time.monotonic()
    for i in range(first, first + jobs):
        called = time.monotonic_ns()
        await done(adapter.add_one(i))
        calls.append(HIT.pack(i, called, os.getpid(), 0))
        due += gap
        await asyncio.sleep(max(0.0, due - time.monotonic()))
    Path(path).write_bytes(b"".join(calls))  # noqa: ASYNC240  # nothing else runs
    await done(adapter.close())


def main(name: str, role: str, *arguments: str) -> None:
    """Do what the benchmark asks for."""
    adapter: Adapter = importlib.import_module(f"adapters.{name}").ADAPTER()
    if role == "meta":
        sys.stdout.write(json.dumps(meta(adapter)) + "\n")
    elif role == "produce":
        mode, jobs, seconds, *rest = arguments
        asyncio.run(produce(adapter, mode, int(jobs), float(seconds), cold="cold" in rest))
    elif role == "latency":
        jobs, gap, path = arguments
        asyncio.run(latency(adapter, int(jobs), float(gap), path))
    else:
        adapter.worker(arguments[0])


if __name__ == "__main__":
    main(*sys.argv[1:])
