"""Address books: which server a request goes to, in a cluster and behind Sentinels, and whom to ask when that changes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

from streamq._drivers.exchange import refused
from streamq._drivers.slots import SlotTable, table_of
from streamq._drivers.steps import Address, Cut, Drop, Outcome, Send, Steps
from streamq._requests import Reply, said, text
from streamq.errors import ConfigurationError, ConnectionLostError, ServerError, StreamqError

LOOK_S: Final = 1.0
"""Longest wait for a word on who is where: there are others to ask."""

ASKED: Final = 3
"""Most nodes of a known cluster that are asked in one look."""

ASKED_S: Final = 0.1
"""Least time between two looks into who is where, however many requests would like to know."""


class Book(Protocol):
    """Who is where. All requests of a driver share one, from any thread.

    Attributes:
        is_stale: Whether something was seen that makes another look worthwhile.
        spreads: Whether keys lie on several servers.
        remap: Makes of an address that a server tells one that can be reached from here.
    """

    is_stale: bool
    spreads: bool
    remap: Callable[[Address], Address]

    def find(self, slot: int | None) -> Address | None:
        """Where requests on `slot` go, or with None those without keys; None if that is not known."""

    def primaries(self) -> tuple[Address, ...]:
        """All servers that hold keys, in an order of their own."""

    def servers(self) -> tuple[Address, ...]:
        """Those, and the replicas that are known."""

    def may_look(self, now: float) -> bool:
        """Whether nobody has asked just now. Who is told so has to."""

    def look(self, first: Address | None = None) -> Steps[StreamqError | None]:
        """Ask around who is where; what stood in the way, if nobody told."""

    def doubt(self, address: Address, *, is_silent: bool = False) -> None:
        """A server did not answer, or sent us away: others are asked first, before it is used again."""

    def trust(self, address: Address) -> None:
        """A server answers."""

    def moved(self, slot: int, to: Address) -> None:
        """`slot` lies elsewhere now."""

    def nowhere(self, slot: int | None) -> StreamqError:
        """Why `find` has no answer."""

    def greet(self, address: Address, hello: Reply, *, is_guide: bool) -> StreamqError | None:
        """What speaks against using a server, by its reply to HELLO."""


class _Asked:
    """What both books have: when somebody asked last, and whom to rather not ask."""

    def __init__(self) -> None:
        self.is_stale = True
        self._asked_at = float("-inf")
        self._doubted: set[Address] = set()
        self._silent: set[Address] = set()
        self._failure: StreamqError | None = None

    def may_look(self, now: float) -> bool:
        if now < self._asked_at + ASKED_S:
            return False
        self._asked_at = now
        return True

    def doubt(self, address: Address, *, is_silent: bool = False) -> None:
        self._doubted.add(address)
        if is_silent:
            self._silent.add(address)
        self.is_stale = True

    def trust(self, address: Address) -> None:
        self._doubted.discard(address)
        self._silent.discard(address)

    def _learned(self, before: Iterable[Address], now: Iterable[Address]) -> Steps[None]:
        """Somebody told who is where. Nobody need wait for those who said nothing and have been replaced."""
        self._failure, self.is_stale = None, False
        for gone in self._silent.intersection(before).difference(now):
            self._silent.discard(gone)
            yield Cut(gone)

    def _left(self, before: Iterable[Address], now: Iterable[Address]) -> Steps[None]:
        """Servers that nobody names any more are asked nothing, so nobody would see that their connections are closed."""
        for gone in set(before).difference(now):
            yield Drop(gone)

    def _unheard(self, address: Address, failure: StreamqError) -> None:
        """Somebody did not tell."""
        self._failure = failure
        self._doubted.add(address)
        if isinstance(failure, ConnectionLostError):
            self._silent.add(address)

    def _in_order(self, some: Iterable[Address], rest: Iterable[Address] = ()) -> list[Address]:
        """`some` in any order and then `rest`; but those last that did not answer."""
        mixed = list(some)
        random.shuffle(mixed)
        return sorted(dict.fromkeys((*mixed, *rest)), key=self._doubted.__contains__)


class ClusterBook(_Asked):
    """The nodes of a cluster.

    Args:
        seeds: Some of its nodes, to begin with.
        remap: Makes of an address that a node tells one that can be reached from here.
    """

    spreads = True

    def __init__(self, seeds: Sequence[Address], remap: Callable[[Address], Address] = lambda told: told) -> None:
        super().__init__()
        self._seeds = tuple(seeds)
        self.remap = remap
        self._table: SlotTable | None = None

    def find(self, slot: int | None) -> Address | None:
        if self._table is None:
            return None
        if slot is not None:
            return self._table.owner(slot)
        return next((each for each in self._table.primaries if each not in self._doubted), self._table.primaries[0])

    def primaries(self) -> tuple[Address, ...]:
        return self._table.primaries if self._table else ()

    def servers(self) -> tuple[Address, ...]:
        return self._table.nodes if self._table else ()

    def moved(self, slot: int, to: Address) -> None:
        if self._table is not None:
            self._table.moved(slot, to)

    def look(self, first: Address | None = None) -> Steps[StreamqError | None]:
        known = self._table.nodes if self._table else ()
        # Those that say nothing are asked last from then on, so next time it is others: nobody's patience is tried by all.
        asked = self._in_order((*known, *self._seeds))[:ASKED] if known else self._in_order((), self._seeds)
        for address in dict.fromkeys((first, *asked) if first is not None else asked):
            outcome = yield Send(address, [("CLUSTER", "SLOTS")], limit_s=LOOK_S)
            table = self._read(outcome, address)
            if isinstance(table, StreamqError):
                self._unheard(address, table)
                continue
            self.trust(address)
            primaries, nodes, self._table = self.primaries(), self.servers(), table
            yield from self._learned(primaries, table.primaries)
            yield from self._left(nodes, table.nodes)
            return None
        return self._failure

    def _read(self, outcome: Outcome, address: Address) -> SlotTable | StreamqError:
        if isinstance(outcome, StreamqError):
            return outcome
        reply = _only(outcome)
        if isinstance(reply, Exception):
            return refused(reply, ())
        return table_of(reply, address, self.remap) or ServerError(
            f"node {address} is in no cluster that holds slots", code="CLUSTERDOWN"
        )

    def nowhere(self, slot: int | None) -> StreamqError:
        if self._table is None or slot is None:
            return self._failure or ConnectionLostError("no node of the cluster answers", maybe_executed=False)
        return ServerError(f"slot {slot} is served by no node of the cluster", code="CLUSTERDOWN")

    def greet(self, address: Address, hello: Reply, *, is_guide: bool) -> StreamqError | None:
        del is_guide
        mode = said(hello, "mode")
        if mode in {"cluster", ""}:
            return None
        if mode == "sentinel":
            return ConfigurationError(f"{address} is a Sentinel: use redis+sentinel://{address}/NAME")
        return ConfigurationError(
            f"{address} is no node of a cluster but a server by itself: use redis://{address} instead of redis+cluster://"
        )


class SentinelBook(_Asked):
    """One server, the master of a name, of which Sentinels know where it is.

    Args:
        sentinels: Addresses of Sentinels.
        service: Name of the master.
        remap: Makes of the address that Sentinels tell one that can be reached from here.
    """

    spreads = False

    def __init__(
        self, sentinels: Sequence[Address], service: str, remap: Callable[[Address], Address] = lambda told: told
    ) -> None:
        super().__init__()
        self.remap = remap
        self._sentinels = tuple(sentinels)
        self._service = service
        self._master: Address | None = None

    def find(self, slot: int | None) -> Address | None:
        del slot
        return self._master

    def primaries(self) -> tuple[Address, ...]:
        return (self._master,) if self._master else ()

    def servers(self) -> tuple[Address, ...]:
        return self.primaries()

    def moved(self, slot: int, to: Address) -> None:
        """Nothing: such a server moves no slots."""

    def look(self, first: Address | None = None) -> Steps[StreamqError | None]:
        del first
        told: list[Address] = []
        for address in self._in_order((), self._sentinels):
            if told and address in self._doubted:
                break  # it would only keep us waiting
            asked = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._service)
            outcome = yield Send(address, [asked], limit_s=LOOK_S, is_guide=True)
            found = self._read(outcome, address)
            if isinstance(found, StreamqError):
                self._unheard(address, found)
                continue
            self.trust(address)
            told.append(found)
            if told[0] not in self._doubted:
                break
        if not told:
            return self._failure
        # One that does not answer may be the word of a Sentinel that is cut off from the others: most of them know better.
        found = max(told, key=lambda each: (told.count(each), each not in self._doubted))
        before, self._master = self.primaries(), found
        yield from self._learned(before, [found])
        yield from self._left(before, [found])
        return None

    def _read(self, outcome: Outcome, address: Address) -> Address | StreamqError:
        if isinstance(outcome, StreamqError):
            return outcome
        reply = _only(outcome)
        if isinstance(reply, Exception):
            return refused(reply, ())
        if reply is None:
            return ConfigurationError(f"Sentinel {address} knows no master named {self._service!r}")
        return self.remap(Address(text(reply[0]), int(reply[1])))

    def nowhere(self, slot: int | None) -> StreamqError:
        del slot
        return self._failure or ConnectionLostError("no Sentinel answers", maybe_executed=False)

    def greet(self, address: Address, hello: Reply, *, is_guide: bool) -> StreamqError | None:
        if is_guide:
            if said(hello, "mode") in {"sentinel", ""}:
                return None
            return ConfigurationError(f"{address} is no Sentinel: use redis://{address} instead of redis+sentinel://")
        if said(hello, "mode") == "cluster":
            return ConfigurationError(f"{address} is a node of a cluster: use redis+cluster://{address}")
        if said(hello, "role") in {"master", ""}:
            return None
        return ConnectionLostError(f"{address} is a replica, not the master of {self._service}", maybe_executed=False)


def _only(outcome: Outcome) -> Reply:
    """The reply to a step of one command."""
    assert isinstance(outcome, list)  # noqa: S101  # of Send
    return outcome[0]
