"""Requests of replicas to a server over the wire, and the separation of their fetches from consumers' fetches."""

from collections.abc import Mapping
from typing import Any

import pytest
import trio
import trio.testing
from msgspec.structs import replace

from consensus.core import messages as core
from consensus.core.model import COMMAND, Entry, LogId, ReplicaKey
from consensus.protocols.kafka.connections.service import Caller, ServedApi
from consensus.protocols.kafka.wire import messages_clients as clients
from consensus.protocols.kafka.wire import messages_quorum as quorum
from consensus.protocols.kafka.wire.apis import ApiKey, ErrorCode
from consensus.protocols.kraft.replica.quorum_service import FETCH_SIZES, FetchDispatch, QuorumService
from consensus.protocols.kraft.wire.mapping import Answering, request_to_wire
from consensus.server.errors import ServerStoppedError
from tests.node.kraft_replicas import KnownReplicas, ScriptedReceiver, service, write_entries

ONE, TWO = ReplicaKey(1), ReplicaKey(2)
ENTRIES = (Entry(3, COMMAND, b"a"), Entry(3, COMMAND, b"b"))
FETCH = core.Fetch(
    term=3, replica=TWO, position=LogId(5, 3), commit=4, max_wait_ms=500, max_bytes=1_000, correlation=77
)
REQUESTS = (
    core.RequestVote(term=3, candidate=TWO, last=LogId(5, 2), correlation=77),
    core.BeginQuorumEpoch(term=3, leader=TWO, correlation=77),
    core.EndQuorumEpoch(term=3, leader=TWO, preferred=(ONE,), correlation=77),
    FETCH,
    core.FetchSnapshot(term=3, replica=TWO, snapshot=LogId(5, 3), offset=0, max_bytes=1_000, correlation=77),
)


def names() -> KnownReplicas:
    return KnownReplicas(ONE, {1: ("127.0.0.1", 9001), 2: ("127.0.0.1", 9002)})


def from_two(request: core.Request) -> Any:
    """Return the wire form of a request from replica 2 to replica 1."""
    sender = KnownReplicas(TWO, names().addresses)
    return request_to_wire(request, ONE, sender)


def caller(api_version: int = 17) -> Caller:
    return Caller("2", None, "127.0.0.1", 1, api_version, 1, "CONTROLLER")


async def test_replica_fetch_returns_entries_as_records() -> None:
    def answer(request: core.Request) -> core.Reply:
        return core.FetchReply(term=3, leader=ONE, commit=4, correlation=request.correlation, entries=ENTRIES)

    receiver = ScriptedReceiver(answer)
    response = await service(receiver, names()).answer(from_two(FETCH), caller())
    ((sender, received, _),) = receiver.requests
    assert sender == TWO
    assert isinstance(received, core.Fetch)
    assert (received.position, received.commit, received.max_wait_ms) == (LogId(5, 3), 4, 500)
    assert received.correlation != FETCH.correlation
    assert isinstance(response, clients.FetchResponse)
    (partition,) = response.responses[0].partitions
    assert partition.records == write_entries(6, ENTRIES)
    assert partition.high_watermark == 4
    assert partition.current_leader.leader_id == 1


async def test_entries_for_two_followers_are_encoded_once() -> None:
    written = []

    def write(first: int, entries: tuple[Entry, ...]) -> bytes:
        written.append(first)
        return write_entries(first, entries)

    receiver = ScriptedReceiver(
        lambda request: core.FetchReply(term=3, leader=ONE, commit=4, correlation=request.correlation, entries=ENTRIES)
    )
    at = QuorumService(receiver, names(), write, lambda: Answering(leader=ONE))
    first = await at.answer(from_two(FETCH), caller())
    assert await at.answer(from_two(FETCH), caller()) == first
    assert written == [6]
    await at.answer(
        from_two(
            core.Fetch(
                term=3, replica=TWO, position=LogId(6, 3), commit=4, max_wait_ms=500, max_bytes=1_000, correlation=78
            )
        ),
        caller(),
    )
    assert written == [6, 7]


