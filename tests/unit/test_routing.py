"""The way of requests through a cluster and behind Sentinels, without either: all rules, for all kinds of requests."""

from __future__ import annotations

from collections import deque

import pytest
import redis.exceptions as failures

from streamq import _scripts
from streamq._drivers.books import ASKED, ASKED_S, ClusterBook, SentinelBook
from streamq._drivers.exchange import refused
from streamq._drivers.routing import HOPS, LONGEST_WAIT_S, PATIENCE_S, inquire, travel
from streamq._drivers.slots import SLOTS
from streamq._drivers.steps import Address, Cut, Drop, Send, Sleep
from streamq._ops.registry import note
from streamq._requests import Command, Confirmed, Pipeline, Transaction, ignore, scan
from streamq.errors import ConfigurationError, ConnectionLostError, ServerError
from streamq.keys import Keys, registry, slot_of

A, B, C = (Address("n", port) for port in (1, 2, 3))
KEYS = Keys("orders")
P, Q, R, S, T = "GET", "SET", "HGET", "HSET", "XLEN"
"""Commands to tell apart: of one key each."""


def command(name="XADD", key=KEYS.stream):
    return Command((name, key), (key,), ignore)


def script():
    return _scripts.check(KEYS, commands=["XADD"])


def wires(request):
    """What is sent of a request, by its first word."""
    if isinstance(request, Confirmed):
        return [*wires(request.request), "WAIT"]
    if isinstance(request, Pipeline):
        return [word for part in request.requests for word in wires(part)]
    if isinstance(request, Transaction):
        return [
            "MULTI",
            *("EVAL" if isinstance(part, type(script())) else part.args[0] for part in request.requests),
            "EXEC",
        ]
    return ["EVALSHA" if isinstance(request, type(script())) else request.args[0]]


def kinds():
    yield "command", command()
    yield "script", script()
    yield "pipeline", Pipeline((command(), script(), command("XLEN")))
    yield "transaction", Transaction((command(), script()))


def confirmed_kinds():
    yield from kinds()
    for name, one in kinds():
        yield f"confirmed {name}", Confirmed(one, ("WAIT", 1, 100))


KINDS = pytest.mark.parametrize("request_", [pytest.param(one, id=name) for name, one in confirmed_kinds()])


def refusals(slot):
    """Each refusal that says that nothing was run, as redis-py raises it."""
    yield "TRYAGAIN", failures.TryAgainError("Multiple keys request during rehashing of slot")
    yield "CLUSTERDOWN", failures.ClusterDownError("The cluster is down")
    yield "LOADING", failures.BusyLoadingError("Redis is loading the dataset in memory")
    yield "MASTERDOWN", failures.MasterDownError("Link with MASTER is down")
    yield "READONLY", failures.ReadOnlyError("You can't write against a read only replica.")
    yield "UNBLOCKED", failures.ResponseError("UNBLOCKED force unblock from blocking operation")
    yield (
        "in a script",
        failures.ResponseError(
            "Error running script (call to f_0): @user_script:1: -READONLY You can't write against a read only replica."
        ),
    )
    del slot


REFUSALS = [pytest.param(error, id=name) for name, error in refusals(KEYS.slot)]
ELSEWHERE = {"CLUSTERDOWN", "LOADING", "MASTERDOWN", "READONLY", "UNBLOCKED", "in a script"}


def moved(to, slot=KEYS.slot):
    return failures.MovedError(f"{slot} {to.host}:{to.port}")


def ask(to, slot=KEYS.slot):
    return failures.AskError(f"{slot} {to.host}:{to.port}")


def table(*ranges, replicas=()):
    """A reply of CLUSTER SLOTS: each range is (first, last, primary)."""
    return [
        [first, last, [node.host.encode(), node.port, b"id"], *([r.host.encode(), r.port, b"id"] for r in replicas)]
        for first, last, node in ranges
    ]


WHOLE = table((0, SLOTS - 1, A))


