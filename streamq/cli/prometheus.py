"""``--prometheus``: what streams hold, as a page for Prometheus."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable
from typing import Any

from streamq.cli.output import fail
from streamq.errors import ConfigurationError
from streamq.stream import Stream


def print_prometheus(streams: Iterable[Stream[Any]]) -> bool:
    """Print the page to standard output, and what could not be asked to standard error. Whether all could."""
    try:
        from prometheus_client import CollectorRegistry, generate_latest

        from streamq.telemetry.prometheus import StreamCollector
    except ImportError as error:
        raise ConfigurationError("--prometheus needs prometheus-client: pip install 'streamq[prometheus]'") from error

    logging.getLogger("streamq.telemetry").addHandler(logging.NullHandler())  # told below
    registry, collector = CollectorRegistry(), StreamCollector(streams)
    registry.register(collector)
    sys.stdout.write(generate_latest(registry).decode())
    collector.close()
    for name, problem in collector.problems.items():
        fail(f"{name}: {problem}")
    return not collector.problems
