"""Limits of a replica: full queues, entries read back, stale replies, peers outside the group, numbers out of range."""

import pytest
from msgspec.structs import replace

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
OUTSIDER = 77


def test_proposals_above_limit_busy_until_commit() -> None:
    bench = Bench(options=replace(lan(), max_pending_proposals=2)).lead()
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
    """Return the correlation of the first unanswered append with entries to server 2."""
    progress = bench.raft._role.current.followers[TWO]  # type: ignore[union-attr] # the bench leads here
    correlations: list[int] = [number for number, sent in progress.in_flight.items() if sent.carries_entries]
    return correlations[0]


def test_proposal_bytes_above_limit_are_busy() -> None:
    bench = Bench(options=replace(lan(), max_pending_bytes=200)).lead()
    bench.propose(b"x" * 150, proposal_id=1)
    bench.propose(b"x" * 150, proposal_id=2)
    assert bench.all(ProposalResolved) == [ProposalResolved(proposal_id=2, outcome=Outcome.BUSY, leader=1)]


def test_uncommitted_proposal_is_unknown_after_leadership() -> None:
    bench = Bench().lead()
    bench.propose(b"x", proposal_id=8)
    bench.append(term=5, previous=AT(1, 1))
    assert bench.all(ProposalResolved) == [ProposalResolved(proposal_id=8, outcome=Outcome.UNKNOWN)]


def test_trimmed_entries_read_back_in_order_to_apply() -> None:
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


def test_trimmed_entries_read_back_for_lagging_follower() -> None:
    bench = Bench(*[1] * 6, options=replace(lan(), tail_entries=2)).lead()
    bench.refused(TWO, bench.appends(TWO)[0], hint=3)
    (read,) = bench.all(ReadEntries)
    assert (read.first, bench.appends(TWO)) == (3, [])
    bench.step(EntriesRead(read.request_id, 3, suffix(3, 1, 1, 1, 1)))
    (append,) = bench.appends(TWO)
    assert (append.previous, len(append.entries)) == (AT(2, 1), 4)


def test_entries_read_back_once_while_reply_is_pending() -> None:
    """The leader sends the read entries, up to the window, although a reply is pending.

    Otherwise it would drop these entries, and read them again in an endless loop.
    """
    # Given a follower that lacks trimmed entries, and has confirmed the last common position
    bench = Bench(*[1] * 6, options=replace(lan(), tail_entries=1, max_entries_per_append=1, in_flight=2)).lead()
    bench.refused(TWO, bench.appends(TWO)[0], hint=2)
    (read,) = bench.all(ReadEntries)
    bench.step(EntriesRead(read.request_id, 2, suffix(2, 1)))
    (probe,) = bench.appends(TWO)
    bench.matched(TWO, probe)
    for index in (3, 4):
        # When the next entries arrive from storage, while the reply to the previous ones is pending
        (read,) = bench.all(ReadEntries)
        assert read.first == index
        bench.step(EntriesRead(read.request_id, index, suffix(index, 1)))
        # Then they are sent
        (append,) = bench.appends(TWO)
        assert (append.previous.index, len(append.entries)) == (index - 1, 1)
    # And when the window is full, the leader reads no more entries
    assert bench.all(ReadEntries) == []


def test_late_reply_advances_retry_of_later_request() -> None:
    """While a follower appears unreachable, the leader does not retry, and the deadline ignores pending replies."""
    # Given a follower without a timely reply to the first append, and a heartbeat in transfer to it
    bench = Bench(1, options=replace(lan(), heartbeat_ms=300, retry_ms=100)).lead()
    first, began_ms = bench.appends(TWO)[0], bench.now
    while bench.now < began_ms + 300:
        bench.expire()
    (heartbeat,) = bench.appends(TWO)
    assert not heartbeat.entries
    sent_ms = bench.now
    # When the follower replies to the first append
    bench.now += 50
    bench.refused(TWO, first, hint=1)
    # Then the leader's next deadline is the overdue reply to the heartbeat, not the next heartbeat
    assert bench.raft.deadline <= sent_ms + 100


def test_unmatched_entries_read_dropped() -> None:
    bench = Bench(*[1] * 6, options=replace(lan(), tail_entries=2)).lead()
    bench.refused(TWO, bench.appends(TWO)[0], hint=3)
    (read,) = bench.all(ReadEntries)
    bench.append(term=9, previous=AT(6, 1))
    bench.step(EntriesRead(read.request_id, 3, suffix(3, 1, 1)))
    assert bench.effects == []
    assert (Drop.UNMATCHED_ENTRIES_READ, 1) in bench.about.dropped


def test_entries_not_durable_stay_in_tail() -> None:
    bench = Bench(fast=False, options=replace(lan(), tail_entries=1))
    bench.append(term=1, entries=entries_of(1, 1, 1))
    assert bench.raft._replica.log.tail_first == 1
    bench.persisted(1)
    assert bench.raft._replica.log.tail_first == 3


def test_follower_with_slow_disk_limits_backlog() -> None:
    bench = Bench(fast=False, options=replace(lan(), tail_entries=3))
    bench.append(term=1, entries=entries_of(1, 1, 1))
    reply = bench.append(term=1, previous=AT(3, 1), entries=suffix(4, 1))
    assert (reply.success, reply.next_index) == (True, 1)
    assert bench.terms == [1, 1, 1]
    assert (Drop.APPEND_BACKLOG_FULL, 1) in bench.about.dropped


