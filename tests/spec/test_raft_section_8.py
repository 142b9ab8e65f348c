"""Section 8, client interaction, sentence by sentence; and what the thesis adds on handing leadership over (3.10).

What needs real servers (a client that finds the leader, retries after a crash and is never executed twice) is in
`tests/node/test_exactly_once.py`; the session table has its own file, `test_sessions.py`.
"""

from dataclasses import replace

import pytest

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
from consensus.sessions.table import RequestId, RequestStatus, SessionTable
from tests.spec.raft_bench import FIVE, FOUR, ONE, THREE, TWO, Bench, group, suffix

OURS = Extensions(pre_vote=True, transfer=True, lease_ms=1_000)


def leading(*, voters: int = 3, committed: bool = True, options: Options | None = None) -> Bench:
    """Server 1 leads term 1; with `committed`, an entry of its own is committed and all hold it."""
    bench = Bench(voters=voters, options=options)
    bench.lead()
    first = heartbeats(bench, *(number for number in range(2, voters + 1)))
    for peer, append in first.items():
        bench.step(PeerExtensions(peer, OURS))
        if committed:
            bench.matched(peer, append)
    return bench


def sent_to(bench: Bench, peer: ServerId) -> AppendEntries:
    """The next append that is due to the peer."""
    bench.expire()
    return heartbeats(bench, peer)[peer]


def heartbeats(bench: Bench, *peers: ServerId) -> dict[ServerId, AppendEntries]:
    """What the latest step sent to each of the peers, if several then the last."""
    assert all(bench.appends(peer) for peer in peers), "a peer was sent nothing"
    return {peer: bench.appends(peer)[-1] for peer in peers}


# -- who is asked, and exactly once ------------------------------------------------------------------------------------


def test_a_server_that_does_not_lead_supplies_the_leader_it_has_heard_from() -> None:
    """'…that server will reject the client's request and supply information about the most recent leader'."""
    bench = Bench()
    bench.append(term=1, sender=THREE)
    assert bench.propose(b"x") == [
        ProposalResolved(proposal_id=1, outcome=Outcome.NOT_LEADER, position=None, leader=THREE)
    ]
    assert bench.step(ReadRequested(7)) == [ReadRefused(7, ReadRefusal.NOT_LEADER, THREE)]
    assert bench.step(TransferLeadership(8)) == [TransferEnded(8, TransferOutcome.NOT_LEADER, THREE)]


def test_a_command_whose_serial_number_was_executed_is_answered_without_executing_it_again() -> None:
    """'If it receives a command whose serial number has already been executed, it responds immediately … '."""
    table, request = SessionTable(), RequestId("client", 0, 1)
    assert table.admit(request, 5, 0) is RequestStatus.NEW
    table.remember(request, b"response")
    assert table.admit(request, 6, 0) is RequestStatus.DUPLICATE
    assert table.result_of(request) == b"response"


# -- reads -------------------------------------------------------------------------------------------------------------


def test_read_only_operations_write_nothing_into_the_log() -> None:
    """'Read-only operations can be handled without writing anything into the log.'."""
    bench = leading()
    before = bench.about.last
    effects = bench.step(ReadRequested(1))
    assert not [effect for effect in effects if isinstance(effect, Persist)]
    assert bench.about.last == before


def test_a_leader_answers_no_read_before_an_entry_of_its_own_term_is_committed() -> None:
    """'To find out, it needs to commit an entry from its term.'."""
    bench = Bench()
    bench.lead()
    first = heartbeats(bench, TWO)[TWO]
    bench.step(ReadRequested(1))
    assert bench.about.commit_index == 0
    assert bench.about.pending_reads == 1
    bench.matched(TWO, first)
    assert bench.about.commit_index == 1
    assert not bench.all(ReadReady), "only now the round begins"
    bench.matched(TWO, heartbeats(bench, TWO)[TWO])
    assert bench.all(ReadReady) == [ReadReady(1, 1)]


