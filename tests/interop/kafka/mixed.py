"""A quorum of Kafka's controllers and of the product's voters, each a separate process, under load and failures.

    add ─▶ format ─▶ start ─▶ [ load: records to the current leader │ watch: high watermark and epoch ] ─▶ logs

*Load.* A controller of Kafka that leads writes a record each `metadata.max.idle.interval.ms`. Our voter, if it leads,
receives the same record by Produce. Any other record would end the standby controllers (`test_what_controllers_read`).
As the first record of a log, this record would end them, too, because a log must begin with the version of the
metadata. Kafka's first leader writes that version automatically, but may lose its epoch before the version is
committed. So the first batch to our leader is a recorded batch of Kafka's leader (`tests/vectors/kraft.json`), even if
the log has it already. Acknowledged records are kept, and must be in every log at the end.

*Watch.* DescribeQuorum reports the leader's high watermark; -1 means that a new leader does not know it yet. Neither
the high watermark nor the epoch may go back. Our servers also check themselves (`our_voter`). A server of Kafka exits
if its high watermark goes back.

*Logs.* The segments of Kafka's servers are read from disk after they have stopped; our servers reply to a query. Both
have uncommitted entries at their ends. So logs are compared up to the last known high watermark. All servers must first
catch up to it, because a majority commits without the third.
"""

import json
import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import trio

from benchmarks.child import Child, ChildError
from consensus.protocols.kafka import (
    DialOptions,
    KafkaConnectionError,
    Record,
    RecordBatch,
    open_connection,
    uuid_of_text,
)
from consensus.protocols.kafka.wire import messages_clients as clients
from consensus.protocols.kafka.wire.apis import ErrorCode, error_name
from consensus.protocols.kafka.wire.limits import TOPIC_ID, TOPIC_NAME
from consensus.protocols.kafka.wire.record_batches import read_batches
from consensus.protocols.kraft import (
    LogRecord,
    QuorumClient,
    QuorumClientError,
    format_directory,
    parse_initial_voters,
    parse_properties,
    voter_settings,
)
from tests.interop.kafka.jvm import JvmServers, KafkaServer, Voter, describe_quorum, new_uuid
from tests.interop.kafka.our_voter import Row, rows
from tests.interop.kafka.recording import LOOPBACK
from tests.interop.kafka.tool_jvm import Settings
from tests.processes import free_ports
from tests.wire.record_batches import encode_batch

NO_OP_RECORD: Final = bytes.fromhex("01140000")
"""The record that Kafka's active controller writes when idle; see `test_what_controllers_read`."""
VECTORS: Final = Path(__file__).parents[2] / "vectors" / "kraft.json"
JVM_SETTINGS: Final = {"metadata.max.idle.interval.ms": 100}
LOAD_S: Final = 0.02
WATCH_S: Final = 0.05
RECORDS: Final = 3
"""Records per batch."""
START_S: Final = 60.0
STOP_S: Final = 20.0
SERVE: Final = (sys.executable, "-m", "bridge.cli.main", "kraft", "serve")
CAUGHT_UP_S: Final = 30.0
OPTIONS: Final = DialOptions(connect_timeout_ms=500, request_timeout_ms=2_000)


def first_metadata() -> list[bytes]:
    """Return the values of the recorded first batch of metadata written by a leader of Kafka."""
    stories = json.loads(VECTORS.read_text(encoding="utf-8"))["stories"]
    log = bytes.fromhex(stories["static quorum"]["files"][f"{TOPIC_NAME}-0/{0:020}.log"])
    return [record.value or b"" for record in read_batches(log)[1].records]


@dataclass(slots=True)
class OurServer:
    """One of our servers."""

    node_id: int
    port: int
    directory: Path
    directory_id: str
    child: Child | None = None

    @property
    def voter(self) -> Voter:
        return Voter(self.node_id, self.port, self.directory_id)

    @property
    def properties(self) -> Path:
        return self.directory.with_suffix(".properties")

    @property
    def log(self) -> Path:
        return self.directory.with_suffix(".log")

    @property
    def lives(self) -> bool:
        return self.child is not None and self.child.running


