"""An alarm for entries that arrive without any effect on the farm.

    entry without effect ──▶ event `entry-without-effect`, a counter for its reason   (`bridge.node.raft.applied_state`)
    20 within a minute   ──▶ alarm `entries-without-effect`, until ten minutes without any

A few such entries are normal: a server repeats an entry after a lost reply, or a program submits without a key. Many of
them mean that a connected client tries to act on the farm, or that an operator's program has the wrong key. The text
has reasons and authors but no numbers. So it does not change with each entry, and is not reported again.

The entries of the alarm are within a minute by this node's clock, and also by log time. The node's clock alone is not
enough: after a stop of a day, a node applies the missed entries within seconds. Log time alone is not enough, because
it may stop or be set back.

The state machine reports these entries. `notices` is a separate module, because the Raft server reports its events.
"""

from collections import OrderedDict, deque

import trio

from bridge.api.alarms import ENTRIES_WITHOUT_EFFECT
from bridge.core.membership.authors import EntryWithoutEffect
from bridge.node.events.alarms import Alarms
from consensus import sleep_to_tick

ALARM_AFTER = 20
WITHIN_MS = 60_000
QUIET_AFTER_S = 600.0
LOOK_EVERY_S = 5.0
CAUSES_MAX = 8
"""Causes kept for the text; the least recent one is dropped first."""


class IneffectiveEntries:
    """The counter of such entries: `record` counts one and may set the alarm, `run` clears it."""

    def __init__(self, alarms: Alarms) -> None:
        self._alarms = alarms
        self._times: deque[tuple[float, int]] = deque(maxlen=ALARM_AFTER)
        """For the last entries, the time in seconds, and log time in milliseconds."""
        self._causes: OrderedDict[str, None] = OrderedDict()
        self._is_active = False

    def record(self, change: EntryWithoutEffect, log_time_ms: int) -> None:
        """Count one more entry without effect, committed at this log time."""
        now_s = trio.current_time()
        self._times.append((now_s, log_time_ms))
        author = "" if change.author is None else f", signed by {change.author.hex()}"
        cause = f"{change.kind} ({change.reason.value}{author})"
        self._causes[cause] = None
        self._causes.move_to_end(cause)
        if len(self._causes) > CAUSES_MAX:
            self._causes.popitem(last=False)
        first_s, first_ms = self._times[0]
        is_fast = now_s - first_s <= WITHIN_MS / 1000 and log_time_ms - first_ms <= WITHIN_MS
        if is_fast and not self._is_active and len(self._times) == ALARM_AFTER:
            self._is_active = True
            text = f"the farm ignores arriving entries: {'; '.join(sorted(self._causes))}"
            self._alarms.set(ENTRIES_WITHOUT_EFFECT, text)

    async def run(self) -> None:
        """Clear the alarm after a period without such entries, until canceled."""
        while True:
            await sleep_to_tick(LOOK_EVERY_S)
            if self._times and trio.current_time() - self._times[-1][0] > QUIET_AFTER_S:
                self._is_active = False
                self._times.clear()
                self._causes.clear()
                self._alarms.clear(ENTRIES_WITHOUT_EFFECT)
