"""Which streams have keys of the previous layout. Nothing is written, and no value is read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from streamq._requests import Command, Pipeline, Plan, ask, ask_each, said, scan
from streamq.keys import Keys, deployment_pattern, owner_of

PAGE: Final = 1_000
"""Keys of the server that are looked at in one request."""


@dataclass
class Found:
    """Keys of one stream in the previous layout.

    Attributes:
        keys: How many there are.
        data: How many of them effects have written.
    """

    keys: int = 0
    data: int = 0


@dataclass
class Discovered:
    """Streams of a deployment that have some, by name."""

    streams: dict[str, Found] = field(default_factory=dict)

    @property
    def keys(self) -> int:
        """How many keys there are of all."""
        return sum(found.keys for found in self.streams.values())


def discover(deployment: str | None) -> Plan[Discovered]:
    """All of them. One request per 1,000 keys of the server: without a tag no list says where they are.

    A key counts only if its whole name is one that streamq makes: others may have names that begin alike.
    """
    found = Discovered()
    seen: set[str] = (
        set()
    )  # SCAN may name a key twice; of effects' keys there may be many, so those are only counted about
    cursor = "0"
    while True:
        cursor, keys = yield from ask(scan(cursor, "MATCH", deployment_pattern(deployment), "COUNT", PAGE))
        for key in keys:
            owner = owner_of(key, deployment)
            if owner is None or owner[1]:
                continue
            stream = found.streams.setdefault(owner[0], Found())
            if Keys(owner[0], deployment).untagged.is_open_ended(key):
                stream.data += 1
                stream.keys += 1
            elif key not in seen:
                seen.add(key)
                stream.keys += 1
        if cursor == "0":
            found.streams = dict(sorted(found.streams.items()))
            return found


def mode(*, of: str | None = None) -> Command[str]:
    """HELLO: what the server says it is, ``standalone`` or ``cluster``; of a cluster the node that has the key `of`."""
    return Command(("HELLO",), () if of is None else (of,), lambda hello: said(hello, "mode"))


def is_cluster() -> Plan[bool]:
    """Whether the server says that it is a node of a cluster. One request."""
    [word] = yield from ask_each(Pipeline((mode(),)))
    return word == "cluster"  # a proxy that does not know the command is none
