"""Real servers in containers, by testcontainers, for where a Docker engine is there.

It knows no pytest. `images` reads which images stand for which backends, `discover` finds out which of them can be
used here, and `ContainerServer` runs one.
"""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import urlsplit

import redis
import servers

DEFAULT_IMAGES: Final = "redis:6.2 redis:7.0 redis:8.2 valkey/valkey:9"

_VERSION: Final = re.compile(r"(\d+)(?:\.(\d+))?")
_SOCKET: Final = "/var/run/docker.sock"
_PORT: Final = 6379

# testcontainers reads its settings once, when it is imported. By default it looks once a second whether a container
# is ready, which would be most of the time that ours need; their product is the time-out.
_SETTINGS: Final = {"TC_POOLING_INTERVAL": "0.05", "TC_MAX_TRIES": "600"}


@dataclass(frozen=True, slots=True)
class Image:
    """An image, and the backend that it is said to be."""

    name: str
    reference: str

    @property
    def product(self) -> str:
        """``redis`` or ``valkey``."""
        return self.name.partition("-")[0]


def images(environ: Mapping[str, str] = os.environ) -> dict[str, Image]:
    """Read ``STREAMQ_TEST_IMAGE``: images separated by spaces, by the names of their backends.

    An image's name and tag tell its backend, such as ``registry.example/redis:7.0-alpine``. Where they do not,
    it is put in front, such as ``redis-7.0=mirror/cache:stable``.

    Raises:
        ServerUnavailableError: One tells no backend, or two tell the same.
    """
    found: dict[str, Image] = {}
    for word in (environ.get("STREAMQ_TEST_IMAGE") or DEFAULT_IMAGES).split():
        name, given, reference = word.rpartition("=")
        image = Image(name if given else _name_of(reference), reference)
        if image.name in found:
            raise servers.ServerUnavailableError(f"STREAMQ_TEST_IMAGE names two images for {image.name}")
        found[image.name] = image
    return {name: found[name] for name in servers.ordered(found)}


def _name_of(reference: str) -> str:
    repository, _, tag = reference.rpartition("/")[2].partition(":")
    product = "valkey" if "valkey" in repository else "redis"
    version = _VERSION.match(tag)
    name = version and servers.backend_name(product, version[1], version[2] or "")
    if not name or name.endswith("."):
        raise servers.ServerUnavailableError(
            f"STREAMQ_TEST_IMAGE: {reference} does not tell which server it is; write it like redis-7.0={reference}"
        )
    return name


def discover(
    wanted: Mapping[str, Image], *, environ: Mapping[str, str] = os.environ, pull: bool = True
) -> tuple[dict[str, Image], dict[str, str]]:
    """Find out which images can be used here; absent ones are pulled, unless told otherwise.

    Returns:
        What was found, and for each image that was not, why.
    """
    try:
        client = _connect(environ)
    except servers.ServerUnavailableError as exc:
        return {}, dict.fromkeys(wanted, str(exc))
    found: dict[str, Image] = {}
    missing: dict[str, str] = {}
    try:
        for image in wanted.values():
            if reason := _obtain(client, image, pull=pull):
                missing[image.name] = f"image {image.reference}: {reason}"
            else:
                found[image.name] = image
    finally:
        client.close()
    return found, missing


def _connect(environ: Mapping[str, str]) -> Any:
    """Return a client of the Docker engine that testcontainers will use.

    Raises:
        ServerUnavailableError: There is none, or testcontainers is not installed.
    """
    # Where nothing hints at an engine, nobody has to wait for these imports.
    hints = [Path(_SOCKET), Path.home() / ".docker" / "config.json", Path.home() / ".testcontainers.properties"]
    if not any(environ.get(name) for name in ("DOCKER_HOST", "DOCKER_CONTEXT")) and not any(p.exists() for p in hints):
        raise servers.ServerUnavailableError(f"no Docker engine: neither DOCKER_HOST nor {_SOCKET}")
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    try:
        import docker
        from testcontainers.core.docker_client import get_docker_host
    except ImportError as exc:
        raise servers.ServerUnavailableError(f"no Docker client: {exc}") from None
    host = get_docker_host() or f"unix://{_SOCKET}"
    try:
        _knock(host)
        client = docker.DockerClient(base_url=host, timeout=60)
    except (OSError, docker.errors.DockerException) as exc:
        raise servers.ServerUnavailableError(f"no Docker engine answers at {host}: {exc}") from None
    try:
        client.ping()
    except (OSError, docker.errors.DockerException) as exc:
        client.close()
        raise servers.ServerUnavailableError(f"no Docker engine answers at {host}: {exc}") from None
    return client


def _knock(host: str) -> None:
    """Raise OSError if nobody listens there: docker-py would leak a socket over it, and a warning fails a test."""
    parts = urlsplit(host)
    if parts.scheme in ("unix", "http+unix"):
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(5)
            probe.connect(parts.path)
    elif parts.scheme == "tcp":
        socket.create_connection((parts.hostname or "127.0.0.1", parts.port or 2375), timeout=5).close()


def _obtain(client: Any, image: Image, *, pull: bool) -> str:
    """Make sure that the engine has the image; return why it has not, or nothing."""
    import docker

    try:
        client.images.get(image.reference)
    except docker.errors.ImageNotFound:
        if not pull:
            return "not there"
        # Seen also while pytest captures, as it may take a while and happens once.
        print(f"pulling {image.reference} (STREAMQ_TEST_BACKEND=local does without)", file=sys.__stderr__, flush=True)
        try:
            client.images.pull(image.reference)
        except (OSError, docker.errors.DockerException) as exc:
            return f"neither there nor pulled: {exc}"
    except (OSError, docker.errors.DockerException) as exc:
        return str(exc)
    return ""


class ContainerServer(servers.GivenServer):
    """A server in a container of its own, which runs until `close`. What tests may do with it: `GivenServer`.

    Raises:
        ServerUnavailableError: It did not start, or is not the backend that its image is said to be.
    """

    def __init__(self, image: Image) -> None:
        import docker
        from testcontainers.community.redis import RedisContainer

        self.image = image
        # The whole command: some builds refuse clients from outside by default, and Docker's proxy looks like one.
        command = [f"{image.product}-server", "--protected-mode", "no", "--save", "", "--appendonly", "no"]
        self._container = RedisContainer(image.reference, port=_PORT).with_command(command)
        try:
            try:
                self._container.start()
                host, port = self._container.get_container_host_ip(), self._container.get_exposed_port(_PORT)
            except (OSError, docker.errors.DockerException, redis.RedisError) as exc:
                text = f"{image.name} (image {image.reference}) did not start: {exc}\n{self._log_tail()}"
                raise servers.ServerUnavailableError(text.rstrip()) from exc
            # Not by name, which may lead to ::1 first, where not every engine publishes ports.
            host = "127.0.0.1" if host == "localhost" else host
            super().__init__(f"redis://{host}:{port}/0", origin=image.reference)
            self._verify()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Remove the container."""
        self._container.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<ContainerServer {self.name} ({self.version}) of {self.image.reference} at {self.url}>"

    def _verify(self) -> None:
        if self.name != self.image.name:
            actual = f"{self.name} ({self.version})"
            raise servers.ServerUnavailableError(f"image {self.image.reference} is {actual}, not {self.image.name}")

    def _log_tail(self) -> str:
        wrapped = self._container._container
        return wrapped.logs().decode(errors="replace")[-2000:] if wrapped is not None else ""
