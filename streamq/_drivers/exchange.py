"""What both drivers share: a request on the wire, its replies, and the server's errors in our words.

`exchange` is a generator like a plan: it yields lists of commands to send in one write, and gets the list of their
replies, or the error thrown in that there was instead. So a driver only has to send and to receive.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from typing import Any, Final, NoReturn, TypeAlias

import hiredis
import redis.exceptions as failures

from streamq._requests import Arg, Command, Confirmed, Pipeline, Reply, Request, Script, Transaction
from streamq._scripts import source
from streamq.errors import ConfigurationError, ConnectionLostError, ServerError, ServerTooOldError, StreamqError

Wire: TypeAlias = tuple[Arg, ...]
Exchange: TypeAlias = Generator[list[Wire], list[Reply], Reply]
Greet: TypeAlias = Callable[[Reply], StreamqError | None]
"""What speaks against a server, by its reply to HELLO, which may be an exception."""

HELLO: Final[Wire] = ("HELLO",)
"""What a server is; no ACL can deny that."""


def pack(commands: Sequence[Wire]) -> bytes:
    """Commands as one write. redis-py's packing looks at every argument again and sends each 6 KB by themselves."""
    return b"".join([hiredis.pack_command(command) for command in commands])  # type: ignore[arg-type]  # the stub means one argument


def exchange(request: Request) -> Exchange:
    """The commands of `request`, and its reply made of theirs. Elements of several requests may be a `StreamqError`."""
    match request:
        case Command(args):
            [reply] = yield [args]
            return _checked(reply, request.keys)
        case Script():
            [reply] = yield [_by_sha(request)]
            if isinstance(reply, failures.NoScriptError):
                [reply] = yield [_by_text(request)]  # refused unrun, so sending it again is harmless
            return _checked(reply, request.keys)
        case Pipeline(parts):
            return (yield from _pipeline(parts))
        case Transaction(parts):
            return (yield from _transaction(parts))
        case Confirmed(write, wait):
            return (yield from _confirmed(write, wait))


def _pipeline(parts: Sequence[Command[Any] | Script[Any]]) -> Exchange:
    replies = yield [part.args if isinstance(part, Command) else _by_sha(part) for part in parts]
    if not any(issubclass(kind, Exception) for kind in set(map(type, replies))):  # nearly always
        return replies
    # Refused unrun, so sending them again is harmless. The last try carries each script's text: no flush can come between.
    for form in (_load_first, _all_by_text):
        again = [at for at, reply in enumerate(replies) if isinstance(reply, failures.NoScriptError)]
        if not again:
            break
        try:
            answers = yield form([parts[at] for at in again])
        except StreamqError as error:
            if len(again) < len(parts):
                raise part_was_run(error) from error
            raise
        for at, reply in zip(again, answers, strict=True):
            replies[at] = reply
    return [_element(reply, part.keys) for reply, part in zip(replies, parts, strict=True)]


def _transaction(parts: Sequence[Command[Any] | Script[Any]]) -> Exchange:
    # By text the first time each, so that NOSCRIPT cannot turn up inside: the others of the EXEC would have happened.
    begun, *queued, done = yield [("MULTI",), *_load_first(parts), ("EXEC",)]
    if isinstance(begun, Exception):
        # No transaction was opened, so each ran by itself: every one is guarded, and these are the answers.
        if any(isinstance(reply, Exception) for reply in queued):
            _raise(begun, parts[0].keys)
        return [_element(reply, part.keys) for reply, part in zip(queued, parts, strict=True)]
    if isinstance(done, Exception):
        # EXECABORT only says that something was refused while queueing; that something is the cause.
        _raise(next((reply for reply in queued if isinstance(reply, Exception)), done), parts[0].keys)
    if done is None:
        raise ServerError("the transaction was aborted by the server; nothing was done", code="EXECABORT")
    return [_element(reply, part.keys) for reply, part in zip(done, parts, strict=True)]


def _confirmed(write: Request, wait: Wire) -> Exchange:
    steps = exchange(write)
    commands = next(steps)
    while True:
        # Behind each try: the one that counts is behind the one that was not refused.
        try:
            *replies, answer = yield [*commands, wait]
        except StreamqError as error:
            steps.throw(error)
            raise
        try:
            commands = steps.send(replies)
        except StopIteration as stop:
            return stop.value, _element(answer, ())


def _load_first(parts: Sequence[Command[Any] | Script[Any]]) -> list[Wire]:
    wires: list[Wire] = []
    sent: set[str] = set()
    for part in parts:
        if isinstance(part, Command):
            wires.append(part.args)
        elif part.name in sent:
            wires.append(_by_sha(part))
        else:
            sent.add(part.name)
            wires.append(_by_text(part))
    return wires


