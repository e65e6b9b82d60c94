"""The dashboard that is drawn from the Prometheus page, and the alerts beside it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from batched._policy.window import StartReason
from batched.prometheus import Collector
from tests.kit.script import ROOT

DASHBOARD = ROOT / "examples" / "embedding_service_dashboard.json"
ALERTS = ROOT / "examples" / "embedding_service_alerts.yml"


@pytest.fixture(scope="module")
def dashboard() -> Any:
    """The dashboard, as Grafana would import it."""
    return json.loads(DASHBOARD.read_text(encoding="utf-8"))


def test_the_dashboard_explains_every_reason_to_start_a_batch(dashboard: Any) -> None:
    """By the names that the metric has."""
    (panel,) = (panel for panel in dashboard["panels"] if panel["title"] == "Why batches start")
    assert [reason for reason in StartReason if f"{reason}: " not in panel["description"]] == []


def expressions(dashboard: Any) -> Iterator[str]:
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            yield target["expr"]


def test_the_dashboard_draws_all_that_is_on_the_page_and_nothing_else(dashboard: Any) -> None:
    """Every metric that it asks for exists, with the labels asked for, and none is forgotten."""
    suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}
    families = {family.name: family for family in Collector(None).describe()}
    samples = {f"{name}{suffix}": name for name, f in families.items() for suffix in suffixes[f.type]}
    labels = {name: {"name"} for name in families}
    labels["batched_batches"] = {"name", "reason"}
    labels["batched_chosen_batches"] = {"name", "how"}
    for metric in ("batches", "busy_seconds", "ready"):
        labels[f"batched_worker_{metric}"] = {"workers", "worker"} | (
            {"name"} if metric != "ready" else set()
        )
    labels["batched_stage_seconds"] = {"name", "stage"}
    drawn = set()
    for expression in expressions(dashboard):
        asked = re.findall(r"\bbatched_\w+", expression)
        assert asked, expression
        assert set(asked) <= samples.keys(), expression
        drawn |= {samples[metric] for metric in asked}
        for by in re.findall(r"by \(([^)]*)\)", expression):
            metric = asked[0]
            known = labels[samples[metric]] | ({"le"} if metric.endswith("_bucket") else set())
            assert set(by.split(", ")) <= known, expression
        counters = [metric for metric in asked if metric.endswith(("_total", "_bucket", "_sum", "_count"))]
        assert expression.count("rate(") == len(counters), (
            "counters are read by their rate, gauges as they are"
        )
        assert expression.count("(") == expression.count(")")
        named = [metric for metric in asked if "name" in labels[samples[metric]]]
        assert expression.count('{name=~"$name"}') == len(named)
    assert drawn == families.keys()


def test_the_dashboard_is_one_that_grafana_imports(dashboard: Any) -> None:
    """Its keys, its variables, and panels that are placed side by side."""
    assert dashboard["title"]
    assert dashboard["schemaVersion"] >= 36
    variables = {variable["name"]: variable for variable in dashboard["templating"]["list"]}
    assert (variables["datasource"]["type"], variables["datasource"]["query"]) == ("datasource", "prometheus")
    assert variables["name"]["query"] == "label_values(batched_batchers, name)"
    assert variables["name"]["multi"]
    assert variables["name"]["includeAll"]
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(dashboard["panels"])))
    assert used - {"__rate_interval"} == variables.keys()
    panels = dashboard["panels"]
    assert [panel["id"] for panel in panels] == list(range(1, len(panels) + 1))
    cells: Counter[tuple[int, int]] = Counter()
    for panel in panels:
        assert panel["type"] == "timeseries"
        assert panel["title"]
        assert panel["description"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert panel["fieldConfig"]["defaults"]["unit"] in {"short", "s", "percentunit"}
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references) > 0
        assert all(target["legendFormat"] for target in panel["targets"])
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        columns, rows = range(at["x"], at["x"] + at["w"]), range(at["y"], at["y"] + at["h"])
        cells.update((x, y) for x in columns for y in rows)
    assert max(cells.values()) == 1


def test_alerts_ask_for_metrics_that_are_on_the_page() -> None:
    """Each by a name that the page has."""
    suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}
    there = {
        f"{family.name}{suffix}" for family in Collector(None).describe() for suffix in suffixes[family.type]
    }
    asked = {*re.findall(r"\bbatched_\w+", ALERTS.read_text("utf-8"))}
    assert len(asked) > 8
    assert asked <= there


@pytest.mark.skipif(shutil.which("promtool") is None, reason="there is no promtool")
def test_prometheus_takes_the_alerts() -> None:
    """As its own tool says."""
    checked = subprocess.run(
        ["promtool", "check", "rules", ALERTS], capture_output=True, text=True, timeout=50, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