@dataclass(slots=True)
class Seen:
    """Facts reported by the leaders during a story."""

    high_watermark: int = 0
    epoch: int = 0
    leaders: Counter[int] = field(default_factory=Counter)
    """The number of epochs led by each server."""
    acknowledged: dict[int, bytes] = field(default_factory=dict)
    """Values by offset."""
    refused: Counter[str] = field(default_factory=Counter)


class MixedQuorum:
    """Servers of both kinds. `running_mixed_quorum` creates it."""

    def __init__(self, jvm: JvmServers, *, is_dynamic: bool, settings: Settings, by_command: bool = False) -> None:
        """With `by_command`, our servers run `garlicfarm kraft serve`, which does not reply to queries of stories."""
        self.jvm = jvm
        self.ours: dict[int, OurServer] = {}
        self.seen = Seen()
        self._is_dynamic = is_dynamic
        self._settings = settings
        self._by_command = by_command
        self._has_version = False
        """True if our leader has committed the version of the metadata."""

    @property
    def node_ids(self) -> list[int]:
        return sorted((*self.jvm.servers, *self.ours))

    def is_ours(self, node_id: int) -> bool:
        return node_id in self.ours

    def server(self, node_id: int) -> KafkaServer | OurServer:
        """Return a server of either kind."""
        return self.ours[node_id] if node_id in self.ours else self.jvm.servers[node_id]

    def add(self, node_id: int) -> OurServer:
        """Add one of our servers, with an unused port."""
        directory = self.jvm.directory / f"ours-{node_id}"
        server = self.ours[node_id] = OurServer(node_id, free_ports(1)[0], directory, new_uuid())
        self.jvm.others[node_id] = server.port
        return server

    def format(self, server: OurServer, voters: Sequence[Voter]) -> None:
        """Write settings and directory of our server; a server outside the voters begins as an observer."""
        lines: dict[str, str | int] = {
            "node.id": server.node_id,
            "log.dirs": str(server.directory),
            "listeners": f"CONTROLLER://{LOOPBACK}:{server.port}",
            **self._settings,
        }
        where = ",".join(f"{voter.node_id}@{voter.address}" for voter in voters)
        if self._is_dynamic:
            lines["controller.quorum.bootstrap.servers"] = ",".join(voter.address for voter in voters)
        else:
            lines["controller.quorum.voters"] = where
        text = "".join(f"{name}={value}\n" for name, value in lines.items())
        server.properties.write_text(text, encoding="utf-8")
        is_voter = any(voter.node_id == server.node_id for voter in voters)
        initial = ",".join(f"{voter.node_id}@{voter.address}:{voter.directory_id}" for voter in voters)
        format_directory(
            voter_settings(parse_properties(text)),
            self.jvm.cluster_id,
            initial=parse_initial_voters(initial) if self._is_dynamic and is_voter else (),
            directory_id=uuid_of_text(server.directory_id),
        )

    async def start(self, node_id: int) -> None:
        """Start a server, and wait until it listens."""
        server = self.server(node_id)
        if isinstance(server, KafkaServer):
            await self.jvm.start(server)
            return
        name = f"our server {node_id}"
        if not self._by_command:
            command = [sys.executable, "-m", "tests.interop.kafka.our_voter", str(server.properties)]
            server.child = await Child.start(name, command, server.log)
            await server.child.receive_document(START_S)
            return
        command = [*SERVE, "--config", str(server.properties), "--kafka-metadata", "--produce", "on"]
        server.child = await Child.start_foreign(name, command, server.log)
        with trio.fail_after(START_S):
            while not await listens(server.port):  # noqa: ASYNC110 - as in `wait_for_progress`
                await trio.sleep(WATCH_S)

    async def kill(self, node_id: int) -> None:
        """Send SIGKILL, and wait until the process has ended."""
        server = self.server(node_id)
        if isinstance(server, KafkaServer):
            await self.jvm.kill(server)
            return
        child, server.child = server.child, None
        if child is not None:
            child.kill()
            await child.end()

    def move(self, node_id: int) -> None:
        """Give our stopped server another port, without informing the others."""
        server = self.ours[node_id]
        text, before = server.properties.read_text(encoding="utf-8"), server.voter.address
        server.port = self.jvm.others[node_id] = free_ports(1)[0]
        server.properties.write_text(text.replace(before, server.voter.address), encoding="utf-8")

    async def advertise(self, node_id: int, port: int) -> None:
        """Restart a server with settings that advertise a port."""
        server, name = self.server(node_id), "advertised.listeners"
        where = f"CONTROLLER://{LOOPBACK}:{port}"
        await self.kill(node_id)
        if isinstance(server, KafkaServer):
            server.write_settings({name: where})
        else:
            lines = server.properties.read_text(encoding="utf-8").splitlines()
            kept = [line for line in lines if not line.startswith(name)]
            server.properties.write_text("\n".join([*kept, f"{name}={where}", ""]), encoding="utf-8")
        await self.start(node_id)

    async def wait_until_recorded(self, node_id: int, port: int) -> None:
        """Wait until the voters' record has a voter at a port."""
        found: set[int] = set()
        with trio.move_on_after(CAUGHT_UP_S):
            while port not in found:
                with suppress(QuorumClientError):
                    state = await QuorumClient([(LOOPBACK, each) for each in self._ports()], OPTIONS).describe()
                    found = {each.port for each in state.listeners.get(node_id, ())}
                await trio.sleep(WATCH_S)
            return
        raise AssertionError(f"the record has voter {node_id} at {found}, not at {port}")

    async def wipe(self, node_id: int) -> None:
        """Delete the log of a stopped server; the server keeps its id and its directory's id."""
        server = self.server(node_id)
        if isinstance(server, KafkaServer):
            for file in server.metadata_directory.iterdir():
                file.unlink()
            return
        shutil.rmtree(server.directory)
        self.format(server, [self.server(each).voter for each in self.node_ids])

    async def make_lead(self, node_ids: Collection[int]) -> int:
        """Make leaders resign until one of these servers leads and has committed an entry; return its id."""
        leader, epoch = await self.leader()
        while leader not in node_ids:
            await self.resign(leader)
            leader, epoch = await self.leader(epoch_above=epoch)
        await self.wait_for_progress()
        return leader

    async def resign(self, node_id: int) -> None:
        """Make the leader hand over, as an operator does: usually by a restart."""
        server = self.server(node_id)
        if isinstance(server, KafkaServer):
            await self.jvm.stop(server)
        elif not self._by_command:
            await self.ask(node_id, "resign")
            return
        elif server.child is not None:
            os.kill(server.child.pid, signal.SIGTERM)
            with trio.fail_after(STOP_S):
                while server.lives:  # noqa: ASYNC110 - the end of another process does not wake a task
                    await trio.sleep(WATCH_S)
            await server.child.end()
        await self.start(node_id)

    async def ask(self, node_id: int, question: str) -> dict[str, Any]:
        """Send a query to one of our servers."""
        child = self.ours[node_id].child
        if child is None:
            raise ChildError(f"our server {node_id} does not run")
        return await child.request(question)

    async def leader(self, *, epoch_above: int = -1) -> tuple[int, int]:
        """Wait for a leader; return its id and epoch."""
        return await self.jvm.leader(epoch_above=epoch_above)

    async def wait_for_progress(self) -> None:
        """Wait until the high watermark rises."""
        before = self.seen.high_watermark
        with trio.fail_after(CAUGHT_UP_S):
            while self.seen.high_watermark <= before:  # noqa: ASYNC110 - another process does not wake a task
                await trio.sleep(WATCH_S)

    async def wait_until_caught_up(self, node_id: int) -> None:
        """Wait until the leader reports that a server has all currently committed records."""
        committed_end = self.seen.high_watermark
        with trio.fail_after(CAUGHT_UP_S):
            while True:
                for port in self._ports():
                    found = await describe_quorum(port)
                    replicas = () if found is None else (*found.current_voters, *found.observers)
                    if any(row.replica_id == node_id and row.log_end_offset >= committed_end for row in replicas):
                        return
                await trio.sleep(WATCH_S)

    def _ports(self) -> list[int]:
        servers = [self.server(node_id) for node_id in self.node_ids]
        return [server.port for server in servers if server.lives]

    async def watch(self) -> None:
        """Query the leaders forever; raise `AssertionError` if a value goes back."""
        while True:
            for port in self._ports():
                found = await describe_quorum(port)
                if found is not None:
                    self._note(found.leader_id, found.leader_epoch, found.high_watermark)
            await trio.sleep(WATCH_S)

    def _note(self, leader_id: int, epoch: int, high_watermark: int) -> None:
        seen = self.seen
        if epoch < seen.epoch:
            return  # a deposed leader that is unaware of its successor
        if epoch > seen.epoch:
            seen.epoch = epoch
            seen.leaders[leader_id] += 1
        if high_watermark >= 0:
            if high_watermark < seen.high_watermark:
                raise AssertionError(
                    f"server {leader_id} reports in epoch {epoch} that {high_watermark} is committed; "
                    f"{seen.high_watermark} was"
                )
            seen.high_watermark = high_watermark

    async def load(self) -> None:
        """Keep the leader writing: our servers by Produce; Kafka's write automatically."""
        while True:
            await trio.sleep(LOAD_S)
            if not self.seen.leaders:
                continue
            for port in [server.port for server in self.ours.values() if server.lives]:
                with suppress(KafkaConnectionError, OSError):
                    await self._produce(port)

    async def _produce(self, port: int) -> None:
        async with open_connection(LOOPBACK, port, OPTIONS) as connection:
            while True:
                values = [NO_OP_RECORD] * RECORDS if self._has_version else first_metadata()
                # Kafka's controllers exit at a batch with records of different times.
                now_ms = int(time.time() * 1000)
                records = tuple(Record(now_ms, None, value) for value in values)
                data = encode_batch(RecordBatch(0, -1, records))
                partition = clients.ProduceRequestPartition(index=0, records=data)
                topic = clients.ProduceRequestTopic(name=TOPIC_NAME, topic_id=TOPIC_ID, partition_data=(partition,))
                request = clients.ProduceRequest(acks=-1, timeout_ms=2_000, topic_data=(topic,))
                response = await connection.ask(request, wait_ms=2_000)
                (answered,) = response.responses[0].partition_responses
                if answered.error_code != ErrorCode.NONE:
                    self.seen.refused[error_name(answered.error_code)] += 1
                    return
                self._has_version = True
                self.seen.acknowledged.update(enumerate(values, answered.base_offset))
                await trio.sleep(LOAD_S)

    async def log(self, node_id: int) -> list[Row]:
        """Return all records of a stopped Kafka server's log, or the committed records of our server.

        A server with `by_command` must lead: our client queries it.
        """
        server = self.server(node_id)
        if isinstance(server, KafkaServer):
            segments = sorted(server.metadata_directory.glob("*.log"))
            return [row for segment in segments for row in rows(segment.read_bytes())]
        if self._by_command:
            return await committed_records(server.port)
        found: list[Row] = []
        while True:
            offset = found[-1][0] + 1 if found else 0
            page = (await self.ask(node_id, f"log {offset}"))["records"]
            if not page:
                return found
            found += [(*row,) for row in page]

    async def equal_logs(self) -> int:
        """Stop Kafka's servers, compare all logs record by record up to the committed end; return that end."""
        committed = self.seen.high_watermark
        for node_id in self.node_ids:
            await self.wait_until_caught_up(node_id)
        for node_id in self.ours:
            await self._committed(node_id, committed)
        logs = {node_id: await self.log(node_id) for node_id in self.ours}
        for node_id, server in self.jvm.servers.items():
            await self.jvm.stop(server)
            logs[node_id] = await self.log(node_id)
        end = min(log[-1][0] + 1 for log in logs.values())
        assert end >= committed, f"a log ends at {end}, and {committed} was committed"
        start = max(log[0][0] for log in logs.values())
        compared = {node_id: [row for row in log if start <= row[0] < committed] for node_id, log in logs.items()}
        first = compared[self.node_ids[0]]
        assert len(first) == committed - start
        for node_id, log in compared.items():
            different = next(((ours, theirs) for ours, theirs in zip(first, log, strict=True) if ours != theirs), None)
            assert different is None, f"server {node_id} differs: {different}"
        by_offset = {row[0]: row for row in first}
        for offset, value in self.seen.acknowledged.items():
            if start <= offset < committed:
                assert by_offset[offset][4] == value.hex(), f"the record at {offset} was acknowledged and is another"
        return committed

    async def _committed(self, node_id: int, index: int) -> None:
        if self._by_command:
            return
        with trio.fail_after(CAUGHT_UP_S):
            while (await self.ask(node_id, "status"))["committed"] < index:  # noqa: ASYNC110 - as in `wait_for_progress`
                await trio.sleep(WATCH_S)

    async def close(self) -> None:
        """End our processes."""
        for node_id in self.ours:
            await self.kill(node_id)

    def summary(self) -> str:
        led = ", ".join(
            f"{'ours' if self.is_ours(node_id) else 'Kafka'} {node_id} {count} times"
            for node_id, count in sorted(self.seen.leaders.items())
        )
        return (
            f"epoch {self.seen.epoch}, {self.seen.high_watermark} committed, {len(self.seen.acknowledged)} of them "
            f"acknowledged to a client; led by {led}"
        )


