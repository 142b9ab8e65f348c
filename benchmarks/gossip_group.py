"""Groups of real processes on loopback, Garlic Farm's or serf's, that can be killed, stopped and watched.

Each process writes the statuses of the others to its standard output; a task for each records the last status and all
changes. Processes are ended by the handles that started them. Garlic Farm's also end when this process ends.
"""

import base64
import json
import math
import os
import re
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import trio

from benchmarks.child import BenchmarkError, Child, ChildError
from bridge.node.local.farm_files import LOOPBACK
from tests.processes import free_ports

START_TIMEOUT_S = 60.0
_SERF_KEY = base64.b64encode(b"a key that keeps nothing secret.").decode()
_SERF_EVENT = re.compile(r"EventMember(Join|Failed|Leave): (\S+)|memberlist: Suspect (\S+) has failed")
_SERF_STATUS = {"Join": "alive", "Failed": "dead", "Leave": "left"}


@dataclass(frozen=True, slots=True)
class Change:
    """A change of status of one process, seen by another, with its time (seconds, the system's monotonic clock)."""

    at: float
    name: str
    status: str


@dataclass(slots=True)
class Observer:
    """The statuses of all processes, as printed by one process."""

    story: list[Change] = field(default_factory=list)
    status: dict[str, str] = field(default_factory=dict)

    def saw(self, change: Change) -> None:
        """Record a change."""
        self.story.append(change)
        self.status[change.name] = change.status

    def first(self, name: str, statuses: Collection[str], since: float) -> float | None:
        """Return the time when it first saw `name` in one of these statuses, after `since`."""
        return next((c.at for c in self.story if c.name == name and c.status in statuses and c.at >= since), None)


@dataclass(slots=True, kw_only=True)
class Member(Observer):
    """One process, and its printed changes."""

    child: Child
    name: str = ""
    address: str = ""


class Group:
    """The processes of one group."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.members: list[Member] = []
        self._nursery = nursery
        self._line_received = trio.Event()
        self._serfs = 0

    async def start(self, *seeds: Member, options: Iterable[str] = (), program: str = "gossip_node") -> Member:
        """Start another process of Garlic Farm, and wait until it is ready."""
        command = [sys.executable, "-m", f"benchmarks.{program}", *options]
        for seed in seeds:
            command += ["--seed", seed.address]
        member = await self._launch(command, _record_own)
        await self.until("the node is ready", lambda: bool(member.address))
        return member

    async def start_many(self, count: int) -> None:
        """Start a first process, then the others, which join through it at the same time."""
        first = await self.start()
        async with trio.open_nursery() as nursery:
            for _ in range(count - 1):
                nursery.start_soon(self.start, first)

    async def start_serfs(self, count: int, program: str) -> None:
        """Start further serf agents with serf's timing for a LAN; the group's first agent is the seed of all others."""
        for _ in range(count):
            await self._start_serf(program)

    async def _start_serf(self, program: str) -> None:
        port, rpc_port = serf_ports()
        self._serfs += 1
        name = f"serf-{self._serfs}"
        command = [
            *(program, "agent", f"-node={name}", f"-bind=127.0.0.1:{port}", f"-rpc-addr=127.0.0.1:{rpc_port}"),
            *("-profile=lan", f"-encrypt={_SERF_KEY}"),
            *((f"-retry-join={self.members[0].address}", "-retry-interval=1s") if self.members else ()),
        ]
        member = await self._launch(command, record_serf)
        member.name, member.address = name, f"127.0.0.1:{port}"

    async def _launch(self, command: list[str], record: Callable[[Member, str], None]) -> Member:
        member = Member(child=await Child.start(command[0], command, Path(os.devnull)))
        self.members.append(member)
        self._nursery.start_soon(self._listen, member, record)
        return member

    async def _listen(self, member: Member, record: Callable[[Member, str], None]) -> None:
        with suppress(ChildError):  # the process ended
            while True:
                record(member, await member.child.receive_line(math.inf))
                self._line_received.set()
                self._line_received = trio.Event()

    async def until(self, what: str, holds: Callable[[], bool], timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until a condition is true; it is checked after each line of a process."""
        with trio.move_on_after(timeout_s):
            while not holds():
                await self._line_received.wait()
            return
        raise BenchmarkError(f"waited {timeout_s:g} s in vain: {what}")

    async def converge(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until every running process sees every other one alive."""
        await self.until("every process sees all others alive", self.converged, timeout_s)

    def converged(self) -> bool:
        """Return True if every running process sees every other one alive."""
        running = [member for member in self.members if member.child.running]
        return all(
            member.status.get(other.name) == "alive" for member in running for other in running if other is not member
        )

    async def kill(self, member: Member) -> float:
        """Kill a process; return the time."""
        killed_at = time.monotonic()
        member.child.kill()
        await member.child.process.wait()
        return killed_at

    async def stop(self) -> None:
        """End all processes, including stopped ones."""
        for member in self.members:
            member.child.signal(signal.SIGCONT)
            member.child.signal(signal.SIGTERM)
        for member in self.members:
            await member.child.end()


@asynccontextmanager
async def processes() -> AsyncIterator[Group]:
    """Start a group that ends with the block."""
    async with trio.open_nursery() as nursery:
        group = Group(nursery)
        try:
            yield group
        finally:
            with trio.CancelScope(shield=True):
                await group.stop()
            nursery.cancel_scope.cancel()


def _record_own(member: Member, line: str) -> None:
    report = json.loads(line)
    if "address" in report:
        member.address, member.name = report["address"], report["node"]
    else:
        member.saw(Change(report["at"], report["node"], report["status"]))


def record_serf(observer: Observer, line: str) -> None:
    """Record the change of another agent in a line of serf's log.

    A suspicion is recorded as a change only, never as the status. The probe that logs it and the timer that declares
    the failure are separate goroutines, so the line may follow the failure. And serf does not log a refuted suspicion.
    As a status, either suspicion would be permanent.
    """
    found = _SERF_EVENT.search(line)
    if found is None:
        return
    event, name, suspect = found.groups()
    if suspect:
        observer.story.append(Change(time.monotonic(), suspect, "suspect"))
    else:
        observer.saw(Change(time.monotonic(), name, _SERF_STATUS[event]))


def serf_ports() -> tuple[int, int]:
    """Return a port of loopback without a UDP or TCP socket, because serf binds both, and another TCP port."""
    while True:
        port, rpc_port = free_ports(2)
        with suppress(OSError), socket.socket(type=socket.SOCK_DGRAM) as udp:
            udp.bind((LOOPBACK, port))
            return port, rpc_port
