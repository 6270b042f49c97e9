"""How long to wait before the next try."""

from __future__ import annotations

import math
from datetime import timedelta

import pytest

from streamq import Backoff, ConfigurationError
from streamq.backoff import MAX_DELAY_MS, to_ms


@pytest.mark.covers("C69", "Q9")
@pytest.mark.parametrize("attempt", [0, 1, 2, 40, 63, 64, 400, 1_024, 5_000, 10_000, 10**18])
@pytest.mark.parametrize("jitter", [0, 0.2, 1])
@pytest.mark.parametrize("chance", [0, 0.5, 1])
def test_exponential_stays_within_its_cap(attempt, jitter, chance):
    delay = Backoff.exponential(1, factor=2, cap=60, limit=None, jitter=jitter).delay_ms(attempt, chance)
    assert isinstance(delay, int)
    assert 0 <= delay <= 60_000


@pytest.mark.covers("C69")
def test_exponential_without_jitter():
    backoff = Backoff.exponential(1, factor=2, cap=60, limit=None, jitter=0)
    assert [backoff.delay_ms(n) for n in (0, 1, 2, 3, 6, 7, 8, 5_000)] == [
        1_000, 1_000, 2_000, 4_000, 32_000, 60_000, 60_000, 60_000,
    ]  # fmt: skip
    assert not backoff.exhausted(10**9)


@pytest.mark.covers("C69")
@pytest.mark.parametrize("factor", [1, 1.0000001, 1.5, 10, 1e300])
@pytest.mark.parametrize("base", [0, 0.001, 1, 900])
@pytest.mark.parametrize("attempt", [1, 2, 100, 1_023, 1_024, 10**18])
def test_any_factor_and_base(factor, base, attempt):
    delay = Backoff.exponential(base, factor=factor, cap=900, limit=None).delay_ms(attempt)
    assert 0 <= delay <= 900_000
    assert delay >= min(base * 1_000, 900_000) or attempt == 0


@pytest.mark.covers("Q9")
def test_a_tenth_of_a_second_is_kept():
    assert Backoff.constant(0.1).delay_ms(1) == 100
    assert Backoff.constant(timedelta(milliseconds=100)).delay_ms(7) == 100
    assert Backoff.constant(0).delay_ms(1) == 0


def test_delays_never_shrink_without_jitter():
    backoff = Backoff.exponential(0.25, factor=1.7, cap=77, limit=None, jitter=0)
    delays = [backoff.delay_ms(n) for n in range(1, 200)]
    assert delays == sorted(delays)
    assert delays[-1] == 77_000


def test_jitter_spreads_to_both_sides():
    backoff = Backoff.exponential(10, cap=900, jitter=0.2)
    assert [backoff.delay_ms(1, chance) for chance in (0, 0.25, 0.5, 1)] == [8_000, 9_000, 10_000, 12_000]


def test_a_schedule_ends_with_its_list():
    backoff = Backoff.schedule([1, 2])
    assert [backoff.delay_ms(n) for n in (1, 2, 3)] == [1_000, 2_000, 2_000]
    assert [backoff.exhausted(n) for n in (1, 2, 3)] == [False, False, True]


@pytest.mark.parametrize(("limit", "last"), [(0, 1), (1, 2), (10, 11)])
def test_runs_are_the_limit_and_one(limit, last):
    backoff = Backoff.constant(1, limit=limit)
    assert not backoff.exhausted(last - 1) or last == 1
    assert backoff.exhausted(last)


@pytest.mark.covers("Q9")
@pytest.mark.parametrize(
    "make",
    [
        lambda: Backoff.constant(-1),
        lambda: Backoff.constant(math.nan),
        lambda: Backoff.constant(math.inf),
        lambda: Backoff.constant("1"),
        lambda: Backoff.constant(True),
        lambda: Backoff.constant(366 * 86_400),
        lambda: Backoff.constant(1, limit=-1),
        lambda: Backoff.constant(1, limit=1.5),
        lambda: Backoff.constant(1, limit=True),
        lambda: Backoff.constant(1, jitter=1.1),
        lambda: Backoff.constant(1, jitter=-0.1),
        lambda: Backoff.constant(1, jitter=math.nan),
        lambda: Backoff.exponential(1, factor=0.5),
        lambda: Backoff.exponential(1, factor=math.inf),
        lambda: Backoff.exponential(1, factor=math.nan),
        lambda: Backoff.exponential(1, cap=-1),
        lambda: Backoff.schedule([]),
        lambda: Backoff.schedule([1, -1]),
    ],
)
def test_what_cannot_be(make):
    with pytest.raises(ConfigurationError):
        make()


@pytest.mark.parametrize(
    ("value", "ms"), [(0, 0), (1, 1_000), (0.0004, 0), (0.0006, 1), (1.5, 1_500), (timedelta(days=365), MAX_DELAY_MS)]
)
def test_seconds_to_milliseconds(value, ms):
    assert to_ms(value, "x") == ms


@pytest.mark.parametrize(
    "value",
    [
        *(-0.001, math.nan, math.inf, -math.inf, "1", None, True, timedelta(days=366)),
        pytest.param(10**400, id="no float"),
    ],
)
def test_what_is_no_time(value):
    with pytest.raises(ConfigurationError, match="pause"):
        to_ms(value, "pause")
