"""A quorum seen from outside: who leads, how its replicas stand, what its log says; and its voters changed.

    any server that answers ── DescribeCluster ─▶ the leader ── DescribeQuorum, Add-, RemoveRaftVoter, Fetch

The quorum may be of our servers, of Kafka's controllers, or of both. Only the leader knows the replicas, and the server
that is asked first may name one that has just died, so each question begins anew from the next server, until one is
answered or the patience is over.

*Reading the log* is a Fetch by replica -1. A server of ours takes it for a consumer's and answers from below the high
watermark. A JVM controller has no consumers; it answers every Fetch as that of a replica, and keeps no state for the id
-1. So it wants an epoch with the offset, and gives records that are not committed yet. The epoch of the newest record
is right for any offset from the log's start on; what lies beyond the high watermark is left out here.
"""

import math
import struct
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from uuid import UUID

import trio

from consensus.core.model import ServerId
from consensus.protocols.kraft.node.connection import ConnectionOptions, KafkaConnection, KafkaConnectionError, connect
from consensus.protocols.kraft.node.settings import Endpoint
from consensus.protocols.kraft.wire import messages_admin as admin
from consensus.protocols.kraft.wire import messages_clients as clients
from consensus.protocols.kraft.wire.apis import ErrorCode, error_name
from consensus.protocols.kraft.wire.control_records import (
    KRAFT_VERSION,
    LEADER_CHANGE,
    VOTERS,
    control_type_of,
    no_op_of,
    voters_of,
)
from consensus.protocols.kraft.wire.limits import PARTITION, TOPIC_ID, TOPIC_NAME, KafkaWireError
from consensus.protocols.kraft.wire.mapping import replica
from consensus.protocols.kraft.wire.record_batches import read_batches

PATIENCE_S: Final = 10.0
_LEVEL: Final = struct.Struct(">2xh")
"""Of a KRaftVersion record, after the record's own version."""
_BROKERS: Final = 1
_CONTROLLERS: Final = 2
_AGAIN_S: Final = 0.2
_FETCH_WAIT_MS: Final = 1_000
_FETCHES_OF_ONE_LEADER: Final = 30
"""Without anything new; then the leader is looked for again."""
_FETCH_BYTES: Final = 1024 * 1024
_TRANSIENT: Final = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.BROKER_NOT_AVAILABLE,
    ErrorCode.NOT_CONTROLLER,
)

T = TypeVar("T")


class QuorumClientError(Exception):
    """The quorum does not answer, or refuses; the text says what and why."""


class _AskAgainError(Exception):
    """This server does not lead now, or cannot answer now; the text says why."""


@dataclass(frozen=True, slots=True)
class QuorumReplica:
    """One replica as the leader sees it. Times are of the leader's clock, in ms since the epoch; -1: not known."""

    node_id: int
    directory_id: UUID
    """Zero: the quorum's voters never change, and have none."""
    log_end_offset: int
    last_fetch_ms: int
    last_caught_up_ms: int


@dataclass(frozen=True, slots=True)
class QuorumDescription:
    """A quorum as its leader describes it."""

    cluster_id: str
    leader_id: int
    leader_epoch: int
    high_watermark: int
    voters: tuple[QuorumReplica, ...]
    observers: tuple[QuorumReplica, ...]
    listeners: Mapping[int, tuple[Endpoint, ...]]
    """Of each voter, if the server tells it (DescribeQuorum 2)."""


@dataclass(frozen=True, slots=True)
class ChangeAnswer:
    """What the leader says to a change of the voters; error code 0: it is committed."""

    error_code: int
    text: str

    @property
    def name(self) -> str:
        """The error as Kafka writes it."""
        return error_name(self.error_code)


@dataclass(frozen=True, slots=True)
class LogRecord:
    """A committed record. `control_type` is None for one that is not the protocol's own."""

    offset: int
    epoch: int
    timestamp_ms: int
    control_type: int | None
    """-1: its key does not say it."""
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True)
class LogStart:
    """What was asked for is compacted: the log goes on here, and a snapshot stands for what was before."""

    offset: int


@dataclass(slots=True)
class _Position:
    """From where the log is read on; `epoch` is that of the record before, or None if it is not known."""

    offset: int
    epoch: int | None
    watermark: int = -1


