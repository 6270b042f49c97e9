"""The users that docs/operations.md makes: each can do its whole work, by the library and by hand, and nothing else."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path

import look
import pytest
import redis
from cli.shell import call
from waiting import until
from worker.fleet import working

from streamq import Effects, Reject, Retry, Stream, StreamOptions, Worker
from streamq._ops import access, consumers, promote
from streamq.cli.acl import Role
from streamq.keys import Keys, registry
from streamq.worker import maintenance

PAGE = (Path(__file__).parents[2] / "docs" / "operations.md").read_text("utf-8")
LINES = dict(re.findall(r"^\$ streamq (acl .+)\n(ACL SETUSER .+)$", PAGE, re.MULTILINE))
OF_ALL, OF_ONE = "--deployment dp_1", "--deployment dp_1 --stream orders"

ON_ONE = pytest.mark.parametrize("backend", ["valkey-9"], indirect=True)

DANGEROUS = {
    Role.PRODUCER: set(),
    Role.WORKER: {"client|unblock"},
    Role.OPERATOR: {"info"},
    Role.VIEWER: {"info"},
}
"""Of the commands that servers call dangerous or administrative, those that are given."""


def line_of(role, keys, *, plain=False):
    """The line on the page for a role, split."""
    ending = f"{keys} --redis-6" if plain else keys
    [line] = [line for words, line in LINES.items() if words.startswith(f"acl {role} ") and words.endswith(ending)]
    return line.split()


@pytest.fixture
def as_user(raw, redis_url, ns, server):
    """Make the user of a role, in the deployment of this test, by the line on the page; its URL."""
    names = []

    def make(role, keys=OF_ALL):
        plain = role is Role.VIEWER and server.version.startswith("6.")
        acl, setuser, _, *rules = line_of(role, keys, plain=plain)
        names.append(f"{ns}-{role}")
        look.call(raw, acl, setuser, names[-1], *(rule.replace("dp_1", ns) for rule in rules))
        look.call(raw, acl, setuser, names[-1], ">pw")
        return redis_url.replace("redis://", f"redis://{names[-1]}:pw@")

    yield make
    for name in names:
        look.call(raw, "ACL", "DELUSER", name)


@pytest.fixture
def open_as(as_user, ns):
    """The stream `orders` of this deployment, as the user of a role."""
    opened = []

    def open_one(role, keys=OF_ALL, **options):
        options = StreamOptions(**{"max_ready": 100, "groups": ("workers", "audit"), **options})
        opened.append(Stream("orders", redis=as_user(role, keys), deployment=ns, options=options))
        return opened[-1]

    yield open_one
    for each in opened:
        each.close()


@pytest.fixture
def filled(redis_url, ns):
    """`orders` by a user who may do everything: a job that is ready, one that waits, one in hand and a dead letter."""
    with Stream("orders", redis=redis_url, deployment=ns, options=StreamOptions(groups=("audit",))) as s:
        s.add({"n": 1}, job_id="dead")
        s.add({"n": 2}, job_id="held")
        dead, _ = s.read("w", count=2)
        s.reject(dead, "no")
        s.add({"n": 3}, job_id="ready")
        s.add({"n": 4}, job_id="late", delay=3_600)
        yield s


@pytest.mark.parametrize("words", LINES)
def test_the_page_shows_what_the_command_prints(words):
    done = call(*words.split())
    assert (done.returncode, done.stdout, done.stderr) == (0, LINES[words] + "\n", "")


def test_the_page_has_a_line_for_each():
    for role in Role:
        for keys in (OF_ALL, OF_ONE):
            for plain in {False, role is Role.VIEWER}:
                assert line_of(role, keys, plain=plain)[:2] == ["ACL", "SETUSER"]


def test_what_else_the_command_takes():
    rules = json.loads(call("acl", "worker", "--user", "w", "--cluster", "--json").stdout)
    assert (rules["role"], rules["user"]) == ("worker", "w")
    assert rules["rules"][:4] == ["on", "resetkeys", "~streamq:*", "-@all"]
    assert {"+cluster|slots", "+asking"} == {rule for rule in rules["rules"] if re.match(r"\+(cluster|asking)", rule)}
    alone = json.loads(call("acl", "viewer", "--user", "v", "--stream", "mail", "--cluster", "--json").stdout)["rules"]
    assert {"+cluster|info", "+cluster|nodes", "+cluster|slots", "+asking"} <= set(alone)
    assert alone[2:4] == [f"%R~{Keys('mail').pattern}", f"%R~{registry(None)}"]


@pytest.mark.parametrize(
    "names", [("a b",), ("a", "--deployment", "*"), ("a", "--stream", "*"), ("a", "--stream", "x} ~*")]
)
def test_what_would_be_another_rule_is_refused(names):
    done = call("acl", "worker", "--user", *names)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"streamq: .* is not valid: .*\n", done.stderr)


def test_the_effects_are_those_there_are():
    made = [name for name in vars(Effects) if not name.startswith("_")]
    assert {"DEL" if name == "delete" else name.upper() for name in made} == {*access.EFFECTS} - {"XINFO STREAM"}


@pytest.mark.covers("C83")
@pytest.mark.parametrize("keys", [OF_ALL, OF_ONE])
def test_a_producer(open_as, as_user, ns, keys):
    s = open_as(Role.PRODUCER, keys)
    assert s.add({}).created
    assert s.add({}, job_id="a").created
    assert not s.add({}, job_id="a").created
    assert s.add_many([{}, {}]) == 2
    assert s.add({}, job_id="b", delay=60).state == "scheduled"
    assert s.add({}, job_id="b", replace=True).state == "ready"
    assert s.result("b").state == "ready"
    url = as_user(Role.PRODUCER, keys)
    for args in (("{}", "--job-id", "c"), ("{}", "--delay", "9")):
        assert call("add", "orders", *args, "--deployment", ns, STREAMQ_URL=url).returncode == 0


@pytest.mark.covers("C83")
@pytest.mark.parametrize("keys", [OF_ALL, OF_ONE])
def test_a_worker(open_as, filled, raw, keys):
    s = open_as(Role.WORKER, keys)

    def handle(payload, job):
        match job.id:
            case "fails" if job.attempt == 1:
                raise Retry(delay=0)
            case "rejected":
                raise Reject("no")
        every = (
            job.effects.hset("h", {"f": "v"})
            .hincrby("h", "n", 1)
            .incrby("i", 1)
            .set("k", "v")
            .sadd("s", "m")
            .srem("s", "m")
        )
        every.zadd("z", {"m": 1}).zrem("z", "m").rpush("l", "v").xadd("x", {"f": "v"}).expire("k", 60).delete("d")
        return payload

    look.age(raw, filled, count=1)  # whoever held it is dead
    for job_id in ("fails", "rejected"):
        filled.add({"id": job_id}, job_id=job_id)
    filled.scheduled.reschedule("late", at=datetime.fromtimestamp(0, UTC))
    with working(Worker(s, handle, concurrency=2)):
        until(lambda: all(filled.result(job_id).state == "done" for job_id in ("held", "ready", "late", "fails")))
        until(lambda: len(filled.dead_letters.list()) == 2)
    assert look.pending(raw, filled) == {}
    by_hand(s, filled)


def by_hand(s, filled):
    """What a loop of one's own calls, and maintenance of every kind."""
    for n in range(6):
        filled.add({"n": n}, job_id=f"j{n}")
    jobs = s.read("w", count=6)
    assert s.ack(jobs[0])
    s.retry(jobs[1], "no", delay=60)
    s.release(jobs[2])
    s.extend(jobs[3])
    s.once("x", Effects().hincrby("h", "n"))
    assert s.reclaim("w2", min_idle=0).failed == []
    s._run(maintenance.tick(s._spec, "w", may_reclaim=True, beat=b"{}"))
    s._run(promote.wake(s._spec, "0-0", 10))
    s.promote()
    s.trim()
    s.prune_consumers(0)
    s._run(consumers.leave(s._spec, "w"))
    s.inspect()


