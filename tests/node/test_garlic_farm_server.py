"""Replies of a Garlic Farm server to peers and clients, and its defense against misbehaving ones."""

from collections.abc import Callable
from contextlib import suppress
from random import Random

import pytest
import trio
from msgspec.structs import replace
from trio.testing import MockClock, memory_stream_pair

from consensus.core import messages as core
from consensus.core.features import GARLIC_FARM
from consensus.core.model import Entry, LogId
from consensus.net.receive_budget import Account, BudgetOptions, ReceiveBudget
from consensus.protocols.garlic_farm.node.client_quota import SAVED_US, SHARE, ClientQuota
from consensus.protocols.garlic_farm.node.connection import ClientAnswer, ConnectionOptions
from consensus.protocols.garlic_farm.node.dialer import Dialed, Dialer
from consensus.protocols.garlic_farm.node.listener import (
    I2P_ROUTER,
    ConnectionLimits,
    ConnectionPlaces,
    PendingConnection,
)
from consensus.protocols.garlic_farm.node.metrics import ConnectionEvent, Metrics
from consensus.protocols.garlic_farm.wire import messages as wire
from consensus.protocols.garlic_farm.wire.codec import REPLY, decode_reply, decode_request, encode_request
from consensus.protocols.garlic_farm.wire.digest import Credentials
from consensus.protocols.garlic_farm.wire.errors import Fault
from consensus.protocols.garlic_farm.wire.limits import DEFAULT_LIMITS
from consensus.protocols.garlic_farm.wire.peers import ProvenPeer
from consensus.protocols.garlic_farm.wire.proof import ConnectionRole
from consensus.protocols.garlic_farm.wire.upgrade import Identity
from consensus.protocols.garlic_farm.wire.upgrade_client import Initiator
from consensus.protocols.garlic_farm.wire.values import (
    ClusterServer,
    Configuration,
    LogEntry,
    LogPack,
    SnapshotSyncRequest,
)
from tests.node.garlic_farm_stage import (
    ALICE,
    BOB,
    CAROL,
    CHANNEL,
    PASSWORD,
    SERVER_KEYS,
    Host,
    Stage,
    expect_fault,
    peers_of,
)


@pytest.fixture
def stage(nursery: trio.Nursery) -> Stage:
    return Stage(nursery)


async def dial(stage: Stage, own_id: int | None = ALICE, role: ConnectionRole = ConnectionRole.SERVER) -> Dialed:
    return await stage.dialer(own_id, role=role).dial(stage.resolve(BOB), BOB)


async def send(dialed: Dialed, *requests: wire.Request) -> None:
    await dialed.stream.send_all(b"".join(map(encode_request, requests)))


async def dial_and_send(stage: Stage, *requests: wire.Request, own_id: int | None = ALICE) -> Dialed:
    dialed = await dial(stage, own_id)
    await send(dialed, *requests)
    return dialed


async def replies(dialed: Dialed, number: int) -> list[wire.Reply]:
    data = dialed.trailing
    while len(data) < number * REPLY.size:
        more = await dialed.stream.receive_some()
        if not more:
            break
        data += bytes(more)
    assert len(data) == number * REPLY.size, "the connection ended early, or too many replies came"
    return [decode_reply(data[at : at + REPLY.size]) for at in range(0, len(data), REPLY.size)]


async def replies_to(dialed: Dialed, request: wire.Request) -> bool:
    await send(dialed, request)
    return len(await replies(dialed, 1)) == 1


async def closes(dialed: Dialed) -> bool:
    try:
        return not await dialed.stream.receive_some()
    except trio.BrokenResourceError:
        return True


VOTE = wire.RequestVoteRequest(source=ALICE, destination=BOB, term=3, last_log_term=2, last_log_index=9)
PRE_VOTE = wire.PreVoteRequest(source=ALICE, destination=BOB, term=3, last_log_term=2, last_log_index=9)
APPEND = wire.AppendEntriesRequest(
    source=ALICE,
    destination=BOB,
    term=3,
    last_log_term=2,
    last_log_index=9,
    commit_index=8,
    entries=(Entry.command(3, b"{}"),),
)
CLIENT = wire.ClientRequest(entries=(Entry.command(0, b"{}"),))


