"""The server itself: what it is, whether jobs are safe on it, and how its clock goes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from streamq._ops.doctor.findings import Finding, many, redis
from streamq._requests import Command, Pipeline, Plan, Reply, ask, ask_each, lines_by_name, server_ms, text, texts
from streamq._text import duration
from streamq.errors import ServerTooOldError

OLDEST: Final = (6, 2)
"""The first version that has what the scripts need."""

_SETTINGS: Final = ("save", "appendfsync", "stop-writes-on-bgsave-error", "min-replicas-to-write")

NEARLY_FULL: Final = 0.9
"""Of `maxmemory`, and of `maxclients`."""

CLOCK_S: Final = 1.0
"""How far the clocks may lie apart."""


class Hello(NamedTuple):
    """What the server says it is. No ACL can deny that."""

    product: str
    version: str
    mode: str
    role: str


@dataclass(frozen=True, slots=True)
class Facts:
    """What the server says of itself; empty where the user may not ask."""

    hello: Hello
    user: str = ""
    info: dict[str, str] = field(default_factory=dict)
    config: dict[str, str] = field(default_factory=dict)
    cluster: dict[str, str] = field(default_factory=dict)

    @property
    def is_loading(self) -> bool:
        """Whether it reads its data from disk, and answers little else."""
        return self.info.get("loading") == "1"

    @property
    def is_replica(self) -> bool:
        """Whether it takes writes from its master only."""
        return self.hello.role not in {"master", ""}

    @property
    def is_node(self) -> bool:
        """Whether it is a node of a cluster."""
        return self.hello.mode == "cluster"

    @property
    def serves(self) -> bool:
        """Whether there is any sense in asking it for streams."""
        return not self.is_loading and self.hello.mode != "sentinel" and not is_too_old(self.hello)


def look(user: str = "") -> Plan[Facts]:
    """What the server is and says of itself. Two requests.

    Args:
        user: As whom we come, where the server does not tell.

    Raises:
        ConnectionLostError, ConfigurationError: It cannot be reached, or the user name or password is refused.
    """
    try:
        hello = yield from ask(Command(("HELLO",), (), _hello))
    except ServerTooOldError:
        return Facts(Hello("redis", "5 or older", "", ""))
    asked: list[Command[Any]] = [Command(("ACL", "WHOAMI"), (), text), Command(("INFO",), (), lines_by_name)]
    asked += [Command(("CONFIG", "GET", name), (), texts) for name in _SETTINGS]
    if hello.mode == "cluster":
        asked.append(Command(("CLUSTER", "INFO"), (), lines_by_name))
    answers: list[Any] = yield from ask_each(Pipeline(tuple(asked)))
    me, info, *more = [None if isinstance(answer, Exception) else answer for answer in answers]
    settings = more[: len(_SETTINGS)]
    cluster = more[len(_SETTINGS)] if len(more) > len(_SETTINGS) else None
    config = {pair[0]: pair[1] for pair in settings if pair and len(pair) > 1}
    return Facts(hello, me or user, info or {}, config, cluster or {})


def time_ms() -> Plan[int | None]:
    """The server's clock; None if the user may not ask. One request."""
    [answer] = yield from ask_each(Pipeline((server_ms(),)))
    return None if isinstance(answer, Exception) else answer


def _hello(reply: Reply) -> Hello:
    said = {text(reply[i]): reply[i + 1] for i in range(0, len(reply) - 1, 2)}
    words = (said.get(name, b"") for name in ("server", "version", "mode", "role"))
    return Hello(*(text(word) if isinstance(word, bytes) else "" for word in words))


def is_too_old(hello: Hello) -> bool:
    """Whether streamq's scripts cannot run on it."""
    numbers = re.match(r"(\d+)(?:\.(\d+))?", hello.version)
    return numbers is not None and hello.product == "redis" and (int(numbers[1]), int(numbers[2] or 0)) < OLDEST


def judge(facts: Facts, *, where: str, is_tls: bool, of_cluster: bool = False) -> Iterator[Finding]:
    """All that can be said of the server, but for its clock.

    Args:
        facts: What it says of itself.
        where: Its address, for people.
        is_tls: Whether we came by TLS.
        of_cluster: Whether it was reached as a part of its cluster, which is right for a node.
    """
    tls = "by TLS" if is_tls else "without TLS"
    whom = f" as user {facts.user}" if facts.user else ""
    yield Finding(check="connection", severity="ok", text=f"connected to {where} {tls}{whom}")
    yield from _identity(facts, of_cluster=of_cluster)
    if not facts.serves:
        return
    if not facts.info:
        yield Finding(
            check="hidden",
            severity="note",
            text="the user may not run INFO: memory, persistence and replicas are not checked",
            remedy=redis("ACL", "SETUSER", facts.user or "USER", "+info"),
        )
        return
    yield from _memory(facts)
    yield from _persistence(facts)
    yield from _replicas(facts)
    yield from _clients(facts)


