"""The server of the explorer's worlds, and a summary of how many schedules were played (with -v)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
import servers
from faults.explorer import Mode
from faults.view import Server

from streamq.connection import settings_of


@pytest.fixture
def worlds(server: servers.Server | servers.GivenServer, ns: str) -> Iterator[Server]:
    """Where worlds are made; the deployment is the test's own, so its registry goes with its keys.

    Over the unix socket where there is one: half of the time goes into hundreds of thousands of small requests.
    """
    url = f"unix://{server.unix_path}" if isinstance(server, servers.Server) else server.url
    driver = settings_of(url).blocking()
    with redis.Redis.from_url(url, single_connection_client=True, driver_info=None, protocol=2) as client:
        yield Server(driver, client, ns)
    driver.close()


OLDEST, OTHER = "redis-6.2", "valkey-9"
"""Servers that are explored in every run: the one whose consumer groups differ most from later ones, and the one of another
make. On the others ``-m full`` does it; their semantics are held by all other tests."""


def _explores(item: pytest.Item, backend: str) -> bool:
    """Whether a test of this directory runs on this server in every run.

    What orders of requests do is the same wherever each request does the same, and crash points show on both servers that
    requests do. So each order is tried on one of the two.
    """
    match item.path.name:
        case "test_interleavings.py":
            mode = item.callspec.params.get("mode", Mode.CRASH)
            return backend == (OTHER if mode is Mode.CRASH else OLDEST)
        case "test_pairs.py":
            return backend == OLDEST
    return backend in (OLDEST, OTHER)


@pytest.hookimpl(tryfirst=True)  # before the marks are looked at
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    on = {
        item: backend
        for item in items
        if here in item.path.parents and hasattr(item, "callspec")
        if (backend := item.callspec.params.get("backend"))
    }
    if not {OLDEST, OTHER} <= set(on.values()):
        return  # a run or a machine without them explores on what it has
    for item, backend in on.items():
        if not _explores(item, backend):
            item.add_marker("full")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if terminalreporter.verbosity < 1:
        return
    reports = [r for kind in ("passed", "failed") for r in terminalreporter.stats.get(kind, ())]
    rows = [(dict(r.user_properties).get("schedules"), r) for r in reports if r.when == "call"]
    rows = [(count, r) for count, r in rows if count is not None]
    if rows:
        terminalreporter.section(f"{sum(count for count, _ in rows):,} schedules")
        for count, report in rows:
            terminalreporter.line(f"{count:6,} {report.duration:6.2f} s  {report.nodeid.partition('::')[2]}")
