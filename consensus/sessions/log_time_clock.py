"""Log time for a `DedupStateMachine`: the leader writes a clock entry at its election and once a period.

    leadership, or a period has passed ─▶ leads? ─▶ log time of now ─▶ clock entry ─▶ committed ─▶ sessions expire
                                             └ else: wait until it does

Every server runs a clock, but only the leader's clock writes entries. Log time comes from the log and advances by
elapsed time. So a session expires after the same time on every machine, even with a wrong clock. The leader corrects
log time toward its own clock only while the two differ by at most five seconds. If they differ by more, one of them is
wrong, and the leader cannot decide which one. Then log time keeps its pace, and `apart_ms` reports the difference to an
operator. The farm's state machine does not use this: it has its own clock entries, which a majority's reports can
correct.
"""

import time
from collections.abc import Awaitable, Callable

import trio

from consensus.core.effects import Outcome, ProposalResolved
from consensus.core.model import Milliseconds
from consensus.sessions.dedup_state_machine import DedupStateMachine, clock_entry

STEER_LIMIT_MS = 5_000
PERIOD_MS = 30_000
RETRY_S = 1.0


def machine_clock_ms() -> Milliseconds:
    """Return this machine's clock, milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def next_log_time(log_time_ms: Milliseconds, elapsed_ms: Milliseconds, clock_ms: Milliseconds) -> Milliseconds:
    """Return the log time to write `elapsed_ms` after `log_time_ms` (0: none yet), by the leader's clock."""
    if log_time_ms == 0:
        return clock_ms
    paced_ms = log_time_ms + elapsed_ms
    return max(log_time_ms, clock_ms if abs(clock_ms - paced_ms) <= STEER_LIMIT_MS else paced_ms)


class SessionClock:
    """Writes clock entries, by `propose`, while the server that feeds `machine` leads.

    `period_ms` must be well below the expiry of sessions.
    """

    def __init__(
        self,
        machine: DedupStateMachine,
        leads: Callable[[], bool],
        propose: Callable[[tuple[bytes, ...]], Awaitable[ProposalResolved]],
        *,
        period_ms: Milliseconds = PERIOD_MS,
        clock_ms: Callable[[], Milliseconds] = machine_clock_ms,
    ) -> None:
        self._machine = machine
        self._leads = leads
        self._propose = propose
        self._period_s = period_ms / 1000
        self._clock_ms = clock_ms
        self._led = trio.Event()
        self._written: tuple[Milliseconds, float] | None = None
        self.apart_ms: Milliseconds | None = None
        """Lead of this leader's clock over log time, if it is too large to be corrected; else None."""

    def leadership_changed(self) -> None:
        """Write a new leader's clock entry soon, after a `RoleChanged`."""
        self._led.set()

    async def run(self) -> None:
        """Write clock entries until canceled."""
        while True:
            self._led = trio.Event()
            if self._leads():
                written = await self._write()
                with trio.move_on_after(self._period_s if written else min(self._period_s, RETRY_S)):
                    await self._led.wait()
            else:
                self.apart_ms = None
                await self._led.wait()

    async def _write(self) -> bool:
        log_time_ms, now_s, clock_ms = self._machine.log_time_ms, trio.current_time(), self._clock_ms()
        # If this leader wrote the last entry, the elapsed time includes the time that the entry needed to commit.
        own = self._written is not None and self._written[0] == log_time_ms
        since_s = self._written[1] if own and self._written is not None else self._machine.log_time_at_s
        elapsed_ms = max(0, round((now_s - since_s) * 1000))
        time_ms = next_log_time(log_time_ms, elapsed_ms, clock_ms)
        ahead_ms = clock_ms - time_ms
        self.apart_ms = ahead_ms if abs(ahead_ms) > STEER_LIMIT_MS else None
        self._written = (time_ms, now_s)
        with trio.move_on_after(self._period_s):
            return (await self._propose((clock_entry(time_ms),))).outcome is Outcome.COMMITTED
        return False
