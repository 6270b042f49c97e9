"""The asyncio facade is the blocking one with await."""

from __future__ import annotations

import inspect

import parity
import pytest

from streamq.stream import DeadLetters, Groups, Stream
from streamq.stream_async import AsyncDeadLetters, AsyncGroups, AsyncStream


def test_generated_file_is_up_to_date():
    assert parity.TARGET.read_text("utf-8") == parity.made(), "run: python tests/parity.py"


def test_an_unused_substitution_is_found(monkeypatch):
    monkeypatch.setattr(parity, "SUBSTITUTIONS", (("no such text", ""),))
    with pytest.raises(ValueError, match="matches nothing"):
        parity.made()


@pytest.mark.parametrize(
    ("blocking", "asyncio"), [(Stream, AsyncStream), (DeadLetters, AsyncDeadLetters), (Groups, AsyncGroups)]
)
def test_same_methods_parameters_and_docs(blocking, asyncio):
    def surface(cls):
        return {
            {"close": "aclose"}.get(name, name): (str(inspect.signature(member)), inspect.getdoc(member))
            for name, member in vars(cls).items()
            if not name.startswith("_") and callable(member)
        }

    assert surface(blocking) == surface(asyncio)
    assert all(inspect.iscoroutinefunction(vars(asyncio)[name]) for name in surface(asyncio))
