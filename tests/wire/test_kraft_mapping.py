"""Core messages and KRaft's messages: round trips over the codec, refusals, pre-votes, and voters without directory."""

from itertools import product
from typing import Final
from uuid import UUID

import pytest
from msgspec import structs
from msgspec.structs import replace

from consensus.core.messages import (
    BeginQuorumEpoch,
    BeginQuorumEpochReply,
    EndQuorumEpoch,
    EndQuorumEpochReply,
    Fetch,
    FetchReply,
    FetchSnapshot,
    FetchSnapshotReply,
    RefusalReason,
    Reply,
    Request,
    RequestVote,
    TimeoutNow,
    VoteReply,
)
from consensus.core.model import MAX_NUMBER, Entry, EntryKind, LogId, ReplicaKey
from consensus.protocols.kafka.wire.apis import ApiKey, ErrorCode
from consensus.protocols.kafka.wire.codec import decode_request, decode_response, encode_request, encode_response
from consensus.protocols.kafka.wire.limits import KafkaWireError, Topic
from consensus.protocols.kafka.wire.messages_clients import FetchRequest, FetchResponse, FetchResponseTopic
from consensus.protocols.kafka.wire.messages_quorum import (
    BeginQuorumEpochResponse,
    EndQuorumEpochResponse,
    FetchSnapshotResponseTopic,
    VoteRequest,
    VoteResponse,
)
from consensus.protocols.kraft.wire.mapping import (
    Answering,
    RefusedRequest,
    named_endpoints,
    reply_from_wire,
    reply_to_wire,
    request_from_wire,
    request_to_wire,
)
from tests.effort import each_case

ONE, TWO = ReplicaKey(1, b"1" * 16), ReplicaKey(2, b"2" * 16)
CLUSTER: Final = "Zm9yIGEgdGVzdCBvbmx5ISE"
ENTRIES = (Entry(3, EntryKind.COMMAND, b"entry"),)
LATEST: Final = {
    RequestVote: (ApiKey.VOTE, 2),
    Fetch: (ApiKey.FETCH, 18),
    FetchSnapshot: (ApiKey.FETCH_SNAPSHOT, 1),
    BeginQuorumEpoch: (ApiKey.BEGIN_QUORUM_EPOCH, 1),
    EndQuorumEpoch: (ApiKey.END_QUORUM_EPOCH, 1),
}
REQUESTS: Final[tuple[Request, ...]] = (
    RequestVote(term=4, candidate=ONE, last=LogId(9, 3), correlation=7, cluster_id=CLUSTER),
    RequestVote(term=4, candidate=ONE, last=LogId(9, 3), correlation=7, pre_vote=True),
    Fetch(
        term=4,
        replica=ONE,
        position=LogId(9, 3),
        commit=8,
        max_wait_ms=500,
        max_bytes=1_000,
        correlation=7,
        cluster_id=CLUSTER,
    ),
    FetchSnapshot(
        term=4, replica=ONE, snapshot=LogId(9, 3), offset=100, max_bytes=1_000, correlation=7, cluster_id=CLUSTER
    ),
    BeginQuorumEpoch(term=4, leader=ONE, correlation=7, cluster_id=CLUSTER),
    EndQuorumEpoch(term=4, leader=ONE, preferred=(TWO, ONE), correlation=7, cluster_id=CLUSTER),
)


class Names:
    """The configuration as replica `local` knows it: `keys` are its voters, by default replicas 1 and 2."""

    def __init__(self, local: ReplicaKey, *keys: ReplicaKey, topic: Topic | None = None) -> None:
        self._local = local
        self._keys = keys or (ONE, TWO)
        self._topic = topic or Topic()

    def topic(self) -> Topic:
        return self._topic

    def local(self) -> ReplicaKey:
        return self._local

    def replica_key(self, replica_id: int, directory: bytes) -> ReplicaKey:
        static = ReplicaKey(replica_id)
        return static if static in self._keys else ReplicaKey(replica_id, directory)

    def voter_key(self, voter_id: int) -> ReplicaKey | None:
        return next((key for key in self._keys if key.id == voter_id), None)

    def endpoint(self, replica: ReplicaKey) -> tuple[str, int] | None:
        """Return the address of a voter."""
        return ("10.0.0.1", 9_000 + replica.id) if replica in self._keys else None

    def listeners(self) -> tuple[tuple[str, str, int], ...]:
        return (("CONTROLLER", "10.0.0.1", 9_000 + self._local.id),)


