"""What bounds a replica: full queues, old entries read back, stale answers, strangers, absurd numbers."""

from dataclasses import replace

import pytest

from consensus.core.drops import Drop
from consensus.core.effects import Apply, Outcome, ProposalResolved, ReadEntries, Role
from consensus.core.entry_data import configuration_entry
from consensus.core.events import EntriesRead, PeerExtensions
from consensus.core.features import Extensions
from consensus.core.log import Log, RecoveredLog, TermRun, describe_entries
from consensus.core.messages import AppendEntries, AppendReply, RequestVote, VoteReply
from consensus.core.model import MAX_NUMBER, Configuration, Entry, LogId, Server
from consensus.core.options import lan
from consensus.core.replication.progress import MAX_REMEMBERED_REQUESTS, ProgressState
from tests.spec.raft_bench import THREE, TWO, Bench, entries_of, group, suffix

AT = LogId
STRANGER = 77


def test_too_many_proposals_are_refused_as_busy_and_accepted_again_after_a_commit() -> None:
    bench = Bench(options=replace(lan(), max_pending_proposals=2))
    bench.lead()
    bench.matched(TWO, bench.appends(TWO)[0])
    for number in (1, 2, 3):
        bench.propose(b"x", proposal_id=number)
    assert [(resolve.proposal_id, resolve.outcome) for resolve in bench.all(ProposalResolved)] == [(3, Outcome.BUSY)]
    append = AppendEntries(
        term=1,
        leader=1,
        previous=AT(1, 1),
        entries=suffix(2, 1),
        commit=1,
        correlation=bench.raft._replica._correlation,
    )
    assert bench.about.pending_proposals == 2
    bench.expire()
    bench.matched(TWO, replace(append, correlation=_append_in_flight(bench)), up_to=2)
    bench.propose(b"x", proposal_id=4)
    assert Outcome.BUSY not in {resolve.outcome for resolve in bench.all(ProposalResolved)}


def _append_in_flight(bench: Bench) -> int:
    """The correlation of the first append with entries to server 2 that has no answer yet."""
    progress = bench.raft._role.current.followers[TWO]  # type: ignore[union-attr] # the bench leads here
    correlations: list[int] = [number for number, sent in progress.in_flight.items() if sent.carries_entries]
    return correlations[0]


def test_too_many_bytes_are_refused_as_busy() -> None:
    bench = Bench(options=replace(lan(), max_pending_bytes=200))
    bench.lead()
    bench.propose(b"x" * 150, proposal_id=1)
    bench.propose(b"x" * 150, proposal_id=2)
    assert bench.all(ProposalResolved) == [ProposalResolved(proposal_id=2, outcome=Outcome.BUSY, leader=1)]


def test_a_proposal_that_was_not_committed_when_leadership_ends_is_of_unknown_fate() -> None:
    bench = Bench()
    bench.lead()
    bench.propose(b"x", proposal_id=8)
    bench.append(term=5, previous=AT(1, 1))
    assert bench.all(ProposalResolved) == [ProposalResolved(proposal_id=8, outcome=Outcome.UNKNOWN)]


def test_entries_that_left_the_tail_are_read_back_for_the_state_machine_in_order() -> None:
    bench = Bench(*[1] * 6, options=replace(lan(), tail_entries=2, max_entries_per_append=3))
    bench.append(term=1, previous=AT(6, 1))
    bench.append(term=1, previous=AT(6, 1), commit=6)
    (read,) = bench.all(ReadEntries)
    assert (read.first, read.last) == (1, 3)
    assert bench.all(Apply) == []
    bench.step(EntriesRead(read.request_id, 1, entries_of(1, 1)))
    assert bench.all(Apply) == [Apply(1, entries_of(1, 1))]
    (read,) = bench.all(ReadEntries)
    bench.step(EntriesRead(read.request_id, 3, suffix(3, 1, 1)))
    assert bench.all(Apply) == [Apply(3, suffix(3, 1, 1)), Apply(5, suffix(5, 1, 1))]
    assert bench.about.applied_index == 6


