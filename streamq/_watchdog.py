"""Lets an embedded server live no longer than its owner, the process that asked for it.

A script of the standard library only, run by path in an isolated interpreter, because the owner waits for it.
It imports nothing of streamq; `streamq.embedded` imports it, for the other side of what is agreed here.

    python -I -S _watchdog.py OWNER_PID DATA_DIRECTORY RUN_DIRECTORY durable|temporary SERVER

It waits for the lock of the data directory, says so to the owner (`LOCKED` on stdout), starts the server as
its child, and watches: the owner, by its pid and by stdin, which the owner holds open and never writes to;
the server; and a socket in the run directory, on which any process may ask whether the owner is still there.

The lock is held by this process and by the server, through one open file. It is free only when both are gone,
however they went, so that nobody can start a second server on files that the first still writes.
On Linux, the server also ends when this process is killed; elsewhere it then stays, and keeps the lock.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Container
from contextlib import suppress
from pathlib import Path
from stat import S_ISDIR

SERVER_SOCKET = "valkey.sock"
LOCKED = b"L"

_LOCK_FILE = "streamq.lock"
_OWNER_SOCKET = "owner.sock"
_OWNED = b"+"
_REPLY_S = 1.0
_OWNER_POLL_S = 0.25
_LOCK_POLL_S = 0.02
_GRACE_S = 1.0
_PR_SET_PDEATHSIG = 1
_PF_EXITING = 4


# --- what others ask ----------------------------------------------------------------------


def recorded(data: Path) -> tuple[str, Path | None]:
    """Pid and run directory of the server that has, or last had, the data directory; "", None if unknown."""
    try:
        with (data / _LOCK_FILE).open("rb") as file:
            status = os.fstat(file.fileno())
            first, _, path = file.read().partition(b"\n")
    except FileNotFoundError:
        return "", None
    pid, _, inode = first.decode(errors="replace").partition(" ")
    # In a copy of a data directory the text speaks of the original's server.
    run = Path(os.fsdecode(path)) if path and inode == str(status.st_ino) else None
    return pid, run if run == data else private(run, status.st_uid)


def private(run: Path | None, uid: int) -> Path | None:
    """The directory, if it is one of this user or of `uid`.

    Once a server has gone, anybody can make a directory of that name in the machine's temporary directory.
    """
    with suppress(OSError):
        status = os.lstat(run or "")
        if S_ISDIR(status.st_mode) and status.st_uid in {os.geteuid(), uid}:
            return run
    return None


def has_owner(run: Path) -> bool:
    """Whether the server goes on: its watchdog says, now, that the owner is there. A PONG would not tell."""
    return exchange(run / _OWNER_SOCKET, b"") == _OWNED


def exchange(path: Path, request: bytes) -> bytes | None:
    """What a socket replies to a request: empty if nothing comes in time, None if nobody listens."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_REPLY_S)
        try:
            connection.connect(str(path))
            if request:  # sending nothing fails, too, when the other side has answered and closed
                connection.sendall(request)
            return connection.recv(256)
        except (TimeoutError, BlockingIOError):
            return b""
        except OSError:
            return None


# --- the watchdog -------------------------------------------------------------------------


