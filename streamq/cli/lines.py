"""JSON lines from a file or a pipe: in bounded memory, each with its number, and at once when no more come for now."""

from __future__ import annotations

import select
from collections.abc import Iterator
from typing import BinaryIO, Final, NamedTuple

import msgspec

from streamq.errors import ConfigurationError, StreamqError
from streamq.keys import check_id

_READ: Final = 1 << 16

_PATIENCE_S: Final = 0.05
"""How long more lines are waited for, before what has come goes on its way."""

_BLANK: Final = b" \t\r\n"
_BOM: Final = b"\xef\xbb\xbf"


class Line(NamedTuple):
    """A line that is not blank."""

    number: int
    data: bytes | None
    """Without white space around it; None if the line is too long."""
    end: int
    """Bytes up to its end."""


def lines(source: BinaryIO, most_bytes: int, first: int = 1) -> Iterator[Line | None]:
    """Lines from number `first` on; None where no more come for now.

    Args:
        source: Buffered; `read1` is called.
        most_bytes: Longest line that is kept.
        first: Those before it are passed over.

    Raises:
        ConfigurationError: The source cannot be read.
    """
    number, end, rest, is_long = 1, 0, bytearray(), False
    while data := _read(source):
        *whole, last = data.split(b"\n")
        for part in whole:
            end += len(part) + 1
            if number >= first and (line := _line(number, bytes(rest) + part, end, most_bytes, is_long=is_long)):
                yield line
            number, rest, is_long = number + 1, bytearray(), False
        end += len(last)
        rest += last
        if len(rest) > most_bytes + _READ or number < first:
            rest, is_long = bytearray(), number >= first  # what is behind it does not make it shorter
        if not _more(source):
            yield None
    if number >= first and (line := _line(number, bytes(rest), end, most_bytes, is_long=is_long)):
        yield line


def _read(source: BinaryIO) -> bytes:
    try:
        return bytes(source.read1(_READ))  # type: ignore[attr-defined]  # every buffered reader has it
    except OSError as error:
        raise ConfigurationError(f"standard input cannot be read: {error.strerror or error}") from None


def _line(number: int, data: bytes, end: int, most_bytes: int, *, is_long: bool) -> Line | None:
    if is_long:
        return Line(number, None, end)
    if number == 1:
        data = data.removeprefix(_BOM)
    data = data.strip(_BLANK)
    if len(data) > most_bytes:
        return Line(number, None, end)
    return Line(number, data, end) if data else None


def _more(source: BinaryIO) -> bool:
    """Whether more can be read at once, or has come to its end."""
    try:
        return bool(select.select([source], [], [], _PATIENCE_S)[0])
    except (OSError, ValueError):
        return True  # nothing that can be waited for: a file on some systems


class BadLineError(ValueError):
    """It is no job; the text says why."""


class Job(NamedTuple):
    """A job to add."""

    number: int
    payload: bytes
    job_id: str | None


def job_of(line: Line, most_bytes: int, id_field: str | None) -> Job:
    """The job of a line.

    Args:
        line: The line.
        most_bytes: Longest payload.
        id_field: Field of the payload that has the job's ID: a text or a whole number.

    Raises:
        BadLineError: It is none.
    """
    if line.data is None:
        raise BadLineError(f"longer than {most_bytes:,} bytes, the most that a payload may have")
    payload = decoded(line.data)
    return Job(line.number, line.data, None if id_field is None else _id_in(payload, id_field))


def decoded(data: bytes) -> object:
    """What JSON says.

    Raises:
        BadLineError: It is no JSON.
    """
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadLineError(f"no JSON: {error}") from None
    except RecursionError:
        raise BadLineError("no JSON that can be read: it is nested too deeply") from None


def _id_in(payload: object, field: str) -> str:
    if not isinstance(payload, dict):
        raise BadLineError(f"no JSON object, so it has no field {field!r:.80} with the job ID")
    if field not in payload:
        raise BadLineError(f"has no field {field!r:.80} with the job ID")
    value = payload[field]
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        raise BadLineError(f"field {field!r:.80} is no job ID: it must be a text or a whole number")
    try:
        return check_id(value, f"field {field!r:.80}: job ID")
    except StreamqError as error:
        raise BadLineError(str(error)) from None
