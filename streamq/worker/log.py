"""The worker's log: one form for every line, to read and to search.

A record's message is ``what happened: name=value ...``; its attribute `streamq` holds the same names and values for
formatters that write JSON. Neither holds a payload, nor the text of a handler's exception, which may quote one: that is
kept with the job.
"""

from __future__ import annotations

import logging
import re
from typing import Any, Final

from streamq._text import shown
from streamq.messages import Job

MAX_VALUE_CHARS = 500
"""Longest value in a message; the record's attribute has all of it."""

_PLAIN: Final = re.compile(r'[^\s"=]+')


def event(logger: logging.Logger, level: int, message: str, **fields: Any) -> None:
    """Log `message` with `fields`; those that are None are left out."""
    if not logger.isEnabledFor(level):
        return
    known = {name: value for name, value in fields.items() if value is not None}
    line = " ".join(f"{name}={_value(value)}" for name, value in known.items())
    text = f"{message}: {line}" if line else message
    logger.log(level, "%s", text, extra={"streamq": known}, stacklevel=2)


def about(job: Job[Any]) -> dict[str, Any]:
    """The fields that say which delivery a line is about."""
    consumer = job._consumer  # noqa: SLF001  # its maker's package
    return {"job_id": job.id, "entry_id": job.entry_id, "attempt": job.attempt, "consumer": consumer}


def _value(value: Any) -> str:
    text = shown(str(value)[:MAX_VALUE_CHARS])
    if _PLAIN.fullmatch(text):
        return text
    return '"' + text.replace('"', '\\"') + '"'
