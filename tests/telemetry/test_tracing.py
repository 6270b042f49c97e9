"""The trace of a job: from its producer through every attempt, whatever lies between them."""

from __future__ import annotations

import asyncio
import threading

import pytest
from opentelemetry import baggage, context, propagate, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from waiting import until
from worker.fleet import is_idle, options_of, quick, working

from streamq import AsyncStream, Backoff, ConfigurationError, Reject, Release, Retry, Stream, StreamOptions
from streamq.telemetry import Tracing

SECRET = "card 4711"


class Traces:
    """Spans that have ended, kept in memory."""

    def __init__(self):
        self._kept = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._kept))
        self.tracer = self.provider.get_tracer("tests")

    def all(self, name=None):
        """In the order in which they began."""
        found = [span for span in self._kept.get_finished_spans() if name in (None, span.name)]
        return sorted(found, key=lambda span: span.start_time)

    def until(self, count, name=None):
        return until(lambda: found if len(found := self.all(name)) >= count else None)

    def everything(self):
        return "\n".join(span.to_json() for span in self.all())


@pytest.fixture
def traces():
    return Traces()


@pytest.fixture
def tracing(traces):
    return Tracing(tracer_provider=traces.provider)


@pytest.fixture
def stream(redis_url, ns, raw):
    with Stream(ns, redis=redis_url, options=options_of({"lease": 5, "retries": 1})) as opened:
        yield opened
    raw.srem("streamq:streams", ns)


@pytest.fixture(params=["def", "async def"])
def handler(request):
    """Make a handler of that kind of a body."""

    def make(body):
        async def waiting(payload, job):
            await asyncio.sleep(0)
            return body(payload, job)

        return body if request.param == "def" else waiting

    return make


def parent(span):
    return None if span.parent is None else span.parent.span_id


def spot(span):
    return span.context.span_id


def traceparent(span):
    """As it travels."""
    return f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-{span.context.trace_flags:02x}"


def linked(span):
    return [link.context.span_id for link in span.links]


# --- the tree -----------------------------------------------------------------------------


def test_a_job_that_fails_and_waits_for_its_next_attempt_is_one_trace(stream, redis_url, traces, tracing, handler):
    """add -> failure -> scheduled -> success; and what the handler does is below its attempt, in its thread or task."""

    def body(payload, job):
        with traces.tracer.start_as_current_span(f"inner {job.attempt}"):
            if job.attempt == 1:
                raise ValueError(SECRET)

    ns, options = stream.name, StreamOptions(lease=5, retry=Backoff.constant(0.3))
    with Stream(ns, redis=redis_url, options=options) as s:
        with traces.tracer.start_as_current_span("request"), tracing.sending(s) as headers:
            added = s.add({"secret": SECRET}, headers=headers)
        with working(quick(s, handler(body), middlewares=[tracing])):
            first, second = traces.until(2, f"process {ns}")
    [request], [send] = traces.all("request"), traces.all(f"send {ns}")
    [inner], [inner_again] = traces.all("inner 1"), traces.all("inner 2")
    assert len({span.context.trace_id for span in traces.all()}) == 1
    assert [parent(span) for span in (request, send, first, second)] == [None, spot(request), spot(send), spot(send)]
    assert [parent(inner), parent(inner_again)] == [spot(first), spot(second)]
    assert linked(first) == linked(second) == [spot(send)]
    assert second.start_time - first.end_time >= 0.25e9
    assert [span.status.status_code for span in (first, second)] == [StatusCode.ERROR, StatusCode.UNSET]
    where = {"messaging.system": "streamq", "messaging.destination.name": ns}
    assert dict(send.attributes) == where | {"messaging.operation.name": "send", "messaging.operation.type": "send"}
    about = [dict(span.attributes) for span in (first, second)]
    assert len({a.pop("messaging.client.id") for a in about}) == 1
    assert about[0].pop("error.type") == "ValueError"
    assert about[0].pop("messaging.streamq.entry_id") == added.entry_id != about[1].pop("messaging.streamq.entry_id")
    assert about == [
        where
        | {
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.consumer.group.name": "workers",
            "messaging.message.id": added.job_id,
            "messaging.streamq.attempt": attempt,
            "messaging.streamq.deliveries": 1,
        }
        for attempt in (1, 2)
    ]
    assert [span.kind for span in (send, first, second)] == [SpanKind.PRODUCER, SpanKind.CONSUMER, SpanKind.CONSUMER]


