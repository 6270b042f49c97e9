"""``streamq run``: worker processes under a supervisor."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Annotated, TypeAlias

import typer

from streamq._text import shown
from streamq.errors import ConfigurationError

_Error: TypeAlias = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


class StartMethod(StrEnum):
    """How processes are started."""

    SPAWN = "spawn"
    FORK = "fork"


class LogLevel(StrEnum):
    """What is logged at least."""

    DEBUG = "DEBUG"
    INFO = "INFO"
    WARNING = "WARNING"
    ERROR = "ERROR"


def run(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:WORKER",
            help="A Worker, or a function without arguments that returns one. Looked for in this directory, too.",
        ),
    ],
    *,
    processes: Annotated[int, typer.Option("--processes", "-n", min=1, max=256, help="Worker processes.")] = 1,
    solo: Annotated[
        int | None,
        typer.Option(
            "--solo",
            min=0,
            max=2,
            help="Further processes, for jobs that may have killed theirs and have one start left: alone there, they "
            "meet no other job.",
            show_default="1 if there are several processes, else 0",
        ),
    ] = None,
    start_method: Annotated[
        StartMethod, typer.Option("--start-method", help="fork is faster, but unsafe where importing starts threads.")
    ] = StartMethod.SPAWN,
    log_level: Annotated[LogLevel, typer.Option("--log-level", case_sensitive=False)] = LogLevel.INFO,
    metrics: Annotated[
        str | None,
        typer.Option(
            "--metrics",
            metavar="[HOST:]PORT",
            help="Serve the metrics of all processes for Prometheus, at http://HOST:PORT/metrics; HOST is 127.0.0.1 by default.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Run a worker in processes that are restarted when they die.

    What a dead process held is given back at once, without waiting for leases; what it had not begun is not held against it.
    SIGTERM or Ctrl-C lets running jobs end, a second one stops at once; SIGHUP restarts the processes one after the other.
    Exit status 0 if all ended well, 1 if a process had to be killed, 2 if there is no such worker or it cannot run,
    3 if a migration must come first.
    """
    from streamq.worker.supervisor import Supervisor

    log_to_stderr(log_level)
    sys.path.insert(0, str(Path.cwd()))
    with _served(metrics, start_method) as keep_metrics:
        supervisor = Supervisor(
            target,
            processes=processes,
            solo=solo,
            start_method=start_method.value,
            prepare=partial(_prepare, log_level, keep_metrics),
        )
        ended_well = supervisor.run()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # one more, of somebody who is impatient, must not change the exit status
    if not ended_well:
        raise typer.Exit(1)


def _served(metrics: str | None, start_method: StartMethod) -> AbstractContextManager[Callable[[], None] | None]:
    if metrics is None:
        return nullcontext()
    if start_method is StartMethod.FORK:  # the server has threads, and the metrics that a fork copies are made already
        raise ConfigurationError("--metrics needs --start-method spawn")
    from streamq.telemetry.several import served
    from streamq.worker.health import address_of

    return served(*address_of(metrics, "--metrics"))


def _prepare(level: LogLevel, keep_metrics: Callable[[], None] | None) -> None:
    """What each process does first."""
    log_to_stderr(level)
    if keep_metrics is not None:
        keep_metrics()


def log_to_stderr(level: LogLevel) -> None:
    """Log everything of at least `level` to standard error, with time, level and process."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Formatter("%(asctime)s %(levelname)s [%(processName)s %(process)d] %(name)s: %(message)s"))
    logging.basicConfig(level=level.value, handlers=[handler], force=True)


class _Formatter(logging.Formatter):
    """Lets nothing speak to the terminal: messages and errors may quote what came from a server."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # logging's name
        record.message = shown(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: _Error) -> str:  # noqa: N802  # logging's name
        return "\n".join(shown(line) for line in super().formatException(ei).split("\n"))
