"""What a Garlic Farm server does for peers and clients, and against misbehaving ones."""

from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import replace
from random import Random

import pytest
import trio
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
async def stage() -> AsyncIterator[Stage]:
    async with trio.open_nursery() as nursery:
        yield Stage(nursery)
        nursery.cancel_scope.cancel()


async def dial(stage: Stage, own_id: int | None = ALICE, offered: tuple[str, ...] | None = None) -> Dialed:
    address = stage.resolve(BOB)
    assert address is not None
    dialer = stage.dialer(own_id) if offered is None else stage.dialer(own_id, offered=offered)
    return await dialer.dial(address, BOB)


async def replies(dialed: Dialed, number: int) -> list[wire.Reply]:
    data = dialed.trailing
    while len(data) < number * REPLY.size:
        more = await dialed.stream.receive_some()
        if not more:
            break
        data += bytes(more)
    assert len(data) == number * REPLY.size, "the connection ended early, or too many replies came"
    return [decode_reply(data[at : at + REPLY.size]) for at in range(0, len(data), REPLY.size)]


async def closes(dialed: Dialed) -> bool:
    try:
        return not await dialed.stream.receive_some()
    except trio.BrokenResourceError:
        return True


VOTE = wire.RequestVoteRequest(
    source=ALICE,
    destination=BOB,
    term=3,
    last_log_term=2,
    last_log_index=9,
)
PRE_VOTE = wire.PreVoteRequest(
    source=ALICE,
    destination=BOB,
    term=3,
    last_log_term=2,
    last_log_index=9,
)
APPEND = wire.AppendEntriesRequest(
    source=ALICE,
    destination=BOB,
    term=3,
    last_log_term=2,
    last_log_index=9,
    commit_index=8,
    entries=(Entry.command(3, b"{}"),),
)
CLIENT = wire.ClientRequest(
    entries=(Entry.command(0, b"{}"),),
)


async def test_votes_and_appends_reach_the_core_and_are_answered(stage: Stage) -> None:
    host = stage.add(Host(BOB))
    dialed = await dial(stage)
    for request in (VOTE, PRE_VOTE, APPEND):
        await dialed.stream.send_all(encode_request(request))
    assert await replies(dialed, 3) == [
        wire.RequestVoteResponse(source=BOB, destination=ALICE, term=3, next_index=0, accepted=True),
        wire.PreVoteResponse(source=BOB, destination=ALICE, term=3, next_index=0, accepted=True),
        wire.AppendEntriesResponse(source=BOB, destination=ALICE, term=3, next_index=11, accepted=True),
    ]
    (_, vote), (_, pre_vote), (sender, append) = host.handler.asked
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


async def test_replies_leave_in_the_order_of_the_requests_whatever_finishes_first(
    stage: Stage, autojump_clock: MockClock
) -> None:
    del autojump_clock
    host = stage.add(Host(BOB))
    host.handler.delay_s = lambda request: 5.0 - request.term / 10
    dialed = await dial(stage)
    terms = list(range(1, 41))
    await dialed.stream.send_all(
        b"".join(
            encode_request(
                wire.RequestVoteRequest(
                    source=ALICE,
                    destination=BOB,
                    term=term,
                )
            )
            for term in terms
        )
    )
    started = trio.current_time()
    assert [reply.term for reply in await replies(dialed, 40)] == terms
    assert trio.current_time() - started == pytest.approx(4.9)
    assert [request.term for _, request in host.handler.asked] == terms


async def test_a_full_window_stops_reading_and_goes_on_when_replies_leave(
    stage: Stage, autojump_clock: MockClock
) -> None:
    del autojump_clock
    host = stage.add(Host(BOB, connection=ConnectionOptions(window=4)))
    host.handler.delay_s = lambda _: 1.0
    dialed = await dial(stage)
    await dialed.stream.send_all(encode_request(VOTE) * 10)
    await trio.sleep(0.5)
    assert len(host.handler.asked) == 4
    assert len(await replies(dialed, 10)) == 10


