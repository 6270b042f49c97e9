"""The stored entry: values to fields and fields to values. A public format, described in ``docs/format.md``.

``job`` is the payload, JSON unless ``sq:codec`` says otherwise; fields that begin with ``sq:`` are ours; all others
belong to the producer and are carried along untouched. Nothing that comes from the server is trusted: whatever is
malformed becomes a `Malformed`, never an exception in a loop, and no payload ever reaches a log line. Never pickle: data
must not be able to run code.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Generic, NoReturn, TypeVar, get_origin

import msgspec

from streamq._requests import Arg
from streamq.backoff import MAX_DELAY_MS, MAX_DELAYS, Backoff
from streamq.errors import ConfigurationError, JobEncodingError
from streamq.keys import ID_BYTES, NAME, check_id
from streamq.messages import MOST_MS, Job, JobIdKind, Reason
from streamq.options import MAX_FIELDS, MAX_RESULT_BYTES, Codec, StreamOptions

T = TypeVar("T")

MAX_ERRORS: Final = 5
"""Errors kept in an entry: enough to see whether a failure changes its face."""

MAX_ERROR_CHARS: Final = 500
"""Of each of them."""

MAX_DEAD_ERROR_BYTES: Final = 4_096
"""Of the error in a dead letter: a stack's worth, and an exception with megabytes in its text stays harmless."""

MAX_HEADERS: Final = 64

_PATH = re.compile(r"^(?P<what>.*?)(?: - at `(?P<path>[^`]*)`)?$", re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True, slots=True)
class Malformed:
    """An entry that cannot become a job."""

    reason: Reason
    error: str


@dataclass(frozen=True, slots=True)
class OtherGroups:
    """An entry that only another group handles: acknowledged unseen."""

    group: str


def cut(message: str, size: int = MAX_DEAD_ERROR_BYTES) -> str:
    """`message` in at most `size` bytes of UTF-8, with control characters made visible."""
    shown = _CONTROL.sub(lambda m: f"\\x{ord(m[0]):02x}", message[: size + 1])
    raw = shown.encode("utf-8", "backslashreplace")
    if len(raw) <= size:
        return raw.decode()
    return raw[: size - 4].decode("utf-8", "ignore") + " ..."


_SPELLED: Final[dict[Codec, str]] = {"json": "JSON", "msgpack": "msgpack"}
_WOULD_CHANGE: Final[dict[Codec, str]] = {
    "json": "JSON has no NaN, no tuples, no keys but text, no times",
    "msgpack": "msgpack has no tuples, no sets, no decimals, no times without a zone, and NaN equals nothing",
}


