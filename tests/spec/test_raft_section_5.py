"""Sentences of Raft section 5, without figure 2. Other files test section 5.4 and disruptive servers."""

import pytest
from msgspec.structs import replace

from consensus.core.drops import Drop
from consensus.core.effects import Outcome, Persist, ProposalResolved, Role, Send
from consensus.core.entry_data import configuration_in
from consensus.core.events import DeadlineReached
from consensus.core.messages import RequestVote
from consensus.core.model import ORIGIN, HardState, LogId, ServerId
from consensus.core.options import Options, lan, local
from tests.spec.raft_bench import FIVE, FOUR, ONE, THREE, TWO, Bench, entries_of, group, suffix

AT = LogId


# 5.1 basics


def test_server_starts_as_follower() -> None:
    """Quote: "When servers start up, they begin as followers"."""
    assert Bench(1, 2, term=4, voted_for=ONE).is_(Role.FOLLOWER)


def test_follower_names_leader_to_clients() -> None:
    """Quote: "if a client contacts a follower, the follower redirects it to the leader".

    leaderId: so follower can redirect clients.
    """
    bench = Bench()
    bench.propose(b"x", proposal_id=3)
    assert bench.all(ProposalResolved) == [ProposalResolved(proposal_id=3, outcome=Outcome.NOT_LEADER)]
    bench.append(term=1, sender=THREE)
    bench.propose(b"x", proposal_id=4)
    assert bench.all(ProposalResolved) == [ProposalResolved(proposal_id=4, outcome=Outcome.NOT_LEADER, leader=THREE)]


def test_split_vote_ends_term_without_leader() -> None:
    """Quote: "… a split vote. In this case the term will end with no leader"."""
    bench = Bench(voters=5).expired()
    requests = list(bench.effects)
    bench.grant(TWO)
    bench.effects = requests
    bench.grant(THREE, FOUR, granted=False)
    assert bench.is_(Role.CANDIDATE)
    bench.expire()
    assert bench.about.term == 2


# 5.2 leader election


def test_candidate_refuses_leader_of_older_term() -> None:
    """Quote: "then the candidate rejects the RPC and continues in candidate state"."""
    bench = Bench(term=4).expired()
    assert not bench.append(term=4).success
    assert bench.is_(Role.CANDIDATE)


def test_election_timeouts_drawn_from_whole_interval() -> None:
    """Quote: "election timeouts are chosen randomly from a fixed interval"."""
    timeouts = {Bench(seed=seed).raft.deadline for seed in range(200)}
    assert min(timeouts) >= 1_000
    assert max(timeouts) <= 2_000
    assert max(timeouts) - min(timeouts) > 900


def test_candidate_restarts_timeout_at_each_election() -> None:
    """Quote: "Each candidate restarts its randomized election timeout at the start of an election"."""
    bench = Bench()
    waits = set()
    for _ in range(20):
        bench.expire()
        waits.add(bench.raft.deadline - bench.now)
    assert len(waits) > 15


# 5.3 log replication


def test_leader_begins_term_with_its_configuration() -> None:
    """The configuration is the no-op of a new term. At index 1 of an empty log it is the initial configuration."""
    bench = Bench().lead()
    (append,) = bench.appends(TWO)
    assert append.previous == ORIGIN
    assert [configuration_in(entry) for entry in append.entries] == [group(3)]


def test_dead_follower_gets_heartbeats_and_catches_up() -> None:
    """Quote: "the leader retries AppendEntries RPCs indefinitely", for followers that crash or are slow."""
    bench = Bench(voters=3).lead()
    bench.matched(TWO, bench.appends(TWO)[0])
    bench.propose(b"x")
    for _ in range(100):
        bench.expire()
        to_two = bench.appends(TWO)
        to_three = bench.appends(THREE)
        assert sum(len(append.entries) for append in to_three) <= 2
        for append in to_two:
            bench.matched(TWO, append)
    bench.expire()
    (probe,) = bench.appends(THREE)
    bench.matched(THREE, probe, up_to=0)
    (missing,) = bench.appends(THREE)
    bench.matched(THREE, missing)
    assert {follower.match for follower in bench.about.followers} == {2}


