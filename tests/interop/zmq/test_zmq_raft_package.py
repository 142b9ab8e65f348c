"""Our ØMQ Raft and the npm package zmq-raft in one cluster, each as server and as client, on loopback.

`make interop-zmq` brings the package and tells these stories. Each prints what it counted: how often a server of the
package ended by itself, and of what.
"""

import random
import sys
from collections import Counter
from contextlib import aclosing
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import trio
import zmq

from benchmarks import zmq_raft_group
from benchmarks.zmq_raft_group import IDENT, Make, PackageClient, ZmqRaftGroup, running_zmq_raft_group
from consensus.core.model import Entry, EntryKind
from consensus.protocols import zmq_raft
from consensus.protocols.zmq_raft import ZmqRaftClient
from consensus.protocols.zmq_raft.wire.codec import encode_reply, encode_request
from consensus.protocols.zmq_raft.wire.messages import AppendEntriesResponse, AppendEntriesRpc
from tests.interop.zmq import story
from tests.interop.zmq.relay import Recorder
from tests.interop.zmq.story import Updates, new_request_id

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(zmq_raft_group.missing() is not None, reason=zmq_raft_group.missing() or "all is there"),
]

STORY_S = 300.0
ANSWER_MS = 2_000
UPDATES = 1_000
KILLS = 20
FAULTS = 30
CHANGES = 6
SEED = 7
LONG_TTL = {"requestIdTtl": 36_000_000, "requestIdTtlAcceptMargin": 1_000}
OLD_S = 35_990
"""With this option the package takes ids that are so old, and remembers them 10 s longer. Ours has forgotten them."""
COMPACTED = (
    "--compact-at",
    "1",
    "--compact-command",
    f"{sys.executable} {Path(story.__file__).with_name('compact.py')}",
)
PACKAGES = [Make.PACKAGE] * 3
OURS = [Make.OURS] * 3
MIXED = {
    "two-of-theirs": [Make.PACKAGE, Make.PACKAGE, Make.OURS],
    "one-of-theirs": [Make.PACKAGE, Make.OURS, Make.OURS],
}
GROUPS = {"theirs": PACKAGES, "ours": OURS, **MIXED}
every_group = pytest.mark.parametrize("makes", GROUPS.values(), ids=GROUPS.keys())


def package_updates(client: PackageClient) -> Updates:
    """Updates by the package's client."""

    async def submit(request_id: bytes, data: bytes) -> int:
        return int(await client.do("update", id=request_id.hex(), data=data.hex(), timeout=10_000))

    return Updates(submit)


def own_updates(client: ZmqRaftClient) -> Updates:
    """Updates by our client."""

    async def submit(request_id: bytes, data: bytes) -> int:
        return await client.update(data, request_id, patience_s=10.0)

    return Updates(submit)


def tell(group: ZmqRaftGroup, updates: Updates, *more: object) -> None:
    """What the story counted."""
    ended = {peer_id: len(found) for peer_id, found in story.deaths(group).items()}
    print(f"\n{len(updates.committed)} updates, failures {dict(updates.failures)}, ended by themselves {ended}", *more)
    for peer_id, found in story.deaths(group).items():
        reasons = Counter(line.partition(" ")[2] for each in found for line in each.splitlines() if "ERROR" in line)
        print(f"  {peer_id}: {dict(reasons)}")


@every_group
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


