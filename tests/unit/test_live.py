"""The live view without a terminal: keys, what they make of the state, and the lines that are drawn of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from unit.made import group, snapshot

from streamq.cli.live.keys import decoded
from streamq.cli.live.overview import short
from streamq.cli.live.screen import draw
from streamq.cli.live.sparkline import ASCII_BARS, sparkline
from streamq.cli.live.state import SAMPLES, failed, looked, pressed, started
from streamq.cli.looks import Look
from streamq.snapshots import Finding, Member, OldestReady, Rates

HUGE = 10_000_000
BUSY = {"ready": HUGE, "pending": 1_000_000, "scheduled": 1_000_000, "dead": 123_456, "condition": "critical"}


def first_of(age):
    return OldestReady(entry_id="1-1", job_id="j", age=age)


def stream(name, *, rates=None, **figures):
    of_group = {key: figures[key] for key in ("ready", "pending") if key in figures}
    groups = [group(rates=rates, oldest_ready=first_of(959), **of_group)]
    return snapshot(name=name, groups=groups, **figures)


def look(*names, refused=None, **figures):
    return Look({name: stream(name, **figures) for name in names}, refused or {})


def begun(*names, name=None, **figures):
    return started(look(*names, **figures), where="redis server here:6379", every=2.0, now=100.0, name=name)


def many(count):
    return [f"stream-{n:02}" for n in range(count)]


def press(state, *keys, last_offset=0):
    for key in keys:
        state = pressed(state, key, last_offset)
    return state


def text(state, columns=80, rows=24):
    return [line.plain.rstrip() for line in draw(state, columns, rows).lines]


# --- keys ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "keys"),
    [
        (b"jk", ["down", "up"]),
        (b"\x1b[A\x1b[B\x1bOA\x1bOB", ["up", "down", "up", "down"]),
        (b"\x1b[5~\x1b[6~\x1b[H\x1bOF\x1b[1~\x1b[4~gG", ["page up", "page down", *["home", "end"] * 3]),
        (b"\r\n", ["enter", "enter"]),
        (b"b\x7f\x08", ["back"] * 3),
        (b"p?q\x03", ["pause", "help", "quit", "quit"]),
        (b"x\xc3\xa4\x00\x1bOP\x1b[15;5~\x1b[200~A", []),
        (b"\x1bq", ["back", "quit"]),
        (b"\x1b\x1b[A", ["back", "up"]),
    ],
)
def test_keys_have_names_however_they_are_cut(sent, keys):
    assert decoded(sent) == (keys, b"")
    found, rest = [], b""
    for at in range(len(sent)):
        more, rest = decoded(rest + sent[at : at + 1])
        found += more
    assert (found, rest) == (keys, b"")


@pytest.mark.parametrize("rest", [b"\x1b", b"\x1b[", b"\x1bO", b"\x1b[1;"])
def test_what_may_be_the_beginning_of_a_key_is_kept(rest):
    assert decoded(b"j" + rest) == (["down"], rest)


# --- what becomes of the state ----------------------------------------------------------------


def test_the_mark_moves_and_stops_at_the_ends():
    state = begun("a", "b", "c")
    assert state.selected == "a"
    assert press(state, "up").selected == "a"
    assert press(state, "down").selected == "b"
    assert press(state, "down", "down", "down").selected == "c"
    assert press(state, "end").selected == press(state, "page down").selected == "c"
    assert press(state, "end", "home").selected == press(state, "end", "page up").selected == "a"


def test_the_mark_stays_on_its_stream_or_in_its_place():
    state = press(begun("b", "c", "d"), "down")
    assert looked(state, look("a", "b", "c", "d"), 102.0).selected == "c"
    assert looked(state, look("b", "d"), 102.0).selected == "d"
    assert looked(state, look("b"), 102.0).selected == "b"
    none = looked(state, look(), 102.0)
    assert none.selected is None
    assert press(none, "down", "enter").opened is None
    assert looked(none, look("x"), 104.0).selected == "x"


def test_into_a_stream_and_back():
    state = press(begun("a", "b"), "down", "enter")
    assert (state.opened, state.offset) == ("b", 0)
    scrolled = press(state, "down", "down", last_offset=5)
    assert (scrolled.selected, scrolled.offset) == ("b", 2)
    assert press(scrolled, "end", last_offset=5).offset == 5
    assert press(replace(scrolled, offset=50), "up", last_offset=5).offset == 4  # the window has grown meanwhile
    assert press(scrolled, "back").opened is None
    assert press(scrolled, "back", "enter").offset == 0
    assert press(begun("a", name="a"), "back").opened == "a"  # there is nothing else


def test_help_is_in_front_of_everything():
    helping = press(begun("a", "b"), "help")
    assert helping.helping
    assert press(helping, "down", "enter") == helping
    assert press(helping, "help") == press(helping, "back") == begun("a", "b")
    assert press(helping, "quit").ended


def test_while_it_is_paused_the_figures_stand_still():
    paused = press(begun("a"), "pause")
    assert looked(paused, look("a", "b"), 102.0) == paused
    assert looked(press(paused, "pause"), look("a", "b"), 102.0).names == ["a", "b"]


def test_history_is_bounded_and_knows_what_it_does_not_know():
    state = begun("a", ready=0)
    assert state.history["a"].ready == (0,)
    assert state.history["a"].done == (None,)  # one look makes no rate
    for n in range(1, 2 * SAMPLES):
        rates = Rates(entered=None, done=n, retried=0, dead=0)
        state = looked(state, look("a", ready=n, pending=n, rates=rates), 100.0 + n)
    history = state.history["a"]
    assert history.ready == history.pending == history.done == tuple(range(SAMPLES, 2 * SAMPLES))
    assert history.entered == (None,) * SAMPLES
    assert looked(state, look("b"), 999.0).history.keys() == {"b"}


def test_a_failed_look_leaves_the_last_figures():
    lost = failed(begun("a", ready=7), "cannot reach it", 112.0)
    assert lost.look.found["a"].ready == 7
    assert text(lost)[:2] == [
        "redis server here:6379  1 stream".ljust(65) + "as of 12s ago".rjust(15),
        "as of 12s ago: cannot reach it",
    ]
    assert "cannot reach it" not in "".join(text(looked(lost, look("a"), 114.0)))


def test_figures_say_how_old_they_are_as_soon_as_that_matters():
    state = begun("a")
    assert text(replace(state, now=103.9))[0].endswith(" every 2.0s")
    assert text(replace(state, now=105.0))[0].endswith(" as of 5.0s ago: no answer yet")
    assert text(replace(state, now=105.0, paused=True))[0].endswith(" paused, as of 5.0s ago")


# --- what is drawn ----------------------------------------------------------------------------

VERDICT = [
    Finding(kind="no_worker", severity="critical", text="nobody handles it " * 9, command="streamq run MODULE:WORKER")
]
HOSTILE = "\x1b[2J\x00\u202e[red]\n"
ITS_VERDICT = [Finding(kind="stuck", severity="critical", text=HOSTILE, command=HOSTILE)]
EVIL = snapshot(groups=[group(HOSTILE, members=[Member(name=HOSTILE, alive=True, pending=1, idle=1.0, host=HOSTILE)])],
                verdict=ITS_VERDICT)  # fmt: skip
STATES = {
    "empty": begun(),
    "one": begun("orders"),
    "many": begun(*many(40), verdict=VERDICT, condition="critical"),
    "busy": begun("a" * 128, "b", **BUSY, verdict=VERDICT * 5),
    "inside": press(begun(*many(9), **BUSY, verdict=VERDICT), "enter"),
    "alone": begun("orders", name="orders"),
    "gone": replace(begun("orders"), opened="mail"),
    "refused": started(look("a", refused={"b": "\x1b[2J" * 99}), where="x" * 300, every=2, now=1),
    "inside refused": replace(
        started(look(refused={"b": "no"}), where="", every=2, now=1), opened="b", selected="b"
    ),
    "hostile": started(Look({"orders": EVIL}), where=HOSTILE, every=2, now=1),
    "inside hostile": press(started(Look({"orders": EVIL}), where=HOSTILE, every=2, now=1), "enter"),
    "help": press(begun("a"), "help"),
    "paused": press(begun("a"), "pause"),
    "lost": failed(begun(*many(40)), "cannot reach \x1b[2J\n" * 40, 200.0),
}  # fmt: skip


@pytest.mark.parametrize("state", STATES.values(), ids=STATES)
@pytest.mark.parametrize("size", [(80, 24), (200, 50), (40, 12), (20, 5), (1, 1), (7, 2)])
def test_every_screen_is_filled_and_no_line_is_longer(state, size):
    columns, rows = size
    lines = draw(state, columns, rows).lines
    assert len(lines) == rows
    assert {line.cell_len for line in lines} == {columns}
    assert not any(character in line.plain for character in "\x1b\n\x00\u202e" for line in lines)
    assert draw(state, columns, rows).lines == lines  # the same whenever it is drawn


def test_what_others_wrote_is_shown_and_does_nothing():
    lines = "\n".join(text(STATES["inside hostile"], columns=200, rows=50))
    assert lines.count(r"\x1b[2J\x00\u202e[red]\x0a") == 7


def test_figures_have_room_at_80_columns():
    state = begun("orders-of-europe", **{**BUSY, "scheduled": 12})  # short ones, and still a sparkline
    assert text(state)[2].split() == [
        ">", "orders-of-europe", "10.0M", "█", "15m", "59s", "1.0M", "12", "123.4k", "1", "-", "critical",
    ]  # fmt: skip
    rates = Rates(entered=None, done=1_234_567, retried=0, dead=0)
    found = stream("orders-of-europe", **BUSY, rates=rates)
    found.groups["workers"] = group(exact=False, live=9_999, rates=rates, oldest_ready=first_of(999 * 86_400 + 7_200))
    row = text(started(Look({found.name: found}), where="", every=2, now=1))[2]  # rather a short name than no figure
    assert row.split() == [
        ">", "orders-…-europe", ">=", "10.0M", "999d", "2h", "1.0M", "1.0M", "123.4k", "9,999", "1,234,567", "critical",
    ]  # fmt: skip
    row = text(begun("orders", ready=12_345, pending=16, scheduled=7, dead=3))[2]
    assert row.split() == [">", "orders", "12,345", "█", "15m", "59s", "16", "7", "3", "1", "-", "ok"]


def test_figures_are_whole_where_there_is_room():
    titles, row = text(begun("orders", **BUSY), columns=200, rows=50)[1:3]
    assert titles.split() == ["stream", "ready", "oldest", "pending", "scheduled", "dead", "live", "in/s", "done/s",
                              "verdict"]  # fmt: skip
    assert row.split()[:10] == [">", "orders", "10,000,000", "█", "15m", "59s", "1,000,000", "1,000,000", "123,456",
                                "1"]  # fmt: skip


def test_a_count_that_is_not_exact_says_so():
    found = snapshot(name="orders", ready=10_000, groups=[group(exact=False, ready=10_000)])
    state = started(Look({"orders": found}), where="", every=2, now=1)
    assert ">= 10,000" in text(state)[2]
    assert ">= 10,000" in text(press(state, "enter"))[1]


def test_the_chosen_row_is_shown_whichever_it_is_and_the_others_are_counted():
    names = many(40)
    state = begun(*names)
    for at, name in enumerate(names):
        lines = text(state)
        [chosen] = [line for line in lines if line.startswith(">")]
        assert chosen.split()[1] == state.selected == name
        rows = [line for line in lines if line[2:].startswith("stream-")]
        first = names.index(rows[0][2:].split()[0])
        above, below = first, 40 - first - len(rows)
        parts = [f"{count} {where}" for count, where in ((below, "below"), (above, "above")) if count]
        assert f"... and {above + below} more: {', '.join(parts)}" in lines
        assert len(rows) >= 17, at
        state = press(state, "down")


def test_names_that_do_not_fit_keep_both_ends():
    east, west = "notifications-of-orders-eu-east", "notifications-of-orders-eu-west"
    state = begun(east, west, ready=123_456, dead=12_345)
    rows = [line[2:].split()[0] for line in text(state)[2:4]]
    assert [(row[:8], row[-5:], "…" in row) for row in rows] == [
        ("notifica", "-east", True),
        ("notifica", "-west", True),
    ]
    assert f"{east}: ok" in text(state)
    assert text(begun("a"))[1].startswith("  stream ready ")
    assert [line[2:].split()[0] for line in text(state, columns=120)[2:4]] == [east, west]


def test_what_is_wrong_is_below_with_what_to_type():
    state = begun("a", "b", verdict=VERDICT, condition="critical")
    lines = text(state)
    assert "a: critical: no_worker" in lines
    assert "    $ streamq run MODULE:WORKER" in lines
    assert any(line.startswith("critical  b: nobody handles it") for line in lines)  # there is room for the others
    assert text(state)[0].split("  ")[1] == "2 streams, 2 critical"
    assert text(begun(*many(9), verdict=VERDICT))[-2] == "..."  # there is no room for all of them


def test_all_of_a_stream_can_be_scrolled_to():
    state = press(begun("orders", **BUSY, verdict=VERDICT * 9), "enter")
    last = draw(state, 80, 24).last_offset
    seen = {}
    for offset in (*range(0, last, 15), last, last + 5):
        lines = text(replace(state, offset=offset))
        assert lines[1].startswith("ready")  # the charts stay
        seen.update(enumerate(lines[7:22], min(offset, last)))
    whole = text(state, rows=100)
    assert draw(state, 80, 100).last_offset == 0
    assert [*seen.values()] == whole[7 : 7 + len(seen)]
    assert set(whole[7 + len(seen) : -1]) == {""}


def test_charts_show_what_was():
    state = begun("orders", ready=0)
    for n in (4, 8):
        rates = Rates(entered=1.5, done=n, retried=0, dead=0)
        state = looked(state, look("orders", ready=n, rates=rates), 100.0 + n)
    lines = text(press(state, "enter"))
    assert [line.split() for line in lines[1:6]] == [
        ["ready", "8", "▁▅█", "0", "to", "8"],
        ["pending", "0", "▁▁▁", "0", "to", "0"],
        ["dead", "0", "▁▁▁", "0", "to", "0"],
        ["in/s", "1.5", "██", "1.5", "to", "1.5"],
        ["done/s", "8.0", "▅█", "4.0", "to", "8.0"],
    ]
    assert len([line for line in text(press(state, "enter"), columns=200) if "▅" in line]) == 2
    assert " ▁▅█ " in text(state)[2]


@pytest.mark.parametrize(
    ("series", "drawn"),
    [
        ((), "    "),
        ((0, 0), "  ▁▁"),
        ((None, 1), "   █"),
        ((1, 1000, 500, 0), "▂█▅▁"),  # however little is more than nothing
        ((9, 1, 2, 3, 4), "▃▅▆█"),
    ],
)
def test_sparklines(series, drawn):
    assert sparkline(series, 4) == drawn
    assert sparkline((0, 4, 8), 3, ASCII_BARS) == "_=#"
    assert sparkline(series, 0) == ""


@pytest.mark.parametrize(
    ("value", "words"),
    [(99_999, "99,999"), (100_000, "100.0k"), (999_999, "999.9k"), (1_000_000, "1.0M"), (12_345_678_901, "12.3G")],
)
def test_short_figures_are_never_more_than_there_is(value, words):
    assert short(value) == words