def test_follower_with_older_copy_gets_entries_again() -> None:
    """Quote: "until all followers eventually store all log entries". An older copy replaced the follower's storage."""
    bench = Bench(voters=3).lead()
    bench.matched(TWO, bench.appends(TWO)[0])
    bench.propose(b"x")
    (early,) = bench.appends(TWO)
    bench.matched(TWO, early)
    bench.expire()
    (heartbeat,) = bench.appends(TWO)
    bench.refused(TWO, heartbeat, hint=2)
    (again,) = bench.appends(TWO)
    assert (again.previous.index, len(again.entries)) == (1, 1)
    assert {follower.match for follower in bench.about.followers} == {0}
    assert (Drop.REFUSAL_OF_ACKNOWLEDGED_ENTRIES, 1) in bench.about.dropped
    bench.matched(TWO, again)
    assert {follower.match for follower in bench.about.followers} == {0, 2}


def test_late_refusal_keeps_acknowledged_entries() -> None:
    """A refusal from before an acknowledgment, which arrives later, does not show that entries are lost."""
    bench = Bench(voters=3).lead()
    (first,) = bench.appends(TWO)
    bench.expire()
    (heartbeat,) = bench.appends(TWO)
    bench.matched(TWO, first)
    bench.refused(TWO, heartbeat, hint=1)
    assert {follower.match for follower in bench.about.followers} == {0, 1}
    assert (Drop.REFUSAL_OF_ACKNOWLEDGED_ENTRIES, 1) not in bench.about.dropped


def test_leader_never_overwrites_its_entries() -> None:
    """Leader append-only: a leader never overwrites or deletes entries in its log."""
    bench = Bench(1).lead()
    before = bench.terms
    reply = bench.append(term=2, previous=ORIGIN, entries=entries_of(2), sender=THREE)
    assert not reply.success
    assert bench.terms == before
    assert bench.is_(Role.LEADER)


@pytest.mark.parametrize(
    ("own", "previous", "hint"),
    [
        ((1, 1, 1), AT(9, 3), 4),  # too short: from the end of the log
        ((1, 1, 2, 2, 2), AT(5, 3), 3),  # the whole conflicting term is skipped
        ((1, 1, 2, 2, 2), AT(2, 3), 1),
    ],
)
def test_refusal_has_index_to_try_next(own: tuple[int, ...], previous: LogId, hint: int) -> None:
    """Quote: "… the term of the conflicting entry and the first index it stores for that term".

    2. A heartbeat needs a matching entry at prevLogIndex too.
    """
    reply = Bench(*own).append(term=5, previous=previous)
    assert (reply.success, reply.next_index) == (False, hint)


def test_conflicting_term_needs_one_refusal() -> None:
    """Quote: "one AppendEntries RPC will be required for each term with conflicting entries"."""
    leader = Bench(*[1] * 10, *[5] * 90, term=8)
    follower = Bench(*[1] * 10, *[2] * 50, *[3] * 50, term=8)
    leader.lead()
    (append,) = leader.appends(TWO)
    refusals = 0
    while True:
        reply = follower.append(append.term, append.previous, append.entries, append.commit)
        if reply.success:
            break
        refusals += 1
        leader.refused(TWO, append, hint=reply.next_index)
        (append,) = leader.appends(TWO)
    assert refusals == 2
    assert follower.terms == leader.terms


def test_appends_pipelined_up_to_window_then_batched() -> None:
    """For throughput, `next` advances before the replies arrive."""
    bench = Bench(options=replace(lan(), in_flight=2)).lead()
    bench.matched(TWO, bench.appends(TWO)[0])
    sent = []
    for number in range(5):
        bench.propose(b"x", proposal_id=number)
        sent += bench.appends(TWO)
    assert [append.previous.index for append in sent] == [1, 2]
    bench.matched(TWO, sent[0])
    (batch,) = bench.appends(TWO)
    assert (batch.previous.index, len(batch.entries)) == (3, 3)