async def listens(port: int) -> bool:
    with suppress(OSError):
        await (await trio.open_tcp_stream(LOOPBACK, port)).aclose()
        return True
    return False


async def committed_records(port: int) -> list[Row]:
    """Return the log of the leader that listens there, read with our client."""
    found: list[Row] = []
    async for each in QuorumClient([(LOOPBACK, port)]).records(0):
        assert isinstance(each, LogRecord)
        key, value = (None if part is None else part.hex() for part in (each.key, each.value))
        found.append((each.offset, each.epoch, each.timestamp_ms, key, value, each.control_type))
    return found


@asynccontextmanager
async def running_mixed_quorum(
    jvm: JvmServers,
    ours: Sequence[int],
    theirs: Sequence[int],
    *,
    is_dynamic: bool,
    jvm_settings: Settings | None = None,
    our_settings: Settings | None = None,
    by_command: bool = False,
) -> AsyncIterator[MixedQuorum]:
    """Run voters with these ids, formatted and started in random order; within the block under load and watched."""
    quorum = MixedQuorum(jvm, is_dynamic=is_dynamic, settings=our_settings or {}, by_command=by_command)
    for node_id in theirs:
        await jvm.add(node_id, {**JVM_SETTINGS, **(jvm_settings or {})})
    for node_id in ours:
        quorum.add(node_id)
    voters = [quorum.server(node_id).voter for node_id in quorum.node_ids]
    for server in jvm.servers.values():
        await (jvm.format_dynamic if is_dynamic else jvm.format_static)(server, voters)
    for our in quorum.ours.values():
        quorum.format(our, voters)
    order = quorum.node_ids
    random.shuffle(order)
    try:
        async with trio.open_nursery() as starting:
            for node_id in order:
                starting.start_soon(quorum.start, node_id)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(quorum.watch)
            nursery.start_soon(quorum.load)
            yield quorum
            nursery.cancel_scope.cancel()
    finally:
        with trio.CancelScope(shield=True):
            await quorum.close()
