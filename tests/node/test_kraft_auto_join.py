"""Auto join of a KRaft quorum: which observers join automatically, and the reason recorded for unreachable ones."""

from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest
import trio
from msgspec.structs import replace

from consensus.core.model import ReplicaKey
from consensus.protocols.kafka.wire import messages_admin as admin
from consensus.protocols.kraft.operators.settings import Endpoint, VoterSettings
from consensus.protocols.kraft.replica import announcing
from consensus.protocols.kraft.replica.announcing import AddressRefused
from consensus.protocols.kraft.replica.open_voter import VoterOptions
from tests.node.test_kraft_voter import LOOPBACK, Quorum, formatted, request_to_leader
from tests.processes import free_ports

pytestmark = pytest.mark.usefixtures("small_segments")

TIMEOUT_S = 60
ANNOUNCE_S = 0.1


def run_quorum(
    settings: list[VoterSettings],
    monkeypatch: pytest.MonkeyPatch,
    story: Callable[[Quorum], object],
    refused: list[AddressRefused],
) -> None:
    """Run a test story with three servers, which announce themselves more often than in production."""
    monkeypatch.setattr(announcing, "JOIN_S", ANNOUNCE_S)

    async def run() -> None:
        with trio.fail_after(TIMEOUT_S):
            async with trio.open_nursery() as nursery:
                quorum = Quorum(nursery, VoterOptions(address_refused=refused.append))
                for each in settings[:3]:
                    await quorum.start(each)
                await story(quorum)  # type: ignore[misc]
                nursery.cancel_scope.cancel()

    trio.run(run)


async def voters(quorum: Quorum) -> set[int]:
    leader = await quorum.leader()
    ids = leader.server.describe().raft.configuration.voter_ids
    return {key.id for key in ids if isinstance(key, ReplicaKey)}


async def until_voters(quorum: Quorum, expected: set[int]) -> None:
    while await voters(quorum) != expected:  # noqa: ASYNC110 - the voters come from a request to the leader
        await trio.sleep(0.02)


def test_removed_voter_rejoins_only_after_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = [replace(each, auto_join=True) for each in formatted(tmp_path, 3, dynamic=True)]

    async def story(quorum: Quorum) -> None:
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

    run_quorum(settings, monkeypatch, story, [])


def test_observer_at_a_wrong_address_does_not_join(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given an observer that announces the address of a voter, then it joins only with its own address."""
    settings, refused = formatted(tmp_path, 4, dynamic=True), list[AddressRefused]()
    other = settings[0].listeners[0].port
    wrong = replace(settings[3], auto_join=True, advertised_listeners=(Endpoint("CONTROLLER", LOOPBACK, other),))

    async def story(quorum: Quorum) -> None:
        await quorum.start(wrong)
        while not refused:  # noqa: ASYNC110 - a list has no event
            await trio.sleep(0.02)
        assert refused[0].recorded == ""
        assert "is not voter 4 of this quorum" in refused[0].reason
        assert await voters(quorum) == {1, 2, 3}
        await quorum.end(4)
        await quorum.start(replace(settings[3], auto_join=True))
        await until_voters(quorum, {1, 2, 3, 4})

    run_quorum(settings, monkeypatch, story, refused)


def test_unreachable_observer_does_not_join(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, refused = formatted(tmp_path, 4, dynamic=True), list[AddressRefused]()
    closed = Endpoint("CONTROLLER", LOOPBACK, free_ports(1)[0])

    async def story(quorum: Quorum) -> None:
        await quorum.start(replace(settings[3], auto_join=True, advertised_listeners=(closed,)))
        while not refused:  # noqa: ASYNC110 - a list has no event
            await trio.sleep(0.02)
        assert "voter 4 cannot be reached" in refused[0].reason
        assert await voters(quorum) == {1, 2, 3}

    run_quorum(settings, monkeypatch, story, refused)
