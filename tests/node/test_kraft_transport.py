"""A replica's transport to its peers: the order of requests, their replies, and unresponsive peers."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio
import trio.testing
from msgspec.structs import replace

from consensus.core import messages as core
from consensus.core.effects import Outcome
from consensus.core.features import Extensions
from consensus.core.messages import Reply, Request
from consensus.core.model import COMMAND, Entry, LogId, ReplicaKey
from consensus.net.tls import authority_context, server_context
from consensus.protocols.kafka.connections.connection import DialOptions
from consensus.protocols.kafka.connections.listener import KafkaListener, ListenerOptions, open_listener
from consensus.protocols.kafka.connections.security import ClientSecurity, ListenerSecurity, Login
from consensus.protocols.kafka.connections.service import Caller, ServedApi, Service
from consensus.protocols.kafka.wire import messages_quorum as quorum
from consensus.protocols.kafka.wire.apis import ApiKey, ErrorCode
from consensus.protocols.kafka.wire.scram import Mechanism, ScramUsers, scram_credential
from consensus.protocols.kraft.replica.peer_transport import KraftTransport, RetryTimes, TransportEvent
from consensus.protocols.kraft.replica.quorum_service import QuorumService
from consensus.protocols.kraft.wire.mapping import Answering
from consensus.server.errors import HaltedError
from tests.node.certificates import Authority
from tests.node.kraft_replicas import (
    LOOPBACK,
    KnownReplicas,
    Replica,
    ScriptedReceiver,
    leader_of,
    read_entries,
    replica_names,
    service,
    voter,
    write_entries,
)
from tests.node.recorded_receiver import RecordedReceiver
from tests.node.unexpected_errors import fail_first, tracebacks
from tests.processes import free_ports, hold_for_sockets

ONE, TWO = ReplicaKey(1), ReplicaKey(2)
TIMEOUT_S = 60
QUICK = RetryTimes(first_ms=1, max_ms=5)
VOTE = core.RequestVote(term=3, candidate=ONE, last=LogId(5, 2), correlation=77)
PRE_VOTE = replace(VOTE, pre_vote=True, correlation=78)
FETCH = core.Fetch(
    term=3, replica=ONE, position=LogId(5, 3), commit=4, max_wait_ms=500, max_bytes=1_000, correlation=79
)


class Pair:
    """The transport of replica 1, and replica 2 with a listener; the tests reply for replica 2."""

    def __init__(self, transport: KraftTransport, receiver: RecordedReceiver, names: KnownReplicas) -> None:
        self.transport = transport
        self.receiver = receiver
        self.names = names


@asynccontextmanager
async def transport_to(port: int | None, **options: Any) -> AsyncIterator[Pair]:
    names = KnownReplicas(ONE, {1: (LOOPBACK, 1)} | ({} if port is None else {2: (LOOPBACK, port)}))
    learned = options.pop("learned", lambda _: None)
    transport = KraftTransport(
        names, read_entries, DialOptions(**options), retry=QUICK, learned=learned, random=Random(1)
    )
    receiver = RecordedReceiver()
    with trio.fail_after(TIMEOUT_S):
        async with trio.open_nursery() as nursery:
            await nursery.start(transport.run, receiver)
            yield Pair(transport, receiver, names)
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def peer(answer: Callable[[Request], Reply | None] | None) -> AsyncIterator[tuple[ScriptedReceiver, int]]:
    receiver = ScriptedReceiver(answer)
    names = KnownReplicas(TWO, {1: (LOOPBACK, 1), 2: (LOOPBACK, 2)})
    async with open_listener((service(receiver, names),)) as listener:
        yield receiver, listener.port


def granted(request: Request) -> Reply:
    assert isinstance(request, core.RequestVote)
    return core.VoteReply(term=request.term, granted=True, correlation=request.correlation, pre_vote=request.pre_vote)


async def until_counted(transport: KraftTransport, event: TransportEvent) -> None:
    while not transport.counters[event]:  # noqa: ASYNC110 - a counter has no event
        await trio.sleep(0.001)


async def test_reply_has_correlation_of_its_request() -> None:
    async with peer(granted) as (_, port), transport_to(port) as pair:
        pair.transport.send(TWO, VOTE)
        pair.transport.send(TWO, PRE_VOTE)
        await pair.receiver.wait_replies(1)
        pair.transport.send(TWO, VOTE)
        replies = await pair.receiver.wait_replies(2)
        assert core.VoteReply(term=3, granted=True, correlation=77) in replies
        assert {sender for sender, _ in pair.receiver.replies} == {TWO}
        assert pair.receiver.extensions == [(TWO, Extensions(pre_vote=True))]


@pytest.mark.parametrize("call", ["peer_connected", "deliver_reply"])
async def test_unexpected_error_ends_only_connection_to_peer(
    call: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with peer(granted) as (_, port), transport_to(port) as pair:
        fail_first(monkeypatch, pair.receiver, call)
        pair.transport.send(TWO, VOTE)
        await until_counted(pair.transport, TransportEvent.CONNECTION_FAILED)
        pair.transport.send(TWO, PRE_VOTE)
        assert [each.correlation for each in await pair.receiver.wait_replies(1)] == [PRE_VOTE.correlation]
    assert tracebacks(caplog) == 1


async def test_vote_does_not_wait_for_parked_fetch() -> None:
    async with peer(None) as (remote, port), transport_to(port) as pair:
        pair.transport.send(TWO, FETCH)
        await remote.wait_requests(1)
        pair.transport.send(TWO, VOTE)
        await remote.wait_requests(2)
        _, vote, respond = remote.requests[1]
        respond(granted(vote))
        assert await pair.receiver.wait_replies(1) == [core.VoteReply(term=3, granted=True, correlation=77)]
        _, fetch, respond = remote.requests[0]
        entries = (Entry(3, COMMAND, b"a"),)
        respond(core.FetchReply(term=3, leader=TWO, commit=5, correlation=fetch.correlation, entries=entries))
        (_, reply) = await pair.receiver.wait_replies(2)
        assert reply == core.FetchReply(term=3, leader=TWO, commit=5, correlation=79, entries=entries)


class OldPeer:
    """A server older than pre-vote, or a server that replies with an error."""

    def __init__(self, max_version: int, error_code: int = 0) -> None:
        self.votes: list[quorum.VoteRequest] = []
        self._max_version = max_version
        self._error_code = error_code

    def apis(self) -> Mapping[int, ServedApi]:
        return {ApiKey.VOTE: ServedApi(0, self._max_version, self.answer)}

    def features(self) -> Mapping[str, tuple[int, int, int | None]]:
        return {}

    async def answer(self, request: quorum.VoteRequest, _: Caller) -> quorum.VoteResponse:
        """Reply with the configured error, or grant the vote."""
        await trio.lowlevel.checkpoint()
        self.votes.append(request)
        partition = quorum.VoteResponsePartition(partition_index=0, leader_id=-1, leader_epoch=3, vote_granted=True)
        topics = (quorum.VoteResponseTopic(topic_name="__cluster_metadata", partitions=(partition,)),)
        return quorum.VoteResponse(error_code=self._error_code, topics=() if self._error_code else topics)


async def test_peer_without_pre_vote_receives_only_votes() -> None:
    old = OldPeer(max_version=1)
    async with open_listener((old,)) as listener, transport_to(listener.port) as pair:
        pair.transport.send(TWO, PRE_VOTE)
        await pair.receiver.connected.wait()
        assert pair.receiver.extensions == [(TWO, Extensions(pre_vote=False))]
        pair.transport.send(TWO, PRE_VOTE)
        pair.transport.send(TWO, VOTE)
        assert await pair.receiver.wait_replies(1) == [core.VoteReply(term=3, granted=True, correlation=77)]
        assert [vote.topics[0].partitions[0].pre_vote for vote in old.votes] == [False]
        assert pair.transport.counters[TransportEvent.PRE_VOTE_UNSUPPORTED] == 2


async def test_useless_reply_is_counted_and_reported() -> None:
    refusing = OldPeer(2, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    async with open_listener((refusing,)) as listener, transport_to(listener.port) as pair:
        pair.transport.send(TWO, VOTE)
        await until_counted(pair.transport, TransportEvent.REPLY_USELESS)
        assert pair.transport.last_error == "replica 2: the peer answers CLUSTER_AUTHORIZATION_FAILED"
        assert pair.receiver.replies == []


async def test_request_timeout_replaces_connection(autojump_clock: trio.testing.MockClock) -> None:
    hold_for_sockets(autojump_clock)
    async with peer(None) as (remote, port), transport_to(port, request_timeout_ms=50) as pair:
        pair.transport.send(TWO, VOTE)
        await until_counted(pair.transport, TransportEvent.REQUEST_UNANSWERED)
        remote.busy = True
        pair.transport.send(TWO, VOTE)
        await until_counted(pair.transport, TransportEvent.REPLY_USELESS)
        assert pair.transport.counters[TransportEvent.CONNECTIONS] == 2


async def test_parked_fetch_timeout_is_wait_plus_request_timeout(autojump_clock: trio.testing.MockClock) -> None:
    hold_for_sockets(autojump_clock)
    async with peer(None) as (remote, port), transport_to(port, request_timeout_ms=50) as pair:
        began_s = trio.current_time()
        pair.transport.send(TWO, replace(FETCH, max_wait_ms=100))
        await remote.wait_requests(1)
        await until_counted(pair.transport, TransportEvent.REQUEST_UNANSWERED)
        assert 0.15 <= trio.current_time() - began_s <= 0.152


async def test_newest_request_waits_for_unreachable_peer() -> None:
    (port,) = free_ports(1)
    async with transport_to(port) as pair:
        for number in range(3):
            pair.transport.send(TWO, replace(VOTE, correlation=number))
        await until_counted(pair.transport, TransportEvent.CONNECTION_FAILED)
        late = OldPeer(2)
        async with open_listener((late,), ListenerOptions(port=port)):
            replies = await pair.receiver.wait_replies(1)
            assert [reply.correlation for reply in replies] == [2]
            assert len(late.votes) == 1


async def test_waiting_request_is_dropped_after_timeout() -> None:
    (port,) = free_ports(1)
    async with transport_to(port, request_timeout_ms=20) as pair:
        pair.transport.send(TWO, VOTE)
        await until_counted(pair.transport, TransportEvent.REQUEST_EXPIRED)
        assert pair.receiver.replies == []


def test_connection_backoff_doubles_from_20_to_1000_ms() -> None:
    transport = KraftTransport(KnownReplicas(ONE), read_entries, random=Random(2))
    backoff = transport.backoff()
    for full_ms in (20, 40, 80, 160, 320, 640, 1_000, 1_000):
        assert full_ms * 0.8 <= backoff.next_s() * 1_000 <= full_ms


async def test_first_backoff_above_maximum_is_limited() -> None:
    """An operator may set only `controller.quorum.retry.backoff.ms`, above the default maximum."""
    retry = RetryTimes(first_ms=2_000)
    transport = KraftTransport(KnownReplicas(ONE), read_entries, retry=retry, random=Random(2))
    assert 0.8 <= transport.backoff().next_s() <= 1
    async with trio.open_nursery() as nursery:
        await nursery.start(transport.run, RecordedReceiver())
        transport.send(TWO, VOTE)
        await until_counted(transport, TransportEvent.PEER_WITHOUT_ADDRESS)
        nursery.cancel_scope.cancel()


async def test_peer_address_may_appear_and_change_later() -> None:
    async with transport_to(None) as pair:
        pair.transport.send(TWO, VOTE)
        await until_counted(pair.transport, TransportEvent.PEER_WITHOUT_ADDRESS)
        first, second = OldPeer(2), OldPeer(2)
        async with open_listener((first,)) as here, open_listener((second,)) as there:
            pair.names.addresses[2] = (LOOPBACK, here.port)
            pair.transport.send(TWO, VOTE)
            await pair.receiver.wait_replies(1)
            pair.names.addresses[2] = (LOOPBACK, there.port)
            pair.transport.send(TWO, VOTE)
            await pair.receiver.wait_replies(2)
            assert (len(first.votes), len(second.votes)) == (1, 1)


async def until_closed(listener: KafkaListener) -> None:
    while listener._open.total():
        await trio.lowlevel.checkpoint()


async def test_removed_peer_loses_its_connections() -> None:
    serving: Service = OldPeer(2)
    async with open_listener((serving,)) as listener, transport_to(listener.port) as pair:
        pair.transport.send(TWO, VOTE)
        await pair.receiver.wait_replies(1)
        pair.transport.connect([TWO])
        pair.transport.send(TWO, VOTE)
        await pair.receiver.wait_replies(2)
        assert listener._open.total() == 1
        pair.transport.connect([])
        await until_closed(listener)


async def test_reply_announces_address_of_leader() -> None:
    def redirected(request: Request) -> Reply:
        return core.FetchReply(
            term=3, leader=TWO, commit=0, correlation=request.correlation, error=core.RefusalReason.NOT_LEADER
        )  # the peer has the leader's endpoint among its names

    learned: dict[int, tuple[str, int]] = {}
    async with peer(redirected) as (_, port), transport_to(port, learned=learned.update) as pair:
        pair.transport.send(TWO, FETCH)
        (reply,) = await pair.receiver.wait_replies(1)
        assert isinstance(reply, core.FetchReply)
        assert reply.error is core.RefusalReason.NOT_LEADER
        assert learned == {2: (LOOPBACK, 2)}


async def test_quorum_requests_need_login_of_replica(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    users = ScramUsers(
        {
            user: {Mechanism.SCRAM_SHA_512: scram_credential(Mechanism.SCRAM_SHA_512, "pencil", b"salt" * 4)}
            for user in ("replica", "guest")
        }
    )
    tls = server_context(authority.certificate(LOOPBACK).path, authority.file)
    shown = authority_context(authority.file, authority.certificate("replica-1").path)
    receiver, names = ScriptedReceiver(granted), KnownReplicas(TWO, {1: (LOOPBACK, 1)})
    protected = QuorumService(
        receiver,
        names,
        write_entries,
        lambda: Answering(None),
        may_join=lambda client: client.principal == "User:replica",
    )
    options = ListenerOptions(security=ListenerSecurity(tls=tls, credentials=users))
    async with open_listener((protected,), options) as listener:
        for user, accepted in (("guest", 0), ("replica", 1)):
            security = ClientSecurity(tls=shown, login=Login(user, "pencil"))
            async with transport_to(listener.port, security=security) as pair:
                pair.transport.send(TWO, VOTE)
                if accepted:
                    await pair.receiver.wait_replies(1)
                else:
                    await until_counted(pair.transport, TransportEvent.REPLY_USELESS)
                assert len(receiver.requests) == accepted


async def commit(replicas: list[Replica], command: bytes) -> None:
    """Propose to the leader until the command is committed. On a busy machine another election may come first."""
    while True:
        leader = await leader_of(replicas)
        if (await leader.server.propose((command,))).outcome is Outcome.COMMITTED:
            return


async def test_voter_of_other_cluster_halts_and_leader_continues(tmp_path: Path) -> None:
    names = replica_names(3)
    ended: list[HaltedError] = []
    over = trio.Event()

    async def stray(*, task_status: trio.TaskStatus[None]) -> None:
        try:
            async with voter(tmp_path, 3, names, "another"):
                task_status.started()
                await trio.sleep_forever()
        except HaltedError as error:
            ended.append(error)
            over.set()

    with trio.fail_after(TIMEOUT_S):
        async with trio.open_nursery() as nursery:
            # Alone, the stray voter does not get replies, and does not receive requests of a leader.
            await nursery.start(stray)
            async with voter(tmp_path, 1, names, "cluster") as one, voter(tmp_path, 2, names, "cluster") as two:
                await commit([one, two], b"word")
                await over.wait()
                await commit([one, two], b"another word")
    assert "cluster" in str(ended[0])