class World:
    """Servers that answer as told, and a clock that only sleeping moves.

    Attributes:
        told: Address -> its answers, in order; each is a list of replies, an error, or makes one of the commands.
        steps: What was done, looks for the table left out.
        looks: Who was asked for the table.
    """

    def __init__(self, slots=WHOLE, **told):
        self.now = 0.0
        self.told = {}
        self.steps = []
        self.looks = []
        self.slots = slots
        for name, answers in told.items():
            self.tell(globals()[name], *answers)

    def tell(self, at, *answers):
        self.told.setdefault(at, deque()).extend(answers)

    def run(self, request, book=None, **options):
        self.book = book or ClusterBook([A])
        return self.walk(travel(request, self.book, now=lambda: self.now, draw=lambda: 1.0, **options))

    def inquire(self, silent):
        return self.walk(inquire(self.book, silent, now=lambda: self.now))

    def walk(self, steps):
        outcome = None
        try:
            while True:
                outcome = self.outcome(steps.send(outcome))
        except StopIteration as stop:
            return stop.value

    def outcome(self, step):
        if isinstance(step, Sleep):
            self.now += step.seconds
            self.steps.append(step)
            return None
        if isinstance(step, Drop | Cut):
            self.steps.append(step)
            return None
        if step.commands[0][:2] in {("CLUSTER", "SLOTS"), ("SENTINEL", "GET-MASTER-ADDR-BY-NAME")}:
            self.looks.append(step.to)
            answer = self.slots(step.to) if callable(self.slots) else self.slots
            return answer if isinstance(answer, Exception) and not isinstance(answer, failures.RedisError) else [answer]
        self.steps.append(step)
        answers = self.told.get(step.to)
        answer = answers.popleft() if answers else fine
        return answer(step.commands) if callable(answer) else answer

    @property
    def sent(self):
        """(to whom, what) of each request."""
        return [(step.to, [wire[0] for wire in step.commands]) for step in self.steps if isinstance(step, Send)]

    @property
    def slept(self):
        return [step.seconds for step in self.steps if isinstance(step, Sleep)]

    @property
    def cut(self):
        return [step.to for step in self.steps if isinstance(step, Cut)]

    @property
    def dropped(self):
        return [step.to for step in self.steps if isinstance(step, Drop)]


def fine(commands):
    """All is done."""
    names = [wire[0] for wire in commands]
    if names[-1] == "WAIT":
        return [*fine(commands[:-1]), 1]
    if "EXEC" not in names:
        return ["OK" if name == "ASKING" else f"did {name}" for name in names]
    done = [f"did {name}" for name in names if name not in {"ASKING", "MULTI", "EXEC"}]
    return [*("QUEUED" if name not in {"ASKING", "MULTI"} else "OK" for name in names[:-1]), done]


def refuse(error, only=None):
    """Refuses commands, or those at some places; of a transaction what is queued."""

    def answer(commands):
        if commands[-1][0] == "WAIT":
            return [*answer(commands[:-1]), 0]
        names = [wire[0] for wire in commands]
        replies = fine(commands)
        if "EXEC" not in names:
            return [error if (only is None or at in only) else reply for at, reply in enumerate(replies)]
        return ["OK", *[error for _ in names[1:-1]], failures.ExecAbortError("Transaction discarded")]

    return answer


def result(request):
    if isinstance(request, Confirmed):
        return result(request.request), 1
    did = [f"did {word}" for word in wires(request) if word not in {"MULTI", "EXEC"}]
    return did if isinstance(request, Pipeline | Transaction) else did[0]


def lost(*, maybe_executed):
    return ConnectionLostError("lost", maybe_executed=maybe_executed)


# --- in a cluster that is well ------------------------------------------------------------


@KINDS
def test_a_request_goes_to_who_holds_its_slot(request_):
    world = World(table((0, KEYS.slot - 1, A), (KEYS.slot, KEYS.slot, B), (KEYS.slot + 1, SLOTS - 1, A)))
    assert world.run(request_) == result(request_)
    assert world.sent == [(B, wires(request_))]
    assert world.looks == [A]


def test_the_table_is_asked_for_once():
    world = World()
    book = ClusterBook([A])
    for _ in range(3):
        world.run(command(), book)
    assert world.looks == [A]


def test_a_wait_is_passed_on():
    world = World()
    waits = Command(("XREAD", "STREAMS", KEYS.stream, "0"), (KEYS.stream,), ignore, wait_ms=1500)
    for request in (waits, Pipeline((waits, command()))):
        world.run(request)
    assert [step.wait_ms for step in world.steps] == [1500, 1500]


def test_what_has_no_keys_goes_to_one_primary():
    world = World(table((0, 99, B), (100, SLOTS - 1, A)))
    assert world.run(Command(("INFO",), (), ignore)) == "did INFO"
    assert world.run(Pipeline((Command(("INFO",), (), ignore), Command(("TIME",), (), ignore)))) == [
        "did INFO",
        "did TIME",
    ]
    assert world.sent == [(A, ["INFO"]), (A, ["INFO", "TIME"])]


def test_an_error_of_the_server_is_raised_or_stands_in_its_place():
    oom = failures.OutOfMemoryError("command not allowed")
    with pytest.raises(ServerError) as caught:
        World(A=[[oom]]).run(command())
    assert caught.value.code == "OOM"
    [one, other] = World(A=[[oom, "fine"]]).run(Pipeline((command(), command())))
    assert (one.code, other) == ("OOM", "fine")


def test_a_script_that_is_unknown_is_sent_whole():
    world = World(A=[[failures.NoScriptError("No matching script")]])
    assert world.run(script()) == "did EVAL"
    assert world.sent == [(A, ["EVALSHA"]), (A, ["EVAL"])]


