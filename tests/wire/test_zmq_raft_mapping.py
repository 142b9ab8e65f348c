"""The mapping of core messages to ØMQ Raft's messages, and the cases without a reply.

The protocol has fewer kinds of replies than the core. A reply that a peer of the package would misread is not sent.
"""

import pytest

from consensus.core import messages as core
from consensus.core.model import Configuration, Entry, LogId, Server
from consensus.protocols.zmq_raft.wire import messages as wire
from consensus.protocols.zmq_raft.wire.frames import ZmqRaftError
from consensus.protocols.zmq_raft.wire.mapping import reply_from_wire, reply_to_wire, request_from_wire, request_to_wire
from tests.effort import each_case

IDENT = b"cluster"
ENTRIES = tuple(Entry.command(3, b"request-id-%d" % number + b"x") for number in (7, 8))
APPEND = core.AppendEntries(term=3, leader="a", previous=LogId(6, 2), entries=ENTRIES, commit=5, correlation=11)
HEARTBEAT = core.AppendEntries(term=3, leader="a", previous=LogId(6, 2), entries=(), commit=5, correlation=12)
VOTE = core.RequestVote(term=3, candidate="a", last=LogId(6, 2), correlation=13)
MEMBERS = Configuration((Server("a", "tcp://127.0.0.1:1"), Server("b", "tcp://127.0.0.1:2")))
FIRST_CHUNK = core.InstallSnapshot(
    term=3, leader="a", last=LogId(6, 2), configuration=MEMBERS, offset=0, data=b"1234", done=False, correlation=14
)
LAST_CHUNK = core.InstallSnapshot(
    term=3, leader="a", last=LogId(6, 2), configuration=MEMBERS, offset=4, data=b"56", done=True, correlation=15
)
SNAPSHOT_BYTES = 6


def wire_request_of(request: core.Request) -> wire.PeerRequest:
    return request_to_wire(request, 21, IDENT, SNAPSHOT_BYTES)


def wire_reply_of(reply: core.Reply, request: core.Request) -> wire.PeerReply | None:
    return reply_to_wire(reply, wire_request_of(request))


def append_reply(next_index: int, *, success: bool, term: int = 3) -> core.AppendReply:
    return core.AppendReply(term=term, success=success, next_index=next_index, correlation=0)


def chunk_reply(next_offset: int, *, accepted: bool, installed: bool = False, term: int = 3) -> core.SnapshotReply:
    return core.SnapshotReply(term=term, accepted=accepted, next_offset=next_offset, installed=installed, correlation=0)


@each_case("request_", [APPEND, HEARTBEAT, VOTE, FIRST_CHUNK, LAST_CHUNK])
def test_request_round_trips_with_correlation_of_receiver(request_: core.Request) -> None:
    assert request_from_wire(wire_request_of(request_), request_.correlation, MEMBERS) == request_


def test_chunk_at_end_of_snapshot_is_last() -> None:
    first, last = wire_request_of(FIRST_CHUNK), wire_request_of(LAST_CHUNK)
    assert isinstance(first, wire.InstallSnapshotRpc)
    assert isinstance(last, wire.InstallSnapshotRpc)
    assert (first.total_bytes, last.total_bytes) == (6, 6)
    with pytest.raises(ZmqRaftError, match="the chunk ends at 4 of 4 bytes, but is not the last"):
        request_to_wire(FIRST_CHUNK, 21, IDENT, 4)


@pytest.mark.parametrize(
    "request_",
    [
        core.TimeoutNow(3, "a", 1),
        core.RequestVote(term=3, candidate="a", last=LogId(6, 2), correlation=1, pre_vote=True),
        core.RequestVote(term=3, candidate="a", last=LogId(6, 2), correlation=1, transfer=True),
        core.Fetch(term=3, replica="a", position=LogId(6, 2), commit=5, max_wait_ms=100, max_bytes=1000, correlation=1),
    ],
)
def test_request_without_wire_message_is_refused(request_: core.Request) -> None:
    with pytest.raises(ZmqRaftError, match="the protocol does not have a message for"):
        wire_request_of(request_)


def test_server_id_of_another_protocol_is_refused() -> None:
    with pytest.raises(ZmqRaftError, match="7 is not a string"):
        wire_request_of(core.RequestVote(term=3, candidate=7, last=LogId(6, 2), correlation=1))


@pytest.mark.parametrize("granted", [True, False])
def test_vote_reply_round_trips(granted: bool) -> None:  # noqa: FBT001 - a parameter of the test
    reply = core.VoteReply(term=4, granted=granted, correlation=13)
    wire_reply = wire_reply_of(reply, VOTE)
    assert wire_reply == wire.RequestVoteResponse(21, 4, granted)
    assert reply_from_wire(wire_reply, VOTE) == reply


