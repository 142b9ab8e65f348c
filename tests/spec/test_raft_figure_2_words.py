"""Raft figures 2 and 13: each item of the state, and each argument and result of the RPCs.

`test_raft_figure_2.py` and `test_raft_section_7.py` test the rules of receivers and roles.
"""

from msgspec.structs import replace

from consensus.core.drops import Drop
from consensus.core.effects import Persist, ReadSnapshot, Role, Send
from consensus.core.events import SnapshotRead, SnapshotTaken, SnapshotWanted
from consensus.core.messages import AppendEntries, AppendReply, InstallSnapshot, RequestVote, SnapshotReply, VoteReply
from consensus.core.model import ORIGIN, Entry, LogId, SnapshotDescription
from consensus.core.options import lan
from tests.spec.raft_bench import THREE, TWO, Bench, entries_of, group, suffix

AT = LogId


# -- state -------------------------------------------------------------------------------------------------------------


def test_server_before_vote_has_null_vote() -> None:
    """votedFor: candidateId that received vote in current term (or null if none)."""
    bench = Bench(fast=False)
    bench.append(term=4)
    (persist,) = bench.all(Persist)
    assert persist.hard_state is not None
    assert (persist.hard_state.term, persist.hard_state.voted_for) == (4, None)
    bench = Bench(fast=False)
    bench.request_vote(4, AT(9, 3))
    hard_states = [persist.hard_state for persist in bench.all(Persist)]
    assert [(hard_state.term, hard_state.voted_for) for hard_state in hard_states if hard_state is not None] == [
        (4, TWO)
    ]


def test_higher_term_clears_vote() -> None:
    """votedFor: candidateId that received vote in current term."""
    bench = Bench(term=3, voted_for=THREE)
    assert bench.request_vote(4, AT(9, 3), TWO).granted


def test_entry_has_command_and_term_of_leader() -> None:
    """log[]: each entry contains command for state machine, and term when entry was received by leader."""
    bench = Bench(1, term=6).lead()
    bench.propose(b"x")
    entries = [entry for persist in bench.all(Persist) for entry in persist.entries]
    assert entries == [Entry.command(7, b"x")]


def test_first_index_is_one() -> None:
    """log[]: log entries (first index is 1)."""
    bench = Bench(fast=False)
    bench.append(term=1, previous=ORIGIN, entries=entries_of(1))
    (persist,) = bench.all(Persist)
    assert persist.first == 1
    assert bench.about.last == AT(1, 1)


def test_older_reply_does_not_lower_match_index() -> None:
    """matchIndex[]: highest log entry known to be replicated on server (initialized to 0, increases monotonically)."""
    bench = Bench(options=replace(lan(), max_entries_per_append=1)).lead()
    (first,) = bench.appends(TWO)
    bench.matched(TWO, first)
    bench.propose(b"x")
    (second,) = bench.appends(TWO)
    bench.propose(b"y", proposal_id=2)
    (third,) = bench.appends(TWO)
    bench.matched(TWO, third)
    assert bench.about.followers[0].match == 3
    bench.matched(TWO, second)
    assert bench.about.followers[0].match == 3


def test_next_and_match_index_are_reinitialized_after_election() -> None:
    """Volatile state on leaders: (Reinitialized after election).

    nextIndex[] (initialized to leader last log index + 1); matchIndex[] (initialized to 0).
    """
    bench = Bench(1, 1).lead()
    bench.matched(TWO, bench.appends(TWO)[0])
    assert bench.about.followers[0].match == 3
    bench.append(term=9, previous=AT(3, 2), sender=TWO)
    assert bench.is_(Role.FOLLOWER)
    bench.lead()
    assert [(peer.match, peer.next) for peer in bench.about.followers] == [(0, 4), (0, 4)]


# -- AppendEntries RPC -------------------------------------------------------------------------------------------------


def test_append_contains_arguments_of_rpc() -> None:
    """Arguments: term, leaderId, prevLogIndex, prevLogTerm, entries[], leaderCommit.

    prevLogIndex: index of log entry immediately preceding new ones; prevLogTerm: term of prevLogIndex entry;
    leaderCommit: leader's commitIndex.
    """
    bench = Bench(1, 2).lead()
    bench.matched(TWO, bench.appends(TWO)[0])
    bench.propose(b"x")
    (append,) = bench.appends(TWO)
    assert append == AppendEntries(
        term=3,
        leader=bench.about.server_id,
        previous=AT(3, 3),
        entries=(Entry.command(3, b"x"),),
        commit=3,
        correlation=append.correlation,
    )


