"""Traces by OpenTelemetry: spans follow a job from its producer to each of its attempts, in the headers that it carries.

By OpenTelemetry's semantic conventions for messaging spans: producers open a ``send`` span, whose context travels with the
job; workers open a ``process`` span for each call of the handler, a child of that context and linked to it.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

try:
    from opentelemetry import context as contexts
    from opentelemetry import propagate, trace
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, SpanKind, StatusCode, TracerProvider
    from opentelemetry.util.types import AttributeValue
except ImportError as missing:  # the extra
    raise ImportError("tracing needs opentelemetry-api: pip install 'streamq[opentelemetry]'") from missing

import streamq
from streamq.errors import ConfigurationError
from streamq.messages import Job, Reject, Release, Retry
from streamq.stream import Stream
from streamq.stream_async import AsyncStream

SYSTEM: Final = "streamq"
"""``messaging.system``. The conventions list no value for Redis, and it is our format, not the server's."""

_WORDS = (Retry, Reject, Release)
_Attributes: TypeAlias = dict[str, AttributeValue]


class Tracing:
    """Traces jobs: `sending` or `inject` where they are added, the object itself as a middleware where they are handled.

    Give it first: ``Worker(orders, handle, middlewares=[Tracing()])``. It suits ``def`` and ``async def`` handlers, and
    batches. Without a tracer provider (`opentelemetry.trace.set_tracer_provider`) nothing is recorded, but what comes
    in still goes on. What spans tell, and what not: docs/tracing.md.

    Args:
        parent: Whether a call is a child of what added its job, so that both are one trace. Without, and for batches,
            it is a trace of its own, and only linked.
        messages: Whether the texts of handlers' exceptions are recorded. They may quote payloads.
        tracer_provider: In place of the global one.
    """

    def __init__(
        self, *, parent: bool = True, messages: bool = False, tracer_provider: TracerProvider | None = None
    ) -> None:
        self._parent = parent
        self._messages = messages
        self._tracer = trace.get_tracer("streamq", streamq.__version__, tracer_provider)

    # Where jobs are added

    def inject(self, headers: Mapping[str, str] | None = None) -> dict[str, str]:
        """`headers`, and the current trace's: ``orders.add(order, headers=tracing.inject())``.

        What carries a trace already stays as it is.
        """
        own = dict(headers or {})
        if _carries_trace(own):
            return own
        current: dict[str, str] = {}
        propagate.inject(current)
        return {**current, **own}

    @contextmanager
    def sending(
        self, stream: Stream[Any] | AsyncStream[Any], headers: Mapping[str, str] | None = None
    ) -> Iterator[dict[str, str]]:
        """A span around adding jobs; gives the headers to add them with.

        ``with tracing.sending(orders) as headers: orders.add(order, headers=headers)``, or ``await orders.add(...)``.
        """
        own = dict(headers or {})
        links = _links(_extracted(own)) if _carries_trace(own) else []
        with self._tracer.start_as_current_span(
            f"send {stream.name}",
            kind=SpanKind.CLIENT if links else SpanKind.PRODUCER,
            attributes=_operation("send", stream.name),
            links=links,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield self.inject(own)
            except BaseException as error:
                self._failed(span, error)
                raise

    # Where they are handled

    async def __call__(self, subject: Job[Any] | list[Job[Any]], call: Callable[[], Awaitable[Any]]) -> Any:
        """A span around a call of the handler: what workers call, as a middleware."""
        with self.processing(subject) as span:
            value = await call()
            if isinstance(subject, list):
                self._note_failures(span, subject, value)
            return value

    @contextmanager
    def processing(self, subject: Job[Any] | list[Job[Any]]) -> Iterator[Span]:
        """A span around working on a job, or on a batch of them: for hand-written loops.

        Raises:
            ConfigurationError: The batch is empty.
        """
        jobs, is_batch = (subject, True) if isinstance(subject, list) else ([subject], False)
        if not jobs:
            raise ConfigurationError("there is no job to trace")
        context, links = self._origins(jobs, is_batch=is_batch)
        span = self._tracer.start_span(
            f"process {jobs[0].stream}",
            context=context,
            kind=SpanKind.CONSUMER,
            attributes=_about(jobs, is_batch=is_batch),
            links=links,
        )
        token = contexts.attach(trace.set_span_in_context(span, context))
        try:
            yield span
        except BaseException as error:
            self._failed(span, error, timed_out=jobs[0].timed_out)
            raise
        finally:
            contexts.detach(token)
            span.end()

    def _origins(self, jobs: list[Job[Any]], *, is_batch: bool) -> tuple[Context, list[Link]]:
        """What a call is to be a child of, and what it is linked to."""
        # Not the worker's own context: what was current when the worker began has nothing to do with its jobs. Where a
        # middleware further out has made a span, it is linked.
        links = _links(contexts.get_current())
        if is_batch:
            for job in jobs:
                links += _links(_extracted(job.headers), {"messaging.message.id": job.id})
            return Context(), links
        context = _extracted(jobs[0].headers)
        links += _links(context)
        return context if self._parent else trace.set_span_in_context(trace.INVALID_SPAN, context), links

    # What went wrong

    def _failed(self, span: Span, error: BaseException, *, timed_out: bool = False) -> None:
        cancelled = isinstance(error, asyncio.CancelledError)
        kind = "TimeoutError" if cancelled and timed_out else _kind(error)
        span.set_attribute("error.type", kind)
        span.set_status(StatusCode.ERROR, kind)
        if not cancelled and not isinstance(error, _WORDS):
            # Where it was raised: code, no values. The text of the error may quote a payload.
            trace_of_it = "".join(traceback.format_tb(error.__traceback__))
            self._note(span, error, {"exception.stacktrace": trace_of_it})

    def _note_failures(self, span: Span, jobs: list[Job[Any]], values: object) -> None:
        """Those jobs of a batch that failed by themselves: an event each."""
        for job, value in zip(jobs, values if isinstance(values, list | tuple) else (), strict=False):
            if isinstance(value, BaseException):
                self._note(span, value, {"messaging.message.id": job.id})

    def _note(self, span: Span, error: BaseException, more: _Attributes) -> None:
        attributes: _Attributes = {"exception.type": _kind(error), **more}
        if self._messages:
            try:
                attributes["exception.message"] = str(error)
            except Exception:  # noqa: BLE001  # an exception of the user's may fail in its own __str__
                attributes["exception.message"] = "(its text cannot be shown)"
        span.add_event("exception", attributes)


def _operation(name: str, stream: str) -> _Attributes:
    return {
        "messaging.system": SYSTEM,
        "messaging.operation.name": name,
        "messaging.operation.type": name,
        "messaging.destination.name": stream,
    }


def _about(jobs: list[Job[Any]], *, is_batch: bool) -> _Attributes:
    first = jobs[0]
    found = _operation("process", first.stream)
    found["messaging.consumer.group.name"] = first.group
    found["messaging.client.id"] = first._consumer  # noqa: SLF001  # of this package
    if is_batch:
        found["messaging.batch.message_count"] = len(jobs)
    else:
        found["messaging.message.id"] = first.id
        found["messaging.streamq.entry_id"] = first.entry_id
        found["messaging.streamq.attempt"] = first.attempt
        found["messaging.streamq.deliveries"] = first.deliveries
    return found


def _kind(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _carries_trace(headers: Mapping[str, str]) -> bool:
    return not headers.keys().isdisjoint(propagate.get_global_textmap().fields - {"baggage"})


def _extracted(headers: Mapping[str, str]) -> Context:
    return propagate.extract(headers, context=Context()) if headers else Context()


def _links(context: Context, attributes: _Attributes | None = None) -> list[Link]:
    """To the span of a context, if it has one."""
    found = trace.get_current_span(context).get_span_context()
    return [Link(found, attributes)] if found.is_valid else []