async def test_our_client_loses_nothing_and_repeats_nothing_with_the_packages_servers(tmp_path: Path) -> None:
    with trio.fail_after(STORY_S):
        async with (
            running_zmq_raft_group(tmp_path, PACKAGES) as group,
            zmq_raft.connect(group.urls, IDENT) as client,
            trio.open_nursery() as nursery,
        ):
            updates = own_updates(client)
            leader = await group.leader()
            config = await client.config()
            assert (config.leader, [(peer.peer_id, peer.url) for peer in config.peers]) == (leader.peer_id, group.peers)
            heard: list[tuple[int, bytes]] = []
            nursery.start_soon(story.subscribe, client, heard)
            await updates.some(UPDATES // 2)
            async with trio.open_nursery() as under_way:
                under_way.start_soon(updates.some, UPDATES // 2)
                await group.kill(leader)
                await group.leader()
            await updates.repeat(100)
            await group.start_again(leader)
            last = max(updates.committed.values())
            await story.caught_up(group, leader, last)
            info = await client.log_info(leader.url)
            assert (info.is_leader, info.first_index, info.last_index) == (False, 1, last)
            async with aclosing(client.entries(0)) as found:
                entries = [story.index_and_frame(entry) async for entry in found]
            assert [index for index, _ in entries] == list(range(1, last + 1))
            await story.until(lambda: len(heard) == last, "all entries by subscription")
            assert heard == entries
            nursery.cancel_scope.cancel()
        logs = await story.same_logs(group, updates)
        assert logs[0].entries == dict(entries)
        tell(group, updates)
        assert story.deaths(group) == {}


@every_group
async def test_members_are_killed_in_turn_under_updates(tmp_path: Path, makes: list[Make]) -> None:
    recorder = Recorder()
    with trio.fail_after(STORY_S):
        async with (
            running_zmq_raft_group(tmp_path, makes, relay=recorder.relay) as group,
            trio.open_nursery() as nursery,
        ):
            updates, alive = package_updates(await group.client()), story.KeptAlive(group, recorder)
            nursery.start_soon(updates.on_and_on)
            nursery.start_soon(alive.run)
            led = await story.kill_in_turn(group, updates, KILLS)
            for make in set(makes) - set(led):
                await story.led_by(group, make)
                await story.more(updates, 20)
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                await story.settled(group, updates)
        await story.same_logs(group, updates)
        tell(group, updates, f"led after a death: {led}")
        assert alive.killed_by_ours == []
        assert all(member.deaths == [] for member in group.members.values() if member.make is Make.OURS)


@pytest.mark.parametrize("makes", MIXED.values(), ids=MIXED.keys())
async def test_members_are_killed_stopped_and_cut_off_at_random(tmp_path: Path, makes: list[Make]) -> None:
    recorder, chance, done = Recorder(), random.Random(SEED), Counter[str]()
    print(f"\nseed {SEED}")
    with trio.fail_after(STORY_S):
        async with (
            running_zmq_raft_group(tmp_path, makes, relay=recorder.relay) as group,
            trio.open_nursery() as nursery,
        ):
            updates, alive = package_updates(await group.client()), story.KeptAlive(group, recorder)
            nursery.start_soon(updates.on_and_on, 24)
            nursery.start_soon(alive.run)
            for _ in range(FAULTS):
                fault = chance.choice([story.kill, story.stop_for_a_while, story.cut_off])
                await fault(group, recorder, chance.choice(list(group.members.values())), chance)
                done[fault.__name__] += 1
                if not await story.goes_on(updates):
                    # A leader of the package that ends a follower again and again (docs/reference/zmq-raft.md).
                    assert (await group.leader()).make is Make.PACKAGE
                    await story.kill(group, recorder, await group.leader(), chance)
                    done["leader killed to go on"] += 1
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                await story.settled(group, updates)
        await story.same_logs(group, updates)
        tell(group, updates, dict(done))
        assert alive.killed_by_ours == []
        assert all(member.deaths == [] for member in group.members.values() if member.make is Make.OURS)


@pytest.mark.parametrize("makes", MIXED.values(), ids=MIXED.keys())
async def test_changes_of_the_members_are_completed_though_ours_are_killed(tmp_path: Path, makes: list[Make]) -> None:
    recorder, chance = Recorder(), random.Random(SEED)
    print(f"\nseed {SEED}")
    with trio.fail_after(STORY_S):
        async with (
            running_zmq_raft_group(tmp_path, makes, relay=recorder.relay) as group,
            trio.open_nursery() as nursery,
        ):
            client = await group.client()
            updates, before = package_updates(client), group.peers
            nursery.start_soon(updates.on_and_on)
            newcomer = group.add("4", Make.OURS)
            await group.start(newcomer, before)
            for peers in [group.peers, before] * (CHANGES // 2):
                leader = await group.leader()
                victim = leader if leader.make is Make.OURS else group.members["3"]
                async with trio.open_nursery() as change:
                    change.start_soon(story.change, client, peers)
                    await trio.sleep(chance.random() * 0.08)
                    await story.kill(group, recorder, victim, chance)
                await story.configured(client, peers)
                await story.more(updates, 3)
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                await group.remove(newcomer)
                await story.settled(group, updates)
        await story.same_logs(group, updates)
        tell(group, updates)
        assert story.deaths(group) == {}


@pytest.mark.parametrize("makes", MIXED.values(), ids=MIXED.keys())
async def test_members_that_begin_anew_are_given_snapshots(tmp_path: Path, makes: list[Make]) -> None:
    with trio.fail_after(STORY_S):
        async with running_zmq_raft_group(tmp_path, makes, options=LONG_TTL, arguments=COMPACTED) as group:
            updates = package_updates(await group.client())
            updates.seconds_ago, updates.payload_bytes = OLD_S, 1024
            snapshots = []
            for giver, taker in product(Make, Make):
                member = next(each for each in group.members.values() if each.make is taker)
                if giver is taker and makes.count(giver) == 1:
                    continue
                await story.led_by(group, Make.PACKAGE)
                await updates.some(1_100)
                index = max(updates.committed.values())
                if giver is Make.OURS:
                    # A server of ours goes by the newest id as well, not by its clock alone.
                    await replace(updates, seconds_ago=0).one()
                await story.settled(group, updates)
                index = await story.give_snapshot(group, giver, member, index)
                await story.settled(group, updates)
                snapshots.append(f"{giver.value} gives {taker.value} one up to {index}")
        logs = await story.same_logs(group, updates)
        in_order = sorted((index, updates.payloads[each]) for each, index in updates.committed.items())
        for log in logs:
            assert log.snapshot == b"".join(payload for index, payload in in_order if index <= log.snapshot_index)
        tell(group, updates, *snapshots)


@pytest.mark.parametrize("newcomer", Make, ids=lambda make: f"newcomer-{make.value}")
@every_group
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
            await story.settled(group, updates)
        await story.same_logs(group, updates)
        tell(group, updates)


@pytest.mark.parametrize("make", Make, ids=lambda make: make.value)
async def test_an_append_that_comes_again_by_another_connection_ends_a_server_of_the_package_only(
    tmp_path: Path, make: Make
) -> None:
    with trio.fail_after(STORY_S), zmq.Context() as context:
        async with trio.open_nursery() as nursery:
            group = ZmqRaftGroup(tmp_path, nursery, options={"electionTimeoutMin": 9_000, "electionTimeoutMax": 9_999})
            group.arguments = ("--election-timeout", "9000-9999")
            # Given: a follower, and its leader that has an update committed there
            follower, leader = group.add("1", make), group.add("2", Make.PACKAGE)
            await group.start(follower)
            update = Entry(1, EntryKind.COMMAND, new_request_id() + b"update")
            append = encode_request(
                AppendEntriesRpc(
                    message_id=1,
                    ident=IDENT.encode(),
                    leader=leader.peer_id,
                    term=1,
                    previous_index=0,
                    previous_term=0,
                    commit=1,
                    entries=(update,),
                )
            )
            taken = encode_reply(AppendEntriesResponse(message_id=1, term=1, success=True))
            assert await exchange(context, follower.url, append) == taken
            await story.told(group, follower, lambda found: found["lastApplied"] == 1, "the update applied")
            # When: the append comes again by another connection, since the answer was lost with the first
            answer = await exchange(context, follower.url, append)
            # Then: ours gives the same answer, and the package ends
            if make is Make.OURS:
                assert answer == taken
                assert follower.lives
            else:
                await story.until(lambda: not follower.lives, "the package has ended")
                assert "cowardly refusing to truncate log to 0 before commit index: 1" in follower.last_words()
                print("\nthe package ends when this comes twice:", " ".join(frame.hex() for frame in append))
            await group.close()
            nursery.cancel_scope.cancel()


async def exchange(context: zmq.Context[zmq.Socket[bytes]], url: str, frames: list[bytes]) -> list[bytes] | None:
    """Send a message by a connection of its own; its answer, or None if there is none within 2 s."""

    def ask() -> list[bytes] | None:
        with context.socket(zmq.DEALER) as dealer:
            dealer.linger = 0
            dealer.connect(url)
            dealer.send_multipart(frames)
            return dealer.recv_multipart() if dealer.poll(ANSWER_MS) else None

    return await trio.to_thread.run_sync(ask)