def test_message_has_limited_bytes_and_at_least_one_entry() -> None:
    bench = Bench(options=replace(lan(), max_bytes_per_append=100, in_flight=10)).lead()
    bench.matched(TWO, bench.appends(TWO)[0])
    bench.propose(b"x" * 500, b"y" * 20, b"z" * 20)
    assert [len(append.entries) for append in bench.appends(TWO)] == [1, 1, 1]


def test_leader_counts_its_own_durable_entries() -> None:
    """An entry counts as stored on the leader only when it is durable there."""
    bench = Bench(fast=False).expired()
    bench.persisted(bench.all(Persist)[0].number)
    bench.effects = [
        Send(TWO, RequestVote(term=1, candidate=ONE, last=ORIGIN, correlation=bench.raft._replica._correlation - 1))
    ]
    bench.grant(TWO)
    (persist,) = bench.all(Persist)
    bench.matched(TWO, bench.appends(TWO)[0])
    assert bench.about.commit_index == 0
    bench.persisted(persist.number)
    assert bench.about.commit_index == 1


def test_leader_appends_before_own_disk_write() -> None:
    """The replication runs in parallel to the leader's own disk write."""
    bench = Bench().lead()
    bench.fast = False
    bench.matched(TWO, bench.appends(TWO)[0])
    bench.propose(b"x")
    assert [send.after for send in bench.all(Send)] == [0]


# 5.4 safety


def test_append_against_committed_entries_refused() -> None:
    """Committed entries are never truncated, even by appends of a faulty leader."""
    bench = Bench(1, 1, 1)
    bench.append(term=1, previous=AT(3, 1), commit=3)
    reply = bench.append(term=2, previous=AT(1, 1), entries=suffix(2, 2), sender=TWO)
    assert not reply.success
    assert bench.terms == [1, 1, 1]
    assert (Drop.APPEND_AGAINST_COMMIT, 1) in bench.about.dropped


# 5.5 follower and candidate crashes


def test_repeated_append_gets_same_reply() -> None:
    """Quote: "Raft RPCs are idempotent, so this causes no harm"."""
    bench = Bench()
    first = bench.append(term=1, entries=entries_of(1, 1))
    again = bench.append(term=1, entries=entries_of(1, 1))
    assert replace(first, correlation=0) == replace(again, correlation=0)
    assert bench.all(Persist) == []


def test_repeated_append_waits_for_pending_write() -> None:
    """The second reply waits for the write, because it must not report entries as stored before they are."""
    bench = Bench(fast=False)
    bench.append(term=1, entries=entries_of(1))
    (first,) = bench.all(Send)
    bench.append(term=1, entries=entries_of(1))
    (again,) = bench.all(Send)
    assert again.after == first.after > 0


def test_heartbeat_reply_has_durable_entries() -> None:
    """The reply does not wait for the disk, so a follower with a slow disk does not appear dead.

    Respond to RPCs from candidates and leaders.
    """
    bench = Bench(1, term=1, fast=False)
    bench.append(term=1, previous=AT(1, 1), entries=suffix(2, 1))
    reply = bench.append(term=1, previous=AT(2, 1))
    (send,) = bench.all(Send)
    assert (reply.success, reply.next_index, send.after) == (True, 2, 0)


# 5.6 timing


def test_options_without_stable_leader_refused() -> None:
    """Raft needs broadcastTime << electionTimeout."""
    with pytest.raises(ValueError, match="heartbeat"):
        Options(election_timeout_min_ms=100, election_timeout_max_ms=200, heartbeat_ms=100, retry_ms=10)
    with pytest.raises(ValueError, match="at least 1"):
        replace(lan(), in_flight=0)
    assert lan().heartbeat_ms * 5 <= lan().election_timeout_min_ms
    assert local().heartbeat_ms * 5 <= local().election_timeout_min_ms


# Not in the paper


