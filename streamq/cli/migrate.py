"""``streamq migrate``: bring what an earlier version stored to where this one looks for it."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
import typer

from streamq.cli.manual import examples
from streamq.cli.output import REFUSED, AsJson, Deployment, Url, Yes, confirm, fail, print_json, progress, say
from streamq.connection import settings_of
from streamq.errors import ConfigurationError, StreamqError
from streamq.keys import check_deployment

if TYPE_CHECKING:
    from streamq._drivers.blocking import BlockingDriver
    from streamq._requests import Plan
    from streamq._scripts_migrate import Lock
    from streamq.migrations.coordinator import Outcome, Standing
    from streamq.migrations.discovery import Discovered
    from streamq.migrations.m001_hash_tags import Held

R = TypeVar("R")

app = typer.Typer(
    help="Bring what an earlier version stored to where this one looks for it.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    epilog="In which order to go: docs/migrations.md",
)


class Site:
    """A deployment of a server, as the commands need it."""

    def __init__(self, url: str | None, deployment: str | None) -> None:
        self.deployment = check_deployment(deployment)
        self._driver: BlockingDriver = settings_of(url).blocking()

    def __enter__(self) -> Site:
        return self

    def __exit__(self, *_: object) -> None:
        self._driver.close()

    def run(self, plan: Plan[R]) -> R:
        """Run a plan."""
        return self._driver.run(plan)

    def standing(self) -> tuple[Standing, Discovered]:
        """What became of the migration, and the streams that it is about."""
        from streamq.migrations import coordinator

        return self.run(coordinator.standing(self.deployment))

    def held(self, there: Discovered) -> list[Held]:
        """What these streams have in the previous layout."""
        from streamq.migrations import coordinator

        return self.run(coordinator.look(self.deployment, there))

    @contextmanager
    def locked(self) -> Iterator[Lock]:
        """Hold the deployment's lock, and give it back whatever happens."""
        from streamq.migrations import coordinator

        owner = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(8)}"
        lock = coordinator.new_lock(self.deployment, owner)
        self.run(coordinator.acquire(lock, self.deployment))
        try:
            yield lock
        finally:
            with suppress(StreamqError):  # unreachable: it runs out by itself
                self.run(coordinator.release(lock))

    def command(self, *words: str) -> str:
        """A command for this deployment."""
        from streamq.migrations import gate

        return gate.command(self.deployment, *words)


@app.command("list", epilog=examples("streamq migrate list", "streamq migrate list --deployment dp_1"))
def list_(url: Url = None, deployment: Deployment = None, as_json: AsJson = False) -> None:
    """List the migrations, and what became of each in this deployment.

    With --json: a list of name, title, state (pending, applied, not_applicable, not_needed), at, reason, cleaned_at, keys and
    streams of the previous layout. Changes nothing. Exit status: 0.
    """
    with Site(url, deployment) as site:
        standing, _ = site.standing()
    if as_json:
        print_json([standing])
    else:
        say(_told(standing))


@app.command(epilog=examples("streamq migrate status", "streamq migrate status --json"))
def status(url: Url = None, deployment: Deployment = None, as_json: AsJson = False) -> None:
    """Say whether a migration is pending, and who holds the lock.

    With --json: migrations (as of list), lock (owner, left_s; null if nobody holds it). Changes nothing. Exit status: 0 nothing
    is pending, 3 a migration is: workers and producers refuse to start.
    """
    from streamq.migrations import coordinator
    from streamq.migrations.coordinator import State

    with Site(url, deployment) as site:
        standing, _ = site.standing()
        holder = site.run(coordinator.holder(site.deployment))
    if as_json:
        print_json({"migrations": [standing], "lock": holder})
    else:
        say(_told(standing))
        left = "for ever" if holder is None or holder.left_s is None else f"for {holder.left_s:,.0f} s more"
        say("nobody is migrating" if holder is None else f"{holder.owner} holds the lock, {left} if it is not renewed")
    if standing.state is State.PENDING:
        raise typer.Exit(REFUSED)


@app.command(epilog=examples("streamq migrate plan", "streamq migrate plan --deployment dp_1 --json"))
def plan(url: Url = None, deployment: Deployment = None, as_json: AsJson = False) -> None:
    """Say what apply would move. Changes nothing.

    With --json: migration, state, reason, streams (per stream what it has in the previous layout, and way: rename, or copy where
    this layout has such a stream already; wrong: keys that hold something else). Exit status: 0, 1 a key is of a wrong type.
    """
    with Site(url, deployment) as site:
        standing, there = site.standing()
        held = site.held(there) if standing.state == "pending" else []
    if as_json:
        print_json({"migration": standing.name, "state": standing.state, "reason": standing.reason, "streams": held})
    else:
        say(_told(standing))
        for stream in held:
            say(f"  {stream.stream}: {_counts(stream)}")
            for wrong in stream.wrong:
                say(f"    wrong: {wrong}")
    if any(stream.wrong for stream in held):
        raise typer.Exit(1)


