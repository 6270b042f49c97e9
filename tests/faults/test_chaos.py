"""The chaos laboratory: a short seed on real servers, weakened builds that it must catch, and its ledger by itself."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from faults.chaos import mutants, plan
from faults.chaos.ledger import Evidence, Ledger, Letter
from faults.chaos.monkey import Blow
from faults.chaos.run import Settings, mutated, run
from servers import Backend
from worker.fleet import Event

ROOT = Path(__file__).parent.parent.parent
FAST = {"unwritten-letter", "unwritten-retry", "unwritten-promotion", "repeated-promotion"}
"""Mutants that are caught in seconds; the others take up to half a minute each."""


@pytest.fixture
def program(backend):
    """The server's program: the laboratory starts one of its own."""
    if not isinstance(backend.local, Backend):
        pytest.skip(f"needs a server of its own, but there is no program of {backend.name}")
    return backend.local


def told(report):
    """The violations, as pytest shows them, with what the workers logged of the entries."""
    log = report.log.splitlines()
    found = []
    for violation in report.violations:
        entries = {word for line in violation.history for word in re.findall(r"\d{13}-\d+", line)}
        lines = [line for line in log if any(entry in line for entry in entries)]
        found.append("\n".join((violation.rule, violation.what, *violation.history, *lines[-20:])))
    return found


# --- real runs ------------------------------------------------------------------------------


@pytest.mark.covers("S4", "S6", "F9", "I1", "C04", "C19", "C46")
@pytest.mark.parametrize(
    "backend",
    [
        "redis-6.2",
        "valkey-9",
        *(pytest.param(name, marks=pytest.mark.full) for name in ("redis-7.0", "redis-8.2")),
    ],
    indirect=True,
)
@pytest.mark.timeout(300)
def test_a_short_seed(program):
    report = run(Settings(backend=program, seed=32, seconds=15))
    assert told(report) == []
    assert len(report.ledger.evidence.accepted) > 400
    assert report.ledger.redelivered > 0
    assert set(report.faults) >= {"kill", "stop", "restart", "freeze", "cut"}


@pytest.mark.parametrize("backend", ["valkey-9"], indirect=True)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in FAST else [pytest.mark.full]) for name in mutants.MUTANTS]
)
@pytest.mark.timeout(300)
def test_a_weakened_build_is_caught(program, name):
    report = run(mutated(Settings(backend=program, seed=1), name))
    assert mutants.MUTANTS[name].rules <= {violation.rule for violation in report.violations}


