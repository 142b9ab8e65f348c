"""Section 6 of the Raft paper, by its sentences: the departure of the leader, and removed servers."""

from consensus.core.effects import ChangeOutcome, ConfigurationResolved, Role
from consensus.core.entry_data import configuration_entry
from consensus.core.messages import AppendReply, VoteReply
from consensus.core.model import LogId
from consensus.core.options import lan
from tests.spec.membership_bench import Group, plain
from tests.spec.raft_bench import FIVE, FOUR, ONE, THREE, TWO, Bench

MINIMUM_MS = lan().election_timeout_min_ms


# -- departure of the leader -------------------------------------------------------------------------------------------


def test_removed_leader_replicates_without_counting_itself() -> None:
    """Quote: "… it replicates log entries but does not count itself in majorities".

    Any majority before the change shares a server with any majority after it.
    """
    bench = Group().become_leader()
    bench.change(plain(2, 3))
    assert bench.configuration == plain(2, 3)
    bench.store(2)
    assert bench.is_(Role.LEADER)
    assert bench.about.commit_index < bench.about.last.index


def test_removed_leader_resigns_after_commitment() -> None:
    """Quote: "… the leader steps down (returns to follower state) once it has committed the C_new log entry"."""
    bench = Group().become_leader()
    bench.change(plain(2, 3))
    bench.store(2)
    bench.matched(THREE, bench.sent[THREE])
    assert bench.answers == [
        ConfigurationResolved(
            change_id=1, outcome=ChangeOutcome.COMMITTED, refusal=None, position=LogId(2, 1), leader=ONE
        )
    ]
    assert bench.is_(Role.FOLLOWER)
    assert bench.about.term == 1


def test_removed_leader_does_not_campaign() -> None:
    """Clients can use other servers, and the vote requests of this leader would only disturb the group."""
    bench = Group().become_leader()
    bench.change(plain(2, 3))
    bench.store(2)
    bench.matched(THREE, bench.sent[THREE])
    for _ in range(3):
        bench.expire()
        assert bench.effects == []


def test_removed_server_may_campaign_before_commitment() -> None:
    """Quote: "Before this point, it may be the case that only a server from C_old can be elected leader"."""
    entries = (configuration_entry(1, plain(1, 2)), configuration_entry(1, plain(2)))
    bench = Bench(term=1, configuration=plain(1, 2), voters=2, entries=entries).expired()
    bench.grant(TWO)
    assert bench.is_(Role.LEADER)


# -- removed servers ---------------------------------------------------------------------------------------------------


def test_vote_request_during_leader_contact_ignored() -> None:
    """Quote: "… it does not update its term or grant its vote"."""
    bench = Bench(configuration=plain(1, 2, 3))
    bench.append(term=1, entries=[configuration_entry(1, plain(1, 2, 3))], sender=TWO)
    reply = bench.request_vote(9, LogId(5, 5), sender=FOUR, after_ms=MINIMUM_MS - 1)
    assert (reply.granted, reply.term, bench.about.term) == (False, 1, 1)


def test_larger_term_of_removed_server_deposes_no_leader() -> None:
    """Quote: "… able to get heartbeats to its cluster, then it will not be deposed by larger term numbers"."""
    bench = Group(voters=4).become_leader()
    bench.change(plain(1, 2, 3))
    bench.store(2, 3)
    assert bench.answers[0].outcome is ChangeOutcome.COMMITTED
    bench.request_vote(9, LogId(5, 1), sender=FOUR)
    assert bench.is_(Role.LEADER)
    bench.receive(FOUR, AppendReply(term=9, success=False, next_index=1, correlation=bench.sent[FOUR].correlation))
    assert bench.is_(Role.LEADER)


def test_removed_server_gets_its_removal_and_then_nothing() -> None:
    """A server that knows its committed removal does not campaign."""
    bench = Group(voters=4).become_leader()
    bench.change(plain(1, 2, 3))
    assert bench.replicated_to == [2, 3, 4]
    bench.store(4)
    bench.store(2, 3)
    bench.expire()
    assert bench.sent[FOUR].commit == bench.about.last.index
    bench.pass_time(2 * MINIMUM_MS, 2, 3)
    assert bench.replicated_to == [2, 3]


def test_vote_depends_on_log_not_on_membership() -> None:
    """A server may lack the configuration that made the candidate a voter, and must still be able to vote for it."""
    bench = Bench(configuration=plain(1, 2, 3))
    assert bench.request_vote(1, LogId(1, 1), sender=FIVE).granted


def test_votes_of_outsiders_do_not_count() -> None:
    bench = Bench().expired()
    bench.receive(FOUR, VoteReply(term=1, granted=True, correlation=bench.correlation))
    bench.receive(FIVE, VoteReply(term=9, granted=False, correlation=bench.correlation))
    assert (bench.about.role, bench.about.term) == (Role.CANDIDATE, 1)


def test_campaign_starts_after_minimum_election_timeout() -> None:
    """Quote: "each server waits at least a minimum election timeout before starting an election".

    So when a server campaigns, the others have also been without a leader for that time, and grant votes.
    """
    bench = Bench(configuration=plain(1, 2, 3))
    bench.append(term=1, entries=[configuration_entry(1, plain(1, 2, 3))], sender=TWO)
    assert bench.raft.deadline - bench.now >= MINIMUM_MS
    assert bench.request_vote(2, LogId(1, 1), sender=THREE, after_ms=MINIMUM_MS).granted
