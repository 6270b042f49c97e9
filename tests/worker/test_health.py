"""Whether a worker is of use, and how it says so."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time

import msgspec
import pytest

from streamq import ConfigurationError, Health
from streamq.worker import health as module
from streamq.worker.health import HealthServer, Watch

WELL = Health(healthy=True, state="running", problems=[], consumer="host-1", streams=["orders"], running=3)
ILL = msgspec.structs.replace(WELL, healthy=False, problems=["orders: Connection refused"], failures=12)


@pytest.fixture
def serving():
    """Start servers, and close them."""
    servers = []

    def serve(health, host="127.0.0.1", port=0):
        server = HealthServer(host, port, health)
        server.start()
        servers.append(server)
        return server

    yield serve
    for server in servers:
        server.close()


def ask(server, path="/", method="GET", host="127.0.0.1"):
    connection = http.client.HTTPConnection(host, server.port, timeout=5)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read(), dict(answer.getheaders())
    finally:
        connection.close()


# --- the server ---------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/health", "/healthz", "/healthz?probe=1"])
def test_well_is_200_and_ill_is_503_with_the_same_body(serving, path):
    now = [WELL]
    server = serving(lambda: now[0])
    status, body, headers = ask(server, path)
    assert (status, headers["Content-Type"], headers["Server"]) == (200, "application/json", "streamq")
    assert json.loads(body) == {
        "healthy": True,
        "state": "running",
        "problems": [],
        "consumer": "host-1",
        "streams": ["orders"],
        "running": 3,
        "waiting": 0,
        "stuck": 0,
        "failures": 0,
    }
    now[0] = ILL
    status, body, _ = ask(server, path)
    assert (status, json.loads(body)["problems"]) == (503, ["orders: Connection refused"])


@pytest.mark.parametrize(("health", "status"), [(WELL, 200), (ILL, 503)])
def test_head_has_the_headers_alone(serving, health, status):
    server = serving(lambda: health)
    found, body, headers = ask(server, "/healthz", "HEAD")
    assert (found, body) == (status, b"")
    assert int(headers["Content-Length"]) == len(ask(server, "/healthz")[1])


def test_other_paths_and_methods(serving):
    server = serving(lambda: WELL)
    assert ask(server, "/metrics")[0] == 404
    assert ask(server, "/health/")[0] == 404
    assert ask(server, "/health", "POST")[0] == 501


def test_a_port_in_use_is_told_at_once(serving):
    taken = serving(lambda: WELL).port
    with pytest.raises(ConfigurationError, match=rf"cannot listen at 127\.0\.0\.1:{taken}"):
        HealthServer("127.0.0.1", taken, lambda: WELL).start()


@pytest.mark.parametrize(("host", "port"), [("256.1.1.1", 0), ("192.0.2.1", 0), ("a..b", 0), ("127.0.0.1", 70_000)])
def test_an_address_that_cannot_be_listened_at(host, port):
    with pytest.raises(ConfigurationError, match="cannot listen at"):
        HealthServer(host, port, lambda: WELL).start()


def test_closed_it_gives_the_port_back_and_may_be_closed_again(serving):
    server = serving(lambda: WELL)
    port = server.port
    ask(server)
    server.close()
    server.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)
    assert ask(serving(lambda: WELL, port=port))[0] == 200


def test_any_address_and_ipv6(serving):
    assert ask(serving(lambda: WELL, host="0.0.0.0"))[0] == 200
    assert ask(serving(lambda: WELL, host=""))[0] == 200
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return  # a machine without IPv6
    assert ask(serving(lambda: WELL, host="::1"), host="::1")[0] == 200


def drip(connection, seconds=5):
    """Send header after header, slowly."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        connection.sendall(b"X: y\r\n")
        time.sleep(0.02)


def test_a_slow_client_is_cut_off_and_holds_up_nobody(serving, monkeypatch):
    monkeypatch.setattr(module, "REQUEST_S", 0.3)
    server = serving(lambda: WELL)
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as slow:
        slow.sendall(b"GET / HTTP/1.0\r\n")
        assert ask(server)[0] == 200
        with pytest.raises(OSError, match=r"reset|Broken pipe"):
            drip(slow)


def test_only_so_many_at_once(serving, monkeypatch):
    monkeypatch.setattr(module, "MAX_REQUESTS", 2)
    server = serving(lambda: WELL)
    address = ("127.0.0.1", server.port)
    with socket.create_connection(address, timeout=5), socket.create_connection(address, timeout=5):
        deadline = time.monotonic() + 5
        while True:  # the two may not have been accepted yet
            try:
                ask(server)
            except (OSError, http.client.HTTPException):
                break
            assert time.monotonic() < deadline
    deadline = time.monotonic() + 5
    while True:  # they are gone: there is room again
        try:
            assert ask(server)[0] == 200
            break
        except (OSError, http.client.HTTPException):
            assert time.monotonic() < deadline


def test_a_fault_of_ours_is_logged_and_the_next_request_is_answered(serving, caplog, capfd):
    now = []
    server = serving(lambda: now[0])
    with pytest.raises(http.client.HTTPException):
        ask(server)
    assert [record.getMessage() for record in caplog.records] == ["health could not be told: error=IndexError"]
    now.append(WELL)
    assert ask(server)[0] == 200
    assert capfd.readouterr() == ("", "")


def test_it_holds_up_no_exit(serving):
    server = serving(lambda: WELL)
    ask(server)
    [thread] = [one for one in threading.enumerate() if one.name == "streamq-health" and one.is_alive()]
    assert thread.daemon


# --- what counts --------------------------------------------------------------------------


@pytest.mark.covers("R7")
def test_ten_failures_in_a_row_are_a_problem_until_the_first_success():
    watch = Watch()
    assert [watch.failed("orders", f"refused {n}") for n in range(1, 13)] == [False] * 9 + [True] + [False] * 2
    assert (watch.healthy, watch.problems, watch.failures) == (False, ["refused 12"], 12)
    assert watch.succeeded("orders")
    assert (watch.healthy, watch.problems, watch.failures) == (True, [], 0)
    assert not watch.succeeded("orders")


def test_a_success_begins_the_count_anew():
    watch = Watch(limit=3)
    for _ in range(5):
        assert [watch.failed("orders", "x"), watch.failed("orders", "x"), watch.succeeded("orders")] == [False] * 3
    assert watch.healthy


def test_the_whole_is_healthy_when_every_source_is():
    watch = Watch(limit=2)
    assert [watch.failed("a", "a 1"), watch.failed("b", "b 1"), watch.failed("b", "b 2")] == [False, False, True]
    assert not watch.failed("a", "a 2")  # ill already
    assert (watch.problems, watch.failures) == (["b 2", "a 2"], 2)
    assert not watch.succeeded("b")
    assert watch.problems == ["a 2"]
    assert watch.succeeded("a")
