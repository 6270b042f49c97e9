"""``--watch --json``: what is seen at each look, as JSON on a line."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from streamq._requests import Plan
from streamq.cli.looks import Look
from streamq.cli.output import fail, print_json
from streamq.connection import READ_TIMEOUT_S, Settings
from streamq.errors import StreamqError


def feed(settings: Settings, plan: Callable[[], Plan[Look]], *, every: float, name: str | None = None) -> None:
    """Print what `plan` sees, the stream of that name or the list of all, until Ctrl-C or until nobody reads it.

    Raises:
        StreamqError: The very first look failed. Later ones are told on standard error, and tried again.
        BrokenPipeError: Nobody reads it any more.
    """
    driver = settings.blocking(READ_TIMEOUT_S)
    look: Look | None = None
    told: list[str] = []
    due = time.monotonic()
    try:
        while True:
            try:
                seen = driver.run(plan())
            except StreamqError as error:
                if look is None:
                    raise
                problems = [str(error)]
            else:
                look = seen if look is None else seen.since(look)
                problems = [f"stream {refused} cannot be looked at: {why}" for refused, why in look.refused.items()]
                print_json([*look.found.values()] if name is None else look.found[name], indent=-1)
                sys.stdout.flush()
            for problem in problems:
                if problem not in told:  # once, for as long as it lasts
                    fail(problem)
            told = problems
            due = max(due + every, time.monotonic())  # what takes longer is not made up for
            time.sleep(due - time.monotonic())
    except KeyboardInterrupt:
        pass
    finally:
        driver.close()
