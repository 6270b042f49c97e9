"""From `add` to the handler's first step, where nothing else is to do; the same by redis-py; and a round trip."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final, TypeAlias

from streamq.bench.rounds import Limit
from streamq.errors import ServerError

Listening: TypeAlias = Callable[[Callable[[], None]], AbstractContextManager[Callable[[], object]]]
"""Has somebody wait for jobs, who calls what it is given at each; gives what adds one."""

SAMPLES: Final = 200
"""Most of one round."""

_PATIENCE_S: Final = 30.0

_PAUSE_S: Final = 0.002
"""Between two samples: what was heard is settled, and they wait again."""


def starts(listening: Listening, limit: Limit) -> list[float]:
    """Seconds from adding to hearing, of at least one sample. The first one, which waits for the start, is left out.

    Raises:
        ServerError: What was added is not heard.
    """
    heard_at = 0.0
    is_heard = threading.Event()

    def heard() -> None:
        nonlocal heard_at
        heard_at = time.perf_counter()
        is_heard.set()

    with listening(heard) as add:

        def sample() -> float:
            is_heard.clear()
            began = time.perf_counter()
            add()
            if not is_heard.wait(_PATIENCE_S):
                raise ServerError("a job that was added is not read: does another program read the stream?", code="")
            return heard_at - began

        sample()
        return _several(sample, limit, pause_s=_PAUSE_S)


def round_trips(ping: Callable[[], object], limit: Limit) -> list[float]:
    """Seconds of each."""

    def sample() -> float:
        began = time.perf_counter()
        ping()
        return time.perf_counter() - began

    return _several(sample, limit, pause_s=0.0)


def _several(sample: Callable[[], float], limit: Limit, *, pause_s: float) -> list[float]:
    found: list[float] = []
    until = time.perf_counter() + limit.seconds
    while len(found) < min(limit.jobs, SAMPLES) and (not found or time.perf_counter() < until):
        time.sleep(pause_s)
        found.append(sample())
    return found