def no_entries(_data: bytes, _position: LogId) -> tuple[Entry, ...]:
    raise AssertionError("there are no records to read")


def request_over_wire(request: Request) -> Request | RefusedRequest:
    """Return the request of replica 1 as received by replica 2."""
    api, version = LATEST[type(request)]
    frame = encode_request(api, version, 1, "test", request_to_wire(request, TWO, Names(ONE)))
    return request_from_wire(decode_request(frame).message, request.correlation, Names(TWO))


def reply_over_wire(request: Request, reply: Reply, answering: Answering, records: bytes = b"") -> Reply:
    """Return the reply of replica 2 as received by replica 1."""
    api, version = LATEST[type(request)]
    frame = encode_response(api, version, 1, reply_to_wire(reply, answering, Names(TWO), records))
    _, response = decode_response(api, version, frame)
    return reply_from_wire(response, request, Names(ONE), lambda _data, _position: ENTRIES)


@each_case("request_sent", REQUESTS, ids=lambda request: type(request).__name__)
def test_request_round_trips(request_sent: Request) -> None:
    assert request_over_wire(request_sent) == request_sent


REPLIES: Final[tuple[tuple[Request, Reply], ...]] = (
    (REQUESTS[0], VoteReply(term=4, granted=True, correlation=7)),
    (REQUESTS[0], VoteReply(term=5, granted=False, correlation=7, error=RefusalReason.STALE_TERM)),
    (REQUESTS[1], VoteReply(term=4, granted=True, correlation=7, pre_vote=True)),
    (REQUESTS[1], VoteReply(term=6, granted=False, correlation=7, pre_vote=True)),
    (REQUESTS[2], FetchReply(term=4, leader=TWO, commit=8, correlation=7)),
    (REQUESTS[2], FetchReply(term=4, leader=TWO, commit=8, correlation=7, diverging=LogId(5, 2))),
    (REQUESTS[2], FetchReply(term=4, leader=TWO, commit=8, correlation=7, snapshot=LogId(20, 3))),
    (
        REQUESTS[3],
        FetchSnapshotReply(
            term=4, leader=TWO, snapshot=LogId(9, 3), offset=100, correlation=7, data=b"bytes", size_bytes=105
        ),
    ),
    (REQUESTS[4], BeginQuorumEpochReply(term=4, leader=ONE, correlation=7)),
    (REQUESTS[5], EndQuorumEpochReply(term=5, leader=TWO, correlation=7)),
)


@each_case(("sent", "reply"), REPLIES, ids=[f"{number}" for number in range(len(REPLIES))])
def test_reply_round_trips(sent: Request, reply: Reply) -> None:
    assert reply_over_wire(sent, reply, Answering(TWO)) == reply


def test_records_of_fetch_reply_become_entries() -> None:
    reply = FetchReply(term=4, leader=TWO, commit=8, correlation=7, entries=ENTRIES)
    assert reply_over_wire(REQUESTS[2], reply, Answering(TWO), b"record batches") == reply


@each_case(
    ("sent", "reason"),
    list(product(REQUESTS, RefusalReason)),
    ids=lambda value: value.value if isinstance(value, RefusalReason) else type(value).__name__,
)
def test_refusal_reason_round_trips_if_kafka_has_its_code(sent: Request, reason: RefusalReason) -> None:
    reply: Reply
    match sent:
        case RequestVote(pre_vote=pre_vote):
            reply = VoteReply(term=4, granted=False, correlation=7, pre_vote=pre_vote, error=reason)
        case Fetch():
            reply = FetchReply(term=4, leader=None, commit=0, correlation=7, error=reason)
        case FetchSnapshot(snapshot=snapshot):
            reply = FetchSnapshotReply(term=4, leader=None, snapshot=snapshot, offset=100, correlation=7, error=reason)
        case BeginQuorumEpoch():
            reply = BeginQuorumEpochReply(term=4, leader=None, correlation=7, error=reason)
        case _:
            reply = EndQuorumEpochReply(term=4, leader=None, correlation=7, error=reason)
    expected = RefusalReason.STALE_TERM if reason is RefusalReason.ANOTHER_LEADER else reason
    assert reply_over_wire(sent, reply, Answering(None)) == replace(reply, error=expected)


