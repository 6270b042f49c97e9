"""``streamq bench`` on a cluster, and on a master behind Sentinels: redis-py by its own kind of client, and nothing is left."""

from __future__ import annotations

import json

import pytest
from cli.shell import call

ON_ONE = pytest.mark.parametrize("backend", ["valkey-9"], indirect=True, scope="session")

QUICK = ("--rounds", "1", "--jobs", "10", "--seconds", "60", "--json")


def measured(url, ns):
    done = call("bench", *QUICK, "--url", url, "--deployment", ns)
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert [(part["jobs"], part["raw_jobs"]) for part in found["parts"]] == [(10, 10)] * 5
    assert found["raw_latency"]["samples"] == found["latency"]["samples"] == 10
    assert found["parts"][0]["server_reads_per_job"] > 0  # of the node that has the stream
    assert found["memory"]["raw_bytes_per_job"] > 0
    assert found["notes"] == []
    return found


@ON_ONE
def test_on_a_cluster(cluster, ns):
    cluster.wait_until_ok()
    found = measured(cluster.url, ns)
    assert found["server"]["mode"] == "cluster"
    assert not [key for client in cluster.lookers() for key in client.scan_iter(f"*{ns}*")]


@ON_ONE
def test_behind_sentinels(watched, ns):
    watched.wait_until_ok()
    found = measured(watched.url, ns)
    assert "Sentinels" in found["server"]["where"]
    assert call("inspect", "--url", watched.url, "--deployment", ns, "--json").stdout == "[]\n"
