"""Which messages a group that fetches believes: late answers, strangers of a later term, idle followers."""

from dataclasses import replace

from consensus.core.effects import Role, Send
from consensus.core.events import DeadlineReached, ReadRequested, Received
from consensus.core.messages import BeginQuorumEpoch, BeginQuorumEpochReply, Fetch, FetchReply, RefusalReason
from consensus.core.model import ORIGIN
from consensus.core.options import lan
from tests.spec.fetch_bench import FetchBench
from tests.spec.raft_bench import THREE, TWO

STRANGER = 9


def test_a_late_word_of_a_leader_that_it_does_not_lead_takes_no_promised_lease_back() -> None:
    """(It was asked while it was still a candidate; since then it has answered a fetch, and was promised a lease.)."""
    # Given a vote for server 2, which is asked for entries twice before it answers once
    bench = FetchBench(options=replace(lan(), lease_clock_bound_ms=100), seed=3)
    bench.now = lan().election_timeout_min_ms + 1
    assert bench.ask(1, ORIGIN, TWO).granted
    fetches: list[Fetch] = []
    while len(fetches) < 2:
        bench.now = max(bench.now + 1, min(bench.raft.deadline, bench.now + 50))
        bench.step(DeadlineReached())
        assert bench.is_(Role.FOLLOWER)
        fetches += bench.sent(Fetch, TWO)
    early, late = fetches
    bench.receive(TWO, FetchReply(term=late.term, leader=TWO, commit=0, correlation=late.correlation))
    bench.receive(TWO, BeginQuorumEpoch(term=late.term, leader=TWO, correlation=900))
    assert [reply.error for reply in bench.sent(BeginQuorumEpochReply)] == [None]
    # When the answer to the first arrives: it did not lead then
    bench.receive(
        TWO,
        FetchReply(
            term=early.term, leader=None, commit=0, correlation=early.correlation, error=RefusalReason.NOT_LEADER
        ),
    )
    # Then it is still the leader, and no other server gets a vote
    assert bench.about.leader == TWO
    assert not bench.ask(2, ORIGIN, THREE).granted


def test_a_late_refusal_takes_no_lease_back_from_a_leader_that_a_redirect_named_first() -> None:
    """The refusal is of the time when the leader was still a candidate; the leader has announced itself since."""
    # Given a vote for server 2, which is asked for entries, and server 3, which says then that server 2 leads
    bench = FetchBench(options=replace(lan(), lease_clock_bound_ms=100), seed=3)
    bench.now = lan().election_timeout_min_ms + 1
    assert bench.ask(1, ORIGIN, TWO).granted
    bench.asked.clear()
    while not {TWO, THREE} <= bench.asked.keys():
        bench.now = max(bench.now + 1, min(bench.raft.deadline, bench.now + 50))
        bench.step(DeadlineReached())
        assert bench.is_(Role.FOLLOWER)
    early = bench.asked[TWO]
    bench.reply(bench.asked[THREE], sender=THREE, leader=TWO, error=RefusalReason.NOT_LEADER)
    assert bench.about.leader == TWO
    # When server 2 announces itself, and its answer to the early question comes behind that
    assert bench.begin(TWO, 1).error is None
    bench.reply(early, leader=None, error=RefusalReason.NOT_LEADER)
    # Then it is still the leader, and no other server gets a vote
    assert bench.about.leader == TWO
    assert not bench.ask(2, ORIGIN, THREE).granted


def test_a_fetch_of_a_later_term_by_a_server_outside_the_configuration_deposes_no_leader() -> None:
    """Server that was removed: it receives no announcements, campaigns in vain, and asks around in its own term."""
    bench = FetchBench()
    bench.lead()
    bench.receive(
        STRANGER,
        Fetch(term=99, replica=STRANGER, position=ORIGIN, commit=0, max_wait_ms=100, max_bytes=1_000, correlation=3),
    )
    (reply,) = bench.sent(FetchReply)
    assert reply.error is RefusalReason.NEWER_TERM
    assert (bench.about.role, bench.about.term) == (Role.LEADER, 1)


def test_a_fetch_of_a_later_term_by_a_voter_ends_the_leaders_term() -> None:
    bench = FetchBench()
    bench.lead()
    bench.receive(
        TWO, Fetch(term=99, replica=TWO, position=ORIGIN, commit=0, max_wait_ms=100, max_bytes=1_000, correlation=3)
    )
    assert (bench.about.role, bench.about.term) == (Role.FOLLOWER, 99)


def test_reads_do_not_keep_a_leader_from_which_no_server_fetches() -> None:
    """The leader resigns when no majority has fetched within the timeout (KIP-595, leader progress timeout)."""
    # Given a leader whose first entry is committed
    bench = FetchBench()
    bench.lead()
    bench.fetch(TWO, bench.about.last)
    # When reads go on, whose rounds all servers confirm, and no server fetches
    ends_ms, number = bench.now + 5 * lan().election_timeout_max_ms, 0
    while bench.is_(Role.LEADER) and bench.now < ends_ms:
        number += 1
        bench.now += 100
        for event in (DeadlineReached(), ReadRequested(number)):
            bench.step(event)
            for send in bench.all(Send):
                if isinstance(send.message, BeginQuorumEpoch):
                    reply = BeginQuorumEpochReply(term=1, leader=1, correlation=send.message.correlation)
                    bench.raft.step(Received(send.recipient, reply), bench.now)
    # Then it resigns all the same
    assert not bench.is_(Role.LEADER)