def test_append_contains_all_entries_and_heartbeat_none() -> None:
    """entries[]: log entries to store (empty for heartbeat; may send more than one for efficiency)."""
    bench = Bench(1, 1, 1).lead()
    (append,) = bench.appends(TWO)
    bench.refused(TWO, append, hint=1)
    (batch,) = bench.appends(TWO)
    assert len(batch.entries) == 4
    bench.matched(TWO, batch)
    bench.expire()
    assert [heartbeat.entries for heartbeat in bench.appends(TWO)] == [()]


def test_append_reply_contains_term_and_success() -> None:
    """Results: term: currentTerm, for leader to update itself; success.

    success: true if follower contained entry matching prevLogIndex and prevLogTerm.

    If RPC request or response contains term T > currentTerm: set currentTerm = T, convert to follower.
    """
    bench = Bench(1, term=2)
    assert bench.append(term=2, previous=AT(1, 1)).success
    assert not bench.append(term=2, previous=AT(1, 2)).success
    assert bench.append(term=1).term == 2
    leader = Bench(1).lead()
    leader.receive(TWO, AppendReply(term=5, success=False, next_index=1, correlation=1))
    assert (leader.about.role, leader.about.term) == (Role.FOLLOWER, 5)


# -- RequestVote RPC ---------------------------------------------------------------------------------------------------


def test_vote_request_contains_term_candidate_and_last_entry() -> None:
    """Arguments: term, candidateId, lastLogIndex: index of candidate's last log entry, lastLogTerm: term of it."""
    bench = Bench(1, 1, 4).expired()
    requests = [send.message for send in bench.all(Send) if isinstance(send.message, RequestVote)]
    assert {(request.term, request.candidate, request.last) for request in requests} == {
        (5, bench.about.server_id, AT(3, 4))
    }


def test_vote_reply_contains_term_and_grant() -> None:
    """Results: term: currentTerm, for candidate to update itself; voteGranted: true means candidate received vote.

    1. Reply false if term < currentTerm.
    """
    bench = Bench(1, 1, term=7)
    refusal = bench.request_vote(3, AT(2, 1))
    assert (refusal.term, refusal.granted) == (7, False)
    vote = bench.request_vote(8, AT(2, 1))
    assert (vote.term, vote.granted) == (8, True)
    candidate = Bench(1).expired()
    candidate.receive(TWO, VoteReply(term=9, granted=False, correlation=1))
    assert (candidate.about.role, candidate.about.term) == (Role.FOLLOWER, 9)


# -- InstallSnapshot RPC (figure 13) -----------------------------------------------------------------------------------


def test_snapshot_chunk_contains_arguments_of_rpc() -> None:
    """Arguments: term, leaderId, lastIncludedIndex, lastIncludedTerm, offset, data[], done.

    lastIncludedIndex: the snapshot replaces all entries up through and including this index; offset: byte offset where
    chunk is positioned in the snapshot file; data[]: raw bytes of the snapshot chunk, starting at offset; done: true if
    this is the last chunk.
    """
    bench = Bench(1, 1, 2, term=2).lead()
    (to_two,), (to_three,) = bench.appends(TWO), bench.appends(THREE)
    bench.matched(THREE, to_three)
    bench.step(SnapshotWanted(3))
    bench.step(SnapshotTaken(SnapshotDescription(AT(3, 2), group(3), 4, 0), 4))
    bench.refused(TWO, to_two, hint=1)
    (read,) = bench.all(ReadSnapshot)
    bench.step(SnapshotRead(request_id=read.request_id, last=AT(3, 2), offset=0, data=b"abcd", done=True))
    (chunk,) = (send.message for send in bench.all(Send) if isinstance(send.message, InstallSnapshot))
    leader = bench.about.server_id
    assert chunk == InstallSnapshot(
        term=3,
        leader=leader,
        last=AT(3, 2),
        configuration=group(3),
        offset=0,
        data=b"abcd",
        done=True,
        correlation=chunk.correlation,
    )


def test_snapshot_reply_contains_term() -> None:
    """Results: term: currentTerm, for leader to update itself."""
    bench = Bench(1, term=9)
    (reply,) = bench.chunk(AT(5, 2), term=8)
    assert (reply.term, reply.correlation) == (9, bench.correlation)
    leader = Bench(1).lead()
    leader.receive(TWO, SnapshotReply(term=5, accepted=False, next_offset=0, installed=False, correlation=1))
    assert (leader.about.role, leader.about.term) == (Role.FOLLOWER, 5)


# -- figure 3: what is true at all times -------------------------------------------------------------------------------


def test_append_of_second_leader_in_term_is_refused() -> None:
    """Election Safety: at most one leader can be elected in a given term."""
    bench = Bench(1)
    bench.append(term=2, previous=AT(1, 1), sender=TWO)
    assert not bench.append(term=2, previous=AT(1, 1), entries=suffix(2, 2), sender=THREE).success
    assert bench.terms == [1]
    assert dict(bench.about.dropped) == {Drop.SECOND_LEADER_APPEND: 1}
