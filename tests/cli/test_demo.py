"""The main job: the demo's ledger balances, and it could fail to."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from streamq import Stream
from streamq.demo import ledger
from streamq.demo.payloads import Webhook, load

DEMO = [sys.executable, "-c", "from streamq.cli import main; main()", "demo", "--json"]


def balanced(*args: str) -> None:
    done = subprocess.run([*DEMO, *args], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    seconds = found.pop("seconds")
    assert found.pop("kills") >= 3
    assert found == {
        "jobs": 331,
        "delivered": 329,
        "receipts": 329,
        "dead": {"attempts": 1, "deliveries": 1},
        "ready": 0,
        "pending": 0,
        "lost": 0,
        "balanced": True,
    }
    assert seconds < 60


@pytest.mark.covers("S4", "C04")
def test_on_a_server(redis_url, raw):
    before = set(raw.keys("*demo-*"))
    balanced("--url", redis_url)
    assert set(raw.keys("*demo-*")) == before


def test_on_the_embedded_server():
    balanced()


def test_payloads_are_the_real_ones():
    webhooks = load()
    assert len(webhooks) == 329
    assert len({webhook.event for webhook in webhooks}) == 58


@pytest.mark.parametrize(
    ("receipts", "lost", "balances"),
    [
        ({"a": 1, "b": 1}, 0, True),
        ({"a": 2, "b": 1}, 0, False),  # delivered twice
        ({"a": 1}, 1, False),  # lost
        ({"a": 1, "b": 1, "c": 1}, -1, False),  # one that was never added
    ],
)
def test_the_ledger_can_fail(redis_url, ns, raw, receipts, lost, balances):  # noqa: PLR0917
    with Stream(ns, Webhook, redis=redis_url) as s:
        raw.hset(f"streamq:{{{ns}}}:data:receipts", mapping=receipts)
        found = ledger.read(s, 2, {}, 1.0, 0)
        assert (found.lost, found.balanced) == (lost, balances)
        assert not ledger.read(s, 2, {"attempts": 1}, 1.0, 0).balanced  # a dead letter that is not there
