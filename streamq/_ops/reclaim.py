"""Take over deliveries whose lease has run out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from streamq import _scripts
from streamq._requests import Plan, ask
from streamq._scripts import Page
from streamq._spec import Spec

T = TypeVar("T")

LOOK = 1_000
"""Most pending entries a page looks at: about 2 ms of the server's time."""

MAX_BYTES = 8 << 20
"""Most bytes of bodies in one page, so that a few huge payloads do not fill a worker's memory."""

_DELAYS = 16
"""Crash delays sent along; the last one holds for all later crashes."""


def page(
    spec: Spec[T],
    consumer: str,
    *,
    min_idle_ms: int,
    count: int,
    raise_count: bool,
    crash_delays: bool,
    exclude: Iterable[str] = (),
) -> Plan[Page]:
    """Claim up to `count` entries idle for `min_idle_ms`, from where the last page ended. One request; atomic.

    Args:
        spec: The stream.
        consumer: Who takes them.
        min_idle_ms: Least idle time.
        count: Most entries, spent ones included.
        raise_count: Whether claiming is the start.
        crash_delays: Whether entries that crashed before wait longer, by `StreamOptions.crash_backoff`.
        exclude: Entry IDs to leave out: what this process runs itself.
    """
    crash = spec.options.crash_backoff
    spent_after = min(spec.options.max_deliveries, _DELAYS + 2)
    delays = [crash.delay_ms(crashes) for crashes in range(1, spent_after - 1)] if crash_delays else []
    script = _scripts.reclaim(
        spec.keys,
        spec.options,
        consumer=consumer,
        min_idle_ms=min_idle_ms,
        count=count,
        look=LOOK,
        max_bytes=MAX_BYTES,
        raise_count=raise_count,
        delays_ms=delays,
        exclude=exclude,
    )
    return (yield from ask(script))
