"""A farm's Raft connections over links of 1 Mbit/s: a follower catches up without a change of the leader."""

from collections.abc import Callable
from functools import partial
from random import Random

import pytest
import trio

from consensus.core import messages as core
from consensus.core.features import GARLIC_FARM
from consensus.core.model import ServerId
from consensus.core.options import lan
from consensus.core.raft import Raft
from consensus.protocols.garlic_farm.node.connection import Cancel, call_server
from consensus.protocols.garlic_farm.node.connectors import Reached
from consensus.protocols.garlic_farm.node.dialer import PeerAddress
from consensus.protocols.garlic_farm.node.links import PeerLinks
from consensus.protocols.garlic_farm.node.metrics import Metrics
from consensus.server.event_loop import now_ms
from consensus.server.options import ServerOptions
from consensus.server.server import ConsensusServer
from consensus.storage.planner import Recovery
from tests.effort import few_of
from tests.node.garlic_farm_stage import CHANNEL, Host, ScriptedHandler, Stage
from tests.node.kept_entries import KeptEntries
from tests.node.memory_server import MemoryDisk, parts_around, voters
from tests.node.slow_link import NUMBERS, Pipe, SlowGroup, run_slow_group, slow_pair


class ServedCore(ScriptedHandler):
    """Passes the requests of peers to a server."""

    def __init__(self, own_id: int, server: ConsensusServer) -> None:
        super().__init__(own_id)
        self._server = server

    def request(self, sender: ServerId, request: core.Request, on_reply: Callable[[core.Reply | None], None]) -> Cancel:
        return call_server(self._server, sender, request, on_reply)


class SlowStage(Stage):
    """Hosts whose connections use pipes. All connections to a server share one pipe."""

    def __init__(self, nursery: trio.Nursery, own_id: int, toward: dict[int, Pipe]) -> None:
        super().__init__(nursery)
        self._own_id = own_id
        self._toward = toward

    async def connect(self, address: PeerAddress) -> Reached:
        """Return a connection to the host at that port."""
        host = self.hosts.get(address.port)
        if host is None:
            raise OSError(111, "Connection refused")
        ours, theirs = slow_pair(self.nursery, self._toward[address.port], self._toward[self._own_id])
        self.nursery.start_soon(host.server.serve, theirs, f"10.0.0.{self._own_id}", CHANNEL)
        return Reached(ours, CHANNEL)


class Farm(SlowGroup):
    """Three servers with the Raft timing of a LAN, on slow links."""

    def __init__(self, nursery: trio.Nursery, options: ServerOptions) -> None:
        super().__init__(nursery)
        self._hosts: dict[int, Host] = {}
        self._options = options

    async def stop(self, number: int) -> None:
        del self._hosts[number]
        await super().stop(number)

    def build(self, number: int, recovery: Recovery, disk: MemoryDisk, machine: KeptEntries) -> ConsensusServer:
        """Return a server with its host, at the port that equals its number."""
        known = voters(len(NUMBERS))
        random = Random(number)
        core_ = Raft(number, known, recovery.hard_state, recovery.log, lan(), GARLIC_FARM, random, now_ms())
        stage = SlowStage(self._nursery, number, self.toward)
        stage.hosts = self._hosts
        metrics = Metrics(lambda _: None)
        links = PeerLinks(stage.dialer(number), stage.resolve, metrics=metrics, random=Random(number))
        parts = parts_around(links, machine, self.observe(number), self._options)
        server = ConsensusServer(core_, recovery.storage, disk, parts)
        self._hosts[number] = host = Host(number)
        host.handler = ServedCore(number, server)
        host.server._handler = host.handler
        return server


@pytest.mark.parametrize(
    ("sizes", "options"),
    few_of(
        {
            "many-entries": ([100_000] * 50, ServerOptions()),
            "large-entries": ([1_000_000] * 5, ServerOptions()),
            "snapshot": ([1_000_000] * 5, ServerOptions(snapshot_log_bytes=2_500_000, retain_bytes=1)),
            "small-snapshot": ([1_000_000] * 2, ServerOptions(snapshot_log_bytes=1_500_000, retain_bytes=1)),
        },
        "large-entries",
        "small-snapshot",
    ),
)
def test_follower_over_one_megabit_link_catches_up(sizes: list[int], options: ServerOptions) -> None:
    """The follower lacks 5 MB (a transfer of 40 s) or 2 MB. The leader does not change during the transfer."""
    missing = [(bytes([number]) * size,) for number, size in enumerate(sizes)]

    async def catch_up(farm: SlowGroup) -> None:
        await farm.check_catching_up(missing, 95)
        has_snapshot = any(member.machine.restored for member in farm.members.values())
        assert has_snapshot == (options.retain_bytes == 1)

    run_slow_group(lambda nursery: Farm(nursery, options), catch_up)


def test_large_entry_commits_over_one_megabit() -> None:
    """Both followers have slow links."""
    proposals = [(bytes(1_000_000),)] * 3
    run_slow_group(partial(Farm, options=ServerOptions()), lambda farm: farm.check_commit(proposals))
