"""Text from elsewhere on one line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamq._text import duration, shown


def test_what_would_control_a_terminal_or_the_eye_is_made_visible():
    assert shown("a\x1b[31m\n\t\x7f\x9b") == "a\\x1b[31m\\x0a\\x09\\x7f\\x9b"
    assert shown("\u2028 \u202e \u2066 \ud800") == "\\u2028 \\u202e \\u2066 \\ud800"
    assert shown("\u200f \u061c \u200b \ufeff") == "\\u200f \\u061c \\u200b \\ufeff"
    assert shown("naïve 名前 🎉 \\") == "naïve 名前 🎉 \\"


@given(st.text(st.characters()))
def test_any_text_becomes_one_line_that_can_be_written(text):
    found = shown(text)
    assert len(found.splitlines()) <= 1
    found.encode()


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0s"), (0.04, "0s"), (0.06, "0.1s"), (9.94, "9.9s"), (9.96, "10s"), (59.6, "1m"), (61, "1m 1s"), (3_600, "1h"),
        (7_265, "2h 1m"), (86_400 * 400 + 3_601, "400d 1h"), (1e9, "11,574d 1h"),
    ],
)  # fmt: skip
def test_lengths_of_time_have_two_units(seconds, words):
    assert duration(seconds) == words
