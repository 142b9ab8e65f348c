"""Dashboards and alerts of `deploy/` as data: their expressions, and the metrics and labels that these name.

    deploy/grafana/garlicfarm.json                 panels ─▶ targets ─▶ expressions
    deploy/prometheus/garlicfarm.rules.yml         one `expr:` a line ─▶ expressions
    …/garlicfarm-pipeline…                         the same of a run of the data pipeline
    …/grafana/garlicfarm-tables.json               panels over its tables, whose SQL tests/pipeline/test_views.py asks
    expression ─▶ `garlicfarm_…` with the labels of its braces, of `by` and of `on`

The rules are YAML of one shape: each key stands on a line of its own. So they are read by lines, and no reader of YAML
is needed; promtool judges them as a whole.
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
"""Labels that Prometheus adds to every series, and that of every histogram."""
_METRIC = re.compile(r"\b(garlicfarm_\w+)(?:\{([^}]*)\})?")
_LABEL = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
_GROUPED = re.compile(r"\b(?:by|on|group_left) \(([^)]*)\)")
_SUFFIX = re.compile(r"_(?:bucket|sum|count)$")


@dataclass(frozen=True, slots=True)
class Alert:
    """One alerting rule: its expression, and everything else by its key."""

    name: str
    expression: str
    texts: dict[str, str]


def dashboard(file: Path = DASHBOARD) -> dict[str, Any]:
    """The dashboard."""
    document: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return document


def panels(file: Path = DASHBOARD) -> list[dict[str, Any]]:
    """Its panels without the rows between them."""
    return [each for each in dashboard(file)["panels"] if each["type"] != "row"]


def panel_expressions(file: Path = DASHBOARD) -> Iterator[str]:
    """What each panel, each annotation and each variable asks."""
    for panel in panels(file):
        yield from (target["expr"] for target in panel["targets"])
    yield from (each["expr"] for each in dashboard(file)["annotations"]["list"] if "expr" in each)
    for variable in dashboard(file)["templating"]["list"]:
        yield from re.findall(r"label_values\((.*), \w+\)", variable.get("definition", ""))


def alerts(file: Path = RULES) -> list[Alert]:
    """The rules."""
    found = []
    for block in re.split(r"^      - alert: ", file.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        pairs = re.findall(r"^ +(\w+): (.+)$", block, re.MULTILINE)
        texts = {key: value.strip("'").replace("''", "'") for key, value in pairs}
        found.append(Alert(block.splitlines()[0], texts.pop("expr"), texts))
    return found


def asked(expression: str) -> dict[str, set[str]]:
    """The metrics that an expression names, without what a histogram adds, each with the labels asked of it."""
    found: dict[str, set[str]] = {}
    for name, braces in _METRIC.findall(expression):
        labels = found.setdefault(
            _SUFFIX.sub("", name) if name.endswith("_bucket") else name.removesuffix("_count"), set()
        )
        labels |= set(_LABEL.findall(re.sub(r'"[^"]*"', '""', braces))) - OF_PROMETHEUS
    return found


def grouped(expression: str) -> set[str]:
    """The labels by which an expression groups or joins."""
    return {label.strip() for part in _GROUPED.findall(expression) for label in part.split(",")} - OF_PROMETHEUS


def served(text: str) -> dict[str, set[str]]:
    """The metrics of an exposition, a histogram as one, each with its labels."""
    found = {name: set[str]() for name in re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)}
    for name, braces in re.findall(r"^(\w+)(?:\{(.*)\})? ", text, re.MULTILINE):
        whole = name if name in found else _SUFFIX.sub("", name)
        found.setdefault(whole, set()).update(set(re.findall(r'(\w+)="', braces)) - OF_PROMETHEUS)
    return found


def unserved(text: str, board: Path = DASHBOARD, rules: Path = RULES) -> list[str]:
    """What a dashboard or an alert asks and an exposition does not have: metrics, and labels of metrics."""
    have = served(text)
    missing = []
    for expression in [*panel_expressions(board), *(each.expression for each in alerts(rules))]:
        wanted = asked(expression)
        missing += [name for name in wanted if name not in have]
        missing += [f"{name}{{{label}}}" for name, labels in wanted.items() for label in labels - have.get(name, set())]
        known = {label for name in wanted for label in have.get(name, set())}
        missing += [f"{label} of {expression}" for label in grouped(expression) - known]
    return sorted(set(missing))