async def test_peer_requests_reach_core(stage: Stage) -> None:
    host = stage.add(Host(BOB))
    dialed = await dial(stage)
    await send(dialed, VOTE, PRE_VOTE, APPEND)
    assert await replies(dialed, 3) == [
        wire.RequestVoteResponse(source=BOB, destination=ALICE, term=3, next_index=0, accepted=True),
        wire.PreVoteResponse(source=BOB, destination=ALICE, term=3, next_index=0, accepted=True),
        wire.AppendEntriesResponse(source=BOB, destination=ALICE, term=3, next_index=11, accepted=True),
    ]
    (_, vote), (_, pre_vote), (sender, append) = host.handler.requests
    assert sender == ALICE
    assert len({vote.correlation, pre_vote.correlation, append.correlation}) == 3
    expected = core.AppendEntries(
        term=3,
        leader=ALICE,
        previous=LogId(9, 2),
        entries=(Entry.command(3, b"{}"),),
        commit=8,
        correlation=append.correlation,
    )
    assert append == expected


async def test_replies_have_order_of_requests(stage: Stage, autojump_clock: MockClock) -> None:
    host = stage.add(Host(BOB))
    host.handler.delay_s = lambda request: 5.0 - request.term / 10
    dialed = await dial(stage)
    terms = list(range(1, 41))
    await dialed.stream.send_all(
        b"".join(encode_request(wire.RequestVoteRequest(source=ALICE, destination=BOB, term=term)) for term in terms)
    )
    started = trio.current_time()
    assert [reply.term for reply in await replies(dialed, 40)] == terms
    assert trio.current_time() - started == pytest.approx(4.9)
    assert [request.term for _, request in host.handler.requests] == terms


async def test_full_window_pauses_reading_until_replies_are_sent(stage: Stage, autojump_clock: MockClock) -> None:
    host = stage.add(Host(BOB, connection=ConnectionOptions(window=4)))
    host.handler.delay_s = lambda _: 1.0
    dialed = await dial(stage)
    await dialed.stream.send_all(encode_request(VOTE) * 10)
    await trio.sleep(0.5)
    assert len(host.handler.requests) == 4
    assert len(await replies(dialed, 10)) == 10


async def test_client_receives_accepted_after_commit(stage: Stage) -> None:
    host = stage.add(Host(BOB))
    dialed = await dial_and_send(stage, CLIENT, own_id=None)
    assert await replies(dialed, 1) == [
        wire.AppendEntriesResponse(source=BOB, destination=BOB, term=1, next_index=2, accepted=True)
    ]
    assert host.handler.log == [b"{}"]


@pytest.mark.parametrize(("leader", "named"), [(CAROL, CAROL), (None, -1)])
async def test_follower_sends_leader_as_destination(stage: Stage, leader: int | None, named: int) -> None:
    stage.add(Host(BOB)).handler.leader = leader
    dialed = await dial_and_send(stage, wire.ClientRequest(), own_id=None)
    assert await replies(dialed, 1) == [
        wire.AppendEntriesResponse(source=BOB, destination=named, term=1, next_index=0, accepted=False)
    ]


async def test_busy_leader_refuses_with_its_own_id(stage: Stage) -> None:
    stage.add(Host(BOB)).handler.client_answer = lambda _: ClientAnswer(busy=True, term=1)
    dialed = await dial_and_send(stage, CLIENT, own_id=None)
    assert await replies(dialed, 1) == [
        wire.AppendEntriesResponse(source=BOB, destination=BOB, term=1, next_index=0, accepted=False)
    ]


async def test_unknown_outcome_closes_connection_after_earlier_replies(stage: Stage) -> None:
    host = stage.add(Host(BOB))
    host.handler.client_answer = lambda commands: (
        None if commands else ClientAnswer(accepted=True, leader=BOB, next_index=1, term=1)
    )
    dialed = await dial(stage, None)
    await dialed.stream.send_all(encode_request(wire.ClientRequest()) + encode_request(CLIENT))
    assert len(await replies(dialed, 1)) == 1
    assert await closes(dialed)
    assert host.metrics.counts[ConnectionEvent.CONNECTIONS_HUNG_UP] == 1


