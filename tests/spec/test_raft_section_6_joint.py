"""Section 6 of the Raft paper, by its sentences: joint consensus.

The scenarios under `tests/scenarios/raft` test groups of servers. `test_raft_quorum.py` tests majorities, and
`test_raft_configuration.py` tests the plan of a change.
"""

import pytest

from consensus.core.effects import ChangeOutcome, ConfigurationResolved, Persist, Role, Send
from consensus.core.entry_data import configuration_entry
from consensus.core.messages import RequestVote
from consensus.core.model import LogId
from tests.effort import each_case
from tests.spec.membership_bench import Group, in_joint_consensus, joint, plain
from tests.spec.raft_bench import FIVE, FOUR, ONE, THREE, TWO, Bench


def test_joint_entries_replicated_to_both_configurations() -> None:
    """Quote: "Log entries are replicated to all servers in both configurations"."""
    bench = in_joint_consensus()
    assert bench.replicated_to == [2, 3, 4, 5]
    assert {peer for peer, append in bench.sent.items() if bench.appended[-1] in append.entries} == {TWO, THREE, 4, 5}


@pytest.mark.parametrize(("old", "new"), [((1, 2, 3), (4, 5)), ((2, 3), (1, 4, 5))])
def test_server_of_either_configuration_may_lead(old: tuple[int, ...], new: tuple[int, ...]) -> None:
    """Quote: "Any server from either configuration may serve as leader"."""
    bench = Bench(configuration=joint(old, new), voters=5).lead()
    assert bench.is_(Role.LEADER)


@pytest.mark.parametrize(
    ("granting", "role"),
    [((2, 4), Role.CANDIDATE), ((4, 5, 6), Role.CANDIDATE), ((2, 3), Role.CANDIDATE), ((2, 4, 5), Role.LEADER)],
)
def test_joint_election_needs_both_majorities(granting: tuple[int, ...], role: Role) -> None:
    """Quote: "Agreement (for elections …) requires separate majorities from both … configurations".

    Quote: "… C_new cannot make unilateral decisions during this period".

    Quote: "Neither C_old nor C_new can make decisions without approval of the other".
    """
    bench = Bench(configuration=joint((1, 2, 3), (4, 5, 6)), voters=6).expired()
    bench.grant(*granting)
    assert bench.is_(role)


@each_case(
    ("storing", "committed"), [((2,), False), ((4, 5), False), ((2, 4), False), ((2, 3, 4), True), ((2, 4, 5), True)]
)
def test_joint_commitment_needs_both_majorities(
    storing: tuple[int, ...],
    committed: bool,  # noqa: FBT001 - a column of the table
) -> None:
    """Quote: "… requires separate majorities from both the old and new configurations".

    Quote: "… use the rules of C_old,new to determine when the log entry for C_old,new is committed".
    """
    bench = in_joint_consensus()
    index = bench.about.last.index
    bench.store(*storing)
    assert (bench.about.commit_index >= index) is committed


def test_client_requests_served_during_change() -> None:
    """Quote: "… joint consensus allows the cluster to continue servicing client requests throughout the … change"."""
    bench = in_joint_consensus()
    bench.propose(b"x")
    index = bench.about.last.index
    bench.store(2, 3, 4)
    assert bench.about.commit_index >= index


def test_change_request_stored_and_replicated_as_joint_entry() -> None:
    """Quote: "When the leader receives a request to change …, it stores the configuration … as a log entry".

    Quote: "In Raft the cluster first switches to a transitional configuration we call joint consensus".
    """
    bench = in_joint_consensus()
    assert bench.about.last == LogId(2, 1)
    assert bench.sent[TWO].entries == (configuration_entry(1, joint((1, 2, 3), (3, 4, 5))),)


def test_latest_configuration_in_log_is_used() -> None:
    """Quote: "Once a given server adds the new configuration entry to its log, it uses that …"."""
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


def test_committed_joint_configuration_creates_new_one() -> None:
    """Quote: "It is now safe for the leader to create a log entry describing C_new and replicate it to the cluster"."""
    bench = in_joint_consensus()
    bench.store(2, 4)
    assert bench.configuration.is_joint
    bench.store(3)
    assert bench.configuration == plain(3, 4, 5)
    assert bench.sent[FIVE].entries[-1] == configuration_entry(1, plain(3, 4, 5))


def test_new_configuration_committed_by_its_own_rules() -> None:
    """Quote: "… committed under the rules of C_new, the old configuration is irrelevant …"."""
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


def test_new_leader_with_joint_configuration_ends_change() -> None:
    """Quote: "If the leader crashes, a new leader may be chosen under either C_old or C_old,new"."""
    bench = Group(term=1, configuration=joint((1, 2, 3), (1, 4, 5)), voters=5).lead()
    assert bench.configuration.is_joint
    bench.store(2, 4)
    assert bench.configuration == plain(1, 4, 5)
    bench.store(4)
    assert bench.about.commit_index == bench.about.last.index
    assert bench.answers == []


def test_server_without_committed_joint_entry_not_elected() -> None:
    """Quote: "… only servers with the C_old,new log entry can be elected as leader".

    A server of either majority with the entry refuses a candidate whose log ends before it.
    """
    stored = (configuration_entry(1, plain(1, 2, 3)), configuration_entry(1, joint((1, 2, 3), (3, 4, 5))))
    for voter in (2, 3, 4):
        bench = Bench(configuration=plain(1, 2, 3), entries=stored, term=1)
        assert not bench.request_vote(2, LogId(1, 1), sender=6 - voter).granted
        assert bench.request_vote(2, LogId(2, 1), sender=6 - voter).granted


def test_configurations_stored_as_log_entries() -> None:
    """Quote: "Cluster configurations are stored and communicated using special entries in the replicated log"."""
    bench = Bench(configuration=plain(1, 2, 3))
    bench.append(term=1, entries=[configuration_entry(1, plain(1, 2, 3, 4))])
    (persist,) = bench.all(Persist)
    assert persist.entries == (configuration_entry(1, plain(1, 2, 3, 4)),)
    restarted = Bench(configuration=plain(1, 2, 3), entries=persist.entries, term=1)
    assert restarted.about.configuration == plain(1, 2, 3, 4)