def test_a_pipeline_over_slots_is_put_together_in_order():
    other = Keys("invoices")
    world = World(table((0, SLOTS - 1, A)))
    world.slots = table(*((slot, slot, B if slot == other.slot else A) for slot in range(SLOTS)))
    mixed = Pipeline((command(P), command(Q, other.stream), command(R), command(S, other.stream)))
    assert world.run(mixed) == [f"did {P}", f"did {Q}", f"did {R}", f"did {S}"]
    assert world.sent == [(A, [P, R]), (B, [Q, S])]


def test_of_a_pipeline_over_slots_only_what_cannot_be_reached_fails():
    other = Keys("invoices")
    world = World(table(*((slot, slot, B if slot == other.slot else A) for slot in range(SLOTS))))
    world.told[B] = deque([lost(maybe_executed=True)])
    one, two, three = world.run(Pipeline((command(P), command(Q, other.stream), command(R))))
    assert (one, three, type(two)) == (f"did {P}", f"did {R}", ConnectionLostError)


# --- redirects ----------------------------------------------------------------------------


@KINDS
def test_moved_is_followed_and_remembered(request_):
    world = World(A=[refuse(moved(B))])
    assert world.run(request_) == result(request_)
    assert world.sent == [(A, wires(request_)), (B, wires(request_))]
    assert world.slept == []
    world.run(command(), world.book)
    assert world.sent[-1] == (B, ["XADD"])


def test_moved_makes_us_look_who_has_the_other_slots():
    world = World()
    book = ClusterBook([A])
    world.run(command(), book)  # learn the first table
    world.now += ASKED_S
    world.slots = table((0, SLOTS - 1, B))
    world.tell(A, refuse(moved(B)))
    world.run(command(), book)
    assert world.looks == [A, B], "who was named knows best"
    other = Keys("invoices")
    world.run(command(key=other.stream), book)
    assert world.sent[-1] == (B, ["XADD"])


@KINDS
def test_ask_is_followed_once_and_not_remembered(request_):
    world = World(A=[refuse(ask(B))])
    assert world.run(request_) == result(request_)
    write = request_.request if isinstance(request_, Confirmed) else request_
    behind = ["WAIT"] if isinstance(request_, Confirmed) else []
    each = [word for wire in wires(write) for word in ("ASKING", wire)]
    asked = [*(["ASKING", *wires(write)] if isinstance(write, Transaction) else each), *behind]
    assert world.sent == [(A, wires(request_)), (B, asked)]
    assert len(world.looks) == 1
    world.run(command(), world.book)
    assert world.sent[-1] == (A, ["XADD"])


@pytest.mark.parametrize("host", ["", "?"])
def test_a_host_that_is_not_told_is_the_one_that_answered(host):
    for redirect in (failures.MovedError, failures.AskError):
        world = World(A=[refuse(redirect(f"{KEYS.slot} {host}:2"))])
        assert world.run(command()) == "did XADD"
        assert world.sent[-1][0] == B


def test_who_may_not_ask_is_told_so():
    denied = failures.NoPermissionError("User u has no permissions to run the 'asking' command")
    world = World(A=[refuse(ask(B))], B=[[denied, moved(A)]])
    with pytest.raises(ConfigurationError, match="asking"):
        world.run(command())


def test_nodes_that_send_us_to_and_fro_are_waited_for():
    world = World()
    for _ in range(HOPS):
        world.tell(A, refuse(moved(B)))
        world.tell(B, refuse(moved(A)))
    assert world.run(command()) == "did XADD"
    assert len(world.sent) > HOPS
    assert len(world.slept) == len(world.sent) - 1 - HOPS


def test_a_script_that_is_unknown_where_we_are_sent():
    world = World(A=[refuse(moved(B))], B=[[failures.NoScriptError("No matching script")]])
    assert world.run(script()) == "did EVAL"
    assert world.sent == [(A, ["EVALSHA"]), (B, ["EVALSHA"]), (B, ["EVAL"])]


# --- refusals ------------------------------------------------------------------------------


@KINDS
@pytest.mark.parametrize("error", REFUSALS)
def test_what_was_refused_for_now_is_sent_again(request_, error):
    world = World(A=[refuse(error)] * 3)
    assert world.run(request_) == result(request_)
    assert world.sent == [(A, wires(request_))] * 4
    assert world.slept == [0.01, 0.02, 0.04]


@pytest.mark.parametrize(("name", "error"), list(refusals(0)))
def test_a_server_that_others_may_have_replaced_is_dropped_and_others_are_asked(name, error):
    world = World(A=[refuse(error)] * 20)
    world.slots = lambda asked: table((0, SLOTS - 1, A if world.now < 0.2 else B), replicas=[B, C])
    assert world.run(command()) == "did XADD"
    if name in ELSEWHERE:
        assert world.sent[-1][0] == B
        assert set(world.dropped) == {A}
        assert A not in world.looks[1:], "who sent us away is asked last"
    else:
        assert (world.sent[-1][0], world.dropped, len(world.looks)) == (A, [], 1)