def test_the_program_says_what_it_found():
    command = [
        sys.executable,
        "-m",
        "tests.faults.chaos",
        "--seed",
        "3",
        "--minutes",
        "0.02",
        "--json",
        "--faults",
        "flush",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["seed"] == 3
    assert found["violations"] == []
    assert sum(found["jobs"].values()) + found["uncertain"] >= 40


def test_the_program_refuses_what_it_does_not_know():
    command = [sys.executable, "-m", "tests.faults.chaos", "--faults", "earthquake"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 2
    assert "earthquake" in done.stderr.splitlines()[-1]


# --- plans ----------------------------------------------------------------------------------


def test_a_seed_stands_for_one_plan():
    assert plan.postings(7, 30, rate=20) == plan.postings(7, 30, rate=20)
    assert plan.postings(7, 30, rate=20) != plan.postings(8, 30, rate=20)
    assert plan.faults(7, 60, places=4) == plan.faults(7, 60, places=4)
    assert plan.faults(7, 60, places=4) != plan.faults(8, 60, places=4)


def test_a_long_plan_has_everything_in_it():
    jobs = {posting.job.kind for posting in plan.postings(1, 120, rate=20)}
    assert jobs == set(plan.Kind)
    steps = plan.faults(1, 120, places=4)
    assert {step.fault for step in steps} == set(plan.Fault)
    assert {step.place for step in steps} == {0, 1, 2, 3}
    assert all(0.1 <= two.at - one.at <= 1.1 for one, two in pairwise(steps))


def test_only_chosen_ids_are_posted_twice():
    names = [posting.job.name for posting in plan.postings(1, 60, rate=20)]
    assert len(names) > len(set(names))
    assert {name.partition("-")[2] for name in names if names.count(name) > 1} == {"chosen"}


@pytest.mark.parametrize("name", mutants.MUTANTS)
def test_mutants_follow_the_scripts(name, tmp_path):
    folder = mutants.build(name, tmp_path)
    changed = {
        str(path.relative_to(folder))
        for path in folder.rglob("*.lua")
        if path.read_text() != (mutants.LUA / path.relative_to(folder)).read_text()
    }
    assert changed == set(mutants.MUTANTS[name].edits)


# --- the ledger -----------------------------------------------------------------------------


def job(kind, n=1):
    name = f"{n}-{kind}"
    more = {"result": 7} if kind == "result" else {}
    return plan.Job(name, plan.Kind(kind), {"name": name, "seconds": 0.1, **more})


def start(name, pid=1, at=1.0, count=1, entry="1-1", *, attempt=1):
    return Event("start", name, pid, at, attempt, count, entry)


def end(name, pid=1, at=1.1, count=1, entry="1-1", *, attempt=1):
    return Event("end", name, pid, at, attempt, count, entry)


def attempts(*numbers, apart=0.5):
    """Of a job that fails, an entry each."""
    runs = [(f"{n}-1", number, 1.0 + n * (0.1 + apart)) for n, number in enumerate(numbers)]
    return [
        told("1-failing", at=at + later, entry=entry, attempt=number)
        for entry, number, at in runs
        for told, later in ((start, 0), (end, 0.1))
    ]


def rules(*jobs, **evidence):
    """Which rules are broken by what was seen of these jobs, which were all accepted."""
    given = {"jobs": {j.name: j for j in jobs}, "accepted": frozenset(j.name for j in jobs), **evidence}
    return sorted({violation.rule for violation in Ledger(Evidence(**given)).violations()})


PLAIN, POISON, CHOSEN = job("plain"), job("poison"), job("chosen")
DONE = {"events": [start("1-plain"), end("1-plain")], "effects": {"1-plain": 1}}
KILL = Blow("kill", 1.05, 1.05, frozenset({1}))
SPENT = Letter("1-plain", "deliveries", "1-1", 3, 0)


def last_chance(name="1-plain", at=9.0):
    return [start(name, 1, 1.0, 1), start(name, 2, 5.0, 2), start(name, 3, at, 3)]


def killed(*pids, at=(1.05, 5.05, 9.05)):
    return [Blow("kill", when, when, frozenset({pid})) for pid, when in zip(pids, at, strict=False)]


def test_a_true_history_is_not_flagged():
    assert rules(PLAIN, **DONE) == []
    assert rules(PLAIN, events=[start("1-plain"), start("1-plain", 2, 3.0, 2), end("1-plain", 2, 3.1, 2)],
                 effects={"1-plain": 1}, blows=[KILL], ends={1: -9, 2: 0}) == []  # fmt: skip
    assert rules(job("rejected"), letters=[Letter("1-rejected", "rejected", "1-1", 1, 1)]) == []
    spent = [Letter("1-failing", "attempts", "2-1", 1, 3)]
    assert rules(job("failing"), letters=spent) == []
    assert rules(job("failing"), letters=spent, events=attempts(1, 2, 3), retry_delay=0.5) == []
    assert rules(POISON, events=last_chance("1-poison"), letters=[Letter("1-poison", "deliveries", "1-1", 3, 0)],
                 ends={1: 9, 2: 9, 3: 9}) == []  # fmt: skip
    assert (
        rules(PLAIN, events=last_chance(), letters=[SPENT], blows=killed(1, 2, 3), ends=dict.fromkeys((1, 2, 3), -9))
        == []
    )
    assert rules(PLAIN, letters=[Letter(None, "entry_missing", "1-1", 1, 0)], deleted={"1-1": "1-plain"}) == []
    assert rules(job("result"), effects={"1-result": 1}, results={"1-result": 7}) == []


def test_who_is_not_sure_to_have_arrived_may_be_missing_but_not_half_done():
    sure = {"accepted": frozenset(), "uncertain": frozenset({"1-plain"})}
    assert rules(PLAIN, **sure) == []
    assert rules(PLAIN, **sure, events=[start("1-plain")]) == ["lost"]
    assert rules(PLAIN, **sure, effects={"1-plain": 2}) == ["effect twice"]


def test_a_process_that_stood_still_may_begin_what_another_has_done():
    late = [
        start("1-plain", 2, 5.0, 2),
        end("1-plain", 2, 5.1, 2),
        start("1-plain", 1, 6.0, 1),
        end("1-plain", 1, 6.1, 1),
    ]
    assert rules(PLAIN, events=late, effects={"1-plain": 1}, blows=[Blow("stop", 3.0, 5.9, frozenset({1}))]) == []
    assert rules(PLAIN, events=late, effects={"1-plain": 1}) == ["run again"]


def test_what_was_read_while_the_event_loop_was_blocked_may_be_run_again_but_not_the_job_that_blocked_it():
    blocking = job("blocking", 2)
    block = [start("2-blocking", 1, 1.0, entry="2-1"), end("2-blocking", 1, 2.5, entry="2-1")]
    late = [start("1-plain", 1, 2.51), start("1-plain", 2, 2.6, 2)]
    done = {"1-plain": 1, "2-blocking": 1}
    assert rules(PLAIN, blocking, events=[*block, *late], effects=done) == []
    early = [start("1-plain", 1, 1.2), start("1-plain", 2, 2.6, 2)]
    assert rules(PLAIN, blocking, events=[*early, *block], effects=done) == ["run again"]
    itself = start("2-blocking", 2, 2.4, 2, entry="2-1")
    assert rules(PLAIN, blocking, events=[block[0], itself, block[1], late[0]], effects=done) == ["run again"]


def test_a_job_id_whose_first_job_died_may_be_done_after_all():
    letter = Letter("1-chosen", "entry_missing", "1-1", 1, 0)
    again = {"effects": {"1-chosen": 1}, "letters": [letter], "deleted": {"1-1": "1-chosen"}}
    events = [start("1-chosen", entry="2-1"), end("1-chosen", entry="2-1")]
    assert rules(CHOSEN, **again, events=events) == []
    assert rules(CHOSEN, **again, events=[start("1-chosen"), end("1-chosen")]) == ["effect and letter"]


FALSE = {
    "it vanished": (["lost"], [PLAIN], {}),
    "it ran, and vanished": (["lost"], [PLAIN], {"events": DONE["events"]}),
    "its effect is there twice": (["effect twice"], [PLAIN], {"effects": {"1-plain": 2}}),
    "an ID ran twice": (["effect twice"], [CHOSEN], {"effects": {"1-chosen": 2}}),
    "a bystander died, unstarted": (["wrong letter"], [PLAIN], {"letters": [SPENT]}),
    "a bystander died, and nothing befell it": (
        ["run again", "wrong letter"],
        [PLAIN],
        {"letters": [SPENT], "events": last_chance()},
    ),
    "a bystander died, and nothing befell it in its last chance": (
        ["wrong letter"],
        [PLAIN],
        {"letters": [SPENT], "events": last_chance(at=20.0), "blows": killed(1, 2), "ends": {1: -9, 2: -9}},
    ),
    "it was done and is dead": (
        ["effect and letter"],
        [PLAIN],
        {"effects": {"1-plain": 1}, "letters": [SPENT], "events": last_chance(), "blows": killed(1, 2, 3)},
    ),
    "a rejected one was done": (
        ["effect", "effect and letter"],
        [job("rejected")],
        {"effects": {"1-rejected": 1}, "letters": [Letter("1-rejected", "rejected", "1-1", 1, 1)]},
    ),
    "its entry died twice": (
        ["dead twice"],
        [job("rejected")],
        {"letters": [Letter("1-rejected", "rejected", "1-1", 1, 1)] * 2},
    ),
    "two of its entries died": (
        ["dead twice"],
        [job("failing")],
        {"letters": [Letter("1-failing", "attempts", f"1-{n}", 1, 3) for n in (1, 2)]},
    ),
    "it died of the wrong reason": (
        ["wrong letter"],
        [job("failing")],
        {"letters": [Letter("1-failing", "rejected", "1-1", 1, 3)]},
    ),
    "it died an attempt early": (
        ["attempts"],
        [job("failing")],
        {"letters": [Letter("1-failing", "attempts", "1-1", 1, 2)]},
    ),
    "an attempt was made twice": (
        ["attempt twice"],
        [job("failing")],
        {"letters": [Letter("1-failing", "attempts", "3-1", 1, 3)], "events": attempts(1, 2, 2, 3)},
    ),
    "an attempt was left out": (
        ["attempts"],
        [job("failing")],
        {"letters": [Letter("1-failing", "attempts", "1-1", 1, 3)], "events": attempts(1, 3)},
    ),
    "one attempt too many was made": (
        ["attempts"],
        [job("failing")],
        {"letters": [Letter("1-failing", "attempts", "3-1", 1, 3)], "events": attempts(1, 2, 3, 4)},
    ),
    "an attempt came too early": (
        ["too early"],
        [job("failing")],
        {
            "letters": [Letter("1-failing", "attempts", "2-1", 1, 3)],
            "events": attempts(1, 2, 3, apart=0.4),
            "retry_delay": 0.5,
        },
    ),
    "a poison died a start early": (
        ["deliveries"],
        [POISON],
        {"letters": [Letter("1-poison", "deliveries", "1-1", 2, 0)], "events": last_chance("1-poison")[:2]},
    ),
    "a poison was started once more": (
        ["started too often"],
        [POISON],
        {
            "events": [*last_chance("1-poison"), start("1-poison", 4, 13.0, 4)],
            "letters": [Letter("1-poison", "deliveries", "1-1", 3, 0)],
        },
    ),
    "a start was not counted": (
        ["start not counted"],
        [PLAIN],
        {
            "events": [start("1-plain"), start("1-plain", 2, 3.0, 1)],
            "blows": [KILL],
            "effects": {"1-plain": 1},
        },
    ),
    "it was run again for nothing": (
        ["run again"],
        [PLAIN],
        {"events": [start("1-plain"), start("1-plain", 2, 3.0, 2)], "effects": {"1-plain": 1}},
    ),
    "another process was hit": (
        ["run again"],
        [PLAIN],
        {
            "events": [start("1-plain"), start("1-plain", 2, 3.0, 2)],
            "effects": {"1-plain": 1},
            "blows": [Blow("kill", 1.05, 1.05, frozenset({2}))],
        },
    ),
    "something harmless befell it": (
        ["run again"],
        [PLAIN],
        {
            "events": [start("1-plain"), start("1-plain", 2, 3.0, 2)],
            "effects": {"1-plain": 1},
            "blows": [Blow("flush", 1.05, 1.05)],
        },
    ),
    "another one was started beside a last chance": (
        ["not alone"],
        [POISON, job("plain", 2)],
        {
            "events": [
                *last_chance("1-poison"),
                start("2-plain", 3, 9.05, entry="2-1"),
                end("2-plain", 3, 9.1, entry="2-1"),
            ],
            "letters": [Letter("1-poison", "deliveries", "1-1", 3, 0)],
            "effects": {"2-plain": 1},
        },
    ),
    "another one ran still when a last chance began": (
        ["not alone"],
        [POISON, job("plain", 2)],
        {
            "events": [
                *(start("2-plain", 3, 8.9, entry="2-1"), *last_chance("1-poison"), end("2-plain", 3, 9.1, entry="2-1"))
            ],
            "letters": [Letter("1-poison", "deliveries", "1-1", 3, 0)],
            "effects": {"2-plain": 1},
        },
    ),
    "a body is gone that nobody took": (
        ["unknown letter", "lost"],
        [PLAIN],
        {"letters": [Letter(None, "entry_missing", "1-1", 1, 0)]},
    ),
    "a body is gone, and no letter says so": (["lost"], [PLAIN], {"deleted": {"1-1": "1-plain"}}),
    "a dead letter of nobody": (["unknown letter"], [], {"letters": [Letter("9-plain", "rejected", "1-1", 1, 1)]}),
    "an effect of nobody": (["unknown effect"], [], {"effects": {"9-plain": 1}}),
    "another result": (["result"], [job("result")], {"effects": {"1-result": 1}, "results": {"1-result": 8}}),
    "a process ended by itself": (["process"], [], {"ends": {1: 1}}),
    "a process did not end": (["process"], [], {"ends": {1: None}}),
    "a process ended like one that was killed": (["process"], [], {"ends": {1: -9}}),
    "a key was left": (["left behind"], [], {"remains": ["key x has no TTL"]}),
}


@pytest.mark.parametrize("case", FALSE)
def test_a_false_history_is_flagged(case):
    expected, jobs, evidence = FALSE[case]
    assert rules(*jobs, **evidence) == sorted(expected)


def test_a_violation_tells_the_history_of_its_job():
    [found] = Ledger(
        Evidence(
            jobs={"1-plain": PLAIN}, accepted=frozenset({"1-plain"}), events=DONE["events"], blows=[KILL], begin=0.5
        )
    ).violations()
    assert found.what.startswith("1-plain: ")
    assert [line.partition("s  ")[2].partition(" ")[0] for line in found.history[:3]] == ["start", "kill", "end"]
    assert found.history[-1] == "effects: 0"
