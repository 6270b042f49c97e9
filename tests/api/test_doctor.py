"""What doctor finds: each trouble is built for real, and the figures of each finding are known beforehand."""

from __future__ import annotations

import asyncio
import json
import random
import re
import time

import look
import pytest
import redis
import servers
from waiting import until

from streamq import Reject, Retry, Stream, Worker
from streamq.cli import doctor
from streamq.connection import settings_of
from streamq.keys import HASH_TAGS, Keys, migration_record, registry

HOUR_MS = 3_600_000


def examine(url, name=None, deployment=None):
    """The report, as the command makes it."""
    settings = settings_of(url)
    driver = settings.blocking(5, as_it_is=True)
    try:
        return doctor._examine(driver, settings, name, deployment)
    finally:
        driver.close()


def found(report, check, *, stream=None, severities=("problem", "note")):
    """Severity, text and remedy of the findings of one kind."""
    return [
        (one.severity, one.text, one.remedy)
        for one in report.findings
        if one.check == check and one.stream == stream and one.severity in severities
    ]


def worst(report, *, stream):
    """Kinds and severities of what is wrong with a stream."""
    return sorted((one.check, one.severity) for one in report.findings if one.stream == stream and one.severity != "ok")


@pytest.fixture
def stream(redis_url, ns):
    with Stream("orders", redis=redis_url, deployment=ns) as s:
        yield s


@pytest.fixture
def keys(ns):
    return Keys("orders", ns)


def beat(raw, keys, name, *, ago_ms=0, **about):
    """A worker's sign of life, as tick.lua writes it."""
    seconds, us = raw.time()
    raw.hset(keys.workers, name, f"{seconds * 1000 + us // 1000 - ago_ms} {json.dumps(about)}")


def consumers(raw, keys, count, *, group="workers"):
    """Consumers that hold nothing."""
    with raw.pipeline(transaction=False) as pipe:
        for n in range(count):
            pipe.execute_command("XGROUP", "CREATECONSUMER", keys.stream, group, f"c{n}")
        pipe.execute()


# --- nothing is changed ----------------------------------------------------------------------


@pytest.mark.covers("D1")
def test_a_filled_stream_is_left_as_it_is(stream, keys, raw, redis_url, ns):
    for n in range(50):
        stream.add({"secret": n}, job_id=f"j{n}")
    stream.add({"secret": 1}, delay=60)
    jobs = stream.read("w", count=20)
    stream.ack(jobs[:5])
    stream.reject(jobs[5], "no")
    raw.set(f"{ns}:streamq:orders:stream", "the previous layout")
    before = look.dumps(raw, ns)
    idle = look.call(raw, "XPENDING", keys.stream, "workers", "-", "+", 100)
    report = examine(redis_url, deployment=ns)
    assert look.dumps(raw, ns) == before
    assert [row[:2] + row[3:] for row in look.call(raw, "XPENDING", keys.stream, "workers", "-", "+", 100)] == [
        row[:2] + row[3:] for row in idle
    ]
    assert report.streams == ["orders"]
    assert "secret" not in repr(report)


@pytest.mark.covers("D1")
def test_nothing_but_the_trial_writes(stream, proxy, ns):
    """By what goes over the wire: read commands, the script that asks for rights, and the trial."""
    stream.add({}, job_id="a")
    stream.add({}, delay=60)
    stream.read("w")
    examine(proxy.url, deployment=ns)
    reads = {
        "HELLO", "INFO", "CONFIG", "ACL", "TIME", "SMEMBERS", "SCAN", "TYPE", "XLEN", "XINFO", "XPENDING", "XRANGE",
        "XREVRANGE", "ZCARD", "ZRANGE", "ZSCORE", "HLEN", "HKEYS", "HEXISTS", "HMGET", "HSCAN", "PTTL",
    }  # fmt: skip
    keyless = {"EVAL", "EVALSHA", "EXEC", "MULTI", "CLIENT", "WAITAOF"}
    others = set()
    for name, *args in proxy.commands:
        if name.decode() not in reads | keyless:
            others.add(name.decode())
            assert any(b":probe" in arg for arg in args), (name, args)
    assert {"XADD", "HSET", "UNLINK"} < others
    scripts = [args for name, *args in proxy.commands if name == b"EVALSHA" and args[1] != b"0"]
    assert len(scripts) > 3
    assert all(b":probe" in args[2] or args[2].decode() == registry(ns) for args in scripts)


