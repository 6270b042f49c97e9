"""A worker that stood still while another one took over: whatever it says afterwards changes nothing."""

from __future__ import annotations

import os
import signal
import time

import look
import pytest
from waiting import until
from worker.fleet import effects

LEASE_S = 1

ENDS = ["ack", "work", "pid", "fail", "reject"]
"""How the stale worker ends its jobs: acknowledged, with effects, with a result, retried, rejected."""

TWO_BACKENDS = pytest.mark.parametrize("backend", ["redis-6.2", "valkey-9"], indirect=True)


@pytest.mark.covers("F9", "F10", "C07", "I4", "G5")
@TWO_BACKENDS
@pytest.mark.parametrize(
    ("kind", "state", "stopped_s"),
    [
        ("def", "finished", 2),
        ("async def", "running", 2),
        *(
            pytest.param(kind, state, 5, marks=pytest.mark.full)
            for kind in ("def", "async def")
            for state in ("finished", "running")
        ),
    ],
    indirect=["kind"],
)
def test_a_stale_worker_changes_nothing(make_stream, make_fleet, kind, raw, state, stopped_s):  # noqa: PLR0917  # a table's
    s = make_stream(lease=LEASE_S)
    seconds = 0.05 if state == "finished" else stopped_s + 1
    for name in ENDS:
        payload = {"name": name, "first": 0.5, "first_do": name, "seconds": seconds, "do": "pid"}
        s.add(payload, job_id=name)
    with make_fleet(handler=kind, lease=LEASE_S, worker={"concurrency": 8}) as f:
        stale = f.start()
        until(lambda: len(f.events.all("start")) == len(ENDS))
        os.kill(stale.pid, signal.SIGSTOP)
        stopped = time.monotonic()
        heir = f.start()
        until(lambda: len(f.events.all("start")) == 2 * len(ENDS))
        if state == "finished":
            until(lambda: s.inspect().groups["workers"].done == len(ENDS))
        time.sleep(max(stopped + stopped_s - time.monotonic(), 0))
        before = look.state(raw, s)
        os.kill(stale.pid, signal.SIGCONT)
        # It learns it, of each job; and it may say what it wants.
        until(lambda: sorted(event.name for event in f.events.all("lost")) == sorted(ENDS))
        assert {event.pid for event in f.events.all("lost")} == {stale.pid}
        log = f.log.read_text()
        assert all(f"job_id={name} " in log for name in ENDS)
        if state == "finished":
            assert look.state(raw, s) == before
        until(lambda: s.inspect().groups["workers"].done == len(ENDS))
        # The heir's, once.
        assert effects(raw, s) == dict.fromkeys(ENDS, 1)
        assert {s.result(name).value for name in ENDS} == {heir.pid}
        now = s.inspect()
        assert (now.ready, now.pending, now.scheduled, now.dead) == (0, 0, 0, 0)
        assert (now.groups["workers"].retried, now.groups["workers"].dead) == (0, 0)
        # And it works on, with what comes.
        heir.terminate()
        assert heir.wait(10) == 0
        s.add({"name": "next"})
        until(lambda: effects(raw, s).get("next"))
        assert f.terminate() == [0]
    assert f.events.starts() == dict.fromkeys(ENDS, 2) | {"next": 1}