async def test_a_client_is_told_accepted_when_its_entry_is_committed(stage: Stage) -> None:
    host = stage.add(Host(BOB))
    dialed = await dial(stage, None)
    await dialed.stream.send_all(encode_request(CLIENT))
    assert await replies(dialed, 1) == [
        wire.AppendEntriesResponse(source=BOB, destination=BOB, term=1, next_index=2, accepted=True)
    ]
    assert host.handler.log == [b"{}"]


@pytest.mark.parametrize(("leader", "named"), [(CAROL, CAROL), (None, -1)])
async def test_a_follower_names_the_leader_as_destination(stage: Stage, leader: int | None, named: int) -> None:
    stage.add(Host(BOB)).handler.leader = leader
    dialed = await dial(stage, None)
    await dialed.stream.send_all(encode_request(wire.ClientRequest()))
    assert await replies(dialed, 1) == [
        wire.AppendEntriesResponse(source=BOB, destination=named, term=1, next_index=0, accepted=False)
    ]


async def test_a_busy_leader_refuses_with_its_own_id(stage: Stage) -> None:
    stage.add(Host(BOB)).handler.client_answer = lambda _: ClientAnswer(busy=True, term=1)
    dialed = await dial(stage, None)
    await dialed.stream.send_all(encode_request(CLIENT))
    assert await replies(dialed, 1) == [
        wire.AppendEntriesResponse(source=BOB, destination=BOB, term=1, next_index=0, accepted=False)
    ]


async def test_an_unknown_outcome_closes_the_connection_after_the_replies_before_it(stage: Stage) -> None:
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
            wire.AddServerRequest(
                entries=(LogEntry(0, ClusterServer(4, "tcp://x:1")),),
            ),
            wire.AddServerResponse(source=BOB, destination=CAROL, term=1, next_index=0, accepted=False),
        ),
        (
            wire.RemoveServerRequest(
                entries=(LogEntry(0, ClusterServer(ALICE, None)),),
            ),
            wire.RemoveServerResponse(source=BOB, destination=CAROL, term=1, next_index=0, accepted=False),
        ),
        (
            wire.JoinClusterRequest(
                source=ALICE,
                destination=BOB,
                term=1,
                entries=(MEMBERS,),
            ),
            wire.JoinClusterResponse(source=BOB, destination=ALICE, term=1, next_index=0, accepted=False),
        ),
        (
            wire.LeaveClusterRequest(
                source=ALICE,
                destination=BOB,
                term=1,
            ),
            wire.LeaveClusterResponse(source=BOB, destination=ALICE, term=1, next_index=0, accepted=False),
        ),
    ],
)
async def test_what_is_not_served_is_refused_and_changes_nothing(
    stage: Stage, request_: wire.Request, expected: wire.Reply
) -> None:
    host = stage.add(Host(BOB))
    host.handler.leader = CAROL
    dialed = await dial(stage)
    await dialed.stream.send_all(encode_request(request_))
    assert await replies(dialed, 1) == [expected]
    assert (host.handler.asked, host.handler.log) == ([], [])


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"\x04" * 26, Fault.OUT_OF_TURN),
        (b"\xff", Fault.MALFORMED),
        (
            encode_request(
                wire.RequestVoteRequest(
                    source=CAROL,
                    destination=BOB,
                    term=1,
                )
            ),
            Fault.OUT_OF_TURN,
        ),
        (
            encode_request(
                wire.RequestVoteRequest(
                    source=ALICE,
                    destination=CAROL,
                    term=1,
                )
            ),
            Fault.WRONG_SERVER,
        ),
        (encode_request(VOTE)[:-4] + b"\x7f\xff\xff\xff", Fault.TOO_LARGE),
        (encode_request(APPEND)[:-3] + b"\xff", Fault.SILENT),
    ],
    ids=["reply", "rubbish", "other-name", "other-server", "huge", "never-whole"],
)
async def test_a_peer_that_speaks_out_of_turn_is_cut_off_and_explained(
    stage: Stage, data: bytes, fault: Fault, autojump_clock: MockClock
) -> None:
    del autojump_clock
    host = stage.add(Host(BOB))
    dialed = await dial(stage)
    await dialed.stream.send_all(data)
    assert await closes(dialed)
    assert host.faults == {fault}
    assert host.metrics.counts[fault] == 1
    assert host.incidents[0].text.startswith("connection from 10.0.0.9 closed: ")
    assert host.handler.asked == []


