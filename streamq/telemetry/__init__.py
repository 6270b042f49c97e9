"""Metrics and traces, by the standard libraries: each is an extra, and is imported only when its part is used.

prometheus     what a worker does, and what a stream holds, as metrics (extra ``prometheus``)
several        one page of metrics for all processes of `streamq run`
tracing        a job's trace, from its producer to its handlers (extra ``opentelemetry``)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streamq.telemetry.prometheus import StreamCollector, WorkerMetrics
    from streamq.telemetry.tracing import Tracing

_HOME = {"StreamCollector": "prometheus", "Tracing": "tracing", "WorkerMetrics": "prometheus"}

__all__ = ["StreamCollector", "Tracing", "WorkerMetrics"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
