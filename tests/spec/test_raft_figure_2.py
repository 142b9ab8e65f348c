"""Raft figure 2, sentence by sentence: state, two RPCs, rules for servers.

Each test quotes its sentence, or states what follows from it.
"""

import pytest
from msgspec.structs import replace

from consensus.core.effects import Apply, Outcome, Persist, ProposalResolved, Role, Send
from consensus.core.messages import AppendEntries, AppendReply, RequestVote, VoteReply
from consensus.core.model import ORIGIN, HardState, LogId
from consensus.core.options import lan
from tests.effort import each_case
from tests.spec.raft_bench import FIVE, FOUR, ONE, THREE, TWO, Bench, entries_of, suffix

AT = LogId


# State


def test_term_and_vote_are_durable_before_response() -> None:
    """Persistent state on all servers: (Updated on stable storage before responding to RPCs)."""
    bench = Bench(fast=False)
    bench.request_vote(term=1)
    (persist,) = bench.all(Persist)
    (reply,) = bench.all(Send)
    assert persist.hard_state == HardState(1, TWO)
    assert reply.after == persist.number


def test_entries_are_durable_before_reported_success() -> None:
    """Persistent state on all servers: log[] (Updated on stable storage before responding to RPCs)."""
    bench = Bench(fast=False)
    bench.append(term=1, entries=entries_of(1, 1))
    (persist,) = bench.all(Persist)
    (reply,) = bench.all(Send)
    assert persist.entries == entries_of(1, 1)
    assert reply.after == persist.number


def test_current_term_starts_at_zero_and_only_increases() -> None:
    """currentTerm: latest term server has seen (initialized to 0 on first boot, increases monotonically)."""
    bench = Bench()
    assert bench.about.term == 0
    bench.append(term=5)
    bench.append(term=3)
    assert bench.about.term == 5


def test_commit_index_starts_at_zero_with_recovered_log() -> None:
    """State: commitIndex, lastApplied: (initialized to 0, increases monotonically)."""
    bench = Bench(1, 1, 2)
    assert (bench.about.commit_index, bench.about.applied_index) == (0, 0)
    bench.append(term=2, previous=AT(3, 2), commit=3)
    bench.append(term=2, previous=AT(3, 2), commit=1)
    assert (bench.about.commit_index, bench.about.applied_index) == (3, 3)


# AppendEntries RPC, receiver implementation


def test_append_of_older_term_is_refused_with_current_term() -> None:
    """1. Reply false if term < currentTerm.

    Quote: "It would have rejected the AppendEntries request (its current term would have been higher than T)".
    """
    bench = Bench(1, term=4)
    reply = bench.append(term=3, previous=AT(1, 1), entries=suffix(2, 3))
    assert (reply.success, reply.term) == (False, 4)
    assert bench.terms == [1]


@pytest.mark.parametrize("previous", [AT(3, 2), AT(2, 2), AT(9, 1)])
def test_append_whose_previous_entry_is_missing_is_refused(previous: LogId) -> None:
    """2. Reply false if log doesn't contain an entry at prevLogIndex whose term matches prevLogTerm."""
    bench = Bench(1, 1, term=3)
    assert not bench.append(term=3, previous=previous, entries=suffix(previous.index + 1, 3)).success
    assert bench.terms == [1, 1]


def test_conflicting_entry_and_later_entries_are_deleted() -> None:
    """3. If an existing entry conflicts with a new one, delete the existing entry and all that follow it.

    Quote: "Leaders never remove entries, and followers only remove entries if they conflict with the leader".
    """
    bench = Bench(1, 1, 2, 2, 2)
    assert bench.append(term=3, previous=AT(2, 1), entries=suffix(3, 3)).success
    (persist,) = bench.all(Persist)
    assert (persist.truncate_from, persist.first) == (3, 3)
    assert bench.terms == [1, 1, 3]


