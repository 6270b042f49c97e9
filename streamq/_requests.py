"""What may be asked of the server, and the protocol between plans and drivers. No I/O here.

A *plan* is a generator function. It yields request values and gets each reply sent back in; what it returns is the
operation's result. The rules:

* a plan does no I/O, reads no clock, draws no random number: these come in as arguments;
* it yields nothing but the requests of this module, usually through `ask`;
* an error of the server is thrown in at the yield, already one of ours; a plan catches only what it can act on;
* it never yields in ``finally`` or on ``GeneratorExit``: a driver that is interrupted closes the plan;
* it keeps nothing between calls.

So a crash can be seen only between two requests: dropping a plan after every request tries every crash there is, and
stepping several plans in every order tries every race. ``tests/faults`` does both.

Every request names the keys it touches; all of one request share one hash tag, so each fits one slot.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec

from streamq.errors import StreamqError

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

Arg: TypeAlias = str | bytes | int
Reply: TypeAlias = Any
"""As RESP2 has it: bytes, int, None, nested lists; inside a pipeline also a `StreamqError` in an element's place."""


class Command(msgspec.Struct, Generic[T_co], frozen=True, eq=False, gc=False):
    """One command, spelled as in redis-cli. The server may let it wait for `wait_ms`; a driver can cut that short."""

    args: tuple[Arg, ...]
    keys: tuple[str, ...]
    decode: Callable[[Reply], T_co]
    wait_ms: int = 0


class Script(msgspec.Struct, Generic[T_co], frozen=True, eq=False, gc=False):
    """One call of ``lua/<name>.lua``. Made by `streamq._scripts` only.

    A driver may call `meanwhile` once, while the server works; it must not raise, nor count on being called.
    """

    name: str
    keys: tuple[str, ...]
    argv: tuple[Arg, ...]
    decode: Callable[[Reply], T_co]
    meanwhile: Callable[[], None] | None = None


@dataclass(frozen=True, slots=True)
class Pipeline(Generic[T_co]):
    """Several requests in one write. Not atomic: an element may fail by itself, its reply is then a `ServerError`.

    `meanwhile` is as in a `Script`; that of an element is never called.
    """

    requests: tuple[Command[T_co] | Script[T_co], ...]
    meanwhile: Callable[[], None] | None = None


@dataclass(frozen=True, slots=True)
class Transaction(Generic[T_co]):
    """Several requests in one MULTI/EXEC: others see all of them or none. An element's error does not undo the rest."""

    requests: tuple[Command[T_co] | Script[T_co], ...]


@dataclass(frozen=True, slots=True)
class Confirmed:
    """A write, and behind it on the same connection the command that waits until others have it.

    Its reply is a pair: that of the write, and that of `wait`, which may be a `StreamqError`. If the write fails, that is the
    reply, as without the wait.
    """

    request: Command[Any] | Script[Any] | Pipeline[Any] | Transaction[Any]
    wait: tuple[Arg, ...]


Request: TypeAlias = Command[Any] | Script[Any] | Pipeline[Any] | Transaction[Any] | Confirmed
Plan: TypeAlias = Generator[Request, Reply, T]

_ENTRY_ID = re.compile(r"([0-9]{1,20})-([0-9]{1,20})")


def text(raw: bytes) -> str:
    """A name or an ID out of a reply. What was not written by us is shown, not trusted."""
    return raw.decode("utf-8", "backslashreplace")


def texts(reply: Reply) -> list[str]:
    """A reply of many names or IDs."""
    return [text(item) for item in reply]


def entry_order(entry_id: str) -> tuple[int, int]:
    """Sort key: entry IDs are two numbers, not text."""
    ms, _, seq = entry_id.partition("-")
    return int(ms), int(seq)


def is_entry_id(value: str) -> bool:
    """Whether a text is an entry ID: for others the server's commands raise an error."""
    found = _ENTRY_ID.fullmatch(value)
    return found is not None and max(int(found[1]), int(found[2])) < 2**64


