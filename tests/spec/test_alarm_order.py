"""The order of alarms: the gravest first, on every surface that shows a view."""

from bridge.api.verdict import CRITICAL_ALARMS, GRAVE_ALARMS, MEANINGS, alarm_severity, by_gravity
from bridge.api.view import AlarmView, Severity
from tests.reference.alarms import described


def kinds(*given: str) -> list[str]:
    return [each.kind for each in by_gravity(AlarmView(kind, "text", "action") for kind in given)]


def test_alarms_of_verdicts_are_in_the_order_of_their_precedence() -> None:
    assert kinds("no-healthy-leaf", "not-published", "no-quorum", "foreign-key") == [
        *("foreign-key", "no-quorum", "not-published", "no-healthy-leaf")
    ]


def test_cause_of_a_waiting_node_is_in_the_order_of_the_verdict() -> None:
    assert kinds("isolated", "formation", "key-retired") == ["key-retired", "formation", "isolated"]


def test_no_kind_of_alarm_is_shown_before_a_graver_one() -> None:
    found = list(described())
    severities = [alarm_severity(kind) for kind in kinds(*found)]
    assert severities == sorted(severities, key=list(Severity).index, reverse=True)
    assert severities.count(Severity.CRITICAL) == len(CRITICAL_ALARMS)


def test_critical_alarms_are_the_grave_ones_and_those_of_verdicts() -> None:
    of_verdicts = {each.alarm for each in MEANINGS.values() if each.severity is Severity.CRITICAL}
    assert set(CRITICAL_ALARMS) == GRAVE_ALARMS | of_verdicts


def test_alarm_of_a_later_version_is_a_warning_after_the_grave_ones() -> None:
    alarms = by_gravity((AlarmView("a-new-kind", "text", "action"), AlarmView("disk-full", "text", "action")))
    assert [(each.kind, each.severity) for each in alarms] == [
        ("disk-full", Severity.CRITICAL),
        ("a-new-kind", Severity.WARNING),
    ]
