"""Text from elsewhere on one line."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streamq._text import shown


def test_what_would_control_a_terminal_or_the_eye_is_made_visible():
    assert shown("a\x1b[31m\n\t\x7f\x9b") == "a\\x1b[31m\\x0a\\x09\\x7f\\x9b"
    assert shown("\u2028 \u202e \u2066 \ud800") == "\\u2028 \\u202e \\u2066 \\ud800"
    assert shown("naïve 名前 🎉 \\") == "naïve 名前 🎉 \\"


@given(st.text(st.characters()))
def test_any_text_becomes_one_line_that_can_be_written(text):
    found = shown(text)
    assert len(found.splitlines()) <= 1
    found.encode()
