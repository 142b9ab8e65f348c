"""An alarm while entries arrive that have no effect on the farm.

    entry without effect ──▶ event `entry-without-effect`, a counter for its reason   (`bridge.node.raft.applied_state`)
    20 within a minute   ──▶ alarm `entries-without-effect`, until ten minutes without any

Single ones are ordinary: a server repeats an entry whose fate it did not hear, a program submits without a key. Many of
them mean that a client that can connect tries to speak for the farm, or that a program of the operator's has the wrong
key. The text has reasons and authors and no numbers, so that it does not change, and is not reported again, with each.

A module of its own: entries without effect come from the state machine, the notices beside it from the Raft server.
"""

from collections import OrderedDict, deque

import trio

from bridge.api.alarms import ENTRIES_WITHOUT_EFFECT
from bridge.core.membership.authors import EntryWithoutEffect
from bridge.node.events.alarms import Alarms

ALARM_AFTER = 20
WITHIN_S = 60.0
QUIET_AFTER_S = 600.0
LOOK_EVERY_S = 5.0
CAUSES_MAX = 8
"""Causes that are remembered for the text; the longest unheard is forgotten first."""


class IneffectiveEntries:
    """`record` each such entry; the alarm ends while `run` runs."""

    def __init__(self, alarms: Alarms) -> None:
        self._alarms = alarms
        self._times: deque[float] = deque(maxlen=ALARM_AFTER)
        self._causes: OrderedDict[str, None] = OrderedDict()
        self._stands = False

    def record(self, change: EntryWithoutEffect) -> None:
        """Count one more committed entry without effect."""
        now = trio.current_time()
        self._times.append(now)
        author = "" if change.author is None else f", signed by {change.author.hex()}"
        cause = f"{change.kind} ({change.reason.value}{author})"
        self._causes[cause] = None
        self._causes.move_to_end(cause)
        if len(self._causes) > CAUSES_MAX:
            self._causes.popitem(last=False)
        if not self._stands and len(self._times) == ALARM_AFTER and now - self._times[0] <= WITHIN_S:
            self._stands = True
            text = f"the farm ignores arriving entries: {'; '.join(sorted(self._causes))}"
            self._alarms.set(ENTRIES_WITHOUT_EFFECT, text)

    async def run(self) -> None:
        """Ends the alarm after a time of quiet, until cancelled."""
        while True:
            await trio.sleep(LOOK_EVERY_S)
            if self._times and trio.current_time() - self._times[-1] > QUIET_AFTER_S:
                self._stands = False
                self._times.clear()
                self._causes.clear()
                self._alarms.clear(ENTRIES_WITHOUT_EFFECT)
