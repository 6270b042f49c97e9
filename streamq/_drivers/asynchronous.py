"""Runs plans over asyncio connections."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import redis.exceptions as failures
from redis.asyncio.connection import AbstractConnection

from streamq._drivers.exchange import HELLO, Greet, Wire, exchange, lost, pack
from streamq._drivers.replies import REFUSALS, take
from streamq._requests import Command, Plan, Reply, Request, meanwhile_of
from streamq.errors import ConfigurationError, StreamqError

T = TypeVar("T")


class AsyncWatch(NamedTuple):
    """What connections to one of several servers do more: they are made in a short time, and looked after."""

    hail_s: float
    """Longest wait for a connection, and for the server's first word on it."""
    silence_s: float
    """After which a reply is overdue."""
    overdue: Callable[[], Coroutine[Any, Any, None]]
    """What is done when a reply is overdue."""


class AsyncConnections:
    """Connections to one server; each request has one of its own while it waits, in one event loop.

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
        watch: AsyncWatch | None = None,
    ) -> None:
        self._connect = connect
        self._where = where
        self._greet = greet
        self._watch = watch
        self._idle: deque[AbstractConnection] = deque()
        self._busy: set[AbstractConnection] = set()
        self._asking: asyncio.Task[None] | None = None
        self._client_ids: WeakKeyDictionary[AbstractConnection, int | None] = WeakKeyDictionary()
        self._waiting: set[AbstractConnection] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = os.getpid()

    async def drop(self) -> None:
        """Close the idle connections."""
        while self._idle and self._is_at_home():
            await self._idle.pop().disconnect(nowait=True)

    async def cut(self) -> None:
        """Break all connections, also those on which somebody waits."""
        await self.drop()
        for connection in list(self._busy) if self._is_at_home() else ():
            await connection.disconnect(nowait=True)

    async def aclose(self) -> None:
        """Close the idle connections. A later request makes new ones, in whichever event loop it comes."""
        if self._asking is not None and self._loop is asyncio.get_running_loop():
            self._asking.cancel()
            await asyncio.wait([self._asking])
        self._asking = None
        while self._idle:
            await self._idle.pop().disconnect()
        self._loop = None

    async def interrupt(self) -> bool:
        """Let commands that wait on the server be answered at once; see `AsyncDriver.interrupt`."""
        ids = [self._client_ids.get(connection) for connection in self._waiting]
        commands: list[Wire] = [("CLIENT", "UNBLOCK", number) for number in ids if number is not None]
        if not commands:
            return not ids
        return not any(isinstance(reply, Exception) for reply in await self.exchange(commands))

    async def exchange(
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
            limit_s: Longest wait for all of it, where it is shorter than usual.
            meanwhile: Called before the replies are waited for.
        """
        connection = await self._checkout()
        alarm = None
        if self._watch is not None and limit_s is None:
            alarm = _Alarm(self._overdue, wait_ms / 1000, self._watch.silence_s)
        clean = False
        try:
            self._busy.add(connection)
            if limit_s is None:
                replies = await self._converse(connection, commands, wait_ms, meanwhile)
            else:
                async with asyncio.timeout(limit_s):
                    replies = await self._converse(connection, commands, wait_ms, meanwhile)
            clean = True
        except (failures.RedisError, OSError) as error:
            raise lost(error, self._where, sent=True) from error
        finally:
            self._busy.discard(connection)
            self._waiting.discard(connection)
            if alarm is not None:
                alarm.stop()
            if not clean:
                await connection.disconnect(nowait=True)  # whatever is still to come on it belongs to nobody
        self._idle.append(connection)
        return replies

    async def _converse(
        self,
        connection: AbstractConnection,
        commands: list[Wire],
        wait_ms: int,
        meanwhile: Callable[[], None] | None,
    ) -> list[Reply]:
        if wait_ms:
            await self._expect_to_wait(connection)
        await _send(connection, commands)
        if meanwhile is not None:
            meanwhile()
        replies: list[Reply] = []
        while len(replies) < len(commands):
            replies.append(await _reply(connection, wait_ms))
            take(connection, replies, len(commands))
        return replies

    def _overdue(self) -> None:
        """A reply is overdue: ask whether the server has been replaced, if nobody is asking already."""
        if self._watch is not None and (self._asking is None or self._asking.done()):
            self._asking = asyncio.get_running_loop().create_task(self._watch.overdue())

    async def _expect_to_wait(self, connection: AbstractConnection) -> None:
        """Learn by which number the server knows this connection, once, so that `interrupt` can name it."""
        if connection not in self._client_ids:
            await _send(connection, [("CLIENT", "ID")])
            number = await _reply(connection)
            self._client_ids[connection] = number if isinstance(number, int) else None
        self._waiting.add(connection)

    async def _checkout(self) -> AbstractConnection:
        self._enter_loop()
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._connect()
        fit = False
        try:
            if connection.is_connected and await _is_stale(connection):
                await connection.disconnect(nowait=True)
            if not connection.is_connected:
                self._client_ids.pop(connection, None)
                async with asyncio.timeout(self._watch and self._watch.hail_s):
                    await connection.connect()
                    await self._hail(connection)
            fit = True
        except (failures.RedisError, OSError) as error:
            raise lost(error, self._where, sent=False) from error
        finally:
            if not fit:
                await connection.disconnect(nowait=True)
        return connection

    async def _hail(self, connection: AbstractConnection) -> None:
        """See whether it is the right server that answers, and that it answers at all."""
        greet = self._greet
        if greet is None:
            return
        await _send(connection, [HELLO])
        wrong = greet(await _reply(connection))
        if wrong is not None:
            raise wrong
        if self._watch is None:
            self._greet = None

    def _is_at_home(self) -> bool:
        """Whether the connections are of this event loop: those of one that has ended cannot even be closed."""
        return self._loop is asyncio.get_running_loop() and self._pid == os.getpid()

    def _enter_loop(self) -> None:
        if self._is_at_home():
            return
        if self._idle and self._pid == os.getpid():
            raise ConfigurationError(
                "this stream was used in another event loop: call `await stream.aclose()` before that loop ends, "
                "or make one stream per loop"
            )
        self._idle, self._loop, self._pid = deque(), asyncio.get_running_loop(), os.getpid()
        self._busy, self._waiting, self._asking = set(), set(), None


