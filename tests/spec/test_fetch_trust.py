"""Leadership in a group that fetches: the effects of delayed replies, higher terms of other servers, and reads."""

from msgspec.structs import replace

from consensus.core.effects import Role, Send
from consensus.core.events import DeadlineReached, ReadRequested, Received
from consensus.core.messages import BeginQuorumEpoch, BeginQuorumEpochReply, Fetch, FetchReply, RefusalReason
from consensus.core.model import ORIGIN
from consensus.core.options import lan
from tests.spec.fetch_bench import FetchBench
from tests.spec.raft_bench import THREE, TWO

OUTSIDER = 9


def test_late_refusal_of_candidate_keeps_promised_lease() -> None:
    """Server 2 sent the refusal as a candidate. Since then it became the leader, and we promised it a lease."""
    # Given a vote for server 2, and two fetches sent to it before its first reply
    bench = FetchBench(options=replace(lan(), lease_clock_bound_ms=100), seed=3)
    bench.now = lan().election_timeout_min_ms + 1
    assert bench.request_vote(1, ORIGIN, TWO).granted
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
    # When the reply to the first fetch arrives, sent before server 2 was the leader
    bench.receive(
        TWO,
        FetchReply(
            term=early.term, leader=None, commit=0, correlation=early.correlation, error=RefusalReason.NOT_LEADER
        ),
    )
    # Then server 2 is still the leader, and no other server gets a vote
    assert bench.about.leader == TWO
    assert not bench.request_vote(2, ORIGIN, THREE).granted


def test_late_refusal_keeps_lease_of_redirected_leader() -> None:
    """The refusal is from the time when the leader was a candidate; the leader has announced itself since."""
    # Given a vote for server 2, a fetch sent to it, and a reply of server 3 that names server 2 as the leader
    bench = FetchBench(options=replace(lan(), lease_clock_bound_ms=100), seed=3)
    bench.now = lan().election_timeout_min_ms + 1
    assert bench.request_vote(1, ORIGIN, TWO).granted
    bench.fetches.clear()
    while not {TWO, THREE} <= bench.fetches.keys():
        bench.now = max(bench.now + 1, min(bench.raft.deadline, bench.now + 50))
        bench.step(DeadlineReached())
        assert bench.is_(Role.FOLLOWER)
    early = bench.fetches[TWO]
    bench.reply(bench.fetches[THREE], sender=THREE, leader=TWO, error=RefusalReason.NOT_LEADER)
    assert bench.about.leader == TWO
    # When server 2 announces itself, and its reply to the early fetch arrives after that
    assert bench.begin(TWO, 1).error is None
    bench.reply(early, leader=None, error=RefusalReason.NOT_LEADER)
    # Then server 2 is still the leader, and no other server gets a vote
    assert bench.about.leader == TWO
    assert not bench.request_vote(2, ORIGIN, THREE).granted


def test_fetch_of_outsider_with_later_term_keeps_leader() -> None:
    """A removed server receives no announcements, campaigns in vain, and fetches from all servers in its own term."""
    bench = FetchBench().lead()
    bench.receive(
        OUTSIDER,
        Fetch(term=99, replica=OUTSIDER, position=ORIGIN, commit=0, max_wait_ms=100, max_bytes=1_000, correlation=3),
    )
    (reply,) = bench.sent(FetchReply)
    assert reply.error is RefusalReason.NEWER_TERM
    assert (bench.about.role, bench.about.term) == (Role.LEADER, 1)


def test_fetch_of_voter_with_later_term_deposes_leader() -> None:
    bench = FetchBench().lead()
    bench.receive(
        TWO, Fetch(term=99, replica=TWO, position=ORIGIN, commit=0, max_wait_ms=100, max_bytes=1_000, correlation=3)
    )
    assert (bench.about.role, bench.about.term) == (Role.FOLLOWER, 99)


def test_reads_do_not_keep_leader_without_fetches() -> None:
    """A leader resigns if no majority has fetched within the timeout (KIP-595, leader progress timeout)."""
    # Given a leader whose first entry is committed
    bench = FetchBench().lead()
    bench.fetch(TWO, bench.about.last)
    # When reads continue, all servers confirm their rounds, and no server fetches
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
    # Then the leader resigns
    assert not bench.is_(Role.LEADER)
