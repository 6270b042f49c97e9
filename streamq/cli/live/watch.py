"""Looks, keys and drawing in one event loop: while a server does not answer, keys do."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final

from streamq._requests import Plan
from streamq.cli.live import keys
from streamq.cli.live.screen import Picture, draw
from streamq.cli.live.state import State, failed, looked, pressed, started
from streamq.cli.live.terminal import Terminal
from streamq.cli.looks import Look
from streamq.connection import READ_TIMEOUT_S, Settings
from streamq.errors import StreamqError

REDRAWN_AFTER_S: Final = 1.0
"""Ages on the screen are not older than that."""

ESCAPE_S: Final = 0.1
"""How long an Escape may be the beginning of an arrow key."""


def watch(
    settings: Settings, plan: Callable[[], Plan[Look]], *, every: float, where: str, name: str | None = None
) -> int:
    """Show what `plan` sees until somebody quits; the exit status.

    Raises:
        StreamqError: There is no terminal for it, or the very first look failed.
    """
    terminal = Terminal()
    with suppress(KeyboardInterrupt):  # during the first look; later it is a signal as others
        return asyncio.run(_watch(terminal, settings, plan, every=every, where=where, name=name))
    return 0


async def _watch(
    terminal: Terminal,
    settings: Settings,
    plan: Callable[[], Plan[Look]],
    *,
    every: float,
    where: str,
    name: str | None,
) -> int:
    driver = settings.asynchronous(READ_TIMEOUT_S)
    try:
        look = await driver.run(plan())
        state = started(look, where=where, every=every, now=time.monotonic(), name=name)
        return await Live(terminal, lambda: driver.run(plan()), state).run()
    finally:
        await driver.aclose()


class Live:
    """One screen, from its beginning to its end.

    Args:
        terminal: Where.
        look: Looks once.
        state: What is shown first.
    """

    def __init__(self, terminal: Terminal, look: Callable[[], Awaitable[Look]], state: State) -> None:
        self._terminal = terminal
        self._look = look
        self._state = state
        self._picture = Picture([])
        self._changed = asyncio.Event()
        self._resumed = asyncio.Event()
        self._typed = b""
        self._escape: asyncio.TimerHandle | None = None
        self._status = 0

    async def run(self) -> int:
        """Show, look again, and obey keys and signals until the end; the exit status."""
        loop = asyncio.get_running_loop()
        answers: dict[signal.Signals, Callable[[], None]] = {
            signal.SIGINT: self._quit,
            **{number: partial(self._killed, number) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)},
            signal.SIGTSTP: self._suspend,
            signal.SIGWINCH: self._changed.set,
        }
        for number, answer in answers.items():
            loop.add_signal_handler(number, answer)
        try:
            with self._terminal:
                loop.add_reader(self._terminal.input, self._read)
                try:
                    await self._show_until_ended()
                finally:
                    loop.remove_reader(self._terminal.input)
        finally:
            for number in answers:
                loop.remove_signal_handler(number)
        return self._status

    async def _show_until_ended(self) -> None:
        looking = asyncio.create_task(self._keep_looking())
        looking.add_done_callback(lambda _: self._changed.set())
        try:
            while not self._state.ended and not looking.done():
                self._changed.clear()
                self._draw()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), REDRAWN_AFTER_S)
        finally:
            looking.cancel()
            with suppress(asyncio.CancelledError):
                await looking

    async def _keep_looking(self) -> None:
        due = time.monotonic()
        while True:
            due = max(due + self._state.every, time.monotonic())  # what takes longer is not made up for
            with suppress(TimeoutError):
                await asyncio.wait_for(self._resumed.wait(), due - time.monotonic())
            self._resumed.clear()
            if self._state.paused:
                continue
            try:
                look = await self._look()
            except StreamqError as error:
                self._become(failed(self._state, str(error), time.monotonic()))
            else:
                self._become(looked(self._state, look, time.monotonic()))

    def _draw(self) -> None:
        self._state = replace(self._state, now=time.monotonic())
        self._picture = draw(self._state, *self._terminal.size(), self._terminal.bars)
        self._terminal.show(self._picture)

    def _become(self, state: State) -> None:
        self._state = state
        self._changed.set()

    # --- keys and signals ------------------------------------------------------------------

    def _read(self) -> None:
        sent = self._terminal.read()
        if not sent:
            self._quit()  # the terminal is gone
            return
        if self._escape is not None:
            self._escape.cancel()
            self._escape = None
        found, self._typed = keys.decoded(self._typed + sent)
        self._press(found)
        if self._typed:
            self._escape = asyncio.get_running_loop().call_later(ESCAPE_S, self._no_more_of_it)

    def _no_more_of_it(self) -> None:
        typed, self._typed, self._escape = self._typed, b"", None
        self._press(["back"] if typed == keys.ESCAPE else [])

    def _press(self, found: list[keys.Key]) -> None:
        for key in found:
            was_paused = self._state.paused
            self._become(pressed(self._state, key, self._picture.last_offset))
            if was_paused and not self._state.paused:
                self._resumed.set()  # nobody who goes on wants to wait

    def _quit(self) -> None:
        self._become(replace(self._state, ended=True))

    def _killed(self, number: signal.Signals) -> None:
        self._status = 128 + number  # as a shell says it of who dies of it
        self._quit()

    def _suspend(self) -> None:
        """Ctrl-Z: the shell gets its screen, and we go on with ours when it lets us."""
        self._terminal.give_back()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._terminal.take()
        self._changed.set()