async def test_parked_fetch_is_dropped_when_connection_ends() -> None:
    receiver = ScriptedReceiver()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(service(receiver, names()).answer, from_two(FETCH), caller())
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert receiver.forgotten == [receiver.requests[0][1].correlation]


async def test_parked_fetch_is_answered_by_later_reply() -> None:
    receiver = ScriptedReceiver()
    async with trio.open_nursery() as nursery:
        responses: list[Any] = []

        async def fetch() -> None:
            responses.append(await service(receiver, names()).answer(from_two(FETCH), caller()))

        nursery.start_soon(fetch)
        (received,) = await receiver.wait_requests(1)
        receiver.requests[0][2](core.FetchReply(term=3, leader=ONE, commit=5, correlation=received.correlation))
    assert responses[0].responses[0].partitions[0].high_watermark == 5


async def test_stopping_server_ends_waiting_connections() -> None:
    receiver = ScriptedReceiver(lambda _: None)
    with pytest.raises(ServerStoppedError):
        await service(receiver, names()).answer(from_two(FETCH), caller())


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: type(request).__name__)
async def test_busy_server_reply_lets_peer_retry(request_: core.Request) -> None:
    receiver = ScriptedReceiver()
    receiver.busy = True
    response = await service(receiver, names()).answer(from_two(request_), caller())
    assert response.error_code == ErrorCode.BROKER_NOT_AVAILABLE


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: type(request).__name__)
async def test_unknown_caller_is_refused_before_server(request_: core.Request) -> None:
    receiver = ScriptedReceiver()
    at = QuorumService(receiver, names(), write_entries, lambda: Answering(None), may_join=lambda _: False)
    response = await at.answer(from_two(request_), caller())
    assert response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert receiver.requests == []


@pytest.mark.parametrize("cluster_id", [None, "another"])
async def test_cluster_id_is_checked_by_core(cluster_id: str | None) -> None:
    def answer(request: core.Request) -> core.Reply:
        assert isinstance(request, core.Fetch)
        assert request.cluster_id == cluster_id
        error = None if cluster_id is None else core.RefusalReason.FOREIGN_CLUSTER
        return core.FetchReply(term=3, leader=ONE, commit=0, correlation=request.correlation, error=error)

    fetch = core.Fetch(
        term=3,
        replica=TWO,
        position=LogId(5, 3),
        commit=4,
        max_wait_ms=500,
        max_bytes=1_000,
        correlation=77,
        cluster_id=cluster_id,
    )
    response = await service(ScriptedReceiver(answer), names()).answer(from_two(fetch), caller())
    assert response.error_code == (0 if cluster_id is None else ErrorCode.INCONSISTENT_CLUSTER_ID)


async def test_request_for_other_voter_is_refused_before_server() -> None:
    receiver = ScriptedReceiver()
    vote = request_to_wire(
        core.RequestVote(term=3, candidate=TWO, last=LogId(5, 2), correlation=77), ReplicaKey(3), KnownReplicas(TWO)
    )
    response = await service(receiver, names()).answer(vote, caller(2))
    assert isinstance(response, quorum.VoteResponse)
    assert response.topics[0].partitions[0].error_code == ErrorCode.INVALID_VOTER_KEY
    assert receiver.requests == []


async def test_new_leader_announces_its_address() -> None:
    learned: dict[int, tuple[str, int]] = {}
    receiver = ScriptedReceiver(
        lambda request: core.BeginQuorumEpochReply(term=3, leader=TWO, correlation=request.correlation)
    )
    at = QuorumService(receiver, names(), write_entries, lambda: Answering(TWO), learned=learned.update)
    await at.answer(from_two(core.BeginQuorumEpoch(term=3, leader=TWO, correlation=77)), caller(1))
    assert learned == {2: ("127.0.0.1", 9002)}


