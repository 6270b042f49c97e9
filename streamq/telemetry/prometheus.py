"""Metrics for Prometheus: of a worker, told by its hooks, and of streams, looked up when they are scraped."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeAlias, get_args
from weakref import WeakKeyDictionary

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector
except ImportError as missing:  # the extra
    raise ImportError("metrics need prometheus-client: pip install 'streamq[prometheus]'") from missing

from streamq._drivers.blocking import BlockingDriver
from streamq._ops import inspect
from streamq._spec import Spec
from streamq._text import shown
from streamq.connection import Settings
from streamq.errors import ConfigurationError, ConnectionLostError, StreamqError
from streamq.messages import Job, Reason, Snapshot
from streamq.stream import Stream
from streamq.worker.hooks import Buried, Hooks

BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
"""Upper bounds in seconds: from a write to a database to a report that takes half an hour."""

TIMEOUT_S: Final = 2.0
"""Longest wait of a scrape for a connection or a reply; Prometheus itself waits ten seconds for the whole."""

Labels: TypeAlias = tuple[str, str]
"""Deployment and name of a stream. An empty label is none, to Prometheus."""

_OF_JOB: Final = ("stream", "group")
_LABELS: Final = ("deployment", "stream")
_OF_GROUP: Final = ("group",)
_OUTCOMES: Final = ("succeeded", "retried", "released", "lease_lost")

_log = logging.getLogger("streamq.telemetry")


class _Families:
    """The metrics of workers in one registry: all `WorkerMetrics` of a registry share them."""

    def __init__(self, registry: CollectorRegistry, buckets: tuple[float, ...]) -> None:
        self.buckets = buckets
        self.jobs = Counter(
            "streamq_jobs_total",
            "Deliveries that are over, by what became of them; of dead letters the reason.",
            (*_OF_JOB, "outcome", "reason"),
            registry=registry,
        )
        self.duration = Histogram(
            "streamq_job_duration_seconds",
            "Time from a handler's call to its end, whatever the end.",
            _OF_JOB,
            buckets=buckets,
            registry=registry,
        )
        self.wait = Histogram(
            "streamq_job_wait_seconds",
            "Time from when a job could be read to its handler's call.",
            _OF_JOB,
            buckets=buckets,
            registry=registry,
        )
        self.running = Gauge(
            "streamq_jobs_running",
            "Jobs whose handlers run now.",
            _OF_JOB,
            multiprocess_mode="livesum",
            registry=registry,
        )
        self.healthy = Gauge(
            "streamq_worker_healthy",
            "1, or 0 while a worker has failed ten times in a row to reach its server.",
            multiprocess_mode="livemin",
            registry=registry,
        )


_families: WeakKeyDictionary[CollectorRegistry, _Families] = WeakKeyDictionary()


def _families_of(registry: CollectorRegistry, buckets: tuple[float, ...]) -> _Families:
    found = _families.get(registry)
    if found is None:
        found = _families[registry] = _Families(registry, buckets)
    elif found.buckets != buckets:
        raise ConfigurationError("the metrics of workers are in this registry already, with other buckets")
    return found


class _OfGroup:
    """The metrics of one group of one stream, looked up once. All are there from the first job on, so that rates are right."""

    def __init__(self, families: _Families, stream: str, group: str) -> None:
        self.duration = families.duration.labels(stream, group)
        self.wait = families.wait.labels(stream, group)
        self.running = families.running.labels(stream, group)
        self.outcomes = {name: families.jobs.labels(stream, group, name, "") for name in _OUTCOMES}
        self.dead = {reason: families.jobs.labels(stream, group, "dead", reason) for reason in get_args(Reason)}


class WorkerMetrics(Hooks):
    """Counts what a worker does: ``Worker(orders, handle, hooks=[WorkerMetrics()])``.

    One instance serves all streams of a worker, and several workers. The metrics, and how to serve them: docs/metrics.md.

    Args:
        registry: Where they are registered; prometheus_client's own without one.
        buckets: Upper bounds of the histograms, in seconds.

    Raises:
        ConfigurationError: The registry has them already, with other buckets.
    """

    def __init__(self, *, registry: CollectorRegistry | None = None, buckets: Sequence[float] = BUCKETS) -> None:
        self._families = _families_of(REGISTRY if registry is None else registry, tuple(buckets))
        self._families.healthy.set(1)
        self._groups: dict[tuple[str, str], _OfGroup] = {}
        self._begun: dict[Job[Any], float] = {}

    def _of(self, stream: str, group: str) -> _OfGroup:
        found = self._groups.get((stream, group))
        if found is None:
            found = self._groups[stream, group] = _OfGroup(self._families, stream, group)
        return found

    def started(self, job: Job[Any]) -> None:  # noqa: D102  # as in `Hooks`, and so below
        of_group = self._of(job.stream, job.group)
        # An entry's ID begins with the time when it was added, promoted, or redriven, by the server's clock.
        of_group.wait.observe(max(time.time() - int(job.entry_id.partition("-")[0]) / 1000, 0.0))
        of_group.running.inc()
        self._begun[job] = time.perf_counter()

    def ended(self, job: Job[Any]) -> None:  # noqa: D102
        of_group = self._of(job.stream, job.group)
        of_group.running.dec()
        of_group.duration.observe(time.perf_counter() - self._begun.pop(job))

    def succeeded(self, job: Job[Any]) -> None:  # noqa: D102
        self._of(job.stream, job.group).outcomes["succeeded"].inc()

    def retried(self, job: Job[Any], error: str) -> None:  # noqa: ARG002, D102
        self._of(job.stream, job.group).outcomes["retried"].inc()

    def dead_lettered(self, dead: Buried) -> None:  # noqa: D102
        self._of(dead.stream, dead.group).dead[dead.reason].inc()

    def released(self, job: Job[Any]) -> None:  # noqa: D102
        self._of(job.stream, job.group).outcomes["released"].inc()

    def lease_lost(self, job: Job[Any]) -> None:  # noqa: D102
        self._of(job.stream, job.group).outcomes["lease_lost"].inc()

    def unhealthy(self, problem: str) -> None:  # noqa: ARG002, D102
        self._families.healthy.set(0)

    def healthy(self) -> None:  # noqa: D102
        self._families.healthy.set(1)


class StreamCollector(Collector):
    """Looks streams up each time that it is scraped: ``REGISTRY.register(StreamCollector([orders]))``.

    What `Stream.inspect` finds, over connections of its own. It never fails: of a stream that could not be asked
    ``streamq_up`` is 0, nothing else is told, and the log says why. One in a deployment will do: every one tells the same.

    Args:
        streams: What to look at. Those of one name, deployment and server count as one, whatever their groups.

    Attributes:
        problems: What the last scrape could not ask: the stream's name, and why.

    Raises:
        ConfigurationError: One is no `Stream`, or two of one name and deployment are on different servers: their figures
            could not be told apart.
    """

    def __init__(self, streams: Iterable[Stream[Any]]) -> None:
        self._asked: dict[Labels, tuple[Spec[Any], BlockingDriver]] = {}
        self._servers: list[tuple[Settings, BlockingDriver]] = []
        self.problems: dict[str, str] = {}
        for stream in streams:
            if not isinstance(stream, Stream):
                raise ConfigurationError(f"a collector takes instances of streamq.Stream; {stream!r:.80} is not")
            spec, driver = stream._spec, self._driver(stream._settings)  # noqa: SLF001  # of the stream's own package
            if self._asked.setdefault((spec.keys.deployment or "", stream.name), (spec, driver))[1] is not driver:
                raise ConfigurationError(
                    f"two streams are named {stream.name}, on different servers: use a registry for each"
                )

    def _driver(self, settings: Settings) -> BlockingDriver:
        """The same for all streams of a server."""
        for known, driver in self._servers:
            if known == settings:
                return driver
        self._servers.append((settings, settings.blocking(timeout_s=TIMEOUT_S)))
        return self._servers[-1][1]

    def close(self) -> None:
        """Close the connections. A later scrape opens them anew."""
        for _, driver in self._servers:
            driver.close()

    def describe(self) -> Iterable[Metric]:
        """What is told, without asking a server: registering connects to nothing."""
        return _Page().families

    def collect(self) -> Iterable[Metric]:
        """What is told, now."""
        page, problems = _Page(), dict[str, str]()
        away: dict[tuple[BlockingDriver, str], str] = {}
        for labels, (spec, driver) in self._asked.items():
            name = spec.keys.name
            server = driver, driver.whereabouts(spec.keys.slot)
            try:
                if server not in away:  # a server that is away is waited for once, not once a stream
                    page.add(labels, driver.run(inspect.snapshot(spec)))
                    continue
                problems[name] = away[server]
            except ConnectionLostError as error:
                problems[name] = away[server] = str(error)
            except Exception as error:  # noqa: BLE001  # a scrape that fails tells nothing of the other streams either
                problems[name] = str(error) if isinstance(error, StreamqError) else type(error).__name__
            page.add_unreachable(labels)
        for name, problem in problems.items():
            if self.problems.get(name) != problem:  # once, not at each scrape
                _log.warning("stream %s cannot be inspected: %s", name, shown(problem))
        self.problems = problems
        return page.families


class _Page:
    """What one scrape tells: a family a metric, filled from snapshots. One figure more is a family here and a line in `add`."""

    def __init__(self) -> None:
        self.families: list[Metric] = []
        gauge = self._gauge
        self._up = gauge("up", "1 if the stream could be inspected, else 0.")
        self._entries = gauge("stream_entries", "Entries in the stream: ready, pending, and kept.")
        self._scheduled = gauge("stream_scheduled_jobs", "Jobs that wait for their time, or for their next attempt.")
        self._dead_letters = gauge("stream_dead_letters", "Dead letters.")
        self._paused = gauge("stream_paused", "1 while the stream is paused: nothing is started.")
        self._ready = gauge("group_ready_jobs", "Entries that the group has not read.", *_OF_GROUP)
        self._exact = gauge("group_ready_exact", "0 where there may be more ready ones than were counted.", *_OF_GROUP)
        self._pending = gauge("group_pending_jobs", "Entries that were read and are not settled.", *_OF_GROUP)
        self._consumers = gauge("group_consumers", "Consumers known to the server, dead ones included.", *_OF_GROUP)
        self._abandoned = gauge(
            "group_abandoned", "1 if nobody reads the group, and it has entries to read.", *_OF_GROUP
        )
        self._jobs = CounterMetricFamily(
            "streamq_group_jobs",
            "Jobs of the group since the stream was made: done, retried, dead, redriven.",
            labels=(*_LABELS, *_OF_GROUP, "outcome"),
        )
        self.families.append(self._jobs)

    def _gauge(self, name: str, documentation: str, *labels: str) -> GaugeMetricFamily:
        family = GaugeMetricFamily(f"streamq_{name}", documentation, labels=(*_LABELS, *labels))
        self.families.append(family)
        return family

    def add_unreachable(self, labels: Labels) -> None:
        """A stream that could not be asked."""
        self._up.add_metric(labels, 0)

    def add(self, labels: Labels, found: Snapshot) -> None:
        """A stream."""
        self._up.add_metric(labels, 1)
        self._entries.add_metric(labels, found.length)
        self._scheduled.add_metric(labels, found.scheduled)
        self._dead_letters.add_metric(labels, found.dead)
        self._paused.add_metric(labels, found.paused)
        for group in found.groups.values():
            of_group = (*labels, shown(group.name))  # anybody may have made it, and named it
            self._ready.add_metric(of_group, group.ready)
            self._exact.add_metric(of_group, group.exact)
            self._pending.add_metric(of_group, group.pending)
            self._consumers.add_metric(of_group, group.consumers)
            self._abandoned.add_metric(of_group, group.abandoned)
            for outcome in ("done", "retried", "dead", "redriven"):
                self._jobs.add_metric((*of_group, outcome), getattr(group, outcome))