def test_a_redriven_job_goes_on_with_its_trace(stream, traces, tracing):
    with tracing.sending(stream) as headers:
        stream.add({}, job_id="J", headers=headers)

    def body(payload):
        if not mended.is_set():
            raise Reject("not yet")

    mended = threading.Event()
    with working(quick(stream, body, middlewares=[tracing])):
        until(lambda: stream.inspect().dead == 1)
        mended.set()
        [letter] = stream.dead_letters.list()
        assert stream.dead_letters.redrive([letter.id]).moved
        dead, redriven = traces.until(2, f"process {stream.name}")
    [send] = traces.all(f"send {stream.name}")
    assert {span.context.trace_id for span in (dead, redriven)} == {send.context.trace_id}
    assert [dead.attributes.get("error.type"), redriven.attributes.get("error.type")] == [
        "streamq.messages.Reject",
        None,
    ]
    assert [span.attributes["messaging.message.id"] for span in (dead, redriven)] == ["J", "J"]


def test_a_job_that_was_added_ahead_of_its_time_goes_on_with_its_trace(stream, traces, tracing):
    with tracing.sending(stream) as headers:
        added = stream.add({}, delay=0.3, headers=headers)
    with working(quick(stream, lambda payload: None, middlewares=[tracing])):
        [process] = traces.until(1, f"process {stream.name}")
    [send] = traces.all(f"send {stream.name}")
    assert (process.context.trace_id, parent(process)) == (send.context.trace_id, spot(send))
    assert process.attributes["messaging.message.id"] == added.job_id


def test_a_batch_is_a_trace_of_its_own_and_linked_to_each_job(stream, traces, tracing, handler):
    ids = []
    for n in range(3):
        with tracing.sending(stream) as headers:
            ids.append(stream.add({"n": n}, headers=headers).job_id)
    stream.add({"n": 3})  # by somebody who does not trace

    def body(jobs):
        assert trace.get_current_span().get_span_context().is_valid
        return [ValueError(SECRET) if job.payload["n"] == 1 and job.attempt == 1 else None for job in jobs]

    with working(quick(stream, body, batch=4, batch_wait=1.0, middlewares=[tracing])):
        until(lambda: is_idle(stream) and stream.inspect().groups["workers"].done == 4)
    batch, again = traces.all(f"process {stream.name}")
    sends = traces.all(f"send {stream.name}")
    assert batch.context.trace_id not in {send.context.trace_id for send in sends}
    assert parent(batch) is None
    assert linked(batch) == [spot(send) for send in sends]
    assert [link.attributes["messaging.message.id"] for link in batch.links] == ids
    assert batch.attributes["messaging.batch.message_count"] == 4
    assert "messaging.message.id" not in batch.attributes
    [event] = batch.events
    assert dict(event.attributes) == {"exception.type": "ValueError", "messaging.message.id": ids[1]}
    assert (linked(again), again.attributes["messaging.batch.message_count"]) == ([spot(sends[1])], 1)


def test_calls_can_be_traces_of_their_own(stream, traces):
    tracing = Tracing(parent=False, tracer_provider=traces.provider)
    seen = []
    token = context.attach(baggage.set_baggage("tenant", "7"))
    with tracing.sending(stream) as headers:
        stream.add({}, headers=headers)
    context.detach(token)
    with working(quick(stream, lambda payload: seen.append(baggage.get_baggage("tenant")), middlewares=[tracing])):
        [process] = traces.until(1, f"process {stream.name}")
    [send] = traces.all(f"send {stream.name}")
    assert parent(process) is None
    assert process.context.trace_id != send.context.trace_id
    assert linked(process) == [spot(send)]
    assert seen == ["7"]


