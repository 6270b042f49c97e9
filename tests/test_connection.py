"""Every way to name a server leads to it, in both colours."""

from __future__ import annotations

import asyncio
from pathlib import Path
from urllib.parse import quote

import pytest
import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel
import servers

from streamq import AsyncStream, ConfigurationError, ConnectionLostError, Stream
from streamq.connection import ClusterRoute, SentinelRoute, Settings, settings_of

TLS = Path(__file__).parent / "tls"


def works(source: object, name: str) -> None:
    """A job goes through, added by one colour and settled by the other."""
    with Stream(name, redis=source) as s:
        s.add({"n": 1})

    async def settle() -> None:
        async with AsyncStream(name, redis=source) as s:
            [job] = await s.read("w")
            assert await s.ack(job) is True

    asyncio.run(settle())


def test_unix_socket(server, ns):
    if server.unix_path is None:
        pytest.skip("a given server has no socket that we know")
    works(f"unix://{server.unix_path}", ns)


def test_embedded_directory(tmp_path):
    works(f"embedded://{tmp_path}/data", "s")


@pytest.mark.parametrize("backend", ["redis-7.0"], indirect=True)
def test_tls(new_server, ns):
    port = servers.free_port()
    new_server(
        args=(
            *("--tls-port", str(port), "--tls-auth-clients", "no"),
            *("--tls-cert-file", str(TLS / "server.crt"), "--tls-key-file", str(TLS / "server.key")),
        )
    )
    url = f"rediss://127.0.0.1:{port}"
    works(f"{url}?ssl_ca_certs={quote(str(TLS / 'server.crt'))}", ns)
    with Stream(ns, redis=url) as s, pytest.raises(ConnectionLostError, match="certificate") as caught:
        s.add({})
    assert caught.value.maybe_executed is False


def test_database_number_and_environment(redis_url, ns, monkeypatch):
    url = redis_url.removesuffix("/0") + "/3"
    monkeypatch.setenv("STREAMQ_URL", url)
    with Stream(ns) as s:
        s.add({})
        with redis.Redis.from_url(url) as client:
            assert client.xlen(s._spec.keys.stream) == 1
            client.unlink(s._spec.keys.stream)


@pytest.mark.parametrize(
    "source",
    [
        *("ftp://x", "localhost:6379", "redis://x:port", "redis://x?db=three", 6379, object()),
        *(
            "unix+cluster:///x",
            "redis+cluster://x:port",
            "redis+cluster://x/1",
            "redis+cluster://",
            "redis+cluster://x?a=1",
        ),
        *("redis+sentinel://x", "redis+sentinel://x/m/three", "redis+sentinel://x:port/m"),
    ],
)
def test_what_is_no_server(source):
    with pytest.raises(ConfigurationError):
        settings_of(source)


def test_clients_that_cannot_be_copied():
    class Special(redis.Connection):
        pass

    pool = redis.ConnectionPool(connection_class=Special)
    with pytest.raises(ConfigurationError, match="Special"):
        settings_of(redis.Redis(connection_pool=pool))


def test_messages_hide_the_password():
    settings = settings_of("redis://user:secret@127.0.0.1:1")
    assert "secret" not in settings.where + repr(settings)
    with Stream("s", redis="redis://user:secret@127.0.0.1:1") as s, pytest.raises(ConnectionLostError) as caught:
        s.add({})
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("scheme", ["redis", "redis+cluster", "redis+sentinel"])
@pytest.mark.parametrize("sign", ["/", "?", "#", "[]", "/\u2100"])
def test_messages_hide_a_password_that_is_not_quoted(scheme, sign):
    """Python takes what stands before the sign for a port, and quotes it."""
    with pytest.raises(ConfigurationError) as caught:
        settings_of(f"{scheme}://user:secret{sign}secret@127.0.0.1:1/main")
    assert "secret" not in str(caught.value)


