"""Keep deliveries: renew their leases, and count the start of reclaimed ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from streamq import _scripts
from streamq._requests import Plan, ask
from streamq._scripts import MAX_BATCH, Fence, Held
from streamq._spec import Spec

T = TypeVar("T")


def renew(spec: Spec[T], consumer: str, batch: Sequence[Held]) -> Plan[dict[str, Fence]]:
    """Begin the leases anew; what the fence found, by entry ID. One request per 500."""
    found: dict[str, Fence] = {}
    for at in range(0, len(batch), MAX_BATCH):
        part = batch[at : at + MAX_BATCH]
        codes = yield from ask(_scripts.renew(spec.keys, spec.options, consumer=consumer, batch=part))
        found.update(zip((held.entry_id for held in part), codes, strict=True))
    return found


def start(spec: Spec[T], consumer: str, target: Held) -> Plan[bool]:
    """Count the start of a reclaimed delivery: True if its handler may begin. `target` names the count it shall have."""
    [fence] = yield from ask(_scripts.start(spec.keys, spec.options, consumer=consumer, targets=[target]))
    return fence is Fence.MINE
