"""The dashboard that is drawn from the Prometheus page, and the alerts beside it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import threading
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, start_http_server

import batched
from batched._policy.window import StartReason
from batched.prometheus import Collector
from tests.kit.ports import free_port
from tests.kit.script import ROOT
from tests.kit.service import until

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


def alerts_are_as_in(scenes: str, folder: Path) -> None:
    """Have Prometheus' own tool compare the alerts with those that are expected."""
    file = folder / "scenes.yml"
    file.write_text(scenes)
    tested = subprocess.run(
        ["promtool", "test", "rules", file], capture_output=True, text=True, timeout=50, check=False
    )
    assert tested.returncode == 0, tested.stdout + tested.stderr


SCENES = """
rule_files: [{alerts}]
tests:
- interval: 30s
  input_series:
{series}
  promql_expr_test:
  - expr: count(ALERTS{{alertname="CallsTurnedAway", alertstate="firing"}}) by (name)
    eval_time: 20m
    exp_samples:
    - {{labels: '{{name="a batch is stuck"}}', value: 1}}
    - {{labels: '{{name="too many"}}', value: 1}}
"""
TURNED_AWAY = {  # in each 30 s: how many items are accepted, rejected, refused, late
    "a batch is stuck": (0, 10, 0, 0),
    "too many": (50, 0, 50, 0),
    "one of hundred": (100, 0, 0, 1),
    "idle": (0, 0, 0, 0),
}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="there is no promtool")
def test_calls_that_are_turned_away_are_an_alert_also_if_all_of_them_are(tmp_path: Path) -> None:
    """As when a batch is stuck and the queue is full; a service that is idle, or turns few away, is quiet."""
    metrics = ("accepted", "rejected", "refused", "expired")
    series = [
        f"""  - {{series: 'batched_{metric}_items_total{{name="{name}"}}', values: '7+{growth}x60'}}"""
        for name, growths in TURNED_AWAY.items()
        for metric, growth in zip(metrics, growths, strict=True)
    ]
    alerts_are_as_in(SCENES.format(alerts=ALERTS, series="\n".join(series)), tmp_path)


BUSY_SCENES = """
rule_files: [{alerts}]
tests:
- interval: 30s
  input_series:
{series}
  promql_expr_test:
  - expr: count(ALERTS{{alertname="NotBatching", alertstate="firing"}}) by (name)
    eval_time: 40m
    exp_samples:
    - {{labels: '{{name="fast"}}', value: 1}}
    - {{labels: '{{name="slow"}}', value: 1}}
"""
BUSY = {  # in each 30 s: batches, their items, and seconds
    "fast": (300, 300, 29),
    "slow": (6, 6, 29),  # of a model that takes 5 s
    "slow that batches": (6, 60, 29),
    "seldom": (6, 6, 20),
    "stuck": (0, 0, 30),
    "idle": (0, 0, 0),
}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="there is no promtool")
def test_batches_of_one_item_are_an_alert_however_long_each_of_them_takes(tmp_path: Path) -> None:
    """One that hangs, or that is alone as nothing else comes, is none."""
    series = [
        f"""  - {{series: 'batched_{metric}{{name="{name}"}}', values: '7+{growth}x90'}}"""
        for name, growths in BUSY.items()
        for metric, growth in zip(
            ("batch_size_items_count", "batch_size_items_sum", "busy_seconds_total"), growths, strict=True
        )
    ]
    series += [f"""  - {{series: 'batched_slots{{name="{name}"}}', values: '1x90'}}""" for name in BUSY]
    alerts_are_as_in(BUSY_SCENES.format(alerts=ALERTS, series="\n".join(series)), tmp_path)


CONFIGURATION = """
global: {{scrape_interval: 200ms, evaluation_interval: 200ms}}
rule_files: [{alerts}]
scrape_configs: [{{job_name: service, static_configs: [{{targets: ["127.0.0.1:{port}"]}}]}}]
"""
NOT_KNOWN_HERE = ("batched_fitting_items", "batched_learned_")
"""Gauges that may have no series: memory has never run out, and batches of no time teach nothing."""


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Debian's Prometheus, which reads the page of this process, and the alerts; it is asked by a path."""
    registry = CollectorRegistry()
    Collector(registry)
    port, its = free_port(), free_port()
    server, thread = start_http_server(port, "127.0.0.1", registry)
    (tmp_path / "prometheus.yml").write_text(CONFIGURATION.format(alerts=ALERTS, port=port))
    options = ("config.file=prometheus.yml", "storage.tsdb.path=data", f"web.listen-address=127.0.0.1:{its}")
    with (tmp_path / "log").open("w") as log:
        command = ["prometheus", *(f"--{option}" for option in options)]
        process = subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=log)

    def ask(path: str, **query: str) -> Any:
        url = f"http://127.0.0.1:{its}/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=20) as answer:
            return answer.read()

    def is_ready() -> bool:
        try:
            return bool(ask("-/ready"))
        except OSError:
            return process.poll() is not None

    try:
        until(is_ready)
        assert process.poll() is None, (tmp_path / "log").read_text()
        yield lambda path, **query: json.loads(ask(f"api/v1/{path}", **query))["data"]
    finally:
        process.kill()
        process.wait()
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.libraries
@pytest.mark.timeout(200)
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="there is no Prometheus")
def test_a_prometheus_answers_all_that_the_dashboard_asks(dashboard: Any, prometheus: Any) -> None:
    """Of a service under load; and the alerts are evaluated."""
    over = threading.Event()
    worker = batched.Workers(1, name="a-worker")
    fns = [
        batched.dynamically(list, batch_sizes=(4, 8), cache={}, workers=worker, name="dashboard-sized"),
        batched.dynamically(list, prepare=list, finish=list, name="dashboard-stages"),
    ]

    def call() -> None:
        number = 0
        while not over.is_set():
            number += 1
            for fn in fns:
                fn(number)

    queries = [
        each.replace("$name", ".*").replace("$__rate_interval", "10s") for each in expressions(dashboard)
    ]

    def unanswered() -> list[str]:
        asked = {query: prometheus("query", query=query)["result"] for query in queries}
        return [query for query in asked if not asked[query] and not any(map(query.count, NOT_KNOWN_HERE))]

    with ThreadPoolExecutor(4) as callers:
        for _ in range(4):
            callers.submit(call)
        try:
            until(lambda: not unanswered())
            until(lambda: {each["health"] for each in rules(prometheus)} == {"ok"})
            alerts = re.findall(r"- alert: (\w+)", ALERTS.read_text("utf-8"))
            assert [each["name"] for each in rules(prometheus)] == alerts
        finally:
            over.set()
    for fn in fns:
        fn.shutdown()
    worker.shutdown()


def rules(prometheus: Any) -> list[Any]:
    return [rule for group in prometheus("rules")["groups"] for rule in group["rules"]]
