"""ØMQ Raft servers on loopback, Garlic Farm's or the npm package's, as processes; and the package's client.

    find the package (`make interop-zmq`) ─▶ ports ─▶ members of either program ─▶ a leader
    kill, restart, find members that exited ─▶ a member's facts about its log ─▶ end

The package runs under Node with three scripts in `zmq_raft_js`: a server, a client with JSON input, and a reader of a
stopped server's log. Both programs sync to disk before they reply; this is their default.

The benchmarks and `tests/interop/zmq` use this module.
"""

import json
import math
import shutil
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import trio

from benchmarks.child import LOOPBACK, POLL_S, Child, ChildError
from tests.processes import free_ports

SCRIPTS = Path(__file__).with_name("zmq_raft_js")
PACKAGES = Path(__file__).parents[1] / "build" / "interop-zmq" / "node_modules"
IDENT = "garlic"
START_TIMEOUT_S = 30.0
START_ATTEMPTS = 10
ANSWER_TIMEOUT_S = 60.0
READ_TIMEOUT_S = 60.0


def missing() -> str | None:
    """Return a text about a missing program or package, or None."""
    if shutil.which("node") is None:
        return "Node is not installed"
    if not (PACKAGES / "zmq-raft").is_dir() or not (PACKAGES / "zeromq/build/Release/zmq.node").is_file():
        return "the npm package zmq-raft is missing; `make interop-zmq` installs it"
    return None


class Program(Enum):
    """The implementation of a member."""

    PACKAGE = "package"
    OURS = "ours"


@dataclass(slots=True)
class Member:
    """One server: its addresses, and its process if started. It listens at `bind`; others connect to `url`."""

    peer_id: str
    program: Program
    url: str
    bind: str
    broadcast: str
    directory: Path
    child: Child | None = None
    deaths: list[str] = field(default_factory=list)
    """The last output of each run that ended without a kill."""

    @property
    def log(self) -> Path:
        """The file of its standard error."""
        return self.directory.with_suffix(".log")

    @property
    def lives(self) -> bool:
        """True if its process runs."""
        return self.child is not None and self.child.running

    def last_output(self) -> str:
        """Return the end of its standard error."""
        log_text = self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""
        return log_text[-3000:]


class ZmqRaftGroup:
    """The members, created by `running_zmq_raft_group`.

    `options` (electionTimeoutMin and so on) apply to all servers of the package; `arguments` of `garlicfarm zmq-raft
    serve` apply to all of Garlic Farm. With `relay`, each member listens at another port than the configured one, and
    `relay` listens on the configured one.
    """

    def __init__(
        self,
        directory: Path,
        nursery: trio.Nursery,
        *,
        options: Mapping[str, object] | None = None,
        arguments: Sequence[str] = (),
        relay: Callable[[Member], Awaitable[None]] | None = None,
    ) -> None:
        self.directory = directory
        self._nursery = nursery
        self.members: dict[str, Member] = {}
        self.options = dict(options or {})
        self.arguments = tuple(arguments)
        self._relay = relay
        self._client: PackageClient | None = None

    @property
    def urls(self) -> list[str]:
        """The URLs of all members."""
        return [member.url for member in self.members.values()]

    @property
    def peers(self) -> list[tuple[str, str]]:
        """The members in the form of a configuration."""
        return [(member.peer_id, member.url) for member in self.members.values()]

    def add(self, peer_id: str, program: Program) -> Member:
        """Choose ports for another member."""
        listens, broadcasts, public = free_ports(3)
        member = Member(
            peer_id,
            program,
            f"tcp://{LOOPBACK}:{public if self._relay else listens}",
            f"tcp://{LOOPBACK}:{listens}",
            f"tcp://{LOOPBACK}:{broadcasts}",
            self.directory / peer_id,
        )
        self.members[peer_id] = member
        if self._relay is not None:
            self._nursery.start_soon(self._relay, member)
        return member

    async def open(self, programs: Sequence[Program]) -> None:
        """Start members named 1, 2, … and wait for a leader."""
        for number, program in enumerate(programs, start=1):
            self.add(str(number), program)
        peers = self.peers
        for member in self.members.values():
            await self.start(member, peers)
        await self.leader()

    async def start(self, member: Member, peers: Sequence[tuple[str, str]] | None = None) -> None:
        """Start a member, for the first time or again, and wait until it listens."""
        if member.child is not None:
            await member.child.end()
        command = self._package_command if member.program is Program.PACKAGE else self._own_command
        start = Child.start if member.program is Program.PACKAGE else Child.start_foreign
        name = f"{member.program.value} server {member.peer_id}"
        child = await start(name, command(member, peers or self.peers), member.log)
        await child.wait_listening(int(member.bind.rpartition(":")[2]), START_TIMEOUT_S)
        member.child = child

    async def kill(self, member: Member) -> None:
        """Kill a member, and wait for its end."""
        child, member.child = member.child, None
        if child is None:
            raise ChildError(f"server {member.peer_id} does not run")
        child.kill()
        await child.end()

    async def start_again(self, member: Member) -> None:
        """Start a member. If a member of the package dies during its start, record that and start it again."""
        for _ in range(START_ATTEMPTS):
            try:
                await self.start(member)
            except ChildError as error:
                member.deaths.append(str(error))
            else:
                return
        raise ChildError(f"server {member.peer_id} does not stay up; its last output: …{member.last_output()}")

    async def stop(self, member: Member) -> None:
        """Request its end, and wait for it."""
        child, member.child = member.child, None
        if child is None:
            return
        await (child.stop(START_TIMEOUT_S) if member.program is Program.OURS else child.end())

    async def leader(self, timeout_s: float = START_TIMEOUT_S) -> Member:
        """Wait until a member reports that it leads."""
        with trio.move_on_after(timeout_s):
            while True:
                for member in self.members.values():
                    if member.lives and (found := await self.info(member)) is not None and found["isLeader"]:
                        return member
                await trio.sleep(POLL_S)
        reasons = "\n".join(f"{member.peer_id}: …{member.last_output()}" for member in self.members.values())
        raise ChildError(f"no server leads within {timeout_s:g} s; {reasons}")

    async def info(self, member: Member, timeout_s: float = 1.0) -> dict[str, Any] | None:
        """Return the facts of a member about its log; None if it does not reply in time."""
        client = await self.client()
        try:
            found = await client.do("info", url=member.url, timeout=int(timeout_s * 1000))
        except PackageError:
            return None
        return dict(found)

    async def client(self) -> "PackageClient":
        """Return the client of the package as a process; the first call starts it."""
        if self._client is None:
            self._client = await PackageClient.start(self.urls, self.directory / "client.log")
            self._nursery.start_soon(self._client.run)
        return self._client

    async def close(self) -> None:
        """End every process."""
        if self._client is not None:
            await self._client.end()
        for member in self.members.values():
            await self.stop(member)

    def _package_command(self, member: Member, peers: Sequence[tuple[str, str]]) -> list[str]:
        document = {
            "id": member.peer_id,
            "peers": peers,
            "ident": IDENT,
            "directory": str(member.directory),
            "broadcast": member.broadcast,
            "bind": member.bind,
            "watch": True,
            "options": self.options,
        }
        return node("peer.js", json.dumps(document))

    def _own_command(self, member: Member, peers: Sequence[tuple[str, str]]) -> list[str]:
        return [
            str(Path(sys.executable).with_name("garlicfarm")),
            *("zmq-raft", "serve", "--id", member.peer_id, "--ident", IDENT, "--directory", str(member.directory)),
            *(part for peer_id, url in peers for part in ("--peer", f"{peer_id}={url}")),
            *("--bind", member.bind, "--broadcast", member.broadcast, *self.arguments),
        ]


