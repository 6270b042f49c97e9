"""What doctor makes of answers that no server here gives, and of figures on the edge."""

from __future__ import annotations

import pytest

from streamq._flows import checkup
from streamq._ops.doctor import cluster, findings, layout, rights, server, trial, work, workers
from streamq._ops.doctor.findings import Finding
from streamq._ops.doctor.rights import Rights
from streamq._ops.doctor.server import Facts, Hello
from streamq._ops.doctor.trial import Trial
from streamq.errors import ConfigurationError, ServerError, ServerTooOldError
from streamq.keys import Keys

KEYS = Keys("orders")
FINE = {"aof_enabled": "1", "maxmemory": "0", "used_memory": "1"}


def judged(hello, info=FINE, config=None, cluster=None, user="ada"):
    facts = Facts(hello, user, info, config or {}, cluster or {})
    return {
        one.check: one for one in server.judge(facts, where="redis server h:1", is_tls=False) if one.severity != "ok"
    }


@pytest.mark.parametrize(
    ("product", "version", "is_old"),
    [
        ("redis", "5 or older", True),
        ("redis", "6.0.20", True),
        ("redis", "6.2.0", False),
        ("redis", "10.0.1", False),
        ("valkey", "7.2.5", False),
        ("redis", "", False),
        ("redis", "unstable", False),
    ],
)
def test_versions_that_are_too_old(product, version, is_old):
    found = judged(Hello(product, version, "standalone", "master"))
    assert ("version" in found) is is_old
    if is_old:
        assert found["version"].text == f"redis {version} is too old: streamq needs Redis 6.2 or later, or Valkey"
        assert list(found) == ["version"]  # nothing else of it matters


def test_a_server_without_hello_is_too_old():
    plan = server.look()
    next(plan)
    with pytest.raises(StopIteration) as stop:
        plan.throw(ServerTooOldError("unknown command 'HELLO'"))
    assert not stop.value.value.serves


def test_a_sentinel():
    found = judged(Hello("redis", "7.0.0", "sentinel", ""))
    assert "redis+sentinel://HOST:PORT/NAME" in found["mode"].remedy
    assert not Facts(Hello("redis", "7.0.0", "sentinel", "")).serves


def test_a_log_of_writes_that_cannot_be_written():
    found = judged(Hello("redis", "7.0.0", "standalone", "master"), {**FINE, "aof_last_write_status": "err"})
    assert (found["persistence"].severity, "refuses writes" in found["persistence"].text) == ("problem", True)
    found = judged(Hello("redis", "7.0.0", "standalone", "master"), {**FINE, "aof_last_bgrewrite_status": "err"})
    assert (found["persistence"].severity, "rewrite" in found["persistence"].text) == ("problem", True)


def test_snapshots_that_the_user_may_not_see():
    found = judged(Hello("redis", "7.0.0", "standalone", "master"), {"aof_enabled": "0"})
    assert "whether it saves snapshots, the user may not see" in found["persistence"].text


@pytest.mark.parametrize(("used", "severity"), [(89, None), (90, "problem"), (250, "problem")])
def test_how_near_memory_is_to_its_limit(used, severity):
    found = judged(
        Hello("redis", "7.0.0", "standalone", "master"), {**FINE, "maxmemory": "100", "used_memory": str(used)}
    )
    assert (found["memory"].severity if "memory" in found else None) == severity


@pytest.mark.parametrize(
    ("ahead", "uncertain", "severity"),
    [(0.9, 0, "ok"), (1.1, 0, "note"), (-1.1, 0, "note"), (3.0, 2.5, "ok"), (None, 0, "note")],
)
def test_clocks(ahead, uncertain, severity):
    assert server.clock(ahead, uncertain).severity == severity


# --- the trial -------------------------------------------------------------------------------


def tried(script=(), transaction=None, across=(), *, is_node=False):
    found = trial.judge(
        Trial(list(script) if isinstance(script, tuple) else script, transaction, across),
        is_node=is_node,
        may_multi=True,
    )
    return [(one.severity, one.text) for one in found if one.severity != "ok"]