@KINDS
@pytest.mark.parametrize("error", REFUSALS)
def test_patience_ends(request_, error):
    world = World()
    world.told[A] = deque([refuse(error)] * 1000)
    if isinstance(request_, Pipeline):
        assert all(isinstance(reply, ServerError) for reply in world.run(request_))
    elif isinstance(request_, Confirmed) and isinstance(request_.request, Pipeline):
        replies, confirmation = world.run(request_)
        assert all(isinstance(reply, ServerError) for reply in replies)
        assert confirmation == 0
    else:
        with pytest.raises(ServerError) as caught:
            world.run(request_)
        assert caught.value.code in {"TRYAGAIN", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "READONLY", "UNBLOCKED"}
    assert world.now == pytest.approx(PATIENCE_S)
    assert max(world.slept) == LONGEST_WAIT_S


def test_waits_are_drawn():
    world = World(A=[refuse(failures.TryAgainError(""))])
    steps = travel(command(), ClusterBook([A]), now=lambda: 0.0, draw=lambda: 0.0)
    outcome = None
    for _ in range(3):
        outcome = world.outcome(steps.send(outcome))
    assert world.slept == [0.005]


@pytest.mark.parametrize("redirect", [moved, ask])
def test_of_a_pipeline_only_what_was_refused_goes_on(redirect):
    again = failures.TryAgainError("")
    request = Pipeline(tuple(command(name) for name in (P, Q, R, S, T)))
    world = World(A=[["P!", redirect(B), "R!", again, redirect(B)], fine], B=[fine])
    assert world.run(request) == ["P!", f"did {Q}", "R!", f"did {S}", f"did {T}"]
    first = [name for name in (Q, T) for name in (("ASKING", name) if redirect is ask else (name,))]
    assert world.sent[0] == (A, [P, Q, R, S, T])
    if redirect is ask:
        assert world.sent[1:] == [(B, first), (A, [S])]
    else:
        assert world.sent[1:] == [(B, [Q, S, T])]


def test_what_several_servers_confirm_is_the_least_of_it():
    wait = ("WAITAOF", 1, 0, 100)
    request = Confirmed(Pipeline(tuple(command(name) for name in (P, Q, R))), wait)
    for first, second, least in [
        ([1, 0], [0, 0], [0, 0]),
        ([0, 0], [1, 0], [0, 0]),
        ([1, 1], [1, 0], [1, 1]),
        (failures.ResponseError("ERR no AOF"), [1, 0], None),
    ]:
        world = World(A=[["P!", moved(B), "R!", first]], B=[["Q!", second]])
        replies, confirmation = world.run(request)
        assert replies == ["P!", "Q!", "R!"]
        assert confirmation == least if least else isinstance(confirmation, ServerError)
        assert world.sent == [(A, [P, Q, R, "WAITAOF"]), (B, [Q, "WAITAOF"])]


def test_what_was_confirmed_of_nothing_does_not_count():
    world = World(A=[[moved(B), 0]], B=[["P!", 2]])
    assert world.run(Confirmed(command(P), ("WAIT", 1, 100))) == ("P!", 2)


@pytest.mark.parametrize("confirmed", [False, True])
def test_a_pipeline_of_which_a_part_was_run_may_have_happened(confirmed):
    """Whoever is told that nothing was sent sends all of it again."""
    request = Pipeline((command(P), command(Q)))
    world = World(A=[["P!", moved(B), *([1] if confirmed else [])]])
    world.told[B] = deque([lost(maybe_executed=False)] * 1000)
    world.slots = lambda asked: table((0, SLOTS - 1, B if world.sent else A))
    with pytest.raises(ConnectionLostError) as caught:
        world.run(Confirmed(request, ("WAIT", 1, 100)) if confirmed else request)
    assert caught.value.maybe_executed
    # Also where its scripts were unknown, and it is sent with their texts.
    unknown = failures.NoScriptError("No matching script")
    world = World(A=[["P!", unknown, *([1] if confirmed else [])], *[lost(maybe_executed=False)] * 1000])
    request = Pipeline((command(P), script()))
    with pytest.raises(ConnectionLostError) as caught:
        world.run(Confirmed(request, ("WAIT", 1, 100)) if confirmed else request)
    assert caught.value.maybe_executed


@pytest.mark.parametrize("begins", ["refused", "unknown"])
def test_a_pipeline_of_which_a_part_was_run_and_then_its_slot_is_nobodys(begins):
    """That error alone would say that nothing was run, too."""
    down = failures.ClusterDownError("The cluster is down")
    first = down if begins == "refused" else failures.NoScriptError("No matching script")
    world = World(A=[["P!", first], *[[down]] * 20])
    world.slots = lambda asked: table((0, 99, B)) if world.now else WHOLE
    with pytest.raises(ConnectionLostError, match="served by no node") as caught:
        world.run(Pipeline((command(P), script())))
    assert caught.value.maybe_executed


