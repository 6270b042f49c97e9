"""On a cluster what was built by hand is copied, compared, and removed only if it is still what was compared."""

from __future__ import annotations

import json

import look
import pytest
from cli import shell
from migrations.by_hand import T0, HandBuilt, take_over
from migrations.previous import OWNER, Steps, stored

from streamq import MigrationError
from streamq.migrations import adopt, adopt_copy, coordinator

ON_ONE = pytest.mark.parametrize("backend", ["valkey-9"], indirect=True)
"""The same requests on all servers."""


@pytest.fixture
def _quiet(monkeypatch):
    """Whoever has read a moment ago is gone."""
    monkeypatch.setattr(adopt, "QUIET_MS", 0)


@pytest.fixture(params=["job", "data"])
def built(request, raw, ns):
    return HandBuilt(raw, ns, request.param).fill()


def adopted(built):
    """What the copies hold."""
    found = built.whole(of=[built.keys.stream, built.keys.dead, built.keys.scheduled])
    return found, [entry_id for entry_id, _ in look.entries(built.raw, built.keys.stream)]


def originals(built):
    found = built.whole(of=[built.stream, built.dead, built.times])
    return found, [entry_id for entry_id, _ in look.entries(built.raw, built.stream)]


# What can be seen on a server by itself, too, which takes no cluster: the same requests.


@pytest.mark.usefixtures("_quiet")
@pytest.mark.parametrize("backend", ["redis-6.2", "valkey-9"], indirect=True)
def test_copies_are_as_the_originals_with_their_ids(driver, raw, ns, built):
    before, kept = originals(built), look.dumps(raw, f"{ns}-")
    groups = raw.xinfo_groups(built.stream)
    idle = {
        row["message_id"]: row["time_since_delivered"]
        for row in raw.xpending_range(built.stream, "senders", "-", "+", 9)
    }
    assert max(idle.values()) >= 400_000
    done = take_over(driver, ns, built.source, by=adopt_copy)
    assert (done.entries, done.dead, done.scheduled, done.failed) == (8, 3, 4, [])
    assert adopted(built) == before
    assert look.dumps(raw, f"{ns}-") == kept
    for was, now in zip(groups, raw.xinfo_groups(built.keys.stream), strict=True):
        assert (was["name"], was["pending"], was["last-delivered-id"]) == (
            now["name"],
            now["pending"],
            now["last-delivered-id"],
        )
    for row in raw.xpending_range(built.keys.stream, "senders", "-", "+", 9):
        assert row["time_since_delivered"] >= idle[row["message_id"]]
    assert take_over(driver, ns, built.source, by=adopt_copy, clean=True).removed == 4
    assert not raw.exists(*built.source.kinds)
    assert adopted(built) == before


@pytest.mark.usefixtures("_quiet")
@pytest.mark.covers("C29")
@pytest.mark.parametrize("clean", [False, True], ids=["adopt", "remove"])
@ON_ONE
def test_copying_may_be_broken_off_after_each_request(driver, raw, ns, clean):
    built = HandBuilt(raw, ns).fill()
    before = originals(built)
    if clean:
        take_over(driver, ns, built.source, by=adopt_copy)
    put_back = stored(raw, ns)
    lock = coordinator.new_lock(ns, OWNER)
    for taken in range(100):
        driver.run(coordinator.acquire(lock, ns))
        steps = Steps(
            driver, (adopt_copy.clean if clean else adopt_copy.move)(lock, built.source, built.keys, lambda _: None)
        )
        ended = steps.take(taken)
        steps.drop()
        if clean:
            assert adopted(built) == before, f"after {taken} requests"
        else:
            assert originals(built) == before, f"after {taken} requests"
        raw.unlink(lock.key)
        assert take_over(driver, ns, built.source, by=adopt_copy, clean=clean).failed == []
        assert adopted(built) == before, f"after {taken} requests and once more"
        if ended:
            return
        put_back()
    pytest.fail("it does not end")


@pytest.mark.usefixtures("_quiet")
@pytest.mark.parametrize("change", ["entry", "done", "letter", "timer", "body"])
@ON_ONE
def test_originals_that_have_changed_are_not_removed(driver, raw, ns, change):
    built = HandBuilt(raw, ns).fill()
    take_over(driver, ns, built.source, by=adopt_copy)
    if change == "entry":
        raw.xadd(built.stream, {"job": "{}"}, id=f"{T0 + 9}-1")
    elif change == "done":
        raw.xack(built.stream, "senders", f"{T0 + 2}-1")
    elif change == "letter":
        raw.xdel(built.dead, f"{T0}-0")
    elif change == "timer":
        raw.zadd(built.times, {"later/0": 5})
    else:
        raw.hset(built.bodies, "later/0", "{}")
    before = look.dumps(raw, f"{ns}-")
    with pytest.raises(MigrationError, match="are not what was copied"):
        take_over(driver, ns, built.source, by=adopt_copy, clean=True)
    assert look.dumps(raw, f"{ns}-") == before


@ON_ONE
def test_what_is_in_use_is_not_copied(driver, raw, ns):
    built = HandBuilt(raw, ns).fill()
    before = look.dumps(raw, ns)
    with pytest.raises(MigrationError, match="was read by consumer a0"):
        take_over(driver, ns, built.source, by=adopt_copy)
    assert look.dumps(raw, ns) == before


@ON_ONE
def test_what_is_in_the_way_of_a_copy_is_told(driver, raw, ns, monkeypatch):
    monkeypatch.setattr(adopt, "QUIET_MS", 0)
    built = HandBuilt(raw, ns).fill()
    raw.zadd(built.times, {"nothing": T0})
    raw.hset(built.bodies, "untimed", "{}")
    done = take_over(driver, ns, built.source, by=adopt_copy)
    assert [why.partition(" ")[2] for why in done.failed] == [
        f"of {built.times} have no payload: nothing",
        f"of {built.bodies} have no time in {built.times}: untimed",
    ]
    with pytest.raises(MigrationError, match="is not adopted yet"):
        take_over(driver, ns, built.source, by=adopt_copy, clean=True)


@pytest.mark.usefixtures("_quiet")
@pytest.mark.parametrize("backend", ["cluster-valkey-9"], indirect=True)
def test_a_cluster_adopts_by_copying(redis_url, raw, ns, built):
    before = originals(built)

    def cli(*more):
        return shell.call(
            *("migrate", "adopt", "--stream", built.stream, "--group", "senders", "--as", "mail", "--dead", built.dead),
            *("--scheduled", built.times, "--bodies", built.bodies, "--payload-field", built.payload),
            *("--url", redis_url, "--deployment", ns, *more),
        )

    assert cli("--remove-old", "--yes").returncode == 3
    looked = cli("--dry-run", "--json")
    assert (looked.returncode, json.loads(looked.stdout)["way"]) == (0, "keep")
    done = cli("--yes")
    assert (done.returncode, done.stderr) == (0, "")
    assert adopted(built) == originals(built) == before
    again = cli("--yes")
    assert (again.returncode, again.stdout.splitlines()[0]) == (0, "mail: nothing to move")
    removed = cli("--remove-old", "--yes")
    assert (removed.returncode, removed.stdout.splitlines()[0]) == (0, "mail: 4 old keys removed")
    assert adopted(built) == before
    assert not any(raw.exists(key) for key in built.source.kinds)
