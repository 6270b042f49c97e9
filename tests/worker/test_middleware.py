"""What stands around a handler."""

from __future__ import annotations

import asyncio
import contextvars
import threading

import pytest

from streamq import ConfigurationError, Job, Reject
from streamq.worker.dispatch import Dispatcher, End
from streamq.worker.threads import Threads


def a_job(number=1):
    return Job(payload="p", id=f"job-{number}", entry_id=f"{number}-0", deliveries=1, _consumer="c")


def dispatched(handler, *middlewares, jobs=None, **options):
    async def run():
        threads = Threads(2)
        try:
            dispatcher = Dispatcher(handler, threads, middlewares=middlewares, **options)
            if jobs is not None:
                return await dispatcher.run_batch(jobs)
            return await dispatcher.run(a_job())
        finally:
            threads.close()

    return asyncio.run(run())


class Trace:
    """Notes who ran, in which thread."""

    def __init__(self):
        self.notes = []

    def note(self, what):
        where = "loop" if threading.current_thread() is threading.main_thread() else "thread"
        self.notes.append((what, where))

    def plain(self, name):
        def middleware(job, call):
            self.note(f"{name} before {job.id}")
            value = call()
            self.note(f"{name} after")
            return [name, value]

        return middleware

    def waiting(self, name):
        async def middleware(job, call):
            self.note(f"{name} before {job.id}")
            value = await call()
            self.note(f"{name} after")
            return [name, value]

        return middleware

    def handler(self, payload):
        self.note("handler")
        return payload

    async def async_handler(self, payload):
        self.note("handler")
        return payload


def test_around_an_async_handler_the_first_is_outermost():
    trace = Trace()
    found = dispatched(trace.async_handler, trace.waiting("a"), trace.waiting("b"))
    assert found.result == b'["a",["b","p"]]'
    names = ["a before job-1", "b before job-1", "handler", "b after", "a after"]
    assert trace.notes == [(name, "loop") for name in names]


def test_around_a_def_handler_they_run_in_its_thread():
    trace = Trace()
    found = dispatched(trace.handler, trace.plain("a"), trace.plain("b"))
    assert found.result == b'["a",["b","p"]]'
    names = ["a before job-1", "b before job-1", "handler", "b after", "a after"]
    assert trace.notes == [(name, "thread") for name in names]


def test_async_ones_may_stand_in_front_of_a_def_handler():
    trace = Trace()
    found = dispatched(trace.handler, trace.waiting("a"), trace.waiting("b"), trace.plain("c"))
    assert found.result == b'["a",["b",["c","p"]]]'
    assert [where for _, where in trace.notes] == ["loop", "loop", "thread", "thread", "thread", "loop", "loop"]


def test_where_one_cannot_stand():
    trace = Trace()
    with pytest.raises(ConfigurationError, match="is a def, but the handler is an async def: write async def"):
        Dispatcher(trace.async_handler, Threads(1), middlewares=[trace.waiting("a"), trace.plain("b")])
    with pytest.raises(ConfigurationError, match=r"is an async def behind .* async ones come first"):
        Dispatcher(trace.handler, Threads(1), middlewares=[trace.plain("a"), trace.waiting("b")])


@pytest.mark.parametrize("middleware", [None, "logging", lambda call: None, lambda job, call, more: None, int])
def test_what_is_no_middleware(middleware):
    with pytest.raises(ConfigurationError, match=r"a middleware takes \(job, call\)"):
        Dispatcher(Trace().handler, Threads(1), middlewares=[middleware])


def test_an_object_may_be_one():
    class Doubling:
        async def __call__(self, job, call):
            return 2 * await call()

    async def handler(payload):
        return payload

    assert dispatched(handler, Doubling()).result == b'"pp"'


@pytest.mark.parametrize("colour", ["def", "async def"])
def test_one_may_change_what_the_handler_raises(colour):
    def handler(payload):
        raise ValueError("bad")

    async def async_handler(payload):
        raise ValueError("bad")

    def middleware(job, call):
        try:
            call()
        except ValueError:
            raise Reject("never") from None

    async def async_middleware(job, call):
        try:
            await call()
        except ValueError:
            raise Reject("never") from None

    found = dispatched(handler, middleware) if colour == "def" else dispatched(async_handler, async_middleware)
    assert (found.end, found.error) == (End.REJECTED, "never")
    found = dispatched(handler, async_middleware)
    assert (found.end, found.error) == (End.REJECTED, "never")


