"""What a program is told about its worker."""

from __future__ import annotations

import logging
from typing import get_args

import pytest

from streamq import Buried, ConfigurationError, Hooks, Job
from streamq.worker.hooks import HookList, HookName


def a_job():
    return Job(payload="secret 4711", id="job-1", entry_id="1-0", deliveries=1, _consumer="c")


def buried(job=None):
    return Buried(stream="orders", entry_id="2-0", reason="attempts", error="ValueError: 4711", job=job)


class Noting(Hooks):
    """Overrides two, and notes them."""

    def __init__(self, notes, name):
        self.notes = notes
        self.name = name

    def started(self, job):
        self.notes.append((self.name, "started", job.id))

    def dead_lettered(self, dead):
        self.notes.append((self.name, "dead_lettered", dead.entry_id))


def test_each_is_told_in_order():
    notes = []
    hooks = HookList([Noting(notes, "a"), Hooks(), Noting(notes, "b")])
    hooks.tell("started", a_job())
    hooks.tell("dead_lettered", buried())
    assert notes == [
        ("a", "started", "job-1"),
        ("b", "started", "job-1"),
        ("a", "dead_lettered", "2-0"),
        ("b", "dead_lettered", "2-0"),
    ]


ARGUMENTS = {
    "started": (a_job(),),
    "ended": (a_job(),),
    "succeeded": (a_job(),),
    "retried": (a_job(), "ValueError: x"),
    "dead_lettered": (buried(),),
    "released": (a_job(),),
    "lease_lost": (a_job(),),
    "unhealthy": ("stream orders: Connection refused",),
    "healthy": (),
}


@pytest.mark.parametrize("name", get_args(HookName))
def test_every_hook_is_there_and_does_nothing_by_itself(name):
    getattr(Hooks(), name)(*ARGUMENTS[name])
    told = []
    kind = type("One", (Hooks,), {name: lambda self, *arguments: told.append(arguments)})
    hooks = HookList([Hooks(), kind()])
    for other in get_args(HookName):
        hooks.tell(other, *ARGUMENTS[other])
    assert told == [ARGUMENTS[name]]


def test_no_hook_has_been_forgotten():
    assert set(get_args(HookName)) == {name for name in vars(Hooks) if not name.startswith("_")}


@pytest.mark.covers("C25")
@pytest.mark.parametrize("error", [ValueError("secret 4711"), SystemExit(1), KeyboardInterrupt()], ids=repr)
def test_a_hook_that_raises_is_logged_once_and_changes_nothing(error, caplog):
    class Broken(Hooks):
        def started(self, job):
            raise error

        def dead_lettered(self, dead):
            raise error

        def healthy(self):
            raise error

    notes = []
    hooks = HookList([Broken(), Noting(notes, "after")])
    hooks.tell("started", a_job())
    hooks.tell("dead_lettered", buried(a_job()))
    hooks.tell("healthy")
    assert [note[1] for note in notes] == ["started", "dead_lettered"]
    kind = type(error).__name__
    lines = [record.getMessage().rpartition(" where=test_hooks.py:")[0] for record in caplog.records]
    assert lines == [
        f"hook failed: hook=Broken.started entry_id=1-0 error={kind}",
        f"hook failed: hook=Broken.dead_lettered entry_id=2-0 error={kind}",
        f"hook failed: hook=Broken.healthy error={kind}",
    ]
    assert {record.levelno for record in caplog.records} == {logging.ERROR}
    assert "secret" not in caplog.text


def test_a_hook_that_takes_other_arguments_is_logged(caplog):
    class Odd(Hooks):
        def started(self):
            pass

    HookList([Odd()]).tell("started", a_job())
    assert "hook failed: hook=Odd.started entry_id=1-0 error=TypeError" in caplog.text


def test_what_is_refused_at_once():
    class Waiting(Hooks):
        async def succeeded(self, job):
            pass

    with pytest.raises(ConfigurationError, match=r"hook Waiting\.succeeded is an async def"):
        HookList([Waiting()])
    for wrong in (Hooks, print, None):
        with pytest.raises(ConfigurationError, match=r"instances of streamq\.Hooks"):
            HookList([wrong])


def test_what_was_buried():
    job = a_job()
    one = buried(job)
    assert (one.job_id, one.job) == (None, job)
    assert "4711" not in repr(Buried(stream="orders", entry_id="2-0", reason="rejected", job=job))
    with pytest.raises(AttributeError):
        one.reason = "rejected"
