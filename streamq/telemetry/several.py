"""One page of metrics for all processes of `streamq run`, in prometheus_client's multiprocess mode.

Each child keeps its metrics in files that the supervisor's process reads when it is scraped. The files are named after the
child's number, not after its process: so a child that is started again goes on counting where its predecessor was killed, and
there are never more files than children (and a handful of kinds each).
"""

from __future__ import annotations

import contextlib
import fcntl
import multiprocessing
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from streamq.errors import ConfigurationError

if TYPE_CHECKING:
    from prometheus_client import Metric

FOLDER: Final = "PROMETHEUS_MULTIPROC_DIR"
"""Tells prometheus_client to keep its values in files, when it is imported."""

_PREFIX: Final = "streamq-metrics-"

LEFT_S: Final = 60.0
"""A folder that nobody has locked for so long is one of a supervisor that was killed."""

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  # where there is one: pages of a file on a disk are written back for nothing


@contextmanager
def served(host: str, port: int) -> Iterator[Callable[[], None]]:
    """Serve the page at ``host:port``; gives what each child must call before it imports anything that has metrics.

    Raises:
        ConfigurationError: It cannot be listened there, prometheus_client is not installed, or its multiprocess mode is
            used otherwise.
    """
    if FOLDER in os.environ:
        raise ConfigurationError(f"--metrics makes a folder of its own: unset {FOLDER}")
    try:
        from prometheus_client import CollectorRegistry, start_http_server
    except ImportError as error:
        raise ConfigurationError("metrics need prometheus-client: pip install 'streamq[prometheus]'") from error

    parent = _SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK) else Path(tempfile.gettempdir())
    remove_left(parent)
    with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=parent) as folder, _opened(Path(folder)) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        registry = CollectorRegistry()
        registry.register(_Files(Path(folder)))
        try:
            server, thread = start_http_server(port, host, registry)
        except (OSError, OverflowError) as error:
            raise ConfigurationError(f"metrics: cannot listen at {host}:{port}: {error}") from error
        try:
            yield partial(keep_in, folder)
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield number
    finally:
        os.close(number)


def remove_left(parent: Path) -> None:
    """Remove what supervisors of this user have left that were killed."""
    for folder in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError), _opened(folder) as lock:  # it is in use, or just gone
            now = os.fstat(lock)
            if now.st_uid == os.getuid() and time.time() - now.st_mtime > LEFT_S:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)


class _Files:
    """Sums up what the children keep."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def collect(self) -> Iterable[Metric]:
        from prometheus_client.multiprocess import MultiProcessCollector

        # A file that was made just now is empty for a moment, or for ever if its process was killed in that moment:
        # prometheus_client's own collector fails at it.
        found: Iterable[Metric] = MultiProcessCollector.merge([str(p) for p in self._folder.glob("*.db") if _size(p)])
        return found


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # of a process that has ended
        return 0


def keep_in(folder: str) -> None:
    """Keep the metrics of this process in `folder`, under the number of this child."""
    os.environ[FOLDER] = folder
    from prometheus_client import multiprocess, values

    own, number = os.getpid(), multiprocessing.current_process().name.rpartition(" ")[2]
    # A handler may fork: two processes must never write one file.
    values.ValueClass = values.MultiProcessValue(lambda: number if os.getpid() == own else os.getpid())
    multiprocess.mark_process_dead(number, folder)  # its predecessor: what that one had running, runs no more
