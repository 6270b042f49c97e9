"""What the tests of the worker share: a stream on the shared server, and handlers of both kinds."""

from __future__ import annotations

import asyncio
import time

import pytest
from worker import fleet

from streamq import Stream


@pytest.fixture
def make_stream(redis_url, ns, raw):
    """Open the stream of this test, named after `ns`; options as of `fleet.options_of`."""
    opened = []

    def make(*, redis=redis_url, **options):
        stream = Stream(ns, redis=redis, options=fleet.options_of(options))
        opened.append(stream)
        return stream

    yield make
    for stream in opened:
        stream.close()
    raw.srem("streamq:streams", ns)


@pytest.fixture
def make_fleet(redis_url, ns, tmp_path):
    """Make a fleet of worker processes on the stream of this test; arguments as of `fleet.Fleet`."""

    def make(*, url=redis_url, **settings):
        return fleet.Fleet(url, ns, tmp_path, **settings)

    return make


@pytest.fixture(params=["def", "async def"])
def kind(request):
    """Which kind of handler a test uses."""
    return request.param


@pytest.fixture
def handler(kind):
    """Make a handler of that kind from a body ``body(payload, job)``, after which it takes `seconds`."""

    def make(body, seconds=0.0):
        if kind == "def":

            def plain(payload, job):
                result = body(payload, job)
                time.sleep(seconds)
                return result

            return plain

        async def waiting(payload, job):
            result = body(payload, job)
            await asyncio.sleep(seconds)
            return result

        return waiting

    return make
