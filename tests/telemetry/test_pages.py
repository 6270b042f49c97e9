"""What docs/ says of metrics is what the code tells: the tables, the dashboard, the alert rules, the attributes of spans."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry

from streamq import Job
from streamq.telemetry import StreamCollector, WorkerMetrics, tracing

DOCS = Path(__file__).parent.parent.parent / "docs"
METRIC = re.compile(r"\bstreamq_\w+")
AGGREGATED = re.compile(r"\bby \(([^)]*)\)")


def of_workers():
    registry = CollectorRegistry()
    WorkerMetrics(registry=registry)
    return [registry._names_to_collectors[family.name] for family in registry.collect()]


def families():
    """Name as it is scraped -> type, labels, what it is."""
    found = {}
    for one in of_workers():
        [family] = one.collect()
        name = f"{family.name}_total" if family.type == "counter" else family.name
        found[name] = (family.type, one._labelnames, family.documentation)
    for family in StreamCollector([]).describe():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        found[name] = (family.type, family._labelnames, family.documentation)
    return found


def table(names):
    rows = ["| metric | type | labels | what it is |", "|---|---|---|---|"]
    for name in names:
        kind, labels, documentation = families()[name]
        rows.append(f"| `{name}` | {kind} | {', '.join(labels)} | {documentation} |")
    return "\n".join(rows)


@pytest.mark.parametrize(("part", "prefixes"), [
    ("workers", ("streamq_job", "streamq_worker_")),
    ("streams", ("streamq_up", "streamq_stream_", "streamq_group_")),
])  # fmt: skip
def test_the_tables_are_those_of_the_code(part, prefixes):
    names = [name for name in families() if name.startswith(prefixes)]
    text = (DOCS / "metrics.md").read_text("utf-8")
    found = re.search(rf"<!-- {part} -->\n(.*?)\n?<!-- /{part} -->", text, re.DOTALL)
    assert found is not None
    assert found[1] == table(names), f"put table() of {part} between the markers of docs/metrics.md"


def test_names_keep_to_the_conventions():
    for name, (kind, labels, documentation) in families().items():
        assert re.fullmatch(r"streamq_[a-z]+(_[a-z]+)*", name)
        assert name.endswith("_total") == (kind == "counter")
        assert name.endswith("_seconds") == (kind == "histogram")
        assert set(labels) <= {"deployment", "stream", "group", "outcome", "reason"}  # nothing without bound
        assert documentation.endswith(".")


def check_expression(expression):
    """Every metric is there, and has the labels that it is selected by, or aggregated over."""
    known = {}
    for name, (kind, labels, _) in families().items():
        for suffix in ("_bucket", "_sum", "_count") if kind == "histogram" else ("",):
            known[name + suffix] = {*labels, *(("le",) if suffix == "_bucket" else ())}
    used = METRIC.findall(expression)
    assert used
    assert set(used) <= set(known), expression
    for name, selector in re.findall(r"(streamq_\w+)\{([^}]*)\}", expression):
        assert set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector)) <= known[name], expression
    everywhere = set.union(*(known[name] for name in used)) | {"instance", "job"}
    for labels in AGGREGATED.findall(expression):
        assert {label.strip() for label in labels.split(",")} <= everywhere, expression
    for opening, closing in ("()", "{}", "[]"):
        assert expression.count(opening) == expression.count(closing), expression


def test_alert_rules_are_valid_and_name_what_is_there():
    [group] = yaml.safe_load((DOCS / "alerts.yml").read_text("utf-8"))["groups"]
    assert group["name"] == "streamq"
    names = [rule["alert"] for rule in group["rules"]]
    assert len(set(names)) == len(names)
    for rule in group["rules"]:
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert re.fullmatch(r"Streamq[A-Z]\w+", rule["alert"])
        assert re.fullmatch(r"\d+[mh]", rule.get("for", "1m"))
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        assert set(rule["annotations"]) == {"summary", "description"}
        check_expression(rule["expr"])
        kept = AGGREGATED.findall(rule["expr"]) if "by (" in rule["expr"] else []
        for label in re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values())):
            labels = set().union(*(families()[name][1] for name in METRIC.findall(rule["expr"]) if name in families()))
            assert label in labels | {"instance"} | {"stream", "group"}, rule["alert"]
            assert not kept or any(label in by for by in kept), rule["alert"]


def test_the_dashboard_is_valid_and_names_what_is_there():
    board = json.loads((DOCS / "grafana-dashboard.json").read_text("utf-8"))
    assert {"title", "uid", "schemaVersion", "panels", "templating", "time"} <= set(board)
    variables = {variable["name"] for variable in board["templating"]["list"]}
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)
    shown = set()
    for panel in panels:
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
        for target in panel["targets"]:
            expression = target["expr"].replace("$__rate_interval", "5m")
            assert set(re.findall(r"\$(\w+)", expression)) <= variables
            check_expression(expression)
            kept = {label.strip() for by in AGGREGATED.findall(expression) for label in by.split(",")}
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= kept
            shown.update(re.sub(r"_(bucket|sum|count)$", "", name) for name in METRIC.findall(expression))
    for variable in board["templating"]["list"][1:]:
        assert variable["name"] in families()[METRIC.findall(variable["definition"])[0]][1]
    assert shown == set(families()) - {"streamq_group_ready_exact"}


def test_the_attributes_of_spans_are_those_of_the_code():
    job = Job(payload={}, id="J", entry_id="1-0", deliveries=1, _consumer="c")
    told = {"error.type"}.union(*(tracing._about([job], is_batch=is_batch) for is_batch in (False, True)))
    rows = re.findall(r"^\| (`.*?`) \|", (DOCS / "tracing.md").read_text("utf-8"), re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`([\w.]+)`", row) if "." in name} == told


def test_the_checks_can_fail():
    for wrong in ("streamq_job_total", 'streamq_up{group="a"}', "sum by (reason) (streamq_up)", "rate(streamq_up[5m)"):
        with pytest.raises(AssertionError):
            check_expression(wrong)