class Consumers:
    """A service for clients that records its fetches."""

    def __init__(self, *also: ApiKey) -> None:
        self.fetched: list[clients.FetchRequest] = []
        self._also = also

    def apis(self) -> Mapping[int, ServedApi]:
        """Return Fetch and the APIs given to the constructor."""
        return {key: ServedApi(4, 11, self.answer) for key in (ApiKey.FETCH, *self._also)}

    def features(self) -> Mapping[str, tuple[int, int, int | None]]:
        return {"kraft.version": (0, 1, 1)}

    async def answer(self, request: clients.FetchRequest, _: Caller) -> clients.FetchResponse:
        """Record the request, and return an empty response."""
        self.fetched.append(request)
        await trio.lowlevel.checkpoint()
        return clients.FetchResponse(responses=())


@pytest.mark.parametrize("in_structure", [True, False], ids=["from-version-15", "before"])
async def test_fetch_with_replica_id_in_either_field_is_replica_fetch(*, in_structure: bool) -> None:
    receiver = ScriptedReceiver(
        lambda request: core.FetchReply(term=3, leader=ONE, commit=4, correlation=request.correlation)
    )
    consumers = Consumers()
    at = FetchDispatch(service(receiver, names()), consumers).apis()[ApiKey.FETCH]
    assert (at.min_version, at.max_version) == (4, 18)
    replicas = from_two(FETCH)
    by_id = clients.FetchRequest(
        replica_id=-1 if in_structure else 2,
        replica_state=clients.FetchRequestReplicaState(replica_id=2 if in_structure else -1),
        max_wait_ms=500, min_bytes=0, topics=replicas.topics,
    )  # fmt: skip
    await at.answer(by_id, caller(17 if in_structure else 13))
    assert len(receiver.requests) == 1
    consumer = clients.FetchRequest(max_wait_ms=500, min_bytes=1, topics=())
    await at.answer(consumer, caller(11))
    assert consumers.fetched == [consumer]
    refused = await at.answer(consumer, caller(17))
    assert refused.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert (len(receiver.requests), len(consumers.fetched)) == (1, 1)


def test_dispatch_merges_apis_and_features() -> None:
    both = FetchDispatch(service(ScriptedReceiver(), names()), Consumers(ApiKey.METADATA))
    assert both.apis().keys() == {1, 3, 52, 53, 54, 59}
    assert both.features() == {"kraft.version": (0, 1, 1), FETCH_SIZES: (1, 1, None)}
    with pytest.raises(ValueError, match="API 52 is served twice"):
        FetchDispatch(service(ScriptedReceiver(), names()), Consumers(ApiKey.VOTE)).apis()


@pytest.mark.parametrize(("max_bytes", "sizes"), [(1_000, [1_000, 4_000, 16_000]), (16_000, [16_000])])
async def test_fetch_smaller_than_batch_gets_whole_batch(max_bytes: int, sizes: list[int]) -> None:
    """The core cuts between entries, but the replica would read part of a batch as another batch."""

    def answer(request: core.Request) -> core.Reply:
        assert isinstance(request, core.Fetch)
        return core.FetchReply(
            term=3, leader=ONE, commit=4, correlation=request.correlation, entries=BATCH[: request.max_bytes // 1_000]
        )

    receiver = ScriptedReceiver(answer)
    at = QuorumService(
        receiver, names(), write_entries, lambda: Answering(leader=ONE), ends_batch=lambda entry: entry.data == b"end"
    )
    response = await at.answer(from_two(replace(FETCH, max_bytes=max_bytes)), caller())
    assert isinstance(response, clients.FetchResponse)
    assert response.responses[0].partitions[0].records == write_entries(6, BATCH)
    assert [request.max_bytes for _, request, _ in receiver.requests if isinstance(request, core.Fetch)] == sizes


async def test_batch_beyond_reply_size_is_requested_twice() -> None:
    receiver = ScriptedReceiver(
        lambda request: core.FetchReply(
            term=3, leader=ONE, commit=4, correlation=request.correlation, entries=BATCH[:2]
        )
    )
    at = QuorumService(
        receiver, names(), write_entries, lambda: Answering(leader=ONE), ends_batch=lambda entry: entry.data == b"end"
    )
    await at.answer(from_two(FETCH), caller())
    assert len(receiver.requests) == 2


BATCH = (*[Entry.command(3, b"part")] * 7, Entry.command(3, b"end"))
