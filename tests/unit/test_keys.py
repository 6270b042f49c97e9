"""Names of keys, and the slots they lie in."""

from __future__ import annotations

import pytest
import redis

from streamq import ConfigurationError
from streamq.keys import (
    SLICES,
    Keys,
    check_id,
    check_name,
    deployment_pattern,
    migration_lock,
    migration_record,
    name_of,
    owner_of,
    registry,
    slot_of,
    stream_pattern,
)


def slot(key):
    """Slot of a key in a cluster: CRC16 (XMODEM) of its hash tag, by the specification."""
    start = key.find("{")
    end = key.find("}", start + 1)
    tag = key[start + 1 : end] if start >= 0 and end > start + 1 else key
    crc = 0
    for byte in tag.encode():
        crc ^= byte << 8
        for _ in range(8):
            crc = (crc << 1) ^ 0x1021 if crc & 0x8000 else crc << 1
        crc &= 0xFFFF
    return crc % 16384


def all_keys(keys):
    """Every key of a stream."""
    return [
        keys.stream, keys.dead, keys.scheduled, keys.jobs, *keys.ids, *keys.done, keys.meta, keys.workers, keys.wake,
        keys.tick("reclaim:workers"), keys.data("any {key} } with {braces"),
    ]  # fmt: skip


def test_slots_as_the_specification_has_them():
    assert slot("123456789") == 0x31C3 % 16384
    assert slot("{}:s") == 8857  # an empty tag: the whole key counts
    assert slot("s{x}") == 16287


@pytest.mark.covers("Q2")
@pytest.mark.parametrize(("deployment", "prefix"), [(None, "streamq:{mail}"), ("dp_1", "dp_1:streamq:{dp_1:mail}")])
def test_names_of_all_keys(deployment, prefix):
    keys = Keys("mail", deployment)
    assert all_keys(keys) == [
        f"{prefix}:{rest}"
        for rest in (
            "stream", "dead", "scheduled", "scheduled:jobs", *(f"ids:{n}" for n in range(SLICES)),
            *(f"done:{n}" for n in range(SLICES)), "meta", "workers", "wake", "tick:reclaim:workers",
            "data:any {key} } with {braces",
        )
    ]  # fmt: skip
    assert len(set(all_keys(keys))) == len(all_keys(keys))


@pytest.mark.covers("C34", "Q2")
@pytest.mark.parametrize("name", ["a", "0", ".", "-", "_", "a.b-c_d", "x" * 128])
@pytest.mark.parametrize("deployment", [None, "dp_1", "y" * 128])
def test_a_stream_lies_in_one_slot(name, deployment):
    assert {slot(key) for key in all_keys(Keys(name, deployment))} == {Keys(name, deployment).slot}


@pytest.mark.covers("C34")
def test_a_server_agrees_about_slots(new_server):
    server = new_server(args=("--cluster-enabled", "yes"))
    with redis.Redis.from_url(server.url, single_connection_client=True) as client:
        for key in [*all_keys(Keys("mail", "dp_1")), "{}:s", "{}x}", "a{b}c{d}"]:
            assert client.execute_command("CLUSTER KEYSLOT", key) == slot(key)


@pytest.mark.covers("C3")
def test_deployments_lie_in_slots_of_their_own():
    one, two = (slot(Keys("deliverymq-retry", f"dp_{n}").stream) for n in (1, 2))
    assert (one, two) == (11_721, 11_707)


@pytest.mark.covers("C34")
@pytest.mark.parametrize(
    "name", ["", "a:b", "a{b}c", "}x", "{", "{x}", "a b", "é", "x" * 300, "a\n", "a\x00", None, 7, b"a"]
)
def test_names_that_cannot_be(name):
    with pytest.raises(ConfigurationError, match="thing"):
        check_name(name, "thing")
    with pytest.raises(ConfigurationError):
        Keys(name)


@pytest.mark.parametrize("value", ["a", " ", "{x}", "ü" * 256, "x" * 512, "a:b/c", "1e3", "\u2028"])
def test_ids_that_can_be(value):
    assert check_id(value, "ID") == value


@pytest.mark.parametrize("value", ["", "x" * 513, "ü" * 257, "a\tb", "\x9f", "\x7f", "\ud800", None, 7, b"a"])
def test_ids_that_cannot_be(value):
    with pytest.raises(ConfigurationError, match="ID"):
        check_id(value, "ID")


