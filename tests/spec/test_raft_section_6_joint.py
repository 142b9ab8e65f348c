"""Section 6 of the Raft paper, sentence by sentence: joint consensus.

What needs several servers at once is told in stories under `tests/scenarios/raft`; majorities alone are tested in
`test_raft_quorum.py`, the plan of a change in `test_raft_configuration.py`.
"""

import pytest

from consensus.core.effects import ChangeOutcome, ConfigurationResolved, Persist, Role, Send
from consensus.core.entry_data import configuration_entry, configuration_in
from consensus.core.messages import RequestVote
from consensus.core.model import LogId
from tests.spec.membership_bench import Group, in_joint_consensus, joint, plain
from tests.spec.raft_bench import FIVE, FOUR, ONE, THREE, TWO, Bench


def test_any_approach_where_servers_switch_directly_from_old_to_new_is_unsafe() -> None:
    """In Raft the cluster first switches to a transitional configuration we call joint consensus."""
    bench = in_joint_consensus()
    assert configuration_in(bench.appended[-1]) == joint((1, 2, 3), (3, 4, 5))


def test_log_entries_are_replicated_to_all_servers_in_both_configurations() -> None:
    """Log entries are replicated to all servers in both configurations."""
    bench = in_joint_consensus()
    assert bench.replicated_to == [2, 3, 4, 5]
    assert {peer for peer, append in bench.sent.items() if bench.appended[-1] in append.entries} == {TWO, THREE, 4, 5}


@pytest.mark.parametrize(("old", "new"), [((1, 2, 3), (4, 5)), ((2, 3), (1, 4, 5))])
def test_any_server_from_either_configuration_may_serve_as_leader(old: tuple[int, ...], new: tuple[int, ...]) -> None:
    """Any server from either configuration may serve as leader."""
    bench = Bench(configuration=joint(old, new), voters=5)
    bench.lead()
    assert bench.is_(Role.LEADER)


@pytest.mark.parametrize(
    ("granting", "role"),
    [((2, 4), Role.CANDIDATE), ((4, 5, 6), Role.CANDIDATE), ((2, 3), Role.CANDIDATE), ((2, 4, 5), Role.LEADER)],
)
def test_elections_require_separate_majorities_from_both_the_old_and_new_configurations(
    granting: tuple[int, ...], role: Role
) -> None:
    """Agreement (for elections and entry commitment) requires separate majorities from both ... configurations."""
    bench = Bench(configuration=joint((1, 2, 3), (4, 5, 6)), voters=6)
    bench.expire()
    bench.grant(*granting)
    assert bench.is_(role)


@pytest.mark.parametrize(
    ("storing", "committed"), [((2,), False), ((4, 5), False), ((2, 4), False), ((2, 3, 4), True), ((2, 4, 5), True)]
)
def test_entry_commitment_requires_separate_majorities_from_both_configurations(
    storing: tuple[int, ...],
    committed: bool,  # noqa: FBT001 - a column of the table
) -> None:
    """... requires separate majorities from both the old and new configurations."""
    bench = in_joint_consensus()
    index = bench.about.last.index
    bench.store(*storing)
    assert (bench.about.commit_index >= index) is committed


def test_the_cluster_continues_servicing_client_requests_throughout_the_change() -> None:
    """... joint consensus allows the cluster to continue servicing client requests throughout the ... change."""
    bench = in_joint_consensus()
    bench.propose(b"meanwhile")
    index = bench.about.last.index
    bench.store(2, 3, 4)
    assert bench.about.commit_index >= index


def test_a_request_to_change_the_configuration_stores_the_joint_one_as_an_entry_and_replicates_it() -> None:
    """When the leader receives a request to change ..., it stores the configuration ... as a log entry."""
    bench = in_joint_consensus()
    assert bench.about.last == LogId(2, 1)
    assert bench.sent[TWO].entries == (configuration_entry(1, joint((1, 2, 3), (3, 4, 5))),)


def test_a_server_always_uses_the_latest_configuration_in_its_log_committed_or_not() -> None:
    """Once a given server adds the new configuration entry to its log, it uses that ... for all future decisions."""
    bench = Bench(configuration=plain(1, 2, 3), voters=5)
    bench.append(
        term=1,
        entries=[configuration_entry(1, plain(1, 2, 3)), configuration_entry(1, joint((1, 2, 3), (1, 4, 5)))],
        commit=0,
    )
    assert bench.about.configuration == joint((1, 2, 3), (1, 4, 5))
    bench.expire()
    assert [send.recipient for send in bench.all(Send)] == [TWO, THREE, FOUR, FIVE]
    assert all(isinstance(send.message, RequestVote) for send in bench.all(Send))


