"""Disruptive servers, and the protection from them: stickiness (section 6), check-quorum, pre-vote (thesis 9.6)."""

import pytest
from msgspec.structs import replace

from consensus.core.effects import Outcome, Persist, ProposalResolved, Role, Send
from consensus.core.events import DeadlineReached, PeerEnded, PeerExtensions
from consensus.core.features import NO_EXTENSIONS, Extensions
from consensus.core.messages import RequestVote
from consensus.core.model import Configuration, LogId
from consensus.core.options import Options, lan
from tests.spec.raft_bench import FIVE, FOUR, ONE, THREE, TWO, Bench, group

AT = LogId
LAN = lan()


def test_vote_requests_ignored_while_leader_is_in_contact() -> None:
    """Quote: "… within the minimum election timeout of hearing from a current leader …".

    Quote: "It then sends heartbeat messages to all of the other servers to … prevent new elections".
    """
    bench = Bench(1)
    bench.append(term=2, previous=AT(1, 1))
    assert bench.request_vote(term=9, last=AT(5, 2), sender=THREE, after_ms=999).granted is False
    assert bench.about.term == 2
    assert bench.request_vote(term=9, last=AT(5, 2), sender=THREE, after_ms=1).granted is True


def test_leader_ignores_vote_requests() -> None:
    """Quote: "… it does not update its term or grant its vote"."""
    bench = Bench(1).lead()
    assert not bench.request_vote(term=9, last=AT(50, 8), sender=THREE).granted
    assert bench.is_(Role.LEADER)


def test_leader_without_majority_replies_resigns() -> None:
    """Check-quorum: a disconnected leader must not keep its clients waiting."""
    bench = Bench(voters=5).lead()
    bench.propose(b"x", proposal_id=5)
    began = bench.now
    while bench.is_(Role.LEADER):
        bench.expire()
        for append in bench.appends(TWO):
            bench.matched(TWO, append)
    assert bench.now - began == lan().election_timeout_min_ms
    assert ProposalResolved(proposal_id=5, outcome=Outcome.UNKNOWN) in bench.all(ProposalResolved)


def test_pre_vote_before_term_is_raised() -> None:
    """A server that cannot win must not disturb servers with a leader."""
    bench = Bench(1, pre_vote=True).expired()
    requests = [send.message for send in bench.all(Send)]
    assert requests
    assert all(isinstance(request, RequestVote) and request.pre_vote for request in requests)
    assert {request.term for request in requests} == {2}
    assert (bench.about.term, bench.about.role) == (1, Role.FOLLOWER)
    assert bench.all(Persist) == []
    bench.grant(TWO)
    assert (bench.about.term, bench.about.role) == (2, Role.CANDIDATE)


def test_pre_vote_keeps_term_vote_and_timer() -> None:
    bench = Bench(1)
    due = bench.raft.deadline
    reply = bench.request_vote(term=9, last=AT(1, 1), pre_vote=True)
    assert (reply.granted, reply.term, reply.pre_vote) == (True, 9, True)
    assert not bench.request_vote(term=1, last=AT(1, 1), pre_vote=True).granted
    assert (bench.about.term, bench.about.voted_for, bench.raft.deadline) == (1, None, due)
    assert bench.all(Persist) == []


def test_peers_without_pre_vote_count_as_granting() -> None:
    """If a peer without pre-vote counted as a denial, no election in a mixed cluster could succeed."""
    bench = Bench(voters=3).expired()
    assert bench.about.term == 1
    assert all(isinstance(send.message, RequestVote) and not send.message.pre_vote for send in bench.all(Send))


def test_disconnected_server_keeps_its_term() -> None:
    """With a raised term, a disconnected server would depose the leader when it reconnects."""
    bench = Bench(1, pre_vote=None)
    for _ in range(5):
        bench.expire()
        assert [send.message.pre_vote for send in bench.all(Send) if isinstance(send.message, RequestVote)] == [
            True
        ] * 2
        assert (bench.about.term, bench.about.role) == (1, Role.FOLLOWER)


def test_handshake_during_round_counts_peer_without_pre_vote() -> None:
    """A mixed cluster can elect a leader when its servers connect."""
    bench = Bench(1, pre_vote=None).expired()
    bench.step(PeerExtensions(TWO, Extensions(pre_vote=True)))
    assert bench.about.term == 1
    bench.step(PeerExtensions(THREE, NO_EXTENSIONS))
    assert (bench.about.term, bench.about.role) == (2, Role.CANDIDATE)


def test_server_outside_configuration_does_not_campaign() -> None:
    """A removed server must not disturb the group."""
    bench = Bench(configuration=Configuration(group(3).voters[1:]))
    bench.step(DeadlineReached())
    for _ in range(5):
        bench.expire()
        assert bench.effects == []
    assert bench.about.term == 0


