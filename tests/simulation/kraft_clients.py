"""Clients of a listener in the fuzz of KRaft: valid and invalid requests, and an in-memory stream.

    request(random)         ─▶ a valid request of an API and version of the listener
    hostile(random, known)  ─▶ the bytes of one step: requests, mutated ones, many together, half of one, or garbage

A `Wire` is the client's end of a connection in memory. It collects the bytes that the server sends. If `takes` is
false, the server waits as for a client that does not read.
"""

import struct
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final
from uuid import UUID

import trio
import trio.testing

from consensus.core import messages as core
from consensus.core.model import LogId, ReplicaKey
from consensus.protocols.kafka.wire import messages_admin as admin
from consensus.protocols.kafka.wire import messages_clients as clients
from consensus.protocols.kafka.wire import messages_groups as groups
from consensus.protocols.kafka.wire.apis import VERSIONS, ApiKey
from consensus.protocols.kafka.wire.codec import encode_request
from consensus.protocols.kafka.wire.limits import TOPIC_NAME, ZERO_UUID
from consensus.protocols.kafka.wire.records import Compression, Record, RecordBatch
from consensus.protocols.kafka.wire.schemas import Direction
from consensus.protocols.kafka.wire.scram import Mechanism, ScramUsers, scram_credential
from consensus.protocols.kraft.wire.mapping import request_to_wire
from tests.node.kraft_replicas import KnownReplicas
from tests.node.kraft_topic import EPOCH, TOPIC_ID
from tests.simulation.fuzzing import mutated
from tests.simulation.kraft_targets import LENGTHS
from tests.wire.kraft_messages import any_message
from tests.wire.record_batches import encode_batch

USERS: Final = ScramUsers(
    {"alice": {Mechanism.SCRAM_SHA_256: scram_credential(Mechanism.SCRAM_SHA_256, "pencil", b"salt" * 4)}}
)
HOSTS: Final = (
    "127.0.0.1",
    "localhost",
    "",
    "::1",
    "a" * 70,
    "..",
    "\x00",
    "x" * 300,
    "host",
    "é",
    "-",
    "[::1]",
    "1.2.3",
)
"""Hosts of new voters."""
_PEER: Final = KnownReplicas(ReplicaKey(2), {1: ("127.0.0.1", 1), 2: ("127.0.0.1", 2), 3: ("127.0.0.1", 3)})
_FLOOD: Final = 40
_LARGEST_PIECE: Final = 150_000


def framed(frame: bytes) -> bytes:
    return struct.pack(">i", len(frame)) + frame


