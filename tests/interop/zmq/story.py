"""What the stories with the npm package have in common: updates that go on, members that are killed, logs compared.

Updates    numbered updates, each repeated under its request id until a server says at which index it is committed
kill_in_turn   kill -9, a while, start again, wait until it has caught up; the next member
same_logs  every member's own log, from its disk: entry by entry the same, each update once, at its index
"""

import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import trio

from benchmarks.zmq_raft_group import Make, Member, PackageClient, ZmqRaftGroup, stored_package_log

STATE = 0
REQUEST_ID_BYTES = 12
HEAD_BYTES = 20
CATCH_UP_S = 30.0
POLL_S = 0.02
REVIVE_S = 0.05
RETRY_S = 0.05


@dataclass(slots=True)
class Updates:
    """Updates of one client. `submit` has (request id, data) committed and gives the index, or raises `Exception`.

    An update that failed is sent again under its id, because it may have been committed all the same.
    """

    submit: Callable[[bytes, bytes], Awaitable[int]]
    seconds_ago: int = 0
    """How old the request ids are made."""
    committed: dict[bytes, int] = field(default_factory=dict)
    payloads: dict[bytes, bytes] = field(default_factory=dict)
    repeats: int = 0
    failures: Counter[str] = field(default_factory=Counter)

    def new_id(self) -> bytes:
        """A request id of its own."""
        return (int(time.time()) - self.seconds_ago).to_bytes(4, "big") + os.urandom(8)

    async def one(self) -> int:
        """One more update, until it is committed."""
        request_id = self.new_id()
        self.payloads[request_id] = f"update {len(self.payloads) + 1}".encode()
        while True:
            try:
                index = await self.submit(request_id, self.payloads[request_id])
            except trio.Cancelled:
                raise
            except Exception as error:  # noqa: BLE001 - each make's client has its own; the story counts them
                self.failures[f"{type(error).__name__}: {error}"] += 1
                await trio.sleep(RETRY_S)
            else:
                self.committed[request_id] = index
                return index

    async def some(self, count: int, at_once: int = 16) -> None:
        """So many updates."""
        target = len(self.payloads) + count
        async with trio.open_nursery() as nursery:
            for _ in range(at_once):
                nursery.start_soon(self._until, target)

    async def _until(self, target: int) -> None:
        while len(self.payloads) < target:
            await self.one()

    async def on_and_on(self, at_once: int = 8) -> None:
        """Updates until the task is cancelled. Those under way then may be committed or not."""
        async with trio.open_nursery() as nursery:
            for _ in range(at_once):
                nursery.start_soon(self._forever)

    async def _forever(self) -> None:
        while True:
            await self.one()

    async def repeat(self, count: int) -> None:
        """Send updates that are committed once more: the index is the one that it was."""
        for request_id, index in list(self.committed.items())[-count:]:
            assert await self.submit(request_id, self.payloads[request_id]) == index
            self.repeats += 1


@dataclass(frozen=True, slots=True)
class MemberLog:
    """What a stopped member has on disk: up to where a snapshot stands, and the frames of the entries behind it."""

    peer_id: str
    snapshot_index: int
    snapshot: bytes
    entries: dict[int, bytes]

    @property
    def last(self) -> int:
        """The last index."""
        return max(self.entries, default=self.snapshot_index)


async def log_of(member: Member) -> MemberLog:
    """The log of a stopped member."""
    found = await stored_package_log(member.directory)
    return MemberLog(member.peer_id, found.snapshot_index, found.snapshot, found.entries)


async def same_logs(group: ZmqRaftGroup, updates: Updates) -> list[MemberLog]:
    """Stop all members and compare: entries from the latest snapshot on, and where each update is."""
    commit = max(updates.committed.values())
    for member in group.members.values():
        await group.stop(member)
    logs = [await log_of(member) for member in group.members.values()]
    for log in logs:
        assert log.last >= commit, f"{log.peer_id} ends at {log.last}, and {commit} is committed"
    first = max(log.snapshot_index for log in logs) + 1
    for index in range(first, commit + 1):
        frames = {log.entries[index] for log in logs}
        assert len(frames) == 1, f"entry {index}: {[(log.peer_id, log.entries[index].hex()) for log in logs]}"
    once_each(logs, updates)
    return logs


