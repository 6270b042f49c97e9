"""The server of the explorer's worlds, and a summary of how many schedules were played (with -v)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from faults.view import Server

from streamq.connection import settings_of


@pytest.fixture
def worlds(redis_url: str, raw: redis.Redis, ns: str) -> Iterator[Server]:
    """Where worlds are made; the deployment is the test's own, so its registry goes with its keys."""
    driver = settings_of(redis_url).blocking()
    yield Server(driver, raw, ns)
    driver.close()


EXPLORED = ("redis-6.2", "valkey-9")
"""Servers that are explored exhaustively in every run: the one whose consumer groups differ most from later ones, and the one
of another make. On the others ``-m full`` does it; their semantics are held by all other tests."""


@pytest.hookimpl(tryfirst=True)  # before the marks are looked at
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    on = {
        item: item.callspec.params.get("backend")
        for item in items
        if here in item.path.parents and hasattr(item, "callspec")
    }
    if not set(EXPLORED) & set(on.values()):
        return  # a machine without them explores what it has
    for item, backend in on.items():
        if backend not in (None, *EXPLORED):
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
