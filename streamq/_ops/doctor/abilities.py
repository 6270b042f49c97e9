"""What newer servers can do, found by trying it: versions lie, behind proxies and in services. Writes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from streamq._ops.doctor.findings import Finding, is_denied, is_unknown
from streamq._requests import Arg, Command, Pipeline, Plan, ask_each, ignore
from streamq.errors import ServerError

OPTIONS: Final = ("XADD IDMP", "XREADGROUP CLAIM")
"""Of commands that every server knows: who may not run the command cannot be told of its option."""


def look(key: str) -> Plan[dict[str, bool | None]]:
    """Name -> whether the server can do it; None where the user's rights hide it. One request.

    Args:
        key: One that is not there, and that nobody else makes.
    """
    tried: dict[str, tuple[Arg, ...]] = {
        "WAITAOF": ("WAITAOF", 0, 0, 1),
        "FCALL": ("FCALL", "streamq-none", 1, key),
        "XACKDEL": ("XACKDEL", key, "g", "IDS", 1, "0-1"),
        "XADD IDMP": ("XADD", key, "NOMKSTREAM", "IDMP", "p", "i", "*", "f", "v"),
        "XREADGROUP CLAIM": ("XREADGROUP", "GROUP", "g", "c", "CLAIM", 0, "STREAMS", key, ">"),
    }
    commands: list[Command[Any]] = [Command(args, (key,), ignore) for args in tried.values()]
    answers = yield from ask_each(Pipeline(tuple(commands)))
    return {name: _is_known(name, answer) for name, answer in zip(tried, answers, strict=True)}


def _is_known(name: str, answer: Any) -> bool | None:
    if is_unknown(answer):
        return False
    if name not in OPTIONS:
        return True  # an unknown command is told as such before rights are looked at
    if is_denied(answer):
        return None
    return not isinstance(answer, ServerError) or answer.code == "NOGROUP"


def judge(can: Mapping[str, bool | None]) -> Iterator[Finding]:
    """What to say of it. Nothing of this is a problem: streamq works alike without."""
    said = {"knows": True, "does not know": False, "may know, which the user's rights hide,": None}
    parts = [f"{words} {', '.join(names)}" for words, is_so in said.items() if (names := _those(can, is_so))]
    yield Finding(
        check="abilities",
        severity="ok",
        text=f"the server {'; it '.join(parts)}. Of these streamq uses only WAITAOF, for durability fsynced",
    )


def _those(can: Mapping[str, bool | None], is_so: bool | None) -> list[str]:  # noqa: FBT001  # a value of the mapping
    return [name for name, value in can.items() if value is is_so]
