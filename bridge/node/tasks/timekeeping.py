"""A member's task for the farm's time: it watches the clocks, and as leader it writes log time.

    leader       a clock entry at its election, and once a period. If reports later in the period allow a step of log
                 time, one more (`bridge.core.state.log_time`)
    every node   once a period: its own clock, and as leader all other clocks and log time
                 (`bridge.core.farm.clock_alarms`)

An alarm about clocks needs the same result in two consecutive checks, a period apart, because one report may be
delayed.

The commit time of each entry shows if the election timeout is long enough (`BroadcastTime`).
"""

from collections import deque

import trio

from bridge.api.alarms import CLOCK, LOG_TIME, OTHER_CLOCKS, SLOW_MAJORITY
from bridge.api.events import CLOCK_FAILED
from bridge.core.farm.clock_alarms import log_time_text, other_clocks_text, own_clock_text
from bridge.core.log.records import Clock
from bridge.core.log.voter_clocks import VoterClocks
from bridge.core.membership.admission import server_name
from bridge.node.tasks.task_context import TaskContext
from bridge.wire.log.entries import encode
from consensus import Outcome, next_tick_s, now_ms

MEASURED = 8
SHARE = 5


class BroadcastTime:
    """The last times that a majority took to store an entry of this leader, compared with the election timeout.

    Raft keeps a leader only if broadcastTime << electionTimeout (section 5.6). If a round to the majority, with disk
    writes, takes nearly an election timeout, any delay causes an election. The leader measures the time from proposing
    a clock entry until it is committed, without extra messages. The median of several measurements is used, so that one
    slow write does not raise an alarm. The paper requires a tenth of the timeout; the alarm is raised at a fifth.
    """

    def __init__(self, election_timeout_ms: int) -> None:
        self._limit_ms = election_timeout_ms / SHARE
        self._election_timeout_ms = election_timeout_ms
        self._taken_ms: deque[float] = deque(maxlen=MEASURED)

    def measured(self, taken_ms: float) -> None:
        """Record how long an entry took from its proposal to its commitment."""
        self._taken_ms.append(taken_ms)

    def forget(self) -> None:
        """Drop the measurements, because another server leads."""
        self._taken_ms.clear()

    @property
    def alarm(self) -> str | None:
        """The problem as text; None without a problem, or with too few measurements."""
        if len(self._taken_ms) < MEASURED:
            return None
        below, above = sorted(self._taken_ms)[MEASURED // 2 - 1 : MEASURED // 2 + 1]
        usual_ms = (below + above) / 2
        if usual_ms <= self._limit_ms:
            return None
        return (
            f"a majority takes {usual_ms:.0f} ms to store an entry, more than a fifth of the shortest election timeout"
            f" ({self._election_timeout_ms} ms): ordinary delays may cause needless elections"
        )


_CATCH_UP_RATIO = 3
CLOCK_RETRY_S = 1.0
STEP_LOOK_S = 1.0
"""Seconds between a leader's checks for a step of log time, but at most a quarter of a period."""


class TimekeepingTask:
    """The loops of timekeeping."""

    def __init__(self, context: TaskContext) -> None:
        self._context = context
        self._led = trio.Event()
        self._broadcast = BroadcastTime(context.election_timeout_ms)
        self._looked: tuple[int, int] | None = None
        """Time of this machine's clock, and log time, at the last check of the clocks."""
        self._failure: str | None = None
        """The reason of the last failure to make a clock entry."""

    def leadership_changed(self) -> None:
        """Wake the loop after a change of the leader."""
        self._led.set()

    async def run(self) -> None:
        """Work until canceled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep)
            nursery.start_soon(self._watch)

    async def _keep(self) -> None:
        context = self._context
        while True:
            self._led = trio.Event()
            if context.replica.leads:
                pause_s = context.period_ms / 1000
                if await self._write_clock():
                    with trio.move_on_after(pause_s):
                        await self._make_a_step(min(STEP_LOOK_S, pause_s / 4))
                else:
                    with trio.move_on_after(min(pause_s, CLOCK_RETRY_S)):
                        await self._led.wait()
            else:
                context.alarms.clear(SLOW_MAJORITY)
                self._broadcast.forget()
                await self._led.wait()

    async def _make_a_step(self, look_s: float) -> None:
        """Write one more clock entry when reports allow a step of log time; return only when leadership changes."""
        stepped = False
        while not self._led.is_set():
            if not stepped and self._context.applied_state.log_time.step_due(*self._own_reading(), *self._bounds()):
                stepped = await self._write_clock()
            with trio.move_on_at(next_tick_s(look_s)):
                await self._led.wait()

    def _own_reading(self) -> tuple[int, int, int]:
        return now_ms(), self._context.clock_ms(), self._context.replica.server_id

    def _bounds(self) -> tuple[VoterClocks, int | None]:
        context = self._context
        clocks = context.applied_state.state.clocks
        return clocks, clocks.limit_ms(context.replica.server.role.term, context.period_ms)

    async def _write_clock(self) -> bool:
        context = self._context
        time_ms = context.applied_state.log_time.next_entry(*self._own_reading(), *self._bounds())
        try:
            entry = context.signer.sign(encode(Clock(time_ms, context.replica.server_id, context.period_ms)))
        except ValueError as error:
            # Report it once: the attempt is repeated each second, and fails for the same reason.
            if str(error) != self._failure:
                self._failure = str(error)
                context.trace.append(CLOCK_FAILED, {"reason": self._failure})
            return False
        self._failure = None
        with trio.move_on_after(context.period_s):
            proposed_at = now_ms()
            answer = await context.replica.server.propose((entry,))
            if answer.outcome is Outcome.COMMITTED:
                self._broadcast.measured(now_ms() - proposed_at)
                self._review_broadcast_time()
                return True
        return False

    def _review_broadcast_time(self) -> None:
        text = self._broadcast.alarm
        if text is None:
            self._context.alarms.clear(SLOW_MAJORITY)
        else:
            self._context.alarms.set(SLOW_MAJORITY, text)

    # -- the clocks ----------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        while True:
            await trio.sleep(self._context.expected_period_s)
            self._review_clocks()

    def _review_clocks(self) -> None:
        context = self._context
        state, leads, own_id = context.applied_state.state, context.replica.leads, context.replica.server_id
        is_old = self._applies_old_entries(state.log_time_ms)
        if not context.applied_state.quorum.moved:
            return
        judgment = context.applied_state.log_time.judge(*self._own_reading(), state.clocks)
        own = own_clock_text(judgment, own_id, self._name_of)
        others = other_clocks_text(judgment, own_id, self._name_of) if leads else None
        log_time = log_time_text(judgment, state, context.applied_state.farm.tuning.period_ms) if leads else None
        log_time_found = (None, None) if log_time is None else log_time
        for alarm, text, action in ((CLOCK, own, None), (OTHER_CLOCKS, others, None), (LOG_TIME, *log_time_found)):
            if text is None:
                context.alarms.clear(alarm)
            elif is_old:
                # While old entries are applied, alarms are not raised, but alarms without a cause are cleared.
                context.alarms.restart_delay(alarm)
            else:
                context.alarms.set(alarm, text, action, period_s=context.expected_period_s)

    def _applies_old_entries(self, log_time_ms: int) -> bool:
        """Return True if log time has moved much faster than the clock since the last check: this node catches up.

        The clocks in old entries are old, so this node's own clock would appear to be ahead.
        """
        before, self._looked = self._looked, (now_ms(), log_time_ms)
        if before is None:
            return False
        passed_ms = self._looked[0] - before[0]
        return log_time_ms - before[1] > _CATCH_UP_RATIO * passed_ms

    def _name_of(self, server_id: int) -> str:
        return server_name(self._context.applied_state.state.admitted, server_id)
