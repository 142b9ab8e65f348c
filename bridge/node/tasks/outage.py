"""Detects an outage (a loss of the quorum) and its end, and provides the farm's state during the outage.

    no clock entry for long ──▶ QuorumWatch ──▶ publishing without a quorum, and the verdict
    gossip's members        ──▶ reachable   ──▶ nodes that may publish then (`bridge.core.publishing.without_quorum`)
    the log on disk         ──▶ the farm, for a node started during the outage

A node that ran when the quorum was lost has the farm's state. A node started without a quorum does not: no leader
reports which of its entries are committed. For publishing it then applies all of them to a copy of the state. An
uncommitted entry is at worst a report that is too new. The applied state itself does not change.

When entries are committed again, each node that published alone reports the timestamp of its last publication within
one reporting period. This node commits its own publications only after that period, so that their timestamps are later.
The structures published alone remain valid for longer than that period.
"""

import math
from typing import assert_never

import trio

from bridge.core.farm.state_machine import Farm
from bridge.core.log.records import Report
from bridge.core.publishing.without_quorum import MIN_PATIENCE_MS, LocalObservations
from bridge.node.raft.applied_state import majorities_of
from bridge.node.tasks.task_context import TaskContext
from consensus import EntryKind, ServerBusyError, decode_configuration, integer_id, now_ms, sleep_to_tick

LOOK_INTERVAL_S = 1.0
READ_ENTRIES = 128
READ_BYTES = 1024 * 1024


class Outage:
    """The present outage, if any, and the farm's last known state."""

    def __init__(self, context: TaskContext) -> None:
        self._context = context
        self._copy: Farm | None = None
        self._hold_until_s = -math.inf
        self.lasts = False

    @property
    def holds(self) -> bool:
        """True for one reporting period after the end of an outage."""
        return trio.current_time() < self._hold_until_s

    @property
    def farm(self) -> Farm:
        """The farm's last state known to this node."""
        return self._context.applied_state.farm if self._copy is None else self._copy

    @property
    def log_time_ms(self) -> int:
        """This node's estimate of log time; a later clock counts until an entry of this run has set log time."""
        applied_state = self._context.applied_state
        paced_ms = max(self.farm.state.log_time_ms, applied_state.log_time.paced(now_ms()))
        return paced_ms if applied_state.quorum.moved else max(paced_ms, self._context.clock_ms())

    def observations(self, own: Report) -> LocalObservations:
        """Return the nodes that this node reaches. Only members count: a removed server must not publish."""
        members = map(integer_id, self._context.replica.server.describe().raft.configuration.member_ids)
        present = self._context.reachable()
        admitted = self.farm.state.admitted
        return LocalObservations(
            own, frozenset(each for each in members if each in admitted and admitted[each].node_id in present)
        )

    @property
    def concerns_us(self) -> bool:
        """True if this node belongs to the group, to its knowledge.

        A removed node also lacks clock entries, without an outage.
        """
        raft = self._context.replica.server.describe().raft
        return self._context.replica.server_id in raft.configuration.member_ids

    async def run(self) -> None:
        """Update the outage until canceled.

        Without an outage, the next update waits until the quorum can be lost, at most `MIN_PATIENCE_MS`, because the
        period may become shorter.
        """
        while True:
            await self._update()
            rest_ms = 0 if self.lasts else max(0, min(self.left_ms(), MIN_PATIENCE_MS))
            await sleep_to_tick(LOOK_INTERVAL_S, rest_ms / 1000)

    def left_ms(self) -> float:
        """Return the milliseconds until the log counts as stopped, without another clock entry."""
        context = self._context
        period_ms = round(1000 * context.expected_period_s)
        return context.applied_state.quorum.left_ms(now_ms(), period_ms, context.election_timeout_ms)

    def is_lost(self) -> bool:
        """Return True if the log does not move at this moment; each update sets `lasts` to this value."""
        return self.left_ms() < 0 and self.concerns_us

    async def _update(self) -> None:
        context, lost = self._context, self.is_lost()
        if self.lasts and not lost:
            self._copy = None
            self._hold_until_s = trio.current_time() + context.period_s
        elif lost and not self.lasts and not context.applied_state.quorum.moved:
            self._copy = await self._from_disk()
        self.lasts = lost

    async def _from_disk(self) -> Farm:
        """Return the state after all entries of this server's log, including uncommitted ones."""
        applied_state, server = self._context.applied_state, self._context.replica.server
        copy = Farm(applied_state.state.log_time_ms)
        farm = applied_state.farm
        copy.restore(farm.state, farm.tuning.period_ms, farm.sessions.dump(), farm.reqids.dump())
        next_index = copy.state.applied_index + 1
        while next_index <= (last := server.describe().raft.last.index):
            try:
                entries = await server.read_stored(next_index, min(READ_ENTRIES, last - next_index + 1), READ_BYTES)
            except ServerBusyError:
                await trio.sleep(LOOK_INTERVAL_S)
                continue
            if not entries:
                break
            for index, entry in enumerate(entries, start=next_index):
                match entry.kind:
                    case EntryKind.COMMAND:
                        copy.apply(index, entry.term, applied_state.entries.read(entry.data))
                    case EntryKind.CONFIGURATION:
                        copy.configure(index, entry.term, majorities_of(decode_configuration(entry.data)))
                    case EntryKind.NO_OP | EntryKind.CONTROL:
                        pass
                    case _:
                        assert_never(entry.kind)
            next_index += len(entries)
        return copy
