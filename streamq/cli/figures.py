"""Snapshots and found jobs as tables and lines. Whatever came from a server is made safe to show here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Final

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from streamq._text import duration
from streamq.cli.output import brief
from streamq.snapshots import Condition, FoundJob, FullGroup, FullSnapshot, JobInGroup, Member

NAME_CHARS, LINE_CHARS, PAYLOAD_CHARS = 128, 500, 1_000
"""Most characters of each that are shown."""

CONSUMERS: Final = 20
"""Most consumers of a group that are shown; JSON has up to a thousand."""

FINDINGS: Final = 20
"""Most findings below the table of all streams."""

BLANK: Final = Text("")

STYLES: Final[dict[Condition, str]] = {"ok": "green", "note": "cyan", "warning": "yellow", "critical": "bold red"}


_ALIVE: Final = {True: "alive", False: "not alive", None: "silent"}


def overview(found: Sequence[FullSnapshot]) -> Iterator[RenderableType]:
    """All streams, a row each, and what is wrong with them."""
    rated = any(group.rates for one in found for group in one.groups.values())
    table = _table("stream", "ready>", "oldest>", "pending>", "scheduled>", "dead>", "live>")
    if rated:
        _columns(table, "in/s>", "done/s>")
    _columns(table, "verdict")
    for one in found:
        rates = (rate(entered(one)), rate(done(one))) if rated else ()
        table.add_row(
            _name(one.name), ready(one), age(oldest(one)), f"{one.pending:,}", f"{one.scheduled:,}", f"{one.dead:,}",
            f"{sum(group.live for group in one.groups.values()):,}", *rates, condition(one),
        )  # fmt: skip
    yield table
    yield BLANK
    yield from worst(found)


def worst(found: Iterable[FullSnapshot]) -> Iterator[RenderableType]:
    """What is wrong with streams, but for notes."""
    said = [(one.name, each) for one in found for each in one.verdict if each.severity != "note"]
    for name, each in said[:FINDINGS]:
        yield finding(each.severity, f"{name}: {each.text}", each.command)
    if len(said) > FINDINGS:
        yield Text(f"... and {len(said) - FINDINGS:,} more: streamq inspect NAME")


def stream(found: FullSnapshot, *, payloads: bool = False) -> Iterator[RenderableType]:
    """One stream in depth."""
    where = "" if found.deployment is None else f" of deployment {found.deployment}"
    yield Text.assemble("stream ", (_line(found.name), "bold"), where, ": ", condition(found))
    for said in found.verdict:
        yield finding(said.severity, said.text, said.command)
    yield BLANK
    yield _pairs(_about(found))
    groups = [*found.groups.values()]
    if groups:
        yield from _groups(groups)
        yield BLANK
    for group in groups:
        yield from _oldest_held(group)
        if group.members:
            yield _members(group)
            yield BLANK
    for one in found.groups.values():
        if payloads and one.oldest_ready is not None and one.oldest_ready.payload is not None:
            title = f"oldest ready payload of group {_line(one.name)}"
            yield from _payload(title, one.oldest_ready.payload, one.oldest_ready.payload_bytes or 0)
    for omission in found.omitted:
        yield Text(_line(f"not shown: {omission.figure}: {omission.reason}"), style="dim")


def job(found: FoundJob, *, payloads: bool = False) -> Iterator[RenderableType]:
    """One job: where it is, its dead letters, and what is not known."""
    yield Text.assemble("job ", (_line(found.job_id), "bold"), f" of stream {_line(found.stream)}")
    table = _table("group", "state", "where")
    for one in found.groups:
        table.add_row(_name(one.group or "-"), _state(one), Text("\n").join(_whereabouts(one, found.at)))
    yield BLANK
    yield table
    yield BLANK
    if found.letters:
        letters = _table("dead letter", "group", "reason", "died", "deliveries>", "attempts>", "redrives>")
        for letter in found.letters:
            letters.add_row(
                _name(letter.id), _name(letter.group), _name(letter.reason), _ago(letter.died_at, found.at),
                f"{letter.deliveries:,}", f"{letter.attempts:,}", f"{letter.redrives:,}",
            )  # fmt: skip
        yield letters
        yield BLANK
        for letter in found.letters:
            yield Text(_line(f"error of dead letter {letter.id}: {letter.error or 'none'}"))
        yield BLANK
    for one in found.groups:
        if payloads and one.payload is not None:
            yield from _payload(f"payload for group {_line(one.group or '-')}", one.payload, one.payload_bytes or 0)
    for sentence in found.unknown:
        yield Text(_line(f"not known: {sentence}"), style="dim")


# --- cells -----------------------------------------------------------------------------------


def condition(found: FullSnapshot) -> Text:
    """The worst severity, and the kinds of what was found."""
    kinds = ", ".join(dict.fromkeys(said.kind for said in found.verdict))
    return Text(f"{found.condition}: {kinds}" if kinds else found.condition, style=STYLES[found.condition])


def ready(found: FullSnapshot | FullGroup, count: Callable[[int], str] = "{:,}".format) -> str:
    """A number, or the least that it is."""
    groups = found.groups.values() if isinstance(found, FullSnapshot) else (found,)
    return f"{'' if all(group.exact for group in groups) else '>= '}{count(found.ready)}"


def oldest(found: FullSnapshot) -> float | None:
    """Seconds that the first ready entry of any group has waited."""
    ages = [group.oldest_ready.age for group in found.groups.values() if group.oldest_ready is not None]
    return max((age for age in ages if age is not None), default=None)


def entered(found: FullSnapshot) -> float | None:
    """Entries a second that came for all groups; None if it is not known of each."""
    rates = [None if group.rates is None else group.rates.entered for group in found.groups.values()]
    known = [rate for rate in rates if rate is not None]
    return sum(known) if known and len(known) == len(rates) else None


def done(found: FullSnapshot) -> float | None:
    """Jobs a second that were acknowledged in all groups."""
    rates = [group.rates.done for group in found.groups.values() if group.rates is not None]
    return sum(rates) if rates else None


def rate(value: float | None) -> str:
    """How many a second, with a tenth where there are few."""
    return "-" if value is None else f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.1f}"  # noqa: PLR2004


def age(seconds: float | None) -> str:
    """Seconds in words."""
    return "-" if seconds is None else duration(seconds)


def _ago(then: datetime | None, now: datetime | None) -> str:
    if then is None:
        return "-"
    return _time(then) if now is None else f"{duration(max((now - then).total_seconds(), 0))} ago"


def _time(value: datetime) -> str:
    return f"{value:%Y-%m-%d %H:%M:%SZ}"


def _until(then: datetime, now: datetime | None) -> str:
    if now is None:
        return _time(then)
    seconds = (then - now).total_seconds()
    return f"in {duration(seconds)}" if seconds >= 0 else f"{duration(-seconds)} ago"


def _name(text: str) -> Text:
    return Text(brief(text, NAME_CHARS), overflow="fold")


def _line(text: str) -> str:
    return brief(text, LINE_CHARS)


def _bytes(size: int) -> str:
    value = float(size)
    for unit in ("B", "KB", "MB"):
        if value < 1024:  # noqa: PLR2004  # of the units
            return f"{value:.0f} {unit}" if unit == "B" or value >= 10 else f"{value:.1f} {unit}"  # noqa: PLR2004
        value /= 1024
    return f"{value:,.1f} GB"


# --- parts -----------------------------------------------------------------------------------


def _table(*titles: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    _columns(table, *titles)
    return table


def _columns(table: Table, *titles: str) -> None:
    for title in titles:
        is_number = title.endswith(">")
        table.add_column(
            title.removesuffix(">"), justify="right" if is_number else "left", no_wrap=is_number, overflow="fold"
        )


def _pairs(pairs: Iterable[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in pairs:
        table.add_row(Text(name), Text(value))
    return table


def finding(severity: Condition, text: str, command: str | None) -> RenderableType:
    """A sentence of a verdict, and below it what to type next."""
    sentence = Text.assemble((f"{severity}  ", STYLES[severity]), _line(text))
    if command is None:
        return sentence
    return Group(sentence, _Command(_line(command)))


class _Command:
    """A command to type. One that is longer than the line goes on behind a backslash, so that it can be copied whole."""

    def __init__(self, command: str) -> None:
        self._words = command.split(" ")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        lines = [f"    $ {self._words[0]}"]
        for word in self._words[1:]:
            longer = f"{lines[-1]} {word}"
            if cell_len(longer) + 2 <= options.max_width or not console.is_terminal:
                lines[-1] = longer
            else:
                lines[-1] += " \\"
                lines.append(f"        {word}")
        yield Text("\n".join(lines), no_wrap=True, overflow="ignore")


def _about(found: FullSnapshot) -> Iterator[tuple[str, str]]:
    yield "ready", f"{ready(found)}, oldest {age(oldest(found))}"
    yield "pending", f"{found.pending:,}"
    if found.scheduled:
        due = "" if found.next_due is None else f", the first {_until(found.next_due, found.at)}"
        yield "scheduled", f"{found.scheduled:,}{due}" + (f", {found.due:,} due" if found.due else "")
    else:
        yield "scheduled", "0"
    yield "dead", _dead(found)
    groups = found.groups.values()
    counters = (("done", "done"), ("retried", "retried"), ("dead", "dead-lettered"), ("redriven", "redriven"))
    yield "ever", ", ".join(f"{sum(getattr(g, name) for g in groups):,} {word}" for name, word in counters)
    yield "entries", f"{found.length:,} in the stream"
    if found.memory is not None:
        parts = ", ".join(f"{part} {_bytes(size)}" for part, size in found.memory.items() if size)
        yield "memory", f"about {_bytes(sum(found.memory.values()))}" + (f" ({parts})" if parts else "")
    yield "slot", f"{found.slot}"
    if found.settings is not None:
        own = found.settings
        rules = [f"for {duration(own.keep_for)}" if own.keep_for is not None else "",
                 f"the last {own.keep_last:,}" if own.keep_last is not None else ""]  # fmt: skip
        kept = " or ".join(rule for rule in rules if rule)
        full = "" if own.max_ready is None else f", max_ready {own.max_ready:,}"
        yield "retention", f"{_line(own.retention)} {kept}".rstrip() + full
        yield (
            "settings",
            _line(
                f"lease {own.lease:g} s, max_deliveries {own.max_deliveries}, retry {own.retry}, "
                f"idempotency_ttl {duration(own.idempotency_ttl)}"
            ),
        )


def _dead(found: FullSnapshot) -> str:
    figures = found.dead_letters
    if not found.dead:
        return "0"
    reasons = ", ".join(f"{brief(reason, 40) or 'none'} {count:,}" for reason, count in [*figures.reasons.items()][:10])
    of = "" if figures.exact else f"of the newest {figures.looked_at:,}: "
    recent = "" if not figures.recent else f"; {figures.recent:,} within the last hour"
    return f"{found.dead:,} ({of}{reasons}){recent}"


def _groups(groups: Sequence[FullGroup]) -> Iterator[RenderableType]:
    table = _table("group", "ready>", "oldest>", "pending>", "oldest>", "live>", "done>", "retried>", "dead>")
    for one in groups:
        first, held = one.oldest_ready, one.oldest_pending
        table.add_row(
            _name(one.name), ready(one), age(None if first is None else first.age), f"{one.pending:,}",
            age(None if held is None else held.age), f"{one.live:,}", f"{one.done:,}", f"{one.retried:,}",
            f"{one.dead:,}",
        )  # fmt: skip
    yield BLANK
    yield table
    rated = [(one.name, one.rates) for one in groups if one.rates is not None]
    if rated:
        per_second = _table("per second", "in>", "done>", "retried>", "dead>")
        for name, rates in rated:
            values = (rates.entered, rates.done, rates.retried, rates.dead)
            per_second.add_row(_name(name), *(rate(value) for value in values))
        yield BLANK
        yield per_second


def _oldest_held(group: FullGroup) -> Iterator[RenderableType]:
    held = group.oldest_pending
    if held is not None:
        yield Text(
            _line(
                f"oldest pending of group {group.name}: entry {held.entry_id}, held by {held.consumer} "
                f"({_ALIVE[held.alive]}), last sign of life {duration(held.idle)} ago, delivery {held.deliveries:,}"
            )
        )


def _members(group: FullGroup) -> RenderableType:
    table = _table("consumer", "alive", "pending>", "idle>", "inactive>", "where")
    table.title = Text(f"consumers of group {_line(group.name)}")
    table.title_justify = "left"
    for one in group.members[:CONSUMERS]:
        alive = Text({True: "yes", False: "no", None: "?"}[one.alive], style="green" if one.alive else "yellow")
        idle, inactive = age(one.idle), age(one.inactive)
        table.add_row(_name(one.name), alive, f"{one.pending:,}", idle, inactive, _whereof(one))
    more = max(len(group.members), group.consumers) - CONSUMERS
    if more <= 0:
        return table
    return Group(table, Text(f"... and {more:,} more: see --json"))


def _whereof(one: Member) -> Text:
    if one.beat is None and one.host is None:
        return Text("-")
    parts = [
        f"{one.host} pid {one.pid}" if one.host is not None else "",
        f"streamq {one.version}" if one.version else "",
    ]
    heard = "" if one.beat is None or one.alive else f"last heard of {duration(one.beat)} ago"
    return Text(brief(", ".join(part for part in (*parts, heard) if part), NAME_CHARS), overflow="fold")


def _payload(title: str, payload: str, size: int) -> Iterator[RenderableType]:
    text = brief(payload, PAYLOAD_CHARS)
    cut = "" if len(text) >= size else f" of {size:,} bytes, cut"
    yield Text(f"{title}{cut}:")
    yield Padding(Text(text, overflow="fold"), (0, 0, 0, 4), expand=False)


def _state(one: JobInGroup) -> Text:
    style = {"dead": "bold red", "done": "green", "unknown": "dim"}.get(one.state, "")
    return Text(one.state, style=style)


def _whereabouts(one: JobInGroup, now: datetime | None) -> Iterator[Text]:
    yield Text(_line(", ".join(_details(one, now))) or "-")
    if one.attempt is not None:
        history = [f"attempt {one.attempt:,}"]
        if one.enqueued_at is not None:
            history.append(f"added {_ago(one.enqueued_at, now)}")
        if one.redrives:
            history.append(f"redriven {one.redrives:,} times")
        yield Text(", ".join(history))
    for error in one.errors:
        yield Text(_line(f"error: {error}"))


def _details(one: JobInGroup, now: datetime | None) -> Iterator[str]:
    if one.due_at is not None:
        yield f"due {_until(one.due_at, now)}"
    if one.entry_id is not None:
        yield f"entry {one.entry_id}"
    if one.consumer is not None:
        yield f"held by {one.consumer} ({_ALIVE[one.alive]})"
    if one.idle is not None:
        yield f"last sign of life {duration(one.idle)} ago"
    if one.deliveries is not None:
        yield f"delivery {one.deliveries:,}"
    if one.result_bytes is not None:
        yield f"a result of {one.result_bytes:,} bytes"
    if one.remembered_until is not None:
        yield f"remembered until {_time(one.remembered_until)}"
