"""``streamq scheduled``: look at jobs that wait for their time or their next attempt, cancel, move and run them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamq.cli import times
from streamq.cli.manual import examples
from streamq.cli.output import (
    AsJson,
    At,
    Delay,
    Deployment,
    Name,
    ShowPayloads,
    Url,
    Yes,
    brief,
    confirm,
    fail,
    is_asked,
    print_json,
    progress,
    say,
    told_if_broken_off,
)
from streamq.cli.tables import ERROR_CHARS, ID_CHARS, MOST_ROWS, Column, sheet, table
from streamq.errors import ConfigurationError

if TYPE_CHECKING:
    from streamq.cli.changes import Change, Changed
    from streamq.cli.timers import Timers
    from streamq.messages import ScheduledJob

app = typer.Typer(
    help="Jobs that wait for their time, or for their next attempt: look at them, cancel, move and run them.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

PAGE = 1_000

JobIds = Annotated[list[str] | None, typer.Argument(metavar="[JOB_ID]...", help="Job IDs.", show_default=False)]
Group = Annotated[
    str | None,
    typer.Option(
        "--group",
        help="Group whose next attempt is meant by a job ID. Jobs that never ran wait for all groups.",
        show_default="workers",
    ),
]
DueBefore = Annotated[
    str | None,
    typer.Option(
        "--due-before",
        metavar="WHEN",
        help="Jobs of all groups that are due before a time with its zone (2030-01-31T12:00:00Z), or so far from now by the "
        "server's clock (90, 90s, 10m, 2h, 1d).",
        show_default=False,
    ),
]
All = Annotated[bool, typer.Option("--all", help="All jobs that wait, of all groups.")]


@app.command(
    "list", epilog=examples("streamq scheduled list orders", "streamq scheduled list orders --due-before 1h --json")
)
def list_(
    name: Name,
    *,
    due_before: DueBefore = None,
    limit: Annotated[
        int | None,
        typer.Option("--limit", min=1, max=MOST_ROWS, help="Most jobs.", show_default="100"),
    ] = None,
    after: Annotated[
        str | None,
        typer.Option(
            "--after", metavar="PLACE", help="Go on behind the last of the page before, as it says.", show_default=False
        ),
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="All jobs, each on a line of JSON; with --json.")] = False,
    url: Url = None,
    deployment: Deployment = None,
    as_json: AsJson = False,
) -> None:
    """List jobs that wait, of all groups, the next one first. Changes nothing.

    With --json: jobs, more (how many come behind them), next (for --after; null at the end).
    """
    from streamq.cli.changes import each_page
    from streamq.cli.timers import Timers

    if all_ and (limit is not None or not as_json):
        raise ConfigurationError("--all goes with --json and without --limit: a table is cut, and goes on with --after")
    last = None if after is None else _job_at(after)
    with Timers(name, url, deployment) as timers:
        now = timers.now()
        until = _moment(due_before, now)
        if all_:
            for page in each_page(timers, until, last, count=PAGE):
                for job in page:
                    print_json(_row(job), indent=-1)
            return
        jobs = _some(timers, limit or 100, last, until)
        more = timers.count(after=jobs[-1], due_before=until) if jobs else 0
    following = _place(jobs[-1]) if more else None
    if as_json:
        print_json({"jobs": [_row(job) for job in jobs], "more": more, "next": following})
    elif jobs:
        _table(jobs, now)
        if following is not None:
            say(f"... {more:,} more: raise --limit, or go on with --after {following}")
    else:
        which = "" if until is None else f" that is due before {times.absolute(until)}"
        say(f"no scheduled job in stream {name}{which}{'' if last is None else ' behind that place'}")


def _some(timers: Timers, most: int, last: ScheduledJob | None, until: datetime | None) -> list[ScheduledJob]:
    jobs: list[ScheduledJob] = []
    while len(jobs) < most:
        wanted = min(most - len(jobs), PAGE)
        page = timers.page(wanted, after=jobs[-1] if jobs else last, due_before=until)
        jobs += page
        if len(page) < wanted:
            break
    return jobs


def _row(job: ScheduledJob) -> dict[str, Any]:
    return {
        "job_id": job.job_id,
        "group": job.group,
        "due_at": job.due_at,
        "attempt": job.attempt,
        "enqueued_at": job.enqueued_at,
        "errors": job.errors,
        "entry_lost": not job.fields,
    }


def _table(jobs: list[ScheduledJob], now: datetime) -> None:
    names = (Column("job ID", folds=True), Column("group", folds=True), Column("due"), Column(""))
    table(
        (*names, Column("attempt", is_number=True), Column("last error", folds=True)),
        [
            (
                brief(job.job_id, ID_CHARS),
                brief(_group(job), ID_CHARS),
                times.absolute(job.due_at),
                times.relative(job.due_at, now),
                f"{job.attempt:,}",
                brief(_last_error(job), ERROR_CHARS),
            )
            for job in jobs
        ],
    )


def _last_error(job: ScheduledJob) -> str:
    if not job.fields:
        return "the entry is lost or malformed"
    return job.errors[-1] if job.errors else ""


def _place(job: ScheduledJob) -> str:
    """Where a job stands in the order, for --after."""
    from urllib.parse import quote

    ms = (job.due_at - times.EPOCH) // timedelta(milliseconds=1)
    return f"{ms}:{quote(job.group or '', safe='')}/{quote(job.job_id, safe='')}"


def _job_at(place: str) -> ScheduledJob:
    from urllib.parse import unquote

    from streamq.messages import MOST_MS, ScheduledJob

    ms, _, timer = place.partition(":")
    group, slash, job_id = timer.partition("/")
    if not (ms.isascii() and ms.isdigit() and slash) or len(ms) > len(str(MOST_MS)):
        raise ConfigurationError(f"--after {place!r:.80} is no place in the list: it is what list says at its end")
    due_at = times.EPOCH + timedelta(milliseconds=int(ms))
    return ScheduledJob(unquote(job_id), unquote(group) or None, due_at, 1, (), None, ())


@app.command(
    epilog=examples("streamq scheduled show orders order:17", "streamq scheduled show orders order:17 --show-payloads")
)
def show(
    name: Name,
    job_id: Annotated[str, typer.Argument(help="Job ID.", show_default=False)],
    *,
    group: Group = None,
    show_payloads: ShowPayloads = False,
    url: Url = None,
    deployment: Deployment = None,
    as_json: AsJson = False,
) -> None:
    """Show one job that waits, but for its payload. Changes nothing.

    Exit status 1 if it is not scheduled; its state is told.
    """
    from streamq.cli.changes import hint
    from streamq.cli.entries import about
    from streamq.cli.timers import Timers

    with Timers(name, url, deployment, group) as timers:
        now = timers.now()
        job = timers.get(job_id)
        if job is None:
            state = timers.state(job_id)
            job = timers.get(job_id) if state == "scheduled" else None  # it came back between the two looks
        others = [] if job is not None else timers.other_groups(job_id)
    if job is None:
        if as_json:
            print_json({"job_id": job_id, "state": state, "scheduled_for": others})
        here = f"not scheduled for group {timers.group}; {hint(others)}" if others else f"{state}, not scheduled"
        fail(f"job {job_id} is {here}")
        raise typer.Exit(1)
    details = about(job.fields, payload=show_payloads)
    if as_json:
        print_json({**_row(job), "state": "scheduled", **details})
    else:
        sheet(_lines(job, details, now))


def _lines(job: ScheduledJob, details: dict[str, Any], now: datetime) -> Iterator[tuple[str, str]]:
    from streamq.cli.entries import lines

    yield "job ID", job.job_id
    yield "group", _group(job)
    yield "due", f"{times.absolute(job.due_at)}, {times.relative(job.due_at, now)}"
    yield "attempt", f"{job.attempt:,}"
    if job.enqueued_at is not None:
        yield "added", f"{times.absolute(job.enqueued_at)}, {times.relative(job.enqueued_at, now)}"
    yield from (("error", error) for error in job.errors)
    if not job.fields:
        yield "entry", "lost or malformed: it is taken out when it is due"
    yield from lines(details)


def _group(job: ScheduledJob) -> str:
    return "(all)" if job.group is None else job.group


@app.command(epilog=examples("streamq scheduled cancel orders order:17", "streamq scheduled cancel orders --all"))
def cancel(
    name: Name,
    job_ids: JobIds = None,
    *,
    group: Group = None,
    due_before: DueBefore = None,
    all_: All = False,
    yes: Yes = False,
    url: Url = None,
    deployment: Deployment = None,
    as_json: AsJson = False,
) -> None:
    """Take jobs back that wait: they will not run, and their IDs are free again.

    Of one that is not scheduled it says so; that is no failure. Exit status 1 if one is ready or pending, or waits for another
    group: it stays, the others are cancelled. 3 if many would be touched and nobody confirms it.
    """
    from streamq.cli.changes import Change

    on = _On(name, url, deployment, group, job_ids, due_before, all_)
    _change(Change("cancel", "cancelled"), on, yes=yes, as_json=as_json)


@app.command(
    epilog=examples(
        "streamq scheduled reschedule orders order:17 --delay 10m",
        "streamq scheduled reschedule orders --due-before 1h --at 2030-01-31T12:00:00Z",
    )
)
def reschedule(
    name: Name,
    job_ids: JobIds = None,
    *,
    delay: Delay = None,
    at: At = None,
    group: Group = None,
    due_before: DueBefore = None,
    all_: All = False,
    yes: Yes = False,
    url: Url = None,
    deployment: Deployment = None,
    as_json: AsJson = False,
) -> None:
    """Give jobs that wait another time, by the server's clock. Payload and attempts stay.

    Exit status 1 if one is not scheduled, but ready, pending, done or unknown: the others are moved. 3 if many would be touched
    and nobody confirms it.
    """
    from streamq._scripts_timers import when
    from streamq.cli.changes import Change
    from streamq.options import StreamOptions

    due = when(
        None if delay is None else times.duration(delay, "--delay"),
        None if at is None else times.moment(at, "--at"),
        most_ms=StreamOptions().max_delay_ms,
    )
    if due is None:
        raise ConfigurationError("say when the jobs are to be due: --delay 10m, or --at 2030-01-31T12:00:00Z")
    on = _On(name, url, deployment, group, job_ids, due_before, all_)
    _change(Change("reschedule", "rescheduled", due), on, yes=yes, as_json=as_json)


@app.command(
    epilog=examples("streamq scheduled run orders order:17", "streamq scheduled run orders --due-before 1h --yes")
)
def run(
    name: Name,
    job_ids: JobIds = None,
    *,
    group: Group = None,
    due_before: DueBefore = None,
    all_: All = False,
    yes: Yes = False,
    url: Url = None,
    deployment: Deployment = None,
    as_json: AsJson = False,
) -> None:
    """Run jobs that wait without waiting: they are ready at once. This run takes the place of the one that waited.

    Exit status 1 if one is not scheduled, but ready, pending, done or unknown: the others are run. 3 if many would be touched
    and nobody confirms it.
    """
    from streamq.cli.changes import Change

    on = _On(name, url, deployment, group, job_ids, due_before, all_)
    _change(Change("run", "made ready"), on, yes=yes, as_json=as_json)


@dataclass(frozen=True, slots=True)
class _On:
    """The jobs that a command is about: those with these IDs, those that are due before a time, or all."""

    stream: str
    url: str | None
    deployment: str | None
    group: str | None
    job_ids: list[str] | None
    due_before: str | None
    everything: bool

    def __post_init__(self) -> None:
        from streamq.keys import check_id

        ways = [bool(self.job_ids), self.due_before is not None, self.everything]
        if sum(ways) != 1:
            raise ConfigurationError("say which jobs: job IDs, --due-before or --all, and only one of them")
        if self.group is not None and not self.job_ids:
            raise ConfigurationError(
                "--group goes with job IDs: --due-before and --all are about all groups, each job for its own"
            )
        for job_id in self.job_ids or ():
            check_id(job_id, "job ID")


def _change(change: Change, on: _On, *, yes: bool, as_json: bool) -> None:
    from streamq.cli.changes import Changed
    from streamq.cli.timers import Timers

    with Timers(on.stream, on.url, on.deployment, on.group) as timers:
        now = timers.now()
        change.check(now, timers.max_delay_ms)
        ids = list(dict.fromkeys(on.job_ids or ()))
        until = _moment(on.due_before, now)
        changed = Changed(change.name, len(ids) if ids else timers.count(due_before=until))
        if is_asked(changed.matched, named=bool(ids)):
            which = "" if until is None else f" due before {times.absolute(until)} ({times.relative(until, now)})"
            jobs = "1 job" if changed.matched == 1 else f"{changed.matched:,} jobs"
            confirm(f"{change.name} {jobs} of stream {on.stream}{which}", yes=yes)
        with told_if_broken_off(changed, lambda: changed.done, change.past, as_json=as_json):
            if ids:
                _change_named(timers, change, ids, changed, as_json=as_json)
            else:
                _change_many(timers, change, until, changed)
    if as_json:
        print_json(changed)
    elif not ids or len(ids) > 1:
        _sum_up(change, changed)
    if changed.refused:
        raise typer.Exit(1)


def _change_named(timers: Timers, change: Change, ids: list[str], changed: Changed, *, as_json: bool) -> None:
    with progress(change.name, len(ids) if as_json else 0) as step:
        for job_id in ids:
            outcome = change.one(timers, job_id)
            changed.add(outcome)
            step(1)
            if as_json:
                continue
            if outcome.error is not None:
                fail(outcome.error)
            else:
                due = "" if outcome.due_at is None else f", due {times.absolute(outcome.due_at)}"
                entry = "" if outcome.entry_id is None else f", entry {outcome.entry_id}"
                say(f"{job_id}: {change.past if outcome.outcome == 'done' else outcome.outcome}{due}{entry}")


def _change_many(timers: Timers, change: Change, until: datetime | None, changed: Changed) -> None:
    with progress(change.name, changed.matched) as step:
        for touched in change.many(timers, until, changed):
            step(touched)


def _sum_up(change: Change, changed: Changed) -> None:
    for error in changed.errors:
        fail(error)
    due = "" if changed.due_at is None else f" to {times.absolute(changed.due_at)}"
    parts = [f"{changed.done:,} {change.past}{due}"]
    if changed.skipped:
        already = ", or due then already" if changed.due_at is not None else ""
        parts.append(f"{changed.skipped:,} not scheduled{already}")
    if changed.refused:
        parts.append(f"{changed.refused:,} refused")
    say(", ".join(parts))


def _moment(value: str | None, now: datetime) -> datetime | None:
    return None if value is None else times.moment_or_duration(value, "--due-before", now)
