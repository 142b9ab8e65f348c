"""An outside client of a quorum: its leader, its replicas, its log; and changes of its voters.

    controllers: any that replies ── DescribeCluster ─▶ the leader ── DescribeQuorum, Add-, RemoveRaftVoter, Fetch
    brokers:     any that replies ── Metadata ─▶ the leader of the log's topic ── ListOffsets, Fetch

The quorum may have our servers, Kafka's controllers, or both. Only the leader knows the replicas, and the first server
may name a dead leader. So a query continues at the next server until a server replies or the time is over.

*Reading the log* is a Fetch by replica -1. Our server treats this as a consumer's Fetch, and returns only records below
the high watermark. A controller of Kafka treats every Fetch as a replica's, and does not have a state for replica -1.
So it requires an epoch with the offset, and also returns uncommitted records. This client sends the epoch of the
previous record. Without a previous record it sends the leader's epoch, which is valid for any offset in the log. It
omits records beyond the high watermark.

*Brokers* are servers for clients. Brokers of a farm serve its log as a topic, each up to its applied index, even
without a leader; Metadata contains the topic's name. Brokers of Kafka do not serve the log of Kafka's quorum. The
client recognizes such a broker by the API CreateTopics or by several topics. If the leader of a farm is not among the
brokers, the first server reports its own view (`quorum_view`), also to Kafka's own tool.
"""

import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final, TypeVar
from uuid import UUID

import trio
from msgspec import Struct

from consensus.protocols.kafka.connections.connection import (
    DialOptions,
    KafkaConnection,
    KafkaConnectionError,
    connect,
)
from consensus.protocols.kafka.wire import messages_admin as admin
from consensus.protocols.kafka.wire import messages_clients as clients
from consensus.protocols.kafka.wire.apis import ApiKey, ErrorCode, error_name
from consensus.protocols.kafka.wire.limits import NO_EPOCH, NO_REPLICA, PARTITION, TOPIC_ID, TOPIC_NAME, KafkaWireError
from consensus.protocols.kafka.wire.schemas import api_key_of
from consensus.protocols.kraft.operators.log_records import (
    LogRecord,
    LogStart,
    ReadPosition,
    committed_records,
    log_start,
)
from consensus.protocols.kraft.operators.settings import Endpoint, wire_listeners

PATIENCE_S: Final = 10.0
_BROKERS: Final = 1
_CONTROLLERS: Final = 2
_AGAIN_S: Final = 0.2
_FETCH_WAIT_MS: Final = 1_000
_FETCHES_OF_ONE_LEADER: Final = 30
"""Fetches of one leader without new records, until the client searches for the leader again."""
_FETCH_BYTES: Final = 1024 * 1024
_CREATE_TOPICS: Final = 19
"""An API of every Kafka broker, but not of a server with a log as its only topic."""
_LATEST: Final = -1
"""The time of ListOffsets that means the high watermark."""
_TRANSIENT: Final = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.BROKER_NOT_AVAILABLE,
    ErrorCode.NOT_CONTROLLER,
)

F = TypeVar("F")
T = TypeVar("T")
_Place = tuple[str, int]


class QuorumClientError(Exception):
    """The quorum does not reply, or refuses; the text contains the reason."""


class _RetryError(Exception):
    """This server does not lead now, or cannot reply now; the text is the reason."""


class QuorumReplica(Struct, frozen=True):
    """One replica as the leader sees it. Times come from the leader's clock, in ms since the epoch; -1: unknown."""

    node_id: int
    directory_id: UUID
    """Zero: static voters do not have a directory id."""
    log_end_offset: int
    last_fetch_ms: int
    last_caught_up_ms: int


class QuorumDescription(Struct, frozen=True):
    """A quorum as its leader describes it."""

    cluster_id: str
    leader_id: int
    leader_epoch: int
    high_watermark: int
    voters: tuple[QuorumReplica, ...]
    observers: tuple[QuorumReplica, ...]
    listeners: Mapping[int, tuple[Endpoint, ...]]
    """Listeners of each voter, if the server sends them (DescribeQuorum 2)."""


class ChangeAnswer(Struct, frozen=True):
    """The leader's reply to a change of the voters; error code 0: it is committed."""

    error_code: int
    text: str

    @property
    def name(self) -> str:
        """The error as Kafka writes it."""
        return error_name(self.error_code)


