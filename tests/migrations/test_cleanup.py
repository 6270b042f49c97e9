"""cleanup takes in what the previous version has written since, and removes its keys; verify says what is left, or broken."""

from __future__ import annotations

import contextlib

import look
import pytest
from migrations.previous import OWNER, Steps, fill, layout, migrate, stored

from streamq import MigrationError, Stream
from streamq.keys import Keys, migration_lock, owner_of
from streamq.migrations import coordinator, m001_hash_tags
from streamq.migrations.coordinator import InUseError


def old_keys(raw, ns):
    """Names of the previous layout that are there."""
    found = (key.decode() for key in raw.scan_iter(match=f"{ns}:*", count=1000))
    return sorted(key for key in found if (owner := owner_of(key, ns)) is not None and not owner[1])


def age_all(raw, old):
    """All that it holds is older than a lease."""
    for group in look.groups(raw, old):
        look.age(raw, old, idle=1_000, group=group)


@pytest.fixture
def applied(make_old, driver, ns):
    """A deployment of which all is moved, and its previous version, which runs on."""
    old = make_old()
    fill(old)
    migrate(driver, ns, clean=False)
    return old


@pytest.mark.covers("M6")
def test_what_was_written_meanwhile_moves_and_the_keys_go(applied, driver, raw, ns):
    for n in range(3):
        applied.add({"n": n}, job_id=f"late{n}", delay=60)
    applied.add({}, job_id="now")
    done = migrate(driver, ns)
    assert (done.total("scheduled"), done.total("entries"), done.failed) == (3, 1, [])
    assert old_keys(raw, ns) == []
    after = layout(raw, Keys("mail", ns))
    assert {"/late0", "/late1", "/late2"} <= set(after.timers)
    ours = {dict(fields).get(b"sq:id"): entry_id for entry_id, fields in after.entries}
    assert after.ids["now"] == f"queued {ours[b'now']}"
    before = look.dumps(raw, ns)
    again = migrate(driver, ns)
    assert again.streams == []
    assert {name: dump for name, dump in look.dumps(raw, ns).items() if b"migration" not in name} == {
        name: dump for name, dump in before.items() if b"migration" not in name
    }


@pytest.mark.covers("M6")
def test_it_is_refused_while_the_previous_version_works(applied, driver, raw, ns):
    applied.add({})
    applied.read("w")
    before = look.dumps(raw, ns)
    with pytest.raises(InUseError, match=r"consumer w of group workers took entry .* is alive"):
        migrate(driver, ns)
    assert look.dumps(raw, ns) == before
    age_all(raw, applied)
    migrate(driver, ns)
    assert old_keys(raw, ns) == []


def test_it_is_refused_while_a_worker_of_the_previous_version_beats(applied, driver, raw, ns):
    raw.hset(applied._spec.keys.workers, "w7", f"{look.server_ms(raw)} {{}}")
    with pytest.raises(InUseError, match="worker w7 of stream mail"):
        migrate(driver, ns)
    raw.hset(applied._spec.keys.workers, "w7", f"{look.server_ms(raw) - 60_000} {{}}")
    migrate(driver, ns)
    assert old_keys(raw, ns) == []


@pytest.mark.covers("M6", "M7")
def test_the_new_layouts_copy_of_a_job_id_is_kept(applied, driver, raw, redis_url, ns):
    with Stream("mail", redis=redis_url, deployment=ns) as new:
        new.resume()
        new.add({"from": "new"}, job_id="scheduled", delay=600)
        new.add({"from": "new"}, job_id="ready")
        new.add({"from": "new"}, job_id="done")
        for job in new.read("w", count=100):
            if job.id == "done":
                new.ack(job)
        for job_id in ("scheduled", "ready", "done", "chosen0"):  # the last one was finished before
            applied.add({"from": "old"}, job_id=job_id, delay=60)
        for job_id in ("twice", "done2"):
            new.add({"from": "new"}, job_id=job_id)
            applied.add({"from": "old"}, job_id=job_id)
        before = layout(raw, new._spec.keys)
        done = migrate(driver, ns)
        after = layout(raw, new._spec.keys)
        assert done.total("superseded") == 6
        assert (after.timers, after.entries) == (before.timers, before.entries)
        assert new.scheduled.get("scheduled").due_at is not None
    assert old_keys(raw, ns) == []


