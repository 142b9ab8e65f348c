"""Dashboards and alerts of `deploy/` as data: their expressions, with the metrics and labels that these name.

    deploy/grafana/garlicfarm.json                 panels ─▶ targets ─▶ expressions
    deploy/prometheus/garlicfarm.rules.yml         `expr:` lines ─▶ expressions
    …/garlicfarm-pipeline…                         the same for a run of the data pipeline
    …/grafana/garlicfarm-tables.json               panels over its tables; tests/pipeline/test_views.py runs their SQL
    expression ─▶ `garlicfarm_…` with the labels of its braces, of `by` and of `on`

The rules are YAML with each key on its own line, so this module reads them by lines, without a YAML parser. promtool
checks the complete files.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.structure.sources import ROOT

DASHBOARD = ROOT / "deploy" / "grafana" / "garlicfarm.json"
RULES = ROOT / "deploy" / "prometheus" / "garlicfarm.rules.yml"
EXAMPLE = ROOT / "deploy" / "prometheus" / "prometheus.example.yml"
RULE_TESTS = ROOT / "tests" / "packages" / "garlicfarm.rules.test.yml"
PIPELINE_DASHBOARD = ROOT / "deploy" / "grafana" / "garlicfarm-pipeline.json"
TABLES_DASHBOARD = ROOT / "deploy" / "grafana" / "garlicfarm-tables.json"
PIPELINE_RULES = ROOT / "deploy" / "prometheus" / "garlicfarm-pipeline.rules.yml"
PIPELINE_RULE_TESTS = ROOT / "tests" / "packages" / "garlicfarm-pipeline.rules.test.yml"
OF_PROMETHEUS = frozenset({"job", "instance", "le"})
"""Labels that Prometheus adds to every series, and the label of every histogram."""
_METRIC = re.compile(r"\b(garlicfarm_\w+)(?:\{([^}]*)\})?")
_LABEL = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
_GROUPED = re.compile(r"\b(?:by|on|group_left) \(([^)]*)\)")
_SUFFIX = re.compile(r"_(?:bucket|sum|count)$")


@dataclass(frozen=True, slots=True)
class Alert:
    """One alerting rule: its expression, and all other values by key."""

    name: str
    expression: str
    texts: dict[str, str]


def dashboard(file: Path = DASHBOARD) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return document


def panels(file: Path = DASHBOARD) -> list[dict[str, Any]]:
    return [each for each in dashboard(file)["panels"] if each["type"] != "row"]


def panel_expressions(file: Path = DASHBOARD) -> Iterator[str]:
    """Yield the expressions of panels, annotations and variables."""
    for panel in panels(file):
        yield from (target["expr"] for target in panel["targets"])
    yield from (each["expr"] for each in dashboard(file)["annotations"]["list"] if "expr" in each)
    for variable in dashboard(file)["templating"]["list"]:
        yield from re.findall(r"label_values\((.*), \w+\)", variable.get("definition", ""))


def alerts(file: Path = RULES) -> list[Alert]:
    found = []
    for block in re.split(r"^      - alert: ", file.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        pairs = re.findall(r"^ +(\w+): (.+)$", block, re.MULTILINE)
        texts = {key: value.strip("'").replace("''", "'") for key, value in pairs}
        found.append(Alert(block.splitlines()[0], texts.pop("expr"), texts))
    return found


def selected_labels(expression: str) -> dict[str, set[str]]:
    """Return the metrics named by an expression, without suffixes of histograms, each with the labels it selects by."""
    found: dict[str, set[str]] = {}
    for name, braces in _METRIC.findall(expression):
        labels = found.setdefault(
            _SUFFIX.sub("", name) if name.endswith("_bucket") else name.removesuffix("_count"), set()
        )
        labels |= set(_LABEL.findall(re.sub(r'"[^"]*"', '""', braces))) - OF_PROMETHEUS
    return found


def grouping_labels(expression: str) -> set[str]:
    return {label.strip() for part in _GROUPED.findall(expression) for label in part.split(",")} - OF_PROMETHEUS


def metrics_of(text: str) -> dict[str, set[str]]:
    """Return the metrics of an exposition, each with its labels; a histogram is one metric."""
    found = {name: set[str]() for name in re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)}
    for name, braces in re.findall(r"^(\w+)(?:\{(.*)\})? ", text, re.MULTILINE):
        whole = name if name in found else _SUFFIX.sub("", name)
        found.setdefault(whole, set()).update(set(re.findall(r'(\w+)="', braces)) - OF_PROMETHEUS)
    return found


def missing_metrics(text: str, board: Path = DASHBOARD, rules: Path = RULES) -> list[str]:
    """Return metrics and labels that a dashboard or an alert uses and an exposition lacks."""
    have = metrics_of(text)
    missing = []
    for expression in [*panel_expressions(board), *(each.expression for each in alerts(rules))]:
        selected = selected_labels(expression)
        missing += [name for name in selected if name not in have]
        missing += [
            f"{name}{{{label}}}" for name, labels in selected.items() for label in labels - have.get(name, set())
        ]
        known = {label for name in selected for label in have.get(name, set())}
        missing += [f"{label} of {expression}" for label in grouping_labels(expression) - known]
    return sorted(set(missing))
