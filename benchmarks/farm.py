"""A real farm of processes to measure and kill: the files of `garlicfarm up`, one process per server.

    prepare files ─▶ start `garlicfarm run` N times ─▶ created ─▶ measure, kill, start again ─▶ stop every one

The processes are an operator's: TLS, Digest upgrade, fsync and the farm's state machine are all in use. Their
state is read from their control sockets.
"""

import re
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import trio

from benchmarks.child import POLL_S, BenchmarkError, Child
from benchmarks.client import ClusterTarget, ServerTarget
from bridge.api.json import DocumentError
from bridge.api.view import FarmView, Phase
from bridge.node.control.client import ControlClient, ControlError
from bridge.node.local.farm_files import LOOPBACK, LocalFarm, NodeFiles, prepare
from bridge.node.security.control_socket import SOCKET_NAME
from bridge.node.security.key_files import load_farm_key
from bridge.node.settings.choices import Timing
from consensus.net import load_or_create_certificate

SERVERS = 3
START_TIMEOUT_S = 30.0
STOP_GRACE_S = 10.0
_WAITS = re.compile(r"(?m)^voluntary_ctxt_switches:\s+(\d+)")


@dataclass(slots=True)
class Server:
    """One server process, and its last known ids."""

    node: NodeFiles
    child: Child | None = None
    server_id: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    """Additional environment variables."""
    program: str = "bridge.cli.main"
    """The module that is the command `garlicfarm`."""

    @property
    def running(self) -> bool:
        """True if the process runs."""
        return self.child is not None and self.child.running

    async def start(self) -> None:
        """Start the process. It ends when this process ends."""
        command = [sys.executable, "-m", self.program, "run", "--config", str(self.node.configuration_file)]
        self.child = await Child.start_foreign(self.node.name, command, self.node.log_file, self.environment)

    @property
    def process(self) -> Child:
        """Its process; raises `BenchmarkError` if it does not run."""
        if self.child is None:
            raise BenchmarkError(f"{self.node.name} ended; see {self.node.log_file}")
        return self.child

    async def kill(self) -> None:
        """Kill the process, and wait for its end."""
        self.process.kill()
        await self.process.end()
        self.child = None

    async def stop(self) -> None:
        """Stop the process as an operator does."""
        if self.child is not None:
            await self.child.stop(STOP_GRACE_S)
            self.child = None

    def resident_bytes(self) -> int:
        """Return the resident memory of the process."""
        return self.process.resident_bytes()

    def processor_seconds(self) -> float:
        """Return the processor time of the process so far."""
        return self.process.processor_seconds()

    def wake_ups(self) -> Counter[str]:
        """Return how often each running thread has waited and run again, by thread id (Linux)."""
        found: Counter[str] = Counter()
        for directory in Path(f"/proc/{self.process.pid}/task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
                found[directory.name] = int(_WAITS.findall((directory / "status").read_text())[0])
        return found

    def structures(self) -> list[Path]:
        """Return the files of its published structures."""
        return list((self.node.directory / "published").glob("*.meta-ls2"))

    async def view(self) -> FarmView | None:
        """Return its own view; None while it does not reply."""
        if not self.running:
            return None
        try:
            async with ControlClient(self.node.directory / SOCKET_NAME, timeout_s=2.0) as client:
                return await client.view()
        except (ControlError, DocumentError):
            return None


@dataclass(slots=True)
class Farm:
    """The servers, created by `running_farm`."""

    files: LocalFarm
    servers: list[Server]
    timing: Timing

    async def views(self) -> list[tuple[Server, FarmView]]:
        """Return the views of the servers that reply."""
        found = []
        for server in self.servers:
            view = await server.view()
            if view is not None:
                server.server_id = view.node.raft_id or server.server_id
                found.append((server, view))
        return found

    async def until(self, what: str, holds: Callable[[list[tuple[Server, FarmView]]], bool]) -> None:
        """Wait until a condition holds for the running servers' views."""
        with trio.move_on_after(START_TIMEOUT_S):
            while not holds(await self.views()):  # noqa: ASYNC110 - the servers are other processes
                await trio.sleep(POLL_S)
            return
        raise BenchmarkError(
            f"waited {START_TIMEOUT_S:g} s in vain: {what}; see {self.files.directory}/node-*/node.log"
        )

    async def restart(self) -> None:
        """Stop all servers, start them again, and wait until they follow one leader."""
        await self.stop()
        await self.settle()

    async def settle(self) -> None:
        """Wait until every server runs, follows one leader, and has applied the leader's entries."""
        for server in self.servers:
            if not server.running:
                await server.start()
        await self.until("all servers follow one leader, caught up", self._settled)

    def _settled(self, views: list[tuple[Server, FarmView]]) -> bool:
        if len(views) < len(self.servers):
            return False
        leaders = {view.raft.leader_id for _, view in views}
        applied = [view.raft.applied_index for _, view in views]
        return (
            all(view.node.phase is Phase.FOUNDED for _, view in views)
            and len(leaders) == 1
            and None not in leaders
            and max(applied) - min(applied) <= SERVERS
        )

    async def leader(self) -> Server:
        """Return the leader, if all servers agree."""
        return await self._named(lambda view: view.raft.leader_id, "the leader")

    async def publisher(self) -> Server:
        """Return the publisher, if all servers agree."""
        return await self._named(
            lambda view: next((each.publisher_id for each in view.publishing), None), "the publisher"
        )

    async def _named(self, named_in: Callable[[FarmView], int | None], name: str) -> Server:
        for _, view in await self.views():
            server_id = named_in(view)
            for server in self.servers:
                if server_id is not None and server.server_id == server_id:
                    return server
        raise BenchmarkError(f"no server knows {name}")

    def target(self) -> ClusterTarget:
        """Return the data that a client process needs to connect."""
        key = load_farm_key(self.files.directory / "farm.key")
        credentials = key.digest_credentials[0]
        return ClusterTarget(
            cluster=key.cluster,
            username=credentials.username,
            password=credentials.password,
            servers=tuple(
                ServerTarget(
                    server.server_id or 0,
                    LOOPBACK,
                    server.node.consensus_port,
                    load_or_create_certificate(server.node.directory).fingerprint.hex(),
                )
                for server in self.servers
            ),
        )

    async def stop(self) -> None:
        """Stop all servers at the same time."""
        async with trio.open_nursery() as nursery:
            for server in self.servers:
                nursery.start_soon(server.stop)


@asynccontextmanager
async def running_farm(
    directory: Path,
    timing: Timing,
    change: Callable[[str], str] = str,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> AsyncIterator[Farm]:
    """Start a farm in `directory` with the given consensus timing; its processes end with the block.

    `change` is called for each server in order, and returns its settings. `environment`: additional variables of each
    server.
    """
    await trio.Path(directory).mkdir(mode=0o700, parents=True, exist_ok=True)
    files = prepare(directory, SERVERS)
    for node in files.nodes:
        settings = with_timing(node.configuration_file.read_text(encoding="utf-8"), "consensus", timing)
        node.configuration_file.write_text(change(settings), encoding="utf-8")
    farm = Farm(files, [Server(node, environment=environment) for node in files.nodes], timing)
    try:
        await farm.settle()
        yield farm
    finally:
        with trio.CancelScope(shield=True):
            await farm.stop()


def with_reporting_period(settings: str, period_ms: int) -> str:
    """Return the settings of `up` with another reporting period."""
    return _replaced(settings, r"(?m)^reporting_period_ms = \d+$", f"reporting_period_ms = {period_ms}")


def with_timing(settings: str, table: str, timing: Timing, more: str = "") -> str:
    """Return the settings of `up` with another timing in this table, and more settings after it."""
    return _replaced(settings, rf'(?s)(\[{table}\].*?)timing = "[a-z]+"', rf'\1timing = "{timing.value}"{more}')


def _replaced(settings: str, pattern: str, into: str) -> str:
    settings, count = re.subn(pattern, into, settings)
    if count != 1:
        raise BenchmarkError(f"the settings of `up` do not have {pattern} once")
    return settings
