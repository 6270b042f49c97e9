"""Text from elsewhere, made safe to show: on a terminal, in a log line."""

from __future__ import annotations

import re
from typing import Final

INVISIBLE: Final = r"\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"
"""Of a pattern's class: characters that break a line, turn writing around, or cannot be seen."""

# With control characters, and halves of characters that no encoding can write.
_UNSAFE: Final = re.compile(rf"[\x00-\x1f\x7f-\x9f{INVISIBLE}\ud800-\udfff]")


def shown(text: str) -> str:
    """`text` on one line, with characters that would control the terminal or the reader's eye made visible."""
    return _UNSAFE.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"  # noqa: PLR2004  # as Python writes them


_UNITS: Final = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))


def duration(seconds: float) -> str:
    """A length of time in its two largest units: ``3s``, ``2h 5m``; below ten seconds with a tenth."""
    if seconds < 9.95:  # noqa: PLR2004  # what is rounded to a tenth below ten
        return f"{seconds:.1f}s" if seconds >= 0.05 else "0s"  # noqa: PLR2004  # a tenth, rounded
    rest = round(seconds)
    parts = []
    for unit, size in _UNITS:
        count, rest = divmod(rest, size)
        parts.append(f"{count:,}{unit}" if count else "")
    first = next(at for at, part in enumerate(parts) if part)
    return " ".join(part for part in parts[first : first + 2] if part)