def scan(cursor: str, *options: Arg) -> Command[tuple[str, list[str]]]:
    """SCAN from a cursor (0 is the first): the next one, 0 at the end, and keys. It names none: it goes through all."""

    def decode(reply: Reply) -> tuple[str, list[str]]:
        after, found = reply
        return text(after), texts(found)

    return Command(("SCAN", cursor, *options), (), decode)


class Pending(msgspec.Struct, frozen=True):
    """A delivery as the server has it."""

    entry_id: str
    idle_ms: int
    count: int


def pending_of(stream: str, group: str, consumer: str, *, count: int, after: str = "") -> Command[list[Pending]]:
    """XPENDING: up to `count` deliveries that a consumer holds, in order of their IDs, behind the ID `after`."""

    def decode(reply: Reply) -> list[Pending]:
        return [Pending(text(entry_id), idle_ms, times) for entry_id, _, idle_ms, times in reply]

    first = f"({after}" if after else "-"
    return Command(("XPENDING", stream, group, first, "+", count, consumer), (stream,), decode)


def rows(reply: Reply) -> list[dict[str, Any]]:
    """A reply of XINFO: its rows by name."""
    return [named(row) for row in reply]


def named(row: Reply) -> dict[str, Any]:
    """Flat names and values, by name."""
    return {text(row[i]): row[i + 1] for i in range(0, len(row), 2)}


def named_texts(reply: Reply) -> dict[str, str]:
    """The fields of a hash of which all are text, by name."""
    return {name: text(value) for name, value in named(reply).items()}


def lines_by_name(reply: Reply) -> dict[str, str]:
    """A reply of lines ``name:value``, as INFO gives it, by name."""
    return dict(line.split(":", 1) for line in text(reply).splitlines() if ":" in line)


def said(hello: Reply, name: str) -> str:
    """A word of a server's reply to HELLO; empty where it does not say it, or is no such reply."""
    if not isinstance(hello, list):
        return ""
    word = named(hello).get(name)
    return text(word) if isinstance(word, bytes) else ""


def groups_of(stream: str) -> Command[list[dict[str, Any]]]:
    """XINFO GROUPS: a stream's groups, by the names of what it says of each."""
    return Command(("XINFO", "GROUPS", stream), (stream,), rows)


def consumers_of(stream: str, group: Arg) -> Command[list[dict[str, Any]]]:
    """XINFO CONSUMERS: as `groups_of`, of the consumers of a group."""
    return Command(("XINFO", "CONSUMERS", stream, group), (stream,), rows)


def server_ms(*keys: str) -> Command[int]:
    """TIME: the server's clock in ms. `keys` say which server is meant."""

    def decode(reply: Reply) -> int:
        return int(reply[0]) * 1000 + int(reply[1]) // 1000

    return Command(("TIME",), keys, decode)


def meanwhile_of(request: Request) -> Callable[[], None] | None:
    """What can be done while the server works on it."""
    return request.meanwhile if isinstance(request, Script | Pipeline) else None


def ignore(reply: Reply) -> None:
    """Decodes what tells nothing."""
    del reply


def ask(request: Command[T] | Script[T]) -> Plan[T]:
    """Yield `request` and decode its reply."""
    return request.decode((yield request))


def through(plan: Plan[T], asked: Callable[[Request], Plan[Reply]]) -> Plan[T]:
    """Run `plan`, each of its requests by way of another plan. What fails there fails in it, as if the request had."""
    try:
        request = next(plan)
        while True:
            try:
                reply = yield from asked(request)
            except StreamqError as error:
                request = plan.throw(error)
            else:
                request = plan.send(reply)
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        plan.close()


def ask_each(request: Pipeline[T] | Transaction[T]) -> Plan[list[T | Exception]]:
    """Yield `request` and decode each element's reply; an element that failed is its exception."""
    replies = yield request
    return [
        reply if isinstance(reply, Exception) else part.decode(reply)
        for part, reply in zip(request.requests, replies, strict=True)
    ]
