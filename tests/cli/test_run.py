"""``streamq run``, as a shell and a service manager see it: signals, restarts, exit statuses."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from worker import fleet
from worker.crew import COMMAND, TESTS, Crew, is_alive

from streamq import Stream

BOTH = pytest.mark.parametrize("method", ["spawn", "fork"])


@pytest.fixture
def stream(redis_url, ns):
    with Stream(ns, redis=redis_url) as opened:
        yield opened


@pytest.fixture
def make_crew(redis_url, ns, tmp_path):
    """Make a crew on the stream of this test; arguments as of `Crew`."""

    def make(**settings):
        return Crew(redis_url, ns, tmp_path, **settings)

    return make


def begun(crew, name):
    return fleet.until(lambda: crew.events.all("start", name))[-1]


def stops(crew):
    """How many signals to stop the supervisor has heeded: of two that come at once the system makes one."""
    return crew.log.count("stopping the children (")


# --- stopping -----------------------------------------------------------------------------


@BOTH
def test_sigterm_lets_jobs_end(make_crew, stream, method):
    with make_crew() as crew:
        crew.start("--processes", "2", "--start-method", method).until_up(2)
        stream.add({"name": "a", "seconds": 1.5})
        begun(crew, "a")
        assert crew.stop() == 0
        assert crew.events.all("end", "a")
        assert not crew.alive()
    assert fleet.is_idle(stream)
    assert "Traceback" not in crew.log
    assert not [f for f in Path("/dev/shm").glob("streamq-*") if any(c.consumer in f.name for c in crew.children())]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_all_processes_is_one_signal(make_crew, stream, number):
    """As of Ctrl-C in a terminal, and of systemd: the children get it, too, and are told by their supervisor besides."""
    with make_crew() as crew:
        crew.start("--processes", "2").until_up(2)
        stream.add({"name": "a", "seconds": 1.5})
        begun(crew, "a")
        os.killpg(crew.process.pid, number)
        assert crew.wait() == 0
        assert crew.events.all("end", "a")
    assert "Traceback" not in crew.log
    assert "KeyboardInterrupt" not in crew.log


def test_a_second_signal_stops_at_once_and_gives_back(make_crew, stream):
    with make_crew(worker={"drain": 300}) as crew:
        crew.start().until_up(1)
        stream.add({"name": "a", "seconds": 300})
        begun(crew, "a")
        crew.signal(signal.SIGTERM)
        fleet.until(lambda: stops(crew) == 1)
        assert crew.process.poll() is None  # it has 300 s by itself
        crew.signal(signal.SIGTERM)
        assert crew.wait() == 0
    [job] = stream.reclaim("next").claimed  # at once: its process is gone
    assert job.payload["name"] == "a"


def test_a_child_that_does_not_stop_is_killed(make_crew, stream):
    with make_crew(worker={"drain": 0.2}) as crew:
        crew.start().until_up(1)
        stream.add({"name": "a", "seconds": 300, "block": True})  # its event loop hears nothing
        begun(crew, "a")
        for number in (1, 2, 3):
            crew.signal(signal.SIGTERM)
            fleet.until(lambda number=number: stops(crew) >= number)
        assert crew.wait() == 1
        assert not crew.alive()
        assert "does not stop: killing it" in crew.log
    assert len(stream.reclaim("next").claimed) == 1


@BOTH
def test_children_do_not_outlive_their_supervisor(make_crew, stream, method):
    with make_crew() as crew:
        children = crew.start("--processes", "2", "--start-method", method).until_up(2)
        stream.add({"name": "a", "seconds": 1.5})
        begun(crew, "a")
        crew.signal(signal.SIGKILL)
        crew.wait()
        fleet.until(lambda: not any(is_alive(child.pid) for child in children))
        assert crew.events.all("end", "a")  # in good order
    assert fleet.is_idle(stream)


# --- restarts -----------------------------------------------------------------------------


@pytest.mark.covers("C04")
def test_restarts_wait_longer_each_time(make_crew, stream):
    with make_crew(max_deliveries=6) as crew:
        crew.start("--start-method", "fork", "--solo", "0").until_up(1)
        stream.add({"name": "a", "do": "die"})
        fleet.until(lambda: len(stream.dead_letters.list()) == 1)
        assert crew.stop() == 0
    waits = re.findall(r"ended with exit status 9 after \S+ s; restarting it (.+)", crew.log)
    assert len(waits) == 6
    if "after 1" not in crew.log:  # none has lived for ten seconds meanwhile
        assert waits == ["at once", *(f"in {s} s" for s in (0.1, 0.2, 0.4, 0.8, 1.6))]


def test_a_child_that_ends_by_itself_is_started_again(make_crew, stream):
    with make_crew() as crew:
        [first] = crew.start().until_up(1)
        stream.add({"name": "a", "do": "quit"})
        fleet.until(lambda: not is_alive(first.pid))
        [second] = crew.until_up(1)
        assert second.pid != first.pid
        assert "ended with exit status 0" in crew.log
        assert crew.stop() == 0
    assert fleet.is_idle(stream)


def test_sighup_restarts_one_after_the_other(make_crew, stream):
    with make_crew() as crew:
        before = crew.start("--processes", "2", "--solo", "0").until_up(2)
        stream.add({"name": "a", "seconds": 1.5})
        begun(crew, "a")
        crew.signal(signal.SIGHUP)
        fleet.until(lambda: len(crew.children()) == 4)
        after = crew.until_up(2)
        assert {child.pid for child in before}.isdisjoint(child.pid for child in after)
        assert crew.events.all("end", "a")
        stream.add({"name": "b"})
        fleet.until(lambda: crew.events.all("end", "b"))
        assert crew.stop() == 0
    began = [m.start() for m in re.finditer(r"child \d is process", crew.log)]
    ended = [m.start() for m in re.finditer(r"child \d \(process \d+\) ended with exit status 0", crew.log)]
    assert began[1] < ended[0] < began[2] < ended[1] < began[3]


# --- what cannot run ----------------------------------------------------------------------


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        cwd=TESTS,
        env=os.environ | {"PYTHONPATH": str(TESTS.parent)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
    )


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("worker.crew", "MODULE:WORKER"),
        (":worker", "MODULE:WORKER"),
        ("worker.crew:", "MODULE:WORKER"),
        ("no.such.module:worker", "no module no"),
        ("worker.no_such:worker", "no module worker.no_such"),
        ("worker.crew:no_such", "no no_such in module worker.crew"),
        ("worker.crew:NUMBER", "no worker"),
        ("worker.crew:from_nothing", "NoneType"),
        ("worker.crew:from_error", "LookupError: no"),
        ("worker.crew:worker", "KeyError: 'CREW'"),
    ],
)
def test_a_target_that_is_none_is_one_line_and_exit_2(target, words):
    done = run(target)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert "\x1b" not in done.stderr


def test_a_module_that_fails_says_where(tmp_path):
    (tmp_path / "broken.py").write_text("import json\n\njson.loads('{')\n")
    (tmp_path / "needy.py").write_text("import no_such_module\n")
    for target, words in (("broken:w", "JSONDecodeError"), ("needy:w", "no_such_module"), ("needy:w", "needy.py:1")):
        done = subprocess.run([*COMMAND, target], cwd=tmp_path, capture_output=True, text=True, timeout=100)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert words in done.stderr


@pytest.mark.parametrize(
    "arguments", [[], ["--processes", "0", "x:y"], ["--solo", "3", "x:y"], ["--start-method", "forkserver", "x:y"]]
)
def test_usage_errors_exit_2(arguments):
    assert run(*arguments).returncode == 2


def test_a_worker_that_can_never_run_ends_the_supervisor(make_crew, raw, ns):
    raw.set(f"streamq:{{{ns}}}:stream", "no stream")
    with make_crew() as crew:
        crew.start("--processes", "2")
        assert crew.wait() == 2
        assert not crew.alive()
        lines = crew.log.splitlines()
        [told] = [at for at, line in enumerate(lines) if line.startswith("streamq: ")]
        assert "not a stream" in lines[told]
        assert not [line for line in lines[told:] if "child" in line]  # it is told when all have ended
        assert "Traceback" not in crew.log


def test_one_that_cannot_run_later_is_tried_again(make_crew, raw, ns):
    key = f"streamq:{{{ns}}}:stream"
    with make_crew() as crew:
        [child] = crew.start("--start-method", "fork").until_up(1)
        fleet.until(lambda: raw.exists(key))
        raw.rename(key, f"{key}:aside")
        raw.set(key, "no stream")
        os.kill(child.pid, signal.SIGKILL)
        fleet.until(lambda: "not a stream" in crew.log and "restarting it in" in crew.log)
        raw.rename(f"{key}:aside", key)
        crew.until_up(1)
        assert crew.stop() == 0


def test_logs_cannot_speak_to_the_terminal(make_crew, stream, tmp_path):
    with make_crew(retries=0) as crew:
        crew.start("--log-level", "debug").until_up(1)
        stream.add({"name": "a", "do": "say"}, job_id="evil\u202e")
        fleet.until(stream.dead_letters.list)
        assert crew.stop() == 0
    assert "LookupError" in crew.log
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u202e]", crew.log)
    assert re.search(r"^\d{4}-\d\d-\d\d \S+ WARNING \[child 1 \d+\] streamq", crew.log, re.MULTILINE)
