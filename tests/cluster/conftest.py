"""A cluster, and servers behind Sentinels, for all tests of this directory; and work on them that goes on while they change."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import clusters
import pytest
import sentinels
import servers
from colours import Blocking
from waiting import until
from worker.fleet import options_of, quick, working

from streamq import AsyncStream, ConnectionLostError, Job, NotDurableError, Retry, Stream
from streamq._requests import Command, ask, named

NODE_TIMEOUT_S = 1.0


@pytest.fixture(scope="session")
def cluster(backend) -> Iterator[clusters.Cluster]:
    """Three primaries with a replica each."""
    if not isinstance(backend.local, servers.Backend):
        pytest.skip("needs processes of its own")
    with clusters.Cluster(backend.local, node_timeout_s=NODE_TIMEOUT_S) as running:
        yield running


@pytest.fixture(autouse=True)
def _whole_again(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a test that failed has left killed or frozen runs again: the next one is not to blame."""
    yield
    if "cluster" in request.fixturenames:
        for node in request.getfixturevalue("cluster").nodes:
            if node.frozen:
                node.resume()
            node.start()


@pytest.fixture(scope="session")
def watched(backend) -> Iterator[sentinels.Sentinels]:
    """A primary with two replicas, watched by three Sentinels."""
    if not isinstance(backend.local, servers.Backend):
        pytest.skip("needs processes of its own")
    with sentinels.Sentinels(backend.local) as running:
        yield running


class Shift:
    """Producers that add jobs, and workers that do them, while servers change under them.

    Attributes:
        accepted: Names of jobs that were added, with the time.
        done: Names of jobs whose handler ended, with the time.
        errors: What `add` raised that did not say that it may have happened.
        unsure: What `add` raised that did, or that only the primary has it.
    """

    def __init__(self, url: Any, name: str, *, colour: str = "sync", **options: Any) -> None:
        settings = options_of({"lease": 4.0, **options})
        self.stream = Stream(name, redis=url, options=settings)
        self._adding: Any = self.stream
        if colour == "async":
            self._adding = Blocking(AsyncStream(name, redis=url, options=settings), asyncio.new_event_loop())
        self.accepted: dict[str, float] = {}
        self.done: dict[str, float] = {}
        self.starts: Counter[str] = Counter()
        self.errors: list[Exception] = []
        self.unsure: list[Exception] = []
        self._url = url
        self._stopped = threading.Event()

    @contextmanager
    def on(self, *, workers: int = 2, pause: float = 0.005) -> Iterator[None]:
        """Work until the block ends, then until all is done."""
        producer = threading.Thread(target=self._produce, args=(pause,), daemon=True)
        crew = [quick(self.stream, self._handle, concurrency=8) for _ in range(workers)]
        with working(*crew, timeout=40):
            producer.start()
            try:
                yield
            finally:
                self._stopped.set()
                producer.join(60)
            assert not producer.is_alive(), "a producer hangs"
            if self.stream.options.durability == "accepted":
                # What a primary had not passed on when it died is lost with it: IDs make adding it again harmless.
                for name in self.accepted:
                    self._add(name)
            until(self.is_over, timeout=60)

    def close(self) -> None:
        """Close the connections."""
        self.stream.close()
        self._adding.close()

    def is_over(self) -> bool:
        """Whether all that was accepted has come to its end."""
        now = self.stream.inspect()
        return now.ready == now.pending == now.scheduled == 0 and set(self.accepted) <= set(self.effects())

    def effects(self) -> dict[str, int]:
        """How often each job's effect was committed."""
        key = self.stream._spec.keys.data("effects")
        found = self.stream._run(ask(Command(("HGETALL", key), (key,), named)))
        return {name: int(times) for name, times in found.items()}

    def goes_on(self, since: float) -> bool:
        """Whether a job was accepted and done after `since`."""
        return any(at > since and self.done.get(name, 0) > since for name, at in [*self.accepted.items()])

    def _produce(self, pause: float) -> None:
        while not self._stopped.wait(pause):
            self._add(f"job{len(self.accepted) + len(self.unsure)}")

    def _add(self, name: str) -> None:
        while True:
            try:
                self._adding.add({"name": name}, job_id=name)
            except NotDurableError as error:
                self.unsure.append(error)
                return
            except ConnectionLostError as error:
                (self.unsure if error.maybe_executed else self.errors).append(error)
            except Exception as error:  # noqa: BLE001  # compared with none
                self.errors.append(error)
                return
            else:
                self.accepted.setdefault(name, time.monotonic())
                return

    def _handle(self, payload: dict[str, Any], job: Job[Any]) -> None:
        name = payload["name"]
        self.starts[name] += 1
        if name.endswith("7") and job.attempt == 1:
            raise Retry(delay=0)
        job.effects.hincrby("effects", name)
        self.done[name] = time.monotonic()


@pytest.fixture
def make_shift(ns) -> Iterator[Callable[..., Shift]]:
    """A shift on a stream of this test's own."""
    with ExitStack() as stack:

        def make(url: Any, **options: Any) -> Shift:
            shift = Shift(url, ns, **options)
            stack.callback(shift.close)
            return shift

        yield make


def times(shift: Shift) -> set[int]:
    """How often effects were committed, of all jobs: {1} is right."""
    return set(shift.effects().values())
