"""What can be set on a stream, checked where it is written down."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal, TypeAlias, get_args

from streamq.backoff import MAX_DELAY_MS, Backoff, to_ms
from streamq.errors import ConfigurationError
from streamq.keys import SLICES, check_name, is_whole

Retention = Literal["delete", "keep"]
GroupStart = Literal["all", "new"]
Codec = Literal["json", "msgpack"]

MAX_READY = 1_000_000
"""Highest `max_ready`: on Redis 6.2 with several groups the ready entries are counted one by one, up to it."""

MAX_FIELDS = 256
"""Most fields of an entry, ours and the producer's: far above need, far below the 4,000 at which Lua's unpack fails."""

Durability: TypeAlias = Literal["accepted", "replicated", "fsynced"]
"""What an added job must have reached before `add` returns; see `StreamOptions`."""

MAX_CONFIRM_MS = 4_000
"""Longest wait for replicas or a disk: a second below the read timeout of our connections."""

MAX_RESULT_BYTES = 64 << 10
"""Longest stored result: results wait in a hash for `idempotency_ttl`, so they must stay small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """Settings of a stream. All processes that use the stream should agree on them.

    Args:
        group: Consumer group that reads, acknowledges and retries here.
        groups: The other groups of the stream. With them, the first call of any producer or reader makes all groups, so
            that no job is removed before each has had it. Every group gets every job.
        group_start: Where a group that is made begins: ``all`` at the oldest entry, ``new`` behind the newest.
        lease: Seconds a delivery may stay silent before others may take it. Long enough to survive a pause of the
            process, short enough to wait for after a crash; running handlers are renewed at a third of it.
        max_deliveries: Starts a job gets when its process keeps dying; then it is dead-lettered. 1 protects no
            bystander: whatever a dead process held is spent.
        retry: How long a failing job waits before each next attempt, and how many it gets; see `Backoff`. A job may bring
            its own (`Stream.add`).
        max_delay: Longest time in seconds that a job may be scheduled ahead: longer delays are mistakes of unit more often
            than they are meant. At most a year. `add` refuses what is longer; retries are cut to it.
        crash_backoff: How much longer than `lease` a worker leaves a job alone after it was started twice or more
            without an end. The first crash costs nothing extra.
        idempotency_ttl: Seconds a job ID chosen by a caller, and its result, are remembered after their last change.
        retention: ``delete`` removes an entry when every group has settled it; ``keep`` leaves it in the stream.
        keep_for: With ``keep``: seconds after which finished entries go when the stream is trimmed. None for no such rule.
        keep_last: With ``keep``: while the stream holds more entries than this, finished ones go when it is trimmed, oldest
            first. None for no such rule. With both, an entry goes that either lets go; without both, all stay.
        max_ready: Most jobs that may wait unread; beyond it `add` raises `QueueFullError`. None for no limit. Retries,
            redrives, and scheduled jobs that are due are never refused.
        max_payload: Longest encoded payload in bytes.
        durability: What a job must have reached when `add` returns: ``accepted``, the memory of the primary; ``replicated``, that
            of a replica, too (WAIT); ``fsynced``, the primary's append-only file on its disk (WAITAOF; Redis 7.2 or Valkey).
            More than ``accepted`` costs a round trip between servers, or a disk's write. Jobs are what a failover can
            lose: what a job did and its end are one step in the same memory, so they are kept or lost together.
        confirm_within: Seconds to wait for that, at most 4; then `add` raises `NotDurableError`. The default outlasts a disk that
            is written once a second (``appendfsync everysec``) and a short pause of a replica.
        codec: How new payloads are encoded: ``json``, or ``msgpack``, which also holds bytes, aware times and keys that
            are no text. Every stream reads both, so it can be switched while jobs wait. Payloads of type ``bytes`` are
            stored raw, without a codec.

    Raises:
        ConfigurationError: A value is out of its bounds; the message says which.
    """

    group: str = "workers"
    groups: Iterable[str] = ()
    group_start: GroupStart = "all"
    lease: float | timedelta = 15.0
    max_deliveries: int = 5
    retry: Backoff = field(default_factory=lambda: Backoff.exponential(1, cap=900, limit=10, jitter=0.2))
    max_delay: float | timedelta = MAX_DELAY_MS / 1000
    crash_backoff: Backoff = field(default_factory=lambda: Backoff.exponential(1, cap=60, limit=None, jitter=0))
    idempotency_ttl: float | timedelta = 86_400.0
    retention: Retention = "delete"
    keep_for: float | timedelta | None = None
    keep_last: int | None = None
    max_ready: int | None = None
    max_payload: int = 1 << 20
    durability: Durability = "accepted"
    confirm_within: float | timedelta = 3.0
    codec: Codec = "json"

    all_groups: tuple[str, ...] = field(init=False, repr=False)
    confirm_ms: int = field(init=False, repr=False)
    keep_ms: int | None = field(init=False, repr=False)
    lease_ms: int = field(init=False, repr=False)
    max_delay_ms: int = field(init=False, repr=False)
    slice_ms: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_name(self.group, "group")
        if isinstance(self.groups, str) or not isinstance(self.groups, Iterable):
            raise ConfigurationError(
                f"groups must be several names, such as ('mail', 'audit'), not {self.groups!r:.80}"
            )
        others = tuple(check_name(name, "group") for name in self.groups)
        if self.group_start not in get_args(GroupStart):
            raise ConfigurationError(f"group_start must be 'all' or 'new', not {self.group_start!r}")
        if isinstance(self.max_deliveries, bool) or not isinstance(self.max_deliveries, int) or self.max_deliveries < 1:
            raise ConfigurationError(f"max_deliveries must be a whole number >= 1, not {self.max_deliveries!r}")
        if self.retention not in get_args(Retention):
            raise ConfigurationError(f"retention must be 'delete' or 'keep', not {self.retention!r}")
        if self.codec not in get_args(Codec):
            raise ConfigurationError(f"codec must be 'json' or 'msgpack', not {self.codec!r}")
        check_durability(self.durability)
        self._check_limits()
        if not isinstance(self.retry, Backoff) or not isinstance(self.crash_backoff, Backoff):
            raise ConfigurationError(
                "retry and crash_backoff must be a Backoff, such as Backoff.exponential(1, limit=10)"
            )
        lease_ms = to_ms(self.lease, "lease", least_ms=10, most_ms=86_400_000)
        ttl_ms = to_ms(self.idempotency_ttl, "idempotency_ttl", least_ms=1)
        keep_ms = None if self.keep_for is None else to_ms(self.keep_for, "keep_for")
        object.__setattr__(self, "groups", others)
        object.__setattr__(self, "all_groups", tuple(dict.fromkeys((self.group, *others))))
        confirm_ms = to_ms(self.confirm_within, "confirm_within", least_ms=1, most_ms=MAX_CONFIRM_MS)
        object.__setattr__(self, "confirm_ms", confirm_ms)
        object.__setattr__(self, "keep_ms", keep_ms)
        object.__setattr__(self, "lease_ms", lease_ms)
        object.__setattr__(self, "max_delay_ms", to_ms(self.max_delay, "max_delay"))
        # A slice is written for one turn and kept for SLICES - 1 more, so this keeps a record for the whole TTL at least.
        object.__setattr__(self, "slice_ms", -(-ttl_ms // (SLICES - 1)))

    def _check_limits(self) -> None:
        if not is_whole(self.max_payload, 1, 256 << 20):
            raise ConfigurationError(f"max_payload must be from 1 byte to 256 MiB, not {self.max_payload!r}")
        if self.max_ready is not None and not is_whole(self.max_ready, 1, MAX_READY):
            raise ConfigurationError(f"max_ready must be from 1 to {MAX_READY:,}, or None, not {self.max_ready!r}")
        if self.keep_last is not None and not is_whole(self.keep_last, 0, 1 << 53):
            raise ConfigurationError(f"keep_last must be a whole number >= 0, or None, not {self.keep_last!r}")
        if self.retention == "delete" and (self.keep_for, self.keep_last) != (None, None):
            raise ConfigurationError("keep_for and keep_last need retention='keep': with 'delete' nothing is kept")


def check_durability(value: Durability) -> Durability:
    """Return it, or raise ConfigurationError."""
    if value not in get_args(Durability):
        raise ConfigurationError(f"durability must be 'accepted', 'replicated' or 'fsynced', not {value!r:.80}")
    return value
