"""Orders, worked on by several processes.

In this directory, with a server at STREAMQ_URL or redis://localhost:

    python orders.py                         adds ten
    streamq run orders:worker --processes 2  works on them, until Ctrl-C

Kill one of the processes meanwhile: it is started again, and its orders are done by the others at once.
"""

from __future__ import annotations

import argparse
import logging
import time

import msgspec

from streamq import Job, Stream, StreamOptions, Worker

log = logging.getLogger("orders")


class Order(msgspec.Struct):
    """What a customer has bought."""

    customer: str
    cents: int


OPTIONS = StreamOptions(lease=15, max_deliveries=5)


def handle(order: Order, job: Job[Order]) -> None:
    """Charge the customer; the receipt is written with the job's acknowledgement, once."""
    time.sleep(0.2)
    job.effects.hincrby("cents", order.customer, order.cents)
    log.info("charged %s: %d cents", order.customer, order.cents)


def worker() -> Worker[Order]:
    """What each process runs. Nothing connects before it does."""
    return Worker(Stream("orders", Order, options=OPTIONS), handle, concurrency=4)


def main() -> None:
    """Add ten orders."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", default=None)
    with Stream("orders", Order, redis=parser.parse_args().url, options=OPTIONS) as orders:
        added = orders.add_many(Order(f"customer-{n % 3}", 100 * n) for n in range(10))
    print(f"added {added} orders")


if __name__ == "__main__":
    main()
