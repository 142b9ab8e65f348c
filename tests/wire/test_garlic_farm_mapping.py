"""Core messages round-trip through the Garlic Farm wire; all other messages are refused."""

from contextlib import suppress

import pytest

from consensus.core import messages as core
from consensus.core.entry_data import configuration_entry
from consensus.core.model import Configuration, Entry, LogId, Server, integer_id
from consensus.protocols.garlic_farm.wire import messages as wire
from consensus.protocols.garlic_farm.wire.codec import decode_reply, decode_request, encode_reply, encode_request
from consensus.protocols.garlic_farm.wire.entries import decode_value, encode_value
from consensus.protocols.garlic_farm.wire.errors import Fault, GarlicFarmError
from consensus.protocols.garlic_farm.wire.joining_mapping import sync_from_wire, sync_reply_to_wire, sync_to_wire
from consensus.protocols.garlic_farm.wire.limits import MessageLimits
from consensus.protocols.garlic_farm.wire.mapping import (
    check_agreed,
    configuration_from_wire,
    configuration_to_wire,
    entries_to_wire,
    reply_from_wire,
    reply_to_wire,
    request_from_wire,
    request_to_wire,
)
from consensus.protocols.garlic_farm.wire.upgrade import Extension
from consensus.protocols.garlic_farm.wire.values import ClusterServer, LogEntry, LogPack, ValueType
from consensus.protocols.garlic_farm.wire.values import Configuration as WireConfiguration
from tests.effort import each_case

ALICE, BOB = 1, 2
SERVERS = Configuration((Server(ALICE, "tcp://localhost:9001"), Server(BOB, "tcp://localhost:9002")))

JOINT = Configuration(SERVERS.voters[1:], old_voters=SERVERS.voters, learners=(Server(ALICE, "tcp://localhost:9001"),))
OBSERVED = Configuration(SERVERS.voters, learners=(Server(3, "tcp://localhost:9003"),))
EXTENDED: list[core.Request] = [
    core.AppendEntries(
        term=5,
        leader=ALICE,
        previous=LogId(9, 4),
        entries=(Entry.command(4, b"{}"), configuration_entry(5, JOINT)),
        commit=8,
        correlation=21,
    ),
    core.AppendEntries(
        term=5,
        leader=ALICE,
        previous=LogId(9, 4),
        entries=(configuration_entry(5, OBSERVED), configuration_entry(5, SERVERS)),
        commit=8,
        correlation=22,
    ),
    core.InstallSnapshot(
        term=5,
        leader=ALICE,
        last=LogId(9, 4),
        configuration=JOINT,
        offset=0,
        data=bytes(4) + b"GFSNAPSH",
        done=False,
        correlation=23,
    ),
]

EXCHANGES: list[tuple[core.Request, core.Reply]] = [
    (
        core.RequestVote(term=5, candidate=ALICE, last=LogId(9, 4), correlation=17),
        core.VoteReply(term=5, granted=True, correlation=17),
    ),
    (
        core.RequestVote(term=5, candidate=ALICE, last=LogId(9, 4), correlation=18, pre_vote=True),
        core.VoteReply(term=4, granted=False, correlation=18, pre_vote=True),
    ),
    (
        core.RequestVote(term=5, candidate=ALICE, last=LogId(9, 4), correlation=18, transfer=True),
        core.VoteReply(term=5, granted=True, correlation=18),
    ),
    (core.TimeoutNow(5, ALICE, 21), core.TimeoutNowReply(5, accepted=True, correlation=21)),
    (
        core.AppendEntries(
            term=5,
            leader=ALICE,
            previous=LogId(9, 4),
            entries=(Entry.command(4, b"{}"), configuration_entry(5, SERVERS)),
            commit=8,
            correlation=19,
        ),
        core.AppendReply(term=5, success=True, next_index=12, correlation=19),
    ),
    (
        core.AppendEntries(term=5, leader=ALICE, previous=LogId(0, 0), entries=(), commit=0, correlation=20),
        core.AppendReply(term=7, success=False, next_index=3, correlation=20),
    ),
]


@each_case(("request_", "reply"), EXCHANGES)
def test_request_and_reply_round_trip(request_: core.Request, reply: core.Reply) -> None:
    wire_request = decode_request(encode_request(request_to_wire(request_, BOB, lambda _: 0)))
    assert (wire_request.source, wire_request.destination) == (ALICE, BOB)
    assert request_from_wire(wire_request, request_.correlation) == request_
    wire_reply = decode_reply(encode_reply(reply_to_wire(reply, wire_request)))
    assert (wire_reply.source, wire_reply.destination) == (BOB, ALICE)
    assert reply_from_wire(wire_reply, request_) == reply


