"""What a driver is told to do for a request, where there are several servers: the steps of `streamq._drivers.routing`."""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple, TypeAlias, TypeVar

from streamq._drivers.exchange import Wire
from streamq._requests import Reply
from streamq.errors import StreamqError

T = TypeVar("T")


class Address(NamedTuple):
    """Where a server listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Send(NamedTuple):
    """Send commands in one write; the outcome is the list of their replies, or why there is none."""

    to: Address
    commands: list[Wire]
    wait_ms: int = 0
    limit_s: float | None = None
    """Longest wait for a reply, where it is shorter than usual."""
    is_guide: bool = False
    """Whether it goes to a Sentinel, which has a user and a password of its own."""


class Drop(NamedTuple):
    """Close the idle connections to a server: they are of no use any more."""

    to: Address


class Cut(NamedTuple):
    """Break all connections to a server, also those on which somebody waits: another has taken its place."""

    to: Address


class Sleep(NamedTuple):
    """Wait."""

    seconds: float


Step: TypeAlias = Send | Drop | Cut | Sleep
Outcome: TypeAlias = "list[Reply] | StreamqError | None"
Steps: TypeAlias = Generator[Step, Outcome, T]
