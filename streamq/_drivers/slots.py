"""Who holds which slot of a cluster, by a node's word."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from streamq._drivers.steps import Address
from streamq._requests import Reply, named, text

SLOTS: Final = 16_384

_UNKNOWN: Final = frozenset({"", "?"})
"""Instead of a host: the node knows no name for it, or means itself."""


class SlotTable:
    """For each slot its primary. Changed only slot by slot; a new word makes a new table.

    Attributes:
        primaries: All that hold slots, in an order of their own.
        nodes: Those and their replicas.
    """

    def __init__(self, owners: list[Address | None], replicas: Sequence[Address] = ()) -> None:
        self._owners = owners
        self.primaries: tuple[Address, ...] = tuple(sorted({each for each in owners if each is not None}))
        self.nodes: tuple[Address, ...] = tuple(dict.fromkeys((*self.primaries, *replicas)))

    def owner(self, slot: int) -> Address | None:
        """Who holds `slot`; None if nobody does."""
        return self._owners[slot]

    def moved(self, slot: int, to: Address) -> None:
        """`slot` lies elsewhere now. Its old primary stays known until the next word of a node."""
        self._owners[slot] = to
        if to not in self.primaries:
            self.primaries = tuple(sorted((*self.primaries, to)))
            self.nodes = tuple(dict.fromkeys((*self.nodes, to)))

    @property
    def uncovered(self) -> int:
        """How many slots nobody holds."""
        return self._owners.count(None)


def table_of(reply: Reply, asked: Address, remap: Callable[[Address], Address]) -> SlotTable | None:
    """The table out of a reply of CLUSTER SLOTS; None where the node knows of no slot at all.

    Args:
        reply: As RESP2 has it.
        asked: Whom the reply is from: it may leave out its own host.
        remap: Makes of an address in the reply one that can be reached from here.
    """
    owners: list[Address | None] = [None] * SLOTS
    replicas: list[Address] = []
    for first, last, primary, *others in reply:
        owners[first : last + 1] = [remap(_address(primary, asked))] * (last + 1 - first)
        replicas += [remap(_address(each, asked)) for each in others]
    table = SlotTable(owners, replicas)
    return table if table.primaries else None


def _address(node: Sequence[Any], asked: Address) -> Address:
    name, port, _, *about = node
    host = text(name) if name is not None else ""
    if host == "?" and about:  # from 7.0 on: the cluster prefers names, and has heard none of this node
        host = text(named(about[0]).get("ip") or b"")
    return known(host, int(port), asked)


def known(host: str, port: int, asked: Address) -> Address:
    """An address out of a reply of `asked`."""
    return Address(asked.host if host in _UNKNOWN else host, port)
