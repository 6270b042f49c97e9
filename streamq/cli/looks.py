"""What `inspect` looks at: one stream in depth, or all of them. Plans, for drivers of either colour."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from streamq._codec import EntryCodec
from streamq._ops import inspect, registry
from streamq._requests import Plan
from streamq._spec import Spec
from streamq.errors import ConfigurationError, ServerError
from streamq.keys import Keys
from streamq.options import StreamOptions
from streamq.snapshots import FullSnapshot


@dataclass(frozen=True, slots=True)
class Look:
    """Streams at one moment.

    Attributes:
        found: Those that could be looked at, by name in alphabetical order.
        refused: Why others could not: one of a wrong type hides no other.
    """

    found: dict[str, FullSnapshot] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    def since(self, earlier: Look) -> Look:
        """This one with the rates since an earlier one."""
        found = {
            name: one.since(earlier.found[name]) if name in earlier.found else one for name, one in self.found.items()
        }
        return Look(found, self.refused)


def one(name: str, deployment: str | None, *, payloads: bool = False) -> Plan[FullSnapshot]:
    """One stream."""
    return inspect.full(spec(name, deployment), payloads=payloads)


def alone(name: str, deployment: str | None) -> Plan[Look]:
    """One stream, as if there were no other."""
    return Look({name: (yield from one(name, deployment))})


def all_of(deployment: str | None) -> Plan[Look]:
    """All streams of a deployment."""
    look = Look()
    for name in (yield from registry.names(deployment)):
        try:
            look.found[name] = yield from one(name, deployment)
        except (ConfigurationError, ServerError) as error:
            look.refused[name] = str(error)
    return look


def spec(name: str, deployment: str | None) -> Spec[dict[str, Any]]:
    """A stream of which only its name is known.

    Raises:
        ConfigurationError: It is no name.
    """
    options = StreamOptions()
    return Spec(Keys(name, deployment), options, EntryCodec(dict, options))
