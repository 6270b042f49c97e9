"""The load: a producer that keeps posting while everything around it breaks, and knows what was accepted."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import redis
from faults.chaos.plan import Kind, Posting
from redis.backoff import NoBackoff
from redis.retry import Retry
from worker.fleet import Events

from streamq import ConnectionLostError, ServerError, Stream, StreamOptions
from streamq.keys import Keys

STREAM: Final = "chaos"
KEYS: Final = Keys(STREAM)

PATIENCE_S: Final = 30.0
"""How long a single posting or look is tried. The longest outage takes a tenth of that."""


def client(url: str) -> redis.Redis:
    """A plain client that sends everything once: what is sent again is our decision."""
    return redis.Redis.from_url(url, single_connection_client=True, protocol=2, retry=Retry(NoBackoff(), 0))


def insist(action: Callable[[], Any], *, seconds: float = PATIENCE_S) -> Any:
    """Do what may be done twice, until the server has taken it."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return action()
        except (redis.RedisError, ConnectionLostError, ServerError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


class Producer:
    """Posts jobs at their times, in a thread of its own; `join` waits for its end.

    Args:
        url: Where it posts: the server, or the proxy in front of it.
        server: The server, to look whether a posting without an answer arrived.
        postings: What is posted, in order.
        events: Where workers tell which jobs they start.
        options: Of the stream.

    Attributes:
        accepted: Names of jobs that are in the stream's care.
        uncertain: Names of jobs whose posting got no answer, and that were nowhere to be seen right after.
    """

    def __init__(
        self, url: str, server: str, postings: Sequence[Posting], events: Events, options: StreamOptions
    ) -> None:
        self.accepted: set[str] = set()
        self.uncertain: set[str] = set()
        self._postings = postings
        self._events = events
        self._stream: Stream[dict[str, Any]] = Stream(STREAM, redis=url, options=options)
        self._plain = client(url)
        self._look = client(server)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="producer", daemon=True)

    def start(self) -> None:
        """Begin; the first job is due now."""
        self._thread.start()

    def join(self, timeout: float) -> None:
        """Wait until everything is posted; raises what ended the thread early."""
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise TimeoutError(f"the producer is not done after {timeout:.0f} s more")
        for connection in (self._stream, self._plain, self._look):
            connection.close()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        begin = time.monotonic()
        try:
            for posting in self._postings:
                time.sleep(max(begin + posting.at - time.monotonic(), 0))
                self._post(posting)
        except BaseException as error:  # noqa: BLE001  # raised by join
            self._error = error

    def _post(self, posting: Posting) -> None:
        name, job_id = posting.job.name, posting.job.job_id
        send = self._by_hand if posting.by_hand else self._add
        if job_id is not None:
            insist(lambda: send(posting))  # adding the ID again is harmless, and so must a second entry of it be
            self.accepted.add(name)
        elif self._send_once(lambda: send(posting)) or self._arrived(name):
            self.accepted.add(name)
        else:
            self.uncertain.add(name)

    def _send_once(self, send: Callable[[], Any]) -> bool:
        """Send until the server may have seen it; whether it answered."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            try:
                send()
            except ConnectionLostError as error:
                if error.maybe_executed:
                    return False
            except (redis.ConnectionError, redis.TimeoutError):
                return False
            except (ServerError, redis.RedisError):
                pass  # refused: memory is full
            else:
                return True
            time.sleep(0.05)
        raise TimeoutError("the server takes nothing any more")

    def _add(self, posting: Posting) -> None:
        self._stream.add(posting.job.payload, job_id=posting.job.job_id, delay=posting.job.payload.get("delay"))

    def _by_hand(self, posting: Posting) -> None:
        body = json.dumps(posting.job.payload, separators=(",", ":"))
        if posting.job.kind is Kind.UNDECODABLE:
            body = body[:-1]
        fields = {"job": body} | ({"sq:id": posting.job.job_id} if posting.job.job_id else {})
        self._plain.xadd(KEYS.stream, fields)

    def _arrived(self, name: str) -> bool:
        """Look where a job can be: in this order, as it only ever moves on from one to the next."""
        with suppress(redis.RedisError):
            self._plain.close()
        needle = f'"name":"{name}"'.encode()
        if any(needle in packed for packed in insist(lambda: self._look.hvals(KEYS.jobs))):
            return True
        for key in (KEYS.stream, KEYS.dead):
            entries = insist(lambda key=key: self._look.xrange(key))
            if any(needle in fields.get(b"job", b"") for _, fields in entries):
                return True
        return bool(self._events.all("start", name))
