"""A loop written by hand: read, work, acknowledge; and take over what a dead process left.

    python examples/hand_written_loop.py                          an embedded server
    python examples/hand_written_loop.py --url redis://localhost

The first process below dies with five jobs in its hands. The second one gets them as soon as their lease has run out. What
fails waits for its next attempt, and `read` moves it into the stream when that is due: nothing else has to run for it.
"""

from __future__ import annotations

import argparse
import os
import secrets
import socket
import time

import msgspec

from streamq import Backoff, Job, LeaseLostError, Stream, StreamOptions

OPTIONS = StreamOptions(lease=0.5, retry=Backoff.exponential(0.2, limit=5))  # short, as you wait for it here


class Order(msgspec.Struct):
    """One order to handle."""

    customer: str
    cents: int


def consumer_name() -> str:
    """Unique per process start: streamq tells deliveries apart by it."""
    return f"{socket.gethostname().split('.')[0]}-{os.getpid()}-{secrets.token_hex(4)}"


def charge(order: Order, attempt: int) -> None:
    """Ask the customer's bank; bob's does not answer at first."""
    if order.customer == "bob" and attempt == 1:
        raise TimeoutError("the bank does not answer")


def handle(orders: Stream[Order], job: Job[Order]) -> None:
    """Work on one job, and end its delivery one way or another."""
    try:
        if job.payload.cents < 0:
            orders.reject(job, "negative amount")  # a dead letter: no retry would help
            return
        charge(job.payload, job.attempt)
        job.effects.hincrby("revenue", job.payload.customer, job.payload.cents)
        orders.commit(job)  # the effect and the acknowledgement, in one atomic step
    except LeaseLostError:
        pass  # somebody else has the job by now; nothing was changed
    except Exception as error:  # noqa: BLE001  # whatever went wrong: try again, until the attempts are spent
        orders.retry(job, f"{type(error).__name__}: {error}")  # after its backoff; delay=... says when instead


def main() -> None:
    """Add some orders, let a process die, finish its work."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", default="embedded://")
    url = parser.parse_args().url
    with Stream("orders-" + secrets.token_hex(4), Order, redis=url, options=OPTIONS) as orders:
        orders.add_many(Order(customer, cents) for customer, cents in [("ada", 4200), ("bob", 100), ("ada", 58)] * 3)
        orders.add(Order("eve", -1))
        orders.add(Order("fay", 700), delay=0.3)  # not before then

        held = orders.read(consumer_name(), count=5)
        print(f"a process read {len(held)} jobs and died")

        me = consumer_name()
        reclaimed = 0
        deadline = time.monotonic() + 20
        while (now := orders.inspect()).ready or now.pending or now.scheduled:
            if time.monotonic() > deadline:
                raise SystemExit("not finished in time")
            for job in orders.read(me, count=10, block=0.1):
                handle(orders, job)
            claimed, _dead, _missing = orders.reclaim(me, count=10)
            reclaimed += len(claimed)
            for job in claimed:
                handle(orders, job)

        [letter] = orders.dead_letters.list()
        done = orders.inspect().groups["workers"]
        print(f"reclaimed {reclaimed} jobs of the dead process, retried {done.retried} that failed")
        print(f"done {done.done}, dead letters 1 ({letter.reason}: {letter.error})")


if __name__ == "__main__":
    main()
