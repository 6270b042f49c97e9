"""From a URL or a client to a driver. With the drivers, the only module that imports redis, and only when it is used."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from streamq.errors import ConfigurationError

if TYPE_CHECKING:
    import redis
    import redis.asyncio

    from streamq._drivers.asynchronous import AsyncConnections, AsyncDriver
    from streamq._drivers.blocking import BlockingDriver, Connections
    from streamq._drivers.books import Book
    from streamq._drivers.steps import Address

RedisSource: TypeAlias = (
    "str | redis.Redis | redis.asyncio.Redis | redis.RedisCluster | redis.asyncio.RedisCluster | None"
)
"""A URL, a client whose settings are used, or None for ``STREAMQ_URL``."""

Kind: TypeAlias = Literal["tcp", "tls", "unix"]

DEFAULT_URL = "redis://localhost:6379"

READ_TIMEOUT_S = 5.0
"""Least read timeout of our connections: a second above the longest BLOCK we send, so that silence means a dead peer."""

HAIL_S = 1.0
"""Longest wait for a connection to one of several servers and for its first word, where nothing else is said: one that
hangs must not hide for long that another has taken its place."""

_CLIENTS_CONNECT_TIMEOUT_S = 5
"""Of redis-py's clients."""

_PASSED_ON = frozenset(
    {
        "host", "port", "path", "db", "username", "password", "credential_provider", "client_name",
        "socket_timeout", "socket_connect_timeout", "socket_keepalive", "socket_keepalive_options",
    }
)  # fmt: skip
_IGNORED = frozenset({"decode_responses", "protocol", "max_connections", "encoding", "encoding_errors"})

_URLS = "redis://, rediss://, redis+cluster://, redis+sentinel://, unix:// or embedded://"
_SCHEMES = frozenset(
    {"redis", "rediss", "unix", "redis+cluster", "rediss+cluster", "redis+sentinel", "rediss+sentinel"}
)


@dataclass(frozen=True, slots=True)
class ClusterRoute:
    """The way to the nodes of a cluster.

    Attributes:
        seeds: Some of its nodes, as (host, port).
        remap: Makes of an address that a node tells one that can be reached from here.
    """

    seeds: tuple[tuple[str, int], ...]
    remap: Callable[[tuple[str, int]], tuple[str, int]] | None = None

    def __str__(self) -> str:
        return f"redis cluster of {_hosts(self.seeds)}"


@dataclass(frozen=True, slots=True)
class SentinelRoute:
    """The way to a master that Sentinels watch.

    Attributes:
        seeds: The Sentinels, as (host, port).
        service: The master's name.
        kind, options: How to connect to a Sentinel.
        remap: As of a cluster.
    """

    seeds: tuple[tuple[str, int], ...]
    service: str
    kind: Kind
    options: dict[str, Any] = field(repr=False)
    remap: Callable[[tuple[str, int]], tuple[str, int]] | None = None

    def __str__(self) -> str:
        return f"master {self.service} of the Sentinels {_hosts(self.seeds)}"


def _hosts(seeds: tuple[tuple[str, int], ...]) -> str:
    return ", ".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in seeds)


