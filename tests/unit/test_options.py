"""Settings of a stream."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from datetime import timedelta

import pytest

from streamq import Backoff, ConfigurationError, StreamOptions
from streamq.keys import SLICES


def test_defaults():
    options = StreamOptions()
    assert (options.group, options.lease_ms, options.max_deliveries) == ("workers", 15_000, 5)
    assert (options.retention, options.max_payload) == ("delete", 1 << 20)
    assert options.retry.limit == 10
    assert options.crash_backoff.limit is None


@pytest.mark.parametrize("value", [0.01, 15, timedelta(minutes=1), 86_400])
def test_lease(value):
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    assert StreamOptions(lease=value).lease_ms == seconds * 1_000


@pytest.mark.covers("F16")
@pytest.mark.parametrize("value", [0, -1, True, False, 1.0, "5", None])
def test_max_deliveries(value):
    with pytest.raises(ConfigurationError, match="max_deliveries must be a whole number >= 1"):
        StreamOptions(max_deliveries=value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("group", ""),
        ("group", "a:b"),
        ("group", None),
        ("lease", 0),
        ("lease", -1),
        ("lease", 86_401),
        ("lease", float("nan")),
        ("lease", "15"),
        ("idempotency_ttl", 0),
        ("idempotency_ttl", float("inf")),
        ("retention", "none"),
        ("retention", None),
        ("codec", "pickle"),
        ("codec", None),
        ("max_payload", 0),
        ("max_payload", True),
        ("max_payload", 1.5),
        ("max_payload", (256 << 20) + 1),
        ("retry", 10),
        ("crash_backoff", [1, 2]),
    ],
)
def test_what_cannot_be_names_the_setting(name, value):
    with pytest.raises(ConfigurationError, match=name):
        StreamOptions(**{name: value})


@pytest.mark.covers("I8")
@pytest.mark.parametrize("ttl", [0.001, 1, 86_400, timedelta(days=30)])
def test_slices_cover_the_time_to_live(ttl):
    options = StreamOptions(idempotency_ttl=ttl)
    ttl_ms = 1_000 * (ttl.total_seconds() if isinstance(ttl, timedelta) else ttl)
    assert options.slice_ms >= 1
    assert (SLICES - 1) * options.slice_ms >= ttl_ms


def test_options_are_values():
    assert StreamOptions(lease=1) == StreamOptions(lease=1.0)
    assert StreamOptions() != StreamOptions(retry=Backoff.constant(1))
    with pytest.raises(FrozenInstanceError):
        StreamOptions().lease = 3
    with pytest.raises(TypeError):
        StreamOptions("workers")
