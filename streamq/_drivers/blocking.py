"""Runs plans over blocking connections."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import redis.exceptions as failures
from redis.connection import AbstractConnection

from streamq._drivers.exchange import HELLO, Greet, Wire, exchange, lost, pack
from streamq._drivers.replies import REFUSALS, take
from streamq._requests import Plan, Reply, Request, meanwhile_of
from streamq.errors import StreamqError

if TYPE_CHECKING:
    from streamq._drivers.steps import Address

T = TypeVar("T")


class Watch(NamedTuple):
    """What connections to one of several servers do more: they are made in a short time, and looked after."""

    reply_s: float
    """Longest wait for a reply, once a server has greeted us."""
    silence_s: float
    """After which a reply is overdue."""
    overdue: Callable[[], None]
    """What is done when a reply is overdue."""


class Connections:
    """Connections to one server; each request has one of its own while it waits, from any thread.

    A stack of redis-py connections instead of its pool: the pool's bookkeeping costs as much as a request, and its retries
    send again what may have happened. After a fork the child makes connections of its own.

    Args:
        connect: Makes a connection; it connects at first use.
        where: The server's address for messages, without credentials.
        greet: Says what speaks against the server, by its reply to HELLO.
        watch: Where there are several servers; without it only the first connection greets.
    """

    def __init__(
        self,
        connect: Callable[[], AbstractConnection],
        where: str,
        greet: Greet | None = None,
        watch: Watch | None = None,
    ) -> None:
        self._connect = connect
        self._where = where
        self._greet = greet
        self._watch = watch
        self._idle: deque[AbstractConnection] = deque()
        self._busy: set[AbstractConnection] = set()
        self._pid = os.getpid()

    def close(self) -> None:
        """Close the idle connections. A later request makes new ones."""
        with suppress(IndexError):  # others may take some meanwhile
            while self._idle:
                self._idle.pop().disconnect()

    def cut(self) -> None:
        """Break all connections, also those on which somebody waits."""
        self.close()
        for connection in list(self._busy):
            connection.disconnect()

    def exchange(
        self,
        commands: list[Wire],
        *,
        wait_ms: int = 0,
        limit_s: float | None = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> list[Reply]:
        """Send commands in one write, and return their replies.

        Args:
            commands: At least one.
            wait_ms: How long the server may let them wait.
            limit_s: Longest wait for a reply, where it is shorter than usual.
            meanwhile: Called before the replies are waited for.
        """
        connection = self._checkout()
        clean = False
        try:
            connection.send_packed_command([pack(commands)], check_health=False)
            if meanwhile is not None:
                meanwhile()
            if self._watch is not None:
                self._busy.add(connection)
            replies: list[Reply] = []
            while len(replies) < len(commands):
                replies.append(
                    _reply(connection)
                    if self._watch is None
                    else self._awaited(connection, self._watch, wait_ms, limit_s)
                )
                take(connection, replies, len(commands))
            clean = True
        except (failures.RedisError, OSError) as error:
            raise lost(error, self._where, sent=True) from error
        finally:
            self._busy.discard(connection)
            if not clean:
                connection.disconnect()  # whatever is still to come on it belongs to nobody
        self._idle.append(connection)
        return replies

    def _awaited(self, connection: AbstractConnection, watch: Watch, wait_ms: int, limit_s: float | None) -> Any:
        """A reply. While it is overdue, it is asked now and then whether the server has been replaced."""
        now = time.monotonic()
        until = now + (limit_s or watch.reply_s)
        pause = wait_ms / 1000 + watch.silence_s
        while True:
            is_last = limit_s is not None or now + pause >= until
            try:
                return _reply(connection, max(until - now, 0.001) if is_last else pause)
            except failures.TimeoutError:
                if is_last:
                    raise
            watch.overdue()
            now, pause = time.monotonic(), watch.silence_s

    def _checkout(self) -> AbstractConnection:
        if self._pid != os.getpid():
            self._idle, self._pid = deque(), os.getpid()  # the parent goes on using its sockets
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._connect()
        fit = False
        try:
            if connection.is_connected and _is_stale(connection):
                connection.disconnect()
                connection = self._connect()  # the timeouts of this one are not those for making a connection
            if not connection.is_connected:
                connection.connect()
                self._hail(connection)
            fit = True
        except (failures.RedisError, OSError) as error:
            raise lost(error, self._where, sent=False) from error
        finally:
            if not fit:
                connection.disconnect()
        return connection

    def _hail(self, connection: AbstractConnection) -> None:
        """See whether it is the right server that answers, and that it answers at all."""
        greet = self._greet
        if greet is None:
            return
        connection.send_packed_command([pack([HELLO])], check_health=False)
        wrong = greet(_reply(connection))
        if wrong is not None:
            raise wrong
        if self._watch is None:
            self._greet = None
        else:
            connection.socket_timeout = self._watch.reply_s
            connection.update_current_socket_timeout(-1)


class BlockingDriver:
    """Runs plans on one server, any number at once from any threads.

    Args:
        server: Connections to it.
    """

    def __init__(self, server: Connections) -> None:
        self._server = server

    @property
    def servers(self) -> tuple[Address, ...]:
        """Where there are several: all that are known by now."""
        return ()

    def whereabouts(self, slot: int) -> str:
        """Where there are several: which of them holds a slot, as far as is known by now."""
        del slot
        return ""

    def run(self, plan: Plan[T]) -> T:
        """Run `plan` to its end and return its result."""
        try:
            request = next(plan)
            while True:
                try:
                    reply = self._ask(request)
                except StreamqError as error:
                    request = plan.throw(error)
                else:
                    request = plan.send(reply)
        except StopIteration as stop:
            result: T = stop.value
            return result
        finally:
            plan.close()

    def close(self) -> None:
        """Close the idle connections. A later `run` makes new ones."""
        self._server.close()

    def _ask(self, request: Request) -> Reply:
        steps = exchange(request)
        commands = next(steps)
        meanwhile = meanwhile_of(request)
        while True:
            try:
                replies = self._server.exchange(commands, meanwhile=meanwhile)
            except StreamqError as error:
                steps.throw(error)
                raise
            meanwhile = None
            try:
                commands = steps.send(replies)
            except StopIteration as stop:
                return stop.value


def _is_stale(connection: AbstractConnection) -> bool:
    """Whether an idle connection was closed by the server meanwhile, or has a reply that nobody waits for."""
    try:
        return bool(connection.can_read())
    except (failures.RedisError, OSError):
        return True


def _reply(connection: AbstractConnection, limit_s: float | None = None) -> Any:
    try:
        if limit_s is None:
            return connection.read_response()
        return connection.read_response(timeout=limit_s, disconnect_on_error=False)
    except REFUSALS as error:
        return error
