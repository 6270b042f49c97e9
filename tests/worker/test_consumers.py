"""Names in the group: a worker that stops takes its own out, and a dead one's goes when it holds nothing."""

from __future__ import annotations

import asyncio

import pytest
from waiting import until
from worker import fleet
from worker.fleet import effects, is_idle, options_of

from streamq import AsyncStream, Hooks, Worker
from streamq._scripts_upkeep import Role
from streamq.worker import maintenance

TWO_BACKENDS = pytest.mark.parametrize("backend", ["redis-6.2", "valkey-9"], indirect=True)


class Done(Hooks):
    """Names of the jobs that are done."""

    def __init__(self):
        self.names = set()

    def succeeded(self, job):
        self.names.add(job.payload["name"])


def consumers(raw, s):
    """Name -> how many entries it holds."""
    return {row["name"].decode(): row["pending"] for row in raw.xinfo_consumers(s._spec.keys.stream, "workers")}


@pytest.mark.covers("C74", "C26")
@TWO_BACKENDS
@pytest.mark.parametrize(
    ("stops", "kills"), [(54, 6), pytest.param(990, 10, marks=[pytest.mark.full, pytest.mark.timeout(400)])]
)
def test_names_do_not_pile_up(make_stream, make_fleet, ns, redis_url, raw, stops, kills, monkeypatch):  # noqa: PLR0917
    """Workers are stopped and killed by turns, and all jobs are done; at the end nobody is left but who was killed lately."""
    s = make_stream(lease=1)
    killed, names = [], []
    most = 0

    async def work(payload, job):
        job.effects.hincrby("effects", payload["name"])

    async def stop_often(count):
        nonlocal most
        async with AsyncStream(ns, redis=redis_url, options=options_of({"lease": 1})) as stream:
            for _ in range(count):
                names.extend(more := [f"J{len(names) + n}" for n in range(3)])
                done = Done()
                async with Worker(stream, work, concurrency=2, hooks=[done]):
                    await stream.add_many({"name": name} for name in more)
                    while not {*more} <= done.names:  # noqa: ASYNC110  # told by a hook
                        await asyncio.sleep(0.001)
                most = max(most, len(consumers(raw, s)))

    with make_fleet(lease=1) as f:
        for n in range(kills):
            killed.append(f"held{n}")
            victim = f.start()
            s.add({"name": killed[-1], "first": 60})
            until(lambda: f.events.all("start", killed[-1]))
            victim.kill()
            victim.wait()
            asyncio.run(stop_often(stops // kills))
    # Who stops goes at once, unless it was just taking over what a killed one held, and gives it back. The killed keep their
    # names: first because they hold jobs, then for an operator to see.
    assert most <= 2 * kills
    # The next look is due, and half a second stands for the ten minutes.
    raw.delete(s._spec.keys.tick(Role.PRUNE.token("workers")))
    monkeypatch.setattr(maintenance, "PRUNE_MS", 100)
    monkeypatch.setattr(maintenance, "PRUNE_IDLE_MS", 500)
    worker = fleet.quick(s, work)
    with fleet.working(worker):
        until(lambda: is_idle(s) and consumers(raw, s).keys() <= {worker.consumer}, timeout=30)
    assert consumers(raw, s) == {}
    assert raw.hlen(s._spec.keys.workers) == 0
    assert effects(raw, s) == dict.fromkeys([*killed, *names], 1)
    assert s.inspect().dead == 0


@pytest.mark.covers("F15", "C26", "C62")
@TWO_BACKENDS
def test_trimming_and_pruning_under_load_lose_nothing(make_stream, make_fleet, raw):
    settings = {"lease": 60, "retention": "keep", "keep_last": 10}
    s = make_stream(**settings)
    s.groups.create("workers")
    s.add_many({"name": f"held{n}"} for n in range(5))
    held = s.read("foreign", count=5)
    with make_fleet(worker={"concurrency": 8}, **settings) as f:
        f.start()
        f.start()
        with fleet.load(s, count=60, pause=0.02) as load:
            until(lambda: len(f.events.all("up")) == 2)
            while len(load) < 3_000:
                s.trim()
                s.prune_consumers(0)
        until(lambda: not s.inspect().ready and s.inspect().pending == len(held))
        s.trim()
        assert consumers(raw, s)["foreign"] == len(held)
        assert "foreign" not in s.prune_consumers(0)
        # What is pending pins all that came after it; nothing in front of it is left.
        assert raw.xrange(s._spec.keys.stream, count=len(held)) == [
            (job.entry_id.encode(), raw.xrange(s._spec.keys.stream, job.entry_id, job.entry_id)[0][1]) for job in held
        ]
        assert s.ack(held) == len(held)
        s.trim()
        assert raw.xlen(s._spec.keys.stream) == 10
        assert f.terminate() == [0, 0]
    assert effects(raw, s) == dict.fromkeys(load, 1)
    assert set(f.events.starts().values()) == {1}
