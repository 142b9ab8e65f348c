"""Reports of the verdict at every change, alarms for its concerns (problems), and the detection of a stuck process.

    view ──▶ verdict   another text than before ──▶ event `verdict-changed`, and so a line of the log
         ──▶ concerns  ──▶ alarms, while they last
         ──▶ applied and committed index ──▶ `stuck`, the reply of /healthz
         ──▶ the observers: the node's history, its reply to other nodes

A missing publication does not raise an alarm immediately. A new farm gathers reports for up to one period before its
first structure. After a handover the next publication takes a moment.

*Stuck.* /healthz is for supervisors, which restart a failing process. A restart does not repair a lost quorum, a
missing router or a full disk. In a farm without a quorum, nodes publish alone, and restarts would end these
publications. So /healthz fails only if the cause is in this process: its loops do not run, or it does not apply
committed entries.

A check runs at the next second after an event of the node's trace, after a changed verdict, and while the verdict is
not healthy. A healthy farm without events is checked every `REST_S`: checks each second would take a sixth of an idle
node's processor time. A check of ten thousand members takes longer. So the pause after a check grows with the duration
of the check, and checks take at most a hundredth of a processor.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import trio

from bridge.api.events import VERDICT_CHANGED
from bridge.api.verdict import DISAGREEMENT_ALARMS, NOTHING_TO_DO, OF_VERDICTS, concerns_of
from bridge.api.view import FarmView, VerdictKind, VerdictView
from bridge.node.events.alarms import Alarms
from bridge.node.events.event_log import EventLog
from consensus import sleep_to_tick

LOOK_S: Final = 1.0
REST_S: Final = 10.0
"""Longest time between checks; `SHARE` makes it longer if a check takes more than a tenth of a second."""
SHARE: Final = 100
"""The pause after a check is this multiple of its duration."""
STUCK_S: Final = 30.0


@dataclass(slots=True, eq=False)
class VerdictWatch:
    """The watch of one node. `view` builds a view at each check, which the `observers` receive, too.

    `period_s` returns the farm's reporting period.
    """

    view: Callable[[], FarmView]
    period_s: Callable[[], float]
    trace: EventLog
    alarms: Alarms
    observers: Sequence[Callable[[FarmView], None]] = ()
    _reported: VerdictView | None = field(default=None, init=False)
    _last: VerdictView | None = field(default=None, init=False)
    _looked_at: float = field(default_factory=trio.current_time, init=False)
    _applied: int = field(default=0, init=False)
    _applied_at: float = field(default_factory=trio.current_time, init=False)

    async def run(self) -> None:
        """Check until canceled."""
        while True:
            began, cursor, reported = trio.current_time(), self.trace.next_cursor, self._reported
            self.check()
            is_quiet = self._reported is reported is not None and reported.kind is VerdictKind.HEALTHY
            earliest_s = (ended := trio.current_time()) + SHARE * (ended - began)
            with trio.move_on_at(began + REST_S - LOOK_S / 2):
                while is_quiet and self.trace.next_cursor == cursor:
                    await self.trace.news()
            await sleep_to_tick(LOOK_S, max(0.0, earliest_s - trio.current_time()))

    def check(self) -> None:
        """Check once, and report changes."""
        view = self.view()
        now = self._looked_at = trio.current_time()
        raft = view.raft
        if raft.applied_index != self._applied or raft.applied_index >= raft.commit_index:
            self._applied, self._applied_at = raft.applied_index, now
        self._raise(view)
        self._last = view.verdict
        verdict, before = view.verdict, self._reported
        if before is None or before.text != verdict.text:
            self._reported = verdict
            facts = {"verdict": verdict.kind.value, "severity": verdict.severity.value, "text": verdict.text}
            self.trace.append(VERDICT_CHANGED, facts)
        for observe in self.observers:
            observe(view)

    def last(self) -> VerdictView | None:
        """Return the verdict of the last check; None before the first."""
        return self._last

    def text(self) -> str:
        """Return the text of the last reported verdict; empty before the first check."""
        return "" if self._reported is None else self._reported.text

    def stuck(self) -> tuple[str, ...]:
        """Return the failures that are this process's own fault; a restart would help."""
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
                self.alarms.clear(alarm)
            else:
                # A concern that may end on its own is reported later: a structure may be in progress.
                period_s = self.period_s() if concern.advice == NOTHING_TO_DO else 0.0
                self.alarms.set(alarm, concern.text, concern.advice, period_s=period_s)
