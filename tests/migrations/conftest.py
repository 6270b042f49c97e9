"""What the tests of migrations share."""

from __future__ import annotations

import pytest
from migrations.previous import previous

from streamq.connection import settings_of
from streamq.keys import migration_lock, migration_record, registry
from streamq.migrations.coordinator import NAMES


@pytest.fixture
def driver(redis_url):
    """Runs plans."""
    made = settings_of(redis_url).blocking()
    yield made
    made.close()


@pytest.fixture(params=["without deployment", "in a deployment"])
def deployment(request, ns, raw):
    """None, or one of the test's own. What migrations leave has no name of the test's in it without one."""
    if request.param == "in a deployment":
        yield ns
        return
    yield None
    raw.unlink(migration_lock(None), *(migration_record(None, name) for name in NAMES))
    raw.srem(registry(None), ns, f"{ns}-new")


@pytest.fixture
def make_old(redis_url, ns):
    """Streams of the previous version, in the test's own deployment or another."""
    opened = []

    def make(name="mail", deployment=ns, **options):
        opened.append(previous(redis_url, name, deployment, **options))
        return opened[-1]

    yield make
    for stream in opened:
        stream.close()
