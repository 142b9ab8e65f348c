"""Section 8 (client interaction) by its sentences, and leadership transfer by the thesis (3.10).

`tests/node/test_exactly_once.py` tests real servers: a client finds the leader and retries after a crash, and each
command is executed once. `test_sessions.py` tests the session table.
"""

import pytest
from msgspec.structs import replace

from consensus.core.effects import (
    Outcome,
    Persist,
    ProposalAccepted,
    ProposalResolved,
    ReadReady,
    ReadRefusal,
    ReadRefused,
    Role,
    Send,
    TransferEnded,
    TransferOutcome,
)
from consensus.core.entry_data import configuration_entry, no_op_entry
from consensus.core.events import DeadlineReached, PeerExtensions, Proposed, ReadRequested, TransferLeadership
from consensus.core.features import GARLIC_FARM, ZMQ_RAFT, Extensions, FirstEntries
from consensus.core.messages import AppendEntries, RequestVote, TimeoutNow, TimeoutNowReply, VoteReply
from consensus.core.model import ORIGIN, LogId, NoOp, ServerId
from consensus.core.options import Options, lan
from consensus.net.memory import MEMORY
from tests.spec.raft_bench import FIVE, FOUR, ONE, THREE, TWO, Bench, group, suffix

OURS = Extensions(pre_vote=True, transfer=True, lease_ms=1_000)


def leader_bench(*, voters: int = 3, committed: bool = True, options: Options | None = None) -> Bench:
    """Return server 1 as leader of term 1; with `committed`, all servers have a committed entry of this term."""
    bench = Bench(voters=voters, options=options).lead()
    first = heartbeats(bench, *(number for number in range(2, voters + 1)))
    for peer, append in first.items():
        bench.step(PeerExtensions(peer, OURS))
        if committed:
            bench.matched(peer, append)
    return bench


def sent_to(bench: Bench, peer: ServerId) -> AppendEntries:
    """Return the next append due to the peer."""
    bench.expire()
    return heartbeats(bench, peer)[peer]


def heartbeats(bench: Bench, *peers: ServerId) -> dict[ServerId, AppendEntries]:
    """Return the last append of the latest step to each of the peers."""
    assert all(bench.appends(peer) for peer in peers), "a peer did not get an append"
    return {peer: bench.appends(peer)[-1] for peer in peers}


# -- redirects and exactly once ----------------------------------------------------------------------------------------


def test_follower_refuses_requests_with_known_leader() -> None:
    """Quote: "… will reject the client's request and supply information about the most recent leader …"."""
    bench = Bench()
    bench.append(term=1, sender=THREE)
    assert bench.propose(b"x") == [
        ProposalResolved(proposal_id=1, outcome=Outcome.NOT_LEADER, position=None, leader=THREE)
    ]
    assert bench.step(ReadRequested(7)) == [ReadRefused(7, ReadRefusal.NOT_LEADER, THREE)]
    assert bench.step(TransferLeadership(8)) == [TransferEnded(8, TransferOutcome.NOT_LEADER, THREE)]


# -- reads -------------------------------------------------------------------------------------------------------------


def test_read_leaves_log_unchanged() -> None:
    """Quote: "Read-only operations can be handled without writing anything into the log"."""
    bench = leader_bench()
    before = bench.about.last
    effects = bench.step(ReadRequested(1))
    assert not [effect for effect in effects if isinstance(effect, Persist)]
    assert bench.about.last == before


def test_read_waits_for_commit_in_own_term() -> None:
    """Quote: "To find out, it needs to commit an entry from its term"."""
    bench = Bench().lead()
    first = heartbeats(bench, TWO)[TWO]
    bench.step(ReadRequested(1))
    assert bench.about.commit_index == 0
    assert bench.about.pending_reads == 1
    bench.matched(TWO, first)
    assert bench.about.commit_index == 1
    assert not bench.all(ReadReady), "the round begins only now"
    bench.matched(TWO, heartbeats(bench, TWO)[TWO])
    assert bench.all(ReadReady) == [ReadReady(1, 1)]