async def test_a_pre_vote_is_out_of_turn_where_the_handshake_did_not_agree_on_it(stage: Stage) -> None:
    host = stage.add(Host(BOB))
    dialed = await dial(stage, offered=())
    await dialed.stream.send_all(encode_request(PRE_VOTE))
    assert await closes(dialed)
    assert host.faults == {Fault.OUT_OF_TURN}


async def test_a_server_without_an_id_serves_no_votes(stage: Stage) -> None:
    host = stage.add(Host(BOB, identity=Identity(None, None)))
    assert (await expect_fault(stage.dialer(ALICE), stage.resolve(BOB), BOB)).fault is Fault.BUSY
    assert host.faults == {Fault.BUSY}
    assert host.handler.asked == []


async def test_a_handshake_that_takes_too_long_is_cut_off_however_slowly_it_drips(
    stage: Stage, autojump_clock: MockClock
) -> None:
    del autojump_clock
    host = stage.add(Host(BOB))
    address = stage.resolve(BOB)
    assert address is not None
    stream = (await stage.connect(address)).stream
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


async def test_an_idle_connection_is_closed_without_alarm(stage: Stage, autojump_clock: MockClock) -> None:
    del autojump_clock
    host = stage.add(Host(BOB))
    dialed = await dial(stage)
    assert await closes(dialed)
    assert host.incidents == []
    assert host.metrics.counts[ConnectionEvent.CONNECTIONS_IDLE] == 1
    assert host.server.places.established == 0


async def test_a_handler_that_never_answers_costs_the_connection(stage: Stage, autojump_clock: MockClock) -> None:
    del autojump_clock
    host = stage.add(Host(BOB, connection=ConnectionOptions(answer_s=30.0)))
    host.handler.delay_s = lambda request: 1e6 if request.term == 7 else 0
    dialed = await dial(stage)
    answered = encode_request(VOTE)
    await dialed.stream.send_all(answered)
    assert len(await replies(dialed, 1)) == 1
    await trio.sleep(20)
    began = trio.current_time()
    await dialed.stream.send_all(
        answered
        + encode_request(
            wire.RequestVoteRequest(
                source=ALICE,
                destination=BOB,
                term=7,
            )
        )
    )
    assert len(await replies(dialed, 1)) == 1
    assert await closes(dialed)
    assert trio.current_time() == pytest.approx(began + 30)
    assert "was not answered within 30 s" in host.incidents[-1].text


async def test_half_open_connections_stay_few_and_real_peers_get_through(
    stage: Stage, autojump_clock: MockClock
) -> None:
    del autojump_clock
    host = stage.add(Host(BOB, connection_limits=ConnectionLimits(handshakes_max=8)))
    held = []
    for number in range(500):
        ours, theirs = memory_stream_pair()
        held.append(ours)
        stage.nursery.start_soon(host.server.serve, theirs, "10.0.0.66", CHANNEL)
        if number % 50 == 0:
            await trio.testing.wait_all_tasks_blocked()
            assert len(host.server.places._handshakes) <= 8
            dialed = await dial(stage)
            await dialed.stream.send_all(encode_request(VOTE))
            assert len(await replies(dialed, 1)) == 1
            await dialed.stream.aclose()
    await trio.sleep(10)
    assert len(host.server.places._handshakes) == 0
    assert Fault.BUSY in host.faults
    assert len(host.incidents) < 10, "a flood of connections must not become a flood of events"


async def test_one_member_cannot_take_every_established_connection(stage: Stage) -> None:
    host = stage.add(Host(BOB, connection_limits=ConnectionLimits(established_per_member_max=3)))
    dialed = [await dial(stage) for _ in range(3)]
    await trio.testing.wait_all_tasks_blocked()
    surplus = await dial(stage)
    assert await closes(surplus)
    assert host.faults == {Fault.BUSY}
    await dialed[0].stream.aclose()
    await trio.testing.wait_all_tasks_blocked()
    again = await dial(stage)
    await again.stream.send_all(encode_request(VOTE))
    assert len(await replies(again, 1)) == 1


