"""Every way to name a server leads to it, in both colours."""

from __future__ import annotations

import asyncio
from pathlib import Path
from urllib.parse import quote

import pytest
import redis
import servers

from streamq import AsyncStream, ConfigurationError, ConnectionLostError, Stream
from streamq.connection import settings_of

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
    assert "secret" not in settings.where
    with Stream("s", redis="redis://user:secret@127.0.0.1:1") as s, pytest.raises(ConnectionLostError) as caught:
        s.add({})
    assert "secret" not in str(caught.value)
