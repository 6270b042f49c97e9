"""Which jobs in hand may start: every rule of the suspect lane and the last chance, without a server."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamq import Job
from streamq.worker.lane import NARROW, Lane, Line, Standing, Ticket


def ticket(name, standing=Standing.NEW, *, stream=0, since=0.0, deliveries=1):
    job = Job(payload={}, id=name, entry_id=name, deliveries=deliveries, _consumer="c")
    return Ticket(stream, job, standing, since)


def lane_of(*tickets, slots=64, lines=None, patience_s=10.0):
    lane = Lane(slots, lines or [Line()], patience_s=patience_s)
    for one in tickets:
        assert lane.put(one)
    return lane


def names(calls):
    return [[t.job.id for t in call.tickets] for call in calls]


def suspects(count, first=0):
    return [ticket(f"s{number}", Standing.SUSPECT) for number in range(first, first + count)]


@pytest.mark.parametrize(
    ("deliveries", "limit", "standing"),
    [
        (0, 5, Standing.RETURNED),
        (1, 5, Standing.SUSPECT),
        (3, 5, Standing.SUSPECT),
        (4, 5, Standing.LAST),
        (1, 2, Standing.LAST),
        (0, 2, Standing.RETURNED),
        (0, 1, Standing.RETURNED),
    ],
)
def test_standing_of_a_reclaimed_job(deliveries, limit, standing):
    assert Standing.of_reclaimed(deliveries, limit) is standing


def test_new_and_returned_jobs_start_up_to_the_slots():
    lane = lane_of(ticket("a"), ticket("b", Standing.RETURNED), ticket("c"), slots=2)
    calls = list(lane.start(0))
    assert names(calls) == [["a"], ["b"]]
    assert list(lane.start(0)) == []
    lane.ended(calls[0])
    assert names(lane.start(0)) == [["c"]]


def test_suspects_run_a_few_at_a_time_and_beside_nothing_new():
    lane = lane_of(ticket("new"), *suspects(20))
    calls = list(lane.start(0))
    assert names(calls) == [[f"s{number}"] for number in range(NARROW)]
    for call in calls[1:]:
        lane.ended(call)
    assert all(name.startswith("s") for [name] in names(lane.start(1)))


def test_what_runs_already_may_end_beside_suspects():
    lane = lane_of(ticket("a"), slots=10)
    list(lane.start(0))
    for one in suspects(3):
        lane.put(one)
    assert len(list(lane.start(1))) == 3
    assert lane.running == 4


def test_new_jobs_start_when_the_last_suspect_has_ended():
    lane = lane_of(ticket("new"), *suspects(2))
    calls = list(lane.start(0))
    lane.ended(calls[0])
    assert list(lane.start(1)) == []
    lane.ended(calls[1])
    assert names(lane.start(1)) == [["new"]]


def test_a_suspect_that_runs_long_does_not_starve_new_jobs():
    lane = lane_of(ticket("new"), *suspects(1), patience_s=10)
    list(lane.start(0))
    assert lane.next_change(0) == 10
    assert lane.room(0, 9) == 0
    assert list(lane.start(9)) == []
    assert lane.next_change(11) is None
    assert names(lane.start(11)) == [["new"]]
    assert lane.room(0, 11) > 0


def test_the_lane_doubles_each_time_a_lane_full_has_passed():
    lane = lane_of(*suspects(300), slots=50)
    widths = []
    for _ in range(5):
        calls = list(lane.start(0))
        widths.append(len(calls))
        for call in calls:
            lane.ended(call)
    assert widths == [8, 16, 32, 50, 50]


def test_the_oftener_a_suspect_was_started_the_fewer_run_beside_it():
    twice = [ticket(f"t{number}", Standing.SUSPECT, deliveries=2) for number in range(4)]
    thrice = [ticket(f"u{number}", Standing.SUSPECT, deliveries=3) for number in range(2)]
    lane = lane_of(*thrice, *twice, *suspects(3))
    together = []
    while calls := list(lane.start(0)):
        together.append([name for [name] in names(calls)])
        for call in calls:
            lane.ended(call)
    assert together == [["s0", "s1", "s2"], ["t0", "t1"], ["t2", "t3"], ["u0"], ["u1"]]


def test_a_suspect_that_was_not_started_does_not_widen_the_lane():
    lane = lane_of(*suspects(40))
    for call in list(lane.start(0)):
        lane.put_back(call)
    assert names(lane.start(0)) != []
    assert lane.running == NARROW


def test_the_lane_is_narrow_again_when_no_suspects_are_left():
    lane = lane_of(*suspects(8))
    for call in list(lane.start(0)):
        lane.ended(call)
    lane.drained()
    for one in suspects(40):
        lane.put(one)
    assert len(list(lane.start(0))) == NARROW


def test_the_lane_stays_wide_while_suspects_are_in_hand():
    lane = lane_of(*suspects(8))
    for call in list(lane.start(0)):
        lane.ended(call)
    for one in suspects(40):
        lane.put(one)
    lane.drained()
    assert len(list(lane.start(0))) == 2 * NARROW


def test_only_one_with_a_single_start_left_is_kept():
    lane = lane_of(ticket("x", Standing.LAST))
    assert not lane.put(ticket("y", Standing.LAST))
    assert lane.waiting == 1


def test_a_last_chance_holds_up_everything_new():
    lane = lane_of(ticket("new"), ticket("x", Standing.LAST), *suspects(1))
    assert names(lane.start(0)) == [["s0"]]
    assert lane.room(0, 0) == lane.wants() == 0
    lane.is_closed = True
    assert list(lane.start(99)) == []
    call = lane.start_last()
    assert names([call]) == [["x"]]
    assert lane.last is None
    assert list(lane.start(99)) == []
    lane.ended(call)
    lane.is_closed = False
    assert lane.start_last() is None


def test_put_back_is_the_next_one():
    lane = lane_of(*suspects(2), slots=1)
    [call] = lane.start(0)
    lane.put_back(call)
    assert names(lane.start(0)) == [["s0"]]
    lane = lane_of(ticket("x", Standing.LAST))
    lane.put_back(lane.start_last())
    assert lane.last is not None
    lane = lane_of(ticket("a"), ticket("b"), ticket("c"), lines=[Line(batch=2)])
    [call, _] = lane.start(0)
    lane.put_back(call)
    assert names(lane.start(0)) == [["a", "b"]]


def test_take_back_by_stream_and_by_age():
    lane = lane_of(ticket("a"), ticket("b", stream=1), ticket("c", since=5), *suspects(1), lines=[Line(), Line()])
    assert {t.job.id for t in lane.take_back(0, older_than=3)} == {"a", "s0"}
    assert {t.job.id for t in lane.take_back(1)} == {"b"}
    assert {t.job.id for t in lane.take_back()} == {"c"}
    assert lane.waiting == 0


def test_room_is_for_what_can_start_at_once_and_a_little_ahead():
    lane = lane_of(ticket("a"), ticket("b"), slots=4)
    list(lane.start(0))
    lane.put(ticket("c"))
    assert lane.room(0, 0) == 1
    assert lane.room(0, 0, ahead=5) == 6
    assert lane.room(0, 0, kept=1) == lane.room(0, 0, ahead=5, kept=1) == 0


def test_batches_wait_for_more_but_not_for_ever():
    lane = lane_of(ticket("a", since=1), lines=[Line(batch=3, batch_wait_s=2)], slots=2)
    assert list(lane.start(1)) == []
    assert lane.next_change(1) == 3
    assert lane.room(0, 1) == 2 + 3  # in its own call, and in another one
    assert names(lane.start(3)) == [["a"]]
    for name in "bcd":
        lane.put(ticket(name, since=4))
    assert names(lane.start(4)) == [["b", "c", "d"]]


def test_suspects_run_in_calls_of_their_own():
    lane = lane_of(*suspects(3), lines=[Line(batch=10)])
    assert names(lane.start(0)) == [["s0"], ["s1"], ["s2"]]


def test_streams_start_by_their_weights():
    lines = [Line(weight=3), Line(weight=1)]
    lane = lane_of(lines=lines, slots=1)
    started = []
    for number in range(40):
        lane.put(ticket(f"a{number}", stream=0))
        lane.put(ticket(f"b{number}", stream=1))
    for _ in range(40):
        [call] = lane.start(0)
        started.append(call.stream)
        lane.ended(call)
    assert started.count(0) == 30


@settings(max_examples=300)
@given(st.data())
def test_no_order_of_events_breaks_the_rules(data):
    slots = data.draw(st.integers(1, 20))
    lines = [Line(batch=data.draw(st.integers(1, 3))) for _ in range(data.draw(st.integers(1, 3)))]
    lane = lane_of(lines=lines, slots=slots, patience_s=5)
    running, now, put = [], 0.0, 0
    steps = st.lists(
        st.sampled_from(["new", "returned", "suspect", "last", "start", "end", "back", "wait"]), max_size=60
    )
    for step in data.draw(steps):
        match step:
            case "new" | "returned" | "suspect" | "last":
                stream = data.draw(st.integers(0, len(lines) - 1))
                put += lane.put(ticket(str(put), Standing[step.upper()], stream=stream, since=now))
            case "start":
                young = [c for c, since in running if is_suspect(c) and now < since + 5]
                for call in lane.start(now):
                    assert is_suspect(call) or not young, "a new job was started beside a suspect"
                    young += [call] if is_suspect(call) else []
                    running.append((call, now))
                    assert len({c.stream for c in [call]}) == 1
                    assert len(call.tickets) <= lines[call.stream].batch
                if lane.last is not None and not lane.has_suspects and not running:
                    lane.is_closed = True
                    call = lane.start_last()
                    assert list(lane.start(now)) == []
                    lane.ended(call)
                    put -= 1
                    lane.is_closed = False
            case "end" if running:
                call, _ = running.pop(data.draw(st.integers(0, len(running) - 1)))
                lane.ended(call)
                put -= len(call.tickets)
            case "back":
                put -= len(lane.take_back())
            case "wait":
                now += 3
        assert lane.running == len(running) <= slots
        assert lane.waiting + sum(len(call.tickets) for call, _ in running) == put, "a job was lost or doubled"
        assert sum(map(is_suspect, (call for call, _ in running))) <= slots


def is_suspect(call):
    return call.tickets[0].standing is Standing.SUSPECT
