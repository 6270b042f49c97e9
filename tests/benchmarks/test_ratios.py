"""The benchmark runs and prints its ratios. No time is asserted: machines of a CI say nothing about speed."""

from __future__ import annotations

import json

from benchmarks import ratios, telemetry


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
