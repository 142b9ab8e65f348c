"""Parts shared by the stories with the npm package: continuous updates, killed members, compared logs.

Updates        numbered updates, each repeated under its request id until a server returns its committed index
kill_each      kill -9, wait, start again, wait until the member has caught up; then the next member
same_logs      every member's log on disk: equal entry by entry, each update once, at its index
"""

import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import trio

from benchmarks.zmq_raft_group import Member, PackageClient, PackageError, Program, ZmqRaftGroup
from consensus.core.model import Entry, EntryKind
from consensus.protocols.zmq_raft import CommittedEntry, LogEntryKind, SnapshotPart, ZmqRaftClient
from consensus.protocols.zmq_raft.wire.entries import entry_frame, read_entries
from consensus.storage.disk import StorageError
from consensus.storage.snapshots import HEADER_BYTES, snapshot_file
from consensus.storage.stored_log import open_stored_log
from tests.interop.zmq.package_tools import compact, revive, stored_package_log
from tests.interop.zmq.relay import Recorded, Recorder

STATE = 0
REQUEST_ID_BYTES = 12
ENTRY_HEAD_BYTES = 20
NO_END = 2**62
CATCH_UP_S = 30.0
POLL_S = 0.02
REVIVE_S = 0.05
RETRY_S = 0.05
ELECTIONS = 20
STALLED_S = 20.0


def new_request_id(seconds_ago: int = 0) -> bytes:
    return (int(time.time()) - seconds_ago).to_bytes(4, "big") + os.urandom(8)


@dataclass(slots=True)
class Updates:
    """Updates of one client. `submit` commits (request id, data) and returns the index, or raises `Exception`.

    A failed update is sent again under its id, because it may have been committed.
    """

    submit: Callable[[bytes, bytes], Awaitable[int]]
    seconds_ago: int = 0
    """Age of the request ids."""
    payload_bytes: int = 0
    """Minimum length of a payload."""
    committed: dict[bytes, int] = field(default_factory=dict)
    payloads: dict[bytes, bytes] = field(default_factory=dict)
    repeats: int = 0
    failures: Counter[str] = field(default_factory=Counter)

    async def submit_one(self) -> int:
        """Submit one more update, until it is committed."""
        request_id = new_request_id(self.seconds_ago)
        self.payloads[request_id] = f"update {len(self.payloads) + 1} ".encode().ljust(self.payload_bytes, b".")
        while True:
            try:
                index = await self.submit(request_id, self.payloads[request_id])
            except trio.Cancelled:
                raise
            except Exception as error:  # noqa: BLE001 - each client raises its own errors; the story counts them
                self.failures[f"{type(error).__name__}: {error}"] += 1
                await trio.sleep(RETRY_S)
            else:
                self.committed[request_id] = index
                return index

    async def submit_some(self, count: int, at_once: int = 16) -> None:
        target = len(self.payloads) + count
        async with trio.open_nursery() as nursery:
            for _ in range(at_once):
                nursery.start_soon(self._until, target)

    async def _until(self, target: int) -> None:
        while len(self.payloads) < target:
            await self.submit_one()

    async def forever(self, at_once: int = 8) -> None:
        """Submit updates until the task is canceled. Updates in flight may then be committed or not."""
        async with trio.open_nursery() as nursery:
            for _ in range(at_once):
                nursery.start_soon(self._forever)

    async def _forever(self) -> None:
        while True:
            await self.submit_one()

    async def repeat(self, count: int) -> None:
        """Send committed updates again: the index must not change."""
        for request_id, index in list(self.committed.items())[-count:]:
            assert await self.submit(request_id, self.payloads[request_id]) == index
            self.repeats += 1


@dataclass(frozen=True, slots=True)
class MemberLog:
    """The log of a stopped member on disk: the index of its snapshot, and the frames of its entries.

    Both implementations keep some of the entries that the snapshot covers.
    """

    peer_id: str
    snapshot_index: int
    snapshot: bytes
    entries: dict[int, bytes]

    @property
    def last(self) -> int:
        return max(self.entries, default=self.snapshot_index)


