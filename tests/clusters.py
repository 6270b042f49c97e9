"""Clusters for the tests, as local processes: each primary with a replica, made by protocol, so that no redis-cli is needed.

It knows no pytest. A `Cluster` is made of `Node`s, which are servers like any other: they can be killed, frozen and started
again. What a cluster is in at a moment (who is the primary of a slot, whether all agree) is asked of the nodes, each about
itself: what one says of another may be old.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Self

import redis
import servers
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.crc import key_slot
from redis.retry import Retry
from waiting import PATIENCE

SLOTS: Final = 16384

# A node's bus listens 10000 above its port, which with these also stays below the ephemeral range.
_PORTS: Final = range(20000, 22700)
_BUS: Final = 10000
_ANSWER_S: Final = 5.0  # within which a node that is not frozen answers


class Node(servers.Server):
    """A server of a cluster.

    Attributes:
        node_id: By which the cluster knows it, over all its starts.
    """

    def __init__(self, backend: servers.Backend, *, args: Sequence[str], appendonly: bool) -> None:
        super().__init__(backend, args=args, appendonly=appendonly)
        self.node_id = ""
        self.frozen = False

    def start(self) -> Self:
        super().start()
        self.node_id = self.node_id or self.call("CLUSTER", "MYID").decode()
        return self

    def pause(self) -> None:
        super().pause()
        self.frozen = True

    def resume(self) -> None:
        super().resume()
        self.frozen = False

    def kill(self) -> None:
        super().kill()
        self.frozen = False

    @property
    def answering(self) -> bool:
        """Whether it is expected to answer: it runs and is not frozen."""
        return self.running and not self.frozen

    def call(self, *args: Any) -> Any:
        """Send one command over a connection of its own; return the reply as it came."""
        connection = redis.Connection(
            host="127.0.0.1", port=self.port, protocol=2, socket_timeout=_ANSWER_S, retry=Retry(NoBackoff(), 0)
        )
        try:
            connection.send_command(*args)
            return connection.read_response()
        finally:
            connection.disconnect()

    def view(self) -> dict[str, Seen]:
        """What it knows of the cluster, by node ID."""
        seen = map(Seen.of_line, self.call("CLUSTER", "NODES").decode().splitlines())
        return {other.node_id: other for other in seen}

    def itself(self) -> Seen:
        """What it knows of itself."""
        return self.view()[self.node_id]

    def info(self, section: str) -> dict[str, str]:
        """INFO of a section, or CLUSTER INFO for ``cluster``."""
        reply = self.call("CLUSTER", "INFO") if section == "cluster" else self.call("INFO", section)
        return dict(line.split(":", 1) for line in reply.decode().splitlines() if ":" in line)

    def _choose_port(self) -> int:
        return servers.free_port(_PORTS, beside=_BUS)


@dataclass(frozen=True, slots=True)
class Seen:
    """A node as a node sees it: a line of CLUSTER NODES."""

    node_id: str
    flags: frozenset[str]
    primary_id: str
    epoch: int
    slots: tuple[range, ...]

    @classmethod
    def of_line(cls, line: str) -> Self:
        node_id, _, flags, primary_id, _, _, epoch, _, *ranges = line.split()
        # One in brackets is a slot on its way, which its owner also names by its number.
        ends = [part.partition("-")[::2] for part in ranges if not part.startswith("[")]
        slots = tuple(range(int(first), int(last or first) + 1) for first, last in ends)
        return cls(node_id, frozenset(flags.split(",")), primary_id.strip("-"), int(epoch), slots)

    @property
    def is_primary(self) -> bool:
        return "master" in self.flags

    @property
    def is_failing(self) -> bool:
        return bool(self.flags & {"fail", "fail?"})

    def serves(self, slot: int) -> bool:
        return self.is_primary and any(slot in part for part in self.slots)


class Cluster(servers.Assembly):
    """Primaries that share the slots evenly, each with replicas, on 127.0.0.1. Whole after two seconds: no server is earlier.

    Without persistence unless asked for: a primary that is killed and started before its replica took over comes back empty,
    and its replica with it.

    Attributes:
        name: The backend of its servers, such as ``valkey-9``.
        version: Their version.
        nodes: All nodes, those that began as primaries first.
        node_timeout_s: After which silent nodes count as failing.
    """

    UNANSWERED = (redis.ConnectionError, redis.TimeoutError, OSError, KeyError)
    PATIENCE_S = 30.0

    def __init__(
        self,
        backend: servers.Backend,
        *,
        primaries: int = 3,
        replicas: int = 1,
        node_timeout_s: float = 2.0,
        args: Sequence[str] = (),
        appendonly: bool = False,
    ) -> None:
        self.backend = backend
        self.name = backend.name
        self.version = backend.version
        self.node_timeout_s = node_timeout_s
        self._replicas = replicas
        self._primaries = primaries
        self._lookers: list[redis.Redis] = []
        options = [
            *("--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf"),
            *("--cluster-node-timeout", str(round(node_timeout_s * 1000)), "--cluster-announce-ip", "127.0.0.1"),
            # A replica may take over however old its data, and none moves to another primary by itself.
            *("--cluster-replica-validity-factor", "0", "--cluster-migration-barrier", "99"),
            *("--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1"),
            *args,
        ]
        count = primaries * (1 + replicas)
        self.nodes = tuple(Node(backend, args=options, appendonly=appendonly) for _ in range(count))

    # -- life --

    @property
    def members(self) -> Sequence[servers.Server]:
        return self.nodes

    def start(self) -> Self:
        """Start and join the nodes, and wait until the cluster is whole.

        Raises:
            ServerUnavailableError: It did not come to that; the message ends with the logs.
        """
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            list(pool.map(Node.start, self.nodes))
        primaries, replicas = self.nodes[: self._primaries], self.nodes[self._primaries :]
        for at, node in enumerate(primaries):
            first, last = (-(-SLOTS * n // self._primaries) for n in (at, at + 1))
            if servers.version_tuple(node) >= (7,):
                node.call("CLUSTER", "ADDSLOTSRANGE", first, last - 1)
            else:
                node.call("CLUSTER", "ADDSLOTS", *range(first, last))
            node.call("CLUSTER", "SET-CONFIG-EPOCH", at + 1)
        for node in self.nodes:
            for other in self.nodes:
                if other is not node:
                    node.call("CLUSTER", "MEET", "127.0.0.1", other.port)
        self.wait(self._have_met, "the nodes did not meet")
        for at, node in enumerate(replicas):
            node.call("CLUSTER", "REPLICATE", primaries[at % self._primaries].node_id)
        self.wait_until_ok()
        return self

    def close(self) -> None:
        """End all nodes and remove what they wrote."""
        for client in self._lookers:
            client.close()
        super().close()

    def __repr__(self) -> str:
        ports = ", ".join(str(node.port) for node in self.nodes)
        return f"<Cluster of {self.name} ({self.version}) on ports {ports}>"

    # -- looking --

    @property
    def url(self) -> str:
        """URL with the nodes that began as primaries as seeds."""
        return self.url_of(*self.nodes[: self._primaries])

    @property
    def port(self) -> int:
        """Of the first node, for what takes one address."""
        return self.nodes[0].port

    @staticmethod
    def url_of(*seeds: Node) -> str:
        """URL with these nodes as seeds."""
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in seeds)

    @property
    def primaries(self) -> list[Node]:
        """The nodes that say that they are, those without slots as well. After a failover the old one may not know yet."""
        return [node for node in self._answering() if node.itself().is_primary]

    def primary_of(self, slot: int | str) -> Node:
        """The primary that serves a slot, given as its number or by a key. Waits while there is none.

        Of two that claim it, as after a failover that one has not heard of, the one with the newer epoch counts.
        """
        number = slot_of(slot)

        def serving() -> Node | None:
            seen = [(node.itself(), node) for node in self._answering()]
            claims = [(me.epoch, at) for at, (me, _) in enumerate(seen) if me.serves(number)]
            return seen[max(claims)[1]][1] if claims else None

        found: Node = self.wait(serving, f"no node serves slot {number}")
        return found

    def replicas_of(self, primary: Node) -> list[Node]:
        """The nodes that say that they replicate it."""
        return [node for node in self._answering() if node.itself().primary_id == primary.node_id]

    def eyes(self, home: str) -> Eyes:
        """A client to look with, at home on the node that served this key in the beginning."""
        return Eyes(self, self.nodes[slot_of(home) * self._primaries // SLOTS])

    def remove(self, pattern: str) -> None:
        """Delete all keys of this pattern, from a cluster in which nobody has taken over."""
        for client in self.lookers():
            pipe = client.pipeline(transaction=False)  # each by itself: they lie in many slots
            for key in client.scan_iter(match=pattern, count=1000):
                pipe.unlink(key)
            if len(pipe):
                pipe.execute()

    def lookers(self) -> list[redis.Redis]:
        """A client of each node that began as a primary; made once, as most tests need them."""
        if not self._lookers:
            self._lookers = [_client_of(node) for node in self.nodes[: self._primaries]]
        return self._lookers

    def client(self, **options: Any) -> RedisCluster:
        """A client of redis-py that finds the right node for each key: bytes, in the shape of RESP2."""
        seeds = [ClusterNode("127.0.0.1", node.port) for node in self._answering()]
        options = {"protocol": 2, "retry": Retry(NoBackoff(), 1), **options}
        return RedisCluster(startup_nodes=seeds, **options)

    @property
    def crossings(self) -> int:
        """How many commands its nodes refused because their keys lie in several slots."""
        stats = [node.info("errorstats").get("errorstat_CROSSSLOT", "count=0") for node in self._answering()]
        return sum(int(stat.removeprefix("count=")) for stat in stats)

    # -- changing --

    def wait_until_ok(self, timeout: float = PATIENCE_S) -> None:
        """Wait until all nodes that answer agree that the cluster is whole, and replicas follow their primaries.

        Killed and frozen nodes may be missing. Others that still count as failing must have been heard of again: until then
        a failover to them is accepted and silently dropped.
        """
        self.wait(self._is_ok, "the cluster did not become whole", timeout)

    def fail_over(self, replica: Node, kind: str | None = None, *, timeout: float = PATIENCE_S) -> None:
        """Let a replica take its primary's place, and wait until it has. `kind` is ``FORCE`` or ``TAKEOVER``."""
        words = ["CLUSTER", "FAILOVER", *([kind] if kind else [])]
        deadline = time.monotonic() + timeout * PATIENCE
        while time.monotonic() < deadline:
            with suppress(redis.ResponseError):  # not yet connected to its primary, or it is one already
                replica.call(*words)
            # A node gives a failover up after 5 s, and may drop one without a word: asked again, it begins anew.
            with suppress(servers.ServerUnavailableError):
                self.wait(lambda: replica.itself().is_primary, "", 5.5 / PATIENCE)
                return
        raise servers.ServerUnavailableError(
            f"{replica} did not become a primary within {timeout * PATIENCE} s\n{self.tail()}"
        )

    def migrate_slot(self, slot: int | str, target: Node) -> None:
        """Move a slot with its keys, as ``redis-cli --cluster reshard`` does it."""
        self.open_slot(slot, target)
        self.move_keys(slot, target)
        self.close_slot(slot, target)

    def open_slot(self, slot: int | str, target: Node) -> None:
        """Begin to move a slot: from now on the target takes keys that its primary does not have (ASK, TRYAGAIN)."""
        source, number = self.primary_of(slot), slot_of(slot)
        target.call("CLUSTER", "SETSLOT", number, "IMPORTING", source.node_id)
        source.call("CLUSTER", "SETSLOT", number, "MIGRATING", target.node_id)

    def move_keys(self, slot: int | str, target: Node, *, only: Callable[[bytes], bool] = lambda key: True) -> None:
        """Move keys of a slot that was opened: all, or some, which leaves it half moved."""
        source, number = self.primary_of(slot), slot_of(slot)
        while keys := [key for key in source.call("CLUSTER", "GETKEYSINSLOT", number, 1000) if only(key)]:
            source.call("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys[:100])

    def close_slot(self, slot: int | str, target: Node) -> None:
        """End the move of a slot: the target serves it. Its keys must be there."""
        number, source = slot_of(slot), self.primary_of(slot)
        others = [node for node in self.primaries if node not in (source, target)]
        # The target first: had it not heard of it, nobody would serve the slot.
        for node in (target, source, *others):
            node.call("CLUSTER", "SETSLOT", number, "NODE", target.node_id)

    # -- details --

    def _answering(self) -> list[Node]:
        return [node for node in self.nodes if node.answering]

    def _have_met(self) -> bool:
        views = [node.view() for node in self.nodes]
        met = all(len(view) == len(self.nodes) for view in views)
        return met and not any("handshake" in seen.flags for view in views for seen in view.values())

    def _is_ok(self) -> bool:
        nodes = self._answering()
        if any(node.info("cluster")["cluster_state"] != "ok" for node in nodes):
            return False
        present = {node.node_id for node in nodes}
        views = [{i: seen for i, seen in node.view().items() if i in present} for node in nodes]
        # Who replicates whom, and who serves which slots: all must see the same, and all slots must be served.
        if len({frozenset((i, seen.primary_id, seen.slots) for i, seen in view.items()) for view in views}) != 1:
            return False
        served = sum(len(part) for seen in views[0].values() for part in seen.slots)
        if served != SLOTS or any(seen.is_failing for view in views for seen in view.values()):
            return False
        followers = [node for node, view in zip(nodes, views, strict=True) if not view[node.node_id].is_primary]
        return all(node.info("replication")["master_link_status"] == "up" for node in followers)


class Eyes(redis.Redis):
    """A client to look with: bytes, in the shape of RESP2, over a single connection to one node.

    What is in another slot it asks where it is sent to. So what concerns a server (INFO, CONFIG, CLIENT) is that node's, but
    users are made on all nodes, and keys are listed from all. For a cluster in which nobody has taken over.
    """

    def __init__(self, cluster: Cluster, home: Node) -> None:
        self._cluster = cluster
        super().__init__(port=home.port, single_connection_client=True, protocol=2, driver_info=None)

    def execute_command(self, *args: Any, **options: Any) -> Any:
        try:
            return super().execute_command(*args, **options)
        except redis.exceptions.MovedError as moved:
            there = next(node for node in self._cluster.nodes if node.port == moved.port)
            with _client_of(there) as elsewhere:
                return elsewhere.execute_command(*args, **options)

    def call(self, *args: Any) -> Any:
        """Send one command and return its reply as it came."""
        if args[0] == "ACL":
            first, *_ = [node.call(*args) for node in self._cluster.nodes]
            return first
        try:
            self.connection.send_command(*args)
            return self.connection.read_response()
        except redis.exceptions.MovedError as moved:
            return next(node for node in self._cluster.nodes if node.port == moved.port).call(*args)

    def scan_iter(self, match: Any = None, count: int | None = None, **options: Any) -> Iterator[bytes]:
        for client in self._cluster.lookers():
            yield from client.scan_iter(match, count, **options)

    def keys(self, pattern: Any = "*", **options: Any) -> list[bytes]:
        return list(self.scan_iter(pattern, 1000))


def _client_of(node: Node) -> redis.Redis:
    return redis.Redis(port=node.port, single_connection_client=True, protocol=2, driver_info=None)


def slot_of(slot: int | str) -> int:
    """A slot's number, given that or a key."""
    return slot if isinstance(slot, int) else key_slot(slot.encode())
