"""Jobs that kill their process among many that do not: the killers are bounded, and their neighbours pass."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter

import pytest
from waiting import until
from worker.fleet import effects, is_idle

SETTINGS = {"lease": 1, "max_deliveries": 3}

TWO_BACKENDS = pytest.mark.parametrize("backend", ["redis-7.0", "valkey-9"], indirect=True)

WAYS = {
    "die": {"do": "die"},  # os._exit(9)
    "crash": {"do": "crash"},  # SIGSEGV
    "kill": {"seconds": 60},  # and the test sends SIGKILL
}


class Assassin:
    """Kills, from outside, every process that starts one of these jobs."""

    def __init__(self, events, names):
        self._events, self._names = events, names
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self):
        seen = 0
        while not self._stop.wait(0.02):
            starts = [event for event in self._events.all("start") if event.name in self._names]
            for event in starts[seen:]:
                os.kill(event.pid, signal.SIGKILL)
            seen = len(starts)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()


def run(s, f, *, good, killers, way, seconds, timeout):
    """Let two supervised processes work through it; how long that took from the first start on."""
    names = [f"good{n}" for n in range(good)]
    payloads = [{"name": name, "seconds": seconds} for name in names]
    gap = good // (len(killers) + 1)
    for n, name in enumerate(killers):
        payloads.insert(gap * (n + 1) + n, {"name": name, **WAYS[way]})
    s.add_many(payloads)
    with Assassin(f.events, killers if way == "kill" else ()):
        f.supervise(2)
        until(lambda: s.inspect().dead == len(killers) and is_idle(s), timeout=timeout)
        took = time.monotonic() - f.events.all("start")[0].at
        assert f.terminate() == [0, 0]
    return names, took


def check(s, f, raw, names, killers):
    """Every rule that holds however many killers there are. How often each job was started, and who was charged too much."""
    letters = s.dead_letters.list()
    assert sorted((letter.payload.decode().split('"')[3], letter.reason) for letter in letters) == [
        (name, "deliveries") for name in killers
    ]
    assert effects(raw, s) == dict.fromkeys(names, 1)
    begun, charged = Counter(), {}
    for event in f.events.all("start"):
        begun[event.name] += 1
        charged[event.name] = event.deliveries
    # Starts are charged, and at most the read before the first one beside. And a process may die while the answer is on its
    # way that a start was counted: suspects start one by one, so each death costs one start at most.
    caught = {name: charged[name] - begun[name] - 1 for name in names if charged[name] > begun[name] + 1}
    assert sum(caught.values()) <= f.restarts, caught
    for name in killers:
        assert is_alone(f.events, f.events.all("start", name)[-1])
    return begun, caught


def is_alone(events, start):
    """Whether nothing else ran in the process of this start, from then on."""
    own = [event for event in events.all() if event.pid == start.pid and event.what in {"start", "end"}]
    place = own.index(start)
    inside = Counter()
    for event in own[:place]:
        inside[event.name] += 1 if event.what == "start" else -1
    return not any(inside.values()) and own[place:] == [start]


@pytest.mark.covers("G4", "C04", "S4")
@TWO_BACKENDS
@pytest.mark.parametrize(
    ("way", "kind", "good", "concurrency", "seconds"),
    [
        ("die", "async def", 150, 16, 0.005),
        ("crash", "def", 150, 16, 0.005),
        *(
            pytest.param(way, kind, 1_000, 64, seconds, marks=[pytest.mark.full, pytest.mark.timeout(300)])
            for way in WAYS
            for kind in ("def", "async def")
            for seconds in ((0.0, 0.005, 0.05) if way == "die" else (0.005,))
        ),
    ],
)
def test_a_killer_among_many(make_stream, make_fleet, raw, way, kind, good, concurrency, seconds):  # noqa: PLR0917  # a table's columns
    s = make_stream(**SETTINGS)
    with make_fleet(handler=kind, worker={"concurrency": concurrency}, **SETTINGS) as f:
        names, took = run(s, f, good=good, killers=["P"], way=way, seconds=seconds, timeout=150)
    begun, caught = check(s, f, raw, names, ["P"])
    assert begun["P"] == 3
    if (way, kind) == ("die", "async def"):  # it ends the process in its first step, before the next start is counted
        assert caught == {}
    assert f.restarts == 3
    print(f"{took:.1f} s; most starts of a bystander: {max(begun[n] for n in names)}")  # noqa: T201


@pytest.mark.covers("G4", "C04", "S4")
@TWO_BACKENDS
@pytest.mark.parametrize(
    ("way", "kind", "good", "concurrency", "seconds", "count"),
    [
        ("kill", "async def", 150, 16, 0.005, 2),
        *(
            pytest.param(way, kind, 1_000, 64, seconds, 5, marks=[pytest.mark.full, pytest.mark.timeout(300)])
            for way in WAYS
            for kind in ("def", "async def")
            for seconds in ((0.005, 0.05, 0.2) if way == "die" else (0.005,))
        ),
    ],
)
def test_several_killers_among_many(make_stream, make_fleet, raw, way, kind, good, concurrency, seconds, count):  # noqa: PLR0917  # the same
    killers = [f"P{n}" for n in range(count)]
    s = make_stream(**SETTINGS)
    with make_fleet(handler=kind, worker={"concurrency": concurrency}, **SETTINGS) as f:
        names, took = run(s, f, good=good, killers=killers, way=way, seconds=seconds, timeout=200)
    begun, _ = check(s, f, raw, names, killers)
    assert all(2 <= begun[name] <= 3 for name in killers), begun
    print(f"{took:.1f} s; {sum(begun[n] == 3 for n in names)} bystanders started 3 times")  # noqa: T201