async def log_of(member: Member) -> MemberLog:
    """Return the log of a stopped member of either implementation."""
    if member.program is Program.OURS:
        return await trio.to_thread.run_sync(own_log, member.peer_id, member.directory)
    found = await stored_package_log(member.directory)
    return MemberLog(member.peer_id, found.snapshot_index, found.snapshot, found.entries)


def own_log(peer_id: str, directory: Path) -> MemberLog:
    """Return the log of our stopped server, in wire form."""
    stored = open_stored_log(directory / "log")
    first = stored.start.index + 1
    entries: dict[int, bytes] = {}
    with suppress(StorageError):  # raised after the last entry
        for _, index, term, kind, data in stored.entries(stored.beginning(stored.segment_of(first)), NO_END):
            entries[index] = entry_frame(Entry(term, EntryKind(kind), data))
    snapshot = stored.snapshot
    if snapshot is None:
        return MemberLog(peer_id, 0, b"", entries)
    content = (stored.path / snapshot_file(snapshot.last)).read_bytes()[HEADER_BYTES:][: snapshot.size_bytes]
    return MemberLog(peer_id, snapshot.last.index, content, entries)


def comparable(frame: bytes) -> object:
    """Return an entry in comparable form: MessagePack has several encodings of a configuration."""
    return frame if frame[REQUEST_ID_BYTES] == STATE else read_entries([frame])[0]


async def same_logs(group: ZmqRaftGroup, updates: Updates) -> list[MemberLog]:
    """Stop all members and compare: entries from the latest snapshot on, and the place of each update."""
    commit = max(updates.committed.values())
    for member in group.members.values():
        await group.stop(member)
    logs = [await log_of(member) for member in group.members.values()]
    for log in logs:
        assert log.last >= commit, f"{log.peer_id} ends at {log.last}, and {commit} is committed"
    first = max(log.snapshot_index for log in logs) + 1
    for index in range(first, commit + 1):
        frames = [comparable(log.entries[index]) for log in logs]
        assert all(frame == frames[0] for frame in frames), (
            f"entry {index}: {[(log.peer_id, log.entries[index].hex()) for log in logs]}"
        )
    check_once_each(logs, updates)
    return logs


def check_once_each(logs: list[MemberLog], updates: Updates) -> None:
    """Check that every committed update is at its index in every log that has the index, and nowhere else."""
    for log in logs:
        places: dict[bytes, list[int]] = {}
        for index, frame in log.entries.items():
            if frame[REQUEST_ID_BYTES] == STATE:
                places.setdefault(frame[:REQUEST_ID_BYTES], []).append(index)
        twice = {key.hex(): found for key, found in places.items() if len(found) > 1}
        assert twice == {}, f"{log.peer_id} has updates twice"
        for request_id, index in updates.committed.items():
            if index > log.snapshot_index:
                assert places.get(request_id) == [index], f"{log.peer_id} has {request_id.hex()} not at {index}"
                assert log.entries[index][ENTRY_HEAD_BYTES:] == updates.payloads[request_id]


async def wait_until_caught_up(group: ZmqRaftGroup, member: Member, index: int) -> None:
    await wait_for_log_info(group, member, lambda found: found["lastIndex"] >= index, f"the entry at {index}")


async def wait_for_snapshot(group: ZmqRaftGroup, member: Member, index: int) -> None:
    """Wait until a snapshot covers a member's entries up to `index`."""
    await wait_for_log_info(group, member, lambda found: found["firstIndex"] == index + 1, f"a snapshot up to {index}")


async def wait_until_expired(group: ZmqRaftGroup, member: Member, index: int) -> None:
    await wait_for_log_info(
        group, member, lambda found: found["pruneIndex"] >= index, f"no fresh request up to {index}"
    )


async def wait_for_log_info(
    group: ZmqRaftGroup, member: Member, what: Callable[[dict[str, Any]], bool], name: str
) -> None:
    """Wait until a member's log information satisfies `what`."""
    found = None
    with trio.move_on_after(CATCH_UP_S):
        while found is None or not what(found):
            await trio.sleep(POLL_S)
            found = await group.info(member)
        return
    raise AssertionError(f"{member.peer_id} does not have {name}: {found}; …{member.last_output()}")


