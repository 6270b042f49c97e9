"""What was measured: rows, kept as compressed JSON lines, and what is computed of them."""

from __future__ import annotations

import gzip
import json
import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

Row = dict[str, Any]


@dataclass(frozen=True)
class Figure:
    """A median over rounds, with its range."""

    middle: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Self | None:
        """Of some values; None of none."""
        found = list(values)
        return cls(statistics.median(found), min(found), max(found)) if found else None

    def text(self, form: str = ",.0f") -> str:
        """Such as ``12 (11 to 14)``; the range only where there are several values."""
        middle = format(self.middle, form)
        return middle if self.low == self.high else f"{middle} ({self.low:{form}} to {self.high:{form}})"


class Results:
    """Rows of a run.

    Args:
        about: The machine, the settings, and what each system says of itself.
        rows: In the order in which they were measured; each names its workload, system and round.
    """

    def __init__(self, about: Row, rows: list[Row]) -> None:
        self.about = about
        self.rows = rows

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a file that `save` wrote."""
        with gzip.open(path, "rt", encoding="utf-8") as file:
            about, *rows = map(json.loads, file)
        return cls(about, rows)

    def save(self, path: Path) -> None:
        """Write all of it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps(each, separators=(",", ":")) + "\n" for each in (self.about, *self.rows)]
        path.write_bytes(gzip.compress("".join(lines).encode(), mtime=0))

    def joined(self, later: Results) -> Results:
        """These, and those of a later run as further rounds."""
        first = 1 + max((row["round"] for row in self.rows), default=-1)
        about = {
            **self.about,
            **later.about,
            "command": f"{self.about['command']}\n    {later.about['command']}",
            "systems": {**self.about["systems"], **later.about["systems"]},
            "left_out": {**self.about["left_out"], **later.about["left_out"]},
            "minutes": self.about["minutes"] + later.about["minutes"],
            "load": [
                min(self.about["load"][0], later.about["load"][0]),
                max(self.about["load"][1], later.about["load"][1]),
            ],
        }
        return Results(about, [*self.rows, *({**row, "round": row["round"] + first} for row in later.rows)])

    def select(self, workload: str, system: str | None = None, **values: Any) -> list[Row]:
        """Rows without an error, of a workload."""
        wanted = {"workload": workload, **({"system": system} if system else {}), **values}
        return [row for row in self.rows if "error" not in row and all(row.get(k) == v for k, v in wanted.items())]

    def systems(self, workload: str) -> list[str]:
        """Which were taken through it, in the order of the report."""
        there = {row["system"] for row in self.select(workload)}
        return [name for name in self.about["systems"] if name in there]

    def keys(self, workload: str, *names: str) -> Iterator[Row]:
        """Each combination of a system and these values that was measured."""
        rank = {name: place for place, name in enumerate(self.about["systems"])}
        found = {tuple(row.get(name) for name in ("system", *names)) for row in self.select(workload)}
        order = {profile: place for place, profile in enumerate(("default", "best"))}
        for key in sorted(
            found, key=lambda key: (rank[key[0]], *((order.get(v, 9), len(str(v)), str(v)) for v in key[1:]))
        ):
            yield dict(zip(("system", *names), key, strict=True))

    def figure(self, name: str, workload: str, system: str, **values: Any) -> Figure | None:
        """A value over the rounds."""
        return Figure.of(row[name] for row in self.select(workload, system, **values) if row.get(name) is not None)

    def ratio(self, name: str, mine: Row, other: Row) -> Figure | None:
        """One value by another of the same round, so that what the machine does meanwhile cancels out."""
        ours = _by_round(self.select(**mine), name)
        theirs = _by_round(self.select(**other), name)
        return Figure.of(ours[each] / theirs[each] for each in ours if theirs.get(each))

    def fastest(self, workload: str, systems: Iterable[str], is_counted: Callable[[Row], bool]) -> Row | None:
        """Of some systems that one, with its settings, whose median rate is the highest."""
        rates = {
            (row["system"], row["profile"], row.get("mode")): None
            for row in self.select(workload)
            if row["system"] in set(systems) and is_counted(row)
        }
        best, best_rate = None, 0.0
        for system, profile, mode in rates:
            found = {"workload": workload, "system": system, "profile": profile, **({"mode": mode} if mode else {})}
            figure = Figure.of(row["rate"] for row in self.select(**found))
            if figure and figure.middle > best_rate:
                best, best_rate = found, figure.middle
        return best


def _by_round(rows: list[Row], name: str) -> dict[int, float]:
    found: dict[int, list[float]] = {}
    for row in rows:
        if row.get(name) is not None:
            found.setdefault(row["round"], []).append(row[name])
    return {turn: statistics.median(values) for turn, values in found.items()}
