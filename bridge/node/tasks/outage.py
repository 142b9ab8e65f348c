"""What this node notices of an outage: that the log stands still, what is known then, and when it is over.

    clock entries applied ──▶ QuorumWatch ──▶ alarm `no-quorum` while there are none
    gossip's members      ──▶ reachable   ──▶ who may publish meanwhile (`bridge.core.publishing.without_quorum`)
    the log on disk       ──▶ the farm, for a node that was started into the outage

A node that ran when the quorum was lost knows the farm's state. One that starts without a quorum does not: nobody tells
it which of its entries are committed. For publishing it then takes all of them, applied to a copy of the state: what
the farm had not committed yet is at worst a report too new. The ledger itself stays as it is.

Once the log moves again, one reporting period is left to those who published meanwhile to report their last second;
only then this node commits publications of its own, so that they are later. The structures of the outage outlive that.
"""

import math
from typing import assert_never

import trio

from bridge.core.farm.state_machine import Farm
from bridge.core.publishing.without_quorum import Surroundings
from bridge.core.state.records import Report
from bridge.node.raft.applied_state import majorities_of
from bridge.node.tasks.task_context import Member
from consensus import EntryKind, ServerBusyError, decode_configuration, integer_id, now_ms

QUORUM_ALARM = "no-quorum"
LOOK_INTERVAL_S = 1.0
READ_ENTRIES = 128
READ_BYTES = 1024 * 1024
TEXT = "no majority of the voters is to be reached: the log stands still, and nothing can be committed"
ACTION = (
    "start the others again, or mend the network between them; if a majority is gone for good, stop this node and make"
    " a farm of it with `garlicfarm recover`; see docs/how-to/recover.md"
)


class Outage:
    """Whether there is one now, and the farm as it was when it began."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._copy: Farm | None = None
        self._hold_until_s = -math.inf
        self.lasts = False

    @property
    def holds(self) -> bool:
        """It was over only a moment ago."""
        return trio.current_time() < self._hold_until_s

    @property
    def farm(self) -> Farm:
        """The farm's last state that this node knows of."""
        return self._member.ledger.farm if self._copy is None else self._copy

    @property
    def log_time_ms(self) -> int:
        """Log time without a log: this node's reckoning, or its clock if no entry has set that in this life."""
        ledger = self._member.ledger
        paced_ms = max(self.farm.state.log_time_ms, ledger.log_time.paced(now_ms()))
        return paced_ms if ledger.quorum.moved else max(paced_ms, self._member.clock_ms())

    def around(self, own: Report) -> Surroundings:
        """Whom this node reaches. Only members of the group count: who was removed must not publish for it."""
        members = map(integer_id, self._member.replica.server.describe().raft.configuration.member_ids)
        present = self._member.reachable()
        admitted = self.farm.state.admitted
        return Surroundings(
            own, frozenset(each for each in members if each in admitted and admitted[each].node_id in present)
        )

    @property
    def concerns_us(self) -> bool:
        """This node belongs to the group, as far as it knows: a removed one hears of no clock entries either."""
        raft = self._member.replica.server.describe().raft
        return self._member.replica.server_id in raft.configuration.member_ids

    async def run(self) -> None:
        """Looks, until cancelled."""
        while True:
            await self._look()
            await trio.sleep(LOOK_INTERVAL_S)

    async def _look(self) -> None:
        member = self._member
        still_ms = member.ledger.quorum.lost_for_ms(
            now_ms(), round(1000 * member.expected_period_s), member.election_timeout_ms
        )
        lost = still_ms is not None and self.concerns_us
        if self.lasts and not lost:
            self._copy = None
            self._hold_until_s = trio.current_time() + member.period_s
            member.alarms.clear(QUORUM_ALARM)
        elif lost and not self.lasts:
            if not member.ledger.quorum.moved:
                self._copy = await self._from_disk()
            member.alarms.set(QUORUM_ALARM, TEXT, ACTION)
        self.lasts = lost

    async def _from_disk(self) -> Farm:
        """What all of this server's log adds up to, committed or not."""
        ledger, server = self._member.ledger, self._member.replica.server
        copy = Farm(ledger.state.log_time_ms)
        copy.restore(ledger.state, ledger.farm.tuning.period_ms, ledger.farm.sessions.dump())
        following = copy.state.applied_index + 1
        while following <= (last := server.describe().raft.last.index):
            try:
                entries = await server.read_stored(following, min(READ_ENTRIES, last - following + 1), READ_BYTES)
            except ServerBusyError:
                await trio.sleep(LOOK_INTERVAL_S)
                continue
            if not entries:
                break
            for index, entry in enumerate(entries, start=following):
                match entry.kind:
                    case EntryKind.COMMAND:
                        copy.apply(index, entry.term, ledger.entries.read(entry.data))
                    case EntryKind.CONFIGURATION:
                        copy.configure(index, entry.term, majorities_of(decode_configuration(entry.data)))
                    case EntryKind.NO_OP | EntryKind.CONTROL:
                        pass
                    case _:
                        assert_never(entry.kind)
            following += len(entries)
        return copy
