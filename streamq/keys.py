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
    T:probe:<token>   any          a trial of the server by `streamq doctor`; never there between two requests

The previous layout has the same keys without the hash tag: there ``T`` is ``[<deployment>:]streamq:<name>``. Its keys lie in
slots of their own. `streamq migrate` moves them; nothing else touches them.
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

HASH_TAGS: Final = "001_hash_tags"
"""The migration from the previous layout to this one."""

_PRODUCT: Final = "streamq"

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


def check_deployment(value: str | None) -> str | None:
    """Return `value` if it is the name of a deployment, or None for none.

    Raises:
        ConfigurationError: It is no name, or ``streamq``: its keys would begin as those without a deployment, so that neither
            patterns of SCAN nor of an ACL could tell them apart.
    """
    if value is None:
        return None
    if check_name(value, "deployment") == _PRODUCT:
        raise ConfigurationError(f"deployment {value!r} is not valid: keys without a deployment begin so")
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
        is_tagged: False for those of the previous layout, which has no hash tag.

    Raises:
        ConfigurationError: `name` or `deployment` is not valid.
    """

    __slots__ = (
        "dead",
        "deployment",
        "done",
        "ids",
        "is_tagged",
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

    def __init__(self, name: str, deployment: str | None = None, *, is_tagged: bool = True) -> None:
        self.name = check_name(name, "stream name")
        self.deployment = check_deployment(deployment)
        space = "" if deployment is None else f"{deployment}:"
        self.is_tagged = is_tagged
        self.prefix = f"{space}streamq:{{{space}{name}}}" if is_tagged else f"{space}streamq:{name}"
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
        """Where all of them lie in a cluster."""
        return slot_of(self.stream)

    @property
    def pattern(self) -> str:
        """Pattern for SCAN that finds all keys of the stream."""
        return f"{self.prefix}:*"

    def is_open_ended(self, key: str) -> bool:
        """Whether `key` is one of those whose number is not fixed: of effects, and tokens of maintenance."""
        return key.startswith((self.data(""), self.tick("")))

    @property
    def kinds(self) -> dict[str, str]:
        """The keys whose number is fixed, and what TYPE says of each that is there; `probe` never is."""
        hashes = (self.jobs, *self.ids, *self.done, self.meta, self.workers)
        return {
            self.stream: "stream",
            self.dead: "stream",
            self.scheduled: "zset",
            **dict.fromkeys(hashes, "hash"),
            self.wake: "stream",
            self.probe: "none",
        }

    def trial(self, token: str) -> tuple[str, str]:
        """Two keys for a trial of the server; `token` is drawn, so that nobody has them."""
        return f"{self.probe}:{token}:1", f"{self.probe}:{token}:2"

    @property
    def untagged(self) -> Keys:
        """Those of the same stream in the previous layout."""
        return Keys(self.name, self.deployment, is_tagged=False)

    @property
    def previous(self) -> dict[str, str]:
        """As `kinds`, in the previous layout: no hash tag, so each key lies in a slot of its own."""
        return {key: kind for key, kind in self.untagged.kinds.items() if kind != "none"}

    @property
    def holding(self) -> tuple[str, ...]:
        """The keys that hold jobs, or what is remembered of them, in all layouts; the others only help workers."""
        return (self.stream, self.dead, self.scheduled, self.jobs, *self.ids, *self.done, self.meta)

    def __repr__(self) -> str:
        return f"Keys({self.prefix!r})"


def registry(deployment: str | None) -> str:
    """Key of the set of stream names. It has a slot of its own: never in one transaction with a stream's keys."""
    return "streamq:streams" if check_deployment(deployment) is None else f"{deployment}:streamq:streams"


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


def deployment_pattern(deployment: str | None) -> str:
    """Pattern for SCAN that finds all keys of a deployment, of this layout and the previous one."""
    return registry(deployment).removesuffix("streams") + "*"


def owner_of(key: str, deployment: str | None) -> tuple[str, bool] | None:
    """Name of the stream that `key` belongs to, and whether it has the hash tag; None if it is no such key of this deployment."""
    rest = key.removeprefix(registry(deployment).removesuffix("streams"))
    if rest == key:
        return None
    is_tagged = rest.startswith("{")
    name = rest[1:].partition("}")[0] if is_tagged else rest.partition(":")[0]
    if is_tagged and deployment is not None:
        name = name.removeprefix(f"{deployment}:")
    if not NAME.fullmatch(name):
        return None
    keys = Keys(name, deployment, is_tagged=is_tagged)
    if is_tagged:
        return (name, True) if key.startswith(f"{keys.prefix}:") else None
    # No more than our own: without a tag, somebody else's names may begin alike.
    return (name, False) if key in keys.previous or keys.is_open_ended(key) else None


def is_ours(key: str, deployment: str | None) -> bool:
    """Whether `key` is one that streamq makes, in this deployment, in none, or with a hash tag in any other."""
    ours = owner_of(key, None) or owner_of(key, deployment)
    return ours is not None or re.match(r"([^:{}]+:)?streamq:\{", key) is not None


def migration_record(deployment: str | None, name: str) -> str:
    """Key of what became of a migration: a hash in a slot of its own, of the whole deployment."""
    return registry(deployment).removesuffix("streams") + f"migration:{name}"


def migration_lock(deployment: str | None) -> str:
    """Key of the lock that who migrates a deployment holds."""
    return registry(deployment).removesuffix("streams") + "migration_lock"


def slot_of(key: str) -> int:
    """Where a key lies in a cluster: CRC16 (XMODEM) of what stands in its first braces, or else of all of it."""
    start = key.find("{")
    end = key.find("}", start + 1)
    tag = key[start + 1 : end] if start >= 0 and end > start + 1 else key
    return binascii.crc_hqx(tag.encode(), 0) % 16_384