@pytest.mark.parametrize("reply", [BeginQuorumEpochReply, EndQuorumEpochReply])
def test_reply_to_former_leader_does_not_end_it(reply: type[BeginQuorumEpochReply | EndQuorumEpochReply]) -> None:
    """A restarted controller of Kafka ends the epoch that it led. If it receives INVALID_REQUEST, it exits."""
    response = reply_to_wire(
        reply(term=4, leader=None, correlation=7, error=RefusalReason.ANOTHER_LEADER), Answering(None), Names(TWO)
    )
    assert isinstance(response, BeginQuorumEpochResponse | EndQuorumEpochResponse)
    assert response.topics[0].partitions[0].error_code == ErrorCode.FENCED_LEADER_EPOCH


def test_pre_vote_has_current_epoch_of_candidate() -> None:
    sent = request_to_wire(REQUESTS[1], TWO, Names(ONE))
    assert isinstance(sent, VoteRequest)
    assert sent.topics[0].partitions[0].replica_epoch == 3
    granted = reply_to_wire(VoteReply(term=4, granted=True, correlation=7, pre_vote=True), Answering(None), Names(TWO))
    assert isinstance(granted, VoteResponse)
    assert granted.topics[0].partitions[0].leader_epoch == 3


def test_new_leader_hides_high_watermark_before_commit() -> None:
    response = reply_to_wire(
        FetchReply(term=4, leader=TWO, commit=8, correlation=7), Answering(TWO, began=LogId(9, 4)), Names(TWO)
    )
    assert isinstance(response, FetchResponse)
    assert response.responses[0].partitions[0].high_watermark == -1
    assert reply_from_wire(response, REQUESTS[2], Names(ONE), no_entries) == FetchReply(
        term=4, leader=TWO, commit=0, correlation=7
    )


@pytest.mark.parametrize(("commit", "term", "high_watermark"), [(9, 4, 9), (8, 4, -1), (9, 3, -1)])
def test_fetch_reply_shows_only_commit_of_leaders_epoch(commit: int, term: int, high_watermark: int) -> None:
    response = reply_to_wire(
        FetchReply(term=term, leader=TWO, commit=commit, correlation=7), Answering(TWO, began=LogId(9, 4)), Names(TWO)
    )
    assert isinstance(response, FetchResponse)
    assert response.responses[0].partitions[0].high_watermark == high_watermark


def test_removed_leader_reads_reply_that_names_it() -> None:
    """Followers send such a reply while they follow a leader that has removed itself and resigned."""
    response = reply_to_wire(BeginQuorumEpochReply(term=4, leader=ONE, correlation=7), Answering(ONE), Names(TWO))
    assert isinstance(response, BeginQuorumEpochResponse)
    reply = reply_from_wire(response, REQUESTS[4], Names(ONE, TWO), no_entries)
    assert reply == BeginQuorumEpochReply(term=4, leader=ONE, correlation=7)


def test_vote_reply_names_only_leader_of_its_epoch() -> None:
    for term, leader_id in ((4, 2), (5, -1)):
        answering = Answering(TWO, term=4)
        response = reply_to_wire(VoteReply(term=term, granted=False, correlation=7), answering, Names(ONE))
        assert isinstance(response, VoteResponse)
        assert response.topics[0].partitions[0].leader_id == leader_id


def test_voter_without_directory_is_identified_by_id() -> None:
    names = Names(ReplicaKey(2), ReplicaKey(1), ReplicaKey(2))
    wire = request_to_wire(REQUESTS[0], ReplicaKey(2), Names(ONE))
    taken = request_from_wire(wire, 7, names)
    assert isinstance(taken, RequestVote)
    assert taken.candidate == ReplicaKey(1)


@pytest.mark.parametrize("request_sent", [REQUESTS[0], REQUESTS[4]], ids=["vote", "begin"])
def test_replica_with_other_directory_refuses_voter_requests(request_sent: Request) -> None:
    wire = request_to_wire(request_sent, TWO, Names(ONE))
    refused = request_from_wire(wire, 7, Names(ReplicaKey(2, b"x" * 16)))
    assert isinstance(refused, RefusedRequest)
    with pytest.raises(KafkaWireError, match="INVALID_VOTER_KEY"):
        reply_from_wire(refused.response, request_sent, Names(ONE), no_entries)