def test_the_trial_leaves_nothing_where_unlink_is_denied(raw, redis_url, ns, as_user):
    url = as_user("+@all", "-unlink")
    report = examine(url, "orders", f"{ns}")
    assert raw.keys(f"*{ns}*") == []
    assert any("UNLINK" in one.text for one in report.findings if one.check == "rights")


# --- the server ------------------------------------------------------------------------------


def test_a_server_with_nothing_on_it(new_server):
    server = new_server(appendonly=True)
    report = examine(server.url)
    assert [one for one in report.findings if one.severity != "ok"] == []
    assert (report.product, report.version) == (server.backend.product, server.version)
    assert (report.problems, report.notes, report.streams) == (0, 0, [])
    assert found(report, "trial", severities=["ok"]) == [
        ("ok", "a script and a transaction over two keys of one tag work", None),
        ("ok", "a script over two tags works: it is one server", None),
    ]


KNOWN = {
    "redis-6.2": [],
    "redis-7.0": ["FCALL"],
    "redis-8.2": ["WAITAOF", "FCALL", "XACKDEL"],
    "valkey-9": ["WAITAOF", "FCALL"],
}


def test_what_the_server_knows_is_tried(redis_url, raw, ns, as_user):
    report = examine(redis_url, deployment=ns)
    product, (major, minor, *_) = report.product, report.version.split(".")
    known = KNOWN.get(f"{product}-{major}" if product == "valkey" else f"{product}-{major}.{minor}")
    if known is None:
        pytest.skip("what this version knows was not written down")
    unknown = [name for name in ("WAITAOF", "FCALL", "XACKDEL", "XADD IDMP", "XREADGROUP CLAIM") if name not in known]
    [(_, text, _)] = found(report, "abilities", severities=["ok"])
    told = [f"knows {', '.join(known)}"] if known else []
    assert text.startswith(f"the server {'; it '.join([*told, 'does not know ' + ', '.join(unknown)])}. Of these")
    assert raw.keys(f"*{ns}*") == []
    report = examine(as_user("+@read", "+@connection"), deployment=ns)
    [(_, text, _)] = found(report, "abilities", severities=["ok"])
    assert "may know, which the user's rights hide, XADD IDMP, XREADGROUP CLAIM. Of these" in text


def test_what_the_server_would_lose(new_server):
    server = new_server()
    assert "all jobs are gone" in found(examine(server.url), "persistence")[0][1]
    with redis.Redis.from_url(server.url) as client:
        client.config_set("save", "3600 1")
        client.set("a", 1)
        [(severity, text, remedy)] = found(examine(server.url), "persistence")
    assert severity == "note"
    assert "snapshots only" in text
    assert remedy == "redis-cli CONFIG SET appendonly yes"


def test_a_full_memory_and_a_policy_that_evicts(new_server):
    server = new_server()
    with redis.Redis.from_url(server.url) as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        assert found(examine(server.url), "eviction")[0][0] == "note"  # there is no maxmemory yet
        client.config_set("maxmemory", "1gb")
        report = examine(server.url)
        [(severity, text, remedy)] = found(report, "eviction")
        assert (severity, found(report, "memory")) == ("problem", [])
        assert "allkeys-lru" in text
        assert remedy == "redis-cli CONFIG SET maxmemory-policy noeviction"
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", 100_000)
        report = examine(server.url)
    assert found(report, "memory")[0][0] == "problem"
    assert "memory is full" in found(report, "trial")[0][1]