@app.command(epilog=examples("streamq migrate apply", "streamq migrate apply --deployment dp_1 --yes"))
def apply(yes: Yes = False, url: Url = None, deployment: Deployment = None, as_json: AsJson = False) -> None:
    """Move what the previous layout holds, in batches, each of which is moved whole.

    If it is broken off, give the same command again. Jobs of the previous version that run meanwhile may run twice; stop its
    workers first where that matters.

    With --json: migration, state, streams (what was moved of each), failed. Exit status: 0 done, or nothing to do. 1 something
    could not be moved: put that right, and go on. 3 not confirmed, or somebody else holds the lock.
    """
    from streamq.migrations import coordinator
    from streamq.migrations.coordinator import Outcome, State

    with Site(url, deployment) as site:
        standing, there = site.standing()
        if standing.state is State.NOT_APPLICABLE:
            site.run(coordinator.note_not_applicable(site.deployment, standing.name, standing.reason or ""))
        if standing.state is not State.PENDING:
            _report("apply", standing, Outcome(), as_json=as_json, nothing=_told(standing))
            return
        held = site.held(there)
        things = sum(stream.things for stream in held)
        what = f"move {things:,} items of {_streams(len(held))} to the present layout"
        confirm(what, yes=yes)
        with site.locked() as lock, progress(standing.name, things) as told:
            done = site.run(coordinator.apply(lock, site.deployment, there, told))
        standing.state = State.PENDING if done.failed else State.APPLIED
    _report("apply", standing, done, as_json=as_json)
    if not done.failed and not as_json:
        say(f"once no process of the previous version runs any more: {site.command('cleanup', standing.name)}")


@app.command(epilog=examples("streamq migrate verify", "streamq migrate verify --json"))
def verify(url: Url = None, deployment: Deployment = None, as_json: AsJson = False) -> None:
    """See that nothing is missing or broken, and what the previous layout still holds. Changes nothing.

    With --json: migration, state, leftovers (per stream what it has in the previous layout), defects. Exit status: 0 all is
    well; what the previous version has left is listed. 1 there is a defect, or the migration was not applied.
    """
    from streamq.migrations import coordinator
    from streamq.migrations.coordinator import State

    with Site(url, deployment) as site:
        standing, there = site.standing()
        held = site.held(there)
        defects = [] if standing.state is State.NOT_APPLICABLE else site.run(coordinator.verify(site.deployment, there))
    if as_json:
        print_json({"migration": standing.name, "state": standing.state, "leftovers": held, "defects": defects})
    else:
        say(_told(standing))
        for stream in held:
            say(f"  {stream.stream}: {_counts(stream)}")
        for defect in defects:
            say(f"  defect: {defect}")
        if held and standing.state is State.APPLIED:
            say(f"once no process of the previous version runs any more: {site.command('cleanup', standing.name)}")
        if not defects and standing.state is not State.PENDING:
            say("verified: all is well")
    if defects or standing.state is State.PENDING:
        raise typer.Exit(1)


@app.command(
    epilog=examples("streamq migrate cleanup", "streamq migrate cleanup 001_hash_tags --deployment dp_1 --yes")
)
def cleanup(
    name: Annotated[str | None, typer.Argument(help="Migration; without it, what each would remove is listed.")] = None,
    *,
    yes: Yes = False,
    url: Url = None,
    deployment: Deployment = None,
    as_json: AsJson = False,
) -> None:
    """Move what the previous version has written since apply, and remove its keys.

    Stop the previous version first: it is refused while one of its workers seems to be alive. A job that both layouts have under
    one ID stays as the present one has it.

    With --json: migration, state, streams (what was moved and removed of each), failed; without a name as of list. Exit
    status: 0 done, or nothing to do. 1 something could not be moved; its keys stay. 2 there is no such migration. 3 not
    confirmed, not applied yet, still in use, or somebody else holds the lock.
    """
    from streamq.migrations import coordinator
    from streamq.migrations.coordinator import Outcome, State

    if name is not None and name not in coordinator.NAMES:
        raise ConfigurationError(f"there is no migration {name!r:.80}: there is {', '.join(coordinator.NAMES)}")
    with Site(url, deployment) as site:
        standing, there = site.standing()
        if name is None:
            _list_leftovers(standing, as_json=as_json)
            return
        if standing.state is State.NOT_APPLICABLE or (standing.state is State.APPLIED and not there.streams):
            _report("cleanup", standing, Outcome(), as_json=as_json, nothing=f"{name}: nothing to clean")
            return
        if standing.state is not State.APPLIED:
            fail(f"{name} is not applied yet; nothing was done: {site.command('apply')}")
            raise typer.Exit(REFUSED)
        held = site.held(there)
        things = sum(stream.things for stream in held)
        what = f"remove {there.keys:,} keys of the previous layout, of {_streams(len(held))}"
        confirm(f"move {things:,} items that are left, and {what}" if things else what, yes=yes)
        with site.locked() as lock, progress(name, things) as told:
            done = site.run(coordinator.cleanup(lock, site.deployment, there, told))
    _report("cleanup", standing, done, as_json=as_json)


