"""Walking everything that waits, page by page: all of it, once, at the cost of a page, whatever stands in the schedule."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from streamq._ops import schedule

AT = datetime(2030, 1, 31, 12, tzinfo=UTC)


@pytest.fixture
def stream(make_stream):
    return make_stream()


def fill(raw, ns, timers):
    for at in range(0, len(timers), 1_000):
        raw.zadd(f"streamq:{{{ns}}}:scheduled", dict(timers[at : at + 1_000]))


def walk(stream, count, **options):
    """IDs page by page; gives up where a page does not end."""
    found, after = [], None
    for _ in range(1_000):
        page = stream.scheduled.list(count=count, after=after, **options)
        found += [job.job_id for job in page]
        if not page:
            return found
        after = page[-1]
    pytest.fail(f"this never ends: {found[-20:]}")


def ms(value):
    return (value - datetime.fromtimestamp(0, UTC)) // timedelta(milliseconds=1)


def pages(raw):
    """How often the server was asked for a part of a sorted set."""
    stats = raw.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("zrange", "zrangebyscore"))


def test_many_that_are_due_at_once_are_walked_once(stream, raw, ns):
    """The work that a page is grows with the page, not with what came before it."""
    fill(raw, ns, [(f"/{n:05}", ms(AT)) for n in range(5_000)])
    before = pages(raw)
    assert walk(stream, 250) == [f"{n:05}" for n in range(5_000)]
    assert pages(raw) - before <= 25


def test_the_last_of_a_page_need_not_wait_any_more(stream, raw, ns):
    fill(raw, ns, [(f"/{n}", ms(AT)) for n in range(10, 30)])
    page = stream.scheduled.list(count=5)
    raw.zrem(f"streamq:{{{ns}}}:scheduled", "/14", "/11")
    assert [job.job_id for job in stream.scheduled.list(count=3, after=page[-1])] == ["15", "16", "17"]
    raw.zadd(f"streamq:{{{ns}}}:scheduled", {"/14": ms(AT) + 1})  # it was moved: it is met again, behind the others
    assert walk_from(stream, page[-1]) == [str(n) for n in range(15, 30)] + ["14"]


def walk_from(stream, after):
    return [job.job_id for job in stream.scheduled.list(count=1_000, after=after)]


def test_due_before_holds_on_every_page(stream, raw, ns):
    fill(raw, ns, [(f"/{n}", ms(AT) + n) for n in range(10, 40)])
    until = AT + timedelta(milliseconds=25)
    assert walk(stream, 4, due_before=until) == [str(n) for n in range(10, 25)]


@pytest.mark.parametrize("far", [9e15, 8_640_000_000_001, 99_999_999_999_999, "inf"])
def test_times_of_somebody_else_end_the_walk(stream, raw, ns, far):
    """A time that no float of seconds holds to the ms came back as another one, and the same page came for ever."""
    fill(raw, ns, [("/a", -5), ("/b", -4), ("/c", ms(AT)), ("/d", far), ("/e", far)])
    assert walk(stream, 1) == ["a", "b", "c", "d", "e"]


def test_what_is_behind_is_counted(stream, raw, ns):
    fill(raw, ns, [(f"/{n}", ms(AT) + n // 20) for n in range(10, 60)])
    jobs = stream.scheduled.list(count=1_000)
    until = AT + timedelta(milliseconds=2)

    def count(**options):
        return stream.run(schedule.count(stream_spec(stream), **options))

    assert count() == 50
    assert count(after=jobs[12]) == 37
    assert count(due_before=until) == 30
    assert count(after=jobs[12], due_before=until) == 17
    assert count(after=jobs[40], due_before=until) == 0
    raw.zrem(f"streamq:{{{ns}}}:scheduled", f"/{jobs[12].job_id}")
    assert count(after=jobs[12]) == 20  # those of a later ms: the others cannot be told apart


def stream_spec(stream):
    return getattr(stream, "target", stream)._spec
