"""Clusters and sentinels for the tests are what they claim to be: a failover that is none makes all tests of one lie."""

from __future__ import annotations

import os

import clusters
import pytest
import redis
import sentinels
import servers
from test_servers import SERVED, UNIT, run_pytest
from waiting import until

TAG = "{moved}"


@pytest.fixture(scope="module")
def cluster(backend):
    if not isinstance(backend.local, servers.Backend):
        pytest.skip("needs processes of its own")
    with clusters.Cluster(backend.local, node_timeout_s=1.0) as running:
        yield running


@pytest.fixture
def shard(cluster):
    """The primary of `TAG` and its replica, of a whole cluster; another primary."""
    cluster.wait_until_ok()
    primary = cluster.primary_of(TAG)
    [replica] = cluster.replicas_of(primary)
    return primary, replica, next(node for node in cluster.primaries if node is not primary)


def test_a_cluster_is_three_primaries_with_a_replica_each(cluster):
    assert len(cluster.nodes) == 6
    assert len(cluster.primaries) == 3
    assert {len(cluster.replicas_of(primary)) for primary in cluster.primaries} == {1}
    assert {cluster.primary_of(slot).port for slot in range(0, clusters.SLOTS, 4096)} == {
        node.port for node in cluster.primaries
    }
    assert cluster.url.count(",") == 2
    with cluster.client() as client:
        for n in range(9):
            client.set(f"k{n}", n)
        assert [client.get(f"k{n}") for n in range(9)] == [b"%d" % n for n in range(9)]
    before = cluster.crossings
    with pytest.raises(redis.exceptions.ClusterCrossSlotError):
        cluster.nodes[0].call("MGET", "{a}", "{b}")
    assert cluster.crossings == before + 1
    for node in cluster.nodes:
        assert node.port + 10_000 < 32_768
        assert node.info("cluster")["cluster_state"] == "ok"


def test_a_slot_moves_with_its_keys_and_is_half_there_meanwhile(cluster, shard):
    source, _, target = shard
    for n in range(3):
        source.call("SET", f"{TAG}{n}", n)
    cluster.open_slot(TAG, target)
    cluster.move_keys(TAG, target, only=lambda key: key.endswith(b"1"))
    with pytest.raises(redis.exceptions.AskError):
        source.call("GET", f"{TAG}1")
    # What to try again Redis 6.2 only says where the slot goes to.
    with pytest.raises((redis.exceptions.TryAgainError, redis.exceptions.AskError)):
        source.call("MGET", f"{TAG}0", f"{TAG}1")
    assert source.call("GET", f"{TAG}0") == b"0"
    cluster.move_keys(TAG, target)
    cluster.close_slot(TAG, target)
    assert cluster.primary_of(TAG) is target
    assert target.call("MGET", *(f"{TAG}{n}" for n in range(3))) == [b"0", b"1", b"2"]
    cluster.migrate_slot(TAG, source)
    assert source.call("DEL", *(f"{TAG}{n}" for n in range(3))) == 3


def test_a_replica_takes_over_when_told_to(cluster, shard):
    primary, replica, _ = shard
    cluster.fail_over(replica)
    assert cluster.primary_of(TAG) is replica
    assert until(lambda: cluster.replicas_of(replica)) == [primary]
    cluster.wait_until_ok()
    cluster.fail_over(primary, "FORCE")
    assert cluster.primary_of(TAG) is primary


def test_a_replica_takes_over_when_its_primary_dies_or_freezes(cluster, shard):
    primary, replica, _ = shard
    primary.kill()
    cluster.wait_until_ok()
    assert cluster.primary_of(TAG) is replica
    primary.start()
    cluster.wait_until_ok()
    assert cluster.replicas_of(replica) == [primary]
    replica.pause()
    cluster.wait_until_ok()
    assert cluster.primary_of(TAG) is primary
    replica.resume()
    cluster.wait_until_ok()
    assert cluster.replicas_of(primary) == [replica]
    assert any("Failover election won" in log for log in cluster.logs.values())