def test_known_entries_are_not_appended_again() -> None:
    """4. Append any new entries not already in the log."""
    bench = Bench(1, 1, 2)
    bench.append(term=2, previous=AT(1, 1), entries=suffix(2, 1, 2, 2))
    (persist,) = bench.all(Persist)
    assert (persist.first, persist.entries) == (4, suffix(4, 2))


def test_append_of_log_prefix_does_not_truncate_log() -> None:
    """3 and 4: an append without a conflict may be a delayed one, so the follower does not delete later entries.

    Quote: "… after completing an RPC but before responding, then it will receive the same RPC again …".
    """
    bench = Bench(1, 1, 2, 2)
    reply = bench.append(term=2, previous=ORIGIN, entries=entries_of(1, 1))
    assert (reply.success, reply.next_index) == (True, 3)
    assert bench.all(Persist) == []
    assert bench.terms == [1, 1, 2, 2]


def test_commit_index_is_at_most_last_new_entry() -> None:
    """5. If leaderCommit > commitIndex, set commitIndex = min(leaderCommit, index of last new entry)."""
    bench = Bench(1, 1, 2, 2)
    bench.append(term=3, previous=AT(1, 1), entries=suffix(2, 1), commit=4)
    assert bench.about.commit_index == 2


# RequestVote RPC, receiver implementation


@each_case(
    ("own", "candidate", "granted"),
    [
        ((), ORIGIN, True),
        ((1,), ORIGIN, False),
        ((), AT(1, 1), True),
        ((1, 1), AT(2, 1), True),
        ((1, 1), AT(1, 1), False),
        ((1, 1), AT(3, 1), True),
        ((1, 2), AT(5, 1), False),
        ((1, 1, 1), AT(1, 2), True),
        ((1, 1, 2), AT(2, 2), False),
        ((1, 2, 2), AT(3, 3), True),
    ],
)
def test_later_last_term_wins_then_longer_log(
    own: tuple[int, ...],
    candidate: LogId,
    granted: bool,  # noqa: FBT001 - a column of the table
) -> None:
    """2. ... candidate's log is at least as up-to-date as receiver's log (section 5.4.1).

    Quote: "the voter denies its vote if its own log is more up-to-date than that of the candidate".

    Quote: "… last entries with different terms, then the log with the later term is more up-to-date".

    Quote: "If the logs end with the same term, then whichever log is longer is more up-to-date".
    """
    assert Bench(*own).request_vote(term=9, last=candidate).granted is granted


# Rules for all servers


def test_committed_entries_are_applied_in_order_and_once() -> None:
    """If commitIndex > lastApplied: increment lastApplied, apply log[lastApplied] to state machine.

    Quote: "Raft requires servers to apply entries in log index order".
    """
    bench = Bench(1, 1, 1)
    bench.append(term=1, previous=AT(3, 1), commit=2)
    assert bench.all(Apply) == [Apply(1, entries_of(1, 1))]
    bench.append(term=1, previous=AT(3, 1), commit=3)
    assert bench.all(Apply) == [Apply(3, suffix(3, 1))]
    bench.append(term=1, previous=AT(3, 1), commit=3)
    assert bench.all(Apply) == []


def test_request_of_higher_term_makes_follower() -> None:
    """If RPC request or response contains term T > currentTerm: set currentTerm = T, convert to follower."""
    bench = Bench(1).lead()
    bench.append(term=7, previous=AT(1, 1))
    assert (bench.about.role, bench.about.term, bench.about.leader) == (Role.FOLLOWER, 7, TWO)


# Rules for followers


def test_follower_without_appends_becomes_candidate() -> None:
    """If election timeout elapses without receiving AppendEntries RPC or granting vote: convert to candidate."""
    bench = Bench().expired()
    assert bench.is_(Role.CANDIDATE)


def test_append_of_current_leader_resets_election_timer() -> None:
    """If election timeout elapses without receiving AppendEntries RPC from current leader ..."""
    bench = Bench()
    bench.now = bench.raft.deadline - 1
    bench.append(term=1)
    assert bench.raft.deadline >= bench.now + lan().election_timeout_min_ms