def test_what_was_current_when_the_worker_began_is_no_parent(stream, traces, tracing):
    """As in a web framework's start, which may be traced: the worker's tasks inherit its context."""
    stream.add({})
    plain = Tracing(tracer_provider=traces.provider)

    async def main():
        with traces.tracer.start_as_current_span("startup"):
            async with quick(stream, lambda payload: None, middlewares=[plain]):
                await asyncio.to_thread(traces.until, 1, f"process {stream.name}")

    asyncio.run(main())
    [process], [startup] = traces.all(f"process {stream.name}"), traces.all("startup")
    assert parent(process) is None
    assert process.context.trace_id != startup.context.trace_id
    assert linked(process) == [spot(startup)]


def test_each_of_many_jobs_at_once_has_its_own_context(stream, traces, tracing, handler):
    def body(payload, job):
        mine = trace.get_current_span().get_span_context().span_id
        threading.Event().wait(0.01)
        assert trace.get_current_span().get_span_context().span_id == mine
        spans.append(mine)

    spans = []
    sent = []
    for n in range(30):
        with tracing.sending(stream) as headers:
            stream.add({"n": n}, headers=headers)
            sent.append(trace.get_current_span().get_span_context().span_id)
    with working(quick(stream, handler(body), concurrency=8, middlewares=[tracing])):
        traces.until(30, f"process {stream.name}")
    assert len(set(spans)) == 30
    assert sorted(parent(span) for span in traces.all(f"process {stream.name}")) == sorted(sent)


def test_a_hand_written_loop_is_traced_by_hand(stream, traces, tracing):
    with tracing.sending(stream) as headers:
        stream.add({}, headers=headers)
    [job] = stream.read("w")
    with tracing.processing(job) as span, traces.tracer.start_as_current_span("inner"):
        stream.ack(job)
    [send], [process], [inner] = (
        traces.all(name) for name in (f"send {stream.name}", f"process {stream.name}", "inner")
    )
    assert spot(span) == spot(process)
    assert [parent(process), parent(inner)] == [spot(send), spot(process)]
    assert not trace.get_current_span().get_span_context().is_valid
    with pytest.raises(ConfigurationError, match="no job"), tracing.processing([]):
        pass


# --- producers ----------------------------------------------------------------------------


def test_inject_adds_the_current_trace_and_baggage(stream, traces, tracing):
    assert tracing.inject() == {}
    assert tracing.inject({"a": "b"}) == {"a": "b"}
    with traces.tracer.start_as_current_span("request") as span:
        token = context.attach(baggage.set_baggage("tenant", "7"))
        headers = tracing.inject({"a": "b"})
        context.detach(token)
    assert headers == {"a": "b", "traceparent": traceparent(span), "baggage": "tenant=7"}
    stream.add({}, headers=headers)
    [job] = stream.read("w")
    assert job.headers == headers


def test_a_trace_that_headers_carry_stays(stream, traces, tracing):
    given = {"traceparent": f"00-{7:032x}-{9:016x}-01", "tracestate": "a=b"}
    with traces.tracer.start_as_current_span("request"):
        assert tracing.inject(given) == given
        with tracing.sending(stream, given) as headers:
            assert headers == given
    [send] = traces.all(f"send {stream.name}")
    assert linked(send) == [9]
    assert send.kind is SpanKind.CLIENT  # its context is not the one that jobs carry


def test_many_jobs_share_the_context_of_their_sending(redis_url, ns, traces, tracing, raw):
    async def main():
        async with AsyncStream(ns, redis=redis_url) as s:
            with tracing.sending(s) as headers:
                await s.add_many(({"n": n} for n in range(3)), headers=headers)
            return [job.headers for job in await s.read("w", count=3)]

    headers = asyncio.run(main())
    [send] = traces.all(f"send {ns}")
    assert headers == [{"traceparent": traceparent(send)}] * 3
    raw.srem("streamq:streams", ns)


def test_a_failure_to_send_is_seen(stream, traces, tracing):
    with pytest.raises(ValueError, match=SECRET), tracing.sending(stream):
        raise ValueError(SECRET)
    [send] = traces.all()
    assert (send.status.status_code, send.attributes["error.type"]) == (StatusCode.ERROR, "ValueError")
    assert SECRET not in traces.everything()


