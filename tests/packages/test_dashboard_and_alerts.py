"""The dashboards for Grafana and the alerts for Prometheus: valid files, existing metrics, and completeness."""

import re
import shutil
import subprocess
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from bridge.api.alarms import ALARMS
from bridge.api.view import VerdictKind
from bridge.cli.main import cli
from bridge.node.control.metrics import exposition
from bridge.node.events.durations import Durations
from consensus import Histogram
from pipeline.serve.metrics import RunMetrics
from tests.effort import each_case
from tests.operator_views import farm_view
from tests.packages import monitoring
from tests.reference.site import DOCS
from tests.structure.documents import anchor, headings

PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="no promtool here (Debian: apt-get install prometheus)")
PANELS = monitoring.panels()
ALERTS = monitoring.alerts()
PIPELINE_PANELS = monitoring.panels(monitoring.PIPELINE_DASHBOARD)
PIPELINE_ALERTS = monitoring.alerts(monitoring.PIPELINE_RULES)
TABLES_PANELS = monitoring.panels(monitoring.TABLES_DASHBOARD)
BOARDS = {
    monitoring.DASHBOARD: ["datasource", "job", "instance"],
    monitoring.PIPELINE_DASHBOARD: ["datasource", "job", "instance"],
    monitoring.TABLES_DASHBOARD: ["datasource", "farm"],
}
"""The variables of each dashboard."""
RULES = {monitoring.RULES: monitoring.RULE_TESTS, monitoring.PIPELINE_RULES: monitoring.PIPELINE_RULE_TESTS}
"""The promtool tests of each file of alerts."""
UNITS = {"none", "s", "ms", "ops", "pps", "Bps", "reqps", "percentunit"}
"""Units of Grafana in use here: none, times, items or bytes per second, and a ratio."""
OF_GRAFANA = {"__rate_interval", "__range", "__timeFilter", "__timeFrom", "__timeTo", "__all"}
"""Variables and macros that Grafana or the data source replaces."""


