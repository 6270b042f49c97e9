"""The main job: the demo's ledger balances, and it could fail to."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from streamq import Backoff, Stream, StreamOptions
from streamq.cli.demo import table
from streamq.demo import ledger
from streamq.demo.deliver import RETRIES
from streamq.demo.ledger import Ledger
from streamq.demo.payloads import Webhook, load
from streamq.demo.receiver import faults_of

README = Path(__file__).parents[2] / "README.md"
DEMO = [sys.executable, "-c", "from streamq.cli import main; main()", "demo", "--json"]


def balanced(*args: str) -> None:
    done = subprocess.run([*DEMO, *args], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    seconds = found.pop("seconds")
    assert found.pop("kills") >= 3
    attempts = {int(number): jobs for number, jobs in found.pop("by_attempt").items()}
    retried = found.pop("retried")
    assert found == {
        "jobs": 331,
        "delivered": 329,
        "receipts": 329,
        "by_hand": {"042-delete": 2},
        "failed": retried + 1,
        "dead": {"attempts": 1, "deliveries": 1},
        "ready": 0,
        "pending": 0,
        "scheduled": 0,
        "lost": 0,
        "balanced": True,
        "wrong": [],
    }
    assert sum(attempts.values()) == 329
    assert attempts.keys() >= {1, 2, 3}  # some fail twice
    assert retried == sum((number - 1) * jobs for number, jobs in attempts.items()) + RETRIES  # and of the poison
    assert seconds < 60
    tells_the_story(done.stderr)


def tells_the_story(shown: str) -> None:
    """What waits, until when, and how it ends, is told as it happens."""
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    ours = [line for line in lines if line.startswith("042-delete")]
    assert [line.partition("; next in ")[0] for line in ours] == [
        "042-delete attempt 1: answered 503, Retry-After: 3600",
        "042-delete attempt 2: delivered",
    ]
    by_hand = lines.index("stream.scheduled.run_now('042-delete')")
    assert lines.index(ours[0]) < by_hand < lines.index(ours[1])
    # A call that a killed worker had under way was counted by the receiver, but is no attempt.
    assert {f"057-deployment_status attempt {n}: delivered" for n in (1, 2, 3)} & set(lines)
    assert "040-poison dead letter, reason attempts: RuntimeError: cannot be delivered" in lines


@pytest.mark.covers("S4", "C04", "R3", "R4")
def test_on_a_server(redis_url, raw):
    before = set(raw.keys("*demo-*"))
    balanced("--url", redis_url)
    assert set(raw.keys("*demo-*")) == before


def test_on_the_embedded_server():
    balanced()


@pytest.mark.covers("T2")
def test_the_readme_shows_what_is_shown():
    seen = Ledger(
        jobs=331, delivered=329, receipts=329, by_attempt={1: 281, 2: 40, 3: 8}, by_hand={"042-delete": 2},
        failed=60, retried=59, dead={"attempts": 1, "deliveries": 1},
        ready=0, pending=0, scheduled=0, lost=0, seconds=6.8, kills=4,
    )  # fmt: skip
    console = Console(file=io.StringIO(), width=80)
    console.print(table(seen))
    shown = [line.rstrip() for line in console.file.getvalue().splitlines()]
    assert "\n".join(shown) in README.read_text("utf-8")


def test_payloads_are_the_real_ones():
    webhooks = load()
    assert len(webhooks) == 329
    assert len({webhook.event for webhook in webhooks}) == 58


def test_faults_are_the_same_in_every_run():
    assert faults_of("057-deployment_status") == ("500", "500")
    assert faults_of("042-delete") == ()
    assert sum(bool(faults_of(str(n))) for n in range(10_000)) == pytest.approx(2_000, rel=0.1)


NOTHING = Webhook(event="ping", payload=msgspec.Raw(b"{}"))


def deliver(stream: Stream[Webhook], *job_ids: str) -> None:
    """Add jobs and deliver them as the demo does."""
    for job_id in job_ids:
        stream.add(NOTHING, job_id=job_id)
        [job] = stream.read("c1")
        job.effects.hincrby("receipts", job.id)
        stream.commit(job, job.attempt)


def fail_once(stream: Stream[Webhook], job_id: str) -> None:
    stream.add(NOTHING, job_id=job_id)
    [job] = stream.read("c1")
    assert stream.retry(job, "no", delay=3_600)


@pytest.mark.parametrize(
    ("delivered", "receipts", "wrong"),
    [
        (["a", "b"], {}, []),
        (["a", "b"], {"a": 1}, ["3 receipts for 2 deliveries"]),
        (["a"], {}, ["1 jobs are lost", "1 jobs were delivered, expected 2"]),
        (["a", "b", "c"], {}, ["-1 jobs are lost", "3 jobs were delivered, expected 2"]),
    ],
    ids=["balanced", "twice", "lost", "never added"],
)
def test_the_ledger_can_fail(redis_url, ns, raw, delivered, receipts, wrong):  # noqa: PLR0917
    with Stream(ns, Webhook, redis=redis_url) as s:
        deliver(s, *delivered)
        for job_id, more in receipts.items():
            raw.hincrby(f"streamq:{{{ns}}}:data:receipts", job_id, more)
        found = ledger.read(s, 2, expected_dead={})
        assert (found.balanced, list(found.wrong)) == (not wrong, wrong)
        assert not ledger.read(s, 2, expected_dead={"attempts": 1}).balanced  # a dead letter that is not there


def test_a_job_that_still_waits_is_left_and_not_lost(redis_url, ns):
    with Stream(ns, Webhook, redis=redis_url) as s:
        deliver(s, "a")
        fail_once(s, "b")
        found = ledger.read(s, 2, expected_dead={}, by_hand=["b"])
        assert (found.scheduled, found.lost, found.failed, found.retried) == (1, 0, 0, 1)
        assert found.wrong == (
            "0 ready, 0 pending, 1 scheduled jobs are left",
            "1 jobs were delivered, expected 2",
            "0 attempts failed, 1 were followed by another one, 0 by a dead letter",
            "b was run by hand, and delivered by attempt 0, expected 2",
        )
        s.scheduled.run_now("b")
        [job] = s.read("c1")
        job.effects.hincrby("receipts", job.id)
        s.commit(job, job.attempt)
        found = ledger.read(s, 2, expected_dead={}, by_hand=["b"])
        assert (found.balanced, found.by_attempt, found.by_hand) == (True, {1: 1, 2: 1}, {"b": 2})


def test_a_retry_that_comes_from_nowhere_is_seen(redis_url, ns, raw):
    with Stream(ns, Webhook, redis=redis_url, options=StreamOptions(retry=Backoff.constant(0, limit=0))) as s:
        deliver(s, "a")
        raw.hincrby(f"streamq:{{{ns}}}:meta", "retried:workers", 1)
        [wrong] = ledger.read(s, 1, expected_dead={}).wrong
        assert wrong == "0 attempts failed, 1 were followed by another one, 0 by a dead letter"
