"""May a stream be used as it is stored? Asked before its first job is touched."""

from __future__ import annotations

import re
import shlex
from typing import Any, Final

from streamq._requests import Command, Pipeline, Plan, ask_each, text
from streamq.errors import MigrationError
from streamq.keys import Keys, migration_record
from streamq.migrations import discovery, m001_hash_tags

FORMAT: Final = (1, 0)
"""Of what is stored. The minor number grows with what earlier versions can pass over, the major one with what they cannot."""

_VERSION: Final = re.compile(r"([0-9]{1,6})\.([0-9]{1,6})")


def check(keys: Keys) -> Plan[None]:
    """See that the stream's keys are those of this version. Two requests; one on a cluster.

    Of a cluster only the stream's own node is asked: nobody should wait for others, and the previous layout does not count there.
    What the user may not look at says nothing: who may only write to one key is not kept from that.

    Raises:
        MigrationError: There are jobs of the previous layout, or another version's format. The message says what to do.
    """
    if not keys.is_tagged:
        return
    about: tuple[Command[Any], ...] = (
        Command(("HGET", keys.meta, "format"), (keys.meta,), _word),
        discovery.mode(of=keys.meta),
    )
    version, mode = yield from ask_each(Pipeline(about))
    if isinstance(version, str):
        check_format(version, keys)
    if mode == "cluster":
        return
    record = migration_record(keys.deployment, m001_hash_tags.NAME)
    asked: list[Command[Any]] = [Command(("HGET", record, "state"), (record,), _word)]
    asked += [Command(("EXISTS", key), (key,), bool) for key in keys.untagged.holding]
    state, *there = yield from ask_each(Pipeline(tuple(asked)))
    if state == "applied" or not any(answer is True for answer in there):
        return
    raise MigrationError(
        f"stream {keys.name} has jobs in the previous layout of its keys, which this version does not see; nothing was done. "
        f"Run: {command(keys.deployment, 'apply')}"
    )


def check_format(version: str, keys: Keys) -> None:
    """See that this version can read what a stream's format is said to be.

    Raises:
        MigrationError: It cannot.
    """
    known = ".".join(map(str, FORMAT))
    found = _VERSION.fullmatch(version)
    if found is None:
        raise MigrationError(
            f"stream {keys.name} says {version!r:.60} of its format (field format of {keys.meta}), which is no version such "
            f"as {known}: somebody else wrote it; nothing was done"
        )
    major = int(found[1])
    if major != FORMAT[0]:
        which = "a newer" if major > FORMAT[0] else "an older"
        raise MigrationError(
            f"stream {keys.name} is stored in format {version} by {which} version of streamq; this one knows {known}: "
            "use the version that it was stored by; nothing was done"
        )


def command(deployment: str | None, *words: str) -> str:
    """A command of ``streamq migrate``, for the deployment."""
    space = () if deployment is None else ("--deployment", deployment)
    return shlex.join(("streamq", "migrate", *words, *space))


def _word(reply: Any) -> str | None:
    return None if reply is None else text(reply)