def test_leader_commits_no_op_at_start_of_term() -> None:
    """Quote: "… each leader commit a blank no-op entry into the log at the start of its term"."""
    for features, first in (
        (GARLIC_FARM, configuration_entry(2, group(3))),
        (
            replace(MEMORY, first_entries=FirstEntries.NO_OP_ALONE),
            no_op_entry(2, NoOp(ONE, (ONE, TWO, THREE), (ONE, TWO))),
        ),
        (ZMQ_RAFT, no_op_entry(2, NoOp())),
    ):
        bench = Bench(1, features=features).lead()
        (append,) = bench.appends(TWO)
        assert append.entries == (first,)


def test_read_needs_heartbeat_replies_of_majority() -> None:
    """Quote: "… having the leader exchange heartbeat messages with a majority of the cluster before responding"."""
    bench = leader_bench(voters=5)
    bench.step(ReadRequested(1))
    requests = heartbeats(bench, TWO, THREE, FOUR, FIVE)
    assert bench.matched(TWO, requests[TWO]) == [], "two of five servers confirm it"
    assert ReadReady(1, bench.about.commit_index) in bench.matched(THREE, requests[THREE])


def test_reply_to_earlier_request_confirms_no_read() -> None:
    """Quote: "… its information may be stale if a more recent leader has been elected"."""
    bench = leader_bench()
    earlier = sent_to(bench, TWO)
    bench.step(ReadRequested(1))
    bench.matched(TWO, earlier)
    assert not bench.all(ReadReady)
    assert bench.about.pending_reads == 1


def test_later_append_confirms_round_with_lost_heartbeats() -> None:
    bench = leader_bench()
    bench.step(ReadRequested(1))
    bench.expire()
    later = sent_to(bench, TWO)
    bench.matched(TWO, later)
    assert bench.all(ReadReady) == [ReadReady(1, 1)]


def test_reads_during_round_share_next_round() -> None:
    bench = leader_bench()
    bench.step(ReadRequested(1))
    first = heartbeats(bench, TWO)[TWO]
    for number in range(2, 12):
        assert not [effect for effect in bench.step(ReadRequested(number)) if isinstance(effect, Send)]
    bench.matched(TWO, first)
    assert bench.all(ReadReady) == [ReadReady(1, 1)]
    second = heartbeats(bench, TWO)[TWO]
    bench.matched(TWO, second)
    assert [ready.read_id for ready in bench.all(ReadReady)] == list(range(2, 12))


def test_read_sees_commit_index_at_start_of_round() -> None:
    bench = leader_bench()
    bench.propose(b"x")
    bench.matched(TWO, heartbeats(bench, TWO)[TWO])
    bench.step(ReadRequested(1))
    bench.matched(TWO, heartbeats(bench, TWO)[TWO])
    assert bench.all(ReadReady) == [ReadReady(1, 2)]


def test_deposed_leader_refuses_pending_reads() -> None:
    bench = leader_bench()
    bench.step(ReadRequested(1))
    bench.append(term=2, previous=LogId(1, 1), sender=THREE)
    refused = bench.all(ReadRefused)
    assert [read.read_id for read in refused] == [1]
    assert refused[0].reason is ReadRefusal.NOT_LEADER


def test_reads_above_limit_are_busy() -> None:
    bench = leader_bench(options=Options(1_000, 2_000, 100, 400, max_pending_reads=2))
    for number in (1, 2):
        bench.step(ReadRequested(number))
    assert bench.step(ReadRequested(3)) == [ReadRefused(3, ReadRefusal.BUSY, ONE)]


def test_single_server_serves_read_immediately() -> None:
    bench = Bench(voters=1).expired()
    assert bench.is_(Role.LEADER)
    assert ReadReady(1, 1) in bench.step(ReadRequested(1))


# -- leases ------------------------------------------------------------------------------------------------------------

BOUND_MS = 300
LEASED = Options(1_000, 2_000, 100, 400, lease_clock_bound_ms=BOUND_MS)


def leader_with_lease() -> Bench:
    """Return a leader whose lease has just begun."""
    bench = leader_bench(options=LEASED)
    bench.step(ReadRequested(1))
    bench.matched(TWO, heartbeats(bench, TWO)[TWO])
    assert bench.all(ReadReady)
    return bench


