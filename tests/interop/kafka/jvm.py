"""Apache Kafka's servers on loopback: controllers, and a single broker.

    ports ─▶ format a directory ─▶ start kafka.Kafka ─▶ it listens
    kill -9, start again, cut its connections ─▶ read its log file ─▶ end

A controller listens at `bind` and advertises `port`. With a `Recorder`, a proxy listens at `port`, records the frames
and can cut connections. Without a recorder, both are the same port.

*Static and dynamic.* With `voters` in the settings, a quorum is static (kraft.version 0: `controller.quorum.voters`,
without directory ids). Otherwise it is dynamic (kraft.version 1): formatting writes the initial voters into the
directory, and the settings name only servers that can name the leader.

Kafka's servers run with a small heap and only the JVM's first compiler, so that three of them fit into memory. Each
starts in 1.2 s and uses 140 MB. Benchmarks pass `options=()` and use the JVM's defaults.
"""

import base64
import re
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio

from benchmarks.child import Child, ChildError
from consensus.protocols.kafka.wire.apis import ApiKey, ErrorCode
from consensus.protocols.kafka.wire.codec import decode_response, encode_request
from consensus.protocols.kafka.wire.messages_admin import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartition,
    DescribeQuorumRequestTopic,
    DescribeQuorumResponsePartition,
)
from tests.interop.kafka.recording import LOOPBACK, FrameReader, Recorder
from tests.interop.kafka.tool_jvm import SMALL, Settings, ToolJvm, java
from tests.processes import free_ports

CONTROLLER_LISTENER: Final = "CONTROLLER"
BROKER_LISTENER: Final = "PLAINTEXT"
START_TIMEOUT_S: Final = 60.0
LEADER_TIMEOUT_S: Final = 30.0
STOP_TIMEOUT_S: Final = 30.0
ANSWER_TIMEOUT_S: Final = 1.0
LOG_TOPIC: Final = "__cluster_metadata"
POLL_S: Final = 0.05
LAST_OUTPUT_CHARACTERS: Final = 3000
_TAKEN: Final = re.compile(r"Creating new KRaft snapshot file snapshot 0*(\d+)-")
_DOWNLOADED: Final = re.compile(r"after downloading snapshot OffsetAndEpoch\[offset=(\d+),")


OFTEN_SNAPSHOTS: Final[Settings] = {
    "metadata.log.max.record.bytes.between.snapshots": 2_000,
    "metadata.log.segment.ms": 1_000,
    "metadata.log.segment.bytes": 8_388_608,
    "metadata.max.retention.bytes": 4_000,
    "metadata.max.retention.ms": 3_000,
}
"""Settings that soon make a snapshot, so that a follower without a log fetches it."""


def new_uuid() -> str:
    """Return a directory id or a cluster id in Kafka's spelling. Kafka refuses ids that begin with a dash."""
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        pass
    return text


@dataclass(frozen=True, slots=True)
class Voter:
    """An initial voter of a dynamic quorum, or a voter in `controller.quorum.voters`."""

    node_id: int
    port: int
    directory_id: str = ""

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self.port}"


@dataclass(slots=True)
class KafkaServer:
    """One server of Kafka: its directory, its ports, and its process while it runs. `JvmServers` creates it."""

    node_id: int
    port: int
    bind: int
    directory: Path
    settings: dict[str, str | int]
    options: Sequence[str]
    directory_id: str = ""
    broker_port: int | None = None
    child: Child | None = None
    starts: int = 0
    is_formatted: bool = False

    @property
    def name(self) -> str:
        """The name in messages and in the recorder."""
        return f"Kafka server {self.node_id}"

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    @property
    def voter(self) -> Voter:
        return Voter(self.node_id, self.port, self.directory_id)

    @property
    def log(self) -> Path:
        return self.directory.with_suffix(".log")

    @property
    def properties(self) -> Path:
        return self.directory.with_suffix(".properties")

    @property
    def metadata_directory(self) -> Path:
        """The directory with segments, checkpoints and quorum-state."""
        return self.directory / "__cluster_metadata-0"

    @property
    def lives(self) -> bool:
        return self.child is not None and self.child.running

    def last_output(self) -> str:
        """Return the end of its output."""
        output = self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""
        return output[-LAST_OUTPUT_CHARACTERS:]

    def complaints(self) -> list[str]:
        """Return the lines of its log at ERROR and FATAL."""
        output = self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""
        return [line for line in output.splitlines() if line[13:18].strip() in ("ERROR", "FATAL")]

    def write_settings(self, more: Settings | None = None) -> None:
        """Write its file of settings; `more` overrides."""
        self.settings.update(more or {})
        lines = (f"{name}={value}\n" for name, value in self.settings.items())
        self.properties.write_text("".join(lines), encoding="utf-8")


