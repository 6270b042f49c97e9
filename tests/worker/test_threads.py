"""Threads that ``def`` handlers run in."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref

import pytest
from waiting import until

from streamq.worker import threads as module
from streamq.worker.threads import NoThreadError, Threads


def test_calls_run_beside_each_other_in_as_many_threads_as_asked_for():
    together = threading.Barrier(3)
    names = set()

    def body(value):
        names.add(threading.current_thread().name)
        together.wait(5)
        return value

    async def run():
        threads = Threads(3)
        rounds = []
        for _ in range(3):
            rounds += await asyncio.gather(*(threads.call(body, n).value() for n in range(3)))
        threads.close()
        return rounds

    assert asyncio.run(run()) == [0, 1, 2] * 3
    assert len(names) == 3
    until(lambda: not any(t.name in names for t in threading.enumerate()))  # closed: the threads end


def test_no_more_run_than_the_limit_and_the_others_wait():
    running, most, lock = 0, 0, threading.Lock()

    def body(value):
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.01)
        with lock:
            running -= 1
        return value

    async def run():
        threads = Threads(3)
        found = await asyncio.gather(*(threads.call(body, n).value() for n in range(12)))
        threads.close()
        return found

    assert asyncio.run(run()) == list(range(12))
    assert most == 3


def test_threads_are_reused_when_calls_come_one_by_one():
    names = set()

    async def run():
        threads = Threads(10)
        for _ in range(20):
            await threads.call(lambda: names.add(threading.current_thread().name)).value()
            await asyncio.sleep(0.002)  # let the thread say that it is idle
        threads.close()

    asyncio.run(run())
    assert len(names) <= 2


def refuse_threads(**_):
    raise RuntimeError("can't start new thread")


def test_where_the_system_gives_no_thread_nothing_is_called(monkeypatch):
    async def run():
        threads = Threads(3)
        assert await threads.call(lambda: 1).value() == 1
        await asyncio.sleep(0.2)  # for the thread to be idle again
        with monkeypatch.context() as patch:
            patch.setattr(module.threading, "Thread", refuse_threads)
            go = threading.Event()
            busy = threads.call(go.wait, 5)  # by the one that is there
            with pytest.raises(NoThreadError, match="can't start"):
                await threads.call(lambda: 2).value()
            go.set()
            assert await busy.value()
            await asyncio.sleep(0.2)
            assert await threads.call(lambda: 3).value() == 3
        together = threading.Barrier(3)
        assert len(await asyncio.gather(*(threads.call(together.wait, 5).value() for _ in range(3)))) == 3
        threads.close()

    asyncio.run(run())


def test_a_pool_outlives_an_event_loop():
    threads = Threads(1)

    async def run(value):
        return await threads.call(lambda: value).value()

    assert [asyncio.run(run(n)) for n in range(3)] == [0, 1, 2]
    threads.close()


def noted_wakes(loop):
    """A list that grows by one each time that a thread wakes the loop."""
    wakes = []
    wake = loop.call_soon_threadsafe
    loop.call_soon_threadsafe = lambda *args, **more: (wakes.append(1), wake(*args, **more))[1]
    return wakes


def test_calls_that_end_together_wake_the_loop_once():
    begun, go = [], threading.Event()

    def handler():
        begun.append(1)
        go.wait(5)

    async def run():
        wakes = noted_wakes(asyncio.get_running_loop())
        threads = Threads(50)
        calls = [threads.call(handler) for _ in range(50)]
        while len(begun) < 50:  # noqa: ASYNC110  # threads
            await asyncio.sleep(0.001)
        go.set()
        until(lambda: len(threads._landing._ended) == 50)  # the loop is busy while all of them end
        assert not any(call.ended.done() for call in calls)
        await asyncio.gather(*(call.value() for call in calls))
        threads.close()
        return len(wakes)

    # The mark needs no lock, so that two threads may both wake the loop; not each of fifty.
    assert 1 <= asyncio.run(run()) <= 10


def test_a_thread_that_goes_on_does_not_wake_the_loop_for_each():
    async def run():
        wakes = noted_wakes(asyncio.get_running_loop())
        threads = Threads(50)
        await asyncio.gather(*(threads.call(lambda: time.sleep(0.0001)).value() for _ in range(200)))
        threads.close()
        return len(wakes)

    assert asyncio.run(run()) < 100


def test_one_that_ends_before_a_long_one_comes_back_soon():
    go = threading.Event()

    async def run():
        threads = Threads(1)
        quick, slow = threads.call(lambda: 1), threads.call(go.wait, 30)
        assert await asyncio.wait_for(quick.value(), 10) == 1
        assert not slow.ended.done()
        go.set()
        assert await slow.value()
        threads.close()

    asyncio.run(run())


def test_short_calls_do_not_start_a_thread_each():
    async def run():
        threads = Threads(2_000)
        for _ in range(10):
            await asyncio.gather(*(threads.call(lambda: None).value() for _ in range(1_000)))
        threads.close()
        return threads._started

    assert asyncio.run(run()) < 1_000


def test_what_waits_is_refused_once_no_further_thread_can_be_had(monkeypatch):
    go = threading.Event()

    async def run():
        threads = Threads(8)
        assert await threads.call(lambda: 1).value() == 1
        with monkeypatch.context() as patch:
            patch.setattr(module.threading, "Thread", refuse_threads)
            busy, *waiting = [threads.call(go.wait, 30) for _ in range(3)]
            for call in waiting:
                with pytest.raises(NoThreadError, match="can't start"):
                    await asyncio.wait_for(call.value(), 10)
            go.set()
            assert await busy.value()
        threads.close()

    asyncio.run(run())


def test_no_call_is_forgotten_when_many_end_at_any_time():
    async def run():
        threads = Threads(8)
        for _ in range(30):
            await asyncio.wait_for(asyncio.gather(*(threads.call(lambda: None).value() for _ in range(100))), 10)
        threads.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    "error", [ValueError("x"), SystemExit(1), StopIteration(), GeneratorExit(), asyncio.CancelledError()], ids=repr
)
def test_what_a_call_raises_is_raised_to_whoever_awaits(error):
    def body():
        raise error

    async def run():
        threads = Threads(1)
        call = threads.call(body)
        try:
            await call.value()
        except BaseException as found:  # noqa: BLE001
            return found, call.ended.done()
        finally:
            threads.close()

    found, ended = asyncio.run(run())
    assert ended
    if isinstance(error, StopIteration):
        assert str(found) == "coroutine raised StopIteration"
    else:
        assert type(found) is type(error)


def test_a_cancelled_call_goes_on_and_says_when_it_has_ended():
    go = threading.Event()

    async def run():
        threads = Threads(1)
        call = threads.call(go.wait, 5)
        call.answer.cancel()
        await asyncio.sleep(0.05)
        assert not call.ended.done()
        go.set()
        await asyncio.wait_for(call.ended, 5)
        assert call.answer.cancelled()
        assert await threads.call(lambda: "next").value() == "next"
        threads.close()

    asyncio.run(run())


def test_a_call_that_ends_after_its_loop_is_no_trouble(caplog):
    go = threading.Event()

    async def run():
        threads = Threads(2)
        for _ in range(2):
            threads.call(go.wait, 5)
        threads.close()

    asyncio.run(run())
    go.set()
    until(lambda: caplog.text.count("ended after its worker had stopped") == 2)


def test_an_idle_thread_keeps_nothing_alive():
    class Payload:
        pass

    async def run():
        threads = Threads(1)
        payload = Payload()
        seen = weakref.ref(payload)
        await threads.call(lambda one: None, payload).value()
        del payload
        return threads, seen

    threads, seen = asyncio.run(run())
    until(lambda: (gc.collect(), seen() is None)[1])
    threads.close()
