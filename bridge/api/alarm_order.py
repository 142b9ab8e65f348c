"""The severity of each alarm, and the order in which every surface shows alarms: the gravest first.

    verdict's alarms (critical) ─▶ alarms of a node that cannot do its work ─▶ servers-down ─▶ all others by kind

The view holds its alarms in this order with their severities (`build_view`), so `status`, `top`, `up`, the page and
JSON agree on the alarm whose remedy is first. In the order of their kinds `no-healthy-leaf`, a symptom, stood before
`no-quorum`, its cause, and a short screen left the cause out.

The order within a severity is the verdict's precedence (`docs/reference/verdicts.md`). A kind that is unknown here is a
warning: an alarm of a later version is shown, and hides no alarm that this version knows to be grave.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from bridge.api.verdict import DISAGREEMENT_ALARMS, GRAVE_ALARMS, MEANINGS, WAITING_ALARMS
from bridge.api.view import AlarmView, Severity

_OF_VERDICTS = {
    severity: tuple(each.alarm for each in MEANINGS.values() if each.alarm is not None and each.severity is severity)
    for severity in Severity
}
_GRAVE_OF_A_NODE = (
    *(kind for kind in WAITING_ALARMS if kind in GRAVE_ALARMS),
    *sorted(GRAVE_ALARMS.difference(WAITING_ALARMS)),
)
CRITICAL_ALARMS = (*_OF_VERDICTS[Severity.CRITICAL], *_GRAVE_OF_A_NODE)
"""The farm or a node does not do its work while one of them is active; the gravest first."""
_ORDER = (*CRITICAL_ALARMS, *_OF_VERDICTS[Severity.WARNING], *DISAGREEMENT_ALARMS)


def alarm_severity(kind: str) -> Severity:
    """Return the severity of this kind of alarm."""
    return Severity.CRITICAL if kind in CRITICAL_ALARMS else Severity.WARNING


def by_gravity(alarms: Iterable[AlarmView]) -> tuple[AlarmView, ...]:
    """Return the alarms with their severities, the gravest first."""
    judged = (replace(each, severity=alarm_severity(each.kind)) for each in alarms)
    return tuple(sorted(judged, key=_place))


def _place(alarm: AlarmView) -> tuple[int, str]:
    known = _ORDER.index(alarm.kind) if alarm.kind in _ORDER else len(_ORDER)
    return known, alarm.kind
