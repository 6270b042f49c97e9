"""Fixtures for all tests: which servers, a client to look at them, a prefix of one's own, and both colours.

Servers are chosen once per run:

- ``STREAMQ_TEST_URL``: this running server, and no other.
- ``STREAMQ_REQUIRE``: backends (``redis-6.2 redis-7.0 valkey-9``) that must be there and start, else the run
  ends before its first test. Without it, whatever is found is used, and the header says what is missing.

A test that asks for none of the server fixtures starts no server. A test that needs one certain backend says
``@pytest.mark.parametrize("backend", ["valkey-9"], indirect=True)``.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest
import redis
import servers

pytest_plugins = ["colours"]

_ROW: Final = re.compile(r"[A-Z]+\d+b?")
_NO_BACKEND: Final = "none"

# --- choosing the servers -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Choice:
    """What this run tests against."""

    backends: Mapping[str, servers.Backend | servers.GivenServer]
    missing: Mapping[str, str] = field(default_factory=dict)
    required: tuple[str, ...] = ()

    @classmethod
    def of_environment(cls) -> _Choice:
        required = tuple(os.environ.get("STREAMQ_REQUIRE", "").replace(",", " ").split())
        if url := os.environ.get("STREAMQ_TEST_URL"):
            given = servers.GivenServer(url)
            return cls({given.name: given}, required=required)
        return cls(*servers.discover(), required=required)

    def check(self, *, start: bool) -> None:
        """Raise an error if a required backend is missing, or with `start` if it does not start."""
        for name in self.required:
            backend = self.backends.get(name)
            if backend is None:
                where = self.missing.get(name, "no such server on PATH")
                found = ", ".join(self.backends) or "none"
                raise servers.ServerUnavailableError(
                    f"STREAMQ_REQUIRE names {name}, which was not found ({where}). Found: {found}."
                )
            if start and isinstance(backend, servers.Backend):
                with servers.Server(backend):
                    pass

    def complaint(self) -> str:
        """Say that no server was found, and what would help."""
        wanted = "; ".join(f"{name}: {where}" for name, where in self.missing.items())
        return f"No test server was found. One of these is needed: {wanted}; or STREAMQ_TEST_URL=redis://..."


_CHOICE: Final = pytest.StashKey[_Choice]()


def _is_xdist_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


@pytest.hookimpl(tryfirst=True)  # the header, which another hook of this name prints, tells the outcome
def pytest_sessionstart(session: pytest.Session) -> None:
    config = session.config
    try:
        choice = config.stash[_CHOICE] = _Choice.of_environment()
        choice.check(start=not config.option.collectonly and not _is_xdist_worker(config))
    except servers.ServerUnavailableError as exc:
        raise pytest.UsageError(str(exc)) from None


def pytest_report_header(config: pytest.Config) -> list[str]:
    choice = config.stash[_CHOICE]
    used = ", ".join(f"{name} ({backend.version})" for name, backend in choice.backends.items())
    lines = [f"servers: {used or 'none'}"]
    if choice.required:
        lines.append(f"required servers: {', '.join(choice.required)}")
    lines += [f"missing server: {name}: {where}" for name, where in choice.missing.items()]
    return lines


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "backend" not in metafunc.fixturenames:
        return
    for mark in metafunc.definition.iter_markers("parametrize"):
        names = mark.args[0] if mark.args else mark.kwargs["argnames"]
        if "backend" in (names.replace(",", " ").split() if isinstance(names, str) else names):
            return  # the test has chosen by itself
    names = list(metafunc.config.stash[_CHOICE].backends) or [_NO_BACKEND]
    # By session, so that pytest groups tests by server and runs one server at a time.
    metafunc.parametrize("backend", names, indirect=True, scope="session")


@pytest.hookimpl(trylast=True)  # after others have deselected
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "full" not in config.option.markexpr:
        # Sizes that take minutes are run by hand, with -m full.
        full = [item for item in items if item.get_closest_marker("full")]
        items[:] = [item for item in items if not item.get_closest_marker("full")]
        config.hook.pytest_deselected(items=full)
    choice = config.stash[_CHOICE]
    if not choice.backends and not _is_xdist_worker(config):
        needy = [item for item in items if "backend" in getattr(item, "fixturenames", ())]
        if needy:
            raise pytest.UsageError(choice.complaint())


# --- a run without tests is no success ----------------------------------------------------


class _ExecutedTests:
    """Fails a run that requires servers but in which no test ran: all were deselected, or all skipped."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._count = 0
        self._failed = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # An expected failure counts as executed, though its outcome reads "skipped".
        if report.when == "call" and (not report.skipped or hasattr(report, "wasxfail")):
            self._count += 1

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        choice = self._config.stash.get(_CHOICE, None)
        fine = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
        if self._count or self._config.option.collectonly or choice is None or exitstatus not in fine:
            return
        if choice.required and not _is_xdist_worker(self._config):
            self._failed = True
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._failed:
            terminalreporter.section("no test was executed", red=True)
            terminalreporter.line("STREAMQ_REQUIRE is set: a run that executed no test fails.")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_ExecutedTests(config))


