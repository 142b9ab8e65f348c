"""A core that must not go on ends its server, with the reason for the operator."""

from random import Random

import pytest
import trio
import trio.testing

from consensus.core.dialect import GARLIC_FARM
from consensus.core.effects import Effect, Halt
from consensus.core.events import Event
from consensus.core.position import Milliseconds
from consensus.core.raft import Raft
from consensus.core.tuning import lan
from consensus.node.clock import now_ms
from consensus.node.refusals import HaltedError
from consensus.node.server import ConsensusServer
from consensus.node.storage import Owner, recover
from tests.node.kept_entries import KeptEntries
from tests.node.memory_server import ONE, SMALL, Links, MemoryDisk, voters

REASON = "server 2, the leader, belongs to another cluster: correct the addresses of its peers"


class HaltingRaft(Raft):
    """Finds with its first event that it must not go on."""

    def step(self, event: Event, now: Milliseconds) -> list[Effect]:
        """As ever, and then the end."""
        return [*super().step(event, now), Halt(REASON)]


async def test_a_core_that_must_not_go_on_ends_its_server_with_the_reason(
    autojump_clock: trio.testing.MockClock,
) -> None:
    del autojump_clock
    disk = MemoryDisk()
    recovery = recover(disk, Owner(b"node-001", 1, 1), bytes(16), SMALL)
    disk.run(recovery.operations)
    core = HaltingRaft(ONE, voters(1), recovery.ballot, recovery.log, lan(), GARLIC_FARM, Random(1), now_ms())
    async with trio.open_nursery() as nursery:
        links = Links(ONE, {}, nursery)
        server = ConsensusServer(core, recovery.storage, disk, links, KeptEntries(), lambda _notice: None)
        with pytest.RaisesGroup(HaltedError, flatten_subgroups=True) as raised:
            await server.run()
    assert REASON in str(raised.value.exceptions[0]) or REASON in repr(raised.value)