def test_pending_entries_whose_bodies_are_gone_become_dead_letters(applied, driver, raw, ns):
    applied.add({})
    [job] = applied.read("w")
    age_all(raw, applied)
    raw.xdel(applied._spec.keys.stream, job.entry_id)
    migrate(driver, ns)
    assert old_keys(raw, ns) == []
    letter = dict(layout(raw, Keys("mail", ns)).dead[-1])
    assert (letter[b"dead:reason"], letter[b"dead:source"]) == (b"entry_missing", job.entry_id.encode())


def test_keys_of_effects_that_both_layouts_have_stay(applied, driver, raw, ns):
    old = applied._spec.keys
    raw.set(old.data("note"), "theirs")
    done = migrate(driver, ns)
    assert "1 keys of effects are there in both layouts" in done.failed[0]
    assert raw.get(old.data("note")) == b"theirs"
    raw.unlink(old.data("note"))
    assert migrate(driver, ns).failed == []


@pytest.mark.covers("M8")
def test_verify_tells_leftovers_from_defects(applied, driver, raw, ns):
    def verify():
        _, there = driver.run(coordinator.standing(ns))
        return driver.run(coordinator.look(ns, there)), driver.run(coordinator.verify(ns, there))

    applied.add({}, delay=60)
    [left], defects = verify()
    assert (left.scheduled, defects) == (1, [])
    raw.zadd(applied._spec.keys.scheduled, {"/lost": 1})
    _, [defect] = verify()
    assert "1 times in" in defect
    assert "/lost" in defect
    raw.zrem(applied._spec.keys.scheduled, "/lost")
    raw.zadd(Keys("mail", ns).scheduled, {"/lost": 1})
    _, [defect] = verify()
    assert Keys("mail", ns).scheduled in defect


@pytest.mark.covers("M6", "M12", "C29")
def test_cleanup_may_be_broken_off_after_each_request(applied, driver, raw, ns, monkeypatch):
    for name, size in {"JOBS": 2, "ENTRIES": 1, "LETTERS": 1, "RECORDS": 2, "KEYS": 1}.items():
        monkeypatch.setattr(m001_hash_tags, name, size)
    for n in range(3):
        applied.add({"n": n}, job_id=f"late{n}", delay=60)
        applied.add({"n": n}, job_id=f"now{n}")
    applied.resume()
    applied.reject(applied.read("w")[0], "no")
    age_all(raw, applied)
    put_back = stored(raw, ns)
    after, ended = 0, False
    while not ended:
        put_back()
        run = Steps(driver, plan(driver, ns))
        with contextlib.suppress(MigrationError):
            ended = run.take(after)
        run.drop()
        raw.delete(migration_lock(ns))
        assert driver.run(plan(driver, ns)).failed == []
        assert old_keys(raw, ns) == []
        found = layout(raw, Keys("mail", ns))
        assert {f"/late{n}" for n in range(3)} <= set(found.timers)
        jobs = [dict(fields).get(b"sq:id") for _, fields in found.entries] + [
            dict(fields).get(b"dead:job_id") for fields in found.dead
        ]
        assert [jobs.count(f"now{n}".encode()) for n in range(3)] == [2, 1, 1]  # dead for one group
        after += 1
    assert after > 15


def plan(driver, ns):
    lock = coordinator.new_lock(ns, OWNER)
    _, there = driver.run(coordinator.standing(ns))
    raw_lock = coordinator.acquire(lock, ns)
    with contextlib.suppress(MigrationError):
        driver.run(raw_lock)
    return coordinator.cleanup(lock, ns, there, lambda _: None)