def _identity(facts: Facts, *, of_cluster: bool) -> Iterator[Finding]:
    hello = facts.hello
    if is_too_old(hello):
        yield Finding(
            check="version",
            severity="problem",
            text=f"{hello.product} {hello.version} is too old: streamq needs Redis 6.2 or later, or Valkey",
            remedy="upgrade the server",
        )
        return
    yield Finding(check="version", severity="ok", text=f"{hello.product} {hello.version}")
    if facts.is_loading:
        eta = facts.info.get("loading_eta_seconds", "")
        left = f"; some {duration(int(eta))} are left" if eta.isdigit() else ""
        yield Finding(
            check="loading",
            severity="problem",
            text=f"the server is reading its data from disk and refuses everything else{left}",
            remedy="wait, then ask again",
        )
    if of_cluster and facts.is_node:
        return
    if hello.mode == "sentinel":
        yield Finding(
            check="mode",
            severity="problem",
            text="this is a Sentinel, which holds no data",
            remedy="use redis+sentinel://HOST:PORT/NAME, with the name of the master: redis-cli SENTINEL MASTERS tells it",
        )
    elif facts.is_node:
        state = facts.cluster.get("cluster_state", "")
        health = f" (cluster_state is {state})" if state not in {"", "ok"} else ""
        yield Finding(
            check="mode",
            severity="problem",
            text=f"this is a node of a cluster{health}: it serves only streams whose slot it holds, only as long as it holds "
            "it, and its replica takes over without us",
            remedy="use redis+cluster:// instead of redis://",
        )
    else:
        yield Finding(check="mode", severity="ok", text=f"mode {hello.mode or 'unknown'}: one server holds all keys")
    if facts.is_replica:
        master = (
            f"{facts.info['master_host']}:{facts.info.get('master_port', '')}" if "master_host" in facts.info else ""
        )
        yield Finding(
            check="role",
            severity="problem",
            text="this is a replica: it refuses all writes, so nothing can be added or read"
            + (f"; its master is {master}" if master else ""),
            remedy=f"use the master's URL: redis://{master}" if master else "use the master's URL",
        )
    else:
        yield Finding(check="role", severity="ok", text="it is the master")


def _number(figures: dict[str, str], name: str) -> int:
    value = figures.get(name, "0")
    return int(value) if value.isdigit() else 0


def _memory(facts: Facts) -> Iterator[Finding]:
    used, most = _number(facts.info, "used_memory"), _number(facts.info, "maxmemory")
    policy = facts.info.get("maxmemory_policy", "noeviction")
    evicted = _number(facts.info, "evicted_keys")
    if policy != "noeviction":
        gone = f"; {many(evicted, 'key is', 'keys are')} gone since it was started" if evicted else ""
        now = "" if most else ", as soon as maxmemory is set"
        yield Finding(
            check="eviction",
            severity="problem" if most else "note",
            text=f"maxmemory-policy is {policy}: when memory is full the server throws away jobs, or what is remembered of "
            f"them, without a trace{now}{gone}",
            remedy=redis("CONFIG", "SET", "maxmemory-policy", "noeviction"),
        )
    else:
        yield Finding(check="eviction", severity="ok", text="maxmemory-policy is noeviction")
    if not most:
        yield Finding(check="memory", severity="ok", text=f"{_bytes(used)} of memory used, without a limit of its own")
        return
    share = used / most
    taken = f"{_bytes(used)} of {_bytes(most)} memory used ({share:.0%})"
    if share < NEARLY_FULL:
        yield Finding(check="memory", severity="ok", text=taken)
        return
    yield Finding(
        check="memory",
        severity="problem",
        text=f"{taken}: when it is full, adding jobs is refused",
        remedy="raise maxmemory, or remove what is not needed; streamq inspect shows which stream holds much",
    )


def _bytes(number: int) -> str:
    size, unit = float(number), "B"
    for bigger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:  # noqa: PLR2004  # of one unit in the next
            break
        size, unit = size / 1024, bigger
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"


