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
    least_count: int = 0,
    most_last: int | None = None,
    last_patience_ms: int = 0,
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
        least_count: Entries with a smaller delivery count are passed over. Spent ones never are.
        most_last: Most entries with a single start left; others of them are passed over. None is no limit.
        last_patience_ms: How much longer entries with a single start left wait: so long others have the first choice.
    """
    crash = spec.options.crash_backoff
    crashes = range(1, min(spec.options.max_deliveries - 1, _DELAYS))
    # None after the first crash: it was a deploy or a power cut more likely than the job.
    delays = [0, *map(crash.delay_ms, crashes)] if crash_delays else []
    script = _scripts.reclaim(
        spec.keys,
        spec.options,
        consumer=consumer,
        min_idle_ms=min_idle_ms,
        count=count,
        look=LOOK,
        max_bytes=MAX_BYTES,
        raise_count=raise_count,
        least_count=least_count,
        most_last=count if most_last is None else most_last,
        last_patience_ms=last_patience_ms,
        delays_ms=delays,
        exclude=exclude,
    )
    return (yield from ask(script))