def test_single_server_elects_itself_and_commits() -> None:
    bench = Bench(voters=1, fast=False).expired()
    assert bench.is_(Role.CANDIDATE)
    bench.persisted(1)
    assert bench.is_(Role.LEADER)
    bench.persisted(2)
    assert bench.about.commit_index == 1
    bench.propose(b"x", proposal_id=9)
    assert bench.all(ProposalResolved) == []
    bench.persisted(3)
    assert bench.all(ProposalResolved) == [
        ProposalResolved(proposal_id=9, outcome=Outcome.COMMITTED, position=AT(2, 1), leader=ONE)
    ]


def test_vote_is_durable_and_repeated_for_same_candidate() -> None:
    """Each server has one vote per term; the same candidate gets it again, also after a restart.

    2. If votedFor is null or candidateId, and candidate's log is up-to-date, grant vote.
    """
    bench = Bench(1)
    assert bench.request_vote(term=2, last=AT(1, 1)).granted
    assert bench.all(Persist)[0].hard_state == HardState(2, TWO)
    assert bench.request_vote(term=2, last=AT(1, 1)).granted
    restarted = Bench(1, term=2, voted_for=TWO)
    assert restarted.request_vote(term=2, last=AT(1, 1)).granted
    assert not restarted.request_vote(term=2, last=AT(1, 1), sender=FIVE).granted
    assert restarted.all(Persist) == []


def test_commit_notice_sent_to_idle_follower() -> None:
    """Followers apply commands within milliseconds, not within a heartbeat interval."""
    # Given a commit, and no other message to send
    bench = Bench().lead()
    (append,) = bench.appends(TWO)
    bench.matched(TWO, append)
    assert bench.appends(TWO) == []
    # When the notice is due
    due_ms = bench.now + lan().commit_notice_ms
    assert bench.raft.deadline == due_ms
    bench.expire()
    # Then an empty append carries the commit index, once
    (heartbeat,) = bench.appends(TWO)
    assert bench.now == due_ms
    assert (heartbeat.entries, heartbeat.commit) == ((), 1)
    bench.matched(TWO, heartbeat)
    assert bench.appends(TWO) == []


def test_heartbeats_to_all_followers_share_times() -> None:
    """The leader needs one timer, although a commit notice went to one follower only."""
    # Given a follower with a later heartbeat than the other
    bench = Bench(voters=3).lead()
    bench.matched(TWO, bench.appends(TWO)[0])
    bench.expire()
    assert [len(bench.appends(each)) for each in (TWO, THREE)] == [1, 0]
    for _ in range(5):
        # When the earlier heartbeat is due
        bench.expire()
        # Then both are sent
        assert [len(bench.appends(each)) for each in (TWO, THREE)] == [1, 1]


def test_next_append_replaces_commit_notice() -> None:
    """Under load a separate notice would double the number of appends."""
    bench = Bench().lead()
    (append,) = bench.appends(TWO)
    bench.matched(TWO, append)
    bench.propose(b"next")
    (carrier,) = bench.appends(TWO)
    assert carrier.commit == 1
    bench.step(DeadlineReached(), after_ms=lan().commit_notice_ms)
    assert bench.appends(TWO) == []


def test_follower_caught_up_with_log_end_of_previous_reply() -> None:
    """Under load a follower never holds the whole log, because the log grows.

    It was caught up at its previous reply if it now holds all entries that the log had then.
    """
    bench = Bench(1).lead()

    def caught_up(peer: ServerId) -> int | None:
        return {each.server_id: each.caught_up_ms for each in bench.about.followers}[peer]

    (first,) = bench.appends(TWO)
    assert caught_up(TWO) is None
    bench.propose(b"x")
    bench.matched(TWO, first)
    (second,) = bench.appends(TWO)
    assert caught_up(TWO) is None  # the proposal is in transfer
    bench.now += 50
    bench.propose(b"y")
    (third,) = bench.appends(TWO)
    bench.matched(TWO, second)
    assert caught_up(TWO) == 50  # TWO holds all entries of 50 ms ago, the time of its previous reply
    bench.now += 5
    bench.matched(TWO, third)
    assert (caught_up(TWO), caught_up(THREE)) == (0, None)