def test_lease_off_by_default() -> None:
    """Quote: "… but this would rely on timing for safety (it assumes bounded clock skew)"."""
    assert lan().lease_clock_bound_ms is None
    bench = leader_bench()
    bench.step(ReadRequested(1))
    bench.matched(TWO, heartbeats(bench, TWO)[TWO])
    bench.step(ReadRequested(2))
    assert not bench.all(ReadReady)


def test_lease_is_election_timeout_minus_clock_bound() -> None:
    """Quote: "Alternatively, the leader could rely on the heartbeat mechanism to provide a form of lease"."""
    bench = leader_with_lease()
    assert bench.step(ReadRequested(2), after_ms=1_000 - BOUND_MS - 1) == [ReadReady(2, 1)]
    bench.step(ReadRequested(3), after_ms=1)
    assert not bench.all(ReadReady)


def test_lease_starts_when_round_is_sent() -> None:
    bench = leader_bench(options=LEASED)
    bench.step(ReadRequested(1))
    requests = heartbeats(bench, TWO)[TWO]
    bench.now += 600
    bench.matched(TWO, requests)
    assert bench.all(ReadReady)
    assert bench.step(ReadRequested(2), after_ms=1_000 - 600 - BOUND_MS - 1) == [ReadReady(2, 1)]
    bench.step(ReadRequested(3), after_ms=1)
    assert not bench.all(ReadReady)


def test_peer_without_lease_extension_prevents_lease() -> None:
    check_no_lease(Extensions())


@pytest.mark.parametrize("lease_ms", [None, 999], ids=["leases off", "shorter lease"])
def test_peer_with_shorter_lease_prevents_lease(lease_ms: int | None) -> None:
    check_no_lease(replace(OURS, lease_ms=lease_ms))


def check_no_lease(extensions: Extensions) -> None:
    """Check that a leader confirms each read by a majority if one voter has these extensions."""
    bench = leader_bench(options=LEASED)
    bench.step(PeerExtensions(THREE, extensions))
    bench.step(ReadRequested(1))
    bench.matched(TWO, heartbeats(bench, TWO)[TWO])
    assert bench.all(ReadReady)
    bench.step(ReadRequested(2))
    assert not bench.all(ReadReady)


def test_voter_keeps_lease_over_restart_and_higher_term() -> None:
    bench = Bench(options=LEASED)
    assert not bench.request_vote(term=5).granted, "it has just started, and may have confirmed a lease earlier"
    assert bench.about.term == 0
    bench.now += 1_000
    assert bench.request_vote(term=5).granted
    bench.append(term=5)
    bench.receive(THREE, VoteReply(term=6, granted=False, correlation=1))
    assert bench.about.term == 6
    assert not bench.request_vote(term=7).granted, "the confirmed leader may hold a lease until then"


def test_transfer_ends_lease_for_term() -> None:
    bench = leader_with_lease()
    bench.step(TransferLeadership(5, TWO))
    assert any(isinstance(send.message, TimeoutNow) for send in bench.all(Send))
    (order,) = (send.message for send in bench.all(Send) if isinstance(send.message, TimeoutNow))
    bench.receive(TWO, TimeoutNowReply(1, accepted=False, correlation=order.correlation))
    assert bench.all(TransferEnded) == [TransferEnded(5, TransferOutcome.DECLINED, ONE)]
    bench.step(ReadRequested(6))
    assert not bench.all(ReadReady), "the request may still be in transfer to a server that will accept it"


@pytest.mark.parametrize("bound_ms", [0, 1_000])
def test_clock_bound_out_of_range_refused(bound_ms: int) -> None:
    with pytest.raises(ValueError, match="clock bound"):
        Options(1_000, 2_000, 100, 400, lease_clock_bound_ms=bound_ms)


# -- leadership transfer -----------------------------------------------------------------------------------------------


def order_of(bench: Bench) -> TimeoutNow:
    """Return the only TimeoutNow of the latest step."""
    (order,) = (send.message for send in bench.all(Send) if isinstance(send.message, TimeoutNow))
    return order


def test_transfer_to_itself_or_non_voter_refused() -> None:
    bench = leader_bench()
    assert bench.step(TransferLeadership(1, ONE)) == [TransferEnded(1, TransferOutcome.TO_ITSELF, ONE)]
    assert bench.step(TransferLeadership(2, FIVE)) == [TransferEnded(2, TransferOutcome.NOT_A_VOTER, ONE)]


