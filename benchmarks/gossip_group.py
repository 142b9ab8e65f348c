"""Groups of real processes on loopback, Garlic Farm's or serf's, that can be killed, stopped and watched.

Each process writes the statuses of the others to its standard output; a task for each records the last status and all
changes. Processes are ended by the handles that started them. Garlic Farm's also end when this process ends.
"""

import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import trio

from benchmarks.child import processor_seconds, resident_bytes

START_TIMEOUT_S = 60.0
STOP_GRACE_S = 5.0
_SERF_EVENT = re.compile(r"EventMember(Join|Failed|Leave): (\S+)|memberlist: Suspect (\S+) has failed")
_SERF_STATUS = {"Join": "alive", "Failed": "dead", "Leave": "left"}


class GroupError(Exception):
    """A group of processes did not reach the state to measure."""


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

    process: trio.Process
    questions: trio.abc.SendStream
    answers: trio.abc.ReceiveStream
    name: str = ""
    address: str = ""
    summary: dict[str, object] = field(default_factory=dict)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to this very process."""
        if self.process.returncode is None:
            self.process.send_signal(number)

    def processor_seconds(self) -> float:
        """Return the processor time used so far."""
        return processor_seconds(self.process.pid)

    def resident_bytes(self) -> int:
        """Return the resident memory."""
        return resident_bytes(self.process.pid)


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

    async def start_many(self, count: int, options: Iterable[str] = ()) -> None:
        """Start a first process, then the others, which join through it at the same time."""
        first = await self.start(options=options)
        async with trio.open_nursery() as nursery:
            for _ in range(count - 1):
                nursery.start_soon(lambda: self.start(first, options=options))

    async def start_serf(self, program: str, key: str) -> Member:
        """Start another serf agent with LAN timing, bound to loopback; the group's first agent is its seed."""
        port, rpc_port = free_ports(2)
        self._serfs += 1
        name = f"serf-{self._serfs}"
        command = [
            *(program, "agent", f"-node={name}", f"-bind=127.0.0.1:{port}", f"-rpc-addr=127.0.0.1:{rpc_port}"),
            *("-profile=lan", f"-encrypt={key}"),
            *((f"-retry-join={self.members[0].address}", "-retry-interval=1s") if self.members else ()),
        ]
        member = await self._launch(command, record_serf)
        member.name, member.address = name, f"127.0.0.1:{port}"
        return member

    async def _launch(self, command: list[str], record: Callable[[Member, str], None]) -> Member:
        process = await trio.lowlevel.open_process(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        if process.stdin is None or process.stdout is None:
            raise GroupError(f"{command[0]} was started without pipes")
        member = Member(process=process, questions=process.stdin, answers=process.stdout)
        self.members.append(member)
        self._nursery.start_soon(self._listen, member, record)
        return member

    async def _listen(self, member: Member, record: Callable[[Member, str], None]) -> None:
        rest = b""
        async for piece in member.answers:
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                record(member, line.decode(errors="replace"))
            self._line_received.set()
            self._line_received = trio.Event()

    async def until(self, what: str, holds: Callable[[], bool], timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until a condition is true; it is checked after each line of a process."""
        with trio.move_on_after(timeout_s):
            while not holds():
                await self._line_received.wait()
            return
        raise GroupError(f"waited {timeout_s:g} s in vain: {what}")

    async def converge(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until every running process sees every other one alive."""
        await self.until("every process sees all others alive", self.converged, timeout_s)

    def converged(self) -> bool:
        """Return True if every running process sees every other one alive."""
        running = [member for member in self.members if member.process.returncode is None]
        return all(
            member.status.get(other.name) == "alive" for member in running for other in running if other is not member
        )

    async def summaries(self) -> list[dict[str, object]]:
        """Return a summary of each process."""
        for member in self.members:
            member.summary = {}
            await member.questions.send_all(b"\n")
        await self.until("every process answers", lambda: all(member.summary for member in self.members))
        return [member.summary for member in self.members]

    async def kill(self, member: Member) -> float:
        """Kill a process; return the time."""
        killed_at = time.monotonic()
        member.signal(signal.SIGKILL)
        await member.process.wait()
        return killed_at

    async def stop(self) -> None:
        """End all processes, including stopped ones."""
        for member in self.members:
            member.signal(signal.SIGCONT)
            member.signal(signal.SIGTERM)
        with trio.move_on_after(STOP_GRACE_S):
            for member in self.members:
                await member.process.wait()
        for member in self.members:
            member.signal(signal.SIGKILL)
            await member.process.wait()
            await member.questions.aclose()


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
    elif "status" in report:
        member.saw(Change(report["at"], report["node"], report["status"]))
    else:
        member.summary = report


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


def free_ports(count: int) -> list[int]:
    """Return ports of loopback without a UDP or TCP socket."""
    ports: list[int] = []
    open_sockets: list[socket.socket] = []
    try:
        while len(ports) < count:
            tcp = socket.create_server(("127.0.0.1", 0))
            open_sockets.append(tcp)
            udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            open_sockets.append(udp)
            with suppress(OSError):
                udp.bind(tcp.getsockname())
                ports.append(tcp.getsockname()[1])
    finally:
        for each in open_sockets:
            each.close()
    return ports
