"""How handlers are called, and what their ends become. No server."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import logging
import threading

import pytest

from streamq import ConfigurationError, Job, Reject, Retry
from streamq.worker.dispatch import Dispatcher, End
from streamq.worker.threads import Threads

COLOURS = ["def", "async def"]
THREADS = Threads(1)
"""For dispatchers that run nothing in a thread: none is started."""


def a_job(payload="p", number=1):
    return Job(payload=payload, id=f"job-{number}", entry_id=f"{number}-0", deliveries=1, _consumer="c")


def handler(colour, body):
    """`body` as a handler of that colour."""
    if colour == "def":
        return body

    async def waiting(payload, job):
        await asyncio.sleep(0)
        return body(payload, job)

    return waiting


@contextlib.contextmanager
def dispatching(function, limit=4, **options):
    """A dispatcher with threads of its own."""
    threads = Threads(limit)
    try:
        yield Dispatcher(function, threads, **options)
    finally:
        threads.close()


def outcomes(function, jobs, limit=4, **options):
    """Dispatch jobs, each in a task of its own, one after the other."""

    async def run():
        with dispatching(function, limit, **options) as dispatcher:
            return [await asyncio.create_task(dispatcher.run(job)) for job in jobs]

    return asyncio.run(run())


def outcome(function, job=None, **options):
    [one] = outcomes(function, [job or a_job()], **options)
    return one


def raising(error):
    def body(payload, job):
        raise error

    return body


# --- signatures ---------------------------------------------------------------------------


def only_payload(payload):
    return [payload]


def payload_and_job(payload, job):
    return [payload, job.id]


def optional_job(payload, job=None):
    return [payload, job and job.id]


def anything(*args):
    return [args[0], args[1].id]


def with_options(payload, *, loud=False, **more):
    return [payload, loud, more]


async def only_payload_async(payload):
    return [payload]


async def payload_and_job_async(payload, job):
    return [payload, job.id]


class Callable:
    def __call__(self, payload):
        return [payload]

    def method(self, payload, job):
        return [payload, job.id]


class AsyncCallable:
    async def __call__(self, payload, job):
        await asyncio.sleep(0)
        return [payload, job.id]


@pytest.mark.parametrize(
    ("function", "result"),
    [
        (only_payload, b'["p"]'),
        (payload_and_job, b'["p","job-1"]'),
        (optional_job, b'["p","job-1"]'),
        (anything, b'["p","job-1"]'),
        (with_options, b'["p",false,{}]'),
        (only_payload_async, b'["p"]'),
        (payload_and_job_async, b'["p","job-1"]'),
        (Callable(), b'["p"]'),
        (Callable().method, b'["p","job-1"]'),
        (AsyncCallable(), b'["p","job-1"]'),
        (functools.partial(payload_and_job_async), b'["p","job-1"]'),
        (lambda p: [p], b'["p"]'),
        (str, b'"p"'),  # a class whose signature cannot be told takes the payload
        (len, b"1"),
    ],
)
def test_a_handler_gets_what_it_takes(function, result):
    found = outcome(function)
    assert (found.end, found.result) == (End.DONE, result)


@pytest.mark.parametrize(
    "function",
    [
        lambda: None,
        lambda a, b, c: None,
        lambda *, payload: None,
        lambda payload, *, needed: None,
        functools.partial(only_payload, "x"),
    ],
)
def test_other_signatures_are_refused_at_once(function):
    with pytest.raises(ConfigurationError, match=r"a handler takes \(payload\) or \(payload, job\)"):
        Dispatcher(function, THREADS)


def test_async_handlers_can_be_cancelled_and_threads_cannot():
    assert Dispatcher(only_payload_async, THREADS).is_async
    assert Dispatcher(AsyncCallable(), THREADS).is_async
    assert Dispatcher(functools.partial(only_payload_async), THREADS).is_async
    assert Dispatcher(functools.partial(AsyncCallable()), THREADS).is_async
    assert not Dispatcher(only_payload, THREADS).is_async


# --- ends ---------------------------------------------------------------------------------


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize(
    ("value", "result"), [(None, b""), ({"n": 1}, b'{"n":1}'), ("", b'""'), (0, b"0"), (False, b"false")]
)
def test_a_returned_value_is_the_result(colour, value, result):
    found = outcome(handler(colour, lambda payload, job: value))
    assert (found.end, found.result, found.error) == (End.DONE, result, "")


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("value", [object(), {1: {2, object()}}, "x" * 70_000, float], ids=str)
def test_a_result_that_cannot_be_kept_fails_the_attempt(colour, value, caplog):
    found = outcome(handler(colour, lambda payload, job: value))
    assert found.end is End.FAILED
    assert found.error.startswith("JobEncodingError: result ")
    assert [r.levelno for r in caplog.records] == [logging.ERROR]


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize(
    ("error", "end", "text"),
    [
        (Reject("no such customer"), End.REJECTED, "no such customer"),
        (Reject(), End.REJECTED, ""),
        (Retry("not yet"), End.FAILED, "not yet"),
        (ValueError("bad"), End.FAILED, "ValueError: bad"),
        (TimeoutError(), End.FAILED, "TimeoutError: "),
    ],
    ids=repr,
)
def test_words_and_errors(colour, error, end, text):
    found = outcome(handler(colour, raising(error)))
    assert (found.end, found.error, found.result) == (end, text, b"")


@pytest.mark.covers("C25")
@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize(
    "error",
    [
        SystemExit(3),
        KeyboardInterrupt(),
        GeneratorExit(),
        asyncio.CancelledError(),
        asyncio.CancelledError("from a library"),
        StopIteration(1),
        StopAsyncIteration(),
        asyncio.InvalidStateError(),
        BaseException("base"),
        BaseExceptionGroup("several", [SystemExit(1), ValueError("x")]),
    ],
    ids=repr,
)
def test_whatever_a_handler_raises_is_a_failed_attempt(colour, error):
    jobs = [a_job("bad", 1), a_job("good", 2)]

    def body(payload, job):
        if payload == "bad":
            raise error
        return payload

    bad, good = outcomes(handler(colour, body), jobs)
    assert bad.end is End.FAILED
    kind = "StopIteration" if isinstance(error, StopIteration) else type(error).__name__
    assert kind in bad.error
    assert (good.end, good.result) == (End.DONE, b'"good"')


@pytest.mark.covers("C25")
@pytest.mark.parametrize("colour", COLOURS)
def test_a_failure_is_logged_once_with_its_entry_and_without_its_payload(colour, caplog):
    outcome(handler(colour, raising(ValueError("secret 4711"))), a_job(payload="secret 4711", number=7))
    [record] = caplog.records
    assert record.getMessage() == "job failed: job_id=job-7 entry_id=7-0 attempt=1 consumer=c error=ValueError"
    assert record.levelno == logging.WARNING
    assert "4711" not in caplog.text


@pytest.mark.parametrize("colour", COLOURS)
def test_our_own_cancel_is_no_attempt(colour):
    began, go = threading.Event(), threading.Event()

    def body(payload):
        began.set()
        go.wait(5)

    async def waiting(payload):
        began.set()
        await asyncio.sleep(60)

    async def run():
        with dispatching(body if colour == "def" else waiting) as dispatcher:
            task = asyncio.create_task(dispatcher.run(a_job()))
            while not began.is_set():  # noqa: ASYNC110  # of a thread
                await asyncio.sleep(0.001)
            task.cancel()
            found = await task
            if colour == "def":
                assert not found.still_running.done()
                go.set()
                await asyncio.wait_for(found.still_running, 5)
            else:
                assert found.still_running is None
            return found

    assert asyncio.run(run()).end is End.CANCELLED


def test_a_handler_that_turns_our_cancel_into_an_error_or_a_value():
    async def stubborn(payload):
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            if payload == "value":
                return "saved"
            raise RuntimeError("cleaned up badly") from None

    async def run(payload):
        task = asyncio.create_task(Dispatcher(stubborn, THREADS).run(a_job(payload)))
        await asyncio.sleep(0.01)
        task.cancel()
        return await task

    assert asyncio.run(run("value")).end is End.DONE
    assert asyncio.run(run("error")).end is End.FAILED


# --- contexts -----------------------------------------------------------------------------

_tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="nobody")


@pytest.mark.parametrize("colour", COLOURS)
def test_context_does_not_leak_from_job_to_job(colour):
    def body(payload, job):
        before = _tenant.get()
        _tenant.set(payload)
        return before

    found = outcomes(handler(colour, body), [a_job("ada", 1), a_job("bob", 2), a_job("eve", 3)], limit=1)
    assert [one.result for one in found] == [b'"nobody"'] * 3


@pytest.mark.parametrize("colour", COLOURS)
def test_a_handler_sees_the_context_of_its_caller(colour):
    token = _tenant.set("caller")
    try:
        assert outcome(handler(colour, lambda payload, job: _tenant.get())).result == b'"caller"'
    finally:
        _tenant.reset(token)
