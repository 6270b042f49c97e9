"""Who may read next, among several streams."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamq.worker.turns import Turns


def drawn(turns, rounds, slots=1):
    """How many jobs each stream starts in `rounds` rounds, when all have more than they may start."""
    started = Counter()
    for _ in range(rounds):
        for stream in turns.order():
            if count := turns.share(stream, slots):
                turns.started(stream, count)
                started[stream] += count
                break
    return started


@pytest.mark.parametrize("weights", [(1, 1), (3, 1), (1, 2, 5)])
def test_streams_with_a_backlog_start_by_their_weights(weights):
    turns = Turns(weights)
    for stream in range(len(weights)):
        turns.found(stream, more=True)
    started = drawn(turns, 800)
    for stream, weight in enumerate(weights):
        assert started[stream] == pytest.approx(800 * weight / sum(weights), abs=2)


def test_a_stream_without_a_backlog_may_always_read():
    turns = Turns((1, 1))
    turns.found(0, more=True)
    turns.started(0, 1_000)
    assert turns.share(0, 5) == 5
    assert turns.share(1, 5) == 5


def test_having_been_idle_is_no_credit():
    turns = Turns((1, 1))
    turns.found(0, more=True)
    turns.started(0, 1_000)
    turns.found(1, more=True)
    assert max(drawn(turns, 100).values()) <= 51


def test_having_been_busy_alone_is_no_debt():
    turns = Turns((1, 1))
    turns.found(0, more=True)
    turns.started(0, 1_000)
    turns.found(0, more=False)
    turns.found(1, more=True)
    turns.found(0, more=True)
    assert drawn(turns, 100) == {0: 50, 1: 50}


def test_nothing_is_shared_without_slots():
    turns = Turns((1, 1))
    assert turns.share(0, 0) == turns.share(0, -3) == 0


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.data())
def test_somebody_with_a_backlog_may_always_read(weights, data):
    turns = Turns(weights)
    streams = st.integers(0, len(weights) - 1)
    busy = set()
    for stream, more, jobs in data.draw(st.lists(st.tuples(streams, st.booleans(), st.integers(0, 50)))):
        turns.found(stream, more=more)
        (busy.add if more else busy.discard)(stream)
        turns.started(stream, jobs)
    assert not busy or any(turns.share(stream, 1) for stream in busy)