class _Alarm:
    """Rings when a reply is overdue, and then again and again, until it is stopped."""

    def __init__(self, ring: Callable[[], None], wait_s: float, silence_s: float) -> None:
        self._bell = ring
        self._silence_s = silence_s
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(wait_s + silence_s, self._ring)

    def _ring(self) -> None:
        self._bell()
        self._timer = self._loop.call_later(self._silence_s, self._ring)

    def stop(self) -> None:
        self._timer.cancel()


class AsyncDriver:
    """Runs plans on one server, any number at once, in one event loop.

    Args:
        server: Connections to it.
    """

    def __init__(self, server: AsyncConnections) -> None:
        self._server = server

    async def run(self, plan: Plan[T]) -> T:
        """Run `plan` to its end and return its result. Cancelled while it waits for a reply, the request may have happened."""
        try:
            request = next(plan)
            while True:
                try:
                    reply = await self._ask(request)
                except StreamqError as error:
                    request = plan.throw(error)
                else:
                    request = plan.send(reply)
        except StopIteration as stop:
            result: T = stop.value
            return result
        finally:
            plan.close()

    async def aclose(self) -> None:
        """Close the idle connections. A later `run` makes new ones, in whichever event loop it runs."""
        await self._server.aclose()

    async def interrupt(self) -> bool:
        """Let commands that wait on the server be answered at once, as if their time were over, so that no reply is lost.

        Returns:
            False if the server does not let us: the user may not run CLIENT UNBLOCK, or CLIENT ID.
        """
        return await self._server.interrupt()

    async def _ask(self, request: Request) -> Reply:
        steps = exchange(request)
        commands = next(steps)
        wait_ms = request.wait_ms if isinstance(request, Command) else 0
        meanwhile = meanwhile_of(request)
        while True:
            try:
                replies = await self._server.exchange(commands, wait_ms=wait_ms, meanwhile=meanwhile)
            except StreamqError as error:
                steps.throw(error)
                raise
            meanwhile = None
            try:
                commands = steps.send(replies)
            except StopIteration as stop:
                return stop.value


async def _is_stale(connection: AbstractConnection) -> bool:
    """Whether an idle connection was closed by the server meanwhile, or has a reply that nobody waits for."""
    try:
        return bool(await connection.can_read())
    except (failures.RedisError, OSError):
        return True


async def _send(connection: AbstractConnection, commands: list[Wire]) -> None:
    task = asyncio.current_task()
    asked = task.cancelling() if task else 0
    await connection.send_packed_command(pack(commands), check_health=False)
    # redis-py sends in wait_for, which up to Python 3.11 forgets that it was cancelled when that comes just as it ends.
    if task and task.cancelling() > asked:
        raise asyncio.CancelledError


async def _reply(connection: AbstractConnection, wait_ms: int = 0) -> Any:
    try:
        if not wait_ms:
            return await connection.read_response()
        limit_s = max(connection.socket_timeout or 0.0, wait_ms / 1000 + 1)
        # redis-py's own limit, if one is given, passes silence for a reply: so it comes second.
        async with asyncio.timeout(limit_s):
            return await connection.read_response(timeout=limit_s + 60)
    except REFUSALS as error:
        return error
