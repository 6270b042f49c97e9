"""Plays the previous version, whose keys have no hash tag, and looks at all structures of either layout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest import mock

import look
import redis
from colours import Plain

from streamq import StreamOptions
from streamq._drivers.blocking import BlockingDriver
from streamq._requests import Plan
from streamq.errors import StreamqError
from streamq.keys import Keys
from streamq.migrations import coordinator
from streamq.migrations.coordinator import Outcome


class Previous(Plain):
    """A stream as the previous version has it."""

    def __init__(self, url: str, name: str, deployment: str | None, options: StreamOptions) -> None:
        with mock.patch("streamq.stream.Keys", partial(Keys, is_tagged=False)):
            super().__init__(name, dict, redis=url, deployment=deployment, options=options)
        self.url = url


def previous(url: str, name: str, deployment: str | None = None, **options: Any) -> Previous:
    """Make one. `options` are `StreamOptions`."""
    return Previous(url, name, deployment, StreamOptions(**options))


def fill(old: Previous, mark: str = "") -> None:
    """Put something into every structure: chosen IDs and others, all states, two groups. `mark` makes IDs differ."""
    other = previous(old.url, old._spec.keys.name, old._spec.keys.deployment, group="other")
    other.groups.create("other")
    old.groups.create("workers")
    for n in range(6):
        old.add({"n": n}, job_id=f"{mark}chosen{n}")
        old.add({"n": n}, headers={"n": str(n)})
    for n in range(3):
        old.add({"n": n}, job_id=f"{mark}later{n}", delay=3600 + n)
        old.add({"n": n}, delay=n + 0.001)
    jobs = old.read("w1", count=8)
    jobs[0].effects.hincrby("receipts", "a").set("note", "x")
    old.commit(jobs[0], "result")
    old.ack(jobs[1])
    old.reject(jobs[2], "no")
    old.retry(jobs[3], "again", delay=1800)
    other.ack(other.read("w9", count=2))
    other.read("w9", count=1)
    old.pause()
    other.close()


@dataclass
class Layout:
    """All that a layout holds. Equal if nothing is lost and nothing is twice.

    Attributes:
        entries: Of the stream, with their IDs.
        groups: Last ID delivered.
        pending: Group -> entry ID -> owner and count.
        idle: Group -> entry ID -> idle ms; not compared.
        timers: Timer ID -> due time and packed entry.
        dead: Of each dead letter, its fields.
        ids: Job ID -> record.
        done: ``<group>/<job ID>`` -> record.
        ttl: Slice -> ms left; not compared.
        meta: Settings and counters, without cursors.
        data: Key of an effect -> what it holds.
    """

    entries: list[tuple[str, look.Fields]] = field(default_factory=list)
    groups: dict[str, str] = field(default_factory=dict)
    pending: dict[str, dict[str, look.Row]] = field(default_factory=dict)
    idle: dict[str, dict[str, int]] = field(default_factory=dict, compare=False)
    timers: dict[str, tuple[float, bytes]] = field(default_factory=dict)
    dead: list[look.Fields] = field(default_factory=list)
    ids: dict[str, str] = field(default_factory=dict)
    done: dict[str, str] = field(default_factory=dict)
    ttl: dict[str, int] = field(default_factory=dict, compare=False)
    meta: dict[bytes, bytes] = field(default_factory=dict)
    data: dict[str, bytes] = field(default_factory=dict)


def layout(raw: redis.Redis, keys: Keys) -> Layout:
    """Everything at one moment."""

    class _Stream:
        class _spec:  # noqa: N801  # as `look` asks for it
            pass

    _Stream._spec.keys = keys
    found = Layout(entries=look.entries(raw, keys.stream), groups=look.groups(raw, _Stream))
    for group in found.groups:
        found.pending[group] = look.pending(raw, _Stream, group=group)
        rows = look.call(raw, "XPENDING", keys.stream, group, "-", "+", 10_000)
        found.idle[group] = {row[0].decode(): row[2] for row in rows}
    times = dict(look.pairs(look.call(raw, "ZRANGE", keys.scheduled, 0, -1, "WITHSCORES")))
    packed = dict(look.pairs(look.call(raw, "HGETALL", keys.jobs)))
    assert set(times) == set(packed)
    found.timers = {name.decode(): (float(due), packed[name]) for name, due in times.items()}
    found.dead = [fields for _, fields in look.entries(raw, keys.dead)]
    found.ids, found.done = look.records(raw, keys.ids), look.records(raw, keys.done)
    for at, name in enumerate((*keys.ids, *keys.done)):
        found.ttl[str(at)] = look.call(raw, "PTTL", name)
    meta = dict(look.pairs(look.call(raw, "HGETALL", keys.meta)))
    found.meta = {name: value for name, value in meta.items() if not name.startswith(b"cursor:")}
    for key in raw.scan_iter(match=f"{keys.data('')}*", count=1000):
        found.data[key.decode().removeprefix(keys.data(""))] = look.call(raw, "DUMP", key)
    return found


OWNER = "host:1:abc"


def migrate(driver: BlockingDriver, deployment: str | None, *, clean: bool = True) -> Outcome:
    """Apply, and then clean up. The answer of apply, or of cleanup if it is applied already."""
    lock = coordinator.new_lock(deployment, OWNER)
    standing, there = driver.run(coordinator.standing(deployment))
    driver.run(coordinator.acquire(lock, deployment))
    try:
        done = Outcome()
        if standing.state == "pending":
            done = driver.run(coordinator.apply(lock, deployment, there, lambda _: None))
        if clean and not done.failed:
            _, there = driver.run(coordinator.standing(deployment))
            cleaned = driver.run(coordinator.cleanup(lock, deployment, there, lambda _: None))
            done = done if done.streams else cleaned
        return done
    finally:
        driver.run(coordinator.release(lock))


class Steps:
    """Takes a plan request by request."""

    def __init__(self, driver: BlockingDriver, plan: Plan[Any]) -> None:
        self._driver = driver
        self._plan = plan
        self._request = next(plan)
        self.taken = 0

    def take(self, count: int) -> bool:
        """Take so many; whether the plan has come to its end."""
        for _ in range(count):
            self.taken += 1
            try:
                try:
                    reply = self._driver._ask(self._request)
                except StreamqError as error:
                    self._request = self._plan.throw(error)
                else:
                    self._request = self._plan.send(reply)
            except StopIteration:
                return True
        return False

    def drop(self) -> None:
        """As the death of its process: nothing more is sent."""
        self._plan.close()


def stored(raw: redis.Redis, ns: str) -> Callable[[], None]:
    """Remember all keys of a prefix; gives what puts them back as they were."""
    kept = {key: (raw.pttl(key), look.call(raw, "DUMP", key)) for key in raw.scan_iter(match=f"*{ns}*", count=1000)}

    def put_back() -> None:
        there = list(raw.scan_iter(match=f"*{ns}*", count=1000))
        pipe = raw.pipeline(transaction=False)
        if there:
            pipe.unlink(*there)
        for key, (ttl, dump) in kept.items():
            pipe.restore(key, max(ttl, 0), dump)
        pipe.execute()

    return put_back