def test_of_a_pipeline_over_slots_only_what_is_nobodys_fails():
    other = Keys("invoices")
    world = World(table((other.slot, other.slot, B)))
    one, two = world.run(Pipeline((command(P, other.stream), command(Q))))
    assert (one, two.code) == (f"did {P}", "CLUSTERDOWN")


def test_of_a_transaction_nothing_is_sent_again_that_was_run():
    oom, again = failures.OutOfMemoryError("command not allowed"), failures.TryAgainError("")
    request = Transaction((command(P), command(Q)))
    world = World(A=[["OK", "QUEUED", "QUEUED", ["P!", oom]]])
    one, other = world.run(request)
    assert (one, other.code) == ("P!", "OOM")
    # MULTI was refused, and then one of the commands was run by itself.
    world = World(A=[[again, again, "Q!", failures.ResponseError("EXEC without MULTI")]])
    with pytest.raises(ServerError):
        world.run(request)
    assert len(world.sent) == 1


@pytest.mark.parametrize(
    "replies",
    [
        pytest.param(
            ["OK", "QUEUED", failures.TryAgainError(""), failures.ExecAbortError("discarded")], id="one command"
        ),
        pytest.param(["OK", "QUEUED", "QUEUED", failures.TryAgainError("")], id="EXEC"),
        pytest.param(
            ["OK", "QUEUED", "QUEUED", failures.ExecAbortError("Transaction discarded because of: READONLY You can't")],
            id="EXEC of a server that became a replica",
        ),
        pytest.param([failures.BusyLoadingError("")] * 3 + [failures.ResponseError("EXEC without MULTI")], id="all"),
    ],
)
def test_a_transaction_that_was_refused_is_sent_again_as_a_whole(replies):
    world = World(A=[replies])
    assert world.run(Transaction((command(P), command(Q)))) == [f"did {P}", f"did {Q}"]
    assert world.sent == [(A, ["MULTI", P, Q, "EXEC"])] * 2


def test_a_transaction_that_was_refused_for_good_is_not_sent_again():
    oom = failures.OutOfMemoryError("command not allowed")
    world = World(A=[["OK", oom, failures.TryAgainError(""), failures.ExecAbortError("discarded")]])
    with pytest.raises(ServerError) as caught:
        world.run(Transaction((command(P), command(Q))))
    assert (caught.value.code, len(world.sent)) == ("OOM", 1)


# --- connections ---------------------------------------------------------------------------


@KINDS
def test_a_server_that_cannot_be_reached_is_tried_again(request_):
    """Nothing was sent, so it is harmless; others are asked who has taken its place."""
    world = World(A=[lost(maybe_executed=False)] * 50)
    world.slots = lambda asked: (
        lost(maybe_executed=False)
        if asked == A and world.now
        else table((0, SLOTS - 1, A if world.now < 3 else B), replicas=[B])
    )
    assert world.run(request_) == result(request_)
    assert world.sent[-1] == (B, wires(request_))
    assert world.now == pytest.approx(3, abs=LONGEST_WAIT_S)
    assert set(world.dropped) == {A}


@KINDS
def test_what_may_have_happened_is_not_sent_again(request_):
    world = World(A=[lost(maybe_executed=True)])
    with pytest.raises(ConnectionLostError) as caught:
        world.run(request_)
    assert caught.value.maybe_executed
    assert (len(world.sent), world.slept, world.dropped) == (1, [], [A])


def test_after_a_lost_connection_others_are_asked_first():
    world = World(A=[lost(maybe_executed=True)])
    world.slots = table((0, SLOTS - 1, A), replicas=[B])
    with pytest.raises(ConnectionLostError):
        world.run(command())
    world.now += 1
    world.slots = table((0, SLOTS - 1, B))
    assert world.run(command(), world.book) == "did XADD"
    assert (world.looks, world.sent[-1]) == ([A, B], (B, ["XADD"]))


@pytest.mark.parametrize("book", [ClusterBook([A, B]), SentinelBook([A, B], "main")])
def test_where_nobody_is_from_the_first_that_is_said_at_once(book):
    world = World(lost(maybe_executed=False))
    with pytest.raises(ConnectionLostError) as caught:
        world.run(command(), book)
    assert not caught.value.maybe_executed
    assert (world.looks, world.now) == ([A, B], 0)


def test_nobody_waits_for_a_server_that_is_silent_and_was_replaced():
    world = World(table((0, SLOTS - 1, A), replicas=[B]))
    world.run(command())
    world.now += 1
    world.inquire(A)
    assert (world.looks, world.cut) == ([A, B], []), "others know of none that has its place"
    world.now += 1
    world.slots = table((0, SLOTS - 1, B))
    world.inquire(A)
    assert (world.looks, world.cut) == ([A, B, B], [A])
    world.run(command(), world.book)
    assert world.sent[-1] == (B, ["XADD"])