def test_entries_that_left_the_tail_are_read_back_for_a_follower_that_lags() -> None:
    bench = Bench(*[1] * 6, options=replace(lan(), tail_entries=2))
    bench.lead()
    bench.refused(TWO, bench.appends(TWO)[0], hint=3)
    (read,) = bench.all(ReadEntries)
    assert (read.first, bench.appends(TWO)) == (3, [])
    bench.step(EntriesRead(read.request_id, 3, suffix(3, 1, 1, 1, 1)))
    (append,) = bench.appends(TWO)
    assert (append.previous, len(append.entries)) == (AT(2, 1), 4)


def test_entries_are_read_back_once_while_the_answer_to_those_before_them_is_owed() -> None:
    """Sent as far as the window allows: entries that are dropped after the read would be read again, without end."""
    # Given a follower that lags by entries which left the tail, and has confirmed where the logs agree
    bench = Bench(*[1] * 6, options=replace(lan(), tail_entries=1, max_entries_per_append=1, in_flight=2))
    bench.lead()
    bench.refused(TWO, bench.appends(TWO)[0], hint=2)
    (read,) = bench.all(ReadEntries)
    bench.step(EntriesRead(read.request_id, 2, suffix(2, 1)))
    (probe,) = bench.appends(TWO)
    bench.matched(TWO, probe)
    for index in (3, 4):
        # When the next entries come back from storage, while it owes an answer to the ones before
        (read,) = bench.all(ReadEntries)
        assert read.first == index
        bench.step(EntriesRead(read.request_id, index, suffix(index, 1)))
        # Then they are sent
        (append,) = bench.appends(TWO)
        assert (append.previous.index, len(append.entries)) == (index - 1, 1)
    # And when the window is full nothing more is read
    assert bench.all(ReadEntries) == []


def test_a_late_answer_brings_the_retry_of_a_later_request_forward() -> None:
    """As long as a follower seems unreachable nothing is retried, so the deadline does not count what it owes."""
    # Given a follower that has not answered the first append in time, and a heartbeat that is under way to it
    bench = Bench(1, options=replace(lan(), heartbeat_ms=300, retry_ms=100))
    bench.lead()
    first, began_ms = bench.appends(TWO)[0], bench.now
    while bench.now < began_ms + 300:
        bench.expire()
    (heartbeat,) = bench.appends(TWO)
    assert not heartbeat.entries
    sent_ms = bench.now
    # When the first append is answered
    bench.now += 50
    bench.refused(TWO, first, hint=1)
    # Then the leader looks after the heartbeat when its answer is overdue, not with the next heartbeat
    assert bench.raft.deadline <= sent_ms + 100


def test_a_read_whose_range_is_gone_or_that_no_request_waits_for_changes_nothing() -> None:
    bench = Bench(*[1] * 6, options=replace(lan(), tail_entries=2))
    bench.lead()
    bench.refused(TWO, bench.appends(TWO)[0], hint=3)
    (read,) = bench.all(ReadEntries)
    bench.append(term=9, previous=AT(6, 1))
    bench.step(EntriesRead(read.request_id, 3, suffix(3, 1, 1)))
    assert bench.effects == []
    assert (Drop.UNMATCHED_ENTRIES_READ, 1) in bench.about.dropped


def test_entries_that_are_not_durable_never_leave_the_tail() -> None:
    bench = Bench(fast=False, options=replace(lan(), tail_entries=1))
    bench.append(term=1, entries=entries_of(1, 1, 1))
    assert bench.raft._replica.log.tail_first == 1
    bench.persisted(1)
    assert bench.raft._replica.log.tail_first == 3


