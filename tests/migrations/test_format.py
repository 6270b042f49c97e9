"""The version of what is stored: written by workers, and looked at before the first job is touched."""

from __future__ import annotations

import re
from pathlib import Path

import look
import pytest

from streamq import MigrationError
from streamq.migrations import gate
from streamq.worker import maintenance

LUA = Path(__file__).parents[2] / "lua" / "shared" / "format.lua"


def test_workers_write_the_version_that_is_looked_for():
    assert re.findall(r"'([0-9.]+)'", LUA.read_text("utf-8")) == [".".join(map(str, gate.FORMAT))]


@pytest.mark.covers("C81")
@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("2.0", "by a newer version of streamq; this one knows 1.0"),
        ("0.9", "by an older version of streamq; this one knows 1.0"),
        ("next", "says 'next' of its format"),
        ("1", "says '1' of its format"),
        ("\x1b[2J", r"says '\\x1b"),
    ],
)
def test_another_version_is_refused(make_stream, raw, ns, version, said):
    s = make_stream(deployment=ns)
    raw.hset(s._spec.keys.meta, "format", version)
    before = look.dumps(raw, ns)
    for use in (lambda: s.add({}), lambda: s.read("w"), lambda: s.cancel("a"), lambda: s.add({}, delay=1)):
        with pytest.raises(MigrationError, match=said):
            use()
    assert look.dumps(raw, ns) == before


@pytest.mark.covers("C81")
@pytest.mark.parametrize("version", ["1.0", "1.7"])
def test_this_version_and_a_newer_minor_one_are_read(make_stream, raw, ns, version):
    s = make_stream(deployment=ns)
    raw.hset(s._spec.keys.meta, "format", version)
    s.add({"a": 1})
    assert [job.payload for job in s.read("w")] == [{"a": 1}]
    s.run(maintenance.tick(s._spec, "w", may_reclaim=True, beat=b"{}"))
    assert raw.hget(s._spec.keys.meta, "format") == version.encode()


@pytest.mark.covers("C81")
def test_a_fresh_store_gets_this_version(make_stream, raw, ns):
    s = make_stream(deployment=ns)
    s.run(maintenance.tick(s._spec, "w", may_reclaim=True, beat=b"{}"))
    assert raw.hget(s._spec.keys.meta, "format") == b"1.0"