def test_a_snapshot_that_cannot_be_saved(new_server, tmp_path):
    home = tmp_path / "data"
    home.mkdir()
    server = new_server(directory=home)
    with redis.Redis.from_url(server.url) as client:
        client.config_set("save", "3600 1")
        home.rmdir()
        client.set("a", 1)
        client.bgsave()
        until(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err")
        report = examine(server.url)
    assert any("refuses writes until one is" in text for _, text, _ in found(report, "persistence"))
    assert {text for _, text, _ in found(report, "trial")} == {
        f"{what} over two keys of one hash tag fails: the server cannot save to its disk, and refuses writes until it can"
        for what in ("a script", "a transaction")
    }


def test_too_few_replicas(new_server):
    server = new_server()
    with redis.Redis.from_url(server.url) as client:
        client.config_set("min-replicas-to-write", 1)
    report = examine(server.url)
    assert "0 replicas are in step, min-replicas-to-write is 1" in found(report, "replicas")[0][1]
    assert "too few replicas" in found(report, "trial")[0][1]


@pytest.mark.slow
def test_a_replica(new_server):
    master, server = new_server(), new_server()
    with redis.Redis.from_url(server.url) as client:
        client.replicaof("127.0.0.1", master.port)
        until(lambda: client.info("replication").get("master_link_status") == "up")
        report = examine(server.url)
    [(severity, text, remedy)] = found(report, "role")
    assert severity == "problem"
    assert f"its master is 127.0.0.1:{master.port}" in text
    assert remedy == f"use the master's URL: redis://127.0.0.1:{master.port}"
    assert "1 replica" in found(examine(master.url), "replicas", severities=["ok"])[0][1]


def test_connections_that_run_out(new_server):
    server = new_server(args=("--maxclients", "10"))
    clients = [redis.Redis.from_url(server.url, single_connection_client=True) for _ in range(9)]
    try:
        assert "10 of 10 connections" in found(examine(server.url), "clients")[0][1]
    finally:
        for client in clients:
            client.close()


@pytest.mark.slow
def test_a_server_that_is_loading(new_server, tmp_path):
    server = new_server(directory=tmp_path)
    with redis.Redis.from_url(server.url) as client:
        client.mset({f"k{n}": random.randbytes(2_000) for n in range(8_000)})
        client.save()
    server.kill()
    server._args = ("--key-load-delay", "500")
    if not server.version.startswith("6."):
        server._args += ("--loading-process-events-interval-bytes", "4096")
    server._answers = lambda: _pings(server)
    server.start()
    report = examine(server.url, "orders")
    [(severity, text, remedy)] = found(report, "loading")
    assert (severity, remedy) == ("problem", "wait, then ask again")
    assert "reading its data from disk" in text
    assert report.streams == []


def _pings(server):
    """Whether it answers at all, be it with LOADING."""
    try:
        with redis.Redis(unix_socket_path=str(server.unix_path)) as client:
            client.info("persistence")
    except redis.ConnectionError:
        return False
    return True


def test_clocks_that_lie_apart(redis_url, monkeypatch):
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() - 90)
    [(severity, text, _)] = found(examine(redis_url, "no-such-stream"), "clock")
    assert severity == "note"
    assert re.search(r"server's clock is 1m (29|30|31)s ahead of", text)


def test_a_connection_by_tls(new_server, pytestconfig):
    server = new_server()
    if server.name != "redis-7.0":
        pytest.skip("one server with TLS will do")
    tls = pytestconfig.rootpath / "tests" / "tls"
    port = servers.free_port()
    new_server(
        args=(
            *("--tls-port", str(port), "--tls-auth-clients", "no"),
            *("--tls-cert-file", str(tls / "server.crt"), "--tls-key-file", str(tls / "server.key")),
        )
    )
    report = examine(f"rediss://127.0.0.1:{port}?ssl_ca_certs={tls / 'server.crt'}")
    assert "by TLS as user default" in found(report, "connection", severities=["ok"])[0][1]


# --- a node of a cluster ---------------------------------------------------------------------


