"""Two quorums of three voters on loopback: Garlic Farm servers and controllers of Apache Kafka, in separate processes.

    ports, settings ─▶ format ─▶ three times `garlicfarm kraft serve` or kafka.Kafka ─▶ a leader
    SIGKILL of a voter ─▶ restart ─▶ end all

Both have the same voters in their settings (`controller.quorum.voters`), and the same linger. Otherwise they have
Kafka's default times: fetch timeout 2,000 ms, election timeout 1,000 ms, backoff up to 1,000 ms. Both fsync. Kafka's
servers have the JVM's default heap and compilers.

*Writes.* One client writes; the next write begins when the previous one is committed. Both clients are Kafka's, in one
JVM (`KafkaTools`). KafkaProducer writes a record to Garlic Farm. The admin client changes a setting of a controller,
which is one record of metadata: controllers accept client records only in this form.
"""

import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import trio

from benchmarks.child import LOOPBACK, POLL_S, Child, ChildError
from consensus.protocols.kraft import format_directory, parse_properties, voter_settings
from tests.interop.kafka.jvm import JvmServers, describe_quorum, new_uuid, running_jvm_servers
from tests.interop.kafka.tool_jvm import Settings, ToolJvm
from tests.processes import free_ports

VOTERS: Final = (1, 2, 3)
TOPIC: Final = "__cluster_metadata"
RECORD_BYTES: Final = 64
"""The size of a record in bytes: about the size of a changed setting in Kafka's log."""
LEADER_TIMEOUT_S: Final = 30.0
_TRIES_OFTEN: Final[Mapping[str, object]] = {
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 50,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 50,
    "request.timeout.ms": 1_000,
}
"""The retry settings of both clients, so that only the servers cause the time without an acknowledgment."""


class JvmQuorum:
    """Controllers of Apache Kafka."""

    name = "Kafka 4.1"

    def __init__(self, servers: JvmServers, tools: ToolJvm) -> None:
        self._servers = servers
        self._tools = tools

    async def write(self, **limit: float) -> dict[str, Any]:
        """Write consecutively, `count` times or for `seconds`; see `closedLoop` of KafkaTools."""
        addresses = ",".join(server.address for server in self._servers.servers.values())
        properties = {"bootstrap.controllers": addresses, **_TRIES_OFTEN, "default.api.timeout.ms": 2_000}
        return dict(await self._tools.do("alter-configs", properties=properties, **limit))

    def ports(self) -> Mapping[int, int]:
        """Return the ports of the running voters, by id."""
        return {node_id: server.bind for node_id, server in self._servers.servers.items() if server.lives}

    async def kill(self, node_id: int) -> None:
        """Kill a voter."""
        await self._servers.kill(self._servers.servers[node_id])

    async def start(self, node_id: int) -> None:
        """Start a voter again, and wait until it listens."""
        await self._servers.start(self._servers.servers[node_id])


@dataclass(slots=True)
class _Voter:
    port: int
    settings: Path
    child: Child | None = None


class OurVoters:
    """Garlic Farm servers."""

    name = "garlicfarm"

    def __init__(self, directory: Path, settings: Settings) -> None:
        ports = free_ports(len(VOTERS))
        named = ",".join(f"{node_id}@{LOOPBACK}:{port}" for node_id, port in zip(VOTERS, ports, strict=True))
        cluster_id = new_uuid()
        self._voters: dict[int, _Voter] = {}
        for node_id, port in zip(VOTERS, ports, strict=True):
            lines = {
                "process.roles": "controller",
                "node.id": node_id,
                "log.dirs": directory / str(node_id),
                "listeners": f"CONTROLLER://{LOOPBACK}:{port}",
                "controller.quorum.voters": named,
                **settings,
            }
            text = "".join(f"{name}={value}\n" for name, value in lines.items())
            file = directory / f"{node_id}.properties"
            file.write_text(text, encoding="utf-8")
            format_directory(voter_settings(parse_properties(text)), cluster_id)
            self._voters[node_id] = _Voter(port, file)

    def ports(self) -> Mapping[int, int]:
        """Return the ports of the running voters, by id."""
        return {node_id: voter.port for node_id, voter in self._voters.items() if voter.child is not None}

    async def kill(self, node_id: int) -> None:
        """Kill a voter."""
        voter = self._voters[node_id]
        child, voter.child = voter.child, None
        if child is None:
            raise ChildError(f"voter {node_id} does not run")
        child.kill()
        await child.end()

    async def start(self, node_id: int) -> None:
        """Start a voter again, and wait until it listens."""
        voter = self._voters[node_id]
        command = [sys.executable, "-m", "bridge.cli.main", "kraft", "serve", "--config", str(voter.settings)]
        voter.child = await Child.start_foreign(f"voter {node_id}", command, voter.settings.with_suffix(".log"))
        await voter.child.wait_listening(voter.port)

    async def close(self) -> None:
        """End every process."""
        for voter in self._voters.values():
            if voter.child is not None:
                await voter.child.end()

    def processor_seconds(self, node_id: int) -> float:
        """Return the processor time of a running voter so far."""
        child = self._voters[node_id].child
        return 0.0 if child is None else child.processor_seconds()