def test_append_success_is_sent_if_all_entries_are_covered() -> None:
    wire_reply = wire_reply_of(append_reply(9, success=True), APPEND)
    assert wire_reply == wire.AppendEntriesResponse(message_id=21, term=3, success=True)
    assert reply_from_wire(wire_reply, APPEND) == core.AppendReply(term=3, success=True, next_index=9, correlation=11)


@pytest.mark.parametrize(("request_", "next_index"), [(APPEND, 8), (APPEND, 7), (HEARTBEAT, 6)])
def test_append_success_for_fewer_entries_is_not_sent(request_: core.Request, next_index: int) -> None:
    assert wire_reply_of(append_reply(next_index, success=True), request_) is None


@each_case(("hint", "frame"), [(1, 1), (6, 6), (7, None), (9, None), (0, None)])
def test_refusal_names_hint_up_to_previous_index(hint: int, frame: int | None) -> None:
    assert wire_reply_of(append_reply(hint, success=False), APPEND) == wire.AppendEntriesResponse(
        message_id=21, term=3, success=False, conflict_index=frame
    )


@pytest.mark.parametrize(("frame", "next_index"), [(None, 6), (4, 4), (0, 1)])
def test_leader_goes_back_to_conflict_or_by_one_entry(frame: int | None, next_index: int) -> None:
    wire_reply = wire.AppendEntriesResponse(message_id=21, term=3, success=False, conflict_index=frame)
    assert reply_from_wire(wire_reply, APPEND) == core.AppendReply(
        term=3, success=False, next_index=next_index, correlation=11
    )


def test_leader_does_not_go_back_before_first_entry() -> None:
    at_the_origin = core.AppendEntries(term=3, leader="a", previous=LogId(0, 0), entries=(), commit=0, correlation=16)
    wire_reply = wire.AppendEntriesResponse(message_id=21, term=3, success=False)
    assert reply_from_wire(wire_reply, at_the_origin) == core.AppendReply(
        term=3, success=False, next_index=1, correlation=16
    )


def test_leader_of_older_term_receives_newer_term() -> None:
    assert wire_reply_of(append_reply(4, success=False, term=5), APPEND) == wire.AppendEntriesResponse(
        message_id=21, term=5, success=False, conflict_index=4
    )
    assert wire_reply_of(chunk_reply(0, accepted=False, term=5), FIRST_CHUNK) == wire.InstallSnapshotResponse(21, 5, 0)


@pytest.mark.parametrize("term", [0, 2])
def test_refusal_without_newer_term_is_not_sent(term: int) -> None:
    assert wire_reply_of(append_reply(4, success=False, term=term), APPEND) is None
    assert wire_reply_of(chunk_reply(0, accepted=False, term=term), LAST_CHUNK) is None


def test_accepted_chunk_requests_next_chunk() -> None:
    wire_reply = wire_reply_of(chunk_reply(4, accepted=True), FIRST_CHUNK)
    assert wire_reply == wire.InstallSnapshotResponse(21, 3)
    assert reply_from_wire(wire_reply, FIRST_CHUNK) == core.SnapshotReply(
        term=3, accepted=True, next_offset=4, installed=False, correlation=14
    )


def test_reply_to_last_chunk_waits_for_installation() -> None:
    assert wire_reply_of(chunk_reply(6, accepted=True), LAST_CHUNK) is None
    wire_reply = wire_reply_of(chunk_reply(6, accepted=True, installed=True), LAST_CHUNK)
    assert wire_reply == wire.InstallSnapshotResponse(21, 3)
    assert reply_from_wire(wire_reply, LAST_CHUNK) == core.SnapshotReply(
        term=3, accepted=True, next_offset=6, installed=True, correlation=15
    )


def test_unneeded_snapshot_is_accepted() -> None:
    assert wire_reply_of(chunk_reply(0, accepted=True, installed=True), FIRST_CHUNK) == wire.InstallSnapshotResponse(
        21, 3
    )


def test_reply_to_chunk_at_wrong_offset_has_wanted_offset() -> None:
    wire_reply = wire_reply_of(chunk_reply(0, accepted=False), LAST_CHUNK)
    assert wire_reply == wire.InstallSnapshotResponse(21, 3, wanted_offset=0)
    assert reply_from_wire(wire_reply, LAST_CHUNK) == core.SnapshotReply(
        term=3, accepted=False, next_offset=0, installed=False, correlation=15
    )


def test_reply_to_temporarily_refused_chunk_is_not_sent() -> None:
    assert wire_reply_of(chunk_reply(4, accepted=False), LAST_CHUNK) is None


def test_reply_to_another_kind_of_request_is_refused() -> None:
    with pytest.raises(ZmqRaftError, match="VoteReply does not answer AppendEntriesRpc"):
        wire_reply_of(core.VoteReply(term=3, granted=True, correlation=1), APPEND)
    with pytest.raises(ZmqRaftError, match="RequestVoteResponse does not answer AppendEntries"):
        reply_from_wire(wire.RequestVoteResponse(21, 3, granted=True), APPEND)