@pytest.mark.covers("D1", "D2")
@pytest.mark.slow
def test_a_plain_url_of_a_node_of_a_cluster(new_server):
    server = new_server(args=("--cluster-enabled", "yes", "--cluster-require-full-coverage", "no"))
    here, there = Keys("b"), Keys("a")
    assert (here.slot < 8192, there.slot < 8192) == (True, False)
    with redis.Redis.from_url(server.url) as client:
        client.execute_command("CLUSTER", "ADDSLOTS", *range(8192))
        until(lambda: b"cluster_state:ok" in client.execute_command("CLUSTER", "INFO"))
        client.xadd(here.stream, {"job": "{}"})
    report = examine(server.url, "b")
    assert report.problems >= 1
    assert "node of a cluster" in found(report, "mode")[0][1]
    assert found(report, "trial", severities=["ok"])[0][1] == "a script and a transaction over two keys of one tag work"
    across = found(report, "trial", severities=["ok"])[1:]
    assert across == [("ok", "a script over two tags is refused, as a node of a cluster must", None)]
    report = examine(server.url, "a")
    assert f"nobody in the cluster serves its keys (slot {there.slot})" in found(report, "reach", stream="a")[0][1]
    assert "fails: the cluster is down, or nobody holds the slot" in found(report, "trial")[0][1]
    report = examine(server.url)
    assert found(report, "mode")[0][0] == "problem"


@pytest.mark.covers("D2")
def test_a_cluster_that_is_down(new_server):
    server = new_server(args=("--cluster-enabled", "yes"))
    report = examine(server.url, "orders")
    assert "cluster_state is fail" in found(report, "mode")[0][1]
    assert report.problems >= 2


@pytest.mark.covers("D2")
@pytest.mark.slow
def test_keys_on_another_node(new_server):
    one, other = (new_server(args=("--cluster-enabled", "yes")) for _ in range(2))
    with redis.Redis.from_url(one.url) as first, redis.Redis.from_url(other.url) as second:
        first.execute_command("CLUSTER", "ADDSLOTS", *range(8192))
        second.execute_command("CLUSTER", "ADDSLOTS", *range(8192, 16384))
        first.execute_command("CLUSTER", "MEET", "127.0.0.1", other.port)
        for client in (first, second):
            until(lambda client=client: b"cluster_state:ok" in client.execute_command("CLUSTER", "INFO"))
    text = found(examine(one.url, "a"), "reach", stream="a")[0][1]
    assert text == f"its keys (slot {Keys('a').slot}) lie on another node of the cluster, 127.0.0.1:{other.port}"


# --- rights ----------------------------------------------------------------------------------


@pytest.fixture
def as_user(raw, redis_url, ns):
    """URL of a user with these rules, and the keys of the deployment."""
    names = []

    def login(*rules, keys=f"~{ns}:*"):
        names.append(f"{ns}-{len(names)}")
        look.call(raw, "ACL", "SETUSER", names[-1], "on", ">pw", *([keys] if keys else []), *rules)
        return look.as_user(redis_url, names[-1], "pw")

    yield login
    for name in names:
        look.call(raw, "ACL", "DELUSER", name)


@pytest.mark.parametrize("missing", ["XAUTOCLAIM", "XADD", "HINCRBY", "EVALSHA", "MULTI", "EXEC", "XINFO GROUPS"])
def test_one_command_that_a_worker_lacks(as_user, ns, missing):
    if missing == "XINFO GROUPS":
        url = as_user("+@all", "-xinfo", "+xinfo|stream", "+xinfo|consumers")
    else:
        url = as_user("+@all", f"-{missing.lower()}")
    report = examine(url, "orders", ns)
    rights = found(report, "rights", stream="orders")
    assert {severity for severity, _, _ in rights} == {"problem"}
    whole = next(text for _, text, _ in rights if "work (read, settle, maintain)" in text)
    assert f"user {ns}-0 may not run {missing}, and so may not " in whole
    grant = missing.lower().replace(" ", "|")
    assert rights[0][2] in {f"redis-cli ACL SETUSER {ns}-0 +{grant}", f"redis-cli ACL SETUSER {ns}-0 '+{grant}'"}


def test_a_command_that_only_administrators_need(as_user, ns):
    rights = found(examine(as_user("+@all", "-srem"), "orders", ns), "rights", stream="orders")
    assert [(severity, text.partition("may not run ")[2]) for severity, text, _ in rights] == [
        ("problem", "SREM, and so may not administer (drop groups, pause, delete)")
    ]


def test_a_producer_is_not_meant_to_work(as_user, ns):
    report = examine(as_user("+xadd", "+@read", "+@connection"), "orders", ns)
    assert report.problems == 0
    [(severity, text, _), *_] = found(report, "rights", stream="orders")
    assert severity == "note"
    assert "is not meant to add jobs with IDs, schedule jobs" in text
    [(_, well, _)] = found(report, "rights", stream="orders", severities=["ok"])
    assert well == f"user {ns}-0 may add jobs"


