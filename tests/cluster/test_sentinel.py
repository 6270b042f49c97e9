"""A server behind Sentinels is replaced under producers and workers: nothing is lost or done twice, nobody restarts."""

from __future__ import annotations

import time

import pytest
from cluster.conftest import times
from waiting import until

ON_ONE = pytest.mark.parametrize("backend", ["valkey-9"], indirect=True, scope="session")


@ON_ONE
@pytest.mark.covers("C61")
@pytest.mark.parametrize(
    "how", ["kill", *(pytest.param(how, marks=pytest.mark.full) for how in ("pause", "fail_over"))]
)
def test_the_master_is_replaced_under_load(watched, make_shift, how):
    watched.wait_until_ok()
    shift = make_shift(watched.url)
    primary = watched.primary
    with shift.on():
        until(lambda: len(shift.done) > 50)
        if how == "fail_over":
            watched.fail_over()
        else:
            getattr(primary, how)()
        until(lambda: watched.primary is not primary, timeout=60)
        whole = time.monotonic()
        until(lambda: shift.goes_on(whole), timeout=60)
    assert times(shift) == {1}
    assert shift.errors == []
    if how == "pause":
        primary.resume()
    primary.start()
    watched.wait_until_ok()
