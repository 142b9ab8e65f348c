"""The order of alarms: the gravest first, on every surface that shows a view."""

from bridge.api.alarms import ALARMS, alarm_severity, by_gravity
from bridge.api.verdict import OF_VERDICTS
from bridge.api.view import AlarmView, Severity


def kinds(*given: str) -> list[str]:
    return [each.kind for each in by_gravity(AlarmView(kind, "text", "action") for kind in given)]


def test_alarms_of_verdicts_are_in_the_order_of_their_precedence() -> None:
    assert kinds("no-healthy-leaf", "not-published", "no-quorum", "foreign-key") == [
        *("foreign-key", "no-quorum", "not-published", "no-healthy-leaf")
    ]


def test_cause_of_a_waiting_node_is_in_the_order_of_the_verdict() -> None:
    assert kinds("isolated", "formation", "key-retired") == ["key-retired", "formation", "isolated"]


def test_no_kind_of_alarm_is_shown_before_a_graver_one() -> None:
    severities = [alarm_severity(kind) for kind in kinds(*sorted(ALARMS))]
    assert severities == sorted(severities, key=list(Severity).index, reverse=True)


def test_alarms_of_verdicts_are_declared_in_the_order_of_precedence() -> None:
    assert [each for each in ALARMS.values() if each in OF_VERDICTS] == [*OF_VERDICTS]


def test_alarm_of_a_later_version_is_a_warning_after_the_grave_ones() -> None:
    alarms = by_gravity((AlarmView("a-new-kind", "text", "action"), AlarmView("disk-full", "text", "action")))
    assert [(each.kind, each.severity) for each in alarms] == [
        ("disk-full", Severity.CRITICAL),
        ("a-new-kind", Severity.WARNING),
    ]
