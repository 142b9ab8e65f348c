"""A farm of three processes with Kafka listeners, its log as the control endpoint shows it, and entries to fill it.

    created without listeners ─▶ stopped ─▶ [kafka] added to each file ─▶ started ─▶ killed, started again ─▶ ended

The stories identify servers by Raft ids, which a farm assigns when it is created. So the farm starts once without
listeners. A listener lists another server when the log has its node's name. A new farm's leader writes the names some
ten seconds after the farm is created.
"""

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio

from benchmarks.farm import Farm, Server, running_farm
from bridge.api.control import SubmitOutcome
from bridge.api.log import EntryKind, LogEntryView
from bridge.core.log.feature_level import SUPPORTED_LEVEL
from bridge.node.control.client import ControlClient, ControlError
from bridge.node.security.control_socket import SOCKET_NAME
from bridge.node.settings.choices import Timing
from consensus.protocols import kafka
from consensus.protocols.kafka.wire.messages_clients import MetadataRequest
from tests.end_to_end.farm import call
from tests.interop.kafka.recording import LOOPBACK
from tests.interop.kafka.stock_producers import Login
from tests.interop.kafka.tool_jvm import ToolJvm
from tests.processes import free_ports

TOPIC: Final = "farm-log"
WRITERS: Final = 16
PAGE: Final = 1_000
PAUSE_S: Final = 0.05
ANSWER_S: Final = 5.0
KNOWN_S: Final = 120.0
TEXT: Final = "x" * 200
HIDDEN: Final = re.compile(rb'"kafka(Offset|Producer)"')
"""Entries that are not records: see `bridge.node.kafka.farm_batches`."""
REQUEST: Final = re.compile(rb'"request":"[^"]*"')
"""The second of two entries with the same request is a copy, which is not a record either."""


@dataclass(slots=True)
class KafkaFarm:
    """The farm, the ports of its listeners by Raft id, and optionally a user who may produce."""

    farm: Farm
    ports: dict[int, int]
    writer: Login | None

    @property
    def addresses(self) -> str:
        return ",".join(f"{LOOPBACK}:{port}" for port in self.ports.values())

    def port(self, server: Server) -> int:
        return self.ports[server.server_id or 0]

    @property
    def running(self) -> list[Server]:
        return [server for server in self.farm.servers if server.running]

    async def brokers(self, port: int) -> set[int]:
        """Return the Raft ids of the nodes that one listener lists."""
        login = None if self.writer is None else kafka.Login(self.writer.name, self.writer.password)
        options = kafka.DialOptions(security=kafka.ClientSecurity(login=login))
        async with kafka.open_connection(LOOPBACK, port, options) as connection:
            response = await connection.ask(MetadataRequest(topics=()))
        return {broker.node_id for broker in response.brokers}

    async def kill_leader(self) -> Server:
        """Send SIGKILL to the leader; return when the others follow a new one."""
        killed = await self.farm.leader()
        await killed.kill()
        others = {server.server_id for server in self.running}
        await self.farm.until(
            "a new leader", lambda views: bool(views) and {view.raft.leader_id for _, view in views} <= others
        )
        return killed

    async def write(self, count: int, prefix: str) -> None:
        """Submit `count` entries to running servers until they are committed; some may be committed twice."""
        entries = iter([f'{{"note":"{prefix} {number}","text":"{TEXT}"}}'.encode() for number in range(count)])
        async with trio.open_nursery() as nursery:
            for at in range(WRITERS):
                nursery.start_soon(self._write, at, entries)

    async def _write(self, at: int, entries: Iterator[bytes]) -> None:
        entry = next(entries, None)
        while entry is not None:
            server = self.running[at % len(self.running)]
            with suppress(ControlError):
                async with ControlClient(server.node.directory / SOCKET_NAME, timeout_s=ANSWER_S) as client:
                    while entry is not None and (await client.submit(entry)).outcome is SubmitOutcome.COMMITTED:
                        entry = next(entries, None)
            at += 1
            await trio.sleep(PAUSE_S)

    async def address_of_leader_first(self) -> str:
        """Return the addresses, the leader's first; a client that uses the first one connects to the leader."""
        first = self.port(await self.farm.leader())
        return ",".join(f"{LOOPBACK}:{port}" for port in (first, *(it for it in self.ports.values() if it != first)))

    async def commit_index(self) -> int:
        return max(view.raft.commit_index for _, view in await self.farm.views())

    async def wait_until_committed(self, index: int) -> None:
        """Wait until an entry is committed."""
        await self.farm.until(
            f"index {index} is committed", lambda views: any(view.raft.commit_index >= index for _, view in views)
        )

    async def records(self) -> dict[int, LogEntryView]:
        """Return the entries that are records, by offset, as shown by the leader's control endpoint."""
        found: dict[int, LogEntryView] = {}
        requests: set[bytes] = set()
        server = await self.farm.leader()
        async with ControlClient(server.node.directory / SOCKET_NAME) as client:
            first = 1
            while True:
                page = await client.log(first, PAGE)
                for entry in page.entries:
                    if entry.kind is EntryKind.APPLICATION and HIDDEN.search(entry.data) is None:
                        named = REQUEST.search(entry.data)
                        if named is None or named[0] not in requests:
                            found[entry.index - 1] = entry
                        requests |= set() if named is None else {named[0]}
                if not page.entries or page.next_index > page.commit_index:
                    return found
                first = page.next_index


