"""The alarms of a node that stand at the moment: raised once, shown until their cause is gone.

An alarm is a kind, a sentence about what happened, and what to do. Raising it again with the same words is nothing new;
with other words it is replaced. Each raising and clearing is an event of the trace as well, so that the past shows what
the picture no longer does. The board is bounded by the kinds that the code knows.
"""

from bridge.core.view import AlarmView
from bridge.node.event_log import EventLog


class Alarms:
    """The board."""

    def __init__(self, trace: EventLog) -> None:
        self._trace = trace
        self._standing: dict[str, AlarmView] = {}

    def set(self, kind: str, text: str, action: str) -> None:
        """An alarm stands from now on."""
        alarm = AlarmView(kind, text, action)
        if self._standing.get(kind) != alarm:
            self._standing[kind] = alarm
            self._trace.append("alarm-raised", {"alarm": kind, "text": text})

    def clear(self, kind: str) -> None:
        """Its cause is gone."""
        if self._standing.pop(kind, None) is not None:
            self._trace.append("alarm-cleared", {"alarm": kind})

    def standing(self) -> tuple[AlarmView, ...]:
        """What stands now, in order of kind."""
        return tuple(alarm for _, alarm in sorted(self._standing.items()))
