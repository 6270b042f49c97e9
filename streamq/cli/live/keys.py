"""What a terminal sends when keys are pressed, as names of what they ask for."""

from __future__ import annotations

import re
from typing import Final, Literal

Key = Literal["up", "down", "page up", "page down", "home", "end", "enter", "back", "pause", "help", "quit"]

ESCAPE: Final = b"\x1b"

_LETTERS: Final[dict[bytes, Key]] = {
    b"k": "up", b"j": "down", b"g": "home", b"G": "end", b"\r": "enter", b"\n": "enter", b"b": "back", b"\x7f": "back",
    b"\x08": "back", b"p": "pause", b"?": "help", b"q": "quit", b"\x03": "quit",
}  # fmt: skip

_SEQUENCES: Final[dict[bytes, Key]] = {
    b"A": "up", b"B": "down", b"5~": "page up", b"6~": "page down", b"H": "home", b"1~": "home", b"7~": "home",
    b"F": "end", b"4~": "end", b"8~": "end",
}  # fmt: skip

_SEQUENCE: Final = re.compile(rb"\x1b(?:O(.)|\[([0-?]*[ -/]*[@-~]))", re.DOTALL)
_BEGUN: Final = re.compile(rb"\x1b(?:O|\[[0-?]*[ -/]*)?")


def decoded(sent: bytes) -> tuple[list[Key], bytes]:
    """Keys, and what at the end may be the beginning of one more. Other keys than ours mean nothing.

    An Escape at the very end may be one, or the beginning of an arrow: whoever reads waits a moment for the rest of it, and
    if nothing comes takes it for `back`.
    """
    keys: list[Key] = []
    at = 0
    while at < len(sent):
        if sent[at : at + 1] != ESCAPE:
            key, size = _LETTERS.get(sent[at : at + 1]), 1
        elif sequence := _SEQUENCE.match(sent, at):
            key, size = _SEQUENCES.get(sequence[1] or sequence[2]), len(sequence[0])
        elif _BEGUN.fullmatch(sent, at):
            return keys, sent[at:]
        else:
            key, size = "back", 1
        if key is not None:
            keys.append(key)
        at += size
    return keys, b""
