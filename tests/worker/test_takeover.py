"""A worker dies on a quiet stream: what it held is done by another one soon after its lease, all of it, once."""

from __future__ import annotations

import time

import pytest
from waiting import until
from worker.fleet import effects, is_idle

TWO_BACKENDS = pytest.mark.parametrize("backend", ["redis-8.2", "valkey-9"], indirect=True)

HELD = 100


@pytest.mark.covers("S3", "C04", "C05", "I4")
@TWO_BACKENDS
@pytest.mark.parametrize(
    ("kind", "lease", "heirs", "limit"),
    [
        # Of them 1.5 s are ours: a tick, and the narrow lane that the first of them pass. The rest is this machine's.
        ("async def", 1, 1, 4.0),
        *(
            pytest.param(kind, lease, heirs, limit, marks=pytest.mark.full)
            for kind in ("def", "async def")
            for heirs in (1, 2)
            for lease, limit in ((1, 2.5), (15, 20))
        ),
    ],
)
def test_all_that_a_dead_worker_held_is_done_soon(make_stream, make_fleet, raw, kind, lease, heirs, limit):  # noqa: PLR0917  # a table's
    s = make_stream(lease=lease)
    names = [f"J{n}" for n in range(HELD)]
    with make_fleet(handler=kind, lease=lease, worker={"concurrency": HELD, "block": 4}) as f:
        victim = f.start()
        s.add_many({"name": name, "first": 60} for name in names)
        until(lambda: len(f.events.all("start")) == HELD)
        for _ in range(heirs):
            f.start()
        until(lambda: len(f.events.all("up")) == 1 + heirs)
        until(lambda: s.inspect().groups["workers"].consumers == 1 + heirs)
        time.sleep(0.5)  # they sleep in their reads, and nothing will wake them
        killed = time.monotonic()
        victim.kill()
        victim.wait()
        until(lambda: is_idle(s), timeout=lease + 15)
        took = max(event.at for event in f.events.all("end")) - killed
        assert f.terminate() == [0] * heirs
    print(f"{took:.2f} s after the kill, with a lease of {lease} s")  # noqa: T201
    assert effects(raw, s) == dict.fromkeys(names, 1)
    assert f.events.starts() == dict.fromkeys(names, 2)
    assert s.inspect().dead == 0
    assert took <= limit
