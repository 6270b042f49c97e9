"""What the fields of an entry say, for people and for scripts."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any, Final

from streamq._ops.letters import Fields
from streamq._requests import text

_TOLD: Final = frozenset({b"sq:id", b"sq:at", b"sq:attempt", b"sq:errors", b"sq:group", b"sq:generated"})
"""Fields of ours that lists tell, or that tell an operator nothing."""


def text_or_base64(name: str, value: bytes) -> dict[str, str]:
    """A value as JSON holds it: under `name`, or under ``<name>_base64`` if it is no UTF-8."""
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}


def about(fields: Fields, *, payload: bool) -> dict[str, Any]:
    """What the fields of a job's entry say beside what lists tell of it.

    Args:
        fields: Of the entry.
        payload: Whether its payload is wanted: as ``payload``, or as ``payload_base64`` if it is no UTF-8.
    """
    headers: dict[str, str] = {}
    reserved: dict[str, str] = {}
    others: dict[str, int] = {}
    codec = "json"
    body: bytes | None = None
    for name, value in fields:
        if name.startswith(b"sq:h:"):
            headers[text(name[5:])] = text(value)
        elif name == b"sq:codec":
            codec = text(value)
        elif name.startswith(b"sq:"):
            if name not in _TOLD:
                reserved[text(name)] = text(value)
        elif name == b"job":
            body = value if body is None else body
        else:
            others[text(name)] = len(value)
    found: dict[str, Any] = {
        "headers": headers,
        "reserved": reserved,
        "other_fields": others,
        "codec": codec,
        "payload_bytes": None if body is None else len(body),
    }
    if payload and body is not None:
        found |= text_or_base64("payload", body)
    return found


def lines(details: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What `about` found, as titles and values; the payload has no title."""
    yield from ((f"header {name}", value) for name, value in details["headers"].items())
    yield from details["reserved"].items()
    yield from ((f"field {name}", f"{size:,} bytes") for name, size in details["other_fields"].items())
    if details["payload_bytes"] is not None:
        yield "payload", f"{details['payload_bytes']:,} bytes, {details['codec']}"
    if "payload" in details:
        yield "", details["payload"]
    if "payload_base64" in details:
        yield "", f"base64: {details['payload_base64']}"