class _Topic(Struct, frozen=True):
    """The log in the form that a Fetch needs: name, id and epoch of its topic."""

    name: str
    topic_id: UUID
    epoch: int
    is_replicated_by_fetch: bool
    """True if its leader treats a Fetch as a replica's, which needs the epoch of the previous record."""


class QuorumClient:
    """A client of a quorum. With `brokers` the addresses belong to servers for clients, not to controllers."""

    def __init__(
        self,
        bootstrap: Sequence[tuple[str, int]],
        options: DialOptions | None = None,
        *,
        brokers: bool = False,
        timeout_s: float = PATIENCE_S,
    ) -> None:
        self._bootstrap = tuple(bootstrap)
        self._options = options or DialOptions()
        self._endpoint_type = _BROKERS if brokers else _CONTROLLERS
        self._timeout_s = timeout_s

    async def describe(self) -> QuorumDescription:
        """Return the state of the quorum. Raises `QuorumClientError`."""
        return await self._call(self._find_quorum, self._describe)

    async def add_voter(
        self, cluster_id: str, voter_id: int, directory_id: UUID, listeners: Sequence[Endpoint], timeout_ms: int
    ) -> ChangeAnswer:
        """Turn an observer into a voter, and wait until the change is committed. Raises `QuorumClientError`."""
        request = admin.AddRaftVoterRequest(
            cluster_id=cluster_id,
            timeout_ms=timeout_ms,
            voter_id=voter_id,
            voter_directory_id=directory_id,
            listeners=wire_listeners(listeners),
        )
        return await self._change(request, timeout_ms)

    async def remove_voter(self, cluster_id: str, voter_id: int, directory_id: UUID, timeout_ms: int) -> ChangeAnswer:
        """Turn a voter into an observer, and wait until the change is committed. Raises `QuorumClientError`."""
        request = admin.RemoveRaftVoterRequest(
            cluster_id=cluster_id, voter_id=voter_id, voter_directory_id=directory_id
        )
        return await self._change(request, timeout_ms)

    async def records(self, first: int, *, follow: bool = False) -> AsyncGenerator[LogRecord | LogStart, None]:
        """Yield committed records from offset `first` on, up to the present high watermark, or forever with `follow`.

        Continues over changes of the leader. Raises `QuorumClientError`.
        """
        at = ReadPosition(first, 0 if first == 0 else None)
        end = math.inf if follow else await self._end()
        while at.offset < end:
            found = await (
                self._call(self._find_topic, lambda connection, topic: self._fetch(connection, topic, at))
                if self._endpoint_type == _BROKERS
                else self._call(
                    self._find_quorum, lambda connection, cluster: self._fetch_from_leader(connection, cluster, at)
                )
            )
            for each in found:
                yield each
            if not found and at.watermark != at.offset:
                # This offset is beyond the end, so the reply came immediately.
                await trio.sleep(_AGAIN_S)

    async def _end(self) -> int:
        """Return the present high watermark."""
        if self._endpoint_type == _BROKERS:
            return await self._call(self._find_topic, self._latest_offset)
        return (await self.describe()).high_watermark

    async def _call(
        self,
        find: Callable[[KafkaConnection], Awaitable[tuple[F, _Place | None]]],
        question: Callable[[KafkaConnection, F], Awaitable[T]],
    ) -> T:
        """Return the leader's reply to `question`, within the time limit; `find` gets the leader from a server.

        If `find` does not return the leader's address, the same server gets the question.
        """
        reasons: dict[_Place, str] = {}
        deadline_s = trio.current_time() + self._timeout_s
        while True:
            for place in self._bootstrap:
                try:
                    async with aclosing(await connect(*place, self._options)) as first:
                        found, leader = await find(first)
                        if leader is None or leader == place:
                            return await question(first, found)
                    async with aclosing(await connect(*leader, self._options)) as second:
                        return await question(second, found)
                except (_RetryError, KafkaConnectionError, KafkaWireError) as error:
                    reasons[place] = str(error)
            if trio.current_time() >= deadline_s:
                raise QuorumClientError("; ".join(dict.fromkeys(reasons.values())) or "no server was named")
            await trio.sleep(_AGAIN_S)

    async def _find_quorum(self, first: KafkaConnection) -> tuple[admin.DescribeClusterResponse, _Place | None]:
        request = admin.DescribeClusterRequest(
            include_cluster_authorized_operations=False, endpoint_type=self._endpoint_type
        )
        cluster: admin.DescribeClusterResponse = await self._exchange(first, request)
        if cluster.error_code:
            error_text = cluster.error_message or error_name(cluster.error_code)
            raise QuorumClientError(f"{first.peer} does not describe its cluster: {error_text}")
        leader = next((each for each in cluster.brokers if each.broker_id == cluster.controller_id), None)
        if leader is None and self._endpoint_type != _BROKERS:
            raise _RetryError(f"{first.peer} does not know a leader: an election runs, or a majority is missing")
        return cluster, None if leader is None else (leader.host, leader.port)

    async def _find_topic(self, first: KafkaConnection) -> tuple[_Topic, _Place]:
        """Return the log's topic and its leader."""
        if first.version_of(ApiKey.METADATA) is None:
            raise QuorumClientError(
                f"{first.peer} does not serve topics: if it is a controller, name it with --bootstrap-controller"
            )
        metadata: clients.MetadataResponse = await self._exchange(
            first, clients.MetadataRequest(topics=None, allow_auto_topic_creation=False)
        )
        found = _log_in(first, metadata.topics)
        partition = found.partitions[0]
        leader = next((each for each in metadata.brokers if each.node_id == partition.leader_id), None)
        if leader is None:
            raise _RetryError(f"{first.peer} does not know a leader of {found.name}: it does not serve the log yet")
        topic = _Topic(found.name or "", found.topic_id, partition.leader_epoch, is_replicated_by_fetch=False)
        return topic, (leader.host, leader.port)

    async def _exchange(self, connection: KafkaConnection, message: Any, wait_ms: int = 0) -> Any:
        within_ms = self._options.request_timeout_ms + wait_ms
        try:
            with trio.fail_after(within_ms / 1000):
                return await connection.exchange(message)
        except trio.TooSlowError as error:
            raise KafkaConnectionError(f"{connection.peer} did not answer within {within_ms} ms") from error
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            has_login = self._options.security.login is not None
            hint = "" if has_login else "; it may require a login (security.protocol=SASL_…)"
            raise KafkaConnectionError(f"{connection.peer} has ended the connection: {error}{hint}") from error

    async def _describe(self, connection: KafkaConnection, cluster: admin.DescribeClusterResponse) -> QuorumDescription:
        partition = admin.DescribeQuorumRequestPartition(partition_index=PARTITION)
        topic = admin.DescribeQuorumRequestTopic(topic_name=TOPIC_NAME, partitions=(partition,))
        response = await self._exchange(connection, admin.DescribeQuorumRequest(topics=(topic,)))
        found = [each for topic in response.topics for each in topic.partitions]
        code = response.error_code or (found[0].error_code if found else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if code:
            error_text = response.error_message or (found[0].error_message if found else None) or error_name(code)
            text = f"{connection.peer} does not describe the quorum: {error_text}"
            raise _RetryError(text) if code in _TRANSIENT else QuorumClientError(text)
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
        async def request_change(connection: KafkaConnection, _cluster: admin.DescribeClusterResponse) -> ChangeAnswer:
            if connection.version_of(api_key_of(request)) is None:
                raise QuorumClientError(
                    f"{connection.peer} does not change voters: name the controllers of a quorum with"
                    " --bootstrap-controller; a farm adds servers with `garlicfarm node approve`, and removes them"
                    " with `garlicfarm leave` or `garlicfarm servers remove`"
                )
            response = await self._exchange(connection, request, timeout_ms)
            if response.error_code in _TRANSIENT:
                raise _RetryError(f"{connection.peer}: {response.error_message or error_name(response.error_code)}")
            return ChangeAnswer(response.error_code, response.error_message or "")

        return await self._call(self._find_quorum, request_change)

    async def _fetch_from_leader(
        self, connection: KafkaConnection, cluster: admin.DescribeClusterResponse, at: ReadPosition
    ) -> list[LogRecord | LogStart]:
        epoch = (await self._describe(connection, cluster)).leader_epoch
        return await self._fetch(connection, _Topic(TOPIC_NAME, TOPIC_ID, epoch, is_replicated_by_fetch=True), at)

    async def _fetch(self, connection: KafkaConnection, topic: _Topic, at: ReadPosition) -> list[LogRecord | LogStart]:
        """Read from this leader until there are records, or for a limited time."""
        for _ in range(_FETCHES_OF_ONE_LEADER):
            part = await self._fetched(connection, topic, at)
            _check(connection, part.error_code, ErrorCode.OFFSET_OUT_OF_RANGE)
            at.watermark = part.high_watermark
            found = log_start(part, at) or committed_records(part.records or b"", at)
            if found or at.watermark != at.offset:
                return found
            if part.records:
                # The reply came immediately, because the leader also returns uncommitted records.
                await trio.sleep(_AGAIN_S)
        return []

    async def _fetched(
        self, connection: KafkaConnection, topic: _Topic, at: ReadPosition
    ) -> clients.FetchResponsePartition:
        epoch_before = topic.epoch if at.epoch is None else at.epoch
        partition = clients.FetchRequestPartition(
            partition=PARTITION,
            current_leader_epoch=topic.epoch,
            fetch_offset=at.offset,
            last_fetched_epoch=epoch_before if topic.is_replicated_by_fetch else NO_EPOCH,
            partition_max_bytes=_FETCH_BYTES,
        )
        fetch_topic = clients.FetchRequestTopic(topic_id=topic.topic_id, topic=topic.name, partitions=(partition,))
        request = clients.FetchRequest(max_wait_ms=_FETCH_WAIT_MS, min_bytes=1, topics=(fetch_topic,))
        response = await self._exchange(connection, request, _FETCH_WAIT_MS)
        _check(connection, response.error_code)
        parts: list[clients.FetchResponsePartition] = [part for each in response.responses for part in each.partitions]
        return _only(connection, parts)

    async def _latest_offset(self, connection: KafkaConnection, topic: _Topic) -> int:
        partition = clients.ListOffsetsRequestPartition(
            partition_index=PARTITION, current_leader_epoch=topic.epoch, timestamp=_LATEST
        )
        offsets_topic = clients.ListOffsetsRequestTopic(name=topic.name, partitions=(partition,))
        response = await self._exchange(
            connection, clients.ListOffsetsRequest(replica_id=NO_REPLICA, topics=(offsets_topic,))
        )
        part = _only(connection, [part for each in response.topics for part in each.partitions])
        _check(connection, part.error_code)
        return int(part.offset)


def _log_in(
    connection: KafkaConnection, topics: Sequence[clients.MetadataResponseTopic]
) -> clients.MetadataResponseTopic:
    """Return the topic of a log; raises `QuorumClientError` if it is missing."""
    found = [topic for topic in topics if topic.name == TOPIC_NAME] or topics
    if _CREATE_TOPICS in connection.versions or len(found) != 1 or len(found[0].partitions) != 1:
        count = "1 topic" if len(topics) == 1 else f"{len(topics)} topics"
        raise QuorumClientError(
            f"{connection.peer} serves {count} and no log of a farm: read a topic with a consumer such as kcat, and "
            "the log of Kafka's own quorum from its controllers, by --bootstrap-controller"
        )
    return found[0]


def _check(connection: KafkaConnection, error_code: int, *taken: ErrorCode) -> None:
    if error_code in _TRANSIENT:
        raise _RetryError(f"{connection.peer}: {error_name(error_code)}")
    if error_code not in (ErrorCode.NONE, *taken):
        raise QuorumClientError(f"{connection.peer} does not give its log: {error_name(error_code)}")


def _only(connection: KafkaConnection, parts: Sequence[T]) -> T:
    if len(parts) != 1:
        raise QuorumClientError(f"{connection.peer} replied with {len(parts)} partitions instead of one")
    return parts[0]


def _replica(row: admin.DescribeQuorumResponseReplica) -> QuorumReplica:
    return QuorumReplica(
        row.replica_id,
        row.replica_directory_id,
        row.log_end_offset,
        row.last_fetch_timestamp,
        row.last_caught_up_timestamp,
    )