MEMBERS = LogEntry(1, Configuration(1, 0, ()))


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (
            wire.AddServerRequest(entries=(LogEntry(0, ClusterServer(4, "tcp://x:1")),)),
            wire.AddServerResponse(source=BOB, destination=CAROL, term=1, next_index=0, accepted=False),
        ),
        (
            wire.RemoveServerRequest(entries=(LogEntry(0, ClusterServer(ALICE, None)),)),
            wire.RemoveServerResponse(source=BOB, destination=CAROL, term=1, next_index=0, accepted=False),
        ),
        (
            wire.JoinClusterRequest(source=ALICE, destination=BOB, term=1, entries=(MEMBERS,)),
            wire.JoinClusterResponse(source=BOB, destination=ALICE, term=1, next_index=0, accepted=False),
        ),
        (
            wire.LeaveClusterRequest(source=ALICE, destination=BOB, term=1),
            wire.LeaveClusterResponse(source=BOB, destination=ALICE, term=1, next_index=0, accepted=False),
        ),
    ],
)
async def test_unsupported_membership_request_is_refused(
    stage: Stage, request_: wire.Request, expected: wire.Reply
) -> None:
    host = stage.add(Host(BOB))
    host.handler.leader = CAROL
    dialed = await dial_and_send(stage, request_)
    assert await replies(dialed, 1) == [expected]
    assert (host.handler.requests, host.handler.log) == ([], [])


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"\x04" * 26, Fault.OUT_OF_TURN),
        (b"\xff", Fault.MALFORMED),
        (encode_request(wire.RequestVoteRequest(source=CAROL, destination=BOB, term=1)), Fault.OUT_OF_TURN),
        (encode_request(wire.RequestVoteRequest(source=ALICE, destination=CAROL, term=1)), Fault.WRONG_SERVER),
        (encode_request(VOTE)[:-4] + b"\x7f\xff\xff\xff", Fault.TOO_LARGE),
        (encode_request(APPEND)[:-3] + b"\xff", Fault.SILENT),
    ],
    ids=["reply", "malformed", "other-name", "other-server", "huge", "incomplete"],
)
async def test_peer_breaking_protocol_is_disconnected_with_reason(
    stage: Stage, data: bytes, fault: Fault, autojump_clock: MockClock
) -> None:
    host = stage.add(Host(BOB))
    dialed = await dial(stage)
    await dialed.stream.send_all(data)
    assert await closes(dialed)
    assert host.faults == {fault}
    assert host.metrics.counts[fault] == 1
    assert host.incidents[0].text.startswith("connection from 10.0.0.9 closed: ")
    assert host.handler.requests == []


async def test_pre_vote_without_negotiation_is_out_of_turn(stage: Stage) -> None:
    host = stage.add(Host(BOB))
    dialed = await stage.dialer(ALICE, offered=()).dial(stage.resolve(BOB), BOB)
    await send(dialed, PRE_VOTE)
    assert await closes(dialed)
    assert host.faults == {Fault.OUT_OF_TURN}


async def test_server_without_id_refuses_votes(stage: Stage) -> None:
    host = stage.add(Host(BOB, identity=Identity(None, None)))
    assert (await expect_fault(stage.dialer(ALICE), stage.resolve(BOB), BOB)).fault is Fault.BUSY
    assert host.faults == {Fault.BUSY}
    assert host.handler.requests == []


async def test_slow_handshake_is_closed_after_deadline(stage: Stage, autojump_clock: MockClock) -> None:
    host = stage.add(Host(BOB))
    stream = (await stage.connect(stage.resolve(BOB))).stream
    started = trio.current_time()
    for byte in b"GET /GarlicFarm/farm/1/websocket HTTP/1.1\r\n" * 10:
        try:
            await stream.send_all(bytes((byte,)))
        except trio.BrokenResourceError:
            break
        await trio.sleep(0.5)
    assert trio.current_time() - started < 6
    assert host.faults == {Fault.SILENT}
    assert len(host.server.places._handshakes) == 0


