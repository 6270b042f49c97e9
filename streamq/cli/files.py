"""Files that commands write."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NoReturn

import typer

from streamq.cli.output import REFUSED, fail
from streamq.errors import ConfigurationError


@contextmanager
def written(name: str, *, force: bool) -> Iterator[IO[str]]:
    """What is written to it is in the file of this name at the end, all or nothing; ``-`` is standard output.

    Only the owner may read the file. A pipe or a device is written to as it is.

    Raises:
        ConfigurationError: It cannot be written.
        typer.Exit: It is there already, and nobody said `force`. Status 3.
    """
    if name == "-":
        yield sys.stdout
        return
    target = Path(os.path.realpath(name))
    try:
        if target.exists() and not target.is_file():
            with target.open("w", encoding="utf-8") as out:
                yield out
            return
        if not force and target.exists():
            _refuse(name)
        with _beside(target) as (out, path):
            yield out
            out.flush()
            os.fsync(out.fileno())
            _name(path, target, force=force)
    except FileExistsError:
        _refuse(name)
    except OSError as error:
        raise ConfigurationError(f"{name!r:.200} cannot be written: {error.strerror}") from error


def _refuse(name: str) -> NoReturn:
    fail(f"{name} is there already: give --force to replace it; nothing was written")
    raise typer.Exit(REFUSED)


@contextmanager
def _beside(target: Path) -> Iterator[tuple[IO[str], Path]]:
    """A file in the same directory, which goes unless it gets a name."""
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name[:60]}.", dir=target.parent)
    path = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as out:
            yield out, path
    finally:
        path.unlink(missing_ok=True)


def _name(path: Path, target: Path, *, force: bool) -> None:
    if not force:
        try:
            target.hardlink_to(path)  # fails if the file is there by now
        except FileExistsError:
            raise
        except OSError as error:  # this file system knows no second names
            if target.exists():
                raise FileExistsError from error
        else:
            return
    path.replace(target)
