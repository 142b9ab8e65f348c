"""Servers that disrupt, and what keeps them from it: stickiness (section 6), check-quorum, pre-vote (thesis 9.6)."""

from consensus.core.effects import Outcome, Persist, ProposalResolved, Role, Send
from consensus.core.events import DeadlineReached, PeerExtensions
from consensus.core.features import NO_EXTENSIONS, Extensions
from consensus.core.messages import RequestVote
from consensus.core.model import Configuration, LogId
from consensus.core.options import lan
from tests.spec.raft_bench import THREE, TWO, Bench, group

AT = LogId


def test_vote_requests_are_ignored_within_the_minimum_election_timeout_of_a_leaders_word() -> None:
    """If a server receives a RequestVote within the minimum election timeout of hearing from a leader ..."""
    bench = Bench(1)
    bench.append(term=2, previous=AT(1, 1))
    assert bench.ask(term=9, last=AT(5, 2), sender=THREE, after_ms=999).granted is False
    assert bench.about.term == 2
    assert bench.ask(term=9, last=AT(5, 2), sender=THREE, after_ms=1).granted is True


def test_a_leader_ignores_vote_requests() -> None:
    """... it does not update its term or grant its vote."""
    bench = Bench(1)
    bench.lead()
    assert not bench.ask(term=9, last=AT(50, 8), sender=THREE).granted
    assert bench.is_(Role.LEADER)


def test_a_leader_without_an_answer_from_a_majority_resigns_and_tells_its_clients() -> None:
    """(Check-quorum: a leader that was cut off must not keep its clients waiting.)."""
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


def test_pre_vote_is_asked_before_the_term_is_raised() -> None:
    """(A server that could not win must not disturb those who have a leader.)."""
    bench = Bench(1, pre_vote=True)
    bench.expire()
    questions = [send.message for send in bench.all(Send)]
    assert questions
    assert all(isinstance(question, RequestVote) and question.pre_vote for question in questions)
    assert {question.term for question in questions} == {2}
    assert (bench.about.term, bench.about.role) == (1, Role.FOLLOWER)
    assert bench.all(Persist) == []
    bench.grant(TWO)
    assert (bench.about.term, bench.about.role) == (2, Role.CANDIDATE)


def test_a_pre_vote_changes_neither_term_nor_vote_nor_timer() -> None:
    """(It is only a question.)."""
    bench = Bench(1)
    due = bench.raft.deadline
    reply = bench.ask(term=9, last=AT(1, 1), pre_vote=True)
    assert (reply.granted, reply.term, reply.pre_vote) == (True, 9, True)
    assert (bench.about.term, bench.about.voted_for, bench.raft.deadline) == (1, None, due)
    assert bench.all(Persist) == []


def test_peers_without_pre_vote_count_as_granting_it() -> None:
    """(Counting them as denials would stop every election in a mixed cluster.)."""
    bench = Bench(voters=3)
    bench.expire()
    assert bench.about.term == 1
    assert all(isinstance(send.message, RequestVote) and not send.message.pre_vote for send in bench.all(Send))


def test_a_server_that_never_reached_a_peer_keeps_its_term_however_long_it_is_alone() -> None:
    """(A follower does not dial; cut off, it would come back with a term that deposes the leader.)."""
    bench = Bench(1, pre_vote=None)
    for _ in range(5):
        bench.expire()
        assert [send.message.pre_vote for send in bench.all(Send) if isinstance(send.message, RequestVote)] == [
            True
        ] * 2
        assert (bench.about.term, bench.about.role) == (1, Role.FOLLOWER)


def test_a_handshake_during_the_round_settles_what_a_peer_without_pre_vote_counts_for() -> None:
    """(A mixed cluster elects in the round in which its servers first reach each other.)."""
    bench = Bench(1, pre_vote=None)
    bench.expire()
    bench.step(PeerExtensions(TWO, Extensions(pre_vote=True)))
    assert bench.about.term == 1
    bench.step(PeerExtensions(THREE, NO_EXTENSIONS))
    assert (bench.about.term, bench.about.role) == (2, Role.CANDIDATE)


def test_a_server_outside_the_configuration_does_not_campaign() -> None:
    """(A removed server must not disturb.)."""
    bench = Bench(configuration=Configuration(group(3).voters[1:]))
    bench.step(DeadlineReached())
    for _ in range(5):
        bench.expire()
        assert bench.effects == []
    assert bench.about.term == 0
