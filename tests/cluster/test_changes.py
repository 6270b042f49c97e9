"""A cluster changes under producers and workers: nothing is lost or done twice, nobody restarts."""

from __future__ import annotations

import time

import pytest
from cluster.conftest import times
from waiting import until

ON_ONE = pytest.mark.parametrize("backend", ["valkey-9"], indirect=True, scope="session")
WITHIN_S = 2.0


def stream_slot(shift):
    return shift.stream._spec.keys.slot


def replaced(cluster, slot, old):
    """When another primary serves the slot and the cluster is whole."""
    until(lambda: cluster.primary_of(slot) is not old, timeout=30)
    return time.monotonic()


@ON_ONE
@pytest.mark.covers("C4", "C22")
def test_a_slot_moves_away_and_back_under_load(cluster, make_shift):
    shift = make_shift(cluster.url)
    slot = stream_slot(shift)
    with shift.on():
        for _ in range(3):
            until(lambda: shift.goes_on(time.monotonic() - 0.2))
            for node in (
                next(n for n in cluster.primaries if n is not cluster.primary_of(slot)),
                cluster.primary_of(slot),
            ):
                cluster.migrate_slot(slot, node)
    assert times(shift) == {1}
    assert (shift.errors, shift.unsure) == ([], [])


@ON_ONE
@pytest.mark.covers("C4")
def test_what_was_accepted_as_replicated_survives_its_primary(cluster, make_shift):
    cluster.wait_until_ok()
    shift = make_shift(cluster.url, durability="replicated", confirm_within=0.2)
    slot = stream_slot(shift)
    primary = cluster.primary_of(slot)
    with shift.on(pause=0.0005):
        until(lambda: len(shift.accepted) > 100)
        primary.kill()
        whole = replaced(cluster, slot, primary)
        until(lambda: any(at > whole for at in shift.done.values()))
        primary.start()
        until(lambda: shift.goes_on(whole), timeout=60)
    assert (times(shift), shift.errors) == ({1}, [])
    assert set(shift.accepted) <= set(shift.effects())
    cluster.wait_until_ok()


@ON_ONE
@pytest.mark.covers("C4")
@pytest.mark.parametrize("how", [pytest.param("kill", marks=pytest.mark.full), "pause", "fail_over"])
def test_a_primary_is_replaced_under_load(cluster, make_shift, how):
    cluster.wait_until_ok()
    shift = make_shift(cluster.url)
    slot = stream_slot(shift)
    primary = cluster.primary_of(slot)
    with shift.on():
        until(lambda: len(shift.done) > 50)
        if how == "fail_over":
            cluster.fail_over(cluster.replicas_of(primary)[0])
            whole = time.monotonic()
        else:
            getattr(primary, how)()
            whole = replaced(cluster, slot, primary)
        until(lambda: shift.goes_on(whole))
    assert times(shift) == {1}
    assert shift.errors == []
    if how == "pause":
        primary.resume()
    primary.start()
    cluster.wait_until_ok()


@pytest.mark.full
@pytest.mark.covers("C4", "C22")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("colour", ["sync", "async"])
def test_everything_changes_under_load(cluster, make_shift, colour):
    """On every server: the slot moves away and back 20 times, then its primary is killed, frozen, and demoted in order."""
    cluster.wait_until_ok()
    shift = make_shift(cluster.url, colour=colour)
    slot = stream_slot(shift)
    with shift.on(workers=3):
        for _ in range(20):
            home = cluster.primary_of(slot)
            cluster.migrate_slot(slot, next(node for node in cluster.primaries if node is not home))
            until(lambda: shift.goes_on(time.monotonic() - 0.1))
            cluster.migrate_slot(slot, home)
        assert (shift.errors, shift.unsure) == ([], [])
        for how in ("kill", "pause", "fail_over", "kill"):
            primary = cluster.primary_of(slot)
            if how == "fail_over":
                cluster.fail_over(cluster.replicas_of(primary)[0])
                whole = time.monotonic()
            else:
                getattr(primary, how)()
                whole = replaced(cluster, slot, primary)
            until(lambda since=whole: shift.goes_on(since))
            assert min(at for at in shift.done.values() if at > whole) - whole < WITHIN_S
            if how == "pause":
                primary.resume()
            primary.start()
            cluster.wait_until_ok()
    assert (times(shift), shift.errors) == ({1}, [])