def test_a_server_that_was_silent_and_answers_is_not_cut_off():
    """Nor is one that was demoted, which answers what is on its way."""
    world = World(table((0, SLOTS - 1, A), replicas=[B]))
    world.run(command())
    world.now += 1
    world.inquire(A)
    world.run(command(), world.book)
    world.now += 1
    world.slots = table((0, SLOTS - 1, B))
    world.tell(A, refuse(failures.ReadOnlyError("")))
    world.run(command(), world.book)
    assert (world.cut, world.sent[-1]) == ([], (B, ["XADD"]))


def test_connections_to_a_server_that_has_left_are_closed():
    """Nobody asks it any more. One that was only demoted may be asked who is where."""

    def look():
        world.now += 1
        book.is_stale = True
        world.run(command(), book)

    book = ClusterBook([A])
    world = World(table((0, 99, B), (100, SLOTS - 1, A), replicas=[C]))
    world.run(command(), book)
    world.slots = table((0, SLOTS - 1, B), replicas=[A, C])
    look()
    assert (world.dropped, world.cut) == ([], [])
    world.slots = table((0, SLOTS - 1, B))
    look()
    assert (sorted(world.dropped), world.cut) == ([A, C], [])
    book = sentinels()
    world = World(lambda asked: master(A if world.now < 1 else B))
    world.run(command(), book)
    look()
    assert (world.dropped, world.cut) == ([A], [])


def test_a_silent_node_is_not_asked_for_long_and_last():
    def slots(asked):
        return lost(maybe_executed=True) if asked == A else table((0, SLOTS - 1, A), replicas=[B, C])

    world = World(slots)
    world.run(command(), ClusterBook([A, B]))
    for _ in range(20):
        world.now += 1
        world.inquire(A)
    assert world.looks.count(A) == 1


@pytest.mark.parametrize("well", ["seed", "node"])
def test_a_look_asks_few_and_then_others(well):
    """Of a hundred nodes that say nothing for a second each."""
    seed, nodes = Address("seed", 1), [Address("n", port) for port in range(100)]
    world = World(table((0, SLOTS - 1, A), replicas=nodes))
    world.run(command(), ClusterBook([seed]))
    only = seed if well == "seed" else nodes[50]
    world.slots = lambda asked: WHOLE if asked == only else lost(maybe_executed=False)
    world.looks.clear()
    world.book.is_stale = True
    while world.book.is_stale:
        before = len(world.looks)
        world.now += 1
        world.run(command(), world.book)
        assert len(world.looks) <= before + ASKED
    asked = [at for at in world.looks if at != A]  # which answers the commands, so why not ask it again
    assert len(asked) == len(set(asked)), "those that said nothing come last"


def test_a_cluster_that_is_gone_is_waited_for():
    world = World()
    world.run(command())
    world.slots = lost(maybe_executed=False)
    world.told[A] = deque([lost(maybe_executed=False)] * 1000)
    began = world.now
    with pytest.raises(ConnectionLostError) as caught:
        world.run(command(), world.book)
    assert not caught.value.maybe_executed
    assert world.now - began == pytest.approx(PATIENCE_S)


def test_an_error_about_a_slot_says_what_is_said_of_it():
    for error, text in (
        (failures.AskError("8613 n:2"), "ASK 8613 n:2"),
        (failures.MovedError("8613 n:2"), "MOVED 8613 n:2"),
    ):
        told = refused(error, (KEYS.stream,))
        assert (str(told), told.code) == (f"{text} (key {KEYS.stream})", text.split()[0])


def test_patience_is_the_callers():
    world = World(A=[lost(maybe_executed=False)])
    with pytest.raises(ConnectionLostError):
        world.run(command(), patience_s=0)
    assert (world.now, len(world.sent)) == (0, 1)


def test_a_server_of_another_kind_is_named_at_once():
    wrong = ConfigurationError("no cluster")
    world = World(wrong)
    with pytest.raises(ConfigurationError):
        world.run(command())
    world = World(A=[wrong])
    with pytest.raises(ConfigurationError):
        world.run(command())
    assert world.now == 0


def test_a_node_that_is_loading_refuses_the_connection_too():
    world = World(A=[ServerError("LOADING", code="LOADING")])
    assert world.run(command()) == "did XADD"


# --- who holds what ------------------------------------------------------------------------


def test_a_slot_that_nobody_holds_is_waited_for():
    world = World()
    world.slots = lambda asked: table((0, 99, B)) if world.now < 5 else table((0, 99, B), (100, SLOTS - 1, A))
    assert KEYS.slot > 99
    assert world.run(command()) == "did XADD"
    assert world.now == pytest.approx(5, abs=LONGEST_WAIT_S)
    world = World(table((0, 99, B)))
    with pytest.raises(ServerError, match=f"slot {KEYS.slot}") as caught:
        world.run(command())
    assert caught.value.code == "CLUSTERDOWN"


def test_a_stream_needs_no_registry_that_nobody_serves():
    names = slot_of(registry(None))
    world = World(table((0, names - 1, A), (names + 1, SLOTS - 1, A)))
    steps = note(KEYS)
    request = next(steps)
    with pytest.raises(ServerError) as caught:
        world.run(request)
    with pytest.raises(StopIteration):
        steps.throw(caught.value)


