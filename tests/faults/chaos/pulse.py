"""Feels the server's pulse: a machine with too much to do makes it stand still, and then leases run out by nobody's fault.

So they do when the clock is set: the server counts idle time by the time of day.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress

import redis
from faults.chaos.load import client
from faults.chaos.monkey import Blow

SLOW_S = 0.25
"""What counts as standing still, as of workers."""


class Pulse:
    """Asks the server for an answer, again and again, in a thread of its own.

    Attributes:
        stalls: When it took long to answer, or its clock was set. A server that is down is none: that is the monkey's.
    """

    def __init__(self, url: str) -> None:
        self.stalls: list[Blow] = []
        self._raw = client(url)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pulse", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, and close the connection."""
        self._stop.set()
        self._thread.join()
        self._raw.close()

    def _run(self) -> None:
        ahead = None
        while not self._stop.wait(0.02):
            begin = time.monotonic()
            with suppress(redis.RedisError):
                seconds, micros = self._raw.time()
                end = time.monotonic()
                before, ahead = ahead, seconds + micros / 1e6 - (begin + end) / 2
                if end - begin > SLOW_S or (before is not None and abs(ahead - before) > SLOW_S):
                    self.stalls.append(Blow("stall", begin, end))