@app.command(epilog=examples("streamq migrate unlock", "streamq migrate unlock --yes"))
def unlock(yes: Yes = False, url: Url = None, deployment: Deployment = None, as_json: AsJson = False) -> None:
    """Take the lock away from a process that is dead. One that is alive stops before its next batch.

    With --json: owner, removed. Exit status: 0 nobody holds it now. 3 not confirmed, or somebody else has taken it meanwhile.
    """
    from streamq import _scripts_migrate as scripts
    from streamq._requests import ask
    from streamq.keys import migration_lock
    from streamq.migrations import coordinator

    with Site(url, deployment) as site:
        holder = site.run(coordinator.holder(site.deployment))
        removed = False
        if holder is not None:
            confirm(f"take the lock away from {holder.owner}", yes=yes)
            removed = site.run(ask(scripts.unlock(migration_lock(site.deployment), owner=holder.owner)))
    if as_json:
        print_json({"owner": holder and holder.owner, "removed": removed})
    elif holder is None:
        say("nobody holds the lock")
    elif removed:
        say(f"{holder.owner} does not hold the lock any more")
    if holder is not None and not removed:
        fail(f"{holder.owner} does not hold the lock any more; whoever has it now keeps it")
        raise typer.Exit(REFUSED)


def _list_leftovers(standing: Standing, *, as_json: bool) -> None:
    applied = [standing] if standing.state == "applied" else []
    if as_json:
        print_json(applied)
    for each in [] if as_json else applied:
        say(f"{each.name}: would remove {each.keys:,} keys of {_streams(each.streams)}; to do so, name it")
    if not applied and not as_json:
        say("no migration is applied: nothing to clean")


def _report(what: str, standing: Standing, done: Outcome, *, as_json: bool, nothing: str | None = None) -> None:
    """Say what was done, and end with status 1 if not all was."""
    if as_json:
        streams = [msgspec.to_builtins(stream) for stream in done.streams]
        print_json({"migration": standing.name, "state": standing.state, "streams": streams, "failed": done.failed})
    elif nothing is not None:
        say(nothing)
    else:
        for stream in done.streams:
            say(f"  {stream.stream}: {_moved(stream)}")
        if not done.failed:
            say(f"{standing.name}: {'applied' if what == 'apply' else 'cleaned'}, {_streams(len(done.streams))}")
    for why in done.failed:
        fail(why)
    if done.failed:
        fail(
            f"{standing.name}: {len(done.failed):,} could not be moved; the rest is moved. Put that right, and {what} again"
        )
        raise typer.Exit(1)


def _told(standing: Standing) -> str:
    where = f"{standing.keys:,} keys of the previous layout, of {_streams(standing.streams)}"
    match standing.state:
        case "pending":
            said = f"pending: {where}"
        case "applied":
            at = "" if standing.at is None else f" at {standing.at:%Y-%m-%d %H:%M:%S} UTC"
            said = f"applied{at}, up to date" + (f"; left for cleanup: {where}" if standing.keys else "")
        case "not_applicable":
            said = f"not applicable: {standing.reason}"
        case _:
            said = "up to date: there are no keys of the previous layout"
    return f"{standing.name}: {said}"


_WORDS: dict[str, str] = {
    "scheduled": "scheduled", "entries": "entries", "pending": "pending", "dead": "dead letters", "remembered": "records of IDs",
    "settings": "settings and counters", "data": "keys of effects",
}  # fmt: skip


def _counts(held: Held) -> str:
    parts = [f"{getattr(held, name):,} {word}" for name, word in _WORDS.items() if getattr(held, name)]
    groups = f", groups {', '.join(held.groups)}" if held.groups else ""
    copied = "; its entries are copied" if held.way == "copy" and held.entries else ""
    return (", ".join(parts) or "empty structures") + groups + copied


def _moved(moved: Any) -> str:
    words = {**_WORDS, "superseded": "that the present layout has already", "finished": "finished entries removed"}
    parts = [f"{count:,} {word}" for name, word in words.items() if (count := getattr(moved, name, 0))]
    if moved.removed:
        parts.append(f"{moved.removed:,} old keys removed")
    return ", ".join(parts) or "nothing to move"


def _streams(count: int) -> str:
    return f"{count:,} {'stream' if count == 1 else 'streams'}"
