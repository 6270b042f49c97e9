"""What a worker counts: every number after a run whose numbers are known."""

from __future__ import annotations

import threading
from typing import get_args

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from waiting import until
from worker.fleet import is_idle, options_of, quick, working

from streamq import Backoff, ConfigurationError, Hooks, Reject, Release, Stream, StreamOptions
from streamq.messages import Reason
from streamq.telemetry import WorkerMetrics


@pytest.fixture
def stream(redis_url, ns, raw):
    with Stream(ns, redis=redis_url, options=options_of({"lease": 1, "retries": 1})) as opened:
        yield opened
    raw.srem("streamq:streams", ns)


@pytest.fixture
def registry():
    return CollectorRegistry()


def counted(registry, name, **labels):
    """The samples of a metric that have these labels and are not 0: their other labels' values -> value."""
    found = {}
    for family in registry.collect():
        for sample in family.samples:
            if sample.name == name and sample.value and labels.items() <= sample.labels.items():
                found[tuple(v for k, v in sample.labels.items() if k not in labels and v)] = sample.value
    return found


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_jobs_are_counted_by_outcome(stream, registry, raw, kind):
    def body(payload, job):
        name = payload["name"]
        if name == "fails" or (name == "fails once" and job.attempt == 1):
            raise ValueError("secret 4711")
        if name == "rejected":
            raise Reject("secret 4711")
        if name == "released" and job.deliveries == 1 and not seen.is_set():
            seen.set()
            raise Release("secret 4711")

    async def body_async(payload, job):
        body(payload, job)

    seen = threading.Event()
    for name in ["good", "good", "fails", "fails once", "rejected", "released"]:
        stream.add({"name": name})
    raw.xadd(stream._spec.keys.stream, {"job": b"\xff\xfe"})
    handler = body if kind == "def" else body_async
    with working(quick(stream, handler, hooks=[WorkerMetrics(registry=registry)])):
        until(lambda: stream.inspect().groups.get("workers") and stream.inspect().groups["workers"].done == 4)
        until(lambda: is_idle(stream))
    where = {"stream": stream.name, "group": "workers"}
    assert counted(registry, "streamq_jobs_total", **where) == {
        ("succeeded",): 4,
        ("retried",): 2,
        ("dead", "attempts"): 1,
        ("dead", "rejected"): 1,
        ("dead", "undecodable"): 1,
        ("released",): 1,
    }
    # Two good ones, two attempts each of two, one rejected, two deliveries of the released one.
    assert counted(registry, "streamq_job_duration_seconds_count", **where) == {(): 9}
    assert counted(registry, "streamq_job_wait_seconds_count", **where) == {(): 9}
    assert counted(registry, "streamq_jobs_running", **where) == {}
    assert counted(registry, "streamq_worker_healthy") == {(): 1}
    page = generate_latest(registry).decode()
    assert "secret" not in page
    assert {label for f in text_string_to_metric_families(page) for s in f.samples for label in s.labels} == {
        "stream", "group", "outcome", "reason", "le",
    }  # fmt: skip


def test_time_is_counted_from_when_a_job_could_be_read_and_while_its_handler_runs(stream, registry):
    """The server's clock is this machine's here."""
    go = threading.Event()
    stream.add({"name": "a"})
    stream.add({"name": "later"}, delay=0.3)
    metrics = WorkerMetrics(registry=registry, buckets=(0.1, 0.2, 60))
    where = {"stream": stream.name, "group": "workers"}
    threading.Event().wait(0.25)
    with working(quick(stream, lambda payload: go.wait(20), hooks=[metrics])):
        until(lambda: counted(registry, "streamq_jobs_running", **where) == {(): 2})
        threading.Event().wait(0.25)
        go.set()
        until(lambda: is_idle(stream))
    assert counted(registry, "streamq_jobs_running", **where) == {}
    # The one that was there waited a quarter of a second for a worker. The other waited from when it was due.
    [waited] = counted(registry, "streamq_job_wait_seconds_sum", **where).values()
    assert 0.24 < waited < 30
    assert counted(registry, "streamq_job_wait_seconds_bucket", **where, le="0.2").get((), 0) <= 1
    [took] = counted(registry, "streamq_job_duration_seconds_sum", **where).values()
    assert took >= 2 * 0.24
    assert counted(registry, "streamq_job_duration_seconds_bucket", **where) == {("60.0",): 2, ("+Inf",): 2}


