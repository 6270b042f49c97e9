"""Fixtures for all tests: which servers, a client to look at them, a prefix of one's own, and both colours.

Servers are chosen once per run:

- ``STREAMQ_TEST_URL``: this running server, and no other.
- ``STREAMQ_TEST_BACKEND``: ``docker`` or ``local`` forbids that one stands in for the other (see `_Choice`).
- ``STREAMQ_TEST_IMAGE``: the images to use (see `containers.images`).
- ``STREAMQ_TEST_ONLY``: backends (``redis-6.2 valkey-9 cluster-valkey-9``) to which the run is confined.
- ``STREAMQ_REQUIRE``: backends that must be there and start, else the run ends before its first test. Without it,
  whatever is found is used, and the header says what is missing.

A name that begins with ``cluster-`` is a cluster of that server, of three primaries with a replica each. Clusters are always
local processes, also where the other backends are containers, and run tests of the contract only.

A test that asks for none of the server fixtures starts no server. A test that needs one certain backend says
``@pytest.mark.parametrize("backend", ["valkey-9"], indirect=True)``.
"""

from __future__ import annotations

import os
import re
import secrets
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import clusters
import containers
import pytest
import redis
import servers

from streamq.keys import Keys

pytest_plugins = ["colours", "one_slot"]

_ROW: Final = re.compile(r"[A-Z]+\d+b?")
_CASE: Final = re.compile(r"C\d\d")
_CLUSTER_CASES: Final = frozenset(
    {
        *("C21", "C22", "C34", "C84", "C85"),
        *("C15", "C32", "C42", "C43", "C61", "C87", "C89", "C93"),
        *("C35", "C68", "C83", "C92"),
    }
)
"""Field cases of clusters, of outages, and of clients and users."""

_NO_BACKEND: Final = "none"

# Tests below this directory show the contract of the library with a server: they run in a container where there is
# one. All others use a local process where there is one. The explorer of crash points and the fleets of workers send
# hundreds of thousands of requests, each of which takes three times as long through Docker's proxy; what they vary is
# the order of requests, which is the same in both. And what kills or configures a server needs one of its own.
_CONTAINED: Final = "api"

_CLUSTER: Final = "cluster-"
_CLUSTERS: Final = ("redis-7.0", "valkey-9")
"""Servers of which clusters are made: of each product the one that has been with it longest."""

# --- choosing the servers -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Backend:
    """The ways in which this run reaches one backend."""

    name: str
    local: servers.Backend | servers.GivenServer | None = None
    image: containers.Image | None = None
    strict: bool = False

    @property
    def is_cluster(self) -> bool:
        return self.name.startswith(_CLUSTER)

    def place(self, *, contained: bool) -> servers.Backend | servers.GivenServer | containers.Image | None:
        """Return where tests find their shared server: those of the contract in a container, others locally."""
        if self.is_cluster:
            return self.local if contained else None
        if contained:
            return self.image if self.strict else self.image or self.local
        return self.local or self.image

    def __str__(self) -> str:
        if isinstance(self.local, servers.Backend) and self.is_cluster:
            return f"tests/{_CONTAINED}: six of local {self.local.version} ({self.local.binary})"
        docker = f"docker image {self.image.reference}" if self.image else ""
        if isinstance(self.local, servers.GivenServer):
            local = f"given, {self.local.version}"
        else:
            local = f"local {self.local.version} ({self.local.binary})" if self.local else ""
        if docker and local:
            return f"tests/{_CONTAINED}: {docker}; others: {local}"
        if local and self.strict:
            return f"{local}, not for tests/{_CONTAINED}"
        return docker or local


