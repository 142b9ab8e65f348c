"""The alarms of a node that stand at the moment: raised once, shown until their cause is gone.

An alarm is a kind, a sentence about what happened, and what to do. Raising it again with the same words is nothing new;
with other words it is replaced. Each raising and clearing is an event of the trace as well, so that the past shows what
the picture no longer does. A sentence that differs by a measured figure only (`213 ms`) replaces the alarm and is no
event: such a figure changes at each look, and would fill the trace and the node's log. The board is bounded by the
kinds that the code knows.

Where several parts of the node may each have the same kind of trouble, they share one alarm: it stands while any of
them has a cause, and says all of them.
"""

import re
from typing import Final

from bridge.api.view import AlarmView
from bridge.node.events.event_log import EventLog

_FIGURE: Final = re.compile(r"(?<![\w.-])-?\d[\d.,]*(?= ?(?:ms|s|min|h|d|%|bytes|KiB|MiB|GiB|entries|times)(?!\w))")
"""A number with a unit. A number of its own may be an id, and another one is then another matter."""


class NodeStopped(Exception):  # noqa: N818 - it is an end, told in words, not a fault of the program
    """The node cannot go on; the text says why and what to do."""


class AddressNotHereError(NodeStopped):
    """This machine does not have an address that the node listens on."""


class Alarms:
    """The board."""

    def __init__(self, trace: EventLog) -> None:
        self._trace = trace
        self._standing: dict[str, AlarmView] = {}

    def set(self, kind: str, text: str, action: str) -> None:
        """An alarm stands from now on."""
        alarm, before = AlarmView(kind, text, action), self._standing.get(kind)
        self._standing[kind] = alarm
        if before is None or _without_figures(before) != _without_figures(alarm):
            self._trace.append("alarm-raised", {"alarm": kind, "text": text})

    def clear(self, kind: str) -> None:
        """Its cause is gone."""
        if self._standing.pop(kind, None) is not None:
            self._trace.append("alarm-cleared", {"alarm": kind})

    def standing(self) -> tuple[AlarmView, ...]:
        """What stands now, in order of kind."""
        return tuple(alarm for _, alarm in sorted(self._standing.items()))


def _without_figures(alarm: AlarmView) -> tuple[str, str]:
    return _FIGURE.sub("…", alarm.text), _FIGURE.sub("…", alarm.action)


class SharedAlarm:
    """One alarm with several causes; `cause` names whose it is. A cause may have an action of its own."""

    def __init__(self, alarms: Alarms, kind: str, action: str) -> None:
        self._alarms = alarms
        self._kind = kind
        self._action = action
        self._texts: dict[str, tuple[str, str]] = {}

    def set(self, cause: str, text: str, action: str | None = None) -> None:
        """It is so, from now on."""
        self._texts[cause] = (text, self._action if action is None else action)
        self._show()

    def clear(self, cause: str) -> None:
        """It is not so any more."""
        self._texts.pop(cause, None)
        self._show()

    def _show(self) -> None:
        if self._texts:
            found = [self._texts[cause] for cause in sorted(self._texts)]
            actions = dict.fromkeys(action for _, action in found)
            self._alarms.set(self._kind, "; ".join(text for text, _ in found), "; ".join(actions))
        else:
            self._alarms.clear(self._kind)