async def test_idle_connection_is_closed_without_incident(stage: Stage, autojump_clock: MockClock) -> None:
    host = stage.add(Host(BOB))
    dialed = await dial(stage)
    assert await closes(dialed)
    assert host.incidents == []
    assert host.metrics.counts[ConnectionEvent.CONNECTIONS_IDLE] == 1
    assert len(host.server.places._established) == 0


async def test_unanswered_request_closes_connection_after_timeout(stage: Stage, autojump_clock: MockClock) -> None:
    host = stage.add(Host(BOB, connection=ConnectionOptions(answer_s=30.0)))
    host.handler.delay_s = lambda request: 1e6 if request.term == 7 else 0
    dialed = await dial(stage)
    first_request = encode_request(VOTE)
    await dialed.stream.send_all(first_request)
    assert len(await replies(dialed, 1)) == 1
    await trio.sleep(20)
    began = trio.current_time()
    await dialed.stream.send_all(
        first_request + encode_request(wire.RequestVoteRequest(source=ALICE, destination=BOB, term=7))
    )
    assert len(await replies(dialed, 1)) == 1
    assert await closes(dialed)
    assert trio.current_time() == pytest.approx(began + 30)
    assert "was not answered within 30 s" in host.incidents[-1].text


async def test_handshake_flood_is_bounded_while_peers_connect(stage: Stage, autojump_clock: MockClock) -> None:
    host = stage.add(Host(BOB, connection_limits=ConnectionLimits(handshakes_max=8)))
    streams = []
    for number in range(500):
        ours, theirs = memory_stream_pair()
        streams.append(ours)
        stage.nursery.start_soon(host.server.serve, theirs, "10.0.0.66", CHANNEL)
        if number % 50 == 0:
            await trio.testing.wait_all_tasks_blocked()
            assert len(host.server.places._handshakes) <= 8
            dialed = await dial(stage)
            assert await replies_to(dialed, VOTE)
            await dialed.stream.aclose()
    await trio.sleep(10)
    assert len(host.server.places._handshakes) == 0
    assert Fault.BUSY in host.faults
    assert len(host.incidents) < 10, "a flood of connections must not become a flood of events"


async def test_member_is_limited_to_its_established_connections(stage: Stage) -> None:
    host = stage.add(Host(BOB, connection_limits=ConnectionLimits(established_per_member_max=3)))
    dialed = [await dial(stage) for _ in range(3)]
    await trio.testing.wait_all_tasks_blocked()
    surplus = await dial(stage)
    assert await closes(surplus)
    assert host.faults == {Fault.BUSY}
    await dialed[0].stream.aclose()
    await trio.testing.wait_all_tasks_blocked()
    again = await dial(stage)
    assert await replies_to(again, VOTE)


async def test_refused_handshake_is_explained_on_both_sides(stage: Stage) -> None:
    host = stage.add(Host(BOB))
    address = stage.resolve(BOB)
    failures = {
        "password": await expect_fault(stage.dialer(ALICE, password="wrong"), address),  # noqa: S106 - the test's own
        "cluster name": await expect_fault(stage.dialer(ALICE, cluster="other"), address),
        "cluster id": await expect_fault(stage.dialer(ALICE, cluster_id="cluster-b"), address),
    }
    assert {name: error.fault for name, error in failures.items()} == {
        "password": Fault.WRONG_CREDENTIALS,
        "cluster name": Fault.WRONG_PATH,
        "cluster id": Fault.WRONG_CLUSTER,
    }
    # The response contains only 404; the operator of the server sees the requested cluster.
    assert host.faults == {Fault.WRONG_CREDENTIALS, Fault.WRONG_CLUSTER}


async def test_later_connections_of_dialer_need_one_round(stage: Stage) -> None:
    stage.add(Host(BOB))
    dialer, address = stage.dialer(ALICE), stage.resolve(BOB)
    await dialer.dial(address)
    assert stage.connections == 2
    await dialer.dial(address)
    assert stage.connections == 3


