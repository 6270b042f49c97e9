"""Run handlers for the jobs of a stream, one role a module.

engine        the worker as its users see it: settings, run and stop, health
runner        one run: starts what is in hand, lets it end
fetch         what comes in, for one stream: reads, recovers, reclaims, and gives back what cannot start
timer         moves what is due into the stream, in one worker of a stream at a time
lane          which jobs in hand may start now: suspects a few at a time, the last chance alone
turns         shares the slots among several streams
last_chance   runs a job with a single start left alone
roles         begins a background role again when it fails
dispatch      calls a handler, in a thread or a task, and turns its end into an `Outcome`
middleware    puts a handler into its middlewares
threads       where ``def`` handlers run
settle        acknowledges, commits, retries, rejects: in batches, until the server has taken them
heartbeat     renews the leases of what this process holds, from a thread of its own
maintenance   one worker per tick takes over what dead ones left, and forgets job IDs that are due
hooks         what a program is told about its worker
health        whether the worker is of use, told over HTTP
log           the form of every line of the log

and, in several processes (`streamq run`):

supervisor    starts them, starts them again, stops them, one after the other or all
seat          a place for a child: its process, pipe and journal, and when the next one may start
child         the process: runs the worker, does what the supervisor says
journal       what a child holds, in memory that outlives it
returns       gives back what dead children held, again until the server can be reached
target        from ``MODULE:WORKER`` to a worker
"""

from __future__ import annotations

from streamq.worker.engine import Worker

__all__ = ["Worker"]
