"""The active alarms of a node: raised once, shown until their cause is gone.

The kinds with their severities, remedies and delays are declared in `bridge.api.alarms`; the part of the node that
raises an alarm adds the text. Raising an alarm again with the same text changes nothing; another text replaces the
first. Each raising and clearing is also an event of the trace, so that past alarms can be read there. If two texts
differ by a measured figure only (`213 ms`), the second one replaces the first without an event: such a figure changes
at each look, and would fill the trace and the node's log. The board is bounded by the declared kinds.

If several parts of the node can have the same trouble, they share one alarm: it is active while any of them has a
cause, and its text has all causes.
"""

import re
from typing import Final

import trio

from bridge.api.alarms import AlarmType
from bridge.api.view import AlarmView
from bridge.node.events.event_log import EventLog

_FIGURE: Final = re.compile(r"(?<![\w.-])-?\d[\d.,]*(?= ?(?:ms|s|min|h|d|%|bytes|KiB|MiB|GiB|entries|times)(?!\w))")
"""A number with a unit. A number of its own may be an id, and another one is then another matter."""
_ROUNDING_S: Final = 0.001
"""Times that are one period apart may differ by a little less, as floating-point numbers."""


class NodeStopped(Exception):  # noqa: N818 - it is an end, told in words, not a fault of the program
    """The node cannot go on; the text says why and what to do."""


class AddressNotHereError(NodeStopped):
    """This machine does not have an address that the node listens on."""


class Alarms:
    """The board."""

    def __init__(self, trace: EventLog) -> None:
        self._trace = trace
        self._standing: dict[str, AlarmView] = {}
        self._since_s: dict[str, float] = {}
        """By kind of those with a delay: when the cause was found first since it was last absent."""

    def set(self, alarm: AlarmType, text: str, action: str | None = None, *, period_s: float = 0.0) -> None:
        """Show an alarm from now on, with its remedy unless the situation needs another `action`.

        `period_s`: the reporting period, if the alarm's delay counts now.
        """
        kind, delay_s = alarm.kind, alarm.delay_periods * period_s
        if not delay_s:
            self._since_s.pop(kind, None)
        elif trio.current_time() - self._since_s.setdefault(kind, trio.current_time()) < delay_s - _ROUNDING_S:
            self._end(kind)
            return
        shown, before = AlarmView(kind, text, alarm.remedy if action is None else action), self._standing.get(kind)
        self._standing[kind] = shown
        if before is None or _without_figures(before) != _without_figures(shown):
            self._trace.append("alarm-raised", {"alarm": kind, "text": text})

    def restart_delay(self, alarm: AlarmType) -> None:
        """Begin the delay of an alarm again, unless the alarm is shown."""
        if alarm.kind not in self._standing:
            self._since_s.pop(alarm.kind, None)

    def clear(self, alarm: AlarmType) -> None:
        """End the alarm: its cause is gone."""
        self._since_s.pop(alarm.kind, None)
        self._end(alarm.kind)

    def _end(self, kind: str) -> None:
        if self._standing.pop(kind, None) is not None:
            self._trace.append("alarm-cleared", {"alarm": kind})

    def standing(self) -> tuple[AlarmView, ...]:
        """What stands now, in order of kind."""
        return tuple(alarm for _, alarm in sorted(self._standing.items()))


def _without_figures(alarm: AlarmView) -> tuple[str, str]:
    return _FIGURE.sub("…", alarm.text), _FIGURE.sub("…", alarm.action)


class SharedAlarm:
    """One alarm with several causes; `cause` names whose it is. A cause may have an action of its own."""

    def __init__(self, alarms: Alarms, alarm: AlarmType) -> None:
        self._alarms = alarms
        self._alarm = alarm
        self._texts: dict[str, tuple[str, str]] = {}

    def set(self, cause: str, text: str, action: str | None = None) -> None:
        """It is so, from now on."""
        self._texts[cause] = (text, self._alarm.remedy if action is None else action)
        self._show()

    def clear(self, cause: str) -> None:
        """It is not so any more."""
        self._texts.pop(cause, None)
        self._show()

    def _show(self) -> None:
        if self._texts:
            found = [self._texts[cause] for cause in sorted(self._texts)]
            actions = dict.fromkeys(action for _, action in found)
            self._alarms.set(self._alarm, "; ".join(text for text, _ in found), "; ".join(actions))
        else:
            self._alarms.clear(self._alarm)