def promtool(*arguments: str | Path) -> None:
    done = subprocess.run([str(PROMTOOL), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


# -- both --------------------------------------------------------------------------------------------------------------


def test_node_serves_metrics_and_labels_of_dashboards() -> None:
    view = farm_view()
    clients = replace(view.node, kafka_address="kafka://127.0.0.1:9092", zmq_address="tcp://127.0.0.1:7667")
    text = exposition(replace(view, node=clients), Durations(Histogram())).decode()
    assert monitoring.missing_metrics(text) == []


def test_pipeline_serves_metrics_of_its_dashboards() -> None:
    text = RunMetrics().exposition().decode()
    assert monitoring.missing_metrics(text, monitoring.PIPELINE_DASHBOARD, monitoring.PIPELINE_RULES) == []


def test_expression_is_parsed_into_metrics_and_labels() -> None:
    expression = 'sum by (job, le) (rate(garlicfarm_disk_seconds_bucket{kind=~"a|b=c"}[5m])) > garlicfarm_alarms'
    assert monitoring.selected_labels(expression) == {"garlicfarm_disk_seconds": {"kind"}, "garlicfarm_alarms": set()}
    text = '# TYPE garlicfarm_disk_seconds histogram\ngarlicfarm_disk_seconds_bucket{le="1",kind="a"} 2\n'
    assert monitoring.metrics_of(text) == {"garlicfarm_disk_seconds": {"kind"}}


# -- alerts ------------------------------------------------------------------------------------------------------------


@needs_promtool
def test_promtool_accepts_rules_and_example(tmp_path: Path) -> None:
    for rules in RULES:
        promtool("check", "rules", rules)
    text = monitoring.EXAMPLE.read_text()
    for rules in RULES:
        text = text.replace(f"/usr/share/garlicfarm/{rules.relative_to(rules.parents[1])}", str(rules))
        assert str(rules) in text
    for name in ("garlicfarm.token", "garlicfarm.crt"):
        (tmp_path / name).touch()
        text = text.replace(f"/etc/prometheus/{name}", str(tmp_path / name))
    (tmp_path / "prometheus.yml").write_text(text)
    promtool("check", "config", tmp_path / "prometheus.yml")


@needs_promtool
@pytest.mark.parametrize("rule_tests", RULES.values(), ids=lambda path: path.name)
def test_alerts_fire_as_promtool_tests_expect(rule_tests: Path) -> None:
    promtool("test", "rules", rule_tests)


@pytest.mark.parametrize("rules", RULES, ids=lambda path: path.name)
def test_alerts_have_their_own_promtool_test(rules: Path) -> None:
    text = RULES[rules].read_text(encoding="utf-8")
    fired = re.findall(r"alertname: (\w+)\n +exp_alerts:\n", text)
    assert sorted(set(fired)) == sorted(alert.name for alert in monitoring.alerts(rules))


@each_case("alert", ALERTS + PIPELINE_ALERTS, ids=lambda alert: alert.name)
def test_alert_has_texts_and_runbook(alert: monitoring.Alert) -> None:
    assert alert.texts["labels"] in {"{severity: critical}", "{severity: warning}"}
    assert len(alert.texts["summary"]) > 15
    assert len(alert.texts["description"]) > len(alert.texts["summary"])
    for kind in ALARMS if "{{ $labels.kind }}" in alert.texts["runbook"] else [""]:
        url = alert.texts["runbook_url"].replace("{{ $labels.kind }}", kind)
        page, _, section = url.removeprefix("http://docs.garlicfarm.invalid/").partition("#")
        document = (DOCS / page).with_suffix(".md")
        assert section in map(anchor, headings(document)), url
        command = alert.texts["runbook"].replace("{{ $labels.kind }}", kind)
        shown = CliRunner().invoke(cli, command.split()[1:])
        assert (shown.exit_code, shown.output.splitlines()[0].strip("# `").lower()) == (0, section), command


def test_verdicts_except_healthy_have_alerts() -> None:
    kinds = {kind for alert in ALERTS for kind in re.findall(r'garlicfarm_verdict\{kind="([\w-]+)"', alert.expression)}
    assert kinds == {kind.value for kind in VerdictKind} - {VerdictKind.HEALTHY.value, VerdictKind.UNKNOWN.value}


# -- dashboard ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("board", BOARDS, ids=lambda path: path.name)
def test_dashboard_has_fields_required_by_grafana(board: Path) -> None:
    document = monitoring.dashboard(board)
    assert document["id"] is None, "Grafana assigns the number"
    assert document["uid"] == board.stem
    assert document["schemaVersion"] >= 36
    numbers = [each["id"] for each in document["panels"]]
    assert len(numbers) == len(set(numbers))
    names = [each["name"] for each in document["templating"]["list"]]
    assert names == BOARDS[board]
    assert set(re.findall(r"\$\{?(\w+)", board.read_text())) - OF_GRAFANA <= {*names}


@each_case("panel", PANELS + PIPELINE_PANELS, ids=lambda panel: panel["title"])
def test_panel_has_description_unit_and_chosen_source(panel: dict[str, Any]) -> None:
    chosen = {"type": "prometheus", "uid": "${datasource}"}
    assert panel["datasource"] == chosen
    assert len(panel["description"]) > 20
    assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
    assert panel["targets"], "it has a query"
    letters = [target["refId"] for target in panel["targets"]]
    assert letters == sorted(set(letters))
    for target in panel["targets"]:
        assert target["datasource"] == chosen
        assert 'job="$job"' in target["expr"]
        assert target["expr"].count("(") == target["expr"].count(")")


@each_case("panel", TABLES_PANELS, ids=lambda panel: panel["title"])
def test_tables_panel_queries_chosen_source_in_sql(panel: dict[str, Any]) -> None:
    chosen = {"type": "motherduck-duckdb-datasource", "uid": "${datasource}"}
    assert panel["datasource"] == chosen
    assert len(panel["description"]) > 20
    assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
    (target,) = panel["targets"]
    assert target["datasource"] == chosen
    # The visual editor would overwrite a query that is not in the code editor.
    assert target["editorMode"] == "code"
    assert target["rawSql"].startswith("SELECT ")


@pytest.mark.parametrize("board", BOARDS, ids=lambda path: path.name)
def test_panels_fit_dashboard_without_overlap(board: Path) -> None:
    places = [each["gridPos"] for each in monitoring.dashboard(board)["panels"]]
    for place in places:
        assert place["x"] >= 0
        assert place["x"] + place["w"] <= 24
    for one, other in combinations(places, 2):
        apart = (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert apart, (one, other)


def test_dashboard_has_color_for_each_verdict() -> None:
    (verdict,) = (each for each in PANELS if each["title"] == "Verdict")
    colored = {each["matcher"]["options"] for each in verdict["fieldConfig"]["overrides"]}
    assert colored == {kind.value for kind in VerdictKind}


def test_dashboard_shows_all_measured_durations() -> None:
    shown = {name for expression in monitoring.panel_expressions() for name in monitoring.selected_labels(expression)}
    assert {f"garlicfarm_{name}_seconds" for name, _ in Durations(Histogram()).items()} <= shown
