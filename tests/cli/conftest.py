"""What the tests of the commands share."""

from __future__ import annotations

import pytest

from streamq import Stream, StreamOptions


@pytest.fixture
def stream(redis_url, ns):
    with Stream(ns, redis=redis_url) as opened:
        yield opened


@pytest.fixture
def for_group(redis_url, ns):
    """The same stream, for a group."""
    opened = []

    def make(group, **options):
        opened.append(Stream(ns, redis=redis_url, options=StreamOptions(group=group, **options)))
        return opened[-1]

    yield make
    for each in opened:
        each.close()