@asynccontextmanager
async def running_kafka_farm(directory: Path, *, writes: bool = False) -> AsyncIterator[KafkaFarm]:
    """Run a farm with a listener on each server, with consumer groups, and with `writes` a user who may produce."""
    async with running_farm(directory / "farm", Timing.LAN) as farm:
        for server in farm.servers:
            await server.stop()
        ports = {server.server_id or 0: port for server, port in zip(farm.servers, free_ports(3), strict=True)}
        writer, access = _writer(directory) if writes else (None, "")
        for server in farm.servers:
            own = server.server_id or 0
            others = [each for each in farm.servers if each is not server]
            peers = [f"{each.node.name}@{LOOPBACK}:{ports[each.server_id or 0]}" for each in others]
            with server.node.configuration_file.open("a", encoding="utf-8") as file:
                file.write(f'\n[kafka]\nlisten = "{LOOPBACK}:{ports[own]}"\ngroups = true\npeers = {peers}\n{access}')
        await farm.settle()
        await farm.until(
            "the newest feature level", lambda views: all(view.farm.level == SUPPORTED_LEVEL for _, view in views)
        )
        made = KafkaFarm(farm, ports, writer)
        with trio.fail_after(KNOWN_S):
            for port in ports.values():
                found: set[int] = set()
                while found != ports.keys():
                    await trio.sleep(PAUSE_S)
                    # On a busy machine a node that has just started may not reply within a connection's time limit.
                    with suppress(kafka.KafkaConnectionError):
                        found = await made.brokers(port)
        yield made


@asynccontextmanager
async def running_tools(directory: Path) -> AsyncIterator[ToolJvm]:
    """Run a JVM with Kafka's tools and clients."""
    async with trio.open_nursery() as nursery:
        tools = await ToolJvm.start(directory / "tools.log")
        nursery.start_soon(tools.run)
        try:
            yield tools
        finally:
            with trio.CancelScope(shield=True):
                await tools.end()
            nursery.cancel_scope.cancel()


def _writer(directory: Path) -> tuple[Login, str]:
    """Create a user who may submit entries; return the login and the settings that list it."""
    file = directory / "writer.password"
    made = call("keys", "kafka-user", file, "--name", "writer", "--scope", "submit")
    assert made.returncode == 0, made.stderr
    users = directory / "users"
    users.write_text(made.stdout, encoding="utf-8")
    users.chmod(0o600)
    return Login("writer", file.read_text(encoding="utf-8").strip()), f'write = true\nusers = "{users}"\n'