async def test_refused_handshakes_are_explained_on_both_sides(stage: Stage) -> None:
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
    # The answer says no more than 404; the server's own operator hears which cluster was asked for.
    assert host.faults == {Fault.WRONG_CREDENTIALS, Fault.WRONG_CLUSTER}


async def test_later_connections_of_one_dialer_need_one_round_only(stage: Stage) -> None:
    stage.add(Host(BOB))
    dialer, address = stage.dialer(ALICE), stage.resolve(BOB)
    assert address is not None
    await dialer.dial(address)
    assert stage.connections == 2
    await dialer.dial(address)
    assert stage.connections == 3


async def test_a_server_at_the_address_of_another_is_not_taken_for_it(stage: Stage) -> None:
    host = stage.add(Host(BOB, identity=Identity("cluster-a", CAROL)))
    refused = await expect_fault(stage.dialer(ALICE), stage.resolve(BOB), BOB)
    assert refused.fault is Fault.WRONG_SERVER
    assert "another server than server 2 listens at the address that server 2 announced" in str(refused)
    assert "calls server 2, and this is server 3" in host.incidents[0].text


async def test_mutated_requests_end_in_replies_or_in_one_explained_close(
    stage: Stage, autojump_clock: MockClock
) -> None:
    del autojump_clock
    seed = 31
    random = Random(seed)
    host = stage.add(Host(BOB))
    samples = [encode_request(request) for request in (VOTE, PRE_VOTE, APPEND, CLIENT)]
    dialer, address = stage.dialer(ALICE), stage.resolve(BOB)
    assert address is not None
    closed = 0
    for _ in range(300):
        dialed = await dialer.dial(address, BOB)
        stream = bytearray(b"".join(random.choices(samples, k=random.randrange(1, 5))))
        for _ in range(random.randrange(4)):
            stream[random.randrange(len(stream))] = random.randrange(256)
        await dialed.stream.send_all(bytes(stream))
        await trio.testing.wait_all_tasks_blocked()
        before = host.server.places.established
        await dialed.stream.aclose()
        await trio.testing.wait_all_tasks_blocked()
        assert host.server.places.established == 0, f"seed {seed}"
        closed += before == 0
    faults = sum(host.metrics.counts[fault] for fault in Fault)
    assert 50 < closed == faults, f"seed {seed}: {closed} connections were closed, {faults} faults counted"


def test_whatever_a_server_accepts_fits_the_wire_and_that_takes_no_more() -> None:
    assert (GARLIC_FARM.max_command_bytes, DEFAULT_LIMITS.entry_bytes) == (10 * 2**20, 10 * 2**20)
    assert DEFAULT_LIMITS.log_bytes == 12 * 2**20
    largest = Entry.command(1, bytes(GARLIC_FARM.max_command_bytes))
    small = Entry.command(1, bytes(1000))
    request = wire.AppendEntriesRequest(
        source=ALICE,
        destination=BOB,
        term=1,
        entries=(*[small] * 250, largest),
    )
    assert decode_request(encode_request(request)) == request


# -- who may say what --------------------------------------------------------------------------------------------------

SERVERS_WORDS = (
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
        source=ALICE,
        destination=BOB,
        term=9,
        entries=(LogEntry(9, LogPack(0, (Entry.command(9, b"{}"),))),),
    ),
    wire.LeaveClusterRequest(
        source=ALICE,
        destination=BOB,
        term=9,
    ),
)


