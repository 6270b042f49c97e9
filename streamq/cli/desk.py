"""One stream, for commands that look after it: the stream itself, whether it is there, and what its live workers say."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, TypeAlias, TypeVar

import typer

from streamq._ops import registry
from streamq._ops.doctor import workers
from streamq._ops.doctor.workers import Beats
from streamq._requests import Plan
from streamq._times import ms_of
from streamq.cli.client import Client
from streamq.cli.output import REFUSED, fail
from streamq.errors import JobStateError
from streamq.options import StreamOptions
from streamq.stream import Stream

R = TypeVar("R")

_Stream: TypeAlias = Stream[dict[str, Any]]


class Desk(Client):
    """One stream, and whatever the commands need to know of it.

    Args:
        name: Of the stream.
        url: Of the server, or None for the default.
        deployment: Its namespace, or None.

    Raises:
        ConfigurationError: A name or the URL is not valid.
    """

    def __init__(self, name: str, url: str | None, deployment: str | None) -> None:
        super().__init__(name, url, deployment)
        self._url = url
        self._streams: list[_Stream] = []

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for stream in self._streams:
            stream.close()
        super().__exit__(kind, error, trace)

    def stream(self, options: StreamOptions | None = None) -> _Stream:
        """The stream, with these settings. It is closed with the desk."""
        opened: _Stream = Stream(self.name, redis=self._url, deployment=self.keys.deployment, options=options)
        self._streams.append(opened)
        return opened

    def run(self, plan: Plan[R]) -> R:
        """Run a plan that needs no settings."""
        return self._driver.run(plan)

    def must_be_there(self) -> None:
        """Go on only if there is such a stream: a name that is mistyped must not pass for one that is well.

        Raises:
            typer.Exit: There is none. Status 1.
        """
        if not self.run(registry.is_known(self.keys)):
            where = f" in deployment {self.keys.deployment}" if self.keys.deployment else ""
            fail(f"there is no stream {self.name}{where}; nothing was changed")
            raise typer.Exit(1)

    def beats(self) -> Beats:
        """What the stream's workers say of themselves."""
        return self.run(workers.beats(self.keys, ms_of(self.now())))

    def told(self, *names: str) -> list[dict[str, Any]]:
        """These settings of the stream, as its live workers have them by their own word: each way they are told."""
        ways: list[dict[str, Any]] = []
        for about in self.beats().live.values():
            settings = {name: value for name, value in (about.settings or {}).items() if name in names}
            if settings and settings not in ways:
                ways.append(settings)
        return ways

    def readers(self, group: str | None = None) -> str:
        """What to add to a question, if workers are alive: of that group, or of any."""
        live = [about for about in self.beats().live.values() if group is None or about.group in {None, group}]
        if not live:
            return ""
        return f", which {'1 live worker reads' if len(live) == 1 else f'{len(live):,} live workers read'} and will make again"


@contextmanager
def refusal(hint: str) -> Iterator[None]:
    """Say that a state is in the way, and what to do, and end with status 3."""
    try:
        yield
    except JobStateError as error:
        fail(f"{error}; {hint}" if hint else str(error))
        raise typer.Exit(REFUSED) from None
