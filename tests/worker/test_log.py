"""The form of the worker's log lines."""

from __future__ import annotations

import logging

import pytest

from streamq import Job
from streamq.worker import log

logger = logging.getLogger("streamq.worker")


def logged(caplog, *fields, **named):
    log.event(logger, logging.WARNING, *fields, **named)
    return caplog.records[-1]


def test_a_line_reads_well_and_its_fields_are_on_the_record(caplog):
    record = logged(caplog, "job failed", stream="orders", entry_id="1-0", attempt=2, consumer=None)
    assert record.getMessage() == "job failed: stream=orders entry_id=1-0 attempt=2"
    assert record.streamq == {"stream": "orders", "entry_id": "1-0", "attempt": 2}
    assert (record.levelno, record.name, record.filename) == (logging.WARNING, "streamq.worker", "test_log.py")


def test_without_fields(caplog):
    record = logged(caplog, "heartbeat failed")
    assert (record.getMessage(), record.streamq) == ("heartbeat failed", {})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("plain-1.0/x:y", "plain-1.0/x:y"),
        ("", '""'),
        ("two words", '"two words"'),
        ('say "no"', '"say \\"no\\""'),
        ("a=b", '"a=b"'),
        ("line\nbreak", "line\\x0abreak"),
        ("line\u2028break", "line\\u2028break"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("\u202edesrever", "\\u202edesrever"),
        ("half \ud800", '"half \\ud800"'),
        ("%s %d", '"%s %d"'),
        ("žluťoučký", "žluťoučký"),
        (["a", "b"], "\"['a', 'b']\""),
        (0, "0"),
        (False, "False"),
        (0.05, "0.05"),
        ("x" * 10_000, "x" * 500),
    ],
)
def test_a_value_stays_on_its_line_and_within_its_bounds(value, text, caplog):
    record = logged(caplog, "said", value=value)
    assert record.getMessage() == f"said: value={text}"
    assert record.streamq == {"value": value}
    record.getMessage().encode()  # any handler can write it


def test_nothing_is_put_together_that_nobody_wants(caplog):
    class Loud:
        def __str__(self):
            raise AssertionError("not asked for")

    log.event(logger, logging.DEBUG, "said", value=Loud())
    assert caplog.records == []


def test_what_a_line_says_of_a_job():
    job = Job(payload="secret", id="order:1", entry_id="1-0", deliveries=3, attempt=2, _consumer="host-1")
    assert log.about(job) == {"job_id": "order:1", "entry_id": "1-0", "attempt": 2, "consumer": "host-1"}
