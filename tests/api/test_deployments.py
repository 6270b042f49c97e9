"""Streams of one name in several deployments of one server: whatever is done to one, the others neither see nor feel."""

from __future__ import annotations

import json

import look
import pytest
from cli.shell import call

from streamq import Effects
from streamq._ops import consumers, promote
from streamq.keys import Keys, registry
from streamq.worker import maintenance


@pytest.fixture
def everywhere(make_stream, ns):
    """The same stream without a deployment, and in three of which each name begins the next; filled alike."""
    return [make_stream(deployment=deployment) for deployment in (None, f"{ns}-", f"{ns}-1", f"{ns}-11")]


def fill(s, raw):
    """A job in each state, with IDs and groups that are the same everywhere; who held one is dead."""
    s.groups.create("workers")
    s.groups.create("audit")
    for job_id in ("dead", "done", "held", "retried"):
        assert s.add({"where": s._spec.keys.deployment}, job_id=job_id).created
    dead, done, _, retried = s.read("w", count=4)
    s.reject(dead, "no")
    s.commit(done, s._spec.keys.deployment)
    s.retry(retried, "no", delay=0)
    s.add({}, job_id="late", delay=3_600)
    s.add({}, job_id="ready")
    s.once("once", Effects().set("k", "v"))
    look.age(raw, s, count=1)


def work(s):
    """All that can be done with a stream, but for deleting it."""
    where = s._spec.keys.deployment
    assert not s.once("once", Effects().set("k", "w"))
    assert not s.add({}, job_id="done").created
    assert s.result("done").value == where
    assert s.cancel("ready")
    claimed, _, _ = s.reclaim("v", min_idle=0)
    assert [(job.id, job.payload["where"]) for job in claimed] == [("held", where)]
    s.extend(claimed[0])
    s.release(claimed[0])
    s.run(maintenance.tick(s._spec, "v", may_reclaim=True, beat=b"{}"))
    s.promote()
    s.run(promote.wake(s._spec, "0-0", 10))
    s.scheduled.reschedule("late", delay=1_800)
    s.scheduled.run_now("late")
    s.add({}, job_id="later", delay=60)
    assert s.scheduled.cancel("later")
    [letter] = s.dead_letters.list()
    assert letter.id in s.dead_letters.redrive(letter.id).moved
    jobs = s.read("v", count=9)
    assert {job.id for job in jobs} == {"retried", "late", "dead"}
    jobs[0].effects.incrby("n")
    s.commit(jobs[0])
    s.reject(jobs[1], "no")
    s.ack(jobs[2])
    assert s.dead_letters.purge(older_than=0) == 1
    s.pause()
    s.resume()
    s.groups.drop("audit", force=True)
    s.trim()
    s.prune_consumers(0)
    s.run(consumers.leave(s._spec, "v"))


def state(raw, s):
    """All that is stored of a stream, and whether its name is listed."""
    keys = s._spec.keys
    found = {key: look.call(raw, "DUMP", key) for key in raw.scan_iter(match=keys.pattern, count=1_000)}
    return found, raw.sismember(registry(keys.deployment), keys.name)


@pytest.mark.covers("C5")
@pytest.mark.parametrize("place", range(4))
def test_whatever_is_done_in_one_changes_nothing_in_others(everywhere, raw, ns, place):
    for s in everywhere:
        fill(s, raw)
    others = [s for s in everywhere if s is not everywhere[place]]
    before = [state(raw, s) for s in others]
    assert all(len(found) > 8 and is_listed for found, is_listed in before)
    work(everywhere[place])
    assert everywhere[place].delete(force=True) > 5
    assert state(raw, everywhere[place]) == ({}, False)
    assert [state(raw, s) for s in others] == before
    assert not {key.decode() for key in raw.scan_iter(match=f"*{ns}*", count=1_000)} - {
        *(key.decode() for found, _ in before for key in found),
        *(registry(s._spec.keys.deployment) for s in everywhere),
    }


@pytest.mark.parametrize("backend", ["valkey-9"], indirect=True)
@pytest.mark.parametrize("colour", ["sync"], indirect=True)
def test_every_command_sees_one_deployment_only(everywhere, raw, redis_url, ns):
    for n, s in enumerate(everywhere, 1):
        fill(s, raw)
        s.add_many([{}] * n)
        raw.sadd(registry(s._spec.keys.deployment), f"{ns}.{n}")

    def printed(*args):
        deployment = everywhere[place]._spec.keys.deployment
        more = () if deployment is None else ("--deployment", deployment)
        done = call(*args, *more, STREAMQ_URL=redis_url)
        assert done.stderr == ""
        return done.stdout

    for place in (0, 2):
        n, keys = place + 1, everywhere[place]._spec.keys
        names = [one["name"] for one in json.loads(printed("inspect", "--json")) if ns in one["name"]]
        assert names == sorted([ns, f"{ns}.{n}"])
        found = json.loads(printed("inspect", ns, "--json"))
        assert found["deployment"] == keys.deployment
        assert found["groups"]["workers"]["ready"] == 2 + n
        assert (found["pending"], found["scheduled"], found["dead"]) == (1, 1, 1)
        metrics = {line for line in printed("inspect", "--prometheus").splitlines() if line.startswith("streamq_up{")}
        assert {line for line in metrics if ns in line} == {
            f'streamq_up{{deployment="{keys.deployment or ""}",stream="{name}"}} 1.0' for name in names
        }
        report = json.loads(printed("doctor", "--json"))
        assert [name for name in report["streams"] if ns in name] == names
        [letter] = json.loads(printed("dead-letters", "list", ns, "--json"))["letters"]
        assert letter["id"] == everywhere[place].dead_letters.list()[0].id
        assert len(json.loads(printed("scheduled", "list", ns, "--json"))["jobs"]) == 1
    raw.srem(registry(None), f"{ns}.1")


@pytest.mark.covers("C5")
@pytest.mark.parametrize("backend", ["valkey-9"], indirect=True)
def test_the_registry_shares_no_request_with_a_stream(make_stream, raw, ns, proxy):
    """It has another slot: neither a transaction nor a script nor a command may have keys of both."""
    s = make_stream(redis=proxy.url, deployment=f"{ns}-1")
    fill(s, raw)
    work(s)
    s.delete(force=True)
    names, tag = registry(f"{ns}-1").encode(), b"{" + f"{ns}-1:{ns}".encode() + b"}"
    assert Keys(ns, f"{ns}-1").stream.encode().count(tag) == 1
    is_open, touching = False, 0
    for command in proxy.commands:
        if command[0] == b"MULTI":
            is_open = True
        if names in command:
            touching += 1
            assert not is_open
            assert not any(tag in word for word in command)
        if command[0] == b"EXEC":
            is_open = False
    assert touching >= 2
