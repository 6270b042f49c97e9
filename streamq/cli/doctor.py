"""``streamq doctor``: is the server fit for jobs, may this user do the work, and is any stream in trouble?"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamq._text import shown
from streamq.cli.output import AsJson, Deployment, Url, print_json
from streamq.connection import Settings, settings_of
from streamq.errors import ConnectionLostError
from streamq.keys import Keys, check_name

if TYPE_CHECKING:
    from streamq._drivers.blocking import BlockingDriver
    from streamq._ops.doctor.findings import Finding, Report
    from streamq._ops.doctor.server import Facts


def doctor(
    name: Annotated[str | None, typer.Argument(help="Stream to examine; all of them without it.")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show what is well, too.")] = False,
    url: Url = None,
    deployment: Deployment = None,
    as_json: AsJson = False,
) -> None:
    """Examine the server, this user's rights and the streams, and say what mends each problem.

    Changes nothing, but for one trial of scripts and transactions on keys with a random name, which are removed in the same
    step. Exit status: 0 all is well (there may be notes), 1 there is a problem, 2 the server cannot be reached, or refuses
    the user.
    """
    if name is not None:
        Keys(name)
    if deployment is not None:
        check_name(deployment, "deployment")
    settings = settings_of(url)
    from streamq.cli.doctor_servers import TIMEOUT_S

    driver = settings.blocking(TIMEOUT_S, as_it_is=True)
    try:
        report = _examine(driver, settings, name, deployment)
    finally:
        driver.close()
    if as_json:
        print_json(report)
    else:
        _show(report, verbose=verbose)
    if report.problems:
        raise typer.Exit(1)


def _examine(driver: BlockingDriver, settings: Settings, name: str | None, deployment: str | None) -> Report:
    from streamq._ops.doctor import findings
    from streamq.cli import doctor_servers

    facts, now_ms, found = doctor_servers.examine(driver, settings)
    names: list[str] = []
    if facts.serves:
        names, more = _streams(driver, name, deployment, facts, now_ms)
        found = [*found, *more]
    found = findings.sort(findings.merge(found, names), names)
    return findings.Report(
        server=settings.where,
        product=facts.hello.product,
        version=facts.hello.version,
        deployment=deployment,
        streams=names,
        problems=sum(one.severity == "problem" for one in found),
        notes=sum(one.severity == "note" for one in found),
        findings=found,
    )


def _streams(
    driver: BlockingDriver, name: str | None, deployment: str | None, facts: Facts, now_ms: int
) -> tuple[list[str], list[Finding]]:
    """Try the server, and examine the streams: their names, and what was found."""
    from streamq._flows import checkup
    from streamq.cli.doctor_servers import unexamined

    names, found = ([name], []) if name is not None else _discovered(driver, deployment, facts)
    token = secrets.token_hex(8)
    keys = Keys(names[0] if names else f"doctor-{token}", deployment)
    denied: list[str] = []
    if facts.is_node or not facts.is_replica:
        elsewhere = _elsewhere(keys)
        tried, denied = driver.run(checkup.of_server(keys, elsewhere, token, is_node=facts.is_node))
        found += tried
    if not names:
        found += _of_nobody(driver.run(checkup.of_user(keys, facts.user, denied)))
    with _progress(len(names)):
        for each in names:
            try:
                found += driver.run(checkup.of_stream(Keys(each, deployment), facts.user, now_ms, denied))
            except ConnectionLostError as error:
                if not facts.is_node:
                    raise
                found.append(unexamined(each, error))
    return names, found


def _discovered(driver: BlockingDriver, deployment: str | None, facts: Facts) -> tuple[list[str], list[Finding]]:
    from streamq._ops.doctor import layout
    from streamq.cli.doctor_servers import unexamined

    try:
        names, found = driver.run(layout.discover(deployment))
    except ConnectionLostError as error:
        if not facts.is_node:
            raise
        return [], [unexamined(None, error)]
    return names, found


def _elsewhere(keys: Keys) -> Keys:
    """Keys of a stream that is not there, in another slot."""
    while True:
        far = Keys(f"doctor-{secrets.token_hex(8)}", keys.deployment)
        if far.slot != keys.slot:
            return far


def _of_nobody(findings: Iterable[Finding]) -> list[Finding]:
    import msgspec

    return [msgspec.structs.replace(one, stream=None) for one in findings]


def _progress(count: int) -> AbstractContextManager[Any]:
    from rich.console import Console

    console = Console(stderr=True)
    return console.status(f"examining {count:,} streams") if console.is_terminal and count > 1 else nullcontext()


def _show(report: Report, *, verbose: bool) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    wanted = [one for one in report.findings if verbose or one.severity != "ok"]
    where = report.server + (f", deployment {report.deployment}" if report.deployment else "")
    for stream in dict.fromkeys((None, *(one.stream for one in wanted))):
        title = f"{where}: {report.product} {report.version}" if stream is None else f"stream {stream}"
        rows = [one for one in wanted if one.stream == stream]
        if console.is_terminal:
            _as_table(console, title, rows)
        else:
            _as_lines(title, rows)
    streams = f"{len(report.streams):,} {'stream' if len(report.streams) == 1 else 'streams'} examined"
    problems = f"{report.problems:,} {'problem' if report.problems == 1 else 'problems'}"
    notes = f"{report.notes:,} {'note' if report.notes == 1 else 'notes'}"
    typer.echo(f"{streams}: {problems}, {notes}")


def _as_lines(title: str, findings: Iterable[Finding]) -> None:
    """For other programs: a line is a line, whatever its length."""
    typer.echo(shown(title))
    for one in findings:
        typer.echo(f"  {one.severity:<7}  {shown(one.text)}")
        if one.remedy is not None:
            typer.echo(f"           -> {shown(one.remedy)}")


_STYLES = {"problem": "bold red", "note": "yellow", "ok": "green"}


def _as_table(console: Any, title: str, findings: Iterable[Finding]) -> None:
    from rich.table import Table
    from rich.text import Text

    console.print(Text(shown(title), style="bold"))
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for one in findings:
        grid.add_row(Text(f"  {one.severity}", style=_STYLES[one.severity]), Text(shown(one.text)))
        if one.remedy is not None:
            grid.add_row("", Text(f"-> {shown(one.remedy)}", style="cyan"))
    console.print(grid)