def test_who_knows_nothing_is_passed_over():
    """A node that was reset, one that loads, one that does not answer, one that may not be asked."""
    for answer in ([], failures.BusyLoadingError(""), lost(maybe_executed=False), failures.NoPermissionError("no")):
        world = World(lambda asked, answer=answer: answer if asked != C else table((0, SLOTS - 1, B)))
        assert world.run(command(), ClusterBook([A, C])) == "did XADD"
        assert world.looks == [A, C]


def test_who_may_not_ask_for_the_table_is_told_so():
    world = World(failures.NoPermissionError("this user has no permissions to run the 'cluster|slots' command"))
    with pytest.raises(ConfigurationError, match="slots"):
        world.run(command())
    assert world.now == 0


@pytest.mark.parametrize("host", [b"", b"?", None])
def test_a_node_that_does_not_know_its_own_host(host):
    world = World([[0, SLOTS - 1, [host, 3, b"id", []]]])
    world.run(command())
    assert world.sent == [(C, ["XADD"])]


def test_a_node_without_a_name_has_an_address():
    """Where the cluster prefers names, and has not heard of this one: it may be another than the one that is asked."""
    world = World([[0, SLOTS - 1, [b"?", 3, b"id", [b"ip", b"10.0.0.3"]]]])
    world.run(command())
    assert world.sent == [(Address("10.0.0.3", 3), ["XADD"])]


def test_addresses_are_made_reachable():
    inside = Address("10.0.0.1", 1)
    book = ClusterBook([A], lambda told: Address("n", told.port + 1))
    world = World(table((0, SLOTS - 1, inside)), B=[refuse(moved(Address("10.0.0.1", 2)))])
    world.run(command(), book)
    assert [to for to, _ in world.sent] == [B, C]
    world = World(table((0, SLOTS - 1, inside)), B=[refuse(ask(Address("10.0.0.1", 2)))])
    world.run(command(), ClusterBook([A], lambda told: Address("n", told.port + 1)))
    assert [to for to, _ in world.sent] == [B, C]


def test_many_do_not_all_ask():
    """Of those that fail together one asks; the others use what it learns."""
    world = World()
    book = ClusterBook([A])
    world.run(command(), book)
    world.now += 1
    first, second = (travel(command(), book, now=lambda: world.now) for _ in range(2))
    assert [next(steps).commands for steps in (first, second)] == [[("XADD", KEYS.stream)]] * 2
    for steps in (first, second):
        assert isinstance(steps.send(lost(maybe_executed=False)), Drop)
        assert isinstance(steps.send(None), Sleep)
    assert first.send(None).commands == [("CLUSTER", "SLOTS")]
    assert second.send(None).commands == [("XADD", KEYS.stream)]


# --- going through all keys ----------------------------------------------------------------


def walk(world, book=None, wrap=lambda request: request):
    """SCAN to its end, as plans do."""
    cursor, found = "0", []
    book = book or ClusterBook([A])
    while True:
        request = scan(cursor, "MATCH", "x*")
        reply = world.run(wrap(request), book)
        cursor, keys = request.decode(
            reply[0] if isinstance(reply, list) and isinstance(wrap(request), Pipeline) else reply
        )
        found += keys
        if cursor == "0":
            return found


THREE = table((0, 99, C), (100, 199, A), (200, SLOTS - 1, B))


@pytest.mark.parametrize("wrap", [lambda one: one, lambda one: Pipeline((one,))], ids=["alone", "in a pipeline"])
def test_a_scan_goes_through_all_primaries(wrap):
    world = World(
        THREE, A=[[[b"7", [b"a1"]]], [[b"0", [b"a2"]]]], B=[[[b"0", []]]], C=[[[b"12", [b"c1"]]], [[b"0", [b"c2"]]]]
    )
    assert walk(world, wrap=wrap) == ["a1", "a2", "c1", "c2"]
    asked = [(step.to, *step.commands[0]) for step in world.steps]
    assert asked == [
        (at, "SCAN", cursor, "MATCH", "x*") for at, cursor in ((A, "0"), (A, "7"), (B, "0"), (C, "0"), (C, "12"))
    ]


def test_a_scan_begins_anew_where_a_primary_is_gone():
    world = World(
        THREE, A=[[[b"0", [b"a"]]]] * 2, B=[[[b"5", [b"b1"]]], *[lost(maybe_executed=False)] * 9], C=[[[b"0", []]]]
    )
    book = ClusterBook([A])
    request = scan("0", "MATCH", "x*")
    cursor, _ = request.decode(world.run(request, book))
    cursor, keys = request.decode(world.run(scan(cursor), book))
    assert keys == ["b1"]
    world.slots = table((0, 99, C), (100, SLOTS - 1, A))
    world.now += 1
    cursor, keys = request.decode(world.run(scan(cursor), book))
    assert keys == ["a"]


