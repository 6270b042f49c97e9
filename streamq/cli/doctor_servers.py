"""What `doctor` looks at before it comes to streams: one server, every node of a cluster, or a master and its Sentinels."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from streamq._ops.doctor import cluster, server
from streamq._ops.doctor.findings import Finding
from streamq.connection import ClusterRoute, SentinelRoute, Settings
from streamq.errors import ConnectionLostError, StreamqError

if TYPE_CHECKING:
    from streamq._drivers.blocking import BlockingDriver

TIMEOUT_S: Final = 5.0
"""Longest wait for a connection or a reply: nothing that is asked here takes long."""


class Servers(NamedTuple):
    """What was found."""

    facts: server.Facts
    """Of the server, or of one that stands for all."""
    now_ms: int
    """Its time."""
    findings: list[Finding]


def examine(driver: BlockingDriver, settings: Settings) -> Servers:
    """Examine the server, or all there are.

    Raises:
        ConnectionLostError, ConfigurationError: None can be reached, or it refuses the user name or password.
    """
    found = _one(driver, settings, settings.where)
    match settings.route:
        case ClusterRoute():
            return found._replace(findings=list(_cluster(driver, settings, found)))
        case SentinelRoute() as route:
            return found._replace(findings=[*found.findings, *_sentinels(route)])
    return found


def _one(driver: BlockingDriver, settings: Settings, where: str) -> Servers:
    facts = driver.run(server.look(settings.options.get("username") or ""))
    is_tls = settings.kind == "tls"
    findings = list(
        server.judge(facts, where=where, is_tls=is_tls, of_cluster=isinstance(settings.route, ClusterRoute))
    )
    if not facts.serves:
        return Servers(facts, 0, findings)
    before = time.time()
    server_ms = driver.run(server.time_ms())
    after = time.time()
    ahead_s = None if server_ms is None else server_ms / 1000 - (before + after) / 2
    findings.append(server.clock(ahead_s, (after - before) / 2))
    return Servers(facts, round(after * 1000) if server_ms is None else server_ms, findings)


def _cluster(driver: BlockingDriver, settings: Settings, first: Servers) -> Iterator[Finding]:
    yield from cluster.judge(driver.run(cluster.look()), first.facts.cluster.get("cluster_state", ""))
    by_node: dict[str, list[Finding]] = {}
    for host, port in driver.servers:
        address = f"{host}:{port}"
        own = _by_itself(settings, host, port)
        try:
            by_node[address] = _one(own, settings, settings.where).findings
        except StreamqError as error:
            yield cluster.unreachable(address, error)
        finally:
            own.close()
    yield from cluster.merge(by_node)


def _sentinels(route: SentinelRoute) -> Iterator[Finding]:
    said: dict[str, Any] = {}
    for host, port in route.seeds:
        guide = _by_itself(Settings(route.kind, route.options), host, port)
        try:
            said[f"{host}:{port}"] = guide.run(cluster.quorum(route.service))
        except StreamqError as error:
            said[f"{host}:{port}"] = error
        finally:
            guide.close()
    yield from cluster.judge_sentinels(said)


def _by_itself(settings: Settings, host: str, port: int) -> BlockingDriver:
    """A driver of one server among several."""
    options = {**settings.options, "host": host, "port": port}
    return replace(settings, options=options, route=None).blocking(TIMEOUT_S, as_it_is=True)


def unexamined(stream: str | None, error: ConnectionLostError) -> Finding:
    """What to say where a part of a cluster that is down stands in the way."""
    what = "some of the streams" if stream is None else "it"
    return Finding(check="reach", severity="problem", stream=stream, text=f"{what} cannot be looked at: {error}")
