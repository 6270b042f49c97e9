"""A worker that is measured and traced.

    python examples/telemetry.py                          an embedded server
    python examples/telemetry.py --url redis://localhost

A program would leave spans to an exporter, and metrics to `prometheus_client.start_http_server`; here they are printed.
"""

from __future__ import annotations

import argparse
import secrets

import msgspec
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry, generate_latest

from streamq import Backoff, Hooks, Job, Retry, Stream, StreamOptions, Worker
from streamq.telemetry import StreamCollector, Tracing, WorkerMetrics


class Order(msgspec.Struct):
    """One order to handle."""

    customer: str
    cents: int


def handle(order: Order, job: Job[Order]) -> None:
    """Charge the customer: Bob's bank answers the second time only."""
    with trace.get_tracer("shop").start_as_current_span("charge"):  # a child of the attempt's span
        if order.customer == "bob" and job.attempt == 1:
            raise Retry("the bank does not answer")


class StopAfter(Hooks):
    """Stops the worker after so many jobs."""

    worker: Worker[Order]

    def __init__(self, jobs: int) -> None:
        self.left = jobs

    def succeeded(self, job: Job[Order]) -> None:
        """One less."""
        del job
        self.left -= 1
        if self.left == 0:
            self.worker.stop()


def main() -> None:
    """Add two orders, handle them, and show what was measured and traced."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", default="embedded://")
    url = parser.parse_args().url
    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    trace.set_tracer_provider(provider)
    registry = CollectorRegistry()

    tracing, stop = Tracing(), StopAfter(2)
    options = StreamOptions(retry=Backoff.constant(0.1))
    with Stream("orders-" + secrets.token_hex(4), Order, redis=url, options=options) as orders:
        for order in (Order("ada", 4200), Order("bob", 100)):
            with tracing.sending(orders) as headers:
                orders.add(order, headers=headers)
        metrics = WorkerMetrics(registry=registry)
        stop.worker = Worker(orders, handle, hooks=[metrics, stop], middlewares=[tracing])
        stop.worker.run()
        registry.register(StreamCollector([orders]))
        page = generate_latest(registry).decode()
        print("\n".join(line for line in page.splitlines() if "jobs_total{" in line and not line.endswith(" 0.0")))

    ended = sorted(spans.get_finished_spans(), key=lambda span: span.start_time or 0)
    traces: dict[int, list[str]] = {}
    for span in ended:
        if span.context is not None:
            traces.setdefault(span.context.trace_id, []).append(span.name.partition(" ")[0])
    for names in traces.values():
        print(" > ".join(names))


if __name__ == "__main__":
    main()