def test_a_leader_commits_an_entry_without_effect_at_the_start_of_its_term() -> None:
    """'Raft handles this by having each leader commit a blank no-op entry into the log at the start of its term'."""
    for features, first in (
        (GARLIC_FARM, configuration_entry(2, group(3))),
        (
            replace(MEMORY, first_entries=FirstEntries.NO_OP_ALONE),
            no_op_entry(2, NoOp(ONE, (ONE, TWO, THREE), (ONE, TWO))),
        ),
        (ZMQ_RAFT, no_op_entry(2, NoOp())),
    ):
        bench = Bench(1, features=features)
        bench.lead()
        (append,) = bench.appends(TWO)
        assert append.entries == (first,)


def test_a_leader_exchanges_heartbeats_with_a_majority_before_it_answers() -> None:
    """'…having the leader exchange heartbeat messages with a majority of the cluster before responding'."""
    bench = leading(voters=5)
    bench.step(ReadRequested(1))
    asked = heartbeats(bench, TWO, THREE, FOUR, FIVE)
    assert bench.matched(TWO, asked[TWO]) == [], "two of five know it"
    assert ReadReady(1, bench.about.commit_index) in bench.matched(THREE, asked[THREE])


def test_an_answer_to_a_request_sent_before_the_read_arrived_proves_nothing() -> None:
    """'…its information may be stale if a more recent leader has been elected'."""
    bench = leading()
    earlier = sent_to(bench, TWO)
    bench.step(ReadRequested(1))
    bench.matched(TWO, earlier)
    assert not bench.all(ReadReady)
    assert bench.about.pending_reads == 1


def test_what_is_sent_later_confirms_a_round_whose_own_heartbeats_are_lost() -> None:
    bench = leading()
    bench.step(ReadRequested(1))
    bench.expire()
    later = sent_to(bench, TWO)
    bench.matched(TWO, later)
    assert bench.all(ReadReady) == [ReadReady(1, 1)]


def test_reads_that_arrive_during_a_round_share_the_next() -> None:
    bench = leading()
    bench.step(ReadRequested(1))
    first = heartbeats(bench, TWO)[TWO]
    for number in range(2, 12):
        assert not [effect for effect in bench.step(ReadRequested(number)) if isinstance(effect, Send)]
    bench.matched(TWO, first)
    assert bench.all(ReadReady) == [ReadReady(1, 1)]
    second = heartbeats(bench, TWO)[TWO]
    bench.matched(TWO, second)
    assert [ready.read_id for ready in bench.all(ReadReady)] == list(range(2, 12))


def test_two_rounds_within_a_millisecond_are_told_apart() -> None:
    bench = leading()
    bench.step(ReadRequested(1))
    first = heartbeats(bench, TWO)[TWO]
    bench.step(ReadRequested(2))
    bench.matched(TWO, first)
    second = heartbeats(bench, TWO)[TWO]
    bench.matched(TWO, second)
    assert bench.all(ReadReady) == [ReadReady(2, 1)]


def test_a_read_sees_what_was_committed_when_its_round_began() -> None:
    bench = leading()
    bench.propose(b"x")
    bench.matched(TWO, heartbeats(bench, TWO)[TWO])
    bench.step(ReadRequested(1))
    bench.matched(TWO, heartbeats(bench, TWO)[TWO])
    assert bench.all(ReadReady) == [ReadReady(1, 2)]


def test_a_leader_that_is_deposed_refuses_the_reads_that_wait() -> None:
    bench = leading()
    bench.step(ReadRequested(1))
    bench.append(term=2, previous=LogId(1, 1), sender=THREE)
    refused = bench.all(ReadRefused)
    assert [read.read_id for read in refused] == [1]
    assert refused[0].reason is ReadRefusal.NOT_LEADER


def test_more_reads_than_the_limit_are_refused_as_busy() -> None:
    bench = leading(options=Options(1_000, 2_000, 100, 400, max_pending_reads=2))
    for number in (1, 2):
        bench.step(ReadRequested(number))
    assert bench.step(ReadRequested(3)) == [ReadRefused(3, ReadRefusal.BUSY, ONE)]


