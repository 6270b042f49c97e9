"""How commands end, by one rule for all: 1 where the server answered and refused, 3 where nobody has said yes."""

from __future__ import annotations

import pytest
import redis
from cli.shell import call

from streamq import Stream

ON_ONE = pytest.mark.parametrize("backend", ["valkey-9"], indirect=True)
"""For what is the command line's own, and the same on every server."""

HOUR = 3_600


@ON_ONE
def test_a_full_server_is_exit_1_of_every_command_that_writes(new_server, ns):
    server = new_server()
    with Stream(ns, redis=server.url) as stream, redis.Redis.from_url(server.url) as raw:
        for n in range(3):
            stream.add({}, job_id=f"later-{n}", delay=HOUR)
        stream.add({}, job_id="dead")
        stream.reject(stream.read("w")[0], "no")
        [letter] = stream.dead_letters.list()
        raw.config_set("maxmemory", 1_000)
        for words in (
            ("add", ns, "1"),
            ("add", ns, "1", "--job-id", "k"),
            ("add", ns, "1", "--delay", "1h"),
            ("add", ns, "-"),
            ("scheduled", "run", ns, "later-0"),
            ("scheduled", "run", ns, "--all", "--yes"),
            ("scheduled", "reschedule", ns, "later-0", "--delay", "2h"),
            ("dead-letters", "redrive", ns, letter.id),
            ("dead-letters", "redrive", ns, "--all", "--yes"),
            ("groups", "create", ns, "audit"),
        ):
            done = call(*words, "--url", server.url, stdin=b"{}\n")
            assert done.returncode == 1, (words, done.stderr)
            assert done.stderr.splitlines()[-1].startswith("streamq: ")
            assert "maxmemory" in done.stderr, words
        raw.config_set("maxmemory", 0)
        assert stream.inspect().scheduled == 3


@ON_ONE
def test_only_the_one_that_is_named_by_its_id_is_changed_without_asking(redis_url, ns):
    with Stream(ns, redis=redis_url) as stream:
        for n in range(2):
            stream.add({}, job_id=f"j{n}", delay=HOUR)
            stream.add({}, job_id=f"d{n}")
        for job in stream.read("w", count=2):
            stream.reject(job, "no")
        first, second = (letter.id for letter in stream.dead_letters.list())
        stream.groups.create("audit")

        def ended(*words):
            return call(*words, STREAMQ_URL=redis_url).returncode

        for command, *more in (
            ("scheduled", "cancel"),
            ("scheduled", "run"),
            ("scheduled", "reschedule", "--delay", "2h"),
            ("dead-letters", "redrive"),
            ("dead-letters", "purge"),
        ):
            verb, *options = more
            two = ("j0", "j1") if command == "scheduled" else (first, second)
            by_filter = ("--due-before", "2h") if command == "scheduled" else ("--reason", "rejected")
            for which in (two, ("--all",), by_filter):
                assert ended(command, verb, ns, *which, *options) == 3, (command, verb, which)
        for words in (
            ("trim", ns),
            ("trim", ns, "--keep-last", "0"),
            ("delete", ns, "--force"),
            ("groups", "drop", ns, "audit", "--force"),
            ("consumers", "prune", ns, "--min-idle", "0"),
        ):
            assert ended(*words) == 3, words
        assert (stream.inspect().scheduled, stream.inspect().dead) == (2, 2)
        for words in (
            ("scheduled", "reschedule", ns, "j0", "--delay", "2h"),
            ("scheduled", "run", ns, "j0"),
            ("scheduled", "cancel", ns, "j1"),
            ("dead-letters", "redrive", ns, first),
            ("dead-letters", "purge", ns, second),
        ):
            assert ended(*words) == 0, words
        assert (stream.inspect().scheduled, stream.inspect().dead) == (0, 0)
