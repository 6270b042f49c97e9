"""Every key name of a stream. No other module, and no Lua script, puts a key name together.

`T` below is ``[<deployment>:]streamq:{[<deployment>:]<name>}``. The deployment stands in front, so that
``SCAN MATCH dp_1:*`` and an ACL pattern ``~dp_1:*`` find its keys, and inside the hash tag, so that deployments that
share a cluster spread over its slots. Everything of one stream has one tag and so lies in one slot.

    T:stream          stream       ready and pending entries; the consumer groups
    T:dead            stream       dead letters of all groups
    T:scheduled       sorted set   timer ID -> due time in ms, server clock
    T:scheduled:jobs  hash         timer ID -> packed entry
    T:ids:<slice>     hashes       job ID -> queued <entry ID> | done <entry ID>; rotating (lua/shared/records.lua)
    T:done:<slice>    hashes       <group>/<job ID> -> running <entry ID> | done <result>; rotating
    T:meta            hash         paused, cursors of maintenance, counters per group, entries that dead letters refer to
    T:workers         hash         consumer -> who it is and when it was last alive
    T:tick:<role>     string, PX   whoever sets it does the maintenance of this tick
    T:wake            stream       one entry, written when sleepers must look again: resumed, or due earlier than expected
    T:data:<key>      any          keys written by effects
    T:probe           none         what the user may do is tried on it; never there between two commands
"""

from __future__ import annotations

import binascii
import re
from typing import Final

from streamq.errors import ConfigurationError

NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,128}")
"""Names, deployments and groups: no braces, which would move the hash tag, and no separators of ours (``:``, ``/``)."""

ID_BYTES: Final = 512
"""Longest job ID and effect key, in bytes of UTF-8: enough for any sane key, small enough for a hash field."""

SLICES: Final = 4
"""Hashes that take turns to remember job IDs. With n of them memory reaches n / (n - 1) of what the TTL asks for."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def check_name(value: str, what: str) -> str:
    """Return `value` if it is a valid name; `what` names it in the error.

    Raises:
        ConfigurationError: It has other characters than letters, digits, ``.``, ``_``, ``-``, or not 1 to 128 of them.
    """
    if not isinstance(value, str) or not NAME.fullmatch(value):
        raise ConfigurationError(
            f"{what} {value!r:.80} is not valid: use 1 to 128 of the characters A-Z a-z 0-9 . _ - (no braces, no colon)"
        )
    return value


def check_flag(value: bool, what: str) -> bool:  # noqa: FBT001  # the value itself, not a switch
    """Return `value` if it is True or False: a text such as "no" must not pass for yes.

    Raises:
        ConfigurationError: It is neither.
    """
    if not isinstance(value, bool):
        raise ConfigurationError(f"{what} must be True or False, not {value!r:.80}")
    return value


def is_whole(value: object, least: int, most: int) -> bool:
    """Whether `value` is a whole number from `least` to `most`; True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def check_id(value: str, what: str) -> str:
    """Return `value` if it may be a job ID or an effect's key: 1 to 512 bytes of UTF-8 without control characters.

    Raises:
        ConfigurationError: It is not.
    """
    if not isinstance(value, str):
        raise ConfigurationError(f"{what} must be a str, not {type(value).__name__}")
    try:
        size = len(value.encode())
    except UnicodeEncodeError as error:
        raise ConfigurationError(f"{what} {value!r:.80} is not valid UTF-8: {error.reason}") from None
    if not 1 <= size <= ID_BYTES or _CONTROL.search(value):
        raise ConfigurationError(
            f"{what} {value!r:.80} is not valid: use 1 to {ID_BYTES} bytes of UTF-8 without control characters"
        )
    return value


class Keys:
    """The key names of one stream, all with its hash tag.

    Args:
        name: Name of the stream.
        deployment: Namespace of the deployment, or None for none.

    Raises:
        ConfigurationError: `name` or `deployment` is not a valid name.
    """

    __slots__ = (
        "dead",
        "deployment",
        "done",
        "ids",
        "jobs",
        "meta",
        "name",
        "prefix",
        "probe",
        "scheduled",
        "stream",
        "wake",
        "workers",
    )

    def __init__(self, name: str, deployment: str | None = None) -> None:
        self.name = check_name(name, "stream name")
        self.deployment = None if deployment is None else check_name(deployment, "deployment")
        space = "" if deployment is None else f"{deployment}:"
        self.prefix = f"{space}streamq:{{{space}{name}}}"
        self.stream = f"{self.prefix}:stream"
        self.dead = f"{self.prefix}:dead"
        self.scheduled = f"{self.prefix}:scheduled"
        self.jobs = f"{self.prefix}:scheduled:jobs"
        self.ids = tuple(f"{self.prefix}:ids:{n}" for n in range(SLICES))
        self.done = tuple(f"{self.prefix}:done:{n}" for n in range(SLICES))
        self.meta = f"{self.prefix}:meta"
        self.workers = f"{self.prefix}:workers"
        self.wake = f"{self.prefix}:wake"
        self.probe = f"{self.prefix}:probe"

    def tick(self, role: str) -> str:
        """Key of the token for one tick of a maintenance role, such as ``reclaim:workers``."""
        return f"{self.prefix}:tick:{role}"

    def data(self, key: str) -> str:
        """Key that an effect named `key` writes."""
        return f"{self.prefix}:data:{key}"

    @property
    def slot(self) -> int:
        """Where all of them lie in a cluster: CRC16 (XMODEM) of the hash tag."""
        tag = self.prefix.partition("{")[2].removesuffix("}")
        return binascii.crc_hqx(tag.encode(), 0) % 16_384

    @property
    def pattern(self) -> str:
        """Pattern for SCAN that finds all keys of the stream."""
        return f"{self.prefix}:*"

    def is_open_ended(self, key: str) -> bool:
        """Whether `key` is one of those whose number is not fixed: of effects, and tokens of maintenance."""
        return key.startswith((self.data(""), self.tick("")))

    def __repr__(self) -> str:
        return f"Keys({self.prefix!r})"


def registry(deployment: str | None) -> str:
    """Key of the set of stream names. It has a slot of its own: never in one transaction with a stream's keys."""
    return "streamq:streams" if deployment is None else f"{deployment}:streamq:streams"


def stream_pattern(deployment: str | None) -> str:
    """Pattern for SCAN that finds the streams which the registry misses."""
    return registry(deployment).removesuffix("streams") + "{*}:stream"


def name_of(stream_key: str, deployment: str | None) -> str | None:
    """Name of the stream whose ``T:stream`` is `stream_key`, or None if it is no such key of this deployment."""
    _, _, rest = stream_key.partition("{")
    tag, _, _ = rest.partition("}")
    name = tag if deployment is None else tag.removeprefix(f"{deployment}:")
    if not NAME.fullmatch(name) or Keys(name, deployment).stream != stream_key:
        return None
    return name
