"""The product's ØMQ Raft and the npm package zmq-raft in one cluster, each as server and as client, on loopback.

`make interop-zmq` downloads the package and runs these stories. Each prints its figures: how often a server of the
package ended unexpectedly, and why.
"""

import random
import sys
from collections import Counter
from contextlib import aclosing
from pathlib import Path

import pytest
import trio
import zmq

from benchmarks import zmq_raft_group
from benchmarks.zmq_raft_group import IDENT, PackageClient, Program, ZmqRaftGroup, running_zmq_raft_group
from consensus.core.model import Entry, EntryKind
from consensus.protocols import zmq_raft
from consensus.protocols.zmq_raft import ZmqRaftClient
from consensus.protocols.zmq_raft.wire.codec import encode_reply, encode_request
from consensus.protocols.zmq_raft.wire.messages import AppendEntriesResponse, AppendEntriesRpc
from tests.interop.zmq import story
from tests.interop.zmq.package_tools import configure, remove
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
"""With this option the package accepts ids of this age, and keeps them 10 s longer. In our servers they have
expired."""
COMPACTED = (
    "--compact-at",
    "1",
    "--compact-command",
    f"{sys.executable} {Path(story.__file__).with_name('compact.py')}",
)
PACKAGES = [Program.PACKAGE] * 3
OURS = [Program.OURS] * 3
MIXED = {
    "two-of-theirs": [Program.PACKAGE, Program.PACKAGE, Program.OURS],
    "one-of-theirs": [Program.PACKAGE, Program.OURS, Program.OURS],
}
_PACKAGE, _OURS = Program.PACKAGE, Program.OURS
TRANSFERS = {
    "two-of-theirs": (MIXED["two-of-theirs"], [(_PACKAGE, _PACKAGE), (_PACKAGE, _OURS), (_OURS, _PACKAGE)]),
    "one-of-theirs": (MIXED["one-of-theirs"], [(_PACKAGE, _OURS), (_OURS, _PACKAGE)]),
    "one-of-theirs-twice-ours": (MIXED["one-of-theirs"], [(_PACKAGE, _OURS), (_OURS, _OURS)]),
}
"""Givers and takers of snapshots. A compaction of our server needs an update with a fresh id. For hours that update
prevents further compactions, so each group has at most one compaction, at the end."""
GROUPS = {"theirs": PACKAGES, "ours": OURS, **MIXED}
every_group = pytest.mark.parametrize("programs", GROUPS.values(), ids=GROUPS.keys())


def package_updates(client: PackageClient) -> Updates:
    async def submit(request_id: bytes, data: bytes) -> int:
        return int(await client.do("update", id=request_id.hex(), data=data.hex(), timeout=10_000))

    return Updates(submit)


def own_updates(client: ZmqRaftClient) -> Updates:
    async def submit(request_id: bytes, data: bytes) -> int:
        return await client.update(data, request_id, timeout_s=10.0)

    return Updates(submit)


def print_figures(group: ZmqRaftGroup, updates: Updates, *more: object) -> None:
    ended = {peer_id: len(found) for peer_id, found in story.deaths(group).items()}
    print(f"\n{len(updates.committed)} updates, failures {dict(updates.failures)}, ended unexpectedly {ended}", *more)
    for peer_id, found in story.deaths(group).items():
        reasons = Counter(line.partition(" ")[2] for each in found for line in each.splitlines() if "ERROR" in line)
        print(f"  {peer_id}: {dict(reasons)}")