def test_a_single_server_answers_at_once() -> None:
    bench = Bench(voters=1)
    bench.expire()
    assert bench.is_(Role.LEADER)
    assert ReadReady(1, 1) in bench.step(ReadRequested(1))


# -- leases ------------------------------------------------------------------------------------------------------------

BOUND_MS = 300
LEASED = Options(1_000, 2_000, 100, 400, lease_clock_bound_ms=BOUND_MS)


def leased() -> Bench:
    """A leader whose lease began a moment ago."""
    bench = leading(options=LEASED)
    bench.step(ReadRequested(1))
    bench.matched(TWO, heartbeats(bench, TWO)[TWO])
    assert bench.all(ReadReady)
    return bench


def test_without_the_switch_there_is_no_lease() -> None:
    """'…but this would rely on timing for safety (it assumes bounded clock skew)'."""
    assert lan().lease_clock_bound_ms is None
    bench = leading()
    bench.step(ReadRequested(1))
    bench.matched(TWO, heartbeats(bench, TWO)[TWO])
    bench.step(ReadRequested(2))
    assert not bench.all(ReadReady)


def test_a_lease_lasts_a_minimum_election_timeout_less_the_clock_bound() -> None:
    """'Alternatively, the leader could rely on the heartbeat mechanism to provide a form of lease'."""
    bench = leased()
    assert bench.step(ReadRequested(2), after_ms=1_000 - BOUND_MS - 1) == [ReadReady(2, 1)]
    bench.step(ReadRequested(3), after_ms=1)
    assert not bench.all(ReadReady)


def test_a_lease_counts_from_when_the_round_was_asked_not_from_when_it_was_answered() -> None:
    bench = leading(options=LEASED)
    bench.step(ReadRequested(1))
    asked = heartbeats(bench, TWO)[TWO]
    bench.now += 600
    bench.matched(TWO, asked)
    assert bench.all(ReadReady)
    assert bench.step(ReadRequested(2), after_ms=1_000 - 600 - BOUND_MS - 1) == [ReadReady(2, 1)]
    bench.step(ReadRequested(3), after_ms=1)
    assert not bench.all(ReadReady)


def test_a_peer_of_another_make_which_may_vote_at_any_time_gives_no_lease() -> None:
    no_lease_with(Extensions())


@pytest.mark.parametrize("lease_ms", [None, 999], ids=["leases off", "a shorter promise"])
def test_a_peer_that_promised_no_refusal_for_as_long_gives_no_lease(lease_ms: int | None) -> None:
    no_lease_with(replace(OURS, lease_ms=lease_ms))


def no_lease_with(said: Extensions) -> None:
    """A leader asks a majority for every read, because of what one of its voters has said."""
    bench = leading(options=LEASED)
    bench.step(PeerExtensions(THREE, said))
    bench.step(ReadRequested(1))
    bench.matched(TWO, heartbeats(bench, TWO)[TWO])
    assert bench.all(ReadReady)
    bench.step(ReadRequested(2))
    assert not bench.all(ReadReady)


def test_a_voter_keeps_a_lease_over_a_restart_and_over_a_higher_term() -> None:
    bench = Bench(options=LEASED)
    assert not bench.ask(term=5).granted, "it has just started, and may have confirmed a lease before"
    assert bench.about.term == 0
    bench.now += 1_000
    assert bench.ask(term=5).granted
    bench.append(term=5)
    bench.receive(THREE, VoteReply(term=6, granted=False, correlation=1))
    assert bench.about.term == 6
    assert not bench.ask(term=7).granted, "a leader that it confirmed may hold a lease until then"


def test_a_transfer_ends_the_lease_for_the_rest_of_the_term() -> None:
    bench = leased()
    bench.step(TransferLeadership(5, TWO))
    assert any(isinstance(send.message, TimeoutNow) for send in bench.all(Send))
    (order,) = (send.message for send in bench.all(Send) if isinstance(send.message, TimeoutNow))
    bench.receive(TWO, TimeoutNowReply(1, accepted=False, correlation=order.correlation))
    assert bench.all(TransferEnded) == [TransferEnded(5, TransferOutcome.DECLINED, ONE)]
    bench.step(ReadRequested(6))
    assert not bench.all(ReadReady), "the order may still be under way to a server that will take it"


