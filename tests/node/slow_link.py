"""Links with a bandwidth, in memory under a MockClock, and groups of servers that such links connect.

    send_all ─▶ socket buffer of the stream ─▶ the link's pipe, shared by all streams of one direction ─▶ receive_some

A pipe carries one segment at a time at its rate, so streams share it fairly. A sender waits only if its socket buffer
is full, as with a kernel's buffer: a sender cannot see which bytes have arrived.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import trio
import trio.testing

from consensus.core.effects import Outcome, Role
from consensus.server.server import ConsensusServer
from consensus.server.status import Notice
from consensus.storage.planner import Owner, Recovery, StorageOptions, recover
from tests.node.kept_entries import KeptEntries
from tests.node.memory_server import MemoryDisk

NUMBERS = (1, 2, 3)
STORAGE = StorageOptions(segment_bytes=1024 * 1024)
TIMEOUT_S = 600
MEGABIT_PER_S = 125_000
"""Bytes per second of a link of 1 Mbit/s."""
SOCKET_BYTES = 256 * 1024
_SEGMENT_BYTES = 16_384
"""Larger than real segments, to save processor time. A heartbeat waits at most 0.13 s for the segment before it."""


@dataclass
class Pipe:
    """One direction of a link. `bytes_per_s` may change at any time."""

    bytes_per_s: float
    carried_bytes: int = 0
    _free_s: float = 0.0

    async def carry(self, count: int) -> None:
        """Return when these bytes have arrived."""
        now_s = trio.current_time()
        self._free_s = max(now_s, self._free_s) + count / self.bytes_per_s
        self.carried_bytes += count
        await trio.sleep_until(self._free_s)


class _Direction:
    """The bytes that one end sends to the other."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._waiting = bytearray()
        self._arrived = bytearray()
        self._changed = trio.Event()
        self.is_closed = False
        self._is_over = False

    async def put(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            if self.is_closed:
                raise trio.BrokenResourceError("the peer has closed")
            room = SOCKET_BYTES - len(self._waiting)
            if room > 0:
                self._waiting += view[:room]
                view = view[room:]
                self._change()
            else:
                await self._changed.wait()
        await trio.lowlevel.checkpoint()

    async def get(self, limit: int) -> bytes:
        while not self._arrived and not self._is_over:
            await self._changed.wait()
        data = bytes(self._arrived[:limit])
        del self._arrived[:limit]
        return data

    def close(self) -> None:
        self.is_closed = True
        self._change()

    async def pump(self) -> None:
        while not self.is_closed or self._waiting:
            if not self._waiting:
                await self._changed.wait()
                continue
            segment = bytes(self._waiting[:_SEGMENT_BYTES])
            await self._pipe.carry(len(segment))
            del self._waiting[: len(segment)]
            self._arrived += segment
            self._change()
        self._is_over = True
        self._change()

    def _change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


class SlowStream(trio.abc.Stream):
    """One end of a connection over a link."""

    def __init__(self, out: _Direction, back: _Direction) -> None:
        self._out = out
        self._back = back
        self._closed = False

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Return when the socket buffer has accepted all bytes."""
        self._check_open()
        await self._out.put(bytes(data))

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        self._check_open()
        data = await self._back.get(max_bytes or 65_536)
        await trio.lowlevel.checkpoint()
        return data

    async def aclose(self) -> None:
        """Close both directions; buffered bytes are still sent."""
        if not self._closed:
            self._closed = True
            self._out.close()
            self._back.close()
        await trio.lowlevel.checkpoint()

    def _check_open(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError("this stream is closed")


def slow_pair(nursery: trio.Nursery, there: Pipe, back: Pipe) -> tuple[SlowStream, SlowStream]:
    """Return both ends of a connection; the first end sends through `there`. Tasks of the nursery move the segments."""
    out, home = _Direction(there), _Direction(back)
    nursery.start_soon(out.pump)
    nursery.start_soon(home.pump)
    return SlowStream(out, home), SlowStream(home, out)


def in_memory(test: Callable[[], object]) -> None:
    trio.run(test, clock=trio.testing.MockClock(autojump_threshold=0))  # type: ignore[arg-type]


@dataclass
class Member:
    """A running server."""

    server: ConsensusServer
    machine: KeptEntries
    scope: trio.CancelScope
    ended: trio.Event = field(default_factory=trio.Event)


class SlowGroup(ABC):
    """Three servers connected by pipes: one toward each server, shared by all of its connections."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.members: dict[int, Member] = {}
        self.toward = {number: Pipe(100 * MEGABIT_PER_S) for number in NUMBERS}
        self.leaders: list[int] = []
        """Servers that became leaders, in order."""
        self._disks = {number: MemoryDisk() for number in NUMBERS}
        self._nursery = nursery

    @abstractmethod
    def build(self, number: int, recovery: Recovery, disk: MemoryDisk, machine: KeptEntries) -> ConsensusServer:
        """Return a server that is not running yet; it passes its notices to `observe`."""

    async def start(self, *numbers: int) -> None:
        """Run servers on the data of their disks."""
        for number in numbers:
            await self._nursery.start(self._run, number)

    async def stop(self, number: int) -> None:
        member = self.members.pop(number)
        member.scope.cancel()
        await member.ended.wait()

    async def leader(self) -> int:
        """Return the leader after its term has a committed entry."""
        while True:
            for number, member in self.members.items():
                raft = member.server.describe().raft
                if raft.role is Role.LEADER and raft.commit_index == raft.last.index:
                    return number
            await trio.sleep(0.01)

    async def write(self, number: int, proposals: Sequence[tuple[bytes, ...]]) -> None:
        """Propose entries to the leader until they are committed."""
        for proposal in proposals:
            answer = await self.members[number].server.propose(proposal)
            assert answer.outcome is Outcome.COMMITTED

    async def check_catching_up(self, missing: Sequence[tuple[bytes, ...]], longest_s: float) -> None:
        """Check that a follower receives the missing entries at 1 Mbit/s while its leader keeps its term."""
        least_s = sum(len(entry) for proposal in missing for entry in proposal) / MEGABIT_PER_S
        leader = await self.leader()
        follower = next(number for number in NUMBERS if number != leader)
        await self.stop(follower)
        await self.write(leader, missing)
        self.toward[follower].bytes_per_s = MEGABIT_PER_S
        await trio.sleep(3)
        await self.start(follower)
        began_s = trio.current_time()
        await self.members[follower].server.wait_applied(self.members[leader].server.commit_index)
        assert 0.95 * least_s < trio.current_time() - began_s < longest_s
        assert self.leaders == [leader]
        assert self.members[follower].machine.entries == self.members[leader].machine.entries

    async def check_commit(self, proposals: Sequence[tuple[bytes, ...]]) -> None:
        """Check that the leader keeps its term while entries go to both followers at 1 Mbit/s."""
        leader = await self.leader()
        for number in {*NUMBERS} - {leader}:
            self.toward[number].bytes_per_s = MEGABIT_PER_S
        await self.write(leader, proposals)
        assert self.leaders == [leader]

    def observe(self, number: int) -> Callable[[Notice], None]:
        def note_leader(_: Notice) -> None:
            if self.members[number].server.role.role is Role.LEADER and self.leaders[-1:] != [number]:
                self.leaders.append(number)

        return note_leader

    async def _run(self, number: int, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        disk, machine = self._disks[number], KeptEntries()
        recovery = recover(disk, Owner(b"node-%03d" % number, 1, 1), bytes(16), STORAGE)
        disk.run(recovery.operations)
        server = self.build(number, recovery, disk, machine)
        with trio.CancelScope() as scope:
            self.members[number] = member = Member(server, machine, scope)
            async with trio.open_nursery() as nursery:
                await nursery.start(server.run)
                task_status.started()
                await trio.sleep_forever()
        member.ended.set()


def run_slow_group(made: Callable[[trio.Nursery], SlowGroup], story: Callable[[SlowGroup], Awaitable[None]]) -> None:
    """Run a story of three servers with fast links."""

    async def run() -> None:
        with trio.fail_after(TIMEOUT_S):
            async with trio.open_nursery() as nursery:
                group = made(nursery)
                await group.start(*NUMBERS)
                await story(group)
                nursery.cancel_scope.cancel()

    in_memory(run)
