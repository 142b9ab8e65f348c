"""Requests to change the members (Raft section 6): one at a time, each refused with its reason, by set of features."""

from dataclasses import replace

import pytest

from consensus.core.effects import ChangeOutcome, ChangeRefusal, ConfigurationResolved
from consensus.core.entry_data import configuration_entry
from consensus.core.events import ChangeConfiguration
from consensus.core.features import GARLIC_FARM, ZMQ_RAFT, JointConsensus
from consensus.core.model import Configuration, LogId
from tests.spec.membership_bench import Group, in_joint_consensus, joint, plain, servers
from tests.spec.raft_bench import ONE, TWO, Bench

# -- one change at a time ---------------------------------------------------------------------------------------------


def refusals(bench: Group) -> list[ChangeRefusal | None]:
    """Why changes were refused so far."""
    return [answer.refusal for answer in bench.answers]


def test_there_is_no_change_before_the_leader_has_committed_an_entry_of_its_own_term() -> None:
    """(An unfinished change of an older leader may still commit elsewhere.)."""
    bench = Group()
    bench.lead()
    bench.change(plain(1, 2))
    assert refusals(bench) == [ChangeRefusal.NO_COMMIT_IN_TERM]
    assert bench.configuration == plain(1, 2, 3)


def test_there_is_no_change_while_another_is_under_way() -> None:
    """(While newcomers catch up, in joint consensus, and until C_new is committed.)."""
    bench = Group()
    bench.become_leader()
    bench.change(plain(3, 4, 5), change_id=1)
    bench.change(plain(1, 2), change_id=2)
    bench.bring_up(4, 5)
    bench.change(plain(1, 2), change_id=3)
    bench.store(2, 4, 3)
    assert bench.configuration == plain(3, 4, 5)
    bench.change(plain(3, 4), change_id=4)
    assert refusals(bench) == [ChangeRefusal.CHANGE_UNDER_WAY] * 3
    bench.store(5)
    assert bench.answers[-1] == ConfigurationResolved(
        change_id=1, outcome=ChangeOutcome.COMMITTED, refusal=None, position=LogId(3, 1), leader=ONE
    )


@pytest.mark.parametrize(
    ("target", "refusal"),
    [
        (Configuration(()), ChangeRefusal.NO_VOTERS),
        (Configuration((), learners=servers(1)), ChangeRefusal.NO_VOTERS),
        (plain(1, 2, 2), ChangeRefusal.SERVER_TWICE),
        (plain(1, 2, learners=(2,)), ChangeRefusal.SERVER_TWICE),
        (joint((1, 2), (3, 4)), ChangeRefusal.SERVER_TWICE),
        (plain(*range(1, 66)), ChangeRefusal.TOO_MANY_SERVERS),
    ],
)
def test_an_impossible_configuration_is_refused(target: Configuration, refusal: ChangeRefusal) -> None:
    """(Never zero voters, never a server twice.)."""
    bench = Group()
    bench.become_leader()
    bench.change(target)
    assert refusals(bench) == [refusal]
    assert bench.about.last.index == 1


def test_a_change_to_what_is_already_there_succeeds_without_an_entry() -> None:
    """(A client that repeats its request after a lost answer is told that it is done.)."""
    bench = Group()
    bench.become_leader()
    bench.change(plain(1, 2, 3))
    assert bench.answers[0].outcome is ChangeOutcome.COMMITTED
    assert bench.about.last.index == 1


def test_only_the_leader_changes_the_configuration() -> None:
    """(Others say who leads.)."""
    bench = Bench()
    bench.append(term=1, entries=[configuration_entry(1, plain(1, 2, 3))], sender=TWO)
    bench.step(ChangeConfiguration(7, plain(1, 2)))
    assert bench.all(ConfigurationResolved) == [
        ConfigurationResolved(
            change_id=7, outcome=ChangeOutcome.REFUSED, refusal=ChangeRefusal.NOT_LEADER, position=None, leader=TWO
        )
    ]


def test_a_leader_that_resigns_with_a_step_in_its_log_cannot_say_what_becomes_of_it() -> None:
    """(Unknown, never refused: another leader may finish it.)."""
    bench = in_joint_consensus()
    bench.refused(TWO, bench.sent[TWO], hint=1, term=2)
    assert bench.answers == [ConfigurationResolved(change_id=1, outcome=ChangeOutcome.UNKNOWN)]


# -- sets of features --------------------------------------------------------------------------------------------------


def test_one_server_more_or_less_needs_no_joint_consensus() -> None:
    """(Any majority of the one shares a server with any majority of the other.)."""
    bench = Group()
    bench.become_leader()
    bench.change(plain(1, 2))
    assert bench.configuration == plain(1, 2)


def test_a_protocol_without_joint_consensus_changes_one_server_at_a_time() -> None:
    """(More at once is refused, with the reason.)."""
    bench = Group(features=replace(GARLIC_FARM, joint=JointConsensus.NEVER))
    bench.become_leader()
    bench.change(plain(1, 2, 4), change_id=1)
    assert refusals(bench) == [ChangeRefusal.MORE_THAN_ONE_SERVER]
    bench.change(plain(1, 2), change_id=2)
    bench.store(2)
    bench.change(plain(1, 2, 4), change_id=3)
    bench.bring_up(4)
    assert bench.configuration == plain(1, 2, 4)


def test_a_peer_that_lacks_the_extension_is_sent_no_joint_configuration() -> None:
    """(Its server would refuse the entry, and replication to it would stand still.)."""
    bench = Group(extended=False)
    bench.become_leader()
    bench.change(plain(1, 4, 5), change_id=1)
    bench.change(plain(1, 2, 3, learners=(4,)), change_id=2)
    assert refusals(bench) == [ChangeRefusal.MORE_THAN_ONE_SERVER, ChangeRefusal.NO_LEARNERS]
    bench.change(plain(1, 2), change_id=3)
    assert bench.configuration == plain(1, 2)


def test_a_protocol_without_learners_in_configurations_refuses_them() -> None:
    """(Observers are what the protocol makes of them there.)."""
    bench = Group(1, features=ZMQ_RAFT)
    bench.become_leader()
    bench.change(plain(1, 2, 3, learners=(4,)))
    assert refusals(bench) == [ChangeRefusal.NO_LEARNERS]
