"""The same basics by redis-py itself, as somebody would write them who needs no guarantees.

Payloads are encoded beforehand and not decoded, nothing is deleted, nobody renews or recovers anything: it does less than
anybody needs, and so says what the machine, the way to the server and redis-py allow at all.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import redis.exceptions as failures

from streamq._drivers.exchange import lost
from streamq.bench.rounds import Contender, Done, Limit, one_by_one
from streamq.connection import ClusterRoute, SentinelRoute, Settings

if TYPE_CHECKING:
    import redis

GROUP: Final = "raw"
CONSUMER: Final = "raw"

BATCH: Final = 100
"""Entries of one read, and of one acknowledgement."""

PIPELINE: Final = 500
"""XADDs in one pipeline; what `add_many` sends in one write."""

_BLOCK_MS: Final = 200
"""Of one read that waits: soon enough it is seen that no more come."""


@contextmanager
def in_our_words(where: str) -> Iterator[None]:
    """Errors of redis-py as ours.

    Raises:
        StreamqError: redis-py failed.
    """
    try:
        yield
    except (failures.RedisError, OSError) as error:
        raise lost(error, where, sent=True) from error


def client_of(settings: Settings) -> redis.Redis:
    """A client of redis-py for the same server, of the kind that its users have: plain, Sentinel's, or a cluster's."""
    import redis
    from redis.cluster import ClusterNode
    from redis.sentinel import Sentinel

    options = settings.options
    secure = _secure(settings.kind)
    match settings.route:
        case ClusterRoute(seeds, remap):
            nodes = [ClusterNode(host, port) for host, port in seeds]
            placeless = {name: value for name, value in options.items() if name not in {"host", "port", "path", "db"}}
            found: Any = redis.RedisCluster(startup_nodes=nodes, address_remap=remap, **secure, **placeless)
            return found  # type: ignore[no-any-return]  # it has the same commands
        case SentinelRoute(seeds, service) as route:
            guides: Any = Sentinel(list(seeds), sentinel_kwargs={**route.options, **_secure(route.kind)})
            placeless = {name: value for name, value in options.items() if name not in {"host", "port", "path"}}
            return guides.master_for(service, **secure, **placeless)  # type: ignore[no-any-return]
    kinds = {
        "tcp": redis.Connection,
        "tls": redis.SSLConnection,
        "unix": redis.UnixDomainSocketConnection,
    }
    return redis.Redis(connection_pool=redis.ConnectionPool(connection_class=kinds[settings.kind], **options))


def _secure(kind: str) -> dict[str, Any]:
    return {"ssl": True} if kind == "tls" else {}


class Raw:
    """Plain redis-py on a key of its own.

    Args:
        client: Of redis-py.
        key: Of the stream.
        payload: Of each entry, encoded.
    """

    def __init__(self, client: redis.Redis, key: str, payload: bytes) -> None:
        self._client: Any = client
        self._key = key
        self._fields = {"job": payload}

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def open(self) -> None:
        """Make the stream and its group, empty."""
        self._client.unlink(self._key)
        self._client.xgroup_create(self._key, GROUP, "0", mkstream=True)

    def ping(self) -> None:
        """A round trip."""
        self._client.ping()

    @property
    def adder(self) -> Contender:
        """XADD, one by one."""
        return Contender(self._add)

    @property
    def bulk_adder(self) -> Contender:
        """Pipelines of XADD, without MULTI."""
        return Contender(self._add_many)

    @property
    def drainer(self) -> Contender:
        """XREADGROUP COUNT 100, and one XACK for each."""
        return Contender(self._drain, prepare=self._fill)

    def _add(self, limit: Limit) -> Done:
        return one_by_one(lambda: self._client.xadd(self._key, self._fields), limit)

    def _add_many(self, limit: Limit) -> Done:
        began = now = time.perf_counter()
        done = 0
        while done < limit.jobs and (not done or now < began + limit.seconds):
            pipeline = self._client.pipeline(transaction=False)
            for _ in range(min(PIPELINE, limit.jobs - done)):
                pipeline.xadd(self._key, self._fields)
            done += len(pipeline.execute())
            now = time.perf_counter()
        return Done(done, now - began)

    def _fill(self, limit: Limit) -> None:
        self.open()
        self._add_many(limit)

    def _drain(self, limit: Limit) -> Done:
        began = now = time.perf_counter()
        done = 0
        while done < limit.jobs and (not done or now < began + limit.seconds):
            found = self._client.xreadgroup(GROUP, CONSUMER, {self._key: ">"}, count=BATCH)
            if not found:
                break
            done += self._client.xack(self._key, GROUP, *_ids(found))
            now = time.perf_counter()
        return Done(done, now - began)

    @contextmanager
    def listening(self, heard: Callable[[], None]) -> Iterator[Callable[[], object]]:
        """Have a thread wait for entries, and acknowledge each; gives what adds one.

        Args:
            heard: Called as soon as one is read.
        """
        is_over = threading.Event()

        def listen() -> None:
            with suppress(failures.RedisError, OSError):  # whoever waits for what it heard gives up, and says so
                while not is_over.is_set():
                    found = self._client.xreadgroup(GROUP, CONSUMER, {self._key: ">"}, count=BATCH, block=_BLOCK_MS)
                    if found:
                        heard()
                        self._client.xack(self._key, GROUP, *_ids(found))

        listener = threading.Thread(target=listen, name="streamq-bench-raw", daemon=True)
        listener.start()
        try:
            yield lambda: self._client.xadd(self._key, self._fields)
        finally:
            is_over.set()
            listener.join()


def _ids(found: Any) -> list[bytes]:
    """Of all entries of a reply of XREADGROUP, in either of the forms that redis-py gives it."""
    pages = found.values() if isinstance(found, dict) else [entries for _, entries in found]
    ids = []
    for page in pages:
        entries = page[0] if page and isinstance(page[0], list) else page
        ids += [entry_id for entry_id, _ in entries]
    return ids