def test_what_a_trial_tells():
    assert tried() == []
    [(severity, text)] = tried(across=ServerError("CROSSSLOT Keys", code="CROSSSLOT"))
    assert (severity, "behind this address are several servers" in text) == ("note", True)
    assert tried(across=ServerError("CROSSSLOT Keys", code="CROSSSLOT"), is_node=True) == []
    [(severity, text)] = tried(is_node=True)
    assert (severity, "something between us hides the cluster" in text) == ("problem", True)
    assert tried(across=ConfigurationError("no access to a key")) == []
    [(severity, text)] = tried(script=ServerError("ERR what\nis this", code="ERR"))
    assert (severity, "ERR what" in text) == ("problem", True)
    [(severity, _)] = tried(script=["HINCRBY"])
    assert severity == "note"


# --- rights ----------------------------------------------------------------------------------


def told(*denied, user="ada"):
    found = rights.judge(Rights(frozenset(denied)), KEYS, checkup.ROLES, user)
    return [(one.severity, one.text) for one in found]


def test_rights_in_words():
    assert told() == [("ok", "user ada may do all that there is to do")]
    [(severity, text), (also, well)] = told("XTRIM")
    assert (severity, also) == ("problem", "ok")
    assert text == (
        "user ada may not run XTRIM, and so may not administer (drop groups, pause, delete) or work (read, settle, maintain)"
    )
    assert well.startswith("user ada may add jobs, add jobs with IDs, schedule jobs and operate")
    assert told("CLIENT UNBLOCK", user="")[-1] == (
        "note",
        "the user may not run CLIENT UNBLOCK: a worker that is stopped ends up to its `block` later",
    )


def test_a_command_missing_for_all_is_one_problem():
    problems = [text for severity, text in told("XADD") if severity == "problem"]
    assert len(problems) == 1
    assert "may not add jobs with IDs, schedule jobs" in problems[0]
    assert problems[0].endswith("or add jobs")


# --- order and repetition --------------------------------------------------------------------


def finding(severity, stream=None, check="groups", text="x"):
    return Finding(check=check, severity=severity, stream=stream, text=text)


def test_the_worst_comes_first():
    rows = [finding("ok"), finding("note", "a"), finding("ok", "b"), finding("problem", "b"), finding("note")]
    rows = findings.sort(rows, ["a", "b"])
    assert [(one.stream, one.severity) for one in rows] == [
        (None, "note"),
        (None, "ok"),
        ("b", "problem"),
        ("b", "ok"),
        ("a", "note"),
    ]


def test_only_what_is_the_users_is_merged():
    same = [finding("note", name, check="rights") for name in "ab"]
    assert findings.merge(same, ["a", "b"]) == [finding("note", check="rights")]
    assert findings.merge(same, ["a", "b", "c"]) == same
    assert findings.merge(same[:1], ["a"]) == same[:1]
    other = [finding("note", name) for name in "ab"]
    assert findings.merge(other, ["a", "b"]) == other


# --- work ------------------------------------------------------------------------------------


def group(**given):
    usual = {
        "name": "workers", "pending": 0, "consumers": 1, "is_listed": True, "live": 0, "leaked": 0, "unread_ms": None,
        "late": None, "lease_ms": None,
    }  # fmt: skip
    return work.Group(**{**usual, **given})


def standing(*groups, **given):
    found = work.judge(KEYS, work.Work(1_700_000_000_000, groups=list(groups), **given), workers.Beats({}, 0))
    return [(one.check, one.severity, one.text, one.remedy) for one in found if one.severity != "ok"]


@pytest.mark.parametrize(("leaked", "severity"), [(19, None), (20, "note"), (2_000, "problem")])
def test_consumers_that_were_left(leaked, severity):
    found = standing(group(live=1, leaked=leaked))
    assert [row[1] for row in found] == ([severity] if severity else [])
    if severity:
        assert "were not heard of for 10m" in found[0][2]
        assert found[0][3] == "streamq consumers prune orders"


