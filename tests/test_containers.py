"""Which image stands for which server, and what happens where Docker, an image or a version is not as expected."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import containers
import pytest
import redis
import servers
from test_servers import SERVED, UNIT, run_pytest

# --- images -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "name", "reference"),
    [
        ("redis:6.2", "redis-6.2", "redis:6.2"),
        ("redis:7.0.15-alpine", "redis-7.0", "redis:7.0.15-alpine"),
        ("registry.example:5000/cache/redis:8.2", "redis-8.2", "registry.example:5000/cache/redis:8.2"),
        ("valkey/valkey:9", "valkey-9", "valkey/valkey:9"),
        ("valkey/valkey:9.1", "valkey-9", "valkey/valkey:9.1"),
        ("valkey/valkey:8.1", "valkey-8.1", "valkey/valkey:8.1"),
        ("redis-7.0=mirror/cache:stable", "redis-7.0", "mirror/cache:stable"),
    ],
)
def test_image_tells_its_backend(word, name, reference):
    assert containers.images({"STREAMQ_TEST_IMAGE": word}) == {name: containers.Image(name, reference)}


@pytest.mark.parametrize("word", ["redis", "redis:latest", "redis:8", "valkey/valkey:8", "localhost:5000/redis"])
def test_image_that_does_not_tell(word):
    with pytest.raises(servers.ServerUnavailableError, match="does not tell which server"):
        containers.images({"STREAMQ_TEST_IMAGE": word})


def test_two_images_for_one_backend():
    with pytest.raises(servers.ServerUnavailableError, match=r"two images for redis-7\.0"):
        containers.images({"STREAMQ_TEST_IMAGE": "redis:7.0 redis:7.0-alpine"})


def test_images_by_default_are_those_that_the_project_is_tested_against():
    assert tuple(containers.images({})) == servers.KNOWN


# --- without Docker -----------------------------------------------------------------------


@pytest.fixture
def nobody(tmp_path, monkeypatch):
    """A home without settings of Docker, and the URL of an engine that is not there."""
    monkeypatch.setenv("HOME", str(tmp_path))
    return f"unix://{tmp_path}/d.sock"


def test_no_hint_of_an_engine(nobody, monkeypatch):
    monkeypatch.setattr(containers, "_SOCKET", "/nonexistent/docker.sock")
    found, missing = containers.discover(containers.images({}), environ={})
    assert not found
    assert set(missing.values()) == {"no Docker engine: neither DOCKER_HOST nor /nonexistent/docker.sock"}


def test_engine_that_does_not_answer_is_done_without(tmp_path, nobody):
    result = run_pytest(tmp_path, SERVED, STREAMQ_TEST_BACKEND="", DOCKER_HOST=nobody)
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"no containers: no Docker engine answers at {nobody}" in result.stdout
    assert "docker image" not in result.stdout


def test_engine_across_the_network_that_refuses(monkeypatch):
    host = f"tcp://127.0.0.1:{servers.free_port()}"
    monkeypatch.setenv("DOCKER_HOST", host)
    found, missing = containers.discover(containers.images())
    assert not found
    assert all(f"no Docker engine answers at {host}" in reason for reason in missing.values())


def test_engine_that_speaks_another_language(nobody, monkeypatch):
    """Whatever listens there: it is no engine."""
    monkeypatch.setenv("DOCKER_HOST", nobody)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(nobody.removeprefix("unix://"))
        listener.listen()
        hangs_up = threading.Thread(target=lambda: [listener.accept()[0].close() for _ in range(2)], daemon=True)
        hangs_up.start()
        found, missing = containers.discover(containers.images())
        hangs_up.join(10)
    assert not found
    assert all(f"no Docker engine answers at {nobody}" in reason for reason in missing.values())


def test_engine_that_is_demanded_but_does_not_answer(tmp_path, nobody):
    result = run_pytest(tmp_path, UNIT, STREAMQ_TEST_BACKEND="docker", DOCKER_HOST=nobody)
    assert result.returncode not in (0, 5)
    assert "STREAMQ_TEST_BACKEND=docker, but no Docker engine answers" in result.stderr
    assert "passed" not in result.stdout


def test_run_that_forbids_docker_looks_for_none(tmp_path, nobody):
    result = run_pytest(tmp_path, UNIT, STREAMQ_TEST_BACKEND="local", DOCKER_HOST=nobody)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "no containers" not in result.stdout


# --- with Docker --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def image() -> containers.Image:
    """An image that can be used here: of several, the first."""
    if os.environ.get("STREAMQ_TEST_BACKEND") == "local":
        pytest.skip("STREAMQ_TEST_BACKEND=local")
    found, missing = containers.discover(containers.images(), pull=False)
    if not found:
        reasons = "; ".join(dict.fromkeys(missing.values()))
        if os.environ.get("STREAMQ_TEST_BACKEND") == "docker":
            pytest.fail(reasons)
        pytest.skip(reasons)
    return next(iter(found.values()))


def test_container_serves_and_goes(image):
    with containers.ContainerServer(image) as server:
        assert server.name == image.name
        with redis.Redis.from_url(server.url) as client:
            product = "valkey" if image.product == "valkey" else "redis"
            assert client.info("server")[f"{product}_version"] == server.version
            assert {**client.config_get("save"), **client.config_get("appendonly")} == {"save": "", "appendonly": "no"}
        wrapped = server._container.get_wrapped_container()
        identity, client = wrapped.id, server._container.get_docker_client().client
        assert identity in {container.id for container in client.containers.list()}
    assert identity not in {container.id for container in client.containers.list(all=True)}
    client.close()


def test_image_of_another_version(image):
    wrong = containers.Image(f"{image.product}-9.9", image.reference)
    with pytest.raises(servers.ServerUnavailableError, match=rf"is {image.name} .*, not {wrong.name}"):
        containers.ContainerServer(wrong)


LOCAL = "import servers\ndef test_local(server): assert isinstance(server, servers.Server)\n"
CONTAINED = "import containers\ndef test_contained(server): assert isinstance(server, containers.ContainerServer)\n"


def run_contained(directory: Path, image: containers.Image, source: str = SERVED, **environ):
    """Run pytest with that image on one test of the contract and one other."""
    (directory / "api").mkdir()
    (directory / "api" / "test_contract.py").write_text(source)
    environ = {"STREAMQ_TEST_BACKEND": "docker", "STREAMQ_TEST_IMAGE": f"{image.name}={image.reference}", **environ}
    return run_pytest(directory, LOCAL, str(directory / "api"), **environ)


def test_contract_runs_in_a_container_and_all_else_does_not(tmp_path, image):
    if image.name not in servers.discover()[0]:
        pytest.skip(f"{image.name} is there as an image only")
    result = run_contained(tmp_path, image, CONTAINED, STREAMQ_REQUIRE=image.name)
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"server: {image.name}: tests/api: docker image {image.reference}; others: local" in result.stdout
    assert result.stdout.count("not for tests/api") == len(servers.discover()[0]) - 1
    assert f"{len(servers.discover()[0]) + 1} passed" in result.stdout


def test_required_backend_without_an_image(tmp_path, image):
    found = [name for name in servers.discover()[0] if name != image.name]
    if not found:
        pytest.skip("needs another server")
    result = run_contained(tmp_path, image, STREAMQ_REQUIRE=found[0])
    assert result.returncode not in (0, 5)
    assert f"STREAMQ_REQUIRE names {found[0]}, for which STREAMQ_TEST_IMAGE has no image" in result.stderr
    assert "passed" not in result.stdout


def test_required_backend_whose_image_is_another(tmp_path, image):
    other = next((name for name in servers.discover()[0] if name != image.name), None)
    if other is None or not other.startswith(image.product):
        pytest.skip("needs another server of that product")
    wrong = containers.Image(other, image.reference)
    result = run_contained(tmp_path, wrong, STREAMQ_REQUIRE=other)
    assert result.returncode not in (0, 5)
    assert f"image {image.reference} is {image.name}" in result.stderr
    assert "passed" not in result.stdout


def test_image_that_cannot_be_had(tmp_path, image):
    # A registry of this machine that is not there: refused at once, on a machine without network as well.
    absent = containers.Image(image.name, f"127.0.0.1:{servers.free_port()}/redis:7.0")
    (tmp_path / "strict").mkdir()
    strict = run_contained(tmp_path / "strict", absent)
    assert strict.returncode not in (0, 5)
    assert f"image {absent.reference}: neither there nor pulled" in strict.stderr
    if image.name in servers.discover()[0]:
        (tmp_path / "lenient").mkdir()
        lenient = run_contained(tmp_path / "lenient", absent, STREAMQ_TEST_BACKEND="", STREAMQ_TEST_ONLY=image.name)
        assert lenient.returncode == 0, lenient.stdout + lenient.stderr
        assert f"no containers: image {absent.reference}" in lenient.stdout
        assert "2 passed" in lenient.stdout
