"""From ``MODULE:WORKER`` to a worker."""

from __future__ import annotations

import importlib
import re
import traceback
from typing import Any

from streamq.errors import ConfigurationError, StreamqError
from streamq.worker.engine import Worker

_TARGET = re.compile(r"(?P<module>\w+(?:\.\w+)*):(?P<path>\w+(?:\.\w+)*)")


def load(target: str) -> Worker[Any]:
    """Import the module and get its worker: a `Worker`, or what a callable without arguments returns.

    Raises:
        ConfigurationError: There is none; the message says what is wrong, and where.
    """
    match = _TARGET.fullmatch(target)
    if match is None:
        raise ConfigurationError(f"a worker is named MODULE:WORKER, such as shop.jobs:worker, not {target!r}")
    found = _import(match["module"])
    for name in match["path"].split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            raise ConfigurationError(f"there is no {match['path']} in module {match['module']}") from None
    if not isinstance(found, Worker) and callable(found):
        try:
            found = found()
        except Exception as error:
            raise ConfigurationError(f"{target} made no worker: {_told(error)}") from error
    if not isinstance(found, Worker):
        raise ConfigurationError(f"{target} is no worker, nor a function that returns one, but {type(found).__name__}")
    return found


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise ConfigurationError(f"there is no module {error.name} (looked for {name})") from None
        raise ConfigurationError(f"module {name} cannot be imported: {_told(error)}") from error
    except Exception as error:
        raise ConfigurationError(f"module {name} cannot be imported: {_told(error)}") from error


def _told(error: Exception) -> str:
    """What was raised and where: in one line, all that a user needs to look."""
    if isinstance(error, StreamqError):
        return str(error)
    *_, last = traceback.extract_tb(error.__traceback__)
    return f"{type(error).__name__}: {error} ({last.filename}:{last.lineno})"
