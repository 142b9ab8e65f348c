"""A member's duty to keep the farm's time: while it leads, it writes log time at its election and once a period."""

import trio

from bridge.core.records import Clock
from bridge.node.farm_member import Member
from bridge.wire.application import encode
from consensus.core.effects import Outcome
from consensus.node.clock import now_ms

CLOCK_ALARM = "clock"
CLOCK_RETRY_S = 1.0


class TimeDuty:
    """The loop."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._led = trio.Event()

    def leadership_changed(self) -> None:
        """Another server leads, or this one."""
        self._led.set()

    async def run(self) -> None:
        """Works until cancelled."""
        member = self._member
        while True:
            self._led = trio.Event()
            if member.replica.leads:
                written = await self._write_clock()
                pause_s = member.period_ms / 1000
                with trio.move_on_after(pause_s if written else min(pause_s, CLOCK_RETRY_S)):
                    await self._led.wait()
            else:
                # It is the leader's clock that counts; this one is judged again when it leads.
                member.alarms.clear(CLOCK_ALARM)
                await self._led.wait()

    async def _write_clock(self) -> bool:
        member = self._member
        raft = member.replica.server.describe().raft
        reading = member.ledger.log_time.next_entry(
            now_ms(), member.clock_ms(), member.replica.server_id, raft.configuration.voter_ids
        )
        if reading.alarm is None:
            member.alarms.clear(CLOCK_ALARM)
        else:
            member.alarms.set(CLOCK_ALARM, reading.alarm, "check NTP on every router; see docs/operating.md, 'Alarms'")
        entry = Clock(reading.time_ms, member.replica.server_id, member.period_ms)
        with trio.move_on_after(member.period_s):
            answer = await member.replica.server.propose((encode(entry),))
            return answer.outcome is Outcome.COMMITTED
        return False