@pytest.mark.covers("C83")
@pytest.mark.parametrize("keys", [OF_ALL, OF_ONE])
def test_an_operator(as_user, filled, redis_url, ns, keys):
    url = as_user(Role.OPERATOR, keys)

    def done(*args, status=0, **more):
        ended = call(*args, "--deployment", ns, STREAMQ_URL=url, **more)
        assert (ended.returncode, ended.stderr) == (status, ""), (args, ended.stdout)
        return ended.stdout

    for words in (*LOOKING, *LOOKING_AT_ALL) if keys == OF_ALL else ():
        done(*words)
    for words in CHANGING:
        done(*words)
    with Stream("orders", redis=redis_url, deployment=ns) as s:
        assert s.result("late").state == "ready"
        assert s.dead_letters.list() == []
    done("consumers", "prune", "orders", "--min-idle", "1h", "--yes")
    done("delete", "orders", "--force", "--yes")


LOOKING = tuple(
    tuple(words.split())
    for words in (
        "inspect orders",
        "inspect orders --job held",
        "inspect orders --prometheus",
        "doctor orders",
        "dead-letters list orders",
        "scheduled list orders",
        "scheduled show orders late",
        "groups list orders",
        "consumers list orders",
    )
)
LOOKING_AT_ALL = (("inspect",), ("doctor",), ("inspect", "--prometheus"))
CHANGING = tuple(
    tuple(words.split())
    for words in (
        "add orders {} --job-id added",
        "add orders {} --delay 60 --job-id cancelled",
        "scheduled cancel orders cancelled",
        "scheduled reschedule orders late --delay 90",
        "scheduled run orders late",
        "dead-letters redrive orders --all --yes",
        "dead-letters purge orders --all --yes",
        "pause orders",
        "resume orders",
        "trim orders --yes",
        "groups create orders other",
        "groups drop orders audit --force --yes",
    )
)


