"""Core messages survive the way over the Garlic Farm wire, and nothing else comes in."""

import pytest

from consensus.core import messages as core
from consensus.core.position import Command, Configuration, Entry, LogPosition, Server, ServerId
from consensus.wire.garlic_farm import messages as wire
from consensus.wire.garlic_farm.codec import decode_reply, decode_request, encode_reply, encode_request
from consensus.wire.garlic_farm.errors import Fault, GarlicFarmError
from consensus.wire.garlic_farm.mapping import (
    configuration_from_wire,
    entries_to_wire,
    reply_from_wire,
    reply_to_wire,
    request_from_wire,
    request_to_wire,
)
from consensus.wire.garlic_farm.values import ClusterServer
from consensus.wire.garlic_farm.values import Configuration as WireConfiguration

ALICE, BOB = ServerId(1), ServerId(2)
SERVERS = Configuration((Server(ALICE, "tcp://localhost:9001"), Server(BOB, "tcp://localhost:9002")))

EXCHANGES: list[tuple[core.Request, core.Reply]] = [
    (core.RequestVote(5, ALICE, LogPosition(9, 4), 17), core.VoteReply(5, granted=True, correlation=17)),
    (
        core.RequestVote(5, ALICE, LogPosition(9, 4), 18, pre_vote=True),
        core.VoteReply(4, granted=False, correlation=18, pre_vote=True),
    ),
    (
        core.AppendEntries(
            5, ALICE, LogPosition(9, 4), (Entry(4, Command(b"{}")), Entry(5, SERVERS)), 8, correlation=19
        ),
        core.AppendReply(5, success=True, next_index=12, correlation=19),
    ),
    (
        core.AppendEntries(5, ALICE, LogPosition(0, 0), (), 0, correlation=20),
        core.AppendReply(7, success=False, next_index=3, correlation=20),
    ),
]


@pytest.mark.parametrize(("request_", "reply"), EXCHANGES)
def test_a_request_and_its_reply_arrive_as_they_were_sent(request_: core.Request, reply: core.Reply) -> None:
    asked = decode_request(encode_request(request_to_wire(request_, BOB, lambda _: 0)))
    assert (asked.source, asked.destination) == (ALICE, BOB)
    assert request_from_wire(asked, request_.correlation) == request_
    answered = decode_reply(encode_reply(reply_to_wire(reply, asked)))
    assert (answered.source, answered.destination) == (BOB, ALICE)
    assert reply_from_wire(answered, request_) == reply


def test_a_configuration_names_its_index_and_that_of_the_one_before() -> None:
    entries = (Entry(1, SERVERS), Entry(1, Command(b"x")), Entry(1, SERVERS))
    first, _, second = entries_to_wire(11, entries, lambda index: index - 4)
    assert isinstance(first.value, WireConfiguration)
    assert isinstance(second.value, WireConfiguration)
    assert (first.value.log_index, first.value.last_log_index) == (11, 7)
    assert (second.value.log_index, second.value.last_log_index) == (13, 11)


@pytest.mark.parametrize(
    ("answer", "asked"),
    [
        (wire.AppendEntriesResponse(2, 1, 5, 0, accepted=True), EXCHANGES[0][0]),
        (wire.RequestVoteResponse(2, 1, 5, 0, accepted=True), EXCHANGES[1][0]),
        (wire.PreVoteResponse(2, 1, 5, 0, accepted=True), EXCHANGES[0][0]),
        (wire.RequestVoteResponse(2, 1, 5, 0, accepted=True), EXCHANGES[2][0]),
        (wire.SyncLogResponse(2, 1, 5, 0, accepted=True), EXCHANGES[2][0]),
    ],
)
def test_a_reply_of_another_kind_is_out_of_turn(answer: wire.Reply, asked: core.Request) -> None:
    with pytest.raises(GarlicFarmError, match="does not answer") as refusal:
        reply_from_wire(answer, asked)
    assert refusal.value.fault is Fault.OUT_OF_TURN


@pytest.mark.parametrize("source", [0, -1])
def test_a_request_from_nobody_is_refused(source: int) -> None:
    with pytest.raises(GarlicFarmError, match="no server's id"):
        request_from_wire(wire.RequestVoteRequest(source, 2, 1, 0, 0, 0), 1)


def test_a_configuration_that_counts_a_server_twice_is_refused() -> None:
    twice = WireConfiguration(1, 0, (ClusterServer(1, "a"), ClusterServer(1, "b")))
    with pytest.raises(GarlicFarmError, match="twice"):
        configuration_from_wire(twice)
