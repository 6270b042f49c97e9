"""The demo's ledger: what became of every job, read back from the server, not remembered."""

from __future__ import annotations

from typing import Any

import msgspec

from streamq._requests import Command, Plan, ask
from streamq.demo.payloads import Webhook
from streamq.stream import Stream


class Ledger(msgspec.Struct, frozen=True):
    """The balance.

    Attributes:
        jobs: Jobs that were added.
        delivered: Webhooks with a receipt.
        receipts: Receipts in all: one each, if the guarantee holds.
        dead: Dead letters by reason.
        ready: Jobs still waiting.
        pending: Jobs still in a worker's hands.
        lost: Jobs in none of these places.
        seconds: How long it took.
        kills: Worker processes that died on the way.
        balanced: True if every job was delivered exactly once or is a dead letter that was expected.
    """

    jobs: int
    delivered: int
    receipts: int
    dead: dict[str, int]
    ready: int
    pending: int
    lost: int
    seconds: float
    kills: int
    balanced: bool


def read(stream: Stream[Webhook], jobs: int, expected_dead: dict[str, int], seconds: float, kills: int) -> Ledger:
    """Ask the server for everything and balance it."""
    receipts: dict[bytes, int] = stream._run(_receipts(stream))  # noqa: SLF001  # of the package itself
    dead: dict[str, int] = {}
    dead_ids: set[str] = set()
    after = None
    while letters := stream.dead_letters.list(count=1000, after=after):
        after = letters[-1].id
        for letter in letters:
            dead[letter.reason] = dead.get(letter.reason, 0) + 1
            dead_ids.add(letter.job_id)
    now = stream.inspect()
    settled = {key.decode() for key in receipts} | dead_ids
    lost = jobs - len(settled) - now.ready - now.pending
    balanced = (
        lost == now.ready == now.pending == 0
        and dead == expected_dead
        and len(receipts) == sum(receipts.values()) == jobs - sum(expected_dead.values())
    )
    return Ledger(
        jobs=jobs,
        delivered=len(receipts),
        receipts=sum(receipts.values()),
        dead=dead,
        ready=now.ready,
        pending=now.pending,
        lost=lost,
        seconds=round(seconds, 1),
        kills=kills,
        balanced=balanced,
    )


def _receipts(stream: Stream[Webhook]) -> Plan[dict[bytes, int]]:
    key = stream._spec.keys.data("receipts")  # noqa: SLF001
    return ask(Command(("HGETALL", key), (key,), _counts))


def _counts(reply: Any) -> dict[bytes, int]:
    return dict(zip(reply[::2], map(int, reply[1::2]), strict=True))