def test_configuration_names_its_index_and_previous_index() -> None:
    entries = (configuration_entry(1, SERVERS), Entry.command(1, b"x"), configuration_entry(1, SERVERS))
    first, _, second = entries_to_wire(11, entries, lambda index: index - 4)
    assert isinstance(first, LogEntry)
    assert isinstance(first.value, WireConfiguration)
    assert isinstance(second, LogEntry)
    assert isinstance(second.value, WireConfiguration)
    assert (first.value.log_index, first.value.last_log_index) == (11, 7)
    assert (second.value.log_index, second.value.last_log_index) == (13, 11)


@each_case(
    ("answer", "request_"),
    [
        (wire.AppendEntriesResponse(source=2, destination=1, term=5, next_index=0, accepted=True), EXCHANGES[0][0]),
        (wire.RequestVoteResponse(source=2, destination=1, term=5, next_index=0, accepted=True), EXCHANGES[1][0]),
        (wire.PreVoteResponse(source=2, destination=1, term=5, next_index=0, accepted=True), EXCHANGES[0][0]),
        (wire.RequestVoteResponse(source=2, destination=1, term=5, next_index=0, accepted=True), EXCHANGES[2][0]),
        (wire.TransferVoteResponse(source=2, destination=1, term=5, next_index=0, accepted=True), EXCHANGES[0][0]),
        (wire.AppendEntriesResponse(source=2, destination=1, term=5, next_index=0, accepted=True), EXCHANGES[3][0]),
        (wire.SyncLogResponse(source=2, destination=1, term=5, next_index=0, accepted=True), EXCHANGES[2][0]),
    ],
)
def test_reply_of_another_kind_is_out_of_turn(answer: wire.Reply, request_: core.Request) -> None:
    with pytest.raises(GarlicFarmError, match="does not answer") as refusal:
        reply_from_wire(answer, request_)
    assert refusal.value.fault is Fault.OUT_OF_TURN


@pytest.mark.parametrize("source", [0, -1])
def test_request_without_sender_is_refused(source: int) -> None:
    with pytest.raises(GarlicFarmError, match="not the id of a server"):
        request_from_wire(wire.RequestVoteRequest(source=source, destination=2, term=1), 1)


def test_configuration_with_repeated_server_is_refused() -> None:
    twice = WireConfiguration(1, 0, (ClusterServer(1, "a"), ClusterServer(1, "b")))
    with pytest.raises(GarlicFarmError, match="twice"):
        configuration_from_wire(twice)


@pytest.mark.parametrize("request_", EXTENDED)
def test_extended_configuration_arrives_if_agreed(request_: core.Request) -> None:
    wire_request = decode_request(encode_request(request_to_wire(request_, BOB, lambda _: 0)))
    check_agreed(wire_request, frozenset({Extension.CONFIGURATIONS}))
    assert request_from_wire(wire_request, request_.correlation) == request_


@pytest.mark.parametrize("request_", EXTENDED)
def test_extended_configuration_is_refused_if_not_agreed(request_: core.Request) -> None:
    wire_request = request_to_wire(request_, BOB, lambda _: 0)
    with pytest.raises(GarlicFarmError, match="needs configurations, which the handshake did not agree on") as refusal:
        check_agreed(wire_request, frozenset({Extension.PRE_VOTE}))
    assert refusal.value.fault is Fault.OUT_OF_TURN


def test_foreign_snapshot_is_refused_with_remedy() -> None:
    theirs = core.InstallSnapshot(
        term=5,
        leader=ALICE,
        last=LogId(9, 4),
        configuration=SERVERS,
        offset=0,
        data=b"key:value",
        done=True,
        correlation=3,
    )
    wire_request = decode_request(encode_request(request_to_wire(theirs, BOB, lambda _: 0)))
    with pytest.raises(GarlicFarmError, match=r"server 1 sends a snapshot of index 9 .* cannot read") as refusal:
        request_from_wire(wire_request, 3)
    assert refusal.value.fault is Fault.FOREIGN_SNAPSHOT
    assert "snapshot distance to 0" in str(refusal.value)


def test_later_configuration_names_previous_index() -> None:
    """Another implementation exits when it writes a snapshot with a later configuration whose previous index is 0."""
    sent = [configuration_to_wire(SERVERS, index, before) for index, before in ((1, 0), (9, 4), (9, 0), (0, 0))]
    assert [(each.log_index, each.last_log_index) for each in sent] == [(1, 0), (9, 4), (9, 1), (1, 0)]


