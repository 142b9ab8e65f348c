"""Our ØMQ Raft and the npm package zmq-raft in one cluster, each as server and as client, on loopback.

`make interop-zmq` brings the package and tells these stories. Each prints what it counted: how often a server of the
package ended by itself, and of what.
"""

from collections import Counter
from pathlib import Path

import pytest
import trio

from benchmarks import zmq_raft_group
from benchmarks.zmq_raft_group import Make, PackageClient, ZmqRaftGroup, running_zmq_raft_group
from tests.interop.zmq import story
from tests.interop.zmq.story import Updates

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(zmq_raft_group.missing() is not None, reason=zmq_raft_group.missing() or "all is there"),
]

STORY_S = 300.0
UPDATES = 1_000
KILLS = 20
SHORT_TTL = {"requestIdTtl": 60_000, "requestIdTtlAcceptMargin": 1_000}
"""The shortest that the package has: a request id is fresh for 60 s, and taken in the first 59."""
OLD_S = 50
PACKAGES = [Make.PACKAGE] * 3


def package_updates(client: PackageClient) -> Updates:
    """Updates by the package's client."""

    async def submit(request_id: bytes, data: bytes) -> int:
        return int(await client.do("update", id=request_id.hex(), data=data.hex(), timeout=10_000))

    return Updates(submit)


def tell(group: ZmqRaftGroup, updates: Updates, *more: object) -> None:
    """What the story counted."""
    ended = {peer_id: len(found) for peer_id, found in story.deaths(group).items()}
    print(f"\n{len(updates.committed)} updates, failures {dict(updates.failures)}, ended by themselves {ended}", *more)
    for peer_id, found in story.deaths(group).items():
        reasons = Counter(line.partition(" ")[2] for each in found for line in each.splitlines() if "ERROR" in line)
        print(f"  {peer_id}: {dict(reasons)}")


@pytest.mark.parametrize("makes", [PACKAGES], ids=["theirs"])
async def test_the_packages_client_loses_nothing_and_repeats_nothing(tmp_path: Path, makes: list[Make]) -> None:
    with trio.fail_after(STORY_S):
        async with running_zmq_raft_group(tmp_path, makes) as group:
            client = await group.client()
            updates = package_updates(client)
            leader = await group.leader()
            assert await client.do("config") == {
                "leader": leader.peer_id,
                "peers": [list(peer) for peer in group.peers],
            }
            await client.do("subscribe", after=0)
            await updates.some(UPDATES // 2)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(updates.some, UPDATES // 2)
                await group.kill(leader)
                await group.leader()
            await updates.repeat(100)
            await group.start_again(leader)
            await story.caught_up(group, leader, max(updates.committed.values()))
            found = await client.do("entries", after=0)
            assert found["snapshot"] is None
            entries = {index: bytes.fromhex(frame) for index, frame in found["entries"]}
            assert list(entries) == list(range(1, len(entries) + 1))
            await story.subscribed(client, max(updates.committed.values()))
            heard = [(index, bytes.fromhex(frame)) for each in client.subscribed for index, frame in [each["entry"]]]
            assert heard == sorted(entries.items())[: len(heard)]
            logs = await story.same_logs(group, updates)
            assert logs[0].entries == entries
            tell(group, updates)
            assert story.deaths(group) == {}


@pytest.mark.parametrize("makes", [PACKAGES], ids=["theirs"])
async def test_members_are_killed_in_turn_under_updates(tmp_path: Path, makes: list[Make]) -> None:
    with trio.fail_after(STORY_S):
        async with running_zmq_raft_group(tmp_path, makes) as group, trio.open_nursery() as nursery:
            updates = package_updates(await group.client())
            nursery.start_soon(updates.on_and_on)
            nursery.start_soon(story.keep_alive, group)
            led = await story.kill_in_turn(group, updates, KILLS)
            nursery.cancel_scope.cancel()
        await story.same_logs(group, updates)
        tell(group, updates, f"led after a death: {led}")


@pytest.mark.parametrize("makes", [PACKAGES], ids=["theirs"])
async def test_a_member_that_was_away_is_given_a_snapshot(tmp_path: Path, makes: list[Make]) -> None:
    with trio.fail_after(STORY_S):
        async with running_zmq_raft_group(tmp_path, makes, options=SHORT_TTL) as group:
            updates = package_updates(await group.client())
            updates.seconds_ago = OLD_S
            await updates.some(50)
            for member in list(group.members.values()):
                leader = await group.leader()
                if member is leader:
                    continue
                await group.kill(member)
                await updates.some(50)
                index = max(updates.committed.values())
                await story.expired(group, leader, index)
                await group.compact(leader, index)
                await story.begins_behind(group, leader, index)
                await group.start_again(member)
                await story.begins_behind(group, member, index)
                await updates.some(20)
                await story.caught_up(group, member, max(updates.committed.values()))
        logs = await story.same_logs(group, updates)
        in_order = sorted((index, updates.payloads[each]) for each, index in updates.committed.items())
        for log in logs:
            assert log.snapshot == b"".join(payload for index, payload in in_order if index <= log.snapshot_index)
        tell(group, updates, f"snapshots at {[log.snapshot_index for log in logs]}")


@pytest.mark.parametrize("newcomer", [Make.PACKAGE], ids=["theirs"])
@pytest.mark.parametrize("makes", [PACKAGES], ids=["theirs"])
async def test_members_are_added_and_removed_by_zr_config(tmp_path: Path, makes: list[Make], newcomer: Make) -> None:
    with trio.fail_after(STORY_S):
        async with running_zmq_raft_group(tmp_path, makes) as group:
            client = await group.client()
            updates = package_updates(client)
            await updates.some(50)
            before = group.peers
            member = group.add("4", newcomer)
            await group.start(member, before)
            await group.configure("-a", f"{member.url}/4")
            await story.configured(client, group.peers)
            await updates.some(50)
            await story.caught_up(group, member, max(updates.committed.values()))
            leader = await group.leader()
            after = [peer for peer in group.peers if peer[0] != leader.peer_id]
            await group.configure("-d", f"{leader.url}/{leader.peer_id}")
            await story.configured(client, after)
            await group.remove(leader)
            await group.leader()
            await updates.some(50)
        await story.same_logs(group, updates)
        tell(group, updates)