class PayloadCodec(Generic[T]):
    """Encodes payloads of one type, and decodes them from whichever codec they were encoded with.

    Args:
        kind: The payload's type: a msgspec Struct or anything else msgspec decodes, ``dict``, or ``bytes`` for raw ones.
        max_bytes: Longest encoded payload.
        codec: Of what is encoded.

    Raises:
        ConfigurationError: Payloads of this type cannot be decoded, or are raw and have no codec.
    """

    __slots__ = ("_back", "_encoder", "_json", "_msgpack", "_tag_path", "_untyped", "codec", "kind", "max_bytes", "raw")

    def __init__(self, kind: type[T], max_bytes: int, codec: Codec = "json") -> None:
        self.kind = kind
        self.max_bytes = max_bytes
        self.codec: Codec = codec
        self.raw = kind is bytes
        if self.raw and codec != "json":
            raise ConfigurationError(f"payloads of type bytes are stored raw: codec={codec!r} needs another type")
        try:
            self._json = msgspec.json.Decoder(kind)
            self._msgpack = msgspec.msgpack.Decoder(kind, ext_hook=_no_extension)
        except TypeError as error:
            raise ConfigurationError(f"payloads of type {kind!r} cannot be decoded: {error}") from error
        self._encoder = msgspec.msgpack.Encoder() if codec == "msgpack" else msgspec.json.Encoder()
        self._back = self._msgpack if codec == "msgpack" else self._json
        self._tag_path = _tag_path(kind)
        self._untyped = kind in {Any, object} or (get_origin(kind) or kind) in {dict, list}

    def encode(self, payload: T) -> bytes:
        """Payload as it is stored.

        Raises:
            JobEncodingError: It cannot be encoded, is too long, or would not come back as the stream's type.
        """
        raw = self._encode(payload)
        if len(raw) > self.max_bytes:
            raise JobEncodingError(f"payload has {len(raw):,} bytes, max_payload is {self.max_bytes:,}")
        if not self.raw:
            try:
                back = self._back.decode(raw)  # what a worker would refuse is refused here, where the cause is
            except msgspec.DecodeError as error:
                what, path = _where(error)
                raise JobEncodingError(
                    f"payload is no {getattr(self.kind, '__name__', self.kind)}: {path}: {what}", path=path
                ) from None
            except Exception as error:  # the type's own code (__post_init__) may raise anything
                raise JobEncodingError(f"payload cannot be decoded again: {type(error).__name__}") from error
            if back != payload and not self._same(back, payload):
                raise JobEncodingError(
                    f"payload would not come back as it is: {_WOULD_CHANGE[self.codec]}; "
                    "use a type that says what they are"
                )
        return raw

    def _same(self, back: T, payload: T) -> bool:
        # Types without equality are compared by what they hold. A plain dict has it, and must come back equal.
        if self._untyped:
            return False
        try:
            return bool(msgspec.to_builtins(back) == msgspec.to_builtins(payload))
        except (TypeError, ValueError):
            return True  # a part that msgspec only passes through (Raw): it was decoded, more cannot be said

    def _encode(self, payload: T) -> bytes:
        if self.raw:
            if not isinstance(payload, bytes):
                raise JobEncodingError(f"payload must be bytes, not {type(payload).__name__}")
            return payload
        try:
            return self._encoder.encode(payload)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise JobEncodingError(
                f"payload cannot be encoded as {_SPELLED[self.codec]}: {cut(str(error), 300)}"
            ) from error

    def decode(self, raw: bytes, codec: bytes = b"json") -> T | Malformed:
        """A stored payload, or why it is none. `codec` is the one it was stored with."""
        if len(raw) > self.max_bytes:
            return Malformed("oversized", f"$: {len(raw):,} bytes, max_payload is {self.max_bytes:,}")
        if self.raw:
            return raw  # type: ignore[return-value]  # T is bytes
        try:
            return self._msgpack.decode(raw) if codec == b"msgpack" else self._json.decode(raw)
        except msgspec.ValidationError as error:
            what, path = _where(error)
            reason: Reason = "undecodable"
            if path == self._tag_path and what.startswith("Invalid value"):
                reason = "unknown_type"
            return Malformed(reason, f"{path}: {what[:1].lower()}{what[1:]}".replace("`", ""))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return Malformed("undecodable", f"$: {error}")
        except Exception as error:  # noqa: BLE001  # the type's own code (__post_init__) may raise anything
            return Malformed("undecodable", f"$: {type(error).__name__} while decoding")


def _no_extension(code: int, data: memoryview) -> NoReturn:
    del data
    raise msgspec.ValidationError(f"Extension type {code} is not known")


def _where(error: msgspec.DecodeError) -> tuple[str, str]:
    match = _PATH.match(str(error))
    assert match is not None  # noqa: S101  # the pattern matches any text
    return match["what"], match["path"] or "$"


def _tag_path(kind: Any) -> str | None:
    """Where a tagged union keeps its tag, as msgspec's errors name it; None for other types."""
    try:
        info = msgspec.inspect.type_info(kind)
    except TypeError:
        return None
    members = info.types if isinstance(info, msgspec.inspect.UnionType) else (info,)
    fields = {m.tag_field for m in members if isinstance(m, msgspec.inspect.StructType) and m.tag_field is not None}
    return f"$.{fields.pop()}" if len(fields) == 1 else None


_GENERATED, _CHOSEN = JobIdKind.GENERATED, JobIdKind.CHOSEN  # looked up once, not once an entry
_SIMPLE_ID: Final = re.compile(rb"[!-~]{1,%d}" % ID_BYTES)
"""Printable ASCII, as most IDs are; others are looked at closely."""


