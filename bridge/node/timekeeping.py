"""A member's duty to keep the farm's time: while it leads, it writes log time at its election and once a period.

How long each entry takes to be committed tells whether elections leave enough time (`bridge.core.broadcast_time`).
"""

import trio

from bridge.core.broadcast_time import BroadcastTime
from bridge.core.records import Clock
from bridge.node.farm_member import Member
from bridge.wire.application import encode
from consensus.core.effects import Outcome
from consensus.node.clock import now_ms

CLOCK_ALARM = "clock"
SLOW_ALARM = "slow-majority"
SLOW_ACTION = (
    "look for a slow disk or a busy processor on the voters, or a slow network between them; for servers far apart"
    " another consensus.timing is meant"
)
CLOCK_RETRY_S = 1.0


class TimeDuty:
    """The loop."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._led = trio.Event()
        self._broadcast = BroadcastTime(member.election_timeout_ms)

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
                member.alarms.clear(SLOW_ALARM)
                self._broadcast.forget()
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
            proposed_at = now_ms()
            answer = await member.replica.server.propose((member.signer.sign(encode(entry)),))
            if answer.outcome is Outcome.COMMITTED:
                self._broadcast.measured(now_ms() - proposed_at)
                self._review_broadcast_time()
                return True
        return False

    def _review_broadcast_time(self) -> None:
        text = self._broadcast.alarm
        if text is None:
            self._member.alarms.clear(SLOW_ALARM)
        else:
            self._member.alarms.set(SLOW_ALARM, text, SLOW_ACTION)