@pytest.mark.parametrize("bound_ms", [0, 1_000])
def test_a_clock_bound_that_leaves_no_lease_or_no_bound_is_refused(bound_ms: int) -> None:
    with pytest.raises(ValueError, match="clock bound"):
        Options(1_000, 2_000, 100, 400, lease_clock_bound_ms=bound_ms)


# -- handing leadership over -------------------------------------------------------------------------------------------


def order_of(bench: Bench) -> TimeoutNow:
    """The one TimeoutNow of the latest step."""
    (order,) = (send.message for send in bench.all(Send) if isinstance(send.message, TimeoutNow))
    return order


def test_a_leader_cannot_transfer_to_itself_nor_to_a_server_that_does_not_vote() -> None:
    bench = leading()
    assert bench.step(TransferLeadership(1, ONE)) == [TransferEnded(1, TransferOutcome.TO_ITSELF, ONE)]
    assert bench.step(TransferLeadership(2, FIVE)) == [TransferEnded(2, TransferOutcome.NOT_A_VOTER, ONE)]


def test_a_group_of_one_has_no_server_to_transfer_to() -> None:
    bench = Bench(voters=1)
    bench.expire()
    assert bench.step(TransferLeadership(1)) == [TransferEnded(1, TransferOutcome.NO_VOTER, ONE)]


def test_without_a_target_the_voter_that_is_caught_up_best_is_chosen() -> None:
    bench = leading()
    bench.propose(b"x")
    bench.matched(THREE, heartbeats(bench, THREE)[THREE])
    bench.step(TransferLeadership(1))
    assert bench.about.transfer_target == THREE
    order_of(bench)


def test_one_transfer_at_a_time() -> None:
    bench = leading()
    bench.step(TransferLeadership(1, TWO))
    assert bench.step(TransferLeadership(2, THREE)) == [TransferEnded(2, TransferOutcome.ANOTHER_UNDER_WAY, ONE)]


def test_what_is_proposed_meanwhile_is_held_and_resumes_when_the_transfer_fails() -> None:
    bench = leading(options=Options(1_000, 2_000, 100, 400, max_pending_proposals=2))
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


def test_the_target_campaigns_at_once_without_pre_vote_and_with_the_flag() -> None:
    bench = Bench(pre_vote=True)
    bench.append(term=1, sender=TWO)
    bench.receive(TWO, TimeoutNow(1, TWO, 77))
    assert any(send.message == TimeoutNowReply(1, accepted=True, correlation=77) for send in bench.all(Send))
    votes = [send.message for send in bench.all(Send) if isinstance(send.message, RequestVote)]
    assert [(vote.term, vote.pre_vote, vote.transfer) for vote in votes] == [(2, False, True)] * 2


@pytest.mark.parametrize(("sender", "term"), [(THREE, 1), (TWO, 0)])
def test_an_order_of_any_sender_but_the_leader_of_this_term_is_refused(sender: ServerId, term: int) -> None:
    bench = Bench(term=1)
    bench.append(term=1, sender=TWO)
    bench.receive(sender, TimeoutNow(term, sender, 77))
    assert [send.message for send in bench.all(Send)] == [TimeoutNowReply(1, accepted=False, correlation=77)]
    assert bench.is_(Role.FOLLOWER)


def test_the_flag_makes_a_voter_listen_that_hears_from_a_leader_and_the_leader_itself() -> None:
    follower = Bench()
    follower.append(term=1, sender=TWO)
    assert not follower.ask(term=2, sender=THREE).granted
    follower.receive(THREE, RequestVote(term=2, candidate=THREE, last=ORIGIN, correlation=5, transfer=True))
    assert any(isinstance(send.message, VoteReply) and send.message.granted for send in follower.all(Send))
    leader = leading()
    leader.receive(TWO, RequestVote(term=2, candidate=TWO, last=LogId(1, 1), correlation=5, transfer=True))
    assert leader.is_(Role.FOLLOWER)
    assert any(isinstance(send.message, VoteReply) and send.message.granted for send in leader.all(Send))


