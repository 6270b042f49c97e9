"""Deliver webhooks: 329 real ones, to a receiver that is slow, answers with errors, asks for patience, or hangs up.

    python examples/webhooks.py                          an embedded server
    python examples/webhooks.py --url redis://localhost

One process, to read and to copy; `streamq demo` runs the same with two processes that are killed.
"""

from __future__ import annotations

import argparse
import logging
import secrets
import threading
import time
import urllib.error
import urllib.request

import msgspec

from streamq import Backoff, Job, Reject, Retry, Stream, StreamOptions, Worker
from streamq.demo.payloads import Webhook, load
from streamq.demo.receiver import Receiver

NOBODY_WANTS = "installation"
LONGEST_WAIT_S = 86_400  # whatever a receiver asks for

OPTIONS = StreamOptions(retry=Backoff.exponential(0.2, factor=2, cap=60, limit=6))  # short, as you wait for it here
STALE_SOON = Backoff.constant(0.5, limit=1)  # a ping that is minutes old tells nobody anything


def handler_for(receiver_url: str):  # noqa: ANN201  # a handler
    """A handler that delivers to `receiver_url`."""

    def deliver(webhook: Webhook, job: Job[Webhook]) -> None:
        if webhook.event == NOBODY_WANTS:
            raise Reject(f"nobody subscribed to {NOBODY_WANTS}")  # a dead letter, now
        request = urllib.request.Request(  # noqa: S310  # the receiver's address is ours
            receiver_url,
            data=bytes(webhook.payload),
            # A call outside Redis happens at least once: the job ID lets the receiver tell a repeat.
            headers={"Content-Type": "application/json", "X-Event": webhook.event, "Idempotency-Key": job.id},
        )
        try:
            urllib.request.urlopen(request, timeout=5).close()  # noqa: S310  # no answer raises, and so retries
        except urllib.error.HTTPError as answer:
            answer.close()
            wait = answer.headers.get("Retry-After")
            if wait is None or not wait.isdecimal():  # a date is left to the backoff
                raise Retry(f"answered {answer.code}") from None
            raise Retry(f"answered {answer.code}, Retry-After: {wait}", delay=min(int(wait), LONGEST_WAIT_S)) from None
        job.effects.hincrby("receipts", job.id)  # commits with the acknowledgement: exactly once

    return deliver


def add(stream: Stream[Webhook], webhooks: list[Webhook]) -> list[str]:
    """Add the webhooks, and a digest of the releases among them; their job IDs."""
    ids = [f"{number:03d}-{webhook.event}" for number, webhook in enumerate(webhooks)]
    releases = 0
    for job_id, webhook in zip(ids, webhooks, strict=True):
        stream.add(webhook, job_id=job_id, retry=STALE_SOON if webhook.event == "ping" else None)
        if webhook.event == "release":
            releases += 1
            digest = Webhook("digest", msgspec.Raw(b'{"releases": %d}' % releases))
            # One digest a day, when the day is over (here: after a second). Until then the newest takes the waiting one's place.
            stream.add(digest, job_id="digest-of-today", delay=1, replace=True)
    return [*ids, "digest-of-today"]


def over(stream: Stream[Webhook]) -> int:
    """How many jobs were delivered or dead-lettered."""
    now = stream.inspect()
    return now.dead + sum(group.done for group in now.groups.values())


def run_by_hand(stream: Stream[Webhook], receiver: Receiver) -> None:
    """What an operator does when a receiver that asked for an hour's patience is well again."""
    for waiting in stream.scheduled.list():
        receiver.recover(waiting.job_id)
        print(f"{waiting.job_id} waits for attempt {waiting.attempt} ({waiting.errors[-1]}): run by hand")
        stream.scheduled.run_now(waiting.job_id)  # in place of the attempt that waits


def main() -> None:
    """Add the webhooks, deliver them, say what became of them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", default="embedded://")
    logging.getLogger("streamq").setLevel(logging.ERROR)  # failed attempts are expected here: do not tell each
    busy = "000-branch_protection_rule"
    with (
        Receiver(busy={busy}) as receiver,
        Stream("webhooks-" + secrets.token_hex(4), Webhook, redis=parser.parse_args().url, options=OPTIONS) as stream,
    ):
        ids = add(stream, load())
        worker = Worker(stream, handler_for(receiver.url), concurrency=16)

        def wait_until_left(count: int) -> None:
            while len(ids) - over(stream) > count:
                time.sleep(0.1)

        def operate() -> None:
            wait_until_left(1)
            run_by_hand(stream, receiver)
            wait_until_left(0)
            worker.stop()

        threading.Thread(target=operate, daemon=True).start()
        worker.run()

        workers = stream.inspect().groups["workers"]
        print(f"{len(ids)} webhooks: {workers.done} delivered, {workers.dead} dead letters, {workers.retried} retries")
        print(f"the receiver was called {receiver.calls.total()} times and misbehaved {receiver.faults.total()} times")
        for letter in stream.dead_letters.list():
            print(f"dead: {letter.job_id}: {letter.reason}: {letter.error}")
        if over(stream) != len(ids):
            raise SystemExit("some webhooks are lost")


if __name__ == "__main__":
    main()
