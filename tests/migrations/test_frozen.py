"""What earlier versions of the format stored is read by this one; see tests/fixtures."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import look
import pytest
from migrations.previous import migrate

from streamq._ops.doctor import workers
from streamq.keys import Keys

FIXTURES = sorted((Path(__file__).parents[1] / "fixtures").glob("format-*.json"))
FAR_MS = 4_102_444_800_000
"""1 January 2100: what waits, and what is remembered, is not over while the tests run."""


def raw_of(value):
    return value.encode() if isinstance(value, str) else base64.b64decode(value["base64"])


def load(raw, keys, path):
    """Store it under these keys, as it was; but for the times at which something would be over."""
    for end, stored in json.loads(path.read_text("utf-8")).items():
        key = keys.prefix + end
        match stored["type"]:
            case "stream":
                for entry_id, fields in stored["holds"]:
                    look.call(raw, "XADD", key, entry_id, *(raw_of(part) for pair in fields for part in pair))
                for group in stored["groups"]:
                    look.call(raw, "XGROUP", "CREATE", key, group["name"], group["last"])
                    for entry_id, owner, count in group["pending"]:
                        how = ("IDLE", 900_000, "RETRYCOUNT", count, "FORCE", "JUSTID")
                        look.call(raw, "XCLAIM", key, group["name"], owner, 0, entry_id, *how)
            case "zset":
                for at, (name, _) in enumerate(stored["holds"]):
                    raw.zadd(key, {raw_of(name): FAR_MS + at})
            case "hash":
                for name, value in stored["holds"]:
                    raw.hset(key, raw_of(name), FAR_MS if name == "" else raw_of(value))


@pytest.mark.covers("C81", "M2")
@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.stem)
def test_a_frozen_format_is_read(make_stream, driver, raw, ns, path):
    keys = Keys(ns, ns)
    load(raw, keys, path)
    beats = driver.run(workers.beats(keys, look.server_ms(raw)))
    assert beats.by_name["host-1-a"].about.settings == {"lease": 15.0, "max_deliveries": 5}
    see_all(make_stream(deployment=ns, lease=60), raw)


@pytest.mark.covers("C81", "M2")
@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.stem)
def test_a_frozen_format_is_migrated(make_stream, driver, raw, ns, path):
    load(raw, Keys(ns, ns).untagged, path)
    assert migrate(driver, ns).failed == []
    see_all(make_stream(deployment=ns, lease=60), raw)


def see_all(s, raw):
    """All that the fixture holds is what it was."""
    assert s.result("order:4").value == {"sent": True}
    assert s.result("order:5").state == "done"
    assert [s.add({}, job_id=f"order:{n}").state for n in (2, 3, 4)] == ["pending", "scheduled", "done"]
    waiting = {job.job_id: job for job in s.scheduled.list()}
    assert (waiting["order:3"].attempt, waiting["order:3"].group) == (2, "workers")
    assert waiting["order:3"].errors == ("timed out",)
    assert waiting["order:8"].payload == b'{"n":8}'
    assert len(waiting) == 3
    [letter] = s.dead_letters.list()
    assert (letter.reason, letter.error, letter.job_id) == ("rejected", "no such customer", "order:6")
    snapshot = s.inspect()
    assert (snapshot.paused, snapshot.groups["workers"].done, snapshot.groups["workers"].retried) == (True, 2, 1)
    assert raw.hget(s._spec.keys.data("receipts"), "4") == b"1"
    s.resume()
    claimed = {job.payload["n"]: job for job in s.reclaim("w").claimed}
    assert {n: (job.id, job.deliveries) for n, job in claimed.items() if n == 2} == {2: ("order:2", 2)}
    assert claimed[2].headers == {"traceparent": "00-ab"}
    assert set(claimed) == {1, 2, 7}  # the last one is MessagePack
    s.ack(list(claimed.values()))
    assert s.dead_letters.redrive([letter.id]).moved
    assert s.scheduled.run_now("order:3")
    retried = {job.payload["n"]: job for job in s.read("w", count=10)}
    assert retried[3]._retry is not None
    assert (retried[3].attempt, retried[6].attempt) == (2, 1)
