"""What can be set on a stream, checked where it is written down."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal, get_args

from streamq.backoff import Backoff, to_ms
from streamq.errors import ConfigurationError
from streamq.keys import SLICES, check_name

Retention = Literal["delete", "keep"]
Codec = Literal["json", "msgpack"]

MAX_FIELDS = 256
"""Most fields of an entry, ours and the producer's: far above need, far below the 4,000 at which Lua's unpack fails."""

MAX_RESULT_BYTES = 64 << 10
"""Longest stored result: results wait in a hash for `idempotency_ttl`, so they must stay small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """Settings of a stream. All processes that use the stream should agree on them.

    Args:
        group: Consumer group that reads, acknowledges and retries here.
        lease: Seconds a delivery may stay silent before others may take it. Long enough to survive a pause of the
            process, short enough to wait for after a crash; running handlers are renewed at a third of it.
        max_deliveries: Starts a job gets when its process keeps dying; then it is dead-lettered. 1 protects no
            bystander: whatever a dead process held is spent.
        retry: Attempts a failing job gets. Until scheduled retries arrive only its `limit` counts: a retry runs at once.
        crash_backoff: How much longer than `lease` a worker leaves a job alone after it was started twice or more
            without an end. The first crash costs nothing extra.
        idempotency_ttl: Seconds a job ID chosen by a caller, and its result, are remembered after their last change.
        retention: ``delete`` removes an entry when it is settled; ``keep`` leaves it in the stream.
        max_payload: Longest encoded payload in bytes.
        codec: How new payloads are encoded: ``json``, or ``msgpack``, which also holds bytes, aware times and keys that
            are no text. Every stream reads both, so it can be switched while jobs wait. Payloads of type ``bytes`` are
            stored raw, without a codec.

    Raises:
        ConfigurationError: A value is out of its bounds; the message says which.
    """

    group: str = "workers"
    lease: float | timedelta = 15.0
    max_deliveries: int = 5
    retry: Backoff = field(default_factory=lambda: Backoff.exponential(1, cap=900, limit=10, jitter=0.2))
    crash_backoff: Backoff = field(default_factory=lambda: Backoff.exponential(1, cap=60, limit=None, jitter=0))
    idempotency_ttl: float | timedelta = 86_400.0
    retention: Retention = "delete"
    max_payload: int = 1 << 20
    codec: Codec = "json"

    lease_ms: int = field(init=False, repr=False)
    slice_ms: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_name(self.group, "group")
        if isinstance(self.max_deliveries, bool) or not isinstance(self.max_deliveries, int) or self.max_deliveries < 1:
            raise ConfigurationError(f"max_deliveries must be a whole number >= 1, not {self.max_deliveries!r}")
        if self.retention not in get_args(Retention):
            raise ConfigurationError(f"retention must be 'delete' or 'keep', not {self.retention!r}")
        if self.codec not in get_args(Codec):
            raise ConfigurationError(f"codec must be 'json' or 'msgpack', not {self.codec!r}")
        if (
            isinstance(self.max_payload, bool)
            or not isinstance(self.max_payload, int)
            or not 1 <= self.max_payload <= 256 << 20
        ):
            raise ConfigurationError(f"max_payload must be from 1 byte to 256 MiB, not {self.max_payload!r}")
        if not isinstance(self.retry, Backoff) or not isinstance(self.crash_backoff, Backoff):
            raise ConfigurationError(
                "retry and crash_backoff must be a Backoff, such as Backoff.exponential(1, limit=10)"
            )
        lease_ms = to_ms(self.lease, "lease", least_ms=10, most_ms=86_400_000)
        ttl_ms = to_ms(self.idempotency_ttl, "idempotency_ttl", least_ms=1)
        object.__setattr__(self, "lease_ms", lease_ms)
        # A slice is written for one turn and kept for SLICES - 1 more, so this keeps a record for the whole TTL at least.
        object.__setattr__(self, "slice_ms", -(-ttl_ms // (SLICES - 1)))