def once_each(logs: list[MemberLog], updates: Updates) -> None:
    """Every committed update is in every log that has its index, there and nowhere else."""
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
                assert log.entries[index][HEAD_BYTES:] == updates.payloads[request_id]


async def caught_up(group: ZmqRaftGroup, member: Member, index: int) -> None:
    """Wait until a member has the entry at `index`."""
    await told(group, member, lambda found: found["lastIndex"] >= index, f"the entry at {index}")


async def begins_behind(group: ZmqRaftGroup, member: Member, index: int) -> None:
    """Wait until a snapshot stands for a member's entries up to `index`."""
    await told(group, member, lambda found: found["firstIndex"] == index + 1, f"a snapshot up to {index}")


async def expired(group: ZmqRaftGroup, member: Member, index: int) -> None:
    """Wait until a member remembers no request id up to `index`."""
    await told(group, member, lambda found: found["pruneIndex"] >= index, f"no fresh request up to {index}")


async def told(group: ZmqRaftGroup, member: Member, what: Callable[[dict[str, Any]], bool], name: str) -> None:
    """Wait until a member tells something about its log."""
    found = None
    with trio.move_on_after(CATCH_UP_S):
        while found is None or not what(found):
            await trio.sleep(POLL_S)
            found = await group.info(member)
        return
    raise AssertionError(f"{member.peer_id} does not have {name}: {found}; …{member.last_words()}")


async def configured(client: PackageClient, peers: Sequence[tuple[str, str]]) -> None:
    """Wait until the leader names these members and no others: during a change it names those of both sides."""
    found = None
    with trio.move_on_after(CATCH_UP_S):
        while found != [list(peer) for peer in peers]:
            await trio.sleep(POLL_S)
            found = (await client.do("config"))["peers"]
        return
    raise AssertionError(f"the members are {found}, not {peers}")


async def kill_in_turn(group: ZmqRaftGroup, updates: Updates, times: int) -> Counter[Make]:
    """Kill members one after the other while updates go on; who led after each death."""
    led: Counter[Make] = Counter()
    for number in range(times):
        victim = list(group.members.values())[number % len(group.members)]
        while victim.child is None:  # noqa: ASYNC110 - it died by itself, and is being started again
            await trio.sleep(POLL_S)
        await group.kill(victim)
        led[(await group.leader()).make] += 1
        await more(updates, 5)
        await group.start_again(victim)
        await caught_up(group, victim, max(updates.committed.values()))
    return led


async def more(updates: Updates, count: int) -> None:
    """Wait until so many more updates are committed."""
    target = len(updates.committed) + count
    with trio.move_on_after(CATCH_UP_S):
        while len(updates.committed) < target:  # noqa: ASYNC110 - the updates are of another task
            await trio.sleep(POLL_S)
        return
    raise AssertionError(f"no {count} updates within {CATCH_UP_S:g} s; {updates.failures.most_common(5)}")


async def keep_alive(group: ZmqRaftGroup) -> None:
    """Start again what dies by itself, until the task is cancelled."""
    while True:
        await group.revive()
        await trio.sleep(REVIVE_S)


def deaths(group: ZmqRaftGroup) -> dict[str, list[str]]:
    """What members died of by themselves."""
    return {member.peer_id: member.deaths for member in group.members.values() if member.deaths}


async def subscribed(client: PackageClient, index: int) -> None:
    """Wait until the subscription of the package's client has brought the entry at `index`."""
    with trio.move_on_after(CATCH_UP_S):
        while not client.subscribed or client.subscribed[-1].get("entry", [0])[0] < index:  # noqa: ASYNC110 - see `more`
            await trio.sleep(POLL_S)
        return
    raise AssertionError(f"the subscription ends at {client.subscribed[-1:]}, before {index}")
