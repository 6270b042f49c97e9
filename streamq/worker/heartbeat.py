"""Renews the leases of everything this process holds, from a thread and a connection of its own.

So a handler that blocks the event loop, or the loop's own trouble, does not cost a healthy job its lease.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TypeVar

from streamq._drivers.blocking import BlockingDriver
from streamq._ops import lease
from streamq._scripts import Fence, Held
from streamq._spec import Spec
from streamq.errors import StreamqError
from streamq.worker import log
from streamq.worker.roles import pause_s

T = TypeVar("T")

RENEWALS_PER_LEASE = 3
"""One may be lost, and one late, before the lease runs out."""

_log = logging.getLogger("streamq.worker")


class Heartbeat:
    """A thread that renews leases until it is stopped.

    Args:
        spec: The stream.
        consumer: Whose deliveries they are.
        driver: A connection for this thread alone.
        held: What to renew, asked at each beat; called in the thread.
        lost: Told what was found lost, with the count it was asked for; called in the thread.
    """

    def __init__(
        self,
        spec: Spec[T],
        consumer: str,
        driver: BlockingDriver,
        *,
        held: Callable[[], list[Held]],
        lost: Callable[[Held, Fence], None],
    ) -> None:
        self._spec = spec
        self._consumer = consumer
        self._driver = driver
        self._held = held
        self._lost = lost
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="streamq-heartbeat", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, after a beat that may be under way. Does not wait."""
        self._stop.set()

    @property
    def is_running(self) -> bool:
        """Whether the thread still runs."""
        return self._thread.is_alive()

    def _run(self) -> None:
        usual = pause = self._spec.options.lease_ms / 1000 / RENEWALS_PER_LEASE
        failures = 0
        while not self._stop.wait(pause):
            pause = usual
            try:
                self._beat()
                failures = 0
            except StreamqError as error:
                # Not the jobs' fault: they go on, and the fence protects their end. But it is tried again soon, so that the
                # leases are renewed before others, who could not reach the server either, see that they have run out.
                failures += 1
                pause = min(pause_s(failures), usual)
                log.event(_log, logging.WARNING, "leases were not renewed", stream=self._spec.keys.name, error=error)
            except Exception:  # noqa: BLE001  # a heartbeat must not die of a mistake of ours
                _log.exception("heartbeat of stream %s failed; going on", self._spec.keys.name)
        self._driver.close()

    def _beat(self) -> None:
        held = self._held()
        if not held:
            return
        found = self._driver.run(lease.renew(self._spec, self._consumer, held))
        for item in held:
            if found[item.entry_id] is not Fence.MINE:
                self._lost(item, found[item.entry_id])