def test_the_registry_is_outside_of_every_tag():
    assert registry(None) == "streamq:streams"
    assert registry("dp_1") == "dp_1:streamq:streams"
    assert stream_pattern(None) == "streamq:{*}:stream"
    assert stream_pattern("dp_1") == "dp_1:streamq:{*}:stream"


@pytest.mark.parametrize("deployment", ["*", "a:b", "", "streamq"])
def test_no_pattern_is_made_of_what_is_no_deployment(deployment):
    for make in (registry, stream_pattern, deployment_pattern):
        with pytest.raises(ConfigurationError, match="deployment"):
            make(deployment)


@pytest.mark.parametrize("deployment", [None, "dp_1"])
def test_a_name_is_found_in_its_key(deployment):
    assert name_of(Keys("mail", deployment).stream, deployment) == "mail"


@pytest.mark.parametrize(
    ("key", "deployment"),
    [
        ("streamq:{mail}:dead", None),
        ("streamq:{dp_1:mail}:stream", None),
        ("dp_1:streamq:{dp_1:mail}:stream", None),
        ("dp_1:streamq:{dp_1:mail}:stream", "dp_2"),
        ("dp_1:streamq:{mail}:stream", "dp_1"),
        ("streamq:{}:stream", None),
        ("streamq:mail:stream", None),
        ("", None),
    ],
)
def test_no_name_in_keys_of_others(key, deployment):
    assert name_of(key, deployment) is None


@pytest.mark.parametrize("deployment", [None, "dp_1"])
def test_kinds_name_every_key_but_those_without_a_fixed_number(deployment):
    keys = Keys("mail", deployment)
    fixed = {key for key in all_keys(keys) if not keys.is_open_ended(key)}
    assert set(keys.kinds) == {*fixed, keys.probe}
    assert set(keys.kinds.values()) == {"stream", "zset", "hash", "none"}


@pytest.mark.parametrize(("deployment", "prefix"), [(None, "streamq:mail"), ("dp_1", "dp_1:streamq:mail")])
def test_the_previous_layout_has_no_tag(deployment, prefix):
    keys = Keys("mail", deployment)
    assert {key.removeprefix(prefix) for key in keys.previous} == {
        key.removeprefix(keys.prefix) for key in keys.kinds if key != keys.probe
    }
    assert all(owner_of(key, deployment) == ("mail", False) for key in keys.previous)


@pytest.mark.parametrize("deployment", [None, "dp_1"])
def test_the_untagged_form_has_all_keys_under_the_name(deployment):
    keys = Keys("mail", deployment)
    old = keys.untagged
    assert (old.is_tagged, keys.is_tagged) == (False, True)
    assert [key.removeprefix(old.prefix) for key in all_keys(old)] == [
        key.removeprefix(keys.prefix) for key in all_keys(keys)
    ]
    assert owner_of(old.data("a:b"), deployment) == ("mail", False)
    assert owner_of(old.data("a"), "other") is None
    assert set(old.holding) <= set(keys.previous)
    for key in (migration_lock(deployment), migration_record(deployment, "001"), registry(deployment)):
        assert owner_of(key, deployment) is None


def test_whose_a_key_is():
    for deployment in (None, "dp_1"):
        keys = Keys("mail", deployment)
        for key in all_keys(keys):
            assert owner_of(key, deployment) == ("mail", True)
            assert owner_of(key, "other") is None
        assert owner_of(registry(deployment), deployment) is None
    assert owner_of(Keys("mail", "dp_1").stream, None) is None
    assert owner_of(Keys("mail").stream, "dp_1") is None
    for foreign in (
        "streamq:{a:b}:stream",
        "streamq:{}:stream",
        "streamq:{mail}",
        "streamq:mail:else",
        "streamq:a:b:stream",
        "x",
    ):
        assert owner_of(foreign, None) is None


@pytest.mark.parametrize("key", ["123456789", "{}:s", "s{x}", "a{b}c{d}", "{", "}{", "é{ü}"])
def test_slots_are_those_of_the_specification(key):
    assert slot_of(key) == slot(key)


def test_the_slot_of_a_stream():
    assert {slot(key) for key in all_keys(Keys("mail", "dp_1"))} == {Keys("mail", "dp_1").slot}
    assert [Keys("mail", f"dp_{n}").slot for n in (1, 2)] == [
        slot("{dp_1:mail}"),
        slot("{dp_2:mail}"),
    ]
