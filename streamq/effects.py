"""Writes that commit together with a job's acknowledgement.

An `Effects` only notes what is to be done; ``lua/commit.lua`` checks all of it, then does all of it, in the same atomic
step that acknowledges the job. The commands are a closed list, so that each can be checked before the first write.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Self, TypeAlias

from streamq.errors import ConfigurationError
from streamq.keys import check_id

Value: TypeAlias = str | bytes | int | float

MAX_EFFECTS = 128
"""Most effects of one job: they run in one script, during which the server does nothing else."""

MAX_ARGUMENTS = 1_000
"""Most arguments of one effect: Lua's unpack stays well below its limit."""

_INT64 = 2**63 - 1


class Effects:
    """Notes writes on keys of the stream, all named ``T:data:<key>``, that commit or fail as one.

    Increments are done first, and undone by their exact inverse if one of them cannot be (not an integer, out of range),
    so an increment must not follow an effect on the same value: that is refused when it is noted.
    """

    __slots__ = ("_notes",)

    def __init__(self) -> None:
        self._notes: list[tuple[str, str, tuple[bytes, ...]]] = []

    def __len__(self) -> int:
        return len(self._notes)

    def __iter__(self) -> Iterator[tuple[str, str, tuple[bytes, ...]]]:
        return iter(self._notes)

    def hset(self, key: str, mapping: Mapping[str, Value]) -> Self:
        """HSET `key` field value ...: set fields of a hash."""
        if not mapping:
            raise ConfigurationError("hset needs at least one field")
        return self._note("HSET", key, *(part for pair in mapping.items() for part in pair))

    def hincrby(self, key: str, field: str, amount: int = 1) -> Self:
        """HINCRBY `key` `field` `amount`: add to a field of a hash."""
        self._only_first(key, field)
        return self._note("HINCRBY", key, field, _integer(amount))

    def incrby(self, key: str, amount: int = 1) -> Self:
        """INCRBY `key` `amount`: add to a number."""
        self._only_first(key, None)
        return self._note("INCRBY", key, _integer(amount))

    def set(self, key: str, value: Value) -> Self:
        """SET `key` `value`, whatever was there before."""
        return self._note("SET", key, value)

    def sadd(self, key: str, *members: Value) -> Self:
        """SADD `key` member ...: put members into a set."""
        return self._note("SADD", key, *_some(members, "sadd"))

    def srem(self, key: str, *members: Value) -> Self:
        """SREM `key` member ...: take members out of a set."""
        return self._note("SREM", key, *_some(members, "srem"))

    def zadd(self, key: str, mapping: Mapping[str, float]) -> Self:
        """ZADD `key` score member ...: put members with finite scores into a sorted set."""
        if not mapping:
            raise ConfigurationError("zadd needs at least one member")
        for member, score in mapping.items():
            if isinstance(score, bool) or not isinstance(score, int | float) or not _is_finite(score):
                raise ConfigurationError(f"zadd: score of {member!r} must be a finite number, not {score!r}")
        return self._note("ZADD", key, *(part for member, score in mapping.items() for part in (float(score), member)))

    def zrem(self, key: str, *members: Value) -> Self:
        """ZREM `key` member ...: take members out of a sorted set."""
        return self._note("ZREM", key, *_some(members, "zrem"))

    def rpush(self, key: str, *values: Value) -> Self:
        """RPUSH `key` value ...: append to a list."""
        return self._note("RPUSH", key, *_some(values, "rpush"))

    def xadd(self, key: str, fields: Mapping[str, Value]) -> Self:
        """XADD `key` * field value ...: append an entry to a stream."""
        if not fields:
            raise ConfigurationError("xadd needs at least one field")
        return self._note("XADD", key, "*", *(part for pair in fields.items() for part in pair))

    def delete(self, key: str) -> Self:
        """DEL `key`."""
        return self._note("DEL", key)

    def expire(self, key: str, seconds: int) -> Self:
        """EXPIRE `key` `seconds`: let it vanish after a time, at least one second."""
        if isinstance(seconds, bool) or not isinstance(seconds, int) or not 1 <= seconds <= 10**9:
            raise ConfigurationError(f"expire: seconds must be a whole number from 1 to 10**9, not {seconds!r}")
        return self._note("EXPIRE", key, seconds)

    def _only_first(self, key: str, field: str | None) -> None:
        for command, other, arguments in self._notes:
            touches_field = command != "HSET" or field is None or field.encode() in arguments[::2]
            if other == key and command not in {"INCRBY", "HINCRBY"} and touches_field:
                raise ConfigurationError(
                    f"effects: an increment of {key!r} after {command} of it; increments are done first, so note the "
                    "final value instead"
                )

    def _note(self, command: str, key: str, *arguments: Value) -> Self:
        check_id(key, "effect key")
        if len(self._notes) >= MAX_EFFECTS:
            raise ConfigurationError(f"more than {MAX_EFFECTS} effects in one job")
        if len(arguments) > MAX_ARGUMENTS:
            raise ConfigurationError(f"effect {command} on {key!r} has more than {MAX_ARGUMENTS} arguments")
        self._notes.append((command, key, tuple(_bytes(a, command, key) for a in arguments)))
        return self


def _is_finite(score: float) -> bool:
    try:
        return math.isfinite(score)
    except OverflowError:
        return False  # an int beyond every float


def _some(values: tuple[Value, ...], name: str) -> tuple[Value, ...]:
    if not values:
        raise ConfigurationError(f"{name} needs at least one member")
    return values


def _integer(amount: int) -> int:
    # The inverse must exist too, so -2**63 is out.
    if isinstance(amount, bool) or not isinstance(amount, int) or not -_INT64 <= amount <= _INT64:
        raise ConfigurationError(f"increment must be a whole number within 64 bits, not {amount!r}")
    return amount


def _bytes(value: Value, command: str, key: str) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise ConfigurationError(
                f"effect {command} on {key!r}: a value is not valid UTF-8: {error.reason}"
            ) from None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigurationError(
            f"effect {command} on {key!r}: values are str, bytes, int or float, not {type(value).__name__}"
        )
    try:
        return repr(value).encode()
    except ValueError as error:
        raise ConfigurationError(f"effect {command} on {key!r}: {error}") from None  # an int of thousands of digits
