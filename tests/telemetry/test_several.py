"""One page for all processes of ``streamq run``; and what is installed, and imported, when."""

from __future__ import annotations

import fcntl
import os
import re
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from waiting import until
from worker.crew import COMMAND, TESTS, Crew
from worker.fleet import free_port, is_idle

from streamq import Stream
from streamq.telemetry import several

TARGET = "telemetry.shift:worker"


@pytest.fixture
def stream(redis_url, ns, raw):
    with Stream(ns, redis=redis_url) as opened:
        yield opened
    raw.srem("streamq:streams", ns)


def page(port):
    """What is not 0: metric and labels' values, but for stream and group -> value. Empty while nobody answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
    except OSError:
        return {}
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples if sample.value]
    usual = ("stream", "group")
    return {(s.name, *(v for k, v in s.labels.items() if v and k not in usual)): s.value for s in samples}


def succeeded(port):
    return page(port).get(("streamq_jobs_total", "succeeded"), 0)


def running(port):
    return page(port).get(("streamq_jobs_running",), 0)


def folder_of(pid):
    """Where a process keeps its metrics."""
    [folder] = set(re.findall(r"\S+/streamq-metrics-\w+", Path(f"/proc/{pid}/maps").read_text()))
    return Path(folder)


def test_what_killed_supervisors_have_left_is_removed(tmp_path):
    names = ("streamq-metrics-used", "streamq-metrics-left", "streamq-metrics-new", "others")
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "counter_1.db").touch()
        if not name.endswith("new"):
            os.utime(tmp_path / name, (0, 0))
    lock = os.open(tmp_path / names[0], os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    several.remove_left(tmp_path)
    os.close(lock)
    assert {path.name for path in tmp_path.iterdir()} == {*names} - {"streamq-metrics-left"}


def test_a_file_that_its_process_has_just_made_ends_no_scrape():
    """Or has made, and then been killed: it is empty."""
    port = free_port()
    with several.served("127.0.0.1", port) as keep_metrics:
        [folder] = keep_metrics.args
        for kind in KINDS:
            (Path(folder) / f"{kind}_1.db").touch()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            assert (answer.status, answer.read()) == (200, b"")


KINDS = ("counter", "gauge_livemin", "gauge_livesum", "histogram")


def test_all_processes_are_one_page_and_a_killed_one_goes_on_counting(stream, redis_url, ns, tmp_path):
    port = free_port()
    with Crew(redis_url, ns, tmp_path, lease=5, retries=1) as crew:
        crew.start("--processes", "2", "--metrics", str(port), target=TARGET).until_up(3)
        stream.add_many({"name": f"a{n}", "do": "ack"} for n in range(40))
        until(lambda: succeeded(port) == 40)
        assert running(port) == 0
        stream.add({"name": "held", "gated": True, "do": "ack"})
        until(lambda: running(port) == 1)

        stream.add({"name": "killer", "first_do": "die", "do": "ack"})
        until(lambda: len(crew.children()) == 4)  # two, one for last chances, and a successor
        crew.events.open("held")
        until(lambda: succeeded(port) == 42, timeout=40)
        stream.add_many({"name": f"b{n}", "do": "ack"} for n in range(20))
        until(lambda: succeeded(port) == 62)
        # What the dead one had running, runs no more.
        until(lambda: is_idle(stream) and running(port) == 0)
        assert page(port)["streamq_worker_healthy",] == 1

        folder = folder_of(crew.alive()[0].pid)
        kept = {path.name for path in folder.iterdir()}
        assert kept <= {f"{kind}_{n}.db" for n in (1, 2, 3) for kind in KINDS}  # and none is named after a process
        assert crew.stop() == 0
        assert not folder.exists()
    assert "Traceback" not in crew.log


def refused(*arguments, command=COMMAND, **env):
    done = subprocess.run(
        [*command, TARGET, *arguments],
        cwd=TESTS, env=os.environ | {"PYTHONPATH": str(TESTS.parent)} | env, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2, done
    [line] = done.stderr.splitlines()
    return line


def test_what_cannot_be_served_is_refused_in_one_line():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"cannot listen at 127.0.0.1:{port}: " in refused("--metrics", str(port))
    assert "--metrics takes a port, or 'host:port', not 'x'" in refused("--metrics", "x")
    assert "--metrics needs --start-method spawn" in refused("--metrics", "0", "--start-method", "fork")
    assert "unset PROMETHEUS_MULTIPROC_DIR" in refused("--metrics", "0", PROMETHEUS_MULTIPROC_DIR="x")


def without(module):
    """The command line where a library is not installed."""
    return [sys.executable, "-c", f"import sys; sys.modules[{module!r}] = None; from streamq.cli import main; main()"]


def test_without_the_library_it_is_named(redis_url, ns):
    assert "pip install 'streamq[prometheus]'" in refused(
        "--metrics", "0", command=[*without("prometheus_client"), "run"]
    )
    done = subprocess.run(
        [*without("prometheus_client"), "inspect", ns, "--url", redis_url, "--prometheus"],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "streamq: --prometheus needs prometheus-client: pip install 'streamq[prometheus]'\n"
    for module, name in (("prometheus_client", "WorkerMetrics"), ("opentelemetry", "Tracing")):
        code = f"import sys; sys.modules[{module!r}] = None; from streamq.telemetry import {name}"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert "pip install 'streamq[" in done.stderr.splitlines()[-1]


def test_neither_library_is_imported_before_it_is_used():
    code = """
import sys
import redis, redis.asyncio  # which itself imports opentelemetry where it is installed
before = set(sys.modules)
import streamq, streamq.telemetry, streamq.telemetry.several, streamq.cli, streamq.worker.supervisor
from streamq import Stream, Worker
Worker(Stream("orders"), print)
print([name for name in set(sys.modules) - before if name.startswith(("prometheus_client", "opentelemetry"))])
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"
