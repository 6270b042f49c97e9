"""Each operation alone, dropped after each of its requests or told that its connection broke, then recovery."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from faults import scenarios, several_groups, supervised, timers, upkeep, workers
from faults.explorer import Mode
from faults.view import Server
from faults.world import Scenario

ALONE = (*scenarios.ALONE, *several_groups.ALONE, *supervised.ALONE, *timers.ALONE, *upkeep.ALONE, *workers.ALONE)


@pytest.mark.parametrize(
    ("scenario", "mode"),
    [
        pytest.param(s, mode, id=f"{s.name}, {mode}", marks=pytest.mark.covers(*s.rows))
        for s in ALONE
        for mode in s.modes
    ],
)
def test_no_crash_loses_a_job(
    worlds: Server, scenario: Scenario, mode: Mode, record_property: Callable[[str, object], None]
):
    report = scenario.explore(worlds, mode)
    record_property("schedules", report.schedules)
    assert report.schedules
    assert not report.violations, str(report)
