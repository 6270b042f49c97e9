"""What workers say of themselves (``T:workers``)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from streamq._beats import Beat, some_beats
from streamq._ops.doctor.findings import Finding, many, streamq
from streamq._requests import Pipeline, Plan, ask_each
from streamq.keys import Keys
from streamq.snapshots import OF_A_GROUP

_PAGE: Final = 1_000

_PAGES: Final = 10
"""Most pages of beats that are read."""

_SHOWN: Final = 60
"""Most characters of a setting."""


class _About(msgspec.Struct):
    """What a worker says; everything may be missing, or be somebody else's."""

    version: str | None = None
    group: str | None = None
    settings: dict[str, Any] | None = None


class Beats(NamedTuple):
    """Those of a stream's workers, by consumer."""

    by_name: Mapping[str, Beat[_About]]
    now_ms: int

    def is_live(self, name: str) -> bool:
        """Whether that worker has just beaten."""
        beat = self.by_name.get(name)
        return beat is not None and beat.is_fresh(self.now_ms)

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
    found: dict[str, Beat[_About]] = {}
    cursor = "0"
    for _ in range(_PAGES):
        [answer] = yield from ask_each(Pipeline((some_beats(keys, cursor, _PAGE, _About),)))
        if isinstance(answer, Exception):
            break
        cursor, some = answer
        found |= some
        if cursor == "0":
            break
    return Beats(found, now_ms)


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
        for group in groups if setting in OF_A_GROUP and groups else [None]:
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
