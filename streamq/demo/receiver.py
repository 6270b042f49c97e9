"""A webhook receiver on the loopback interface that misbehaves as receivers do, the same way in every run."""

from __future__ import annotations

import socket
import threading
import time
import zlib
from collections import Counter
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

USUAL_S = 0.03
SLOW_S = 0.4

_ANSWERS = {None: (204, None), "slow": (204, None), "500": (500, None), "503": (503, 1), "busy": (503, 3_600)}
"""Status, and seconds of Retry-After."""

_FAULTS = ("500", "503", "reset", "slow")
_ONE_IN = 5
_TWICE_ONE_IN = 4


def faults_of(key: str) -> tuple[str, ...]:
    """What the first calls of a delivery meet: one delivery in five meets a fault, some meet two; then all is well."""
    chance = zlib.crc32(key.encode())
    if chance % _ONE_IN:
        return ()
    chance //= _ONE_IN
    first = _FAULTS[chance % len(_FAULTS)]
    return (first,) if chance // len(_FAULTS) % _TWICE_ONE_IN else (first, "500")


class Receiver:
    """Receives POSTs and counts them by their Idempotency-Key. A context manager; listens on a free port.

    Args:
        busy: Deliveries that are put off for an hour, until `recover` is called.
    """

    def __init__(self, busy: Iterable[str] = ()) -> None:
        self._busy = set(busy)
        self.calls: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.receiver = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def url(self) -> str:
        """Where to POST to."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/hook"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def recover(self, key: str) -> None:
        """Take a delivery that was put off from now on."""
        with self._lock:
            self._busy.discard(key)

    def fault_for(self, key: str) -> str | None:
        """Count a call; how it shall fail, if it shall."""
        with self._lock:
            self.calls[key] += 1
            if key in self._busy:
                fault = "busy"
            elif self.calls[key] <= len(faults_of(key)):
                fault = faults_of(key)[self.calls[key] - 1]
            else:
                return None
            self.faults[fault] += 1
            return fault


class _Server(ThreadingHTTPServer):
    receiver: Receiver
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A caller that was killed in the middle of its request is part of the show."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        fault = self.server.receiver.fault_for(self.headers.get("Idempotency-Key", ""))
        time.sleep(SLOW_S if fault == "slow" else USUAL_S)
        if fault == "reset":
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        status, wait_s = _ANSWERS[fault]
        self.send_response(status)
        if wait_s is not None:
            self.send_header("Retry-After", str(wait_s))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the name is the base class's
        """The demo has its own display."""
