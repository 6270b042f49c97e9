"""Deliver webhooks: 329 real ones, to a receiver that is slow, answers with errors, or hangs up.

    python examples/webhooks.py                          an embedded server
    python examples/webhooks.py --url redis://localhost

One process, to read and to copy; `streamq demo` runs the same with two processes that are killed.
"""

from __future__ import annotations

import argparse
import logging
import secrets
import threading
import urllib.error
import urllib.request

from streamq import Backoff, Job, Reject, Stream, StreamOptions, Worker
from streamq.demo.payloads import Webhook, load
from streamq.demo.receiver import Receiver

NOBODY_WANTS = "installation"


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
            raise RuntimeError(f"the receiver answered {answer.code}") from None
        job.effects.hincrby("receipts", job.id)  # commits with the acknowledgement: exactly once

    return deliver


def main() -> None:
    """Add the webhooks, deliver them, say what became of them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", default="embedded://")
    logging.getLogger("streamq").setLevel(logging.ERROR)  # failed attempts are expected here: do not tell each
    options = StreamOptions(retry=Backoff.constant(0, limit=3))
    with (
        Receiver() as receiver,
        Stream("webhooks-" + secrets.token_hex(4), Webhook, redis=parser.parse_args().url, options=options) as stream,
    ):
        webhooks = load()
        ids = iter(range(len(webhooks)))
        stream.add_many(webhooks, job_id=lambda webhook: f"{next(ids):03d}-{webhook.event}")
        worker = Worker(stream, handler_for(receiver.url), concurrency=16)

        def stop_when_done() -> None:
            while (now := stream.inspect()).ready or now.pending:
                finished.wait(0.1)
            worker.stop()

        finished = threading.Event()
        threading.Thread(target=stop_when_done, daemon=True).start()
        worker.run()

        now = stream.inspect()
        print(f"{len(webhooks)} webhooks: {now.groups['workers'].done} delivered, {now.dead} dead letters")
        print(f"the receiver was called {receiver.calls.total()} times and misbehaved {receiver.faults.total()} times")
        for letter in stream.dead_letters.list():
            print(f"dead: {letter.job_id}: {letter.reason}: {letter.error}")
        if now.groups["workers"].done + now.dead != len(webhooks):
            raise SystemExit("some webhooks are lost")


if __name__ == "__main__":
    main()