def _all_by_text(parts: Sequence[Command[Any] | Script[Any]]) -> list[Wire]:
    return [part.args if isinstance(part, Command) else _by_text(part) for part in parts]


def _by_sha(script: Script[Any]) -> Wire:
    return ("EVALSHA", source(script.name).sha, len(script.keys), *script.keys, *script.argv)


def _by_text(script: Script[Any]) -> Wire:
    return ("EVAL", source(script.name).text, len(script.keys), *script.keys, *script.argv)


def _checked(reply: Reply, keys: Sequence[str]) -> Reply:
    if isinstance(reply, Exception):
        _raise(reply, keys)
    return reply


def _raise(error: Exception, keys: Sequence[str]) -> NoReturn:
    raise refused(error, keys) from error


def _element(reply: Reply, keys: Sequence[str]) -> Reply:
    if not isinstance(reply, Exception):
        return reply
    error = refused(reply, keys)
    error.__cause__ = reply
    return error


# redis-py takes the code off the text of these; of all others it is the text's first word.
_CODES: tuple[tuple[type[Exception], str], ...] = (
    (failures.NoScriptError, "NOSCRIPT"),
    (failures.OutOfMemoryError, "OOM"),
    (failures.ReadOnlyError, "READONLY"),
    (failures.NoPermissionError, "NOPERM"),
    (failures.BusyLoadingError, "LOADING"),
    (failures.ExecAbortError, "EXECABORT"),
    (failures.MasterDownError, "MASTERDOWN"),
    (failures.ClusterDownError, "CLUSTERDOWN"),
    (failures.TryAgainError, "TRYAGAIN"),
    (failures.MovedError, "MOVED"),
    (failures.AskError, "ASK"),
    (failures.AuthenticationError, "WRONGPASS"),
    (failures.AuthenticationWrongNumberOfArgsError, "WRONGPASS"),
)
_CODE = re.compile(r"^([A-Z][A-Z0-9_]{2,})\b")
# Redis 6.2 wraps what a script's call answered: Error running script (call to f_<sha>): @user_script:12: WRONGTYPE ...
_WRAPPED = re.compile(r"(?:user_script: ?\d+: )-?([A-Z][A-Z0-9_]{2,}) (.*)$", re.DOTALL)
_SCRIPT_ACL = re.compile(r"ACL failure in script|user executing the script can't", re.IGNORECASE)


def code_of(error: Exception) -> tuple[str, str]:
    """The first word of the server's error reply, where it is one in capitals, and its text without what wraps it."""
    message = str(error)
    if code := next((code for kind, code in _CODES if isinstance(error, kind)), ""):
        return code, message
    if wrapped := _WRAPPED.search(message):
        return wrapped[1], f"{wrapped[1]} {wrapped[2]}"
    match = _CODE.match(message)
    return (match[1] if match else ""), message


def refused(error: Exception, keys: Sequence[str]) -> StreamqError:
    """The server's error reply as one of ours. `keys` are named where they are what is wrong."""
    code, message = code_of(error)
    if _SCRIPT_ACL.search(message) or (code == "EXECABORT" and "NOPERM" in message):
        code = "NOPERM"  # the latter: who may not run EXEC
    where = f" (keys {keys[0]} ...)" if len(keys) > 1 else f" (key {keys[0]})" if keys else ""
    match code:
        case "WRONGPASS" | "NOAUTH":
            return ConfigurationError(f"the server refuses the user name or password: {message}")
        case "NOPERM":
            return ConfigurationError(f"the user lacks a permission: {message}{where}")
        case "WRONGTYPE":
            return ConfigurationError(f"{message}{where}")
        case "MOVED" | "ASK":
            return ServerError(
                f"{code} {message}{where}", code=code
            )  # a number and an address alone tell nobody anything
    if message.lower().startswith("unknown command"):
        return ServerTooOldError(f"the server does not know a command that is needed: {message}")
    return ServerError(f"{message}{where}", code=code or "ERR")


def part_was_run(error: StreamqError) -> ConnectionLostError:
    """An error that came between the parts of a request: whoever is told that nothing was run sends all of it again."""
    if isinstance(error, ConnectionLostError) and error.maybe_executed:
        return error
    return ConnectionLostError(f"{error}; a part of the request was run", maybe_executed=True)


def lost(error: Exception, where: str, *, sent: bool) -> StreamqError:
    """A broken connection, or one that could not be made, as one of ours."""
    if isinstance(error, failures.AuthenticationError | failures.ResponseError):
        return refused(error, ())
    why = str(error) or "no answer in time"  # what asyncio raises says nothing
    if sent:
        return ConnectionLostError(
            f"connection to {where} was lost before the reply came: {why}; the request may have been executed",
            maybe_executed=True,
        )
    return ConnectionLostError(f"cannot reach {where}: {why}", maybe_executed=False)
