"""Replies that have come already: taken out of hiredis' buffer all at once. No I/O.

redis-py's ``read_response`` costs one to two microseconds a reply, in asyncio three to four: as much as all else that a bulk
add does for a job. It is asked only for what is still to come. Where redis-py keeps its reader is not promised, so if that is
not found there, each reply is asked for.
"""

from __future__ import annotations

from typing import Any, Final

import hiredis
import redis.exceptions as failures

from streamq._requests import Reply

_PLAIN: Final = frozenset({bytes, int, list, type(None)})
"""What replies are in RESP2, if no error."""

REFUSALS: Final = (failures.ResponseError, failures.BusyLoadingError)
"""What a server says of a command, and not of the connection."""


def take(connection: Any, replies: list[Reply], count: int) -> None:
    """Add to `replies` those that `connection` has received, up to `count` in all.

    Raises:
        RedisError: The server's word on the connection itself.
    """
    reader = getattr(getattr(connection, "_parser", None), "_reader", None)
    if not isinstance(reader, hiredis.Reader):
        return
    while len(replies) < count:
        reply = reader.gets()
        if type(reply) not in _PLAIN:
            if isinstance(reply, REFUSALS):
                replies.append(reply)
                continue
            if isinstance(reply, Exception):
                raise reply
            return  # the sign that nothing more has come
        replies.append(reply)