def _persistence(facts: Facts) -> Iterator[Finding]:
    info, config = facts.info, facts.config
    has_log = info.get("aof_enabled") == "1"
    saves = config.get("save")
    broken = list(_broken(facts))
    yield from broken
    if not has_log and not saves:
        unseen = saves is None
        yield Finding(
            check="persistence",
            severity="note",
            text="the server keeps no log of writes (appendonly)"
            + (
                "; whether it saves snapshots, the user may not see: "
                if unseen
                else " and saves no snapshots (save): when it restarts, "
            )
            + ("jobs since the last one are lost with a restart" if unseen else "all jobs are gone"),
            remedy=redis("CONFIG", "SET", "appendonly", "yes"),
        )
    elif not has_log:
        yield Finding(
            check="persistence",
            severity="note",
            text="the server saves snapshots only: when it dies, jobs since the last one are lost "
            f"({many(_number(info, 'rdb_changes_since_last_save'), 'write', 'writes')} at this moment)",
            remedy=redis("CONFIG", "SET", "appendonly", "yes"),
        )
    elif not broken:
        how = f", appendfsync {config['appendfsync']}" if "appendfsync" in config else ""
        yield Finding(check="persistence", severity="ok", text=f"writes are logged to disk (appendonly{how})")


def _broken(facts: Facts) -> Iterator[Finding]:
    info, config = facts.info, facts.config
    if info.get("aof_last_write_status", "ok") != "ok":
        yield Finding(
            check="persistence",
            severity="problem",
            text="the server could not write its log of writes the last time, and refuses writes until it can",
            remedy="free space on the server's disk; its log says what is wrong",
        )
    if info.get("aof_enabled") == "1" and info.get("aof_last_bgrewrite_status", "ok") != "ok":
        yield Finding(
            check="persistence",
            severity="problem",
            text="the last rewrite of the log of writes failed: it grows until one succeeds",
            remedy=f"look into the server's log, then {redis('BGREWRITEAOF')}",
        )
    if info.get("rdb_last_bgsave_status", "ok") != "ok":
        refuses = config.get("stop-writes-on-bgsave-error") == "yes" and config.get("save", "") != ""
        yield Finding(
            check="persistence",
            severity="problem",
            text="the last snapshot could not be saved"
            + (", and the server refuses writes until one is (stop-writes-on-bgsave-error)" if refuses else ""),
            remedy=f"free disk space and memory for it (the server's log says what is wrong), then {redis('BGSAVE')}",
        )


def _replicas(facts: Facts) -> Iterator[Finding]:
    if facts.is_replica:
        return
    connected = _number(facts.info, "connected_slaves")
    needed = _number(facts.config, "min-replicas-to-write")
    good = _number(facts.info, "min_slaves_good_slaves") if "min_slaves_good_slaves" in facts.info else connected
    if needed > good:
        yield Finding(
            check="replicas",
            severity="problem",
            text=f"{many(good, 'replica is', 'replicas are')} in step, min-replicas-to-write is {needed}: the server refuses "
            "writes",
            remedy="bring the replicas back, or lower min-replicas-to-write",
        )
    else:
        yield Finding(check="replicas", severity="ok", text=many(connected, "replica", "replicas"))


def _clients(facts: Facts) -> Iterator[Finding]:
    connected, most = _number(facts.info, "connected_clients"), _number(facts.info, "maxclients")
    if most and connected >= NEARLY_FULL * most:
        yield Finding(
            check="clients",
            severity="problem",
            text=f"{connected:,} of {most:,} connections are taken (maxclients): soon nobody can connect",
            remedy="raise maxclients, or find who leaves connections open: redis-cli CLIENT LIST",
        )


def clock(ahead_s: float | None, uncertain_s: float) -> Finding:
    """What to say of the server's clock.

    Args:
        ahead_s: How far it is ahead of this machine's; None if the user may not ask.
        uncertain_s: How far that may be wrong: half the time that asking took.
    """
    if ahead_s is None:
        return Finding(check="clock", severity="note", text="the user may not run TIME, which every script needs")
    if abs(ahead_s) - uncertain_s <= CLOCK_S:
        return Finding(
            check="clock", severity="ok", text="the server's clock goes with this machine's, within a second"
        )
    side = "ahead of" if ahead_s > 0 else "behind"
    return Finding(
        check="clock",
        severity="note",
        text=f"the server's clock is {duration(abs(ahead_s))} {side} this machine's: jobs are due, and leases end, by the "
        "server's",
        remedy="let both machines follow the same time source (NTP)",
    )