def test_a_reader_of_figures_gets_no_problem(as_user, stream, ns, raw):
    stream.add({})
    stream.read("w")
    before = look.dumps(raw, ns)
    report = examine(as_user("+@read", "+@connection", "+info"), deployment=ns)
    assert report.problems == 0
    assert look.dumps(raw, ns) == before
    assert "were not tried" in found(report, "trial")[0][1]


def test_keys_that_the_user_may_not_touch(as_user, ns):
    report = examine(as_user("+@all", keys="~elsewhere:*"), "orders", ns)
    assert found(report, "rights", stream="orders") == [
        (
            "problem",
            f"user {ns}-0 may not touch the keys {ns}:streamq:{{{ns}:orders}}:*",
            f"redis-cli ACL SETUSER {ns}-0 '~{ns}:streamq:{{{ns}:orders}}:*'",
        )
    ]


def test_a_user_of_one_stream_only(as_user, stream, keys, ns):
    stream.add({})
    stream.read("w")
    report = examine(as_user("+@all", keys=f"~{keys.pattern}"), "orders", ns)
    assert (report.problems, found(report, "trial")) == (1, [])
    assert "may not run SADD" in found(report, "rights", stream="orders")[0][1] or report.version.startswith("6.")


def test_what_the_user_may_not_look_at_is_said(as_user, stream, ns):
    stream.add({})
    report = examine(as_user("+@all", "-info", "-zcard", "-@admin", "+acl|whoami"), "orders", ns)
    assert "may not run INFO" in found(report, "hidden")[0][1]
    assert "may not run ZCARD" in found(report, "hidden", stream="orders")[0][1]


def test_rights_that_are_the_same_for_all_streams_are_told_once(as_user, redis_url, ns):
    for name in ("one", "two"):
        with Stream(name, redis=redis_url, deployment=ns) as s:
            s.add({})
            s.read("w")
    report = examine(as_user("+@all", "-xtrim"), deployment=ns)
    assert report.streams == ["one", "two"]
    rights = [one for one in report.findings if one.check == "rights" and one.severity == "problem"]
    assert [(one.stream, "XTRIM" in one.text) for one in rights] == [(None, True)]


# --- keys ------------------------------------------------------------------------------------


@pytest.mark.covers("D1")
def test_keys_of_another_type_are_named(keys, raw, redis_url, ns):
    for key, kind in keys.kinds.items():
        if kind == "hash":
            raw.set(key, "x")
        else:
            raw.hset(key, "x", "y")
    report = examine(redis_url, deployment=ns)
    said = {text for _, text, _ in found(report, "types", stream="orders")}
    assert said == {
        f"{key} holds a {'string' if kind == 'hash' else 'hash'}, not a {kind}"
        for key, kind in keys.kinds.items()
        if kind != "none"
    } | {f"{keys.probe} holds a hash; nothing may be there"}
    assert all(
        remedy.startswith("move it away: redis-cli RENAME ") for _, _, remedy in found(report, "types", stream="orders")
    )


@pytest.mark.covers("D1")
@pytest.mark.parametrize("name", [None, "orders"])
def test_both_layouts_the_deployment_and_the_slot(stream, raw, redis_url, ns, name):
    stream.add({})
    keys = Keys("orders", ns)
    old = keys.previous
    for key, kind in old.items():
        if kind == "stream":
            raw.xadd(key, {"job": "{}"})
        elif kind == "zset":
            raw.zadd(key, {"a": 1})
        else:
            raw.hset(key, "a", "b")
    report = examine(redis_url, name, ns)
    [(severity, text, remedy)] = found(report, "previous_layout", stream="orders")
    assert severity == "problem"
    assert text.startswith(
        f"{len(old)} keys of the previous layout, which has no hash tag, in {len(old)} slots ({ns}:streamq:orders:"
    )
    assert remedy == f"streamq migrate apply --deployment {ns}"
    [(_, text, _)] = found(report, "layout", stream="orders", severities=["ok"])
    assert text == f"1 key of the present layout, all in slot {keys.slot}"
    assert report.deployment == ns