class EntryCodec(Generic[T]):
    """Makes the fields of an entry, and a job of the fields.

    Args:
        kind: The payload's type.
        options: The stream's.
        stream: Its name; jobs say it.
    """

    __slots__ = ("_group", "_group_name", "_stream", "_tail", "payloads")

    def __init__(self, kind: type[T], options: StreamOptions, stream: str = "") -> None:
        self.payloads = PayloadCodec(kind, options.max_payload, options.codec)
        # JSON goes without saying: so a plain producer's entry is complete, and the usual one is short.
        self._tail: tuple[Arg, ...] = () if options.codec == "json" else ("sq:codec", options.codec)
        self._stream = stream
        self._group_name = options.group
        self._group = options.group.encode()

    def fields(
        self, payload: T, *, job_id: str | None, headers: Mapping[str, str] | None, retry: Backoff | None = None
    ) -> list[Arg]:
        """Fields of a new entry: name, value, name, value ...

        Raises:
            JobEncodingError: The payload or a header cannot be stored.
            ConfigurationError: The job ID is not valid, or the retry policy cannot travel with a job.
        """
        fields: list[Arg] = ["job", self.payloads.encode(payload), *self._tail]
        if retry is not None:
            fields += ("sq:retry", _encode_policy(retry))
        if job_id is not None:
            fields += ("sq:id", check_id(job_id, "job ID"))
        if headers:
            if not isinstance(headers, Mapping):
                raise JobEncodingError(f"headers must be a mapping, not {type(headers).__name__}", path="headers")
            if len(headers) > MAX_HEADERS:
                raise JobEncodingError(f"{len(headers)} headers, at most {MAX_HEADERS} are allowed", path="headers")
            for name, value in headers.items():
                if not isinstance(name, str) or not NAME.fullmatch(name):
                    raise JobEncodingError(f"header name {name!r:.80}: use A-Z a-z 0-9 . _ -", path="headers")
                if not isinstance(value, str):
                    raise JobEncodingError(
                        f"header {name} must be a str, not {type(value).__name__}", path=f"headers.{name}"
                    )
                try:
                    fields += (f"sq:h:{name}", value.encode())
                except UnicodeEncodeError as error:
                    raise JobEncodingError(f"header {name}: {error.reason}", path=f"headers.{name}") from None
        return fields

    def job(
        self, entry_id: str, fields: list[bytes], *, deliveries: int, consumer: str
    ) -> Job[T] | Malformed | OtherGroups:
        """The job of an entry, or why there is none."""
        job_id, kind = entry_id, _GENERATED
        match fields:  # most entries are no more than these, and then nothing else needs a look
            case [b"job", raw]:
                payload = self.payloads.decode(raw)
            case [b"job", raw, b"sq:id", chosen] if _SIMPLE_ID.fullmatch(chosen):
                payload = self.payloads.decode(raw)
                job_id, kind = chosen.decode(), _CHOSEN
            case [b"job", raw, b"sq:codec", b"json" | b"msgpack" as codec]:
                payload = self.payloads.decode(raw, codec)
            case _:
                return self._job(entry_id, fields, deliveries, consumer)
        if isinstance(payload, Malformed):
            return payload
        return Job(
            payload=payload,
            id=job_id,
            entry_id=entry_id,
            deliveries=deliveries,
            stream=self._stream,
            group=self._group_name,
            _consumer=consumer,
            _kind=kind,
        )

    def _job(
        self, entry_id: str, fields: list[bytes], deliveries: int, consumer: str
    ) -> Job[T] | Malformed | OtherGroups:
        if len(fields) > 2 * MAX_FIELDS:
            error = f"{len(fields) // 2:,} fields, at most {MAX_FIELDS} are handled"
            return Malformed("oversized", error)
        try:
            reserved = _Reserved.read(entry_id, fields)
        except _InvalidFieldError as error:
            return Malformed("invalid", str(error))
        if reserved.group is not None and reserved.group != self._group:
            return OtherGroups(reserved.group.decode())
        if reserved.payload is None:
            return Malformed("invalid", "field job: missing")
        payload = self.payloads.decode(reserved.payload, reserved.codec)
        if isinstance(payload, Malformed):
            return payload
        return Job(
            payload=payload,
            id=reserved.job_id,
            entry_id=entry_id,
            deliveries=deliveries,
            attempt=reserved.attempt,
            headers=reserved.headers,
            stream=self._stream,
            group=self._group_name,
            _consumer=consumer,
            _at=reserved.at,
            _errors=reserved.errors,
            _kind=reserved.kind,
            _retry=reserved.retry,
        )