def test_a_lost_lease_is_counted(stream, registry, raw):
    begun, go = threading.Event(), threading.Event()

    def body(payload):
        begun.set()
        go.wait(20)

    entry_id = stream.add({"name": "a"}).entry_id
    with working(quick(stream, body, hooks=[WorkerMetrics(registry=registry)])):
        assert begun.wait(10)
        raw.xclaim(stream._spec.keys.stream, "workers", "thief", 0, [entry_id])
        go.set()
        until(lambda: counted(registry, "streamq_jobs_total"))
    assert counted(registry, "streamq_jobs_total", stream=stream.name, group="workers") == {("lease_lost",): 1}


def test_streams_and_groups_of_one_worker_are_told_apart(redis_url, ns, registry):
    options = {
        g: StreamOptions(group=g, groups=("billing", "mail"), retry=Backoff.constant(0)) for g in ("billing", "mail")
    }
    with (
        Stream(ns, redis=redis_url, options=options["billing"]) as billing,
        Stream(ns, redis=redis_url, options=options["mail"]) as mail,
        Stream(f"{ns}.other", redis=redis_url) as other,
    ):
        billing.add_many({"n": n} for n in range(3))
        other.add({"n": 0})
        worker = quick(billing, lambda payload: None, hooks=[WorkerMetrics(registry=registry)])
        for stream in (mail, other):
            worker.add_stream(stream, lambda payload: None)
        with working(worker):
            until(lambda: all(is_idle(stream) for stream in (billing, other)))
    assert counted(registry, "streamq_jobs_total", outcome="succeeded") == {
        (ns, "billing"): 3,
        (ns, "mail"): 3,
        (f"{ns}.other", "workers"): 1,
    }


def test_each_job_of_a_batch_counts(stream, registry):
    def body(jobs):
        return [ValueError("no") if job.payload["n"] == 1 and job.attempt == 1 else None for job in jobs]

    stream.add_many({"n": n} for n in range(4))
    with working(quick(stream, body, batch=4, batch_wait=1.0, hooks=[WorkerMetrics(registry=registry)])):
        until(lambda: is_idle(stream) and stream.inspect().groups["workers"].done == 4)
    assert counted(registry, "streamq_jobs_total", stream=stream.name, group="workers") == {
        ("succeeded",): 4,
        ("retried",): 1,
    }
    assert counted(registry, "streamq_job_duration_seconds_count") == {(stream.name, "workers"): 5}


def test_what_others_left_is_counted_by_the_worker_that_gives_it_up(stream, registry, raw):
    entry_id = stream.add({"name": "a"}).entry_id
    stream.read("dead")
    raw.xclaim(stream._spec.keys.stream, "workers", "dead", 0, [entry_id], retrycount=5, justid=True, idle=60_000)
    with working(quick(stream, print, hooks=[WorkerMetrics(registry=registry)])):
        until(lambda: counted(registry, "streamq_jobs_total"))
    assert counted(registry, "streamq_jobs_total", stream=stream.name, group="workers") == {("dead", "deliveries"): 1}


def test_a_worker_that_cannot_reach_its_server_is_not_healthy(new_server, registry):
    server = new_server()
    with Stream("jobs", redis=server.url) as s, working(quick(s, print, hooks=[WorkerMetrics(registry=registry)])):
        until(lambda: s.inspect().groups)
        assert counted(registry, "streamq_worker_healthy") == {(): 1}
        server.kill()
        until(lambda: counted(registry, "streamq_worker_healthy") == {}, timeout=60)
        server.start()
        until(lambda: counted(registry, "streamq_worker_healthy") == {(): 1}, timeout=60)


def test_all_outcomes_are_there_from_the_first_job_on(stream, registry):
    """A counter that appears with its first event hides that event from rate()."""
    stream.add({"name": "a"})
    with working(quick(stream, lambda payload: None, hooks=[WorkerMetrics(registry=registry)])):
        until(lambda: is_idle(stream))
    samples = [s for f in registry.collect() for s in f.samples if s.name == "streamq_jobs_total"]
    assert {s.labels["outcome"] for s in samples} == {"succeeded", "retried", "dead", "released", "lease_lost"}
    assert len([s for s in samples if s.labels["outcome"] == "dead"]) == len(get_args(Reason))


def test_workers_of_one_registry_share_their_metrics(registry):
    WorkerMetrics(registry=registry)
    assert isinstance(WorkerMetrics(registry=registry), Hooks)
    with pytest.raises(ConfigurationError, match="other buckets"):
        WorkerMetrics(registry=registry, buckets=(1, 2))
