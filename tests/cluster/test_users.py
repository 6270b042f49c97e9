"""Users with the rights that `streamq acl --cluster` prints, on every node; also while the slot of their stream moves."""

from __future__ import annotations

import pytest
from cli.shell import call
from waiting import until
from worker.fleet import quick, working

from streamq import Stream


@pytest.fixture
def as_user(cluster, ns):
    """Make the user of a role on every node; the URL to come as it."""
    names = []

    def make(role, *more):
        names.append(f"{ns}-{role}")
        plain = ["--redis-6"] if role == "viewer" and cluster.nodes[0].version.startswith("6.") else []
        line = call("acl", role, "--user", names[-1], "--deployment", ns, *more, *plain).stdout.split()
        for node in cluster.nodes:
            node.call(*line)
            node.call("ACL", "SETUSER", names[-1], ">pw")
        return cluster.url.replace("://", f"://{names[-1]}:pw@")

    yield make
    for node in cluster.nodes:
        node.call("ACL", "DELUSER", *names)


@pytest.mark.covers("C83")
def test_users_of_a_cluster(cluster, as_user, ns):
    """While the slot moves, a job must go to the other node, which is asked by ASKING."""
    urls = {role: as_user(role, "--cluster") for role in ("producer", "worker", "operator", "viewer")}

    def handle(payload, job):
        job.effects.hincrby("h", "n", 1).xadd("x", {"f": "v"})

    with Stream("orders", redis=urls["producer"], deployment=ns) as producer:
        producer.add({}, job_id="a")
        slot = producer._spec.keys.slot
        target = next(node for node in cluster.primaries if node.port != cluster.primary_of(slot).port)
        cluster.open_slot(slot, target)
        cluster.move_keys(slot, target)
        producer.add({})
        cluster.close_slot(slot, target)
        producer.add({}, job_id="b")
        with Stream("orders", redis=urls["worker"], deployment=ns) as s, working(quick(s, handle)):
            until(lambda: all(producer.result(job_id).state == "done" for job_id in "ab"))
            until(lambda: s.inspect().length == 0)
    for words in ("inspect", "inspect orders", "doctor", "dead-letters list orders"):
        done = call(*words.split(), "--deployment", ns, STREAMQ_URL=urls["viewer"])
        assert (done.returncode, done.stderr) == (0, ""), (words, done.stdout)
    for words in ("doctor", "pause orders", "resume orders", "delete orders --yes"):
        done = call(*words.split(), "--deployment", ns, STREAMQ_URL=urls["operator"])
        assert (done.returncode, done.stderr) == (0, ""), (words, done.stdout)


@pytest.mark.covers("C83")
def test_who_was_not_given_what_a_cluster_needs_is_told(as_user, ns):
    done = call("add", "orders", "{}", "--deployment", ns, STREAMQ_URL=as_user("producer"))
    assert done.returncode in {1, 2}
    assert "cluster" in done.stderr
