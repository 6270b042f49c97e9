"""How long nothing is reclaimed after an outage."""

from __future__ import annotations

import pytest

from streamq.worker.grace import GRACE_S, OUTAGE_S, Grace


def held(lease_s, *answers):
    """When nothing is reclaimed, of the times at which the server answers."""
    grace, found = Grace(lease_s, 0.0), []
    for now in answers:
        grace.answered(now)
        if grace.holds(now):
            found.append(now)
    return found


@pytest.mark.covers("C31")
def test_after_an_outage_others_are_left_time():
    assert held(15, 2, 4, 6) == []
    assert held(15, 2, 22, 23, 22 + GRACE_S, 26) == [22, 23]
    assert held(15, 30, 33) == [30], "a worker that was started in it"


def test_what_is_short_is_no_outage():
    assert held(15, 2, 9) == []
    assert held(0.1, OUTAGE_S) == []


def test_where_all_is_slow_it_ends():
    assert held(0.1, 1.5, 3, 4.5, 6) == [1.5, 3]
