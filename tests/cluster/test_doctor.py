"""`streamq doctor` on a whole cluster, and on a master and its Sentinels."""

from __future__ import annotations

import json

import clusters
import pytest
from cli.shell import call
from waiting import until

from streamq import Stream
from streamq.keys import Keys

ON_ONE = pytest.mark.parametrize("backend", ["valkey-9"], indirect=True, scope="session")


def examine(url, *args):
    """Exit status and report."""
    done = call("doctor", *args, "--url", url, "--json")
    assert done.stderr == ""
    return done.returncode, json.loads(done.stdout)


def said(report, *severities, checks):
    """Texts of findings, of these checks."""
    return [f["text"] for f in report["findings"] if f["severity"] in severities and f["check"] in checks]


@ON_ONE
@pytest.mark.covers("D1", "D2")
def test_a_cluster_that_is_well(cluster, ns):
    cluster.wait_until_ok()
    names = [f"s{n}" for n in range(4)]
    for name in names:
        with Stream(name, redis=cluster.url, deployment=ns) as s:
            assert s.read("w") == []
    assert len({cluster.primary_of(Keys(name, ns).stream) for name in names}) > 1
    node = cluster.nodes[1]
    node.call("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    try:
        status, report = examine(cluster.url, "--deployment", ns)
    finally:
        node.call("CONFIG", "SET", "maxmemory-policy", "noeviction")
    assert (status, report["streams"], report["problems"]) == (0, names, 0)
    assert said(report, "ok", checks=["cluster"]) == ["3 primaries and 3 replicas, all slots are served"]
    assert len(said(report, "ok", checks=["version", "clock"])) == 2, "what holds for all nodes is said once"
    assert "a script over two tags is refused, as a node of a cluster must" in said(report, "ok", checks=["trial"])
    [policy] = said(report, "note", checks=["eviction"])
    assert policy.startswith(f"node 127.0.0.1:{node.port}: maxmemory-policy is allkeys-lru")


@ON_ONE
@pytest.mark.full
def test_a_cluster_in_trouble(backend, ns):
    args = ("--cluster-require-full-coverage", "no")
    with clusters.Cluster(backend.local, replicas=0, node_timeout_s=0.5, args=args) as cluster:
        name = next(f"s{n}" for n in range(99) if cluster.primary_of(Keys(f"s{n}", ns).stream) is cluster.nodes[0])
        gone = cluster.nodes[2]
        gone.kill()
        until(lambda: all("fail" in node.view()[gone.node_id].flags for node in cluster.nodes[:2]))
        status, report = examine(cluster.url, name, "--deployment", ns)
    assert (status, report["streams"]) == (1, [name])
    where = f"node 127.0.0.1:{gone.port}"
    slots = [text for text in said(report, "problem", checks=["cluster"]) if "served by no node" in text]
    assert slots == ["5,462 slots are served by no node: what lies there stands still"]
    assert f"{where}, which holds 5,462 slots, is down and was not replaced" in said(
        report, "problem", checks=["cluster"]
    )
    assert [
        text for text in said(report, "problem", checks=["cluster"]) if text.startswith(f"{where} does not answer us")
    ]
    assert len([text for text in said(report, "note", checks=["cluster"]) if "has no replica" in text]) == 2
    assert said(report, "problem", checks=["reach"]) == []


@ON_ONE
def test_a_master_and_its_sentinels(watched, ns):
    watched.wait_until_ok()
    with Stream("s", redis=watched.url, deployment=ns) as s:
        assert s.read("w") == []
    status, report = examine(watched.url, "--deployment", ns)
    assert (status, report["streams"], report["problems"]) == (0, ["s"], 0)
    assert said(report, "ok", checks=["sentinels"]) == ["3 Sentinels, enough of them to replace the master"]
    assert said(report, "ok", checks=["replicas"]) == ["2 replicas"]
    gone = watched.sentinels[0]
    gone.kill()
    try:
        status, report = examine(watched.url, "s", "--deployment", ns)
    finally:
        gone.start()
    assert status == 0
    [text] = said(report, "note", checks=["sentinels"])
    assert text.startswith(f"Sentinel 127.0.0.1:{gone.port}: cannot reach")
