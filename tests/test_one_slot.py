"""What watches all requests for crossed slots can see them: a watch that sees nothing makes the whole suite lie."""

from __future__ import annotations

import importlib
import logging
import pkgutil

import one_slot
import pytest
from one_slot import CrossedSlotsError, Watch, keys_of

from streamq import _drivers
from streamq._requests import Command, Confirmed, Pipeline, Script, Transaction, ignore

ONE, ALIKE, OTHER = "streamq:{a}:stream", "streamq:{a}:dead", "streamq:{b}:stream"


def command(*args, keys=None):
    return Command(args, (args[1],) if keys is None else keys, ignore)


def seen(request):
    """What a watch says of a request, whose replies do not matter."""

    def answer(request):
        request = request.request if isinstance(request, Confirmed) else request
        parts = getattr(request, "requests", (request,))
        wires = [
            ("EVALSHA", "sha", len(part.keys), *part.keys, *part.argv) if isinstance(part, Script) else part.args
            for part in parts
        ]
        yield [("MULTI",), *wires, ("EXEC",)] if isinstance(request, Transaction) else wires

    watch = Watch()
    steps = watch.over(answer)(request)
    next(steps)
    with pytest.raises(StopIteration):
        steps.send([])
    return watch


@pytest.mark.covers("C1")
@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(Script("ack", (ONE, OTHER), (), ignore), id="a script"),
        pytest.param(Transaction((command("XADD", ONE), command("XADD", OTHER))), id="a transaction"),
        pytest.param(
            Transaction((command("XADD", ONE), Script("ack", (OTHER,), (), ignore))), id="a transaction with a script"
        ),
        pytest.param(command("UNLINK", ONE, OTHER, keys=(ONE, OTHER)), id="a command"),
        pytest.param(
            Pipeline((command("XADD", ONE), command("EXISTS", ONE, OTHER, keys=(ONE, OTHER)))), id="part of a pipeline"
        ),
        pytest.param(command("XADD", ONE, keys=(ALIKE,)), id="another key than named"),
        pytest.param(command("XADD", ONE, keys=()), id="a key that is not named"),
        pytest.param(Confirmed(command("XADD", ONE, keys=(ALIKE,)), ("WAIT", 1, 0)), id="what is waited for"),
        pytest.param(command("XFORGOTTEN", ONE), id="a command of which it does not know the keys"),
    ],
)
def test_what_a_cluster_would_refuse_is_seen(request_):
    with pytest.raises(CrossedSlotsError):
        seen(request_)


@pytest.mark.covers("C1")
@pytest.mark.parametrize(
    "request_",
    [
        Script("ack", (ONE, ALIKE), (OTHER,), ignore),
        Transaction((command("XADD", ONE), command("XADD", ALIKE))),
        Pipeline((command("XADD", ONE), command("XADD", OTHER))),
        command("XGROUP", "CREATE", ONE, "g", 0, keys=(ONE,)),
        command("SCAN", 0, keys=()),
        command("EVAL", "return 0", 0, keys=(ONE,)),
    ],
)
def test_what_a_cluster_takes_is_let_through(request_):
    watch = seen(request_)
    assert (watch.requests, watch.probes, watch.wrong) == (1, 0, [])


def test_the_doctors_trial_over_two_tags_is_counted():
    trial = Script("probe", ("streamq:{a}:probe:x", "streamq:{b}:probe:x"), (), ignore)
    assert seen(trial).probes == 1


def test_keys_are_found_where_the_server_finds_them():
    assert keys_of(("XREADGROUP", "GROUP", "g", "c", "COUNT", 1, "STREAMS", ONE, ALIKE, ">", ">")) == [ONE, ALIKE]
    assert keys_of(("EVALSHA", "sha", 2, ONE, ALIKE, OTHER)) == [ONE, ALIKE]
    assert keys_of(("XINFO", "GROUPS", ONE)) == [ONE]
    assert keys_of(("DEL", ONE, ALIKE)) == [ONE, ALIKE]


def test_the_suite_is_watched(make_stream):
    before = one_slot.WATCH.requests
    make_stream().add({})
    assert one_slot.WATCH.requests > before
    for found in pkgutil.iter_modules(_drivers.__path__):
        module = importlib.import_module(f"{_drivers.__name__}.{found.name}")
        assert getattr(module, "exchange", one_slot.WATCH.over(None)).__qualname__.startswith("Watch."), found.name


def test_what_was_caught_on_its_way_is_remembered():
    watch = Watch()
    with pytest.raises(CrossedSlotsError):
        list(watch.over(lambda request: iter([[]]))(command("XADD", ONE, keys=(OTHER,))))
    assert len(watch.wrong) == 1


def test_crossed_slots_in_a_log_are_seen():
    watch = Watch()
    handler = one_slot._Log(watch)
    handler.handle(
        logging.makeLogRecord({"msg": "%s", "args": ("CROSSSLOT Keys in request don't hash to the same slot",)})
    )
    handler.handle(logging.makeLogRecord({"msg": "all is well"}))
    assert len(watch.wrong) == 1