class QuorumClient:
    """Asks a quorum. With `brokers` the addresses are of servers that clients connect to, not of controllers."""

    def __init__(
        self,
        bootstrap: Sequence[tuple[str, int]],
        options: ConnectionOptions | None = None,
        *,
        brokers: bool = False,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._bootstrap = tuple(bootstrap)
        self._options = options or ConnectionOptions()
        self._endpoint_type = _BROKERS if brokers else _CONTROLLERS
        self._patience_s = patience_s

    async def describe(self) -> QuorumDescription:
        """How the quorum stands. Raises `QuorumClientError`."""
        return await self._ask_leader(self._describe)

    async def add_voter(
        self, cluster_id: str, voter_id: int, directory_id: UUID, listeners: Sequence[Endpoint], timeout_ms: int
    ) -> ChangeAnswer:
        """Have an observer made a voter, and wait until that is committed. Raises `QuorumClientError`."""
        request = admin.AddRaftVoterRequest(
            cluster_id=cluster_id,
            timeout_ms=timeout_ms,
            voter_id=voter_id,
            voter_directory_id=directory_id,
            listeners=tuple(
                admin.AddRaftVoterRequestListener(name=each.name, host=each.host, port=each.port) for each in listeners
            ),
        )
        return await self._change(request, timeout_ms)

    async def remove_voter(self, cluster_id: str, voter_id: int, directory_id: UUID, timeout_ms: int) -> ChangeAnswer:
        """Have a voter made an observer, and wait until that is committed. Raises `QuorumClientError`."""
        request = admin.RemoveRaftVoterRequest(
            cluster_id=cluster_id, voter_id=voter_id, voter_directory_id=directory_id
        )
        return await self._change(request, timeout_ms)

    async def records(self, first: int, *, follow: bool = False) -> AsyncGenerator[LogRecord | LogStart, None]:
        """Committed records from offset `first` on, up to the high watermark of now, or for ever with `follow`.

        Goes on over changes of the leader. Raises `QuorumClientError`.
        """
        at = _Position(first, 0 if first == 0 else None)
        end = math.inf if follow else (await self.describe()).high_watermark
        while at.offset < end:
            found = await self._ask_leader(lambda connection, cluster: self._fetch(connection, cluster, at))
            for each in found:
                yield each
            if not found and at.watermark != at.offset:
                # There is more that is not committed, or this place is beyond the end: the answer came at once.
                await trio.sleep(_AGAIN_S)

    async def _ask_leader(
        self, question: Callable[[KafkaConnection, admin.DescribeClusterResponse], Awaitable[T]]
    ) -> T:
        reason = "no server was named"
        deadline_s = trio.current_time() + self._patience_s
        while True:
            for host, port in self._bootstrap:
                try:
                    return await self._from(host, port, question)
                except (_AskAgainError, KafkaConnectionError, KafkaWireError) as error:
                    reason = str(error)
            if trio.current_time() >= deadline_s:
                raise QuorumClientError(reason)
            await trio.sleep(_AGAIN_S)

    async def _from(
        self,
        host: str,
        port: int,
        question: Callable[[KafkaConnection, admin.DescribeClusterResponse], Awaitable[T]],
    ) -> T:
        """Ask the leader that this server names."""
        first = await connect(host, port, self._options)
        try:
            request = admin.DescribeClusterRequest(
                include_cluster_authorized_operations=False, endpoint_type=self._endpoint_type
            )
            cluster = await self._exchange(first, request)
            if cluster.error_code:
                told = cluster.error_message or error_name(cluster.error_code)
                raise QuorumClientError(f"{first.peer} does not describe its cluster: {told}")
            leader = next((each for each in cluster.brokers if each.broker_id == cluster.controller_id), None)
            if leader is None:
                raise _AskAgainError(f"{first.peer} knows no leader: an election is under way, or no majority is there")
            if (leader.host, leader.port) == (host, port):
                return await question(first, cluster)
        finally:
            await first.aclose()
        second = await connect(leader.host, leader.port, self._options)
        try:
            return await question(second, cluster)
        finally:
            await second.aclose()

    async def _exchange(self, connection: KafkaConnection, message: Any, wait_ms: int = 0) -> Any:
        within_ms = self._options.request_timeout_ms + wait_ms
        try:
            with trio.fail_after(within_ms / 1000):
                return await connection.exchange(message)
        except trio.TooSlowError as error:
            raise KafkaConnectionError(f"{connection.peer} did not answer within {within_ms} ms") from error
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise KafkaConnectionError(f"{connection.peer} has ended the connection: {error}") from error

    async def _describe(self, connection: KafkaConnection, cluster: admin.DescribeClusterResponse) -> QuorumDescription:
        partition = admin.DescribeQuorumRequestPartition(partition_index=PARTITION)
        topic = admin.DescribeQuorumRequestTopic(topic_name=TOPIC_NAME, partitions=(partition,))
        response = await self._exchange(connection, admin.DescribeQuorumRequest(topics=(topic,)))
        found = [each for topic in response.topics for each in topic.partitions]
        code = response.error_code or (found[0].error_code if found else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if code:
            told = response.error_message or (found[0].error_message if found else None) or error_name(code)
            text = f"{connection.peer} does not describe the quorum: {told}"
            raise _AskAgainError(text) if code in _TRANSIENT else QuorumClientError(text)
        state = found[0]
        return QuorumDescription(
            cluster.cluster_id,
            state.leader_id,
            state.leader_epoch,
            state.high_watermark,
            tuple(map(_replica, state.current_voters)),
            tuple(map(_replica, state.observers)),
            {
                node.node_id: tuple(Endpoint(each.name, each.host, each.port) for each in node.listeners)
                for node in response.nodes
            },
        )

    async def _change(
        self, request: admin.AddRaftVoterRequest | admin.RemoveRaftVoterRequest, timeout_ms: int
    ) -> ChangeAnswer:
        async def ask(connection: KafkaConnection, _cluster: admin.DescribeClusterResponse) -> ChangeAnswer:
            response = await self._exchange(connection, request, timeout_ms)
            if response.error_code in _TRANSIENT:
                raise _AskAgainError(f"{connection.peer}: {response.error_message or error_name(response.error_code)}")
            return ChangeAnswer(response.error_code, response.error_message or "")

        return await self._ask_leader(ask)

    async def _fetch(
        self, connection: KafkaConnection, cluster: admin.DescribeClusterResponse, at: _Position
    ) -> list[LogRecord | LogStart]:
        """Read on from this leader until there is something, or for a while."""
        epoch = (await self._describe(connection, cluster)).leader_epoch
        for _ in range(_FETCHES_OF_ONE_LEADER):
            part = await self._fetched(connection, at, epoch)
            if part.error_code in _TRANSIENT:
                raise _AskAgainError(f"{connection.peer}: {error_name(part.error_code)}")
            if part.error_code not in (ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE):
                raise QuorumClientError(f"{connection.peer} does not give its log: {error_name(part.error_code)}")
            at.watermark = part.high_watermark
            found = _start(part, at) or _records(part.records or b"", at)
            if found or at.watermark != at.offset:
                return found
        return []

    async def _fetched(self, connection: KafkaConnection, at: _Position, epoch: int) -> clients.FetchResponsePartition:
        partition = clients.FetchRequestPartition(
            partition=PARTITION,
            current_leader_epoch=epoch,
            fetch_offset=at.offset,
            last_fetched_epoch=epoch if at.epoch is None else at.epoch,
            partition_max_bytes=_FETCH_BYTES,
        )
        topic = clients.FetchRequestTopic(topic_id=TOPIC_ID, topic=TOPIC_NAME, partitions=(partition,))
        request = clients.FetchRequest(max_wait_ms=_FETCH_WAIT_MS, min_bytes=1, topics=(topic,))
        response = await self._exchange(connection, request, _FETCH_WAIT_MS)
        parts: list[clients.FetchResponsePartition] = [part for each in response.responses for part in each.partitions]
        if response.error_code or not parts:
            raise QuorumClientError(f"{connection.peer} does not give its log: {error_name(response.error_code)}")
        return parts[0]


def _replica(row: admin.DescribeQuorumResponseReplica) -> QuorumReplica:
    return QuorumReplica(
        row.replica_id,
        row.replica_directory_id,
        row.log_end_offset,
        row.last_fetch_timestamp,
        row.last_caught_up_timestamp,
    )


def _start(part: clients.FetchResponsePartition, at: _Position) -> list[LogRecord | LogStart]:
    """If the place that was asked for is compacted: where the log goes on; moves `at` there."""
    if part.snapshot_id.end_offset >= 0:
        at.offset, at.epoch = part.snapshot_id.end_offset, part.snapshot_id.epoch
    elif part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE and part.log_start_offset > at.offset:
        at.offset, at.epoch = part.log_start_offset, None
    else:
        return []
    return [LogStart(at.offset)]


def _records(data: bytes, at: _Position) -> list[LogRecord | LogStart]:
    """Those from `at` on that are committed; moves it behind them. Raises `KafkaWireError`."""
    found: list[LogRecord | LogStart] = []
    for batch in read_batches(data):
        for offset, record in enumerate(batch.records, batch.base_offset):
            if at.offset <= offset < at.watermark:
                control = (control_type_of(record.key) or (-1, 0))[0] if batch.is_control else None
                content = record.timestamp_ms, control, record.key, record.value, record.headers
                found.append(LogRecord(offset, batch.leader_epoch, *content))
                at.offset, at.epoch = offset + 1, batch.leader_epoch
    return found


def control_text(record: LogRecord) -> str | None:
    """What a control record says, for people; None: it is one that is not understood here."""
    found, value = control_type_of(record.key), record.value or b""
    if found is None or record.control_type is None:
        return None
    control_type, version = found
    if control_type == LEADER_CHANGE and (no_op := no_op_of(value)) is not None and no_op.leader is not None:
        return f"leader {replica(no_op.leader).id}, granted by {_ids(no_op.granted_by)} of {_ids(no_op.voters)}"
    if control_type == KRAFT_VERSION and len(value) >= _LEVEL.size:
        return f"level {_LEVEL.unpack_from(value)[0]}"
    if control_type == VOTERS:
        try:
            configuration, _ = voters_of(version, value)
        except KafkaWireError:
            return None
        return ", ".join(f"{replica(each.server_id).id} at {each.endpoint}" for each in configuration.voters)
    return None


def _ids(voters: Iterable[ServerId]) -> str:
    return ",".join(str(replica(each).id) for each in voters) or "none"
