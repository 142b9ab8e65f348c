"""Disruptive servers, and the protection from them: stickiness (section 6), check-quorum, pre-vote (thesis 9.6)."""

from consensus.core.effects import Outcome, Persist, ProposalResolved, Role, Send
from consensus.core.events import DeadlineReached, PeerExtensions
from consensus.core.features import NO_EXTENSIONS, Extensions
from consensus.core.messages import RequestVote
from consensus.core.model import Configuration, LogId
from consensus.core.options import lan
from tests.spec.raft_bench import THREE, TWO, Bench, group

AT = LogId


def test_vote_requests_ignored_while_leader_is_in_contact() -> None:
    """Quote: "… within the minimum election timeout of hearing from a current leader …"."""
    bench = Bench(1)
    bench.append(term=2, previous=AT(1, 1))
    assert bench.request_vote(term=9, last=AT(5, 2), sender=THREE, after_ms=999).granted is False
    assert bench.about.term == 2
    assert bench.request_vote(term=9, last=AT(5, 2), sender=THREE, after_ms=1).granted is True


def test_leader_ignores_vote_requests() -> None:
    """Quote: "… it does not update its term or grant its vote"."""
    bench = Bench(1)
    bench.lead()
    assert not bench.request_vote(term=9, last=AT(50, 8), sender=THREE).granted
    assert bench.is_(Role.LEADER)


def test_leader_without_majority_replies_resigns() -> None:
    """Check-quorum: a disconnected leader must not keep its clients waiting."""
    bench = Bench(voters=5)
    bench.lead()
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
    bench = Bench(1, pre_vote=True)
    bench.expire()
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
    assert (bench.about.term, bench.about.voted_for, bench.raft.deadline) == (1, None, due)
    assert bench.all(Persist) == []


def test_peers_without_pre_vote_count_as_granting() -> None:
    """If they counted as denials, no election in a mixed cluster could succeed."""
    bench = Bench(voters=3)
    bench.expire()
    assert bench.about.term == 1
    assert all(isinstance(send.message, RequestVote) and not send.message.pre_vote for send in bench.all(Send))


def test_disconnected_server_keeps_its_term() -> None:
    """A follower does not dial. With a raised term a disconnected server would depose the leader when it reconnects."""
    bench = Bench(1, pre_vote=None)
    for _ in range(5):
        bench.expire()
        assert [send.message.pre_vote for send in bench.all(Send) if isinstance(send.message, RequestVote)] == [
            True
        ] * 2
        assert (bench.about.term, bench.about.role) == (1, Role.FOLLOWER)


def test_handshake_during_round_counts_peer_without_pre_vote() -> None:
    """So a mixed cluster can elect a leader as soon as its servers connect."""
    bench = Bench(1, pre_vote=None)
    bench.expire()
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