def test_deliveries_of_the_dead_while_nobody_lives():
    [(check, severity, text, remedy)] = standing(group(pending=5, late=work.Late(5, 46_000)))
    assert (check, severity, remedy) == ("pending", "problem", "streamq run MODULE:WORKER")
    assert text == "group workers: 5 deliveries silent for up to 46s, and no worker lives to take them over"


def test_names_that_nobody_could_type_are_in_no_command():
    [(_, _, text, remedy)] = standing(group(name="evil\x1b[2J", unread_ms=1_600_000_000_000))
    assert "evil" in text
    assert remedy == "streamq run MODULE:WORKER"
    [(_, _, _, remedy)] = standing(group(name="$(rm -rf)", live=1, leaked=50))
    assert remedy is None


def test_types_that_the_user_may_not_ask_for():
    now = dict.fromkeys(KEYS.kinds, ConfigurationError("the user lacks a permission: may not run the 'type' command"))
    kinds = layout.Kinds(now, {})
    assert (kinds.is_reachable, kinds.is_shut_out, kinds.is_seen) == (True, False, False)
    assert list(layout.judge(KEYS, kinds)) == []
    assert kinds.may_be(KEYS.stream, "stream")


# --- clusters -----------------------------------------------------------------------------

FIRST, SECOND = ("a" * 40, "b" * 40)
NODES = (
    f"{FIRST} 10.0.0.1:7000@17000,name-1 myself,master - 0 0 1 connected 0-99 200 [300->-{SECOND}]\n"
    f"{SECOND} 10.0.0.2:7000@17000 slave,fail {FIRST} 0 0 1 disconnected\n"
)


LOST = "are served by no node: what lies there stands still, and so does all else (cluster_state is fail)"


def of_cluster(text, state="ok", asking="OK"):
    plan = cluster.look()
    next(plan)
    with pytest.raises(StopIteration) as stop:
        plan.send([asking, text if isinstance(text, Exception) else text.encode()])
    return [(one.check, one.severity, one.text) for one in cluster.judge(stop.value.value, state)]


def test_nodes_of_a_cluster():
    assert of_cluster(NODES, "fail") == [
        ("cluster", "problem", f"16,283 slots {LOST}"),
        ("cluster", "note", "primary 10.0.0.1:7000 has no replica: if it dies, its streams stand still until it is back"),
        ("cluster", "note", "node 10.0.0.2:7000 is down"),
    ]  # fmt: skip
    whole = NODES.replace("0-99 200", "0-16383").replace("slave,fail", "slave")
    assert of_cluster(whole) == [("cluster", "ok", "1 primary and 1 replica, all slots are served")]
    assert of_cluster(whole, "fail")[0] == ("cluster", "problem", "the cluster is down (cluster_state is fail)")


def test_a_user_who_may_not_ask_for_nodes_or_follow_slots():
    denied = ConfigurationError("the user lacks a permission: ...")
    [asking, hidden] = of_cluster(denied, asking=denied)
    assert (asking[:2], hidden[:2]) == (("rights", "problem"), ("hidden", "note"))


def test_what_is_said_of_all_nodes_is_said_once():
    same, other = (
        Finding(check="version", severity="ok", text="v"),
        Finding(check="memory", severity="problem", text="m"),
    )
    found = {"a:1": [same], "b:2": [same, other]}
    assert [one.text for one in cluster.merge(found)] == ["v", "node b:2: m"]


def test_sentinels_of_which_too_few_are_left():
    few, away = ServerError("NOQUORUM 1 usable Sentinels", code="NOQUORUM"), ServerError("cannot reach", code="ERR")
    assert [one.severity for one in cluster.judge_sentinels({"a:1": few, "b:2": away})] == ["problem", "problem"]
    assert [one.severity for one in cluster.judge_sentinels({"a:1": "OK", "b:2": away})] == ["note"]
