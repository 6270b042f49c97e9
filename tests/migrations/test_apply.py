"""001_hash_tags moves all that the previous layout holds, and the previous version feels nothing of it."""

from __future__ import annotations

import threading

import look
import pytest
from migrations import previous as played
from migrations.previous import OWNER, Steps, fill, layout, migrate, previous
from waiting import until

from streamq import Backoff, ConfigurationError, LeaseLostError, MigrationError, Stream, StreamOptions, Worker
from streamq._requests import entry_order
from streamq.connection import settings_of
from streamq.keys import Keys, migration_lock, migration_record
from streamq.migrations import coordinator, m001_hash_tags
from streamq.migrations.coordinator import LockedError

KEEPING = {"lease": 900}


def command_of(deployment):
    return "streamq migrate apply" + (f" --deployment {deployment}" if deployment else "")


@pytest.mark.covers("M1", "C81")
def test_a_pending_migration_keeps_everybody_from_the_stream(make_stream, make_old, raw, ns):
    make_old(ns).add({})
    before = look.dumps(raw, ns)
    s = make_stream(deployment=ns)
    for use in (
        lambda: s.add({}),
        lambda: s.add({}, job_id="a"),
        lambda: s.add({}, delay=9),
        lambda: s.add_many([{}]),
        lambda: s.read("w"),
        lambda: s.reclaim("w"),
        lambda: s.cancel("a"),
    ):
        with pytest.raises(MigrationError, match=command_of(ns)):
            use()
    assert look.dumps(raw, ns) == before


@pytest.mark.covers("M1", "C81")
def test_a_fresh_store_and_plain_producers_are_not_kept_away(make_stream, raw, ns):
    s = make_stream(deployment=ns)
    assert s.add({}).created
    plain = make_stream("plain", deployment=ns)
    look.by_hand(raw, plain, "job", "{}")
    assert len(plain.read("w")) == 1


@pytest.mark.covers("M1")
def test_a_worker_refuses_to_start(make_old, redis_url, ns):
    make_old().add({})
    with Stream("mail", redis=redis_url, deployment=ns) as s, pytest.raises(MigrationError, match=command_of(ns)):
        Worker(s, lambda payload: None).run()


@pytest.mark.covers("M2")
def test_all_structures_move(redis_url, raw, driver, ns, deployment):
    with previous(redis_url, ns, deployment, **KEEPING) as old:
        fill(old)
        keys = old._spec.keys
        look.age(raw, old, idle=500)
        before = layout(raw, keys)
        assert all(
            (before.entries, before.pending["other"], before.timers, before.dead, before.ids, before.done, before.data)
        )
        done = migrate(driver, deployment, clean=False)
        after = layout(raw, Keys(ns, deployment))
        assert after == before
        for group, entries in before.idle.items():
            for entry_id, idle_ms in entries.items():
                assert idle_ms <= after.idle[group][entry_id] < idle_ms + 60_000
        assert [
            0 < after.ttl[at] <= left if left > 0 else after.ttl[at] == left for at, left in before.ttl.items()
        ] == [True] * 8
        assert done.total("entries") == len(before.entries)
        assert done.total("scheduled") == len(before.timers)
        assert done.failed == []
        empty = layout(raw, keys)
        assert (empty.entries, empty.timers, empty.dead, empty.ids, empty.meta, empty.data) == ([], {}, [], {}, {}, {})
        with Stream(ns, redis=redis_url, deployment=deployment) as new:
            assert not new.add({}, job_id="chosen5").created
            assert new.result("chosen0").value == "result"
            assert new.inspect().paused


@pytest.mark.covers("M2")
def test_what_the_new_layout_has_already_is_kept(redis_url, raw, driver, ns, make_old):
    old = make_old(**KEEPING)
    fill(old)
    keys = Keys("mail", ns)
    raw.hset(keys.meta, mapping={"paused": "mine", "done:workers": 5, "format": "1.0"})
    raw.xadd(keys.dead, {"dead:reason": "rejected"})
    raw.set(keys.data("else"), 1)
    before = layout(raw, old._spec.keys)
    migrate(driver, ns, clean=False)
    after = layout(raw, keys)
    assert after.meta[b"paused"] == b"mine"
    assert after.meta[b"done:workers"] == str(5 + int(before.meta[b"done:workers"])).encode()
    assert after.dead[1:] == before.dead
    assert set(after.data) == {*before.data, "else"}