def test_a_follower_whose_disk_is_behind_takes_no_more_than_it_can_hold() -> None:
    bench = Bench(fast=False, options=replace(lan(), tail_entries=3))
    bench.append(term=1, entries=entries_of(1, 1, 1))
    reply = bench.append(term=1, previous=AT(3, 1), entries=suffix(4, 1))
    assert (reply.success, reply.next_index) == (True, 1)
    assert bench.terms == [1, 1, 1]
    assert (Drop.APPEND_BACKLOG_FULL, 1) in bench.about.dropped


def test_a_leader_asks_such_a_follower_again_with_the_next_heartbeat_not_at_once() -> None:
    bench = Bench()
    bench.lead()
    bench.matched(TWO, bench.appends(TWO)[0], up_to=0)
    assert bench.appends(TWO) == []
    bench.expire()
    (heartbeat,) = bench.appends(TWO)
    bench.matched(TWO, heartbeat)
    (append,) = bench.appends(TWO)
    assert len(append.entries) == 1


def test_an_answer_counts_once_and_a_foreign_correlation_never() -> None:
    bench = Bench(1, voters=5)
    bench.lead()
    (append,) = bench.appends(TWO)
    bench.matched(TWO, replace(append, correlation=append.correlation + 999))
    assert bench.about.followers[0].match == 0
    bench.matched(TWO, append)
    bench.matched(TWO, append)
    assert bench.about.followers[0].match == 2
    assert (Drop.STALE_APPEND_REPLY, 2) in bench.about.dropped


def test_a_vote_counts_once_and_a_foreign_correlation_never() -> None:
    bench = Bench(voters=5)
    bench.expire()
    question = bench.raft._role.current.asked[TWO]  # type: ignore[union-attr] # the bench campaigns here
    for correlation in (question, question, question + 50):
        bench.receive(TWO, VoteReply(term=1, granted=True, correlation=correlation))
    assert bench.is_(Role.CANDIDATE)
    assert (Drop.STALE_VOTE_REPLY, 2) in bench.about.dropped


def test_an_answer_for_more_than_was_sent_is_dropped() -> None:
    bench = Bench(1)
    bench.lead()
    bench.matched(TWO, bench.appends(TWO)[0], up_to=50)
    assert bench.about.commit_index == 0
    assert (Drop.APPEND_REPLY_BEYOND_REQUEST, 1) in bench.about.dropped


def test_answers_of_strangers_change_nothing_not_even_the_term() -> None:
    bench = Bench(1)
    bench.lead()
    bench.receive(STRANGER, AppendReply(term=99, success=False, next_index=1, correlation=1))
    bench.receive(STRANGER, VoteReply(term=99, granted=False, correlation=1))
    assert (bench.about.term, bench.about.role) == (2, Role.LEADER)
    assert (Drop.REPLY_OF_NON_MEMBER, 2) in bench.about.dropped


def test_a_stranger_with_a_good_log_gets_a_vote_for_the_log_decides_not_membership() -> None:
    assert Bench(1).ask(term=2, last=AT(1, 1), sender=STRANGER).granted


@pytest.mark.parametrize("term", [-1, MAX_NUMBER + 1, 2**200])
def test_terms_out_of_range_are_never_adopted(term: int) -> None:
    bench = Bench(1)
    bench.receive(TWO, RequestVote(term=term, candidate=TWO, last=AT(1, 1), correlation=1))
    bench.receive(TWO, AppendEntries(term=term, leader=TWO, previous=AT(1, 1), entries=(), commit=0, correlation=1))
    bench.receive(TWO, VoteReply(term=term, granted=False, correlation=1))
    bench.receive(TWO, AppendReply(term=term, success=True, next_index=1, correlation=1))
    assert bench.about.term == 1
    assert bench.about.dropped == ((Drop.TERM_RANGE, 4),)


def test_at_the_highest_term_no_server_campaigns_and_nothing_breaks() -> None:
    bench = Bench(1, term=MAX_NUMBER)
    for _ in range(3):
        bench.expire()
    assert (bench.about.role, bench.about.term) == (Role.FOLLOWER, MAX_NUMBER)


