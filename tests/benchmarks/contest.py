"""What the benchmarks share that let ways to do the same work take turns: their program, their server, their figures."""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from importlib.metadata import version
from typing import Any

import msgspec
import redis
import servers


def in_turns(ways: Sequence[Any], rounds: int) -> Iterator[list[Any]]:
    """The ways in each round, every time in another order."""
    for turn in range(rounds):
        at = turn % len(ways)
        yield [*ways[at:], *ways[:at]]


def ratio(theirs: Iterable[float], own: Iterable[float]) -> list[float]:
    """Of times, round by round: the median of theirs / own, and between what half of the rounds lie."""
    found = sorted(a / b for a, b in zip(theirs, own, strict=True))
    at = (len(found) // 4, min(len(found) * 3 // 4, len(found) - 1))
    return [round(x, 2) for x in (statistics.median(found), *(found[i] for i in at))]


def shown(figures: Sequence[float]) -> str:
    """A `ratio` as a cell of a table."""
    middle, low, high = figures
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def about(url: str, *, rounds: int, jobs: int, payload: object) -> dict[str, Any]:
    """On what, and with what, a result was made."""
    with redis.Redis.from_url(url) as client:
        info = client.info("server")
    product = "valkey" if "valkey_version" in info else "redis"
    return {
        "server": f"{product} {info[f'{product}_version']}",
        "python": platform.python_version(),
        **{package: version(package) for package in ("redis", "hiredis", "msgspec")},
        "rounds": rounds,
        "jobs": jobs,
        "payload_bytes": len(msgspec.json.encode(payload)),
    }


def head(result: dict[str, Any]) -> str:
    """The same as a line above a table."""
    return (
        f"{result['server']}, Python {result['python']}, redis-py {result['redis']}, hiredis {result['hiredis']}; "
        f"{result['rounds']} rounds of {result['jobs']:,} jobs, payload {result['payload_bytes']} bytes as JSON."
    )


def main(
    argv: list[str] | None,
    description: str | None,
    measure: Callable[..., dict[str, Any]],
    report: Callable[[dict[str, Any]], Iterable[str]],
    *,
    rounds: int,
    jobs: int,
) -> int:
    """Run a benchmark from the command line.

    Args:
        argv: Arguments, or None for those of the program.
        description: What ``--help`` says.
        measure: ``measure(url, rounds=, jobs=)``; what came out, ready for JSON.
        report: That as lines of Markdown.
        rounds: How many by default.
        jobs: How many by default, in one round, for each contender.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="a running server; only keys of its own are written, and removed")
    parser.add_argument("--server", help="one that is found on this machine, such as redis-7.0")
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--jobs", type=int, default=jobs, help="in one round, for each contender")
    parser.add_argument("--json", action="store_true", help="everything, for scripts")
    options = parser.parse_args(argv)
    with ExitStack() as stack:
        url = options.url
        if url is None:
            found, _ = servers.discover()
            name = options.server or next(reversed(found), None)
            if name not in found:
                parser.error(f"no server {name}; found: {', '.join(found) or 'none'}")
            url = stack.enter_context(servers.Server(found[name])).url
        result = measure(url, rounds=options.rounds, jobs=options.jobs)
    lines = [json.dumps(result, indent=2)] if options.json else report(result)
    sys.stdout.write("\n".join(lines) + "\n")
    return 0