def test_a_late_request_with_the_flag_gets_no_vote_in_the_term_of_a_leader_that_is_known() -> None:
    """A vote for it would end the refusal of candidates on which the lease of that leader rests."""
    # Given a follower without a vote in term 2, whose leader has just spoken
    follower = Bench(options=LEASED)
    follower.append(term=2, sender=TWO)
    # When a request of that term arrives late, of another candidate or of the leader itself
    for candidate in (THREE, TWO):
        follower.receive(candidate, RequestVote(term=2, candidate=candidate, last=ORIGIN, correlation=5, transfer=True))
        assert [send.message for send in follower.all(Send)] == [VoteReply(term=2, granted=False, correlation=5)]
    # Then the leader is known as before, and no other server gets a vote within the minimum election timeout
    assert follower.about.leader == TWO
    assert not follower.ask(term=3, sender=THREE).granted


def test_a_transfer_that_another_server_wins_is_told_as_such() -> None:
    bench = leading()
    bench.step(TransferLeadership(1, TWO))
    bench.append(term=2, previous=LogId(1, 1), entries=suffix(2, 2), sender=THREE)
    assert bench.all(TransferEnded) == [TransferEnded(1, TransferOutcome.ELSEWHERE, THREE)]


def test_a_target_that_dies_after_it_took_the_order_leaves_an_unknown_outcome_within_a_bound() -> None:
    bench = leading()
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


def test_without_the_word_a_leader_abdicates_and_does_not_campaign_for_two_timeouts() -> None:
    bench = leading()
    bench.step(PeerExtensions(TWO, Extensions(pre_vote=True)))
    bench.step(TransferLeadership(1, TWO))
    assert bench.is_(Role.FOLLOWER)
    assert not [send for send in bench.all(Send) if isinstance(send.message, TimeoutNow)]
    assert bench.raft.deadline == bench.now + 2 * lan().election_timeout_max_ms
    assert bench.ask(term=2, last=LogId(1, 1)).granted


def test_a_client_that_asks_for_it_is_told_when_its_proposal_stands_in_the_log() -> None:
    """Then it need not repeat itself while it waits; what was accepted may still be lost with the leader."""
    bench = Bench(1)
    bench.lead()
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


def test_a_client_that_does_not_ask_for_it_is_told_no_more_than_the_outcome() -> None:
    bench = Bench(1)
    bench.lead()
    bench.step(Proposed(proposal_id=7, commands=(b"x",)))
    assert bench.all(ProposalAccepted) == []


def test_what_is_refused_or_held_was_not_accepted() -> None:
    """A follower refuses it; during a transfer it is held, and accepted when the transfer has failed."""
    follower = Bench(1)
    follower.step(Proposed(proposal_id=7, commands=(b"x",), report_accepted=True))
    assert follower.all(ProposalAccepted) == []
    bench = Bench(1)
    bench.lead()
    bench.step(TransferLeadership(1, TWO))
    bench.step(Proposed(proposal_id=8, commands=(b"x",), report_accepted=True))
    assert bench.all(ProposalAccepted) == []
    accepted = []
    for _ in range(25):  # the target stays behind, and the other follower answers
        bench.step(DeadlineReached(), after_ms=100)
        accepted += bench.all(ProposalAccepted)
        for append in bench.appends(THREE):
            bench.matched(THREE, append)
    assert [each.proposal_id for each in accepted] == [8]


def test_a_client_that_was_told_accepted_is_told_that_its_fate_is_open_when_the_leader_falls() -> None:
    bench = Bench(1)
    bench.lead()
    bench.step(Proposed(proposal_id=7, commands=(b"x",), report_accepted=True))
    bench.append(9, sender=THREE)
    assert bench.all(ProposalResolved) == [ProposalResolved(proposal_id=7, outcome=Outcome.UNKNOWN)]
