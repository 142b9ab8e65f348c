"""Our voter with Kafka's test servers of Raft, whose leader writes 20,000 records of 256 bytes per second.

    kafka.tools.TestRaftServer 2, 3     write while they lead
    our voter 1                         keeps up, and also leads; the story then writes to it

The test servers have voters in the settings and their own topic, which `VoterOptions.topic` names; their options
`--throughput` and `--record-size` do nothing in Kafka 4.1. They reply only to requests of quorum servers, not to
DescribeQuorum. So our voter reports leader and progress, and the segments of the test servers are read at the end. A
story has hundreds of thousands of records: logs are compared by a digest of every `BLOCK` offsets.
"""

import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import pytest
import trio

from benchmarks.child import Child
from consensus.protocols.kafka import Record, RecordBatch, open_connection
from consensus.protocols.kafka.wire import messages_clients as clients
from consensus.protocols.kafka.wire.apis import ErrorCode
from consensus.protocols.kafka.wire.limits import ZERO_UUID, Topic, uuid_text
from consensus.protocols.kraft import format_directory, parse_properties, voter_settings
from tests.interop.kafka import tool_jvm
from tests.interop.kafka.jvm import new_uuid
from tests.interop.kafka.our_voter import Row, rows
from tests.interop.kafka.recording import LOOPBACK
from tests.interop.kafka.tool_jvm import java
from tests.processes import free_ports
from tests.wire.record_batches import encode_batch

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(tool_jvm.missing() is not None, reason=tool_jvm.missing() or "all is there"),
]

TOPIC: Final = Topic("__raft_performance_test", UUID(int=2))
CLUSTER: Final = uuid_text(ZERO_UUID)
"""The only cluster id of the test servers."""
OURS: Final = 1
THEIRS: Final = (2, 3)
STORY_S: Final = 300.0
WAIT_S: Final = 90.0
POLL_S: Final = 0.05
RECORDS: Final = 10_000
"""The number of records that a leader of either kind commits before the next step."""
BATCH: Final = 500
BLOCK: Final = 1_000


