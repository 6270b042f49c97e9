"""The life of jobs on a cluster, in both colours, and every way to name it."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import clusters
import pytest
import redis
import redis.asyncio
import redis.cluster
import sentinels
import servers
from colours import open_stream
from look import state
from redis.asyncio.sentinel import Sentinel as AsyncSentinel
from redis.sentinel import Sentinel
from waiting import PATIENCE, until
from worker.fleet import working

from streamq import AsyncStream, ConfigurationError, ConnectionLostError, Stream, Worker
from streamq._ops import registry
from streamq.connection import settings_of
from streamq.keys import Keys

TLS = Path(__file__).parent.parent / "tls"

ONE_EACH = pytest.mark.parametrize(
    ("backend", "colour"), [("redis-6.2", "async"), ("valkey-9", "sync")], indirect=True, scope="session"
)
ON_ONE = pytest.mark.parametrize("backend", ["valkey-9"], indirect=True, scope="session")


@contextmanager
def node_of(cluster, stream):
    """A client of the node that holds a stream, to look with."""
    port = cluster.primary_of(stream._spec.keys.stream).port
    with redis.Redis(host="127.0.0.1", port=port, single_connection_client=True, protocol=2) as client:
        yield client


@pytest.fixture
def opened(cluster, ns, colour):
    """Make streams of that colour on the cluster."""
    streams = []

    def make(name="", **options):
        streams.append(open_stream(colour, f"{ns}{name}", redis=cluster.url, **options))
        return streams[-1]

    yield make
    for stream in streams:
        stream.close()


@ONE_EACH
@pytest.mark.covers("C21", "C66")
def test_the_life_of_jobs(cluster, opened):
    s = opened()
    assert s.inspect().ready == 0
    added = [s.add({"n": n}, job_id=f"id{n}") for n in range(3)]
    assert not s.add({"n": 0}, job_id="id0").created
    ok, fails, poison = s.read("w", count=5)
    assert s.ack(ok) is True
    s.retry(fails, delay=0)
    s.reject(poison, "poison")
    s.promote()
    [again] = s.read("w", count=5)
    assert (again.id, again.attempt) == ("id1", 2)
    s.commit(again, result={"fine": True})
    assert s.result("id1").value == {"fine": True}
    [letter] = s.dead_letters.list()
    assert (letter.reason, letter.source_id) == ("rejected", added[2].entry_id)
    assert len(s.dead_letters.redrive([letter.id]).moved) == 1
    [redriven] = s.read("w", count=5)
    assert (redriven.id, s.ack(redriven)) == ("id2", True)
    with node_of(cluster, s) as raw:
        found = state(raw, s)
    assert (found.stream, found.pending, found.dead, found.scheduled) == ([], {}, [], [])
    assert found.done.keys() == {f"workers/id{n}" for n in range(3)}


@ONE_EACH
@pytest.mark.covers("C22")
def test_a_slot_that_is_half_moved(cluster, opened, make_shift):
    """Requests on several keys are refused until the rest has moved; none of that counts as a failure of a job."""
    s = opened()
    for n in range(20):
        s.add({"n": n}, job_id=f"id{n}")
    jobs = s.read("w", count=20)
    slot = s._spec.keys.slot
    target = next(node for node in cluster.primaries if node is not cluster.primary_of(slot))
    cluster.open_slot(slot, target)
    cluster.move_keys(slot, target, only=lambda key: key.endswith(b":stream"))
    run = threading.Thread(target=lambda: [s.ack(jobs[:10]), s.retry(jobs[10], delay=30), s.reject(jobs[11], "poison")])
    run.start()
    before = refusals(cluster)
    until(lambda: refusals(cluster) > before + 3)
    assert run.is_alive(), "it waits"
    cluster.move_keys(slot, target)
    cluster.close_slot(slot, target)
    run.join(30)
    with node_of(cluster, s) as raw:
        found = state(raw, s)
    assert (len(found.pending), len(found.stream), found.scheduled) == (8, 8, ["workers/id10"])
    assert [reason for _, reason in found.dead] == ["rejected"]


def refusals(cluster):
    """How often nodes have said TRYAGAIN, or as Redis 6.2 first ASK."""
    found = [node.info("errorstats") for node in cluster.nodes]
    counts = [stats.get(f"errorstat_{code}", "count=0") for stats in found for code in ("TRYAGAIN", "ASK")]
    return sum(int(count.removeprefix("count=")) for count in counts)


@ONE_EACH
def test_streams_of_all_nodes_are_found(cluster, opened, ns, colour):
    names = [f".{n}" for n in range(8)]
    for name in names:
        opened(name, deployment=ns).add({})
    assert len({cluster.primary_of(Keys(ns + name, ns).stream).port for name in names}) == 3
    driver = opened(".0", deployment=ns)
    assert driver.run(registry.names(ns)) == [ns + name for name in names]
    for name in names:
        assert opened(name, deployment=ns).delete(force=True) >= 1
    assert driver.run(registry.names(ns)) == []


@ON_ONE
def test_a_reader_that_waits_is_let_go_when_its_worker_stops(cluster, ns):
    with Stream(ns, redis=cluster.url) as s, working(Worker(s, lambda payload: None, block=4)):
        with node_of(cluster, s) as raw:
            until(lambda: raw.info("clients")["blocked_clients"] >= 1)
            before = unblocked(raw)
        begun = time.monotonic()
    assert time.monotonic() - begun < 3 * PATIENCE
    with node_of(cluster, s) as raw:
        assert unblocked(raw) > before


def unblocked(raw):
    """How often a node was asked to let somebody go."""
    return raw.info("commandstats").get("cmdstat_client|unblock", {"calls": 0})["calls"]


@ON_ONE
@pytest.mark.covers("C79")
def test_a_node_that_leaves_closes_nothing_of_another_event_loop(cluster, ns):
    """If that has ended it would fail, and hide the error that says what is wrong."""
    s = AsyncStream(ns, redis=cluster.url)

    async def add():
        await s.add({})

    async def in_another_loop():
        for server in list(s._driver._servers.values()):
            await server.drop()
            await server.cut()
        with pytest.raises(ConfigurationError, match="another event loop"):
            await s.add({})

    with asyncio.Runner() as one, asyncio.Runner() as other:
        one.run(add())
        other.run(in_another_loop())
        one.run(add())
        one.run(s.aclose())


# --- naming it ----------------------------------------------------------------------------


def works(source, name):
    """A job goes through, added by one colour and settled by the other."""
    with Stream(name, redis=source) as s:
        s.add({"n": 1})

    async def settle():
        async with AsyncStream(name, redis=source) as s:
            [job] = await s.read("w")
            assert await s.ack(job) is True

    asyncio.run(settle())


@ON_ONE
@pytest.mark.covers("C84")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_clients_of_a_cluster(cluster, ns):
    """Whatever they make of replies, and wherever they read: replicas that lag are never asked."""
    client = redis.RedisCluster(
        host="127.0.0.1", port=cluster.primaries[0].port, decode_responses=True, protocol=3, read_from_replicas=True
    )
    replicas = [node for node in cluster.nodes if node not in cluster.primaries]
    for node in replicas:
        node.pause()
    try:
        works(client, f"{ns}.sync")
    finally:
        for node in replicas:
            node.resume()
        client.close()
    client = redis.asyncio.RedisCluster(
        startup_nodes=[redis.asyncio.cluster.ClusterNode("127.0.0.1", cluster.port)], decode_responses=True
    )
    works(client, f"{ns}.async")


@ON_ONE
def test_addresses_that_cannot_be_reached_from_here(cluster, ns):
    """As behind a NAT: nodes tell addresses that their cluster uses, the client knows better."""
    asked = []

    def remap(address):
        asked.append(address)
        return address

    with redis.RedisCluster(host="127.0.0.1", port=cluster.port, address_remap=remap) as client:
        asked.clear()
        works(client, ns)
    assert {port for _, port in asked} == {node.port for node in cluster.nodes}


@ON_ONE
def test_user_and_password(cluster, ns):
    for node in cluster.nodes:
        node.call("ACL", "SETUSER", "ada", "on", ">pw", f"~*{ns}*", "~streamq:streams", "&*", "+@all")
    url = cluster.url.replace("://", "://ada:pw@")
    works(url, ns)
    assert "pw" not in settings_of(url).where
    with Stream(ns, redis=url.replace(":pw", ":wrong")) as s, pytest.raises(ConfigurationError, match="password"):
        s.add({})
    for node in cluster.nodes:
        node.call("ACL", "SETUSER", "ada", "-cluster|slots")
    with Stream(ns, redis=url) as s, pytest.raises(ConfigurationError, match="cluster"):
        s.add({})


@pytest.mark.full
@pytest.mark.parametrize("backend", ["redis-7.0"], indirect=True, scope="session")
def test_tls(backend, ns):
    port = servers.free_port()
    args = (
        *("--tls-port", str(port), "--tls-cluster", "yes", "--tls-auth-clients", "no"),
        *("--tls-cert-file", str(TLS / "server.crt"), "--tls-key-file", str(TLS / "server.key")),
        *("--tls-ca-cert-file", str(TLS / "server.crt")),
    )
    with clusters.Cluster(backend.local, primaries=1, replicas=0, args=args):
        works(f"rediss+cluster://127.0.0.1:{port}?ssl_ca_certs={quote(str(TLS / 'server.crt'))}", ns)


@ON_ONE
@pytest.mark.covers("D1")
def test_the_wrong_kind_of_url_is_named_at_once(cluster, watched, server, ns, colour):
    node, sentinel = cluster.nodes[0], watched.sentinels[0]
    wrong = {
        f"redis://127.0.0.1:{node.port}": "use a redis\\+cluster:// URL",
        f"redis://127.0.0.1:{sentinel.port}": "is a Sentinel",
        f"redis+cluster://127.0.0.1:{server.port}": f"use redis://127.0.0.1:{server.port} instead",
        f"redis+cluster://127.0.0.1:{sentinel.port}": "use redis\\+sentinel://",
        f"redis+sentinel://127.0.0.1:{server.port}/main": f"use redis://127.0.0.1:{server.port} instead",
        f"redis+sentinel://127.0.0.1:{sentinel.port}/other": "knows no master named 'other'",
    }
    for url, words in wrong.items():
        stream = open_stream(colour, ns, redis=url)
        with pytest.raises(ConfigurationError, match=words):
            stream.add({})
        stream.close()


@ON_ONE
def test_clients_of_sentinels(watched, ns):
    watched.wait_until_ok()
    places = [("127.0.0.1", one.port) for one in watched.sentinels]
    with Sentinel(places).master_for(sentinels.SERVICE, decode_responses=True, protocol=3) as client:
        works(client, f"{ns}.sync")
    works(AsyncSentinel(places).master_for(sentinels.SERVICE), f"{ns}.async")
    works(f"{watched.url}/3", f"{ns}.db")
    with redis.Redis(host="127.0.0.1", port=watched.primary.port, db=3) as raw:
        assert raw.keys(f"*{ns}.db*")
    with pytest.raises(ConfigurationError, match="master_for"):
        settings_of(Sentinel(places).slave_for(sentinels.SERVICE))


@ON_ONE
def test_a_sentinel_that_is_gone(watched, ns):
    port = servers.free_port()
    works(watched.url.replace("://", f"://127.0.0.1:{port},"), ns)
    with Stream(ns, redis=f"redis+sentinel://127.0.0.1:{port}/m") as s, pytest.raises(ConnectionLostError) as caught:
        s.add({})
    assert caught.value.maybe_executed is False
