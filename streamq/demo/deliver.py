"""One worker process of the demo: delivers webhooks by HTTP.

This is the part to copy: a payload type, a stream, a handler, a worker.
"""

from __future__ import annotations

import logging
import os
import sys
import urllib.error
import urllib.request

from streamq import Backoff, Job, Retry, Stream, StreamOptions, Worker
from streamq.demo.payloads import Webhook

MAX_DELIVERIES = 3
RETRIES = 3
LONGEST_WAIT_S = 86_400
"""Whatever a receiver asks for: a day later somebody should have looked."""


def open_stream(url: str, name: str) -> Stream[Webhook]:
    """The demo's stream. Its lease is short, so that a killed worker is noticed while you watch; so are its retries."""
    return Stream(
        name,
        Webhook,
        redis=url,
        options=StreamOptions(
            lease=1.5,
            max_deliveries=MAX_DELIVERIES,
            retry=Backoff.exponential(0.5, factor=2, limit=RETRIES),  # 0.5, 1, 2 seconds, give or take a fifth
            crash_backoff=Backoff.constant(0.2, limit=None),
        ),
    )


def deliver(webhook: Webhook, job: Job[Webhook], receiver: str) -> int:
    """POST one webhook; returns the attempt that did it.

    An answer other than 2xx, or none, raises: the job is tried again after its backoff, or when the receiver asks for it.
    """
    if webhook.poison == "kills":
        os._exit(9)
    if webhook.poison == "raises":
        raise RuntimeError("cannot be delivered")
    request = urllib.request.Request(  # noqa: S310  # the receiver's address is ours
        receiver,
        data=bytes(webhook.payload),
        headers={
            "Content-Type": "application/json",
            "X-Event": webhook.event,
            # Calls outside Redis happen at least once; the job ID lets the receiver tell a repeat.
            "Idempotency-Key": job.id,
        },
    )
    try:
        urllib.request.urlopen(request, timeout=5).close()  # noqa: S310
    except urllib.error.HTTPError as answer:
        answer.close()
        wait = answer.headers.get("Retry-After")
        if wait is None or not wait.isdecimal():  # a date is left to the backoff
            raise Retry(f"answered {answer.code}") from None
        raise Retry(f"answered {answer.code}, Retry-After: {wait}", delay=min(int(wait), LONGEST_WAIT_S)) from None
    # Commits with the acknowledgement, or not at all: exactly one receipt per webhook.
    job.effects.hincrby("receipts", job.id, 1)
    return job.attempt  # kept as the job's result


def main(url: str, name: str, receiver: str) -> None:
    """Work until SIGTERM."""
    logging.basicConfig(level=logging.CRITICAL)  # the demo's display tells the story
    with open_stream(url, name) as stream:
        Worker(stream, lambda webhook, job: deliver(webhook, job, receiver), concurrency=8, block=0.2).run()


if __name__ == "__main__":
    main(*sys.argv[1:4])
