"""The set of stream names. It has a slot of its own: never in one request with a stream's keys."""

from __future__ import annotations

from streamq._requests import Command, Pipeline, Plan, ask, ask_each, scan, texts
from streamq.errors import ConfigurationError, ConnectionLostError, ServerError
from streamq.keys import NAME, Keys, name_of, registry, stream_pattern

_PAGE = 1_000

SCANNED = 100_000
"""Most keys looked at for streams that are missing from the registry."""


def note(keys: Keys) -> Plan[None]:
    """Put the stream's name into the registry. One request."""
    names = registry(keys.deployment)
    listed = Pipeline((Command(("SADD", names, keys.name), (names,), int),))
    try:
        answers = yield from ask_each(listed)
    except ConnectionLostError as error:
        if error.maybe_executed:
            raise
        return  # in a cluster that set is on another node: the stream needs not wait for it, SCAN must find it
    except ServerError:
        return  # or on none: nobody serves its slot
    for answer in answers:
        if isinstance(answer, ConfigurationError):
            raise answer  # a missing permission; a refusal for now only means that SCAN must find the stream


def forget(keys: Keys) -> Plan[bool]:
    """Take the stream's name out of the registry; False if it was not in it. One request."""
    names = registry(keys.deployment)
    return (yield from ask(Command(("SREM", names, keys.name), (names,), bool)))


def is_known(keys: Keys) -> Plan[bool]:
    """Whether there is such a stream: one of its keys, or its name in the registry. One request, or two."""
    fixed = tuple(keys.kinds)
    if (yield from ask(Command(("EXISTS", *fixed), fixed, bool))):
        return True
    names = registry(keys.deployment)
    return (yield from ask(Command(("SISMEMBER", names, keys.name), (names,), bool)))


def names(deployment: str | None) -> Plan[list[str]]:
    """Names of all streams: of the registry, and of streams that producers made without it."""
    key = registry(deployment)
    members = yield from ask(Command(("SMEMBERS", key), (key,), texts))
    found = {name for name in members if NAME.fullmatch(name)}  # whoever wrote another one did not mean a stream
    cursor, looked = "0", 0
    while looked < SCANNED:
        pattern = stream_pattern(deployment)
        cursor, stream_keys = yield from ask(scan(cursor, "MATCH", pattern, "COUNT", _PAGE, "TYPE", "stream"))
        found.update(name for k in stream_keys if (name := name_of(k, deployment)) is not None)
        looked += _PAGE
        if cursor == "0":
            break
    return sorted(found)