def test_only_granted_vote_resets_election_timer() -> None:
    """... or granting vote to candidate: convert to candidate."""
    bench = Bench(1, 1)
    bench.now = bench.raft.deadline - 1
    due = bench.raft.deadline
    bench.request_vote(term=2, last=ORIGIN)
    assert bench.raft.deadline == due
    bench.request_vote(term=3, last=AT(2, 1))
    assert bench.raft.deadline >= bench.now + lan().election_timeout_min_ms


# Rules for candidates


def test_candidate_sends_vote_requests_in_a_new_term() -> None:
    """Increment currentTerm, vote for self, reset election timer, send RequestVote RPCs to all other servers."""
    bench = Bench(1, voters=5, fast=False).expired()
    (persist,) = bench.all(Persist)
    assert persist.hard_state == HardState(2, ONE)
    questions = {send.recipient: send for send in bench.all(Send)}
    assert set(questions) == {TWO, THREE, FOUR, FIVE}
    for send in questions.values():
        assert isinstance(send.message, RequestVote)
        assert (send.message.term, send.message.last, send.after) == (2, AT(1, 1), persist.number)
    assert bench.raft.deadline >= bench.now + lan().election_timeout_min_ms


def test_votes_of_a_majority_make_a_leader() -> None:
    """If votes received from majority of servers: become leader."""
    bench = Bench(voters=5).expired()
    questions = list(bench.effects)
    bench.grant(TWO)
    assert bench.is_(Role.CANDIDATE)
    bench.effects = questions
    bench.grant(THREE)
    assert bench.is_(Role.LEADER)


def test_own_vote_counts_only_when_durable() -> None:
    """Persistent state: votedFor. A candidate counts its vote for itself only after it is durable."""
    bench = Bench(voters=3, fast=False).expired()
    (persist,) = bench.all(Persist)
    bench.grant(TWO)
    assert bench.is_(Role.CANDIDATE)
    bench.persisted(persist.number)
    assert bench.is_(Role.LEADER)


def test_append_of_new_leader_makes_candidate_follower() -> None:
    """If AppendEntries RPC received from new leader: convert to follower."""
    bench = Bench().expired()
    bench.append(term=1)
    assert (bench.about.role, bench.about.leader, bench.about.term) == (Role.FOLLOWER, TWO, 1)


def test_candidate_after_timeout_starts_new_election() -> None:
    """If election timeout elapses: start new election."""
    bench = Bench().expired()
    bench.expire()
    assert (bench.about.role, bench.about.term) == (Role.CANDIDATE, 2)


# Rules for leaders


def test_new_leader_sends_heartbeats_immediately() -> None:
    """Upon election: send initial empty AppendEntries RPCs (heartbeat) to each server."""
    bench = Bench(voters=5).lead()
    assert all(len(bench.appends(peer)) == 1 for peer in (TWO, THREE, FOUR, FIVE))


def test_heartbeats_repeat_during_idle_periods() -> None:
    """... repeat during idle periods to prevent election timeouts."""
    bench = Bench().lead()
    began = bench.now
    bench.expire()
    assert bench.now - began <= lan().heartbeat_ms
    assert bench.appends(TWO)
    assert bench.appends(THREE)


def test_command_is_resolved_after_commit() -> None:
    """If command received from client: append entry to local log, respond after entry applied to state machine."""
    bench = Bench().lead()
    (first,) = bench.appends(TWO)
    bench.matched(TWO, first)
    bench.propose(b"x", proposal_id=7)
    assert bench.all(ProposalResolved) == []
    (append,) = bench.appends(TWO)
    bench.matched(TWO, append)
    assert bench.all(ProposalResolved) == [
        ProposalResolved(proposal_id=7, outcome=Outcome.COMMITTED, position=AT(2, 1), leader=ONE)
    ]
    assert [effect.first for effect in bench.all(Apply)] == [2]