@pytest.mark.covers("D1")
def test_what_a_migration_left_for_cleanup_is_a_note(raw, redis_url, ns):
    raw.xgroup_create(f"{ns}:streamq:mail:stream", "workers", mkstream=True)
    raw.hset(migration_record(ns, HASH_TAGS), "state", "applied")
    [(severity, text, remedy)] = found(examine(redis_url, deployment=ns), "previous_layout", stream="mail")
    assert (severity, remedy) == ("note", f"streamq migrate cleanup 001_hash_tags --deployment {ns}")
    assert "what they held was moved" in text


def test_streams_of_the_previous_layout_only_are_found(raw, redis_url, ns):
    raw.zadd(f"{ns}:streamq:mail:scheduled", {"a": 1})
    report = examine(redis_url, deployment=ns)
    assert (report.streams, worst(report, stream="mail")) == (["mail"], [("previous_layout", "problem")])


def test_a_name_that_nobody_has_used(redis_url, ns):
    report = examine(redis_url, "orders", ns)
    assert report.problems == 0
    assert "never used, or is spelled otherwise" in found(report, "layout", stream="orders")[0][1]


def test_two_deployments_are_not_mixed(stream, raw, redis_url, ns):
    stream.add({})
    other = f"{ns}-2"
    raw.hset(Keys("mail", other).stream, "a", "b")
    raw.xadd(f"{other}:streamq:orders:stream", {"job": "{}"})
    assert examine(redis_url, deployment=ns).streams == ["orders"]
    assert found(examine(redis_url, deployment=ns), "previous_layout", stream="orders") == []
    report = examine(redis_url, deployment=other)
    assert report.streams == ["mail", "orders"]
    assert worst(report, stream="orders") == [("previous_layout", "problem")]


def test_hostile_names_in_the_registry(stream, raw, redis_url, ns):
    stream.add({})
    raw.sadd(registry(ns), "\x1b[2J", "a:b", "{}")
    report = examine(redis_url, deployment=ns)
    assert report.streams == ["orders"]
    assert "3 members" in found(report, "streams")[0][1]


def test_a_registry_of_another_type(stream, raw, redis_url, ns):
    stream.add({})
    raw.set(registry(ns), "x")
    report = examine(redis_url, deployment=ns)
    assert report.streams == ["orders"]
    assert "holds something else" in found(report, "streams")[0][1]


def test_a_token_of_maintenance_that_never_ends(stream, keys, raw, redis_url, ns):
    stream.add({})
    stream.read("w")
    raw.set(keys.tick("reclaim:workers"), "dead")
    raw.set(keys.tick("trim"), "alive", px=60_000)
    [(severity, text, remedy)] = found(examine(redis_url, deployment=ns), "maintenance", stream="orders")
    assert severity == "problem"
    assert text.startswith(f"{keys.tick('reclaim:workers')} never ends")
    assert keys.tick("reclaim:workers") in remedy


# --- work ------------------------------------------------------------------------------------


@pytest.mark.covers("Q6")
def test_halves_of_timers(stream, keys, raw, redis_url, ns):
    for n in range(20):
        stream.add({"n": n}, delay=3_600, job_id=f"j{n}")
    assert worst(examine(redis_url, deployment=ns), stream="orders") == []
    raw.hdel(keys.jobs, "/j1", "/j2")
    raw.zrem(keys.scheduled, "/j3")
    [(severity, text, _)] = found(examine(redis_url, deployment=ns), "timers", stream="orders")
    assert severity == "problem"
    assert "2 times without an entry and 1 entry without a time" in text
    raw.delete(keys.scheduled)
    assert "18 entries without a time" in found(examine(redis_url, deployment=ns), "timers", stream="orders")[0][1]


def test_halves_of_many_timers_are_sampled(keys, raw, redis_url, ns):
    raw.zadd(keys.scheduled, {f"/j{n}": 4e12 + n for n in range(5_000)})
    raw.hset(keys.jobs, mapping={f"/x{n}": "" for n in range(5_000)})
    [(_, text, _)] = found(examine(redis_url, deployment=ns), "timers", stream="orders")
    assert "at least 200 times without an entry and 200 entries without a time" in text


