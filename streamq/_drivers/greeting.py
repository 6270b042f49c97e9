"""What a server says of itself when it greets us: its reply to HELLO, which no ACL can deny."""

from __future__ import annotations

from streamq._requests import Reply, said
from streamq.errors import ConfigurationError, StreamqError


def greet_plain(where: str, hello: Reply) -> StreamqError | None:
    """What speaks against using a server by itself, at the address `where`."""
    match said(hello, "mode"):
        case "cluster":
            return ConfigurationError(f"{where} is a node of a cluster: use a redis+cluster:// URL instead of redis://")
        case "sentinel":
            return ConfigurationError(
                f"{where} is a Sentinel, which holds no data: use redis+sentinel://HOST:PORT/NAME instead of redis://"
            )
    return None