def main(owner: int, data: Path, run: Path, binary: str, *, durable: bool) -> None:
    """Run the server until it ends or the owner is gone, and leave nothing behind but durable data."""
    _set_signals()
    os.umask(0o077)
    lock = os.open(data / _LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if _acquired(lock, owner):
            os.write(1, LOCKED)
            _serve(owner, lock, run, _command(binary, data, run, durable=durable))
    finally:
        if run != data or not durable:
            from shutil import rmtree

            rmtree(run, ignore_errors=True)
            if not durable:
                rmtree(data, ignore_errors=True)


def _command(binary: str, data: Path, run: Path, *, durable: bool) -> list[str]:
    options = {
        "dir": data,
        "unixsocket": run / SERVER_SOCKET,
        "unixsocketperm": "700",
        "port": "0",
        "loglevel": "warning",
        "save": "",
        "appendonly": "yes" if durable else "no",
    }
    return [binary, *(str(word) for name, value in options.items() for word in (f"--{name}", value))]


def _set_signals() -> None:
    # What the owner ignores or blocks is inherited, by the server as well: it could not be asked to end.
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # Ctrl-C and a closed terminal are the owner's affair. It may want to finish its work, with the server.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end)


def _end(_number: int, _frame: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one must not disturb the tidying up
    sys.exit(0)


def _is_orphan(owner: int, readable: Container[int]) -> bool:
    # Stdin ends at once with the owner, but not while a process that the owner has forked holds it open.
    return 0 in readable or os.getppid() != owner


def _acquired(lock: int, owner: int) -> bool:
    """Wait for the lock. False when the owner is gone, or has closed stdin because it waits no longer."""
    while True:
        with suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        readable, _, _ = select.select([0], [], [], _LOCK_POLL_S)
        if _is_orphan(owner, readable):
            return False


def _serve(owner: int, lock: int, run: Path, command: list[str]) -> None:
    address = run / _OWNER_SOCKET
    address.unlink(missing_ok=True)  # of a watchdog that was killed: we have the lock, so none is alive
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(address))
        listener.listen()
        server = _started(lock, command)
        try:
            os.ftruncate(lock, 0)
            os.pwrite(lock, f"{server} {os.fstat(lock).st_ino}\n".encode() + os.fsencode(run), 0)
            _watch(owner, server, listener)
        finally:
            # First nobody can join any more, then the server ends.
            listener.close()
            address.unlink(missing_ok=True)
            _stop(server)


def _started(lock: int, command: list[str]) -> int:
    prctl = None
    if sys.platform == "linux":
        from ctypes import CDLL

        prctl = CDLL(None).prctl
    watchdog = os.getpid()
    server = os.fork()
    if server:
        return server
    try:
        os.setpgid(0, 0)  # to be killed with its own children, which rewrite its files and hold the lock
        if prctl is not None:
            # If this watchdog is killed, the server ends, too. Not by SIGKILL: on a slow disk, that would lose
            # two seconds of acknowledged writes. There is no hurry, for the next server waits for the lock.
            prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() == watchdog:
            os.set_inheritable(lock, True)  # noqa: FBT003 - positional only
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(2, 1)
            os.execv(command[0], command)  # noqa: S606 - no shell wanted
    except OSError as error:
        os.write(2, f"{error}: {command[0]}\n".encode(errors="replace"))
    finally:
        os._exit(127)


def _watch(owner: int, server: int, listener: socket.socket) -> None:
    while True:
        readable, _, _ = select.select([0, listener.fileno()], [], [], _OWNER_POLL_S)
        if _is_orphan(owner, readable) or _has_ended(server):
            return
        if listener.fileno() in readable:
            with suppress(OSError), listener.accept()[0] as asker:
                if not _is_dying(owner):
                    asker.send(_OWNED)


def _is_dying(process: int) -> bool:
    """Whether the process, though still there, has been killed. Known on Linux only; elsewhere it takes a moment."""
    try:
        fields = Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return False
    flags, pending_signals = int(fields[6]), int(fields[28])
    return bool(flags & _PF_EXITING or pending_signals >> (signal.SIGKILL - 1) & 1)


def _has_ended(server: int) -> bool:
    try:
        return os.waitpid(server, os.WNOHANG)[0] == server
    except ChildProcessError:  # it was seen before; the pid may be another's by now
        return True


def _stop(server: int) -> None:
    if _has_ended(server):
        return
    os.kill(server, signal.SIGTERM)
    deadline = time.monotonic() + _GRACE_S
    while not _has_ended(server):
        if time.monotonic() > deadline:
            os.killpg(server, signal.SIGKILL)
            os.waitpid(server, 0)
            return
        time.sleep(0.01)


if __name__ == "__main__":
    _owner, _data, _run, _kind, _binary = sys.argv[1:]
    main(int(_owner), Path(_data), Path(_run), _binary, durable=_kind == "durable")
