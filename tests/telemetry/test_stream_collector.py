"""What streams hold, as it is scraped: every number after what was done to a stream."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import time

import pytest
import redis
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from waiting import until
from worker.fleet import free_port

from streamq import AsyncStream, ConfigurationError, Stream, StreamOptions
from streamq.telemetry import StreamCollector

COMMAND = [sys.executable, "-W", "error", "-c", "from streamq.cli import main; main()"]


@pytest.fixture
def open_stream(redis_url, ns, raw):
    opened = []

    def open_one(name=ns, *, redis=redis_url, deployment=None, **options):
        opened.append(Stream(name, redis=redis, deployment=deployment, options=StreamOptions(**options)))
        return opened[-1]

    yield open_one
    for stream in opened:
        stream.close()
    raw.srem("streamq:streams", *{stream.name for stream in opened})


def page_of(*streams):
    registry, collector = CollectorRegistry(), StreamCollector(streams)
    registry.register(collector)
    try:
        return generate_latest(registry).decode()
    finally:
        collector.close()


def figures(page, **labels):
    """Metric -> value, or with more labels than those given: their values -> value."""
    found = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if labels.items() <= sample.labels.items():
                rest = tuple(v for k, v in sample.labels.items() if k not in labels and v)
                found[(sample.name, *rest)] = sample.value
    return found


def fill(stream):
    """Nine ready in two groups of which one has begun: 1 pending, 1 scheduled, 2 dead, 1 done, 1 retried, 1 redriven."""
    stream.add_many({"n": n} for n in range(9))
    done, retried, dead, dead_too, redriven, _held = stream.read("w", count=6)
    stream.ack(done)
    stream.retry(retried, delay=60)
    for job in (dead, dead_too, redriven):
        stream.reject(job, "no")
    stream.dead_letters.redrive([stream.dead_letters.list()[-1].id])


def test_every_figure_after_a_known_history(open_stream, ns):
    stream = open_stream(group="billing", groups=("billing", "mail"))
    fill(stream)
    stream.pause()
    found = figures(page_of(stream), deployment="", stream=ns)
    # The stream: nine, and the redriven one; what one group has settled stays for the other.
    assert found == {
        ("streamq_up",): 1,
        ("streamq_stream_entries",): 10,
        ("streamq_stream_scheduled_jobs",): 1,
        ("streamq_stream_dead_letters",): 2,
        ("streamq_stream_paused",): 1,
        ("streamq_group_ready_jobs", "billing"): 4,
        ("streamq_group_ready_jobs", "mail"): 10,
        ("streamq_group_ready_exact", "billing"): 1,
        ("streamq_group_ready_exact", "mail"): 1,
        ("streamq_group_pending_jobs", "billing"): 1,
        ("streamq_group_pending_jobs", "mail"): 0,
        ("streamq_group_consumers", "billing"): 1,
        ("streamq_group_consumers", "mail"): 0,
        ("streamq_group_abandoned", "billing"): 0,
        ("streamq_group_abandoned", "mail"): 0,  # a paused stream abandons nobody
        ("streamq_group_jobs_total", "billing", "done"): 1,
        ("streamq_group_jobs_total", "billing", "retried"): 1,
        ("streamq_group_jobs_total", "billing", "dead"): 3,
        ("streamq_group_jobs_total", "billing", "redriven"): 1,
        ("streamq_group_jobs_total", "mail", "done"): 0,
        ("streamq_group_jobs_total", "mail", "retried"): 0,
        ("streamq_group_jobs_total", "mail", "dead"): 0,
        ("streamq_group_jobs_total", "mail", "redriven"): 0,
    }
    stream.resume()
    found = figures(page_of(stream), deployment="", stream=ns)
    assert found["streamq_stream_paused",] == 0
    assert found["streamq_group_abandoned", "mail"] == 1


def test_one_stream_of_several_groups_counts_once(open_stream):
    both = [open_stream(group=group, groups=("billing", "mail")) for group in ("billing", "mail")]
    both[0].add({})
    page = page_of(*both)
    assert page.count("streamq_up{") == 1
    assert page.count("streamq_group_ready_jobs{") == 2


def test_deployments_are_told_apart(open_stream, ns):
    for deployment, jobs in ((f"{ns}a", 1), (f"{ns}b", 2)):
        open_stream(deployment=deployment).add_many({} for _ in range(jobs))
    page = page_of(*(open_stream(deployment=f"{ns}{letter}") for letter in "ab"))
    entries = {s: n for s, n in figures(page).items() if s[0] == "streamq_stream_entries"}
    assert entries == {("streamq_stream_entries", f"{ns}a", ns): 1, ("streamq_stream_entries", f"{ns}b", ns): 2}


def test_a_server_that_is_away_ends_no_scrape(open_stream, ns, caplog):
    """It is told, it is logged once, and it is waited for once, however many streams it has."""
    stream = open_stream()
    stream.add({})
    nowhere = f"redis://127.0.0.1:{free_port()}"
    away = [open_stream(f"{ns}.{n}", redis=nowhere) for n in range(3)]
    registry, collector = CollectorRegistry(), StreamCollector([*away, stream])
    registry.register(collector)
    with caplog.at_level(logging.WARNING, "streamq.telemetry"):
        for _ in range(2):
            page = generate_latest(registry).decode()
            up = {labels[-1]: n for (name, *labels), n in figures(page).items() if name == "streamq_up"}
            assert up == {ns: 1, f"{ns}.0": 0, f"{ns}.1": 0, f"{ns}.2": 0}
            assert page.count("streamq_stream_entries{") == 1
    assert len(caplog.records) == 3
    assert set(collector.problems) == {f"{ns}.{n}" for n in range(3)}
    collector.close()


def test_a_server_that_does_not_answer_is_given_up_in_time(open_stream, ns):
    with socket.create_server(("127.0.0.1", 0)) as mute:
        url = f"redis://127.0.0.1:{mute.getsockname()[1]}"
        streams = [open_stream(f"{ns}.{n}", redis=url) for n in range(5)]
        begun = time.monotonic()
        page = page_of(*streams)
        assert time.monotonic() - begun < 8  # one wait of two seconds, not five of them; Prometheus waits ten
    assert page.count("streamq_up{") == 5


def test_a_server_that_comes_back_is_scraped_again(new_server):
    server = new_server(appendonly=True)
    with Stream("jobs", redis=server.url) as stream:
        stream.add({})
        registry, collector = CollectorRegistry(), StreamCollector([stream])
        registry.register(collector)

        def up():
            return registry.get_sample_value("streamq_up", {"deployment": "", "stream": "jobs"})

        assert up() == 1
        server.kill()
        assert up() == 0
        server.start()
        until(lambda: up() == 1)
        assert collector.problems == {}
        collector.close()


def test_what_is_no_stream_costs_the_others_nothing(open_stream, ns, raw):
    broken, whole = open_stream(f"{ns}.broken"), open_stream(f"{ns}.whole")
    raw.set(broken._spec.keys.stream, "no stream")
    whole.add({})
    page = page_of(broken, whole)
    assert figures(page, stream=broken.name) == {("streamq_up",): 0}
    assert figures(page, stream=whole.name)["streamq_up",] == 1


def test_names_from_the_server_harm_neither_the_page_nor_a_terminal(open_stream, raw, ns):
    stream = open_stream()
    stream.add({})
    hostile = [b'quo"te', b"new\nline", b"\x1b[2J", b"\xff\xfe", b"back\\slash", "right\u202eleft".encode()]
    for name in hostile:
        raw.xgroup_create(stream._spec.keys.stream, name, "0")
    page = page_of(stream)
    assert "\x1b" not in page
    assert "\u202e" not in page
    ready = {labels[-1] for name, *labels in figures(page, stream=ns) if name == "streamq_group_ready_jobs"}
    assert ready == {'quo"te', "new\\x0aline", "\\x1b[2J", "\\xff\\xfe", "back\\slash", "right\\u202eleft"}


def test_registering_asks_no_server(open_stream):
    collector = StreamCollector([open_stream(redis=f"redis://127.0.0.1:{free_port()}")])
    CollectorRegistry().register(collector)
    assert collector.problems == {}
    assert {family.name for family in collector.describe()} == {family.name for family in collector.collect()}


def test_bad_input_is_refused(open_stream, redis_url, ns):
    with pytest.raises(ConfigurationError, match=r"instances of streamq\.Stream"):
        StreamCollector(["orders"])
    with pytest.raises(ConfigurationError, match=r"instances of streamq\.Stream"):
        StreamCollector([AsyncStream(ns, redis=redis_url)])
    with pytest.raises(ConfigurationError, match="on different servers"):
        StreamCollector([open_stream(), open_stream(redis="redis://127.0.0.1:1")])


@pytest.mark.covers("C52")
def test_looking_changes_nothing(open_stream, raw):
    stream = open_stream()
    fill(stream)
    keys = sorted(raw.scan_iter(f"*{stream.name}*"))
    before = [raw.dump(key) for key in keys]
    page_of(stream)
    assert [raw.dump(key) for key in keys] == before


# --- streamq inspect --prometheus ---------------------------------------------------------


def printed(*args, **env):
    environ = {key: value for key, value in os.environ.items() if not key.startswith("STREAMQ_")}
    return subprocess.run(
        [*COMMAND, "inspect", *args, "--prometheus"], env=environ | env, capture_output=True, text=True, timeout=60
    )


def test_inspect_prints_the_same_page(open_stream, redis_url, ns):
    fill(open_stream())
    done = printed(ns, "--url", redis_url)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == page_of(open_stream())
    assert "streamq_stream_dead_letters" in done.stdout


def test_inspect_prints_all_streams_of_a_deployment(open_stream, redis_url, ns, raw):
    for name in ("one", "two"):
        open_stream(name, deployment=ns).add({})
    done = printed("--deployment", ns, STREAMQ_URL=redis_url)
    assert done.returncode == 0
    up = [key for key in figures(done.stdout, deployment=ns) if key[0] == "streamq_up"]
    assert sorted(up) == [("streamq_up", "one"), ("streamq_up", "two")]
    raw.unlink(f"{ns}:streamq:streams")


def test_inspect_of_a_server_that_is_away_tells_so_in_both_ways(ns):
    done = printed(ns, "--url", f"redis://127.0.0.1:{free_port()}")
    assert done.returncode == 2
    assert figures(done.stdout) == {("streamq_up", ns): 0}
    assert done.stderr.startswith(f"streamq: {ns}: ")
    assert len(done.stderr.splitlines()) == 1


def test_a_user_who_may_only_read_is_enough(new_server):
    server = new_server()
    with redis.Redis.from_url(server.url) as admin, Stream("jobs", redis=server.url) as stream:
        fill(stream)
        admin.execute_command("ACL", "SETUSER", "looker", "on", ">pw", "~*", "+@read", "+xinfo")
        done = printed("jobs", "--url", server.url.replace("://", "://looker:pw@"))
    assert (done.returncode, done.stderr) == (0, "")
    assert figures(done.stdout, stream="jobs")["streamq_up",] == 1
