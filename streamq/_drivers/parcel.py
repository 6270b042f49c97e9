"""The commands of one write on their way: which of them were run, which were refused, and by whom. No I/O."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

import redis.exceptions as failures

from streamq._drivers.exchange import Wire, code_of, refused
from streamq._drivers.steps import Address
from streamq._requests import Reply

REDIRECTS: Final = frozenset({"MOVED", "ASK"})
WAITS: Final = frozenset({"TRYAGAIN", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "READONLY", "UNBLOCKED"})
"""Codes of replies that say that a command was not run, but may be elsewhere, or later."""

_ASKING: Final[Wire] = ("ASKING",)

# EXECABORT Transaction discarded because of: READONLY You can't write against a read only replica.
_BECAUSE: Final = re.compile(r"because of: -?([A-Z]{2,})\b")


class Refusal(NamedTuple):
    """A command that was not run, and may be run elsewhere or later."""

    place: int
    code: str
    error: Exception


class Parcel:
    """Commands that are sent until none is refused.

    Args:
        commands: Of one write.
        is_whole: Whether they are a transaction, which is sent again as a whole or not at all.
        is_confirmed: Whether the last one waits for a confirmation of the others: it is behind them each time.

    Attributes:
        asking: The server where they were told to go this once, with ASKING.
    """

    def __init__(self, commands: list[Wire], *, is_whole: bool, is_confirmed: bool) -> None:
        self._commands, self._behind = (commands[:-1], commands[-1:]) if is_confirmed else (commands, [])
        self._is_whole = is_whole
        self._replies: list[Reply] = [None] * len(self._commands)
        self._confirmations: list[Reply] = []
        self._last: list[Reply] = []
        self._open = self._batch = list(range(len(self._commands)))
        self._is_first = True
        self.asking: Address | None = None

    @property
    def is_begun(self) -> bool:
        """Whether some of them were run."""
        return len(self._open) < len(self._commands)

    def packed(self) -> list[Wire]:
        """What to send now."""
        if self._is_first:
            return [*self._commands, *self._behind]
        sent = [self._commands[at] for at in self._batch]
        if self.asking is not None:
            # It holds for one command, or for all of the transaction that it stands before.
            sent = [_ASKING, *sent] if self._is_whole else [each for wire in sent for each in (_ASKING, wire)]
        return [*sent, *self._behind]

    def take(self, answers: list[Reply]) -> list[Refusal]:
        """Note the replies to what was `packed`; what of it was refused, in its order."""
        if self._behind:
            *answers, last = answers
            self._last = [last]
        if self._is_first:
            self._is_first = False
            self._replies = answers
            if not any(isinstance(reply, Exception) for reply in answers):  # nearly always
                self._open, self._confirmations = [], self._last
                return []
        if self.asking is not None:
            asked, answers = (answers[:1], answers[1:]) if self._is_whole else (answers[::2], answers[1::2])
            for reply in asked:
                if isinstance(reply, failures.ResponseError) and code_of(reply)[0] not in WAITS:
                    raise refused(reply, ())  # as who may not say it; else we would be sent to and fro
        for at, reply in zip(self._batch, answers, strict=True):
            self._replies[at] = reply
        found = _refused_whole(self._replies) if self._is_whole else _refused(self._replies, self._open)
        if len(found) < len(self._open):  # else the confirmation is of nothing
            self._confirmations += self._last
        self._open = [each.place for each in found]
        self.turn_back()
        return found

    def turn_back(self) -> None:
        """All that is open goes to where its keys are."""
        self.asking, self._batch = None, self._open

    def ask(self, at: Address, refusals: Sequence[Refusal]) -> None:
        """Those who were told the same as the first go to `at`; what others were told goes after them."""
        self.asking = at
        if not self._is_whole:
            self._batch = [each.place for each in refusals if str(each.error) == str(refusals[0].error)]

    def replies(self) -> list[Reply]:
        """Of all, in their order. Of several confirmations it is the least that counts."""
        if not self._behind:
            return self._replies
        given = self._confirmations or self._last
        return [*self._replies, *sorted(given, key=_copies)[:1]]


def _copies(confirmation: Reply) -> int:
    """How many have it; fewer than none if that cannot be told."""
    if isinstance(confirmation, Exception):
        return -1
    return int(confirmation[0] if isinstance(confirmation, list) else confirmation)


def _refused(replies: Sequence[Reply], places: Sequence[int]) -> list[Refusal]:
    """Those of `places` where a command was not run, and may be run elsewhere or later."""
    found = []
    for at in places:
        reply = replies[at]
        if isinstance(reply, Exception):
            code, _ = code_of(reply)
            if code in WAITS or code in REDIRECTS:
                found.append(Refusal(at, code, reply))
    return found


def _refused_whole(replies: Sequence[Reply]) -> list[Refusal]:
    """All places of a transaction if it was not run, and may be run elsewhere or later."""
    begun, *queued, done = replies
    if not isinstance(done, Exception):
        return []
    if isinstance(begun, Exception) and len(_refused(queued, range(len(queued)))) < len(queued):
        return []  # no transaction was opened, and some of it was run by itself
    cause = next(reply for reply in (begun, *queued, done) if isinstance(reply, Exception))
    code, _ = code_of(cause)
    if code == "EXECABORT" and (because := _BECAUSE.search(str(cause))):
        code = because[1]
    if code not in WAITS and code not in REDIRECTS:
        return []
    return [Refusal(at, code, cause) for at in range(len(replies))]
