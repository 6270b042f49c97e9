"""From a URL or a client to a driver. With the drivers, the only module that imports redis, and only when it is used."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from urllib.parse import unquote

from streamq.errors import ConfigurationError

if TYPE_CHECKING:
    import redis
    import redis.asyncio

    from streamq._drivers.asynchronous import AsyncDriver
    from streamq._drivers.blocking import BlockingDriver

RedisSource: TypeAlias = "str | redis.Redis | redis.asyncio.Redis | None"
"""A URL, a client whose settings are used, or None for ``STREAMQ_URL``."""

DEFAULT_URL = "redis://localhost:6379"

READ_TIMEOUT_S = 5.0
"""Least read timeout of our connections: a second above the longest BLOCK we send, so that silence means a dead peer."""

_PASSED_ON = frozenset(
    {
        "host", "port", "path", "db", "username", "password", "credential_provider", "client_name",
        "socket_timeout", "socket_connect_timeout", "socket_keepalive", "socket_keepalive_options",
    }
)  # fmt: skip
_IGNORED = frozenset({"decode_responses", "protocol", "max_connections", "encoding", "encoding_errors"})

_URLS = "redis://, rediss://, unix:// or embedded://"


@dataclass(frozen=True, slots=True)
class Settings:
    """How to connect, in no colour: either driver can be made from it."""

    kind: Literal["tcp", "tls", "unix"]
    options: dict[str, Any]

    @property
    def where(self) -> str:
        """Address for messages, without credentials."""
        if self.kind == "unix":
            return f"unix://{self.options.get('path', '')}"
        return f"redis server {self.options.get('host', 'localhost')}:{self.options.get('port', 6379)}"

    def blocking(self, timeout_s: float | None = None) -> BlockingDriver:
        """A driver over blocking connections. Connects at first use.

        Args:
            timeout_s: Longest wait for a connection or a reply, for who asks nothing that blocks.
        """
        from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection

        from streamq._drivers.blocking import BlockingDriver

        kinds = {"tcp": Connection, "tls": SSLConnection, "unix": UnixDomainSocketConnection}
        return BlockingDriver(self._maker(kinds[self.kind], timeout_s), self.where)

    def asynchronous(self, timeout_s: float | None = None) -> AsyncDriver:
        """A driver over asyncio connections; see `blocking`."""
        from redis.asyncio.connection import Connection, SSLConnection, UnixDomainSocketConnection

        from streamq._drivers.asynchronous import AsyncDriver

        kinds = {"tcp": Connection, "tls": SSLConnection, "unix": UnixDomainSocketConnection}
        return AsyncDriver(self._maker(kinds[self.kind], timeout_s), self.where)

    def _maker(self, kind: Any, timeout_s: float | None = None) -> Any:
        options = dict(self.options)
        options["socket_timeout"] = max(options.get("socket_timeout") or 0, READ_TIMEOUT_S)
        if timeout_s is not None:
            options.update(socket_timeout=timeout_s, socket_connect_timeout=timeout_s)
        # RESP2 and bytes, whatever the user's client has: one shape of replies, and nothing is decoded in a parser.
        options.update(protocol=2, decode_responses=False, driver_info=None)

        def connect() -> Any:
            try:
                return kind(**options)
            except TypeError as error:
                raise ConfigurationError(f"the connection cannot be made: {error}") from error

        return connect


def settings_of(source: RedisSource) -> Settings:
    """Connection settings of a URL or a client. Connects to nothing; starts the embedded server if asked for it.

    Raises:
        ConfigurationError: The URL or the client cannot be used; the message says why.
    """
    if source is None:
        source = os.environ.get("STREAMQ_URL") or DEFAULT_URL
    return _of_url(source) if isinstance(source, str) else _of_client(source)


def _of_url(url: str) -> Settings:
    scheme, _, _ = url.partition("://")
    if scheme == "embedded":
        from streamq.embedded import start_embedded

        directory = unquote(url.removeprefix("embedded://"))
        return Settings("unix", {"path": start_embedded(directory or None)})
    if scheme not in {"redis", "rediss", "unix"}:
        known = "; Redis Cluster and Sentinel are not supported yet" if "+" in scheme else ""
        raise ConfigurationError(f"the URL must begin with {_URLS}, not {scheme[:40]!r}{known}")
    from redis.connection import parse_url

    try:
        options = dict(parse_url(url))
    except ValueError as error:
        raise ConfigurationError(f"the {scheme}:// URL cannot be read: {error}") from None
    options.pop("connection_class", None)
    kinds: dict[str, Literal["tcp", "tls", "unix"]] = {"redis": "tcp", "rediss": "tls", "unix": "unix"}
    unknown = sorted(k for k in options if k not in _PASSED_ON | _IGNORED and not k.startswith("ssl_"))
    if unknown:
        raise ConfigurationError(f"the {scheme}:// URL has options that streamq does not know: {', '.join(unknown)}")
    return Settings(kinds[scheme], _passed_on(options))


def _of_client(client: Any) -> Settings:
    import redis
    import redis.asyncio
    from redis.asyncio import connection as waiting
    from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection

    if not isinstance(client, redis.Redis | redis.asyncio.Redis):
        raise ConfigurationError(
            f"redis= takes a URL ({_URLS}) or a client of redis or redis.asyncio, not {type(client).__name__}"
            + ("; Redis Cluster is not supported yet" if "Cluster" in type(client).__name__ else "")
        )
    pool = client.connection_pool
    classes: dict[Any, Literal["tcp", "tls", "unix"]] = {
        Connection: "tcp",
        SSLConnection: "tls",
        UnixDomainSocketConnection: "unix",
        waiting.Connection: "tcp",
        waiting.SSLConnection: "tls",
        waiting.UnixDomainSocketConnection: "unix",
    }
    kind = classes.get(pool.connection_class)
    if kind is None:
        raise ConfigurationError(
            f"the client connects by {pool.connection_class.__name__}, which streamq cannot copy; pass a URL instead"
        )
    return Settings(kind, _passed_on(pool.connection_kwargs))


def _passed_on(options: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in options.items() if (k in _PASSED_ON or k.startswith("ssl_")) and v is not None}