def hostile(random: Random, known: Sequence[bytes]) -> bytes:  # noqa: PLR0911 - one case per kind of hostility
    """Return the bytes of one step. `known` are requests of all APIs."""
    match random.randrange(12):
        case 0:
            return framed(mutated(random.choice(known), random, known, LENGTHS))
        case 1:
            return b"".join(framed(request(random)) for _ in range(random.choice((2, 3, 8))))
        case 2 if random.random() < 0.3:
            return _flood(random)
        case 3 if random.random() < 0.3:
            return random.choice((*LENGTHS, b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01"))
        case 4 if random.random() < 0.5:
            whole = framed(request(random))
            return whole[: random.randrange(len(whole))]
        case 5 if random.random() < 0.7:
            return struct.pack(">i", 200_000) + bytes(random.choice((100, 70_000, _LARGEST_PIECE)))
        case 6:
            key = random.choice([*VERSIONS])
            lowest, highest = VERSIONS[key]
            version = random.randint(lowest, highest)
            message = any_message(ApiKey(key), version, Direction.REQUEST, random)
            return framed(encode_request(key, version, random.randrange(2**31), "any", message))
        case 7:
            return framed(mutated(request(random), random, known, LENGTHS))
        case 8 if random.random() < 0.3:
            return framed(_everything(random))
        case _:
            return framed(request(random))


def _flood(random: Random) -> bytes:
    """Return Produce requests without acknowledgment, then a request that gets a response."""
    flood = [_framed_as(random, ApiKey.PRODUCE, _produce(random, acks=0)) for _ in range(_FLOOD)]
    return b"".join((*flood, _framed_as(random, ApiKey.METADATA, clients.MetadataRequest(topics=()))))


def _framed_as(random: Random, key: ApiKey, message: Any) -> bytes:
    return framed(encode_request(key, VERSIONS[key][1], random.randrange(2**31), "flood", message))


def request(random: Random) -> bytes:
    """Return a meaningful request, in any version of its API."""
    key, message = random.choice(_MAKERS)(random)
    version = random.randint(*VERSIONS[key])
    return encode_request(key, version, random.randrange(2**31), random.choice(("", "client")), message)


def _everything(random: Random) -> bytes:
    """Return a fetch of the complete log, which has a large response."""
    partition = clients.FetchRequestPartition(partition=0, fetch_offset=0, partition_max_bytes=2**31 - 1)
    topic = clients.FetchRequestTopic(topic_id=TOPIC_ID, partitions=(partition,))
    fetch = clients.FetchRequest(max_wait_ms=0, min_bytes=1, topics=(topic,))
    return encode_request(ApiKey.FETCH, 17, random.randrange(2**31), "greedy", fetch)


def _fetch(random: Random) -> tuple[ApiKey, Any]:
    partition = clients.FetchRequestPartition(
        partition=random.choice((0, 0, 0, 1)),
        fetch_offset=random.choice((0, 0, 5, 20, 1_000, -1, 2**63 - 1)),
        current_leader_epoch=random.choice((-1, -1, EPOCH, EPOCH - 1, EPOCH + 1)),
        partition_max_bytes=random.choice((0, 1, 2_000, 2**31 - 1, 2**31 - 1, -1)),
    )
    topic = clients.FetchRequestTopic(
        topic=random.choice(("farm", "farm", TOPIC_NAME, "")),
        topic_id=TOPIC_ID,
        partitions=(partition,) * random.choice((1, 1, 30)),
    )
    return ApiKey.FETCH, clients.FetchRequest(
        max_wait_ms=random.choice((0, 0, 500, 60_000, 2**31 - 1, -1)),
        min_bytes=random.choice((0, 1, 1, 2**31 - 1, -1)),
        max_bytes=random.choice((0, 1, 50_000, 2**31 - 1, 2**31 - 1, -1)),
        session_id=random.choice((0, 0, 0, 7)),
        topics=(topic,) * random.choice((1, 1, 1, 4)),
    )


def _replica(random: Random) -> tuple[ApiKey, Any]:
    """Return a replica's request, built by the core's own mapping."""
    term, place = random.choice((0, 3, 2**31 - 1)), LogId(random.choice((0, 5, 2**40)), random.choice((0, 3)))
    peer, cluster = ReplicaKey(random.choice((2, 2, 9))), random.choice((None, "cluster", "another"))
    kind, message = random.choice(
        (
            (
                ApiKey.VOTE,
                core.RequestVote(
                    term=term,
                    candidate=peer,
                    last=place,
                    correlation=7,
                    pre_vote=random.random() < 0.5,
                    cluster_id=cluster,
                ),
            ),
            (
                ApiKey.BEGIN_QUORUM_EPOCH,
                core.BeginQuorumEpoch(term=term, leader=peer, correlation=7, cluster_id=cluster),
            ),
            (
                ApiKey.END_QUORUM_EPOCH,
                core.EndQuorumEpoch(
                    term=term, leader=peer, preferred=(ReplicaKey(1), ReplicaKey(3)), correlation=7, cluster_id=cluster
                ),
            ),
            (
                ApiKey.FETCH,
                core.Fetch(
                    term=term,
                    replica=peer,
                    position=place,
                    commit=4,
                    max_wait_ms=random.choice((0, 500, 60_000)),
                    max_bytes=1_000,
                    correlation=7,
                    cluster_id=cluster,
                ),
            ),
            (
                ApiKey.FETCH_SNAPSHOT,
                core.FetchSnapshot(
                    term=term,
                    replica=peer,
                    snapshot=place,
                    offset=0,
                    max_bytes=1_000,
                    correlation=7,
                    cluster_id=cluster,
                ),
            ),
        )
    )
    return kind, request_to_wire(message, ReplicaKey(1), _PEER)


def _produce(random: Random, acks: int = -1) -> clients.ProduceRequest:
    records = tuple(Record(1_000, None, b"v" * random.choice((0, 1, 300))) for _ in range(random.choice((1, 1, 3))))
    batch = RecordBatch(
        0,
        -1,
        records,
        compression=random.choice([*Compression]),
        is_control=random.random() < 0.1,
        producer_id=random.choice((-1, 41, 99)),
        producer_epoch=random.choice((-1, 0)),
        base_sequence=random.choice((-1, 0, 1, 2**31 - 1)),
    )
    data = encode_batch(batch) * random.choice((0, 1, 1, 1, 1, 2))
    partition = clients.ProduceRequestPartition(index=0, records=data if random.random() < 0.9 else data[:-1])
    topic = clients.ProduceRequestTopic(name="farm", topic_id=TOPIC_ID, partition_data=(partition,))
    transaction = None if random.random() < 0.9 else "transaction"
    return clients.ProduceRequest(
        acks=acks, timeout_ms=random.choice((0, 100, 2**31 - 1)), transactional_id=transaction, topic_data=(topic,)
    )


def _produced(random: Random) -> tuple[ApiKey, Any]:
    return ApiKey.PRODUCE, _produce(random, random.choice((-1, -1, 0, 1, 2)))


def _about_voters(random: Random) -> tuple[ApiKey, Any]:
    listeners = tuple(
        admin.AddRaftVoterRequestListener(
            name="CONTROLLER", host=random.choice(HOSTS), port=random.choice((0, 1, 65_535))
        )
        for _ in range(random.choice((0, 1, 1, 2)))
    )
    voter_id, directory = random.choice((1, 9, 9, -1)), UUID(int=random.choice((0, 5, 5)))
    match random.randrange(5):
        case 0 | 1:
            return ApiKey.ADD_RAFT_VOTER, admin.AddRaftVoterRequest(
                timeout_ms=random.choice((-1, 0, 1_000)),
                voter_id=voter_id,
                voter_directory_id=directory,
                listeners=listeners,
                ack_when_committed=random.random() < 0.5,
            )
        case 2:
            return ApiKey.REMOVE_RAFT_VOTER, admin.RemoveRaftVoterRequest(
                voter_id=voter_id, voter_directory_id=random.choice((ZERO_UUID, directory))
            )
        case 3:
            return ApiKey.DESCRIBE_CLUSTER, admin.DescribeClusterRequest(
                include_cluster_authorized_operations=False, endpoint_type=random.choice((1, 2, 3))
            )
        case _:
            topic = admin.DescribeQuorumRequestTopic(
                topic_name=random.choice((TOPIC_NAME, TOPIC_NAME, "farm")),
                partitions=(admin.DescribeQuorumRequestPartition(partition_index=0),),
            )
            return ApiKey.DESCRIBE_QUORUM, admin.DescribeQuorumRequest(topics=(topic,) * random.choice((1, 1, 2)))


def _about_topic(random: Random) -> tuple[ApiKey, Any]:
    match random.randrange(4):
        case 0:
            partition = clients.ListOffsetsRequestPartition(
                partition_index=0, timestamp=random.choice((-1, -2, -3, -4, -5, -9, 0, 1_003, 2**63 - 1))
            )
            topic = clients.ListOffsetsRequestTopic(name="farm", partitions=(partition,))
            return ApiKey.LIST_OFFSETS, clients.ListOffsetsRequest(replica_id=-1, topics=(topic,))
        case 1:
            return ApiKey.INIT_PRODUCER_ID, clients.InitProducerIdRequest(transaction_timeout_ms=1)
        case 2:
            return ApiKey.API_VERSIONS, clients.ApiVersionsRequest(
                client_software_name="x", client_software_version="1"
            )
        case _:
            named = clients.MetadataRequestTopic(name=random.choice(("farm", "other")), topic_id=TOPIC_ID)
            return ApiKey.METADATA, clients.MetadataRequest(topics=random.choice(((), (named,), (named,) * 20)))


def _about_groups(random: Random) -> tuple[ApiKey, Any]:
    group, member = random.choice(("g", "g", "h", "", "n" * 300)), random.choice(("", "m", "client-1"))
    instance, generation = random.choice((None, None, "i", "j")), random.choice((-1, 0, 1, 2**31 - 1))
    match random.randrange(8):
        case 0 | 1 | 2:
            return ApiKey.JOIN_GROUP, groups.JoinGroupRequest(
                group_id=group,
                session_timeout_ms=random.choice((0, 6_000, 30_000, 2**31 - 1)),
                rebalance_timeout_ms=random.choice((-1, 1_000, 60_000)),
                member_id=member,
                group_instance_id=instance,
                protocol_type=random.choice(("consumer", "consumer", "")),
                protocols=(groups.JoinGroupRequestProtocol(name="range", metadata=b"m"),) * random.choice((0, 1, 1, 3)),
            )
        case 3:
            assigned = groups.SyncGroupRequestAssignment(member_id=member, assignment=b"a")
            return ApiKey.SYNC_GROUP, groups.SyncGroupRequest(
                group_id=group, generation_id=generation, member_id=member, assignments=(assigned,)
            )
        case 4:
            return ApiKey.HEARTBEAT, groups.HeartbeatRequest(
                group_id=group, generation_id=generation, member_id=member, group_instance_id=instance
            )
        case 5:
            who = groups.LeaveGroupRequestMember(member_id=member, group_instance_id=instance)
            return ApiKey.LEAVE_GROUP, groups.LeaveGroupRequest(group_id=group, members=(who,), member_id=member)
        case 6:
            partition = groups.OffsetCommitRequestPartition(
                partition_index=random.choice((0, 0, 1)),
                committed_offset=random.choice((-1, 0, 5, 2**63 - 1)),
                committed_metadata=random.choice((None, "", "x" * 2_000)),
            )
            topic = groups.OffsetCommitRequestTopic(name="farm", partitions=(partition,))
            return ApiKey.OFFSET_COMMIT, groups.OffsetCommitRequest(
                group_id=group, generation_id_or_member_epoch=generation, member_id=member, topics=(topic,)
            )
        case _:
            return random.choice(
                (
                    (ApiKey.OFFSET_FETCH, groups.OffsetFetchRequest(group_id=group, topics=())),
                    (ApiKey.FIND_COORDINATOR, groups.FindCoordinatorRequest(key=group, coordinator_keys=(group,) * 3)),
                    (ApiKey.LIST_GROUPS, groups.ListGroupsRequest()),
                    (ApiKey.DESCRIBE_GROUPS, groups.DescribeGroupsRequest(groups=(group, "g"))),
                )
            )


def _login(random: Random) -> tuple[ApiKey, Any]:
    if random.random() < 0.4:
        mechanism = random.choice(("SCRAM-SHA-256", "SCRAM-SHA-256", "PLAIN", ""))
        return ApiKey.SASL_HANDSHAKE, clients.SaslHandshakeRequest(mechanism=mechanism)
    auth_bytes = random.choice((b"", b"n,,n=alice,r=x", b"c=biws,r=x,p=", b"\xff"))
    return ApiKey.SASL_AUTHENTICATE, clients.SaslAuthenticateRequest(auth_bytes=auth_bytes)


_MAKERS: Final[tuple[Callable[[Random], tuple[ApiKey, Any]], ...]] = (
    *(_fetch, _fetch, _fetch, _replica, _replica, _produced, _produced),
    *(_about_voters, _about_topic, _about_topic, _about_groups, _about_groups, _login),
)


class Wire(trio.abc.Stream):
    """A connection in memory: a stream for the listener; the client adds bytes and inspects the received ones."""

    def __init__(self) -> None:
        self.received = bytearray()
        """All bytes sent by the listener."""
        self.sent = bytearray()
        """All bytes sent by the client."""
        self.closed = False
        """True after the listener closed the connection."""
        self.takes = True
        self._incoming = trio.testing.MemoryReceiveStream()
        self._taken = trio.Event()
        self._ended = False

    def put(self, data: bytes) -> None:
        """Send bytes from the client."""
        if data and not self.closed and not self._ended:
            self.sent += data
            self._incoming.put_data(data)

    def end(self) -> None:
        """Close the client's sending side."""
        if not self.closed:
            self._ended = True
            self._incoming.put_eof()

    def take(self, *, takes: bool) -> None:
        """Let the client read from now on, or not."""
        self.takes = takes
        if takes:
            self._taken.set()
            self._taken = trio.Event()

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes from the listener; wait until the client reads."""
        await trio.lowlevel.checkpoint()
        while not self.takes:
            await self._taken.wait()
        if self.closed:
            raise trio.ClosedResourceError
        self.received += data

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Return bytes sent by the client."""
        return bytes(await self._incoming.receive_some(max_bytes))

    async def aclose(self) -> None:
        """Close the connection on the listener's side."""
        self.closed = True
        self._incoming.close()
        await trio.lowlevel.checkpoint()