@dataclass(frozen=True, slots=True)
class Settings:
    """How to connect, in no colour: either driver can be made from it.

    Attributes:
        kind: How to reach a server.
        options: For redis-py's connections.
        route: Where there are several servers: how to find the right one.
    """

    kind: Kind
    options: dict[str, Any] = field(repr=False)  # a password is among them
    route: ClusterRoute | SentinelRoute | None = None

    @property
    def where(self) -> str:
        """Address for messages, without credentials."""
        if self.route is not None:
            return str(self.route)
        if self.kind == "unix":
            return f"unix://{self.options.get('path', '')}"
        return f"redis server {self.options.get('host', 'localhost')}:{self.options.get('port', 6379)}"

    def blocking(self, timeout_s: float | None = None, *, as_it_is: bool = False) -> BlockingDriver:
        """A driver over blocking connections. Connects at first use.

        Args:
            as_it_is: Take servers for what they are, and wait out nothing: who examines them says himself what is wrong.
            timeout_s: Longest wait for a connection or a reply, for who asks nothing that blocks; and of several servers
                for one that takes the request.
        """
        from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection

        from streamq._drivers.blocking import BlockingDriver, Connections, Watch
        from streamq._drivers.greeting import greet_plain

        kinds = {"tcp": Connection, "tls": SSLConnection, "unix": UnixDomainSocketConnection}
        if self.route is None:
            greet = None if self.kind == "unix" or as_it_is else partial(greet_plain, self.where)
            return BlockingDriver(Connections(_maker(kinds[self.kind], self.options, timeout_s), self.where, greet))
        from streamq._drivers.routed_blocking import RoutedBlockingDriver
        from streamq._drivers.routing import PATIENCE_S, SILENCE_S

        book, hail_s = self._book(), self._hail_s

        def server(at: Address, is_guide: bool, overdue: Callable[[], None]) -> Connections:  # noqa: FBT001
            kind, options = self._of(at, is_guide=is_guide)
            reply_s = timeout_s or _reply_s(options)
            return Connections(
                _maker(kinds[kind], options, min(hail_s, reply_s)),
                f"redis server {at}",
                lambda hello: book.greet(at, hello, is_guide=is_guide),
                Watch(reply_s, SILENCE_S, overdue),
            )

        patience_s = PATIENCE_S if timeout_s is None else timeout_s
        return RoutedBlockingDriver(book, server, min(patience_s, HAIL_S) if as_it_is else patience_s)

    def asynchronous(self, timeout_s: float | None = None) -> AsyncDriver:
        """A driver over asyncio connections; see `blocking`."""
        from redis.asyncio.connection import Connection, SSLConnection, UnixDomainSocketConnection

        from streamq._drivers.asynchronous import AsyncConnections, AsyncDriver, AsyncWatch
        from streamq._drivers.greeting import greet_plain

        kinds = {"tcp": Connection, "tls": SSLConnection, "unix": UnixDomainSocketConnection}
        if self.route is None:
            greet = None if self.kind == "unix" else partial(greet_plain, self.where)
            return AsyncDriver(AsyncConnections(_maker(kinds[self.kind], self.options, timeout_s), self.where, greet))
        from streamq._drivers.routed_asynchronous import RoutedAsyncDriver
        from streamq._drivers.routing import PATIENCE_S, SILENCE_S

        book, hail_s = self._book(), self._hail_s

        def server(at: Address, is_guide: bool, overdue: Callable[[], Any]) -> AsyncConnections:  # noqa: FBT001
            kind, options = self._of(at, is_guide=is_guide)
            return AsyncConnections(
                _maker(kinds[kind], options, timeout_s),
                f"redis server {at}",
                lambda hello: book.greet(at, hello, is_guide=is_guide),
                AsyncWatch(hail_s, SILENCE_S, overdue),
            )

        return RoutedAsyncDriver(book, server, PATIENCE_S if timeout_s is None else timeout_s)

    @property
    def _hail_s(self) -> float:
        return float(self.options.get("socket_connect_timeout") or HAIL_S)

    def _of(self, at: Address, *, is_guide: bool) -> tuple[Kind, dict[str, Any]]:
        """How to connect to one of several servers."""
        if is_guide and isinstance(self.route, SentinelRoute):
            return self.route.kind, {**self.route.options, "host": at.host, "port": at.port}
        return self.kind, {**self.options, "host": at.host, "port": at.port}

    def _book(self) -> Book:
        from streamq._drivers.books import ClusterBook, SentinelBook
        from streamq._drivers.steps import Address

        assert self.route is not None  # noqa: S101  # nobody else asks
        remap, seeds = self.route.remap, [Address(*seed) for seed in self.route.seeds]
        way = (lambda told: Address(*remap(told))) if remap is not None else (lambda told: told)
        if isinstance(self.route, SentinelRoute):
            return SentinelBook(seeds, self.route.service, way)
        return ClusterBook(seeds, way)


def _reply_s(options: dict[str, Any]) -> float:
    return float(max(options.get("socket_timeout") or 0, READ_TIMEOUT_S))


def _maker(kind: Any, given: dict[str, Any], timeout_s: float | None = None) -> Any:
    options = {**given, "socket_timeout": _reply_s(given)}
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
    if scheme not in _SCHEMES:
        raise ConfigurationError(f"the URL must begin with {_URLS}, not {scheme[:40]!r}")
    transport, _, system = scheme.partition("+")
    kinds: dict[str, Kind] = {"redis": "tcp", "rediss": "tls", "unix": "unix"}
    kind = kinds[transport]
    if not system:
        return Settings(kind, _options(url, scheme))
    place = url.partition("://")[2]
    authority = re.split(r"[/?#]", place, maxsplit=1)[0]
    credentials, _, hosts = authority.rpartition("@")
    parts = urlsplit(f"//host{place[len(authority) :]}")  # newer Pythons refuse several hosts of which some are IPv6
    seeds = tuple(_seed(host, scheme, 6379 if system == "cluster" else 26379) for host in hosts.split(","))
    query = dict(parse_qsl(parts.query))
    path = unquote(parts.path).strip("/")
    if system == "cluster":
        if path not in {"", "0"} or query.pop("db", "0") != "0":
            raise ConfigurationError(f"the {scheme}:// URL names a database: a cluster has number 0 only")
        return Settings(kind, _options(_plain(transport, credentials, query), scheme), ClusterRoute(seeds))
    service, _, db = path.partition("/")
    if not service:
        raise ConfigurationError(f"the {scheme}:// URL lacks the master's name: {scheme}://HOST:26379/NAME")
    own = {k.removeprefix("sentinel_"): query.pop(k) for k in ("sentinel_username", "sentinel_password") if k in query}
    options = _options(_plain(transport, credentials, {**query, **({"db": db} if db else {})}), scheme)
    shared = {k: v for k, v in options.items() if k.startswith(("ssl_", "socket_"))}
    return Settings(kind, options, SentinelRoute(seeds, service, kind, {**shared, **own}))


