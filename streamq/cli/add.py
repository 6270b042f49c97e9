"""``streamq add``: one job from the command line, or as many as there are lines of JSON."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from streamq.cli import times
from streamq.cli.output import AsJson, At, Delay, Deployment, Name, Url, fail, print_json, say
from streamq.errors import ConfigurationError, ConnectionLostError, StreamqError

if TYPE_CHECKING:
    from streamq.cli.lines import Job
    from streamq.messages import Added

CHUNK_JOBS: Final = 500
CHUNK_BYTES: Final = 1 << 20
"""Most jobs, and bytes of payloads, in one write."""

MOST_KEPT: Final = 10
"""Bad lines that the JSON at the end names; standard error names all."""


Payload = Annotated[
    str | None,
    typer.Argument(
        metavar="JSON | -",
        help="The job's payload; or - to read jobs from standard input, one on each line.",
        show_default=False,
    ),
]
JobId = Annotated[
    str | None,
    typer.Option("--job-id", help="Job ID: a job of this ID that is known already is not added.", show_default=False),
]
JobIdField = Annotated[
    str | None,
    typer.Option(
        "--job-id-field",
        metavar="FIELD",
        help="Field of each payload that has its job ID: a text or a whole number.",
        show_default=False,
    ),
]
Replace = Annotated[
    bool, typer.Option("--replace", help="In place of a job of this ID that waits for its time or its next attempt.")
]
Header = Annotated[
    list[str] | None,
    typer.Option("--header", metavar="K=V", help="Text that travels with the job. Repeatable.", show_default=False),
]
KeepGoing = Annotated[bool, typer.Option("--keep-going", help="Pass over bad lines, and end with exit status 1.")]
FromLine = Annotated[int, typer.Option("--from-line", metavar="N", min=1, help="Begin with this line.")]
MaxPayload = Annotated[
    int | None,
    typer.Option(
        "--max-payload",
        metavar="BYTES",
        help="Most bytes of a payload.",
        show_default="as the stream's live workers say, else 1048576",
    ),
]


def add(
    name: Name,
    payload: Payload = None,
    *,
    job_id: JobId = None,
    job_id_field: JobIdField = None,
    delay: Delay = None,
    at: At = None,
    replace: Replace = False,
    header: Header = None,
    keep_going: KeepGoing = False,
    from_line: FromLine = 1,
    max_payload: MaxPayload = None,
    url: Url = None,
    deployment: Deployment = None,
    as_json: AsJson = False,
) -> None:
    """Add a job, or with - a job for each line of JSON on standard input. Payloads are stored as they are written.

    With job IDs, adding again adds nothing twice: a job that is known already is told, and is no failure; its payload stays as
    it was. With --replace one that waits gets this payload and this time.

    From standard input jobs are added up to 500 at a time, in bounded memory, and at once when no more lines come for now.
    Blank lines are passed over. A line that is no job is named with its number: all jobs before it are added, none behind
    it, unless --keep-going is given. Whatever breaks it off, it says with which line to go on (--from-line).

    With --json: of one job job_id, entry_id, created, state; of lines added, known, bad, next_line (null at the end), errors.

    Exit status: 0 done. 1 a line is bad, the stream is full, or the server refused. 2 usage, bad input (then nothing was
    added), or no server.
    """
    if payload is None:
        raise ConfigurationError(
            """say what to add: the job's payload as JSON, such as '{"n": 1}', or - for standard input"""
        )
    _check_ids(job_id, job_id_field, replace=replace, has_lines=payload == "-")
    if payload != "-" and (keep_going or from_line != 1):
        raise ConfigurationError(
            "--keep-going and --from-line are of lines from standard input: give - in place of JSON"
        )
    with _Adding(
        name, url, deployment, max_payload, delay=delay, at=at, replace=replace, headers=_headers(header)
    ) as adding:
        if payload == "-":
            _add_lines(adding, job_id_field, from_line, keep_going=keep_going, as_json=as_json)
            return
        added = _add_one(adding, payload, job_id, job_id_field)
    if as_json:
        print_json(added)
    else:
        _tell(added, replace=replace)


def _check_ids(job_id: str | None, job_id_field: str | None, *, replace: bool, has_lines: bool) -> None:
    from streamq.keys import check_id

    if job_id is not None:
        if job_id_field is not None or has_lines:
            raise ConfigurationError(
                "--job-id is of one job, and goes without --job-id-field; for lines give --job-id-field"
            )
        check_id(job_id, "job ID")
    if replace and job_id is None and job_id_field is None:
        raise ConfigurationError("--replace needs a job ID, which says what to replace: --job-id or --job-id-field")


def _add_one(adding: _Adding, payload: str, job_id: str | None, job_id_field: str | None) -> Added:
    from streamq.cli.lines import BadLineError, Line, job_of

    data = payload.encode("utf-8", "surrogateescape").strip()
    try:
        job = job_of(Line(1, data, len(data)), adding.most_bytes, job_id_field)
    except BadLineError as error:
        raise ConfigurationError(f"payload: {error}") from None
    [answer] = adding.add([job if job_id is None else job._replace(job_id=job_id)])
    if isinstance(answer, Exception):
        raise answer
    return answer


