"""One stream of a server, as the commands work on it: without a type of payloads, and for operators."""

from __future__ import annotations

from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self, TypeAlias, TypeVar

from streamq._codec import EntryCodec
from streamq._flows import opening
from streamq._requests import Plan, ask, server_ms
from streamq._spec import Spec
from streamq._times import moment
from streamq.connection import settings_of
from streamq.errors import ConfigurationError, ServerError
from streamq.keys import Keys
from streamq.options import StreamOptions

T = TypeVar("T")

AnySpec: TypeAlias = Spec[dict[str, object]]


class Client:
    """A stream of a server.

    Args:
        name: Of the stream.
        url: Of the server, or None for the default.
        deployment: Its namespace, or None.
        options: Of the stream, or None for the defaults.

    Raises:
        ConfigurationError: A name or the URL is not valid.
    """

    def __init__(
        self, name: str, url: str | None, deployment: str | None, options: StreamOptions | None = None
    ) -> None:
        self.keys = Keys(name, deployment)
        self._spec: AnySpec = self.spec_of(dict, StreamOptions() if options is None else options)
        self._opened: set[opening.Opening[dict[str, object]]] = set()
        self._driver = settings_of(url).blocking()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._driver.close()

    @property
    def name(self) -> str:
        """Of the stream."""
        return self.keys.name

    def now(self) -> datetime:
        """The server's time: by it jobs are due, and have died. Of this machine, if the server does not tell."""
        try:
            return moment(self._driver.run(ask(server_ms())))
        except (ConfigurationError, ServerError):
            return datetime.now(UTC)

    def _operate(self, spec: AnySpec, plan: Plan[Any]) -> Any:
        """Run what changes something, behind a look at what the user may."""
        if not self._opened:
            plan = opening.behind(spec, plan, (opening.migrated, opening.operator), self._opened)
        return self._driver.run(plan)

    def spec_of(self, kind: type[T], options: StreamOptions) -> Spec[T]:
        """The stream as one of payloads of that type, with these settings."""
        return Spec(self.keys, options, EntryCodec(kind, options, self.name))
