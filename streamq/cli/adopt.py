"""``streamq migrate adopt``: bring a stream that was built by hand under streamq."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from streamq.cli.migrate import Site
from streamq.cli.output import AsJson, Deployment, Url, Yes, confirm, fail, print_json, progress, say
from streamq.keys import Keys

if TYPE_CHECKING:
    from streamq.migrations.adopt import Adopted
    from streamq.migrations.adopt_source import Found, Sample, Source

EXAMPLES: Final = (
    "streamq migrate adopt --stream mails --group senders --as mail --dry-run",
    "streamq migrate adopt --stream mails --group senders --dead mails:dead --scheduled later --bodies later:jobs --as mail",
    "streamq migrate adopt --stream mails --group senders --payload-field data --as mail --yes",
)

_MOVED: Final = {
    "entries": "entries",
    "scheduled": "timers",
    "dead": "dead letters",
    "finished": "finished entries removed",
    "removed": "old keys removed",
}


def adopt(
    stream: Annotated[str, typer.Option("--stream", metavar="KEY", help="Key of the stream.")],
    group: Annotated[str, typer.Option("--group", metavar="G", help="Its group that streamq's workers will use.")],
    name: Annotated[str, typer.Option("--as", metavar="NAME", help="Name of the stream that it becomes.")],
    *,
    dead: Annotated[
        str | None, typer.Option("--dead", metavar="KEY", help="Key of the stream of dead letters.")
    ] = None,
    scheduled: Annotated[
        str | None, typer.Option("--scheduled", metavar="ZSET", help="Key of the timers: ID by due time in ms.")
    ] = None,
    bodies: Annotated[
        str | None, typer.Option("--bodies", metavar="HASH", help="Key of what they hold: payload by ID.")
    ] = None,
    payload_field: Annotated[
        str, typer.Option("--payload-field", metavar="FIELD", help="Field of the entries that holds the payload.")
    ] = "job",
    remove_old: Annotated[
        bool, typer.Option("--remove-old", help="Move what is left, and remove the old keys.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what there is.")] = False,
    yes: Yes = False,
    url: Url = None,
    deployment: Deployment = None,
    as_json: AsJson = False,
) -> None:
    """Bring a stream that was built by hand under streamq: its groups and who holds what, dead letters, timers.

    If it is broken off, give the same command again; and again later, for what was still written to the old keys. What the
    hand-built consumers have in hand meanwhile may run twice.

    With --json and --dry-run: name, state, way, entries, groups, dead, scheduled, bodies, first_due, last_due, sample and timers
    (of the first: looked, without a payload, undecodable), options. Else: name, state, and how many entries, scheduled, dead,
    finished, removed; failed. Exit status: 0 done, or nothing to do. 1 something could not be moved, and stays. 2 a key is
    missing or holds something else, or the group is not there. 3 not confirmed, the name is taken, the old keys are in use, or
    somebody else holds the lock.
    """
    from streamq.migrations import adopt as moving
    from streamq.migrations import adopt_copy as copying
    from streamq.migrations.adopt import Adopted
    from streamq.migrations.adopt_source import Source, look

    source = Source(stream, group, dead, scheduled, bodies, payload_field)
    with Site(url, deployment) as site:
        keys = Keys(name, site.deployment)
        found = site.run(look(source, keys))
        if dry_run:
            _describe(found, source, as_json=as_json)
            return
        if not remove_old and found.is_done:
            _report(found, Adopted(), as_json=as_json)
            return
        if not as_json and not yes:
            _describe(found, source, as_json=False)
        what = f"move {found.things:,} items to stream {name}"
        confirm(f"{what}, and remove {', '.join(source.kinds)}" if remove_old else what, yes=yes)
        with site.locked() as lock, progress(f"adopt {name}", found.things) as told:
            found = site.run(look(source, keys))  # somebody else may have been first
            plans = copying if found.way == "keep" else moving
            work = plans.clean if remove_old else plans.move
            done = site.run(moving.held(work(lock, source, keys, told)))
        if not done.failed:
            found.state = "removed" if remove_old else "adopted"
    _report(found, done, as_json=as_json)


def _describe(found: Found, source: Source, *, as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    at = "" if found.at is None else f" at {found.at:%Y-%m-%d %H:%M:%S} UTC"
    say(f"{found.name}: {found.state}{at}")
    ways = {
        "rename": "is renamed: entries, IDs, groups and who holds what stay as they are",
        "copy": "is moved entry by entry: entries get new IDs, and finished ones are removed",
        "keep": "is copied: entries keep their IDs, and the old keys stay until --remove-old",
    }
    say(f"  {source.stream}: {found.entries:,} entries; it {ways[found.way]}")
    for group in found.groups:
        say(f"    group {group.name}: {group.pending:,} pending, read up to {group.last}")
    _describe_sample(found.sample, "entries", f"a field {source.payload}", "invalid")
    if source.dead is not None:
        say(f"  {source.dead}: {found.dead:,} entries become dead letters")
    if source.scheduled is not None:
        due = "" if found.first_due is None else f", the first due {found.first_due:%Y-%m-%d %H:%M:%S} UTC"
        until = "" if found.last_due is None else f", the last {found.last_due:%Y-%m-%d %H:%M:%S} UTC"
        say(f"  {source.scheduled}: {found.scheduled:,} timers{due}{until}; {source.bodies}: {found.bodies:,} payloads")
        _describe_sample(found.timers, "timers", "a payload", "")
    if found.options:
        say(f"  use it with {found.options}")


def _describe_sample(sample: Sample, what: str, payload: str, fate: str) -> None:
    if not sample.looked:
        return
    said = f"    of the first {sample.looked:,} {what}, {sample.good:,} have {payload} that is JSON"
    if sample.without:
        said += f"; {sample.without:,} have none, and " + (
            f"become dead letters ({fate})" if fate else "stay where they are"
        )
    if sample.undecodable:
        said += (
            f"; of {sample.undecodable:,} it is no JSON: dead letters (undecodable), unless the stream is one of bytes"
        )
    say(said)


def _report(found: Found, done: Adopted, *, as_json: bool) -> None:
    """Say what was done, and end with status 1 if not all was."""
    if as_json:
        print_json({"name": found.name, "state": found.state, **msgspec.to_builtins(done)})
    else:
        parts = [f"{count:,} {word}" for name, word in _MOVED.items() if (count := getattr(done, name))]
        say(f"{found.name}: {', '.join(parts) or 'nothing to move'}")
        if found.options:
            say(f"  use it with {found.options}")
    for why in done.failed:
        fail(why)
    if done.failed:
        fail(f"{found.name}: not all could be moved; what could not is where it was. Put that right, and adopt again")
        raise typer.Exit(1)
