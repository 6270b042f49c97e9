"""How `streamq bench` makes figures of what it measured."""

from __future__ import annotations

import threading

import msgspec
import pytest

from streamq.bench import raw
from streamq.bench.ours import Tally, payload_of
from streamq.bench.report import Figure, Latency
from streamq.bench.rounds import Contender, Cost, Done, Limit, Match, one_by_one


def test_a_figure_is_the_middle_of_its_rounds():
    assert Figure.of([3.0, 1.0, 2.0, 9.0]) == Figure(2.5, 1.0, 9.0)
    assert Figure.of([1.23456]) == Figure(1.235, 1.235, 1.235)


def test_quantiles_are_samples():
    found = Latency.of([n / 1000 for n in range(200, 0, -1)])
    assert (found.samples, found.p50, found.p99, found.max) == (200, 100.0, 198.0, 200.0)
    assert found.quantiles[0] == 1.0
    one = Latency.of([0.002])
    assert set(one.quantiles) == {2.0}


def test_what_a_single_job_takes_is_taken_off():
    whole, single = Cost(101, 1.1, 0.6, 25), Cost(1, 0.1, 0.1, 15)
    net = whole.without(single)
    assert (net.jobs, net.reads) == (100, 10)
    assert net.per_second == pytest.approx(100)
    assert net.cpu_ms == pytest.approx(5_000)
    assert whole.without(Cost(1, 1.2, 0.1, 15)) is whole, "the single one was held up: nothing can be told apart"
    assert single.without(single) is single
    assert whole.without(Cost(1, 0.1, 0.9, None)).cpu_s == 0


def test_both_have_the_same_rounds_in_turns():
    order = []

    def contender(name, seconds, *, begins=False):
        def work(limit):
            order.append((name, limit.jobs))
            return Done(limit.jobs, seconds * limit.jobs)

        return Contender(work, begins=begins)

    told = []
    match = Match("drain", "XADD", contender("ours", 0.5, begins=True), contender("raw", 0.25), lambda: None)
    part = match.play(Limit(5, 1.0), 2, told.append)
    assert order == [
        ("raw", 1),  # connects
        ("ours", 1), ("ours", 5), ("raw", 5),
        ("raw", 5), ("ours", 1), ("ours", 5),
    ]  # fmt: skip
    assert told == ["drain", "drain"]
    assert (part.jobs, part.raw_jobs, part.rounds, part.server_reads_per_job) == (10, 10, 2, None)
    assert (part.per_second, part.raw_per_second) == (Figure(2.0, 2.0, 2.0), Figure(4.0, 4.0, 4.0))
    assert part.ratio == Figure(0.5, 0.5, 0.5)


def test_a_round_without_time_does_one():
    done = []
    assert one_by_one(lambda: done.append(1), Limit(100, 0.0)).jobs == len(done) == 1


def test_a_tally_ends_once_whoever_calls():
    ends = []
    tally = Tally(Limit(1_000, 60.0))
    tally.enough = lambda: ends.append(1)
    threads = [threading.Thread(target=lambda: [tally.note(1) for _ in range(300)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tally.jobs, ends) == (1_200, [1])


@pytest.mark.parametrize("size", [11, 12, 100])
def test_a_payload_has_its_size(size):
    assert len(msgspec.json.encode(payload_of(size))) == size


def test_ids_are_found_in_replies_of_both_protocols():
    entries = [(b"1-1", {}), (b"1-2", {})]
    assert raw._ids([[b"key", entries]]) == raw._ids({b"key": [entries]}) == [b"1-1", b"1-2"]