def test_transfer_in_single_server_group_refused() -> None:
    bench = Bench(voters=1).expired()
    assert bench.step(TransferLeadership(1)) == [TransferEnded(1, TransferOutcome.NO_VOTER, ONE)]


def test_transfer_selects_most_up_to_date_voter() -> None:
    bench = leader_bench()
    bench.propose(b"x")
    bench.matched(THREE, heartbeats(bench, THREE)[THREE])
    bench.step(TransferLeadership(1))
    assert bench.about.transfer_target == THREE
    order_of(bench)


def test_second_transfer_refused() -> None:
    bench = leader_bench()
    bench.step(TransferLeadership(1, TWO))
    assert bench.step(TransferLeadership(2, THREE)) == [TransferEnded(2, TransferOutcome.ANOTHER_UNDER_WAY, ONE)]


def test_proposals_during_transfer_held_until_it_fails() -> None:
    bench = leader_bench(options=Options(1_000, 2_000, 100, 400, max_pending_proposals=2))
    bench.step(TransferLeadership(1, TWO))
    assert bench.propose(b"a", proposal_id=1) == []
    assert bench.propose(b"b", proposal_id=2) == []
    assert bench.propose(b"c", proposal_id=3) == [
        ProposalResolved(proposal_id=3, outcome=Outcome.BUSY, position=None, leader=ONE)
    ]
    assert bench.about.last.index == 1
    for _ in range(30):
        if bench.about.transfer_target is None:
            break
        bench.expire()
        for append in bench.appends(THREE):
            if not append.entries:
                bench.matched(THREE, append)
    assert bench.about.transfer_target is None
    assert bench.is_(Role.LEADER)
    assert bench.about.last.index == 3
    assert bench.about.pending_proposals == 2


def test_transfer_target_campaigns_without_pre_vote() -> None:
    bench = Bench(pre_vote=True)
    bench.append(term=1, sender=TWO)
    bench.receive(TWO, TimeoutNow(1, TWO, 77))
    assert any(send.message == TimeoutNowReply(1, accepted=True, correlation=77) for send in bench.all(Send))
    votes = [send.message for send in bench.all(Send) if isinstance(send.message, RequestVote)]
    assert [(vote.term, vote.pre_vote, vote.transfer) for vote in votes] == [(2, False, True)] * 2


@pytest.mark.parametrize(("sender", "term"), [(THREE, 1), (TWO, 0)])
def test_timeout_now_of_other_sender_refused(sender: ServerId, term: int) -> None:
    bench = Bench(term=1)
    bench.append(term=1, sender=TWO)
    bench.receive(sender, TimeoutNow(term, sender, 77))
    assert [send.message for send in bench.all(Send)] == [TimeoutNowReply(1, accepted=False, correlation=77)]
    assert bench.is_(Role.FOLLOWER)


def test_transfer_flag_overrides_leader_contact() -> None:
    follower = Bench()
    follower.append(term=1, sender=TWO)
    assert not follower.request_vote(term=2, sender=THREE).granted
    follower.receive(THREE, RequestVote(term=2, candidate=THREE, last=ORIGIN, correlation=5, transfer=True))
    assert any(isinstance(send.message, VoteReply) and send.message.granted for send in follower.all(Send))
    leader = leader_bench()
    leader.receive(TWO, RequestVote(term=2, candidate=TWO, last=LogId(1, 1), correlation=5, transfer=True))
    assert leader.is_(Role.FOLLOWER)
    assert any(isinstance(send.message, VoteReply) and send.message.granted for send in leader.all(Send))


def test_late_transfer_vote_request_refused() -> None:
    """A vote for a late request would end the refusal of candidates, which the leader's lease depends on."""
    # Given a follower without a vote in term 2, after an append of its leader
    follower = Bench(options=LEASED)
    follower.append(term=2, sender=TWO)
    # When a delayed vote request of that term arrives, from another candidate or from the leader itself
    for candidate in (THREE, TWO):
        follower.receive(candidate, RequestVote(term=2, candidate=candidate, last=ORIGIN, correlation=5, transfer=True))
        assert [send.message for send in follower.all(Send)] == [VoteReply(term=2, granted=False, correlation=5)]
    # Then the leader stays known, and no other server gets a vote within the minimum election timeout
    assert follower.about.leader == TWO
    assert not follower.request_vote(term=3, sender=THREE).granted


