"""``--prometheus``: what streams hold, as a page for Prometheus."""

from __future__ import annotations

import logging
import sys
from typing import Any

from streamq._ops import registry
from streamq.cli.output import fail
from streamq.connection import settings_of
from streamq.errors import ConfigurationError
from streamq.stream import Stream


def print_prometheus(name: str | None, url: str | None, deployment: str | None) -> bool:
    """Print the page of one stream, or of all, and to standard error what could not be asked. Whether all could."""
    try:
        from prometheus_client import CollectorRegistry, generate_latest

        from streamq.telemetry.prometheus import StreamCollector
    except ImportError as error:
        raise ConfigurationError("--prometheus needs prometheus-client: pip install 'streamq[prometheus]'") from error

    names = [name] if name is not None else _all(url, deployment)
    streams: list[Stream[Any]] = [Stream(each, redis=url, deployment=deployment) for each in names]
    logging.getLogger("streamq.telemetry").addHandler(logging.NullHandler())  # told below
    page, collector = CollectorRegistry(), StreamCollector(streams)
    page.register(collector)
    sys.stdout.write(generate_latest(page).decode())
    collector.close()
    for each, problem in collector.problems.items():
        fail(f"{each}: {problem}")
    return not collector.problems


def _all(url: str | None, deployment: str | None) -> list[str]:
    driver = settings_of(url).blocking()
    try:
        return driver.run(registry.names(deployment))
    finally:
        driver.close()
