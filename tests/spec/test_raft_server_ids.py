"""The id of a server is a value of the protocol: the core orders and compares ids, and never confuses two ids.

KRaft (KIP-853) identifies a replica by the id of the node and the id of its directory. A node that lost its disk
returns with the same node id and another directory. The votes, fetches and confirmations of the new replica must not
count for the earlier one.
"""

import pytest

from consensus.core.effects import (
    ChangeOutcome,
    ChangeRefusal,
    ConfigurationResolved,
    Outcome,
    ProposalResolved,
    ReadReady,
    Role,
    Send,
)
from consensus.core.events import ChangeConfiguration, DeadlineReached, ReadRequested, TransferLeadership
from consensus.core.features import ZMQ_RAFT
from consensus.core.messages import (
    AppendReply,
    BeginQuorumEpoch,
    BeginQuorumEpochReply,
    Fetch,
    RefusalReason,
    RequestVote,
    VoteReply,
)
from consensus.core.model import Configuration, LogId, ReplicaKey, Server, ServerId, possible_configuration
from tests.effort import each_case
from tests.spec.fetch_bench import FetchBench
from tests.spec.raft_bench import Bench, entries_of

ONE, TWO, THREE = (ReplicaKey(number, bytes([number]) * 16) for number in (1, 2, 3))
TWO_NEW_DISK = ReplicaKey(2, b"x" * 16)
TWO_NO_DISK = ReplicaKey(2)
IMPOSTORS = pytest.mark.parametrize("impostor", [TWO_NEW_DISK, TWO_NO_DISK], ids=["other directory", "no directory"])


def configuration_of(*ids: ServerId) -> Configuration:
    return Configuration(tuple(Server(server_id, f"tcp://{place}") for place, server_id in enumerate(ids)))


def replica(*terms: int, term: int | None = None) -> FetchBench:
    return FetchBench(*terms, term=term, own_id=ONE, configuration=configuration_of(ONE, TWO, THREE), pre_vote=None)


def leader(*terms: int) -> FetchBench:
    """Return server 1 as leader, elected by 2 and 3 with their configured ids."""
    bench = replica(*terms)
    bench.campaign()
    bench.grant(TWO)  # the pre-vote
    bench.grant(TWO)
    assert bench.is_(Role.LEADER)
    return bench


@IMPOSTORS
def test_vote_of_other_directory_elects_no_leader(impostor: ReplicaKey) -> None:
    bench = replica(1)
    bench.campaign()
    bench.grant(THREE)
    (request,) = (send.message for send in bench.all(Send) if send.recipient == TWO)
    assert isinstance(request, RequestVote)
    bench.receive(impostor, VoteReply(term=request.term, granted=True, correlation=request.correlation))
    assert bench.is_(Role.CANDIDATE)
    bench.receive(TWO, VoteReply(term=request.term, granted=True, correlation=request.correlation))
    assert bench.is_(Role.LEADER)


@IMPOSTORS
def test_vote_granted_to_one_directory_of_id(impostor: ReplicaKey) -> None:
    bench = replica(1)
    assert bench.request_vote(2, LogId(1, 1), sender=TWO).granted
    assert not bench.request_vote(2, LogId(5, 1), sender=impostor).granted
    assert bench.about.voted_for == TWO


@IMPOSTORS
def test_other_directory_is_not_voter(impostor: ReplicaKey) -> None:
    bench = replica(1)
    reply = bench.request_vote(2, LogId(1, 1), sender=impostor)
    assert (reply.granted, reply.error) == (False, RefusalReason.INCONSISTENT_VOTERS)


@IMPOSTORS
def test_fetch_of_other_directory_commits_nothing(impostor: ReplicaKey) -> None:
    bench = leader(1)
    bench.propose(b"x")
    last = bench.about.last
    (reply,) = bench.fetch(impostor, last, max_wait_ms=0)
    assert (reply.error, bench.about.commit_index) == (None, 0)
    bench.fetch(TWO, last)
    assert bench.about.commit_index == last.index


@IMPOSTORS
def test_fetches_of_other_directory_do_not_keep_leader(impostor: ReplicaKey) -> None:
    bench = leader(1)
    for _ in range(30):
        bench.fetch(impostor, bench.about.last)
        bench.step(DeadlineReached(), after_ms=100)
    assert not bench.is_(Role.LEADER)


