"""Writes what was measured: Markdown, a summary as JSON, and what the plots need."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

from .goals import Goal, goals
from .results import Figure, Results, Row

PLOTS = tuple(f"benchmarks-{name}.svg" for name in ("latency", "backlog", "concurrency"))
REACHED = {True: "yes", False: "**no**", None: "-"}


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Of Markdown; nothing without rows."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    if lines:
        yield from (f"| {' | '.join(titles)} |", "|" + "---|" * len(titles), *lines, "")


def prose(text: str) -> Iterator[str]:
    """A paragraph."""
    yield from (*textwrap.wrap(text, 130, break_on_hyphens=False), "")


def show(figure: Figure | None, form: str = ",.0f") -> str:
    """A cell."""
    return "-" if figure is None else figure.text(form)


def markdown(results: Results, *, plots: Collection[str] = ()) -> str:
    """The whole page; parts of which nothing was measured are left out."""
    lines = [*_head(results), *_goals(results)]
    for name, part in SECTIONS.items():
        told = list(part(results))
        if any(line.startswith("| ") for line in told):
            picture = f"benchmarks-{name}.svg"
            lines += [*told, *([f"![{name}]({picture})", ""] if picture in plots else [])]
    return "\n".join([*lines, *_systems(results)]).strip() + "\n"


def summary(results: Results) -> Row:
    """What other programs may want of it."""

    def goal(each: Goal) -> Row:
        found = each.found and [round(value, 4) for value in (each.found.middle, each.found.low, each.found.high)]
        return {"goal": each.what, "target": each.target, "measured": found, "reached": each.is_reached}

    about = {name: value for name, value in results.about.items() if name != "systems"}
    medians = []
    for workload, names in (("add", ("profile", "mode")), ("drain", ("profile",)), ("latency", ("profile",))):
        for key in results.keys(workload, *names):
            rows = results.select(workload, **key)
            values = ("rate", "client_cpu_1k", "server_cpu_1k", "round_trips", "rss_mb", "p50", "p99")
            found = {name: statistics.median(row[name] for row in rows) for name in values if name in rows[0]}
            medians.append({"workload": workload, **key, **{name: round(value, 4) for name, value in found.items()}})
    versions = {name: each["versions"] for name, each in results.about["systems"].items()}
    return {**about, "versions": versions, "goals": list(map(goal, goals(results))), "medians": medians}


def plotted(results: Results) -> Row:
    """What the plots show."""

    def points(workload: str, of: Callable[[Row], float], system: str) -> list[tuple[float, float]]:
        found: dict[float, list[float]] = {}
        for row in results.select(workload, system):
            found.setdefault(of(row), []).append(row["rate"])
        return [(x, statistics.median(rates)) for x, rates in sorted(found.items())]

    backlogs = {name: points("backlog", lambda row: row["queued"], name) for name in results.systems("backlog")}
    sweeps = {
        name: points("concurrency", lambda row: int(row["profile"][1:]), name)
        for name in results.systems("concurrency")
    }
    late = {}
    for name in results.systems("latency"):
        late[name] = min(_quantiles(results, name), key=lambda line: line[len(line) // 2])
    return {"latency": late, "backlog": backlogs, "concurrency": sweeps}


def _quantiles(results: Results, system: str) -> Iterator[list[float]]:
    """Medians over the rounds, for each of its settings."""
    rows = results.select("latency", system)
    for profile in dict.fromkeys(row["profile"] for row in rows):
        rounds = [row["quantiles"] for row in rows if row["profile"] == profile]
        yield [statistics.median(each) for each in zip(*rounds, strict=True)]


def _head(results: Results) -> Iterator[str]:
    about = results.about
    yield "# Benchmarks"
    yield ""
    yield from prose(
        "streamq beside other systems for jobs on Redis, and beside loops over clients, each at its best documented "
        "settings. Made by"
    )
    yield f"    {about['command']}"
    yield ""
    yield from prose(
        f"on {about['date']}: {about['server']} without persistence, on loopback; Python {about['python']}; {about['machine']}; "
        f"it took {about['minutes']:.0f} minutes. Load average {about['load'][0]:.1f} to {about['load'][1]:.1f}."
    )
    yield from prose(
        "Machines change speed by the minute, so systems take turns, in another order every round, each time on a fresh "
        "server; what counts are ratios of the same round. Figures are medians over the rounds, with the lowest and the "
        "highest. The handler does nothing but note that it ran; a job carries a string of 100 bytes. CPU is in µs a "
        "job, of all the system's processes; *packets* are reads of the server from its connections, by job: a request "
        "with its whole pipeline is one."
    )
    for name, why in about["left_out"].items():
        yield from prose(f"Left out: {name} ({why.splitlines()[-1]}).")


def _goals(results: Results) -> Iterator[str]:
    yield "## Goals"
    yield ""
    cells = ([each.what, each.target, each.measured, REACHED[each.is_reached]] for each in goals(results))
    yield from table(["streamq, with all its guarantees", "goal", "measured", "reached"], cells)
    yield from prose("What was tried where a goal is not reached, and what the limit is: [speed.md](speed.md#limits).")


def _costs(results: Results, workload: str, key: Row) -> list[str]:
    def us(name: str) -> str:
        figure = Figure.of(row[name] * 1000 for row in results.select(workload, **key))
        return show(figure and Figure(figure.middle, figure.middle, figure.middle), ",.1f")

    packets, rss = (results.figure(name, workload, **key) for name in ("round_trips", "rss_mb"))
    return [
        us("client_cpu_1k"),
        us("server_cpu_1k"),
        f"{packets.middle:.3f}" if packets else "-",
        f"{rss.middle:.0f}" if rss else "-",
    ]


COSTS = ("client CPU", "server CPU", "packets", "RSS, MB")


def _drain(results: Results) -> Iterator[str]:
    yield "## Drain"
    yield ""
    yield from prose(
        "One worker process meets a full queue. x raw: beside a loop over redis-py's asyncio client that reads 100 and "
        "acknowledges them by one XACK. What a system does not guarantee is part of its price:"
    )
    raw = {"workload": "drain", "system": "raw-async", "profile": "default"}
    rows = []
    last = ""
    for key in results.keys("drain", "profile"):
        again = sum(row["jobs"] - row["unique"] for row in results.select("drain", **key))
        without = [results.about["systems"][key["system"]]["limits"]] if key["system"] != last else []  # said once
        last = key["system"]
        rows.append(
            [
                f"{key['system']}, {key['profile']}",
                show(results.figure("rate", "drain", **key)),
                show(results.ratio("rate", {"workload": "drain", **key}, raw), ".3f"),
                *_costs(results, "drain", key),
                "; ".join([*without, *([f"here {again} jobs ran twice"] if again else [])]),
            ]
        )
    yield from table(["system, settings", "jobs a second", "x raw", *COSTS, "without"], rows)


def _add(results: Results) -> Iterator[str]:
    yield "## Add"
    yield ""
    for mode, said in (("one", "One job a call."), ("bulk", "Many at once, in the best documented way.")):
        raw = {"workload": "add", "system": "raw-sync", "profile": "default", "mode": mode}
        yield from prose(f"{said} x raw: beside redis-py's {'XADD' if mode == 'one' else 'pipelines of 100 XADD'}.")
        rows = [
            [
                f"{key['system']}{'' if key['profile'] == 'default' else ', ' + key['profile']}",
                show(results.figure("rate", "add", **key)),
                show(results.ratio("rate", {"workload": "add", **key}, raw), ".2f"),
                *_costs(results, "add", key),
                *([results.about["systems"][key["system"]]["bulk"]] if mode == "bulk" else []),
            ]
            for key in results.keys("add", "profile", "mode")
            if key["mode"] == mode
        ]
        yield from table(["system", "jobs a second", "x raw", *COSTS, *(["how"] if mode == "bulk" else [])], rows)


def _latency(results: Results) -> Iterator[str]:
    yield "## Latency"
    yield ""
    yield from prose(
        "From the call that adds a job to the start of its handler, in a worker that has nothing else to do; one job "
        "every 10 ms; in ms."
    )
    names = ("p50", "p99", "max")
    rows = [
        [f"{key['system']}, {key['profile']}", *(show(results.figure(each, "latency", **key), ".2f") for each in names)]
        for key in results.keys("latency", "profile")
    ]
    yield from table(["system, settings", *names], rows)


def _crash(results: Results) -> Iterator[str]:
    yield "## After a crash"
    yield ""
    yield from prose(
        "A worker that holds 100 jobs (RQ's: ten workers with one each) is killed, another starts at once: seconds "
        "until the last of them has started there. *fast*: leases, timeouts and intervals at 2 s. Twice: of 10 jobs of "
        "12 s on two healthy workers at *fast*, how often one was started again."
    )
    rows = []
    for name in results.systems("crash"):
        cells = [name]
        for profile in ("default", "fast"):
            found = results.select("crash", name, profile=profile)
            cells.append(_recovery(found[0]) if found else "-")
        twice = results.figure("duplicates", "healthy", name)
        rows.append([*cells, show(twice)])
    yield from table(["system", "default", "fast", "twice"], rows)


def _recovery(row: Row) -> str:
    if row["all_s"] is None:
        return f"{row['recovered']} of {row['held']} after {row['waited_s']:.0f} s"
    return f"{row['all_s']:.1f}" + (f", {row['duplicates']} twice" if row["duplicates"] else "")


def _backlog(results: Results) -> Iterator[str]:
    yield "## Backlog"
    yield ""
    yield from prose(
        "The same worker, before queues of several lengths (1,000 are gone before it is warm). Left: on the server "
        "after all is done."
    )
    rows = []
    for row in sorted(results.select("backlog"), key=lambda row: list(results.about["systems"]).index(row["system"])):
        left = f"{row['keys_left']} keys, {row['bytes_left'] / 1000:,.1f} kB" if "keys_left" in row else "-"
        figures = [f"{row['rate']:,.0f}", f"{row['bytes_a_job']:,.0f}", f"{row['rss_mb']:,.0f}"]
        rows.append([row["system"], f"{row['queued']:,}", *figures, left])
    yield from table(["system", "queued", "jobs a second", "bytes a job on the server", "RSS, MB", "left"], rows)


def _idle(results: Results) -> Iterator[str]:
    yield "## Idle"
    yield ""
    yield from prose(
        "A second of a worker that has nothing to do, and of one whose handlers run for long; commands inside of "
        "scripts count, too."
    )
    rows = [
        [
            f"{key['system']}, {key['state']}",
            *(
                show(results.figure(name, "idle", **key), ".1f")
                for name in ("requests", "commands", "client_cpu_percent")
            ),
            show(results.figure("rss_mb", "idle", **key)),
        ]
        for key in results.keys("idle", "state")
    ]
    yield from table(["system", "packets", "commands", "client CPU, %", "RSS, MB"], rows)


def _scaling(results: Results) -> Iterator[str]:
    yield "## More processes, more at once"
    yield ""
    rows = [
        [
            f"{key['processes']} {'process' if key['processes'] == 1 else 'processes'}",
            show(results.figure("rate", "processes", **key)),
        ]
        for key in results.keys("processes", "processes")
    ]
    rows += [
        [f"concurrency {row[0]:.0f}", f"{row[1]:,.0f}"] for row in plotted(results)["concurrency"].get("streamq", ())
    ]
    yield from table(["streamq", "jobs a second"], rows)


SECTIONS: dict[str, Callable[[Results], Iterator[str]]] = {
    "drain": _drain,
    "concurrency": _scaling,
    "add": _add,
    "latency": _latency,
    "crash": _crash,
    "backlog": _backlog,
    "idle": _idle,
}


def _systems(results: Results) -> Iterator[str]:
    yield "## Versions and settings"
    yield ""

    def cell(about: dict[str, Any]) -> str:
        profiles = "; ".join(f"*{name}*: {said}" for name, said in about["profiles"].items() if said)
        return profiles + (f". {about['notes']}" if about["notes"] else "")

    rows = [
        [name, ", ".join(f"{package} {version}" for package, version in about["versions"].items()), cell(about)]
        for name, about in results.about["systems"].items()
    ]
    yield from table(["system", "versions", "settings"], rows)
