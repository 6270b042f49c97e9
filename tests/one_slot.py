"""Watches every request that streamq makes in the tests' own process: its keys lie in one slot, and are those that it names.

A pytest plugin, for the whole suite and all servers: what crosses slots on a server by itself, which does not mind, would fail
on a cluster. It looks at commands as they are sent, so it neither trusts the names that requests give nor the drivers. What
programs of their own send, such as workers in processes, clusters count themselves (`clusters.Cluster.crossings`).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Generator, Iterator, Sequence
from typing import Any, Final

import pytest
from redis.crc import key_slot

from streamq import _requests
from streamq._drivers import asynchronous, blocking, exchange, routing
from streamq.errors import StreamqError

_KEYLESS: Final = re.compile(
    "ACL|ASKING|AUTH|CLIENT|CLUSTER|COMMAND|CONFIG|DBSIZE|EXEC|HELLO|INFO|LATENCY|MULTI|PING|ROLE|SCAN|SCRIPT|SELECT|SENTINEL|"
    "TIME|WAIT|WAITAOF"
)
_ONE_KEY: Final = re.compile(
    "DUMP|EXPIRE|GET|HDEL|HEXISTS|HGET|HGETALL|HINCRBY|HKEYS|HLEN|HMGET|HRANDFIELD|HSCAN|HSET|HSTRLEN|INCRBY|PEXPIRE|PEXPIREAT|PTTL|SADD|"
    "SCARD|SET|SISMEMBER|SMEMBERS|SREM|SSCAN|TTL|TYPE|XACK|XACKDEL|XADD|XAUTOCLAIM|XCLAIM|XDEL|XLEN|XPENDING|XRANGE|XREVRANGE|XSETID|XTRIM|ZADD|ZCARD|ZMSCORE|"
    "ZCOUNT|ZRANGE|ZRANGEBYSCORE|ZRANK|ZREM|ZSCAN|ZSCORE"
)
_KEY_AFTER_A_WORD: Final = re.compile("MEMORY|OBJECT|XGROUP|XINFO")
_ALL_KEYS: Final = re.compile("DEL|EXISTS|UNLINK")


_OF_THE_PREVIOUS_LAYOUT: Final = re.compile(
    r"(?:[\w.-]+:)?streamq:(?:migration_lock|migration:\w+|[\w.-]+:[a-z]+(?::.*)?)"
)
"""Keys without a tag, and what belongs to moving them. They are moved on servers by themselves only, where scripts may."""


class CrossedSlotsError(AssertionError):
    """A request that a cluster would refuse, or that does not name its keys."""


class Watch:
    """What was seen.

    Attributes:
        requests: How many requests were looked at.
        probes: How often the doctor's script tried two slots, as it is meant to.
        moves: How often keys of the previous layout, which has no tag, were played with or moved.
        wrong: What a cluster would refuse.
    """

    def __init__(self) -> None:
        self.requests = 0
        self.probes = 0
        self.moves = 0
        self.wrong: list[str] = []

    def over(self, plain: Any) -> Any:
        """`exchange`, watched."""

        def watched(request: _requests.Request) -> Generator[list[Any], list[Any], Any]:
            self.requests += 1
            try:
                self._check_names(request)
                return (yield from self._look(plain(request)))
            except CrossedSlotsError as error:
                self.wrong.append(str(error))  # also when somebody catches it
                raise

        return watched

    def _look(self, steps: Any) -> Generator[list[Any], list[Any], Any]:
        commands = next(steps)
        while True:
            self._check_slots(commands)
            try:
                replies = yield commands
            except StreamqError as error:
                steps.throw(error)  # it says more of it
                raise
            try:
                commands = steps.send(replies)
            except StopIteration as end:
                return end.value

    def _check_names(self, request: _requests.Request) -> None:
        write = request.request if isinstance(request, _requests.Confirmed) else request
        for part in getattr(write, "requests", (write,)):
            # One without keys may name one all the same, to say to which server it is to go.
            if isinstance(part, _requests.Command) and (sent := keys_of(part.args)) and set(sent) != set(part.keys):
                raise CrossedSlotsError(f"{part.args[:3]} names keys {part.keys}, but sends {sent}")

    def _check_slots(self, commands: Sequence[Sequence[Any]]) -> None:
        together: set[int] | None = None
        for command in commands:
            keys = keys_of(command)
            slots = {key_slot(key.encode()) for key in keys}
            if len(slots) > 1 and all(":probe:" in key for key in keys):
                self.probes += 1
                continue
            if len(slots) > 1 and any(_OF_THE_PREVIOUS_LAYOUT.fullmatch(key) for key in keys):
                self.moves += 1
                continue
            if command[0] == "MULTI":
                together = set()
            elif together is not None:
                together |= slots
                slots = together
            if len(slots) > 1:
                raise CrossedSlotsError(f"{command[:6]} is for slots {sorted(slots)}")
            if command[0] == "EXEC":
                together = None


def keys_of(command: Sequence[Any]) -> list[str]:
    """The keys of a command as it is sent."""
    name, *rest = command
    if _KEYLESS.fullmatch(name):
        return []
    if _ONE_KEY.fullmatch(name):
        return rest[:1]
    if _KEY_AFTER_A_WORD.fullmatch(name):
        return rest[1:2]
    if _ALL_KEYS.fullmatch(name):
        return rest
    if name in {"EVAL", "EVALSHA", "FCALL"}:
        return rest[2 : 2 + int(rest[1])]
    if name in {"XREAD", "XREADGROUP"}:
        streams = rest[rest.index("STREAMS") + 1 :]
        return streams[: len(streams) // 2]
    raise CrossedSlotsError(f"which keys has {name}? tests/one_slot.py does not know it")


class _Log(logging.Handler):
    """Notes what the library logs of crossed slots."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch

    def emit(self, record: logging.LogRecord) -> None:
        if "CROSSSLOT" in (text := record.getMessage()):
            self._watch.wrong.append(f"logged: {text}")


WATCH: Final = Watch()


def pytest_configure(config: pytest.Config) -> None:
    plain = exchange.exchange
    watched = WATCH.over(plain)
    for module in (asynchronous, blocking, exchange, routing):
        assert module.exchange is plain, f"{module.__name__} is watched already"
        module.exchange = watched
    logging.getLogger("streamq").addHandler(_Log(WATCH))


@pytest.fixture(autouse=True)
def _one_slot() -> Iterator[None]:
    """No request of a test crosses slots, also where the error was caught on its way."""
    yield
    if wrong := WATCH.wrong[:]:
        WATCH.wrong.clear()
        pytest.fail("requests that a cluster would refuse:\n" + "\n".join(wrong), pytrace=False)
