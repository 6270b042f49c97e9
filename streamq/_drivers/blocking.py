"""Runs plans over blocking connections."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

import redis.exceptions as failures
from redis.connection import AbstractConnection

from streamq._drivers.exchange import Wire, exchange, lost, pack
from streamq._requests import Plan, Reply, Request
from streamq.errors import StreamqError

T = TypeVar("T")


class BlockingDriver:
    """Runs plans, any number at once from any threads; each uses a connection of its own while it waits.

    A stack of redis-py connections instead of its pool: the pool's bookkeeping costs as much as a request, and its retries
    send again what may have happened. After a fork the child makes connections of its own.

    Args:
        connect: Makes a connection; it connects at first use.
        where: The server's address for messages, without credentials.
    """

    def __init__(self, connect: Callable[[], AbstractConnection], where: str) -> None:
        self._connect = connect
        self._where = where
        self._idle: deque[AbstractConnection] = deque()
        self._pid = os.getpid()

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
        while self._idle:
            self._idle.pop().disconnect()

    def _ask(self, request: Request) -> Reply:
        steps = exchange(request)
        commands = next(steps)
        while True:
            replies = self._exchange(commands)
            try:
                commands = steps.send(replies)
            except StopIteration as stop:
                return stop.value

    def _exchange(self, commands: list[Wire]) -> list[Reply]:
        connection = self._checkout()
        clean = False
        try:
            connection.send_packed_command([pack(commands)], check_health=False)
            replies = [_reply(connection) for _ in commands]
            clean = True
        except (failures.RedisError, OSError) as error:
            raise lost(error, self._where, sent=True) from error
        finally:
            if not clean:
                connection.disconnect()  # whatever is still to come on it belongs to nobody
        self._idle.append(connection)
        return replies

    def _checkout(self) -> AbstractConnection:
        if self._pid != os.getpid():
            self._idle, self._pid = deque(), os.getpid()  # the parent goes on using its sockets
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._connect()
        try:
            if connection.is_connected and _is_stale(connection):
                connection.disconnect()
            connection.connect()
        except (failures.RedisError, OSError) as error:
            connection.disconnect()
            raise lost(error, self._where, sent=False) from error
        return connection


def _is_stale(connection: AbstractConnection) -> bool:
    """Whether an idle connection was closed by the server meanwhile, or has a reply that nobody waits for."""
    try:
        return bool(connection.can_read())
    except (failures.RedisError, OSError):
        return True


def _reply(connection: AbstractConnection) -> Any:
    try:
        return connection.read_response()
    except (failures.ResponseError, failures.BusyLoadingError) as error:
        return error
