"""A cluster as a whole, and the Sentinels of a master: who is there, and is every slot served?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from streamq._ops.doctor.findings import Finding, is_denied, many, redis
from streamq._requests import Command, Pipeline, Plan, Reply, ask_each, ignore, text

SLOTS: Final = 16_384


class Node(NamedTuple):
    """A node, as another one sees it: a line of CLUSTER NODES."""

    node_id: str
    address: str
    flags: frozenset[str]
    primary_id: str
    slots: int
    """How many it holds."""

    @property
    def is_down(self) -> bool:
        """Whether most primaries have given it up."""
        return "fail" in self.flags

    @property
    def is_primary(self) -> bool:
        """Whether it holds slots, or might."""
        return "master" in self.flags


class Seen(NamedTuple):
    """What a node says."""

    nodes: Any
    """All nodes, or an error if the user may not ask."""
    asking: Any
    """An error if the user may not say ASKING."""


def look() -> Plan[Seen]:
    """All nodes, by the word of one, and whether the user may follow a slot that moves. One request."""
    asked: tuple[Command[Any], ...] = (Command(("ASKING",), (), ignore), Command(("CLUSTER", "NODES"), (), _nodes))
    asking, found = yield from ask_each(Pipeline(asked))
    return Seen(found, asking)


def _nodes(reply: Reply) -> list[Node]:
    return [_node(line.split()) for line in text(reply).splitlines() if line.strip()]


def _node(words: list[str]) -> Node:
    node_id, address, flags, primary_id, _, _, _, _, *slots = words
    held = [
        part.partition("-")[::2] for part in slots if not part.startswith("[")
    ]  # those in brackets are on their way
    return Node(
        node_id,
        address.partition("@")[0],
        frozenset(flags.split(",")),
        primary_id.strip("-"),
        sum(int(last or first) - int(first) + 1 for first, last in held),
    )


def judge(seen: Seen, state: str) -> Iterator[Finding]:
    """What to say of the cluster as a whole.

    Args:
        seen: As `look` gives it.
        state: Of the cluster, by a node's word; empty if it does not tell.
    """
    if is_denied(seen.asking):
        yield Finding(
            check="rights",
            severity="problem",
            text="the user may not say ASKING: while a slot moves, what lies in it fails",
            remedy=redis("ACL", "SETUSER", "USER", "+asking"),
        )
    found = seen.nodes
    if isinstance(found, Exception):
        yield Finding(
            check="hidden",
            severity="note",
            text=f"the nodes of the cluster are not checked: {found}",
            remedy=redis("ACL", "SETUSER", "USER", "+cluster|nodes"),
        )
        return
    lost = SLOTS - sum(node.slots for node in found if node.is_primary and not node.is_down)
    if lost:
        yield Finding(
            check="cluster",
            severity="problem",
            text=f"{many(lost, 'slot is', 'slots are')} served by no node: what lies there stands still"
            + ("" if state in {"ok", ""} else f", and so does all else (cluster_state is {state})"),
            remedy="start the nodes that are down, or let replicas take over; redis-cli --cluster check HOST:PORT tells more",
        )
    elif state not in {"ok", ""}:
        yield Finding(check="cluster", severity="problem", text=f"the cluster is down (cluster_state is {state})")
    yield from _missing(found)
    primaries = [node for node in found if node.is_primary and node.slots]
    replicas = [node for node in found if not node.is_primary and not node.is_down]
    if not lost:
        yield Finding(
            check="cluster",
            severity="ok",
            text=f"{many(len(primaries), 'primary', 'primaries')} and {many(len(replicas), 'replica', 'replicas')}, "
            "all slots are served",
        )


def _missing(found: list[Node]) -> Iterator[Finding]:
    followed = {node.primary_id for node in found if not node.is_down}
    for node in found:
        if node.is_down:
            held = (
                f", which holds {many(node.slots, 'slot', 'slots')}, is down and was not replaced" if node.slots else ""
            )
            yield Finding(
                check="cluster",
                severity="problem" if node.slots else "note",
                text=f"node {node.address}{held or ' is down'}",
                remedy=f"start it, or if it is gone for good: {redis('CLUSTER', 'FORGET', node.node_id)}, on every node",
            )
        elif node.slots and node.node_id not in followed:
            yield Finding(
                check="cluster",
                severity="note",
                text=f"primary {node.address} has no replica: if it dies, its streams stand still until it is back",
                remedy=f"add one: redis-cli --cluster add-node NEW {node.address} --cluster-slave",
            )


def unreachable(address: str, error: Exception) -> Finding:
    """What to say of a node that others know and we cannot reach."""
    return Finding(check="cluster", severity="problem", text=f"node {address} does not answer us: {error}")


def merge(found: Mapping[str, Iterable[Finding]]) -> Iterator[Finding]:
    """What is said of all nodes alike is said once, the rest with the node's address.

    Args:
        found: Address -> what was found there.
    """
    where: dict[Finding, list[str]] = {}
    for address, findings in found.items():
        for one in findings:
            where.setdefault(one, []).append(address)
    for one, addresses in where.items():
        if len(addresses) == len(found):
            yield one
        else:
            for address in addresses:
                yield msgspec.structs.replace(one, text=f"node {address}: {one.text}")


def quorum(service: str) -> Plan[Any]:
    """Whether a Sentinel sees enough others for a failover: its word, or an error. One request."""
    [answer] = yield from ask_each(Pipeline((Command(("SENTINEL", "CKQUORUM", service), (), text),)))
    return answer


def judge_sentinels(said: Mapping[str, Any]) -> Iterator[Finding]:
    """What to say of the Sentinels.

    Args:
        said: Address -> the answer of `quorum`, or why there is none.
    """
    wrong = {address: answer for address, answer in said.items() if isinstance(answer, Exception)}
    for address, answer in wrong.items():
        yield Finding(
            check="sentinels",
            severity="problem" if len(wrong) == len(said) else "note",
            text=f"Sentinel {address}: {answer}",
            remedy="start it, and the others that it misses; redis-cli -p 26379 SENTINEL SENTINELS NAME tells which",
        )
    if not wrong:
        yield Finding(
            check="sentinels",
            severity="ok",
            text=f"{many(len(said), 'Sentinel', 'Sentinels')}, enough of them to replace the master",
        )