# --- what is told of failures -------------------------------------------------------------


class DeclinedError(Exception):
    """An exception of a program's, whose text quotes a payload."""


RAISED = {
    DeclinedError(SECRET): f"{__name__}.DeclinedError",
    SystemExit(SECRET): "SystemExit",
    Retry(SECRET): "streamq.messages.Retry",
    Reject(SECRET): "streamq.messages.Reject",
    Release(SECRET): "streamq.messages.Release",
}


@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
def test_a_call_that_raises_tells_type_and_place_and_no_text(stream, traces, tracing, handler, error):
    def body(payload, job):
        if traces.all():
            return
        raise error from LookupError(SECRET)

    stream.add({"secret": SECRET}, headers={"note": SECRET})
    with working(quick(stream, handler(body), middlewares=[tracing])):
        first = traces.until(1)[0]
    assert (first.status.status_code, first.attributes["error.type"]) == (StatusCode.ERROR, RAISED[error])
    events = [dict(event.attributes) for event in first.events]
    words = isinstance(error, Retry | Reject | Release)  # said on purpose: where, is no news
    assert [event["exception.type"] for event in events] == ([] if words else [RAISED[error]])
    assert all("in body" in event["exception.stacktrace"] for event in events)
    assert SECRET not in traces.everything()


def test_texts_of_exceptions_are_told_when_asked_for(stream, traces):
    class OddError(Exception):
        def __str__(self):
            raise LookupError

    def body(payload, job):
        if job.attempt == 1:
            raise ValueError("no such customer")
        raise OddError

    tracing = Tracing(messages=True, tracer_provider=traces.provider)
    stream.add({})
    with working(quick(stream, body, middlewares=[tracing])):
        spans = traces.until(2)
    told = [event.attributes["exception.message"] for span in spans for event in span.events]
    assert told == ["no such customer", "(its text cannot be shown)"]


def test_a_call_that_takes_too_long_is_told_as_a_timeout(stream, traces, tracing, handler):
    go = threading.Event()

    def body(payload, job):
        go.wait(20)

    stream.add({})
    with working(quick(stream, body, timeout=0.2, middlewares=[tracing])):
        first = traces.until(1)[0]
        assert (first.status.status_code, first.attributes["error.type"]) == (StatusCode.ERROR, "TimeoutError")
        go.set()


def test_a_call_that_a_stop_cancels_ends_its_span(stream, traces, tracing):
    begun = threading.Event()

    async def forever(payload):
        begun.set()
        await asyncio.sleep(60)

    stream.add({})
    with working(quick(stream, forever, drain=0.1, middlewares=[tracing])):
        assert begun.wait(10)
    [span] = traces.all()
    assert span.attributes["error.type"] == "asyncio.exceptions.CancelledError"
    assert not span.events


@pytest.mark.parametrize(
    "headers",
    [
        {"traceparent": "no trace"},
        {"traceparent": "00-" + "0" * 32 + "-" + "0" * 16 + "-01"},
        {"traceparent": "9" * 5000},
        {"tracestate": "a=b", "baggage": "=;=,,%ff%"},
    ],
    ids=["no trace", "all zero", "long", "no parent"],
)
def test_headers_that_carry_no_trace_begin_one(stream, traces, tracing, headers):
    stream.add({}, headers=headers)
    with working(quick(stream, lambda payload: None, middlewares=[tracing])):
        [span] = traces.until(1)
    assert (parent(span), linked(span)) == (None, [])


def test_without_a_provider_a_trace_passes_through(stream, handler):
    """The API alone records nothing; what comes in with a job still goes out with what its handler does."""
    out = {}
    coming = {"traceparent": f"00-{7:032x}-{9:016x}-01"}
    stream.add({}, headers=coming)
    with working(quick(stream, handler(lambda payload, job: propagate.inject(out)), middlewares=[Tracing()])):
        until(lambda: is_idle(stream))
    assert out == coming
