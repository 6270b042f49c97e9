"""How handlers are called, and what their ends become. No server."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import logging
import threading
import time

import pytest

from streamq import ConfigurationError, Job, Reject, Release, Retry
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
        None,
        "handler",
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


# --- what an exception means --------------------------------------------------------------


class DownError(ConnectionError):
    pass


class BothError(LookupError, ValueError):
    pass


ERRORS = {OSError: "retry", ConnectionError: "release", ValueError: "reject", LookupError: "retry"}


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize(
    ("error", "end", "text"),
    [
        (ValueError("bad"), End.REJECTED, "ValueError: bad"),
        (UnicodeError("bad"), End.REJECTED, "UnicodeError: bad"),
        (
            DownError("no route"),
            End.RELEASED,
            "DownError: no route",
        ),  # by ConnectionError, which is nearer than OSError
        (FileNotFoundError("x"), End.FAILED, "FileNotFoundError: x"),
        (BothError("x"), End.FAILED, "BothError: x"),  # LookupError stands first in its MRO
        (RuntimeError("x"), End.FAILED, "RuntimeError: x"),
        (Release("busy"), End.RELEASED, "busy"),
        (Release(), End.RELEASED, ""),
    ],
    ids=repr,
)
def test_an_exception_means_what_its_nearest_class_says(colour, error, end, text):
    found = outcome(handler(colour, raising(error)), errors=ERRORS)
    assert (found.end, found.error) == (end, text)


@pytest.mark.parametrize("verdict", ["retry", "reject", "release"])
def test_words_mean_what_they_say_whatever_the_mapping(verdict):
    errors = {BaseException: verdict, Retry: verdict, Reject: verdict, Release: verdict}
    ends = [outcome(raising(word), errors=errors).end for word in (Retry("r"), Reject("r"), Release("r"))]
    assert ends == [End.FAILED, End.REJECTED, End.RELEASED]
    assert outcome(raising(SystemExit(1)), errors=errors).end is _of_verdict[verdict]


_of_verdict = {"retry": End.FAILED, "reject": End.REJECTED, "release": End.RELEASED}


@pytest.mark.parametrize(
    ("errors", "message"),
    [
        ({"ValueError": "retry"}, "'ValueError' is no exception class"),
        ({ValueError("x"): "retry"}, r"ValueError\('x'\) is no exception class"),
        ({int: "retry"}, "<class 'int'> is no exception class"),
        ({ValueError: "drop"}, "ValueError must mean retry, reject or release, not 'drop'"),
        ({ValueError: None}, "not None"),
    ],
)
def test_other_mappings_are_refused_at_once(errors, message):
    with pytest.raises(ConfigurationError, match=message):
        Dispatcher(only_payload, THREADS, errors=errors)


def test_the_log_says_what_was_made_of_an_exception_and_keeps_quiet_about_words(caplog):
    for error in (ValueError("a"), DownError("b"), KeyError("c"), Retry("d"), Reject("e"), Release("f")):
        outcome(raising(error), errors=ERRORS, stream="orders")
    assert [record.getMessage().partition(" ")[2] for record in caplog.records] == [
        "rejected: stream=orders job_id=job-1 entry_id=1-0 attempt=1 consumer=c error=ValueError",
        "released: stream=orders job_id=job-1 entry_id=1-0 attempt=1 consumer=c error=DownError",
        "failed: stream=orders job_id=job-1 entry_id=1-0 attempt=1 consumer=c error=KeyError",
    ]


# --- timeouts -----------------------------------------------------------------------------


def test_an_async_handler_that_runs_too_long_is_cancelled():
    seen = []

    async def slow(payload, job):
        try:
            await asyncio.sleep(60)
        finally:
            seen.append(job.timed_out)

    job = a_job()
    found = outcome(slow, job, timeout_s=0.05, errors={TimeoutError: "reject"})
    assert (found.end, found.error) == (End.FAILED, "TimeoutError: ran longer than 0.05 s")
    assert (found.still_running, job.timed_out, job.lease_lost, seen) == (None, True, False, [True])


@pytest.mark.parametrize("last", ["value", "error", "reject"])
def test_what_an_async_handler_says_after_its_time_counts_for_nothing(last):
    async def stubborn(payload):
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            if last == "value":
                return "saved"
            raise (Reject("no") if last == "reject" else RuntimeError("cleaned up badly")) from None

    found = outcome(stubborn, timeout_s=0.05)
    assert (found.end, found.error) == (End.FAILED, "TimeoutError: ran longer than 0.05 s")


def test_an_async_handler_that_ignores_its_cancel_is_left_behind(monkeypatch):
    monkeypatch.setattr("streamq.worker.dispatch.CANCEL_GRACE_S", 0.1)

    async def run():
        go = asyncio.Event()

        async def deaf(payload):
            while not go.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await go.wait()
            raise SystemExit(1)  # reaches nobody

        found = await asyncio.wait_for(Dispatcher(deaf, THREADS, timeout_s=0.05).run(a_job()), 5)
        assert (found.end, found.error) == (End.FAILED, "TimeoutError: ran longer than 0.05 s")
        await asyncio.sleep(0.05)
        assert not found.still_running.done()
        go.set()
        await asyncio.wait_for(found.still_running, 5)

    asyncio.run(run())


def test_a_def_handler_that_runs_too_long_is_told_and_keeps_its_thread():
    go = threading.Event()
    job = a_job()

    def slow(payload, job):
        while not job.timed_out:
            time.sleep(0.001)
        go.wait(5)
        job.effects.incrby("late")

    async def run():
        with dispatching(slow, limit=1, timeout_s=0.05) as dispatcher:
            found = await asyncio.wait_for(dispatcher.run(job), 5)
            assert (found.end, found.error) == (End.FAILED, "TimeoutError: ran longer than 0.05 s")
            await asyncio.sleep(0.05)
            assert not found.still_running.done()
            go.set()
            await asyncio.wait_for(found.still_running, 5)

    asyncio.run(run())
    assert (job.timed_out, job.lease_lost) == (True, False)


@pytest.mark.parametrize("colour", COLOURS)
def test_within_its_time_a_handler_is_as_without(colour):
    jobs = [a_job(word, number) for number, word in enumerate(["value", "error", "exit", "reject"], 1)]

    def body(payload, job):
        match payload:
            case "error":
                raise ValueError("bad")
            case "exit":
                raise SystemExit(3)
            case "reject":
                raise Reject("no")
        return payload

    found = outcomes(handler(colour, body), jobs, timeout_s=30)
    assert [one.end for one in found] == [End.DONE, End.FAILED, End.FAILED, End.REJECTED]
    assert [one.error for one in found] == ["", "ValueError: bad", "SystemExit: 3", "no"]
    assert not any(job.timed_out for job in jobs)


@pytest.mark.parametrize("when", ["at once", "later"])
@pytest.mark.parametrize("colour", COLOURS)
def test_our_own_cancel_with_a_timeout(colour, when):
    go = threading.Event()

    async def waiting(payload):
        await asyncio.sleep(60)

    async def run():
        with dispatching((lambda payload: go.wait(5)) if colour == "def" else waiting, timeout_s=30) as dispatcher:
            task = asyncio.create_task(dispatcher.run(a_job()))
            await asyncio.sleep(0)  # begun, but not the handler
            if when == "later":
                await asyncio.sleep(0.05)
            task.cancel()
            found = await task
            go.set()
            return found

    job = asyncio.run(run())
    assert job.end is End.CANCELLED
    assert not job.job.timed_out


def test_our_own_cancel_of_a_handler_that_ignores_it(monkeypatch):
    monkeypatch.setattr("streamq.worker.dispatch.CANCEL_GRACE_S", 0.1)

    async def run():
        go = asyncio.Event()

        async def deaf(payload):
            while not go.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await go.wait()

        task = asyncio.create_task(Dispatcher(deaf, THREADS, timeout_s=30).run(a_job()))
        await asyncio.sleep(0.02)
        task.cancel()
        await asyncio.sleep(0.02)
        task.cancel()  # again, while it waits for the handler
        found = await asyncio.wait_for(task, 5)
        assert found.end is End.CANCELLED
        assert not found.still_running.done()
        go.set()
        await asyncio.wait_for(found.still_running, 5)

    asyncio.run(run())


def test_a_timeout_is_logged(caplog):
    async def slow(payload):
        await asyncio.sleep(60)

    outcome(slow, timeout_s=0.02, stream="orders")
    [record] = caplog.records
    assert record.getMessage().startswith("job timed out: stream=orders job_id=job-1 ")


# --- batches ------------------------------------------------------------------------------


def batch_outcomes(function, jobs, **options):
    async def run():
        with dispatching(function, batch=True, **options) as dispatcher:
            return await dispatcher.run_batch(jobs)

    return asyncio.run(run())


def batch_handler(colour, body):
    if colour == "def":
        return body

    async def waiting(jobs):
        await asyncio.sleep(0)
        return body(jobs)

    return waiting


def some_jobs(count=3):
    return [a_job(f"p{n}", n) for n in range(1, count + 1)]


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize(
    ("body", "results"),
    [
        (lambda jobs: None, [b"", b"", b""]),
        (lambda jobs: [job.payload for job in jobs], [b'"p1"', b'"p2"', b'"p3"']),
        (lambda jobs: (1, None, 3), [b"1", b"", b"3"]),
        (lambda jobs: jobs.clear(), [b"", b"", b""]),  # the list is the handler's own
    ],
)
def test_a_batch_returns_nothing_or_one_result_a_job(colour, body, results):
    jobs = some_jobs()
    found = batch_outcomes(batch_handler(colour, body), jobs)
    assert [one.job for one in found] == jobs
    assert [(one.end, one.result) for one in found] == [(End.DONE, result) for result in results]


@pytest.mark.parametrize("colour", COLOURS)
def test_an_exception_in_a_batch_s_answer_is_that_job_s_alone(colour, caplog):
    answer = ["ok", Retry("later"), Reject("no"), Release(), KeyError("x"), DownError(), SystemExit(1), object()]
    answer.append(asyncio.CancelledError())
    found = batch_outcomes(batch_handler(colour, lambda jobs: answer), some_jobs(9), errors=ERRORS)
    failed, rejected, released = End.FAILED, End.REJECTED, End.RELEASED
    ends = [End.DONE, failed, rejected, released, failed, released, failed, failed, failed]
    assert [one.end for one in found] == ends
    assert [one.error for one in found][:5] == ["", "later", "no", "", "KeyError: 'x'"]
    assert found[7].error.startswith("JobEncodingError: result cannot be encoded")
    assert [record.streamq["entry_id"] for record in caplog.records] == ["5-0", "6-0", "7-0", "8-0", "9-0"]


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize(
    ("error", "end", "text"),
    [
        (ValueError("4711"), End.REJECTED, "ValueError: 4711"),
        (Retry("later"), End.FAILED, "later"),
        (SystemExit(3), End.FAILED, "SystemExit: 3"),
    ],
)
def test_what_a_batch_raises_ends_every_job_of_it(colour, error, end, text, caplog):
    def body(jobs):
        raise error

    found = batch_outcomes(batch_handler(colour, body), some_jobs(), errors=ERRORS, stream="orders")
    assert [(one.end, one.error) for one in found] == [(end, text)] * 3
    assert "4711" not in caplog.text
    if end is End.REJECTED:
        [record] = caplog.records  # one for all
        assert record.getMessage().startswith("batch rejected: stream=orders jobs=3 job_id=job-1 entry_id=1-0 ")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ([1, 2], "returned 2 results"),
        ([1, 2, 3, 4], "returned 4 results"),
        ([], "returned 0 results"),
        ("abc", "returned str"),
        (b"abc", "returned bytes"),
        ({1: 1, 2: 2, 3: 3}, "returned dict"),
        ((n for n in range(3)), "returned generator"),
        (True, "returned bool"),
        (ValueError("x"), "returned ValueError"),
    ],
)
def test_another_answer_of_a_batch_fails_every_job_of_it(answer, message, caplog):
    found = batch_outcomes(lambda jobs: answer, some_jobs(), errors={BaseException: "release"})
    text = f"the batch handler {message}: return None or a list with one result for each of the 3 jobs"
    assert [(one.end, one.error) for one in found] == [(End.FAILED, text)] * 3
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


def test_a_batch_is_one_call_with_one_timeout():
    go = threading.Event()
    jobs = some_jobs()

    async def run():
        with dispatching(lambda jobs: go.wait(5), batch=True, timeout_s=0.05) as dispatcher:
            found = await dispatcher.run_batch(jobs)
            assert [(one.end, one.error) for one in found] == [(End.FAILED, "TimeoutError: ran longer than 0.05 s")] * 3
            [running] = {one.still_running for one in found}
            assert not running.done()
            go.set()
            await asyncio.wait_for(running, 5)

    asyncio.run(run())
    assert all(job.timed_out for job in jobs)


def test_our_own_cancel_of_a_batch():
    async def waiting(jobs):
        await asyncio.sleep(60)

    async def run():
        task = asyncio.create_task(Dispatcher(waiting, THREADS, batch=True).run_batch(some_jobs()))
        await asyncio.sleep(0.02)
        task.cancel()
        return await task

    assert [one.end for one in asyncio.run(run())] == [End.CANCELLED] * 3


@pytest.mark.parametrize("function", [lambda: None, lambda jobs, job: None, lambda *, jobs: None])
def test_other_signatures_of_a_batch_are_refused_at_once(function):
    with pytest.raises(ConfigurationError, match=r"a batch handler takes \(jobs\)"):
        Dispatcher(function, THREADS, batch=True)


def test_one_job_is_a_batch_too():
    assert outcome(lambda jobs: [len(jobs)], batch=True).result == b"1"
