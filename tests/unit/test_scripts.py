"""The scripts: their headers tell the truth, and they touch only the keys that they are given."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from streamq import Effects, StreamOptions, _scripts, _scripts_adopt, _scripts_migrate, _scripts_timers, _scripts_upkeep
from streamq._ops import access
from streamq._scripts import Held, NewJob, Settled
from streamq._scripts_migrate import Lock
from streamq._scripts_timers import When
from streamq._scripts_upkeep import Role
from streamq.keys import Keys, migration_lock, migration_record
from streamq.messages import JobIdKind

LUA = Path(__file__).parents[2] / "lua"
NAMES = sorted(path.stem for path in LUA.glob("*.lua"))
SHARED = sorted(path.stem for path in (LUA / "shared").glob("*.lua"))

_DOCUMENTED = re.compile(r"^-- (KEYS|ARGV)\[(\d+)(\.\.)?(\d+)?\]\s+(.*)$", re.MULTILINE)
_USED = re.compile(r"\b(KEYS|ARGV)\[(\d+)\]")


def text(name):
    return (LUA / f"{name}.lua").read_text("utf-8")


def code(source):
    """Without comments."""
    return re.sub(r"--.*", "", source)


def documented(name, what):
    """Rows of the header: (first, last or None when it is open, the rest of the line)."""
    rows = []
    for kind, first, dots, last, rest in _DOCUMENTED.findall(text(name)):
        if kind == what:
            rows.append((int(first), int(last) if last else None if dots else int(first), rest))
    return rows


def calls():
    """One call of every script, from its constructor."""
    keys, options = Keys("x"), StreamOptions()
    effects = Effects().incrby("a").set("b", "v").incrby("a")
    item = Settled("1-0", 2, JobIdKind.CHOSEN, "id", b"r")
    held = Held("1-0", 1)
    c = {"consumer": "w"}
    return {
        "ack": _scripts.ack(keys, options, batch=[item], **c),
        "add": _scripts.add(keys, options, jobs=[NewJob("id", ["job", b"{}"]), NewJob(None, ["job", b"{}"])]),
        "cancel": _scripts.cancel(keys, options, job_id="id", only_scheduled=False),
        "claim_id": _scripts.claim_id(keys, options, batch=[(held, "id")], **c),
        "commit": _scripts.commit(keys, options, item=item, effects=effects, **c),
        "dead_letter": _scripts.dead_letter(
            keys, options, held=held, reason="rejected", error="e", job_id="id", attempts=1, **c
        ),
        "check": _scripts.check(keys, commands=access.READER),
        "delete": _scripts_upkeep.delete(keys, force=False),
        "drop_group": _scripts_upkeep.drop_group(keys, group="g", force=False),
        "leave": _scripts_upkeep.leave(keys, options, **c),
        "once": _scripts.once(keys, options, once_id="id", effects=effects),
        "pass_over": _scripts.pass_over(keys, options, batch=[(held, "g")], **c),
        "pause": _scripts_upkeep.pause(keys, paused=True),
        "prune": _scripts_upkeep.prune(keys, options, min_idle_ms=1, count=2, look=3),
        "promote": _scripts_timers.promote(keys, options, most=2, max_bytes=3),
        "probe": _scripts_upkeep.probe(*keys.trial("a1"), ttl_ms=1),
        "purge": _scripts_upkeep.purge(keys, letter_ids=["1-0"]),
        "redrive": _scripts_upkeep.redrive(keys, options, letter_id="1-0", new_id=None, max_redrives=5),
        "reschedule": _scripts_timers.reschedule(keys, options, job_id="id", when=When("in", 5)),
        "run_now": _scripts_timers.run_now(keys, options, job_id="id"),
        "schedule": _scripts_timers.schedule(
            *(keys, options),
            job_id="id",
            kind=JobIdKind.CHOSEN,
            when=When("at", 5),
            replace=False,
            fields=["job", b"{}"],
        ),
        "result": _scripts.result(keys, options, job_id="id"),
        "reclaim": _scripts.reclaim(
            *(keys, options),
            **c,
            min_idle_ms=1,
            count=2,
            look=3,
            max_bytes=4,
            raise_count=True,
            least_count=0,
            most_last=2,
            last_patience_ms=7,
            delays_ms=[5, 6],
            exclude=["1-0"],
        ),
        "release": _scripts.release(keys, options, batch=[(held, 0, 1, "id")], **c),
        "renew": _scripts.renew(keys, options, batch=[held], **c),
        "retry": _scripts.retry(keys, options, item=item, enqueued_ms=1, attempt=2, errors=b"[]", delay_ms=7, **c),
        "start": _scripts.start(keys, options, targets=[held], **c),
        "tick": _scripts_upkeep.tick(keys, options, beat=b"{}", periods_ms={Role.TRIM: 1, Role.RECLAIM: 2}, **c),
        "trim": _scripts_upkeep.trim(keys, options, look=1, cursor="", stop=""),
        "sweep": _scripts.sweep(keys),
    } | migrating(keys)


def migrating(keys):
    """Of those that move what the previous layout holds."""
    old = keys.untagged
    lock = Lock(migration_lock(None), "me", 1)
    of_both = (lock, old, keys)
    return {
        "migrate_adopt_drop": _scripts_adopt.drop(lock, [old.stream, old.dead]),
        "migrate_adopt_hold": _scripts_adopt.hold(lock),
        "migrate_adopt_unlink": _scripts_adopt.unlink(old.stream, count=1, last="1-0"),
        "migrate_adopt_letters": _scripts_adopt.letters(
            lock, old.dead, keys, group="g", most=1, max_bytes=2, after="0-0", payload="job"
        ),
        "migrate_adopt_timers": _scripts_adopt.timers(lock, old.scheduled, old.jobs, keys, most=1, max_bytes=2, skip=0),
        "migrate_data": _scripts_migrate.data(*of_both, found=[old.data("a")]),
        "migrate_drop": _scripts_migrate.drop(lock, old),
        "migrate_entries": _scripts_migrate.entries(*of_both, most=1, max_bytes=2, after="0-0"),
        "migrate_letters": _scripts_migrate.letters(*of_both, most=1, max_bytes=2),
        "migrate_meta": _scripts_migrate.meta(*of_both),
        "migrate_record": _scripts_migrate.record(lock, migration_record(None, "001"), fields=["at", 1]),
        "migrate_records": _scripts_migrate.records(lock, old.ids[0], keys.ids, target=0, cursor="0", count=1),
        "migrate_scheduled": _scripts_migrate.scheduled(*of_both, most=1, max_bytes=2),
        "migrate_stream": _scripts_migrate.stream(lock, old.stream, keys.stream),
        "migrate_unlock": _scripts_migrate.unlock(lock.key, owner="me"),
    }


def pattern(key):
    """A key as headers write it: T, old (the previous layout), and D (what belongs to the deployment)."""
    if key.startswith("streamq:migration"):
        return re.sub(r":migration:.*$", ":migration:<name>", key.replace("streamq:", "D:"))
    key = key.replace("streamq:x", "old")
    if key.startswith("old:data:"):
        return "old:data:<key>"
    if ":data:" in key:
        return "T:data:<key>"
    key = re.sub(r":tick:.*$", ":tick:<role>", key)
    key = re.sub(r":probe:.*$", ":probe:<token>", key)
    return re.sub(r":(ids|done):\d+$", r":\1:<slice>", key.replace("streamq:{x}", "T"))


def test_every_script_has_a_constructor():
    assert sorted(calls()) == NAMES
    assert all(name == script.name for name, script in calls().items())


@pytest.mark.covers("C60")
@pytest.mark.parametrize("name", NAMES)
def test_the_constructor_gives_the_keys_of_the_header(name):
    given = [pattern(key) for key in calls()[name].keys]
    expected = []
    for first, last, rest in documented(name, "KEYS"):
        assert first == len(expected) + 1, "numbers must follow one another"
        found = re.findall(r"\b(?:T|D|old):[a-z_:]+(?:<[a-z]+>)?", rest)
        count = len(given) - first + 1 if last is None else last - first + 1
        if not rest.startswith("pairs"):
            assert len(found) == 1
        expected += found * (count // len(found))
    assert given == expected


@pytest.mark.parametrize("name", NAMES)
def test_the_constructor_gives_the_arguments_of_the_header(name):
    given = len(calls()[name].argv)
    rows = documented(name, "ARGV")
    assert [first for first, _, _ in rows] == list(range(1, len(rows) + 1))
    if not rows:
        assert given == 0
        return
    *fixed, (first, last, _) = rows
    assert all(a == b for a, b, _ in fixed)
    assert given == first if last is not None else given >= first


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("what", ["KEYS", "ARGV"])
def test_what_is_documented_is_used_and_the_reverse(name, what):
    used = {int(index) for kind, index in _USED.findall(code(text(name))) if kind == what}
    rows = documented(name, what)
    fixed = {n for first, last, _ in rows if last is not None for n in range(first, last + 1)}
    assert used == fixed
    if any(last is None for _, last, _ in rows):
        [start] = [first for first, last, _ in rows if last is None]
        # The rest is read by a loop, which begins where the header says.
        body = code(text(name))
        assert f"#{what}" in body or f"({what}, {start}," in body


@pytest.mark.parametrize("name", NAMES)
def test_the_shared_parts_named_are_those_used(name):
    uses = re.search(r"^-- Uses: (.+)$", text(name), re.MULTILINE)
    named = [part.strip() for part in uses[1].split(",")] if uses else []
    assert set(named) <= set(SHARED)
    body = code(text(name)) + "".join(code(text(f"shared/{part}")) for part in named)
    for part in named:
        functions = re.findall(r"^local function (\w+)", text(f"shared/{part}"), re.MULTILINE)
        assert any(len(re.findall(rf"\b{function}\(", body)) > 1 for function in functions), part


@pytest.mark.covers("C60")
@pytest.mark.parametrize("name", [*NAMES, *(f"shared/{part}" for part in SHARED)])
def test_no_key_is_put_together(name):
    body = code(text(name))
    literals = re.findall(r"'[^'\n]*'|\"[^\"\n]*\"", body)
    assert not [literal for literal in literals if re.search(r"streamq|[{}]", literal)]
    suffixes = "stream|dead|scheduled|jobs|ids|done|meta|workers|tick|wake|data"
    assert not re.search(rf"\.\.\s*['\"]:({suffixes})", body)
    assert not re.search(r"redis\.p?call\(\s*'[A-Z]+'\s*,\s*[^,()]*\.\.", body)


@pytest.mark.parametrize("name", NAMES)
def test_the_header_tells_replies_atomicity_and_server(name):
    header = text(name).partition("\n\n")[0]
    assert header.startswith(f"-- {name}.lua: ")
    assert "-- Returns" in header
    assert "-- Atomic because" in header
    assert "Redis >= 6.2" in header


def test_scripts_have_the_sha_that_servers_give_them(raw):
    for name in NAMES:
        assert raw.script_load(_scripts.source(name).text) == _scripts.source(name).sha