def test_transfer_won_by_other_server_reported() -> None:
    bench = leader_bench()
    bench.step(TransferLeadership(1, TWO))
    bench.append(term=2, previous=LogId(1, 1), entries=suffix(2, 2), sender=THREE)
    assert bench.all(TransferEnded) == [TransferEnded(1, TransferOutcome.ELSEWHERE, THREE)]


def test_dead_transfer_target_leaves_unknown_outcome() -> None:
    bench = leader_bench()
    bench.step(TransferLeadership(1, TWO))
    order = order_of(bench)
    bench.receive(TWO, TimeoutNowReply(1, accepted=True, correlation=order.correlation))
    bench.receive(TWO, RequestVote(term=2, candidate=TWO, last=LogId(1, 1), correlation=5, transfer=True))
    assert not bench.all(TransferEnded)
    for _ in range(3):
        bench.expire()
        if bench.all(TransferEnded):
            break
    assert bench.all(TransferEnded) == [TransferEnded(1, TransferOutcome.UNKNOWN, None)]


def test_transfer_without_extension_resigns_leader() -> None:
    bench = leader_bench()
    bench.step(PeerExtensions(TWO, Extensions(pre_vote=True)))
    bench.step(TransferLeadership(1, TWO))
    assert bench.is_(Role.FOLLOWER)
    assert not [send for send in bench.all(Send) if isinstance(send.message, TimeoutNow)]
    assert bench.raft.deadline == bench.now + 2 * lan().election_timeout_max_ms
    assert bench.request_vote(term=2, last=LogId(1, 1)).granted


def test_accepted_proposal_reported_on_request() -> None:
    """After the report the client can wait without repeating the proposal, which may still be lost with the leader."""
    bench = Bench(1).lead()
    (append,) = bench.appends(TWO)
    bench.matched(TWO, append)
    bench.step(Proposed(proposal_id=7, commands=(b"x", b"y"), report_accepted=True))
    last = bench.about.last
    assert bench.all(ProposalAccepted) == [ProposalAccepted(7, last)]
    assert bench.all(ProposalResolved) == []
    (append,) = bench.appends(TWO)
    bench.matched(TWO, append)
    assert bench.all(ProposalResolved) == [
        ProposalResolved(proposal_id=7, outcome=Outcome.COMMITTED, position=last, leader=ONE)
    ]
    assert bench.all(ProposalAccepted) == []


def test_accepted_proposal_not_reported_by_default() -> None:
    bench = Bench(1).lead()
    bench.step(Proposed(proposal_id=7, commands=(b"x",)))
    assert bench.all(ProposalAccepted) == []


def test_refused_or_held_proposal_not_accepted() -> None:
    """A follower refuses the proposal. During a transfer it is held, and accepted after the transfer has failed."""
    follower = Bench(1)
    follower.step(Proposed(proposal_id=7, commands=(b"x",), report_accepted=True))
    assert follower.all(ProposalAccepted) == []
    bench = Bench(1).lead()
    bench.step(TransferLeadership(1, TWO))
    bench.step(Proposed(proposal_id=8, commands=(b"x",), report_accepted=True))
    assert bench.all(ProposalAccepted) == []
    accepted = []
    for _ in range(25):  # the target lacks entries, and the other follower replies
        bench.step(DeadlineReached(), after_ms=100)
        accepted += bench.all(ProposalAccepted)
        for append in bench.appends(THREE):
            bench.matched(THREE, append)
    assert [each.proposal_id for each in accepted] == [8]


def test_accepted_proposal_of_deposed_leader_is_unknown() -> None:
    bench = Bench(1).lead()
    bench.step(Proposed(proposal_id=7, commands=(b"x",), report_accepted=True))
    bench.append(9, sender=THREE)
    assert bench.all(ProposalResolved) == [ProposalResolved(proposal_id=7, outcome=Outcome.UNKNOWN)]
