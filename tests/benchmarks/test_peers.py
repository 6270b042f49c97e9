"""The comparison with other systems runs and writes its report. No time is asserted, and no other system is there."""

from __future__ import annotations

import json

import servers
from benchmarks.peers import __main__ as peers
from benchmarks.peers import goals, report, workloads
from benchmarks.peers.results import Results
from benchmarks.peers.systems import SIDE, SYSTEMS, System
from benchmarks.peers.workloads import Workload

TINY = ["--here", "--seconds", "0.01", "--repeat", "1", "--profiles", "default", "--publish"]


def test_it_measures_and_reports(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(
        workloads, "_probe", lambda *_: 0.0
    )  # each run is several processes, so there are few, and short ones
    rows, docs = tmp_path / "rows.jsonl.gz", tmp_path / "docs"
    docs.mkdir()
    where = ["--rows", str(rows), "--docs", str(docs), "--server", next(reversed(servers.discover()[0]))]
    assert peers.main([*TINY, *where, "--systems", "raw-sync,streamq", "--workloads", "drain"]) == 0
    assert "drain streamq default" in capsys.readouterr().out
    results = Results.load(rows)
    assert [row["system"] for row in results.rows] == ["raw-sync", "streamq"]
    assert all(row["jobs"] == row["unique"] == 500 for row in results.rows)
    written = (docs / "benchmarks.md").read_text()
    assert "| streamq, default |" in written
    assert peers.main(["--here", "--report", *where]) == 0
    assert (docs / "benchmarks.md").read_text() == written
    assert json.loads((docs / "benchmarks.json").read_text())["rounds"] == 1


def test_what_fails_is_a_row_and_no_figure():
    def fails(system, plan):
        yield {"rate": 1.0}
        raise RuntimeError("its worker ended")

    system = System("raw-sync", (), (), "", {})
    run = peers.Run([system], None, rounds=1, is_quick=False)
    run.take("add", Workload("W1", fails))
    assert [row.get("error") for row in run.rows] == [None, "its worker ended"]
    assert Results({"systems": {"raw-sync": {}}}, run.rows).figure("rate", "add", "raw-sync").middle == 1.0


def test_goals_are_ratios_of_the_same_round():
    def row(system, profile, turn, rate):
        return {
            "workload": "drain",
            "system": system,
            "profile": profile,
            "round": turn,
            "rate": rate,
            "round_trips": 0.02,
        }

    slow_round = [row("raw-async", "default", 1, 100), row("streamq", "best", 1, 90), row("huey", "best", 1, 5)]
    fast_round = [row("raw-async", "default", 0, 1000), row("streamq", "best", 0, 700), row("huey", "best", 0, 40)]
    slots = {**row("streamq", "c64", 0, 600), "workload": "concurrency"}
    about = {"systems": {"raw-async": {}, "streamq": {}, "huey": {}}, "python": "3.11.7"}
    found = {goal.what: goal for goal in goals.goals(Results(about, [*slow_round, *fast_round, slots]))}
    raw = found["drain, `async def` handler, to a loop over redis-py's asyncio"]
    assert raw.measured == "0.80 (0.70 to 0.90) x"
    assert raw.is_reached
    peer = found["drain, `async def` handler, to the fastest Python peer (huey, best)"]
    assert peer.measured == "17.8 (17.5 to 18.0) x"
    trips = found["packets of requests a job, concurrency 64"]
    assert (trips.target, trips.measured, trips.is_reached) == ("at most 0.05", "0.020", True)
    assert found["of them lost"].is_reached is None


def test_every_system_has_an_adapter():
    assert {adapter for adapter, environment in SYSTEMS.values() if environment != "node"} == {
        path.stem for path in (SIDE / "adapters").glob("*.py")
    } - {"__init__", "base"}
    assert all((SIDE / f"{adapter}.js").exists() for adapter, environment in SYSTEMS.values() if environment == "node")


def test_plots_named_in_the_report_are_those_that_are_drawn():
    drawn = (SIDE.parent / "plots.py").read_text()
    assert all(name in drawn for name in report.PLOTS)
    assert all(name.removeprefix("benchmarks-").removesuffix(".svg") in report.SECTIONS for name in report.PLOTS)


def test_a_later_run_adds_rounds():
    about = {"command": "once", "systems": {}, "left_out": {}, "minutes": 1, "load": [1, 2]}
    first = Results(about, [{"workload": "add", "system": "huey", "round": turn, "rate": 1} for turn in (0, 1)])
    both = first.joined(Results({**about, "command": "again", "load": [0, 1]}, first.rows))
    assert [row["round"] for row in both.rows] == [0, 1, 2, 3]
    assert both.about["command"].split() == ["once", "again"]
    assert (both.about["minutes"], both.about["load"]) == (2, [0, 2])


def test_the_command_in_the_report_names_no_place():
    given = ["--quick", "--python", "/some/where", "--docs", "/else/where"]
    assert peers.command_of(given) == "python -m tests.benchmarks.peers --quick"