async def wait_for_members(client: PackageClient, peers: Sequence[tuple[str, str]]) -> None:
    """Wait until the leader lists exactly these members; during a change it lists the members of both sides."""
    found = None
    with trio.move_on_after(CATCH_UP_S):
        while found != [list(peer) for peer in peers]:
            await trio.sleep(POLL_S)
            found = (await client.do("config"))["peers"]
        return
    raise AssertionError(f"the members are {found}, not {peers}")


async def kill_each(group: ZmqRaftGroup, updates: Updates, times: int) -> Counter[Program]:
    """Kill members one by one during updates; return the leaders after each kill, by implementation."""
    led: Counter[Program] = Counter()
    for number in range(times):
        victim = list(group.members.values())[number % len(group.members)]
        await wait_until(lambda victim=victim: victim.child is not None, f"{victim.peer_id} runs")  # type: ignore[misc]
        await group.kill(victim)
        led[(await group.leader()).program] += 1
        await wait_for_updates(updates, 5)
        await group.start_again(victim)
        await wait_until_caught_up(group, victim, max(updates.committed.values()))
    return led


async def kill(group: ZmqRaftGroup, _recorder: Recorder, member: Member, chance: random.Random) -> None:
    """Kill a member, and start it again after a while."""
    await wait_until(lambda: member.child is not None, f"{member.peer_id} runs")
    await group.kill(member)
    await trio.sleep(chance.random() * 0.5)
    await group.start_again(member)


async def stop_for_a_while(_group: ZmqRaftGroup, _recorder: Recorder, member: Member, chance: random.Random) -> None:
    """Stop a member's process, and resume it."""
    await wait_until(lambda: member.lives, f"{member.peer_id} runs")
    assert member.child is not None
    os.kill(member.child.pid, signal.SIGSTOP)
    await trio.sleep(chance.choice([0.1, 0.3, 0.7, 2.5]))
    os.kill(member.child.pid, signal.SIGCONT)


async def cut_connections(_group: ZmqRaftGroup, recorder: Recorder, member: Member, chance: random.Random) -> None:
    """End the connections to a member several times, while others continue to send to it."""
    for _ in range(10):
        recorder.cut(member)
        await trio.sleep(chance.random() * 0.1)


async def change(client: PackageClient, peers: Sequence[tuple[str, str]]) -> None:
    """Change the members with the package's client; repeat the request until it succeeds."""
    request_id = new_request_id().hex()
    with trio.move_on_after(CATCH_UP_S):
        while True:
            try:
                await client.do("change", id=request_id, peers=peers, timeout=4_000)
            except PackageError as error:
                refusal = error
                await trio.sleep(RETRY_S)
            else:
                return
    raise AssertionError(f"the members were not changed within {CATCH_UP_S:g} s: {refusal}")


async def elect_server_of(group: ZmqRaftGroup, program: Program, *, is_reelected: bool = False) -> Member:
    """Kill and restart leaders until a server of this implementation leads; with `is_reelected`, by a new election."""
    leader = await group.leader()
    for _ in range(ELECTIONS):
        if leader.program is program and not is_reelected:
            return leader
        is_reelected = False
        await group.kill(leader)
        await group.start_again(leader)
        leader = await group.leader()
    raise AssertionError(f"no server of the program {program.value} leads after {ELECTIONS} elections")


async def wait_until_settled(group: ZmqRaftGroup, updates: Updates) -> None:
    for member in group.members.values():
        await wait_until_caught_up(group, member, max(updates.committed.values()))