@pytest.mark.parametrize(
    "voters",
    [(), (Server(1, "tcp://a"), Server(1, "tcp://b"))],
    ids=["no voter", "one server twice"],
)
def test_a_configuration_without_voters_or_with_one_twice_is_refused(voters: tuple[Server, ...]) -> None:
    bench = Bench()
    assert not bench.append(term=1, entries=[configuration_entry(1, Configuration(voters))]).success
    assert bench.about.configuration == group(3)


def test_a_configuration_takes_effect_when_appended_and_is_taken_back_when_truncated() -> None:
    bench = Bench(1)
    bench.append(term=1, previous=AT(1, 1), entries=[configuration_entry(1, group(5))])
    assert bench.about.configuration == group(5)
    bench.append(term=2, previous=AT(1, 1), entries=suffix(2, 2), sender=THREE)
    assert bench.about.configuration == group(3)


def test_requests_to_a_follower_that_never_answers_are_remembered_within_bounds() -> None:
    bench = Bench(voters=3)
    bench.lead()
    bench.matched(THREE, bench.appends(THREE)[0])
    for _ in range(1_000):
        bench.expire()
        for append in bench.appends(THREE):
            bench.matched(THREE, append)
        bench.propose(b"x")
        for append in bench.appends(THREE):
            bench.matched(THREE, append)
    two = bench.about.followers[0]
    assert two.state is ProgressState.UNREACHABLE
    assert two.in_flight <= MAX_REMEMBERED_REQUESTS


def test_a_leader_says_of_no_follower_when_it_answered_before_it_did() -> None:
    bench = Bench(voters=3)
    bench.lead()
    (append,) = bench.appends(TWO)
    assert [each.contact_ms for each in bench.about.followers] == [None, None]
    bench.matched(TWO, append)
    assert [each.contact_ms for each in bench.about.followers] == [0, None]


def test_a_late_answer_of_a_slow_follower_still_counts() -> None:
    bench = Bench(voters=3)
    bench.lead()
    (append,) = bench.appends(TWO)
    for _ in range(6):
        bench.expire()
    assert bench.about.followers[0].state is ProgressState.UNREACHABLE
    bench.matched(TWO, append)
    assert bench.about.followers[0].match == 1


def test_the_description_tells_what_the_handshake_with_each_peer_settled() -> None:
    bench = Bench(pre_vote=None)
    bench.step(PeerExtensions(TWO, Extensions(pre_vote=True, transfer=True, configurations=True)))
    bench.step(PeerExtensions(THREE, Extensions()))
    assert dict(bench.about.extensions) == {
        TWO: Extensions(pre_vote=True, transfer=True, configurations=True),
        THREE: Extensions(),
    }


def test_handshakes_of_endless_peers_are_not_all_remembered() -> None:
    bench = Bench()
    for number in range(1_000, 3_000):
        bench.step(PeerExtensions(number, Extensions(pre_vote=True)))
    assert len(bench.about.extensions) <= 256


def test_a_clock_that_goes_back_stands_still() -> None:
    bench = Bench()
    bench.now = 5_000
    bench.append(term=1)
    due = bench.raft.deadline
    bench.now = 10
    bench.append(term=1)
    assert bench.raft.deadline >= 6_000
    assert due >= 6_000


def test_a_recovered_log_may_hold_only_its_tail_in_memory() -> None:
    log = Log(
        RecoveredLog(
            runs=(TermRun(1, 1), TermRun(4, 3)), tail_first=6, tail=(Entry.command(3, b"x"),), configurations=()
        ),
        group(3),
    )
    assert log.last == AT(6, 3)
    assert [log.term_at(index) for index in range(8)] == [0, 1, 1, 1, 3, 3, 3, None]
    assert log.entries(5, 6, 1_000) is None
    log.truncate_from(3)
    assert log.last == AT(2, 1)
    assert describe_entries(entries_of(1, 1, 3)).runs == (TermRun(1, 1), TermRun(3, 3))