def test_closing_a_cluster_leaves_neither_files_nor_processes(backend):
    if not isinstance(backend.local, servers.Backend):
        pytest.skip("needs processes of its own")
    small = clusters.Cluster(backend.local, primaries=1)  # it need not be whole for that
    for node in small.nodes:
        node.start()
    homes, pids = [node.log.parent for node in small.nodes], [node.pid for node in small.nodes]
    small.nodes[0].pause()
    small.close()
    assert not any(home.exists() for home in homes)
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_cluster_that_does_not_start_says_why_and_leaves_nothing(backend):
    if not isinstance(backend.local, servers.Backend):
        pytest.skip("needs processes of its own")
    broken = clusters.Cluster(backend.local, args=("--no-such-option", "1"))
    with pytest.raises(servers.ServerUnavailableError, match="no-such-option"), broken:
        pass
    assert not any(node.running or node.log.exists() for node in broken.nodes)


def test_sentinels_put_a_replica_into_the_place_of_the_primary(backend):
    if not isinstance(backend.local, servers.Backend):
        pytest.skip("needs processes of its own")
    with sentinels.Sentinels(backend.local) as service:
        assert service.url.count(",") == 2
        assert service.url.endswith("/mymaster")
        first = service.primary
        assert first is service.servers[0]
        first.kill()
        until(lambda: service.primary is not first)
        service.wait_until_ok()
        second = until(lambda: sentinels.call(service.primary, "ROLE")[0] == b"master" and service.primary)
        assert first in service.replicas
        service.fail_over()
        assert service.primary is not second
        pids = [one.pid for one in (*service.servers, *service.sentinels) if one.running]
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


# --- choosing clusters for a run ------------------------------------------------------------


@pytest.mark.covers("T1")
def test_a_cluster_that_is_required_and_missing_fails_the_run(tmp_path):
    result = run_pytest(tmp_path, UNIT, STREAMQ_REQUIRE="cluster-redis-9.9")
    assert result.returncode not in (0, 5)
    assert "STREAMQ_REQUIRE names cluster-redis-9.9, which was not found" in result.stderr


@pytest.mark.covers("T1")
def test_a_run_without_tests_fails_when_a_cluster_is_required(tmp_path, backend):
    if not isinstance(backend.local, servers.Backend):
        pytest.skip("needs processes of its own")
    own = f"cluster-{backend.name}"
    result = run_pytest(tmp_path, SERVED, "-k", "no_such_test", STREAMQ_TEST_ONLY=own, STREAMQ_REQUIRE=own)
    assert result.returncode == 1, result.stdout + result.stderr
    assert "a run that executed no test fails" in result.stdout


@pytest.mark.covers("T1", "C1")
def test_a_cluster_that_stops_or_was_asked_across_slots_fails_the_run(tmp_path, backend):
    if not isinstance(backend.local, servers.Backend):
        pytest.skip("needs processes of its own")
    source = (
        """
import pytest
pytestmark = pytest.mark.covers("T1")
"""
        + SERVED
        + """
def test_stopped(server):
    server.nodes[0].kill()

def test_after_that(server): server.nodes[0].call("PING")

def test_crossing(server):
    with pytest.raises(Exception, match="same slot"):
        server.nodes[1].call("MGET", "{a}", "{b}")
"""
    )
    own = f"cluster-{backend.name}"
    result = run_pytest(tmp_path, source, below="api", STREAMQ_TEST_ONLY=own, STREAMQ_REQUIRE=own)
    assert result.returncode == 1, result.stdout + result.stderr
    assert f"server: {own}: tests/api: six of local {backend.local.version}" in result.stdout
    assert "FAILED api/test_tiny.py::test_after_that" in result.stdout
    assert "ERROR api/test_tiny.py::test_crossing" in result.stdout
    assert "1 failed, 3 passed, 1 error" in result.stdout