@pytest.mark.parametrize("words", SERVERS_WORDS, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("shown", ["nothing", "a client's role"])
async def test_messages_of_servers_are_taken_only_from_a_proven_server(
    stage: Stage, words: wire.Request, shown: str
) -> None:
    # Given a peer that has the password, and shows nothing or that it is Alice's client
    host = stage.add(Host(BOB))
    address = stage.resolve(BOB)
    assert address is not None
    dialer = stage.dialer(ALICE if shown != "nothing" else None, role=ConnectionRole.CLIENT)
    dialed = await dialer.dial(address, BOB)
    # When it says what only a server says, in the name of Alice
    await dialed.stream.send_all(encode_request(words))
    # Then the connection ends, and nothing has reached the request handler
    assert await closes(dialed)
    assert host.faults == {Fault.OUT_OF_TURN}
    assert "which only servers may send" in host.incidents[0].text
    assert (host.handler.asked, host.handler.refused) == ([], 0)


@pytest.mark.parametrize("words", SERVERS_WORDS, ids=lambda each: type(each).__name__)
async def test_a_server_speaks_in_its_own_name_alone(stage: Stage, words: wire.Request) -> None:
    host = stage.add(Host(BOB))
    dialed = await dial(stage, CAROL)
    await dialed.stream.send_all(encode_request(words))
    assert await closes(dialed)
    assert "in the name of server 1 on the connection of server 3" in host.incidents[0].text
    assert (host.handler.asked, host.handler.refused) == ([], 0)


@pytest.mark.parametrize("own_id", [None, ALICE])
async def test_a_client_with_the_password_may_submit_read_and_ask_to_be_added(stage: Stage, own_id: int | None) -> None:
    host = stage.add(Host(BOB))
    address = stage.resolve(BOB)
    assert address is not None
    dialed = await stage.dialer(own_id, role=ConnectionRole.CLIENT).dial(address, BOB)
    asks = wire.AddServerRequest(
        entries=(LogEntry(0, ClusterServer(4, "tcp://x:1")),),
    )
    for asked in (
        CLIENT,
        wire.ReadIndexRequest(),
        asks,
    ):
        await dialed.stream.send_all(encode_request(asked))
    assert len(await replies(dialed, 3)) == 3
    assert host.incidents == []


@pytest.mark.parametrize(("own_id", "role"), [(None, "client"), (ALICE, "client"), (ALICE, "server")])
async def test_no_server_asks_that_another_one_be_removed(stage: Stage, own_id: int | None, role: str) -> None:
    host = stage.add(Host(BOB))
    address = stage.resolve(BOB)
    assert address is not None
    dialed = await stage.dialer(own_id, role=ConnectionRole(role)).dial(address, BOB)
    request = wire.RemoveServerRequest(
        entries=(LogEntry(0, ClusterServer(CAROL, None)),),
    )
    await dialed.stream.send_all(encode_request(request))
    assert await closes(dialed)
    assert (
        "requests the removal of server 3, which only that server or an operator may request" in host.incidents[0].text
    )
    assert host.handler.refused == 0


async def test_a_connection_tells_early_whose_it_is(stage: Stage) -> None:
    """Before it takes a place among the established, so that places can be kept for servers."""
    host = stage.add(Host(BOB))
    seen: list[ProvenPeer | None] = []
    establish = host.server.places.establish

    def looked_at(pending: PendingConnection) -> bool:
        seen.append(pending.proven)
        return establish(pending)

    host.server.places.establish = looked_at  # type: ignore[method-assign]  # to see what it sees
    for own_id in (ALICE, None):
        await (await dial(stage, own_id)).stream.aclose()
        await trio.testing.wait_all_tasks_blocked()
    assert seen == [ProvenPeer(ConnectionRole.SERVER, SERVER_KEYS[ALICE], ALICE), None]


async def test_a_server_behind_the_i2p_router_makes_no_stranger_behind_it_known() -> None:
    """All come from one source there: a known one would let strangers have the places that are kept for servers."""
    places = ConnectionPlaces(ConnectionLimits(handshakes_max=4), Metrics())
    for source, kept in ((I2P_ROUTER, True), ("192.0.2.1", False)):
        server = places.arrive(source)
        server.proven = ProvenPeer(ConnectionRole.SERVER, SERVER_KEYS[ALICE], ALICE)
        assert places.establish(server)
        strangers = [places.arrive(source) for _ in range(4)]
        assert len(places._handshakes) == (3 if kept else 4)
        for each in (*strangers, server):
            places.leave(each)


def placed(places: ConnectionPlaces, number: int, source: str = "192.0.2.1") -> bool:
    """One more connection of the server `number`, of a key of its own."""
    pending = places.arrive(source)
    pending.proven = ProvenPeer(ConnectionRole.SERVER, number.to_bytes(32), number)
    return places.establish(pending)


async def test_servers_that_one_signer_vouches_for_share_its_places() -> None:
    options = ConnectionLimits(established_max=40, established_per_source_max=10)
    signers: dict[int, bytes] = dict.fromkeys(range(100, 200), b"signer")
    places = ConnectionPlaces(options, Metrics(), voucher_of=lambda claim: signers.get(claim.server_id or 0))
    # Given a member that invents servers and connects as many as there are places
    taken = sum(placed(places, 100 + number) for number in range(100))
    # Then they have the places of one server, and those of one source of strangers
    assert taken == options.established_per_member_max + options.established_per_source_max
    # And the places that are kept for members are free for members
    assert all(placed(places, number) for number in range(1, 1 + 40 - taken))


async def test_strangers_do_not_take_the_place_of_a_newcomer() -> None:
    options = ConnectionLimits(established_max=8, established_per_member_max=2)
    places = ConnectionPlaces(options, Metrics(), voucher_of=lambda _: b"signer")
    while places.establish(places.arrive("192.0.2.1")):
        pass
    assert placed(places, 4)


async def test_a_newcomer_has_places_of_its_own_once_the_directory_names_it() -> None:
    options = ConnectionLimits(established_per_member_max=2, established_per_source_max=1)
    unnamed = {4, 5}
    places = ConnectionPlaces(
        options, Metrics(), voucher_of=lambda claim: b"signer" if claim.server_id in unnamed else None
    )
    assert placed(places, 4)
    assert placed(places, 4)
    unnamed.remove(4)
    places.end_proven(lambda _: False)
    assert placed(places, 5), "the places of its signer are free again"
    assert not placed(places, 4), "and two are its own"


async def test_what_a_vouched_server_sends_counts_on_its_signer(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    host = stage.add(Host(BOB))
    owners: list[str] = []
    opens = ReceiveBudget.open

    def noted(budget: ReceiveBudget, owner: str, *, is_server: bool, close: Callable[[], None]) -> Account:
        owners.append(owner)
        return opens(budget, owner, is_server=is_server, close=close)

    monkeypatch.setattr(ReceiveBudget, "open", noted)
    monkeypatch.setattr(host.server.places, "_voucher_of", lambda _: b"signer")
    await dial(stage, ALICE)
    await trio.testing.wait_all_tasks_blocked()
    assert owners == [f"vouched by {b'signer'.hex()}"]


async def test_connections_that_are_no_longer_permitted_end_and_no_others(stage: Stage) -> None:
    host = stage.add(Host(BOB))
    alice, carol, unproven = await dial(stage, ALICE), await dial(stage, CAROL), await dial(stage, None)
    await trio.testing.wait_all_tasks_blocked()
    host.server.places.end_proven(lambda proven: proven.server_id == ALICE)
    assert await closes(alice)
    assert host.server.places.established == 2
    await carol.stream.send_all(encode_request(replace(VOTE, source=CAROL)))
    assert len(await replies(carol, 1)) == 1
    await unproven.stream.send_all(encode_request(CLIENT))
    assert len(await replies(unproven, 1)) == 1


async def test_keys_of_no_member_are_one_source_for_the_budget_of_bytes(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any peer can make as many keys as it likes, so a share for each key would be no limit."""
    host = stage.add(Host(BOB))
    owners: list[str] = []
    opens = ReceiveBudget.open

    def noted(budget: ReceiveBudget, owner: str, *, is_server: bool, close: Callable[[], None]) -> Account:
        owners.append(owner)
        return opens(budget, owner, is_server=is_server, close=close)

    monkeypatch.setattr(ReceiveBudget, "open", noted)
    address = stage.resolve(BOB)
    assert address is not None
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


async def test_a_leader_that_sends_more_than_its_share_is_read_slowly_and_answered_in_full(
    stage: Stage, autojump_clock: MockClock
) -> None:
    """Given room for one append at a time, when a leader pipelines twenty, then all are answered and none is lost."""
    del autojump_clock
    host = stage.add(Host(BOB, budget=TIGHT))
    host.handler.delay_s = lambda _: 0.5
    dialed = await dial(stage)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(dialed.stream.send_all, LARGE * 20)
        assert len(await replies(dialed, 20)) == 20
    assert host.incidents == []


async def test_servers_whose_requests_wait_for_each_others_room_all_come_to_their_end(
    stage: Stage, autojump_clock: MockClock
) -> None:
    """Given a server that stops in the midst of an append, when a leader appends, then it need not wait for that one.

    The one that stopped is closed in time, and its room is free again.
    """
    del autojump_clock
    host = stage.add(Host(BOB, budget=TIGHT))
    stopped = await dial(stage, CAROL)
    await stopped.stream.send_all(LARGE.replace(LARGE[1:5], CAROL.to_bytes(4), 1)[:200_000])
    leader = await dial(stage)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(leader.stream.send_all, LARGE * 5)
        assert len(await replies(leader, 5)) == 5
    assert await closes(stopped)
    assert host.faults == {Fault.SILENT}


async def test_a_request_that_drips_is_cut_off_although_it_never_pauses(
    stage: Stage, autojump_clock: MockClock
) -> None:
    """Given a client that sends a byte each second, then it is closed when its request had its time."""
    del autojump_clock
    host = stage.add(Host(BOB))
    dialed = await dial(stage, None)
    began = trio.current_time()
    with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        for byte in encode_request(CLIENT)[:40]:
            await dialed.stream.send_all(bytes([byte]))
            await trio.sleep(1)
    assert await closes(dialed)
    assert trio.current_time() - began < 45
    assert "was not whole 15 s after it began" in host.incidents[-1].text


async def test_clients_that_hold_too_much_are_closed_with_a_reason_and_servers_are_not(stage: Stage) -> None:
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
    assert "all clients together more than this server keeps for them" in host.incidents[0].text
    await leader.stream.send_all(LARGE)
    assert len(await replies(leader, 1)) == 1


@pytest.mark.usefixtures("autojump_clock")
async def test_clients_without_an_identity_cost_a_bounded_share_of_the_processor_and_members_are_not_counted(
    stage: Stage,
) -> None:
    """A few megabytes of entries that look signed would otherwise keep all servers busy until the leader falls."""
    # Given a server on which an entry costs a tenth of what may be saved up
    host = stage.add(Host(BOB, quota=ClientQuota(lambda _: SAVED_US // 10)))
    stranger, member = await dial(stage, None), await dial(stage)
    # When a stranger sends more than that at once
    await stranger.stream.send_all(12 * encode_request(CLIENT))
    answers = [reply.accepted for reply in await replies(stranger, 12)]
    # Then what is beyond it is told to come again, and a member is served
    assert answers == [True] * 10 + [False] * 2
    await member.stream.send_all(12 * encode_request(CLIENT))
    assert all(reply.accepted for reply in await replies(member, 12))
    # And after a while the stranger is served again, one entry for the time that one costs at its share
    await trio.sleep(1.01 * SAVED_US / 10 / SHARE / 1_000_000)
    await stranger.stream.send_all(2 * encode_request(CLIENT))
    stranger = replace(stranger, trailing=b"")
    assert [reply.accepted for reply in await replies(stranger, 2)] == [True, False]
    assert len(host.handler.log) == 10 + 12 + 1


async def test_a_request_that_no_quota_ever_covers_ends_a_strangers_connection_with_the_reason(stage: Stage) -> None:
    host = stage.add(Host(BOB, quota=ClientQuota(lambda _: SAVED_US // 10)))
    stranger = await dial(stage, None)
    await stranger.stream.send_all(encode_request(replace(CLIENT, entries=11 * CLIENT.entries)))
    assert await closes(stranger)
    assert host.faults == {Fault.TOO_LARGE}
    assert "11 entries" in host.incidents[0].text
    assert "send fewer entries in one request" in host.incidents[0].text
