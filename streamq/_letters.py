"""A dead letter, read back from its entry in the dead-letter stream; ``docs/format.md`` describes it."""

from __future__ import annotations

from datetime import datetime

from streamq._requests import text
from streamq._times import moment
from streamq.messages import DeadLetter

_META = frozenset(
    f"dead:{name}".encode()
    for name in (
        "reason", "error", "source", "job_id", "group", "consumer",
        "deliveries", "attempts", "enqueued_at", "at", "redrives",
    )
)  # fmt: skip


def letter_of(stream: str, letter_id: str, fields: list[bytes]) -> DeadLetter:
    """A dead letter of its entry. What somebody else wrote into it is shown, not trusted."""
    meta: dict[bytes, bytes] = {}
    original: list[tuple[bytes, bytes]] = []
    for name, value in zip(fields[::2], fields[1::2], strict=True):
        if name in _META and name not in meta and not original:
            meta[name] = value  # ours come first; the same name later was the producer's
        else:
            original.append((name.removeprefix(b"dead:") if name.startswith(b"dead:dead:") else name, value))

    def word(name: str) -> str:
        return text(meta.get(f"dead:{name}".encode(), b""))

    def number(name: str) -> int:
        value = meta.get(f"dead:{name}".encode(), b"")
        return int(value) if value.isdigit() and len(value) <= 15 else 0  # noqa: PLR2004  # a foreign one may be huge

    def time(name: str) -> datetime | None:
        return moment(ms) if 0 < (ms := number(name)) < 10**14 else None

    return DeadLetter(
        id=letter_id,
        reason=word("reason"),
        error=word("error"),
        stream=stream,
        source_id=word("source"),
        job_id=word("job_id"),
        group=word("group"),
        consumer=word("consumer"),
        deliveries=number("deliveries"),
        attempts=number("attempts"),
        redrives=number("redrives"),
        enqueued_at=time("enqueued_at"),
        died_at=time("at"),
        fields=tuple(original),
    )