def test_follower_with_backlog_retried_by_heartbeat() -> None:
    bench = Bench().lead()
    bench.matched(TWO, bench.appends(TWO)[0], up_to=0)
    assert bench.appends(TWO) == []
    bench.expire()
    (heartbeat,) = bench.appends(TWO)
    bench.matched(TWO, heartbeat)
    (append,) = bench.appends(TWO)
    assert len(append.entries) == 1


def test_append_reply_counts_once_by_correlation() -> None:
    bench = Bench(1, voters=5).lead()
    (append,) = bench.appends(TWO)
    bench.matched(TWO, replace(append, correlation=append.correlation + 999))
    assert bench.about.followers[0].match == 0
    bench.matched(TWO, append)
    bench.matched(TWO, append)
    assert bench.about.followers[0].match == 2
    assert (Drop.STALE_APPEND_REPLY, 2) in bench.about.dropped


def test_vote_counts_once_by_correlation() -> None:
    bench = Bench(voters=5).expired()
    request = bench.raft._role.current.correlations[TWO]  # type: ignore[union-attr] # the bench campaigns here
    for correlation in (request, request, request + 50):
        bench.receive(TWO, VoteReply(term=1, granted=True, correlation=correlation))
    assert bench.is_(Role.CANDIDATE)
    assert (Drop.STALE_VOTE_REPLY, 2) in bench.about.dropped


def test_reply_beyond_request_dropped() -> None:
    bench = Bench(1).lead()
    bench.matched(TWO, bench.appends(TWO)[0], up_to=50)
    assert bench.about.commit_index == 0
    assert (Drop.APPEND_REPLY_BEYOND_REQUEST, 1) in bench.about.dropped


def test_replies_of_outsiders_do_not_change_term() -> None:
    bench = Bench(1).lead()
    bench.receive(OUTSIDER, AppendReply(term=99, success=False, next_index=1, correlation=1))
    bench.receive(OUTSIDER, VoteReply(term=99, granted=False, correlation=1))
    assert (bench.about.term, bench.about.role) == (2, Role.LEADER)
    assert (Drop.REPLY_OF_NON_MEMBER, 2) in bench.about.dropped


def test_outsider_with_current_log_gets_vote() -> None:
    """A vote depends on the log, not on membership."""
    assert Bench(1).request_vote(term=2, last=AT(1, 1), sender=OUTSIDER).granted


@pytest.mark.parametrize("term", [-1, MAX_NUMBER + 1, 2**200])
def test_terms_out_of_range_never_adopted(term: int) -> None:
    bench = Bench(1)
    bench.receive(TWO, RequestVote(term=term, candidate=TWO, last=AT(1, 1), correlation=1))
    bench.receive(TWO, AppendEntries(term=term, leader=TWO, previous=AT(1, 1), entries=(), commit=0, correlation=1))
    bench.receive(TWO, VoteReply(term=term, granted=False, correlation=1))
    bench.receive(TWO, AppendReply(term=term, success=True, next_index=1, correlation=1))
    assert bench.about.term == 1
    assert bench.about.dropped == ((Drop.TERM_RANGE, 4),)


@pytest.mark.parametrize("voters", [(), (Server(1, "tcp://a"), Server(1, "tcp://b"))], ids=["no voter", "duplicate"])
def test_configuration_without_valid_voters_refused(voters: tuple[Server, ...]) -> None:
    bench = Bench()
    assert not bench.append(term=1, entries=[configuration_entry(1, Configuration(voters))]).success
    assert bench.about.configuration == group(3)


def test_configuration_takes_effect_until_truncated() -> None:
    """After a truncation, the latest configuration in the log is the previous one."""
    bench = Bench(1)
    bench.append(term=1, previous=AT(1, 1), entries=[configuration_entry(1, group(5))])
    assert bench.about.configuration == group(5)
    bench.append(term=2, previous=AT(1, 1), entries=suffix(2, 2), sender=THREE)
    assert bench.about.configuration == group(3)


def test_requests_to_unresponsive_follower_are_bounded() -> None:
    bench = Bench(voters=3).lead()
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


def test_contact_time_unknown_before_first_reply() -> None:
    bench = Bench(voters=3).lead()
    (append,) = bench.appends(TWO)
    assert [each.contact_ms for each in bench.about.followers] == [None, None]
    bench.matched(TWO, append)
    assert [each.contact_ms for each in bench.about.followers] == [0, None]


def test_late_reply_of_slow_follower_counts() -> None:
    bench = Bench(voters=3).lead()
    (append,) = bench.appends(TWO)
    for _ in range(6):
        bench.expire()
    assert bench.about.followers[0].state is ProgressState.UNREACHABLE
    bench.matched(TWO, append)
    assert bench.about.followers[0].match == 1


def test_description_has_extensions_of_peers() -> None:
    bench = Bench(pre_vote=None)
    bench.step(PeerExtensions(TWO, Extensions(pre_vote=True, transfer=True, configurations=True)))
    bench.step(PeerExtensions(THREE, Extensions()))
    assert dict(bench.about.extensions) == {
        TWO: Extensions(pre_vote=True, transfer=True, configurations=True),
        THREE: Extensions(),
    }


def test_stored_handshakes_are_bounded() -> None:
    bench = Bench()
    for number in range(1_000, 3_000):
        bench.step(PeerExtensions(number, Extensions(pre_vote=True)))
    assert len(bench.about.extensions) <= 256


def test_clock_going_back_is_ignored() -> None:
    bench = Bench()
    bench.now = 5_000
    bench.append(term=1)
    due = bench.raft.deadline
    bench.now = 10
    bench.append(term=1)
    assert bench.raft.deadline >= 6_000
    assert due >= 6_000


def test_recovered_log_may_have_only_tail_in_memory() -> None:
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
