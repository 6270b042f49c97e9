"""One run: all parts in order, on a stream of its own, of which nothing is left at the end."""

from __future__ import annotations

import platform
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from typing import TYPE_CHECKING, Final

import msgspec

import streamq
from streamq._ops import access, registry
from streamq._ops.doctor import server as looking
from streamq._requests import Command, ask, lines_by_name
from streamq.bench import latency, raw
from streamq.bench.interrupts import put_off
from streamq.bench.ours import Crew, Ours, Payload, payload_of
from streamq.bench.report import Latency, Memory, Part, Report, Server, Settings, Versions
from streamq.bench.rounds import Contender, Limit, Match
from streamq.connection import settings_of
from streamq.errors import ConfigurationError, ServerError, StreamqError
from streamq.keys import Keys
from streamq.stream import Stream

if TYPE_CHECKING:
    from streamq._drivers.blocking import BlockingDriver
    from streamq.bench.raw import Raw

PREFIX: Final = "bench-"
"""Of the stream's name. Behind it come 12 random digits, so that two runs never meet."""

STEPS: Final = 6
"""Things that are told about, each once a round."""

FULL: Final = 0.8
"""Of `maxmemory`: from there on it is asked before anything is added."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What else is on the server.

    Attributes:
        server: The server, or of several one that stands for all.
        streams: Names of streams of this deployment.
        used: How much of `maxmemory` is used, from 0 to 1; None without one, or where the server does not say.
    """

    server: Server
    streams: list[str]
    used: float | None