def _plain(transport: str, credentials: str, query: dict[str, str]) -> str:
    """A URL of one server, for redis-py to read the options in."""
    return f"{transport}://{credentials + '@' if credentials else ''}?{urlencode(query)}"


def _seed(host: str, scheme: str, port: int) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{host}")
        if parts.hostname:
            return unquote(parts.hostname), parts.port or port
    except ValueError as error:
        raise _unreadable(scheme, error) from None
    raise ConfigurationError(f"the {scheme}:// URL lacks a host: {scheme}://HOST:{port}")


def _unreadable(scheme: str, error: ValueError) -> ConfigurationError:
    why = str(error)
    if not why.startswith(("Port out of range", "Invalid IPv6 URL", "Invalid value for")):
        # Others quote what they take for a host or a port: a part of the password, if that has one of these characters.
        why = "the host or port is none; in a user name or password write / ? # [ ] @ : as %2F %3F %23 %5B %5D %40 %3A"
    return ConfigurationError(f"the {scheme}:// URL cannot be read: {why}")


def _options(url: str, scheme: str) -> dict[str, Any]:
    from redis.connection import parse_url

    try:
        options = dict(parse_url(url))
    except ValueError as error:
        raise _unreadable(scheme, error) from None
    options.pop("connection_class", None)
    unknown = sorted(k for k in options if k not in _PASSED_ON | _IGNORED and not k.startswith("ssl_"))
    if unknown:
        raise ConfigurationError(f"the {scheme}:// URL has options that streamq does not know: {', '.join(unknown)}")
    return _passed_on(options)


def _of_client(client: Any) -> Settings:
    import redis
    import redis.asyncio

    if isinstance(client, redis.RedisCluster | redis.asyncio.RedisCluster):
        return _of_cluster(client)
    if not isinstance(client, redis.Redis | redis.asyncio.Redis):
        raise ConfigurationError(
            f"redis= takes a URL ({_URLS}) or a client of redis or redis.asyncio, not {type(client).__name__}"
        )
    from redis.asyncio.sentinel import SentinelConnectionPool as AsyncSentinelConnectionPool
    from redis.sentinel import SentinelConnectionPool

    pool = client.connection_pool
    if isinstance(pool, SentinelConnectionPool | AsyncSentinelConnectionPool):
        return _of_sentinel(pool)
    return Settings(_kind(pool.connection_class), _passed_on(pool.connection_kwargs))


def _of_cluster(client: Any) -> Settings:
    options = client.get_connection_kwargs()
    is_tls = options.get("ssl") or "SSL" in getattr(options.get("connection_class"), "__name__", "")
    seeds = tuple((node.host, int(node.port)) for node in client.startup_nodes)
    return Settings(
        "tls" if is_tls else "tcp",
        _without_place(options),
        ClusterRoute(seeds, client.nodes_manager.address_remap),
    )


def _of_sentinel(pool: Any) -> Settings:
    if not pool.is_master:
        raise ConfigurationError("the client is for replicas (slave_for), where nothing can be written: use master_for")
    manager = pool.sentinel_manager
    guides = [each.connection_pool for each in manager.sentinels]
    seeds = tuple((each.connection_kwargs["host"], int(each.connection_kwargs["port"])) for each in guides)
    forced = manager._force_master_ip  # noqa: SLF001  # there is no other way to it
    route = SentinelRoute(
        seeds,
        pool.service_name,
        _kind(guides[0].connection_class),
        _without_place(guides[0].connection_kwargs),
        None if forced is None else lambda told: (forced, told[1]),
    )
    return Settings(_kind(pool.connection_class), _without_place(pool.connection_kwargs), route)


def _kind(connection_class: Any) -> Kind:
    from redis import connection, sentinel
    from redis.asyncio import connection as waiting
    from redis.asyncio import sentinel as waiting_sentinel

    kinds: dict[Any, Kind] = {}
    for module in (connection, waiting):
        kinds |= {module.Connection: "tcp", module.SSLConnection: "tls", module.UnixDomainSocketConnection: "unix"}
    for of_master in (sentinel, waiting_sentinel):
        kinds |= {of_master.SentinelManagedConnection: "tcp", of_master.SentinelManagedSSLConnection: "tls"}
    if connection_class not in kinds:
        raise ConfigurationError(
            f"the client connects by {connection_class.__name__}, which streamq cannot copy; pass a URL instead"
        )
    return kinds[connection_class]


def _without_place(options: dict[str, Any]) -> dict[str, Any]:
    """Options for any of several servers. redis-py's own limit on connecting is left out: it is no wish of the user's."""
    found = {k: v for k, v in _passed_on(options).items() if k not in {"host", "port", "path"}}
    if found.get("socket_connect_timeout") == _CLIENTS_CONNECT_TIMEOUT_S:
        del found["socket_connect_timeout"]
    return found


def _passed_on(options: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in options.items() if (k in _PASSED_ON or k.startswith("ssl_")) and v is not None}