# --- servers ------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def backend(request: pytest.FixtureRequest) -> servers.Backend | servers.GivenServer:
    """The backend under test; every test that uses a server runs once for each."""
    choice = request.config.stash[_CHOICE]
    if request.param == _NO_BACKEND:
        pytest.fail(choice.complaint(), pytrace=False)
    if request.param not in choice.backends:
        pytest.skip(f"{request.param} is not among the servers of this run")
    return choice.backends[request.param]


@pytest.fixture(scope="session")
def server(backend: servers.Backend | servers.GivenServer) -> Iterator[servers.Server | servers.GivenServer]:
    """A server that all tests of this backend share. Not to be stopped or configured: see `new_server`."""
    if isinstance(backend, servers.GivenServer):
        yield backend
    else:
        with servers.Server(backend) as running:
            yield running


@pytest.fixture
def new_server(backend: servers.Backend | servers.GivenServer) -> Iterator[Callable[..., servers.Server]]:
    """Start servers of this backend for this test alone, to kill and restart; arguments as of `Server`."""
    if isinstance(backend, servers.GivenServer):
        pytest.skip("needs a server of its own, but STREAMQ_TEST_URL gives the only one")
    with ExitStack() as stack:

        def start(
            *, args: tuple[str, ...] = (), appendonly: bool = False, directory: Path | None = None
        ) -> servers.Server:
            own = servers.Server(backend, args=args, appendonly=appendonly, directory=directory)
            return stack.enter_context(own)

        yield start


@pytest.fixture(scope="session")
def redis_url(server: servers.Server | servers.GivenServer) -> str:
    """URL of the shared server."""
    return server.url


@pytest.fixture
def proxy(server: servers.Server | servers.GivenServer) -> Iterator[servers.CutProxy]:
    """A proxy to the shared server, to cut connections with."""
    with servers.CutProxy(server) as running:
        yield running


@pytest.fixture
def raw(redis_url: str) -> Iterator[redis.Redis]:
    """A client with a single connection, to see what is really there: bytes, in the shape of RESP2."""
    with redis.Redis.from_url(redis_url, single_connection_client=True, protocol=2) as client:
        yield client


@pytest.fixture
def ns(request: pytest.FixtureRequest) -> Iterator[str]:
    """A prefix that nobody else uses. Keys with it anywhere in their name are removed after the test."""
    prefix = f"t{secrets.token_hex(5)}"
    # Only of tests that use a server anyway. Asked for now, so that it is still there at teardown.
    url = request.getfixturevalue("redis_url") if "server" in request.fixturenames else None
    yield prefix
    if url is not None:
        with redis.Redis.from_url(url, single_connection_client=True) as client:
            keys = list(client.scan_iter(match=f"*{prefix}*", count=1000))
            for start in range(0, len(keys), 1000):
                client.unlink(*keys[start : start + 1000])


# --- conventions --------------------------------------------------------------------------


@pytest.fixture(params=["sync", "async"])
def colour(request: pytest.FixtureRequest) -> str:
    """Which of the two facades a test drives."""
    return request.param


@pytest.fixture(autouse=True)
def _covers_names_rows(request: pytest.FixtureRequest) -> None:
    """Check that ``covers`` names rows, such as ``S4`` or ``Q12b``: a slip of the pen would go unseen."""
    for mark in request.node.iter_markers("covers"):
        wrong = [row for row in mark.args if not (isinstance(row, str) and _ROW.fullmatch(row))]
        if wrong or not mark.args or mark.kwargs:
            pytest.fail(f"covers() takes rows like 'S4', not {wrong or 'nothing'}", pytrace=False)
