"""What is shown, and what becomes of it by a look or a key. Nothing here does I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Self

from streamq.cli import figures
from streamq.cli.live.keys import Key
from streamq.cli.looks import Look
from streamq.snapshots import FullSnapshot

SAMPLES: Final = 60
"""Most looks of which figures are kept for the sparklines."""

PAGE: Final = 10
"""Rows or lines that Page Up and Page Down go over."""

Series = tuple[float | None, ...]
"""Values of the last looks, the newest last; None where one is not known."""


@dataclass(frozen=True, slots=True)
class History:
    """What a stream's figures were at the last looks."""

    ready: Series = ()
    pending: Series = ()
    dead: Series = ()
    entered: Series = ()
    done: Series = ()

    def then(self, found: FullSnapshot) -> Self:
        """With one more look, and without the oldest if there are too many."""
        return replace(
            self,
            ready=_longer(self.ready, found.ready),
            pending=_longer(self.pending, found.pending),
            dead=_longer(self.dead, found.dead),
            entered=_longer(self.entered, figures.entered(found)),
            done=_longer(self.done, figures.done(found)),
        )


def _longer(series: Series, value: float | None) -> Series:
    return (*series, value)[-SAMPLES:]


@dataclass(frozen=True, slots=True)
class State:
    """What is shown.

    Attributes:
        where: The server, and the deployment if there is one.
        every: Seconds between two looks.
        look: The last one that came to its end.
        looked_at: When that was, by the clock of `now`.
        now: Time of the drawing, by a clock that never goes back.
        history: Of each stream, by name.
        trouble: Why there was no look since then, or None.
        alone: Whether only one stream is watched: then there is no overview to go back to.
        selected: The stream on which the mark is; None only where there is none.
        opened: The stream that is shown in depth, or None for the overview.
        offset: Lines of it that are above the screen.
        paused: Whether the figures stand still.
        helping: Whether the keys are explained.
        ended: Whether this is over.
    """

    where: str
    every: float
    look: Look
    looked_at: float
    now: float
    history: Mapping[str, History] = field(default_factory=dict)
    trouble: str | None = None
    alone: bool = False
    selected: str | None = None
    opened: str | None = None
    offset: int = 0
    paused: bool = False
    helping: bool = False
    ended: bool = False

    @property
    def names(self) -> list[str]:
        """All streams, in the order in which they are shown."""
        return sorted({*self.look.found, *self.look.refused})


def started(look: Look, *, where: str, every: float, now: float, name: str | None = None) -> State:
    """The beginning: the overview, or the one stream that is watched."""
    empty = State(where, every, Look(), now, now, alone=name is not None, selected=name, opened=name)
    return looked(empty, look, now)


def looked(state: State, look: Look, now: float) -> State:
    """A look came to its end. The mark stays on its stream, or in its place if that is gone."""
    if state.paused:
        return state
    rated = look.since(state.look)
    history = {name: state.history.get(name, History()).then(found) for name, found in rated.found.items()}
    after = replace(state, look=rated, looked_at=now, now=now, history=history, trouble=None)
    if after.selected not in after.names:
        place = state.names.index(state.selected) if state.selected in state.names else 0
        after = replace(after, selected=after.names[min(place, len(after.names) - 1)] if after.names else None)
    return after


def failed(state: State, why: str, now: float) -> State:
    """A look failed: what was seen last stays."""
    return replace(state, trouble=why, now=now)


def pressed(state: State, key: Key, last_offset: int) -> State:
    """A key was pressed. `last_offset` is the largest `offset` at which there is something to see."""
    match key:
        case "quit":
            after = replace(state, ended=True)
        case "help":
            after = replace(state, helping=not state.helping)
        case "pause":
            after = replace(state, paused=not state.paused)
        case "back":
            after = _back(state)
        case _ if state.helping:
            after = state
        case "enter":
            after = state if state.opened else replace(state, opened=state.selected, offset=0)
        case _ if state.opened:
            after = replace(state, offset=_moved(min(state.offset, last_offset), key, last_offset))
        case _:
            after = _marked(state, key)
    return after


def _back(state: State) -> State:
    if state.helping:
        return replace(state, helping=False)
    return state if state.alone else replace(state, opened=None, offset=0)


def _marked(state: State, key: Key) -> State:
    names = state.names
    if state.selected not in names:
        return state
    return replace(state, selected=names[_moved(names.index(state.selected), key, len(names) - 1)])


def _moved(place: int, key: Key, last: int) -> int:
    match key:
        case "up":
            place -= 1
        case "down":
            place += 1
        case "page up":
            place -= PAGE
        case "page down":
            place += PAGE
        case "home":
            place = 0
        case "end":
            place = last
    return max(0, min(place, last))
