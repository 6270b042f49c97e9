"""How long to wait before the next try. Pure arithmetic: chance comes in as an argument."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from streamq.errors import ConfigurationError

MAX_DELAY_MS = 365 * 86_400_000
"""One year: longer delays are mistakes of unit more often than they are meant."""

MAX_DELAYS = 100
"""Most explicit delays: they may travel with every job."""

_UNKNOWN_MS = 60_000
"""A delay whose function has failed: its job waits a minute instead of being lost, or tried without end."""

_log = logging.getLogger("streamq")


def to_ms(value: float | timedelta, what: str, *, least_ms: int = 0, most_ms: int = MAX_DELAY_MS) -> int:
    """Turn seconds, or a timedelta, into whole milliseconds.

    Args:
        value: Seconds as int or float, or a timedelta.
        what: Name of the setting, for the error.
        least_ms: Smallest value allowed.
        most_ms: Largest value allowed; the default is a year.

    Raises:
        ConfigurationError: `value` is no number, not finite, or outside the bounds.
    """
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigurationError(f"{what} must be seconds or a timedelta, not {type(value).__name__}")
    if isinstance(value, int):
        value = min(max(value, -most_ms - 1), most_ms + 1)  # a huge int has no float
    if not math.isfinite(value) or not least_ms <= value * 1000 <= most_ms:
        raise ConfigurationError(
            f"{what} must be from {least_ms / 1000:.12g} to {most_ms / 1000:.12g} seconds, not {value!r}"
        )
    return round(value * 1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Delays between attempts, and how many retries there are.

    Make one with `exponential`, `constant`, `schedule` or `custom`.

    Attributes:
        delays_ms: Explicit delays, one a retry, the last one repeated.
        factor: Growth of the last explicit delay from there on; 1 keeps it.
        cap_ms: No delay is longer.
        limit: Retries allowed after the first attempt; None for no limit.
        jitter: Share of each delay, 0 to 1, by which it is spread at random to both sides.
        compute: Gives each delay in seconds, instead of `delays_ms`, for the number of the attempt that failed.
    """

    delays_ms: tuple[int, ...]
    factor: float = 1.0
    cap_ms: int = MAX_DELAY_MS
    limit: int | None = None
    jitter: float = 0.0
    compute: Callable[[int], float | timedelta] | None = None

    def __post_init__(self) -> None:
        if self.compute is not None and not callable(self.compute):
            raise ConfigurationError(f"a custom backoff needs a function of the attempt, not {self.compute!r:.80}")
        if self.compute is None and not 1 <= len(self.delays_ms) <= MAX_DELAYS:
            raise ConfigurationError(f"a backoff needs 1 to {MAX_DELAYS} delays, not {len(self.delays_ms)}")
        if self.limit is not None and (
            isinstance(self.limit, bool) or not isinstance(self.limit, int) or self.limit < 0
        ):
            raise ConfigurationError(f"limit must be a whole number of retries >= 0, or None, not {self.limit!r}")
        if not 0 <= self.jitter <= 1:
            raise ConfigurationError(f"jitter must be from 0 to 1, not {self.jitter!r}")
        if not (math.isfinite(self.factor) and self.factor >= 1):
            raise ConfigurationError(f"factor must be a number >= 1, not {self.factor!r}")

    @classmethod
    def exponential(
        cls,
        base: float | timedelta = 1,
        *,
        factor: float = 2,
        cap: float | timedelta = 900,
        limit: int | None = 10,
        jitter: float = 0.2,
    ) -> Backoff:
        """`base`, then `factor` times as long after every attempt, never longer than `cap`.

        Args:
            base: First delay, in seconds or as timedelta.
            factor: Growth, >= 1.
            cap: Longest delay, in seconds or as timedelta.
            limit: Retries after the first attempt; None for no limit.
            jitter: Spread of each delay, 0 to 1; 0.2 keeps a herd of failed jobs from coming back in one instant.
        """
        return cls(
            delays_ms=(to_ms(base, "base"),), factor=factor, cap_ms=to_ms(cap, "cap"), limit=limit, jitter=jitter
        )

    @classmethod
    def constant(cls, delay: float | timedelta, *, limit: int | None = 10, jitter: float = 0.0) -> Backoff:
        """The same `delay`, in seconds or as timedelta, before every retry."""
        return cls(delays_ms=(to_ms(delay, "delay"),), limit=limit, jitter=jitter)

    @classmethod
    def schedule(
        cls, delays: list[float | timedelta] | tuple[float | timedelta, ...], *, jitter: float = 0.0
    ) -> Backoff:
        """One retry after each of `delays`, in seconds or as timedelta; then no more."""
        return cls(delays_ms=tuple(to_ms(d, "delay") for d in delays), limit=len(delays), jitter=jitter)

    @classmethod
    def custom(
        cls,
        delay: Callable[[int], float | timedelta],
        *,
        cap: float | timedelta = 86_400,
        limit: int | None = 10,
        jitter: float = 0.0,
    ) -> Backoff:
        """Whatever `delay` says. For a stream only: a function cannot travel with a job.

        Args:
            delay: Called with the number of the attempt that failed (the first is 1); gives seconds or a timedelta. When it
                raises, or gives no such time, that is logged and the job waits a minute.
            cap: Longest delay, in seconds or as timedelta.
            limit: Retries after the first attempt; None for no limit.
            jitter: Spread of each delay, 0 to 1.
        """
        return cls(delays_ms=(), cap_ms=to_ms(cap, "cap"), limit=limit, jitter=jitter, compute=delay)

    def exhausted(self, attempt: int) -> bool:
        """True when attempt number `attempt` (the first is 1) was the last one allowed."""
        return self.limit is not None and attempt > self.limit

    def delay_ms(self, attempt: int, chance: float = 0.5) -> int:
        """Milliseconds to wait after attempt number `attempt` (the first is 1; less counts as 1).

        Args:
            attempt: Attempts made so far. Any size: the power is never computed beyond the cap.
            chance: Random number from 0 to 1 for the jitter; 0.5 is the middle, so no jitter.
        """
        attempt = max(attempt, 1)
        over = attempt - len(self.delays_ms)
        if self.compute is not None:
            delay: float = self._computed(self.compute, attempt)
        elif over <= 0:
            delay = self.delays_ms[attempt - 1]
        else:
            delay = self._grown(self.delays_ms[-1], over)
        delay = min(delay, self.cap_ms)
        return round(min(max(delay * (1 + self.jitter * (2 * chance - 1)), 0), self.cap_ms))

    def _computed(self, compute: Callable[[int], float | timedelta], attempt: int) -> int:
        try:
            return to_ms(compute(attempt), "delay")
        except Exception as error:  # noqa: BLE001  # a user's function may raise anything, and its job must not be lost
            _log.error("custom backoff failed for attempt %d: %s: %s", attempt, type(error).__name__, error)
            return _UNKNOWN_MS

    def _grown(self, last_ms: int, times: int) -> float:
        if last_ms == 0 or self.factor == 1:
            return last_ms
        if times * math.log(self.factor) >= math.log(max(self.cap_ms, 1) / last_ms):
            return self.cap_ms  # before the power is taken: a float overflows at attempt 1,024
        return last_ms * self.factor**times


RECONNECT = Backoff.exponential(0.1, cap=1, limit=None, jitter=0.2)
"""Between tries of a worker to reach the server: quick after a blip, once a second in an outage."""
