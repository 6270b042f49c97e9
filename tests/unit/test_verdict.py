"""Every finding has a severity, a sentence on one line, and a command that exists or will."""

from __future__ import annotations

import shlex
from typing import get_args

import msgspec
import pytest
from unit.made import AT, group, snapshot

from streamq import StreamOptions
from streamq._ops.inspect.verdict import verdict
from streamq.snapshots import (
    DeadLetterFigures,
    Difference,
    FindingKind,
    OldestReady,
    WorkerSettings,
)


def settings(**options):
    return WorkerSettings.of(StreamOptions(**options))


LETTERS = DeadLetterFigures(reasons={"attempts": 2, "\x1b": 1}, exact=True, looked_at=3, recent=0, newest=9_000.0)
SITUATIONS = {
    "no_worker": {"groups": [group(ready=2, live=0, exact=False)]},
    "stuck": {"groups": [group(pending=2, stuck=1)]},
    "overdue": {"due": 3, "scheduled": 3, "next_due": AT.replace(hour=11)},
    "paused": {"paused": True, "groups": [group(ready=3, live=0)]},
    "abandoned_group": {"groups": [group(), group("audit", ready=3, live=0)]},
    "full": {"settings": settings(max_ready=5), "groups": [group(ready=5)]},
    "dead_letters_growing": {"dead": 3, "dead_letters": msgspec.structs.replace(LETTERS, recent=3, exact=False)},
    "settings_differ": {
        "differences": [Difference(setting="lease", group="a\x1b", values={"1.0": ["a\x1b", "b", "c"]})]
    },
    "evicts": {"eviction_policy": "volatile-lru\x1b"},
    "orphans": {"orphans": 3},
    "dead_letters": {"dead": 3, "dead_letters": LETTERS},
    "behind": {"groups": [group(ready=1, oldest_ready=OldestReady(entry_id="1-1", job_id="1-1", age=90.0))]},
    "keeps_all": {"settings": settings(retention="keep"), "length": 100_000},
    "never_used": {"groups": []},
}


def test_the_list_is_closed_and_each_has_a_situation():
    assert set(SITUATIONS) == set(get_args(FindingKind))


@pytest.mark.parametrize("kind", SITUATIONS)
@pytest.mark.parametrize("deployment", [None, "dp_1"])
def test_each_situation_is_found_alone(kind, deployment):
    [finding] = verdict(snapshot(deployment=deployment, **SITUATIONS[kind]))
    assert finding.kind == kind
    assert finding.text.isprintable()
    assert finding.command is not None
    words = shlex.split(finding.command)
    assert words[0] in {"streamq", "redis-cli"}
    ours = words[0] == "streamq" and words[1] != "run"
    assert (words[-2:] == ["--deployment", "dp_1"]) == (ours and deployment is not None)


def test_all_is_well():
    assert verdict(snapshot(groups=[group(ready=3, pending=2, done=5)], scheduled=3, length=5)) == []


def test_the_worst_comes_first():
    all_of_it = {
        **SITUATIONS["dead_letters"], **SITUATIONS["evicts"], "groups": [group(ready=1, live=0)], "orphans": 2,
    }  # fmt: skip
    found = verdict(snapshot(**all_of_it))
    assert [one.severity for one in found] == ["critical", "warning", "note", "note"]


def test_a_name_that_nobody_can_type_gets_no_command():
    [finding] = verdict(snapshot(groups=[group(), group("a b\x1b;rm", ready=3, live=0)]))
    assert (finding.kind, finding.command) == ("abandoned_group", None)
