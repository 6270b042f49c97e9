"""Operations that can meet, in every order, with every crash, and with every request sent twice."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from faults import scenarios, several_groups, supervised, timers, upkeep, workers
from faults.explorer import Mode
from faults.view import Server
from faults.world import Scenario
from faults.wrong import WRONG

MEETINGS = (
    *scenarios.MEETINGS,
    *several_groups.MEETINGS,
    *supervised.MEETINGS,
    *timers.MEETINGS,
    *upkeep.MEETINGS,
    *workers.MEETINGS,
)
ALONE = (*scenarios.ALONE, *several_groups.ALONE, *supervised.ALONE, *timers.ALONE, *upkeep.ALONE, *workers.ALONE)


@pytest.mark.parametrize(
    ("scenario", "mode"),
    [
        pytest.param(s, mode, id=f"{s.name}, {mode}", marks=pytest.mark.covers(*s.rows))
        for s in MEETINGS
        for mode in s.modes
    ],
)
def test_no_schedule_breaks_an_invariant(
    worlds: Server, scenario: Scenario, mode: Mode, record_property: Callable[[str, object], None]
):
    report = scenario.explore(worlds, mode)
    record_property("schedules", report.schedules)
    assert report.schedules > len(scenario.plans)
    assert not report.violations, str(report)


@pytest.mark.parametrize(
    ("scenario", "complaint"),
    [pytest.param(s, said, id=s.name, marks=pytest.mark.covers(*s.rows)) for s, said in WRONG],
)
def test_what_is_wrong_is_found(worlds: Server, scenario: Scenario, complaint: str):
    """The explorer itself works: plans that lack a guard are caught, for the right reason."""
    report = scenario.explore(worlds, *scenario.modes)
    assert any(complaint in violation for violation in report.violations), str(report)


def test_names_are_unique():
    names = [s.name for s in (*MEETINGS, *ALONE)]
    assert len(names) == len(set(names))