class OurQuorum(OurVoters):
    """Garlic Farm servers that KafkaProducer writes to."""

    def __init__(self, directory: Path, tools: ToolJvm, settings: Settings) -> None:
        super().__init__(directory, settings)
        self._tools = tools

    async def write(self, **limit: float) -> dict[str, Any]:
        """Write consecutively, `count` times or for `seconds`; see `closedLoop` of KafkaTools."""
        properties = {
            "bootstrap.servers": ",".join(f"{LOOPBACK}:{voter.port}" for voter in self._voters.values()),
            "acks": "all",
            "linger.ms": 0,
            "max.block.ms": 2_000,
            "delivery.timeout.ms": 2_000,
            **_TRIES_OFTEN,
        }
        return dict(
            await self._tools.do("produce-each", topic=TOPIC, size=RECORD_BYTES, properties=properties, **limit)
        )


MeasuredQuorum = JvmQuorum | OurQuorum


@dataclass(frozen=True, slots=True)
class Led:
    """The leader of a quorum, and its high watermark."""

    leader: int
    epoch: int
    high_watermark: int


async def led(quorum: JvmQuorum | OurVoters, *, beyond: Led | None = None) -> Led:
    """Wait for a leader that knows its high watermark; with `beyond`, for a later epoch and a higher watermark."""
    epoch, high_watermark = (-1, -1) if beyond is None else (beyond.epoch, beyond.high_watermark)
    with trio.move_on_after(LEADER_TIMEOUT_S):
        while True:
            for node_id, port in quorum.ports().items():
                found = await describe_quorum(port)
                if found is None or found.leader_id != node_id or found.leader_epoch <= epoch:
                    continue
                if found.high_watermark > high_watermark:
                    return Led(node_id, found.leader_epoch, found.high_watermark)
            await trio.sleep(POLL_S)
    raise ChildError(f"no voter of {quorum.name} leads within {LEADER_TIMEOUT_S:g} s")


@asynccontextmanager
async def running_quorums(directory: Path, settings: Settings) -> AsyncIterator[tuple[MeasuredQuorum, MeasuredQuorum]]:
    """Start a Garlic Farm quorum and a Kafka quorum with these settings, and wait for a leader in each."""
    await trio.Path(directory).mkdir(mode=0o700, parents=True)
    async with running_jvm_servers(directory / "jvm") as servers:
        tools = await servers.tools()
        for node_id in VOTERS:
            await servers.add(node_id, settings, options=())
        voters = [server.voter for server in servers.servers.values()]
        for server in servers.servers.values():
            await servers.format_static(server, voters)
        own_quorum, kafka_quorum = OurQuorum(directory, tools, settings), JvmQuorum(servers, tools)
        try:
            async with trio.open_nursery() as nursery:
                for node_id in VOTERS:
                    nursery.start_soon(own_quorum.start, node_id)
                    nursery.start_soon(kafka_quorum.start, node_id)
            await led(own_quorum)
            await led(kafka_quorum)
            yield own_quorum, kafka_quorum
        finally:
            with trio.CancelScope(shield=True):
                await own_quorum.close()
