"""``streamq dead-letters``: look at jobs that were given up, give them back, remove them, and write them to a file."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamq.cli import times
from streamq.cli.letter_options import (
    After,
    All,
    DryRun,
    Error,
    Group,
    Ids,
    LetterIds,
    Limit,
    MaxRedrives,
    NewId,
    OlderThan,
    Payload,
    Rate,
    Reasons,
)
from streamq.cli.manual import examples
from streamq.cli.output import (
    AsJson,
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
from streamq.cli.tables import ERROR_CHARS, ID_CHARS, MOST_ROWS, PAYLOAD_CHARS, WIDE, Column, console, sheet, table
from streamq.errors import ConfigurationError

if TYPE_CHECKING:
    from streamq.cli.letters import Filters, Letters, Outcome, Redriving, Report, Row
    from streamq.messages import DeadLetter

app = typer.Typer(
    help="Jobs that were given up: look at them, give them back, remove them, and write them to a file.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

REASON_CHARS = 20


@app.command(
    "list",
    epilog=examples("streamq dead-letters list orders", "streamq dead-letters list orders --reason attempts --json"),
)
def list_(
    name: Name,
    *,
    ids: Ids = None,
    reason: Reasons = None,
    error: Error = None,
    group: Group = None,
    older_than: OlderThan = None,
    limit: Annotated[
        int | None,
        typer.Option("--limit", min=1, max=MOST_ROWS, help="Most letters.", show_default="100"),
    ] = None,
    after: After = None,
    all_: Annotated[bool, typer.Option("--all", help="All letters, each on a line of JSON; with --json.")] = False,
    show_payloads: ShowPayloads = False,
    url: Url = None,
    deployment: Deployment = None,
    as_json: AsJson = False,
) -> None:
    """List dead letters that all filters fit, oldest first. Changes nothing.

    With --json: letters, next (for --after; null at the end).
    """
    from streamq.cli.letters import Filters, Letters, row

    if all_ and (limit is not None or not as_json):
        raise ConfigurationError("--all goes with --json and without --limit: a table is cut, and goes on with --after")
    which = Filters(ids, reason, error, group, older_than, after, limit or (None if all_ or ids else 100))
    with Letters(name, url, deployment) as letters:
        if all_:
            for letter, _ in which.each(letters):
                print_json(row(letter, payload=show_payloads), indent=-1)
            return
        rows = [row(letter, payload=show_payloads) for letter, _ in which.each(letters)]
        cut = len(rows) == which.limit and not which.letter_ids and not letters.is_last(rows[-1].id)
        now = letters.now()
    following = rows[-1].id if cut else None
    if as_json:
        print_json({"letters": rows, "next": following})
    elif rows:
        _table(rows, now, payloads=show_payloads)
        if following is not None:
            say(f"... there {'may be' if which.any else 'are'} more: raise --limit, or go on with --after {following}")
    else:
        say(_none(name, which))


def _none(name: str, which: Filters) -> str:
    like = " like that" if which.any else ""
    return f"no dead letter{like} in stream {name}{'' if which.after is None else ' behind that one'}"


def _table(rows: Sequence[Row], now: datetime, *, payloads: bool) -> None:
    has_counts = console().width >= WIDE
    counts = (Column("deliveries", is_number=True), Column("attempts", is_number=True)) if has_counts else ()
    names = (Column("letter ID"), Column("reason"), Column("job ID", folds=True), Column("group", folds=True))
    texts = (Column("last error", folds=True), *([Column("payload", folds=True)] if payloads else []))
    table(
        (*names, *counts, Column("died"), *texts),
        [
            (
                row.id,
                brief(row.reason, REASON_CHARS),
                brief(row.job_id, ID_CHARS),
                brief(row.group, ID_CHARS),
                *([f"{row.deliveries:,}", f"{row.attempts:,}"] if has_counts else []),
                "" if row.died_at is None else times.relative(row.died_at, now),
                brief(row.error, ERROR_CHARS),
                *([_payload(row)] if payloads else []),
            )
            for row in rows
        ],
    )


def _payload(row: Row) -> str:
    return brief(row.payload or f"base64: {row.payload_base64}" if row.payload_bytes else "", PAYLOAD_CHARS)


@app.command(
    epilog=examples(
        "streamq dead-letters show orders 1796059025011-0",
        "streamq dead-letters show orders 1796059025011-0 --show-payloads",
    )
)
def show(
    name: Name,
    letter_id: Annotated[str, typer.Argument(help="ID of the letter.", show_default=False)],
    *,
    show_payloads: ShowPayloads = False,
    url: Url = None,
    deployment: Deployment = None,
    as_json: AsJson = False,
) -> None:
    """Show one dead letter, but for its payload. Changes nothing.

    Exit status 1 if there is no such letter.
    """
    import msgspec

    from streamq.cli.entries import about
    from streamq.cli.letters import Letters, row

    with Letters(name, url, deployment) as letters:
        found = letters.one(letter_id)
        letter = None if found is None else letters.with_entry(found[0])
        now = letters.now()
    if letter is None:
        fail(f"there is no dead letter {letter_id} in stream {name}: it was redriven or purged, or never there")
        raise typer.Exit(1)
    details = about(letter.fields, payload=show_payloads)
    if as_json:
        print_json({**msgspec.to_builtins(row(letter, payload=False)), **details})
    else:
        sheet(_lines(letter, details, now))


def _lines(letter: DeadLetter, details: dict[str, Any], now: datetime) -> Iterator[tuple[str, str]]:
    from streamq.cli.entries import lines

    yield "letter ID", letter.id
    yield "reason", letter.reason
    yield "error", letter.error
    yield "job ID", letter.job_id
    yield "entry", letter.source_id
    yield "group", letter.group
    yield "consumer", letter.consumer
    yield "deliveries", f"{letter.deliveries:,}"
    yield "attempts", f"{letter.attempts:,}"
    yield "redriven", f"{letter.redrives:,} times before" if letter.redrives != 1 else "once before"
    for title, at in (("added", letter.enqueued_at), ("died", letter.died_at)):
        if at is not None:
            yield title, f"{times.absolute(at)}, {times.relative(at, now)}"
    yield from lines(details)


@app.command(
    epilog=examples(
        'streamq dead-letters redrive orders --error "HTTP 503" --dry-run',
        "streamq dead-letters redrive orders --all --rate 5/s",
    )
)
def redrive(
    name: Name,
    letter_ids: LetterIds = None,
    *,
    ids: Ids = None,
    reason: Reasons = None,
    error: Error = None,
    group: Group = None,
    older_than: OlderThan = None,
    after: After = None,
    limit: Limit = None,
    all_: All = False,
    new_id: NewId = None,
    payload: Payload = None,
    max_redrives: MaxRedrives = 5,
    rate: Rate = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    url: Url = None,
    deployment: Deployment = None,
    as_json: AsJson = False,
) -> None:
    """Give jobs back to the groups that gave them up: they are ready again with all their attempts, and their letters are gone.

    Exit status 1 if a letter is superseded (its job ID is in use again) or refused: it stays, the others are redriven. 3 if many
    would be touched and nobody confirms it. What is broken off can be run again: a letter moves once.
    """
    from streamq.cli.letters import Filters, Letters, Redriving, Report

    how = Redriving(new_id, None, max_redrives, dry_run, None if rate is None else times.rate(rate, "--rate"))
    which = _which(Filters([*(letter_ids or ()), *(ids or ())], reason, error, group, older_than, after, limit), all_)
    if (new_id, payload) != (None, None) and not (which.only_ids and len(which.letter_ids) == 1):
        raise ConfigurationError(
            "--new-id and --payload are for one letter: give its ID, and nothing else that chooses"
        )
    new_payload = None if payload is None else _read(payload)
    with Letters(name, url, deployment) as letters:
        if new_payload is not None:
            found = letters.one(which.letter_ids[0])
            how = how.with_payload(new_payload, None if found is None else found[0])
        letter_ids, reasons = (list(which.letter_ids), Counter()) if which.only_ids else _find(letters, which)
        report = Report("redrive", dry_run, complete=False, matched=len(letter_ids))
        if not dry_run and is_asked(len(letter_ids), named=which.only_ids):
            confirm(f"redrive {_letters(len(letter_ids))} of stream {name}{_reasons(reasons)}", yes=yes)
        with told_if_broken_off(report, lambda: report.moved, "redriven", as_json=as_json):
            _redrive_each(letters, how, letter_ids, report, named=which.only_ids, as_json=as_json)
        report.complete = True
    if as_json:
        print_json(report)
    elif not letter_ids:
        say(_none(name, which))
    elif not which.only_ids or len(letter_ids) > 1:
        _sum_up(report, named=which.only_ids)
    if report.stay:
        raise typer.Exit(1)


def _redrive_each(
    letters: Letters, how: Redriving, ids: list[str], report: Report, *, named: bool, as_json: bool
) -> None:
    with progress("redrive", 0 if named and not as_json else len(ids)) as step:
        for outcomes in how.each(letters, ids, report, named=named):
            step(len(outcomes))
            if named and not as_json:
                for outcome in outcomes:
                    _tell(outcome, dry_run=how.dry_run)


def _tell(outcome: Outcome, *, dry_run: bool) -> None:
    if outcome.outcome == "moved":
        say(f"{outcome.id}: " + ("would be redriven" if dry_run else f"redriven, entry {outcome.entry_id}"))
    elif outcome.outcome == "missing":
        say(f"{outcome.id}: no such letter; it was redriven or purged, or never there")
    elif outcome.outcome == "superseded":
        fail(
            f"letter {outcome.id} is superseded: its job ID is {outcome.state} again; purge it, or give the job another "
            "ID with --new-id"
        )
    else:
        fail(f"letter {outcome.id} is refused: {outcome.why}")


def _sum_up(report: Report, *, named: bool) -> None:
    if not named:
        for outcome in report.letters:
            _tell(outcome, dry_run=report.dry_run)
    parts = [f"{report.moved:,} {'would be redriven' if report.dry_run else 'redriven'}"]
    for count, what in (
        (report.superseded, "superseded"),
        (report.refused, "refused"),
        (report.missing, "not there"),
    ):
        if count:
            parts.append(f"{count:,} {what}")
    say(", ".join(parts) + ("; nothing changed" if report.dry_run else ""))


@app.command(
    epilog=examples(
        "streamq dead-letters purge orders --older-than 30d", "streamq dead-letters purge orders --group mail --dry-run"
    )
)
def purge(
    name: Name,
    letter_ids: LetterIds = None,
    *,
    ids: Ids = None,
    reason: Reasons = None,
    error: Error = None,
    group: Group = None,
    older_than: OlderThan = None,
    after: After = None,
    limit: Limit = None,
    all_: All = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    url: Url = None,
    deployment: Deployment = None,
    as_json: AsJson = False,
) -> None:
    """Remove dead letters for good, with their payloads.

    One that is not there is no failure. Exit status 3 if many would be touched and nobody confirms it.
    """
    from streamq.cli.letters import Filters, Letters, Purged, purge_each

    which = _which(Filters([*(letter_ids or ()), *(ids or ())], reason, error, group, older_than, after, limit), all_)
    with Letters(name, url, deployment) as letters:
        letter_ids, reasons = _find(letters, which)
        report = Purged("purge", dry_run, complete=False, matched=len(letter_ids))
        meant = len(which.letter_ids) if which.only_ids else report.matched
        what = f"{_letters(len(letter_ids))} of stream {name}{_reasons(reasons)}"
        if not dry_run and letter_ids:
            if is_asked(meant, named=which.only_ids):
                confirm(f"purge {what} for good", yes=yes)
            with (
                told_if_broken_off(report, lambda: report.purged, "purged", as_json=as_json),
                progress("purge", len(letter_ids)) as step,
            ):
                for looked_at in purge_each(letters, letter_ids, report):
                    step(looked_at)
        report.complete = True
        report.missing = meant - (report.matched if dry_run else report.purged)
    if as_json:
        print_json(report)
    elif not letter_ids:
        say(_none(name, which))
    else:
        gone = f", {report.missing:,} not there" if report.missing else ""
        say(f"would purge {what}{gone}; nothing changed" if dry_run else f"{report.purged:,} purged{gone}")


@app.command(
    epilog=examples(
        "streamq dead-letters export orders letters.jsonl", "streamq dead-letters export orders - --group mail"
    )
)
def export(
    name: Name,
    file: Annotated[str, typer.Argument(metavar="FILE|-", help="File, or - for standard output.", show_default=False)],
    *,
    ids: Ids = None,
    reason: Reasons = None,
    error: Error = None,
    group: Group = None,
    older_than: OlderThan = None,
    after: After = None,
    limit: Limit = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    url: Url = None,
    deployment: Deployment = None,
    as_json: AsJson = False,
) -> None:
    """Write dead letters to a file, with their payloads: each on a line of JSON, with all that is stored of it. Changes nothing.

    The file is there when all is in it, and only its owner may read it. Exit status 3 if it is there already.
    """
    from streamq.cli.files import written
    from streamq.cli.letters import Filters, Letters, exported
    from streamq.cli.output import json_text

    which = Filters(ids, reason, error, group, older_than, after, limit)
    count = 0
    with (
        Letters(name, url, deployment) as letters,
        written(file, force=force) as out,
        progress("export", len(which.letter_ids) or letters.count()) as step,
    ):
        for stored in which.each(letters, step):
            out.write(json_text(exported(letters, stored)) + "\n")
            count += 1
    if file == "-":
        return
    if as_json:
        print_json({"action": "export", "file": file, "letters": count})
    else:
        say(f"{_letters(count)} written to {file}")


def _which(filters: Filters, everything: bool) -> Filters:
    if filters.any == everything:
        raise ConfigurationError(
            "say which letters: IDs or filters (--reason, --error, --group, --older-than), or --all, and not both"
        )
    return filters


def _find(letters: Letters, which: Filters) -> tuple[list[str], Counter[str]]:
    with progress("look", 0 if which.letter_ids else letters.count()) as step:
        return which.find(letters, step)


def _letters(count: int) -> str:
    return "1 letter" if count == 1 else f"{count:,} letters"


def _reasons(reasons: Counter[str]) -> str:
    return f" ({', '.join(f'{count:,} {reason}' for reason, count in reasons.most_common())})" if reasons else ""


def _read(payload: str) -> bytes:
    from streamq.cli.letters import MOST_PAYLOAD

    try:
        if payload == "-":
            return sys.stdin.buffer.read(MOST_PAYLOAD + 1)
        with Path(payload).open("rb") as file:
            return file.read(MOST_PAYLOAD + 1)
    except OSError as error:
        raise ConfigurationError(f"--payload {payload!r:.80} cannot be read: {error.strerror}") from None