def _tell(added: Added, *, replace: bool) -> None:
    entry = "" if added.entry_id is None else f", entry {added.entry_id}"
    if added.created:
        what = "added, waits for its time" if added.state == "scheduled" else f"added{entry}"
    else:
        stays = "it stays as it is" if replace else "nothing was added"
        what = f"known already, {added.state}{entry}; {stays}"
    say(f"{added.job_id}: {what}")


def _headers(given: Sequence[str] | None) -> dict[str, str]:
    headers: dict[str, str] = {}
    for each in given or ():
        key, equals, value = each.partition("=")
        if not equals:
            raise ConfigurationError(f"--header {each!r:.80} must be a name and a value: K=V")
        if key in headers:
            raise ConfigurationError(f"--header {key!r:.80} is given twice")
        headers[key] = value
    return headers


class _Adding:
    """What is the same for all jobs of a call. As a context it closes its connections."""

    def __init__(
        self,
        name: str,
        url: str | None,
        deployment: str | None,
        max_payload: int | None,
        *,
        delay: str | None,
        at: str | None,
        replace: bool,
        headers: dict[str, str],
    ) -> None:
        from streamq._ops.enqueue import Terms
        from streamq._scripts_timers import when
        from streamq.cli.desk import Desk
        from streamq.options import StreamOptions

        # Bad input is refused before a connection is made.
        defaults = StreamOptions() if max_payload is None else StreamOptions(max_payload=max_payload)
        self._due = when(
            None if delay is None else times.duration(delay, "--delay"),
            None if at is None else times.moment(at, "--at"),
            most_ms=defaults.max_delay_ms,
        )
        self._terms = Terms(headers, replace=replace)
        self._by_time = self._due is not None or replace
        self._opened: set[Any] = set()
        self._desk = Desk(name, url, deployment)
        self._spec = self._desk.spec_of(bytes, defaults)
        self._spec.codec.fields(b"{}"[: defaults.max_payload], job_id=None, headers=headers)  # are the headers good?
        self._given: dict[str, Any] = {} if max_payload is None else {"max_payload": max_payload}

    def __enter__(self) -> _Adding:
        """Ask for the settings that the stream's producers have, as far as its workers tell them."""
        from streamq.options import StreamOptions

        told = self._desk.told("idempotency_ttl", "max_payload", "max_ready")
        try:
            self._spec = self._desk.spec_of(bytes, StreamOptions(**{**(told[0] if told else {}), **self._given}))
        except ConfigurationError:
            self._spec = self._desk.spec_of(bytes, StreamOptions(**self._given))  # somebody else's words
        return self

    def __exit__(self, *_: object) -> None:
        self._desk.__exit__(None, None, None)

    @property
    def most_bytes(self) -> int:
        """Of a payload."""
        most: int = self._spec.options.max_payload
        return most

    def add(self, jobs: Sequence[Job]) -> list[Added | Exception]:
        """Add jobs in one write."""
        from streamq._flows import opening
        from streamq._ops import enqueue
        from streamq.stream import draw_id

        pairs = [(job.payload, job.job_id) for job in jobs]
        plan = enqueue.add_each(self._spec, pairs, due=self._due, new_id=draw_id, terms=self._terms)
        by_script = self._spec.options.max_ready is not None or any(job.job_id is not None for job in jobs)
        first = [opening.migrated]
        if self._by_time or by_script:
            first.append(opening.scheduler if self._by_time else opening.remembering_producer)
        if not self._opened.issuperset(first):
            plan = opening.behind(self._spec, plan, first, self._opened)
        return self._desk.run(plan)


class BadLine(msgspec.Struct):
    """A line that is no job."""

    line: int
    error: str


class AddedLines(msgspec.Struct):
    """What became of lines.

    Attributes:
        added: Jobs that were added.
        known: Jobs whose ID was known already.
        bad: Lines that are no job.
        next_line: The first line of which it is not known that it was added; None when all were read.
        errors: The first bad lines.
    """

    added: int = 0
    known: int = 0
    bad: int = 0
    next_line: int | None = 1
    errors: list[BadLine] = []

    def note_bad(self, number: int, error: str) -> None:
        """Count a bad line."""
        self.bad += 1
        if len(self.errors) < MOST_KEPT:
            self.errors.append(BadLine(number, error))


