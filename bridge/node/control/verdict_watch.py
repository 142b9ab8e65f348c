"""The verdict over time: told at every change, its concerns as alarms, and whether this process is stuck.

    view ──▶ verdict   another text than before ──▶ event `verdict-changed`, and so a line of the log
         ──▶ concerns  ──▶ alarms, while they last
         ──▶ applied and committed index ──▶ `stuck`, which is what /healthz answers

What is not published yet is no alarm at once: a farm that was just created gathers reports for up to one
period before its first structure, and one that hands over publishes a moment later.

*Stuck.* /healthz is for supervisors, which restart what fails it. A lost quorum, a missing router, a full disk are not
mended by a restart, and a restart of every node of a farm that lacks a quorum would lose what they publish by
themselves. So it fails only if this process does not do what no other process keeps it from doing: its own loops run,
and it applies what is committed.

The view of a farm costs a fraction of a millisecond, that of ten thousand members much more: the pause after a look
grows with what the look took, so that looking takes at most a hundredth of a processor.
"""

from collections.abc import Callable
from typing import Final

import trio

from bridge.api.verdict import DISAGREEMENT_ALARMS, NOTHING_TO_DO, OF_VERDICTS, concerns_of
from bridge.api.view import FarmView, VerdictView
from bridge.node.events.alarms import Alarms
from bridge.node.events.event_log import EventLog

LOOK_S: Final = 1.0
SHARE: Final = 100
"""A look may take this part of the time."""
STUCK_S: Final = 30.0


class VerdictWatch:
    """Of one node. `view` is made anew at each look; `period_s` is the farm's reporting period."""

    def __init__(
        self, view: Callable[[], FarmView], period_s: Callable[[], float], trace: EventLog, alarms: Alarms
    ) -> None:
        self._view = view
        self._period_s = period_s
        self._trace = trace
        self._alarms = alarms
        self._told: VerdictView | None = None
        self._last: VerdictView | None = None
        self._looked_at = trio.current_time()
        self._applied = 0
        self._applied_at = trio.current_time()

    async def run(self) -> None:
        """Looks, until cancelled."""
        while True:
            began = trio.current_time()
            self.look()
            await trio.sleep(max(LOOK_S, SHARE * (trio.current_time() - began)))

    def look(self) -> None:
        """Tell what has changed."""
        view = self._view()
        now = self._looked_at = trio.current_time()
        raft = view.raft
        if raft.applied_index != self._applied or raft.applied_index >= raft.commit_index:
            self._applied, self._applied_at = raft.applied_index, now
        self._raise(view)
        self._last = view.verdict
        verdict, before = view.verdict, self._told
        if before is None or before.text != verdict.text:
            self._told = verdict
            facts = {"verdict": verdict.kind.value, "severity": verdict.severity.value, "text": verdict.text}
            self._trace.append("verdict-changed", facts)

    def last(self) -> VerdictView | None:
        """The verdict of the last look; None before the first."""
        return self._last

    def text(self) -> str:
        """The verdict of the last look; empty before the first."""
        return "" if self._told is None else self._told.text

    def stuck(self) -> tuple[str, ...]:
        """What this process does not do although nothing keeps it from that; a restart would help."""
        now, reasons = trio.current_time(), []
        if now - self._looked_at > STUCK_S:
            reasons.append(f"this process has not run its own checks for {now - self._looked_at:.0f} s")
        elif now - self._applied_at > STUCK_S:
            reasons.append(f"entry {self._applied + 1} is committed and has not been applied for {STUCK_S:.0f} s")
        return tuple(reasons)

    def _raise(self, view: FarmView) -> None:
        concerns = {each.alarm: each for each in reversed(concerns_of(view)) if each.alarm is not None}
        for alarm in (*OF_VERDICTS, *DISAGREEMENT_ALARMS):
            concern = concerns.get(alarm)
            if concern is None:
                self._alarms.clear(alarm)
            else:
                # What passes by itself has time to pass: a structure may be under way.
                period_s = self._period_s() if concern.advice == NOTHING_TO_DO else 0.0
                self._alarms.set(alarm, concern.text, concern.advice, period_s=period_s)
