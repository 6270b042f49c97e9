"""Weakened builds: what the laboratory must catch. Each is the true scripts with a few lines changed.

The faults and jobs of a mutant are those that show it soon; the laboratory knows no more of it than of a true build.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from faults.chaos.plan import Fault, Kind

LUA: Final = Path(__file__).parent.parent.parent.parent / "lua"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A weakened build.

    Attributes:
        what: What is wrong with it.
        edits: File -> pairs of what is there and what is put in its place.
        rules: Rules of the ledger of which at least one must be violated.
        faults: The faults that show it.
        mix: The jobs that show it.
        rate: Jobs a second.
        seconds: How long it takes to show it.
    """

    what: str
    edits: Mapping[str, tuple[tuple[str, str], ...]]
    rules: frozenset[str]
    faults: Mapping[Fault, float] = field(default_factory=dict)
    mix: Mapping[Kind, float]
    rate: float = 40.0
    seconds: float = 8.0


MUTANTS: Final[Mapping[str, Mutant]] = {
    "unfenced": Mutant(
        what="a late commit counts, whoever has the job now, and though it is settled already",
        edits={
            "commit.lua": (("if code ~= MINE then return { code } end\n", "code = MINE\n"),),
        },
        rules=frozenset({"effect twice"}),
        faults={Fault.FREEZE: 1, Fault.CUT: 2},
        mix={Kind.PLAIN: 1},
        rate=100.0,
    ),
    "acknowledged-first": Mutant(
        what="the acknowledgement is one request, the effects are the next",
        edits={
            "commit.lua": (
                (
                    "if code ~= MINE then return { code } end\n",
                    """
if code == MINE then
  redis.call('XACK', stream, group, entry_id)
  redis.call('XDEL', stream, entry_id)
  return redis.error_reply('ERR the effects come next')
end
if code ~= GONE then return { code } end
""",
                ),
            ),
        },
        rules=frozenset({"lost"}),
        faults={Fault.KILL: 1},
        mix={Kind.PLAIN: 1},
    ),
    "unwritten-letter": Mutant(
        what="a job that is given up is acknowledged, but its dead letter is not written",
        edits={"dead_letter.lua": (("redis.call('XADD', dead, '*', unpack(fields))", ""),)},
        rules=frozenset({"lost"}),
        mix={Kind.PLAIN: 4, Kind.REJECTED: 1, Kind.UNDECODABLE: 1},
        seconds=2.0,
    ),
    "unwritten-retry": Mutant(
        what="a job that failed is acknowledged, but not scheduled again",
        edits={
            "retry.lua": (
                ("put_timer(scheduled, jobs, wake, timer_id(group, job_id), now + delay, fields)", "new_id = ''"),
            )
        },
        rules=frozenset({"lost"}),
        mix={Kind.PLAIN: 4, Kind.FLAKY: 1},
        seconds=2.0,
    ),
    "unacknowledged-retry": Mutant(
        what="a job that failed is scheduled again, but stays pending, without a body",
        edits={"retry.lua": (("redis.call('XACK', stream, group, entry_id)\n", ""),)},
        rules=frozenset({"unknown letter"}),
        mix={Kind.PLAIN: 4, Kind.FLAKY: 1},
        seconds=4.0,
    ),
    "unwritten-promotion": Mutant(
        what="a job that is due is taken out, before it is in the stream",
        edits={
            "promote.lua": (
                (
                    "local over, dropped,",
                    """
if #due > 0 then
  drop_timers(scheduled, jobs, due)
  return redis.error_reply('ERR the entries come next')
end
local over, dropped,""",
                ),
            )
        },
        rules=frozenset({"lost"}),
        mix={Kind.PLAIN: 4, Kind.FLAKY: 1, Kind.DELAYED: 1},
        seconds=2.0,
    ),
    "repeated-promotion": Mutant(
        what="a job that is due stays where it waits when it is in the stream, and is due again",
        edits={
            "promote.lua": (
                (
                    "if #over > 0 then drop_timers(scheduled, jobs, over) end",
                    "for _, id in ipairs(over) do redis.call('ZADD', scheduled, now + 300, id) end",
                ),
            )
        },
        rules=frozenset({"effect twice", "attempt twice"}),
        mix={Kind.PLAIN: 4, Kind.FLAKY: 1, Kind.DELAYED: 1},
        seconds=2.0,
    ),
    "unwaiting-retry": Mutant(
        what="a retry does not wait",
        edits={"retry.lua": (("now + delay, fields", "now, fields"),)},
        rules=frozenset({"too early"}),
        mix={Kind.PLAIN: 4, Kind.FLAKY: 1},
        seconds=2.0,
    ),
    "uncounted-start": Mutant(
        what="the start of a reclaimed job is not counted, so that a poison is started for ever",
        edits={
            "start.lua": (("'RETRYCOUNT', target, ", ""),),
            "shared/fence.lua": (
                ("if row[2] == consumer and row[4] == count then", "if row[2] == consumer then"),
                ("return held[id] == count and MINE or LOST", "return MINE"),
            ),
        },
        rules=frozenset({"started too often"}),
        mix={Kind.PLAIN: 30, Kind.POISON: 1},
        seconds=6.0,
    ),
    "unclaimed-id": Mutant(
        what="an entry with a job ID runs, though the ID is done or running",
        edits={
            "claim_id.lua": (("if word == 'done' then", "if false then"), ("elseif word == 'running'", "elseif false"))
        },
        rules=frozenset({"effect twice"}),
        mix={Kind.CHOSEN: 1},
        seconds=5.0,
    ),
    "unrenewed": Mutant(
        what="leases are not renewed, so that a job longer than its lease is run again beside itself",
        edits={"renew.lua": (("'XCLAIM', stream", "'XPENDING', stream, group) --"),)},
        rules=frozenset({"run again"}),
        mix={Kind.PLAIN: 4, Kind.LONG: 1},
        rate=10.0,
        seconds=5.0,
    ),
    "no-lease": Mutant(
        what="jobs are reclaimed though their lease has not run out",
        edits={"reclaim.lua": (("local min_idle = tonumber(ARGV[3])", "local min_idle = 0"),)},
        rules=frozenset({"run again"}),
        mix={Kind.PLAIN: 4, Kind.LONG: 1},
        seconds=5.0,
    ),
}


def build(name: str, directory: Path) -> Path:
    """Write the scripts of a mutant; the folder that holds them.

    Raises:
        ValueError: What it changes is not there any more: the mutant must follow the scripts.
    """
    folder = directory / "lua"
    shutil.copytree(LUA, folder)
    for file, edits in MUTANTS[name].edits.items():
        path = folder / file
        text = path.read_text("utf-8")
        for there, instead in edits:
            if there not in text:
                raise ValueError(f"mutant {name}: {file} holds no {there!r}")
            text = text.replace(there, instead)
        path.write_text(text, "utf-8")
    return folder
