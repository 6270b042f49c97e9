"""What workers do beside their jobs: trim, prune consumers, name groups that nobody reads."""

from __future__ import annotations

import logging
import os
import time

import pytest
from waiting import until
from worker.fleet import is_idle, quick, working

from streamq import WorkerSettings
from streamq.worker import maintenance


@pytest.fixture
def often(monkeypatch):
    """Do everything several times a second."""
    for name in ("TRIM_MS", "PRUNE_MS", "WATCH_MS"):
        monkeypatch.setattr(maintenance, name, 100)
    monkeypatch.setattr(maintenance, "LONGEST_TICK_MS", 100)


def length(raw, s):
    return raw.xlen(s._spec.keys.stream)


@pytest.mark.covers("F15", "C62")
@pytest.mark.parametrize("rules", [{}, {"retention": "keep", "keep_last": 7}, {"retention": "keep", "keep_for": 0.5}])
def test_finished_entries_go_by_themselves(make_stream, handler, raw, often, rules):
    s = make_stream(**rules)
    s.groups.create("workers")
    ids = [s.add({"n": n}).entry_id for n in range(300)]
    s.read("foreign", count=300)
    held = ids[100:103]
    raw.xack(s._spec.keys.stream, "workers", *(entry_id for entry_id in ids if entry_id not in held))
    with working(quick(s, handler(lambda payload, job: None))):
        until(lambda: length(raw, s) == 3 + rules.get("keep_last", 0))
        assert s.inspect().pending == 3  # theirs, whose lease has not run out
        s.add({"n": 0})
        until(lambda: s.inspect().pending == 3 and not s.inspect().ready)
        until(lambda: length(raw, s) == 3 + rules.get("keep_last", 0))


@pytest.mark.covers("C62")
def test_what_is_kept_without_a_rule_stays(make_stream, handler, raw, often):
    s = make_stream(retention="keep")
    s.add_many({"n": n} for n in range(50))
    with working(quick(s, handler(lambda payload, job: None))):
        until(lambda: is_idle(s))
        time.sleep(0.4)
        assert length(raw, s) == 50


@pytest.mark.covers("C74", "C26")
def test_consumers_that_are_gone_go_by_themselves(make_stream, handler, raw, often, monkeypatch):
    monkeypatch.setattr(maintenance, "PRUNE_IDLE_MS", 300)
    s = make_stream()
    s.add_many({"n": n} for n in range(53))
    for n in range(50):
        s.ack(s.read(f"gone-{n}"))
    s.read("dead", count=2)

    def names():
        return {row["name"].decode() for row in raw.xinfo_consumers(s._spec.keys.stream, "workers")}

    runs = []
    worker = quick(s, handler(lambda payload, job: runs.append(payload["n"])))
    with working(worker):
        until(lambda: not any(name.startswith("gone") for name in names()))
        assert "dead" in names()  # it holds jobs
        until(lambda: runs == [52])
        # It may have gone itself while it waited, and does not notice.
        s.add({"n": 53})
        until(lambda: runs == [52, 53])
    assert s.inspect().pending == 2
    assert len(s.reclaim("w", min_idle=0).claimed) == 2


@pytest.mark.covers("C86")
def test_a_group_that_nobody_reads_is_named(make_stream, handler, raw, often, caplog):
    s = make_stream(groups=("idle-group",))

    def warned():
        return [record for record in caplog.records if "idle-group" in record.getMessage()]

    with caplog.at_level(logging.WARNING, "streamq"), working(quick(s, handler(lambda payload, job: None))):
        until(lambda: raw.exists(s._spec.keys.stream))
        time.sleep(0.3)
        assert warned() == []  # it pins nothing yet
        s.add_many({"n": n} for n in range(20))
        until(warned)
        assert s.name in warned()[0].getMessage()
        until(lambda: not s.inspect().groups["workers"].ready)
        assert s.inspect().groups["idle-group"].abandoned
        assert length(raw, s) == 20
        s.groups.drop("idle-group", force=True)
        until(lambda: length(raw, s) == 0)
        caplog.clear()
        time.sleep(0.5)
        assert warned() == []


@pytest.mark.covers("C87")
def test_upkeep_of_an_empty_stream_warns_of_nothing(make_stream, handler, raw, often, caplog):
    s = make_stream()
    with caplog.at_level(logging.WARNING, "streamq"), working(quick(s, handler(lambda payload, job: None))):
        until(lambda: raw.exists(s._spec.keys.stream))
        time.sleep(0.5)
    assert caplog.records == []


def test_a_worker_says_who_it_is_and_how_it_is_set(make_stream, handler, raw, often):
    s = make_stream(lease=7, groups=("audit",))
    worker = quick(s, handler(lambda payload, job: None))
    with working(worker):
        until(lambda: raw.hlen(s._spec.keys.workers))
        found = s.inspect(full=True)
        group = found.groups["workers"]
        [member] = group.members
        assert (member.name, member.alive, member.pid, group.live) == (worker.consumer, True, os.getpid(), 1)
        assert (found.settings, group.lease) == (WorkerSettings.of(s.options), 7.0)
        assert found.differences == []
        assert found.groups["audit"].live == 0