class JvmServers:
    """Kafka's servers in one directory, forming one cluster. `running_jvm_servers` creates it."""

    def __init__(
        self, directory: Path, nursery: trio.Nursery, *, cluster_id: str, recorder: Recorder | None = None
    ) -> None:
        self.directory = directory
        self.cluster_id = cluster_id
        self.servers: dict[int, KafkaServer] = {}
        self.others: dict[int, int] = {}
        """The ports of voters that do not run Kafka, by their ids: `leader` queries them too."""
        self._nursery = nursery
        self._recorder = recorder
        self._tools: ToolJvm | None = None

    async def tools(self) -> ToolJvm:
        """Return the JVM with Kafka's tools; the first call starts it."""
        if self._tools is None:
            self._tools = await ToolJvm.start(self.directory / "tools.log")
            self._nursery.start_soon(self._tools.run)
        return self._tools

    async def add(
        self,
        node_id: int,
        settings: Settings | None = None,
        *,
        roles: str = "controller",
        options: Sequence[str] = SMALL,
    ) -> KafkaServer:
        """Choose ports for a server, with the recorder in front of it. Formatting needs the voters and comes later."""
        port, bind, broker_port, broker_bind = free_ports(4)
        if self._recorder is None:
            bind, broker_bind = port, broker_port
        directory = self.directory / str(node_id)
        server = KafkaServer(node_id, port, bind, directory, {}, options, directory_id=new_uuid())
        listeners = {CONTROLLER_LISTENER: (bind, port)}
        if "broker" in roles:
            listeners[BROKER_LISTENER] = (broker_bind, broker_port)
            server.broker_port = broker_port
            server.settings.update(SINGLE_BROKER)
        server.settings |= {
            "process.roles": roles,
            "node.id": node_id,
            "listeners": ",".join(f"{name}://{LOOPBACK}:{binds}" for name, (binds, _) in listeners.items()),
            "advertised.listeners": ",".join(
                f"{name}://{LOOPBACK}:{public}" for name, (_, public) in listeners.items()
            ),
            "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in listeners),
            "controller.listener.names": CONTROLLER_LISTENER,
            "log.dirs": str(directory),
            **(settings or {}),
        }
        if self._recorder is not None:
            for name, (binds, public) in listeners.items():
                await self._nursery.start(self._recorder.serve, f"{node_id} {name}", public, binds)
        self.servers[node_id] = server
        return server

    async def format_static(self, server: KafkaServer, voters: Sequence[Voter]) -> None:
        """Format a directory for a quorum with voters in the settings (kraft.version 0)."""
        named = ",".join(f"{voter.node_id}@{voter.address}" for voter in voters)
        server.write_settings({"controller.quorum.voters": named})
        await (await self.tools()).format(server.properties, self.cluster_id)
        server.directory_id = meta_properties(server.directory)["directory.id"]
        server.is_formatted = True

    async def format_dynamic(
        self, server: KafkaServer, voters: Sequence[Voter], *, bootstrap: Sequence[str] = ()
    ) -> None:
        """Format a directory for a quorum with voters in the log (kraft.version 1).

        A server outside the voters begins as an observer, and may become a voter later. `bootstrap` has addresses
        that can name the leader; by default these are the voters' addresses.
        """
        contacts = bootstrap or [voter.address for voter in voters]
        server.write_settings({"controller.quorum.bootstrap.servers": ",".join(contacts)})
        first = ",".join(f"{voter.node_id}@{voter.address}:{voter.directory_id}" for voter in voters)
        is_voter = any(voter.node_id == server.node_id for voter in voters)
        arguments = ("--initial-controllers", first) if is_voter else ("--no-initial-controllers",)
        await (await self.tools()).format(server.properties, self.cluster_id, *arguments)
        if not is_voter:
            server.directory_id = meta_properties(server.directory)["directory.id"]
        server.is_formatted = True

    async def start(self, server: KafkaServer) -> None:
        """Start a server, for the first time or again, and wait until it listens."""
        if not server.is_formatted:
            raise ChildError(f"the directory of {server.name} is not formatted")
        if server.child is not None:
            await server.child.end()
        command = java("kafka.Kafka", str(server.properties), options=server.options)
        server.child = await Child.start_foreign(server.name, command, server.log)
        server.starts += 1
        await server.child.wait_listening(server.bind, START_TIMEOUT_S)

    async def kill(self, server: KafkaServer) -> None:
        """Send SIGKILL, and wait until the process has ended."""
        child, server.child = server.child, None
        if child is None:
            raise ChildError(f"{server.name} does not run")
        child.kill()
        await child.end()

    async def stop(self, server: KafkaServer) -> None:
        """Send SIGTERM, as an operator does, and wait until the process has ended."""
        if server.child is not None:
            await server.child.stop(STOP_TIMEOUT_S)
            server.child = None

    async def leader(self, *, epoch_above: int = -1, timeout_s: float = LEADER_TIMEOUT_S) -> tuple[int, int]:
        """Wait until a server claims to lead in an epoch above `epoch_above`; return its id and epoch."""
        with trio.move_on_after(timeout_s):
            while True:
                living = {server.node_id: server.bind for server in self.servers.values() if server.lives}
                for node_id, port in (living | self.others).items():
                    found = await describe_quorum(port)
                    if found is not None and found.leader_id == node_id and found.leader_epoch > epoch_above:
                        return found.leader_id, found.leader_epoch
                await trio.sleep(POLL_S)
        words = "\n".join(f"{server.name}: …{server.last_output()}" for server in self.servers.values())
        raise ChildError(f"no server leads within {timeout_s:g} s\n{words}")

    async def close(self) -> None:
        if self._tools is not None:
            await self._tools.end()
        for server in self.servers.values():
            if server.child is not None:
                await self.kill(server)


