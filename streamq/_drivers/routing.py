"""The way of a request to the server that it is for, and what is done when it is refused there: no I/O, no colour.

`travel` is a generator like `exchange`: it yields steps and gets their outcomes. All rules are here:

* MOVED: note it, look around, send it to where it belongs. ASK: send it there this once, with ASKING.
* TRYAGAIN, CLUSTERDOWN, LOADING, MASTERDOWN, READONLY, UNBLOCKED: it was not run. Look around, wait, send it again.
* A server that cannot be reached: nothing was sent. The same. But if nobody is there from the first, that is said at once.
* A connection lost after sending: it may have happened. It is never sent again; the next request looks around first.

What was refused is sent again until the patience is over. Of a pipeline only those elements that were refused are, a
transaction as a whole, or not at all.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final, TypeGuard

import redis.exceptions as failures

from streamq._drivers.books import Book
from streamq._drivers.exchange import exchange, part_was_run
from streamq._drivers.parcel import WAITS, Parcel
from streamq._drivers.slots import known
from streamq._drivers.steps import Address, Drop, Send, Sleep, Steps
from streamq._requests import Command, Confirmed, Pipeline, Reply, Request, Transaction
from streamq.errors import ConnectionLostError, ServerError, StreamqError
from streamq.keys import slot_of

PATIENCE_S: Final = 20.0
"""How long is sent again what was certainly not run: a cluster needs its node timeout (15 s by default) and some two
seconds to replace a primary that is gone. Who has more patience calls again, as workers do for ever."""

HOPS: Final = 5
"""How many redirects are followed at once; from then on each is waited for a little, as the nodes do not agree."""

FIRST_WAIT_S: Final = 0.01
SILENCE_S: Final = 1.0
"""After which a reply is overdue, and others are asked, again and again, whether the server has been replaced."""

LONGEST_WAIT_S: Final = 0.5
"""Between tries: short enough that nobody sees much more of an outage than there is of it."""

_ELSEWHERE: Final = frozenset({"CLUSTERDOWN", "LOADING", "MASTERDOWN", "READONLY", "UNBLOCKED"})
"""Said by servers that others may have replaced."""


def travel(
    request: Request,
    book: Book,
    *,
    now: Callable[[], float],
    patience_s: float = PATIENCE_S,
    draw: Callable[[], float] = random.random,
) -> Steps[Reply]:
    """Bring `request` to where it is answered, and return its reply.

    Args:
        request: Any, with keys of one slot, or a `Pipeline` with elements of several.
        book: Who is where; shared.
        now: A clock, in seconds.
        patience_s: How long to send again what was not run.
        draw: Gives a number from 0 to 1, so that those who wait do not wait in step.
    """
    return _Journey(book, now, now() + patience_s, draw).run(request)


def inquire(book: Book, silent: Address, *, now: Callable[[], float]) -> Steps[None]:
    """Ask whether a server that says nothing has been replaced. If so, nobody waits for it any longer."""
    book.doubt(silent, is_silent=True)
    if book.may_look(now()):
        yield from book.look()


class _Journey:
    """One request on its way."""

    def __init__(self, book: Book, now: Callable[[], float], until: float, draw: Callable[[], float]) -> None:
        self._book = book
        self._now = now
        self._until = until
        self._draw = draw
        self._tries = 0

    def run(self, request: Request) -> Steps[Reply]:
        if not self._book.spreads:
            return (yield from self._carry(request, None))
        if isinstance(request, Pipeline):
            return (yield from self._split(request))
        if _is_scan(request):
            [reply] = yield from self._scan(request)
            if isinstance(reply, Exception):
                raise reply
            return reply
        return (yield from self._carry(request, _slot(request)))

    # Requests of more than one server

    def _split(self, request: Pipeline[Any]) -> Steps[Reply]:
        """A pipeline's elements slot by slot, in their order; nearly always it is one slot.

        Of several, those that cannot be reached fail by themselves.
        """
        parts = request.requests
        slots = [-1 - at if _is_scan(part) else _slot(part) for at, part in enumerate(parts)]  # a SCAN goes alone
        replies: list[Reply] = [None] * len(slots)
        for slot in dict.fromkeys(slots):
            some = [at for at, each in enumerate(slots) if each == slot]
            first = parts[some[0]]
            try:
                if _is_scan(first):
                    answers = yield from self._scan(first)
                else:
                    answers = yield from self._carry(Pipeline(tuple(parts[at] for at in some)), slot)
            except (ConnectionLostError, ServerError) as error:
                if len(some) == len(parts):
                    raise
                answers = [error] * len(some)
            for at, reply in zip(some, answers, strict=True):
                replies[at] = reply
        return replies

    def _scan(self, request: Command[Any]) -> Steps[list[Reply]]:
        """A SCAN through all servers, one after the other: the cursor that others see names the server, too."""
        cursor, _, name = str(request.args[1]).partition("@")
        while True:
            yield from self._find(None)
            primaries = self._book.primaries()
            at = next((each for each in primaries if str(each) == name), None)
            if at is None:
                # Its keys are elsewhere now, and may be on one that was looked through: begin anew, so that none is missed.
                at, cursor = primaries[0], "0"
            here = Command(("SCAN", cursor, *request.args[2:]), (), request.decode)
            try:
                [reply] = yield from self._carry(Pipeline((here,)), None, at)
            except _GoneError:
                continue
            if isinstance(reply, Exception):
                return [reply]
            after, found = reply
            if int(after):
                return [[b"%d@%s" % (int(after), str(at).encode()), found]]
            following = next((each for each in self._book.primaries() if each > at), None)
            return [[b"0" if following is None else b"0@%s" % str(following).encode(), found]]

    # Requests of one server

    def _carry(self, request: Request, slot: int | None, fixed: Address | None = None) -> Steps[Reply]:
        """A request to who holds `slot`, or to the server `fixed` as long as there is one."""
        steps = exchange(request)
        commands = next(steps)
        write = request.request if isinstance(request, Confirmed) else request
        parts = write.requests if isinstance(write, Pipeline) else (write,)
        wait_ms = sum(part.wait_ms for part in parts if isinstance(part, Command))
        while True:
            parcel = Parcel(
                commands, is_whole=isinstance(write, Transaction), is_confirmed=isinstance(request, Confirmed)
            )
            try:
                yield from self._deliver(parcel, slot, fixed, wait_ms)
            except StreamqError as error:
                steps.throw(part_was_run(error) if parcel.is_begun else error)
                raise
            try:
                commands = steps.send(parcel.replies())
            except StopIteration as stop:
                return stop.value

    def _deliver(self, parcel: Parcel, slot: int | None, fixed: Address | None, wait_ms: int) -> Steps[None]:
        """Send commands until none is refused, or the patience is over."""
        hops = 0
        while True:
            to = parcel.asking or (yield from self._find(slot, fixed))
            outcome = yield Send(to, parcel.packed(), wait_ms)
            if not isinstance(outcome, list):
                yield from self._failed(to, outcome, parcel)
                continue
            self._book.trust(to)
            refusals = parcel.take(outcome)
            if not refusals:
                return
            _, code, error = refusals[0]
            if isinstance(error, failures.AskError):  # MOVED is one, too
                hops += 1
                where = self._book.remap(known(error.host, error.port, to))
                if code == "ASK":
                    parcel.ask(where, refusals)
                else:
                    yield from self._moved(error.slot_id, where)
                if hops <= HOPS:
                    continue
            elif code in _ELSEWHERE:
                self._book.doubt(to)
                yield Drop(to)
            if not (yield from self._pause()):
                return

    def _moved(self, slot: int, to: Address) -> Steps[None]:
        self._book.moved(slot, to)
        self._book.is_stale = True  # seldom has it moved alone
        if self._book.may_look(self._now()):
            yield from self._book.look(to)

    def _failed(self, to: Address, error: StreamqError | None, parcel: Parcel) -> Steps[None]:
        """A server did not answer: wait if that is harmless, else say so."""
        assert error is not None  # noqa: S101  # of Send
        is_lost = isinstance(error, ConnectionLostError)
        if not is_lost and not (isinstance(error, ServerError) and error.code in WAITS):
            raise error
        self._book.doubt(to, is_silent=is_lost)
        yield Drop(to)
        parcel.turn_back()
        if isinstance(error, ConnectionLostError) and error.maybe_executed:
            raise error
        if not (yield from self._pause()):
            raise error

    def _find(self, slot: int | None, fixed: Address | None = None) -> Steps[Address]:
        while True:
            failure = None
            if self._book.is_stale and self._book.may_look(self._now()):
                failure = yield from self._book.look()
            if failure is not None and not self._book.primaries():
                raise failure  # at first sight a wrong address is likelier than an outage
            found = self._book.find(slot)
            if found is not None:
                if fixed is None:
                    return found
                if fixed in self._book.primaries():
                    return fixed
                raise _GoneError
            self._book.is_stale = True
            if not (yield from self._pause()):
                raise self._book.nowhere(slot)

    def _pause(self) -> Steps[bool]:
        """Wait a little, longer each time; False if the patience is over."""
        left = self._until - self._now()
        if left <= 0:
            return False
        wait = min(FIRST_WAIT_S * 2 ** min(self._tries, 10), LONGEST_WAIT_S)
        self._tries += 1
        yield Sleep(min(wait * (0.5 + self._draw() / 2), left))
        return True


class _GoneError(Exception):
    """The server that was meant holds no keys any more."""


def _slot(request: Request) -> int | None:
    """Where a request's keys lie: all of one request lie in one slot. None without keys."""
    write = request.request if isinstance(request, Confirmed) else request
    first = write.requests[0] if isinstance(write, Transaction | Pipeline) else write
    return slot_of(first.keys[0]) if first.keys else None


def _is_scan(request: Request) -> TypeGuard[Command[Any]]:
    return isinstance(request, Command) and request.args[0] == "SCAN" and not request.keys
