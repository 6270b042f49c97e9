"""Who is alive, by beats and by what the server heard."""

from __future__ import annotations

import pytest

from streamq import StreamOptions, WorkerSettings
from streamq._beats import Beat
from streamq._ops.inspect.beats import About, is_alive, lease_ms_of
from streamq.backoff import Backoff

NOW = 1_700_000_000_000


def beat(age_ms, lease=None):
    settings = None if lease is None else WorkerSettings.of(StreamOptions(lease=lease))
    return Beat(NOW - age_ms, About(settings=settings))


@pytest.mark.parametrize(
    ("beat_age_ms", "idle_ms", "lease_ms", "alive"),
    [
        (0, None, 15_000, True),  # it has read nothing yet
        (10_000, 9_000_000, 15_000, True),
        (-5_000, None, 15_000, True),  # written after the time was asked for
        (10_001, None, 15_000, False),
        (10_001, 10_000, 15_000, True),  # its event loop stands still, its leases are renewed
        (600_000, 10_001, 15_000, False),
        (600_000, 29_000, 60_000, True),  # each third of a minute
        (600_000, 60_001, 3_600_000, False),  # a long lease keeps no dead one alive
        (None, 59_000, 15_000, True),  # a hand-written loop
        (None, 61_000, 15_000, None),
        (None, 61_000, 120_000, True),
        (None, None, 15_000, None),
    ],
)
def test_who_is_alive(beat_age_ms, idle_ms, lease_ms, alive):
    one = None if beat_age_ms is None else beat(beat_age_ms)
    assert is_alive(one, idle_ms, lease_ms, NOW) is alive


def test_without_the_servers_time_silence_says_nothing():
    assert is_alive(beat(0), 1_000, 15_000, None) is True
    assert is_alive(beat(0), 100_000, 15_000, None) is None


def test_the_lease_is_that_of_the_live():
    beats = [beat(60_000, lease=5), beat(0), beat(1_000, lease=7)]
    assert lease_ms_of(beats, 15_000, NOW) == 7_000
    assert lease_ms_of(beats[:2], 15_000, NOW) == 5_000
    assert lease_ms_of([beat(0)], 15_000, NOW) == 15_000


def test_settings_in_words():
    words = WorkerSettings.of(
        StreamOptions(retry=Backoff.schedule([1, 5, 0.5]), crash_backoff=Backoff.custom(lambda _: 1))
    )
    assert words.retry == "3 times: 1, 5, 0.5 s, at most 31536000 s"
    assert words.crash_backoff == "10 times, by a function"
    assert WorkerSettings.of(StreamOptions()).retry == "10 times: 1 s, then x2, at most 900 s, jitter 0.2"