@dataclass(slots=True)
class RaftServers:
    """The three servers, by id."""

    directory: Path
    ports: dict[int, int]
    children: dict[int, Child] = field(default_factory=dict)

    def format(self) -> None:
        """Write the settings of all servers, and format our directory; the test servers do not need it."""
        voters = ",".join(f"{node_id}@{LOOPBACK}:{port}" for node_id, port in self.ports.items())
        for node_id, port in self.ports.items():
            settings = {
                "node.id": node_id,
                "log.dirs": self.directory / str(node_id),
                "listeners": f"CONTROLLER://{LOOPBACK}:{port}",
                "controller.listener.names": "CONTROLLER",
                "controller.quorum.voters": voters,
            }
            text = "".join(f"{name}={value}\n" for name, value in settings.items())
            self._file(node_id, "properties").write_text(text, encoding="utf-8")
        format_directory(voter_settings(parse_properties(self._file(OURS, "properties").read_text())), CLUSTER)

    def _file(self, node_id: int, kind: str) -> Path:
        return self.directory / f"{node_id}.{kind}"

    async def start(self, node_id: int) -> None:
        """Start a server, for the first time or again."""
        properties, log = str(self._file(node_id, "properties")), self._file(node_id, "log")
        if node_id == OURS:
            command = [sys.executable, "-m", "tests.interop.kafka.our_voter", properties, TOPIC.name, str(TOPIC.id.int)]
            self.children[OURS] = await Child.start("our voter", command, log)
            await self.children[OURS].receive_document()
            return
        command = java("kafka.tools.TestRaftServer", "--config", properties, "--replica-directory-id", new_uuid())
        self.children[node_id] = await Child.start_foreign(f"test server {node_id}", command, log)

    async def stop(self, node_id: int, how: signal.Signals) -> None:
        """End a test server by a signal; on SIGTERM it resigns first."""
        child = self.children.pop(node_id)
        os.kill(child.pid, how)
        with trio.fail_after(WAIT_S):
            while child.running:  # noqa: ASYNC110 - the end of another process does not wake a task
                await trio.sleep(POLL_S)
        await child.end()

    async def status(self) -> dict[str, Any]:
        """Return the state of our voter."""
        return await self.children[OURS].request("status")

    async def until(self, what: str, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait until our voter's state satisfies `holds`."""
        status: dict[str, Any] = {}
        with trio.move_on_after(WAIT_S):
            while not holds(status := await self.status()):
                for node_id, child in self.children.items():
                    assert child.running, f"server {node_id} ended: …{self._file(node_id, 'log').read_text()[-3000:]}"
                await trio.sleep(POLL_S)
            return status
        raise AssertionError(f"our voter does not report within {WAIT_S:g} s that {what}: {status}")

    async def make_lead(self, node_ids: Collection[int]) -> int:
        """Make leaders resign until one of these leads; return its id."""
        status = await self.until("a server leads", lambda it: it["leader"] is not None)
        while status["leader"] not in node_ids:
            leader, epoch = status["leader"], status["epoch"]
            if leader == OURS:
                await self.children[OURS].request("resign")
            else:
                await self.stop(leader, signal.SIGTERM)
                await self.start(leader)
            status = await self.until(
                "another one leads",
                lambda it, epoch=epoch: it["epoch"] > epoch and it["leader"] is not None,  # type: ignore[misc]
            )
        return int(status["leader"])

    async def wait_for_progress(self) -> None:
        """Wait until `RECORDS` more are committed; if ours leads, the story writes them."""
        before = (await self.status())["committed"]
        if (await self.status())["leader"] == OURS:
            await produce(self.ports[OURS], RECORDS)
        await self.until("more is committed", lambda it: it["committed"] >= before + RECORDS)

    async def equal_logs(self) -> int:
        """Compare the logs up to the committed end; ours must lead. Return the number of compared records."""
        committed = (await self.status())["committed"]
        await self.until("the others have it", lambda it: min(it["followers"].values(), default=0) >= committed)
        logs = [Digests(committed) for _ in self.ports]
        while logs[0].end < committed:
            answer = await self.children[OURS].request(f"log {logs[0].end}")
            logs[0].take([(*row,) for row in answer["records"]])
        for node_id, digests in zip(THEIRS, logs[1:], strict=True):
            await self.stop(node_id, signal.SIGTERM)
            for segment in sorted((self.directory / str(node_id) / f"{TOPIC.name}-0").glob("*.log")):
                digests.take(rows(segment.read_bytes()))
            assert digests.blocks == logs[0].blocks, f"the log of server {node_id} differs from ours"
        return logs[0].end


class Digests:
    """Digests of adjacent records of a log up to `end` exclusive, one per `BLOCK` records."""

    def __init__(self, limit: int) -> None:
        self.end = 0
        self.blocks: list[bytes] = []
        self._limit = limit
        self._digest = sha256()

    def take(self, found: list[Row]) -> None:
        """Add the next records; records from the limit on are ignored."""
        for row in found:
            if row[0] >= self._limit:
                return
            assert row[0] == self.end, f"offset {row[0]} follows {self.end - 1}"
            self._digest.update(json.dumps(row).encode())
            self.end += 1
            if self.end % BLOCK == 0 or self.end == self._limit:
                self.blocks.append(self._digest.digest())


async def produce(port: int, count: int) -> None:
    """Write records to our voter, which must lead."""
    async with open_connection(LOOPBACK, port) as connection:
        for number in range(count // BATCH):
            now_ms = time.time_ns() // 1_000_000
            values = [b"%d of the story " % (number * BATCH + at) * 10 for at in range(BATCH)]
            data = encode_batch(RecordBatch(0, -1, tuple(Record(now_ms, None, value) for value in values)))
            partition = clients.ProduceRequestPartition(index=0, records=data)
            topic = clients.ProduceRequestTopic(name=TOPIC.name, topic_id=TOPIC.id, partition_data=(partition,))
            request = clients.ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=(topic,))
            response = await connection.ask(request, wait_ms=10_000)
            assert response.responses[0].partition_responses[0].error_code == ErrorCode.NONE


@asynccontextmanager
async def raft_servers(directory: Path) -> AsyncIterator[RaftServers]:
    ports = free_ports(1 + len(THEIRS))
    servers = RaftServers(directory, dict(zip((OURS, *THEIRS), ports, strict=True)))
    servers.format()
    try:
        for node_id in servers.ports:
            await servers.start(node_id)
        yield servers
    finally:
        with trio.CancelScope(shield=True):
            for child in servers.children.values():
                await child.end()


async def test_our_voter_keeps_up_with_kafka_test_servers(tmp_path: Path) -> None:
    """Both kinds lead, are killed or resign; at the end all logs are equal."""
    with trio.fail_after(STORY_S):
        async with raft_servers(tmp_path) as servers:
            # Given a test server that leads and writes
            killed = await servers.make_lead(THEIRS)
            await servers.wait_for_progress()
            # When it is killed and restarted
            epoch = (await servers.status())["epoch"]
            await servers.stop(killed, signal.SIGKILL)
            led = await servers.until("another leads", lambda it: it["epoch"] > epoch and it["leader"] is not None)
            await servers.wait_for_progress()
            await servers.start(killed)
            # When our voter leads and receives records
            await servers.make_lead([OURS])
            await servers.wait_for_progress()
            # When a test server leads again, and our voter after it
            await servers.make_lead(THEIRS)
            await servers.wait_for_progress()
            await servers.make_lead([OURS])
            status = await servers.status()
            end = await servers.equal_logs()
            print(
                f"\nserver {killed} killed, {led['leader']} led then; epoch {status['epoch']}, {end} records are equal"
            )
