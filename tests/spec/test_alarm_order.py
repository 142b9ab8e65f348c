"""Order of alarms: the most severe first, on every surface that shows a view."""

from bridge.api.alarms import ALARMS, alarm_severity, by_gravity
from bridge.api.verdict import OF_VERDICTS
from bridge.api.view import AlarmView, Severity


def kinds(*given: str) -> list[str]:
    return [each.kind for each in by_gravity(AlarmView(kind, "text", "action") for kind in given)]


def test_verdict_alarms_sorted_by_precedence() -> None:
    assert kinds("no-healthy-leaf", "not-published", "no-quorum", "foreign-key") == [
        *("foreign-key", "no-quorum", "not-published", "no-healthy-leaf")
    ]


def test_waiting_node_causes_sorted_as_in_verdict() -> None:
    assert kinds("isolated", "formation", "key-retired") == ["key-retired", "formation", "isolated"]


def test_alarm_kinds_sorted_by_severity() -> None:
    severities = [alarm_severity(kind) for kind in kinds(*sorted(ALARMS))]
    assert severities == sorted(severities, key=list(Severity).index, reverse=True)


def test_verdict_alarms_declared_by_precedence() -> None:
    assert [each for each in ALARMS.values() if each in OF_VERDICTS] == [*OF_VERDICTS]


def test_unknown_alarm_kind_sorted_as_warning() -> None:
    alarms = by_gravity((AlarmView("a-new-kind", "text", "action"), AlarmView("disk-full", "text", "action")))
    assert [(each.kind, each.severity) for each in alarms] == [
        ("disk-full", Severity.CRITICAL),
        ("a-new-kind", Severity.WARNING),
    ]
