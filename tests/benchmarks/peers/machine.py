"""What a machine is asked while something runs on it: CPU time, memory, and how fast it is just now. Linux only."""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from pathlib import Path

import redis

TICKS = os.sysconf("SC_CLK_TCK")


def busy_s() -> float:
    """CPU seconds that the whole machine has spent on anything."""
    with Path("/proc/stat").open() as file:
        spent = [int(ticks) for ticks in file.readline().split()[1:8]]
    return (sum(spent) - spent[3] - spent[4]) / TICKS  # not idle, not waiting for a disk


def tree(pid: int) -> list[int]:
    """A process and all below it."""
    found, left = [], [pid]
    while left:
        found.append(left.pop())
        with suppress(OSError):
            for task in Path(f"/proc/{found[-1]}/task").iterdir():
                left += map(int, (task / "children").read_text().split())
    return found


def cpu_s(pid: int) -> float:
    """CPU seconds of a process and all below it, also of those that have ended."""
    spent = 0
    for each in tree(pid):
        with suppress(OSError):
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
            spent += sum(map(int, fields[11:15]))
    return spent / TICKS


def peak_mb(pid: int) -> float:
    """Most memory that a process and all below it have held, each by itself."""
    held = 0
    for each in tree(pid):
        with suppress(OSError):
            if match := re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{each}/status").read_text()):
                held += int(match[1])
    return held / 1024


def speed(client: redis.Redis, *, loops: int = 150_000, pings: int = 400) -> dict[str, float]:
    """How fast this machine is just now: a loop of Python by CPU time, PINGs by the clock."""
    began = time.process_time()
    total = 0
    for i in range(loops):
        total += i & 7
    loops_s = loops / (time.process_time() - began)
    began = time.monotonic()
    for _ in range(pings):
        client.ping()
    return {"python_mloops": loops_s / 1e6, "ping_k": pings / (time.monotonic() - began) / 1e3}