def test_what_was_taken_out_of_the_timer_is_told(keys, raw, redis_url, ns):
    raw.hset(keys.meta, "orphans", 7)
    [(severity, text, _)] = found(examine(redis_url, deployment=ns), "timers", stream="orders")
    assert severity == "note"
    assert "7 scheduled jobs were taken out" in text


def test_jobs_that_are_overdue(stream, keys, raw, redis_url, ns):
    stream.add({}, delay=100)
    assert found(examine(redis_url, deployment=ns), "overdue", stream="orders") == []
    [member] = raw.zrange(keys.scheduled, 0, 0)
    raw.zincrby(keys.scheduled, -(100_000 + HOUR_MS), member)
    [(severity, text, _)] = found(examine(redis_url, deployment=ns), "overdue", stream="orders")
    assert severity == "problem"
    assert "due for 1h" in text


def test_entries_without_any_group(keys, raw, redis_url, ns):
    raw.xadd(keys.stream, {"job": "{}"})
    [(severity, text, _)] = found(examine(redis_url, deployment=ns), "groups", stream="orders")
    assert severity == "problem"
    assert "1 entry waits, and there is no consumer group" in text


def test_a_group_that_nobody_reads(keys, raw, redis_url, ns):
    raw.xadd(keys.stream, {"job": "{}"}, id="1700000000000-0")
    raw.xgroup_create(keys.stream, "audit", "0")
    [(severity, text, remedy)] = found(examine(redis_url, deployment=ns), "groups", stream="orders")
    assert severity == "problem"
    assert text.startswith("nobody reads group audit: entries wait, the first for ")
    assert remedy.endswith(f"streamq groups drop orders audit --deployment {ns}")
    beat(raw, keys, "w", group="audit")
    assert worst(examine(redis_url, deployment=ns), stream="orders") == []  # its worker has just started
    raw.delete(keys.workers)
    raw.hset(keys.meta, "paused", 1)
    assert worst(examine(redis_url, deployment=ns), stream="orders") == [("paused", "note")]


def test_a_group_that_is_new_gets_a_note(keys, raw, redis_url, ns):
    raw.xadd(keys.stream, {"job": "{}"})
    raw.xgroup_create(keys.stream, "audit", "0")
    assert worst(examine(redis_url, deployment=ns), stream="orders") == [("groups", "note")]


def test_a_group_that_is_missing_though_its_workers_live(keys, raw, redis_url, ns):
    raw.xadd(keys.stream, {"job": "{}"})
    raw.xgroup_create(keys.stream, "audit", "$")
    beat(raw, keys, "w", group="mail")
    beat(raw, keys, "dead", group="gone", ago_ms=HOUR_MS)
    [(severity, text, _)] = found(examine(redis_url, deployment=ns), "groups", stream="orders")
    assert severity == "problem"
    assert text.startswith("group mail is not there")


def test_deliveries_of_the_dead(stream, keys, raw, redis_url, ns):
    stream.add_many({} for _ in range(3))
    stream.read("w", count=3)
    look.age(raw, stream, idle=50)
    consumers = look.call(raw, "XINFO", "CONSUMERS", keys.stream, "workers")
    assert len(consumers) == 1
    # Its consumer was heard of just now, by the ageing: so somebody lives, and may have a longer lease.
    assert worst(examine(redis_url, deployment=ns), stream="orders") == []
    look.age(raw, stream, idle=3_600)
    assert worst(examine(redis_url, deployment=ns), stream="orders") == [("pending", "note")]
    beat(raw, keys, "w", group="workers", settings={"lease": 15.0})
    [(severity, text, _)] = found(examine(redis_url, deployment=ns), "pending", stream="orders")
    assert severity == "problem"
    assert "3 deliveries silent for up to 1h" in text
    assert "nobody takes them over though somebody reads" in text
    beat(raw, keys, "w", group="workers", settings={"lease": 7_200.0})
    assert worst(examine(redis_url, deployment=ns), stream="orders") == []


