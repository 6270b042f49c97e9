"""Every step meets every other one, on one job."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from itertools import combinations_with_replacement

import pytest
from faults.explorer import Report
from faults.ground import COMMAND_VERBS, SCRIPT_VERBS
from faults.pairs import ACTS, CANNOT_MEET, PAIRS, Act
from faults.view import Server
from faults.world import World

from streamq.lifecycle import STEPS


@pytest.mark.covers("S7", "F15", "C11", "C18", "C74")
@pytest.mark.parametrize("one", ACTS, ids=lambda one: one.verb)
def test_a_step_meets_every_other(worlds: Server, one: Act, record_property: Callable[[str, object], None]):
    """All pairs whose first is this one. Each is really tried: both steps are taken in some schedule."""
    schedules = 0
    wrong: dict[str, Report] = {}
    for pair in (pair for pair in PAIRS if pair.name.partition(" & ")[0] == one.verb):
        took: dict[str, set[str]] = defaultdict(set)

        def watch(world: World, took=took) -> None:
            for actor, verbs in world.verbs.items():
                took[actor] |= verbs

        report = pair.explore(worlds, watch=watch)
        schedules += report.schedules
        for actor, verb in zip("AB", pair.name.split(" & "), strict=True):
            if verb not in took[actor]:
                report.violations.append(f"{actor} never takes the step {verb}, only {sorted(took[actor])}")
        if report.violations:
            wrong[pair.name] = report
    record_property("schedules", schedules)
    assert schedules
    assert not wrong, "\n".join(f"{name}: {report}" for name, report in wrong.items())


def test_every_step_has_its_pairs():
    """A new step, or a new script, needs an act of its own; what cannot meet says why."""
    acts = [act.verb for act in ACTS]
    assert len(acts) == len(set(acts))
    assert set(acts) == {step.verb for step in STEPS} | set(SCRIPT_VERBS.values()) | set(COMMAND_VERBS.values())
    tried = {frozenset(pair.name.split(" & ")) for pair in PAIRS}
    every = {frozenset(pair) for pair in combinations_with_replacement(acts, 2)}
    assert every - tried == CANNOT_MEET.keys()
    assert all(CANNOT_MEET.values())


def test_every_script_has_a_verb(pytestconfig: pytest.Config):
    scripts = {path.stem for path in (pytestconfig.rootpath / "lua").glob("*.lua")}
    asking = {"check", "probe"}  # what a user may do; they touch no job
    # Those run before the stream is used; tests/migrations breaks them off after each request.
    moving = {name for name in scripts if name.startswith("migrate_")}
    assert scripts - SCRIPT_VERBS.keys() == asking | moving