@every_group
async def test_package_client_commits_each_update_once(tmp_path: Path, programs: list[Program]) -> None:
    with trio.fail_after(STORY_S):
        async with running_zmq_raft_group(tmp_path, programs) as group:
            client = await group.client()
            updates = package_updates(client)
            leader = await group.leader()
            assert await client.do("config") == {
                "leader": leader.peer_id,
                "peers": [list(peer) for peer in group.peers],
            }
            await client.do("subscribe", after=0)
            await updates.submit_some(UPDATES // 2)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(updates.submit_some, UPDATES // 2)
                await group.kill(leader)
                await group.leader()
            await updates.repeat(100)
            await group.start_again(leader)
            await story.wait_until_caught_up(group, leader, max(updates.committed.values()))
            found = await client.do("entries", after=0)
            assert found["snapshot"] is None
            entries = {index: bytes.fromhex(frame) for index, frame in found["entries"]}
            assert list(entries) == list(range(1, len(entries) + 1))
            await story.wait_for_subscription(client, max(updates.committed.values()))
            received = [(index, bytes.fromhex(frame)) for each in client.subscribed for index, frame in [each["entry"]]]
            assert received == sorted(entries.items())[: len(received)]
            logs = await story.same_logs(group, updates)
            assert logs[0].entries == entries
            print_figures(group, updates)
            assert story.deaths(group) == {}


async def test_our_client_commits_each_update_once_on_package_servers(tmp_path: Path) -> None:
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
            received: list[tuple[int, bytes]] = []
            nursery.start_soon(story.collect_subscription, client, received)
            await updates.submit_some(UPDATES // 2)
            async with trio.open_nursery() as under_way:
                under_way.start_soon(updates.submit_some, UPDATES // 2)
                await group.kill(leader)
                await group.leader()
            await updates.repeat(100)
            await group.start_again(leader)
            last = max(updates.committed.values())
            await story.wait_until_caught_up(group, leader, last)
            info = await client.log_info(leader.url)
            assert (info.is_leader, info.first_index, info.last_index) == (False, 1, last)
            async with aclosing(client.entries(0)) as found:
                entries = [story.index_and_frame(entry) async for entry in found]
            assert [index for index, _ in entries] == list(range(1, last + 1))
            await story.wait_until(lambda: len(received) == last, "all entries by subscription")
            assert received == entries
            nursery.cancel_scope.cancel()
        logs = await story.same_logs(group, updates)
        assert logs[0].entries == dict(entries)
        print_figures(group, updates)
        assert story.deaths(group) == {}


@every_group
async def test_updates_survive_members_killed_one_by_one(tmp_path: Path, programs: list[Program]) -> None:
    recorder = Recorder()
    with trio.fail_after(STORY_S):
        async with (
            running_zmq_raft_group(tmp_path, programs, relay=recorder.relay) as group,
            trio.open_nursery() as nursery,
        ):
            updates, alive = package_updates(await group.client()), story.KeptAlive(group, recorder)
            nursery.start_soon(updates.forever)
            nursery.start_soon(alive.run)
            led = await story.kill_each(group, updates, KILLS)
            for program in set(programs) - set(led):
                await story.elect_server_of(group, program)
                await story.wait_for_updates(updates, 20)
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                await story.wait_until_settled(group, updates)
        await story.same_logs(group, updates)
        print_figures(group, updates, f"led after a death: {led}")
        assert alive.killed_by_ours == []
        assert all(member.deaths == [] for member in group.members.values() if member.program is Program.OURS)


@pytest.mark.parametrize("programs", MIXED.values(), ids=MIXED.keys())
async def test_updates_survive_random_faults(tmp_path: Path, programs: list[Program]) -> None:
    recorder, chance, done = Recorder(), random.Random(SEED), Counter[str]()
    print(f"\nseed {SEED}")
    with trio.fail_after(STORY_S):
        async with (
            running_zmq_raft_group(tmp_path, programs, relay=recorder.relay) as group,
            trio.open_nursery() as nursery,
        ):
            updates, alive = package_updates(await group.client()), story.KeptAlive(group, recorder)
            nursery.start_soon(updates.forever, 24)
            nursery.start_soon(alive.run)
            for _ in range(FAULTS):
                fault = chance.choice([story.kill, story.stop_for_a_while, story.cut_connections])
                await fault(group, recorder, chance.choice(list(group.members.values())), chance)
                done[fault.__name__] += 1
                if not await story.makes_progress(updates):
                    # A leader of the package that repeatedly ends a follower (docs/reference/zmq-raft.md).
                    assert (await group.leader()).program is Program.PACKAGE
                    await story.kill(group, recorder, await group.leader(), chance)
                    done["leader killed to continue"] += 1
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                await story.wait_until_settled(group, updates)
        await story.same_logs(group, updates)
        print_figures(group, updates, dict(done))
        assert alive.killed_by_ours == []
        assert all(member.deaths == [] for member in group.members.values() if member.program is Program.OURS)


@pytest.mark.parametrize("programs", MIXED.values(), ids=MIXED.keys())
async def test_membership_changes_complete_despite_kills(tmp_path: Path, programs: list[Program]) -> None:
    recorder, chance = Recorder(), random.Random(SEED)
    print(f"\nseed {SEED}")
    with trio.fail_after(STORY_S):
        async with (
            running_zmq_raft_group(tmp_path, programs, relay=recorder.relay) as group,
            trio.open_nursery() as nursery,
        ):
            client = await group.client()
            updates, before = package_updates(client), group.peers
            nursery.start_soon(updates.forever)
            newcomer = group.add("4", Program.OURS)
            await group.start(newcomer, before)
            for peers in [group.peers, before] * (CHANGES // 2):
                leader = await group.leader()
                victim = leader if leader.program is Program.OURS else group.members["3"]
                async with trio.open_nursery() as change:
                    change.start_soon(story.change, client, peers)
                    await trio.sleep(chance.random() * 0.08)
                    await story.kill(group, recorder, victim, chance)
                await story.wait_for_members(client, peers)
                await story.wait_for_updates(updates, 3)
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                await remove(group, newcomer)
                await story.wait_until_settled(group, updates)
        await story.same_logs(group, updates)
        print_figures(group, updates)
        assert story.deaths(group) == {}


@pytest.mark.parametrize(("programs", "transfers"), TRANSFERS.values(), ids=TRANSFERS.keys())
async def test_members_without_log_receive_snapshots(
    tmp_path: Path, programs: list[Program], transfers: list[tuple[Program, Program]]
) -> None:
    with trio.fail_after(STORY_S):
        async with running_zmq_raft_group(tmp_path, programs, options=LONG_TTL, arguments=COMPACTED) as group:
            updates = package_updates(await group.client())
            updates.seconds_ago, updates.payload_bytes = OLD_S, 1024
            snapshots = []
            for giver, taker in transfers:
                member = next(each for each in group.members.values() if each.program is taker)
                await story.elect_server_of(group, Program.PACKAGE)
                await updates.submit_some(1_100)
                await story.wait_until_settled(group, updates)
                index = await story.give_snapshot(group, updates, giver, member)
                await story.wait_until_settled(group, updates)
                snapshots.append(f"{giver.value} gives {taker.value} one up to {index}")
        logs = await story.same_logs(group, updates)
        in_order = sorted((index, updates.payloads[each]) for each, index in updates.committed.items())
        for log in logs:
            assert log.snapshot == b"".join(payload for index, payload in in_order if index <= log.snapshot_index)
        print_figures(group, updates, *snapshots)


@pytest.mark.parametrize("newcomer", Program, ids=lambda program: f"newcomer-{program.value}")
@every_group
async def test_zr_config_adds_and_removes_members(tmp_path: Path, programs: list[Program], newcomer: Program) -> None:
    with trio.fail_after(STORY_S):
        async with running_zmq_raft_group(tmp_path, programs) as group:
            client = await group.client()
            updates = package_updates(client)
            await updates.submit_some(50)
            before = group.peers
            member = group.add("4", newcomer)
            await group.start(member, before)
            await configure(group, "-a", f"{member.url}/4")
            await story.wait_for_members(client, group.peers)
            await updates.submit_some(50)
            await story.wait_until_caught_up(group, member, max(updates.committed.values()))
            leader = await group.leader()
            after = [peer for peer in group.peers if peer[0] != leader.peer_id]
            await configure(group, "-d", f"{leader.url}/{leader.peer_id}")
            await story.wait_for_members(client, after)
            await remove(group, leader)
            await group.leader()
            await updates.submit_some(50)
            await story.wait_until_settled(group, updates)
        await story.same_logs(group, updates)
        print_figures(group, updates)


@pytest.mark.parametrize("program", Program, ids=lambda program: program.value)
async def test_append_repeated_on_new_connection_ends_only_package(tmp_path: Path, program: Program) -> None:
    with trio.fail_after(STORY_S), zmq.Context() as context:
        async with trio.open_nursery() as nursery:
            group = ZmqRaftGroup(tmp_path, nursery, options={"electionTimeoutMin": 9_000, "electionTimeoutMax": 9_999})
            group.arguments = ("--election-timeout", "9000-9999")
            # Given: a follower, and its leader with a committed update there
            follower, leader = group.add("1", program), group.add("2", Program.PACKAGE)
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
            await story.wait_for_log_info(
                group, follower, lambda found: found["lastApplied"] == 1, "the update applied"
            )
            # When: the append is sent again on another connection, since the reply was lost with the first
            answer = await exchange(context, follower.url, append)
            # Then: our server sends the same reply, and the package exits
            if program is Program.OURS:
                assert answer == taken
                assert follower.lives
            else:
                await story.wait_until(lambda: not follower.lives, "the package has ended")
                assert "cowardly refusing to truncate log to 0 before commit index: 1" in follower.last_output()
                print("\nthe package exits when it receives this twice:", " ".join(frame.hex() for frame in append))
            await group.close()
            nursery.cancel_scope.cancel()


async def exchange(context: zmq.Context[zmq.Socket[bytes]], url: str, frames: list[bytes]) -> list[bytes] | None:
    """Send a message on a separate connection; return the reply, or None after 2 s."""

    def send_and_receive() -> list[bytes] | None:
        with context.socket(zmq.DEALER) as dealer:
            dealer.linger = 0
            dealer.connect(url)
            dealer.send_multipart(frames)
            return dealer.recv_multipart() if dealer.poll(ANSWER_MS) else None

    return await trio.to_thread.run_sync(send_and_receive)