@dataclass(frozen=True, slots=True)
class _Choice:
    """What this run tests against.

    ``STREAMQ_TEST_BACKEND=local`` looks for no engine. With ``docker``, all images must be there, and what is
    required must be there as a local binary as well, as some tests run on nothing else. With neither, an image or
    a binary is enough, and what is missing for the one is done by the other.
    """

    backends: Mapping[str, _Backend]
    missing: Mapping[str, str] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    mode: str = ""
    docker: str = ""

    @classmethod
    def of_environment(cls, *, pull: bool) -> _Choice:
        required, only = (_words(f"STREAMQ_{name}") for name in ("REQUIRE", "TEST_ONLY"))
        if url := os.environ.get("STREAMQ_TEST_URL"):
            given = servers.GivenServer(url)
            return cls({given.name: _Backend(given.name, given)}, required=required)
        mode = os.environ.get("STREAMQ_TEST_BACKEND", "")
        if mode not in ("", "docker", "local"):
            raise servers.ServerUnavailableError(f"STREAMQ_TEST_BACKEND is 'docker' or 'local', not {mode!r}")
        local, missing = servers.discover()
        images, absent = {}, {}
        if mode != "local":
            wanted = containers.images()
            wanted = {name: image for name, image in wanted.items() if name in only or not only}
            images, absent = containers.discover(wanted, pull=pull)
        if absent and mode == "docker":
            reasons = "; ".join(dict.fromkeys(absent.values()))
            raise servers.ServerUnavailableError(f"STREAMQ_TEST_BACKEND=docker, but {reasons}")
        names = [name for name in servers.ordered((*local, *images)) if name in only or not only]
        backends = {name: _Backend(name, local.get(name), images.get(name), mode == "docker") for name in names}
        backends |= _clusters(local, only)
        missing |= {_CLUSTER + name: missing[name] for name in _CLUSTERS if name in missing}
        if unknown := [name for name in only if name not in backends]:
            where = absent.get(unknown[0]) or missing.get(unknown[0], "no such server on PATH")
            raise servers.ServerUnavailableError(f"STREAMQ_TEST_ONLY names {unknown[0]}, which was not found ({where})")
        missing = {name: where for name, where in missing.items() if name in only or not only}
        docker = "; ".join(dict.fromkeys(absent.values()))
        return cls(backends, missing, required, mode, docker)

    def check(self, *, start: bool) -> None:
        """Raise an error if a required backend is missing, or with `start` if it does not start."""
        for name in self.required:
            backend = self.backends.get(name)
            if backend is None or (self.mode and backend.local is None):
                where = self.missing.get(name, "no such server on PATH")
                found = ", ".join(self.backends) or "none"
                raise servers.ServerUnavailableError(
                    f"STREAMQ_REQUIRE names {name}, which was not found ({where}). Found: {found}."
                )
            if self.mode == "docker" and backend.image is None and not backend.is_cluster:
                raise servers.ServerUnavailableError(
                    f"STREAMQ_REQUIRE names {name}, for which STREAMQ_TEST_IMAGE has no image"
                )
            if start and isinstance(backend.local, servers.Backend):
                with servers.Server(backend.local):
                    pass
            if start and backend.image is not None:
                containers.ContainerServer(backend.image).close()

    def complaint(self) -> str:
        """Say that no server was found, and what would help."""
        wanted = "; ".join(f"{name}: {where}" for name, where in self.missing.items())
        docker = f"Docker ({self.docker or 'which STREAMQ_TEST_BACKEND=local forbids'})"
        return (
            f"No test server was found. One of these is needed: {wanted}; or {docker}; or STREAMQ_TEST_URL=redis://..."
        )


def _clusters(local: Mapping[str, servers.Backend], only: Sequence[str]) -> dict[str, _Backend]:
    names = [_CLUSTER + name for name in local if name in _CLUSTERS or _CLUSTER + name in only]
    return {name: _Backend(name, local[name.removeprefix(_CLUSTER)]) for name in names if name in only or not only}


def _words(variable: str) -> tuple[str, ...]:
    return tuple(os.environ.get(variable, "").replace(",", " ").split())


_CHOICE: Final = pytest.StashKey[_Choice]()


def _is_contained(item: pytest.Item) -> bool:
    here = Path(__file__).parent
    return item.path.is_relative_to(here / _CONTAINED)


def _is_xdist_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


@pytest.hookimpl(tryfirst=True)  # the header, which another hook of this name prints, tells the outcome
def pytest_sessionstart(session: pytest.Session) -> None:
    config = session.config
    try:
        # Workers of xdist find what their controller has pulled.
        choice = config.stash[_CHOICE] = _Choice.of_environment(pull=not _is_xdist_worker(config))
        choice.check(start=not config.option.collectonly and not _is_xdist_worker(config))
    except servers.ServerUnavailableError as exc:
        raise pytest.UsageError(str(exc)) from None


def pytest_report_header(config: pytest.Config) -> list[str]:
    choice = config.stash[_CHOICE]
    lines = [f"server: {name}: {backend}" for name, backend in choice.backends.items()] or ["servers: none"]
    if choice.docker:
        lines.append(f"no containers: {choice.docker}")
    if choice.required:
        lines.append(f"required servers: {', '.join(choice.required)}")
    for name, where in choice.missing.items():
        lines.append(f"missing {'binary' if name in choice.backends else 'server'}: {name}: {where}")
    return lines