class Course:
    """A run on a server. Use it as a context manager.

    Args:
        url: Of the server, or None for the default.
        deployment: Namespace, or None.
        settings: Of the run.

    Raises:
        ConfigurationError: The URL or the deployment is not valid.
    """

    def __init__(self, url: str | None, deployment: str | None, settings: Settings) -> None:
        self.name = f"{PREFIX}{secrets.token_hex(6)}"
        self.is_left = False
        self._url = url
        self._settings = settings
        self._keys = Keys(self.name, deployment)
        self._raw_key = self._keys.data("raw")  # among the stream's own, so whoever deletes it removes both
        self._way = settings_of(url)
        self._driver: BlockingDriver = self._way.blocking()
        self._limit = Limit(max(settings.jobs // settings.rounds, 1), settings.seconds / settings.rounds / 2)
        self._crew = Crew()
        self._notes: list[str] = []

    def __enter__(self) -> Course:
        return self

    def __exit__(self, *_: object) -> None:
        self._driver.close()

    def look(self) -> Surroundings:
        """What else is there. Changes nothing."""
        facts = self._driver.run(looking.look())
        hello = facts.hello
        where = Server(where=self._way.where, product=hello.product, version=hello.version, mode=hello.mode)
        memory = self._info("memory")
        most, used = int(memory.get("maxmemory", 0)), int(memory.get("used_memory", 0))
        return Surroundings(
            where, self._driver.run(registry.names(self._keys.deployment)), used / most if most else None
        )

    def run(self, at: Surroundings, tell: Callable[[str], None]) -> Report:
        """Measure all parts. Whatever ends it, the stream is removed; `is_left` says if that failed.

        Args:
            at: What `look` saw.
            tell: Told what is measured next: `STEPS` things, each once a round.

        Raises:
            StreamqError: A part failed.
        """
        began = datetime.now(UTC)
        with ExitStack() as stack:
            stack.enter_context(raw.in_our_words(self._way.where))
            stack.enter_context(self._removed_at_end())
            beside = self._beside(stack)
            parts, memory = self._adding(beside, tell)
            parts += self._draining(beside, tell)
            latencies = self._latencies(beside, tell)
        return Report(
            at=began,
            stream=self.name,
            server=at.server,
            versions=Versions(
                streamq=streamq.__version__,
                redis_py=version("redis"),
                hiredis=version("hiredis"),
                python=platform.python_version(),
            ),
            settings=self._settings,
            parts=parts,
            latency=latencies[0],
            raw_latency=latencies[1],
            ping=latencies[2],
            memory=memory,
            notes=self._notes,
        )

    # --- parts -------------------------------------------------------------------------------

    def _adding(self, beside: Raw | None, tell: Callable[[str], None]) -> tuple[list[Part], Memory | None]:
        with self._fresh(beside) as ours:
            parts = [
                self._play("add", "XADD", ours.adder, beside.adder if beside else None, tell),
                self._play(
                    "add_many", "pipelines of XADD", ours.bulk_adder, beside.bulk_adder if beside else None, tell
                ),
            ]
            return parts, self._memory(beside)

    def _draining(self, beside: Raw | None, tell: Callable[[str], None]) -> list[Part]:
        parts = []
        for kind in ("async", "sync", "batch"):
            with self._fresh(beside) as ours:
                parts.append(
                    self._play(
                        f"drain {kind}",
                        "XREADGROUP, XACK",
                        ours.drainer(kind),
                        beside.drainer if beside else None,
                        tell,
                    )
                )
        return parts

    def _play(
        self, name: str, what: str, ours: Contender, beside: Contender | None, tell: Callable[[str], None]
    ) -> Part:
        return Match(name, what, ours, beside, self._reads).play(self._limit, self._settings.rounds, tell)

    def _latencies(
        self, beside: Raw | None, tell: Callable[[str], None]
    ) -> tuple[Latency, Latency | None, Latency | None]:
        ours_s: list[float] = []
        raw_s: list[float] = []
        pings_s: list[float] = []
        with self._fresh(beside) as ours:
            for _ in range(self._settings.rounds):
                tell("latency")
                ours_s += latency.starts(ours.listening, self._limit)
                if beside is not None:
                    raw_s += latency.starts(beside.listening, self._limit)
                    pings_s += self._pings(beside)
        return Latency.of(ours_s), Latency.of(raw_s) if raw_s else None, Latency.of(pings_s) if pings_s else None

    def _pings(self, beside: Raw) -> list[float]:
        try:
            with raw.in_our_words(self._way.where):
                return latency.round_trips(beside.ping, self._limit)
        except (ConfigurationError, ServerError):
            self._note("no round trip: the user may not run PING")
            return []

    def _memory(self, beside: Raw | None) -> Memory | None:
        found = self._bytes_per_entry(self._keys.stream)
        if found is None:
            self._note("no memory: the user may not run MEMORY USAGE")
            return None
        jobs, per_job = found
        of_raw = None if beside is None else self._bytes_per_entry(self._raw_key)
        return Memory(jobs=jobs, bytes_per_job=per_job, raw_bytes_per_job=of_raw and of_raw[1])

    def _bytes_per_entry(self, key: str) -> tuple[int, float] | None:
        try:
            used = self._driver.run(ask(Command(("MEMORY", "USAGE", key, "SAMPLES", 0), (key,), int)))
            entries = self._driver.run(ask(Command(("XLEN", key), (key,), int)))
        except (ConfigurationError, ServerError):
            return None
        return entries, round(used / entries, 1)

    def _reads(self) -> int | None:
        told = self._info("stats").get("total_reads_processed")
        if told is None:
            self._note("no reads a job: the server does not say total_reads_processed")
        return None if told is None else int(told)

    # --- the stream, and what is beside it -----------------------------------------------------

    @contextmanager
    def _fresh(self, beside: Raw | None) -> Iterator[Ours]:
        """An empty stream, and an empty one of redis-py."""
        self._wipe()
        if beside is not None:
            beside.open()
        with self._stream() as stream:
            yield Ours(stream, self._settings, self._crew, self._wipe)

    def _stream(self) -> Stream[Payload]:
        return Stream(self.name, dict, redis=self._url, deployment=self._keys.deployment)

    def _wipe(self) -> None:
        names = tuple(self._keys.kinds)
        self._driver.run(ask(Command(("UNLINK", *names), names, int)))

    def _beside(self, stack: ExitStack) -> Raw | None:
        payload = msgspec.json.encode(payload_of(self._settings.payload_bytes))
        try:
            with raw.in_our_words(self._way.where):
                found = raw.Raw(raw.client_of(self._way), self._raw_key, payload)
                stack.callback(found.close)
                found.open()
        except StreamqError as error:  # redis-py may ask for more than we do: COMMAND, of a cluster
            self._note(f"nothing of redis-py to compare with: {error}")
            return None
        return found

    @contextmanager
    def _removed_at_end(self) -> Iterator[None]:
        with self._stream() as stream:  # who may not remove it must not make it
            self._driver.run(access.check(stream._spec, access.READER))  # noqa: SLF001  # of the stream's own package
            self._driver.run(registry.forget(self._keys))
        self.is_left = True
        try:
            yield
        finally:
            with put_off(), self._stream() as stream:
                self._crew.dismiss()
                stream.delete(force=True)
                self.is_left = False

    def _info(self, section: str) -> dict[str, str]:
        """What INFO says of the server that has the stream; nothing, where it is refused."""
        key = self._keys.stream
        try:
            return self._driver.run(ask(Command(("INFO", section), (key,), lines_by_name)))
        except (ConfigurationError, ServerError):
            return {}

    def _note(self, what: str) -> None:
        if what not in self._notes:
            self._notes.append(what)