class _InvalidFieldError(ValueError):
    """A reserved field is malformed."""


class _Reserved:
    """The reserved fields of an entry."""

    __slots__ = ("at", "attempt", "codec", "errors", "group", "headers", "job_id", "kind", "payload", "retry")

    def __init__(self, entry_id: str) -> None:
        self.payload: bytes | None = None
        self.job_id = entry_id
        self.kind = JobIdKind.GENERATED
        self.attempt = 1
        self.at: int | None = None
        self.codec = b"json"
        self.group: bytes | None = None
        self.headers: dict[str, str] = {}
        self.errors: tuple[str, ...] = ()
        self.retry: Backoff | None = None

    @classmethod
    def read(cls, entry_id: str, fields: list[bytes]) -> _Reserved:
        self = cls(entry_id)
        generated = False
        for i in range(0, len(fields), 2):
            name, value = fields[i], fields[i + 1]
            if name == b"job":
                self.payload = value
            elif name.startswith(b"sq:"):
                generated |= name == b"sq:generated"
                self._take(name, value)
        if generated:
            self.kind = JobIdKind.GENERATED
        return self

    def _take(self, name: bytes, value: bytes) -> None:
        match name:
            case b"sq:id":
                self.job_id = _job_id(value)
                self.kind = JobIdKind.CHOSEN
            case b"sq:attempt":
                self.attempt = _whole(name, value, least=1)
            case b"sq:at":
                self.at = _whole(name, value, least=0)
            case b"sq:group":
                if not NAME.fullmatch(_utf8(name, value)):
                    raise _InvalidFieldError("field sq:group: not a group's name")
                self.group = value
            case b"sq:codec":
                if value not in {b"json", b"msgpack"}:
                    shown = cut(repr(value), 60)
                    raise _InvalidFieldError(f"field sq:codec: {shown} is not known here; json and msgpack are")
                self.codec = value
            case b"sq:errors" | b"sq:retry":
                self._take_json(name, value)
            case _ if name.startswith(b"sq:h:"):
                self.headers[_utf8(name, name[5:])] = _utf8(name, value)
            case _:
                pass  # of a later version: carried along, not understood

    def _take_json(self, name: bytes, value: bytes) -> None:
        if name == b"sq:errors":
            self.errors = _errors(value)
        else:
            self.retry = _policy(value)


def _job_id(value: bytes) -> str:
    if len(value) > ID_BYTES:
        raise _InvalidFieldError(f"field sq:id: longer than {ID_BYTES} bytes")
    try:
        return check_id(_utf8(b"sq:id", value), "job ID")
    except ConfigurationError as error:
        raise _InvalidFieldError(f"field sq:id: {error}") from None