def test_a_configuration_is_taken_back_when_its_entry_is_truncated() -> None:
    """(The latest configuration in the log is, after a truncation, the one before.)."""
    bench = Bench()
    bench.append(
        term=1, entries=[configuration_entry(1, plain(1, 2, 3)), configuration_entry(1, joint((1, 2, 3), (1, 4, 5)))]
    )
    bench.append(term=2, previous=LogId(1, 1), entries=[configuration_entry(2, plain(1, 2, 3))], sender=THREE)
    assert bench.about.configuration == plain(1, 2, 3)


def test_the_leader_uses_the_rules_of_the_joint_configuration_to_commit_it() -> None:
    """... the leader will use the rules of C_old,new to determine when the log entry for C_old,new is committed."""
    bench = in_joint_consensus()
    bench.store(2)
    assert bench.about.commit_index < bench.about.last.index
    bench.store(4, 5)
    assert bench.about.commit_index >= 2


def test_once_the_joint_configuration_is_committed_the_leader_creates_the_entry_of_the_new_one() -> None:
    """It is now safe for the leader to create a log entry describing C_new and replicate it to the cluster."""
    bench = in_joint_consensus()
    bench.store(2, 4)
    assert bench.configuration.is_joint
    bench.store(3)
    assert bench.configuration == plain(3, 4, 5)
    assert bench.sent[FIVE].entries[-1] == configuration_entry(1, plain(3, 4, 5))


def test_the_new_configuration_commits_under_the_rules_of_the_new_one_alone() -> None:
    """When the new configuration has been committed under the rules of C_new, the old configuration is irrelevant."""
    bench = in_joint_consensus()
    bench.store(2, 3, 4)
    assert bench.configuration == plain(3, 4, 5)
    bench.store(2)
    assert bench.answers == []
    bench.store(3)
    assert bench.answers == [
        ConfigurationResolved(
            change_id=1, outcome=ChangeOutcome.COMMITTED, refusal=None, position=LogId(3, 1), leader=ONE
        )
    ]


def test_a_new_leader_that_has_the_joint_configuration_finishes_the_change() -> None:
    """If the leader crashes, a new leader may be chosen under either C_old or C_old,new."""
    bench = Group(term=1, configuration=joint((1, 2, 3), (1, 4, 5)), voters=5)
    bench.lead()
    assert bench.configuration.is_joint
    bench.store(2, 4)
    assert bench.configuration == plain(1, 4, 5)
    bench.store(4)
    assert bench.about.commit_index == bench.about.last.index
    assert bench.answers == []


def test_the_new_servers_cannot_decide_alone() -> None:
    """... C_new cannot make unilateral decisions during this period."""
    bench = Bench(configuration=joint((2, 3), (1, 4, 5)), voters=5)
    bench.expire()
    bench.grant(FOUR, FIVE)
    assert bench.is_(Role.CANDIDATE)


def test_once_the_joint_configuration_is_committed_no_server_is_elected_without_it() -> None:
    """The Leader Completeness Property ensures that only servers with the C_old,new log entry can be elected as leader.

    A server of either majority that stored it refuses a candidate whose log ends before it.
    """
    stored = (configuration_entry(1, plain(1, 2, 3)), configuration_entry(1, joint((1, 2, 3), (3, 4, 5))))
    for voter in (2, 3, 4):
        bench = Bench(configuration=plain(1, 2, 3), entries=stored, term=1)
        assert not bench.ask(2, LogId(1, 1), sender=6 - voter).granted
        assert bench.ask(2, LogId(2, 1), sender=6 - voter).granted


@pytest.mark.parametrize("granting", [(2, 3), (4, 5)])
def test_neither_the_old_nor_the_new_servers_decide_without_the_others(granting: tuple[int, ...]) -> None:
    """Neither C_old nor C_new can make decisions without approval of the other."""
    bench = Bench(configuration=joint((1, 2, 3), (1, 4, 5)), voters=5)
    bench.expire()
    bench.grant(*granting)
    assert bench.is_(Role.CANDIDATE)


def test_configurations_are_stored_and_communicated_by_entries_of_the_log() -> None:
    """Cluster configurations are stored and communicated using special entries in the replicated log."""
    bench = Bench(configuration=plain(1, 2, 3))
    bench.append(term=1, entries=[configuration_entry(1, plain(1, 2, 3, 4))])
    (persist,) = bench.all(Persist)
    assert persist.entries == (configuration_entry(1, plain(1, 2, 3, 4)),)
    restarted = Bench(configuration=plain(1, 2, 3), entries=persist.entries, term=1)
    assert restarted.about.configuration == plain(1, 2, 3, 4)