async def describe_quorum(port: int, timeout_s: float = ANSWER_TIMEOUT_S) -> DescribeQuorumResponsePartition | None:
    """Return a server's reply to DescribeQuorum; None if it does not reply, or does not lead.

    Kafka's tool follows the first server's view of the leader: after a leader's death, the tool may query it
    for minutes.
    """
    topic = DescribeQuorumRequestTopic(
        topic_name=LOG_TOPIC, partitions=(DescribeQuorumRequestPartition(partition_index=0),)
    )
    request = encode_request(ApiKey.DESCRIBE_QUORUM, 2, 1, "interop", DescribeQuorumRequest(topics=(topic,)))
    reader = FrameReader()
    with trio.move_on_after(timeout_s), suppress(OSError):
        async with await trio.open_tcp_stream(LOOPBACK, port) as stream:
            with suppress(trio.BrokenResourceError):
                await stream.send_all(len(request).to_bytes(4, "big") + request)
                while data := await stream.receive_some():
                    for frame in reader.feed(data):
                        _, answer = decode_response(ApiKey.DESCRIBE_QUORUM, 2, frame)
                        parts = [part for each in answer.topics for part in each.partitions]
                        return next((part for part in parts if part.error_code == ErrorCode.NONE), None)
    return None


async def wait_for_snapshot(server: KafkaServer) -> None:
    """Wait until a server has its own snapshot.

    Kafka sends the snapshot to a follower without a log, even if Kafka still has the log.
    """
    first = f"{0:020}-"
    while all(path.name.startswith(first) for path in server.metadata_directory.glob("*.checkpoint")):  # noqa: ASYNC110 - a file does not wake a task
        await trio.sleep(0.2)


def snapshots_taken(server: KafkaServer) -> set[int]:
    """Return the offsets of all snapshots that a server has ever taken, from its log file.

    Its directory shows fewer: with a short retention, a snapshot is deleted when the next one exists.
    """
    return _offsets(_TAKEN, server)


async def wait_for_downloaded_snapshot(server: KafkaServer, offset: int) -> None:
    """Wait until a server has logged that it fetched the snapshot of an offset and begins its log there.

    Raise `AssertionError` if it has fetched another snapshot instead.
    """
    while offset not in (found := _offsets(_DOWNLOADED, server)):
        assert not found, f"{server.name} fetched the snapshots of {sorted(found)}, not of {offset}"
        await trio.sleep(POLL_S)


def _offsets(pattern: re.Pattern[str], server: KafkaServer) -> set[int]:
    return {int(offset) for offset in pattern.findall(server.log.read_text(encoding="utf-8", errors="replace"))}


SINGLE_BROKER: Final[Settings] = {
    "inter.broker.listener.name": BROKER_LISTENER,
    "offsets.topic.replication.factor": 1,
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "group.initial.rebalance.delay.ms": 0,
}
"""Settings for a single broker."""


def meta_properties(directory: Path) -> dict[str, str]:
    lines = (directory / "meta.properties").read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))


@asynccontextmanager
async def running_jvm_servers(
    directory: Path, *, cluster_id: str | None = None, recorder: Recorder | None = None
) -> AsyncIterator[JvmServers]:
    """Yield an empty cluster; servers started within the block end with it."""
    await trio.Path(directory).mkdir(mode=0o700, parents=True, exist_ok=True)
    async with trio.open_nursery() as nursery:
        servers = JvmServers(directory, nursery, cluster_id=cluster_id or new_uuid(), recorder=recorder)
        try:
            yield servers
        finally:
            with trio.CancelScope(shield=True):
                await servers.close()
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def running_jvm_quorum(
    directory: Path,
    count: int = 3,
    *,
    is_dynamic: bool = False,
    settings: Settings | None = None,
    recorder: Recorder | None = None,
    options: Sequence[str] = SMALL,
) -> AsyncIterator[JvmServers]:
    """Run a quorum of controllers with the ids 1, 2, …, formatted and started; it may not have a leader yet."""
    async with running_jvm_servers(directory, recorder=recorder) as servers:
        for node_id in range(1, count + 1):
            await servers.add(node_id, settings, options=options)
        voters = [server.voter for server in servers.servers.values()]
        for server in servers.servers.values():
            await (servers.format_dynamic if is_dynamic else servers.format_static)(server, voters)
        async with trio.open_nursery() as nursery:
            for server in servers.servers.values():
                nursery.start_soon(servers.start, server)
        yield servers
