"""A primary with replicas and the sentinels that watch them, as local processes. It knows no pytest.

Sentinels learn of each other by messages every two seconds. These are told in their configuration who is there, and so could
agree on a failover from the start.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self

import redis
import servers
from redis.backoff import NoBackoff
from redis.retry import Retry
from waiting import PATIENCE

SERVICE: Final = "mymaster"

# How often sentinels look and tell, and from which gap in their own time on they trust it no more, for which time: a busy
# machine makes such gaps, and 30 s without failover are more than tests wait for.
_HASTE: Final = {"info-period": 500, "publish-period": 500, "tilt-trigger": 20_000, "tilt-period": 1_000}

_ANSWER_S: Final = 5.0  # within which a server that is not frozen answers


class Sentinel(servers.Server):
    """A sentinel: the same program in another mode, which wants a file to keep what it knows in.

    From 7.0 on it can be hastened. One of Redis 6.2 sees a returned server only at its next look, after up to 10 s.
    """

    def __init__(self, backend: servers.Backend) -> None:
        super().__init__(backend)
        self.run_id = secrets.token_hex(20)
        self._file = Path(self._home.name, "sentinel.conf")

    def configure(self, lines: Sequence[str]) -> None:
        """Write its configuration; it adds to that itself."""
        self._file.write_text("".join(f"{line}\n" for line in lines))

    def start(self) -> Self:
        super().start()
        with suppress(redis.ResponseError):
            call(self, "SENTINEL", "DEBUG", *(word for pair in _HASTE.items() for word in pair))
        return self

    def reserve(self) -> None:
        """Choose its port now: the others must be told before it starts."""
        self.port = self.port or self._choose_port()

    def _command(self) -> list[str]:
        return [
            *(str(self.backend.binary), str(self._file), "--sentinel"),
            *("--port", str(self.port), "--bind", "127.0.0.1"),
            *("--unixsocket", str(self.unix_path), "--unixsocketperm", "700"),
            *("--dir", str(self.directory), "--daemonize", "no"),
        ]


class Sentinels(servers.Assembly):
    """A primary, its replicas, and sentinels of which two must agree that it is down.

    Servers keep nothing on disk: a primary that is killed and started before a replica took over comes back empty.

    Attributes:
        name: The backend of its servers, such as ``valkey-9``.
        version: Their version.
        servers: All servers, the one that began as primary first.
        sentinels: All sentinels.
    """

    UNANSWERED = (redis.RedisError, OSError)
    PATIENCE_S = 60.0

    def __init__(
        self,
        backend: servers.Backend,
        *,
        replicas: int = 2,
        sentinels: int = 3,
        down_after_s: float = 1.0,
        args: Sequence[str] = (),
    ) -> None:
        self.backend = backend
        self.name = backend.name
        self.version = backend.version
        self._down_after_ms = round(down_after_s * 1000)
        options = ("--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1", *args)
        self.servers = tuple(servers.Server(backend, args=options) for _ in range(1 + replicas))
        self.sentinels = tuple(Sentinel(backend) for _ in range(sentinels))

    # -- life --

    @property
    def members(self) -> Sequence[servers.Server]:
        return (*self.sentinels, *self.servers)

    def start(self) -> Self:
        """Start all, and wait until replicas follow and sentinels agree.

        Raises:
            ServerUnavailableError: It did not come to that; the message ends with the logs.
        """
        with ThreadPoolExecutor(max(len(self.servers), len(self.sentinels))) as pool:
            list(pool.map(servers.Server.start, self.servers))
            first, *replicas = self.servers
            for replica in replicas:
                call(replica, "REPLICAOF", "127.0.0.1", first.port)
            self.wait(lambda: all(_follows(replica, first) for replica in replicas), "the replicas do not follow")
            for sentinel in self.sentinels:
                sentinel.reserve()
            for sentinel in self.sentinels:
                sentinel.configure(self._configuration(sentinel))
            list(pool.map(Sentinel.start, self.sentinels))
        self.wait_until_ok()
        return self

    def __repr__(self) -> str:
        ports = ", ".join(str(server.port) for server in self.servers)
        return f"<Sentinels of {self.name} ({self.version}) on ports {ports}>"

    # -- looking --

    @property
    def url(self) -> str:
        """URL of the service, without a database."""
        return self.url_of(*self.sentinels)

    @staticmethod
    def url_of(*sentinels: Sentinel) -> str:
        """URL with these sentinels only."""
        return "redis+sentinel://" + ",".join(f"127.0.0.1:{one.port}" for one in sentinels) + f"/{SERVICE}"

    @property
    def primary(self) -> servers.Server:
        """The server that most sentinels name."""
        named: Counter[int] = Counter()
        for sentinel in self.sentinels:
            with suppress(redis.RedisError, OSError):
                _, port = call(sentinel, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)
                named[int(port)] += 1
        if not named:
            raise servers.ServerUnavailableError(f"no sentinel answers\n{self.tail()}")
        [(port, _)] = named.most_common(1)
        return next(server for server in self.servers if server.port == port)

    @property
    def replicas(self) -> list[servers.Server]:
        """The other servers, running or not."""
        primary = self.primary
        return [server for server in self.servers if server is not primary]

    # -- changing --

    def wait_until_ok(self, timeout: float = PATIENCE_S) -> None:
        """Wait until all sentinels name one primary that is one, and the replicas that run follow it."""
        self.wait(self._is_ok, "the sentinels did not agree", timeout)

    def fail_over(self, *, timeout: float = PATIENCE_S) -> None:
        """Let the sentinels put a replica into the primary's place, and wait until that has happened."""
        before = self.primary
        sentinel = next(one for one in self.sentinels if one.running)
        deadline = time.monotonic() + timeout * PATIENCE
        while self.primary is before:
            if time.monotonic() > deadline:
                raise servers.ServerUnavailableError(f"no failover within {timeout * PATIENCE} s\n{self.tail()}")
            with suppress(redis.ResponseError):  # one is under way, or it has not yet heard of a good replica
                call(sentinel, "SENTINEL", "FAILOVER", SERVICE)
            time.sleep(0.1)
        self.wait_until_ok(timeout)

    # -- details --

    def _configuration(self, sentinel: Sentinel) -> list[str]:
        first, *replicas = self.servers
        return [
            f"sentinel myid {sentinel.run_id}",
            f"sentinel monitor {SERVICE} 127.0.0.1 {first.port} 2",
            f"sentinel down-after-milliseconds {SERVICE} {self._down_after_ms}",
            # Also the time after which a failover that came to nothing is tried again.
            f"sentinel failover-timeout {SERVICE} 3000",
            f"sentinel parallel-syncs {SERVICE} {len(replicas)}",
            *(f"sentinel known-replica {SERVICE} 127.0.0.1 {replica.port}" for replica in replicas),
            *(
                f"sentinel known-sentinel {SERVICE} 127.0.0.1 {other.port} {other.run_id}"
                for other in self.sentinels
                if other is not sentinel
            ),
        ]

    def _is_ok(self) -> bool:
        primary = self.primary
        running = [one for one in self.sentinels if one.running]
        for sentinel in running:
            flat = call(sentinel, "SENTINEL", "MASTER", SERVICE)
            seen = dict(zip(flat[::2], flat[1::2], strict=True))
            if (int(seen[b"port"]), seen[b"flags"]) != (primary.port, b"master"):
                return False
            if int(seen[b"num-other-sentinels"]) != len(self.sentinels) - 1:
                return False
        if call(primary, "ROLE")[0] != b"master":
            return False
        return all(_follows(server, primary) for server in self.servers if server.running and server is not primary)


def call(server: servers.Server, *args: Any) -> Any:
    """Send one command over a connection of its own; return the reply as it came."""
    connection = redis.Connection(
        host="127.0.0.1", port=server.port, protocol=2, socket_timeout=_ANSWER_S, retry=Retry(NoBackoff(), 0)
    )
    try:
        connection.send_command(*args)
        return connection.read_response()
    finally:
        connection.disconnect()


def _follows(replica: servers.Server, primary: servers.Server) -> bool:
    role, *more = call(replica, "ROLE")
    return role == b"slave" and more[1] == primary.port and more[2] == b"connected"
