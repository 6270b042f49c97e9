"""A webhook receiver on the loopback interface that misbehaves as receivers do, the same way in every run."""

from __future__ import annotations

import socket
import threading
import time
import zlib
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

USUAL_S = 0.03
SLOW_S = 0.4

_FAULTS = ("500", "500", "reset", "slow")
_ONE_IN = 5
"""One delivery in five meets a fault, at its first call only: a receiver that recovers."""


class Receiver:
    """Receives POSTs and counts them by their Idempotency-Key. A context manager; listens on a free port."""

    def __init__(self) -> None:
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

    def fault_for(self, key: str) -> str | None:
        """Count a call; how it shall fail, if it shall."""
        with self._lock:
            self.calls[key] += 1
            first = self.calls[key] == 1
            chance = zlib.crc32(key.encode())
            if not first or chance % _ONE_IN:
                return None
            fault = _FAULTS[chance // _ONE_IN % len(_FAULTS)]
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
        self.send_response(500 if fault == "500" else 204)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the name is the base class's
        """The demo has its own display."""