def work(found, group):
    """What a group still has to do, by job ID: who holds it and how often it was delivered, or None if it is unread."""
    jobs = {}
    for entry_id, fields in found.entries:
        named = {name.decode(): value.decode() for name, value in fields}
        job_id = named.get("sq:id", entry_id)
        if named.get("sq:group", group) != group:
            continue
        if entry_id in found.pending[group]:
            jobs[job_id] = found.pending[group][entry_id]
        elif entry_order(entry_id) > entry_order(found.groups[group]):
            assert job_id not in jobs
            jobs[job_id] = None
    return jobs


@pytest.mark.covers("M2")
def test_a_stream_that_is_there_already_takes_the_entries_in(raw, driver, ns, make_old):
    old = make_old(**KEEPING)
    fill(old)
    look.age(raw, old, idle=500, count=3)
    before = layout(raw, old._spec.keys)
    keys = Keys("mail", ns)
    raw.xadd(keys.stream, {"job": '"first"'})
    for group in ("workers", "other"):
        raw.xgroup_create(keys.stream, group, "$")
    migrate(driver, ns, clean=False)
    after = layout(raw, keys)
    for group in ("workers", "other"):
        assert work(after, group) == work(before, group)
    assert min(after.idle["workers"].values()) >= 500_000
    ids = {dict(fields).get(b"sq:id"): entry_id for entry_id, fields in reversed(after.entries)}
    queued = {job_id: record for job_id, record in after.ids.items() if job_id.encode() in ids}
    assert queued == {job_id: f"queued {ids[job_id.encode()]}" for job_id in queued}
    assert len(queued) >= 3


@pytest.mark.covers("M2")
def test_where_a_group_has_not_read_all_it_reads_what_was_pending_anew(raw, driver, ns, make_old):
    old = make_old(**KEEPING)
    fill(old)
    before = layout(raw, old._spec.keys)
    keys = Keys("mail", ns)
    first = raw.xadd(keys.stream, {"job": '"first"'})
    migrate(driver, ns, clean=False)
    after = layout(raw, keys)
    for group in ("workers", "other"):
        assert work(after, group) == dict.fromkeys([first.decode(), *work(before, group)])


@pytest.mark.covers("M3")
def test_the_previous_version_feels_nothing(make_old, driver, ns, raw):
    old, reader = make_old(**KEEPING), make_old()
    old.add({"n": 1}, job_id="held")
    [held] = old.read("w")
    read = []
    waiting = threading.Thread(target=lambda: read.extend(reader.read("w2", block=30)))
    waiting.start()
    until(lambda: raw.info("clients")["blocked_clients"] >= 1)
    migrate(driver, ns, clean=False)
    assert waiting.is_alive()
    assert old.read("w") == []
    with pytest.raises(LeaseLostError) as lost:
        old.commit(held)
    assert lost.value.gone
    assert old.add({}, delay=60).state == "scheduled"
    old.add({"n": 2})
    waiting.join(30)
    assert [job.payload for job in read] == [{"n": 2}]


@pytest.mark.covers("M4")
def test_scheduled_jobs_move_in_batches_of_a_thousand(make_old, driver, raw, ns):
    old = make_old()
    old.add_many([{"n": n} for n in range(2_500)], delay=60)
    _, there = driver.run(coordinator.standing(ns))
    lock = coordinator.new_lock(ns, OWNER)
    driver.run(coordinator.acquire(lock, ns))
    steps = []
    plan = coordinator.apply(lock, ns, there, steps.append)
    run = Steps(driver, plan)
    while steps != [1_000]:
        run.take(1)
    run.drop()
    new = Keys("mail", ns)
    ours, theirs = layout(raw, new).timers, layout(raw, old._spec.keys).timers
    assert (len(ours), len(theirs), ours.keys() & theirs.keys()) == (1_000, 1_500, set())
    driver.run(coordinator.apply(lock, ns, there, steps.append))
    assert [n for n in steps if n][:3] == [1_000, 1_000, 500]
    assert len(layout(raw, new).timers) == 2_500


@pytest.mark.covers("M13", "C29")
def test_what_fails_is_said_and_does_not_stop_the_rest(make_old, driver, raw, ns):
    old = make_old()
    fill(old)
    raw.unlink(old._spec.keys.scheduled)
    raw.set(old._spec.keys.scheduled, "somebody else's")
    done = migrate(driver, ns)
    assert len(done.failed) == 1
    assert f"{old._spec.keys.scheduled} holds a string, not a zset" in done.failed[0]
    assert raw.get(old._spec.keys.scheduled) == b"somebody else's"
    assert not raw.exists(migration_record(ns, m001_hash_tags.NAME))
    assert raw.exists(Keys("mail", ns).stream)
    raw.unlink(old._spec.keys.scheduled)
    assert migrate(driver, ns).failed == []
    assert driver.run(coordinator.standing(ns))[0].state == "applied"


