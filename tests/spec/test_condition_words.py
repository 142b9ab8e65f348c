"""Texts of the conditions of leaves and of the parts of scores."""

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from bridge.api.view import ConditionView
from bridge.api.words import condition_cell, condition_text, conditions_text, faults_text, score_text
from tests.effort import each_case
from tests.operator_views import farm_view

OK = ConditionView("service", holds=True, since_ms=3 * 3_600_000, failures=0)
FAILING = ConditionView("service", holds=False, since_ms=302_000, last_error="Connection refused", failures=1)


@each_case(
    ("condition", "expected"),
    [
        (OK, "service ok for 3h00m"),
        (ConditionView("service", holds=True), "service ok"),
        (replace(OK, failures=1, last_error="refused"), "service ok for 3h00m (failed once: refused)"),
        (replace(OK, failures=4, last_error="refused"), "service ok for 3h00m (failed 4 times: refused)"),
        (replace(OK, failures=4), "service ok for 3h00m (failed 4 times)"),
        (FAILING, "service failing for 5m02s: Connection refused"),
        (replace(FAILING, failures=3), "service failing for 5m02s: Connection refused (failed 3 times)"),
        (ConditionView("router", holds=False), "router failing"),
        (ConditionView("of another version", holds=True), "of another version ok"),
    ],
)
def test_condition_has_age_error_and_failures(condition: ConditionView, expected: str) -> None:
    assert condition_text(condition) == expected


def test_unknown_conditions_are_named() -> None:
    router = replace(OK, condition="router")
    assert conditions_text((router,)) == "router ok for 3h00m; lease set not looked up; service not probed"
    assert conditions_text((router, FAILING)).endswith("; service failing for 5m02s: Connection refused")


@each_case(
    ("faults", "expected"),
    [
        (UNSET, ""),
        (("service", "router"), "no router answers and its service does not answer the probe"),
        (("server",), "its server is down or does not report"),
        (
            ("server", "service"),
            "its server is down or does not report; in its last report: its service does not answer the probe",
        ),
    ],
)
def test_faults_of_last_report_follow_the_server(faults: tuple[str, ...] | UnsetType, expected: str) -> None:
    assert faults_text(faults) == expected


def test_condition_cell_is_short() -> None:
    leaf = replace(farm_view().reports[0].leaves[0], conditions=(replace(OK, condition="router"), FAILING))
    cells = [condition_cell(leaf, each) for each in ("router", "leaseSet", "service")]
    assert cells == ["ok 3h00m", "-", "FAILING 5m02s"]


def test_score_is_shown_as_sum_of_its_parts() -> None:
    standing = farm_view().publishing[0].standings[1]
    assert score_text(standing) == (
        "score 880: job lag 300 (0ms), uptime 130 of 200 (7m30s), leaves 200 (1 of 1 healthy), bandwidth 125 of 150"
        " (unknown), processor 96 of 100 (4 %), memory 29 of 50 (41 %)"
    )
    assert score_text(replace(standing, parts=())) == "score 880"
