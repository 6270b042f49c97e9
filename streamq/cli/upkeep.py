"""``streamq pause|resume|trim|delete``: what is done to a whole stream."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamq._text import duration
from streamq.cli import times
from streamq.cli.output import REFUSED, AsJson, Deployment, Name, Url, Yes, confirm, fail, print_json, say
from streamq.errors import ConfigurationError, ServerError

if TYPE_CHECKING:
    from streamq.cli.desk import Desk
    from streamq.options import StreamOptions
    from streamq.stream import Stream


def pause(name: Name, url: Url = None, deployment: Deployment = None, as_json: AsJson = False) -> None:
    """Pause a stream, for all its groups: two seconds later nothing starts any more. What runs, ends as always.

    Jobs can still be added, and wait. Workers keep running, and go on when the stream is resumed.

    With --json: stream, paused, changed (false if it was paused already). Exit status: 0 done, 1 there is no such stream.
    """
    _switch(name, url, deployment, paused=True, as_json=as_json)


def resume(name: Name, url: Url = None, deployment: Deployment = None, as_json: AsJson = False) -> None:
    """End a pause: workers go on within two seconds.

    With --json: stream, paused, changed (false if it was not paused). Exit status: 0 done, 1 there is no such stream.
    """
    _switch(name, url, deployment, paused=False, as_json=as_json)


def _switch(name: str, url: str | None, deployment: str | None, *, paused: bool, as_json: bool) -> None:
    from streamq.cli.desk import Desk

    with Desk(name, url, deployment) as desk:
        desk.must_be_there()
        changed = desk.stream().pause() if paused else desk.stream().resume()
    if as_json:
        print_json({"stream": name, "paused": paused, "changed": changed})
    elif paused:
        say(f"{name}: {'paused: in two seconds nothing starts any more' if changed else 'paused already'}")
    else:
        say(f"{name}: {'resumed' if changed else 'not paused'}")


def trim(
    name: Name,
    *,
    keep_for: Annotated[
        str | None,
        typer.Option(
            "--keep-for",
            metavar="D",
            help="Leave what is younger: 90, 90s, 10m, 2h, 1d.",
            show_default="as the live workers do",
        ),
    ] = None,
    keep_last: Annotated[
        int | None,
        typer.Option(
            "--keep-last",
            metavar="N",
            help="Leave so many of the newest entries.",
            show_default="as the live workers do",
        ),
    ] = None,
    yes: Yes = False,
    url: Url = None,
    deployment: Deployment = None,
    as_json: AsJson = False,
) -> None:
    """Remove finished entries that are still in a stream: read and settled by every group.

    Unread and pending entries stay, and what a dead letter refers to. Which of the finished ones are kept is a setting of the
    stream (retention), which its live workers tell; they trim by themselves, too. Where none tells it, all finished entries go.
    With --keep-for or --keep-last those rules count. What is kept is said, and asked, before.

    With --json: stream, removed, left, keep_for (seconds), keep_last.

    Exit status: 0 done. 1 there is no such stream. 2 the workers do not agree what is kept. 3 not confirmed, or the workers
    keep everything and no rule is given.
    """
    from streamq.cli.desk import Desk
    from streamq.options import StreamOptions

    given: dict[str, Any] = {
        "keep_for": None if keep_for is None else times.duration(keep_for, "--keep-for"),
        "keep_last": keep_last,
    }
    has_rule = any(value is not None for value in given.values())
    options = StreamOptions(retention="keep", **given) if has_rule else None
    with Desk(name, url, deployment) as desk:
        desk.must_be_there()
        why = ""
        if options is None:
            options, why = _as_workers_say(desk)
        confirm(f"remove the finished entries of stream {name}{_but(options)}{why}", yes=yes)
        stream = desk.stream(options)
        with _busy(f"trimming {name}"):
            removed = stream.trim()
        left = stream.inspect().length
    if as_json:
        seconds = None if options.keep_ms is None else options.keep_ms / 1000
        print_json(
            {"stream": name, "removed": removed, "left": left, "keep_for": seconds, "keep_last": options.keep_last}
        )
    else:
        say(f"{name}: {removed:,} finished {'entry' if removed == 1 else 'entries'} removed, {left:,} left")


def _but(options: StreamOptions) -> str:
    """What is kept, in words."""
    if 0 in {options.keep_ms, options.keep_last} or options.keep_ms is options.keep_last:
        return ", all of them"
    younger = "" if options.keep_ms is None else f"younger than {duration(options.keep_ms / 1000)}"
    if options.keep_last is None:
        return f", but for those {younger}"
    return f", but for the newest {options.keep_last:,}" + (f", as far as they are {younger}" if younger else "")


def _as_workers_say(desk: Desk) -> tuple[StreamOptions, str]:
    """What the live workers keep; and what to add to the question, if none says it."""
    from streamq.options import StreamOptions

    ways = desk.told("retention", "keep_for", "keep_last")
    if len(ways) > 1:
        raise ConfigurationError(
            f"the live workers of stream {desk.name} do not agree on what is kept: give --keep-for or --keep-last; "
            f"streamq doctor {desk.name} shows who says what"
        )
    if not ways:
        return StreamOptions(), ": no live worker says what is kept"
    try:
        options = StreamOptions(**ways[0])
    except (ConfigurationError, TypeError) as error:
        raise ConfigurationError(
            f"what the live workers of stream {desk.name} say of what is kept is not valid: {error}; "
            "give --keep-for or --keep-last"
        ) from None
    if options.retention == "keep" and options.keep_ms is None and options.keep_last is None:
        fail(
            f"the workers of stream {desk.name} keep all finished entries; nothing was removed: to remove some give "
            "--keep-for or --keep-last, or --keep-last 0 for all of them"
        )
        raise typer.Exit(REFUSED)
    return options, ", as its workers do"


def delete(
    name: Name,
    *,
    force: Annotated[
        bool, typer.Option("--force", help="Also if work is left: unread, pending, scheduled, dead. It is lost.")
    ] = False,
    yes: Yes = False,
    url: Url = None,
    deployment: Deployment = None,
    as_json: AsJson = False,
) -> None:
    """Delete a stream: entries, groups, dead letters, schedule, records, what effects wrote, and its name.

    It is refused while work is left, unless --force is given. Stop its workers first: one that still runs makes the stream
    again, empty. If it is broken off, call it again.

    With --json: stream, keys (how many were removed), lost (what work was left: ready, pending, scheduled, dead; null if a
    key held something else).

    Exit status: 0 deleted. 1 there is no such stream. 3 refused, or not confirmed: then nothing was deleted.
    """
    from streamq.cli.desk import Desk, refusal

    with Desk(name, url, deployment) as desk:
        desk.must_be_there()
        stream = desk.stream()
        lost = _left(stream, force=force)
        listed = ", ".join(f"{count:,} {what}" for what, count in (lost or {}).items() if count)
        if listed and not force:
            fail(f"stream {name} has work left: {listed}; nothing was deleted: --force deletes it all the same")
            raise typer.Exit(REFUSED)
        losing = f" with the work that it has left, which is lost ({listed})" if listed else ""
        if lost is None:
            losing = ", of which a key holds something else, with whatever it holds"
        confirm(f"delete stream {name}{losing}{desk.readers()}", yes=yes)
        with refusal("--force deletes it all the same"), _busy(f"deleting {name}"):
            keys = stream.delete(force=force)
    if as_json:
        print_json({"stream": name, "keys": keys, "lost": lost})
    else:
        say(f"{name}: deleted, {keys:,} {'key' if keys == 1 else 'keys'} removed")


def _left(stream: Stream[Any], *, force: bool) -> dict[str, int] | None:
    """The work that the stream has left; None with `force` if a key holds something else."""
    try:
        seen = stream.inspect()
    except (ConfigurationError, ServerError):
        if force:
            return None
        raise
    return {what: getattr(seen, what) for what in ("ready", "pending", "scheduled", "dead")}


@contextmanager
def _busy(what: str) -> Iterator[None]:
    """Show at the terminal that something may take long."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.text import Text

    with Console(stderr=True).status(Text(what)):
        yield