async def test_server_at_address_of_another_is_refused(stage: Stage) -> None:
    host = stage.add(Host(BOB, identity=Identity("cluster-a", CAROL)))
    refused = await expect_fault(stage.dialer(ALICE), stage.resolve(BOB), BOB)
    assert refused.fault is Fault.WRONG_SERVER
    assert "another server than server 2 listens at the address that server 2 announced" in str(refused)
    assert "called server 2, but this is server 3" in host.incidents[0].text


async def test_mutated_requests_end_in_replies_or_counted_fault(stage: Stage, autojump_clock: MockClock) -> None:
    seed = 31
    random = Random(seed)
    host = stage.add(Host(BOB))
    samples = [encode_request(request) for request in (VOTE, PRE_VOTE, APPEND, CLIENT)]
    dialer, address = stage.dialer(ALICE), stage.resolve(BOB)
    closed = 0
    for _ in range(120):
        dialed = await dialer.dial(address, BOB)
        stream = bytearray(b"".join(random.choices(samples, k=random.randrange(1, 5))))
        for _ in range(random.randrange(4)):
            stream[random.randrange(len(stream))] = random.randrange(256)
        await dialed.stream.send_all(bytes(stream))
        await trio.testing.wait_all_tasks_blocked()
        before = len(host.server.places._established)
        await dialed.stream.aclose()
        await trio.testing.wait_all_tasks_blocked()
        assert len(host.server.places._established) == 0, f"seed {seed}"
        closed += before == 0
    faults = sum(host.metrics.counts[fault] for fault in Fault)
    assert 20 < closed == faults, f"seed {seed}: {closed} connections were closed, {faults} faults counted"


def test_wire_limits_equal_limits_of_core() -> None:
    assert (GARLIC_FARM.max_command_bytes, DEFAULT_LIMITS.entry_bytes) == (10 * 2**20, 10 * 2**20)
    assert DEFAULT_LIMITS.log_bytes == 12 * 2**20
    largest = Entry.command(1, bytes(GARLIC_FARM.max_command_bytes))
    small = Entry.command(1, bytes(1000))
    request = wire.AppendEntriesRequest(source=ALICE, destination=BOB, term=1, entries=(*[small] * 250, largest))
    assert decode_request(encode_request(request)) == request


# -- permissions -------------------------------------------------------------------------------------------------------

SERVER_MESSAGES = (
    *(
        kind(source=ALICE, destination=BOB, term=9, last_log_term=2, last_log_index=9)
        for kind in (wire.RequestVoteRequest, wire.PreVoteRequest, wire.TransferVoteRequest)
    ),
    wire.AppendEntriesRequest(
        source=ALICE,
        destination=BOB,
        term=9,
        last_log_term=2,
        last_log_index=9,
        commit_index=8,
        entries=(Entry.command(9, b"{}"),),
    ),
    wire.InstallSnapshotRequest(
        source=ALICE,
        destination=BOB,
        term=9,
        last_log_term=2,
        last_log_index=9,
        commit_index=8,
        entries=(LogEntry(9, SnapshotSyncRequest(9, 2, Configuration(1, 0, ()), 0, b"x", done=True)),),
    ),
    wire.TimeoutNowRequest(source=ALICE, destination=BOB, term=9, last_log_term=2, last_log_index=9, commit_index=8),
    wire.JoinClusterRequest(source=ALICE, destination=BOB, term=9, entries=(MEMBERS,)),
    wire.SyncLogRequest(
        source=ALICE, destination=BOB, term=9, entries=(LogEntry(9, LogPack(0, (Entry.command(9, b"{}"),))),)
    ),
    wire.LeaveClusterRequest(source=ALICE, destination=BOB, term=9),
)


