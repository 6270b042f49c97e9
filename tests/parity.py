"""Makes ``streamq/stream_async.py`` from ``streamq/stream.py``, so that the two facades cannot differ.

Run ``python tests/parity.py`` after a change of the first; ``tests/test_parity.py`` fails until you do.
"""

from __future__ import annotations

import re
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "streamq"
SOURCE = PACKAGE / "stream.py"
TARGET = PACKAGE / "stream_async.py"

_TASKS = """Tasks of one event loop may share one; call `aclose` before the loop ends. After a fork the child makes
    connections of its own."""

# Each must be used: a substitution that no longer matches is a mistake, not a no-op.
_PLANS = (
    "add|add_many|read|reclaim|ack|commit|retry|reject|release|once|inspect|_operate|_run_behind|_run|list|"
    "extend|find|cancel|promote|reschedule|run_now|result|pause|resume|trim|prune_consumers|delete|get|redrive|purge|create|drop"
)
SUBSTITUTIONS = (
    (
        r'^"""The blocking facade\..*?"""',
        '"""The asyncio facade. Made from ``stream.py`` by ``tests/parity.py``: do not edit."""',
    ),
    (r"(server, for one consumer group)\.", r"\1, with asyncio."),
    (
        r"Threads may share one\. After a fork the child makes connections of its own\.",
        _TASKS,
    ),
    (r"from collections\.abc import Callable, Iterable", "from collections.abc import Awaitable, Callable, Iterable"),
    (r"\bclass Stream\(", "class AsyncStream("),
    (r"\bclass DeadLetters\(", "class AsyncDeadLetters("),
    (r"= DeadLetters\(", "= AsyncDeadLetters("),
    (r"\bclass Groups\(", "class AsyncGroups("),
    (r"= Groups\(", "= AsyncGroups("),
    (r"\bclass Schedule\(", "class AsyncSchedule("),
    (r"= Schedule\(", "= AsyncSchedule("),
    (r"`Stream\.scheduled`", "`AsyncStream.scheduled`"),
    (r"`Stream\.cancel`", "`AsyncStream.cancel`"),
    (r"`Stream\.groups`", "`AsyncStream.groups`"),
    (r"`Stream\.inspect`", "`AsyncStream.inspect`"),
    (r"`Stream\.dead_letters`", "`AsyncStream.dead_letters`"),
    (r"_settings\.blocking\(\)", "_settings.asynchronous()"),
    (r"def __enter__", "async def __aenter__"),
    (r"def __exit__", "async def __aexit__"),
    (r"self\.close\(\)", "await self.aclose()"),
    (r"def close\(", "async def aclose("),
    (r"self\._driver\.close\(\)", "await self._driver.aclose()"),
    (rf"    def ({_PLANS})\(", r"    async def \1("),
    (r"(?<!def )self\._(run_behind|run|operate)\((?=[a-z)])", r"await self._\1("),
    (r"return self\._driver\.run\(plan\)", "return await self._driver.run(plan)"),
    (r"= Callable\[\[Plan\[Any\]\], Any\]", "= Callable[[Plan[Any]], Awaitable[Any]]"),
)


def made() -> str:
    """The asyncio facade, from the blocking one.

    Raises:
        ValueError: A substitution is not used any more.
    """
    text = SOURCE.read_text("utf-8")
    for pattern, replacement in SUBSTITUTIONS:
        text, times = re.subn(pattern, replacement, text, flags=re.MULTILINE | re.DOTALL)
        if times == 0:
            raise ValueError(f"substitution {pattern!r} matches nothing")
    return text


if __name__ == "__main__":
    TARGET.write_text(made(), "utf-8")