def test_a_scan_that_is_refused():
    denied = failures.NoPermissionError("this user has no permissions to run the 'scan' command")
    with pytest.raises(ConfigurationError):
        World(A=[[denied]]).run(scan("0"))
    [answer] = World(A=[[denied]]).run(Pipeline((scan("0"),)))
    assert isinstance(answer, ConfigurationError)


def test_a_scan_that_names_a_key_asks_its_server_alone():
    world = World(table(*((slot, slot, B if slot == slot_of(KEYS.stream) else A) for slot in range(SLOTS))))
    world.tell(B, [[b"3", []]])
    request = Command(("SCAN", "0"), (KEYS.stream,), ignore)
    assert world.run(request) == [b"3", []]


# --- Sentinels -----------------------------------------------------------------------------


def sentinels():
    return SentinelBook([Address("s", 1), Address("s", 2)], "main")


def master(at):
    return [at.host.encode(), str(at.port).encode()]


@KINDS
def test_all_goes_to_the_master(request_):
    world = World(master(A))
    assert world.run(request_, sentinels()) == result(request_)
    assert world.sent == [(A, wires(request_))]
    assert world.looks == [Address("s", 1)]
    assert world.run(scan("0"), world.book) == "did SCAN"


@KINDS
@pytest.mark.parametrize("error", [*REFUSALS[1:], pytest.param(None, id="lost")])
def test_the_sentinels_are_asked_again(request_, error):
    answer = refuse(error) if error else lost(maybe_executed=False)
    world = World(A=[answer] * 50)
    world.slots = lambda asked: master(A if world.now < 1 else B)
    assert world.run(request_, sentinels()) == result(request_)
    assert world.sent[-1] == (B, wires(request_))
    assert set(world.dropped) == {A}


def test_a_sentinel_that_does_not_answer_is_passed_over_and_asked_last():
    world = World(lambda asked: lost(maybe_executed=False) if asked.port == 1 else master(A))
    book = sentinels()
    world.run(command(), book)
    world.tell(A, lost(maybe_executed=True))
    with pytest.raises(ConnectionLostError):
        world.run(command(), book)
    world.now += 1
    world.run(command(), book)
    assert [at.port for at in world.looks] == [1, 2, 2]


@pytest.mark.parametrize(
    ("told", "master_is"),
    [
        pytest.param([A, B, B], B, id="the first is cut off from the others"),
        pytest.param([A, A, B], A, id="the last is, with an old master"),
        pytest.param([A, None, B], B, id="one is gone"),
        pytest.param([A, A, A], A, id="it was not replaced yet"),
    ],
)
def test_a_master_that_does_not_answer_is_not_believed_of_one_sentinel(told, master_is):
    begun = False

    def said(asked):
        at = told[asked.port - 1] if begun else A
        return lost(maybe_executed=False) if at is None else master(at)

    world = World(said)
    book = SentinelBook([Address("s", port) for port in (1, 2, 3)], "main")
    world.run(command(), book)
    assert world.looks == [Address("s", 1)], "while all is well one is enough"
    begun = True
    world.now += 1
    world.tell(A, lost(maybe_executed=False))
    assert world.run(command(), book) == "did XADD"
    assert world.sent[-1][0] == master_is


def test_a_name_that_no_sentinel_knows():
    world = World(None)
    with pytest.raises(ConfigurationError, match="main"):
        world.run(command(), sentinels())
    assert world.now == 0


# --- who is greeted ------------------------------------------------------------------------


def hello(mode, role="master"):
    return [b"server", b"redis", b"version", b"7.0.0", b"mode", mode.encode(), b"role", role.encode(), b"modules", []]


@pytest.mark.parametrize(
    ("book", "is_guide", "reply", "says"),
    [
        (ClusterBook([A]), False, hello("cluster"), None),
        (ClusterBook([A]), False, hello("cluster", "replica"), None),
        (ClusterBook([A]), False, failures.ResponseError("unknown command 'HELLO'"), None),
        (ClusterBook([A]), False, hello("standalone"), "use redis://n:1 instead"),
        (ClusterBook([A]), False, hello("sentinel"), "use redis+sentinel://n:1/NAME"),
        (sentinels(), False, hello("standalone"), None),
        (sentinels(), False, hello("cluster"), "use redis+cluster://n:1"),
        (sentinels(), False, hello("standalone", "replica"), "is a replica"),
        (sentinels(), True, hello("sentinel", "sentinel"), None),
        (sentinels(), True, hello("standalone"), "use redis://n:1 instead"),
        (sentinels(), True, failures.ResponseError("unknown command 'HELLO'"), None),
    ],
)
def test_what_is_said_of_a_server_that_greets(book, is_guide, reply, says):
    found = book.greet(A, reply, is_guide=is_guide)
    if says is None:
        assert found is None
    else:
        assert says in str(found)
        assert isinstance(found, ConnectionLostError) == (says == "is a replica"), "that may change, the others do not"