def _utf8(name: bytes, value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise _InvalidFieldError(f"field {cut(repr(name)[2:-1], 80)}: not UTF-8") from None


def _whole(name: bytes, value: bytes, *, least: int) -> int:
    if not value.isdigit() or len(value) > len(str(MOST_MS)) or int(value) < least:
        raise _InvalidFieldError(f"field {name.decode()}: {cut(repr(value), 60)} is no whole number >= {least}")
    return int(value)


def _errors(value: bytes) -> tuple[str, ...]:
    try:
        return tuple(msgspec.json.decode(value, type=list[str])[-MAX_ERRORS:])
    except msgspec.DecodeError:
        raise _InvalidFieldError("field sq:errors: not a JSON list of strings") from None


_Ms = Annotated[int, msgspec.Meta(ge=0, le=MAX_DELAY_MS)]


class _Policy(msgspec.Struct, omit_defaults=True):
    """A job's own retry policy as ``sq:retry`` holds it, in JSON; the names are those of `Backoff`, times are ms."""

    delays_ms: Annotated[list[_Ms], msgspec.Meta(min_length=1, max_length=MAX_DELAYS)]
    factor: Annotated[float, msgspec.Meta(ge=1)] = 1.0
    cap_ms: _Ms = MAX_DELAY_MS
    limit: Annotated[int, msgspec.Meta(ge=0)] | None = None
    jitter: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0


def _encode_policy(retry: Backoff) -> bytes:
    if not isinstance(retry, Backoff):
        raise ConfigurationError(f"retry must be a Backoff, such as Backoff.constant(5), not {retry!r:.80}")
    if retry.compute is not None:
        raise ConfigurationError("a custom backoff cannot travel with a job: give it to the stream's options")
    return msgspec.json.encode(_Policy(list(retry.delays_ms), retry.factor, retry.cap_ms, retry.limit, retry.jitter))


def _policy(value: bytes) -> Backoff:
    try:
        found = msgspec.json.decode(value, type=_Policy)
    except msgspec.DecodeError as error:
        raise _InvalidFieldError(f"field sq:retry: {cut(str(error), 300)}") from None
    return Backoff(
        delays_ms=tuple(found.delays_ms),
        factor=found.factor,
        cap_ms=found.cap_ms,
        limit=found.limit,
        jitter=found.jitter,
    )


_HEADERS: Final = {0xD9: 2, 0xDA: 3, 0xDB: 5, 0xC4: 2, 0xC5: 3, 0xC6: 5}
"""First byte of a MessagePack string or binary -> length of its header; those below 0xC0 are a byte long."""


def unpack_entry(packed: bytes | None) -> list[bytes]:
    """Fields of an entry that waits for its time: field, value, field, value ... Empty if it is no packed entry.

    Lua packs all text as strings, whatever bytes it is, which no decoder takes for text: so its parts are taken raw.
    """
    try:
        parts = msgspec.msgpack.decode(packed or b"", type=list[msgspec.Raw])
    except msgspec.DecodeError:
        return []
    raw = [bytes(part) for part in parts]
    if len(raw) % 2 or not all(0xA0 <= part[0] <= 0xBF or part[0] in _HEADERS for part in raw):  # noqa: PLR2004  # short strings
        return []
    return [part[_HEADERS.get(part[0], 1) :] for part in raw]


def about_entry(fields: list[bytes]) -> tuple[int, int | None, tuple[str, ...]]:
    """Attempt, time of enqueueing in ms and last errors that an entry's fields tell; what is malformed is left out."""
    found = _Reserved("")
    for i in range(0, len(fields), 2):
        if fields[i] in {b"sq:attempt", b"sq:at", b"sq:errors"}:
            with contextlib.suppress(_InvalidFieldError):
                found._take(fields[i], fields[i + 1])  # noqa: SLF001  # its module
    return found.attempt, found.at, found.errors


def errors_with(job: Job[Any], error: str) -> bytes:
    """The job's last errors with one more, as ``sq:errors`` holds them."""
    return msgspec.json.encode([*job._errors, cut(error, MAX_ERROR_CHARS)][-MAX_ERRORS:])  # noqa: SLF001  # its maker


def encode_result(result: Any) -> bytes:
    """A handler's result as it is stored; empty for None.

    Raises:
        JobEncodingError: It cannot be encoded or is longer than 64 KB.
    """
    if result is None:
        return b""
    if isinstance(result, Job):
        raise JobEncodingError("result is the job itself: return what came of it, or nothing")
    try:
        raw = msgspec.json.encode(result)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise JobEncodingError(f"result cannot be encoded as JSON: {cut(str(error), 300)}") from error
    if len(raw) > MAX_RESULT_BYTES:
        raise JobEncodingError(f"result has {len(raw):,} bytes, at most {MAX_RESULT_BYTES:,} are kept")
    return raw
