"""Jobs that are on a replica, or on the disk, when `add` returns; and what is said when they are not."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack

import pytest
import redis
from redis.exceptions import NoScriptError
from waiting import until

from streamq import ConfigurationError, NotDurableError, ServerTooOldError, StreamOptions
from streamq._drivers.exchange import exchange
from streamq._requests import Confirmed, Script, ignore

BOTH = ["redis-6.2", "valkey-9"]


@pytest.fixture
def pair(new_server):
    """A primary and a replica of it, each with a client that looks."""
    primary, replica = new_server(args=("--repl-diskless-sync-delay", "0")), new_server()
    with ExitStack() as stack:
        looks = [stack.enter_context(redis.Redis.from_url(server.url)) for server in (primary, replica)]
        looks[1].replicaof("127.0.0.1", primary.port)
        until(lambda: looks[1].info("replication").get("master_link_status") == "up")
        yield primary, replica, looks


def length(look, s):
    return look.xlen(s._spec.keys.stream)


@pytest.mark.parametrize("backend", BOTH, indirect=True)
def test_a_job_is_on_the_replica_when_add_returns(make_stream, pair):
    primary, _, (_, behind) = pair
    s = make_stream(redis=primary.url, durability="replicated", confirm_within=4)
    for count in range(1, 20):
        assert s.add({"n": count}, job_id=f"j{count}" if count % 2 else None).created
        assert length(behind, s) == count
    assert s.add_many({"n": n} for n in range(1_200)) == 1_200
    assert length(behind, s) == 1_219
    s.add({"n": 0}, delay=60)
    assert behind.zcard(s._spec.keys.scheduled) == 1


@pytest.mark.parametrize("backend", BOTH, indirect=True)
def test_what_no_replica_confirms_is_there_and_can_be_added_again(make_stream, pair):
    primary, replica, (look, behind) = pair
    s = make_stream(redis=primary.url, durability="replicated", confirm_within=0.2)
    s.add({"n": 0})
    os.kill(replica.pid, signal.SIGSTOP)
    with pytest.raises(NotDurableError, match="after 200 ms no replica has confirmed it: it may be lost") as caught:
        s.add({"n": 1}, job_id="one")
    added = caught.value.partial
    assert (added.job_id, added.created, added.state) == ("one", True, "ready")
    with pytest.raises(NotDurableError) as caught:
        s.add({"n": 1}, job_id="one")
    assert (caught.value.partial.entry_id, caught.value.partial.created) == (added.entry_id, False)
    with pytest.raises(NotDurableError) as caught:
        s.add_many({"n": n} for n in range(2_000))
    assert caught.value.added == 500
    assert length(look, s) == 502
    assert s.add({"n": 2}, durability="accepted").created
    os.kill(replica.pid, signal.SIGCONT)
    again = make_stream(redis=primary.url, durability="replicated", confirm_within=4)
    assert again.add({"n": 1}, job_id="one").entry_id == added.entry_id
    assert length(behind, s) == 503


@pytest.mark.parametrize("backend", ["redis-8.2", "valkey-9"], indirect=True)
def test_a_job_is_on_the_disk_when_add_returns(make_stream, new_server):
    server = new_server(appendonly=True, args=("--appendfsync", "always"))
    s = make_stream(redis=server.url)
    assert s.add({}, durability="fsynced").created
    assert s.add({}, job_id="a", durability="fsynced").created
    assert s.add_many([{}] * 3, durability="fsynced") == 3


@pytest.mark.parametrize("backend", ["redis-8.2", "valkey-9"], indirect=True)
def test_a_server_that_keeps_no_file_is_told_before_anything_is_written(make_stream, new_server):
    server = new_server()
    s = make_stream(redis=server.url, durability="fsynced")
    for add in (lambda: s.add({}), lambda: s.add_many([{}]), lambda: s.add({}, job_id="a")):
        with pytest.raises(
            ConfigurationError, match=r"durability='fsynced' cannot be had of this server: .*appendonly"
        ):
            add()
    with redis.Redis.from_url(server.url) as look:
        assert look.keys("*:stream") == []


@pytest.mark.parametrize("backend", ["redis-6.2", "redis-7.0"], indirect=True)
def test_a_server_without_waitaof_is_told_before_anything_is_written(make_stream, raw, ns):
    s = make_stream(durability="fsynced")
    with pytest.raises(ServerTooOldError, match=r"durability='fsynced' needs Redis 7\.2 or Valkey"):
        s.add({})
    assert raw.keys(f"*{ns}*") == []


@pytest.mark.parametrize("backend", BOTH, indirect=True)
def test_a_user_who_may_not_wait_is_told_before_anything_is_written(make_stream, raw, ns, server):
    raw.execute_command("ACL", "SETUSER", ns, "on", ">pw", "~*", "+@all", "-wait")
    try:
        s = make_stream(redis=server.url.replace("//", f"//{ns}:pw@"))
        with pytest.raises(ConfigurationError, match="'wait'"):
            s.add({}, durability="replicated")
        assert raw.keys(f"*{ns}*") == []
        assert s.add({}).created
    finally:
        raw.execute_command("ACL", "DELUSER", ns)


@pytest.mark.parametrize("backend", ["valkey-9"], indirect=True)
def test_scripts_that_the_server_forgot_are_waited_for_again(make_stream, pair):
    primary, _, (look, behind) = pair
    s = make_stream(redis=primary.url, durability="replicated", confirm_within=4)
    for count in range(1, 6):
        look.script_flush()
        s.add({}, job_id=f"j{count}")
        assert length(behind, s) == count


def test_the_wait_goes_behind_every_try_of_its_write():
    wait = ("WAIT", 1, 10)
    steps = exchange(Confirmed(Script("check", ("k",), (), ignore), wait))
    [first, behind] = next(steps)
    assert (first[0], behind) == ("EVALSHA", wait)
    [second, behind] = steps.send([NoScriptError("no such script"), 1])
    assert (second[0], behind) == ("EVAL", wait)
    with pytest.raises(StopIteration) as end:
        steps.send([b"done", 0])
    assert end.value.value == (b"done", 0)


@pytest.mark.parametrize("value", ["", "disk", None, True])
def test_a_durability_that_is_none(value):
    with pytest.raises(ConfigurationError, match="durability must be 'accepted', 'replicated' or 'fsynced'"):
        StreamOptions(durability=value)


@pytest.mark.parametrize("value", [0, 4.001, -1, float("nan")])
def test_a_wait_out_of_bounds(value):
    with pytest.raises(ConfigurationError, match="confirm_within"):
        StreamOptions(confirm_within=value)


def test_a_call_refuses_a_durability_that_is_none(make_stream, raw, ns):
    s = make_stream()
    with pytest.raises(ConfigurationError, match="durability must be"):
        s.add({}, durability="disk")
    with pytest.raises(ConfigurationError, match="durability must be"):
        s.add_many([{}], durability="disk")
    assert raw.keys(f"*{ns}*") == []
