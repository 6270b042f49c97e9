"""Draws what was measured; run in an environment with matplotlib, with the results as JSON on stdin.

python plots.py FOLDER < rows.json
"""

import json
import sys
from pathlib import Path

import matplotlib as mpl

mpl.use("svg")
mpl.rcParams.update(
    {
        "svg.hashsalt": "peers",  # the same results make the same file
        "svg.fonttype": "none",
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.alpha": 0.3,
    }
)

from matplotlib import pyplot as plt  # noqa: E402  # after its backend is chosen

OURS = {"streamq": ("#c0392b", 2.4)}
PALETTE = [f"C{each}" for each in range(10) if each != 3]  # our red is ours
RAW = {"raw-sync": "#000000", "raw-async": "#555555", "raw-socket": "#999999"}


def style(system, place):
    colour, width = OURS.get(system, (RAW.get(system, PALETTE[place % len(PALETTE)]), 1.1))
    return {"color": colour, "linewidth": width, "linestyle": "--" if system in RAW else "-"}


def save(figure, folder, name):
    figure.tight_layout()
    figure.savefig(Path(folder, name), metadata={"Date": None})
    plt.close(figure)


def latency(lines, folder):
    figure, axes = plt.subplots(figsize=(7, 4))
    for place, (system, quantiles) in enumerate(lines.items()):
        share = [100 * each / (len(quantiles) - 1) for each in range(len(quantiles))]
        axes.plot(quantiles, share, label=system, **style(system, place))
    axes.set(xscale="log", xlabel="from the call that adds a job to the start of its handler, ms", ylabel="% of jobs")
    axes.legend(fontsize=7, ncols=2, frameon=False)
    save(figure, folder, "benchmarks-latency.svg")


def points(lines, folder, name, label):
    figure, axes = plt.subplots(figsize=(7, 4))
    for place, (system, pairs) in enumerate(lines.items()):
        axes.plot(*zip(*pairs, strict=True), marker="o", markersize=4, label=system, **style(system, place))
    axes.set(xscale="log", xlabel=label, ylabel="jobs a second")
    if len(lines) > 1:
        axes.set_yscale("log")
        axes.legend(fontsize=7, ncols=2, frameon=False)
    else:
        axes.set_ylim(bottom=0)
        ticks = [x for pairs in lines.values() for x, _ in pairs]
        axes.set_xticks(ticks, [str(x) for x in ticks])
        axes.minorticks_off()
    save(figure, folder, name)


def main(folder):
    data = json.load(sys.stdin)
    if data["latency"]:
        latency(data["latency"], folder)
    if data["backlog"]:
        points(data["backlog"], folder, "benchmarks-backlog.svg", "jobs queued")
    if data["concurrency"]:
        points(data["concurrency"], folder, "benchmarks-concurrency.svg", "concurrency of the worker")


if __name__ == "__main__":
    main(sys.argv[1])
