"""What adapters share: where the server is, which settings are asked for, and the handler. Standard library only."""

from __future__ import annotations

import asyncio
import os
import struct
import time
from collections.abc import Coroutine
from typing import Any, ClassVar

HOST = "127.0.0.1"
PORT = int(os.environ.get("PEERS_PORT", "6379"))
URL = f"redis://{HOST}:{PORT}/0"
PROFILE = os.environ.get("PEERS_PROFILE", "default")
HOLD_S = float(os.environ.get("PEERS_HOLD", "0"))
"""How long a handler sleeps."""

PAYLOAD = "x" * 100
HIT = struct.Struct("<qqii")
"""Number of the job, CLOCK_MONOTONIC in ns, process ID, nothing."""

_log: int | None = None


def hit(i: int) -> None:
    """Note that the handler of job `i` has started: one write(2) with O_APPEND, safe across threads and processes."""
    global _log  # noqa: PLW0603  # as cheap as it gets: it is part of what is measured
    if _log is None:
        _log = os.open(os.environ["PEERS_HITS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(_log, HIT.pack(i, time.monotonic_ns(), os.getpid(), 0))


async def handle_async(i: int) -> None:
    """The handler of every system whose handlers are coroutines."""
    hit(i)
    if HOLD_S:
        await asyncio.sleep(HOLD_S)


def handle(i: int) -> None:
    """The handler of every other system."""
    hit(i)
    if HOLD_S:
        time.sleep(HOLD_S)


def run(main: Coroutine[Any, Any, Any], *, fast: bool) -> None:
    """Run an event loop: uvloop's if `fast`, else asyncio's own."""
    if not fast:
        asyncio.run(main)
        return
    import uvloop

    uvloop.run(main)


class Adapter:
    """A system: how jobs are added to it, and how its worker is run.

    Profiles are its settings. `default` and `best` are needed. `hold` and `fast` are for crashes: `hold` takes 100 jobs at
    once, `fast` has every lease, timeout and interval at two seconds, `hold_fast` is both. One that a system does not have
    is left out. `adds` are the ways to add of which W1 measures more than `default`.

    All methods but `worker` may be coroutines: then `is_async` is True.
    """

    name: ClassVar[str]
    is_async = True
    chunk = 100
    """Jobs of one `add_bulk`."""
    bulk = ""
    """How many are added at once, in words; empty if the system documents no way."""
    profiles: ClassVar[dict[str, str]] = {"default": "", "best": ""}
    adds: ClassVar[tuple[str, ...]] = ("default",)
    packages: ClassVar[tuple[str, ...]] = ("redis", "hiredis")
    """Whose versions are told."""
    sweep: ClassVar[tuple[str, ...]] = ()
    """Profiles that differ in concurrency only."""
    notes = ""
    limits = ""
    """What it does not guarantee."""

    def open(self) -> Any:
        """Connect, and make what keeps jobs that are added before a worker runs."""

    def close(self) -> Any:
        """Disconnect."""

    def add_one(self, i: int) -> Any:
        """Add job `i`, by itself."""
        raise NotImplementedError

    def add_bulk(self, low: int, high: int) -> Any:
        """Add jobs `low` to `high` - 1 in the best documented way."""
        raise NotImplementedError

    def worker(self, profile: str) -> None:
        """Run a worker until it is killed."""
        raise NotImplementedError
