"""What the tests of the worker share: a stream on the shared server, and handlers of both kinds."""

from __future__ import annotations

import asyncio
import time

import pytest
import redis
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


@pytest.fixture
def own(new_server):
    """Start a server of this test's own; gives it, a stream on it (as `user`, who may do all at first) and a client to look."""
    opened = []

    def start(*, appendonly=False, args=(), user=None, **options):
        server = new_server(appendonly=appendonly, args=args)
        url = server.url if user is None else server.url.replace("://", f"://{user}:pw@")
        raw = redis.Redis.from_url(server.url, single_connection_client=True, protocol=2)
        if user is not None:
            raw.execute_command("ACL", "SETUSER", user, "on", ">pw", "~*", "&*", "+@all")
        stream = Stream("jobs", redis=url, options=fleet.options_of(options))
        opened.extend([stream, raw])
        return server, stream, raw

    yield start
    for one in opened:
        one.close()


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
