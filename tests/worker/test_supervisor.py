"""`streamq run`: what a dead process held is back at once, and nothing is held against what it had not begun."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from collections import Counter

import pytest
from waiting import PATIENCE
from worker import fleet
from worker.crew import Crew

from streamq._flows.recovery import Note, NoteState
from streamq.connection import settings_of
from streamq.worker.journal import Journal
from streamq.worker.returns import Returns
from streamq.worker.seat import Seat

LEASE_S = 60.0
"""Longer than any of these tests takes."""


@pytest.fixture
def make_crew(redis_url, ns, tmp_path):
    """Make a crew on the stream of this test; arguments as of `Crew`."""

    def make(**settings):
        return Crew(redis_url, ns, tmp_path, **{"lease": LEASE_S, **settings})

    return make


@pytest.fixture
def consumers(raw, ns):
    """Names in the group: consumer -> how many entries it holds."""

    def look():
        found = raw.xinfo_consumers(f"streamq:{{{ns}}}:stream", "workers")
        return {row["name"].decode(): row["pending"] for row in found}

    return look


@pytest.mark.covers("G4", "C04", "C74", "F10")
@pytest.mark.parametrize(
    "how", ["--processes 2 --start-method spawn", "--processes 2 --start-method fork", "--start-method fork"]
)
def test_jobs_of_a_killed_child_run_again_at_once(make_crew, make_stream, raw, consumers, how):
    stream = make_stream(lease=LEASE_S)
    with make_crew(worker={"concurrency": 100}) as crew:
        crew.start(*how.split(), "--solo", "0").until_up(2 if "processes" in how else 1)
        stream.add_many({"name": f"j{n}", "first": 4} for n in range(100))
        fleet.until(lambda: len(crew.events.all("start")) == 100)
        [(victim, _), *_] = Counter(event.pid for event in crew.events.all("start")).most_common(1)
        held = {event.name for event in crew.events.all("start") if event.pid == victim}
        killed = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        fleet.until(lambda: held <= {event.name for event in crew.events.all("end")})
        took = max(event.at for event in crew.events.all("end")) - killed
        assert took < 10  # a second, on a quiet machine; without the supervisor it is the lease
        assert crew.events.starts() == {name: 2 if name in held else 1 for name in (f"j{n}" for n in range(100))}
        fleet.until(lambda: held <= fleet.effects(raw, stream).keys())
        dead = next(child.consumer for child in crew.children() if child.pid == victim)
        fleet.until(lambda: dead not in consumers())
        fleet.until(lambda: fleet.is_idle(stream))
        assert crew.stop() == 0
    assert fleet.effects(raw, stream) == {f"j{n}": 1 for n in range(100)}


@pytest.mark.covers("C05")
def test_what_was_read_but_not_begun_is_not_charged(make_crew, make_stream, raw, ns):
    stream = make_stream(lease=LEASE_S)
    with make_crew() as crew:
        [child] = crew.start().until_up(1)
        fleet.until(lambda: stream.inspect().groups)
        for name in "abcdefgh":
            os.kill(child.pid, signal.SIGSTOP)  # its read waits at the server, and gets what nobody takes up any more
            stream.add({"name": name})
            if raw.xpending(f"streamq:{{{ns}}}:stream", "workers")["pending"]:
                break
            os.kill(child.pid, signal.SIGCONT)  # stopped between two reads
            fleet.until(lambda: fleet.is_idle(stream))
        [row] = raw.xpending_range(f"streamq:{{{ns}}}:stream", "workers", "-", "+", 1)
        assert (row["consumer"].decode(), row["times_delivered"]) == (child.consumer, 1)
        os.kill(child.pid, signal.SIGKILL)
        [start] = fleet.until(lambda: crew.events.all("start", name))
        assert start.deliveries == 1
        fleet.until(lambda: fleet.is_idle(stream))
        assert crew.stop() == 0


@pytest.mark.covers("G4", "C04", "S4")
def test_a_killer_starts_as_often_as_it_may_and_harms_no_other(make_crew, make_stream, raw):
    stream = make_stream(lease=LEASE_S, max_deliveries=3)
    with make_crew(max_deliveries=3, worker={"concurrency": 8}) as crew:
        crew.start("--processes", "2").until_up(2)
        stream.add_many({"name": f"j{n}", "seconds": 0.05} for n in range(40))
        stream.add({"name": "killer", "do": "die"})
        stream.add_many({"name": f"j{n}", "seconds": 0.05} for n in range(40, 80))
        fleet.until(lambda: fleet.is_idle(stream), timeout=60)
        assert crew.events.starts()["killer"] == 3
        [letter] = stream.dead_letters.list()
        assert (letter.reason, json.loads(letter.payload)["name"]) == ("deliveries", "killer")
        assert fleet.effects(raw, stream) == {f"j{n}": 1 for n in range(80)}
        assert crew.stop() == 0


@pytest.mark.covers("C74")
def test_dead_consumers_do_not_pile_up(make_crew, make_stream, consumers):
    stream = make_stream(lease=LEASE_S)
    with make_crew() as crew:
        crew.start("--processes", "2", "--solo", "0", "--start-method", "fork").until_up(2)
        for n in range(8):
            stream.add({"name": f"j{n}", "first": 300})
            victim = fleet.until(lambda n=n: crew.events.all("start", f"j{n}"))[0].pid
            os.kill(victim, signal.SIGKILL)
            fleet.until(lambda n=n: crew.events.all("end", f"j{n}"))
            crew.until_up(2)
        names = {child.consumer for child in crew.alive()}
        fleet.until(lambda: consumers().keys() <= names, timeout=60)
        assert crew.stop() == 0


# --- without processes --------------------------------------------------------------------


@pytest.fixture
def returns_to(make_stream, proxy, tmp_path):
    """What ``dead`` held of a stream, and the returns that reach it through the proxy: (stream, entry ID, Returns)."""

    def make(clock=0.0):
        stream = make_stream(lease=LEASE_S)
        stream.add({})
        [job] = stream.read("dead")
        journal = Journal.create(tmp_path / "journal", capacity=4)
        journal.note(0, job.entry_id, 1, NoteState.READ)
        assert journal.notes() == [Note(0, job.entry_id, 1, NoteState.READ)]
        returns = Returns([(stream._spec, settings_of(proxy.url))])
        returns.add("dead", journal, clock)
        journal.close()
        return stream, returns

    return make


def test_returns_are_tried_again_until_the_server_can_be_reached(returns_to, proxy):
    stream, returns = returns_to()
    proxy.freeze()
    now = 0.0
    for _ in range(2):
        begun = time.monotonic()
        assert not returns.work(now)
        assert time.monotonic() - begun < 4 * PATIENCE  # a second a reply: the supervisor's loop waits along
        assert returns.has_new()
        assert now < returns.next_at() <= now + 5
        now = returns.next_at()
    assert not returns.work(now - 0.01)  # not due yet
    proxy.thaw()
    assert returns.work(now)
    assert not returns.has_new()
    assert [job.deliveries for job in stream.reclaim("next").claimed] == [1]


def test_a_consumer_is_visited_until_it_is_gone(returns_to, consumers):
    stream, returns = returns_to()
    assert returns.work(0)
    assert not returns.work(0)
    assert consumers() == {"dead": 1}
    stream.ack(stream.reclaim("next").claimed)
    assert not returns.work(returns.next_at())  # nothing to give back, but it goes
    assert consumers() == {"next": 0}
    assert returns.next_at() == float("inf")


def test_what_arrives_late_at_a_dead_consumer_is_given_back_too(returns_to, consumers):
    stream, returns = returns_to()
    assert returns.work(0)
    stream.ack(stream.reclaim("next").claimed)
    stream.add({})
    assert len(stream.read("dead")) == 1  # its request was on the way when it died
    assert returns.work(returns.next_at())
    assert [job.deliveries for job in stream.reclaim("next").claimed] == [1]
    returns.work(returns.next_at())
    assert consumers() == {"next": 1}


def test_visits_come_to_an_end(returns_to):
    _, returns = returns_to()
    now, visits = 0.0, 0
    while now < float("inf"):
        returns.work(now)
        visits, now = visits + 1, returns.next_at()
    assert 5 <= visits <= 20  # nobody takes it over: maintenance removes the consumer some time


def test_the_last_words_of_a_child_are_heard():
    """Also what it says, and ends, just after it was listened to: else one that can never run is started for ever."""
    seat = Seat(
        1, multiprocessing.get_context("fork"), "no.such.module:worker", solo=False, leaves_last=False, prepare=None
    )
    seat.start(time.monotonic())
    seat.listen()
    seat.occupant.process.join()
    assert "no module no" in seat.vacate(time.monotonic()).refused
