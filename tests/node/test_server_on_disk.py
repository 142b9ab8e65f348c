"""The owner task with real files: acknowledged entries survive a restart, and the lock is released."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from consensus.core.effects import Outcome, Role, RoleChanged
from consensus.core.features import GARLIC_FARM
from consensus.core.model import Configuration, Entry, Server
from consensus.core.options import Options
from consensus.net.memory import MemoryNetwork
from consensus.server.opening import open_server
from consensus.server.parts import ServerParts
from consensus.server.server import ConsensusServer
from consensus.server.status import Notice
from consensus.storage.directory import open_directory
from consensus.storage.disk import StorageInUseError
from consensus.storage.planner import StorageOptions
from consensus.storage.verification import StorageVerdict, verify_storage
from tests.node.kept_entries import KeptEntries

ALONE = Configuration((Server(1, "tcp://127.0.0.1:7001"),))
FAST = Options(election_timeout_min_ms=20, election_timeout_max_ms=40, heartbeat_ms=5, retry_ms=20)
SMALL = StorageOptions(segment_bytes=64 * 1024, tail_entries=4)


@asynccontextmanager
async def one_run(path: Path, generation: int, applied: list[Entry]) -> AsyncIterator[ConsensusServer]:
    """Run the only voter in one generation; yield it after its election."""
    leads = trio.Event()

    def observe(notice: Notice) -> None:
        if isinstance(notice, RoleChanged) and notice.role is Role.LEADER:
            leads.set()

    parts = ServerParts(
        path=path,
        server_id=1,
        configuration=ALONE,
        transport=MemoryNetwork().transport(1),
        state_machine=KeptEntries(applied),
        features=GARLIC_FARM,
        options=FAST,
        storage_options=SMALL,
        node_id=b"node-one",
        generation=generation,
        observe=observe,
    )
    async with open_server(parts) as server:
        with trio.fail_after(60):
            await leads.wait()
            yield server


async def test_acknowledged_entries_survive_restarts(tmp_path: Path) -> None:
    acknowledged: dict[int, bytes] = {}
    for generation in (1, 2, 3):
        applied: list[Entry] = []
        async with one_run(tmp_path / "raft", generation, applied) as server:

            async def client(number: int, generation: int, server: ConsensusServer) -> None:
                command = b"%d/%d " % (generation, number) * 700
                answer = await server.propose((command,))
                assert answer.outcome is Outcome.COMMITTED
                assert answer.position is not None
                acknowledged[answer.position.index] = command

            async with trio.open_nursery() as clients:
                for number in range(30):
                    clients.start_soon(client, number, generation, server)
            await server.wait_applied(max(acknowledged))
            for index, command in acknowledged.items():
                assert applied[index - 1].data == command
            assert await server.read(1, 10_000, 10**9) == tuple(applied)
            assert server.describe().segments > generation
            with pytest.raises(StorageInUseError):
                open_directory(tmp_path / "raft", b"node-one", generation, SMALL)
    assert len(acknowledged) == 90
    found = verify_storage(tmp_path / "raft")
    assert found.verdict is StorageVerdict.SOUND
    assert found.last_index >= max(acknowledged)
