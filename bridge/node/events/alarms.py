"""The active alarms of a node: set once, shown until their cause is gone.

`bridge.api.alarms` declares the kinds with their severities, remedies and delays; the part of the node that sets an
alarm adds the text. Setting an alarm again with the same text is ignored; another text replaces the first. Each start
and end is also an event of the trace, so past alarms can be read there. If two texts differ only in a measured figure
(`213 ms`), the second replaces the first without an event. Such a figure changes at each check, and would fill the
trace and the node's log. The declared kinds limit the number of alarms.

If several parts of the node have the same problem, they share one alarm. It is active while any of them has a cause,
and its text has all causes.
"""

from typing import Final

import trio

from bridge.api.alarms import AlarmType, without_figures
from bridge.api.events import ALARM_CLEARED, ALARM_RAISED
from bridge.api.view import AlarmView
from bridge.node.events.event_log import EventLog

_ROUNDING_S: Final = 0.001
"""Tolerance in seconds for the rounding of floating-point times that are one period apart."""


class NodeStopped(Exception):  # noqa: N818 - it is an end, described by its text, not a fault of the program
    """The node cannot continue; the text contains the reason and the remedy."""


class AddressNotHereError(NodeStopped):
    """This machine does not have an address that the node listens on."""


class Alarms:
    """The active alarms, by kind."""

    def __init__(self, trace: EventLog) -> None:
        self._trace = trace
        self._active: dict[str, AlarmView] = {}
        self._since_s: dict[str, float] = {}
        """Time of the first cause since the last absence, in seconds, by kind of alarm with a delay."""

    def set(self, alarm: AlarmType, text: str, action: str | None = None, *, period_s: float = 0.0) -> None:
        """Activate an alarm, with its declared remedy, or with `action` if the situation needs another one.

        `period_s` is the reporting period, which is the unit of the alarm's delay; 0 omits the delay.
        """
        kind, delay_s = alarm.kind, alarm.delay_periods * period_s
        if not delay_s:
            self._since_s.pop(kind, None)
        elif trio.current_time() - self._since_s.setdefault(kind, trio.current_time()) < delay_s - _ROUNDING_S:
            self._end(kind)
            return
        shown, before = AlarmView(kind, text, alarm.remedy if action is None else action), self._active.get(kind)
        self._active[kind] = shown
        if before is None or _without_figures(before) != _without_figures(shown):
            self._trace.append(ALARM_RAISED, {"alarm": kind, "text": text})

    def restart_delay(self, alarm: AlarmType) -> None:
        """Restart the delay of an alarm, unless the alarm is already active."""
        if alarm.kind not in self._active:
            self._since_s.pop(alarm.kind, None)

    def clear(self, alarm: AlarmType) -> None:
        """End the alarm: its cause is gone."""
        self._since_s.pop(alarm.kind, None)
        self._end(alarm.kind)

    def _end(self, kind: str) -> None:
        if self._active.pop(kind, None) is not None:
            self._trace.append(ALARM_CLEARED, {"alarm": kind})

    def active(self) -> tuple[AlarmView, ...]:
        """Return the active alarms, in order of kind."""
        return tuple(alarm for _, alarm in sorted(self._active.items()))


def _without_figures(alarm: AlarmView) -> tuple[str, str]:
    return without_figures(alarm.text), without_figures(alarm.action)


class SharedAlarm:
    """One alarm with several causes. Each part of the node has its own `cause`, optionally with an action."""

    def __init__(self, alarms: Alarms, alarm: AlarmType) -> None:
        self._alarms = alarms
        self._alarm = alarm
        self._texts: dict[str, tuple[str, str]] = {}

    def set(self, cause: str, text: str, action: str | None = None) -> None:
        """Add or replace a cause."""
        self._texts[cause] = (text, self._alarm.remedy if action is None else action)
        self._show()

    def clear(self, cause: str) -> None:
        """Remove a cause."""
        self._texts.pop(cause, None)
        self._show()

    def _show(self) -> None:
        if self._texts:
            found = [self._texts[cause] for cause in sorted(self._texts)]
            actions = dict.fromkeys(action for _, action in found)
            self._alarms.set(self._alarm, "; ".join(text for text, _ in found), "; ".join(actions))
        else:
            self._alarms.clear(self._alarm)
