"""Constructors of the scripts that let jobs wait for their time, and move them when it has come. As `streamq._scripts`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, NamedTuple

from streamq._requests import Arg, Reply, Script, text, texts
from streamq._times import ms_of
from streamq.backoff import to_ms
from streamq.errors import ConfigurationError
from streamq.keys import Keys
from streamq.messages import JobIdKind
from streamq.options import StreamOptions


class When(NamedTuple):
    """When a job is due: so many ms from now, or at that time, both by the server's clock. What is past is now."""

    kind: Literal["in", "at"]
    ms: int


def when(delay: float | timedelta | None, at: datetime | None, *, most_ms: int) -> When | None:
    """When a job is due, by the caller's words; None without any.

    Raises:
        ConfigurationError: Both were given, the delay is negative, not finite or longer than `most_ms`, or the time is naive.
    """
    if delay is not None and at is not None:
        raise ConfigurationError("a job is due after a delay or at a time: give delay or at, not both")
    if delay is not None:
        return When("in", to_ms(delay, "delay", most_ms=most_ms))
    return None if at is None else When("at", time_ms(at, "at"))


def time_ms(value: datetime, what: str) -> int:
    """A time in ms since 1970; 0 before that.

    Raises:
        ConfigurationError: It is no datetime, or a naive one; `what` names it.
    """
    if not isinstance(value, datetime):
        raise ConfigurationError(f"{what} must be a datetime, not {type(value).__name__}")
    if value.utcoffset() is None:
        raise ConfigurationError(
            f"{what} must be an aware datetime, such as datetime.now(UTC) + timedelta(hours=1): "
            f"{value.isoformat()} means another moment on every machine"
        )
    return max(ms_of(value), 0)


def too_far(ahead_ms: str, most_ms: int) -> ConfigurationError:
    """The error of a time that is too far ahead, which only the server's clock can tell."""
    return ConfigurationError(
        f"at is {int(ahead_ms) / 1000:,.0f} seconds ahead of the server's clock, max_delay is {most_ms / 1000:,.0f}; "
        "nothing was changed"
    )


def schedule(
    keys: Keys,
    options: StreamOptions,
    *,
    job_id: str,
    kind: JobIdKind,
    when: When,
    replace: bool,
    fields: Sequence[Arg],
) -> Script[tuple[int, str, str]]:
    """``schedule.lua``: (1 done, 0 known, -1 too far; entry ID, or ms ahead; state)."""

    def decode(reply: Reply) -> tuple[int, str, str]:
        code, value, state = reply
        return code, text(value), text(state)

    return Script(
        "schedule",
        (keys.stream, keys.scheduled, keys.jobs, keys.wake, *keys.ids),
        (options.slice_ms, job_id, *when, options.max_delay_ms, kind, int(replace), *fields),
        decode,
    )


@dataclass(frozen=True, slots=True)
class Promoted:
    """Answer of `promote`."""

    moved: int
    wait_ms: int | None
    """Until the next is due, 0 if one is; None if nothing is scheduled."""
    dropped: tuple[tuple[str, str], ...]
    """Timers that were no jobs, and what was wrong: lost, untimed, malformed, or stuck."""

    @property
    def goes_on(self) -> bool:
        """Whether more is due now, and something happened, so that asking again at once brings more."""
        return self.wait_ms == 0 and (self.moved > 0 or any(what != "stuck" for _, what in self.dropped))


def promote(keys: Keys, options: StreamOptions, *, most: int, max_bytes: int) -> Script[Promoted]:
    """``promote.lua``."""

    def decode(reply: Reply) -> Promoted:
        moved, wait, dropped = reply
        words = texts(dropped)
        pairs = tuple(zip(words[::2], words[1::2], strict=True))
        return Promoted(moved, None if wait < 0 else wait, pairs)

    return Script(
        "promote",
        (keys.stream, keys.scheduled, keys.jobs, keys.dead, keys.meta, *keys.ids),
        (options.group, options.slice_ms, most, max_bytes),
        decode,
    )


def _code_and_text(reply: Reply) -> tuple[int, str]:
    return reply[0], text(reply[1])


def reschedule(keys: Keys, options: StreamOptions, *, job_id: str, when: When) -> Script[tuple[int, str]]:
    """``reschedule.lua``: (1 done, 0 not scheduled, -1 too far; due time in ms, state, or ms ahead)."""
    return Script(
        "reschedule",
        (keys.stream, keys.scheduled, keys.wake, *keys.ids, *keys.done),
        (options.group, job_id, *when, options.max_delay_ms),
        _code_and_text,
    )


def run_now(keys: Keys, options: StreamOptions, *, job_id: str) -> Script[tuple[int, str]]:
    """``run_now.lua``: (1 moved, 0 not scheduled, -1 its entry is lost; entry ID, or state)."""
    return Script(
        "run_now",
        (keys.stream, keys.scheduled, keys.jobs, *keys.ids, *keys.done),
        (options.group, job_id, options.slice_ms),
        _code_and_text,
    )