async def wait_for_compaction(group: ZmqRaftGroup, leader: Member, index: int) -> int:
    """Wait until a snapshot covers much of the leader's log, and return its index.

    A server of the package makes it on request; our server makes it when it is due.
    """
    if leader.program is Program.PACKAGE:
        await wait_until_expired(group, leader, index)
        await compact(leader, index)
        await wait_for_snapshot(group, leader, index)
        return index
    await wait_for_log_info(group, leader, lambda found: found["firstIndex"] > index // 2, "a snapshot")
    found = await group.info(leader)
    assert found is not None
    return int(found["firstIndex"]) - 1


async def give_snapshot(group: ZmqRaftGroup, updates: Updates, giver: Program, member: Member) -> int:
    """Delete a member's log, make a leader of implementation `giver` compact its own, and start the member again.

    The leader is elected while the member is down, because in a term with acknowledged entries of the member, our
    leader relies on them. Return the last index of the log that the snapshot covers.
    """
    index = max(updates.committed.values())
    await group.kill(member)
    await trio.to_thread.run_sync(shutil.rmtree, member.directory)
    leader = await elect_server_of(group, giver, is_reelected=True)
    if giver is Program.OURS:
        # Our server also considers the newest id, not only its clock. A compaction before the election would not
        # suffice: the restart of a leader reads the segment with the compacted entries again.
        await replace(updates, seconds_ago=0).submit_one()
    index = await wait_for_compaction(group, leader, index)
    await group.start_again(member)
    await wait_for_snapshot(group, member, index)
    return index


async def makes_progress(updates: Updates) -> bool:
    """Return True if updates are committed within a while."""
    with trio.move_on_after(STALLED_S) as time:
        await wait_for_updates(updates, 5)
    return not time.cancelled_caught


async def wait_for_updates(updates: Updates, count: int) -> None:
    """Wait until this number of further updates is committed."""
    target = len(updates.committed) + count
    await wait_until(lambda: len(updates.committed) >= target, f"{count} updates; {updates.failures.most_common(5)}")


@dataclass(slots=True)
class KeptAlive:
    """Restarts members that end unexpectedly, and prints the cause."""

    group: ZmqRaftGroup
    recorder: Recorder
    killed_by_ours: list[Recorded] = field(default_factory=list)
    """Requests of our servers that ended a server of the package."""

    async def run(self) -> None:
        """Restart members until the task is canceled."""
        while True:
            for member in await revive(self.group):
                self._print_cause(member)
            await trio.sleep(REVIVE_S)

    def _print_cause(self, member: Member) -> None:
        cause = self.recorder.cause_of(member, member.deaths[-1])
        print(f"\n{member.program.value} server {member.peer_id} ended unexpectedly: …{member.deaths[-1][-600:]}")
        print(*(self.recorder.last_requests(member, 5) if cause is None else [cause]), sep="\n")
        if cause is not None and self.group.members[cause.sender or ""].program is Program.OURS:
            self.killed_by_ours.append(cause)


def deaths(group: ZmqRaftGroup) -> dict[str, list[str]]:
    return {member.peer_id: member.deaths for member in group.members.values() if member.deaths}


async def wait_for_subscription(client: PackageClient, index: int) -> None:
    """Wait until the subscription of the package's client has received the entry at `index`."""
    await wait_until(
        lambda: bool(client.subscribed) and client.subscribed[-1].get("entry", [0])[0] >= index,
        f"entry {index} by subscription",
    )


async def collect_subscription(client: ZmqRaftClient, received: list[tuple[int, bytes]]) -> None:
    """Collect the entries of a subscription of our client, until the task is canceled."""
    async with aclosing(client.subscribe(0)) as entries:
        async for entry in entries:
            received.append(index_and_frame(entry))  # noqa: PERF401 - it is endless, and others read the list


def index_and_frame(item: CommittedEntry | SnapshotPart) -> tuple[int, bytes]:
    """Return an entry received by our client, in wire form."""
    assert isinstance(item, CommittedEntry)
    kind = list(LogEntryKind).index(item.kind)
    return item.index, item.request_id + bytes((kind,)) + item.term.to_bytes(7, "little") + item.data


async def wait_until(what: Callable[[], bool], name: str) -> None:
    """Wait for a condition that other tasks cause."""
    with trio.move_on_after(CATCH_UP_S):
        while not what():  # noqa: ASYNC110 - any task or process may cause it
            await trio.sleep(POLL_S)
        return
    raise AssertionError(f"not within {CATCH_UP_S:g} s: {name}")