def test_refusal_of_pack_names_at_most_index_after_its_start() -> None:
    """Leaders of another implementation continue at this index without a check, and exit if it is beyond their log."""
    pack = wire.SyncLogRequest(
        source=1,
        destination=2,
        term=5,
        last_log_index=7,
        commit_index=9,
        entries=(LogEntry(5, LogPack(0, (Entry.command(5, b"x"),))),),
    )
    refused = core.AppendReply(term=6, success=False, next_index=400, correlation=1)
    assert sync_reply_to_wire(refused, pack) == wire.SyncLogResponse(
        source=2, destination=1, term=6, next_index=8, accepted=False
    )


def test_configuration_of_voters_has_documented_bytes() -> None:
    plain = configuration_to_wire(SERVERS, 11, 7)
    servers = b"".join(
        integer_id(server.server_id).to_bytes(4, "big")
        + len(server.endpoint).to_bytes(4, "big")
        + server.endpoint.encode()
        for server in SERVERS.voters
    )
    assert encode_value(plain) == (ValueType.CONFIGURATION, (11).to_bytes(8, "big") + (7).to_bytes(8, "big") + servers)


def test_extended_form_is_refused_as_plain_form() -> None:
    """The first eight bytes are not a valid index, neither here nor for a server that implements only the document."""
    kind, data = encode_value(configuration_to_wire(JOINT, 11, 7))
    assert kind is ValueType.EXTENDED_CONFIGURATION
    assert int.from_bytes(data[:8], "big") > 2**63 - 1
    for wrong_kind, wrong_data in (
        (ValueType.CONFIGURATION, data),
        (kind, encode_value(configuration_to_wire(SERVERS, 11, 7))[1]),
    ):
        with pytest.raises(GarlicFarmError, match="other form"):
            decode_value(wrong_kind, wrong_data)


def test_damaged_extended_configuration_raises_only_wire_error() -> None:
    kind, data = encode_value(configuration_to_wire(JOINT, 11, 7))
    for place in range(len(data)):
        with pytest.raises(GarlicFarmError):
            decode_value(kind, data[:place])
        for value in (0, 255, data[place] ^ 1):
            with suppress(GarlicFarmError):
                decode_value(kind, data[:place] + bytes((value,)) + data[place + 1 :])
    with pytest.raises(GarlicFarmError, match="follow an extended"):
        decode_value(kind, data + b"x")
    with pytest.raises(GarlicFarmError, match="more than 2 servers"):
        decode_value(kind, data, MessageLimits(servers=2))


@pytest.mark.parametrize("done", [False, True])
def test_snapshot_chunk_and_replies_round_trip(done: bool) -> None:  # noqa: FBT001 - a parameter of the test
    chunk = core.InstallSnapshot(
        term=5,
        leader=ALICE,
        last=LogId(40, 3),
        configuration=SERVERS,
        offset=100,
        data=b"abc",
        done=done,
        correlation=7,
    )
    wire_request = request_to_wire(chunk, BOB, lambda index: index - 1)
    assert request_from_wire(wire_request, 7) == chunk
    for reply in (
        core.SnapshotReply(term=5, accepted=True, next_offset=103, installed=done, correlation=7),
        core.SnapshotReply(term=5, accepted=False, next_offset=50, installed=False, correlation=7),
        core.SnapshotReply(term=6, accepted=True, next_offset=2**63 - 1, installed=True, correlation=7),
    ):
        back = reply_from_wire(reply_to_wire(reply, wire_request), chunk)
        assert isinstance(back, core.SnapshotReply)
        assert (back.accepted, back.installed) == (reply.accepted, reply.installed)
        assert reply.installed or back == reply


def test_log_pack_round_trips() -> None:
    members = Configuration((Server(1, "tcp://a:1"),), (), (Server(2, "tcp://b:1"),))
    entries = (Entry.command(2, b"x"), configuration_entry(3, members))
    append = core.AppendEntries(term=3, leader=1, previous=LogId(7, 2), entries=entries, commit=8, correlation=5)
    wire_request = sync_to_wire(append, 4, lambda _: 1)
    again = decode_request(encode_request(wire_request))
    assert isinstance(again, wire.SyncLogRequest)
    assert again == wire_request
    # the receiver supplies the term before the entries: existing implementations do not send it
    assert sync_from_wire(again, 2, 5) == append
    # only peers that agreed on learners may receive them
    with pytest.raises(GarlicFarmError, match="needs configurations"):
        check_agreed(wire_request, frozenset())
    check_agreed(wire_request, frozenset({Extension.CONFIGURATIONS}))
    stored = core.AppendReply(term=3, success=True, next_index=10, correlation=5)
    answer = sync_reply_to_wire(stored, wire_request)
    assert answer == wire.SyncLogResponse(source=4, destination=1, term=3, next_index=10, accepted=True)
    assert reply_from_wire(answer, append) == stored
