"""What workers say of themselves (``T:workers``)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from streamq._ops.doctor.findings import Finding, many, streamq
from streamq._requests import Command, Pipeline, Plan, Reply, ask_each, text
from streamq.keys import Keys

SILENT_MS: Final = 10_000
"""A worker that did not beat for so long is dead, or stands still. They beat every 2 s."""

_PAGE: Final = 1_000

_PAGES: Final = 10
"""Most pages of beats that are read."""

_OF_A_GROUP: Final = frozenset({"lease", "max_deliveries", "retry", "crash_backoff"})
"""Settings that only the workers of one group must agree on."""

_SHOWN: Final = 60
"""Most characters of a setting."""


class _About(msgspec.Struct):
    """What a worker says; everything may be missing, or be somebody else's."""

    version: str | None = None
    group: str | None = None
    settings: dict[str, Any] | None = None


class Beat(NamedTuple):
    """A worker's last sign of life."""

    at_ms: int
    about: _About


class Beats(NamedTuple):
    """Those of a stream's workers, by consumer."""

    by_name: Mapping[str, Beat]
    now_ms: int

    def is_live(self, name: str) -> bool:
        """Whether that worker has just beaten."""
        beat = self.by_name.get(name)
        return beat is not None and self.now_ms - beat.at_ms <= SILENT_MS

    @property
    def live(self) -> dict[str, _About]:
        """Workers that have just beaten, in order of their names."""
        return {name: self.by_name[name].about for name in sorted(self.by_name) if self.is_live(name)}

    def lease_ms(self, group: str) -> int | None:
        """The lease that the group's workers have, by their own word; the live ones know best."""
        for about in (*self.live.values(), *(beat.about for beat in self.by_name.values())):
            lease = (about.settings or {}).get("lease")
            if about.group in {None, group} and isinstance(lease, int | float) and 0 < lease <= 86_400:  # noqa: PLR2004  # its bounds
                return round(lease * 1000)
        return None


def beats(keys: Keys, now_ms: int) -> Plan[Beats]:
    """What the workers say: of some 10,000 at most. One request per 1,000."""
    found: dict[str, Beat] = {}
    cursor = "0"
    for _ in range(_PAGES):
        page = Pipeline((Command(("HSCAN", keys.workers, cursor, "COUNT", _PAGE), (keys.workers,), _page),))
        [answer] = yield from ask_each(page)
        if isinstance(answer, Exception):
            break
        cursor, some = answer
        found |= some
        if cursor == "0":
            break
    return Beats(found, now_ms)


def _page(reply: Reply) -> tuple[str, dict[str, Beat]]:
    cursor, flat = reply
    pairs = zip(flat[::2], flat[1::2], strict=True)
    return text(cursor), {text(name): beat for name, value in pairs if (beat := _beat(value)) is not None}


def _beat(value: bytes) -> Beat | None:
    at, _, rest = value.partition(b" ")
    if not at.isdigit() or len(at) > 14:  # noqa: PLR2004  # digits of a time in ms that is one
        return None
    try:
        about = msgspec.json.decode(rest, type=_About)
    except (msgspec.DecodeError, UnicodeDecodeError):
        about = _About()
    return Beat(int(at), about)


def judge(keys: Keys, found: Beats) -> Iterator[Finding]:
    """What to say of settings on which live workers do not agree."""
    live = found.live
    if not live:
        return
    yield Finding(
        check="settings", severity="ok", stream=keys.name, text=many(len(live), "live worker", "live workers")
    )
    versions = {about.version[:_SHOWN] for about in live.values() if about.version}
    if len(versions) > 1:
        yield Finding(
            check="settings",
            severity="note",
            stream=keys.name,
            text=f"live workers run different versions of streamq: {', '.join(sorted(versions))}",
            remedy="restart those of the older ones",
        )
    told = sorted({name for about in live.values() for name in about.settings or {}})
    groups = sorted({about.group for about in live.values() if about.group is not None})
    for setting in told:
        for group in groups if setting in _OF_A_GROUP and groups else [None]:
            having = [about for about in live.values() if group in {None, about.group}]
            yield from _differing(keys, setting, group, having)


def _differing(keys: Keys, setting: str, group: str | None, having: Iterable[_About]) -> Iterator[Finding]:
    values: dict[str, int] = {}
    for about in having:
        if about.settings is not None and setting in about.settings:
            value = msgspec.json.encode(about.settings[setting]).decode()[:_SHOWN]
            values[value] = values.get(value, 0) + 1
    if len(values) > 1:
        whose = "live workers" if group is None else f"live workers of group {group}"
        listed = ", ".join(f"{value} ({count:,})" for value, count in sorted(values.items()))
        yield Finding(
            check="settings",
            severity="problem",
            stream=keys.name,
            group=group,
            text=f"{whose} do not agree on {setting[:_SHOWN]}: {listed}",
            remedy=f"give all the same options and restart them; {streamq(keys, 'inspect', keys.name)} names them",
        )