def _add_lines(adding: _Adding, id_field: str | None, first: int, *, keep_going: bool, as_json: bool) -> None:
    if sys.stdin is None:
        raise ConfigurationError("standard input is closed: there are no lines to read")
    if sys.stdin.isatty():
        fail("reading one job a line, as JSON; Ctrl-D at the end")
    done = AddedLines(next_line=first)
    bulk = _Bulk(adding, done, has_ids=id_field is not None)
    try:
        with _progress() as show:
            bulk.run(id_field, first, keep_going=keep_going, show=show)
        done.next_line = None
    except _StopError as stop:
        fail(str(stop))
        _go_on(bulk, "mend it, or pass over what is bad by --keep-going; ")
        raise typer.Exit(1) from None
    except (StreamqError, KeyboardInterrupt):
        _go_on(bulk, "")
        raise
    finally:
        if as_json:
            print_json(done)
        elif done.added or done.known or done.next_line is None:
            _sum_up(done)
    if done.bad:
        raise typer.Exit(1)


def _sum_up(done: AddedLines) -> None:
    parts = [f"{done.added:,} added"]
    if done.known:
        parts.append(f"{done.known:,} known already")
    if done.bad:
        parts.append("1 bad line" if done.bad == 1 else f"{done.bad:,} bad lines")
    say(", ".join(parts))


def _go_on(bulk: _Bulk, advice: str) -> None:
    """Say with which line to go on."""
    at = bulk.done.next_line
    if bulk.unsure_to is None:
        before = f"all before line {at}" if bulk.done.added or bulk.done.known else "nothing"
        fail(f"broken off: {before} was added; {advice}go on with --from-line {at}")
    elif bulk.has_ids:
        fail(
            f"broken off: lines {at} to {bulk.unsure_to} may have been added; go on with --from-line {at}: nothing is added twice"
        )
    else:
        fail(
            f"broken off: lines {at} to {bulk.unsure_to} may have been added, some or all: --from-line {at} adds them again, "
            f"--from-line {bulk.unsure_to + 1} passes over them"
        )


class _StopError(Exception):
    """A bad line, where those are not passed over."""


class _Bulk:
    """Adds lines, and knows which of them are surely added.

    Args:
        adding: How.
        done: Counts.
        has_ids: Whether each job has an ID, so that adding again does no harm.
    """

    def __init__(self, adding: _Adding, done: AddedLines, *, has_ids: bool) -> None:
        self.done = done
        self.has_ids = has_ids
        self.unsure_to: int | None = None
        """Last line of those from `done.next_line` on that may have been added."""
        self._adding = adding
        self._jobs: list[Job] = []

    def run(self, id_field: str | None, first: int, *, keep_going: bool, show: Callable[[int, int], None]) -> None:
        """Add all lines.

        Raises:
            _StopError: A line is bad, and it is not passed over.
            StreamqError: The server cannot be reached, is full, or refuses.
        """
        from streamq.cli.lines import BadLineError, job_of, lines

        most, size, end = self._adding.most_bytes, 0, 0
        for line in lines(sys.stdin.buffer, most, first):
            if line is not None:
                try:
                    self._jobs.append(job_of(line, most, id_field))
                    size += len(self._jobs[-1].payload)
                except BadLineError as error:
                    if not keep_going:
                        self._flush()
                        self.done.next_line = line.number
                    self.done.note_bad(line.number, str(error))
                    if not keep_going:
                        raise _StopError(f"line {line.number}: {error}") from None
                    fail(f"line {line.number}: {error}")
            if line is None or len(self._jobs) >= CHUNK_JOBS or size >= CHUNK_BYTES:
                self._flush()
                size = 0
            end = end if line is None else line.end
            show(self.done.added + self.done.known, end)
        self._flush()
        show(self.done.added + self.done.known, end)

    def _flush(self) -> None:
        if not self._jobs:
            return
        self.done.next_line, self.unsure_to = self._jobs[0].number, self._jobs[-1].number
        try:
            answers = self._adding.add(self._jobs)
        except StreamqError as error:
            if not (isinstance(error, ConnectionLostError) and error.maybe_executed):
                self.unsure_to = None
            raise
        self._count(answers)
        self.done.next_line, self.unsure_to = self._jobs[-1].number + 1, None
        self._jobs = []

    def _count(self, answers: Sequence[Added | Exception]) -> None:
        refused: Exception | None = None
        for job, answer in zip(self._jobs, answers, strict=True):
            if isinstance(answer, Exception):
                if refused is None:
                    refused, self.done.next_line, self.unsure_to = answer, job.number, None
                continue
            self.done.added += answer.created
            self.done.known += not answer.created
            if refused is not None:
                self.unsure_to = job.number  # the server had room again in the middle
        if refused is not None:
            raise refused


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """Show at the terminal how many jobs were added, and of a file how far it was read."""
    if not sys.stderr.isatty():
        yield lambda _added, _read: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    about = os.fstat(sys.stdin.fileno())
    total = about.st_size if stat.S_ISREG(about.st_mode) else None
    columns = (TextColumn("add"), BarColumn(), TextColumn("{task.fields[added]:,} jobs"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as shown_progress:
        task = shown_progress.add_task("add", total=total, added=0)
        yield lambda added, read: shown_progress.update(task, completed=read, added=added)