@pytest.mark.covers("M14", "M15", "C65")
def test_only_keys_of_the_deployment_are_touched(make_old, driver, raw, ns):
    foreign = {f"{ns}-x:{n}": str(n) for n in range(5_000)}
    foreign |= {f"{ns}:streamq:mail:other": "1", f"{ns}:streamq:a:b:stream": "1", f"{ns}:streamq:mail": "1"}
    raw.mset(foreign)
    other = make_old(deployment=f"{ns}-2")
    fill(other)
    before = look.dumps(raw, ns)
    make_old().add({})
    _, there = driver.run(coordinator.standing(ns))
    assert list(there.streams) == ["mail"]
    migrate(driver, ns)
    after = look.dumps(raw, ns)
    assert {key: after[key] for key in before} == before
    assert driver.run(coordinator.standing(f"{ns}-2"))[0].state == "pending"


@pytest.mark.covers("M12")
def test_one_of_two_works_and_a_lock_that_ran_out_stops_its_owner(make_old, driver, raw, ns):
    old = make_old()
    old.add_many([{"n": n} for n in range(1_500)], delay=60)
    _, there = driver.run(coordinator.standing(ns))
    mine, other = coordinator.new_lock(ns, OWNER), coordinator.new_lock(ns, "other:2:def")
    driver.run(coordinator.acquire(mine, ns))
    with pytest.raises(LockedError, match=OWNER):
        driver.run(coordinator.acquire(other, ns))
    raw.pexpire(migration_lock(ns), 5_000)
    told = []
    run = Steps(driver, coordinator.apply(mine, ns, there, told.append))
    while not told:
        run.take(1)
    assert raw.pttl(migration_lock(ns)) > 10_000  # renewed by the batch
    raw.delete(migration_lock(ns))
    driver.run(coordinator.acquire(other, ns))
    before = look.dumps(raw, ns)
    with pytest.raises(MigrationError, match="lock ran out"):
        run.take(1)
    assert look.dumps(raw, ns) == before
    assert not driver.run(coordinator.release(mine))
    assert driver.run(coordinator.apply(other, ns, there, told.append)).failed == []


@pytest.mark.covers("C83")
@pytest.mark.parametrize("missing", ["XDEL", "ZREM", "RENAME", "ZMSCORE", "XSETID"])
def test_what_the_user_may_not_do_is_named_before_anything_moves(make_old, raw, redis_url, ns, missing):
    fill(make_old())
    look.call(raw, "ACL", "SETUSER", ns, "on", ">pw", "~*", "+@all", f"-{missing.lower()}")
    before = look.dumps(raw, ns)
    user = settings_of(redis_url.replace("redis://", f"redis://{ns}:pw@")).blocking()
    with pytest.raises(ConfigurationError, match=missing):
        migrate(user, ns)
    assert look.dumps(raw, ns) == before
    user.close()
    look.call(raw, "ACL", "DELUSER", ns)


def test_large_entries_move_a_few_at_a_time(make_old, driver, raw, ns):
    old, body = make_old(), "x" * 900_000
    old.add_many([{"b": body}] * 12, delay=60)
    old.add_many([{"b": body}] * 12)
    raw.xgroup_create(Keys("mail", ns).stream, "workers", mkstream=True)
    told = []
    lock = coordinator.new_lock(ns, OWNER)
    _, there = driver.run(coordinator.standing(ns))
    driver.run(coordinator.acquire(lock, ns))
    driver.run(coordinator.apply(lock, ns, there, told.append))
    assert [count for count in told if count] == [10, 2, 10, 2]
    found = layout(raw, Keys("mail", ns))
    assert (len(found.timers), len(found.entries)) == (12, 12)