@IMPOSTORS
def test_endorsement_of_other_directory_confirms_no_read(impostor: ReplicaKey) -> None:
    bench = leader(1)
    bench.fetch(TWO, bench.about.last)
    bench.step(ReadRequested(1))
    (begin,) = bench.sent(BeginQuorumEpoch, TWO)
    bench.receive(impostor, BeginQuorumEpochReply(term=begin.term, leader=ONE, correlation=begin.correlation))
    assert bench.all(ReadReady) == []
    bench.receive(TWO, BeginQuorumEpochReply(term=begin.term, leader=ONE, correlation=begin.correlation))
    assert [ready.read_id for ready in bench.all(ReadReady)] == [1]


@IMPOSTORS
def test_append_reply_of_other_directory_commits_nothing(impostor: ReplicaKey) -> None:
    bench = Bench(1, own_id=ONE, configuration=configuration_of(ONE, TWO, THREE), pre_vote=None).expired()
    bench.grant(TWO)
    effects = bench.grant(TWO)
    assert effects
    append = bench.appends(TWO)[-1]
    last = append.previous.index + len(append.entries)
    bench.receive(
        impostor, AppendReply(term=append.term, success=True, next_index=last + 1, correlation=append.correlation)
    )
    assert bench.about.commit_index == 0
    bench.matched(TWO, append)
    assert bench.about.commit_index == last


def test_directory_replaced_in_two_changes() -> None:
    """A swap of two keys changes two voters, so majorities before and after the change might not intersect."""
    bench = leader(1)
    bench.fetch(THREE, bench.about.last)
    bench.step(ChangeConfiguration(1, configuration_of(ONE, TWO_NEW_DISK, THREE)))
    (resolved,) = bench.all(ConfigurationResolved)
    assert (resolved.outcome, resolved.refusal) == (ChangeOutcome.REFUSED, ChangeRefusal.MORE_THAN_ONE_SERVER)
    bench.step(ChangeConfiguration(2, configuration_of(ONE, THREE)))
    assert bench.about.configuration == configuration_of(ONE, THREE)


def test_follower_fetches_from_leading_directory() -> None:
    bench = replica(1)
    request = bench.follow(TWO, 2)
    assert isinstance(request, Fetch)
    assert request.replica == ONE
    bench.reply(request, entries_of(1, 2)[1:], sender=TWO_NEW_DISK, leader=TWO_NEW_DISK)
    assert bench.about.last == LogId(1, 1)
    bench.reply(request, entries_of(1, 2)[1:], sender=TWO, leader=TWO)
    assert bench.about.last == LogId(2, 2)


def test_named_servers_elect_and_transfer_in_name_order() -> None:
    bench = Bench(1, own_id="b", configuration=configuration_of("c", "b", "a"), features=ZMQ_RAFT, pre_vote=None)
    bench.expire()
    bench.grant("a")
    assert bench.about.leader == "b"
    assert [each.server_id for each in bench.about.followers] == ["a", "c"]
    bench.step(TransferLeadership(1))
    assert bench.about.transfer_target == "a"


def test_proposal_commits_among_named_servers() -> None:
    bench = Bench(1, own_id="b", configuration=configuration_of("c", "b", "a"), features=ZMQ_RAFT, pre_vote=None)
    bench.expire()
    bench.grant("a")
    (append,) = bench.appends("c")
    bench.propose(b"request id 1: x")
    bench.matched("c", append)
    (append,) = bench.appends("c")
    bench.matched("c", append)
    (resolved,) = bench.all(ProposalResolved)
    assert (resolved.outcome, resolved.position) == (Outcome.COMMITTED, LogId(3, 2))


@each_case(
    "ids",
    [(1, "a"), ("a", ReplicaKey(1)), (ReplicaKey(1), 1), ("",), ("x" * 256,), (0,), (ReplicaKey(1, b"short"),)],
    ids=repr,
)
def test_configuration_with_mixed_or_invalid_ids_refused(ids: tuple[ServerId, ...]) -> None:
    """Ids of different kinds cannot be ordered."""
    assert not possible_configuration(configuration_of(*ids))


def test_change_to_ids_of_other_kind_refused() -> None:
    bench = Bench(1).lead()
    (append,) = bench.appends(2)
    bench.matched(2, append)
    bench.step(ChangeConfiguration(1, configuration_of("a", "b", "c")))
    assert [each.refusal for each in bench.all(ConfigurationResolved)] == [ChangeRefusal.IMPOSSIBLE_ID]


def test_replicas_without_directories_are_valid_together() -> None:
    assert possible_configuration(configuration_of(ReplicaKey(0), ReplicaKey(1), ReplicaKey(2)))
