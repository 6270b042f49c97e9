"""What workers say of themselves (``T:workers``): each a time and JSON, read back as a type of the reader's choice."""

from __future__ import annotations

from typing import Final, Generic, NamedTuple, TypeVar

import msgspec

from streamq._requests import Command, Reply, text
from streamq.keys import Keys
from streamq.messages import MOST_MS

A = TypeVar("A")

SILENT_MS: Final = 10_000
"""A worker that did not beat for so long is dead, or stands still. They beat every 2 s."""


class Beat(NamedTuple, Generic[A]):
    """A worker's last sign of life, and what it says."""

    at_ms: int
    about: A

    def is_fresh(self, now_ms: int) -> bool:
        """Whether the worker has just beaten."""
        return now_ms - self.at_ms <= SILENT_MS


def beat_of(value: bytes, about: type[A]) -> Beat[A] | None:
    """A beat as it is stored, or None if it is none. What it says may be somebody else's: then it says nothing.

    Args:
        value: As it is stored.
        about: A struct of which everything may be missing.
    """
    at, _, rest = value.partition(b" ")
    if not at.isdigit() or len(at) > len(str(MOST_MS)):
        return None
    try:
        said = msgspec.json.decode(rest, type=about)
    except (msgspec.DecodeError, UnicodeDecodeError):
        said = about()
    return Beat(int(at), said)


def some_beats(keys: Keys, cursor: str, count: int, about: type[A]) -> Command[tuple[str, dict[str, Beat[A]]]]:
    """HSCAN from a cursor (0 is the first): the next one, 0 at the end, and some workers' beats by name."""

    def decode(reply: Reply) -> tuple[str, dict[str, Beat[A]]]:
        after, flat = reply
        pairs = zip(flat[::2], flat[1::2], strict=True)
        return text(after), {text(name): beat for name, value in pairs if (beat := beat_of(value, about)) is not None}

    return Command(("HSCAN", keys.workers, cursor, "COUNT", count), (keys.workers,), decode)