def follower(own_id: int = ONE, *, voters: int = 3, options: Options | None = None, pre_vote: bool = True) -> Bench:
    """Return a follower in contact with its leader, server 3, at time 0."""
    bench = Bench(1, own_id=own_id, voters=voters, pre_vote=pre_vote, options=options)
    bench.append(term=2, previous=AT(1, 1), sender=THREE)
    return bench


@pytest.mark.parametrize(("own_id", "slot"), [(ONE, 1), (TWO, 2), (FOUR, 3), (FIVE, 4)])
def test_end_of_leader_starts_pre_vote_in_own_slot(own_id: int, slot: int) -> None:
    """The slots of the voters differ, so that they do not split the votes."""
    bench = follower(own_id, voters=5)
    bench.step(PeerEnded(THREE))
    assert bench.about.leader is None
    assert bench.raft.deadline == slot * LAN.heartbeat_ms
    bench.expire()
    requests = [send.message for send in bench.all(Send) if isinstance(send.message, RequestVote)]
    assert len(requests) == 4
    assert all(request.pre_vote for request in requests)
    assert bench.about.term == 2


def test_rare_heartbeats_do_not_lengthen_campaign_slots() -> None:
    bench = follower(options=replace(LAN, heartbeat_ms=LAN.election_timeout_min_ms // 2))
    bench.step(PeerEnded(THREE))
    assert bench.raft.deadline == LAN.election_timeout_min_ms // 4


def test_pre_vote_is_granted_after_end_of_leader() -> None:
    bench = follower()
    assert not bench.request_vote(term=3, last=AT(5, 2), pre_vote=True).granted
    bench.step(PeerEnded(THREE))
    assert bench.request_vote(term=3, last=AT(5, 2), pre_vote=True).granted
    assert bench.request_vote(term=3, last=AT(5, 2)).granted


@pytest.mark.parametrize("peer", [TWO, FOUR])
def test_end_of_another_server_is_ignored(peer: int) -> None:
    bench = follower()
    due = bench.raft.deadline
    assert bench.step(PeerEnded(peer)) == []
    assert (bench.about.leader, bench.raft.deadline) == (THREE, due)
    assert not bench.request_vote(term=3, last=AT(5, 2), pre_vote=True).granted


def test_refused_early_pre_votes_keep_term_and_follow_leader() -> None:
    """False evidence of the leader's end is harmless while the other voters are in contact with the leader."""
    bench = follower()
    bench.step(PeerEnded(THREE))
    while bench.now < LAN.election_timeout_min_ms:
        bench.expire()
        bench.grant(TWO, granted=False, term=2)
        assert (bench.about.term, bench.about.voted_for, bench.about.role) == (2, None, Role.FOLLOWER)
        assert bench.raft.deadline == bench.now + 2 * LAN.heartbeat_ms
    bench.append(term=2, previous=AT(1, 1), sender=THREE)
    assert (bench.about.term, bench.about.leader) == (2, THREE)
    assert bench.raft.deadline >= bench.now + LAN.election_timeout_min_ms
    assert not bench.request_vote(term=3, last=AT(5, 2), pre_vote=True).granted


def test_early_pre_votes_end_after_an_election_timeout() -> None:
    bench = follower()
    bench.step(PeerEnded(THREE))
    began = []
    while bench.now < 2 * LAN.election_timeout_max_ms:
        bench.expire()
        began.append(bench.now)
    early = [at for at in began if at < LAN.election_timeout_max_ms]
    assert early == [*range(LAN.heartbeat_ms, LAN.election_timeout_max_ms, 2 * LAN.heartbeat_ms)]
    assert began[len(early) + 1] - began[len(early)] >= LAN.election_timeout_min_ms


def test_heartbeat_before_first_slot_prevents_early_pre_vote() -> None:
    bench = follower()
    bench.step(PeerEnded(THREE))
    bench.now += LAN.heartbeat_ms - 1
    bench.append(term=2, previous=AT(1, 1), sender=THREE)
    assert bench.raft.deadline >= bench.now + LAN.election_timeout_min_ms
    bench.expire()
    assert bench.now < LAN.election_timeout_max_ms
    assert bench.raft.deadline >= bench.now + LAN.election_timeout_min_ms


@pytest.mark.parametrize("reason", ["lease", "peer without pre-vote"])
def test_end_of_leader_is_ignored(reason: str) -> None:
    """A lease requires that voters refuse candidates for the whole timeout.

    With a peer without pre-vote, which counts as granting, an early pre-vote could win despite a live leader.
    """
    options = replace(LAN, lease_clock_bound_ms=100) if reason == "lease" else None
    bench = follower(options=options, pre_vote=reason == "lease")
    due = bench.raft.deadline
    assert bench.step(PeerEnded(THREE)) == []
    assert (bench.about.leader, bench.raft.deadline) == (THREE, due)
    assert not bench.request_vote(term=3, last=AT(5, 2), pre_vote=True).granted


def test_leader_ignores_end_of_follower() -> None:
    bench = Bench(1, pre_vote=False).lead()
    bench.step(PeerEnded(TWO))
    assert bench.is_(Role.LEADER)