@pytest.mark.parametrize("message", SERVER_MESSAGES, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("shown", ["nothing", "client role"])
async def test_server_messages_are_accepted_only_from_proven_server(
    stage: Stage, message: wire.Request, shown: str
) -> None:
    # Given a peer with the password, without a proven identity or with the identity of Alice as a client
    host = stage.add(Host(BOB))
    dialed = await dial(stage, ALICE if shown != "nothing" else None, ConnectionRole.CLIENT)
    # When it sends a message that only servers send, in the name of Alice
    await send(dialed, message)
    # Then the connection is closed, and the request handler did not receive the message
    assert await closes(dialed)
    assert host.faults == {Fault.OUT_OF_TURN}
    assert "which only servers may send" in host.incidents[0].text
    assert (host.handler.requests, host.handler.refused) == ([], 0)


@pytest.mark.parametrize("message", SERVER_MESSAGES, ids=lambda each: type(each).__name__)
async def test_server_must_send_in_its_own_name(stage: Stage, message: wire.Request) -> None:
    host = stage.add(Host(BOB))
    dialed = await dial_and_send(stage, message, own_id=CAROL)
    assert await closes(dialed)
    assert "in the name of server 1 on the connection of server 3" in host.incidents[0].text
    assert (host.handler.requests, host.handler.refused) == ([], 0)


@pytest.mark.parametrize("own_id", [None, ALICE])
async def test_client_with_password_may_submit_read_or_be_added(stage: Stage, own_id: int | None) -> None:
    host = stage.add(Host(BOB))
    dialed = await dial(stage, own_id, ConnectionRole.CLIENT)
    addition = wire.AddServerRequest(entries=(LogEntry(0, ClusterServer(4, "tcp://x:1")),))
    await send(dialed, CLIENT, wire.ReadIndexRequest(), addition)
    assert len(await replies(dialed, 3)) == 3
    assert host.incidents == []


@pytest.mark.parametrize(("own_id", "role"), [(None, "client"), (ALICE, "client"), (ALICE, "server")])
async def test_removal_of_another_server_is_refused(stage: Stage, own_id: int | None, role: str) -> None:
    host = stage.add(Host(BOB))
    dialed = await dial(stage, own_id, ConnectionRole(role))
    request = wire.RemoveServerRequest(entries=(LogEntry(0, ClusterServer(CAROL, None)),))
    await send(dialed, request)
    assert await closes(dialed)
    assert (
        "requests the removal of server 3, which only that server or an operator may request" in host.incidents[0].text
    )
    assert host.handler.refused == 0


async def test_connection_identifies_peer_before_it_is_established(stage: Stage) -> None:
    """The limits on established connections need the identity, because some places are reserved for servers."""
    host = stage.add(Host(BOB))
    seen: list[ProvenPeer | None] = []
    establish = host.server.places.establish

    def record_then_establish(pending: PendingConnection) -> bool:
        seen.append(pending.proven)
        return establish(pending)

    host.server.places.establish = record_then_establish  # type: ignore[method-assign]  # to record its argument
    for own_id in (ALICE, None):
        await (await dial(stage, own_id)).stream.aclose()
        await trio.testing.wait_all_tasks_blocked()
    assert seen == [ProvenPeer(ConnectionRole.SERVER, SERVER_KEYS[ALICE], ALICE), None]


async def test_server_through_i2p_router_does_not_make_source_known() -> None:
    """All I2P connections have one source: as a known source, it would give reserved places to unknown peers."""
    places = ConnectionPlaces(ConnectionLimits(handshakes_max=4), Metrics())
    for source, kept in ((I2P_ROUTER, True), ("192.0.2.1", False)):
        server = places.arrive(source)
        server.proven = ProvenPeer(ConnectionRole.SERVER, SERVER_KEYS[ALICE], ALICE)
        assert places.establish(server)
        unknown = [places.arrive(source) for _ in range(4)]
        assert len(places._handshakes) == (3 if kept else 4)
        for each in (*unknown, server):
            places.leave(each)


def placed(places: ConnectionPlaces, number: int, source: str = "192.0.2.1") -> bool:
    """Establish a connection of the server `number` with its own key; return True if it was admitted."""
    pending = places.arrive(source)
    pending.proven = ProvenPeer(ConnectionRole.SERVER, number.to_bytes(32), number)
    return places.establish(pending)


async def test_servers_with_one_voucher_share_its_places() -> None:
    options = ConnectionLimits(established_max=40, established_per_source_max=10)
    signers: dict[int, bytes] = dict.fromkeys(range(100, 200), b"signer")
    places = ConnectionPlaces(options, Metrics(), voucher_of=lambda claim: signers.get(claim.server_id or 0))
    # Given a member that invents 100 servers, each with one connection
    taken = sum(placed(places, 100 + number) for number in range(100))
    # Then they use the places of one server and of one unknown source
    assert taken == options.established_per_member_max + options.established_per_source_max
    # The reserved places are free for members
    assert all(placed(places, number) for number in range(1, 1 + 40 - taken))


async def test_unproven_connections_do_not_use_place_of_new_server() -> None:
    options = ConnectionLimits(established_max=8, established_per_member_max=2)
    places = ConnectionPlaces(options, Metrics(), voucher_of=lambda _: b"signer")
    while places.establish(places.arrive("192.0.2.1")):
        pass
    assert placed(places, 4)


async def test_new_server_has_own_places_after_log_has_it() -> None:
    options = ConnectionLimits(established_per_member_max=2, established_per_source_max=1)
    unnamed = {4, 5}
    places = ConnectionPlaces(
        options, Metrics(), voucher_of=lambda claim: b"signer" if claim.server_id in unnamed else None
    )
    assert placed(places, 4)
    assert placed(places, 4)
    unnamed.remove(4)
    places.end_proven(lambda _: False)
    assert placed(places, 5), "the places of its voucher are free again"
    assert not placed(places, 4), "its own two places are used"


def record_owners(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    owners: list[str] = []
    opens = ReceiveBudget.open

    def record_owner(budget: ReceiveBudget, owner: str, *, is_server: bool, close: Callable[[], None]) -> Account:
        owners.append(owner)
        return opens(budget, owner, is_server=is_server, close=close)

    monkeypatch.setattr(ReceiveBudget, "open", record_owner)
    return owners


async def test_bytes_of_vouched_server_count_for_its_voucher(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    host = stage.add(Host(BOB))
    owners = record_owners(monkeypatch)
    monkeypatch.setattr(host.server.places, "_voucher_of", lambda _: b"signer")
    await dial(stage, ALICE)
    await trio.testing.wait_all_tasks_blocked()
    assert owners == [f"vouched by {b'signer'.hex()}"]


async def test_connections_of_refused_peers_are_closed(stage: Stage) -> None:
    host = stage.add(Host(BOB))
    alice, carol, unproven = await dial(stage, ALICE), await dial(stage, CAROL), await dial(stage, None)
    await trio.testing.wait_all_tasks_blocked()
    host.server.places.end_proven(lambda proven: proven.server_id == ALICE)
    assert await closes(alice)
    assert len(host.server.places._established) == 2
    assert await replies_to(carol, replace(VOTE, source=CAROL))
    assert await replies_to(unproven, CLIENT)


async def test_keys_of_unknown_peers_share_source_in_byte_budget(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer can make any number of keys, so a share per key would not be a limit."""
    host = stage.add(Host(BOB))
    owners = record_owners(monkeypatch)
    address = stage.resolve(BOB)
    credentials = Credentials("router", PASSWORD)
    for key in (ALICE, 77, 78):
        identity = Identity("cluster-a", key if key == ALICE else None)
        caller = Initiator("farm", lambda: (credentials,), lambda: identity, Random(key).randbytes, peers_of(key))  # noqa: B023 - of this turn
        await Dialer(caller, transport=stage).dial(address, BOB)
        await trio.testing.wait_all_tasks_blocked()
    assert owners == [f"key {SERVER_KEYS[ALICE].hex()}", "10.0.0.9", "10.0.0.9"]
    assert host.incidents == []


LARGE = encode_request(
    wire.AppendEntriesRequest(
        source=ALICE,
        destination=BOB,
        term=3,
        last_log_term=2,
        last_log_index=9,
        commit_index=8,
        entries=(Entry.command(3, b'{"x":"' + b"y" * 300_000 + b'"}'),),
    )
)
TIGHT = BudgetOptions(servers_bytes=700_000, per_server_bytes=400_000, others_bytes=400_000)


async def test_leader_over_its_byte_share_is_read_slowly(stage: Stage, autojump_clock: MockClock) -> None:
    """There is room for one append at a time; a leader pipelines twenty, and all are answered."""
    host = stage.add(Host(BOB, budget=TIGHT))
    host.handler.delay_s = lambda _: 0.5
    dialed = await dial(stage)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(dialed.stream.send_all, LARGE * 20)
        assert len(await replies(dialed, 20)) == 20
    assert host.incidents == []


async def test_stopped_server_does_not_block_leader_in_byte_budget(stage: Stage, autojump_clock: MockClock) -> None:
    """A server stops in the middle of an append, and a leader can still append.

    The stopped connection is closed after its timeout, which releases its room.
    """
    host = stage.add(Host(BOB, budget=TIGHT))
    stopped = await dial(stage, CAROL)
    await stopped.stream.send_all(LARGE.replace(LARGE[1:5], CAROL.to_bytes(4), 1)[:200_000])
    leader = await dial(stage)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(leader.stream.send_all, LARGE * 5)
        assert len(await replies(leader, 5)) == 5
    assert await closes(stopped)
    assert host.faults == {Fault.SILENT}


async def test_slow_request_is_closed_after_deadline(stage: Stage, autojump_clock: MockClock) -> None:
    """A client sends one byte each second; its connection is closed at the deadline of the request."""
    host = stage.add(Host(BOB))
    dialed = await dial(stage, None)
    began = trio.current_time()
    with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        for byte in encode_request(CLIENT)[:40]:
            await dialed.stream.send_all(bytes([byte]))
            await trio.sleep(1)
    assert await closes(dialed)
    assert trio.current_time() - began < 45
    assert "was not complete 15 s after it began" in host.incidents[-1].text


async def test_clients_over_byte_budget_are_closed_with_reason(stage: Stage) -> None:
    host = stage.add(Host(BOB, budget=TIGHT))
    leader = await dial(stage)
    head = encode_request(CLIENT)[:41] + (5_000_000).to_bytes(4)
    holding = [await dial(stage, None) for _ in range(4)]
    for dialed in holding:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            await dialed.stream.send_all(head + bytes(300_000))
        await trio.testing.wait_all_tasks_blocked()
    assert await closes(holding[0])
    assert host.faults == {Fault.BUSY}
    assert "the requests of all clients exceeded the limit of this server" in host.incidents[0].text
    await leader.stream.send_all(LARGE)
    assert len(await replies(leader, 1)) == 1


async def test_clients_without_identity_have_limited_processor_share(stage: Stage, autojump_clock: MockClock) -> None:
    """A few megabytes of apparently signed entries would otherwise block all servers until the leader steps down."""
    # Given a server with a quota of ten entries in one burst
    host = stage.add(Host(BOB, quota=ClientQuota(lambda _: SAVED_US // 10)))
    client, member = await dial(stage, None), await dial(stage)
    # When a client without an identity sends more than that
    await client.stream.send_all(12 * encode_request(CLIENT))
    answers = [reply.accepted for reply in await replies(client, 12)]
    # Then the excess is refused as busy, and a member is served
    assert answers == [True] * 10 + [False] * 2
    await member.stream.send_all(12 * encode_request(CLIENT))
    assert all(reply.accepted for reply in await replies(member, 12))
    # After a pause, the client is served again: one entry per interval that its share allows
    await trio.sleep(1.01 * SAVED_US / 10 / SHARE / 1_000_000)
    await client.stream.send_all(2 * encode_request(CLIENT))
    client = replace(client, trailing=b"")
    assert [reply.accepted for reply in await replies(client, 2)] == [True, False]
    assert len(host.handler.log) == 10 + 12 + 1


async def test_request_over_maximum_quota_closes_connection(stage: Stage) -> None:
    host = stage.add(Host(BOB, quota=ClientQuota(lambda _: SAVED_US // 10)))
    client = await dial_and_send(stage, replace(CLIENT, entries=11 * CLIENT.entries), own_id=None)
    assert await closes(client)
    assert host.faults == {Fault.TOO_LARGE}
    assert "11 entries" in host.incidents[0].text
    assert "send fewer entries in one request" in host.incidents[0].text
