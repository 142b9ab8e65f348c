"""A core that halts ends its server, and the error has the reason for the operator."""

from random import Random

import pytest
import trio
import trio.testing

from consensus.core.effects import Effect, Halt
from consensus.core.events import Event
from consensus.core.features import GARLIC_FARM
from consensus.core.model import Milliseconds
from consensus.core.options import lan
from consensus.core.raft import Raft
from consensus.net.memory import MemoryNetwork
from consensus.server.errors import HaltedError
from consensus.server.event_loop import now_ms
from consensus.server.server import ConsensusServer
from consensus.storage.planner import Owner, recover
from tests.node.kept_entries import KeptEntries
from tests.node.memory_server import ONE, SMALL, MemoryDisk, parts_around, voters

REASON = "server 2, the leader, belongs to another cluster: correct the addresses of its peers"


class HaltingRaft(Raft):
    """A core that halts at its first event."""

    def step(self, event: Event, now: Milliseconds) -> list[Effect]:
        return [*super().step(event, now), Halt(REASON)]


async def test_halted_core_ends_server_with_reason(autojump_clock: trio.testing.MockClock) -> None:
    disk = MemoryDisk()
    recovery = recover(disk, Owner(b"node-001", 1, 1), bytes(16), SMALL)
    disk.run(recovery.operations)
    core = HaltingRaft(ONE, voters(1), recovery.hard_state, recovery.log, lan(), GARLIC_FARM, Random(1), now_ms())
    parts = parts_around(MemoryNetwork().transport(ONE), KeptEntries())
    server = ConsensusServer(core, recovery.storage, disk, parts)
    with pytest.RaisesGroup(HaltedError, flatten_subgroups=True) as raised:
        await server.run()
    assert REASON in str(raised.value.exceptions[0]) or REASON in repr(raised.value)
