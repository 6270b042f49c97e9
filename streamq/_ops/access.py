"""Can the server, and may the user, do what streamq needs? Asked before the first job is touched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeVar

from streamq import _scripts
from streamq._requests import Command, Pipeline, Plan, Reply, Transaction, ask, ask_each, ignore, texts
from streamq._spec import Spec
from streamq.errors import ConfigurationError, ServerError, ServerTooOldError

T = TypeVar("T")

PRODUCER: Final = (
    "XADD", "XRANGE", "XPENDING", "XLEN", "XINFO GROUPS", "HGET", "HMGET", "HSET", "HDEL", "TYPE", "EXISTS", "UNLINK",
    "PEXPIREAT", "TIME", "ZSCORE",
)  # fmt: skip
"""Commands of the scripts of who adds jobs with IDs, or to a stream with `max_ready`."""

SCHEDULER: Final = (*PRODUCER, "ZRANGE", "ZADD", "ZREM")
"""Of who adds jobs that wait for their time."""

OPERATOR: Final = (*SCHEDULER, "XDEL", "HEXISTS", "HINCRBY")
"""Of who cancels, redrives, purges, and changes what is scheduled."""

READER: Final = (
    *OPERATOR, "XREADGROUP", "XACK", "XCLAIM", "XAUTOCLAIM", "XTRIM", "XREVRANGE", "XREAD",
    "HGETALL", "HSCAN", "HLEN", "ZCARD", "ZRANGEBYSCORE", "XINFO CONSUMERS", "XGROUP DELCONSUMER", "SET", "GET", "PEXPIRE",
)  # fmt: skip
"""Of who reads and settles, maintenance included."""

EFFECTS: Final = (
    "HSET", "HINCRBY", "INCRBY", "SET", "SADD", "SREM", "ZADD", "ZREM", "RPUSH", "XADD", "DEL", "EXPIRE", "XINFO STREAM",
)  # fmt: skip
"""Of the effects that handlers may have; XADD asks first whether the stream takes another entry."""

VIEWER: Final = (
    "XLEN", "XRANGE", "XREVRANGE", "XPENDING", "XINFO STREAM", "XINFO GROUPS", "XINFO CONSUMERS", "ZCARD", "ZCOUNT", "ZRANGE",
    "ZRANGEBYSCORE", "ZRANK", "ZSCORE", "HGET", "HMGET", "HGETALL", "HEXISTS", "HKEYS", "HLEN", "HRANDFIELD", "HSCAN", "SMEMBERS",
    "SISMEMBER", "TYPE", "EXISTS", "PTTL", "MEMORY USAGE", "TIME", "INFO", "ACL WHOAMI",
)  # fmt: skip
"""Of who only looks: `inspect`, `doctor`, and the commands that list and show. None of them writes, none names other keys."""


def check(spec: Spec[T], commands: Sequence[str]) -> Plan[None]:
    """See that the server knows what we need, and that the user may run `commands`. Two requests; writes nothing.

    Raises:
        ServerTooOldError: The server lacks a command.
        ConfigurationError: The user may not run one; the message names it.
    """
    probe = spec.keys.probe
    old: Command[Any] = Command(("XAUTOCLAIM", probe, "g", "c", "0", "0", "COUNT", "1"), (probe,), ignore)
    answers: list[Any] = yield from ask_each(Pipeline((old, _scripts.check(spec.keys, commands=commands))))
    too_old, denied = answers
    if isinstance(too_old, ServerTooOldError):
        raise ServerTooOldError(f"streamq needs Redis 6.2, Valkey, or later: {too_old}")
    if isinstance(denied, Exception):
        raise denied
    try:
        in_exec = yield from ask_each(Transaction((Command(("EXISTS", probe), (probe,), ignore),)))
    except ServerError:
        in_exec = [
            None
        ]  # for now only: up to 7.0 nothing may be queued while memory is full. It says nothing of rights
    if denied or isinstance(in_exec[0], Exception):
        raise ConfigurationError(
            f"the user may not run {', '.join(denied) or in_exec[0]} on {spec.keys.stream}; streamq needs it"
        )


def eviction_policy() -> Plan[str | None]:
    """What the server throws away when its memory is full, by its own word; None if it does not tell. One request."""

    def decode(reply: Reply) -> str | None:
        return texts(reply)[1] if reply else None

    try:
        return (yield from ask(Command(("CONFIG", "GET", "maxmemory-policy"), (), decode)))
    except (ServerError, ConfigurationError):
        return None  # the user may not, or it is a service without CONFIG
