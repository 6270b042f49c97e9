"""Would XACKDEL (Redis 8.2) make acknowledging cheaper for the server than XACK, a look at the groups, and XDEL?

    python tests/benchmarks/xackdel.py --server redis-8.2 --rounds 31

Runs ack.lua as it is, and with its taking and deleting done by `XACKDEL ... ACKED`, turn by turn on one server, and prints the
server's CPU time per job: the median of all rounds, and of the two runs of each round how they compare (median, and half of
all rounds). docs/speed.md shows it. Both ways leave the same behind, which is checked.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import redis

sys.path.insert(0, str(Path(__file__).parents[1]))

from records import server_us, table
from servers import Server, discover

from streamq import StreamOptions, _scripts
from streamq._scripts import JobIdKind, Settled
from streamq.keys import Keys

JOBS = 2_000
OTHERS = """local others = (retention == 'delete' or #notes > 0) and other_groups(stream, group)
if retention == 'delete' then delete_settled(stream, others, mine) end
"""
TAKES = "redis.call('XACK', stream, group, unpack(mine))\n" + OTHERS
TAKES_AT_ONCE = """if retention == 'delete' then
  redis.call('XACKDEL', stream, group, 'ACKED', 'IDS', #mine, unpack(mine))
else
  redis.call('XACK', stream, group, unpack(mine))
end
local others = #notes > 0 and other_groups(stream, group)
"""


class Case(NamedTuple):
    batch: int
    groups: int
    chosen: bool = False
    last: bool = True
    """Whether the other groups are done with the entries, so that they go."""

    def __str__(self) -> str:
        others = "" if self.groups == 1 else ", the others done" if self.last else ", the others not yet"
        many = f"{self.groups} group{'s' if self.groups > 1 else ''}{others}"
        return f"{self.batch} a call, {many}{', job IDs' if self.chosen else ''}"


CASES = (
    Case(1, 1), Case(10, 1), Case(100, 1), Case(10, 3), Case(100, 3), Case(100, 3, last=False), Case(100, 1, chosen=True),
)  # fmt: skip


def ways() -> dict[str, str]:
    """Both texts of the script."""
    text = _scripts.source("ack").text
    assert TAKES in text
    return {"XACK, XDEL": text, "XACKDEL": text.replace(TAKES, TAKES_AT_ONCE)}


def cost(raw: redis.Redis, sha: str, case: Case) -> float:
    """The server's CPU time per job, in µs."""
    keys, options = Keys("cost"), StreamOptions()
    with raw.pipeline(transaction=False) as pipe:
        for n in range(JOBS):
            pipe.xadd(keys.stream, {"job": f'{{"customer":"ada","cents":{n}}}'})
        pipe.execute()
    groups = [options.group, *(f"other-{n}" for n in range(1, case.groups))]
    for name in groups:
        raw.xgroup_create(keys.stream, name, "0")
    for name in groups[1:]:
        [(_, read)] = raw.xreadgroup(name, "w", {keys.stream: ">"}, count=JOBS)
        if case.last:
            raw.xack(keys.stream, name, *(entry_id for entry_id, _ in read))
    [(_, read)] = raw.xreadgroup(options.group, "w", {keys.stream: ">"}, count=JOBS)
    kind = JobIdKind.CHOSEN if case.chosen else JobIdKind.GENERATED
    held = [Settled(entry_id.decode(), 1, kind, f"order:{n}", b"") for n, (entry_id, _) in enumerate(read)]
    with raw.pipeline(transaction=False) as pipe:
        for at in range(0, JOBS, case.batch):
            script = _scripts.ack(keys, options, consumer="w", batch=held[at : at + case.batch])
            pipe.execute_command("EVALSHA", sha, len(script.keys), *script.keys, *script.argv)
        start = server_us(raw)
        answers = pipe.execute()
        used = server_us(raw) - start
    assert all(set(answer) == {1} for answer in answers)
    assert raw.xlen(keys.stream) == (0 if case.last else JOBS)
    assert raw.xpending(keys.stream, options.group)["pending"] == 0
    raw.flushall()
    return used / JOBS


def rows(raw: redis.Redis, rounds: int) -> Iterator[tuple[str, ...]]:
    shas = {name: raw.script_load(text) for name, text in ways().items()}
    for case in CASES:
        took: dict[str, list[float]] = {name: [] for name in shas}
        for n in range(rounds + 1):
            for name in list(shas)[:: 1 if n % 2 else -1]:
                used = cost(raw, shas[name], case)
                if n:  # the first round warms up
                    took[name].append(used)
        one, other = took.values()
        low, middle, high = statistics.quantiles([b / a for a, b in zip(one, other, strict=True)], n=4)
        medians = (f"{statistics.median(times):.2f}" for times in (one, other))
        yield str(case), *medians, f"{middle:.2f} ({low:.2f} to {high:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", default="redis-8.2", help="one that knows XACKDEL")
    parser.add_argument("--rounds", type=int, default=31)
    args = parser.parse_args()
    with (
        Server(discover()[0][args.server]) as server,
        redis.Redis.from_url(server.url, single_connection_client=True) as raw,
    ):
        table(("acknowledged", *(f"{name}, µs" for name in ways()), "XACKDEL / ours"), rows(raw, args.rounds))


if __name__ == "__main__":
    main()
