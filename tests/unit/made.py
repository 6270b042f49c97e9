"""Snapshots of streams as no server has them."""

from __future__ import annotations

import datetime as dt

from streamq.snapshots import DeadLetterFigures, FullGroup, FullSnapshot

NO_LETTERS = DeadLetterFigures(reasons={}, exact=True, looked_at=0, recent=0, newest=None)
AT = dt.datetime(2030, 1, 31, 12, tzinfo=dt.UTC)


def group(name="workers", **figures):
    zeros = dict.fromkeys(("ready", "pending", "consumers", "done", "retried", "dead", "redriven"), 0)
    return FullGroup(**{"name": name, "exact": True, "abandoned": False, "live": 1, **zeros, **figures})


def snapshot(**figures):
    """A stream that is well, but for these figures."""
    groups = figures.pop("groups", [group()])
    usual = {
        "name": "orders", "deployment": None, "ready": 0, "pending": 0, "scheduled": 0, "dead": 0, "length": 0,
        "paused": False, "at": AT, "slot": 1, "next_due": None, "due": 0, "dead_letters": NO_LETTERS, "memory": None,
        "eviction_policy": "noeviction", "settings": None, "differences": [], "orphans": 0, "unmatched": 0, "omitted": [],
    }  # fmt: skip
    return FullSnapshot(**{**usual, "groups": {one.name: one for one in groups}, **figures})