@pytest.mark.covers("C83")
@pytest.mark.parametrize("keys", [OF_ALL, OF_ONE])
def test_a_viewer(as_user, filled, raw, ns, keys):
    url = as_user(Role.VIEWER, keys)
    before = look.dumps(raw, ns)
    [letter] = filled.dead_letters.list()
    for words in (*LOOKING, ("dead-letters", "show", "orders", letter.id), *(LOOKING_AT_ALL if keys == OF_ALL else ())):
        done = call(*words, "--deployment", ns, STREAMQ_URL=url)
        assert (done.returncode, done.stderr) == (0, ""), (words, done.stdout)
    for words in CHANGING if keys == OF_ALL else ():
        done = call(*words, "--deployment", ns, STREAMQ_URL=url)
        assert done.returncode in {1, 2}, words
        assert "permission" in done.stderr, words
    assert look.dumps(raw, ns) == before


@pytest.mark.covers("C83")
@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("keys", [OF_ALL, OF_ONE])
def test_nobody_may_do_more(as_user, raw, ns, role, keys):
    url = as_user(role, keys)
    given = {word[1:] for word in line_of(role, keys) if word.startswith("+")}
    for category in ("dangerous", "admin", "scripting", "keyspace"):
        known = {name.decode() for name in look.call(raw, "ACL", "CAT", category)}
        assert known & given - ALLOWED <= DANGEROUS[role], category
    theirs = Keys("orders", f"{ns}0")
    raw.xadd(theirs.stream, {"job": "secret"})
    raw.sadd(registry(f"{ns}0"), "orders")
    others = [theirs.stream, theirs.meta, registry(f"{ns}0"), f"{ns}", "streamq:streams", Keys("orders").stream]
    others += [Keys("other", ns).stream, f"{ns}:streamq:orders:stream"] if keys == OF_ONE else []
    before = look.dumps(raw, ns)
    with redis.Redis.from_url(url, single_connection_client=True, driver_info=None) as client:
        for key in others:
            for command in touching(key):
                with pytest.raises(redis.exceptions.NoPermissionError):
                    client.execute_command(*command)
        for command in FORBIDDEN:
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.execute_command(*command.split())
        if "eval" in given:
            for command in ("FLUSHALL", "KEYS", "DEL"):
                with pytest.raises(redis.ResponseError, match=r"(?i)acl|can't"):
                    client.execute_command("EVAL", f"return redis.call('{command}', ARGV[1])", 0, theirs.stream)
    assert look.dumps(raw, ns) == before


ALLOWED = {
    "eval",
    "evalsha",
    "type",
    "exists",
    "unlink",
    "pexpireat",
    "pexpire",
    "pttl",
    "scan",
    "del",
    "expire",
    "xread",
    "object",
}
"""Of scripts and keys in general: these know the keys they work on, but SCAN."""

FORBIDDEN = (
    "FLUSHALL", "FLUSHDB", "KEYS *", "RANDOMKEY", "DBSIZE", "CONFIG GET requirepass", "CONFIG SET maxmemory 1", "SHUTDOWN NOSAVE",
    "SAVE", "BGREWRITEAOF", "REPLICAOF NO ONE", "SCRIPT FLUSH", "ACL LIST", "ACL SETUSER x on", "CLIENT LIST",
    "CLIENT KILL ID 1", "MONITOR", "SWAPDB 0 1", "SLOWLOG GET", "MODULE LIST", "CLUSTER INFO", "SUBSCRIBE x", "PUBLISH x y",
)  # fmt: skip


def touching(key):
    """Of the commands that are given, those that would read, write or pass on what a key holds."""
    return (
        ("XADD", key, "*", "f", "v"), ("XRANGE", key, "-", "+"), ("XLEN", key), ("HGET", key, "f"), ("HSET", key, "f", "v"),
        ("TYPE", key), ("UNLINK", key), ("XREADGROUP", "GROUP", "workers", "w", "STREAMS", key, ">"), ("SADD", key, "m"),
        ("SMEMBERS", key), ("EVAL", "return 1", 1, key), ("DUMP", key), ("RENAME", key, "x"), ("COPY", key, "x"), ("SORT", key),
    )  # fmt: skip
