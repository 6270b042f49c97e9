"""The benchmark runs and prints its ratios. No time is asserted: machines of a CI say nothing about speed."""

from __future__ import annotations

import json

import pytest
from benchmarks import drain, ratios, telemetry


def test_it_prints_ratios_and_leaves_nothing(redis_url, raw, capsys):
    before = set(raw.scan_iter("*benchmark-*"))
    assert ratios.main(["--url", redis_url, "--rounds", "2", "--jobs", "150", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert {row["of"] for row in result["ratios"]} == set(ratios.PAIRS)
    assert all(row["add_many"][0] > 0 and row["read_ack"][0] > 0 for row in result["ratios"])
    assert set(raw.scan_iter("*benchmark-*")) == before


def test_its_table(redis_url, capsys):
    assert ratios.main(["--url", redis_url, "--rounds", "1", "--jobs", "10"]) == 0
    printed = capsys.readouterr().out
    assert "| streamq | raw |" in printed
    assert "redis-py" in printed


def test_what_telemetry_costs(redis_url, raw, capsys):
    before = set(raw.scan_iter("*benchmark-*"))
    assert telemetry.main(["--url", redis_url, "--rounds", "1", "--jobs", "20", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    expected = {(kind, name) for kind in ("async def", "def") for name in telemetry.CONTENDERS if name != "plain"}
    assert {(row["handler"], row["of"]) for row in rows} == expected
    assert all(row["ratio"][0] > 0 for row in rows)
    assert telemetry.main(["--url", redis_url, "--rounds", "1", "--jobs", "10"]) == 0
    assert "| `def` | metrics |" in capsys.readouterr().out
    assert set(raw.scan_iter("*benchmark-*")) == before


@pytest.mark.parametrize("backend", ["redis-7.0"], indirect=True)
def test_how_fast_a_worker_drains(redis_url, raw, capsys):
    before = set(raw.scan_iter("*benchmark-*"))
    assert drain.main(["--url", redis_url, "--rounds", "1", "--jobs", "200", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert {*result["ratios"]} == {*drain.KINDS}
    assert all(ratio[0] > 0 for ratio in result["ratios"].values())
    assert all(cost["wall"] > 0 for cost in result["microseconds_per_job"].values())
    assert set(raw.scan_iter("*benchmark-*")) == before
