"""The loop of hand_written_loop.py with asyncio.

python examples/hand_written_loop_async.py                          an embedded server
python examples/hand_written_loop_async.py --url redis://localhost
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import socket

import msgspec

from streamq import AsyncStream, Backoff, Job, LeaseLostError, StreamOptions

OPTIONS = StreamOptions(lease=0.5, retry=Backoff.exponential(0.2, limit=5))  # short, as you wait for it here


class Order(msgspec.Struct):
    """One order to handle."""

    customer: str
    cents: int


def consumer_name() -> str:
    """Unique per process start: streamq tells deliveries apart by it."""
    return f"{socket.gethostname().split('.')[0]}-{os.getpid()}-{secrets.token_hex(4)}"


async def charge(order: Order, attempt: int) -> None:
    """Ask the customer's bank; bob's does not answer at first."""
    await asyncio.sleep(0.01)
    if order.customer == "bob" and attempt == 1:
        raise TimeoutError("the bank does not answer")


async def handle(orders: AsyncStream[Order], job: Job[Order]) -> None:
    """Work on one job, and end its delivery one way or another."""
    try:
        if job.payload.cents < 0:
            await orders.reject(job, "negative amount")  # a dead letter: no retry would help
            return
        await charge(job.payload, job.attempt)
        job.effects.hincrby("revenue", job.payload.customer, job.payload.cents)
        await orders.commit(job)  # the effect and the acknowledgement, in one atomic step
    except LeaseLostError:
        pass  # somebody else has the job by now; nothing was changed
    except Exception as error:  # noqa: BLE001  # whatever went wrong: try again, until the attempts are spent
        await orders.retry(job, f"{type(error).__name__}: {error}")  # after its backoff; delay=... says when instead


async def work(orders: AsyncStream[Order]) -> int:
    """Read and reclaim until nothing is left; how many were reclaimed."""
    me = consumer_name()
    reclaimed = 0
    while (now := await orders.inspect()).ready or now.pending or now.scheduled:
        jobs = await orders.read(me, count=10, block=0.1)
        claimed, _dead, _missing = await orders.reclaim(me, count=10)
        reclaimed += len(claimed)
        await asyncio.gather(*(handle(orders, job) for job in [*jobs, *claimed]))
    return reclaimed


async def main() -> None:
    """Add some orders, let a process die, finish its work."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", default="embedded://")
    url = parser.parse_args().url
    name = "orders-" + secrets.token_hex(4)
    async with AsyncStream(name, Order, redis=url, options=OPTIONS) as orders:
        await orders.add_many(Order(who, cents) for who, cents in [("ada", 4200), ("bob", 100), ("ada", 58)] * 3)
        await orders.add(Order("eve", -1))
        await orders.add(Order("fay", 700), delay=0.3)  # not before then

        held = await orders.read(consumer_name(), count=5)
        print(f"a process read {len(held)} jobs and died")

        reclaimed = await asyncio.wait_for(work(orders), timeout=20)
        [letter] = await orders.dead_letters.list()
        done = (await orders.inspect()).groups["workers"]
        print(f"reclaimed {reclaimed} jobs of the dead process, retried {done.retried} that failed")
        print(f"done {done.done}, dead letters 1 ({letter.reason}: {letter.error})")


if __name__ == "__main__":
    asyncio.run(main())