def test_dead_letters_and_a_pause(stream, redis_url, ns):
    stream.add_many({} for _ in range(3))
    for job in stream.read("w", count=3):
        stream.reject(job, "no")
    stream.pause()
    report = examine(redis_url, deployment=ns)
    [(severity, text, remedy)] = found(report, "dead_letters", stream="orders")
    assert (severity, text) == ("note", "3 dead letters wait for a decision")
    assert remedy == f"streamq dead-letters list orders --deployment {ns}"
    [(severity, text, remedy)] = found(report, "paused", stream="orders")
    assert severity == "note"
    assert re.fullmatch(r"the stream has been paused for [\d.]+s: nothing is started", text)
    assert remedy == f"streamq resume orders --deployment {ns}"


def test_settings_on_which_live_workers_do_not_agree(stream, keys, raw, redis_url, ns):
    stream.add({})
    stream.read("w")
    same = {"lease": 15.0, "retention": "delete"}
    beat(raw, keys, "a", group="workers", settings=same, version="1.0")
    beat(raw, keys, "b", group="workers", settings=same, version="1.0")
    beat(raw, keys, "c", group="mail", settings={**same, "lease": 30.0})  # a lease is the group's own
    beat(raw, keys, "dead", group="workers", settings={**same, "lease": 99.0}, ago_ms=HOUR_MS)
    raw.hset(keys.workers, mapping={"odd": "x", "odder": "1 {", "oddest": "9999999999999 []"})
    raw.xgroup_create(keys.stream, "mail", "$")
    assert worst(examine(redis_url, deployment=ns), stream="orders") == []
    beat(raw, keys, "b", group="workers", settings={"lease": 20.0, "retention": "keep"}, version="2.0")
    report = examine(redis_url, deployment=ns)
    assert [(severity, text) for severity, text, _ in found(report, "settings", stream="orders")] == [
        ("problem", "live workers of group workers do not agree on lease: 15.0 (1), 20.0 (1)"),
        ("problem", 'live workers do not agree on retention: "delete" (2), "keep" (1)'),
        ("note", "live workers run different versions of streamq: 1.0, 2.0"),
    ]


def test_too_many_consumers_are_not_listed(keys, raw, redis_url, ns):
    raw.xgroup_create(keys.stream, "workers", "0", mkstream=True)
    consumers(raw, keys, 2_100)
    [(severity, text, remedy)] = found(examine(redis_url, deployment=ns), "consumers", stream="orders")
    assert severity == "problem"
    assert "has 2,100 consumers, and no more than 0 live" in text
    assert remedy == f"streamq consumers prune orders --deployment {ns}"


@pytest.mark.slow
def test_what_it_costs_does_not_grow_with_the_stream(keys, raw, proxy, redis_url, ns):
    def filled(size):
        with raw.pipeline(transaction=False) as pipe:
            for _ in range(size):
                pipe.xadd(keys.stream, {"job": "x"})
            pipe.zadd(keys.scheduled, {f"/j{n}": 4e12 + n for n in range(size)})
            pipe.hset(keys.jobs, mapping={f"/j{n}": "x" for n in range(size)})
            pipe.xgroup_create(keys.stream, f"g{size}", "0")
            pipe.xreadgroup(f"g{size}", "c", {keys.stream: ">"}, count=size // 2)
            pipe.execute()
        before = len(proxy.commands)
        assert examine(proxy.url, "orders", ns).problems == 0
        return len(proxy.commands) - before

    assert filled(3_000) < 600
    assert filled(20_000) < 600


def test_a_fleet_at_work_is_in_no_trouble(redis_url, ns):
    async def handle(payload, job):
        if payload["n"] % 10 == 0 and job.attempt == 1:
            raise Retry(delay=0.05)
        if payload["n"] % 25 == 0:
            raise Reject("no")

    async def under_load():
        with Stream("orders", redis=redis_url, deployment=ns) as s:
            async with Worker(s, handle, concurrency=8):
                reports = []
                for n in range(6):
                    s.add_many({"n": 50 * n + i} for i in range(50))
                    s.add({"n": 1}, delay=0.1)
                    reports.append(await asyncio.to_thread(examine, redis_url, "orders", ns))
            return reports

    for report in asyncio.run(under_load()):
        assert [one for one in report.findings if one.severity == "problem"] == []