def test_leader_sends_entries_from_next_index_on() -> None:
    """If last log index >= nextIndex for a follower: send AppendEntries RPC with log entries starting at nextIndex.

    Quote: "… before committing an entry, future leaders will attempt to finish replicating the entry".

    Log entries retain their original term numbers when a leader replicates entries from previous terms.
    """
    bench = Bench(1, 1, 2).lead()
    (append,) = bench.appends(TWO)
    bench.refused(TWO, append, hint=2)
    (again,) = bench.appends(TWO)
    assert again.previous == AT(1, 1)
    assert [entry.term for entry in again.entries] == [1, 2, 3]


def test_success_updates_next_and_match_index() -> None:
    """If successful: update nextIndex and matchIndex for follower (section 5.3)."""
    bench = Bench(1).lead()
    bench.matched(TWO, bench.appends(TWO)[0])
    two = bench.about.followers[0]
    assert (two.server_id, two.match, two.next) == (TWO, 2, 3)


def test_inconsistency_decrements_next_index_and_retries() -> None:
    """If AppendEntries fails because of log inconsistency: decrement nextIndex and retry (section 5.3)."""
    bench = Bench(1, 1, 2).lead()
    (append,) = bench.appends(TWO)
    # A useless hint makes the leader go back by one entry.
    bench.refused(TWO, append, hint=99)
    (again,) = bench.appends(TWO)
    assert again.previous == AT(2, 1)


def test_entry_of_current_term_commits_on_majority() -> None:
    """If there exists an N > commitIndex, a majority of matchIndex[i] >= N, and log[N].term == currentTerm."""
    bench = Bench(1, 1, voters=5).lead()
    (to_two,), (to_three,) = bench.appends(TWO), bench.appends(THREE)
    bench.matched(TWO, to_two)
    assert bench.about.commit_index == 0
    bench.matched(THREE, to_three)
    assert bench.about.commit_index == 3


def test_entries_of_older_terms_do_not_commit_by_counting() -> None:
    """... and log[N].term == currentTerm: set commitIndex = N (sections 5.3, 5.4).

    Quote: "… cannot immediately conclude that an entry from a previous term is committed …".
    """
    options = replace(lan(), max_entries_per_append=1, in_flight=1)
    bench = Bench(1, 1, 2, options=options).lead()
    (append,) = bench.appends(TWO)
    bench.refused(TWO, append, hint=1)
    commits = []
    for _ in range(4):
        (append, *_) = bench.appends(TWO)
        bench.matched(TWO, append)
        commits.append(bench.about.commit_index)
    assert commits == [0, 0, 0, 4]


def test_invalid_request_gets_exactly_one_reply() -> None:
    """Replies are sent in the order of the requests, so a request without a reply would stall its connection."""
    bench = Bench(1)
    for message in (
        RequestVote(term=2**80, candidate=TWO, last=AT(1, 1), correlation=5),
        RequestVote(term=3, candidate=THREE, last=AT(1, 1), correlation=5),
        RequestVote(term=3, candidate=TWO, last=AT(-1, 1), correlation=5),
        AppendEntries(term=2**80, leader=TWO, previous=AT(1, 1), entries=(), commit=0, correlation=5),
        AppendEntries(term=3, leader=THREE, previous=AT(1, 1), entries=(), commit=0, correlation=5),
        AppendEntries(term=3, leader=TWO, previous=AT(-4, 1), entries=(), commit=0, correlation=5),
        AppendEntries(term=3, leader=TWO, previous=AT(1, 9), entries=(), commit=0, correlation=5),
        AppendEntries(term=3, leader=TWO, previous=AT(1, 1), entries=suffix(2, 4), commit=0, correlation=5),
        AppendEntries(term=3, leader=TWO, previous=AT(1, 1), entries=(), commit=-1, correlation=5),
    ):
        bench.receive(TWO, message)
        (answer,) = bench.all(Send)
        assert isinstance(answer.message, VoteReply | AppendReply)
        assert answer.message.correlation == 5
        assert answer.message.term == 1
    assert bench.about.term == 1
    assert sum(count for _, count in bench.about.dropped) == 9