def test_fetch_without_high_watermark_waits_only_for_entries() -> None:
    wire = request_to_wire(REQUESTS[2], TWO, Names(ONE))
    older = decode_request(encode_request(ApiKey.FETCH, 17, 1, "test", wire)).message
    taken = request_from_wire(older, 7, Names(TWO))
    assert isinstance(taken, Fetch)
    assert taken.commit == MAX_NUMBER


def test_fetch_of_jvm_replica_uses_limit_of_request() -> None:
    wire = request_to_wire(REQUESTS[2], TWO, Names(ONE))
    assert isinstance(wire, FetchRequest)
    (topic,) = wire.topics
    (partition,) = topic.partitions
    partitions = (structs.replace(partition, partition_max_bytes=0),)
    unlimited = structs.replace(wire, max_bytes=8_388_608, topics=(structs.replace(topic, partitions=partitions),))
    taken = request_from_wire(unlimited, 7, Names(TWO))
    assert isinstance(taken, Fetch)
    assert taken.max_bytes == 8_388_608


def test_fetch_for_another_topic_is_refused() -> None:
    wire = request_to_wire(REQUESTS[2], TWO, Names(ONE))
    assert isinstance(wire, FetchRequest)
    assert isinstance(request_from_wire(structs.replace(wire, topics=()), 7, Names(TWO)), RefusedRequest)


TEST_TOPIC: Final = Topic("__raft_performance_test", UUID(int=2))


@each_case("request_sent", REQUESTS, ids=lambda request: type(request).__name__)
def test_request_is_accepted_only_for_name_of_own_log(request_sent: Request) -> None:
    """Kafka's test servers give the log another name. A replica without that name refuses the request."""
    api, version = LATEST[type(request_sent)]
    sent = request_to_wire(request_sent, TWO, Names(ONE, topic=TEST_TOPIC))
    message = decode_request(encode_request(api, version, 1, "test", sent)).message
    assert request_from_wire(message, 7, Names(TWO, topic=TEST_TOPIC)) == request_sent
    assert isinstance(request_from_wire(message, 7, Names(TWO)), RefusedRequest)


@each_case(("sent", "reply"), REPLIES, ids=[f"{number}" for number in range(len(REPLIES))])
def test_reply_names_log_of_its_server(sent: Request, reply: Reply) -> None:
    names = Names(TWO, topic=TEST_TOPIC)
    response = reply_to_wire(reply, Answering(TWO), names)
    (topic,) = response.responses if isinstance(response, FetchResponse) else response.topics
    match topic:
        case FetchResponseTopic(topic=name, topic_id=uuid):
            assert (name, uuid) == (TEST_TOPIC.name, TEST_TOPIC.id)
        case FetchSnapshotResponseTopic(name=name):
            assert name == TEST_TOPIC.name
        case _:
            assert topic.topic_name == TEST_TOPIC.name
    assert reply_from_wire(response, sent, names, no_entries) == reply


def test_response_to_another_request_is_refused() -> None:
    response = reply_to_wire(BeginQuorumEpochReply(term=4, leader=ONE, correlation=7), Answering(ONE), Names(TWO))
    with pytest.raises(KafkaWireError, match="is not a reply"):
        reply_from_wire(response, REQUESTS[0], Names(ONE), no_entries)


def test_error_unrelated_to_raft_is_refused() -> None:
    response = FetchResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR, responses=())
    with pytest.raises(KafkaWireError, match="UNKNOWN_SERVER_ERROR"):
        reply_from_wire(response, REQUESTS[2], Names(ONE), no_entries)


def test_message_of_another_protocol_is_refused() -> None:
    with pytest.raises(KafkaWireError, match="TimeoutNow"):
        request_to_wire(TimeoutNow(4, ONE, 7), TWO, Names(ONE))


def test_message_names_endpoint_of_leader() -> None:
    response = reply_to_wire(FetchReply(term=4, leader=TWO, commit=8, correlation=7), Answering(TWO), Names(TWO))
    assert named_endpoints(response) == {2: ("10.0.0.1", 9_002)}
    begun = request_to_wire(REQUESTS[4], TWO, Names(ONE))
    assert named_endpoints(begun) == {1: ("10.0.0.1", 9_001)}