# --- several servers ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "kind", "seeds", "options"),
    [
        ("redis+cluster://h", "tcp", (("h", 6379),), {}),
        ("redis+cluster://h:1,h2:2/0?db=0", "tcp", (("h", 1), ("h2", 2)), {}),
        ("redis+cluster://[::1]:7000,h", "tcp", (("::1", 7000), ("h", 6379)), {}),
        ("redis+cluster://h:1,[::1]:7000", "tcp", (("h", 1), ("::1", 7000)), {}),
        (
            "rediss+cluster://ada:p%40ss@h,h2?ssl_ca_certs=ca.crt&socket_timeout=9&socket_connect_timeout=3",
            "tls",
            (("h", 6379), ("h2", 6379)),
            {
                "username": "ada",
                "password": "p@ss",
                "ssl_ca_certs": "ca.crt",
                "socket_timeout": 9.0,
                "socket_connect_timeout": 3.0,
            },
        ),
    ],
)
def test_urls_of_clusters(url, kind, seeds, options):
    assert settings_of(url) == Settings(kind, options, ClusterRoute(seeds))


@pytest.mark.parametrize(
    ("url", "kind", "seeds", "options", "sentinel"),
    [
        ("redis+sentinel://h/main", "tcp", (("h", 26379),), {}, {}),
        ("redis+sentinel://h:1,h2/main/3", "tcp", (("h", 1), ("h2", 26379)), {"db": 3}, {}),
        (
            "rediss+sentinel://ada:pw@h/main?sentinel_username=eve&sentinel_password=s%26t&ssl_ca_certs=ca.crt",
            "tls",
            (("h", 26379),),
            {"username": "ada", "password": "pw", "ssl_ca_certs": "ca.crt"},
            {"username": "eve", "password": "s&t", "ssl_ca_certs": "ca.crt"},
        ),
    ],
)
def test_urls_of_sentinels(url, kind, seeds, options, sentinel):
    """User and password of the master are not shown to Sentinels, which others may run."""
    assert settings_of(url) == Settings(kind, options, SentinelRoute(seeds, "main", kind, sentinel))


def test_clients_of_sentinels_with_tls_and_passwords():
    of_sentinel = {"password": "s", "ssl": True, "ssl_ca_certs": "ca.crt"}
    for manager in (redis.sentinel.Sentinel, redis.asyncio.sentinel.Sentinel):
        client = manager([("h", 1), ("h2", 2)], sentinel_kwargs=of_sentinel).master_for(
            "main", username="ada", password="pw", ssl=True, ssl_ca_certs="ca.crt", db=2, socket_timeout=7
        )
        found = settings_of(client)
        assert (found.kind, found.route.kind, found.route.seeds) == ("tls", "tls", (("h", 1), ("h2", 2)))
        assert {k: found.options[k] for k in ("username", "password", "db", "ssl_ca_certs", "socket_timeout")} == {
            "username": "ada",
            "password": "pw",
            "db": 2,
            "ssl_ca_certs": "ca.crt",
            "socket_timeout": 7,
        }
        assert (found.route.options["password"], found.route.options["ssl_ca_certs"]) == ("s", "ca.crt")
        assert not {"host", "port"} & (found.options.keys() | found.route.options.keys())


def test_clients_of_clusters_with_tls_and_passwords():
    nodes = [redis.asyncio.cluster.ClusterNode("10.0.0.1", 1), redis.asyncio.cluster.ClusterNode("10.0.0.2", 2)]
    client = redis.asyncio.RedisCluster(
        startup_nodes=nodes, username="ada", password="pw", ssl=True, ssl_ca_certs="ca.crt"
    )
    found = settings_of(client)
    assert (found.kind, found.route) == ("tls", ClusterRoute((("10.0.0.1", 1), ("10.0.0.2", 2))))
    assert {k: found.options[k] for k in ("username", "password", "ssl_ca_certs")} == {
        "username": "ada",
        "password": "pw",
        "ssl_ca_certs": "ca.crt",
    }
    assert "host" not in found.options


def test_addresses_for_messages():
    assert settings_of("redis+cluster://ada:secret@h:1,h2").where == "redis cluster of h:1, h2:6379"
    where = settings_of("redis+sentinel://ada:secret@h/main?sentinel_password=hidden").where
    assert where == "master main of the Sentinels h:26379"