@pytest.mark.parametrize("colour", ["def", "async def"])
def test_what_one_raises_itself_counts_as_the_handler_s(colour):
    def middleware(job, call):
        call()
        raise SystemExit(7)

    async def async_middleware(job, call):
        await call()
        raise SystemExit(7)

    trace = Trace()
    found = (
        dispatched(trace.handler, middleware) if colour == "def" else dispatched(trace.async_handler, async_middleware)
    )
    assert (found.end, found.error) == (End.FAILED, "SystemExit: 7")


def test_one_may_call_again_or_not_at_all():
    tries = []

    def flaky(payload):
        tries.append(payload)
        if len(tries) < 3:
            raise OSError("again")
        return len(tries)

    async def insistent(job, call):
        while True:
            try:
                return await call()
            except OSError:
                continue

    assert dispatched(flaky, insistent).result == b"3"
    tries.clear()
    assert dispatched(flaky, lambda job, call: "cached").result == b'"cached"'
    assert tries == []


def test_a_forgotten_await_is_no_success():
    async def forgetful(job, call):
        call()

    trace = Trace()
    for handler in (trace.handler, trace.async_handler):
        found = dispatched(handler, forgetful)
        assert found.end is End.FAILED
        assert "did not await call()" in found.error
    assert trace.notes == []


def test_a_thread_that_one_gave_up_still_holds_the_slot():
    go = threading.Event()

    async def impatient(job, call):
        try:
            return await asyncio.wait_for(call(), 0.02)
        except TimeoutError:
            return "gave up"

    async def run():
        threads = Threads(1)
        found = await Dispatcher(lambda payload: go.wait(5), threads, middlewares=[impatient]).run(a_job())
        assert (found.end, found.result) == (End.DONE, b'"gave up"')
        assert not found.still_running.done()
        go.set()
        await asyncio.wait_for(found.still_running, 5)
        threads.close()

    asyncio.run(run())


_tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="nobody")


@pytest.mark.parametrize("timeout_s", [None, 30])
def test_the_handler_sees_context_that_one_sets(timeout_s):
    async def async_middleware(job, call):
        _tenant.set(job.id)
        return await call()

    def middleware(job, call):
        _tenant.set(f"{_tenant.get()} and {job.id}")
        return call()

    async def async_handler(payload):
        return _tenant.get()

    assert dispatched(async_handler, async_middleware, timeout_s=timeout_s).result == b'"job-1"'
    found = dispatched(lambda payload: _tenant.get(), async_middleware, middleware, timeout_s=timeout_s)
    assert found.result == b'"job-1 and job-1"'
    assert _tenant.get() == "nobody"


def test_around_a_batch_they_get_its_jobs():
    jobs = [a_job(n) for n in range(3)]

    def counting(jobs, call):
        return [f"{len(jobs)} {value}" for value in call()]

    async def async_counting(jobs, call):
        return [f"{len(jobs)} {value}" for value in await call()]

    found = dispatched(lambda jobs: [job.id for job in jobs], async_counting, counting, jobs=jobs, batch=True)
    assert [one.result for one in found] == [b'"3 3 job-0"', b'"3 3 job-1"', b'"3 3 job-2"']


def test_an_async_one_around_a_def_handler_is_cancelled_by_a_timeout():
    go = threading.Event()
    cancelled = []

    async def middleware(job, call):
        try:
            await call()
        except asyncio.CancelledError:
            cancelled.append(job.timed_out)
            raise

    async def run():
        threads = Threads(1)
        dispatcher = Dispatcher(lambda payload: go.wait(5), threads, middlewares=[middleware], timeout_s=0.05)
        found = await dispatcher.run(a_job())
        assert found.error == "TimeoutError: ran longer than 0.05 s"
        assert not found.still_running.done()
        go.set()
        await asyncio.wait_for(found.still_running, 5)
        threads.close()

    asyncio.run(run())
    assert cancelled == [True]
