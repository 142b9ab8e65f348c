"""Auto join of a KRaft quorum: which observers join automatically, and the reason recorded for unreachable ones."""

from pathlib import Path
from uuid import UUID

import pytest
import trio
from msgspec.structs import replace

from consensus.core.model import ReplicaKey
from consensus.protocols.kafka.wire import messages_admin as admin
from consensus.protocols.kraft.operators.settings import Endpoint
from consensus.protocols.kraft.replica.announcing import AddressRefused
from tests.node.memory_server import until
from tests.node.test_kraft_voter import LOOPBACK, Quorum, formatted, request_to_leader
from tests.node.test_kraft_wrong_address import ANNOUNCE_S, announcing_quorum
from tests.processes import free_ports

pytestmark = pytest.mark.usefixtures("small_segments")


async def voters(quorum: Quorum) -> set[int]:
    leader = await quorum.leader()
    ids = leader.server.describe().raft.configuration.voter_ids
    return {key.id for key in ids if isinstance(key, ReplicaKey)}


async def until_voters(quorum: Quorum, expected: set[int]) -> None:
    while await voters(quorum) != expected:  # noqa: ASYNC110 - the voters come from a request to the leader
        await trio.sleep(0.02)


async def test_removed_voter_rejoins_only_after_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = [replace(each, auto_join=True) for each in formatted(tmp_path, 3, dynamic=True)]

    async with announcing_quorum(settings[:3], monkeypatch) as quorum:
        leader = await quorum.leader()
        removed = next(voter for voter in quorum.running.values() if voter is not leader)
        others = {1, 2, 3} - {removed.key.id}
        await removed.server.wait_commit(leader.server.commit_index)
        await trio.sleep(3 * ANNOUNCE_S)
        await request_to_leader(
            quorum,
            admin.RemoveRaftVoterRequest(voter_id=removed.key.id, voter_directory_id=UUID(bytes=removed.key.directory)),
        )
        await until_voters(quorum, others)
        await trio.sleep(20 * ANNOUNCE_S)
        assert await voters(quorum) == others
        await quorum.end(removed.key.id)
        await quorum.start(settings[removed.key.id - 1])
        await until_voters(quorum, {1, 2, 3})


async def test_observer_at_a_wrong_address_does_not_join(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given an observer that announces the address of a voter, then it joins only with its own address."""
    settings, refused = formatted(tmp_path, 4, dynamic=True), list[AddressRefused]()
    other = settings[0].listeners[0].port
    wrong = replace(settings[3], auto_join=True, advertised_listeners=(Endpoint("CONTROLLER", LOOPBACK, other),))

    async with announcing_quorum(settings[:3], monkeypatch, refused) as quorum:
        await quorum.start(wrong)
        await until(lambda: bool(refused))
        assert refused[0].recorded == ""
        assert "is not voter 4 of this quorum" in refused[0].reason
        assert await voters(quorum) == {1, 2, 3}
        await quorum.end(4)
        await quorum.start(replace(settings[3], auto_join=True))
        await until_voters(quorum, {1, 2, 3, 4})


async def test_unreachable_observer_does_not_join(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, refused = formatted(tmp_path, 4, dynamic=True), list[AddressRefused]()
    closed = Endpoint("CONTROLLER", LOOPBACK, free_ports(1)[0])

    async with announcing_quorum(settings[:3], monkeypatch, refused) as quorum:
        await quorum.start(replace(settings[3], auto_join=True, advertised_listeners=(closed,)))
        await until(lambda: bool(refused))
        assert "voter 4 cannot be reached" in refused[0].reason
        assert await voters(quorum) == {1, 2, 3}
