"""The docs say what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from streamq import Retry, StreamOptions
from streamq.lifecycle import STEPS

ROOT = Path(__file__).parent.parent
GUARANTEES = ROOT / "docs" / "guarantees.md"


def steps_table() -> str:
    rows = ["| step | from | to | atomic unit | after a crash |", "|---|---|---|---|---|"]
    rows += [f"| {s.verb} | {s.source or '-'} | {s.target} | {s.unit} | {s.after_crash} |" for s in STEPS]
    return "\n".join(rows)


def test_steps_are_those_of_lifecycle():
    text = GUARANTEES.read_text("utf-8")
    found = re.search(r"<!-- steps -->\n(.*?)\n?<!-- /steps -->", text, re.DOTALL)
    assert found is not None
    assert found[1] == steps_table(), "put steps_table() between the markers of docs/guarantees.md"


def test_every_script_of_a_step_exists():
    for step in STEPS:
        for script in re.findall(r"\w+\.lua", step.unit):
            assert (ROOT / "lua" / script).is_file()


def test_readme_example_is_the_api(monkeypatch):
    """The producer and consumer of the README run up to the point where they would connect."""
    code = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    assert code is not None
    calls = []
    monkeypatch.setattr("streamq.stream.Stream.add", lambda self, payload, **options: calls.append((payload, options)))
    monkeypatch.setattr("streamq.worker.Worker.run", lambda self: calls.append("run"))
    exec(compile(code[1], "README.md", "exec"), {"__name__": "readme"})
    assert [call if call == "run" else call[1] for call in calls] == [{"job_id": "order:17"}, "run"]


@pytest.mark.covers("T2")
def test_readme_schedules_retries_and_runs_by_hand(redis_url, ns):
    """Its second example, on a server, behind the first one's types."""
    first, code = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    types = first.partition("orders =")[0]
    code = code.replace("redis://localhost:6379", redis_url).replace('"orders"', repr(ns))
    names = {"__name__": "readme"}
    exec(compile(types + code, "README.md", "exec"), names)
    with names["orders"] as orders:
        [waiting] = orders.scheduled.list()  # bob's is ready: it was run by hand
        assert waiting.payload == b'{"customer":"ada","cents":4200}'
        jobs = orders.read("c1", count=10)
        assert [(job.id, job.payload.customer, job.payload.cents) for job in jobs][1:] == [("reminder:bob", "bob", 250)]
        assert jobs[0].payload.customer == "cy"
        with pytest.raises(Retry) as raised:
            names["handle"](jobs[0].payload, jobs[0])
        assert raised.value.delay_ms == 30_000
        assert orders.options.retry == StreamOptions().retry
        for job in jobs:
            assert orders.retry(job, "no")
        waits = {job.job_id: (job.due_at - job.enqueued_at).total_seconds() for job in orders.scheduled.list()}
        assert set(waits) == {waiting.job_id, "reminder:bob", jobs[0].id}
        assert waits[waiting.job_id] == pytest.approx(60, abs=1)


def test_links_lead_somewhere():
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"), ROOT / "CONTRIBUTING.md"):
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text("utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