@pytest.mark.covers("M16", "M17")
def test_a_retry_of_the_previous_version_runs_and_what_it_had_in_hand_runs_again(make_old, driver, raw, redis_url, ns):
    old = make_old(lease=0.2, retry=Backoff.constant(3600))
    old.add({"n": "retry"})
    old.add({"n": "held"}, job_id="held")
    retried, held = old.read("w", count=2)
    old.retry(retried, "once")
    migrate(driver, ns, clean=False)
    ran = []
    with Stream("mail", redis=redis_url, deployment=ns, options=StreamOptions(lease=0.2)) as new:
        look.make_due(raw, new)
        worker = Worker(new, lambda payload, job: ran.append((payload["n"], job.attempt)))
        thread = threading.Thread(target=worker.run)
        thread.start()
        until(lambda: len(ran) == 2)
        worker.stop()
        thread.join(30)
    assert sorted(ran) == [("held", 1), ("retry", 2)]
    with pytest.raises(LeaseLostError):  # its process may have run it, too: at least once
        old.commit(held)


# --- wherever it is broken off ----------------------------------------------------------------


@pytest.fixture
def small_batches(monkeypatch):
    """So that little makes many requests."""
    for name, size in {"JOBS": 2, "ENTRIES": 3, "LETTERS": 1, "RECORDS": 2, "KEYS": 1}.items():
        monkeypatch.setattr(m001_hash_tags, name, size)


def apply_plan(driver, ns, owner=OWNER):
    """The lock taken by force, as after a death, and the plan."""
    lock = coordinator.new_lock(ns, owner)
    _, there = driver.run(coordinator.standing(ns))
    driver.run(coordinator.acquire(lock, ns))
    return coordinator.apply(lock, ns, there, lambda _: None)


@pytest.mark.covers("M4", "M12", "C29")
@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("way", ["rename", "copy"])
def test_apply_may_be_broken_off_after_each_request(make_old, driver, raw, ns, way):
    old = make_old(**KEEPING)
    fill(old)
    keys = Keys("mail", ns)
    if way == "copy":
        raw.xgroup_create(keys.stream, "workers", 0, mkstream=True)
        raw.xgroup_create(keys.stream, "other", 0)
    put_back = played.stored(raw, ns)
    before = layout(raw, old._spec.keys)
    Steps(driver, apply_plan(driver, ns)).take(1_000)
    whole = moved_layout(raw, keys)
    if way == "rename":
        assert layout(raw, keys) == before
    after, ended = 0, False
    while not ended:
        put_back()
        run = Steps(driver, apply_plan(driver, ns))
        ended = run.take(after)
        run.drop()
        ours, theirs = layout(raw, keys), layout(raw, old._spec.keys)
        assert {**ours.timers, **theirs.timers} == before.timers
        assert len(ours.timers) + len(theirs.timers) == len(before.timers)
        assert len(ours.ids) + len(theirs.ids) == len(before.ids)
        raw.delete(migration_lock(ns))
        if driver.run(coordinator.standing(ns))[0].state == "pending":
            assert driver.run(apply_plan(driver, ns, "other:2:def")).failed == []
        assert moved_layout(raw, keys) == whole
        after += 1
    assert after > 15


@pytest.mark.covers("M12")
@pytest.mark.usefixtures("small_batches")
def test_two_may_interleave_in_every_way_that_a_lock_can_run_out(make_old, driver, raw, ns):
    old = make_old(**KEEPING)
    fill(old)
    put_back = played.stored(raw, ns)
    before = layout(raw, old._spec.keys)
    after, ended = 0, False
    while not ended:
        put_back()
        first = Steps(driver, apply_plan(driver, ns))
        ended = first.take(after)
        raw.delete(migration_lock(ns))
        second = None
        if driver.run(coordinator.standing(ns))[0].state == "pending":
            second = Steps(driver, apply_plan(driver, ns, "other:2:def"))
            second.take(3)
        if not ended:
            with pytest.raises(MigrationError, match="lock"):
                first.take(1_000)
        if second is not None:
            assert second.take(1_000)
        assert layout(raw, Keys("mail", ns)) == before
        after += 2
    assert after > 15


def moved_layout(raw, keys):
    """What counts after a move entry by entry: new IDs differ from run to run."""
    found = layout(raw, keys)
    place = {entry_id: at for at, (entry_id, _) in enumerate(found.entries)}
    found.entries = [("", fields) for _, fields in found.entries]
    found.groups = {name: str(place.get(last)) for name, last in found.groups.items()}
    found.pending = {
        group: {str(place[entry_id]): row for entry_id, row in rows.items()} for group, rows in found.pending.items()
    }
    for records in (found.ids, found.done):
        for name, record in records.items():
            word, _, value = record.partition(" ")
            records[name] = f"{word} {place.get(value, value)}" if word == "queued" else record
    return found