@asynccontextmanager
async def running_zmq_raft_group(
    directory: Path,
    programs: Sequence[Program],
    *,
    options: Mapping[str, object] | None = None,
    arguments: Sequence[str] = (),
    relay: Callable[[Member], Awaitable[None]] | None = None,
) -> AsyncIterator[ZmqRaftGroup]:
    """Start a group in a directory; its processes end with the block."""
    await trio.Path(directory).mkdir(mode=0o700, parents=True, exist_ok=True)
    async with trio.open_nursery() as nursery:
        group = ZmqRaftGroup(directory, nursery, options=options, arguments=arguments, relay=relay)
        try:
            await group.open(programs)
            yield group
        finally:
            with trio.CancelScope(shield=True):
                await group.close()
        nursery.cancel_scope.cancel()


class PackageError(Exception):
    """A command of the package's client failed."""


class PackageClient:
    """A process of `client.js`. Commands may run concurrently, while `run` receives the replies."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self._count = 0
        self._answers: dict[int, trio.MemorySendChannel[dict[str, Any]]] = {}
        self._speaking = trio.Lock()
        self._ending = False
        self.subscribed: list[dict[str, Any]] = []
        """The received documents of the subscription, with `entry` or `snapshot`."""

    @classmethod
    async def start(cls, urls: Sequence[str], log: Path) -> "PackageClient":
        """Start a client of a cluster."""
        document = {"urls": list(urls), "ident": IDENT}
        return cls(await Child.start("the package's client", node("client.js", json.dumps(document)), log))

    async def run(self) -> None:
        """Receive the documents of the process, until `end`."""
        while True:
            try:
                document = await self._child.receive_document(math.inf)
            except ChildError:
                if self._ending:
                    return
                raise
            if "n" not in document:
                self.subscribed.append(document)
            elif (answers := self._answers.pop(document["n"], None)) is not None:
                answers.send_nowait(document)

    async def do(self, command: str, **arguments: object) -> Any:
        """Run one command; raise `PackageError` with the package's text."""
        self._count += 1
        number = self._count
        send, receive = trio.open_memory_channel[dict[str, Any]](1)
        self._answers[number] = send
        async with self._speaking:
            await self._child.send_line(json.dumps({"n": number, "do": command, **arguments}))
        with trio.fail_after(ANSWER_TIMEOUT_S):
            answer = await receive.receive()
        if "error" in answer:
            raise PackageError(f"{command}: {answer['error']}")
        return answer["ok"]

    async def end(self) -> None:
        """End the process."""
        self._ending = True
        await self._child.end()


def node(script: str, argument: str) -> list[str]:
    """Return the command that starts a script of `zmq_raft_js` with one argument."""
    return ["env", f"NODE_PATH={PACKAGES}", "node", str(SCRIPTS / script), argument]
