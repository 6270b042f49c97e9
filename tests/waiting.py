"""Waiting for what another thread, process or server does.

``STREAMQ_TEST_PATIENCE`` (a factor, 1 without it) makes every limit longer, for machines that run several tests at once: there
a limit that fails says that a test starved more often than that something is slow.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, Final

PATIENCE: Final = float(os.environ.get("STREAMQ_TEST_PATIENCE", "1"))


def until(condition: Callable[[], Any], *, timeout: float = 30.0) -> Any:
    """Wait until `condition` gives something true, and return that; at most `timeout` seconds times the patience."""
    deadline = time.monotonic() + timeout * PATIENCE
    while not (value := condition()):
        assert time.monotonic() < deadline, "it did not come to that in time"
        time.sleep(0.01)
    return value