_ON_ONE: Final = {
    "test_servers.py",
    "test_clusters.py",
    "test_ratios.py",
    "test_demo.py",
    "test_examples.py",
    "test_run.py",
}
"""Of the tests' own helpers, and of programs whose every request other tests try on all servers: the last one will do."""


_FEWER: Final = {"worker": 2, "telemetry": 1}
"""Tests below these directories that cover no row of the acceptance list run on so many servers: Valkey, and then the oldest.
What differs between servers is shown by the tests of the contract; here it is processes and time that matter, and each takes
seconds."""

_ORDERS: Final = {"test_interleavings.py", "test_state_machine.py"}
"""What orders of requests do is the same wherever each request does the same. So these run where requests differ most, on
the oldest server and on Valkey; crash points, on all, show that requests do the same."""


def _is_repeated(item: pytest.Item, backends: Sequence[str]) -> bool:
    """Whether a contract's test need not run with these parameters.

    The facades are one text, and what differs between servers the blocking one shows on all of them: so with asyncio each test
    runs on Valkey, and on the oldest server if it covers a row. Without asyncio, what covers neither a row nor a case runs
    on the oldest and on Valkey. What is ``slow`` runs on Valkey without asyncio; on the oldest, too, if it covers a row.

    On clusters, what covers a row, or a case of theirs, and is not slow: on the first with the blocking facade, on the last with
    the other.
    """
    call = getattr(item, "callspec", None)
    if call is None or "backend" not in call.params or not _is_contained(item):
        return False
    name, is_async = call.params["backend"], call.params.get("colour") == "async"
    alike = [other for other in backends if other.startswith(_CLUSTER) == name.startswith(_CLUSTER)] or [name]
    first, last = alike[0], alike[-1]
    wanted = {first, last} if _covers_a_row(item) else {last}
    if name.startswith(_CLUSTER):
        is_wanted = _covers_a_row(item) or _concerns_clusters(item)
        return not is_wanted or name != alike[-is_async] or item.get_closest_marker("slow") is not None
    if is_async:
        return item.get_closest_marker("slow") is not None or name not in wanted
    if _chose_backends(item):
        return False
    if item.get_closest_marker("slow"):
        return name not in wanted
    return not item.get_closest_marker("covers") and name not in {first, last}


def _chose_backends(item: pytest.Item) -> bool:
    return any("backend" in _names(mark) for mark in item.iter_markers("parametrize"))


def _names(mark: pytest.Mark) -> list[str]:
    names = mark.args[0] if mark.args else mark.kwargs["argnames"]
    return names.replace(",", " ").split() if isinstance(names, str) else [*names]


def _covers_a_row(item: pytest.Item) -> bool:
    rows = [row for mark in item.iter_markers("covers") for row in mark.args]
    return any(not _CASE.fullmatch(row) for row in rows)


def _concerns_clusters(item: pytest.Item) -> bool:
    return any(_CLUSTER_CASES.intersection(mark.args) for mark in item.iter_markers("covers"))


def _outermost(names: list[str], count: int) -> list[str]:
    """The last one, or that and the first one, or all."""
    return names if count >= len(names) else names[-1:] if count == 1 else [names[0], names[-1]]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "backend" not in metafunc.fixturenames:
        return
    if _chose_backends(metafunc.definition):
        return
    backends = metafunc.config.stash[_CHOICE].backends
    contained = _is_contained(metafunc.definition)
    names = [name for name, way in backends.items() if way.place(contained=contained)] or [_NO_BACKEND]
    if metafunc.definition.path.name in _ON_ONE:
        names = names[-1:]
    elif metafunc.definition.path.name in _ORDERS:
        names = _outermost(names, 2)
    elif not _covers_a_row(metafunc.definition):
        names = _outermost(names, _FEWER.get(metafunc.definition.path.parent.name, len(names)))
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
    if choice.backends and "full" not in config.option.markexpr:
        repeated = [item for item in items if _is_repeated(item, [*choice.backends])]
        kept = set(items).difference(repeated)
        items[:] = [item for item in items if item in kept]
        config.hook.pytest_deselected(items=repeated)
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
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # In the background of a script interrupts are ignored, and so by all that is started there: also by what tests interrupt.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.pluginmanager.register(_ExecutedTests(config))


# --- servers ------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def backend(request: pytest.FixtureRequest) -> _Backend:
    """The backend under test; every test that uses a server runs once for each."""
    choice = request.config.stash[_CHOICE]
    if request.param == _NO_BACKEND:
        pytest.fail(choice.complaint(), pytrace=False)
    if request.param not in choice.backends:
        pytest.skip(f"{request.param} is not among the servers of this run")
    return choice.backends[request.param]


