"""Remove finished entries that are still in the stream."""

from __future__ import annotations

from typing import TypeVar

from streamq import _scripts_upkeep
from streamq._requests import Plan, ask
from streamq._spec import Spec

T = TypeVar("T")

LOOK = 1_000
"""Most entries that one pass looks at one by one: a few ms of the server's time."""


def trim(spec: Spec[T]) -> Plan[int]:
    """Remove all finished entries that the stream's settings let go; how many. One atomic request per 1,000 looked at."""
    removed, cursor, stop = 0, "0-0", ""
    while cursor:
        done = yield from ask(_scripts_upkeep.trim(spec.keys, spec.options, look=LOOK, cursor=cursor, stop=stop))
        removed += done.removed
        cursor, stop = done.cursor, done.stop
    return removed


def trim_some(spec: Spec[T]) -> Plan[int]:
    """One pass, from where the last one ended; how many entries were removed. One request, none where nothing may go."""
    options = spec.options
    if options.retention == "keep" and options.keep_ms is None and options.keep_last is None:
        return 0
    return (yield from ask(_scripts_upkeep.trim(spec.keys, spec.options, look=LOOK, cursor="", stop=""))).removed
