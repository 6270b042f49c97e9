"""A stream that people have built by hand, and what is in it wherever it is."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import look
from migrations.previous import OWNER

from streamq._requests import entry_order
from streamq.keys import Keys
from streamq.migrations import adopt, coordinator
from streamq.migrations.adopt_source import Source
from streamq.migrations.adopt_source import look as look_at

DAY_MS = 86_400_000
T0 = 1_700_000_000_000
"""When the entries were written: long ago, so that nobody seems to use them."""


@dataclass
class Whole:
    """All that there is, wherever it is. Entries by what they say, which no move changes."""

    unread: dict[str, list[str]] = field(default_factory=dict)
    pending: dict[str, dict[str, tuple[str, int]]] = field(default_factory=dict)
    dead: list[str] = field(default_factory=list)
    timers: dict[str, int] = field(default_factory=dict)


class HandBuilt:
    """A stream, its dead letters and its timers, as people build them."""

    def __init__(self, raw, ns, payload="job"):
        self.raw, self.ns, self.payload = raw, ns, payload
        self.stream, self.dead, self.times, self.bodies = (
            f"{ns}-{key}" for key in ("mails", "failed", "due", "bodies")
        )
        self.keys = Keys("mail", ns)

    @property
    def source(self):
        return Source(self.stream, "senders", self.dead, self.times, self.bodies, self.payload)

    def fill(self):
        """Three owners with different counts, two groups of which one is behind, letters and timers."""
        raw = self.raw
        for n in range(8):
            raw.xadd(self.stream, {self.payload: json.dumps({"n": n}), "trace": f"t{n}"}, id=f"{T0 + n}-1")
        raw.xgroup_create(self.stream, "senders", "0")
        raw.xgroup_create(self.stream, "audit", "0")
        raw.xreadgroup("senders", "w0", {self.stream: ">"}, count=6)
        raw.xack(self.stream, "senders", f"{T0}-1", f"{T0 + 1}-1")
        for n, (owner, count) in enumerate((("w0", 1), ("w1", 3), ("w2", 7)), 2):
            raw.execute_command(
                *("XCLAIM", self.stream, "senders", owner, 0, f"{T0 + n}-1", "IDLE", n * 100_000, "RETRYCOUNT", count)
            )
        raw.xreadgroup("audit", "a0", {self.stream: ">"}, count=1)
        raw.xack(self.stream, "audit", f"{T0}-1")
        for n in range(3):
            raw.xadd(self.dead, {self.payload: json.dumps({"d": n}), "why": "no", "dead:x": "y"}, id=f"{T0 + n}-0")
        due = look.server_ms(raw) + DAY_MS
        for n in range(4):
            raw.zadd(self.times, {f"later/{n}": due + n})
            raw.hset(self.bodies, f"later/{n}", json.dumps({"l": n}))
        return self

    def whole(self, of=None):
        """Both places at one moment, or some keys; what is in both is there twice."""
        here = (lambda *keys: [key for key in keys if key in of]) if of else (lambda *keys: list(keys))
        found = Whole()
        for key in here(self.stream, self.keys.stream):
            entries = look.entries(self.raw, key)
            said = {entry_id: self._said(fields) for entry_id, fields in entries}
            only = {entry_id: dict(fields).get(b"sq:group") for entry_id, fields in entries}
            for row in self.raw.xinfo_groups(key) if self.raw.exists(key) else []:
                group = row["name"].decode()
                held = {
                    said[r["message_id"].decode()]: r for r in self.raw.xpending_range(key, group, "-", "+", 10_000)
                }
                rows = found.pending.setdefault(group, {})
                assert not held.keys() & rows.keys()
                rows |= {what: (r["consumer"].decode(), r["times_delivered"]) for what, r in held.items()}
                last = entry_order(row["last-delivered-id"].decode())
                unread = [i for i in said if entry_order(i) > last and only[i] in {None, row["name"]}]
                found.unread[group] = sorted(found.unread.get(group, []) + [said[i] for i in unread])
        for key in here(self.dead, self.keys.dead):
            found.dead += [self._said(fields) for _, fields in look.entries(self.raw, key)]
        found.dead.sort()
        for key in here(self.times, self.keys.scheduled):
            cut = "" if key == self.times else "/"
            for member, due in self.raw.zrange(key, 0, -1, withscores=True):
                name = member.decode().removeprefix(cut) if cut else member.decode()
                assert name not in found.timers
                found.timers[name] = int(due)
        return found

    def _said(self, fields):
        values = dict(fields)
        return values.get(self.payload.encode(), values.get(b"job")).decode()


def take_over(driver, ns, source, *, name="mail", clean=False, by=adopt):
    """Adopt it, or take over the rest and remove the old keys; `by` says how."""
    lock = coordinator.new_lock(ns, OWNER)
    keys = Keys(name, ns)
    driver.run(look_at(source, keys))
    driver.run(coordinator.acquire(lock, ns))
    try:
        return driver.run(adopt.held((by.clean if clean else by.move)(lock, source, keys, lambda _: None)))
    finally:
        driver.run(coordinator.release(lock))