@pytest.fixture(scope="session")
def shared_process(backend: _Backend) -> Iterator[servers.Server]:
    """The local process that tests of this backend share."""
    assert isinstance(backend.local, servers.Backend)
    with servers.Server(backend.local) as running:
        yield running


@pytest.fixture(scope="session")
def shared_cluster(request: pytest.FixtureRequest, backend: _Backend) -> Iterator[clusters.Cluster]:
    """The cluster that tests of this backend share."""
    assert isinstance(backend.local, servers.Backend)
    # Nobody is to take over in it, however busy the machine is.
    with clusters.Cluster(backend.local, node_timeout_s=5.0) as running:
        watch = request.config.pluginmanager.get_plugin("one_slot").WATCH
        probes = watch.probes
        yield running
        # All that crossed slots are the trials that the doctor made of it.
        assert running.crossings == watch.probes - probes
        assert not [port for port, log in running.logs.items() if "CROSSSLOT" in log]


@pytest.fixture(scope="session")
def shared_container(backend: _Backend) -> Iterator[containers.ContainerServer]:
    """The container that tests of this backend share."""
    assert backend.image is not None
    with containers.ContainerServer(backend.image) as running:
        yield running


@pytest.fixture
def server(
    request: pytest.FixtureRequest, backend: _Backend
) -> servers.Server | servers.GivenServer | clusters.Cluster:
    """A server or cluster that all tests of this backend share. Not to be stopped or configured: see `new_server`."""
    if backend.is_cluster:
        return request.getfixturevalue("shared_cluster")
    match backend.place(contained=_is_contained(request.node)):
        case servers.GivenServer() as given:
            return given
        case servers.Backend():
            return request.getfixturevalue("shared_process")
        case containers.Image():
            return request.getfixturevalue("shared_container")
    pytest.skip(f"STREAMQ_TEST_IMAGE has no image for {backend.name}")


@pytest.fixture
def new_server(backend: _Backend) -> Iterator[Callable[..., servers.Server]]:
    """Start servers of this backend for this test alone, to kill and restart; arguments as of `Server`."""
    local = backend.local
    if backend.is_cluster:
        pytest.skip("needs a server of its own")
    if isinstance(local, servers.GivenServer):
        pytest.skip("needs a server of its own, but STREAMQ_TEST_URL gives the only one")
    if local is None:
        pytest.skip(f"needs a server of its own, but {backend.name} is there as an image only")
    with ExitStack() as stack:

        def start(
            *, args: tuple[str, ...] = (), appendonly: bool = False, directory: Path | None = None
        ) -> servers.Server:
            own = servers.Server(local, args=args, appendonly=appendonly, directory=directory)
            return stack.enter_context(own)

        yield start


@pytest.fixture
def redis_url(server: servers.Server | servers.GivenServer | clusters.Cluster) -> str:
    """URL of the shared server or cluster."""
    return server.url


@pytest.fixture
def proxy(server: servers.Server | servers.GivenServer | clusters.Cluster) -> Iterator[servers.CutProxy]:
    """A proxy to the shared server, to cut connections with."""
    if isinstance(server, clusters.Cluster):
        pytest.skip("nodes of a cluster name each other, not a proxy")
    with servers.CutProxy(server) as running:
        yield running


@pytest.fixture
def raw(request: pytest.FixtureRequest, redis_url: str) -> Iterator[redis.Redis]:
    """A client with a single connection, to see what is really there: bytes, in the shape of RESP2.

    Of a cluster it is at home where the stream named after `ns` is (see `clusters.Eyes`).
    """
    server = request.getfixturevalue("server")
    if isinstance(server, clusters.Cluster):
        opened = server.eyes(Keys(request.getfixturevalue("ns")).stream)
    else:
        opened = redis.Redis.from_url(redis_url, single_connection_client=True, driver_info=None, protocol=2)
    with opened as client:
        yield client


@pytest.fixture
def ns(request: pytest.FixtureRequest) -> Iterator[str]:
    """A prefix that nobody else uses. Keys with it anywhere in their name are removed after the test."""
    prefix = f"t{secrets.token_hex(5)}"
    # Only of tests that use a server anyway. Asked for now, so that it is still there at teardown.
    server = request.getfixturevalue("server") if "server" in request.fixturenames else None
    yield prefix
    if isinstance(server, clusters.Cluster):
        server.remove(f"*{prefix}*")
    elif server is not None:
        with redis.Redis.from_url(server.url, single_connection_client=True, driver_info=None) as client:
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
