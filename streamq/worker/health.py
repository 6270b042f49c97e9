"""How a worker is: what counts as healthy, and an HTTP server that says so."""

from __future__ import annotations

import contextlib
import logging
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, TypeAlias

import msgspec

from streamq.errors import ConfigurationError
from streamq.worker import log

State: TypeAlias = Literal["new", "starting", "running", "paused", "stopping", "stopped"]

UNHEALTHY_AFTER = 10
"""Failures in a row that make a worker unhealthy: with its pauses between tries, some seven seconds of an outage."""

REQUEST_S = 5.0
"""Longest time that a client gets for one request."""

MAX_REQUESTS = 16
"""Most requests at once; more are turned away, for each has a thread."""

PATHS = ("/", "/health", "/healthz")

_log = logging.getLogger("streamq.worker")


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """A worker at one moment.

    Attributes:
        healthy: Whether it is of use: false after ten failures in a row to reach a stream's server, until it is reached.
        state: ``new`` before it runs, ``starting`` until its streams are opened, then ``running`` or ``paused``,
            ``stopping`` while its handlers end, ``stopped``.
        problems: What it is unhealthy for, one line each.
        consumer: Its consumer name on the server.
        streams: Names of its streams.
        running: Handlers at work.
        waiting: Jobs that it holds and has not started.
        stuck: Handlers that run past their timeout and cannot be stopped; each takes a slot.
        failures: Failures in a row, of the stream that has the most.
    """

    healthy: bool
    state: State
    problems: list[str]
    consumer: str
    streams: list[str]
    running: int = 0
    waiting: int = 0
    stuck: int = 0
    failures: int = 0


class Watch:
    """Counts failures in a row, source by source, and tells when the whole becomes unhealthy and healthy again.

    Args:
        limit: Failures in a row that make a source a problem.
    """

    def __init__(self, limit: int = UNHEALTHY_AFTER) -> None:
        self._limit = limit
        self._failures: dict[str, int] = {}
        self._problems: dict[str, str] = {}

    @property
    def healthy(self) -> bool:
        """Whether no source is a problem."""
        return not self._problems

    @property
    def problems(self) -> list[str]:
        """The last problem of each source that has failed too often."""
        return list(self._problems.values())

    @property
    def failures(self) -> int:
        """Failures in a row, of the source that has the most."""
        return max(list(self._failures.values()), default=0)

    def failed(self, source: str, problem: str) -> bool:
        """Count a failure. True if it has made the whole unhealthy."""
        was_healthy = self.healthy
        self._failures[source] = self._failures.get(source, 0) + 1
        if self._failures[source] >= self._limit:
            self._problems[source] = problem
        return was_healthy and not self.healthy

    def succeeded(self, source: str) -> bool:
        """Forget the failures of a source. True if that has made the whole healthy again."""
        if self._failures.pop(source, None) is None:
            return False
        return self._problems.pop(source, None) is not None and self.healthy


class HealthServer:
    """Answers GET and HEAD on ``/``, ``/health`` and ``/healthz`` from a thread: 200 if healthy, else 503; the body is JSON.

    Being a thread, it answers while the event loop is blocked.

    Args:
        host: Address to listen at.
        port: Port to listen at; 0 for any that is free.
        health: Asked for each answer, in a thread of the server.
    """

    def __init__(self, host: str, port: int, health: Callable[[], Health]) -> None:
        self._host = host
        self._port = port
        self._health = health
        self._server: _Server | None = None

    @property
    def port(self) -> int:
        """The port it listens at, once it is started."""
        return self._port if self._server is None else int(self._server.server_address[1])

    def start(self) -> None:
        """Listen, and begin to answer.

        Raises:
            ConfigurationError: The port is in use, or the address cannot be listened at.
        """
        try:
            self._server = _Server(self._host, self._port, self._health)
        except (OSError, OverflowError, ValueError) as error:
            raise ConfigurationError(f"health: cannot listen at {self._host}:{self._port}: {error}") from error
        threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.2}, name="streamq-health", daemon=True
        ).start()

    def close(self) -> None:
        """Stop listening. Waits a fifth of a second at most. May be called more than once."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None


def address_of(value: int | str, what: str) -> tuple[str, int]:
    """Host and port of an address: a port of 127.0.0.1, or ``"host:port"``. `what` names it in the error.

    Raises:
        ConfigurationError: It is neither.
    """
    host, _, port = str(value).rpartition(":")
    if isinstance(value, bool) or not port.isdigit() or int(port) > 65_535:  # noqa: PLR2004  # the last port
        raise ConfigurationError(f"{what} takes a port, or 'host:port', not {value!r}")
    return host or "127.0.0.1", int(port)


class _Server(ThreadingHTTPServer):
    """A server whose requests are bounded in number and in time."""

    def __init__(self, host: str, port: int, health: Callable[[], Health]) -> None:
        self.health = health
        self._deadlines: dict[Any, float] = {}
        self.address_family = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[
            0
        ][0]
        super().__init__((host, port), _Request)

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)  # HTTPServer's would ask the DNS for a name that nobody needs

    def verify_request(self, request: Any, client_address: Any) -> bool:  # noqa: ARG002  # as it is called
        if len(self._deadlines) >= MAX_REQUESTS:
            return False
        self._deadlines[request] = time.monotonic() + REQUEST_S
        return True

    def service_actions(self) -> None:
        now = time.monotonic()
        for request, deadline in list(self._deadlines.items()):
            if now > deadline:
                with contextlib.suppress(OSError):  # it has ended by itself
                    request.shutdown(socket.SHUT_RDWR)  # ends the read or the write that its thread waits in

    def shutdown_request(self, request: Any) -> None:
        self._deadlines.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        error = sys.exception()
        if not isinstance(error, OSError):  # else the client's trouble
            log.event(_log, logging.ERROR, "health could not be told", error=type(error).__name__)


class _Request(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        if self.path.partition("?")[0] in PATHS:
            health = self.server.health()
            self._answer(HTTPStatus.OK if health.healthy else HTTPStatus.SERVICE_UNAVAILABLE, health)
        else:
            self._answer(HTTPStatus.NOT_FOUND, {"error": "not found"})

    do_HEAD = do_GET  # noqa: N815  # names of http.server

    def _answer(self, status: HTTPStatus, value: Any) -> None:
        body = msgspec.json.encode(value)
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def version_string(self) -> str:
        return "streamq"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass  # a probe every few seconds is no news
