"""The demo's ledger: what became of every job, read back from the server, not remembered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from streamq._requests import Command, Plan, ask
from streamq.demo.payloads import Webhook
from streamq.messages import DeadLetter
from streamq.stream import Stream


class Ledger(msgspec.Struct, frozen=True):
    """The balance.

    Attributes:
        jobs: Jobs that were added.
        delivered: Webhooks with a receipt.
        receipts: Receipts in all: one each, if the guarantee holds.
        by_attempt: How many were delivered by their first attempt, how many by their second, and so on.
        by_hand: Jobs that were run by hand, and the attempt that delivered each; 0 if none did.
        failed: Attempts that failed.
        retried: Failed attempts that were followed by another one; after the others came a dead letter.
        dead: Dead letters by reason.
        ready: Jobs still waiting to be read.
        pending: Jobs still in a worker's hands.
        scheduled: Jobs still waiting for their time.
        lost: Jobs in none of these places.
        seconds: How long it took.
        kills: Worker processes that died on the way.
        balanced: True if every job was delivered exactly once or is a dead letter that was expected, and every attempt that
            failed was followed by one more, or a dead letter.
        wrong: What does not balance, in words.
    """

    jobs: int
    delivered: int
    receipts: int
    by_attempt: dict[int, int]
    by_hand: dict[str, int]
    failed: int
    retried: int
    dead: dict[str, int]
    ready: int
    pending: int
    scheduled: int
    lost: int
    seconds: float
    kills: int
    balanced: bool = False
    wrong: tuple[str, ...] = ()


def read(
    stream: Stream[Webhook],
    jobs: int,
    *,
    expected_dead: Mapping[str, int],
    by_hand: Iterable[str] = (),
    seconds: float = 0.0,
    kills: int = 0,
) -> Ledger:
    """Ask the server for everything and balance it."""
    receipts: dict[str, int] = stream._run(_receipts(stream))  # noqa: SLF001  # of the package itself
    attempts: dict[str, int] = {job_id: stream.result(job_id).value or 0 for job_id in receipts}
    letters = list(_letters(stream))
    now = stream.inspect()
    settled = receipts.keys() | {letter.job_id for letter in letters}
    found = Ledger(
        jobs=jobs,
        delivered=len(receipts),
        receipts=sum(receipts.values()),
        by_attempt=dict(sorted(Counter(attempts.values()).items())),
        by_hand={job_id: attempts.get(job_id, 0) for job_id in by_hand},
        failed=sum(attempts.values()) - len(attempts) + sum(letter.attempts for letter in letters),
        retried=sum(group.retried for group in now.groups.values()),
        dead=dict(sorted(Counter(letter.reason for letter in letters).items())),
        ready=now.ready,
        pending=now.pending,
        scheduled=now.scheduled,
        lost=jobs - len(settled) - now.ready - now.pending - now.scheduled,
        seconds=round(seconds, 1),
        kills=kills,
    )
    wrong = tuple(_wrong(found, expected_dead))
    return msgspec.structs.replace(found, balanced=not wrong, wrong=wrong)


def _wrong(found: Ledger, expected_dead: Mapping[str, int]) -> Iterator[str]:
    if found.lost:
        yield f"{found.lost} jobs are lost"
    if found.ready or found.pending or found.scheduled:
        yield f"{found.ready} ready, {found.pending} pending, {found.scheduled} scheduled jobs are left"
    expected = found.jobs - sum(expected_dead.values())
    if found.delivered != expected:
        yield f"{found.delivered} jobs were delivered, expected {expected}"
    if found.receipts != found.delivered:
        yield f"{found.receipts} receipts for {found.delivered} deliveries"
    if found.dead != expected_dead:
        yield f"dead letters are {found.dead}, expected {expected_dead}"
    ended = found.dead.get("attempts", 0)
    if found.failed != found.retried + ended:
        yield f"{found.failed} attempts failed, {found.retried} were followed by another one, {ended} by a dead letter"
    for job_id, attempt in found.by_hand.items():
        if attempt != 2:  # noqa: PLR2004  # the first one failed, and numbers go on
            yield f"{job_id} was run by hand, and delivered by attempt {attempt}, expected 2"


def _letters(stream: Stream[Webhook]) -> Iterator[DeadLetter]:
    after = None
    while letters := stream.dead_letters.list(count=1000, after=after):
        yield from letters
        after = letters[-1].id


def _receipts(stream: Stream[Webhook]) -> Plan[dict[str, int]]:
    key = stream._spec.keys.data("receipts")  # noqa: SLF001
    return ask(Command(("HGETALL", key), (key,), _counts))


def _counts(reply: Any) -> dict[str, int]:
    return {field.decode(): int(value) for field, value in zip(reply[::2], reply[1::2], strict=True)}
