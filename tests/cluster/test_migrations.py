"""On a cluster nothing is migrated, nobody is kept from anything, and it is said why."""

from __future__ import annotations

import pytest
from cli import shell

from streamq import Stream
from streamq._requests import Command, ask
from streamq.connection import settings_of
from streamq.keys import Keys, migration_record, registry


@pytest.fixture
def driver(cluster):
    """Runs plans."""
    made = settings_of(cluster.url).blocking()
    yield made
    made.close()


@pytest.mark.covers("M1", "M9")
@pytest.mark.parametrize("backend", ["valkey-9"], indirect=True, scope="session")
def test_the_migration_is_not_applicable(cluster, driver, ns):
    def call(*args):
        return driver.run(ask(Command(args, (args[1],), lambda reply: reply)))

    old = Keys("mail", ns).untagged
    for name in ("a", "b", "c", "mail"):  # on all nodes
        call("XADD", Keys(name, ns).untagged.stream, "*", "job", "{}")
    with Stream("mail", redis=cluster.url, deployment=ns) as new:
        assert new.add({}).created
        assert len(new.read("w")) == 1
    for args, said in (
        (["plan"], "not applicable: this is a node of a cluster"),
        (["apply", "--yes"], "not applicable: this is a node of a cluster"),
        (["apply"], "not applicable: this is a node of a cluster"),
        (["verify"], "not applicable: this is a node of a cluster"),
        (["cleanup", "001_hash_tags"], "001_hash_tags: nothing to clean"),
    ):
        done = shell.call("migrate", *args, "--url", cluster.url, "--deployment", ns)
        assert (done.returncode, done.stderr, said in done.stdout) == (0, "", True)
    assert call("HGET", migration_record(ns, "001_hash_tags"), "state") == b"not_applicable"
    assert call("XLEN", old.stream) == 1
    for key in (migration_record(ns, "001_hash_tags"), registry(ns), *(Keys(n, ns).untagged.stream for n in "abc")):
        call("UNLINK", key)
    call("UNLINK", old.stream)
